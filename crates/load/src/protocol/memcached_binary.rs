//! memcached's binary protocol.

use super::{skip, write_key, write_value, Outcome, Progress, Protocol, Response};
use crate::workload::{Operation, Request};
use crate::Unexpected;

const HEADER: usize = 24;
const REQUEST: u8 = 0x80;
const RESPONSE: u8 = 0x81;
const GET: u8 = 0;
const SET: u8 = 1;
const KEY_NOT_FOUND: u16 = 1;

/// The binary protocol: GET and SET.
#[derive(Clone, Debug, Default)]
pub struct MemcachedBinary {
    /// The reply whose header was read, and the bytes of it that are left.
    reply: Option<Response>,
    left: u64,
}

impl Protocol for MemcachedBinary {
    fn write(&mut self, request: &Request, out: &mut Vec<u8>) {
        let (opcode, extras) = match request.operation {
            Operation::Get => (GET, 0),
            Operation::Set => (SET, 8),
        };
        let start = out.len();
        // A write's flags and expiry, both 0, follow the header.
        out.resize(start + HEADER + extras, 0);
        write_key(&request.key, out);
        let key_len = out.len() - start - HEADER - extras;
        if request.operation == Operation::Set {
            write_value(request.value_len, out);
        }
        let body_len = out.len() - start - HEADER;
        let header = &mut out[start..][..HEADER];
        (header[0], header[1], header[4]) = (REQUEST, opcode, extras as u8);
        header[2..4].copy_from_slice(&(key_len as u16).to_be_bytes());
        header[8..12].copy_from_slice(&(body_len as u32).to_be_bytes());
    }

    fn read(&mut self, bytes: &[u8]) -> Result<Progress, Unexpected> {
        let mut consumed = 0;
        if self.reply.is_none() {
            let Some(header) = bytes.first_chunk::<HEADER>() else {
                return Ok(Progress::default());
            };
            let word = |at| u16::from_be_bytes([header[at], header[at + 1]]);
            let total = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
            let value = total.checked_sub(u32::from(header[4]) + u32::from(word(2)));
            let Some(value) = value.filter(|_| header[0] == RESPONSE) else {
                let expected = "the header of a reply of memcached";
                return Err(Unexpected::bytes(header, expected));
            };
            self.reply = Some(match word(6) {
                0 => Response::new(Outcome::Served, value.into()),
                KEY_NOT_FOUND => Response::new(Outcome::Miss, 0),
                status => {
                    let error = format!("memcached status {status:#06x}");
                    Response::new(Outcome::Refused(error), 0)
                }
            });
            self.left = total.into();
            consumed = HEADER;
        }
        consumed += skip(&mut self.left, &bytes[consumed..]);
        let response = self.reply.take_if(|_| self.left == 0);
        Ok(Progress { consumed, response })
    }

    fn end(&mut self) -> Option<Response> {
        *self = MemcachedBinary::default();
        None
    }
}
