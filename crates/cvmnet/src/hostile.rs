//! A hostile host: it changes all of the region while the guest works, by a schedule that a seed
//! makes again ([`schedule`], [`serve`]) or as fast as it can ([`race`], [`serve_race`]).
//!
//! The guest must not crash, must not be led to memory that is not the frame's, must not show the
//! host a byte of its private memory, must not deliver wrong plaintext, and must give up the device
//! with a reason; after the host has become honest, a reset brings the service back. What the guest
//! reads of the host's values is counted by field and by the state of the driver, since a value
//! that is never read proves nothing: one counts if the guest has read it after it was changed, and
//! once.
//!
//! Descriptors and the available ring are rewritten as well. They have no count: the driver never
//! reads them.

mod attacker;
mod campaign;
mod flips;
mod frames;
mod guest;
mod record;
mod service;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tare_sim::Random;

use crate::region::{Config, Region};
use attacker::{Attacker, Role};
pub use campaign::{campaign, races, scenario, Plan};
pub use flips::{flip_bits, FlipPlan, Flipped};
pub use frames::FrameField;
use guest::Guest;
pub use record::Consumed;
use record::Recorder;
pub use service::Keys;
use service::{Attack, Scene};

/// Eight bytes that are in private memory alone.
const CANARY: [u8; 8] = *b"\xc5private";

/// The result of an attack or of many.
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
    /// Connections that ended, served or cut off.
    pub connections: u64,
    /// Connections that the guest ended because of their records.
    pub tls_failures: u64,
    /// Bytes of plaintext that were delivered during attacks, all of them right.
    pub delivered: u64,
    /// The most reads and spans in one turn of a guest that serves.
    pub events_max: u64,
    /// Bytes of the region that were searched for private ones.
    pub searched: u64,
    /// Attacks, after each of which the service came back.
    pub attacks: u64,
}

impl Report {
    /// Adds the result of another attack.
    pub fn add(&mut self, other: &Report) {
        self.consumed.add(&other.consumed);
        for (fault, count) in &other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        for (to, n) in [
            (&mut self.payloads, other.payloads),
            (&mut self.resets, other.resets),
            (&mut self.connections, other.connections),
            (&mut self.tls_failures, other.tls_failures),
            (&mut self.delivered, other.delivered),
            (&mut self.searched, other.searched),
            (&mut self.attacks, other.attacks),
        ] {
            *to += n;
        }
        let frames = self.frames.iter_mut().zip(other.frames);
        frames.for_each(|(to, n)| *to += n);
        self.events_max = self.events_max.max(other.events_max);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, attacks) = (self.consumed.total(), self.attacks.max(1));
        writeln!(f, "{total} hostile values consumed in {attacks} attacks:")?;
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
        if self.connections > 0 {
            writeln!(
                f,
                "{} connections ended, {} of them for their records; {} bytes of plaintext \
                 delivered, none wrong; at most {} reads and spans in a turn",
                self.connections, self.tls_failures, self.delivered, self.events_max
            )?;
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

/// Attacks a driver by a schedule until it has consumed this number of hostile values, which are
/// counted one by one; then the host becomes honest.
///
/// # Errors
/// A promise is broken.
pub fn schedule(config: &Config, seed: u64, values: u64) -> Result<Report, Broken> {
    let mut random = Random::new(seed);
    let (region, recorder) = (create(config)?, Recorder::planted());
    let (theirs, role) = (map(&region)?, Role::Device);
    let mut attacker = Attacker::new(theirs, recorder.clone(), random.fork(), role);
    let mut guest = Guest::new(map(&region)?, recorder.clone(), random.fork())?;
    // Between two reads of the guest another one strikes, which knows no more than the region.
    let role = Role::Beside(0.02);
    let beside = Attacker::new(map(&region)?, recorder.clone(), random.fork(), role);
    recorder.set_attacker(Some(beside));
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

/// Attacks a guest that serves clients over TLS by a schedule, until it has consumed this number of
/// hostile values or had this number of turns; then the host becomes honest, and other clients must
/// be served. `frames` is the part of the frames for the guest that are not as they should be,
/// `memory` the probability that the host writes to the region between two reads of the guest. With
/// `merges` the host merges segments first.
///
/// # Errors
/// A promise is broken.
#[allow(clippy::too_many_arguments, reason = "plain numbers of an attack")]
pub fn serve(
    config: &Config,
    merges: bool,
    seed: u64,
    [frames, memory]: [f64; 2],
    [values, turns]: [u64; 2],
    keys: &Keys,
) -> Result<Report, Broken> {
    let attack = Attack { frames, memory };
    let mut scene = Scene::new(config, merges, seed, attack, keys)?;
    scene.attack(values, turns)?;
    scene.resume()
}

/// Attacks a guest that serves clients from another thread, at full speed, for a time; then the
/// host becomes honest, and other clients must be served.
///
/// # Errors
/// A promise is broken.
pub fn serve_race(
    config: &Config,
    merges: bool,
    seed: u64,
    time: Duration,
    keys: &Keys,
) -> Result<Report, Broken> {
    let (frames, memory) = (0.02, 0.0);
    let mut scene = Scene::new(config, merges, seed, Attack { frames, memory }, keys)?;
    let theirs = scene.region()?;
    let random = Random::new(!seed);
    beside(
        || {
            let role = Role::Beside(1.0);
            let mut attacker = Attacker::new(theirs, Recorder::planted(), random, role);
            move || attacker.tamper()
        },
        || {
            let start = Instant::now();
            while start.elapsed() < time {
                scene.attack(u64::MAX, 200)?;
                // The attacker may have only this processor.
                std::thread::yield_now();
            }
            Ok(())
        },
    )?;
    scene.resume()
}

/// Attacks a driver from another thread at full speed, until it has consumed this number of values
/// or a time has passed; then the host becomes honest. All values are hostile: there is no honest
/// device meanwhile.
///
/// # Errors
/// A promise is broken.
pub fn race(config: &Config, seed: u64, values: u64, at_most: Duration) -> Result<Report, Broken> {
    let mut random = Random::new(seed);
    let region = create(config)?;
    let (theirs, ours) = (map(&region)?, map(&region)?);
    let attack = random.fork();
    let mut guest = beside(
        || {
            // Neither reads what it counts, nor leaves this thread.
            let recorder = Recorder::planted();
            let mut attacker = Attacker::new(theirs, recorder, attack, Role::Device);
            move || attacker.step()
        },
        || {
            let (recorder, start) = (Recorder::all(), Instant::now());
            let mut guest = Guest::new(ours, recorder.clone(), random)?;
            loop {
                for _ in 0..100 {
                    guest.step()?;
                }
                if recorder.total() >= values || start.elapsed() >= at_most {
                    break;
                }
                // The attacker may have only this processor.
                std::thread::yield_now();
            }
            guest.search(&region)?;
            Ok(guest)
        },
    )?;
    guest.resume(&region)?;
    Ok(guest.report())
}

/// Does some work while another thread attacks, over and over.
fn beside<A: FnMut(), R>(
    attacker: impl FnOnce() -> A + Send,
    work: impl FnOnce() -> Result<R, Broken>,
) -> Result<R, Broken> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut attack = attacker();
            while !stop.load(Ordering::Relaxed) {
                attack();
            }
        });
        let done = work();
        stop.store(true, Ordering::Relaxed);
        match thread.join() {
            Ok(()) => done,
            Err(_) => Err(Broken("the attacker has ended".into())),
        }
    })
}

/// Searches a region for private bytes; returns how many bytes were searched.
fn search(region: &Region) -> Result<u64, Broken> {
    const STEP: usize = 1 << 16;
    let view = region.view();
    let mut bytes = vec![0; STEP + CANARY.len()];
    for at in (0..view.len()).step_by(STEP) {
        let bytes = &mut bytes[..(view.len() - at).min(STEP + CANARY.len())];
        let part = view.range(at, bytes.len());
        part.and_then(|part| part.copy_to(bytes))
            .expect("it is within the region");
        let mut starts = bytes
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == CANARY[0]);
        if let Some((n, _)) = starts.find(|(n, _)| bytes[*n..].starts_with(&CANARY)) {
            return Err(format!("private bytes at {} of the region", at + n).into());
        }
    }
    Ok(view.len() as u64)
}

fn create(config: &Config) -> Result<Region, Broken> {
    Region::create(config).map_err(|error| Broken(error.to_string()))
}

fn map(region: &Region) -> Result<Region, Broken> {
    region
        .try_clone()
        .map_err(|error| Broken(error.to_string()))
}
