//! Searches find what simulated networks are known to do.

mod network;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use network::{both_ways, looped, one_way, quick, udp4, udp6};
use proptest::prelude::*;
use tare_loadtest::mlr::{Goal, Search};
use tare_loadtest::rfc2544::{self, Progress, SizeReport};
use tare_loadtest::simulate::{self, Overhead, Simulation};
use tare_loadtest::{
    pair, report, Bisection, Consistency, Error, Limit, Link, Load, Options, Rate, Stream,
    StreamConfig, Testbed, Tester,
};
use tare_port::Frame;
use tare_sim::{LineConfig, Queue};

const GIGA: u64 = 1_000_000_000;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn gateways(streams: Vec<Stream>, simulation: &Simulation) -> Tester<Box<dyn Testbed>> {
    let testbed = simulate::gateways(simulation, &streams).unwrap();
    Tester::new(testbed, streams, quick()).unwrap()
}

fn find_limit<B: Testbed>(tester: &mut Tester<B>, precision: u64, duration: Duration) -> Limit {
    let mut search = Bisection::new(Rate::from_bits(GIGA), Rate::from_bits(precision), 0);
    while let Some(rate) = search.next_rate() {
        let trial = tester.trial(&Load::new(rate, duration)).unwrap();
        for stream in &trial.streams {
            assert_eq!(stream.tx_packets, stream.rx_packets + stream.lost);
        }
        search.record(trial.is_lossless());
    }
    search.limit()
}

/// The seed's topology: two gateways, lines of 1 Gb/s, traffic in both directions, frames of 60
/// bytes.
#[test]
fn the_seeds_setup_gives_the_seeds_answer() {
    let streams = both_ways(&[udp4(60, 1)]);
    let mut tester = gateways(streams, &Simulation::new(GIGA));
    // The seed's arguments: trials of a second, steps of 0.001 Gb/s; and its queues.
    let limit = find_limit(&mut tester, 1_000_000, Duration::from_secs(1));
    assert_eq!(report::figure(limit.passed), "0.609");
    assert_eq!(limit.failed, Some(Rate::from_bits(610_000_000)));
}

/// (s + 24) / (outer + 24), or the whole line where nothing is added.
#[test]
fn ten_sizes_give_their_computed_ratios() {
    let simulation = Simulation {
        line: LineConfig {
            queue: Queue::Frames(16),
            ..LineConfig::new(GIGA)
        },
        between: LineConfig {
            queue: Queue::Frames(16),
            ..LineConfig::new(GIGA)
        },
        overhead: Overhead::Esp,
    };
    for size in [60, 64, 100, 128, 256, 512, 590, 1024, 1280, 1514] {
        let mut tester = gateways(one_way(&[udp4(size, 1)]), &simulation);
        // 40,000 packets: a queue of 16 lets 0.04 % more through.
        let duration = Duration::from_nanos(40_000 * (size as u64 + 24) * 8);
        let limit = find_limit(&mut tester, 50_000, duration);
        let padded = (size - 14 + 2).next_multiple_of(4);
        let outer = 14 + 20 + 8 + 8 + padded + 16;
        let ratio = (size + 24) as f64 / (outer + 24) as f64;
        let off = limit.passed.gbps() / ratio - 1.0;
        assert!(
            off.abs() < if size == 60 { 0.001 } else { 0.002 },
            "{size}: {limit:?}, {off}"
        );
    }
}

#[test]
fn mixed_sizes_give_their_computed_ratio() {
    let sizes = [60, 60, 60, 60, 60, 60, 60, 590, 590, 590, 590, 1514];
    let frames: Vec<_> = sizes.iter().map(|&size| udp4(size, 1)).collect();
    let mut tester = gateways(one_way(&frames), &Simulation::new(GIGA));
    let limit = find_limit(&mut tester, 1_000_000, Duration::from_secs(4));
    let bytes = |overhead: fn(usize) -> usize| {
        sizes.iter().map(|&s| s + 24 + overhead(s)).sum::<usize>() as f64
    };
    let ratio = bytes(|_| 0) / bytes(|size| Overhead::Esp.of(size));
    assert!(
        (limit.passed.gbps() / ratio - 1.0).abs() < 0.002,
        "{limit:?} for {ratio}"
    );
}

/// A device that loses this share of the packets at a rate, spread evenly.
fn search(goals: Vec<Goal>, loss: impl Fn(f64) -> f64) -> Search {
    let mut search = Search::new(
        goals,
        Rate::from_bits(10_000_000),
        Rate::from_bits(GIGA),
        500,
    );
    while let Some(trial) = search.next_trial() {
        search.record(loss(trial.load.gbps()));
    }
    search
}

fn ndr_and_pdr(width: f64) -> Vec<Goal> {
    let goal = |name, loss| Goal::new(name, loss, Duration::from_secs(1), width);
    vec![goal("NDR", 0.0), goal("PDR", 0.005)]
}

#[test]
fn ndr_and_pdr_of_a_known_loss_curve_are_found() {
    // A hard limit at 0.6 Gb/s: loss is 1 - 0.6 / load.
    let hard = search(ndr_and_pdr(0.005), |load| (1.0 - 0.6 / load).max(0.0));
    // Loss that begins at 0.4 and grows by 2 % a Gb/s: 0.5 % at 0.65.
    let soft = search(ndr_and_pdr(0.005), |load| ((load - 0.4) * 0.02).max(0.0));
    for (search, ndr, pdr) in [(&hard, 0.6, 0.6 / 0.995), (&soft, 0.4, 0.65)] {
        for (result, limit) in search.results().iter().zip([ndr, pdr]) {
            assert!(result.regular, "{result:?}");
            let (lower, upper) = (result.lower.unwrap().gbps(), result.upper.unwrap().gbps());
            assert!(lower <= limit && limit <= upper, "{result:?}");
            assert!((upper - lower) / upper <= 0.005);
        }
    }
    // What is forwarded at a hard limit is the limit, whatever the goal.
    let throughput = hard.results()[1].conditional_throughput.unwrap().gbps();
    assert!((throughput - 0.6).abs() < 0.003, "{throughput}");
    // Short trials first: the search is cheaper than full-length bisection, which takes 3 trials at
    // each of 8 loads for each goal.
    assert!(hard.trials() < 60, "{}", hard.trials());
}

#[test]
fn a_device_faster_than_the_maximum_gives_an_irregular_result() {
    for result in search(ndr_and_pdr(0.005), |_| 0.0).results() {
        assert!(!result.regular && result.upper.is_none());
        assert_eq!(result.lower, Some(Rate::from_bits(GIGA)));
        assert_eq!(result.conditional_throughput, Some(Rate::from_bits(GIGA)));
    }
    for result in search(ndr_and_pdr(0.005), |_| 0.9).results() {
        assert!(!result.regular && result.lower.is_none());
        assert_eq!(result.upper, Some(Rate::from_bits(10_000_000)));
    }
}

proptest! {
    #[test]
    fn every_hard_limit_lies_between_the_relevant_bounds(limit in 0.02..0.99f64, width in 0.0005..0.05f64) {
        let search = search(ndr_and_pdr(width), |load| (1.0 - limit / load).max(0.0));
        for (result, limit) in search.results().iter().zip([limit, limit / 0.995]) {
            if limit < 1.0 {
                prop_assert!(result.regular, "{:?} after {} trials", result, search.trials());
                prop_assert!(result.lower.unwrap().gbps() <= limit + 1e-9);
                prop_assert!(result.upper.unwrap().gbps() >= limit - 1e-9);
            }
        }
    }

    #[test]
    fn a_search_ends_and_keeps_its_bounds_apart_whatever_the_device_does(
        losses in proptest::collection::vec(prop_oneof![Just(0.0), 0.0..0.02f64], 1..50),
        width in 0.001..0.1f64,
    ) {
        let losses = std::cell::RefCell::new(losses.iter().cycle());
        let search = search(ndr_and_pdr(width), |_| *losses.borrow_mut().next().unwrap());
        prop_assert!(search.trials() <= 500);
        for result in search.results() {
            if let (Some(lower), Some(upper)) = (result.lower, result.upper) {
                prop_assert!(lower < upper);
            }
        }
    }
}

/// The whole way: a tester, a line that loses, and both goals.
#[test]
fn ndr_and_pdr_of_a_line_are_found_by_trials() {
    let config = LineConfig {
        queue: Queue::Frames(8),
        ..LineConfig::new(600_000_000)
    };
    let mut tester = Tester::new(
        looped(&config, |_: &mut Frame| true),
        one_way(&[udp4(60, 1)]),
        quick(),
    )
    .unwrap();
    let goal = |name, loss| Goal::new(name, loss, ms(100), 0.002);
    let mut search = Search::new(
        vec![goal("NDR", 0.0), goal("PDR", 0.005)],
        Rate::from_bits(GIGA / 100),
        Rate::from_bits(GIGA),
        500,
    );
    while let Some(input) = search.next_trial() {
        let trial = tester
            .trial(&Load::new(input.load, input.duration))
            .unwrap();
        search.record(trial.loss_ratio());
    }
    for (result, limit) in search.results().iter().zip([0.6, 0.6 / 0.995]) {
        assert!(result.regular);
        assert!(
            (result.lower.unwrap().gbps() / limit - 1.0).abs() < 0.003,
            "{result:?}"
        );
        assert!(
            (result.conditional_throughput.unwrap().gbps() / 0.6 - 1.0).abs() < 0.003,
            "{result:?}"
        );
    }
}

/// The number of trials, and the report of each size.
fn benchmarks<B: Testbed>(
    tester: &mut Tester<B>,
    config: &rfc2544::Config,
) -> (usize, Result<Vec<SizeReport>, Error>) {
    let (mut trials, mut reports) = (0, Vec::new());
    let done = rfc2544::run(tester, config, &mut |progress| match progress {
        Progress::Trial { .. } => trials += 1,
        Progress::Size(report) => reports.push(report.clone()),
    });
    (trials, done.map(|()| reports))
}

#[test]
fn sizes_that_cannot_be_sent_are_refused_before_the_first_trial() {
    let tester = |frame| {
        let link = Link {
            name: "eth1".into(),
            mtu: 1500,
        };
        let options = Options {
            links: vec![link],
            ..quick()
        };
        let testbed = looped(&LineConfig::new(GIGA), |_: &mut Frame| true);
        Tester::new(testbed, one_way(&[frame]), options).unwrap()
    };
    let config = |sizes: &[usize]| rfc2544::Config {
        sizes: sizes.to_vec(),
        duration: ms(1),
        ..rfc2544::Config::new(Rate::from_bits(GIGA))
    };
    for (frame, sizes, expected) in [
        (udp4(60, 1), [64, 9018], "eth1 has an MTU of 1500"),
        (udp6(80, 1), [1518, 64], "its headers do not fit"),
    ] {
        let mut tester = tester(frame);
        let (trials, reports) = benchmarks(&mut tester, &config(&sizes));
        let error = reports.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(trials, 0);
    }
}

#[test]
fn sizes_that_are_done_are_reported_whatever_comes_later_and_say_what_has_no_stamp() {
    // TCP has no room for a stamp in the shortest frame.
    let mut tcp = udp4(200, 1);
    (tcp[23], tcp[46]) = (6, 0x50);
    let testbed = looped(&LineConfig::new(GIGA), |_: &mut Frame| true);
    let mut tester = Tester::new(testbed, one_way(&[tcp]), quick()).unwrap();
    let config = rfc2544::Config {
        sizes: vec![64, 128, 256],
        duration: ms(10),
        latency_trials: 1,
        burst_max: ms(1),
        burst_trials: 1,
        ..rfc2544::Config::new(Rate::from_bits(GIGA))
    };
    let reports = Rc::new(RefCell::new(Vec::new()));
    let done = Rc::clone(&reports);
    tester.on_pulse(move |_| done.borrow().len() < 2);
    let result = rfc2544::run(&mut tester, &config, &mut |progress| {
        if let Progress::Size(report) = progress {
            let report = (report.frame_bytes, report.frames_without_stamp);
            reports.borrow_mut().push(report);
        }
    });
    assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
    assert_eq!(*reports.borrow(), [(64, 1), (128, 0)]);
    assert_eq!(tester.streams()[0].longest(), 200);
}

/// The limits of two streams, one of which is lower: a rate passes where both do.
#[test]
fn a_stream_with_a_higher_limit_is_no_contradiction() {
    let stream = |name: &str, rx: &str, port, size| StreamConfig {
        name: name.into(),
        rx: rx.into(),
        port,
        frames: vec![udp4(size, 1)],
    };
    let streams = [stream("a", "b", 0, 60), stream("b", "a", 1, 128)];
    let mut tester = gateways(pair(&streams).unwrap(), &Simulation::new(GIGA));
    let mut search = Bisection::new(Rate::from_bits(GIGA), Rate::from_bits(1_000_000), 0);
    let mut consistency = Consistency::default();
    while let Some(rate) = search.next_rate() {
        let trial = tester.trial(&Load::new(rate, ms(200))).unwrap();
        assert!(trial.forwarded() <= rate || trial.is_lossless());
        consistency.record(rate, trial.forwarded(), trial.is_lossless());
        search.record(trial.is_lossless());
        assert_eq!(consistency.doubt(search.limit()), None);
    }
    let limit = search.limit().passed.gbps();
    assert!((0.608..0.615).contains(&limit), "{limit}");
}

#[test]
fn the_benchmarks_of_rfc_2544_measure_a_known_line() {
    let line = LineConfig {
        queue: Queue::Frames(100),
        delay: Duration::from_micros(10),
        ..LineConfig::new(GIGA / 2)
    };
    let mut tester = Tester::new(
        looped(&line, |_: &mut Frame| true),
        one_way(&[udp4(200, 1)]),
        quick(),
    )
    .unwrap();
    let config = rfc2544::Config {
        sizes: vec![64, 1518],
        duration: ms(200),
        latency_trials: 3,
        burst_max: ms(20),
        burst_trials: 2,
        ..rfc2544::Config::new(Rate::from_bits(GIGA))
    };
    let (trials, reports) = benchmarks(&mut tester, &config);
    let reports = reports.unwrap();
    assert!(trials > 30);
    for report in &reports {
        let bits = (report.frame_bytes + 20) as f64 * 8.0;
        // The queue lets through a hundred frames more.
        let most = 5e8 * (1.0 + 101.0 * bits / (5e8 * 0.2));
        let passed = report.throughput.passed.bits() as f64;
        assert!((4.99e8..=most).contains(&passed), "{report:?}");
        assert!((report.throughput_pps - passed / bits).abs() < 1e-6);
        let latency = report.latency.unwrap();
        assert!(
            latency.min_ns as f64 >= 10_000.0 + bits * 2.0 - 20.0,
            "{latency:?}"
        );
        // 100 % loses half, down to 50 and 40 %, which lose nothing.
        assert_eq!(report.frame_loss.len(), 7);
        assert!((report.frame_loss[0].loss_percent - 50.0).abs() < 1.0);
        assert_eq!(report.frame_loss[6].loss_percent, 0.0);
        // At twice the line's rate, half of a burst has to wait: a hundred wait, and one is on the
        // line.
        let burst = report.back_to_back.mean_frames;
        assert!((200.0..=204.0).contains(&burst), "{report:?}");
    }
    assert_eq!(tester.streams()[0].frames(), (1, 0));
}

#[test]
fn a_thousand_million_packets_take_the_memory_of_a_million() {
    // The tester's memory is what is set up before the first trial: the window, the histogram, the
    // frames.
    let mut ledger = tare_loadtest::Ledger::new(Options::default().window);
    assert_eq!(ledger.window() + 64, 1 << 24);
    for sequence in (0..1_000_000_000u64).step_by(16) {
        ledger.record(sequence, 60, 1000);
    }
    assert_eq!(ledger.unique(), 62_500_000);
    assert_eq!(ledger.window() + 64, 1 << 24);
}
