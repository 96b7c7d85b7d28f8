//! The retry limit, in the time of a script and with threads that compete.

use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tare_rdrand::scripted::{
    healthy_value, Carry, ScriptedRdrand, ScriptedRdseed, Values, EXECUTION_TIME,
};
use tare_rdrand::{Error, Generator, Instruction, RetryLimit, Seeder, Source};

/// Executions in a length of the script's time.
fn executions(time: Duration) -> u32 {
    (time.as_nanos() / EXECUTION_TIME.as_nanos()) as u32
}

#[test]
fn the_defaults_are_ten_attempts_for_rdrand_and_attempts_and_time_for_rdseed() {
    assert_eq!(RetryLimit::of(Instruction::Rdrand), RetryLimit::new(10));
    let rdseed = RetryLimit::of(Instruction::Rdseed);
    assert!(rdseed.attempts() >= 1024 && rdseed.time() >= Duration::from_millis(10));
    assert_eq!(
        RetryLimit::new(3).with_time(Duration::MAX).time(),
        Duration::from_micros(u32::MAX.into())
    );
}

#[test]
fn rdseed_is_waited_for_until_attempts_and_time_are_used_up() {
    let limit = RetryLimit::RDSEED;
    for tries in [1, 220, limit.attempts(), executions(limit.time())] {
        let mut generator = Generator::with_source_untested(ScriptedRdseed::after_tries(1, tries));
        assert!(generator.next_u64().is_ok(), "{tries} attempts");
    }
    // The self-test waits as long: 1,024 values of which each takes more than 1,024 attempts.
    assert!(Generator::with_source(ScriptedRdseed::after_tries(1, 1100)).is_ok());
    let mut dry = Generator::with_source_untested(ScriptedRdseed::never());
    let Error::Underflow {
        attempts,
        waited: Some(waited),
        ..
    } = dry.next_u64().unwrap_err()
    else {
        panic!("an underflow with a time")
    };
    assert!(waited >= limit.time());
    assert!(
        attempts >= limit.attempts() + executions(limit.time()),
        "{attempts}"
    );
    assert_eq!(dry.source().executed(), u64::from(attempts));
    assert_eq!(dry.counts().underflows, u64::from(attempts));
}

#[test]
fn the_time_alone_ends_no_wait_before_the_attempts_are_made() {
    let limit = RetryLimit::new(5000).with_time(Duration::from_micros(1));
    let mut dry = Generator::with_source_untested(ScriptedRdseed::never());
    dry.set_retry_limit(limit);
    assert!(dry.next_u64().is_err());
    assert!(dry.source().executed() >= 5000);
}

#[test]
fn a_limit_in_attempts_is_kept_exactly() {
    for attempts in [1, 2, 100, 1023] {
        let mut dry = Generator::with_source_untested(ScriptedRdseed::never());
        dry.set_retry_limit(RetryLimit::new(attempts));
        let error = dry.next_u64().unwrap_err();
        let expected = Error::Underflow {
            instruction: Instruction::Rdseed,
            attempts,
            waited: None,
            written: 0,
        };
        assert_eq!(error, expected);
        assert_eq!(dry.source().executed(), u64::from(attempts));
    }
}

#[test]
fn an_underflow_says_what_to_change() {
    let mut dry = Generator::with_source_untested(ScriptedRdseed::never());
    let text = dry.next_u64().unwrap_err().to_string();
    for part in ["RDSEED", "attempts", " ms", "retry limit", "fewer threads"] {
        assert!(text.contains(part), "{text}");
    }
}

/// A script that is dry for some attempts, and whose thread is taken off its processor for ten
/// seconds before each of them.
struct Interrupted(ScriptedRdseed);

impl Source for Interrupted {
    const INSTRUCTION: Instruction = Instruction::Rdseed;

    fn step_u64(&mut self) -> Option<u64> {
        self.0.step_u64()
    }

    fn step_u32(&mut self) -> Option<u32> {
        self.0.step_u32()
    }

    fn step_u16(&mut self) -> Option<u16> {
        self.0.step_u16()
    }

    fn now(&self) -> Option<Duration> {
        Some(Duration::from_secs(10) * self.0.executed() as u32)
    }
}

#[test]
fn time_in_which_the_thread_does_not_run_does_not_count() {
    let dry = Interrupted(ScriptedRdseed::after_tries(1, 1500));
    let mut generator = Generator::with_source_untested(dry);
    assert!(generator.next_u64().is_ok());
}

/// RDSEED of a whole socket: one value after each pause, for whichever thread asks first.
#[derive(Clone)]
struct Socket {
    next: Arc<Mutex<(Instant, u64)>>,
    pause: Duration,
}

impl Source for Socket {
    const INSTRUCTION: Instruction = Instruction::Rdseed;

    fn step_u64(&mut self) -> Option<u64> {
        let mut next = self.next.lock().unwrap();
        let now = Instant::now();
        (now >= next.0).then(|| {
            *next = (now + self.pause, next.1 + 1);
            healthy_value(1, next.1)
        })
    }

    fn step_u32(&mut self) -> Option<u32> {
        self.step_u64().map(|value| value as u32)
    }

    fn step_u16(&mut self) -> Option<u16> {
        self.step_u64().map(|value| value as u16)
    }
}

#[test]
fn sixty_four_threads_share_what_a_slow_source_gives() {
    // Faster than Zen 5 gives to 64 threads at once, so that the test is short: a value takes 6 ms
    // on average where it takes 0.1 ms alone.
    let socket = Socket {
        next: Arc::new(Mutex::new((Instant::now(), 0))),
        pause: Duration::from_micros(100),
    };
    let start = Arc::new(Barrier::new(64));
    let threads: Vec<_> = (0..64)
        .map(|_| {
            let mut generator = Generator::with_source_untested(socket.clone());
            let start = Arc::clone(&start);
            thread::spawn(move || {
                start.wait();
                generator.fill_u64(&mut [0; 5])
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), Ok(()));
    }
}

#[test]
fn a_seeder_waits_as_long_as_it_is_told_and_then_takes_rdrand() {
    let rdseed = |limit| {
        let mut rdseed = Generator::with_source_untested(ScriptedRdseed::new(
            Values::Healthy(1),
            Carry::AfterTries(3000),
        ));
        rdseed.set_retry_limit(limit);
        let rdrand = Generator::with_source_untested(ScriptedRdrand::healthy(2));
        Seeder::with_generators(Some(rdseed), Some(rdrand))
    };
    let grade = |limit| rdseed(limit).fill_bytes(&mut [0; 16]).unwrap().to_string();
    assert_eq!(grade(RetryLimit::RDSEED), "RDSEED");
    assert!(grade(RetryLimit::new(100)).starts_with("RDRAND"));
}
