//! AES-GCM side by side: this crate's paths, aws-lc-rs, ring, and ipsec-mb when it is installed.
//!
//! ```text
//! cargo bench -p tare-gcm -- [--json] [--rounds N] [--key-bits 256] [--only PART]
//! ```
//!
//! `TARE_IPSEC_MB=/path/to/libIPSec_MB.so.2` names the build of ipsec-mb to compare with; without
//! it the system's is used.
//!
//! Every figure is the median over rounds in which all contenders run one after the other, in an
//! order shuffled anew; every comparison is the median of the ratios within a round, with its 95 %
//! bootstrap interval.

#![allow(unreachable_pub)] // a program of its own: nothing here is reachable from outside

mod batch;
mod cold;
mod ipsec_mb;
mod measure;
mod page_end;
mod references;
mod report;
mod runs;
mod setup;
mod units;

use measure::{interleave, Cell, Random};
use references::{AwsLc, Contender, Message, Op, Ours, Ring};
use report::{Report, Target};
use std::process::ExitCode;
use tare_gcm::{Key, Path};

const LENS: [usize; 10] = [16, 60, 128, 256, 512, 576, 1440, 4096, 8192, 16384];

const PARTS: [&str; 8] = [
    "single", "batch", "run", "cold", "page-end", "key", "aad", "bound",
];

/// The arguments of the command line.
pub struct Settings {
    rounds: usize,
    key: Vec<u8>,
    only: Option<String>,
    json: bool,
    ipsec_mb: Option<&'static ipsec_mb::Library>,
}

fn main() -> ExitCode {
    let mut settings = Settings {
        rounds: 31,
        key: vec![9; 16],
        only: None,
        json: false,
        ipsec_mb: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--bench" => {} // what cargo says
            "--json" => settings.json = true,
            "--rounds" => match args.next().and_then(|n| n.parse().ok()).filter(|n| *n >= 3) {
                Some(n) => settings.rounds = n,
                None => return usage("--rounds wants a number, at least 3"),
            },
            "--key-bits" => match args.next().as_deref() {
                Some("128") => settings.key = vec![9; 16],
                Some("256") => settings.key = vec![9; 32],
                _ => return usage("--key-bits wants 128 or 256"),
            },
            "--only" => match args.next() {
                Some(part) if PARTS.contains(&part.as_str()) => {
                    settings.only = Some(part);
                }
                _ => return usage(&format!("--only wants one of {}", PARTS.join(", "))),
            },
            _ => return usage(&format!("unknown argument {arg}")),
        }
    }
    settings.ipsec_mb = match ipsec_mb::Library::find(settings.key.len() * 8) {
        Ok(found) => found,
        Err(problem) => {
            eprintln!("gcm: {problem}");
            return ExitCode::from(2);
        }
    };
    let wants = |part: &str| settings.only.as_deref().is_none_or(|only| only == part);
    let mut random = Random(0x7a7e);
    let mut report = Report::new(settings.json, settings.key.len() * 8);
    if let Some(library) = settings.ipsec_mb {
        eprintln!("{} is {}", library.name, library.path);
    }
    if wants("single") {
        for path in Path::ALL.into_iter().filter(|path| !path.is_available()) {
            eprintln!("not measured: {path}, which this processor cannot run");
        }
        single(&settings, &mut report, &mut random);
    }
    if wants("batch") {
        batch::run(&settings, &mut report, &mut random);
    }
    if wants("run") {
        runs::run(&settings, &mut report, &mut random);
    }
    if wants("cold") {
        cold::run(&settings, &mut report, &mut random);
    }
    if wants("page-end") {
        page_end::run(&settings, &mut report, &mut random);
    }
    if wants("key") {
        setup::keys(&settings, &mut report, &mut random);
    }
    if wants("aad") {
        setup::additional_data(&settings, &mut report, &mut random);
    }
    if wants("bound") {
        bounds(&settings, &mut report, &mut random);
    }
    report.finish();
    ExitCode::SUCCESS
}

fn usage(problem: &str) -> ExitCode {
    eprintln!(
        "gcm: {problem}\nusage: gcm [--json] [--rounds N] [--key-bits 128|256] [--only PART]"
    );
    ExitCode::from(2)
}

/// Every path of this crate and every reference that is installed.
fn contenders(settings: &Settings) -> Vec<Box<dyn Contender>> {
    let key = &settings.key;
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    for path in Path::available() {
        let key = Key::with_path(key, path).expect("16 or 32 bytes");
        contenders.push(Box::new(Ours(key)));
    }
    contenders.push(Box::new(AwsLc::new(key)));
    contenders.push(Box::new(Ring::new(key)));
    if let Some(library) = settings.ipsec_mb {
        contenders.push(Box::new(library.contender(key)));
    }
    contenders
}

fn single(settings: &Settings, report: &mut Report, random: &mut Random) {
    for len in LENS {
        for op in [Op::Seal, Op::Open] {
            let cells = contenders(settings)
                .into_iter()
                .map(|mut contender| {
                    let mut message = Message::new(&settings.key, op, len, 3, 0);
                    Cell {
                        name: contender.name().to_owned(),
                        run: Box::new(move |n| {
                            (0..n).for_each(|_| contender.run(op, &mut message))
                        }),
                    }
                })
                .collect();
            let samples = interleave(cells, settings.rounds, 400, random);
            let what = format!("{} {len} B", op.name());
            let best = Path::best().name();
            let of_aws = match len {
                60 => Some(1.7),
                1440 => Some(1.3),
                16384 => Some(1.0),
                _ => None,
            };
            let targets = [
                Target {
                    fast: best,
                    slow: settings.ipsec_mb.map_or("", |library| &library.name),
                    at_least: Some(1.0),
                },
                Target {
                    fast: best,
                    slow: "aws-lc-rs",
                    at_least: of_aws,
                },
                Target {
                    fast: best,
                    slow: "ring",
                    at_least: None,
                },
            ];
            report.section(&what, len as f64, &samples, &targets, random);
        }
    }
}

/// The bound of the units, and how close each path comes at 16 KiB. The clock changes from moment
/// to moment, so cycles are counted by a chain of known length in the same rounds.
fn bounds(settings: &Settings, report: &mut Report, random: &mut Random) {
    let is_128 = settings.key.len() == 16;
    let rounds = if is_128 { 10.0 } else { 14.0 };
    let len = 16384;
    let mut state = 3;
    let mut cells: Vec<Cell<'_>> = vec![Cell {
        name: "chain".to_owned(),
        run: Box::new(move |n| (0..n).for_each(|_| units::chain(&mut state))),
    }];
    let cell_name = |path: Path, what: &str| format!("{path} {what}");
    for path in Path::available() {
        let Some(kernels) = units::kernels(path) else {
            continue;
        };
        let all = kernels.all[usize::from(!is_128)];
        let units = [
            ("aes", kernels.aes),
            ("multiply", kernels.multiply),
            ("all", all),
        ];
        for (unit, kernel) in units {
            let run = Box::new(move |n| (0..n).for_each(|_| kernel()));
            let name = cell_name(path, unit);
            cells.push(Cell { name, run });
        }
        for op in [Op::Seal, Op::Open] {
            let Ok(key) = Key::with_path(&settings.key, path) else {
                continue;
            };
            let mut contender = Ours(key);
            let mut message = Message::new(&settings.key, op, len, 3, 0);
            let run = Box::new(move |n| (0..n).for_each(|_| contender.run(op, &mut message)));
            let name = cell_name(path, op.name());
            cells.push(Cell { name, run });
        }
    }
    let samples = interleave(cells, settings.rounds, 300, random);
    let Some(chain_ns) = samples.median_ns("chain") else {
        return;
    };
    for path in Path::available() {
        let mut cycles = |what: &str| {
            let name = cell_name(path, what);
            Some(samples.speedup("chain", &name, random)?.median * units::CHAIN_CYCLES)
        };
        let (Some(aes), Some(multiply), Some(all), Some(seal), Some(open)) = (
            cycles("aes"),
            cycles("multiply"),
            cycles("all"),
            cycles("seal"),
            cycles("open"),
        ) else {
            continue;
        };
        let bound = units::bound(
            path,
            rounds,
            units::KERNEL_LEN / aes,
            units::KERNEL_LEN / multiply,
            all / units::MIX_LEN,
        );
        report.bound(
            path.name(),
            chain_ns / units::CHAIN_CYCLES,
            &bound,
            [seal / len as f64, open / len as f64],
        );
    }
}
