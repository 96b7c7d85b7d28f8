//! The speed of the library relative to the bare instruction loop.
//!
//! Pairs of (bare loop, library call) run next to each other in one thread, in alternating
//! order, over the same number of quadwords; each pair gives one ratio of processor time,
//! and the median and quartiles of all ratios are printed. Processor time, because other
//! programs share the machine.
//!
//! ```text
//! cargo run --release -p tare-rdrand --example against_bare [ROUNDS]
//! ```

use std::hint::black_box;
use std::process::ExitCode;

use tare_rdrand::instruction::{self, RdrandInstruction};
use tare_rdrand::{AesCtr, Error, Rdrand};

/// Quadwords drawn for one side of one pair, about 1.2 ms.
const QUADWORDS_A_SIDE: usize = 32_768;

fn main() -> ExitCode {
    let rounds = match std::env::args().nth(1).map(|text| text.parse::<usize>()) {
        None => 301,
        Some(Ok(rounds)) if rounds > 0 => rounds,
        Some(_) => {
            eprintln!("usage: against_bare [ROUNDS], ROUNDS a positive number");
            return ExitCode::from(2);
        }
    };
    match run(rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("against_bare: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(rounds: usize) -> Result<(), Error> {
    let bare = RdrandInstruction::detect()?;
    println!("{rounds} pairs of {QUADWORDS_A_SIDE} quadwords; ratio of speeds, 1 = as fast");
    for quadwords in [1, 2, 8, 64, 2048] {
        let mut values = vec![0_u64; quadwords];
        let mut bytes = vec![0_u8; quadwords * 8 + 1];
        let mut other = vec![0_u8; quadwords * 8 + 8];
        let aligned = other.as_ptr().align_offset(8);
        let mut limit = values.clone();

        let mut rdrand = Rdrand::new()?;
        let mut second = Rdrand::new()?;
        let cipher = AesCtr::with_random_key()?;
        compare(
            &format!("u64 array / bare loop, {quadwords} qw"),
            rounds,
            quadwords,
            || instruction::fill_u64(bare, black_box(&mut limit)),
            || {
                rdrand
                    .fill_u64(black_box(&mut values))
                    .expect("RDRAND delivers")
            },
        );
        compare(
            &format!("bytes / bare loop, {quadwords} qw"),
            rounds,
            quadwords,
            || instruction::fill_u64(bare, black_box(&mut limit)),
            || {
                rdrand
                    .fill_bytes(black_box(&mut bytes[..quadwords * 8]))
                    .expect("RDRAND delivers")
            },
        );
        compare(
            &format!("aes_ctr / bare loop, {quadwords} qw"),
            rounds,
            quadwords,
            || instruction::fill_u64(bare, black_box(&mut limit)),
            || {
                cipher
                    .fill_bytes(&mut rdrand, black_box(&mut bytes[..quadwords * 8]))
                    .expect("RDRAND delivers")
            },
        );
        compare(
            &format!("bytes at p % 8 = 1 / aligned, {quadwords} qw"),
            rounds,
            quadwords,
            || {
                let end = aligned + quadwords * 8;
                second
                    .fill_bytes(black_box(&mut other[aligned..end]))
                    .expect("RDRAND delivers");
            },
            || {
                let start = (bytes.as_ptr().align_offset(8) + 1) % 8;
                let start = start.min(1);
                let end = start + quadwords * 8;
                rdrand
                    .fill_bytes(black_box(&mut bytes[start..end]))
                    .expect("RDRAND delivers");
            },
        );
    }
    Ok(())
}

/// Prints the ratio of the speeds of `candidate` and `baseline`.
fn compare(
    what: &str,
    rounds: usize,
    quadwords: usize,
    mut baseline: impl FnMut(),
    mut candidate: impl FnMut(),
) {
    let calls = QUADWORDS_A_SIDE / quadwords;
    let mut ratios: Vec<f64> = Vec::with_capacity(rounds);
    for round in 0..rounds + 2 {
        let (base_ns, candidate_ns) = if round % 2 == 0 {
            let base_ns = timed(calls, &mut baseline);
            (base_ns, timed(calls, &mut candidate))
        } else {
            let candidate_ns = timed(calls, &mut candidate);
            (timed(calls, &mut baseline), candidate_ns)
        };
        // The first pair of each order warms up.
        if round >= 2 {
            ratios.push(base_ns / candidate_ns);
        }
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| ratios[((ratios.len() - 1) as f64 * share) as usize];
    println!(
        "{what:<44} median {:.4}  quartiles {:.4} {:.4}  5 % {:.4}  95 % {:.4}",
        at(0.5),
        at(0.25),
        at(0.75),
        at(0.05),
        at(0.95)
    );
}

/// Processor time of `calls` calls, in nanoseconds.
fn timed(calls: usize, work: &mut impl FnMut()) -> f64 {
    let start = processor_ns();
    for _ in 0..calls {
        work();
    }
    processor_ns() - start
}

/// Processor time that this thread has used.
fn processor_ns() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}
