//! The forecast of a run's time, before it begins.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::time::{clock_gettime, ClockId};
use tare_lab::driver::Drivers;
use tare_lab::experiment::Experiment;
use tare_lab::plan::Plan;

/// Rounds of an experiment that goes on until its claims are decided. None is decided in fewer than
/// 14, and on a busy machine a round takes up to 1.4 times what drivers expect: with 16 such runs
/// ended in round 13 or 14 by their budget, and nearly every claim was inconclusive.
const USUAL_ROUNDS: u32 = 18;

/// The time of a run: its forecast, or its budget if that is less.
pub(crate) fn expected(plan: &Plan, drivers: &Drivers) -> Option<Duration> {
    let forecast = of(&plan.experiments, drivers);
    match (forecast, plan.budget()) {
        (Some(forecast), Some(budget)) => Some(forecast.min(budget)),
        (forecast, budget) => forecast.or(budget),
    }
}

/// The forecast for `experiments` on this machine, as busy as it is now: the sum of what their
/// drivers expect of each trial that can run here, times the usual number of rounds. `None` if a
/// driver does not know.
pub(crate) fn of(experiments: &[Experiment], drivers: &Drivers) -> Option<Duration> {
    let contention = contention();
    let each = experiments.iter();
    each.map(|e| of_one(e, drivers, contention)).sum()
}

fn of_one(experiment: &Experiment, drivers: &Drivers, contention: f64) -> Option<Duration> {
    let driver = drivers.get(&experiment.driver)?;
    let points = experiment.points();
    let baseline = experiment
        .baseline_of(&points)
        .filter(|_| !experiment.exact);
    let mut round = Duration::ZERO;
    for point in points.iter().chain(&baseline) {
        let parameters = driver.vocabulary().complete(experiment.parameters(point));
        if driver.check(&parameters).is_ok() {
            let expected = driver.parts(&parameters).first()?.invocation.expected?;
            round += expected.clock + expected.work.mul_f64(contention);
        }
    }
    let rounds = experiment.rounds;
    // Counts are decided by their first round.
    let usual = if rounds.most <= 2 { 1 } else { USUAL_ROUNDS };
    Some(round * usual.clamp(rounds.least, rounds.most))
}

/// The factor by which work takes longer than on an idle machine, measured once: 1 if a thread gets
/// a processor whenever it is ready to run.
fn contention() -> f64 {
    /// The processor time that is used: several time slices of the scheduler.
    const WORK: Duration = Duration::from_millis(60);
    static MEASURED: OnceLock<f64> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let cpu = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
        let (began, cpu_began) = (Instant::now(), cpu());
        let mut worked = Duration::ZERO;
        while worked < WORK && began.elapsed() < 10 * WORK {
            worked = cpu().saturating_sub(cpu_began);
        }
        let contention = began.elapsed().as_secs_f64() / worked.as_secs_f64().max(1e-3);
        contention.clamp(1.0, 10.0)
    })
}

/// The budget of a run that should also keep to its forecast on a busy machine.
pub(crate) fn budget(forecast: Duration) -> Duration {
    forecast.mul_f64(1.15)
}

/// A budget as it was given, rounded if it was computed.
pub(crate) fn budget_in_words(budget: Duration) -> String {
    match budget.subsec_nanos().is_multiple_of(1_000_000) {
        true => exact(budget),
        false => in_words(budget),
    }
}

/// A time as it was given: `1 s`, `90 s`, `2 min`, `2.0005 s`.
pub(crate) fn exact(time: Duration) -> String {
    let seconds = time.as_secs();
    match time.subsec_nanos() {
        0 if seconds >= 120 && seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{} s", time.as_secs_f64()),
    }
}

/// A time rounded for people: `40 s`, `2 min 10 s`, `3 h`.
pub(crate) fn in_words(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let rounded = |step: f64| ((seconds / step).round().max(1.0) * step) as u64;
    if seconds < 97.5 {
        format!("{} s", rounded(5.0))
    } else if seconds < 595.0 {
        let seconds = rounded(10.0);
        match seconds % 60 {
            0 => format!("{} min", seconds / 60),
            rest => format!("{} min {rest} s", seconds / 60),
        }
    } else if seconds < 5400.0 {
        format!("{} min", rounded(60.0) / 60)
    } else {
        format!("{} h", rounded(3600.0) / 3600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_printed_as_it_was_given() {
        for (given, words) in [
            (Duration::from_millis(250), "0.25 s"),
            (Duration::from_secs(1), "1 s"),
            (Duration::from_secs(58), "58 s"),
            (Duration::from_secs(60), "60 s"),
            (Duration::from_secs(90), "90 s"),
            (Duration::from_secs(600), "10 min"),
        ] {
            assert_eq!(budget_in_words(given), words);
        }
        assert_eq!(budget_in_words(budget(Duration::from_nanos(999))), "5 s");
    }

    #[test]
    fn a_time_in_words_is_off_by_a_twentieth_at_most() {
        for (seconds, words) in [
            (0.1, "5 s"),
            (58.0, "60 s"),
            (97.0, "95 s"),
            (98.0, "1 min 40 s"),
            (119.0, "2 min"),
            (594.0, "9 min 50 s"),
            (600.0, "10 min"),
            (3600.0, "60 min"),
            (7200.0, "2 h"),
        ] {
            assert_eq!(in_words(Duration::from_secs_f64(seconds)), words);
        }
    }
}
