//! A sink and a source of plaintext: the microbenchmark's servers.
//!
//! Both know a pattern in which every byte is given by its place in the stream, so that a byte that
//! is lost, doubled or out of place is noticed.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use super::output::{Body, Output};
use super::{Application, Service, Time};

/// The bytes after which the pattern repeats: a prime, so that it has no period in common with
/// records or segments.
pub const PERIOD: usize = 65_537;

/// The most bytes of a source's buffer.
pub const BUFFER_MAX: usize = 64 << 10;

/// Returns `len` bytes of the pattern from a place in the stream on, at most [`BUFFER_MAX`].
pub fn pattern(offset: u64, len: usize) -> &'static [u8] {
    let start = (offset % PERIOD as u64) as usize;
    &table()[start..start + len.min(BUFFER_MAX)]
}

/// The pattern twice, so that any [`BUFFER_MAX`] bytes are one slice.
fn table() -> &'static Body {
    static TABLE: OnceLock<Body> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut state = 1_u64;
        let mut once: Vec<u8> = Vec::with_capacity(2 * PERIOD);
        once.resize_with(PERIOD, || {
            // Knuth's MMIX generator; the upper bits are the good ones.
            state = state.wrapping_mul(6_364_136_223_846_793_005);
            state = state.wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        });
        once.extend_from_within(..);
        Arc::new(once)
    })
}

/// The counters of a sink or a source, over all its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkCounters {
    /// Connections that were accepted.
    pub connections: u64,
    /// Those that reached their end: the peer's, or the source's limit.
    pub finished: u64,
    /// Bytes that arrived at the sink or were queued by the source.
    pub bytes: u64,
    /// Bytes that the sink compared with the pattern.
    pub verified: u64,
    /// Connections that were closed because of a byte that is not the pattern's.
    pub wrong: u64,
}

type Counters = Rc<Cell<BulkCounters>>;

fn count(counters: &Counters, change: impl FnOnce(&mut BulkCounters)) {
    let mut now = counters.get();
    change(&mut now);
    counters.set(now);
}

/// A server that counts what it receives.
#[derive(Clone)]
pub struct Sink {
    verify_every: u64,
    counters: Counters,
}

impl Sink {
    /// Returns a sink that compares every `verify_every`th piece that it is given with the pattern:
    /// 0 for none, 1 for all.
    pub fn new(verify_every: u64) -> Sink {
        Sink {
            verify_every,
            counters: Counters::default(),
        }
    }

    /// The counters so far.
    pub fn counters(&self) -> BulkCounters {
        self.counters.get()
    }
}

impl Service for Sink {
    fn accept(&self) -> Box<dyn Application> {
        count(&self.counters, |counters| counters.connections += 1);
        Box::new(Receiver {
            sink: self.clone(),
            offset: 0,
            pieces: 0,
            wants_close: false,
        })
    }
}

struct Receiver {
    sink: Sink,
    offset: u64,
    pieces: u64,
    wants_close: bool,
}

impl Application for Receiver {
    fn receive(&mut self, bytes: &[u8], _: Time, _: &mut Output) -> usize {
        if self.wants_close || bytes.is_empty() {
            return 0;
        }
        let every = self.sink.verify_every;
        let is_verified = every != 0 && self.pieces.is_multiple_of(every);
        self.pieces += 1;
        let mut offset = self.offset;
        let is_right = !is_verified
            || bytes.chunks(BUFFER_MAX).all(|chunk| {
                let expected = pattern(offset, chunk.len());
                offset += chunk.len() as u64;
                chunk == expected
            });
        self.offset += bytes.len() as u64;
        self.wants_close = !is_right;
        count(&self.sink.counters, |counters| {
            counters.bytes += bytes.len() as u64;
            counters.verified += if is_verified { bytes.len() as u64 } else { 0 };
            counters.wrong += u64::from(!is_right);
        });
        bytes.len()
    }

    fn produce(&mut self, _: Time, _: &mut Output) {}

    fn end(&mut self, _: Time, _: &mut Output) {
        if !self.wants_close {
            count(&self.sink.counters, |counters| counters.finished += 1);
            self.wants_close = true;
        }
    }

    fn wants_close(&self) -> bool {
        self.wants_close
    }
}

/// A server that sends the pattern, whatever it receives.
#[derive(Clone)]
pub struct Source {
    limit: u64,
    buffer: usize,
    counters: Counters,
}

impl Source {
    /// Returns a source of `limit` bytes per connection, queued `buffer` bytes at a time (1 to
    /// [`BUFFER_MAX`]).
    pub fn new(limit: u64, buffer: usize) -> Source {
        Source {
            limit,
            buffer: buffer.clamp(1, BUFFER_MAX),
            counters: Counters::default(),
        }
    }

    /// The counters so far.
    pub fn counters(&self) -> BulkCounters {
        self.counters.get()
    }
}

impl Service for Source {
    fn accept(&self) -> Box<dyn Application> {
        count(&self.counters, |counters| counters.connections += 1);
        Box::new(Sender {
            source: self.clone(),
            offset: 0,
            wants_close: false,
        })
    }
}

struct Sender {
    source: Source,
    offset: u64,
    wants_close: bool,
}

impl Application for Sender {
    fn receive(&mut self, bytes: &[u8], _: Time, _: &mut Output) -> usize {
        bytes.len()
    }

    fn produce(&mut self, _: Time, out: &mut Output) {
        while !self.wants_close && out.has_room() {
            let left = self.source.limit - self.offset;
            let len = left.min(self.source.buffer as u64) as usize;
            let start = (self.offset % PERIOD as u64) as usize;
            out.push_body(table(), start..start + len);
            self.offset += len as u64;
            self.wants_close = self.offset == self.source.limit;
            count(&self.source.counters, |counters| {
                counters.bytes += len as u64;
                counters.finished += u64::from(self.wants_close);
            });
        }
    }

    fn end(&mut self, _: Time, _: &mut Output) {}

    fn wants_close(&self) -> bool {
        self.wants_close
    }
}
