//! Random bytes into a stdio stream.

use std::ffi::{c_int, c_void};

use tare_rdrand::Error;

use crate::thread::with_generator;

/// Bytes drawn, written and flushed at a time.
const CHUNK_BYTES: usize = 16 * 1024;

/// Writes `count` random bytes to a stream and flushes it; returns the number that arrived.
///
/// # Safety
/// `file` is NULL or an open stream.
#[no_mangle]
pub unsafe extern "C" fn rdrand_fwrite(
    file: *mut libc::FILE,
    count: usize,
    retry_limit: c_int,
) -> usize {
    if file.is_null() {
        return 0;
    }
    let sink = |bytes: &[u8]| {
        // SAFETY: an open stream, as promised, and memory of that many bytes. A stream buffers,
        // so only a flush tells whether the bytes have arrived.
        unsafe {
            libc::fwrite(bytes.as_ptr().cast::<c_void>(), 1, bytes.len(), file) == bytes.len()
                && libc::fflush(file) == 0
        }
    };
    // The generator is not borrowed while the stream writes: a stream with functions of the
    // caller's (`fopencookie`) may call this library again.
    let fill =
        |chunk: &mut [u8]| with_generator(retry_limit, |generator| generator.fill_bytes(chunk));
    let mut arrived = 0;
    let _ = pump(count, &mut arrived, fill, sink);
    arrived
}

/// Moves `count` bytes; `arrived` counts those of chunks that the sink took whole.
fn pump(
    count: usize,
    arrived: &mut usize,
    mut fill: impl FnMut(&mut [u8]) -> Result<(), Error>,
    mut sink: impl FnMut(&[u8]) -> bool,
) -> Result<(), Error> {
    let mut buffer = [0; CHUNK_BYTES];
    while *arrived < count {
        let wanted = (count - *arrived).min(CHUNK_BYTES);
        let filled = fill(&mut buffer[..wanted]);
        let good = filled.as_ref().map_or_else(Error::written, |()| wanted);
        if good > 0 {
            if !sink(&buffer[..good]) {
                return Ok(());
            }
            *arrived += good;
        }
        filled?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_rdrand::scripted::{Carry, ScriptedRdrand, Values};
    use tare_rdrand::Generator;

    fn generator(carry: Carry) -> Generator<ScriptedRdrand> {
        Generator::with_source_untested(ScriptedRdrand::new(Values::Healthy(1), carry))
    }

    #[test]
    fn sizes_over_4_gib_do_not_wrap() {
        let count = (1_usize << 32) + 4097;
        let (mut arrived, mut taken) = (0, 0);
        let result = pump(
            count,
            &mut arrived,
            |_| Ok(()),
            |bytes| {
                taken += bytes.len();
                true
            },
        );
        assert_eq!((result, arrived, taken), (Ok(()), count, count));
    }

    #[test]
    fn fwrite_does_not_report_success_on_failure() {
        let mut room = 3;
        let mut arrived = 0;
        let sink = |_: &[u8]| {
            room -= 1;
            room >= 0
        };
        let mut generator = generator(Carry::Always);
        let _ = pump(
            1 << 20,
            &mut arrived,
            |chunk| generator.fill_bytes(chunk),
            sink,
        );
        assert_eq!(arrived, 3 * CHUNK_BYTES);
    }

    #[test]
    fn fwrite_writes_no_zeros_for_numbers_that_did_not_come() {
        let mut out = Vec::new();
        let mut arrived = 0;
        let sink = |bytes: &[u8]| {
            out.extend_from_slice(bytes);
            true
        };
        let mut generator = generator(Carry::Until(2100));
        let result = pump(
            1 << 20,
            &mut arrived,
            |chunk| generator.fill_bytes(chunk),
            sink,
        );
        assert!(matches!(result, Err(Error::Underflow { .. })));
        assert_eq!((arrived, out.len()), (2100 * 8, 2100 * 8));
        assert!(out.chunks(8).all(|value| value != [0; 8]));
    }
}
