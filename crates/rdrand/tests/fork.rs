//! Parent and child never share keystream.
#![cfg(unix)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use tare_rdrand::{AesCtr, Error};

/// Keystream of the parent and of the child that is forked before either draws it.
fn keystreams(cipher: &AesCtr) -> ([u8; 64], [u8; 64]) {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    // SAFETY: the child only encrypts, writes to a socket and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    let mut stream = [0; 64];
    if child == 0 {
        let good =
            cipher.encrypt(&mut stream, &[0; 64]).is_ok() && theirs.write_all(&stream).is_ok();
        // SAFETY: ends the child at once, without the test harness' own endings.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    cipher.encrypt(&mut stream, &[0; 64]).unwrap();
    let mut other = [0; 64];
    ours.read_exact(&mut other).unwrap();
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    (stream, other)
}

#[test]
fn a_child_continues_with_other_keystream() {
    let keyed = AesCtr::with_keys(&[(&[1; 32], &[2; 16])]);
    for made in [AesCtr::with_random_key(), keyed] {
        let cipher = match made {
            Err(error @ Error::Unsupported { .. }) => {
                let _ = std::io::stderr()
                    .write_all(format!("\nNOT TESTED: fork: {error}\n").as_bytes());
                return;
            }
            other => other.unwrap(),
        };
        for _ in 0..3 {
            let (parent, child) = keystreams(&cipher);
            for part in parent.chunks(16) {
                assert!(child.chunks(16).all(|other| other != part));
            }
        }
    }
}

#[test]
fn a_child_of_a_busy_parent_does_not_wait_for_a_thread_that_it_does_not_have() {
    let Ok(cipher) = AesCtr::with_keys(&[(&[1; 32], &[2; 16])]) else {
        return;
    };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(relaxed) {
                    let _ = cipher.encrypt(&mut [0; 16], &[0; 16]);
                }
            });
        }
        if tare_rdrand::processor::has_rdrand() {
            for _ in 0..50 {
                keystreams(&cipher);
            }
        }
        stop.store(true, relaxed);
    });
}
