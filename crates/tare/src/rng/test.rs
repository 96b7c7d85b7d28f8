//! `tare rng test`: the built-in battery and, where installed, the batteries of others.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _};
use clap::ValueEnum as _;
use serde_json::{json, Value};
use tare_lab::unit::{significant, Unit};
use tare_rdrand::battery::{Battery, Config, Report, Verdict, BYTES_MIN};

use super::external::{self, probability, Status, Tool};
use super::known_bad::KnownBad;
use super::method::Method;
use super::size::parse_bytes;
use super::stream::{self, FillReader};
use crate::terminal;

/// Fewer bytes than the tests need, or nothing to test: no judgement.
const COULD_NOT_JUDGE: u8 = 2;
const CHUNK: usize = 256 * 1024;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare rng test                          16 MiB of get_bytes\n  \
    tare rng test -m aes_ctr -n 1G\n  \
    tare rng test random.bin --external all --time 600\n  \
    tare rng gen -n 64Mi | tare rng test -\n  \
    tare rng test --generator zero-blocks  see it fail\n\n\
    An ideal stream fails the built-in battery once in a million streams. dieharder and PractRand judge by \
    their own rules (a good stream fails dieharder's set about once in 25,000), the counts of \
    rngtest and ent are judged at 1e-6.\n\n\
    Exit status: 0 every test passed; 1 a test failed; 2 wrong usage, or too few bytes to judge (1 MiB).")]
pub(crate) struct Args {
    /// The file; `-` is standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Test this method instead of a file [default: get_bytes]
    #[arg(short, long, conflicts_with_all = ["file", "generator"], value_parser = super::any_method())]
    method: Option<Method>,
    /// Test a generator that is broken on purpose
    #[arg(long, value_name = "BROKEN", conflicts_with = "file")]
    generator: Option<KnownBad>,
    /// How many bytes: 10M, 64Mi [default: all of a file, 16Mi of a method, 1Mi of a reseeding one]
    #[arg(short = 'n', long, value_name = "BYTES", value_parser = parse_bytes)]
    bytes: Option<u64>,
    /// Other batteries to run: none, all (that are installed), or some of dieharder, rngtest, ent, practrand
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = Externals::parse)]
    external: Externals,
    /// How many seconds each of the other batteries may take
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    time: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Which batteries to run beside the built-in one.
#[derive(Clone, Debug)]
struct Externals {
    tools: Vec<Tool>,
    /// Named one by one: then one that is missing is an error.
    named: bool,
}

impl Externals {
    fn parse(text: &str) -> Result<Externals, String> {
        match text {
            "none" => Ok(Externals {
                tools: Vec::new(),
                named: false,
            }),
            "all" => Ok(Externals {
                tools: Tool::value_variants().to_vec(),
                named: false,
            }),
            list => {
                let tools: Result<Vec<Tool>, String> = list
                    .split(',')
                    .map(|name| {
                        Tool::from_str(name, true).map_err(|_| {
                            format!("found \"{name}\", expected none, all, or some of dieharder, rngtest, ent, practrand")
                        })
                    })
                    .collect();
                Ok(Externals {
                    tools: tools?,
                    named: true,
                })
            }
        }
    }
}

/// What is tested.
enum Subject<'a> {
    File(&'a Path),
    StandardInput,
    Method(Method),
    KnownBad(KnownBad),
}

impl Subject<'_> {
    fn of(args: &Args) -> anyhow::Result<Subject<'_>> {
        Ok(match (&args.file, args.generator, args.method) {
            (Some(file), ..) if file.as_os_str() == "-" => {
                if io::stdin().is_terminal() {
                    bail!("standard input is a terminal; pipe a stream into it or name a file");
                }
                Subject::StandardInput
            }
            (Some(file), ..) => Subject::File(file),
            (None, Some(bad), _) => Subject::KnownBad(bad),
            (None, None, method) => Subject::Method(method.unwrap_or(Method::GetBytes)),
        })
    }

    fn name(&self) -> String {
        match self {
            Subject::File(path) => path.display().to_string(),
            Subject::StandardInput => "standard input".into(),
            Subject::Method(method) => method.name().into(),
            Subject::KnownBad(bad) => {
                let name = bad
                    .to_possible_value()
                    .map_or(String::new(), |value| value.get_name().into());
                format!("the broken generator \"{name}\"")
            }
        }
    }

    /// Bytes to test where the command line does not say.
    fn bytes_default(&self) -> u64 {
        match self {
            Subject::File(_) | Subject::StandardInput => u64::MAX,
            Subject::Method(Method::ReseedDelay | Method::ReseedSkip) => BYTES_MIN,
            Subject::Method(_) | Subject::KnownBad(_) => 16 * BYTES_MIN,
        }
    }

    /// The stream from its beginning; of a method, a new one.
    fn open(&self, bytes: u64) -> anyhow::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Subject::File(path) => {
                let file =
                    File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
                Box::new(file.take(bytes))
            }
            Subject::StandardInput => Box::new(io::stdin().take(bytes)),
            Subject::Method(method) => Box::new(FillReader::new(stream::open(*method)?, bytes)),
            Subject::KnownBad(bad) => Box::new(FillReader::new(bad.open(), bytes)),
        })
    }
}

/// Tests and prints what was found.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let subject = Subject::of(args)?;
    let mut missing = args
        .external
        .tools
        .iter()
        .filter(|tool| tool.find().is_none());
    if let (true, Some(tool)) = (args.external.named, missing.next()) {
        bail!("{} is not installed: {}", tool.name(), tool.install());
    }
    let bytes = args.bytes.unwrap_or_else(|| subject.bytes_default());
    let from = Instant::now();
    let report = built_in(subject.open(bytes)?)
        .with_context(|| format!("cannot read {}", subject.name()))?;
    let took = from.elapsed();

    let mut verdicts = Vec::new();
    let mut left_out = None;
    match subject {
        Subject::StandardInput if !args.external.tools.is_empty() => {
            left_out = Some(
                "other batteries were not run: standard input can be read only once; give a file",
            );
        }
        _ => {
            // Of a file no more than there is; of a generator as much as a battery wants in its time.
            let available = match subject {
                Subject::File(_) => report.bytes,
                _ => u64::MAX,
            };
            for &tool in &args.external.tools {
                let limit = if tool.wants_as_it_goes() {
                    available
                } else {
                    report.bytes
                };
                let time = Duration::from_secs(args.time.into());
                verdicts.push(external::judge(tool, limit, time, &|| subject.open(limit))?);
            }
        }
    }

    if args.json {
        let value = as_json(&subject.name(), &report, &verdicts);
        terminal::print(&serde_json::to_string_pretty(&value)?)?;
    } else {
        terminal::print(&as_text(
            &subject.name(),
            &report,
            took,
            &verdicts,
            left_out,
        ))?;
    }
    let failed = verdicts
        .iter()
        .any(|verdict| verdict.status == Status::Fail);
    Ok(match report.verdict {
        _ if failed => ExitCode::FAILURE,
        Verdict::Fail => ExitCode::FAILURE,
        Verdict::TooShort => ExitCode::from(COULD_NOT_JUDGE),
        Verdict::Pass => ExitCode::SUCCESS,
    })
}

fn built_in(mut stream: Box<dyn Read + Send>) -> io::Result<Report> {
    let mut battery = Battery::new(Config::default());
    let mut buffer = vec![0; CHUNK];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(battery.finish()),
            Ok(n) => battery.update(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn as_json(subject: &str, report: &Report, verdicts: &[external::Verdict]) -> Value {
    let tests: Vec<Value> = report
        .outcomes
        .iter()
        .map(|outcome| {
            json!({
                "test": outcome.test,
                "verdict": outcome.verdict.as_str(),
                "statistic": outcome.statistic,
                "value": outcome.value,
                "p": outcome.p_value,
                "bytes_min": outcome.bytes_min,
                "note": outcome.note,
            })
        })
        .collect();
    json!({
        "schema": 1,
        "subject": subject,
        "bytes": report.bytes,
        "verdict": report.verdict.as_str(),
        "family_alpha": report.family_alpha,
        "corrected_p": report.corrected_p_value(),
        "tests": tests,
        "external": verdicts,
    })
}

fn as_text(
    subject: &str,
    report: &Report,
    took: Duration,
    verdicts: &[external::Verdict],
    left_out: Option<&str>,
) -> String {
    let rate = report.bytes as f64 / took.as_secs_f64();
    let mut text = format!(
        "{subject}: {} bytes at {}\n\n{:9} {:32} {:>10}  {:>9}  statistic\n",
        report.bytes,
        Unit::MegabytesPerSecond.show(rate / Unit::MegabytesPerSecond.scale()),
        "verdict",
        "test",
        "value",
        "p"
    );
    for outcome in &report.outcomes {
        let numbers = match (outcome.value, outcome.p_value) {
            (Some(value), Some(p)) => {
                let (value, p) = (significant(value), probability(p));
                format!(
                    "{value:>10}  {p:>9}  {}, {}",
                    outcome.statistic, outcome.note
                )
            }
            _ => format!("{:>10}  {:>9}  needs {} bytes", "-", "-", outcome.bytes_min),
        };
        text.push_str(&format!(
            "{:9} {:32} {numbers}\n",
            outcome.verdict.as_str(),
            outcome.test
        ));
    }
    let judged = report
        .outcomes
        .iter()
        .filter(|outcome| outcome.p_value.is_some())
        .count();
    let conclusion = match report.verdict {
        Verdict::Pass => "nothing that an ideal source does not do".into(),
        Verdict::Fail => format!("{} of {judged} tests failed", report.failures().count()),
        Verdict::TooShort => {
            let short = report.too_short().count();
            format!(
                "{short} of {} tests need a longer stream, {BYTES_MIN} bytes for all",
                report.outcomes.len()
            )
        }
    };
    let corrected = report.corrected_p_value().map_or("-".into(), probability);
    text.push_str(&format!(
        "\n{}: {conclusion} (p {corrected} over {judged} tests; an ideal stream fails once in {:.0})\n",
        report.verdict.as_str(),
        1.0 / report.family_alpha
    ));
    if let Some(reason) = left_out {
        text.push_str(&format!("\n{reason}\n"));
    }
    if !verdicts.is_empty() {
        text.push_str(&format!(
            "\n{:12} {:10} {:>12} {:>8}  summary\n",
            "verdict", "battery", "bytes", "seconds"
        ));
    }
    for verdict in verdicts {
        text.push_str(&format!(
            "{:12} {:10} {:>12} {:>8.1}  {}\n",
            verdict.status.as_str(),
            verdict.battery,
            verdict.bytes,
            verdict.seconds,
            verdict.summary
        ));
    }
    text
}
