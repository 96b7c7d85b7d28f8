//! Frames: a kind, the number of a command, a length, and bytes.

use std::io::{self, Read, Write};

/// The most bytes of a frame's content.
pub(crate) const CONTENT_MAX: usize = 1 << 20;

/// Bytes in front of the content.
const HEADER: usize = 9;

/// The meaning of a frame's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Agent: [`super::Ready`] as JSON.
    Ready,
    /// Host: [`super::Run`] as JSON.
    Run,
    /// Host: standard input of the command; empty at its end.
    Input,
    /// Agent: standard output of the command.
    Output,
    /// Agent: standard error of the command.
    Errors,
    /// Agent: [`super::Exit`] as JSON.
    Exit,
    /// Agent: the reason why the command was not started.
    Refused,
}

const KINDS: [Kind; 7] = [
    Kind::Ready,
    Kind::Run,
    Kind::Input,
    Kind::Output,
    Kind::Errors,
    Kind::Exit,
    Kind::Refused,
];

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// The number of the command that it is about; 0 if it is about none.
    pub(crate) command: u32,
    pub(crate) content: Vec<u8>,
}

/// Writes a frame as one piece.
///
/// # Errors
/// As the writer; content that is too long.
pub(crate) fn write(
    mut to: impl Write,
    kind: Kind,
    command: u32,
    content: &[u8],
) -> io::Result<()> {
    if content.len() > CONTENT_MAX {
        return Err(wrong(format!("a frame of {} bytes", content.len())));
    }
    let number = KINDS.iter().position(|it| *it == kind).unwrap_or_default();
    let mut frame = Vec::with_capacity(content.len() + HEADER);
    frame.push(number as u8);
    frame.extend(command.to_le_bytes());
    frame.extend((content.len() as u32).to_le_bytes());
    frame.extend(content);
    to.write_all(&frame)
}

/// Reads a frame; `None` at the end of the stream before one.
///
/// # Errors
/// As the reader; a stream that ends in a frame; what is no frame.
pub(crate) fn read(mut from: impl Read) -> io::Result<Option<Frame>> {
    let mut header = [0; HEADER];
    if from.read(&mut header[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut header[1..])?;
    let [number, c0, c1, c2, c3, len @ ..] = header;
    let command = u32::from_le_bytes([c0, c1, c2, c3]);
    let kind = KINDS.get(usize::from(number));
    let kind = *kind.ok_or_else(|| wrong(format!("a frame of kind {number}, expected 0 to 6")))?;
    let len = u32::from_le_bytes(len) as usize;
    if len > CONTENT_MAX {
        let found = format!("a frame of {len} bytes, expected at most {CONTENT_MAX}");
        return Err(wrong(found));
    }
    let mut content = vec![0; len];
    from.read_exact(&mut content)?;
    Ok(Some(Frame {
        kind,
        command,
        content,
    }))
}

fn wrong(found: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("found {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written_and_nothing_else_is() {
        let mut bytes = Vec::new();
        for (n, kind) in KINDS.into_iter().enumerate() {
            write(&mut bytes, kind, n as u32, &vec![n as u8; n * 1000]).unwrap();
        }
        let mut from = &bytes[..];
        for (n, kind) in KINDS.into_iter().enumerate() {
            let content = vec![n as u8; n * 1000];
            assert_eq!(
                read(&mut from).unwrap(),
                Some(Frame {
                    kind,
                    command: n as u32,
                    content
                })
            );
        }
        assert_eq!(read(&mut from).unwrap(), None);
        for cut in [1, 8, 10] {
            assert!(read(&bytes[HEADER..HEADER + cut]).is_err());
        }
        assert!(read(&[7, 0, 0, 0, 0, 0, 0, 0, 0][..]).is_err());
        let long = read(&[1, 0, 0, 0, 0, 1, 0, 16, 0][..])
            .unwrap_err()
            .to_string();
        assert!(long.contains("expected at most 1048576"), "{long}");
        assert!(write(&mut bytes, Kind::Run, 1, &vec![0; CONTENT_MAX + 1]).is_err());
    }
}
