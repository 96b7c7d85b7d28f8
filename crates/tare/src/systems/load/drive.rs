//! Trials of a load: keys that are written before it, the trial, and its report.

use std::fs::File;
use std::io::BufWriter;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{bail, ensure, Context as _};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use tare_histogram::HistogramLog;
use tare_load::protocol::Protocol;
use tare_load::{
    run_with, Intervals, KeyPattern, Options, Pace, Record, Target, Trace, TraceKind, Workload,
};

use super::counts::{Counter, Counts};
use super::{find_max, report, TrialArgs, INTERRUPTED, INVALID};
use crate::{systems, terminal};

/// A bar for less than this would only flicker.
const BAR_AFTER: Duration = Duration::from_secs(2);

/// Requests in flight per connection while keys are written before a trial.
const FILL_PIPELINE: usize = 16;

/// The length of the intervals of a log of histograms.
const INTERVAL: Duration = Duration::from_secs(1);

/// The longest trial: a trace without --duration has no other end than its last line.
const DURATION_MAX: Duration = Duration::from_secs(86_400);

/// A load: what is sent where, and how.
pub(super) struct Load<'a, P> {
    pub(super) target: &'a Target,
    pub(super) protocol: &'a P,
    pub(super) trial: &'a TrialArgs,
    /// The lines of a trace of this protocol.
    pub(super) trace: Option<TraceKind>,
    /// The server's own counts.
    pub(super) counter: Option<Counter>,
    /// Write every key before the trial.
    pub(super) fill: bool,
}

/// A trial that was run.
pub(super) struct Done {
    pub(super) record: Record,
    pub(super) counts: Option<Counts>,
}

impl Done {
    /// The reason why the figures are not those of the server under this load, if there is one.
    pub(super) fn invalid(&self) -> Option<String> {
        let mismatch = || self.counts.as_ref().and_then(Counts::mismatch);
        self.record.is_invalid().or_else(mismatch)
    }
}

impl<P: Protocol + Clone + Sync> Load<'_, P> {
    /// Writes the keys if asked, runs the trial or the search, and reports it.
    pub(super) fn run(&self, workload: Workload) -> anyhow::Result<ExitCode> {
        let args = self.trial;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // A second signal ends the program as it would without this.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))
                .context("signals")?;
            signal_hook::flag::register(signal, Arc::clone(&stop)).context("signals")?;
        }
        ensure!(
            args.connections >= args.threads,
            "--connections: found {} for {} threads, expected at least one for each",
            args.connections,
            args.threads
        );
        let options = self.options(workload)?;
        if self.fill {
            self.write_keys(&options, &stop)?;
        }
        if let Some(objective) = args.find_max {
            return find_max::run(self, objective, &options, &stop);
        }
        let intervals = self.intervals(options.warm_up)?;
        let expected = options.warm_up + options.duration;
        let done = with_bar(expected, || self.trial(&options, &stop, intervals.as_ref()))?;
        terminal::print_last(&match args.json {
            true => terminal::json(&report::json(self.target, &options, &done)?)?,
            false => report::text(self.target, &options, &done),
        })?;
        if stop.load(Ordering::Relaxed) {
            return Ok(ExitCode::from(INTERRUPTED));
        }
        if let Some(reason) = done.invalid() {
            terminal::say(&format!("tare: invalid: {reason}"));
            return Ok(ExitCode::from(INVALID));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn options(&self, workload: Workload) -> anyhow::Result<Options> {
        let args = self.trial;
        let trace = match (&args.trace, self.trace) {
            (Some(path), Some(kind)) => Some(Trace::check(path, kind)?),
            _ => None,
        };
        let is_timed = trace.as_ref().is_some_and(Trace::is_timed);
        ensure!(
            !is_timed || args.rate.is_none(),
            "--rate: found it with a trace whose lines have times, expected one of the two"
        );
        ensure!(
            !args.poisson || args.rate.is_some() || args.find_max.is_some(),
            "--poisson: found no --rate, expected one"
        );
        let default = |plain: u64, of_trace: Duration| match trace {
            Some(_) => of_trace,
            None => Duration::from_secs(plain),
        };
        Ok(Options {
            connections: args.connections as usize,
            threads: args.threads as usize,
            cpus: args.cpu.clone(),
            pipeline: args.pipeline as usize,
            pace: match args.rate {
                None if is_timed => Pace::Trace,
                None => Pace::Closed,
                Some(rate) => self.pace(rate),
            },
            workload,
            warm_up: args.warm_up.unwrap_or_else(|| default(1, Duration::ZERO)),
            duration: args.duration.unwrap_or_else(|| default(10, DURATION_MAX)),
            trace,
            requests: None,
            timeout: args.timeout,
            seed: args.seed.map_or_else(systems::system_random, Ok)?,
        })
    }

    /// An open loop at this rate.
    pub(super) fn pace(&self, rate: f64) -> Pace {
        match self.trial.poisson {
            true => Pace::Poisson(rate),
            false => Pace::Constant(rate),
        }
    }

    /// Runs a trial, and counts on both sides.
    pub(super) fn trial(
        &self,
        options: &Options,
        stop: &AtomicBool,
        intervals: Option<&Intervals>,
    ) -> anyhow::Result<Done> {
        let run = || run_with(self.target, self.protocol, options, stop, intervals);
        let Some(counter) = &self.counter else {
            let record = run()?;
            return Ok(Done {
                record,
                counts: None,
            });
        };
        let before = counter.read(self.target)?;
        let record = run()?;
        let counts = Some(counter.counts(self.target, before, &record)?);
        Ok(Done { record, counts })
    }

    fn intervals(&self, warm_up: Duration) -> anyhow::Result<Option<Intervals>> {
        let Some(path) = &self.trial.hlog else {
            return Ok(None);
        };
        let at = || path.display().to_string();
        let file = BufWriter::new(File::create(path).with_context(at)?);
        let log = HistogramLog::new(file, SystemTime::now() + warm_up);
        let (mut log, at) = (log.with_context(at)?, at());
        let write = move |begin, length, latencies: &_| {
            let written = log.write(begin, length, latencies);
            written.map_err(|error| std::io::Error::other(format!("{at}: {error}")))
        };
        Ok(Some(Intervals::new(INTERVAL, write)))
    }

    /// Writes every key once.
    fn write_keys(&self, options: &Options, stop: &AtomicBool) -> anyhow::Result<()> {
        let keys = options.workload.keys;
        let fill = Options {
            pace: Pace::Closed,
            pipeline: FILL_PIPELINE,
            workload: Workload {
                set_share: 1.0,
                pattern: KeyPattern::Sequential,
                ..options.workload.clone()
            },
            warm_up: Duration::ZERO,
            duration: DURATION_MAX,
            requests: Some(keys),
            ..options.clone()
        };
        let record = run_with(self.target, self.protocol, &fill, stop, None)?;
        let (served, error) = (record.served, record.first_error);
        if served < keys && !stop.load(Ordering::Relaxed) {
            let error = error.unwrap_or_else(|| "no response".into());
            bail!("--fill: found {served} of {keys} keys written: {error}");
        }
        Ok(())
    }
}

/// Does work that takes about `expected`, with a bar if that is long enough.
fn with_bar<R>(expected: Duration, work: impl FnOnce() -> R) -> R {
    if !(BAR_AFTER..DURATION_MAX).contains(&expected) || !terminal::is_drawable() {
        return work();
    }
    let bar = ProgressBar::new(expected.as_millis() as u64);
    if let Ok(style) =
        ProgressStyle::with_template("{elapsed_precise} [{wide_bar:.cyan/blue}] {percent}%")
    {
        bar.set_style(style.progress_chars("━╸─"));
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let began = Instant::now();
            while !is_done.load(Ordering::Relaxed) {
                bar.set_position(began.elapsed().min(expected).as_millis() as u64);
                std::thread::park_timeout(Duration::from_millis(200));
            }
        });
        let result = work();
        is_done.store(true, Ordering::Relaxed);
        bar.finish_and_clear();
        result
    })
}
