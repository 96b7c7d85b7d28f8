//! Two stacks and a line between them: what one sends, the other reads, whatever the line does.

mod common;

use std::time::Duration;

use common::{address4, address6, config, Host, Plan, A, B};
use tare_cvmnet::tcp::{Algorithm, Config};
use tare_sim::{for_seeds, Cable, Instant, LineConfig, NodeId, Queue, Testbed};

const MS: Duration = Duration::from_millis(1);

fn testbed(
    seed: u64,
    line: &LineConfig,
    configs: [Config; 2],
) -> (Testbed<Vec<u8>>, NodeId<Host>, NodeId<Host>) {
    let mut testbed = Testbed::new(seed);
    let [a, b] = configs.map(|config| testbed.add(Host::new(config)));
    testbed.connect(a, b, line);
    (testbed, a, b)
}

/// Runs until both hosts have ended all their flows, and returns the time that it took.
fn run(
    testbed: &mut Testbed<Vec<u8>>,
    hosts: [NodeId<Host>; 2],
    flows: usize,
    limit: Duration,
) -> Duration {
    let end = Instant::ZERO + limit;
    let is_done = testbed.run_until_reached(end, |testbed| {
        hosts.iter().all(|&host| testbed.node(host).ended == flows)
    });
    for host in hosts {
        let host = testbed.node(host);
        assert!(
            is_done,
            "ended {} failed {} received {} flows {:?} {:?}",
            host.ended,
            host.failed,
            host.received,
            host.flows
                .iter()
                .map(|(id, flow)| (host.stack.state(*id), flow.sent, flow.received))
                .collect::<Vec<_>>(),
            host.stack.counters()
        );
        assert_eq!(host.failed, 0);
    }
    testbed.now().since(Instant::ZERO)
}

#[test]
fn streams_are_equal_under_loss_duplication_and_reordering() {
    for loss in [0.0, 0.001, 0.01, 0.05] {
        for_seeds(0..40, |seed| {
            let line = LineConfig {
                delay: MS * (1 + seed as u32 % 20),
                loss,
                duplication: 0.02,
                reordering: 0.02,
                queue: Queue::Frames(200),
                ..LineConfig::new(100_000_000)
            };
            let configs = [A, B].map(|host| Config {
                sack: seed % 4 != 3,
                timestamps: seed % 3 != 2,
                checksum_offload: seed % 2 == 0,
                segmentation_offload: seed % 4 == 0,
                receive_buffer: 1 << (14 + seed % 7),
                ..config(host)
            });
            let (mut testbed, a, b) = testbed(seed, &line, configs);
            let plan = Plan {
                piece: 1 + seed as usize * 977 % 20_000,
                ..Plan::new(seed, 150_000)
            };
            testbed.node_mut(b).serve = plan;
            let to = match seed % 2 {
                0 => address4(B).into(),
                _ => address6(B).into(),
            };
            testbed.act(a, |host, now, out| {
                host.connect(now, to, plan);
                host.run(now, out);
            });
            run(&mut testbed, [a, b], 1, Duration::from_secs(600));
            testbed.run_for(Duration::from_secs(400));
            for host in [a, b] {
                let host = testbed.node(host);
                assert_eq!((host.stack.connections(), host.live.get()), (0, 0));
                assert_eq!(host.stack.pinned(), 0);
            }
        });
    }
}

fn wide(host: u8) -> Config {
    Config {
        receive_buffer: 4 << 20,
        send_buffer: 4 << 20,
        pinned_max: 8 << 20,
        ..config(host)
    }
}

/// A line of 1 Gb/s with a round trip of 10 ms.
const GIGABIT: LineConfig = LineConfig {
    delay: Duration::from_millis(5),
    ..LineConfig::new(1_000_000_000)
};

/// Sends 100 MB over [`GIGABIT`] and returns the goodput in Mb/s and the share of bytes that were
/// sent more than once.
fn goodput(algorithm: Algorithm, change: impl FnOnce(&mut Testbed<Vec<u8>>, Cable)) -> (f64, f64) {
    let mut testbed = Testbed::new(1);
    let [a, b] = [A, B].map(|host| {
        let congestion = algorithm;
        testbed.add(Host::new(Config {
            congestion,
            ..wide(host)
        }))
    });
    let cable = testbed.connect(a, b, &GIGABIT);
    change(&mut testbed, cable);
    let bytes = 100_000_000;
    testbed.act(a, |host, now, out| {
        host.connect(now, address4(B).into(), Plan::new(0, bytes));
        host.run(now, out);
    });
    let time = run(&mut testbed, [a, b], 1, Duration::from_secs(60));
    let sent = testbed.node(a).stack.counters().sent_bytes;
    let mbps = bytes as f64 * 8.0 / time.as_secs_f64() / 1e6;
    let repeated = sent as f64 / bytes as f64 - 1.0;
    eprintln!(
        "{algorithm:?}: {mbps:.0} Mb/s, {:.2} % repeated",
        repeated * 100.0
    );
    (mbps, repeated)
}

#[test]
fn goodput_is_near_the_rate_of_the_line() {
    // Of each frame 1448 of 1538 bytes on the wire are payload: 941 Mb/s at most.
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        let (mbps, repeated) = goodput(algorithm, |_, _| {});
        assert!(
            mbps > 800.0,
            "{algorithm:?}: {mbps} Mb/s, {repeated} repeated"
        );
        assert!(
            repeated < 0.02,
            "{algorithm:?}: {mbps} Mb/s, {repeated} repeated"
        );
    }
}

#[test]
fn after_a_burst_of_losses_the_rate_recovers() {
    let (mbps, repeated) = goodput(Algorithm::Cubic, |testbed, cable| {
        for (at, loss) in [(300, 0.05), (310, 0.0), (600, 0.2), (602, 0.0)] {
            testbed.at(Instant::ZERO + MS * at, move |testbed| {
                testbed.set_cable(cable, &LineConfig { loss, ..GIGABIT });
            });
        }
    });
    assert!(
        mbps > 600.0 && repeated < 0.03,
        "{mbps} Mb/s, {repeated} repeated"
    );
}

#[test]
fn a_thousandth_of_loss_costs_no_timeouts() {
    let (mbps, repeated) = goodput(Algorithm::Cubic, |testbed, cable| {
        let loss = LineConfig {
            loss: 0.001,
            ..GIGABIT
        };
        testbed.set_lines(cable, &loss, &GIGABIT);
    });
    assert!(
        mbps > 40.0 && repeated < 0.005,
        "{mbps} Mb/s, {repeated} repeated"
    );
}

#[test]
fn large_packets_go_whole_between_guests_of_one_host() {
    let (mut testbed, a, b) = testbed(
        1,
        &LineConfig::new(100_000_000_000),
        [A, B].map(|host| Config {
            checksum_offload: true,
            segmentation_offload: true,
            ..wide(host)
        }),
    );
    for host in [a, b] {
        testbed.node_mut(host).keep_large();
        testbed.node_mut(host).serve = Plan::new(0, 20_000_000);
    }
    testbed.act(a, |host, now, out| {
        host.connect(now, address6(B).into(), Plan::new(0, 20_000_000));
        host.run(now, out);
    });
    run(&mut testbed, [a, b], 1, Duration::from_secs(60));
    for host in [a, b] {
        let host = testbed.node(host);
        assert!(host.largest() > 64_000, "{}", host.largest());
        assert!(host.largest() <= 65_535 + 14);
        assert!(host.frames_in < 5000, "{}", host.frames_in);
    }
}

#[test]
fn payloads_are_read_where_they_arrived() {
    let (mut testbed, a, b) = testbed(1, &GIGABIT, [wide(A), wide(B)]);
    testbed.node_mut(b).serve = Plan {
        closes: false,
        ..Plan::new(0, 0)
    };
    testbed.act(a, |host, now, out| {
        host.connect(now, address4(B).into(), Plan::new(0, 10_000_000));
        host.run(now, out);
    });
    run(&mut testbed, [a, b], 1, Duration::from_secs(60));
    let flow = testbed.node(b).flows.values().next().unwrap();
    assert_eq!(flow.received, 10_000_000);
    assert!(flow.shared > 9_900_000, "{}", flow.shared);
}

#[test]
fn a_reader_that_stops_stops_the_sender_and_both_go_on() {
    for_seeds(0..20, |seed| {
        let line = LineConfig {
            delay: MS,
            loss: 0.02,
            ..LineConfig::new(100_000_000)
        };
        let configs = [A, B].map(|host| Config {
            receive_buffer: 50_000,
            ..config(host)
        });
        let (mut testbed, a, b) = testbed(seed, &line, configs);
        testbed.node_mut(b).serve = Plan {
            reads: false,
            ..Plan::new(0, 0)
        };
        testbed.act(a, |host, now, out| {
            host.connect(now, address4(B).into(), Plan::new(0, 300_000));
            host.run(now, out);
        });
        for _ in 0..5 {
            testbed.run_for(Duration::from_secs(20));
            assert!(testbed.node(b).stack.pinned() <= 100_000);
            testbed.act(b, |host, now, out| {
                let id = *host.flows.keys().next().unwrap();
                assert!(host.stack.readable_len(id) <= 50_000);
                host.flows.get_mut(&id).unwrap().plan.reads = true;
                host.pump(now, id);
                if let Some(flow) = host.flows.get_mut(&id) {
                    flow.plan.reads = false;
                }
                host.run(now, out);
            });
        }
        testbed.act(b, |host, _, _| {
            host.flows.values_mut().for_each(|it| it.plan.reads = true)
        });
        testbed.act(b, |host, now, out| {
            let ids: Vec<_> = host.flows.keys().copied().collect();
            ids.into_iter().for_each(|id| host.pump(now, id));
            host.run(now, out);
        });
        run(&mut testbed, [a, b], 1, Duration::from_secs(600));
    });
}

#[test]
fn ten_thousand_connections_open_and_close_without_a_leak() {
    let line = LineConfig {
        delay: MS,
        loss: 0.001,
        ..LineConfig::new(1_000_000_000)
    };
    let (mut testbed, a, b) = testbed(3, &line, [config(A), config(B)]);
    let total = 10_000;
    testbed.node_mut(b).serve = Plan::new(0, 500);
    for batch in 0..50 {
        let to = if batch % 2 == 0 {
            address4(B).into()
        } else {
            address6(B).into()
        };
        testbed.act(a, |host, now, out| {
            for _ in 0..total / 50 {
                host.connect(now, to, Plan::new(0, 300));
            }
            host.run(now, out);
        });
        testbed.run_for(MS * 100);
    }
    run(&mut testbed, [a, b], total, Duration::from_secs(100));
    testbed.run_for(Duration::from_secs(200));
    for host in [a, b] {
        let host = testbed.node(host);
        assert_eq!(
            (host.stack.connections(), host.live.get(), host.flows.len()),
            (0, 0, 0)
        );
        assert_eq!((host.stack.pinned(), host.stack.copied()), (0, 0));
    }
}
