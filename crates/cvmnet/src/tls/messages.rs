//! Handshake messages after the handshake.

use super::{Alert, Error};

/// The longest message that is put together from several records, in bytes.
const MESSAGE_MAX: usize = 1 << 16;
/// The length of a message's type and length.
const PREFIX: usize = 4;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// The message that announces a new key for what its sender seals next (RFC 8446, section 4.6.3).
pub(super) const fn key_update(is_answer_wanted: bool) -> [u8; 5] {
    [KEY_UPDATE, 0, 0, 1, is_answer_wanted as u8]
}

/// A message of the peer's.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A ticket, for clients.
    Ticket(Vec<u8>),
    /// The peer's next record is sealed with its next key.
    KeyUpdate {
        /// Ours is to be replaced too.
        is_answer_wanted: bool,
    },
}

/// Messages that are cut anywhere into records.
#[derive(Default)]
pub(super) struct Messages {
    partial: Vec<u8>,
}

impl Messages {
    /// Returns true if a message has begun and not ended: no other kind of record may follow.
    pub(super) fn is_partial(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Adds the content of one record.
    pub(super) fn add(&mut self, content: &[u8]) -> Result<(), Error> {
        if content.is_empty() {
            return Err(Error::Peer(Alert::UNEXPECTED_MESSAGE));
        }
        if self.partial.len() + content.len() > MESSAGE_MAX + PREFIX {
            return Err(Error::Peer(Alert::DECODE_ERROR));
        }
        self.partial.extend_from_slice(content);
        Ok(())
    }

    /// Takes the next message that is whole.
    pub(super) fn next(&mut self) -> Result<Option<Message>, Error> {
        let [kind, a, b, c, rest @ ..] = &self.partial[..] else {
            return Ok(None);
        };
        let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let message = match *kind {
            KEY_UPDATE if len != 1 => return Err(Error::Peer(Alert::DECODE_ERROR)),
            KEY_UPDATE => match rest {
                [] => return Ok(None),
                [request @ (0 | 1)] => Message::KeyUpdate {
                    is_answer_wanted: *request == 1,
                },
                [_] => return Err(Error::Peer(Alert::ILLEGAL_PARAMETER)),
                // What follows would be under the old key.
                _ => return Err(Error::Peer(Alert::UNEXPECTED_MESSAGE)),
            },
            NEW_SESSION_TICKET if len > MESSAGE_MAX => {
                return Err(Error::Peer(Alert::DECODE_ERROR))
            }
            NEW_SESSION_TICKET => match rest.get(..len) {
                None => return Ok(None),
                Some(payload) => Message::Ticket(payload.to_vec()),
            },
            _ => return Err(Error::Peer(Alert::UNEXPECTED_MESSAGE)),
        };
        self.partial.drain(..PREFIX + len);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(contents: &[&[u8]]) -> Result<Vec<Message>, Error> {
        let (mut messages, mut found) = (Messages::default(), Vec::new());
        for content in contents {
            messages.add(content)?;
            while let Some(message) = messages.next()? {
                found.push(message);
            }
        }
        Ok(found)
    }

    #[test]
    fn a_message_cut_at_any_byte_is_the_same() {
        let mut bytes = vec![NEW_SESSION_TICKET, 0, 0, 3, 1, 2, 3];
        bytes.extend(key_update(true));
        let whole = all(&[&bytes]).unwrap();
        assert_eq!(whole.len(), 2);
        for cut in 1..bytes.len() {
            assert_eq!(
                all(&[&bytes[..cut], &bytes[cut..]]).unwrap(),
                whole,
                "{cut}"
            );
        }
    }

    #[test]
    fn what_may_not_come_is_refused_with_its_alert() {
        for (content, alert) in [
            (&[][..], Alert::UNEXPECTED_MESSAGE),
            (&[KEY_UPDATE, 0, 0, 2], Alert::DECODE_ERROR),
            (&[KEY_UPDATE, 0, 0, 0], Alert::DECODE_ERROR),
            (&[KEY_UPDATE, 0, 0, 1, 2], Alert::ILLEGAL_PARAMETER),
            (&[KEY_UPDATE, 0, 0, 1, 0, 24], Alert::UNEXPECTED_MESSAGE),
            (&[1, 0, 0, 0], Alert::UNEXPECTED_MESSAGE),
            (&[NEW_SESSION_TICKET, 1, 0, 1], Alert::DECODE_ERROR),
        ] {
            assert_eq!(all(&[content]), Err(Error::Peer(alert)), "{content:?}");
        }
    }

    #[test]
    fn a_message_without_end_is_bounded() {
        let mut messages = Messages::default();
        messages.add(&[NEW_SESSION_TICKET, 0, 255, 255]).unwrap();
        let added = (0..100).take_while(|_| messages.add(&[0; 1 << 10]).is_ok());
        assert_eq!(added.count(), 64);
    }
}
