//! The defects of the original, one test each, on scripted hardware. `tests/c_program.rs` calls
//! the exported functions on the real one.

use std::io::Write as _;

use super::*;
use tare_rdrand::scripted::{Carry, ScriptedRdrand, Values};

fn dry_after(values: u64) -> Generator<ScriptedRdrand> {
    let script = ScriptedRdrand::new(Values::Healthy(1), Carry::Until(values));
    Generator::with_source_untested(script)
}

fn healthy() -> Generator<ScriptedRdrand> {
    Generator::with_source_untested(ScriptedRdrand::healthy(1))
}

fn fill<T, S: Source>(generator: &mut Generator<S>, dest: &mut [T]) -> Result<usize, Error> {
    // SAFETY: the pointer and the length of one slice.
    unsafe {
        array(
            generator,
            dest.as_mut_ptr(),
            dest.len(),
            Generator::fill_bytes,
        )
    }
}

#[test]
fn output_is_not_zero_blocks_with_success() {
    // The original's `-a` wrote 64 % zero blocks and ended with 0.
    let mut values = [0_u64; 1000];
    assert_eq!(fill(&mut dry_after(360), &mut values), Ok(360));
    assert!(values[..360].iter().all(|&value| value != 0));
    assert!(values[360..].iter().all(|&value| value == 0));
}

#[test]
fn underflow_is_not_ignored_when_no_limit_is_set() {
    let mut generator = dry_after(5);
    generator.set_retry_limit(crate::thread::retry_limit(-1));
    assert_eq!(fill(&mut generator, &mut [0_u64; 10]), Ok(5));
    assert_eq!(generator.source().executed(), 5 + 10);
}

#[test]
fn the_16_bit_retry_retries() {
    let late = ScriptedRdrand::after_tries(1, 8);
    let mut generator = Generator::with_source_untested(late);
    assert!(generator.next_u16().is_ok());
    assert_eq!(generator.source().executed(), 8);
}

#[test]
fn arrays_report_elements_and_not_bytes() {
    assert_eq!(fill(&mut healthy(), &mut [0_u8; 7]), Ok(7));
    assert_eq!(fill(&mut healthy(), &mut [0_u16; 7]), Ok(7));
    assert_eq!(fill(&mut healthy(), &mut [0_u32; 7]), Ok(7));
    assert_eq!(fill(&mut healthy(), &mut [0_u64; 7]), Ok(7));
    assert_eq!(fill(&mut dry_after(1), &mut [0_u16; 7]), Ok(4));
    assert_eq!(fill(&mut dry_after(1), &mut [0_u32; 7]), Ok(2));
}

#[test]
fn sixteen_bytes_at_an_odd_address_draw_two_numbers() {
    for offset in 0..8 {
        let mut memory = [0_u8; 32];
        let start = memory.as_ptr().align_offset(8) + offset;
        let mut generator = healthy();
        assert_eq!(fill(&mut generator, &mut memory[start..start + 16]), Ok(16));
        assert_eq!(generator.source().executed(), 2, "p % 8 = {offset}");
    }
}

#[test]
fn reseed_skip_of_3705_bytes_writes_3705() {
    let mut generator = healthy();
    let mut bytes = [0_u8; 3705];
    // SAFETY: the pointer and the length of one array.
    let written = unsafe {
        array(
            &mut generator,
            bytes.as_mut_ptr(),
            3705,
            Generator::fill_bytes_reseed_skip,
        )
    };
    assert_eq!(written, Ok(3705));
    assert!(bytes[3696..].iter().any(|&byte| byte != 0));
}

#[test]
fn a_failed_health_test_is_an_error_of_the_generator_and_not_a_short_count() {
    let mut stuck = Generator::with_source_untested(ScriptedRdrand::stuck(u64::MAX));
    let mut values = [1_u64; 100];
    assert!(matches!(
        fill(&mut stuck, &mut values),
        Err(Error::Health { .. })
    ));
    assert_eq!(values, [0; 100]);
}

#[test]
fn sizes_that_no_memory_has_are_refused_and_do_not_wrap() {
    let mut value = 0_u64;
    for count in [
        usize::MAX,
        usize::MAX / 8 + 1,
        usize::MAX / 8,
        isize::MAX as usize / 8 + 1,
    ] {
        // SAFETY: too large a count is refused before the pointer is used.
        let written = unsafe { array(&mut healthy(), &mut value, count, Generator::fill_bytes) };
        assert_eq!((written, value), (Ok(0), 0), "{count}");
    }
}

#[test]
fn null_and_nothing_are_refused() {
    let null = std::ptr::null_mut::<u64>();
    // SAFETY: NULL is refused.
    unsafe {
        assert_eq!(array(&mut healthy(), null, 5, Generator::fill_bytes), Ok(0));
        assert_eq!(rdrand_get_uint64_retry(null, 1), crate::RDRAND_FAILURE);
        assert_eq!(rdrand64_step(null), crate::RDRAND_FAILURE);
        assert_eq!(rdrand_get_bytes_retry(std::ptr::null_mut(), 8, -1), 0);
    }
}

#[test]
fn two_hundred_threads_do_not_crash() {
    if rdrand_testSupport() != RDRAND_SUPPORTED {
        let _ = std::io::stderr().write_all(b"\nNOT TESTED: 200 threads: no RDRAND\n");
        return;
    }
    let threads: Vec<_> = (0..200)
        .map(|_| {
            std::thread::spawn(|| {
                let mut values = [0_u64; 256];
                // SAFETY: the pointer and the length of one array.
                unsafe { rdrand_get_uint64_array_retry(values.as_mut_ptr(), 256, -1) }
            })
        })
        .collect();
    assert!(threads
        .into_iter()
        .all(|thread| thread.join().is_ok_and(|count| count == 256)));
}
