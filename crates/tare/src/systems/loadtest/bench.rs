//! A tester that reports its trials.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde_json::{json, Value};
use tare_loadtest::{report, Load, Options, Rate, Testbed, Tester, Trial};

use super::notice::Notice;
use super::setup::Setup;
use crate::terminal;

/// The highest load of the warm-up, which is that of `snabb loadtest`.
const WARM_UP_RATE: Rate = Rate::from_bits(1_000_000_000);
/// The default warm-up of real interfaces.
const WARM_UP: Duration = Duration::from_secs(1);

/// A tester, its arguments, and the trials so far.
pub(super) struct Bench {
    command: &'static str,
    pub(super) tester: Tester<Box<dyn Testbed>>,
    pub(super) notice: Notice,
    trials: Vec<Trial>,
    table: Option<Table>,
    is_simulated: bool,
    with_latency: bool,
    is_json: bool,
}

impl Bench {
    /// For loads up to `max` in frames of up to `longest` bytes or those of the captures, in about
    /// `expected` trials, by the command of this name. Each trial is added to `table`.
    pub(super) fn new(
        command: &'static str,
        setup: &Setup,
        max: Rate,
        longest: usize,
        expected: u64,
        table: Option<Table>,
    ) -> anyhow::Result<Bench> {
        let ready = setup.ready(max, longest)?;
        let is_simulated = setup.simulate.is_some();
        let default = if is_simulated {
            Duration::ZERO
        } else {
            WARM_UP
        };
        let warm_up = Load::new(max.min(WARM_UP_RATE), setup.warm_up.unwrap_or(default));
        let has_warm_up = setup.warm_up.unwrap_or(default) > Duration::ZERO;
        // Two runs within 18 hours do not take each other's late packets for their own.
        let first_trial = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.as_secs() as u16);
        let options = Options {
            warm_up: has_warm_up.then_some(warm_up),
            first_trial: if is_simulated { 0 } else { first_trial },
            links: ready.links,
            frames: ready.frames,
            ..Options::default()
        };
        if let Some(unstamped) = report::unstamped(&ready.streams) {
            terminal::say(&format!("tare: {}", unstamped.replace('\n', "\ntare: ")));
        }
        let mut tester = match ready.pool {
            Some(pool) => Tester::with_pool(ready.testbed, ready.streams, options, pool)?,
            None => Tester::new(ready.testbed, ready.streams, options)?,
        };
        for sender in ready.senders {
            tester.add_sender(sender)?;
        }
        let notice = Notice::new(expected, setup.json);
        tester.on_pulse(notice.watch()?);
        let bench = Bench {
            command,
            tester,
            notice,
            trials: Vec::new(),
            table,
            is_simulated,
            with_latency: setup.latency,
            is_json: setup.json,
        };
        if has_warm_up {
            let seconds = warm_up_seconds(&warm_up);
            bench.say(&format!(
                "Warming up at {:.6} Gb/s for {seconds} seconds.",
                warm_up.rate.gbps()
            ))?;
        }
        Ok(bench)
    }

    /// A line of the report, unless that is JSON.
    pub(super) fn say(&self, text: &str) -> anyhow::Result<()> {
        if !self.is_json {
            self.notice.print(text)?;
        }
        Ok(())
    }

    /// Runs a trial and reports it.
    pub(super) fn trial(&mut self, load: &Load) -> anyhow::Result<&Trial> {
        self.say(&report::applying(load.rate))?;
        let trial = self.tester.trial(load);
        self.notice.trial_done();
        let trial = match trial {
            Ok(trial) => trial,
            Err(error) => {
                self.fail(&error)?;
                return Err(error.into());
            }
        };
        self.say(&report::trial(&trial, self.with_latency))?;
        if let Some(table) = &mut self.table {
            table.add(&trial)?;
        }
        self.trials.push(trial);
        Ok(&self.trials[self.trials.len() - 1])
    }

    /// Ends the report after a trial that failed: programs get the trials before it, and the reason
    /// why there are no more.
    pub(super) fn fail(&self, error: &tare_loadtest::Error) -> anyhow::Result<()> {
        self.finish(json!({"error": error.to_string()}))
    }

    /// Ends the report, as JSON with the fields of `result`.
    pub(super) fn finish(&self, result: Value) -> anyhow::Result<()> {
        self.notice.finish();
        if !self.is_json {
            return Ok(());
        }
        let streams = self.tester.streams().iter().map(|stream| {
            let (frames, unstamped) = stream.frames();
            json!({"name": stream.name(), "frames": frames, "frames_without_stamp": unstamped})
        });
        let mut all = json!({
            "schema": 1,
            "command": self.command,
            "simulated": self.is_simulated,
            "streams": streams.collect::<Vec<_>>(),
            "trials": self.trials,
        });
        if let (Some(all), Value::Object(result)) = (all.as_object_mut(), result) {
            all.extend(result);
        }
        terminal::print(&terminal::json_pretty(&all)?)?;
        Ok(())
    }
}

fn warm_up_seconds(load: &Load) -> f64 {
    match load.length {
        tare_loadtest::Length::Time(time) => time.as_secs_f64(),
        tare_loadtest::Length::Frames(_) => 0.0,
    }
}

/// A file of trials as CSV. It is made before the first trial, so that a path that cannot be
/// written costs no measurement.
pub(super) struct Table {
    file: File,
    name: String,
    rows: fn(&Trial) -> String,
}

impl Table {
    /// Makes the file, with this header and these rows of each trial.
    pub(super) fn create(
        path: &Path,
        header: &str,
        rows: fn(&Trial) -> String,
    ) -> anyhow::Result<Table> {
        let name = path.display().to_string();
        let mut file = File::create(path).with_context(|| name.clone())?;
        writeln!(file, "{header}").with_context(|| name.clone())?;
        Ok(Table { file, name, rows })
    }

    fn add(&mut self, trial: &Trial) -> anyhow::Result<()> {
        let written = self.file.write_all((self.rows)(trial).as_bytes());
        written.with_context(|| self.name.clone())
    }
}
