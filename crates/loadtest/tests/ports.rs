//! Testers on real clocks, over ports in memory.

mod network;

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use network::{one_way, quick, udp4};
use tare_loadtest::{Error, Length, Link, Load, OpenPorts, Options, Ports, Rate, Tester};
use tare_port::{Burst, Counters, Frame, Layout, Pool, Port};

/// A port that receives what it sends after a delay, but for the first frames of some bursts.
#[derive(Default)]
struct Echo {
    delay: Duration,
    /// Bursts whose first frame is dropped.
    faults: usize,
    held: VecDeque<(Instant, Frame)>,
    counters: Counters,
}

impl Port for Echo {
    fn receive(&mut self, burst: &mut Burst, max: usize) -> io::Result<usize> {
        let now = Instant::now();
        let due = self.held.iter().take_while(|(at, _)| *at <= now).count();
        let n = due.min(max);
        burst.extend(self.held.drain(..n).map(|(_, frame)| frame));
        Ok(n)
    }

    fn send(&mut self, burst: &mut Burst) -> io::Result<usize> {
        let (n, at) = (burst.len(), Instant::now() + self.delay);
        if self.faults > 0 {
            self.faults -= 1;
            self.counters.tx_dropped += 1;
            burst.drain(..1);
        }
        self.held.extend(burst.drain(..).map(|frame| (at, frame)));
        Ok(n)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

/// A port that sends nothing: it has no room for frames, or drops them.
struct Stuck {
    drops: bool,
    counters: Counters,
}

impl Port for Stuck {
    fn receive(&mut self, _: &mut Burst, _: usize) -> io::Result<usize> {
        Ok(0)
    }

    fn send(&mut self, burst: &mut Burst) -> io::Result<usize> {
        let n = if self.drops { burst.len() } else { 0 };
        self.counters.tx_packets += n as u64;
        self.counters.tx_dropped += n as u64;
        burst.drain(..n);
        Ok(n)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

fn stuck(drops: bool) -> Stuck {
    Stuck {
        drops,
        counters: Counters::default(),
    }
}

/// The ports of a thread, with frames of so many bytes.
fn dropping(capacity: usize) -> OpenPorts {
    Box::new(move || {
        let pool = Pool::new(1024, capacity, Layout::Spread).map_err(Error::Memory)?;
        let port: Box<dyn Port> = Box::new(stuck(true));
        Ok((pool, vec![port]))
    })
}

fn burst(frames: u64) -> Load {
    Load {
        rate: Rate::from_bits(1_000_000_000),
        length: Length::Frames(frames),
    }
}

/// A busy machine holds the generator up, which is no matter here: half of the load is enough.
fn tolerant() -> Options {
    Options {
        tolerance: 0.5,
        invalid_retries: 0,
        drain_max: Duration::from_millis(50),
        ..quick()
    }
}

#[test]
fn what_the_ports_of_sending_threads_drop_is_no_loss_of_the_device() {
    // The tester's own port takes nothing, so that all but a burst is the thread's.
    let streams = one_way(&[udp4(60, 1)]);
    let mut tester = Tester::new(Ports::new(vec![stuck(false)]), streams, tolerant()).unwrap();
    tester.add_sender(dropping(2048)).unwrap();
    for _ in 0..2 {
        match tester.trial(&burst(10_000)) {
            Err(Error::NotOffered { reason, .. }) => {
                let expected = "NIC: the sending interface dropped ";
                assert!(reason.starts_with(expected), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_sending_thread_whose_frames_are_too_short_gets_longer_ones() {
    let streams = one_way(&[udp4(60, 1)]);
    let mut tester = Tester::new(Ports::new(vec![stuck(false)]), streams, tolerant()).unwrap();
    tester.add_sender(dropping(512)).unwrap();
    let resized = tester.streams()[0].resize(9014).unwrap();
    tester.replace_streams(vec![resized]).unwrap();
    let result = tester.trial(&burst(1_000));
    assert!(
        matches!(result, Err(Error::NotOffered { .. })),
        "{result:?}"
    );
}

#[test]
fn what_comes_later_than_the_patience_is_not_lost() {
    let echo = Echo {
        delay: Duration::from_millis(400),
        ..Echo::default()
    };
    let streams = one_way(&[udp4(60, 1)]);
    let options = Options {
        tolerance: f64::INFINITY,
        // However long the machine takes.
        drain_max: Duration::from_secs(60),
        ..quick()
    };
    assert!(options.patience < echo.delay);
    let mut tester = Tester::new(Ports::new(vec![echo]), streams, options).unwrap();
    let trial = tester.trial(&burst(10)).unwrap();
    assert_eq!((trial.sent(), trial.lost()), (10, 0));
}

#[test]
fn a_trial_that_lost_no_more_than_its_own_interface_dropped_is_repeated() {
    let trial = |faults| {
        let echo = Echo {
            faults,
            ..Echo::default()
        };
        let options = Options {
            tolerance: f64::INFINITY,
            invalid_retries: 2,
            patience: Duration::from_millis(50),
            ..quick()
        };
        let streams = one_way(&[udp4(60, 1)]);
        let mut tester = Tester::new(Ports::new(vec![echo]), streams, options).unwrap();
        tester.trial(&burst(10)).unwrap()
    };
    let once = trial(1);
    assert_eq!((once.lost(), once.ports[0].egress_drop), (0, 0));
    let expected = "NIC: 1 packets lost, 1 dropped by the sending interface";
    assert_eq!(once.invalid, [expected]);
    // An interface that always drops some has its limit there.
    let always = trial(1000);
    assert_eq!(always.invalid.len(), 2);
    assert!(always.lost() > 0 && always.lost() == always.ports[0].egress_drop);
}

/// A port whose interface has gone.
struct Gone;

impl Port for Gone {
    fn receive(&mut self, _: &mut Burst, _: usize) -> io::Result<usize> {
        Err(io::Error::new(
            io::ErrorKind::NotConnected,
            "the interface is gone",
        ))
    }

    fn send(&mut self, _: &mut Burst) -> io::Result<usize> {
        Ok(0)
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

#[test]
fn an_interface_that_goes_is_named_and_so_is_the_number_of_threads() {
    let link = Link {
        name: "eth1".into(),
        mtu: 1500,
    };
    let options = Options {
        links: vec![link],
        ..quick()
    };
    let streams = one_way(&[udp4(60, 1)]);
    let mut tester = Tester::new(Ports::new(vec![Gone]), streams, options).unwrap();
    let error = tester.trial(&burst(10)).unwrap_err();
    assert_eq!(error.to_string(), "eth1: the interface is gone");
    let error = Error::ThreadCount {
        streams: 10,
        threads: 26,
    };
    assert_eq!(
        error.to_string(),
        "found 10 streams on 26 threads, expected at most 256 of both multiplied: use at most 25 threads, or fewer streams"
    );
}
