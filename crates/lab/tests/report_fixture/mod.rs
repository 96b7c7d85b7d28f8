//! A made-up run that has every form a report must draw.

#![allow(dead_code)] // Each test binary uses a part of it.

mod breakdown;

use std::collections::BTreeMap;

use tare_lab::experiment::{Axis, Bound, Published, Standing};
use tare_lab::fingerprint::{Interface, Machine};
use tare_lab::result::{
    CellResult, ClaimResult, Evidence, ExperimentResult, Failures, Family, Noise, RunResult,
    Verdict, SCHEMA,
};
use tare_lab::unit::{Better, Unit};
use tare_lab::value::{Point, Value};

/// A run of several experiments: numeric and categorical axes, published values, references, zeros,
/// missing values, one that is not testable.
pub(crate) fn run() -> RunResult {
    let families = vec![
        family("rdrand", Standing::Claim, 5),
        family("rdrand", Standing::Target, 3),
    ];
    RunResult {
        error_rate: Family::error_rate(&families),
        assuming_independent_rounds: vec![],
        families,
        schema: SCHEMA,
        run: "2026-11-21-quiet-otter".into(),
        tare: "0.1.0".into(),
        size: "quick".into(),
        seed: 7,
        started: "2026-11-21T20:09:51Z".into(),
        rounds: 8,
        complete: true,
        machine: machine(),
        warnings: vec![
            "the processor is virtual: other guests may take its time".into(),
            "no frequency governor can be read, so the clock may change between rounds".into(),
        ],
        experiments: vec![
            sizes(),
            threads(),
            secure(),
            variants(),
            breakdown::breakdown(),
            underflow(),
            guests(),
        ],
    }
}

fn family(suite: &str, standing: Standing, tests: usize) -> Family {
    Family {
        suite: suite.into(),
        standing,
        tests,
        alpha: 0.05,
    }
}

fn machine() -> Machine {
    Machine {
        cpus: 2,
        cpu_model: Some("Intel(R) Xeon(R) Processor @ 2.90GHz".into()),
        cpu_flags: ["aes", "avx512f", "rdrand", "rdseed", "vaes"]
            .map(String::from)
            .to_vec(),
        threads_per_core: Some(2),
        hypervisor: Some("KVM".into()),
        governor: None,
        turbo: None,
        mitigations: BTreeMap::from([("srbds".into(), "Not affected".into())]),
        kernel: "Linux 6.18.5 #1 SMP".into(),
        kernel_command_line: Some("console=ttyS0 root=/dev/vda".into()),
        memory: Some(8 << 30),
        interfaces: vec![Interface {
            name: "eth0".into(),
            driver: Some("virtio_net".into()),
            speed_mbit: None,
        }],
        load: Some(0.42),
    }
}

/// Numeric, logarithmic, two series, references, published values, a gap.
fn sizes() -> ExperimentResult {
    let mut it = empty(
        "rdrand/size",
        "Throughput while the buffer grows",
        "librdrand, section 5.2",
    );
    let sizes: Vec<i64> = (0..14).map(|k| 1 << k).collect();
    it.axes = vec![
        axis_text("function", &["get_bytes", "uint64_array"]),
        axis_int("quadwords", &sizes, true),
    ];
    for (series, function) in ["get_bytes", "uint64_array"].into_iter().enumerate() {
        for &size in &sizes {
            let ramp = size as f64 / (size as f64 + 1.5 + series as f64 * 2.0);
            let at = point(&[("function", function.into()), ("quadwords", size.into())]);
            let mut cell = cell(at, "throughput", Unit::MebibytesPerSecond, 214.0 * ramp);
            cell.work_per_operation = Some(size as f64 * 8.0);
            if function == "get_bytes" && size == 64 {
                cell = without(cell, "every trial failed: the child ended with signal 9", 8);
            }
            it.cells.push(cell);
        }
    }
    for (name, value) in [
        ("bare loop", 216.5),
        ("getrandom (system call)", 405.0),
        ("rand_chacha", 409.0),
    ] {
        let at = point(&[("beside", name.into())]);
        it.cells
            .push(cell(at, "throughput", Unit::MebibytesPerSecond, value));
    }
    for (size, value) in [(1, 61.0), (2048, 170.0), (16_384, 172.0)] {
        it.published.push(Published {
            at: point(&[("function", "get_bytes".into()), ("quadwords", size.into())]),
            metric: "throughput".into(),
            value,
            source: Some("figure 3".into()),
        });
    }
    it.noise = vec![Noise {
        metric: "throughput".into(),
        at: it.cells[0].at.clone(),
        n: 8,
        ratio: 1.004,
        ci95: [0.991, 1.013],
        p: 0.46,
    }];
    it.claims = vec![
        claim(
            "rdrand/size/converge",
            "The two functions converge for large buffers",
            "between 0.95 and 1.05",
            Some((1.002, [0.993, 1.011])),
            Some(0.0039),
            Verdict::Reproduced,
        ),
        claim(
            "rdrand/size/bare",
            "get_bytes reaches the bare instruction loop at 2048 quadwords",
            "at least 0.97",
            Some((0.988, [0.962, 1.004])),
            Some(0.11),
            Verdict::Inconclusive,
        ),
    ];
    it.claims[1].reason =
        Some("the interval crosses the criterion; about 20 rounds would decide it".into());
    it.targets = vec![
        claim(
            "rdrand/size/aligned",
            "A buffer one byte off keeps 0.97 of the speed of an aligned one",
            "at least 0.97",
            Some((0.9968, [0.9921, 1.0013])),
            Some(0.00003),
            Verdict::Held,
        ),
        claim(
            "rdrand/size/small",
            "A single quadword as bytes keeps 0.90 of the speed of the bare instruction",
            "at least 0.90",
            Some((0.781, [0.76, 0.803])),
            Some(0.0009),
            Verdict::Missed,
        ),
    ];
    for target in &mut it.targets {
        target.published = None;
    }
    let failed = point(&[("function", "get_bytes".into()), ("quadwords", 64.into())]);
    let open = &mut it.claims[1];
    open.ci95 = Some([0.962, f64::INFINITY]);
    open.failures = vec![Failures {
        at: failed,
        failed: 8,
        of: 8,
        reason: "the child ended with signal 9".into(),
        last_lines: vec![
            "filling 64 quadwords".into(),
            "stuck: no progress for 2 s".into(),
        ],
        log: Some("logs/rdrand-size-0012.log".into()),
    }];
    it.failures = open.failures.clone();
    it
}

/// Numeric and linear, one series and a published line.
fn threads() -> ExperimentResult {
    let mut it = empty(
        "rdrand/threads",
        "Throughput while threads are added",
        "librdrand, figure 2",
    );
    it.axes = vec![axis_int("threads", &[1, 2, 3, 4], false)];
    for (threads, value) in [(1i64, 212.0), (2, 421.0), (3, 425.0), (4, 424.0)] {
        let at = point(&[("threads", threads.into())]);
        it.cells.push(cell(
            at.clone(),
            "throughput",
            Unit::MebibytesPerSecond,
            value,
        ));
        let mut latency = cell(
            at.clone(),
            "latency",
            Unit::Nanoseconds,
            36.0 * threads.max(2) as f64 / 2.0,
        );
        latency.better = Better::Lower;
        it.cells.push(latency);
        it.published.push(Published {
            at,
            metric: "throughput".into(),
            value: 170.0 * threads as f64,
            source: None,
        });
    }
    it.claims = vec![claim(
        "rdrand/threads/linear",
        "Throughput is linear to the core count",
        "slope at least 0.9",
        Some((0.41, [0.38, 0.44])),
        Some(0.012),
        Verdict::NotReproduced,
    )];
    it
}

/// Categorical, values four magnitudes apart.
fn secure() -> ExperimentResult {
    let mut it = empty(
        "rdrand/secure",
        "What a guaranteed reseed costs",
        "librdrand, table 1",
    );
    it.axes = vec![axis_text(
        "method",
        &["fast", "reseed_delay", "reseed_skip", "seed"],
    )];
    for (method, value, published) in [
        ("fast", 223.1, Some(212.806)),
        ("reseed_delay", 0.104, Some(0.116)),
        ("reseed_skip", 0.2233, Some(0.224)),
        ("seed", 10.07, None),
    ] {
        let at = point(&[("method", method.into())]);
        it.cells.push(cell(
            at.clone(),
            "throughput",
            Unit::MegabytesPerSecond,
            value,
        ));
        if let Some(value) = published {
            it.published.push(Published {
                at,
                metric: "throughput".into(),
                value,
                source: None,
            });
        }
    }
    it.claims = vec![claim(
        "rdrand/secure/ratio",
        "Skipping 1024 of 1025 values costs a factor of 1025",
        "between 920 and 1130",
        Some((999.1, [987.0, 1012.0])),
        Some(0.0039),
        Verdict::Reproduced,
    )];
    it
}

/// Two categorical axes, close values (a cut axis), a reference with a published value.
fn variants() -> ExperimentResult {
    let mut it = empty(
        "cvm/variants",
        "TLS bulk transfer by variant",
        "Bifrost, figure 8",
    );
    let variants = [
        "baseline",
        "cvm",
        "+ZC",
        "+PRPR",
        "bifrost",
        "bifrost-unprotected",
    ];
    it.axes = vec![
        axis_text("variant", &variants),
        axis_int("vcpus", &[1, 4], false),
    ];
    for (number, variant) in variants.into_iter().enumerate() {
        for vcpus in [1i64, 4] {
            let at = point(&[("variant", variant.into()), ("vcpus", vcpus.into())]);
            let value = 5.9 + 0.31 * number as f64 + 0.5 * (vcpus as f64 / 4.0);
            let mut cell = cell(at.clone(), "rate", Unit::GigabitsPerSecond, value);
            if variant == "+PRPR" && vcpus == 4 {
                cell = without(
                    cell,
                    "not testable here: needs four processors, this machine has two",
                    0,
                );
            }
            it.cells.push(cell);
            it.published.push(Published {
                at,
                metric: "rate".into(),
                value: value * 1.03,
                source: None,
            });
        }
    }
    let at = point(&[("beside", "no encryption".into())]);
    it.cells
        .push(cell(at.clone(), "rate", Unit::GigabitsPerSecond, 8.1));
    it.published.push(Published {
        at,
        metric: "rate".into(),
        value: 8.3,
        source: None,
    });
    it
}

/// Counts of which most are zero, one is not, on a logarithmic scale.
fn underflow() -> ExperimentResult {
    let mut it = empty(
        "rdrand/underflow",
        "How often the carry flag is clear",
        "librdrand, section 4",
    );
    it.axes = vec![
        axis_text("instruction", &["rdrand", "rdseed"]),
        axis_int("threads", &[1, 2, 4, 8], true),
    ];
    for instruction in ["rdrand", "rdseed"] {
        for threads in [1i64, 2, 4, 8] {
            let at = point(&[
                ("instruction", instruction.into()),
                ("threads", threads.into()),
            ]);
            let value = if instruction == "rdrand" {
                0.0
            } else {
                240.0 * threads.pow(3) as f64
            };
            let mut cell = cell(at, "underflows", Unit::Count, value);
            cell.better = Better::Lower;
            it.cells.push(cell);
        }
    }
    it.claims = vec![claim(
        "rdrand/underflow/zero",
        "RDRAND never underflows",
        "0 of 81,920,000 draws",
        Some((0.0, [0.0, 0.0])),
        None,
        Verdict::Reproduced,
    )];
    it.claims[0].ci95 = None;
    it.exact = true;
    it
}

/// An experiment of which nothing could be run.
fn guests() -> ExperimentResult {
    let mut it = empty(
        "guest/tdx",
        "Requests per second in a TDX guest",
        "TDX guide, section 7",
    );
    it.axes = vec![axis_text("machine", &["host", "vm", "tdx"])];
    for machine in ["host", "vm", "tdx"] {
        let at = point(&[("machine", machine.into())]);
        let reason = "not testable here: no QEMU; apt-get install qemu-system-x86 gets it";
        it.cells.push(without(
            cell(at, "requests", Unit::RequestsPerSecond, 1.0),
            reason,
            0,
        ));
    }
    it.published.push(Published {
        at: point(&[("machine", "host".into())]),
        metric: "requests".into(),
        value: 162_588.64,
        source: None,
    });
    let mut claim = claim(
        "guest/tdx/share",
        "A TDX guest serves at least 80 % of what a plain guest serves",
        "at least 0.80",
        None,
        None,
        Verdict::NotTestable,
    );
    claim.n = 0;
    claim.reason = Some("no QEMU on this machine; apt-get install qemu-system-x86 gets it".into());
    it.claims = vec![claim];
    it
}

/// A run whose every text tries to be markup, a terminal sequence or endless.
pub(crate) fn hostile() -> RunResult {
    let mut run = run();
    let evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>]]>&lt;\u{202e}gnp\u{1b}[31m\u{0}";
    let long = format!("{} {evil}", "endless ".repeat(1250));
    let rtl = "\u{5e9}\u{5dc}\u{5d5}\u{5dd} \u{639}\u{631}\u{628}\u{64a}";
    run.run = evil.into();
    run.size = evil.into();
    run.started = evil.into();
    run.tare = evil.into();
    run.warnings = vec![evil.into(), long.clone(), rtl.into()];
    run.machine.cpu_model = Some(evil.into());
    run.machine.cpu_flags = vec![evil.into()];
    run.machine.kernel_command_line = Some(long.clone());
    for (number, experiment) in run.experiments.iter_mut().enumerate() {
        let text = [evil, &long, rtl][number % 3].to_owned();
        experiment.id = format!("{text}/{number}");
        experiment.title = text.clone();
        experiment.source = text.clone();
        for axis in &mut experiment.axes {
            axis.name = format!("{} {text}", axis.name);
        }
        for part in &mut experiment.parts {
            *part = format!("{part} {text}");
        }
        for cell in &mut experiment.cells {
            cell.at = renamed(&cell.at, &text);
            cell.metric = format!("{} {text}", cell.metric);
            cell.reason = cell.reason.as_ref().map(|_| text.clone());
        }
        for published in &mut experiment.published {
            published.at = renamed(&published.at, &text);
            published.metric = format!("{} {text}", published.metric);
            published.source = Some(text.clone());
        }
        let claims = experiment.claims.iter_mut().chain(&mut experiment.targets);
        let of_claims = claims.flat_map(|claim| &mut claim.failures);
        for failures in of_claims.chain(&mut experiment.failures) {
            failures.reason = text.clone();
            failures.last_lines = vec![evil.into(), long.clone()];
            failures.log = Some(text.clone());
        }
        for claim in experiment.claims.iter_mut().chain(&mut experiment.targets) {
            claim.metric = text.clone();
            claim.id = text.clone();
            claim.text = text.clone();
            claim.source = text.clone();
            claim.criterion = text.clone();
            claim.reason = Some(text.clone());
        }
    }
    run
}

fn renamed(at: &Point, text: &str) -> Point {
    let name = |name: &String| match name.as_str() {
        "beside" => name.clone(),
        name => format!("{name} {text}"),
    };
    let value = |value: &Value| match value {
        Value::Text(words) => Value::Text(format!("{words} {text}")),
        other => other.clone(),
    };
    Point(at.0.iter().map(|(n, v)| (name(n), value(v))).collect())
}

/// A run of 10,000 samples: 25 experiments of 50 cells in 8 rounds.
pub(crate) fn large() -> RunResult {
    let mut run = run();
    run.experiments = (0..25)
        .map(|number| {
            let mut it = empty(&format!("large/{number}"), "A large experiment", "nowhere");
            let sizes: Vec<i64> = (0..10).map(|k| 1 << k).collect();
            let ops = ["read", "write", "swap", "add", "fence"];
            it.axes = vec![axis_text("op", &ops), axis_int("size", &sizes, true)];
            for op in ops {
                for &size in &sizes {
                    let at = point(&[("op", op.into()), ("size", size.into())]);
                    it.cells
                        .push(cell(at, "latency", Unit::Nanoseconds, 900.0 + size as f64));
                }
            }
            for (place, off) in [0.0, 0.004, 0.02, -0.03, 0.2, -0.4].into_iter().enumerate() {
                let measured = Some((0.97 + off, [0.955 + off, 0.985 + off]));
                let verdicts = match off {
                    off if off > 0.01 => [Verdict::Reproduced, Verdict::Held],
                    off if off < -0.01 => [Verdict::NotReproduced, Verdict::Missed],
                    _ => [Verdict::Inconclusive; 2],
                };
                let text = "A swap of 1,024 bytes keeps what a write of the same size reaches";
                let made = |kind: &str, verdict| {
                    let id = format!("large/{number}/{kind}{place}");
                    claim(&id, text, "at least 0.97", measured, Some(0.00002), verdict)
                };
                it.claims.push(made("claim", verdicts[0]));
                it.targets.push(made("target", verdicts[1]));
            }
            it
        })
        .collect();
    run
}

pub(crate) fn empty(id: &str, title: &str, source: &str) -> ExperimentResult {
    ExperimentResult {
        rounds: 8,
        exact: false,
        targets: vec![],
        id: id.into(),
        title: title.into(),
        source: source.into(),
        axes: vec![],
        parts: vec![],
        published: vec![],
        noise: vec![],
        cells: vec![],
        failures: vec![],
        claims: vec![],
    }
}

pub(crate) fn axis_text(name: &str, values: &[&str]) -> Axis {
    Axis {
        name: name.into(),
        values: values.iter().map(|&value| value.into()).collect(),
        log: false,
    }
}

pub(crate) fn axis_int(name: &str, values: &[i64], log: bool) -> Axis {
    Axis {
        name: name.into(),
        values: values.iter().map(|&value| value.into()).collect(),
        log,
    }
}

pub(crate) fn point(parts: &[(&str, Value)]) -> Point {
    Point(
        parts
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
    )
}

/// A cell of eight rounds around `value`, with a spread of about 3 %.
pub(crate) fn cell(at: Point, metric: &str, unit: Unit, value: f64) -> CellResult {
    const SPREAD: [f64; 8] = [0.97, 1.012, 0.996, 1.031, 1.0, 0.988, 1.004, 1.019];
    CellResult {
        at,
        metric: metric.into(),
        unit,
        better: Better::Higher,
        n: 8,
        median: Some(value * 1.002),
        ci95: Some([value * 0.979, value * 1.0255]),
        samples: SPREAD.iter().map(|share| Some(value * share)).collect(),
        work_per_operation: None,
        failed: 0,
        notes: Vec::new(),
        reason: None,
    }
}

pub(crate) fn without(cell: CellResult, reason: &str, failed: usize) -> CellResult {
    CellResult {
        n: 0,
        median: None,
        ci95: None,
        samples: vec![None; failed],
        failed,
        reason: Some(reason.into()),
        ..cell
    }
}

fn bound(at_least: Option<f64>, at_most: Option<f64>) -> Bound {
    Bound { at_least, at_most }
}

fn claim(
    id: &str,
    text: &str,
    criterion: &str,
    measured: Option<(f64, [f64; 2])>,
    p: Option<f64>,
    verdict: Verdict,
) -> ClaimResult {
    let numbers: Vec<f64> = criterion
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    let threshold = match (criterion, numbers.as_slice()) {
        (_, [low, high]) => bound(Some(*low), Some(*high)),
        (words, [limit]) if words.contains("at most") => bound(None, Some(*limit)),
        (words, [limit]) if words.contains("at least") => bound(Some(*limit), None),
        _ => bound(None, Some(0.0)),
    };
    ClaimResult {
        threshold,
        metric: "throughput".into(),
        failures: vec![],
        decided_after: None,
        open: false,
        id: id.into(),
        text: text.into(),
        source: "librdrand, section 5".into(),
        criterion: criterion.into(),
        unit: Unit::Ratio,
        published: measured.map(|_| 1.0),
        measured: measured.map(|(value, _)| value),
        ci95: measured.map(|(_, ci95)| ci95),
        evidence: Evidence {
            p: p.map(|p| p / 3.0),
            p_holm: p,
        },
        n: 8,
        verdict,
        reason: None,
    }
}
