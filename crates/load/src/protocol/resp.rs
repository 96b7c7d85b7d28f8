//! The protocol of Redis and its relatives, RESP 2 and 3.

use super::{
    number, write_key, write_number, write_value, Lines, Outcome, Progress, Protocol, Response,
};
use crate::workload::{Key, Operation, Request};
use crate::Unexpected;

/// The longest value, in bytes.
const VALUE_MAX: u64 = 512 << 20;

/// The most elements of an aggregate.
const ELEMENTS_MAX: u64 = 1 << 20;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RespVersion {
    /// The version that a connection begins with.
    #[default]
    Two,
    /// Asked for with `HELLO 3`.
    Three,
}

/// A client: `GET` and `SET`.
#[derive(Clone, Debug, Default)]
pub struct Resp {
    version: RespVersion,
    /// Bytes of a value and its end of line that are left.
    left: u64,
    /// Elements that are left of the aggregate that is read.
    elements: u64,
    /// True if what is read is no response: an attribute, or a push.
    is_aside: bool,
    response: Option<Response>,
}

impl Resp {
    /// A client of this version.
    pub fn new(version: RespVersion) -> Resp {
        Resp {
            version,
            ..Resp::default()
        }
    }

    /// Notes what a reply says; of an aggregate, what the whole of it says.
    fn note(&mut self, outcome: Outcome, body_len: u64) {
        let new = || Response::new(outcome, 0);
        self.response.get_or_insert_with(new).body_len += body_len;
    }

    /// Reads a line.
    fn element(&mut self, text: &[u8]) -> Result<(), Unexpected> {
        let wrong = || Unexpected::bytes(text, "a reply of RESP");
        let (&kind, rest) = text.split_first().ok_or_else(wrong)?;
        // `None` for -1, which stands for nothing.
        let count = |most: u64| match rest {
            b"-1" => Ok(None),
            digits => match number(digits) {
                Some(count) if count <= most => Ok(Some(count)),
                _ => Err(wrong()),
            },
        };
        match kind {
            b'+' | b':' | b',' | b'#' | b'(' => self.note(Outcome::Served, 0),
            b'-' => self.note(Outcome::Refused(rest.escape_ascii().to_string()), 0),
            b'_' => self.note(Outcome::Miss, 0),
            b'$' | b'=' | b'!' => {
                let len = count(VALUE_MAX)?;
                self.left = len.map_or(0, |len| len + 2);
                match (kind, len) {
                    (_, None) => self.note(Outcome::Miss, 0),
                    (b'!', _) => self.note(Outcome::Refused("an error".into()), 0),
                    (_, Some(len)) => self.note(Outcome::Served, len),
                }
            }
            b'*' | b'~' | b'>' | b'%' | b'|' => {
                let count = count(ELEMENTS_MAX)?;
                if count.is_none() {
                    self.note(Outcome::Miss, 0);
                }
                let each = if matches!(kind, b'%' | b'|') { 2 } else { 1 };
                let elements = self.elements.checked_add(each * count.unwrap_or(0));
                self.elements = elements.ok_or_else(wrong)?;
                if matches!(kind, b'>' | b'|') {
                    // Only between replies, where what follows is the reply itself.
                    if self.response.is_some() || self.is_aside {
                        return Err(wrong());
                    }
                    self.is_aside = true;
                }
                self.note(Outcome::Served, 0);
            }
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

impl Lines for Resp {
    fn left(&mut self) -> &mut u64 {
        &mut self.left
    }

    fn next(&mut self, line: Option<&[u8]>) -> Result<Option<Response>, Unexpected> {
        if let Some(text) = line {
            self.elements = self.elements.saturating_sub(1);
            self.element(text)?;
        }
        if self.left > 0 || self.elements > 0 {
            return Ok(None);
        }
        let response = self.response.take();
        let was_aside = std::mem::take(&mut self.is_aside);
        Ok(response.filter(|_| !was_aside))
    }
}

impl Protocol for Resp {
    fn greet(&mut self, out: &mut Vec<u8>) -> usize {
        match self.version {
            RespVersion::Two => 0,
            RespVersion::Three => {
                out.extend_from_slice(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n");
                1
            }
        }
    }

    fn write(&mut self, request: &Request, out: &mut Vec<u8>) {
        out.extend_from_slice(match request.operation {
            Operation::Get => b"*2\r\n$3\r\nGET\r\n$",
            Operation::Set => b"*3\r\n$3\r\nSET\r\n$",
        });
        let key_len = match &request.key {
            Key::Number(n) => u64::from(5 + n.checked_ilog10().unwrap_or(0) + 1),
            Key::Name(name) => name.len() as u64,
        };
        write_number(key_len, out);
        out.extend_from_slice(b"\r\n");
        write_key(&request.key, out);
        if request.operation == Operation::Set {
            out.extend_from_slice(b"\r\n$");
            write_number(request.value_len.into(), out);
            out.extend_from_slice(b"\r\n");
            write_value(request.value_len, out);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn read(&mut self, bytes: &[u8]) -> Result<Progress, Unexpected> {
        self.read_lines(bytes)
    }

    fn end(&mut self) -> Option<Response> {
        *self = Resp::new(self.version);
        None
    }
}
