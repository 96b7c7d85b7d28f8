//! Statistical test batteries of other projects, run where they are installed.

mod drive;
mod parse;

use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;

use drive::{drive, Limits};
pub(crate) use parse::Finding;

use crate::program;

/// A battery that this program knows how to drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tool {
    Dieharder,
    Rngtest,
    Ent,
    Practrand,
}

/// The tests of dieharder that want at most a few seconds each, cheapest first, so that a short
/// time gives as many answers as it can. The others are suspect by dieharder's own list, or take
/// minutes.
const DIEHARDER_TESTS: [u32; 20] = [
    15, 8, 100, 11, 206, 0, 204, 10, 12, 3, 9, 207, 16, 1, 205, 209, 101, 13, 102, 2,
];

impl Tool {
    /// The program's file.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Tool::Dieharder => "dieharder",
            Tool::Rngtest => "rngtest",
            Tool::Ent => "ent",
            Tool::Practrand => "RNG_test",
        }
    }

    /// Its name for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Tool::Practrand => "PractRand",
            other => other.program(),
        }
    }

    /// The command that installs it.
    pub(crate) fn install(self) -> &'static str {
        match self {
            Tool::Dieharder => "apt-get install dieharder",
            Tool::Rngtest => "apt-get install rng-tools5",
            Tool::Ent => "apt-get install ent",
            Tool::Practrand => {
                "build it from https://pracrand.sourceforge.net (no package), RNG_test on the PATH"
            }
        }
    }

    /// True if it takes as much of a generator as it needs; the others read to the end.
    pub(crate) fn wants_as_it_goes(self) -> bool {
        self == Tool::Dieharder
    }

    /// The file of its program.
    pub(crate) fn find(self) -> Option<PathBuf> {
        program::find(self.program())
    }
}

/// The verdict of a battery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Status {
    Pass,
    Fail,
    /// It ran without a verdict: too little time or data, or output that makes no sense.
    Inconclusive,
    /// Not installed.
    Missing,
}

impl Status {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Status::Pass => "pass",
            Status::Fail => "fail",
            Status::Inconclusive => "inconclusive",
            Status::Missing => "missing",
        }
    }
}

/// The report of a battery.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) battery: &'static str,
    pub(crate) status: Status,
    /// One line for people.
    pub(crate) summary: String,
    /// Bytes that it took.
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) findings: Vec<Finding>,
}

/// Runs a battery on the stream of `open`, which is opened anew for each program of the battery.
///
/// # Errors
/// The stream could not be opened or read. A failure of the battery itself is its verdict.
pub(crate) fn judge(
    tool: Tool,
    bytes: u64,
    time: Duration,
    open: &dyn Fn() -> anyhow::Result<Box<dyn Read + Send>>,
) -> anyhow::Result<Verdict> {
    let Some(program) = tool.find() else {
        return Ok(Verdict {
            battery: tool.name(),
            status: Status::Missing,
            summary: format!("not installed: {}", tool.install()),
            bytes: 0,
            seconds: 0.0,
            findings: Vec::new(),
        });
    };
    let from = Instant::now();
    let until = from + time;
    let limits = Limits { bytes, until };
    let mut taken = 0;
    let mut run = |arguments: &[&str], limits| -> anyhow::Result<drive::Ran> {
        let ran = drive(&program, arguments, open()?, limits)?;
        taken += ran.bytes;
        Ok(ran)
    };
    let mut judged = match tool {
        Tool::Ent => parse::ent(&run(&["-t"], limits)?.output),
        Tool::Rngtest => parse::rngtest(&run(&[], limits)?.output),
        Tool::Practrand => {
            // It reports at powers of two, and wants 64 KiB for the first.
            let length = format!("{}KB", 1u64 << (bytes / 1024).max(64).ilog2());
            parse::practrand(
                &run(&["stdin64", "-tlmin", "64KB", "-tlmax", &length], limits)?.output,
            )
        }
        Tool::Dieharder => {
            let mut lines = String::new();
            for test in DIEHARDER_TESTS {
                if Instant::now() >= until {
                    break;
                }
                let number = test.to_string();
                let mut arguments = vec!["-g", "200", "-d", &number, "-c", "|"];
                for field in [
                    "test_name",
                    "ntuple",
                    "tsamples",
                    "psamples",
                    "pvalues",
                    "assessment",
                ] {
                    arguments.extend(["-D", field]);
                }
                let ran = run(&arguments, limits)?;
                if ran.complete {
                    lines.push_str(&ran.output);
                }
            }
            parse::dieharder(&lines, DIEHARDER_TESTS.len())
        }
    };
    let seconds = from.elapsed().as_secs_f64();
    if Instant::now() >= until && judged.status == Status::Inconclusive {
        judged.summary = format!("no result after {} s; increase --time", time.as_secs());
    } else if Instant::now() >= until {
        judged
            .summary
            .push_str(&format!("; stopped after {} s", time.as_secs()));
    }
    Ok(Verdict {
        battery: tool.name(),
        status: judged.status,
        summary: judged.summary,
        bytes: taken,
        seconds,
        findings: judged.findings,
    })
}

/// A p-value for people.
pub(crate) fn probability(p: f64) -> String {
    match p {
        0.0 => "< 1e-300".into(),
        p if p < 1e-4 => format!("{p:.1e}"),
        p => format!("{p:.4}"),
    }
}
