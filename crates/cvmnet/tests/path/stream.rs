//! The bytes that are sent both ways.

use tare_cvmnet::server::{Application, Output, Service, Time};

fn byte(at: u64) -> u8 {
    ((at ^ at >> 8).wrapping_mul(0x9e37_79b9) >> 11) as u8
}

/// Sends so many bytes, and checks those of the other side.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) to_send: u64,
    pub(crate) expected: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) wrong: u64,
    /// The guest's: it ends the connection.
    pub(crate) is_server: bool,
}

impl Application for Stream {
    fn receive(&mut self, bytes: &[u8], _: Time, _: &mut Output) -> usize {
        for found in bytes {
            self.wrong += u64::from(*found != byte(self.received));
            self.received += 1;
        }
        bytes.len()
    }

    fn produce(&mut self, _: Time, out: &mut Output) {
        while out.has_room() && self.sent < self.to_send {
            // So much that the output is full whenever TCP takes no more.
            let len = (self.to_send - self.sent).min(256 << 10);
            out.push_own((self.sent..self.sent + len).map(byte).collect());
            self.sent += len;
        }
    }

    fn end(&mut self, _: Time, _: &mut Output) {}

    fn wants_close(&self) -> bool {
        self.is_server && self.sent == self.to_send && self.received >= self.expected
    }
}

/// Sends and expects so many bytes on each connection.
pub(crate) struct Streams(pub(crate) u64, pub(crate) u64);

impl Service for Streams {
    fn accept(&self) -> Box<dyn Application> {
        Box::new(Stream {
            to_send: self.0,
            expected: self.1,
            is_server: true,
            ..Stream::default()
        })
    }
}
