//! Connections that are opened and closed, and nothing else.

use super::{Progress, Protocol, Wire};
use crate::workload::Request;
use crate::Unexpected;

/// A client whose requests are TLS handshakes, each on a connection of its own. Its response is the
/// end of the handshake.
#[derive(Clone, Copy, Debug, Default)]
pub struct Handshake;

impl Protocol for Handshake {
    fn wire() -> Wire {
        Wire::Handshakes
    }

    fn write(&mut self, _: &Request, _: &mut Vec<u8>) {}

    /// Ignores what a server says by itself.
    fn read(&mut self, bytes: &[u8]) -> Result<Progress, Unexpected> {
        Ok(Progress::partial(bytes.len()))
    }
}
