//! A short packet that ends with the last page of a mapping: a register that begins there goes past
//! it, into memory that is not mapped.

use crate::measure::{interleave, Cell, Random};
use crate::report::{Report, Target};
use crate::Settings;
use tare_gcm::{Key, Nonce, SharedRead, SharedWrite};

const PAGE: usize = 4096;

/// Two pages, with one behind them that is not accessible.
fn mapped() -> &'static mut [u8] {
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping, never unmapped; its last page is given up and not accessed.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), 3 * PAGE, access, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        assert_eq!(
            libc::mprotect(start.add(2 * PAGE), PAGE, libc::PROT_NONE),
            0
        );
        std::slice::from_raw_parts_mut(start.cast(), 2 * PAGE)
    }
}

pub fn run(settings: &Settings, report: &mut Report, random: &mut Random) {
    let key = &Key::new(&settings.key).expect("16 or 32 bytes");
    for len in [20, 60, 300] {
        for (op, seal) in [("seal", true), ("open", false)] {
            let cell = |name: &str, at_end: bool| {
                let end = if at_end { 2 * PAGE } else { PAGE + 640 };
                let memory = &mut mapped()[end - len..end];
                let mut private = vec![3; len];
                let nonce = || Nonce::from([1; 12]);
                let to = SharedWrite::from(&mut *memory);
                let tag = key.seal(nonce(), &[7; 12], &private, to);
                let tag = tag.expect("a short message");
                Cell {
                    name: name.to_owned(),
                    run: Box::new(move |n| {
                        for _ in 0..n {
                            let done = if seal {
                                let to = SharedWrite::from(&mut *memory);
                                key.seal(nonce(), &[7; 12], &private, to).map(drop)
                            } else {
                                let from = SharedRead::from(&*memory);
                                key.open(&nonce(), &[7; 12], from, &tag, &mut private)
                            };
                            done.expect("a short message and its tag");
                        }
                    }),
                }
            };
            let cells = vec![cell("end of a mapping", true), cell("elsewhere", false)];
            let samples = interleave(cells, settings.rounds, 300, random);
            let targets = [Target {
                fast: "end of a mapping",
                slow: "elsewhere",
                at_least: Some(0.5),
            }];
            let what = format!("{op} {len} B of shared memory");
            report.section(&what, len as f64, &samples, &targets, random);
        }
    }
}
