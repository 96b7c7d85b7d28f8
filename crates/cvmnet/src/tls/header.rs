//! The header of a record.

use super::{Alert, Error, BODY_MAX, DATA_MAX};

/// The kinds of records (RFC 8446, section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ContentType {
    /// A relic of older versions, which middleboxes expect in a handshake.
    ChangeCipherSpec = 20,
    /// The end of a connection, or an error.
    Alert = 21,
    /// Messages about the connection itself.
    Handshake = 22,
    /// The user's bytes, and every encrypted record from outside.
    ApplicationData = 23,
}

impl ContentType {
    /// Returns the type of that number; `None` if TLS 1.3 has no such type.
    pub const fn from_number(number: u8) -> Option<ContentType> {
        match number {
            20 => Some(ContentType::ChangeCipherSpec),
            21 => Some(ContentType::Alert),
            22 => Some(ContentType::Handshake),
            23 => Some(ContentType::ApplicationData),
            _ => None,
        }
    }
}

/// The five bytes before a record, in private memory.
///
/// They are authenticated with the record, so a session opens a record with the very bytes that its
/// length was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; Header::LEN],
    content: ContentType,
}

impl Header {
    /// The length in bytes.
    pub const LEN: usize = 5;

    /// Checks a header that came from the peer.
    ///
    /// # Errors
    /// An unknown content type, a body that is longer than its type may be, or empty where it may
    /// not be. The version is not looked at, as RFC 8446 wants it.
    pub fn parse(bytes: [u8; Header::LEN]) -> Result<Header, Error> {
        let [content, ..] = bytes;
        let content =
            ContentType::from_number(content).ok_or(Error::Peer(Alert::UNEXPECTED_MESSAGE))?;
        let header = Header { bytes, content };
        let most = match content {
            ContentType::ApplicationData => BODY_MAX,
            _ => DATA_MAX,
        };
        if header.body_len() > most {
            return Err(Error::Peer(Alert::RECORD_OVERFLOW));
        }
        if header.body_len() == 0 {
            return Err(Error::Peer(Alert::UNEXPECTED_MESSAGE));
        }
        Ok(header)
    }

    /// Returns the header of an encrypted record whose body has that many bytes.
    pub(super) fn encrypted(body_len: u16) -> Header {
        let [high, low] = body_len.to_be_bytes();
        Header {
            bytes: [ContentType::ApplicationData as u8, 3, 3, high, low],
            content: ContentType::ApplicationData,
        }
    }

    /// Returns the type of the record from outside.
    pub fn content(&self) -> ContentType {
        self.content
    }

    /// Returns the number of bytes that follow the header.
    pub fn body_len(&self) -> usize {
        let [_, _, _, high, low] = self.bytes;
        usize::from(u16::from_be_bytes([high, low]))
    }

    /// Returns the header as it is on the wire.
    pub fn as_bytes(&self) -> &[u8; Header::LEN] {
        &self.bytes
    }
}
