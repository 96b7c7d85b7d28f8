//! Real programs on this machine, which no simulation replaces. They take minutes and their rates
//! are the machine's, so they run only when asked for; see `docs/src/instrument.md`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use tare_lab::judge::{judge, Judging};
use tare_lab::result::Verdict;
use tare_lab::sample::{Outcome, TrialRecord, OPERATIONS};
use wait4::Wait4 as _;

use crate::bench::{on, Bench, ROUNDS};

/// The clocks of a pair, which are judged apart.
const CLOCKS: [&str; 2] = ["wall clock", "processor time"];

/// Runs pairs of the same program, `sha256sum` of a file of 1 MiB, of which way 1 reads a file
/// larger by `extra` bytes. Prints for each clock how many the judge called different when it
/// looked after every round.
pub(crate) fn measure(bench: &Bench, pairs: u64, extra: usize) {
    let folder = tempfile::tempdir().unwrap();
    let files = [1 << 20, (1 << 20) + extra].map(|size| {
        let path = folder.path().join(size.to_string());
        std::fs::write(&path, vec![0x5a; size]).unwrap();
        path
    });
    let mut plan = bench.plan();
    let mut counts = [[0u32; 3]; 2];
    let mut rounds = [const { Vec::new() }; 2];
    for seed in 0..pairs {
        plan.seed = seed;
        let mut records: [Vec<TrialRecord>; 2] = Default::default();
        let mut decided: [Option<(Verdict, u32)>; 2] = [None; 2];
        for round in 0..ROUNDS {
            for trial in plan.trials(0, round) {
                let times = times_of(&files[on(&trial.at, "way") as usize]);
                for (records, time) in records.iter_mut().zip(times) {
                    records.push(TrialRecord {
                        experiment: plan.experiments[0].id.clone(),
                        round,
                        at: trial.at.clone(),
                        again: trial.again,
                        outcome: Outcome::Done {
                            values: BTreeMap::from([("time".to_owned(), time)]),
                            samples: BTreeMap::new(),
                            counters: [(OPERATIONS.to_owned(), 1), ("bytes".to_owned(), 1)].into(),
                        },
                        elapsed_ms: time / 1e6,
                        overhead_ms: None,
                        run_ms: 0.0,
                        last_lines: vec![],
                        notes: BTreeMap::new(),
                        log: None,
                    });
                }
            }
            for (decided, records) in decided.iter_mut().zip(&records) {
                if decided.is_none() {
                    let judged = judge(&plan.experiments, records, &Judging::default());
                    let claim = &judged.experiments[0].claims[0];
                    *decided = claim.decided_after.map(|after| (claim.verdict, after));
                }
            }
            if decided.iter().all(Option::is_some) {
                break;
            }
        }
        for (clock, decided) in decided.into_iter().enumerate() {
            match decided {
                Some((Verdict::Reproduced, after)) => {
                    counts[clock][0] += 1;
                    rounds[clock].push(after);
                }
                Some((_, after)) => {
                    counts[clock][1] += 1;
                    rounds[clock].push(after);
                }
                None => counts[clock][2] += 1,
            }
        }
    }
    for ((clock, counts), rounds) in CLOCKS.iter().zip(counts).zip(&mut rounds) {
        rounds.sort_unstable();
        println!(
            "{pairs} pairs by {clock}, way 1 reads {:.1} % more: {} called no slower, {} slower, \
             {} undecided after {ROUNDS} rounds; rounds to a verdict: {rounds:?}",
            100.0 * extra as f64 / f64::from(1 << 20),
            counts[0],
            counts[1],
            counts[2],
        );
    }
}

/// Runs the program once on a file. Nanoseconds by each clock.
fn times_of(file: &Path) -> [f64; 2] {
    let began = Instant::now();
    let child = Command::new("sha256sum")
        .arg(file)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let done = child.wait4().unwrap();
    let wall = began.elapsed();
    assert!(done.status.success());
    let processor = done.rusage.utime + done.rusage.stime;
    [wall, processor].map(|time| time.as_nanos() as f64)
}
