//! The cipher on memory that two sides have mapped: what one seals the other opens, and a side that
//! writes meanwhile gets nothing opened that was not sealed.

use std::sync::atomic::{AtomicBool, Ordering};

use tare_gcm::{Error, Key, Nonce, Path, SharedRead, SharedWrite};
use tare_memory::SharedMemory;

const LEN: usize = 1000;
const AT: usize = 100;

/// Two mappings of the same memory.
fn both_sides() -> [SharedMemory; 2] {
    let ours = SharedMemory::create("tare-gcm test", 4096).unwrap();
    let theirs = ours.try_clone().unwrap();
    [ours, theirs]
}

fn plaintext() -> Vec<u8> {
    (0..LEN).map(|n| (n * 7) as u8).collect()
}

#[test]
fn what_one_side_seals_the_other_opens_on_every_path() {
    let [ours, theirs] = both_sides();
    for path in Path::available() {
        let key = Key::with_path(&[3; 16], path).unwrap();
        let nonce = || Nonce::from([5; 12]);
        let to = SharedWrite::from(ours.view().range(AT, LEN).unwrap());
        let tag = key.seal(nonce(), b"aad", &plaintext(), to).unwrap();
        let mut private = vec![0; LEN];
        let from = SharedRead::from(theirs.view().range(AT, LEN).unwrap());
        key.open(&nonce(), b"aad", from, &tag, &mut private)
            .unwrap();
        assert_eq!(private, plaintext(), "{path}");
        // Nothing beside the range was touched.
        let edges = [AT - 1, AT + LEN].map(|at| theirs.view().volatile::<u8>(at).unwrap().load());
        assert_eq!(edges, [0, 0], "{path}");
    }
}

#[test]
fn a_hostile_side_gets_nothing_opened_that_was_not_sealed() {
    let [ours, theirs] = both_sides();
    let key = Key::new(&[3; 32]).unwrap();
    let nonce = || Nonce::from([5; 12]);
    let to = SharedWrite::from(ours.view().range(AT, LEN).unwrap());
    let tag = key.seal(nonce(), &[], &plaintext(), to).unwrap();
    let done = AtomicBool::new(false);
    let (mut opened, mut refused) = (0u64, 0u64);
    std::thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            // The hostile side flips a byte back and forth through a mapping of its own.
            let byte = theirs.view().volatile::<u8>(AT + LEN / 2).unwrap();
            let right = byte.load();
            while !done.load(Ordering::Relaxed) {
                byte.store(!right);
                byte.store(right);
            }
        });
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let mut private = vec![0; LEN];
        while (opened < 100 || refused < 100) && std::time::Instant::now() < end {
            let from = SharedRead::from(ours.view().range(AT, LEN).unwrap());
            match key.open(&nonce(), &[], from, &tag, &mut private) {
                Ok(()) => {
                    opened += 1;
                    assert_eq!(private, plaintext());
                }
                Err(Error::Forged) => {
                    refused += 1;
                    assert_eq!(private, vec![0; LEN]);
                }
                Err(error) => panic!("{error}"),
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(opened + refused > 0);
}
