//! A request's target as a path below the folder that is served.

use super::Status;

/// The parts of a path, decoded. None is empty, begins with a dot or contains `/` or NUL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) parts: Vec<Vec<u8>>,
    /// Ends with a slash.
    pub(super) is_folder: bool,
}

impl Target {
    /// Parses `/path?query` or `http://host/path?query`; the query is ignored.
    ///
    /// # Errors
    /// [`Status::BadRequest`] for what is no path; [`Status::NotFound`] for what is never served:
    /// `..` and all else that begins with a dot, encoded slashes.
    pub(super) fn parse(target: &str) -> Result<Target, Status> {
        let path = match target.split_once("://") {
            Some(("http" | "https", rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
            _ => target,
        };
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let path = path.strip_prefix('/').ok_or(Status::BadRequest)?;
        let mut parts = Vec::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let part = decode(part.as_bytes()).ok_or(Status::BadRequest)?;
            if part.contains(&0) {
                return Err(Status::BadRequest);
            }
            if part[0] == b'.' || part.contains(&b'/') {
                return Err(Status::NotFound);
            }
            parts.push(part);
        }
        Ok(Target {
            parts,
            is_folder: path.is_empty() || path.ends_with('/'),
        })
    }

    /// The path below the folder, `index.html` for that of a folder.
    pub(super) fn file(&self) -> Vec<u8> {
        let mut file = self.parts.join(&b'/');
        if self.is_folder {
            if !file.is_empty() {
                file.push(b'/');
            }
            file.extend_from_slice(b"index.html");
        }
        file
    }

    /// The path of the same name as a folder, for a `Location`. Built from the parts, so that it
    /// never names another host.
    pub(super) fn folder(&self) -> String {
        let mut path = String::from("/");
        for part in &self.parts {
            for &byte in part {
                match byte {
                    b'-' | b'.' | b'_' | b'~' => path.push(byte.into()),
                    _ if byte.is_ascii_alphanumeric() => path.push(byte.into()),
                    _ => path += &format!("%{byte:02X}"),
                }
            }
            path.push('/');
        }
        path
    }
}

/// Decodes `%XX`; `None` if two digits do not follow.
fn decode(part: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(part.len());
    let mut rest = part;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digits = rest.split_at_checked(2)?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        decoded.push((digit(digits.0[0])? << 4 | digit(digits.0[1])?) as u8);
        rest = digits.1;
    }
    Some(decoded)
}
