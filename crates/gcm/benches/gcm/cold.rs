//! A 16 KiB record from shared memory that the cache does not hold, as after a device has written
//! it.

use crate::measure::{Random, Samples};
use crate::references::{AwsLc, Contender, Message, Op, Ours};
use crate::report::{Report, Target};
use crate::Settings;
use std::time::Instant;
use tare_gcm::{Key, Path};

const LEN: usize = 16384;

/// Drops the bytes from all caches.
fn evict(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        // SAFETY: the address is that of a live byte; flushing changes no content.
        unsafe { std::arch::x86_64::_mm_clflush(line.as_ptr()) };
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: waits for the flushes.
    unsafe {
        std::arch::x86_64::_mm_mfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

pub fn run(settings: &Settings, report: &mut Report, random: &mut Random) {
    let mut ours = Ours(Key::new(&settings.key).expect("16 or 32 bytes"));
    let aws = AwsLc::new(&settings.key);
    let mut ours_message = Message::new(&settings.key, Op::Open, LEN, 3, 0);
    let mut aws_message = Message::new(&settings.key, Op::Open, LEN, 3, 0);
    let mut private = vec![0u8; LEN + 16];
    let best = Path::best().name();
    for cold in [true, false] {
        let mut samples = Samples {
            names: vec![best.to_owned(), "copy, then aws-lc-rs".to_owned()],
            ns: vec![Vec::new(); 2],
        };
        for round in 0..settings.rounds {
            for turn in 0..2 {
                let mut total = 0;
                let which = (turn + round) % 2;
                for _ in 0..40 {
                    let input = if which == 0 {
                        &ours_message.input
                    } else {
                        &aws_message.input
                    };
                    if cold {
                        evict(input);
                    }
                    let start = Instant::now();
                    if which == 0 {
                        ours.run(Op::Open, &mut ours_message);
                    } else {
                        private[..LEN].copy_from_slice(input);
                        private[LEN..].copy_from_slice(&aws_message.tag);
                        aws.open_in_place(&mut aws_message, &mut private);
                    }
                    total += start.elapsed().as_nanos();
                }
                samples.ns[which].push(total as f64 / 40.0);
            }
        }
        let what = format!(
            "open {LEN} B shared → private, source {}",
            if cold { "out of cache" } else { "in cache" }
        );
        let at_least = cold.then_some(1.3);
        let targets = [Target {
            fast: best,
            slow: "copy, then aws-lc-rs",
            at_least,
        }];
        report.section(&what, LEN as f64, &samples, &targets, random);
    }
}
