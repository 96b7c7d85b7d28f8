//! `tare rng test`: the built-in battery and, where installed, other batteries.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _};
use clap::ValueEnum as _;
use serde_json::{json, Value};
use tare_battery::{Battery, Config, Report, Verdict, BYTES_MIN};
use tare_lab::unit::{significant, Unit};

use super::external::{self, probability, Status, Tool};
use super::known_bad::KnownBad;
use super::method::Method;
use super::progress::Bar;
use super::retry::Retry;
use super::stream::{self, FillReader};
use crate::size::parse_bytes;
use crate::terminal;

/// The exit status without a judgement: fewer bytes than the tests need, or none at all.
const COULD_NOT_JUDGE: u8 = 2;
const CHUNK: usize = 256 * 1024;
/// Bytes read of what has no length of its own, where the command line does not say: enough for
/// the tests to find small defects, read in some seconds, and an end where there is none.
const ENDLESS_MAX: u64 = 256 << 20;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare rng test random.bin --external all --time 600\n  \
    tare rng gen -n 64Mi | tare rng test   data from a pipe\n  \
    tare rng test -m aes_ctr -n 1G         a method\n  \
    tare rng test --generator zero-blocks  a test that fails\n\n\
    The built-in battery fails one ideal stream in a million. dieharder and PractRand apply their \
    own criteria (dieharder's set fails about one good stream in 25,000); the counts of rngtest \
    and ent are judged at a significance level of 1e-6.\n\n\
    Exit status: 0 every test passed; 1 a test failed; 2 usage error, or too few bytes to judge \
    (fewer than 1 MiB).")]
pub(crate) struct Args {
    /// File to test; `-` is standard input, which is also the default if no method or generator is
    /// named
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Test this method instead of a file
    #[arg(short, long, conflicts_with_all = ["file", "generator"], value_parser = super::any_method())]
    method: Option<Method>,
    /// Test an intentionally broken generator
    #[arg(long, value_name = "BROKEN", conflicts_with = "file")]
    generator: Option<KnownBad>,
    #[command(flatten)]
    retry: Retry,
    /// Number of bytes, such as 10M or 64Mi [default: all of a file; at most 256Mi of a pipe or a
    /// device; 16Mi of a method; 1Mi of a reseeding method]
    #[arg(short = 'n', long, value_name = "BYTES", value_parser = parse_bytes)]
    bytes: Option<u64>,
    /// Other batteries to run: none, all (that are installed), or a comma-separated list of
    /// dieharder, rngtest, ent, practrand
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = Externals::parse)]
    external: Externals,
    /// Time limit of each of the other batteries, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    time: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The batteries to run beside the built-in one.
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

/// The subject of the test.
enum Subject<'a> {
    File(&'a Path),
    StandardInput,
    Method(Method, Retry),
    KnownBad(KnownBad),
}

impl Subject<'_> {
    fn of(args: &Args) -> anyhow::Result<Subject<'_>> {
        let file = args.file.as_deref().filter(|file| file.as_os_str() != "-");
        Ok(match (file, args.generator, args.method) {
            (Some(file), ..) => Subject::File(file),
            (None, Some(bad), _) => Subject::KnownBad(bad),
            (None, None, Some(method)) => Subject::Method(method, args.retry),
            (None, None, None) if io::stdin().is_terminal() => bail!(
                "nothing to test: standard input is a terminal; name a FILE, pipe a stream into \
                 it, or test a method such as -m get_bytes"
            ),
            (None, None, None) => Subject::StandardInput,
        })
    }

    fn name(&self) -> String {
        match self {
            Subject::File(path) => path.display().to_string(),
            Subject::StandardInput => "standard input".into(),
            Subject::Method(method, _) => method.name().into(),
            Subject::KnownBad(bad) => {
                let name = bad
                    .to_possible_value()
                    .map_or(String::new(), |value| value.get_name().into());
                format!("the broken generator \"{name}\"")
            }
        }
    }

    /// Its length, and whether it can be read again.
    fn extent(&self) -> anyhow::Result<Extent> {
        Ok(match self {
            Subject::File(path) => {
                let metadata = fs::metadata(path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                // A file that the kernel generates as it is read (/proc) has the length 0.
                if metadata.is_file() && metadata.len() > 0 {
                    Extent::Length(metadata.len())
                } else if metadata.file_type().is_char_device() {
                    Extent::Endless
                } else {
                    Extent::Once
                }
            }
            Subject::StandardInput => Extent::Once,
            Subject::Method(..) | Subject::KnownBad(_) => Extent::Endless,
        })
    }

    /// Bytes to test where the command line does not say.
    fn bytes_default(&self, extent: Extent) -> u64 {
        match (self, extent) {
            (_, Extent::Length(bytes)) => bytes,
            (Subject::Method(Method::ReseedDelay | Method::ReseedSkip, _), _) => BYTES_MIN,
            (Subject::Method(..) | Subject::KnownBad(_), _) => 16 * BYTES_MIN,
            (Subject::File(_) | Subject::StandardInput, _) => ENDLESS_MAX,
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
            Subject::Method(method, retry) => {
                Box::new(FillReader::new(stream::open(*method, *retry)?, bytes))
            }
            Subject::KnownBad(bad) => Box::new(FillReader::new(bad.open(), bytes)),
        })
    }
}

/// The length of a subject.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// A number of bytes, which can be read again.
    Length(u64),
    /// Unlimited, and it can be opened again.
    Endless,
    /// Unknown, and it can be read once only: a pipe.
    Once,
}

/// The result of the tests.
struct Findings<'a> {
    subject: &'a str,
    report: Report,
    took: Duration,
    /// The default length, if that ended the test and neither the stream nor the command line did.
    bound: Option<u64>,
    verdicts: Vec<external::Verdict>,
    left_out: Option<&'static str>,
}

/// Tests and prints the result.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    terminal::need_output()?;
    let subject = Subject::of(args)?;
    let name = subject.name();
    let mut missing = args
        .external
        .tools
        .iter()
        .filter(|tool| tool.find().is_none());
    if let (true, Some(tool)) = (args.external.named, missing.next()) {
        bail!("{} is not installed: {}", tool.name(), tool.install());
    }
    let extent = subject.extent()?;
    let bytes = args.bytes.unwrap_or_else(|| subject.bytes_default(extent));
    let total = match extent {
        Extent::Length(length) => Some(bytes.min(length)),
        Extent::Endless => Some(bytes),
        Extent::Once => args.bytes,
    };
    let from = Instant::now();
    let report = built_in(&name, subject.open(bytes)?, total)?;
    let is_bounded = args.bytes.is_none()
        && matches!(subject, Subject::File(_) | Subject::StandardInput)
        && !matches!(extent, Extent::Length(_))
        && report.bytes == bytes;
    let mut findings = Findings {
        subject: &name,
        took: from.elapsed(),
        bound: is_bounded.then_some(bytes),
        report,
        verdicts: Vec::new(),
        left_out: None,
    };
    if extent == Extent::Once && !args.external.tools.is_empty() {
        findings.left_out = Some(
            "other batteries were not run: a stream without a length can be read only once; write it to a file first",
        );
    } else {
        others(args, &subject, extent, &mut findings)?;
    }
    if args.json {
        terminal::print_last(&terminal::json_pretty(&as_json(&findings))?)?;
    } else {
        terminal::print_last(&terminal::fitted(&as_text(&findings)))?;
    }
    let failed = findings
        .verdicts
        .iter()
        .any(|verdict| verdict.status == Status::Fail);
    Ok(match findings.report.verdict {
        _ if failed => ExitCode::FAILURE,
        Verdict::Fail => ExitCode::FAILURE,
        Verdict::TooShort => ExitCode::from(COULD_NOT_JUDGE),
        Verdict::Pass => ExitCode::SUCCESS,
    })
}

/// Runs the other batteries.
fn others(
    args: &Args,
    subject: &Subject<'_>,
    extent: Extent,
    findings: &mut Findings<'_>,
) -> anyhow::Result<()> {
    // Of a file its length; of a generator as much as a battery takes in its time.
    let available = match extent {
        Extent::Endless => u64::MAX,
        Extent::Length(_) | Extent::Once => findings.report.bytes,
    };
    let time = Duration::from_secs(args.time.into());
    for &tool in &args.external.tools {
        let limit = if tool.wants_as_it_goes() {
            available
        } else {
            findings.report.bytes
        };
        let bar = Bar::of_time(Some(time));
        bar.message(&format!("{}, at most", tool.name()));
        let judged = bar.during(Duration::ZERO, time, || {
            external::judge(tool, limit, time, &|| subject.open(limit))
        });
        bar.finish();
        findings.verdicts.push(judged?);
    }
    Ok(())
}

fn built_in(
    name: &str,
    mut stream: Box<dyn Read + Send>,
    total: Option<u64>,
) -> anyhow::Result<Report> {
    let mut battery = Battery::new(Config::default());
    let mut buffer = vec![0; CHUNK];
    let bar = Bar::of_bytes(total);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => battery.update(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                bar.finish();
                let read = battery.bytes();
                return Err(error).context(format!("cannot read {name} after {read} bytes"));
            }
        }
        bar.at(battery.bytes());
    }
    bar.finish();
    Ok(battery.finish())
}

fn as_json(findings: &Findings<'_>) -> Value {
    let report = &findings.report;
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
        "subject": findings.subject,
        "bytes": report.bytes,
        "bound": findings.bound,
        "verdict": report.verdict.as_str(),
        "family_alpha": report.family_alpha,
        "corrected_p": report.corrected_p_value(),
        "tests": tests,
        "external": findings.verdicts,
    })
}

fn as_text(findings: &Findings<'_>) -> String {
    let report = &findings.report;
    let rate = report.bytes as f64 / findings.took.as_secs_f64();
    let mut text = format!(
        "{}: {} bytes at {}\n",
        findings.subject,
        report.bytes,
        Unit::MegabytesPerSecond.show(rate / Unit::MegabytesPerSecond.scale()),
    );
    if let Some(bound) = findings.bound {
        text.push_str(&format!(
            "no more than {bound} bytes were read, as it may have no end; -n BYTES reads more\n"
        ));
    }
    let tests = report.outcomes.iter().map(|outcome| outcome.test.len());
    let tests = tests.max().unwrap_or(0);
    text.push_str(&format!(
        "\n{:9} {:tests$} {:>10}  {:>9}  statistic\n",
        "verdict", "test", "value", "p"
    ));
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
            "{:9} {:tests$} {numbers}\n",
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
    if let Some(reason) = findings.left_out {
        text.push_str(&format!("\n{reason}\n"));
    }
    if !findings.verdicts.is_empty() {
        text.push_str(&format!(
            "\n{:12} {:10} {:>12} {:>8}  summary\n",
            "verdict", "battery", "bytes", "seconds"
        ));
    }
    for verdict in &findings.verdicts {
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
