//! How long a run will take, before it begins.

use std::time::Duration;

use tare_lab::driver::Drivers;
use tare_lab::experiment::Experiment;
use tare_lab::plan::Plan;

/// Rounds after which most claims are decided, of an experiment that goes on until they are.
const USUAL_ROUNDS: u32 = 20;

/// The time of a run: its forecast, or its budget if that is less.
pub(crate) fn expected(plan: &Plan, drivers: &Drivers) -> Option<Duration> {
    let forecast = of(&plan.experiments, drivers);
    match (forecast, plan.budget()) {
        (Some(forecast), Some(budget)) => Some(forecast.min(budget)),
        (forecast, budget) => forecast.or(budget),
    }
}

/// The forecast for `experiments` on this machine: what their drivers expect of each trial that can
/// run here, in the usual number of rounds. `None` if a driver cannot say.
pub(crate) fn of(experiments: &[Experiment], drivers: &Drivers) -> Option<Duration> {
    experiments.iter().map(|e| of_one(e, drivers)).sum()
}

fn of_one(experiment: &Experiment, drivers: &Drivers) -> Option<Duration> {
    let driver = drivers.get(&experiment.driver)?;
    let points = experiment.points();
    let baseline = experiment.baseline_of(&points);
    let mut round = Duration::ZERO;
    for point in points.iter().chain(&baseline) {
        let parameters = driver.vocabulary().complete(experiment.parameters(point));
        if driver.check(&parameters).is_ok() {
            round += driver.invocation(&parameters).expected?;
        }
    }
    let rounds = experiment.rounds;
    // Counts are decided by their first round.
    let usual = if rounds.most <= 2 { 1 } else { USUAL_ROUNDS };
    Some(round * usual.clamp(rounds.least, rounds.most))
}

/// The budget of a run that is to keep to its forecast on a busy machine too: a fifth more.
pub(crate) fn budget(forecast: Duration) -> Duration {
    forecast.mul_f64(1.2)
}

/// A time as people say it: `40 s`, `3 min`, `2 h`.
pub(crate) fn in_words(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 90.0 {
        format!("{} s", ((seconds / 5.0).ceil() * 5.0).max(5.0))
    } else if seconds < 5400.0 {
        format!("{} min", (seconds / 60.0).round())
    } else {
        format!("{} h", (seconds / 3600.0).round())
    }
}
