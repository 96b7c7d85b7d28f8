//! `--find-max`: the highest rate that keeps an objective.
//!
//! The search is MLRsearch (RFC 9971), as `tare loadtest` has it: what is lost there is here a
//! request that has no response within the objective's limit. "p99 < 2 ms" is the goal that at most
//! one request of a hundred is lost.

use std::fmt;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use serde_json::{json, Value};
use tare_lab::unit::significant;
use tare_load::protocol::Protocol;
use tare_load::{Options, Pace, Record};
use tare_loadtest::mlr::{Goal, Search};
use tare_loadtest::Rate;

use super::counts::Counts;
use super::drive::Load;
use super::report::time;
use super::{INTERRUPTED, INVALID};
use crate::terminal;

/// The most trials.
const TRIALS_MAX: u32 = 100;
/// The distance of the bounds that is close enough, relative to the upper one.
const WIDTH: f64 = 0.02;
/// The lowest rate that is tried, as a part of the highest.
const LOWEST: f64 = 1e-3;
/// The highest rate that is tried, as a multiple of a closed loop's.
const HIGHEST: f64 = 1.5;
/// The shortest --duration.
const SHORTEST: Duration = Duration::from_millis(1);
/// Trials that are made again where the generator fell behind, or no request was due.
const RETRIES: u32 = 3;
/// Units of the search's rates in a request per second.
const UNITS: f64 = 1e3;

/// A percentile of the latency, and what it is to stay below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Objective {
    /// The share of requests that may be slower.
    slower: f64,
    limit: Duration,
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Objective, String> {
        let read = || {
            let (name, limit) = text.split_once('<')?;
            let percent = match name.trim() {
                "max" => 100.0,
                name => name.strip_prefix('p')?.parse::<f64>().ok()?,
            };
            let limit = limit.strip_prefix('=').unwrap_or(limit).trim();
            let unit = limit.find(|c: char| c.is_alphabetic())?;
            let ns = match &limit[unit..] {
                "ns" => 1.0,
                "us" | "µs" => 1e3,
                "ms" => 1e6,
                "s" => 1e9,
                _ => return None,
            };
            let ns = limit[..unit].trim_end().parse::<f64>().ok()? * ns;
            let is_known = (1.0..=100.0).contains(&percent) && (1.0..=6e10).contains(&ns);
            is_known.then(|| Objective {
                // 1 - 0.99 is more than 0.01 in binary by a little.
                slower: ((100.0 - percent) * 1e9).round() / 1e11,
                limit: Duration::from_nanos(ns as u64),
            })
        };
        read().ok_or_else(|| {
            format!(
                "found {text:?}, expected a percentile and a limit up to 60 s, such as p99 < 2 ms"
            )
        })
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = time(self.limit.as_nanos() as f64);
        match self.slower {
            0.0 => write!(f, "max < {limit}"),
            slower => write!(f, "p{} < {limit}", significant(100.0 - 100.0 * slower)),
        }
    }
}

impl Objective {
    /// The share of the requests that were not served within the limit: too slow, not sent,
    /// refused, or without a response. `None` if there was none to be sent.
    fn lost(&self, record: &Record) -> Option<f64> {
        let answered = record.answered() as f64;
        let slower = record.latency.share_above(self.limit).unwrap_or(0.0) * answered;
        let lost = record.scheduled as f64 - answered + slower + record.refused as f64;
        (record.scheduled > 0).then(|| (lost / record.scheduled as f64).min(1.0))
    }
}

/// Searches and reports.
pub(super) fn run<P: Protocol + Clone + Sync>(
    load: &Load<'_, P>,
    objective: Objective,
    options: &Options,
    stop: &AtomicBool,
) -> anyhow::Result<ExitCode> {
    let is_text = !load.trial.json;
    ensure!(
        options.duration >= SHORTEST,
        "--duration: found {:?}, expected at least {SHORTEST:?} with --find-max",
        options.duration
    );
    // A request that waits for longer is lost in any case.
    let patience = (10 * objective.limit).max(Duration::from_secs(1));
    let mut options = Options {
        timeout: options.timeout.min(patience),
        ..options.clone()
    };
    let highest = match options.pace.rate() {
        Some(rate) => rate,
        None => {
            let done = load.trial(&options, stop, None)?;
            let rate = done.record.rate().filter(|&rate| rate > 0.0);
            rate.ok_or_else(|| anyhow::anyhow!("--find-max: found no response in a closed loop"))?
                * HIGHEST
        }
    };
    let goal = Goal::new("objective", objective.slower, options.duration, WIDTH);
    let units = |rate: f64| Rate::from_f64((rate * UNITS).max(2.0));
    // A trial without a request would tell nothing.
    let shortest = goal.initial_duration;
    let one = 1.0 / shortest.as_secs_f64();
    ensure!(
        highest > one,
        "--find-max: found {} requests per second as the highest rate, expected more than {}: the \
         first trials take {shortest:?}, and each must have a request; give a higher --rate or a \
         longer --duration",
        significant(highest),
        significant(one)
    );
    let (lowest, highest) = (units((highest * LOWEST).max(one)), units(highest));
    ensure!(
        lowest < highest,
        "--find-max: found a highest rate of {} requests per second, expected a higher --rate",
        significant(one)
    );
    let mut search = Search::new(vec![goal], lowest, highest, TRIALS_MAX);
    // Only whether a trial keeps the objective counts, but where the first one does not, the next
    // is at what it served: above its limit a server is late with all requests, not with some.
    let failed = (1.0 - 1.0 / HIGHEST).max((1.0 + objective.slower) / 2.0);
    let mut trials: Vec<Value> = Vec::new();
    let mut doubts: Option<(f64, String)> = None;
    let mut retries = 0;
    while let Some(next) = search
        .next_trial()
        .filter(|_| !stop.load(Ordering::Relaxed))
    {
        let rate = next.load.bits() as f64 / UNITS;
        options.pace = load.pace(rate);
        options.duration = next.duration;
        options.seed = options.seed.wrapping_add(1);
        let done = load.trial(&options, stop, None)?;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if done.record.scheduled == 0 {
            // Gaps that are drawn may be longer than the trial.
            ensure!(
                retries < RETRIES,
                "--find-max: found no request in trials of {:?} at {} per second, expected one; \
                 give a higher --rate or a longer --duration",
                options.duration,
                significant(rate)
            );
            retries += 1;
            continue;
        }
        let mismatch = done.counts.as_ref().and_then(Counts::mismatch);
        let lost = objective.lost(&done.record).filter(|_| mismatch.is_none());
        let keeps = lost.is_some_and(|lost| lost <= objective.slower);
        // Latency has the generator's lateness in it: a trial that keeps the objective does so in
        // spite of it, and one that does not may be the generator's fault.
        let doubt = done.invalid().filter(|_| !keeps);
        if is_text {
            let limit = time(objective.limit.as_nanos() as f64);
            let share = lost.map_or("an unknown share".into(), |lost| {
                format!("{} %", significant(100.0 * lost))
            });
            let said = match (&doubt, keeps) {
                (Some(_), _) => "invalid",
                (None, true) => "kept",
                (None, false) => "not kept",
            };
            let (rate, seconds) = (significant(rate), options.duration.as_secs_f64());
            terminal::print(&format!(
                "{rate} /s for {seconds} s: {share} not within {limit}: {said}"
            ))?;
        }
        trials.push(json!({
            "rate_intended": rate,
            "duration_ns": options.duration.as_nanos() as u64,
            "lost": lost,
            "keeps": keeps,
            "latency": done.record.latency.summary(),
            "invalid": doubt,
        }));
        if doubt.is_some() && retries < RETRIES {
            retries += 1;
            continue;
        }
        retries = 0;
        search.record(lost.filter(|_| keeps).unwrap_or(failed));
        if let Some(reason) = doubt.filter(|_| doubts.as_ref().is_none_or(|doubt| rate < doubt.0)) {
            doubts = Some((rate, reason));
        }
    }
    let result = &search.results()[0];
    let per_second = |rate: Option<Rate>| rate.map(|rate| rate.bits() as f64 / UNITS);
    let (lower, upper) = (per_second(result.lower), per_second(result.upper));
    // An upper bound may be the generator's own.
    let invalid = doubts.filter(|(rate, _)| upper.is_none_or(|upper| *rate <= upper));
    let is_stopped = stop.load(Ordering::Relaxed);
    if is_text {
        let shown = |rate: Option<f64>| {
            rate.map_or("none".into(), |rate| format!("{} /s", significant(rate)))
        };
        let above = match upper {
            None => format!(
                "the highest that was tried, {}",
                shown(per_second(Some(highest)))
            ),
            upper => format!("not at {}", shown(upper)),
        };
        let (lower, trials) = (shown(lower), trials.len());
        terminal::print_last(&format!(
            "{objective}: kept at {lower}, {above} ({trials} trials)"
        ))?;
    } else {
        let json = json!({
            "schema": 1,
            "target": load.target.address.to_string(),
            "find_max": {
                "objective": objective.to_string(),
                "rate_kept": lower,
                "rate_not_kept": upper,
                "is_regular": result.regular,
                "poisson": matches!(options.pace, Pace::Poisson(_)),
                "trials": trials,
                "invalid": invalid.as_ref().map(|(_, reason)| reason),
            },
        });
        terminal::print_last(&terminal::json(&json)?)?;
    }
    if is_stopped {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if let Some((rate, reason)) = invalid {
        let rate = significant(rate);
        terminal::say(&format!("tare: invalid from {rate} /s on: {reason}"));
        return Ok(ExitCode::from(INVALID));
    }
    Ok(ExitCode::from(if lower.is_some() { 0 } else { INVALID }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objectives_are_a_percentile_and_a_limit() {
        for (text, slower, ns, shown) in [
            ("p99 < 2 ms", 0.01, 2_000_000, "p99 < 2 ms"),
            ("p99.9<=500us", 0.001, 500_000, "p99.9 < 500 µs"),
            ("max < 1.5 s", 0.0, 1_500_000_000, "max < 1.5 s"),
            ("p50<10µs", 0.5, 10_000, "p50 < 10 µs"),
        ] {
            let objective: Objective = text.parse().unwrap();
            assert_eq!(objective.slower, slower);
            assert_eq!(objective.limit, Duration::from_nanos(ns));
            assert_eq!(objective.to_string(), shown);
        }
        for wrong in [
            "",
            "p99",
            "p99 > 2 ms",
            "p101 < 1 s",
            "q99 < 1 s",
            "p99 < 2",
            "p99 < 2 m",
            "p99 < 0 s",
        ] {
            let error = wrong.parse::<Objective>().unwrap_err();
            assert!(error.contains("such as p99 < 2 ms"), "{error}");
        }
    }

    #[test]
    fn requests_that_are_slow_not_sent_refused_or_unanswered_are_lost() {
        let objective: Objective = "p99 < 1 ms".parse().unwrap();
        let mut record = Record::default();
        assert_eq!(objective.lost(&record), None);
        (record.scheduled, record.issued) = (100, 95);
        (record.served, record.refused, record.failed) = (88, 2, 5);
        for n in 0..90 {
            record
                .latency
                .record(if n < 10 { 2_000_000 } else { 500_000 });
        }
        let lost = objective.lost(&record).unwrap();
        assert!((lost - 0.22).abs() < 1e-9, "{lost}");
    }
}
