//! Datagrams to be sent, in one piece of memory.

use std::net::IpAddr;
use std::ops::Range;

use super::message::REQUEST_HEADER;

/// Longest datagram without fragments on Ethernet over IPv4, in bytes.
pub const NETWORK_DATAGRAM: usize = 1472;

/// The same over IPv6, whose header is 20 bytes longer.
const NETWORK_DATAGRAM_V6: usize = 1452;

/// Returns the longest datagram without fragments on Ethernet to or from an address, in bytes.
pub const fn network_datagram(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => NETWORK_DATAGRAM,
        IpAddr::V6(_) => NETWORK_DATAGRAM_V6,
    }
}

/// Longest datagram between programs of one machine, in bytes: a header and two pages, so that a
/// write of 64 KiB has no shorter end, and seven fill a run. With 16 KiB writes of 64 KiB take 1.1
/// times as long, and with 1472 bytes a third longer.
pub const LOCAL_DATAGRAM: usize = REQUEST_HEADER + (8 << 10);

/// Most bytes of a run that a socket sends at once, so that it fits into an IPv6 packet like that
/// of one datagram.
pub(crate) const RUN_BYTES: usize = 65_535 - 48;

/// Bytes of datagrams after which they are handed to a link: about a run of them, so that the other
/// side works on it while the next one is written.
pub(crate) const SEND_BYTES: usize = 62 << 10;

/// Datagrams one behind the other in one piece of memory that is used again.
///
/// Since messages say their own length, those of the same size can be handed to the kernel as one
/// run of bytes, and it may hand them over like that as well.
#[derive(Clone, Debug, Default)]
pub struct Datagrams {
    pub(super) bytes: Vec<u8>,
    /// The ends of the datagrams that are complete.
    ends: Vec<usize>,
}

impl Datagrams {
    /// No datagrams.
    pub const fn new() -> Datagrams {
        Datagrams {
            bytes: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Forgets all datagrams.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Returns the number of datagrams.
    #[inline]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the bytes of all datagrams together.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a datagram.
    pub fn push(&mut self, datagram: &[u8]) {
        self.bytes.extend_from_slice(datagram);
        self.end();
    }

    /// The datagrams.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends.len()).map(|index| self.part(index..index + 1))
    }

    /// The datagrams of a range as runs: the bytes of as many as may be sent at once, and the size
    /// of all of them but the last, which may be shorter. A run has at most `run_bytes` and
    /// `run_datagrams`.
    pub fn runs(
        &self,
        range: Range<usize>,
        run_bytes: usize,
        run_datagrams: usize,
    ) -> impl Iterator<Item = (&[u8], usize)> {
        let mut next = range.start;
        let end = range.end.min(self.ends.len());
        std::iter::from_fn(move || {
            if next >= end {
                return None;
            }
            let (first, from) = (next, self.start(next));
            let size = self.ends[first] - from;
            next += 1;
            while next < end && next - first < run_datagrams {
                let more = self.ends[next] - self.ends[next - 1];
                let is_full = self.ends[next - 1] - from == size * (next - first);
                if !is_full || more > size || self.ends[next] - from > run_bytes {
                    break;
                }
                next += 1;
            }
            Some((self.part(first..next), size))
        })
    }

    /// Returns the bytes of the datagram that is not complete.
    #[inline]
    pub(super) fn open_bytes(&self) -> usize {
        self.bytes.len() - self.start(self.ends.len())
    }

    /// Completes the last datagram, unless there is nothing in it.
    #[inline]
    pub(super) fn end(&mut self) {
        self.end_at(self.bytes.len());
    }

    /// Completes the last datagram in front of the message that starts at `message`, unless there
    /// is nothing in it.
    #[inline]
    pub(super) fn end_at(&mut self, message: usize) {
        if message > self.start(self.ends.len()) {
            self.ends.push(message);
        }
    }

    #[inline]
    fn start(&self, index: usize) -> usize {
        match index {
            0 => 0,
            _ => self.ends.get(index - 1).copied().unwrap_or(0),
        }
    }

    /// Returns the bytes of the datagrams of a range.
    #[inline]
    pub(crate) fn part(&self, range: Range<usize>) -> &[u8] {
        let end = self.start(range.end);
        self.bytes.get(self.start(range.start)..end).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_one_size_but_for_the_last_and_keep_to_their_limits() {
        let cases: [(&[usize], &[&[usize]]); 6] = [
            (&[], &[]),
            (&[5], &[&[5]]),
            (&[5, 5, 3, 5, 5], &[&[5, 5, 3], &[5, 5]]),
            (&[3, 5, 5, 5, 5, 5], &[&[3], &[5, 5, 5, 5], &[5]]),
            (&[9, 9, 9, 1], &[&[9, 9], &[9, 1]]),
            (&[2, 2, 2, 2, 2, 2], &[&[2, 2, 2, 2], &[2, 2]]),
        ];
        for (sizes, expected) in cases {
            let mut datagrams = Datagrams::default();
            for (n, size) in sizes.iter().enumerate() {
                datagrams.push(&vec![n as u8; *size]);
            }
            let runs: Vec<_> = datagrams.runs(0..sizes.len(), 20, 4).collect();
            let lengths: Vec<usize> = expected.iter().map(|run| run.iter().sum()).collect();
            assert_eq!(
                runs.iter().map(|run| run.0.len()).collect::<Vec<_>>(),
                lengths
            );
            assert_eq!(
                runs.iter().map(|run| run.0).collect::<Vec<_>>().concat(),
                datagrams.bytes
            );
            for ((_, size), run) in runs.iter().zip(expected) {
                assert_eq!(*size, run[0]);
            }
            assert_eq!(datagrams.iter().map(<[u8]>::len).collect::<Vec<_>>(), sizes);
        }
    }
}
