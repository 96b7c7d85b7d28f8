//! Loss, duplication, reordering, restarts of the node and killed clients.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use tare_farmem::operation::{Operation, SpaceId};
use tare_farmem::protocol::{ClientConfig, Failure, Node, NodeConfig};
use tare_farmem::serve::{Service, ServiceConfig};
use tare_farmem::session::{connect, random_id, Options};
use tare_farmem::transport::Faults;

use crate::support::{node_config, options, service, session, store, ANY};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn at_each_rate_of_loss_duplication_and_reordering_every_operation_happens_once() {
    let service = service(ANY, 1);
    let address = format!("udp://{}", service.address().unwrap());
    for (seed, rate) in [(1, 0.0), (2, 0.001), (3, 0.01), (4, 0.05)] {
        let faults = Faults {
            loss: rate,
            duplication: rate,
            reordering: rate,
        };
        let options = Options {
            faults: Some((faults, seed)),
            ..options()
        };
        let mut session = connect(&address, &options).unwrap();
        session.open().unwrap();
        let base = session.alloc(1 << 20).unwrap();
        let data: Vec<u8> = (0..200_000u32).map(|n| (n * 7 % 253) as u8).collect();
        for round in 0..5 {
            session.write(base + round, &data).unwrap();
            let mut back = vec![0; data.len()];
            session.read(base + round, &mut back).unwrap();
            assert!(back == data, "rate {rate}, round {round}");
        }
        let counter = base + (1 << 19);
        let add = Operation::FetchAdd {
            address: counter,
            add: 1,
            guard: None,
        };
        let mut seen = Vec::new();
        for _ in 0..1000 {
            session.submit(&add).unwrap();
            while session.outstanding() >= 50 {
                seen.extend(
                    session
                        .poll(SECOND)
                        .unwrap()
                        .map(|end| end.outcome.unwrap()),
                );
            }
        }
        while session.outstanding() > 0 {
            seen.extend(
                session
                    .poll(SECOND)
                    .unwrap()
                    .map(|end| end.outcome.unwrap()),
            );
        }
        assert_eq!(seen.len(), 1000);
        assert_eq!(session.fetch_add(counter, 0).unwrap(), 1000, "rate {rate}");
        session.close().unwrap();
    }
    let repeated = service.with_node(|node| node.counters().repeated);
    assert!(repeated > 0, "copies came and were not run");
}

#[test]
fn a_restarted_node_runs_nothing_twice_and_the_client_knows_what_is_uncertain() {
    let config = |epoch| NodeConfig {
        epoch,
        ..node_config()
    };
    let first = Service::start(&ServiceConfig::new(ANY), Node::new(config(1), store())).unwrap();
    let listen = first.address().unwrap();
    let mut session = session(&first);
    session.open().unwrap();
    let counter = session.alloc(4096).unwrap();
    let add = |n: u64| Operation::FetchAdd {
        address: counter + n % 64 * 8,
        add: 1,
        guard: None,
    };
    let (mut succeeded, mut unknown, mut submitted) = (0u64, 0u64, 0u64);
    let mut running = Some(first);
    for restart in 0..5 {
        let end = submitted + 400;
        while submitted < end || session.outstanding() > 0 {
            while submitted < end && session.outstanding() < 32 {
                session.submit(&add(submitted)).unwrap();
                submitted += 1;
            }
            // In the middle, with operations on the way.
            if submitted == end - 200 && restart < 4 {
                let store = running.take().unwrap().stop().unwrap().into_store();
                let node = Node::new(config(restart + 2), store);
                running = Some(Service::start(&ServiceConfig::new(listen), node).unwrap());
                session.submit(&add(submitted)).unwrap();
                submitted += 1;
            }
            match session.poll(SECOND).unwrap().map(|end| end.outcome) {
                Some(Ok(_)) => succeeded += 1,
                Some(Err(Failure::OutcomeUnknown)) => unknown += 1,
                Some(Err(other)) => panic!("{other:?}"),
                None => {}
            }
        }
    }
    let mut counters = vec![0; 512];
    session.read(counter, &mut counters).unwrap();
    let sum: u64 = counters
        .as_chunks()
        .0
        .iter()
        .map(|n| u64::from_le_bytes(*n))
        .sum();
    assert_eq!(succeeded + unknown, submitted);
    assert!(
        (succeeded..=succeeded + unknown).contains(&sum),
        "{succeeded} succeeded, {unknown} unknown, {sum} ran"
    );
    assert!(unknown <= 4 * 33, "only what was on the way: {unknown}");
    assert!(succeeded >= submitted - 4 * 33);
}

#[test]
fn without_a_node_operations_fail_in_time_and_say_so() {
    // A port that was free a moment ago.
    let gone = service(ANY, 1);
    let address = format!("udp://{}", gone.address().unwrap());
    drop(gone);
    let client = ClientConfig {
        timeout: Duration::from_millis(50),
        ..ClientConfig::new(random_id().unwrap())
    };
    let options = Options {
        client: Some(client),
        ..Options::default()
    };
    let mut session = connect(&address, &options).unwrap();
    let failed = session.ping().expect_err("no node");
    assert_eq!(failed.failure(), Some(Failure::NodeGone));
    assert!(failed.to_string().contains("is it running?"));
}

const CHILD: &str = "TARE_FARMEM_TEST_CLIENT";

#[test]
fn a_client_that_is_killed_under_load_harms_no_other() {
    if let Ok(address) = std::env::var(CHILD) {
        return load_until_killed(&address);
    }
    let service = service(ANY, 1);
    let address = format!("udp://{}", service.address().unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let other = std::thread::spawn({
        let (stop, mut session) = (Arc::clone(&stop), session(&service));
        move || {
            session.open().unwrap();
            let base = session.alloc(64 << 10).unwrap();
            let mut rounds = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let at = base + rounds % 8000 * 8;
                session.write(at, &rounds.to_le_bytes()).unwrap();
                let mut back = [0; 8];
                session.read(at, &mut back).unwrap();
                assert_eq!(u64::from_le_bytes(back), rounds);
                rounds += 1;
            }
            rounds
        }
    });
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "faults::a_client_that_is_killed_under_load_harms_no_other",
                "--exact",
                "--nocapture",
            ])
            .env(CHILD, &address)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let ready = out
            .lines()
            .map(|line| line.unwrap())
            .any(|line| line.contains("loading"));
        assert!(ready, "the child runs");
        child.kill().unwrap();
        child.wait().unwrap();
        // The dead client's lock ends with its lease.
        let options = Options {
            space: Some(SpaceId(77)),
            ..options()
        };
        let mut heir = connect(&address, &options).unwrap();
        let guard = heir.lock_within(0x4000_0000, SECOND, 60 * SECOND).unwrap();
        heir.write_guarded(0x4000_0000, b"mine", Some(guard))
            .unwrap();
        heir.close().unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    assert!(other.join().expect("unharmed") > 0);
    assert!(session(&service).ping().is_ok());
    service.stop().unwrap();
}

/// The child: holds a lock, and has reads, writes and a half-sent long write on the way.
fn load_until_killed(address: &str) {
    let options = Options {
        space: Some(SpaceId(77)),
        ..options()
    };
    let mut session = connect(address, &options).unwrap();
    session.open().unwrap();
    let (page, permission) = (
        tare_farmem::operation::PageSize::Small,
        tare_farmem::operation::Permission::READ_WRITE,
    );
    let base = 0x4000_0000;
    session
        .alloc_with(4 << 20, page, Some(base), permission, false)
        .unwrap();
    session.lock(base, Duration::from_millis(500)).unwrap();
    let data = vec![7; 300_000];
    for round in 0u64.. {
        while session.outstanding() < 64 {
            let address = base + round % 100 * 8192;
            let write = Operation::Write {
                address,
                data: &data,
                guard: None,
            };
            session.submit(&write).unwrap();
            session
                .submit(&Operation::Read {
                    address,
                    len: 100_000,
                })
                .unwrap();
        }
        session.poll(SECOND).unwrap();
        if round == 200 {
            println!("loading");
        }
    }
}
