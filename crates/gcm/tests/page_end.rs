//! Messages that end where mapped memory ends.
#![cfg(target_os = "linux")]

use std::time::Instant;
use tare_gcm::{open_batch, Key, Nonce, OpenPacket, Path, SharedRead, SharedWrite, Tag};

const PAGE: usize = 4096;
/// Of one register, and of two.
const LENS: [usize; 2] = [20, 100];

/// Two pages, with one behind them that is not accessible.
fn mapped() -> *mut u8 {
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping, never unmapped; its last page is given up.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), 3 * PAGE, access, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        let last = start.add(2 * PAGE);
        assert_eq!(libc::mprotect(last, PAGE, libc::PROT_NONE), 0);
        start.cast()
    }
}

/// The shortest time of a call in nanoseconds, of many.
fn least(mut call: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        (0..64).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / 64.0
    };
    (0..300).map(time).fold(f64::MAX, f64::min)
}

/// A masked load or store that reaches into a page which is not mapped takes a way through the
/// processor's microcode, of some 190 ns on Intel's Xeon and 65 on Zen 4. A short message takes 15,
/// and the other party decides where it lies. In a build with checks, which wipes 4 KiB of the
/// stack after each call, 65 ns are not seen here; that there is no such access is what
/// `tests/once/counted.rs` asserts, without a clock.
#[test]
fn a_message_at_the_end_of_mapped_memory_takes_as_long_as_elsewhere() {
    let memory = mapped();
    for (path, len) in Path::available().flat_map(|path| LENS.map(|len| (path, len))) {
        let key = Key::with_path(&[1; 16], path).unwrap();
        let nonce = || Nonce::from([2; 12]);
        let plaintext = vec![3; len];
        let times = |end: usize| {
            // SAFETY: within the mapping, which nothing else uses meanwhile.
            let (at, bytes) = unsafe {
                let at = memory.add(end - len);
                (at, std::slice::from_raw_parts(at, len))
            };
            // SAFETY: as above.
            let to = || unsafe { SharedWrite::new(at, len) };
            let seal = least(|| assert!(key.seal(nonce(), &[], &plaintext, to()).is_ok()));
            let tag = key.seal(nonce(), &[], &plaintext, to()).unwrap();
            let mut out = vec![0; len];
            let open = least(|| {
                let opened = key.open(&nonce(), &[], SharedRead::from(bytes), &tag, &mut out);
                opened.unwrap();
            });
            let batch = least(|| open_four(&key, bytes, tag));
            [seal, open, batch]
        };
        // In one of several measurements: another guest may take the processor during the second.
        let is_as_fast = |_| {
            let (elsewhere, end) = (times(PAGE + 640), times(2 * PAGE));
            println!("{path}, {len} bytes: ns to seal, open and open four: {elsewhere:.1?}, at the end {end:.1?}");
            let mut both = elsewhere.into_iter().zip(end);
            both.all(|(elsewhere, end)| end < 2.5 * elsewhere + 20.0)
        };
        assert!((0..5).any(is_as_fast), "{path}, {len} bytes");
    }
}

/// Opens a message from elsewhere, which a batch begins with, and four at the place.
fn open_four(key: &Key, bytes: &[u8], tag: Tag) {
    let elsewhere = bytes.to_vec();
    let mut outs = vec![vec![0; bytes.len()]; 5];
    let mut at = 0;
    let packets = outs.iter_mut().map(|out| {
        let from = SharedRead::from(if at == 0 { &elsewhere[..] } else { bytes });
        at += 1;
        OpenPacket::new(key, Nonce::from([2; 12]), &[], from, tag, out).unwrap()
    });
    assert_eq!(open_batch(&mut packets.collect::<Vec<_>>()), 5);
}
