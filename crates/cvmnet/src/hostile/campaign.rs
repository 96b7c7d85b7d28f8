//! Many attacks, each by a seed of its own, up to a number of values or a time.

use std::time::{Duration, Instant};

use super::service::Keys;
use super::{race, schedule, serve, serve_race, Broken, Report};
use crate::region::Config;
use crate::variant::{Variant, BIFROST, CVM, PRPR, ZC};

/// Hostile values of an attack on a driver: few, as its first resets are those with most faults.
const VALUES: u64 = 30_000;
/// Those of an attack on a guest that serves, and its turns.
const SERVED: [u64; 2] = [20_000, 60_000];

/// The extent of a campaign.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The seed of the first attack; each further one has the next.
    pub seed: u64,
    /// Hostile values that the guests are to consume.
    pub values: u64,
    /// The time after which no further attack begins.
    pub at_most: Duration,
}

/// Runs attacks by schedule until their guests have consumed as many values as the plan says;
/// `progress` is told the sum after each.
///
/// # Errors
/// The first promise that is broken, with the seed of its attack.
pub fn campaign(plan: &Plan, mut progress: impl FnMut(&Report)) -> Result<Report, Broken> {
    let (keys, start) = (Keys::new()?, Instant::now());
    let (mut all, mut seed) = (Report::default(), plan.seed);
    while all.consumed.total() < plan.values && start.elapsed() < plan.at_most {
        let report = scenario(seed, &keys);
        all.add(&report.map_err(|Broken(why)| Broken(format!("seed {seed}: {why}")))?);
        progress(&all);
        seed = seed.wrapping_add(1);
    }
    Ok(all)
}

/// Runs the attack of a seed: half of them are on a driver alone, with shared or bounced buffers
/// and both ways to suppress notifications, the others on a guest that serves.
///
/// # Errors
/// The promise that is broken.
pub fn scenario(seed: u64, keys: &Keys) -> Result<Report, Broken> {
    let event_index = (seed / 8).is_multiple_of(2);
    let mut report = match seed % 8 {
        n @ 0..=3 => {
            let variant = if n % 2 == 0 { ZC } else { CVM };
            schedule(&config(variant, n / 2 == 0), seed, VALUES)?
        }
        // Frames that are wrong, on an honest ring.
        n @ 4..=5 => {
            let variant = if n == 4 { ZC } else { CVM };
            let mut config = config(variant, event_index);
            // With two buffers the ring is empty whenever both frames were taken.
            config.receive_posted = if event_index { 2 } else { 16 };
            serve(&config, false, seed, [0.3, 0.0], SERVED, keys)?
        }
        // Writes to the region between the guest's reads.
        6 => {
            let config = config([ZC, CVM][(seed / 16 % 2) as usize], event_index);
            serve(&config, false, seed, [0.02, 0.005], SERVED, keys)?
        }
        // Both, with frames that are merged.
        _ => {
            let config = config([BIFROST, PRPR][(seed / 16 % 2) as usize], event_index);
            serve(&config, true, seed, [0.05, 0.005], SERVED, keys)?
        }
    };
    report.attacks = 1;
    Ok(report)
}

/// Attacks drivers and guests that serve from another thread at full speed, for a time in all.
///
/// # Errors
/// The first promise that is broken.
pub fn races(seed: u64, time: Duration) -> Result<Report, Broken> {
    let keys = Keys::new()?;
    let variants = [ZC, CVM, BIFROST, PRPR];
    let part = time / (2 * variants.len() as u32);
    let mut all = Report::default();
    for (n, variant) in variants.into_iter().enumerate() {
        let (config, merges) = (config(variant, n % 2 == 0), variant.has_large_frames());
        for report in [
            race(&config, seed, u64::MAX, part),
            serve_race(&config, merges, seed, part, &keys),
        ] {
            let name = variant.name;
            let mut report = report.map_err(|Broken(why)| Broken(format!("{name}: {why}")))?;
            report.attacks = 1;
            all.add(&report);
        }
    }
    Ok(all)
}

/// Returns a small region, so that queues are empty and full often.
fn config(variant: Variant, event_index: bool) -> Config {
    let config = Config {
        receive_queue: 16,
        transmit_queue: 64,
        event_index,
        receive_posted: 16,
        receive_buffers: 64,
        record_bytes: 4096,
        record_buffers: 64,
        ..variant.config(1)
    };
    let bounce_slots = if config.bounced { 1024 } else { 256 };
    Config {
        bounce_slots,
        ..config
    }
}
