//! Measurements of guests that do not have their processor all the time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tare_cvmnet::breakdown::{Category, Probe, Unmeasured};
use tare_cvmnet::busy::thread_time;
use tare_lab::parameters::ParameterSet as _;
use tare_lab::value::Parameters;

use super::{run, run_with, Setup, Work};
use crate::systems::cvm::driver::CvmnetParameters;

/// A probe that takes the guest off its processor wherever it opens or seals a record.
#[derive(Clone)]
struct Away;

impl Probe for Away {
    type Span = Unmeasured;

    fn enter(&self, category: Category) -> Unmeasured {
        if category == Category::Crypto {
            std::thread::sleep(Duration::from_millis(2));
        }
        Unmeasured
    }
}

fn setup(work: Work) -> Setup {
    Setup {
        work,
        size: 1 << 10,
        connections: 1,
        duration: Duration::from_millis(300),
        ..CvmnetParameters::read(&Parameters::new())
            .unwrap()
            .setup(false)
    }
}

#[test]
fn time_off_its_processor_is_not_the_guests_whether_it_polls_or_is_interrupted() {
    for has_interrupts in [false, true] {
        let setup = Setup {
            has_interrupts,
            ..setup(Work::Redis)
        };
        let outcome = run_with(&setup, || Ok(()), || Away).unwrap();
        // By the clock, nearly all of it is in turns with work.
        let (busy, clock) = (outcome.busy, outcome.clock);
        assert!(0.0 < busy && busy < clock / 2.0, "{busy} s of {clock} s");
    }
}

#[test]
fn the_time_of_the_cipher_alone_is_without_that_of_another_thread_on_its_processor() {
    let (stop, spent) = (AtomicBool::new(false), AtomicU64::new(0));
    let (tell, told) = mpsc::channel();
    let measured = std::thread::scope(|scope| {
        let (stop, spent) = (&stop, &spent);
        scope.spawn(move || {
            let is_bound = tare_daemon::bind_to_cpu(Some(1)).is_ok();
            let _ = tell.send(is_bound);
            while is_bound && !stop.load(Relaxed) {
                spent.store(thread_time().as_nanos() as u64, Relaxed);
            }
        });
        // Without a second processor the threads of the measurement are not bound either.
        told.recv().unwrap().then(|| {
            let (began, before) = (Instant::now(), spent.load(Relaxed));
            let outcome = run(&setup(Work::Open), || Ok(()));
            let others = Duration::from_nanos(spent.load(Relaxed) - before);
            stop.store(true, Relaxed);
            (outcome, others, began.elapsed())
        })
    });
    let Some((outcome, others, clock)) = measured else {
        eprintln!("NOT TESTED: the cipher beside another thread: this machine has one processor");
        return;
    };
    // One processor gives two threads no more than the time that passes.
    let busy = Duration::from_secs_f64(outcome.unwrap().busy);
    let both = busy + others;
    assert!(
        both <= clock + Duration::from_millis(1),
        "{busy:?} and {others:?} of {clock:?}"
    );
}
