//! A hash index in far memory, and the same in Redis: every value that is read is verified.
//!
//! ```text
//! cargo run --release -p tare-farmem --example hash_index -- all 100000 udp://127.0.0.1:7311
//! ```
//!
//! The program itself needs a few MiB, however large the index is. It goes on while the node is
//! restarted, and with `--loss` it makes losses, duplicates and another order of datagrams itself.
//! The guide has it step by step.

mod far;
mod index;
mod layout;
mod redis;
mod report;
mod workload;

use std::process::ExitCode;
use std::time::Duration;

use tare_farmem::transport::Faults;

use far::Far;
pub(crate) use index::Error;
use index::Index;
use redis::Redis;
use workload::Subject;

const USAGE: &str = "\
usage: hash_index [OPTIONS] COMMAND TARGET…

  fill N          make the index anew, with N entries
  verify          read and compare every entry
  run             compare every entry, get and put at random, compare again
  all N           fill and run

  TARGET          udp://HOST:PORT, a memory node; redis://HOST:PORT, an empty Redis server;
                  several take turns in `run`
  --seconds S     time of getting and putting for each target, 5 if it is not given
  --outstanding N most requests that have not ended, 64 if it is not given
  --loss SHARE    of datagrams in each direction, such as 0.01; as many arrive twice and late
  --seed N        for the losses
  --progress      a line on standard error four times per second, while there is progress
  --json          the result as JSON

exit status: 0 if everything was right, 1 if something was wrong, 2 if it could not run";

/// The time for which one target works while the others wait.
const TURN: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("hash_index: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the program with the arguments behind its name; returns false if something was wrong.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<bool, Error> {
    Settings::parse(arguments)?.run()
}

enum Command {
    Fill(u64),
    Verify,
    Run,
    All(u64),
}

struct Settings {
    command: Command,
    targets: Vec<String>,
    seconds: f64,
    outstanding: usize,
    loss: f64,
    seed: u64,
    has_progress: bool,
    is_json: bool,
}

impl Settings {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Settings, Error> {
        let mut settings = Settings {
            command: Command::Verify,
            targets: Vec::new(),
            seconds: 5.0,
            outstanding: 64,
            loss: 0.0,
            seed: 1,
            has_progress: false,
            is_json: false,
        };
        let mut words = Vec::new();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().unwrap_or_default();
            match &argument[..] {
                "--seconds" => settings.seconds = number(&argument, &value(), 0.0, 86_400.0)?,
                "--outstanding" => {
                    settings.outstanding = number(&argument, &value(), 1.0, 1024.0)? as usize;
                }
                "--loss" => settings.loss = number(&argument, &value(), 0.0, 0.5)?,
                "--seed" => settings.seed = number(&argument, &value(), 0.0, 1e15)? as u64,
                "--progress" => settings.has_progress = true,
                "--json" => settings.is_json = true,
                option if option.starts_with('-') => {
                    return Err(Error(format!("unknown option {option}\n\n{USAGE}")));
                }
                _ => words.push(argument),
            }
        }
        let mut words = words.into_iter();
        let command = words.next().unwrap_or_default();
        let mut entries = || number("N", &words.next().unwrap_or_default(), 1.0, 1e9);
        settings.command = match &command[..] {
            "fill" => Command::Fill(entries()? as u64),
            "all" => Command::All(entries()? as u64),
            "verify" => Command::Verify,
            "run" => Command::Run,
            _ => return Err(Error(USAGE.to_string())),
        };
        settings.targets = words.collect();
        match settings.targets.is_empty() {
            true => Err(Error(USAGE.to_string())),
            false => Ok(settings),
        }
    }

    /// Runs the command; returns false if something was wrong.
    fn run(&self) -> Result<bool, Error> {
        let mut subjects = Vec::new();
        for target in &self.targets {
            let mut subject = self.connect(target)?;
            match self.command {
                Command::Fill(entries) | Command::All(entries) => subject.fill(entries)?,
                Command::Verify | Command::Run => subject.learn()?,
            }
            subjects.push(subject);
        }
        if let Command::Run | Command::All(_) = self.command {
            let turns = (self.seconds / TURN.as_secs_f64()).ceil() as u64;
            for _ in 0..turns {
                for subject in &mut subjects {
                    subject.run(TURN)?;
                }
            }
            for subject in &mut subjects {
                subject.verify()?;
            }
        }
        match self.is_json {
            true => println!("{}", report::json(&mut subjects)),
            false => print!("{}", report::text(&mut subjects)),
        }
        Ok(subjects.iter().all(|subject| subject.wrong == 0))
    }

    fn connect(&self, target: &str) -> Result<Subject, Error> {
        let index: Box<dyn Index> = if let Some(address) = target.strip_prefix("redis://") {
            Box::new(Redis::connect(address)?)
        } else {
            let faults = Faults {
                loss: self.loss,
                duplication: self.loss,
                reordering: self.loss,
            };
            let faults = (self.loss > 0.0).then_some((faults, self.seed));
            let mut far = Far::connect(target, faults)?;
            if let Command::Verify | Command::Run = self.command {
                far.open()?;
            }
            Box::new(far)
        };
        let mut subject = Subject::new(target, index);
        subject.outstanding = self.outstanding;
        subject.has_progress = self.has_progress;
        Ok(subject)
    }
}

fn number(name: &str, text: &str, min: f64, max: f64) -> Result<f64, Error> {
    let found: Option<f64> = text.parse().ok();
    found
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| {
            Error(format!(
                "{name}: found \"{text}\", expected a number from {min} to {max}"
            ))
        })
}
