//! AES-GCM side by side: this crate's paths, aws-lc-rs, ring, and ipsec-mb when it is installed.
//!
//! `cargo bench -p tare-gcm [-- --json] [-- --rounds N] [-- --key-bits 256] [-- --only single|batch|cold|bound]`
//!
//! Every figure is the median over rounds in which all contenders run one after the other, in an order shuffled
//! anew; every comparison is the median of the ratios within a round, with its 95 % bootstrap interval.

mod batch;
mod cold;
mod measure;
mod peers;
mod report;
mod units;

use measure::{interleave, Cell, Random};
use peers::{AwsLc, IpsecMb, Message, Op, Ours, Peer, Ring};
use report::{Report, Target};
use std::process::ExitCode;
use tare_gcm::{Key, Path};

const LENS: [usize; 5] = [60, 576, 1440, 8192, 16384];

/// What the command line says.
pub struct Settings {
    rounds: usize,
    key: Vec<u8>,
    only: Option<String>,
    json: bool,
}

fn main() -> ExitCode {
    let mut settings = Settings { rounds: 31, key: vec![9; 16], only: None, json: false };
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
                Some(part) if ["single", "batch", "cold", "bound"].contains(&part.as_str()) => {
                    settings.only = Some(part);
                }
                _ => return usage("--only wants single, batch, cold or bound"),
            },
            _ => return usage(&format!("unknown argument {arg}")),
        }
    }
    let wants = |part: &str| settings.only.as_deref().is_none_or(|only| only == part);
    let mut random = Random(0x7a7e);
    let mut report = Report::new(settings.json, settings.key.len() * 8);
    if wants("single") {
        single(&settings, &mut report, &mut random);
    }
    if wants("batch") {
        batch::run(&settings, &mut report, &mut random);
    }
    if wants("cold") {
        cold::run(&settings, &mut report, &mut random);
    }
    if wants("bound") {
        bounds(&settings, &mut report, &mut random);
    }
    report.finish();
    ExitCode::SUCCESS
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("gcm: {problem}\nusage: gcm [--json] [--rounds N] [--key-bits 128|256] [--only PART]");
    ExitCode::from(2)
}

/// Every path of this crate and every peer there is.
fn peers(key: &[u8]) -> Vec<Box<dyn Peer>> {
    let mut peers: Vec<Box<dyn Peer>> = Vec::new();
    for path in Path::ALL {
        match Key::with_path(key, path) {
            Ok(key) => peers.push(Box::new(Ours(key))),
            Err(error) => eprintln!("not measured: {error}"),
        }
    }
    peers.push(Box::new(AwsLc::new(key)));
    peers.push(Box::new(Ring::new(key)));
    match IpsecMb::load(key) {
        Some(peer) => peers.push(Box::new(peer)),
        None => eprintln!("not measured: ipsec-mb (apt-get install libipsec-mb1, on a processor with VAES and AVX-512)"),
    }
    peers
}

fn single(settings: &Settings, report: &mut Report, random: &mut Random) {
    for len in LENS {
        for op in [Op::Seal, Op::Open] {
            let cells = peers(&settings.key)
                .into_iter()
                .map(|mut peer| {
                    let mut message = Message::new(&settings.key, op, len, 3, 0);
                    Cell {
                        name: peer.name().to_owned(),
                        run: Box::new(move |n| (0..n).for_each(|_| peer.run(op, &mut message))),
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
                Target { fast: best, slow: "ipsec-mb", at_least: Some(1.0) },
                Target { fast: best, slow: "aws-lc-rs", at_least: of_aws },
                Target { fast: best, slow: "ring", at_least: None },
            ];
            report.section(&what, len as f64, &samples, &targets, random);
        }
    }
}

/// The bound of the units, and how close each path comes at 16 KiB.
fn bounds(settings: &Settings, report: &mut Report, random: &mut Random) {
    let rounds = if settings.key.len() == 16 { 10.0 } else { 14.0 };
    let len = 16384;
    let op = Op::Open;
    let cells = Path::available()
        .filter_map(|path| Some(Ours(Key::with_path(&settings.key, path).ok()?)))
        .map(|mut peer| {
            let mut message = Message::new(&settings.key, op, len, 3, 0);
            Cell {
                name: peer.name().to_owned(),
                run: Box::new(move |n| (0..n).for_each(|_| peer.run(op, &mut message))),
            }
        })
        .collect();
    let samples = interleave(cells, settings.rounds, 400, random);
    let cycle_ns = units::cycle_ns();
    for path in Path::available() {
        if let (Some(bound), Some(ns)) = (units::bound(path, rounds, cycle_ns), samples.best_ns(path.name())) {
            report.bound(path.name(), cycle_ns, &bound, ns / cycle_ns / len as f64);
        }
    }
}
