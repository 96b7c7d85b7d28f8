//! Two mappings of one memory, hostile files and hostile offsets.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};
use tare_memory::{Error, Means, SharedMemory, LEN_MAX};

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn memory_that_the_other_side_can_shrink_is_refused() {
    for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::SEAL] {
        let refused = SharedMemory::open(memfd(4096, seals)).unwrap_err();
        assert!(matches!(refused, Error::NotSealed), "{refused}");
        assert!(refused.to_string().contains("F_SEAL_SHRINK"));
    }
    let memory = SharedMemory::open(memfd(4096, SealFlags::SHRINK)).unwrap();
    assert_eq!(memory.len(), 4096);
    let file = File::open("/proc/self/exe").unwrap();
    assert!(matches!(
        SharedMemory::open(file.into()),
        Err(Error::NotSealed)
    ));
}

/// The other side could punch a hole and take the last huge page: the next access would end this
/// process (SIGBUS).
#[test]
fn memory_whose_pages_may_run_out_is_refused() {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let Ok(fd) = memfd_create("test", flags) else {
        eprintln!("NOT TESTED: this kernel has no memfds with huge pages");
        return;
    };
    ftruncate(&fd, 2 << 20).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    let refused = SharedMemory::open(fd).unwrap_err();
    assert!(matches!(refused, Error::FileSystem(_)), "{refused}");
    assert!(refused.to_string().contains("0x958458f6"), "{refused}");
}

#[test]
fn our_memory_cannot_be_shrunk_grown_or_unsealed() {
    let memory = SharedMemory::create("test", 4096).unwrap();
    assert!(ftruncate(memory.fd(), 1).is_err());
    assert!(ftruncate(memory.fd(), 8192).is_err());
    assert!(fcntl_add_seals(memory.fd(), SealFlags::WRITE).is_err());
}

#[test]
fn lengths_are_refused_where_they_cannot_be_mapped() {
    assert!(matches!(
        SharedMemory::create("test", 0),
        Err(Error::Length(0))
    ));
    for len in [LEN_MAX + 1, usize::MAX] {
        assert!(matches!(
            SharedMemory::create("test", len),
            Err(Error::Length(_))
        ));
    }
    let empty = SharedMemory::open(memfd(0, SealFlags::SHRINK));
    assert!(matches!(empty, Err(Error::Length(0))));
    let long = SharedMemory::open(memfd(LEN_MAX as u64 + 1, SealFlags::SHRINK));
    assert!(matches!(long, Err(Error::Length(_))));
    assert!(SharedMemory::create("a name with \0", 1).is_err());
}

#[test]
fn what_one_mapping_writes_the_other_reads_also_across_threads() {
    const ROUNDS: u64 = 20_000;
    let ours = SharedMemory::create("test", 4096).unwrap();
    let theirs = ours.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let view = theirs.view();
            let (turn, value) = (
                view.atomic::<u64>(0).unwrap(),
                view.volatile::<u64>(64).unwrap(),
            );
            for n in 0..ROUNDS {
                while turn.load(Ordering::Acquire) != 2 * n + 1 {
                    std::thread::yield_now();
                }
                value.store(value.load() + 1);
                turn.store(2 * n + 2, Ordering::Release);
            }
        });
        let view = ours.view();
        let (turn, value) = (
            view.atomic::<u64>(0).unwrap(),
            view.volatile::<u64>(64).unwrap(),
        );
        for n in 0..ROUNDS {
            value.store(3 * n);
            turn.store(2 * n + 1, Ordering::Release);
            while turn.load(Ordering::Acquire) != 2 * n + 2 {
                std::thread::yield_now();
            }
            assert_eq!(value.load(), 3 * n + 1);
        }
    });
}

#[test]
fn a_second_guard_is_refused_and_the_first_still_opens_the_memory() {
    let mut memory = SharedMemory::create("test", 4096).unwrap();
    memory.guard(Means::Pages).unwrap();
    for means in [Means::Pages, Means::Key] {
        assert!(matches!(memory.guard(means), Err(Error::Guarded)));
    }
    let _open = memory.open_window();
    let value = memory.view().volatile::<u64>(0).unwrap();
    value.store(7);
    assert_eq!(value.load(), 7);
}

#[test]
fn atomic_additions_of_two_threads_are_all_kept() {
    let memory = SharedMemory::create("test", 64).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let own = memory.try_clone().unwrap();
            scope.spawn(move || {
                let counter = own.view().atomic::<u32>(4).unwrap();
                for _ in 0..100_000 {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let counter = memory.view().atomic::<u32>(4).unwrap();
    assert_eq!(counter.load(Ordering::Relaxed), 200_000);
    assert_eq!(counter.swap(7, Ordering::Relaxed), 200_000);
    let (ok, no) = (Ordering::AcqRel, Ordering::Acquire);
    assert_eq!(counter.compare_exchange(8, 9, ok, no), Err(7));
    assert_eq!(counter.compare_exchange(7, 9, ok, no), Ok(7));
    assert_eq!(memory.view().volatile::<u32>(4).unwrap().load(), 9);
    assert_eq!(memory.view().volatile::<u32>(0).unwrap().load(), 0);
}

proptest! {
    #[test]
    fn offsets_and_lengths_are_checked_as_they_should_be(
        len in 1usize..200,
        offset in prop_oneof![0usize..220, usize::MAX - 20..=usize::MAX],
        count in prop_oneof![0usize..220, usize::MAX / 8 - 2..usize::MAX / 8 + 3, usize::MAX - 20..=usize::MAX],
    ) {
        let memory = SharedMemory::create("test", len).unwrap();
        let view = memory.view();
        let fits = |size: usize, count: usize| {
            let end = offset as u128 + size as u128 * count as u128;
            end <= len as u128 && offset % size == 0
        };
        prop_assert_eq!(view.range(offset, count).map(|v| v.len()), fits(1, count).then_some(count));
        prop_assert_eq!(view.slice::<u8>(offset, count).is_some(), fits(1, count));
        prop_assert_eq!(view.slice::<u16>(offset, count).is_some(), fits(2, count));
        prop_assert_eq!(view.slice::<u64>(offset, count).is_some(), fits(8, count));
        prop_assert_eq!(view.volatile::<u32>(offset).is_some(), fits(4, 1));
        prop_assert_eq!(view.atomic::<u64>(offset).is_some(), fits(8, 1));
        if let Some(slice) = view.slice::<u16>(offset, count) {
            prop_assert!(slice.get(slice.len()).is_none() && slice.get(usize::MAX).is_none());
        }
    }

    #[test]
    fn a_sum_has_every_word_of_whole_blocks_and_no_other_byte(
        start in 0usize..70, len in 0usize..2000, seed: u8, full: bool,
    ) {
        let memory = SharedMemory::create("test", 4096).unwrap();
        let bytes: Vec<u8> = (0..4096u32)
            .map(|n| if full { 0xff } else { ((n * 7) >> 2) as u8 ^ seed })
            .collect();
        memory.view().copy_from(&bytes).unwrap();
        let (sum, done) = memory.view().range(start, len).unwrap().sum_words();
        prop_assert_eq!(done % 64, 0);
        prop_assert!(done <= len && (done == 0 || len - done < 64));
        prop_assert!(done > 0 || len < 64 || cfg!(not(target_arch = "x86_64")));
        let words = bytes[start..start + done].chunks_exact(4);
        let word = |word: &[u8]| u64::from(u32::from_ne_bytes(word.try_into().unwrap()));
        prop_assert_eq!(sum, words.map(word).sum::<u64>());
    }

    #[test]
    fn copies_move_every_byte_and_no_other(
        bytes in proptest::collection::vec(any::<u8>(), 0..300), offset in 0usize..130, way in 0..2,
    ) {
        const LEN: usize = 512;
        let memory = SharedMemory::create("test", LEN).unwrap();
        let view = memory.view();
        let whole = view.slice::<u8>(0, LEN).unwrap();
        (0..LEN).for_each(|n| whole.store(n, 0xee).unwrap());
        let range = view.range(offset, bytes.len()).unwrap();
        let copy_from = |from: &[u8]| match way {
            0 => range.copy_from(from),
            _ => range.stream_from_and_prefetch(from, &[]),
        };
        prop_assert!(copy_from(&bytes).is_some());
        let mut back = vec![0; bytes.len()];
        prop_assert!(range.copy_to(&mut back).is_some());
        prop_assert_eq!(&back, &bytes);
        for n in 0..LEN {
            let expected = n.checked_sub(offset).and_then(|n| bytes.get(n)).unwrap_or(&0xee);
            prop_assert_eq!(whole.load(n).unwrap(), *expected, "byte {}", n);
        }
        let mut longer = vec![0; bytes.len() + 1];
        prop_assert!(range.copy_to(&mut longer).is_none());
        prop_assert!(copy_from(&longer).is_none());
    }
}

/// A thread copies and then stores a number; the other one must see all of the copy, each time.
#[test]
fn what_is_streamed_is_there_when_what_is_stored_after_it_is() {
    const LEN: usize = 192;
    const END: u64 = u64::MAX;
    const TIME: Duration = Duration::from_millis(300);
    let memory = SharedMemory::create("test", 4096).unwrap();
    let other = memory.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        let view = other.view();
        let [number, answer] = [0, 512].map(|at| view.atomic::<u64>(at).unwrap());
        let to = view.range(1024, LEN).unwrap();
        for n in 1u64.. {
            let mut seen = answer.load(Ordering::Acquire);
            while seen != n - 1 {
                if seen == END {
                    return;
                }
                std::thread::yield_now();
                seen = answer.load(Ordering::Acquire);
            }
            to.stream_from_and_prefetch(&[n as u8; LEN], &[]).unwrap();
            number.store(n, Ordering::Release);
        }
    });
    let view = memory.view();
    let [number, answer] = [0, 512].map(|at| view.atomic::<u64>(at).unwrap());
    let from = view.slice::<u8>(1024, LEN).unwrap();
    let start = Instant::now();
    for n in 1u64.. {
        while number.load(Ordering::Acquire) != n {
            std::thread::yield_now();
        }
        // The last bytes first, which are the least likely to be there.
        for at in (0..LEN).rev() {
            assert_eq!(from.load(at), Some(n as u8), "byte {at} of copy {n}");
        }
        if start.elapsed() > TIME {
            answer.store(END, Ordering::Release);
            break;
        }
        answer.store(n, Ordering::Release);
    }
    writer.join().unwrap();
}

#[test]
fn the_descriptor_is_not_inherited() {
    let memory = SharedMemory::create("test", 1).unwrap();
    let flags = rustix::io::fcntl_getfd(memory.fd().as_fd()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}
