//! The servers in the guest, without I/O: an [`Application`] takes a connection's decrypted bytes
//! and a time, and queues what is to be encrypted in an [`Output`].
//!
//! Each core of the guest has its own [`Service`]s, whose connections share what needs no lock.
//! Only a [`Store`] is shared by all cores, behind one. Input is hostile: memory per connection is
//! bounded by the limits of each protocol plus the queue's limit and one response, and errors are
//! told in the protocol's own words.

pub mod bulk;
mod http;
mod lines;
mod lru;
mod memcached;
mod output;
mod request;
mod resp;
mod store;

use std::time::{Duration, SystemTime};

use tare_sim::Instant;

pub use http::{Http, HttpConfig, HttpCounters, BODY_MAX, HEAD_MAX, REQUEST_TIME};
pub use memcached::{Memcached, LINE_MAX as MEMCACHED_LINE_MAX, VALUE_MAX as MEMCACHED_VALUE_MAX};
pub use output::{Body, Output, Pieces, PIECES_MAX};
pub use request::{ARGUMENTS_MAX, ARGUMENT_OVERHEAD, LINE_MAX as RESP_LINE_MAX};
pub use resp::{Resp, RespConfig};
pub use store::{Item, Store, StoreCounters, TooLarge, OVERHEAD};

/// The present, as the owner of a connection tells its application.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    /// A clock that never goes back: what expires, expires by it.
    pub now: Instant,
    /// The time since 1970-01-01 00:00 UTC: for dates in messages, and expiry at a date.
    pub unix: Duration,
}

impl Time {
    /// Returns the present of this machine.
    pub fn now() -> Time {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Time {
            now: Instant::now(),
            unix: unix.unwrap_or_default(),
        }
    }
}

/// One connection's server. Plaintext in, plaintext out.
///
/// The owner of the connection offers what it received until all is taken, calls
/// [`Application::produce`] whenever [`Output::has_room`], and sends what is queued. When
/// [`Application::wants_close`], it sends the rest of the queue and closes.
pub trait Application {
    /// Takes the start of `bytes`, which may be cut anywhere, and returns how many bytes it took.
    ///
    /// It takes all unless `out` became full, a response is not finished yet, or it wants to close.
    /// In the first two cases the rest is to be offered again after the next
    /// [`Application::produce`], which is what bounds the work that is queued.
    fn receive(&mut self, bytes: &[u8], time: Time, out: &mut Output) -> usize;

    /// Continues a response that is not finished, until `out` is full. Does nothing otherwise.
    fn produce(&mut self, time: Time, out: &mut Output);

    /// Takes note that the peer will send nothing more; called after all was taken. Responses that
    /// are not finished are still produced.
    fn end(&mut self, time: Time, out: &mut Output);

    /// Returns true if the connection is to be closed after what is queued; it stays so.
    fn wants_close(&self) -> bool;

    /// Looks, about once per second, at how long the peer has not done what it should; returns true
    /// if the application [wants to close](Application::wants_close) for that. `is_sending` is
    /// true while the peer has not acknowledged all that the application has sent.
    fn expire(&mut self, _now: Instant, _is_sending: bool) -> bool {
        false
    }
}

impl<A: Application + ?Sized> Application for Box<A> {
    fn receive(&mut self, bytes: &[u8], time: Time, out: &mut Output) -> usize {
        (**self).receive(bytes, time, out)
    }

    fn produce(&mut self, time: Time, out: &mut Output) {
        (**self).produce(time, out);
    }

    fn end(&mut self, time: Time, out: &mut Output) {
        (**self).end(time, out);
    }

    fn wants_close(&self) -> bool {
        (**self).wants_close()
    }

    fn expire(&mut self, now: Instant, is_sending: bool) -> bool {
        (**self).expire(now, is_sending)
    }
}

/// Makes the applications of accepted connections.
pub trait Service {
    /// Returns the server of a new connection.
    fn accept(&self) -> Box<dyn Application>;
}
