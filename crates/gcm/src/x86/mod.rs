//! The paths for x86-64: one algorithm on registers of 512, 256 and 128 bits.

// Lanes and registers are numbered, and the numbers are constants to the compiler.
#![allow(clippy::needless_range_loop)]

mod batch512;
mod bulk;
mod copy;
mod ends;
mod entry;
mod expand;
mod finish128;
mod finish256;
mod finish512;
mod ghash;
mod lanes;
mod message;
mod narrow;
mod once;
mod short512;
mod stack;

pub(crate) use copy::{copy_in, copy_out};

use crate::kernel::Kernel;
use crate::Path;
use core::arch::x86_64::__cpuid_count;
use core::sync::atomic::{AtomicU8, Ordering};

/// Returns true if this processor can run the path.
pub(crate) fn is_available(path: Path) -> bool {
    match path {
        Path::Vaes512 => has_vaes() && avx512::get(),
        Path::Vaes256 => has_vaes(),
        Path::AesNi => aesni::get(),
        _ => false,
    }
}

cpufeatures::new!(aesni, "aes", "pclmulqdq", "ssse3", "sse4.1");
cpufeatures::new!(avx, "avx");
cpufeatures::new!(avx2, "avx2");
cpufeatures::new!(
    avx512,
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512dq",
    "avx512vbmi",
    "bmi1",
    "bmi2"
);

/// Returns true for VAES and VPCLMULQDQ on registers of 256 bits. (`cpufeatures` wants AVX-512 for
/// both, which Alder Lake and Zen 3 lack.)
///
/// The processor is asked once: a hypervisor answers CPUID in microseconds, which is many times
/// what making a key takes.
fn has_vaes() -> bool {
    const UNKNOWN: u8 = u8::MAX;
    static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
    match FOUND.load(Ordering::Relaxed) {
        UNKNOWN => {
            // AVX2 is in the same leaf, so there is one.
            let found = aesni::get() && avx2::get() && leaf_7_has_vaes();
            // Other threads find the same.
            FOUND.store(u8::from(found), Ordering::Relaxed);
            found
        }
        found => found != 0,
    }
}

/// Executes CPUID.
fn leaf_7_has_vaes() -> bool {
    /// Bits of ECX in leaf 7.
    const VAES: u32 = 1 << 9;
    const VPCLMULQDQ: u32 = 1 << 10;
    #[cfg(test)]
    tests::ASKED.fetch_add(1, Ordering::Relaxed);
    let found = __cpuid_count(7, 0).ecx;
    found & VAES != 0 && found & VPCLMULQDQ != 0
}

/// Returns the kernel of a path and a key of 16 or 32 bytes; `None` for paths of other processors.
pub(crate) fn kernel(path: Path, key_len: usize) -> Option<&'static Kernel> {
    Some(match (path, key_len) {
        (Path::Vaes512, 16) => &entry::vaes512::AES_128,
        (Path::Vaes512, _) => &entry::vaes512::AES_256,
        (Path::Vaes256, 16) => &entry::vaes256::AES_128,
        (Path::Vaes256, _) => &entry::vaes256::AES_256,
        // One path in two encodings: of processors with AES-NI only Westmere and small cores of
        // that time lack AVX. Instructions of AVX on 128 bits leave nothing in the upper halves of
        // registers and wait for nothing that is there, whatever the caller did, so no transition
        // between encodings costs time.
        (Path::AesNi, 16) if avx::get() => &entry::aesni_avx::AES_128,
        (Path::AesNi, _) if avx::get() => &entry::aesni_avx::AES_256,
        (Path::AesNi, 16) => &entry::aesni::AES_128,
        (Path::AesNi, _) => &entry::aesni::AES_256,
        _ => return None,
    })
}

/// Returns the lower half of the address 64 bytes after `p`, by an instruction that the compiler
/// does not look into. It would keep a second pointer up to date in loops over packets, just for
/// this, and leave others on the stack.
#[inline(always)]
pub(crate) fn low_bits_after_64(p: *const u8) -> u32 {
    let bits;
    // SAFETY: an addition.
    unsafe {
        core::arch::asm!("lea {bits:e}, [{p} + 64]", bits = lateout(reg) bits, p = in(reg) p.addr(),
            options(pure, nomem, nostack, preserves_flags));
    }
    bits
}

/// Asks for a line of the cache.
#[inline(always)]
pub(crate) fn prefetch(line: *const u8) {
    use core::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
    // Into the first level. With hints for the second, 10,000 keys in turn took up to 1.7 times as
    // long on Zen 5, for the first 20 ms.
    // SAFETY: a hint never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Block, Schedule, Shape};
    use core::cell::Cell;
    use core::sync::atomic::AtomicUsize;
    use std::sync::Barrier;

    /// Executions of CPUID.
    pub(super) static ASKED: AtomicUsize = AtomicUsize::new(0);

    /// Each of several threads may ask before another has stored what it found, and no more.
    #[test]
    fn making_keys_does_not_execute_cpuid() {
        const THREADS: usize = 4;
        let start = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    for n in 0..1000 {
                        crate::Key::new(&[n as u8; 16]).unwrap();
                    }
                });
            }
        });
        // Other tests of this process ask too, each in a thread of its own.
        let asked = ASKED.load(Ordering::Relaxed);
        assert!(asked < 100, "{asked}");
    }

    /// Seals and opens a message in one call.
    fn whole(kernel: &Kernel, seal: bool, aad: &[u8], data: &[u8]) -> (Vec<u8>, u128) {
        let schedule = schedule_of(kernel);
        with_schedule(kernel, &schedule, seal, aad, data)
    }

    /// The schedule of a key for a kernel whose instructions the processor has.
    fn schedule_of(kernel: &Kernel) -> Schedule {
        let key: Vec<u8> = (0..kernel.shape.rounds * 4 - 24).map(|i| i as u8).collect();
        let mut schedule = Schedule::EMPTY;
        // SAFETY: the caller has asked for the instructions.
        unsafe { (kernel.fill)(&mut schedule, &key) };
        schedule
    }

    /// Seals and opens a message in one call with this schedule.
    fn with_schedule(
        kernel: &Kernel,
        schedule: &Schedule,
        seal: bool,
        aad: &[u8],
        data: &[u8],
    ) -> (Vec<u8>, u128) {
        let mut out = vec![0; data.len()];
        let (from, to) = (data.as_ptr(), out.as_mut_ptr());
        // SAFETY: the caller has asked for the instructions; both sides have `data.len()` bytes.
        let tag = unsafe {
            kernel.whole(
                seal,
                schedule,
                &crate::Nonce::from([7; 12]),
                aad,
                from,
                to,
                data.len(),
            )
        };
        (out, tag)
    }

    /// On a processor with AVX the other tests run one of them.
    #[test]
    fn both_encodings_of_the_128_bit_path_give_the_same() {
        if !(aesni::get() && avx::get()) {
            return;
        }
        let kernels = [
            (&entry::aesni::AES_128, &entry::aesni_avx::AES_128),
            (&entry::aesni::AES_256, &entry::aesni_avx::AES_256),
        ];
        for (before_avx, with_avx) in kernels {
            for len in (0..600).chain([1440, 4099]) {
                let data: Vec<u8> = (0..len).map(|i| (i * 13 + i / 256) as u8).collect();
                let aad = &data.clone()[..len.min([0, 12, 16, 20, 100][len % 5])];
                let sealed = whole(before_avx, true, aad, &data);
                assert_eq!(whole(with_avx, true, aad, &data), sealed, "seal {len}");
                let opened = whole(before_avx, false, aad, &sealed.0);
                assert_eq!(opened, (data, sealed.1), "open {len}");
                assert_eq!(whole(with_avx, false, aad, &sealed.0), opened, "open {len}");
            }
        }
    }

    /// A schedule of which only the lines that are fetched ahead are as they should be.
    fn fetched_alone(whole: &Schedule, shape: &Shape, len: usize) -> Schedule {
        const BLOCKS: usize = size_of::<Schedule>() / 16;
        let kept = [const { Cell::new(false) }; BLOCKS];
        let start = core::ptr::from_ref(whole).cast::<u8>();
        whole.lines(shape, len, |line| {
            let at = line as usize - start as usize;
            assert!(at.is_multiple_of(64), "{at}");
            kept[at / 16..at / 16 + 4]
                .iter()
                .for_each(|block| block.set(true));
        });
        let mut other = Schedule::EMPTY;
        for (i, is_kept) in kept.iter().map(Cell::get).enumerate() {
            // SAFETY: block `i` of both; any bytes are a schedule.
            unsafe {
                let to = core::ptr::from_mut(&mut other).cast::<Block>().add(i);
                match is_kept {
                    true => to.write(start.cast::<Block>().add(i).read()),
                    false => to.write(Block([0xa5; 16])),
                }
            }
        }
        other
    }

    /// The counts stand at [`crate::Key::prefetch`] and in the guide.
    #[test]
    fn as_many_lines_of_a_key_are_fetched_ahead_as_is_documented() {
        let lines = |kernel: &Kernel, len| {
            let count = Cell::new(0);
            Schedule::EMPTY.lines(&kernel.shape, len, |_| count.set(count.get() + 1));
            count.get()
        };
        let most = |kernel| (0..5000).map(|len| lines(kernel, len)).max();
        let wide = &entry::vaes512::AES_128;
        assert_eq!([0, 48, 576].map(|len| lines(wide, len)), [4, 4, 7]);
        assert_eq!(
            (most(wide), most(&entry::aesni::AES_128)),
            (Some(16), Some(8))
        );
    }

    #[test]
    fn a_message_needs_no_line_of_its_key_but_those_that_are_fetched_ahead() {
        let kernels = Path::available().flat_map(|path| [kernel(path, 16), kernel(path, 32)]);
        for kernel in kernels.flatten() {
            let schedule = schedule_of(kernel);
            for len in 0..2100 {
                let data = vec![7; len];
                let fetched = fetched_alone(&schedule, &kernel.shape, len);
                let [expected, found] = [&schedule, &fetched]
                    .map(|schedule| with_schedule(kernel, schedule, true, &[1; 12], &data));
                let lanes = kernel.shape.lanes;
                assert!(found == expected, "{lanes} lanes, {len} bytes");
            }
        }
    }
}
