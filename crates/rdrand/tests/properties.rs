//! Lengths × alignments × carry patterns × limits, against a model that fits in ten lines.

use proptest::prelude::*;
use tare_rdrand::scripted::{healthy_value, Carry, ScriptedRdrand, Values};
use tare_rdrand::{Error, Generator, RetryLimit};

/// The expected outcome: bytes written and executions, for a request of `len` bytes.
fn model(len: usize, bits: u64, length: u32, limit: u32) -> (usize, u64) {
    let mut executed = 0;
    for draw in 0..len.div_ceil(8) {
        let delivered = (0..limit).any(|_| {
            let carry = bits >> (executed % u64::from(length)) & 1 != 0;
            executed += 1;
            carry
        });
        if !delivered {
            return (draw * 8, executed);
        }
    }
    (len, executed)
}

proptest! {
    #[test]
    fn bytes_are_written_exactly_at_every_length_alignment_and_carry_pattern(
        seed: u64, len in 0_usize..600, offset in 0_usize..16,
        bits: u64, length in 1_u32..=64, limit in 1_u32..16,
    ) {
        let script = ScriptedRdrand::new(Values::Healthy(seed), Carry::Pattern { bits, length });
        let mut generator = Generator::with_source_untested(script);
        generator.set_retry_limit(RetryLimit::new(limit));
        let mut memory = vec![0xee_u8; len + offset + 16];
        let result = generator.fill_bytes(&mut memory[offset..offset + len]);
        let written = match result {
            Ok(()) => len,
            Err(Error::Underflow { written, attempts, .. }) => {
                prop_assert_eq!(attempts, limit);
                written
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        };
        prop_assert_eq!((written, generator.source().executed()), model(len, bits, length, limit));
        let expected: Vec<u8> =
            (0..).flat_map(|n| healthy_value(seed, n).to_ne_bytes()).take(written).collect();
        prop_assert_eq!(&memory[offset..offset + written], &expected[..]);
        prop_assert!(memory[..offset].iter().all(|&byte| byte == 0xee));
        prop_assert!(memory[offset + written..].iter().all(|&byte| byte == 0xee));
    }

    #[test]
    fn arrays_of_every_width_hold_the_same_bytes(seed: u64, len in 0_usize..100) {
        let generator = || Generator::with_source_untested(ScriptedRdrand::healthy(seed));
        let bytes = |n: usize| {
            let mut bytes = vec![0; n];
            generator().fill_bytes(&mut bytes).unwrap();
            bytes
        };
        let (mut v16, mut v32, mut v64) = (vec![0_u16; len], vec![0_u32; len], vec![0_u64; len]);
        generator().fill_u16(&mut v16).unwrap();
        generator().fill_u32(&mut v32).unwrap();
        generator().fill_u64(&mut v64).unwrap();
        prop_assert_eq!(v16.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>(), bytes(2 * len));
        prop_assert_eq!(v32.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>(), bytes(4 * len));
        prop_assert_eq!(v64.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>(), bytes(8 * len));
    }

    #[test]
    fn counts_add_up(seed: u64, bits: u64, length in 1_u32..=64, calls in 1_usize..50) {
        let script = ScriptedRdrand::new(Values::Healthy(seed), Carry::Pattern { bits, length });
        let mut generator = Generator::with_source_untested(script);
        for _ in 0..calls {
            let _ = generator.next_u64();
        }
        let (counts, source) = (generator.counts(), generator.source());
        prop_assert_eq!(counts.draws, source.delivered());
        prop_assert_eq!(counts.draws + counts.underflows, source.executed());
    }

    #[test]
    fn a_few_values_at_once_are_drawn_and_tested_like_one_after_another(
        seed: u64, requests in prop::collection::vec(1_usize..=40, 1..80),
        value in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
        healthy in 0_u64..200, count in 0_u64..5,
        bits: u64, length in 1_u32..=64, limit in 1_u32..16,
    ) {
        let script = ScriptedRdrand::new(
            Values::Burst { seed, healthy, value, count },
            Carry::Pattern { bits, length },
        );
        let mut few = Generator::with_source_untested(script.clone());
        let mut single = Generator::with_source_untested(script);
        few.set_retry_limit(RetryLimit::new(limit));
        single.set_retry_limit(RetryLimit::new(limit));
        for len in requests {
            let (mut memory, mut expected) = ([0xee_u8; 40], [0xee_u8; 40]);
            let result = few.fill_bytes(&mut memory[..len]);
            let mut good = Ok(());
            for (index, chunk) in expected[..len].chunks_mut(8).enumerate() {
                match single.next_u64() {
                    Ok(value) => chunk.copy_from_slice(&value.to_ne_bytes()[..chunk.len()]),
                    Err(error) => {
                        good = Err((index * 8, error));
                        break;
                    }
                }
            }
            match (result, good) {
                (Ok(()), Ok(())) => {}
                (Err(error @ Error::Underflow { .. }), Err((written, Error::Underflow { .. }))) => {
                    prop_assert_eq!(error.written(), written);
                }
                (Err(error @ Error::Health { .. }), Err((_, other))) => {
                    prop_assert_eq!(error, other);
                    expected[..len].fill(0);
                }
                other => return Err(TestCaseError::fail(format!("{other:?}"))),
            }
            prop_assert_eq!(memory, expected);
            prop_assert_eq!(few.counts(), single.counts());
        }
    }
}
