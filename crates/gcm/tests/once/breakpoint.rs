//! A hardware breakpoint on one byte counts the instructions that access it, however wide they are.

use crate::watch;
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::MutexGuard;
use tare_gcm::{
    open_batch, seal_batch, Key, Nonce, OpenPacket, Path, SealPacket, SharedRead, SharedWrite, Tag,
};

/// Counts reads and writes of one byte by this thread.
struct Watch(i32);

impl Watch {
    /// Sets the breakpoint, which stands until this is dropped.
    fn on(byte: *const u8) -> io::Result<Self> {
        // The start of `struct perf_event_attr` (linux/perf_event.h), 64 bytes long in its first
        // version, and the breakpoint's address and length at 56 and 64.
        let mut attr = [0u64; 16];
        const PERF_TYPE_BREAKPOINT: u64 = 5;
        const EXCLUDE_KERNEL_AND_HYPERVISOR: u64 = 1 << 5 | 1 << 6;
        const HW_BREAKPOINT_RW: u64 = 3;
        attr[0] = PERF_TYPE_BREAKPOINT | (size_of_val(&attr) as u64) << 32;
        attr[5] = EXCLUDE_KERNEL_AND_HYPERVISOR;
        attr[6] = HW_BREAKPOINT_RW << 32;
        attr[7] = byte.addr() as u64;
        attr[8] = 1;
        // SAFETY: the attribute block is alive and as long as it says; this thread, any CPU, no
        // group, no flags.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), 0, -1, -1, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(fd as i32))
    }

    /// Accesses so far.
    fn count(&self) -> u64 {
        let mut count = 0u64;
        // SAFETY: reads eight bytes into a u64.
        let read = unsafe { libc::read(self.0, (&raw mut count).cast(), 8) };
        assert_eq!(read, 8);
        count
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this watch's own.
        unsafe { libc::close(self.0) };
    }
}

/// Debug exceptions that the kernel could not attribute to a breakpoint, as it sends SIGTRAP then.
static UNATTRIBUTED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_unattributed(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    UNATTRIBUTED.fetch_add(1, Ordering::SeqCst);
}

/// Breakpoints, used by one test at a time, with a handler for exceptions without a breakpoint.
///
/// Some hypervisors deliver a few exceptions with an empty register DR6: the access is not counted,
/// and the kernel sends SIGTRAP (seen on a virtual Intel Xeon whose processors were all busy). Such
/// a count is made again.
struct Breakpoints {
    before: libc::sigaction,
    _one: MutexGuard<'static, ()>,
}

impl Breakpoints {
    /// Returns `None`, and says so, if breakpoints do not work here: one read and one write must
    /// count as two.
    fn new() -> Option<Self> {
        let one = watch::one();
        // SAFETY: a handler with this signature; the former one is kept and restored.
        let before = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut before = action;
            action.sa_sigaction = on_unattributed as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGTRAP, &action, &mut before), 0);
            before
        };
        let breakpoints = Self { before, _one: one };
        let mut byte = Box::new(5u8);
        let p: *mut u8 = &raw mut *byte;
        let counted = breakpoints.try_count(p, || {
            // SAFETY: the byte is alive; volatile, so that each access happens.
            unsafe { p.write_volatile(p.read_volatile()) };
        });
        if matches!(counted, Ok(2)) {
            return Some(breakpoints);
        }
        eprint_always!(
            "NOT TESTED by breakpoints, which do not work here ({counted:?}): accesses are counted by \
             tests/once/counted.rs alone. Allow perf_event_open (kernel.perf_event_paranoid at most \
             2) on a machine with debug registers."
        );
        None
    }

    /// Counts the instructions of `work` that access a byte.
    fn count(&self, byte: *const u8, work: impl FnMut()) -> u64 {
        self.try_count(byte, work).unwrap()
    }

    fn try_count(&self, byte: *const u8, mut work: impl FnMut()) -> io::Result<u64> {
        for _ in 0..10 {
            let unattributed = UNATTRIBUTED.load(Ordering::SeqCst);
            let watch = Watch::on(byte)?;
            work();
            let count = watch.count();
            if UNATTRIBUTED.load(Ordering::SeqCst) == unattributed {
                return Ok(count);
            }
        }
        Err(io::Error::other(
            "ten times in a row a debug exception without a breakpoint",
        ))
    }
}

impl Drop for Breakpoints {
    fn drop(&mut self) {
        // SAFETY: what was there before.
        unsafe { libc::sigaction(libc::SIGTRAP, &self.before, ptr::null_mut()) };
    }
}

/// Bytes on either side of each watched piece. An AMD processor's breakpoint on one byte also fires
/// when a load of 64 bytes covers that byte but its mask leaves it out, so no other buffer, not
/// even the next piece, may be within a register's width.
const MARGIN: usize = 64;

/// The watched memory, which only raw pointers touch: pieces with a margin around each.
struct Shared {
    room: Vec<u8>,
    lens: Vec<usize>,
}

impl Shared {
    /// One piece with this content.
    fn new(bytes: &[u8]) -> Self {
        Self::in_pieces(bytes, &[bytes.len()])
    }

    /// The content cut into pieces of the given lengths.
    fn in_pieces(mut bytes: &[u8], lens: &[usize]) -> Self {
        let mut room = vec![0; MARGIN];
        for len in lens {
            let (piece, rest) = bytes.split_at(*len);
            room.extend(piece);
            room.extend([0; MARGIN]);
            bytes = rest;
        }
        assert!(bytes.is_empty(), "the pieces are the whole content");
        let lens = lens.to_vec();
        Self { room, lens }
    }

    /// The address of the content's byte number `i`.
    fn at(&self, mut i: usize) -> *const u8 {
        let mut start = MARGIN;
        for len in &self.lens {
            if i < *len {
                return self.room.as_ptr().wrapping_add(start + i);
            }
            i -= len;
            start += len + MARGIN;
        }
        panic!("byte {i} past the end");
    }

    fn reads(&self) -> Vec<SharedRead<'_>> {
        let mut rest = SharedRead::from(&self.room[..]);
        let pieces = self.lens.iter().map(|len| {
            let (_, after) = rest.split_at(MARGIN).unwrap();
            let (piece, after) = after.split_at(*len).unwrap();
            rest = after;
            piece
        });
        pieces.collect()
    }

    fn writes(&mut self) -> Vec<SharedWrite<'_>> {
        let mut rest = Some(SharedWrite::from(&mut self.room[..]));
        let pieces = self.lens.iter().map(|len| {
            let (_, after) = rest.take().unwrap().split_at(MARGIN).unwrap();
            let (piece, after) = after.split_at(*len).unwrap();
            rest = Some(after);
            piece
        });
        pieces.collect()
    }
}

/// The bytes of a message that are worth a look: all of a short one, ends and a sample of a long
/// one.
fn places(len: usize) -> Vec<usize> {
    (0..len)
        .filter(|i| len <= 300 || *i < 40 || len - i < 40 || i % 67 == 0)
        .collect()
}

const LENS: [usize; 12] = [1, 15, 16, 48, 60, 63, 64, 200, 224, 255, 1440, 4100];

#[test]
fn every_byte_is_accessed_once() {
    let Some(breakpoints) = Breakpoints::new() else {
        return;
    };
    for path in Path::ALL {
        if !path.is_available() {
            eprint_always!("NOT TESTED: this processor cannot run the {path} path");
            continue;
        }
        for key_len in [16, 32] {
            let key = Key::with_path(&vec![1; key_len], path).unwrap();
            for len in LENS {
                let plaintext: Vec<u8> = (0..len).map(|i| i as u8).collect();
                let mut ciphertext = plaintext.clone();
                let tag = key
                    .seal_in_place(Nonce::from([2; 12]), b"aad", &mut ciphertext)
                    .unwrap();
                let pieces = [len / 3, 0, len - len / 3 - len / 7, len / 7];
                let source = Shared::new(&ciphertext);
                let source_pieces = Shared::in_pieces(&ciphertext, &pieces);
                let mut target = Shared::new(&vec![0; len]);
                let mut target_pieces = Shared::in_pieces(&vec![0; len], &pieces);
                let mut out = vec![0; len];
                for at in places(len) {
                    let name = || format!("{path}, key {key_len}, byte {at} of {len}");
                    let count = breakpoints.count(source.at(at), || {
                        let whole = source.reads()[0];
                        key.open(&Nonce::from([2; 12]), b"aad", whole, &tag, &mut out)
                            .unwrap();
                    });
                    assert_eq!(count, 1, "open: {}", name());

                    let count = breakpoints.count(source_pieces.at(at), || {
                        let nonce = Nonce::from([2; 12]);
                        let list = source_pieces.reads();
                        key.open_scattered(&nonce, b"aad", &list, &tag, &mut [&mut out[..]])
                            .unwrap();
                    });
                    assert_eq!(count, 1, "open scattered: {}", name());

                    let count = breakpoints.count(target.at(at), || {
                        let whole = target.writes().pop().unwrap();
                        key.seal(Nonce::from([2; 12]), b"aad", &plaintext, whole)
                            .unwrap();
                    });
                    assert_eq!(count, 1, "seal: {}", name());

                    let count = breakpoints.count(target_pieces.at(at), || {
                        let mut list = target_pieces.writes();
                        key.seal_scattered(Nonce::from([2; 12]), b"aad", &[&plaintext], &mut list)
                            .unwrap();
                    });
                    assert_eq!(count, 1, "seal scattered: {}", name());
                }
            }
        }
    }
}

#[test]
fn every_byte_of_a_batch_is_accessed_once() {
    let Some(breakpoints) = Breakpoints::new() else {
        return;
    };
    for path in Path::available() {
        let keys = [1u8, 2].map(|seed| Key::with_path(&[seed; 16], path).unwrap());
        for (len, mixed) in [
            (49usize, false),
            (60, true),
            (60, false),
            (64, true),
            (100, false),
        ] {
            let key = |i: usize| &keys[if mixed { i % 2 } else { 0 }];
            let plaintext = vec![3; len];
            let mut ciphertexts: Vec<Vec<u8>> = vec![plaintext.clone(); 4];
            let tags: Vec<Tag> = (0..4)
                .map(|i| {
                    key(i)
                        .seal_in_place(Nonce::from([i as u8; 12]), b"aad", &mut ciphertexts[i])
                        .unwrap()
                })
                .collect();
            let sources: Vec<Shared> = ciphertexts.iter().map(|c| Shared::new(c)).collect();
            let mut targets: Vec<Shared> = (0..4).map(|_| Shared::new(&plaintext)).collect();
            let mut outs = vec![vec![0; len]; 4];
            for at in 0..len {
                let count = breakpoints.count(sources[at % 4].at(at), || {
                    let packets = outs.iter_mut().enumerate().map(|(i, out)| {
                        let nonce = Nonce::from([i as u8; 12]);
                        let source = sources[i].reads()[0];
                        OpenPacket::new(key(i), nonce, b"aad", source, tags[i], out).unwrap()
                    });
                    assert_eq!(open_batch(&mut packets.collect::<Vec<_>>()), 4);
                });
                assert_eq!(count, 1, "open: {path}, byte {at} of {len}");

                let byte = targets[at % 4].at(at);
                let count = breakpoints.count(byte, || {
                    let packets = targets.iter_mut().enumerate().map(|(i, target)| {
                        let nonce = Nonce::from([i as u8; 12]);
                        let target = target.writes().pop().unwrap();
                        SealPacket::new(key(i), nonce, b"aad", &plaintext, target).unwrap()
                    });
                    seal_batch(&mut packets.collect::<Vec<_>>());
                });
                assert_eq!(count, 1, "seal: {path}, byte {at} of {len}");
            }
        }
    }
}

#[test]
fn every_byte_of_a_tag_is_accessed_once() {
    let Some(breakpoints) = Breakpoints::new() else {
        return;
    };
    let mut tag = Shared::new(&[9; 16]);
    for at in 0..16 {
        let mut loaded = None;
        let load = || loaded = Some(Tag::load(tag.reads()[0]).unwrap());
        assert_eq!(breakpoints.count(tag.at(at), load), 1);
        let (byte, loaded) = (tag.at(at), loaded.unwrap());
        let store = || loaded.store(tag.writes().pop().unwrap()).unwrap();
        assert_eq!(breakpoints.count(byte, store), 1);
    }
}
