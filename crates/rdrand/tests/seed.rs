//! The grades of a seed, each on the hardware that leads to it.

use std::io::Write as _;

use tare_rdrand::scripted::{Carry, ScriptedRdrand, ScriptedRdseed, Values};
use tare_rdrand::{seed, Error, Generator, SeedGrade, Seeder};

fn seeder(
    rdseed: ScriptedRdseed,
    rdrand: ScriptedRdrand,
) -> Seeder<ScriptedRdseed, ScriptedRdrand> {
    Seeder::with_generators(
        Some(Generator::with_source_untested(rdseed)),
        Some(Generator::with_source_untested(rdrand)),
    )
}

#[test]
fn rdseed_that_needs_ten_thousand_tries_is_still_the_best_grade() {
    let mut made = seeder(
        ScriptedRdseed::after_tries(1, 10_000),
        ScriptedRdrand::never(),
    );
    let mut bytes = [0; 33];
    assert_eq!(made.fill_bytes(&mut bytes), Ok(SeedGrade::Rdseed));
    assert!(bytes.iter().any(|&byte| byte != 0));
}

#[test]
fn without_rdseed_every_block_condenses_512_samples_of_rdrand() {
    for rdseed in [ScriptedRdseed::never(), ScriptedRdseed::stuck(0)] {
        let mut made = seeder(rdseed, ScriptedRdrand::healthy(2));
        let mut first = [0; 40];
        assert_eq!(
            made.fill_bytes(&mut first),
            Ok(SeedGrade::RdrandConditioned)
        );
        let mut second = [0; 40];
        assert_eq!(
            made.fill_bytes(&mut second),
            Ok(SeedGrade::RdrandConditioned)
        );
        assert_ne!(first, second);
        assert!(first
            .chunks(8)
            .all(|part| part.iter().any(|&byte| byte != 0)));
    }
}

#[test]
fn condensing_draws_at_least_1024_values_a_block() {
    let mut rdrand = ScriptedRdrand::healthy(3);
    let none: Option<Generator<ScriptedRdseed>> = None;
    let generator = Generator::with_source_untested(&mut rdrand);
    let mut made = Seeder::with_generators(none, Some(generator));
    assert_eq!(
        made.fill_bytes(&mut [0; 48]),
        Ok(SeedGrade::RdrandConditioned)
    );
    drop(made);
    assert_eq!(rdrand.delivered(), 2 + 3 * 1024);
}

#[test]
fn rdseed_that_dies_half_way_lowers_the_grade() {
    let rdseed = ScriptedRdseed::new(Values::Healthy(1), Carry::Until(3));
    let mut made = seeder(rdseed, ScriptedRdrand::healthy(2));
    let mut bytes = [0; 64];
    assert_eq!(
        made.fill_bytes(&mut bytes),
        Ok(SeedGrade::RdrandConditioned)
    );
    assert!(bytes
        .chunks(8)
        .all(|part| part.iter().any(|&byte| byte != 0)));
}

#[test]
fn a_seed_is_all_or_nothing() {
    let rdseed = ScriptedRdseed::new(Values::Healthy(1), Carry::Until(3));
    let mut made = seeder(rdseed, ScriptedRdrand::never());
    let mut bytes = [0xee; 64];
    let error = made.fill_bytes(&mut bytes).unwrap_err();
    assert!(
        matches!(error, Error::Underflow { written: 0, .. }),
        "{error}"
    );
    assert_eq!(bytes, [0; 64]);
}

#[test]
fn this_processor_gives_a_seed_or_says_why_not() {
    let mut bytes = [0; 32];
    match seed(&mut bytes) {
        Ok(grade) => {
            eprintln!("graded {grade}");
            assert_ne!(bytes, [0; 32]);
        }
        Err(error @ Error::Unsupported { .. }) => {
            let _ = std::io::stderr()
                .write_all(format!("\nNOT TESTED: seeds here: {error}\n").as_bytes());
        }
        Err(error) => panic!("{error}"),
    }
}
