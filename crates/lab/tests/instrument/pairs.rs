//! Real programs on this machine, which no simulation replaces. They take minutes and their rates
//! are the machine's, so they run only when asked for; see `docs/src/instrument.md`.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Instant;

use tare_lab::judge::{judge, Judging};
use tare_lab::result::Verdict;
use tare_lab::sample::{Outcome, TrialRecord, OPERATIONS};

use crate::bench::{on, Bench, ROUNDS};

/// Runs pairs of the same program, `sha256sum` of a file of 1 MiB, and prints how many the judge
/// called different when it looked after every round; then the same with way 1 reading a file
/// larger by `extra` bytes.
pub(crate) fn measure(bench: &Bench, pairs: u64, extra: usize) {
    let folder = tempfile::tempdir().unwrap();
    let files = [1 << 20, (1 << 20) + extra].map(|size| {
        let path = folder.path().join(size.to_string());
        std::fs::write(&path, vec![0x5a; size]).unwrap();
        path
    });
    let mut plan = bench.plan();
    let mut counts = [0u32; 3];
    let mut rounds = Vec::new();
    for seed in 0..pairs {
        plan.seed = seed;
        let mut records: Vec<TrialRecord> = Vec::new();
        let decided = (0..ROUNDS).find_map(|round| {
            for trial in plan.trials(0, round) {
                let began = Instant::now();
                let status = Command::new("sha256sum")
                    .arg(&files[on(&trial.at, "way") as usize])
                    .stdout(Stdio::null())
                    .status();
                assert!(status.unwrap().success());
                let time = began.elapsed().as_nanos() as f64;
                records.push(TrialRecord {
                    experiment: plan.experiments[0].id.clone(),
                    round,
                    at: trial.at,
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
                    log: None,
                });
            }
            let judged = judge(&plan.experiments, &records, &Judging::default());
            let claim = &judged.experiments[0].claims[0];
            Some((claim.verdict, claim.decided_after?))
        });
        match decided {
            Some((Verdict::Reproduced, after)) => {
                counts[0] += 1;
                rounds.push(after);
            }
            Some((_, after)) => {
                counts[1] += 1;
                rounds.push(after);
            }
            None => counts[2] += 1,
        }
    }
    rounds.sort_unstable();
    println!(
        "{pairs} pairs, way 1 reads {:.1} % more: {} called no slower, {} slower, {} undecided after \
         {ROUNDS} rounds; rounds to a verdict: {rounds:?}",
        100.0 * extra as f64 / f64::from(1 << 20),
        counts[0],
        counts[1],
        counts[2],
    );
}
