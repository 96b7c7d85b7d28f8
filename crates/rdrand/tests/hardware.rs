//! The instructions themselves, where this processor has them.

use std::io::Write as _;
use std::process::Command;

use tare_rdrand::instruction::{self, RdrandInstruction, RdseedInstruction};
use tare_rdrand::processor::{self, RDSEED_SWITCH};
use tare_rdrand::source::{Halves, Source};
use tare_rdrand::{Error, Generator, Instruction, Rdrand, Rdseed, SeedGrade, Seeder};

/// Returns the value, or `None` with a note that the test could not run: the instruction is absent,
/// or it is RDSEED, which all programs of a socket share, and the others have emptied it.
fn present<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(
            error @ (Error::Unsupported { .. }
            | Error::Underflow {
                instruction: Instruction::Rdseed,
                ..
            }),
        ) => {
            // Past the test harness, which keeps the output of tests that pass to itself.
            let _ = std::io::stderr().write_all(format!("\nNOT TESTED: {error}\n").as_bytes());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn rdrand_fills_everything_it_is_asked_for() {
    let Some(mut rdrand) = present(Rdrand::new()) else {
        return;
    };
    let before = rdrand.counts().draws;
    let mut bytes = [0; 1001];
    rdrand.fill_bytes(&mut bytes).unwrap();
    assert_eq!(rdrand.counts().draws - before, 126);
    assert!(bytes.iter().filter(|&&byte| byte == 0).count() < 30);
    let mut values = [0_u64; 100];
    rdrand.fill_u64(&mut values).unwrap();
    assert!(values.iter().all(|&value| value != 0));
    let (mut v32, mut v16) = ([0_u32; 101], [0_u16; 103]);
    rdrand.fill_u32(&mut v32).unwrap();
    rdrand.fill_u16(&mut v16).unwrap();
    assert!(v32.iter().all(|&value| value != 0));
    assert!(v16.iter().filter(|&&value| value == 0).count() < 3);
    assert_ne!(rdrand.next_u64(), rdrand.next_u64());
    assert_ne!(
        [rdrand.next_u32(), rdrand.next_u32()],
        [rdrand.next_u32(), rdrand.next_u32()]
    );
    assert!((0..8)
        .map(|_| rdrand.next_u16().unwrap())
        .any(|value| value != 0));
}

#[test]
fn rdseed_fills_everything_it_is_asked_for() {
    let Some(mut rdseed) = present(Rdseed::new()) else {
        return;
    };
    let mut bytes = [0; 333];
    if present(rdseed.fill_bytes(&mut bytes)).is_none() {
        return;
    }
    assert!(bytes.iter().filter(|&&byte| byte == 0).count() < 15);
}

/// 64-bit numbers as a 32-bit processor makes them.
fn from_two_draws<S: Source>(source: S) {
    let Some(mut generator) = present(Generator::with_source(Halves(source))) else {
        return;
    };
    let mut values = [0_u64; 100];
    if present(generator.fill_u64(&mut values)).is_some() {
        assert!(values.iter().all(|&value| value != 0));
        let halves: std::collections::BTreeSet<u32> = values
            .iter()
            .flat_map(|&value| [value as u32, (value >> 32) as u32])
            .collect();
        assert!(halves.len() > 197, "two halves are seldom the same");
    }
}

#[test]
fn sixty_four_bits_are_made_of_two_draws_of_32_when_forced_to() {
    if let Some(rdrand) = present(RdrandInstruction::detect()) {
        from_two_draws(rdrand);
    }
    if let Some(rdseed) = present(RdseedInstruction::detect()) {
        from_two_draws(rdseed);
    }
}

#[test]
fn rdseed_can_be_switched_off_by_the_environment() {
    const NAME: &str = "rdseed_can_be_switched_off_by_the_environment";
    if std::env::var(RDSEED_SWITCH).as_deref() != Ok("off") {
        let test = std::env::current_exe().unwrap();
        let run = Command::new(test)
            .args(["--exact", NAME, "--nocapture"])
            .env(RDSEED_SWITCH, "off")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let absent = Error::Unsupported {
        instruction: Instruction::Rdseed,
    };
    assert!(processor::switched_off(Instruction::Rdseed) && !processor::has_rdseed());
    assert_eq!(Rdseed::new().err(), Some(absent));
    assert!(absent.to_string().contains("TARE_RDSEED=off"), "{absent}");
    if let Some(mut seeder) = present(Seeder::new()) {
        let grade = seeder.fill_bytes(&mut [0; 32]);
        assert_eq!(grade, Ok(SeedGrade::RdrandConditioned));
    }
}

#[test]
fn the_bare_loops_fill_and_count() {
    let Some(rdrand) = present(RdrandInstruction::detect()) else {
        return;
    };
    let (mut v64, mut v32, mut v16) = ([0; 64], [0; 64], [0; 64]);
    instruction::fill_u64(rdrand, &mut v64);
    instruction::fill_u32(rdrand, &mut v32);
    instruction::fill_u16(rdrand, &mut v16);
    assert!(v64.iter().all(|&value| value != 0) && v32.iter().all(|&value| value != 0));
    assert!(v16.iter().filter(|&&value| value == 0).count() < 3);
    assert!(instruction::count_rdrand_underflows(rdrand, 1000) <= 1000);
    let Some(rdseed) = present(RdseedInstruction::detect()) else {
        return;
    };
    assert!(instruction::count_rdseed_underflows(rdseed, 1000) <= 1000);
}

#[test]
fn two_hundred_threads_draw_at_once() {
    if present(Rdrand::new()).is_none() {
        return;
    }
    let threads: Vec<_> = (0..200)
        .map(|_| {
            std::thread::spawn(|| {
                let mut rdrand = Rdrand::new()?;
                let mut values = [0_u64; 512];
                rdrand.fill_u64(&mut values)?;
                Ok::<_, Error>(values)
            })
        })
        .collect();
    let mut all: Vec<u64> = threads
        .into_iter()
        .flat_map(|thread| thread.join().unwrap().unwrap())
        .collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 200 * 512);
}
