//! Records that are opened by the cipher alone, out of memory that another thread has written.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::time::Duration;

use anyhow::Context as _;
use tare_cvmnet::busy::thread_time;
use tare_cvmnet::tls::Suites;
use tare_cvmnet::variant::Cipher;
use tare_gcm::{Key, Nonce};
use tare_memory::SharedMemory;
use tare_sim::Instant;

use super::{text, OfVcpu, Outcome, Setup};

/// Records that are written before they are opened: as many as the guest has large frames.
const RECORDS: usize = 256;
/// The bytes of a full record and of its content type.
const RECORD: usize = 16_385;
/// The distance of two records in memory, in bytes.
const STRIDE: usize = 16_448;
/// Additional data: a record's header.
const HEADER: [u8; 5] = [23, 3, 3, 0x40, 0x11];

/// Opens records for the time of a measurement. One thread writes them, as the host of `receive`
/// does, the other one opens them into private memory. Each has a half of the records at a time, so
/// that the other processor works as well, as in `receive`: two that share a core's units or caches
/// slow each other down, whatever is between them.
///
/// # Errors
/// The memory cannot be had, or a record is not opened.
pub(super) fn run(
    setup: &Setup,
    start: impl FnOnce() -> std::io::Result<()>,
) -> anyhow::Result<Outcome> {
    let key = Key::new(match setup.suites {
        Suites::Aes256 => &[7; 32],
        _ => &[7; 16][..],
    })
    .map_err(text)?;
    let plaintext: Vec<u8> = (0..RECORD).map(|n| (n ^ n >> 7) as u8).collect();
    let mut sealed = plaintext.clone();
    let tag = key.seal_in_place(nonce(), &HEADER, &mut sealed);
    let tag = tag.map_err(text)?;
    let memory = SharedMemory::create("records", RECORDS * STRIDE)?;
    let mapped = memory.try_clone()?;

    let halves = [AtomicBool::new(false), AtomicBool::new(false)];
    let stop = AtomicBool::new(false);
    let records = |half: usize| half * RECORDS / 2..(half + 1) * RECORDS / 2;
    // A mapping belongs to one thread.
    let open = |mapped: SharedMemory| -> anyhow::Result<Opened> {
        let _ = tare_daemon::bind_to_cpu(Some(1));
        let mut opened = Opened::default();
        let mut out = vec![0; RECORD];
        for half in [0, 1].into_iter().cycle() {
            if !wait(&halves[half], true, &stop) {
                break;
            }
            // Waiting is not in it: the clock is read twice for a half, which is long.
            let before = thread_time();
            for n in records(half) {
                let from = mapped.view().range(n * STRIDE, RECORD).context("a place")?;
                let from = [from.into()];
                match setup.variant.config(1).cipher {
                    Cipher::SingleRead => {
                        key.open_scattered(&nonce(), &HEADER, &from, &tag, &mut [&mut out])
                    }
                    Cipher::Ordinary => {
                        key.open_reading_twice(&nonce(), &HEADER, &from, &tag, &mut out, || ())
                    }
                }
                .map_err(text)?;
                opened.records += 1;
                if opened.records % setup.verify == 0 {
                    opened.verified += RECORD as u64;
                    opened.wrong += u64::from(out != plaintext);
                }
                black_box(&mut out);
            }
            opened.time += thread_time().saturating_sub(before);
            halves[half].store(false, Release);
        }
        Ok(opened)
    };
    let write = |is_done: &mut dyn FnMut() -> bool| -> anyhow::Result<()> {
        let _ = tare_daemon::bind_to_cpu(Some(0));
        let mut half = 0;
        while !is_done() && wait(&halves[half], false, &stop) {
            for n in records(half) {
                let to = memory.view().range(n * STRIDE, RECORD).context("a place")?;
                to.copy_from(&sealed).context("equal lengths")?;
            }
            halves[half].store(true, Release);
            half = 1 - half;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let (open, stop) = (&open, &stop);
        let opening = scope.spawn(move || {
            let opened = open(mapped);
            stop.store(true, Release);
            opened
        });
        // Two rounds warm the caches.
        let mut halves = 0;
        let written = write(&mut || {
            halves += 1;
            halves > 4
        });
        let began = Instant::now();
        let written = written
            .and_then(|()| start().map_err(Into::into))
            .and_then(|()| {
                let end = began + setup.duration;
                write(&mut || Instant::now() >= end)
            });
        let clock = Instant::now().since(began);
        stop.store(true, Release);
        let opened = opening.join();
        written?;
        let opened = opened.map_err(|_| anyhow::anyhow!("the guest ended with a panic"))??;
        Ok(opened.outcome(setup, clock))
    })
}

/// Waits until a half is full, or empty. Returns false if all is to end.
fn wait(half: &AtomicBool, is_full: bool, stop: &AtomicBool) -> bool {
    while half.load(Acquire) != is_full {
        if stop.load(Acquire) {
            return false;
        }
        spin_loop();
    }
    !stop.load(Acquire)
}

/// The counts of the thread that opens.
#[derive(Default)]
struct Opened {
    records: u64,
    verified: u64,
    wrong: u64,
    /// Processor time.
    time: Duration,
}

impl Opened {
    fn outcome(&self, setup: &Setup, clock: Duration) -> Outcome {
        // As for `receive`, data is without the content type.
        let data = self.records * (RECORD as u64 - 1);
        Outcome {
            clock: clock.as_secs_f64(),
            busy: self.time.as_secs_f64(),
            vcpus: setup.vcpus,
            data,
            operations: self.records,
            bytes: data,
            requests: 0,
            verified: self.verified,
            wrong: self.wrong,
            frames: 0,
            frame_bytes: 0,
            packets: 0,
            given: 0,
            bounced: 0,
            faults: 0,
            sealed_ahead: 0,
            by_vcpu: Vec::<OfVcpu>::new(),
        }
    }
}

fn nonce() -> Nonce {
    Nonce::from([1; 12])
}
