//! The traits of other crates: `rand_core`, and `io::Read`.

use std::io::{Read, Write as _};

use rand_core::{TryCryptoRng, TryRng};
use tare_rdrand::scripted::{healthy_value, Carry, ScriptedRdrand, ScriptedRdseed, Values};
use tare_rdrand::{AesCtr, Error, Generator, Seeder};

fn number(index: u64) -> u64 {
    healthy_value(1, index)
}

/// The first number of each kind that a generator of random bytes must make.
fn takes_any(random: &mut impl TryCryptoRng<Error = Error>) {
    let (first, second) = (
        random.try_next_u64().unwrap(),
        random.try_next_u64().unwrap(),
    );
    assert_ne!(first, second);
    assert_ne!(
        random.try_next_u32().unwrap(),
        random.try_next_u32().unwrap()
    );
    let mut bytes = [0; 100];
    random.try_fill_bytes(&mut bytes).unwrap();
    assert!(bytes.windows(9).all(|window| window != [0; 9]));
}

#[test]
fn a_generator_is_a_try_rng_and_a_reader() {
    let mut generator = Generator::with_source_untested(ScriptedRdrand::healthy(1));
    assert_eq!(generator.try_next_u64(), Ok(number(0)));
    assert_eq!(generator.try_next_u32(), Ok(number(1) as u32));
    let mut bytes = [0; 16];
    generator.read_exact(&mut bytes).unwrap();
    assert_eq!(
        bytes,
        [number(2), number(3)].map(u64::to_ne_bytes).concat()[..]
    );
    takes_any(&mut generator);
}

#[test]
fn a_reader_gives_what_came_before_an_underflow_and_then_the_error() {
    let script = ScriptedRdrand::new(Values::Healthy(1), Carry::Until(3));
    let mut dry = Generator::with_source_untested(script);
    let mut bytes = [0; 100];
    assert_eq!(dry.read(&mut bytes).unwrap(), 24);
    let error = dry.read(&mut bytes).unwrap_err();
    assert!(
        error.to_string().contains("RDRAND gave no number"),
        "{error}"
    );
    assert!(error.get_ref().is_some_and(|inner| inner.is::<Error>()));
}

#[test]
fn a_seeder_is_a_try_rng_and_a_reader() {
    let rdseed = Generator::with_source_untested(ScriptedRdseed::healthy(1));
    let mut seeder = Seeder::with_generators(Some(rdseed), None::<Generator<ScriptedRdrand>>);
    assert_eq!(seeder.try_next_u64(), Ok(number(0)));
    let mut bytes = [0; 16];
    seeder.read_exact(&mut bytes).unwrap();
    assert_eq!(
        bytes,
        [number(1), number(2)].map(u64::to_ne_bytes).concat()[..]
    );
    takes_any(&mut seeder);
}

#[test]
fn aes_ctr_is_a_try_rng_and_a_reader() {
    let mut cipher = match AesCtr::with_random_key() {
        Err(error @ Error::Unsupported { .. }) => {
            let _ = std::io::stderr()
                .write_all(format!("\nNOT TESTED: AES-CTR as a generator: {error}\n").as_bytes());
            let mut keyed = AesCtr::with_keys(&[(&[1; 16], &[2; 8])]).unwrap();
            assert_eq!(keyed.try_next_u64(), Err(error));
            return;
        }
        other => other.unwrap(),
    };
    takes_any(&mut cipher);
    let (mut first, mut second) = ([0; 33], [0; 33]);
    cipher.read_exact(&mut first).unwrap();
    cipher.read_exact(&mut second).unwrap();
    assert_ne!(first, second);
}
