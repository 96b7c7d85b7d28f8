//! Every path between the instruction and the caller, on scripted hardware.

use tare_rdrand::health::cutoff;
use tare_rdrand::processor::Processor;
use tare_rdrand::scripted::{healthy_value, Carry, ScriptedRdrand, ScriptedRdseed, Values};
use tare_rdrand::source::Halves;
use tare_rdrand::{
    Error, Generator, HealthFailure, Instruction, KnownIssue, RetryLimit, SELF_TEST_DRAWS,
};

fn healthy_bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..)
        .flat_map(|index| healthy_value(seed, index).to_ne_bytes())
        .take(len)
        .collect()
}

#[test]
fn sixteen_bytes_at_any_offset_draw_two_numbers() {
    for offset in 0..8 {
        let mut generator = Generator::with_source_untested(ScriptedRdrand::healthy(1));
        let mut memory = [0_u64; 4].map(u64::to_ne_bytes).concat();
        generator
            .fill_bytes(&mut memory[offset..offset + 16])
            .unwrap();
        assert_eq!(generator.source().executed(), 2, "offset {offset}");
        assert_eq!(memory[offset..offset + 16], healthy_bytes(1, 16));
        assert!(memory[..offset]
            .iter()
            .chain(&memory[offset + 16..])
            .all(|&byte| byte == 0));
    }
}

#[test]
fn the_retry_limit_counts_attempts() {
    for limit in 1..20 {
        for tries in 1..20 {
            let mut generator =
                Generator::with_source_untested(ScriptedRdrand::after_tries(2, tries));
            generator.set_retry_limit(RetryLimit::new(limit));
            let expected = if tries <= limit { Ok(3) } else { Err(limit) };
            let got = generator
                .fill_u64(&mut [0; 3])
                .map(|()| 3)
                .map_err(|error| match error {
                    Error::Underflow {
                        attempts,
                        waited: None,
                        written: 0,
                        instruction: Instruction::Rdrand,
                    } => attempts,
                    other => panic!("{other}"),
                });
            assert_eq!(got, expected, "limit {limit}, tries {tries}");
            if got.is_err() {
                assert_eq!(generator.source().executed(), u64::from(limit));
            }
        }
    }
}

#[test]
fn a_limit_of_zero_makes_one_attempt() {
    let mut generator = Generator::with_source_untested(ScriptedRdrand::healthy(2));
    generator.set_retry_limit(RetryLimit::new(0));
    assert_eq!(generator.next_u64(), Ok(healthy_value(2, 0)));
}

#[test]
fn the_sixteen_bit_value_is_retried_like_the_others() {
    let mut generator = Generator::with_source_untested(ScriptedRdrand::after_tries(3, 7));
    assert_eq!(generator.next_u16(), Ok(healthy_value(3, 0) as u16));
    assert_eq!(generator.next_u32(), Ok(healthy_value(3, 1) as u32));
    assert_eq!(generator.next_u64(), Ok(healthy_value(3, 2)));
    assert_eq!(generator.source().executed(), 21);
    let counts = generator.counts();
    assert_eq!((counts.draws, counts.underflows), (3, 18));
}

#[test]
fn hardware_that_runs_dry_reports_the_elements_written() {
    let dry_after = |executions| {
        let script = ScriptedRdrand::new(Values::Healthy(4), Carry::Until(executions));
        Generator::with_source_untested(script)
    };
    let mut bytes = [0xee; 100];
    let error = dry_after(5).fill_bytes(&mut bytes).unwrap_err();
    assert_eq!(error.written(), 40);
    assert_eq!(bytes[..40], healthy_bytes(4, 40));
    assert_eq!(
        bytes[40..],
        [0xee; 60],
        "what was not delivered is not touched"
    );

    assert_eq!(
        dry_after(5).fill_u16(&mut [0; 100]).unwrap_err().written(),
        20
    );
    assert_eq!(
        dry_after(5).fill_u32(&mut [0; 100]).unwrap_err().written(),
        10
    );
    assert_eq!(
        dry_after(5).fill_u64(&mut [0; 100]).unwrap_err().written(),
        5
    );
    assert_eq!(
        dry_after(3 * 1025)
            .fill_u64_reseed_skip(&mut [0; 5])
            .unwrap_err()
            .written(),
        3
    );
    assert_eq!(
        dry_after(3)
            .fill_u64_reseed_delay(&mut [0; 5])
            .unwrap_err()
            .written(),
        3
    );
}

#[test]
fn an_underflow_does_not_stop_the_generator_for_good() {
    let script = ScriptedRdrand::new(
        Values::Healthy(4),
        Carry::Pattern {
            bits: 1,
            length: 11,
        },
    );
    let mut generator = Generator::with_source_untested(script);
    assert!(generator.next_u64().is_ok());
    assert!(matches!(
        generator.next_u64(),
        Err(Error::Underflow { attempts: 10, .. })
    ));
    assert!(generator.next_u64().is_ok());
}

#[test]
fn hardware_stuck_from_the_start_fails_the_self_test() {
    for stuck in [0, u64::MAX, 0x1234_5678_9abc_def0] {
        let error = Generator::with_source(ScriptedRdrand::stuck(stuck))
            .err()
            .unwrap();
        let Error::SelfTest {
            failure,
            known: None,
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(
            failure,
            HealthFailure::Repetition {
                value: stuck,
                bits: 64,
                run: 3
            }
        );
    }
}

#[test]
fn the_self_test_names_the_known_defect_that_fits() {
    let zen2 = Processor {
        vendor: *b"AuthenticAMD",
        family: 0x17,
        model: 0x71,
    };
    let on = |value| Generator::with_source_on(ScriptedRdrand::stuck(value), Some(zen2)).err();
    let error = on(u64::MAX).unwrap();
    assert!(matches!(
        error,
        Error::SelfTest {
            known: Some(KnownIssue::AmdZen2AllOnes),
            ..
        }
    ));
    assert!(error.to_string().contains("update the firmware"), "{error}");
    assert!(matches!(
        on(0).unwrap(),
        Error::SelfTest { known: None, .. }
    ));
}

#[test]
fn a_repaired_processor_of_a_broken_model_is_used() {
    let zen2 = Processor {
        vendor: *b"AuthenticAMD",
        family: 0x17,
        model: 0x71,
    };
    assert!(Generator::with_source_on(ScriptedRdrand::healthy(6), Some(zen2)).is_ok());
}

/// Returns the result of the self-test of RDRAND with these values.
fn self_test(values: Values) -> Result<(), HealthFailure> {
    match Generator::with_source(ScriptedRdrand::new(values, Carry::Always)) {
        Ok(_) => Ok(()),
        Err(Error::SelfTest { failure, .. }) => Err(failure),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_generator_that_repeats_fails_the_self_test() {
    for seed in 0..20 {
        for times in 2..=512 {
            let failure = self_test(Values::Repeating { seed, times }).unwrap_err();
            let repetition = matches!(failure, HealthFailure::Repetition { run: 3, .. });
            assert_eq!(repetition, times > 2, "each value {times} times: {failure}");
        }
    }
    // One value, A B A B, and every cycle of which 1,024 draws show a value twice.
    for length in 1..SELF_TEST_DRAWS as u64 {
        let failure = self_test(Values::Cycle { seed: 1, length }).unwrap_err();
        // The continuous tests find the short ones before all values are drawn.
        let duplicate = matches!(failure, HealthFailure::Duplicate { draws: 1024, .. });
        assert!(duplicate || length <= 16, "a cycle of {length}: {failure}");
    }
    // What the self-test cannot see, as its documentation says.
    assert_eq!(
        self_test(Values::Cycle {
            seed: 1,
            length: 1024
        }),
        Ok(())
    );
}

#[test]
fn a_single_duplicate_anywhere_in_1024_draws_fails_the_self_test() {
    for (healthy, again) in [(1, 2), (1, 1023), (500, 700), (1022, 1023), (1, 512)] {
        let value = healthy_value(3, again);
        let values = |count| Values::Burst {
            seed: 3,
            healthy,
            value,
            count,
        };
        let failure = self_test(values(1)).unwrap_err();
        assert_eq!(failure, HealthFailure::Duplicate { value, draws: 1024 });
        assert_eq!(self_test(values(0)), Ok(()));
    }
}

#[test]
fn stuck_bits_nibbles_and_bytes_fail_the_self_test_in_every_position() {
    for width in [1, 4, 8, 32] {
        for position in 0..=64 - width {
            for pattern in [0, u64::MAX, 0xa5a5_5a5a_a5a5_5a5a] {
                let mask = (u64::MAX >> (64 - width)) << position;
                let bits = pattern & mask;
                let failure = self_test(Values::StuckBits {
                    seed: position,
                    mask,
                    bits,
                })
                .unwrap_err();
                let found = matches!(failure, HealthFailure::StuckBits { mask: found } if found == mask)
                    || width >= 8 && matches!(failure, HealthFailure::Proportion { .. });
                assert!(found, "{mask:#018x} at {bits:#018x}: {failure}");
            }
        }
    }
}

#[test]
fn debug_shows_no_random_number() {
    let mut generator = Generator::with_source(ScriptedRdrand::healthy(8)).unwrap();
    let delivered = [generator.next_u64().unwrap(), generator.next_u64().unwrap()];
    let text = format!("{generator:?}");
    assert!(
        text.contains("draws: 1026") && text.contains("Rdrand"),
        "{text}"
    );
    for value in delivered {
        assert!(!text.contains(&value.to_string()) && !text.contains(&format!("{value:x}")));
    }
    // The value that condemned a generator may have been delivered before.
    let mut stuck = Generator::with_source_untested(ScriptedRdrand::stuck(424_242));
    while stuck.next_u64().is_ok() {}
    let text = format!("{stuck:?}");
    assert!(
        text.contains("failed: true") && !text.contains("424242"),
        "{text}"
    );
}

#[test]
fn the_64_bit_numbers_of_a_32_bit_processor_are_two_draws_of_32() {
    let half = |index| healthy_value(14, index) & 0xffff_ffff;
    let number = |index| half(2 * index) << 32 | half(2 * index + 1);
    let source = Halves(ScriptedRdrand::healthy(14));
    let mut generator = Generator::with_source(source).unwrap();
    let first = SELF_TEST_DRAWS as u64;
    assert_eq!(generator.next_u64(), Ok(number(first)));
    let mut bytes = [0; 100];
    generator.fill_bytes(&mut bytes).unwrap();
    let expected = (1..).flat_map(|index| number(first + index).to_ne_bytes());
    assert_eq!(bytes[..], expected.take(100).collect::<Vec<u8>>());
    assert_eq!(generator.source().0.executed(), 2 * (first + 1 + 13));

    // Stuck and dry hardware is found there as well.
    assert!(Generator::with_source(Halves(ScriptedRdrand::stuck(7))).is_err());
    let mut dry = Generator::with_source_untested(Halves(ScriptedRdrand::never()));
    assert!(matches!(
        dry.next_u64(),
        Err(Error::Underflow { attempts: 10, .. })
    ));
    // One value in 55 attempts: two in a row never come.
    let zen5 = Halves(ScriptedRdseed::after_tries(15, 55));
    assert!(Generator::with_source(zen5).is_ok());
}

#[test]
fn the_zeros_that_zen_5_gives_for_32_bits_of_rdseed_are_not_taken() {
    let values = Values::NarrowZeros {
        seed: 16,
        one_in: 2,
    };
    let source = Halves(ScriptedRdseed::new(values, Carry::Always));
    let mut generator = Generator::with_source(source).unwrap();
    for _ in 0..1000 {
        let value = generator.next_u64().unwrap();
        assert!(value as u32 != 0 && value >> 32 != 0, "{value:#x}");
    }
}

#[test]
fn the_self_test_draws_at_least_1024_values_and_leaves_them_out_of_the_output() {
    let mut generator = Generator::with_source(ScriptedRdrand::healthy(7)).unwrap();
    assert_eq!(generator.source().delivered(), 1024);
    assert_eq!(
        generator.next_u64(),
        Ok(healthy_value(7, SELF_TEST_DRAWS as u64))
    );
}

#[test]
fn dead_hardware_fails_the_self_test_as_an_underflow() {
    let error = Generator::with_source(ScriptedRdrand::never())
        .err()
        .unwrap();
    assert!(
        matches!(error, Error::Underflow { written: 0, .. }),
        "{error}"
    );
}

#[test]
fn hardware_that_gets_stuck_later_delivers_nothing_and_stays_stopped() {
    for value in [0, u64::MAX, 42] {
        let values = Values::Burst {
            seed: 8,
            healthy: 20,
            value,
            count: 5,
        };
        let script = ScriptedRdrand::new(values, Carry::Always);
        let mut generator = Generator::with_source_untested(script);
        let mut bytes = [0xee; 400];
        let error = generator.fill_bytes(&mut bytes).unwrap_err();
        assert!(matches!(error, Error::Health { .. }), "{error}");
        assert_eq!(error.written(), 0);
        assert_eq!(
            bytes, [0; 400],
            "nothing that a broken source gave is left behind"
        );
        // The burst is over, the generator does not come back by itself.
        let mut again = [0xee; 16];
        assert!(matches!(
            generator.fill_bytes(&mut again),
            Err(Error::Health { .. })
        ));
        assert_eq!(again, [0; 16]);
        assert!(generator.next_u64().is_err() && generator.next_u32().is_err());
        assert!(generator.fill_bytes_reseed_skip(&mut again).is_err());
    }
}

#[test]
fn one_suspicious_value_is_retested_and_kept() {
    for (value, count) in [(0, 1), (u64::MAX, 1), (0, 2), (u64::MAX, 2)] {
        let values = Values::Burst {
            seed: 9,
            healthy: 1,
            value,
            count,
        };
        let generator =
            || Generator::with_source_untested(ScriptedRdrand::new(values, Carry::Always));

        // Drawn alone or last of a block, it is cleared by values that are thrown away.
        let mut alone = generator();
        assert_eq!(alone.next_u64(), Ok(healthy_value(9, 0)));
        assert_eq!(alone.next_u64(), Ok(value), "{value:#x} × {count}");
        assert_eq!(alone.source().delivered(), 2 + count);
        let last = Values::Burst {
            seed: 9,
            healthy: 99,
            value,
            count: 1,
        };
        let mut block = [7; 100];
        let mut source = ScriptedRdrand::new(last, Carry::Always);
        Generator::with_source_untested(&mut source)
            .fill_u64(&mut block)
            .unwrap();
        assert_eq!((block[99], source.delivered()), (value, 101));

        // Within a block, the values that follow it clear it.
        let mut block = [7; 100];
        let mut within = generator();
        within.fill_u64(&mut block).unwrap();
        let script: Vec<u64> = (0..100)
            .map(|index| {
                if (1..1 + count).contains(&index) {
                    value
                } else {
                    healthy_value(9, index)
                }
            })
            .collect();
        assert_eq!(block[..], script);
        assert_eq!(within.source().delivered(), 100);
    }
}

#[test]
fn narrow_values_are_watched_with_their_own_cut_offs() {
    let stuck = || Generator::with_source_untested(ScriptedRdrand::stuck(0x55));
    let mut generator = stuck();
    let good = (0..).take_while(|_| generator.next_u16().is_ok()).count() as u32;
    assert_eq!(good + 1, cutoff::repetition_of_width(2));
    let mut generator = stuck();
    let good = (0..).take_while(|_| generator.next_u32().is_ok()).count() as u32;
    assert_eq!(good + 1, cutoff::repetition_of_width(4));
}

#[test]
fn zero_is_an_ordinary_16_bit_value() {
    let mut generator = Generator::with_source_untested(ScriptedRdrand::healthy(10));
    let zeros = (0..400_000)
        .filter(|_| generator.next_u16().unwrap() == 0)
        .count();
    assert!((1..30).contains(&zeros), "{zeros}: expected about 6");
}

#[test]
fn narrow_seeds_do_not_touch_the_narrow_instruction_that_zen_5_breaks() {
    let script = ScriptedRdseed::new(
        Values::NarrowZeros {
            seed: 11,
            one_in: 2,
        },
        Carry::Always,
    );
    let mut generator = Generator::with_source(script).unwrap();
    let narrow: Vec<u32> = (0..1000).map(|_| generator.next_u32().unwrap()).collect();
    assert!(narrow.iter().all(|&value| value != 0));
    let narrow: Vec<u16> = (0..1000).map(|_| generator.next_u16().unwrap()).collect();
    assert!(narrow.iter().filter(|&&value| value == 0).count() < 5);
}

#[test]
fn reseed_skip_writes_3705_bytes_when_asked_for_3705() {
    let mut generator = Generator::with_source_untested(ScriptedRdrand::healthy(12));
    let mut bytes = [0; 3705 + 7];
    generator
        .fill_bytes_reseed_skip(&mut bytes[..3705])
        .unwrap();
    assert_eq!(generator.source().executed(), 464 * 1025);
    let kept = (0..464_u64).flat_map(|n| healthy_value(12, n * 1025 + 1024).to_ne_bytes());
    assert_eq!(bytes[..3705], kept.take(3705).collect::<Vec<u8>>());
    assert_eq!(bytes[3705..], [0; 7]);
}

#[test]
fn reseed_delay_waits_before_every_draw() {
    let mut generator = Generator::with_source_untested(ScriptedRdrand::healthy(13));
    let mut waits = 0;
    let mut bytes = [0; 21];
    generator
        .fill_bytes_reseed_delay_with(&mut bytes, || waits += 1)
        .unwrap();
    assert_eq!((waits, generator.source().executed()), (3, 3));
    let started = std::time::Instant::now();
    generator.fill_u64_reseed_delay(&mut [0; 10]).unwrap();
    assert!(started.elapsed().as_micros() >= 200);
}

#[test]
fn every_error_is_a_sentence_with_something_to_do() {
    let failure = HealthFailure::Proportion {
        byte: 0,
        count: 60,
        window: 512,
    };
    let errors = [
        Error::Unsupported {
            instruction: Instruction::Rdrand,
        },
        Error::Underflow {
            instruction: Instruction::Rdseed,
            attempts: 1100,
            waited: Some(std::time::Duration::from_millis(50)),
            written: 3,
        },
        Error::SelfTest {
            instruction: Instruction::Rdrand,
            failure,
            known: None,
        },
        Error::Health {
            instruction: Instruction::Rdrand,
            failure,
        },
        Error::KeyLength { key: 5, nonce: 5 },
        Error::NoKey,
        Error::Length {
            source: 1,
            destination: 2,
        },
        Error::KeyExhausted,
    ];
    for error in errors {
        let text = error.to_string();
        assert!(
            text.len() > 30 && !text.ends_with('.') && !text.contains('\n'),
            "{text}"
        );
    }
}

#[test]
fn a_single_value_is_zeroed_too_when_a_health_test_fails() {
    let generator = || Generator::with_source_untested(ScriptedRdrand::stuck(7));
    let (mut words, mut bytes) = ([1_u64], [1_u8; 8]);
    let mut first = generator();
    while first.fill_u64(&mut words).is_ok() {}
    let mut second = generator();
    while second.fill_bytes(&mut bytes).is_ok() {}
    assert_eq!((words, bytes), ([0], [0; 8]));
}

#[test]
fn a_dropped_generator_holds_none_of_its_numbers() {
    type Scripted = Generator<ScriptedRdrand>;
    let mut place = std::mem::MaybeUninit::<Scripted>::zeroed();
    let generator = place.write(Generator::with_source_untested(ScriptedRdrand::healthy(6)));
    let last = [
        generator.next_u64().unwrap(),
        u64::from(generator.next_u32().unwrap()),
        u64::from(generator.next_u16().unwrap()),
    ];
    let held = |place: &std::mem::MaybeUninit<Scripted>| {
        let start = place.as_ptr().cast::<u8>();
        // SAFETY: within the place, whose bytes were all zero before the generator was put there;
        // volatile, as nothing of that type is there after the drop.
        let byte = |at| unsafe { start.add(at).read_volatile() };
        let bytes: Vec<u8> = (0..size_of::<Scripted>()).map(byte).collect();
        last.map(|value| bytes.windows(8).any(|found| found == value.to_ne_bytes()))
    };
    assert_eq!(held(&place), [true; 3]);
    // SAFETY: it is there, and used no more.
    unsafe { place.assume_init_drop() };
    assert_eq!(held(&place), [false; 3]);
}
