//! Searches on a device that stalls now and then, as a virtual machine on a busy host does.

use std::time::Duration;

use tare_loadtest::mlr::{Goal, Search};
use tare_loadtest::{Bisection, Consistency, Limit, Load, Rate};
use tare_sim::Random;

const GIGA: u64 = 1_000_000_000;
const MAX: Rate = Rate::from_bits(40 * GIGA);

/// Forwards up to a limit; and stalls at random, which loses what its queue does not hold.
struct Device {
    limit: f64,
    /// Stalls per second.
    stalls: f64,
    /// The length of a stall, and the time for which the queue holds what comes at the limit.
    stall: f64,
    queue: f64,
    random: Random,
}

impl Device {
    fn new(limit: f64, stalls: f64, seed: u64) -> Device {
        Device {
            limit,
            stalls,
            stall: 1.5e-3,
            queue: 0.2e-3,
            random: Random::new(seed),
        }
    }

    /// The loss ratio of a trial.
    fn trial(&mut self, load: &Load) -> f64 {
        let tare_loadtest::Length::Time(time) = load.length else {
            unreachable!()
        };
        let (seconds, rate) = (time.as_secs_f64(), load.rate.bits() as f64);
        let over = (1.0 - self.limit / rate).max(0.0);
        // A Poisson process: exponential times between stalls.
        let mut stalls = 0;
        let mut at = 0.0;
        loop {
            at +=
                -((self.random.below(1 << 30) + 1) as f64 / (1u64 << 30) as f64).ln() / self.stalls;
            if at > seconds {
                break;
            }
            stalls += 1;
        }
        let held = self.queue * self.limit / rate;
        let lost = f64::from(stalls) * (self.stall - held).max(0.0) / seconds;
        (over + lost).min(1.0)
    }
}

fn second(rate: Rate) -> Load {
    Load::new(rate, Duration::from_secs(1))
}

fn forwarded(load: Rate, loss: f64) -> Rate {
    Rate::from_f64(load.bits() as f64 * (1.0 - loss))
}

/// The seed's search, and whether it is found to be in doubt.
fn bisect(device: &mut Device, retries: u32, watch: bool) -> (Limit, bool) {
    let mut search = Bisection::new(MAX, Rate::from_bits(GIGA / 10), retries);
    let mut consistency = Consistency::default();
    while let Some(rate) = search.next_rate() {
        let loss = device.trial(&second(rate));
        consistency.record(rate, forwarded(rate, loss), loss == 0.0);
        search.record(loss == 0.0);
        if watch && consistency.doubt(search.limit()).is_some() {
            return (search.limit(), true);
        }
    }
    let limit = search.limit();
    if let (true, Some(rate)) = (watch, consistency.probe(limit, MAX)) {
        let loss = device.trial(&second(rate));
        consistency.record(rate, forwarded(rate, loss), loss == 0.0);
    }
    (limit, consistency.doubt(limit).is_some())
}

/// The search that the command makes by itself: NDR and PDR in Gb/s.
fn automatic(device: &mut Device, retries: u32) -> [f64; 2] {
    let (limit, in_doubt) = bisect(device, retries, true);
    if !in_doubt {
        return [limit.passed.gbps(); 2];
    }
    let goal = |name, loss| Goal {
        exceed_ratio: 0.75,
        duration_sum: Duration::from_secs(8),
        ..Goal::new(name, loss, Duration::from_secs(1), 0.005)
    };
    let goals = vec![goal("NDR", 0.0), goal("PDR", 0.005)];
    let mut search = Search::new(goals, Rate::from_bits(MAX.bits() / 1000), MAX, 1000);
    while let Some(input) = search.next_trial() {
        let loss = device.trial(&Load::new(input.load, input.duration));
        search.record(loss);
    }
    [0, 1].map(|n| search.results()[n].lower.unwrap_or_default().gbps())
}

const SEEDS: u64 = 200;

/// The share of runs in which a search is more than a twentieth too low, and in which it is more
/// than a hundredth too high.
fn wrong(mut search: impl FnMut(u64) -> f64) -> (f64, f64) {
    let found: Vec<f64> = (0..SEEDS).map(&mut search).collect();
    let share = |is: &dyn Fn(f64) -> bool| {
        found.iter().filter(|&&rate| is(rate / 26.9)).count() as f64 / SEEDS as f64
    };
    (share(&|ratio| ratio < 0.95), share(&|ratio| ratio > 1.01))
}

#[test]
fn on_a_device_that_stalls_bisection_understates_and_the_automatic_search_does_not() {
    // Stalls a second, retries of a rate, and the share of wrong results of bisection.
    for (stalls, retries, least) in [(0.3, 0, 0.3), (0.7, 3, 0.08), (1.0, 3, 0.15)] {
        let device = |seed| Device::new(26.9e9, stalls, seed);
        let (low, high) = wrong(|seed| bisect(&mut device(seed), retries, false).0.passed.gbps());
        assert!(low > least && high == 0.0, "{stalls}: {low} {high}");
        for goal in [0, 1] {
            let (low, high) = wrong(|seed| automatic(&mut device(seed), retries)[goal]);
            assert!(low <= 0.02 && high == 0.0, "{stalls}, {goal}: {low} {high}");
        }
    }
}

#[test]
fn on_a_device_that_does_not_stall_bisection_is_not_in_doubt() {
    for seed in 0..SEEDS {
        let limit = 0.5e9 + seed as f64 * 0.195e9;
        let mut device = Device::new(limit, 1e-12, seed);
        let (found, in_doubt) = bisect(&mut device, 0, true);
        assert!(!in_doubt, "{limit}");
        assert!((found.passed.gbps() - limit / 1e9).abs() <= 0.1 + 1e-9);
    }
}
