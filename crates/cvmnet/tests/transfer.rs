//! Two stacks and a line between them: what one sends, the other reads, whatever the line does.

mod common;

use std::time::Duration;

use common::{address4, address6, config, Host, Plan, A, B};
use tare_cvmnet::{Algorithm, Config};
use tare_sim::{for_seeds, Instant, LineConfig, NodeId, Queue, Testbed};

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

#[test]
fn goodput_is_near_the_rate_of_the_line_and_cubic_recovers_after_a_loss() {
    let _ = Algorithm::Cubic;
    let line = LineConfig {
        delay: MS * 5,
        queue: Queue::Frames(1000),
        ..LineConfig::new(1_000_000_000)
    };
    let (mut testbed, a, b) = testbed(
        1,
        &line,
        [config(A), config(B)].map(|config| Config {
            receive_buffer: 4 << 20,
            send_buffer: 4 << 20,
            ..config
        }),
    );
    let bytes = 100_000_000;
    testbed.act(a, |host, now, out| {
        host.connect(now, address4(B).into(), Plan::new(1, bytes));
        host.run(now, out);
    });
    testbed.node_mut(b).serve = Plan::new(1, 0);
    let time = run(&mut testbed, [a, b], 1, Duration::from_secs(60));
    let goodput = bytes as f64 * 8.0 / time.as_secs_f64();
    eprintln!("goodput {:.1} Mb/s", goodput / 1e6);
}
