//! A hostile host: it changes all of the region while the guest's driver works, as fast as it can
//! ([`race`]) or by a schedule that a seed makes again ([`schedule`]).
//!
//! The guest must not crash, must not be led to memory that is not the frame's, must not show the
//! host a byte of its private memory, and must give up the device with a reason; after the host has
//! become honest, a reset brings the service back. What the guest reads of the host's values is
//! counted by field and by the state of the driver, since a value that is never read proves
//! nothing.
//!
//! Descriptors and the available ring are rewritten as well. They have no count: the driver never
//! reads them.

mod attacker;
mod guest;
mod record;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tare_sim::Random;

use crate::region::{Config, Region};
use attacker::Attacker;
use guest::Guest;
pub use record::Consumed;
use record::Recorder;

/// The result of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The hostile values that the guest has read.
    pub consumed: Consumed,
    /// Frames whose payload the guest has read out of memory that the host was changing.
    pub payloads: u64,
    /// The faults for which the device was given up.
    pub faults: BTreeMap<&'static str, u64>,
    /// Resets of the device by the guest.
    pub resets: u64,
    /// Frames received and packets sent, hostile ones among them.
    pub frames: [u64; 2],
    /// Bytes of the region that were searched for private ones.
    pub searched: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} hostile values consumed:", self.consumed.total())?;
        write!(f, "{}", self.consumed)?;
        let [received, sent] = self.frames;
        writeln!(
            f,
            "{} payloads read; {received} frames received, {sent} packets sent, {} resets",
            self.payloads, self.resets
        )?;
        for (fault, count) in &self.faults {
            writeln!(f, "fault {fault}: {count}")?;
        }
        writeln!(f, "{} bytes searched for private ones", self.searched)
    }
}

/// A promise that the guest has broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Broken {}

impl From<String> for Broken {
    fn from(what: String) -> Broken {
        Broken(what)
    }
}

/// Attacks a guest by a schedule until it has consumed this number of hostile values, which are
/// counted one by one; then the host becomes honest.
///
/// # Errors
/// A promise is broken.
pub fn schedule(config: &Config, seed: u64, values: u64) -> Result<Report, Broken> {
    let mut random = Random::new(seed);
    let (region, recorder) = (create(config)?, Recorder::planted());
    let mut attacker = Attacker::new(map(&region)?, recorder.clone(), random.fork());
    let mut guest = Guest::new(map(&region)?, recorder.clone(), random.fork())?;
    // A guest that reads nothing would go on for ever.
    let steps = 1000 + 100 * values;
    for step in 0..steps {
        if recorder.total() >= values {
            break;
        }
        attacker.step();
        guest.step()?;
        if step % 20_000 == 0 {
            guest.search(&region)?;
        }
    }
    if recorder.total() < values {
        return Err(Broken(format!(
            "the guest has read {} of {values} hostile values",
            recorder.total()
        )));
    }
    guest.search(&region)?;
    guest.resume(&region)?;
    Ok(guest.report())
}

/// Attacks a guest from another thread at full speed, until it has consumed this number of values
/// or a time has passed; then the host becomes honest. All values are hostile: there is no honest
/// device meanwhile.
///
/// # Errors
/// A promise is broken.
pub fn race(config: &Config, seed: u64, values: u64, at_most: Duration) -> Result<Report, Broken> {
    let mut random = Random::new(seed);
    let region = create(config)?;
    let (theirs, ours) = (map(&region)?, map(&region)?);
    let (stop, attack) = (AtomicBool::new(false), random.fork());
    std::thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            // Neither reads what it counts, nor leaves this thread.
            let mut attacker = Attacker::new(theirs, Recorder::planted(), attack);
            while !stop.load(Ordering::Relaxed) {
                attacker.step();
            }
        });
        let work = || -> Result<Guest, Broken> {
            let (recorder, start) = (Recorder::all(), Instant::now());
            let mut guest = Guest::new(ours, recorder.clone(), random)?;
            while recorder.total() < values && start.elapsed() < at_most {
                for _ in 0..100 {
                    guest.step()?;
                }
                // The attacker may have only this processor.
                std::thread::yield_now();
            }
            guest.search(&region)?;
            Ok(guest)
        };
        let guest = work();
        stop.store(true, Ordering::Relaxed);
        if attacker.join().is_err() {
            return Err(Broken("the attacker has ended".into()));
        }
        let mut guest = guest?;
        guest.resume(&region)?;
        Ok(guest.report())
    })
}

fn create(config: &Config) -> Result<Region, Broken> {
    Region::create(config).map_err(|error| Broken(error.to_string()))
}

fn map(region: &Region) -> Result<Region, Broken> {
    region
        .try_clone()
        .map_err(|error| Broken(error.to_string()))
}
