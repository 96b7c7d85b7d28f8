//! The settings of a tester, and what its frames need.

use std::time::Duration;

use tare_port::{Layout, Pool, HEADROOM};

use crate::stream::Stream;
use crate::trial::Load;
use crate::Error;

/// Settings of a tester.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Sent and forgotten before the first trial.
    pub warm_up: Option<Load>,
    /// Sent and forgotten before each trial.
    pub warm_up_each: Option<Load>,
    /// The share of the load that may be missing before a trial is invalid.
    pub tolerance: f64,
    /// The number of times that a trial is repeated after it was invalid.
    pub invalid_retries: u32,
    /// The wait for what else may come, once all has arrived.
    pub quiet: Duration,
    /// The time without any arrival after which what is missing is given up: twice the largest
    /// latency of the trial where that is more, and [`Options::drain_max`] before the first
    /// arrival.
    pub patience: Duration,
    /// The longest wait after sending (RFC 2544 section 23: 2 seconds).
    pub drain_max: Duration,
    /// By how many frames the generator may catch up at once when it was held up.
    pub catch_up: u32,
    /// Sequences within which duplicates and late packets are told apart: one bit each.
    pub window: usize,
    /// Frames that may be under way at a time.
    pub frames: usize,
    /// The interfaces of the ports, by port, where frames can be too long for them.
    pub links: Vec<Link>,
    /// The number of the first trial. Different for two runs in a row, leftovers of the first are
    /// known in the second.
    pub first_trial: u16,
}

/// The interface of a port, as far as it limits frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The name of the interface.
    pub name: String,
    /// The largest payload of its frames, in bytes.
    pub mtu: usize,
}

impl Default for Options {
    /// No warm-up, 0.5 % tolerance, three retries, a window of 2²⁴ sequences (2 MiB a stream) and
    /// 2¹⁴ frames.
    fn default() -> Options {
        Options {
            warm_up: None,
            warm_up_each: None,
            tolerance: 0.005,
            invalid_retries: 3,
            quiet: Duration::from_millis(20),
            patience: Duration::from_millis(250),
            drain_max: Duration::from_secs(2),
            catch_up: 256,
            window: (1 << 24) - 64,
            frames: 1 << 14,
            links: Vec::new(),
            first_trial: 0,
        }
    }
}

/// Refuses frames that are longer than what their interfaces send.
pub(crate) fn check_lengths(streams: &[Stream], links: &[Link]) -> Result<(), Error> {
    for stream in streams {
        let Some(link) = links.get(stream.tx_port) else {
            continue;
        };
        if let Some((frame, length)) = stream.longer_than(link.mtu) {
            return Err(Error::OverMtu {
                stream: stream.name.clone(),
                frame,
                length,
                interface: link.name.clone(),
                mtu: link.mtu,
            });
        }
    }
    Ok(())
}

/// A pool of so many frames, long enough for these streams.
pub(crate) fn make_pool(streams: &[Stream], frames: usize) -> Result<Pool, Error> {
    let capacity = capacity(streams).min(usize::from(u16::MAX));
    Pool::new(frames, capacity, Layout::Spread).map_err(Error::Memory)
}

/// True if the frames of a pool are long enough for these streams.
pub(crate) fn fits(pool: &Pool, streams: &[Stream]) -> bool {
    pool.capacity() >= capacity(streams)
}

/// The capacity that a slot needs for the longest frame: what a pool keeps in front of each is
/// within the last number.
fn capacity(streams: &[Stream]) -> usize {
    let templates = streams.iter().flat_map(|stream| &stream.templates);
    let longest = templates.map(|template| template.bytes.len()).max();
    HEADROOM + longest.unwrap_or(0) + 64
}
