//! The service of a node.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tare_farmem::memory::Store;
use tare_farmem::operation::{Error, Operation, SpaceId, Value};
use tare_farmem::protocol::{Execute, Node};
use tare_farmem::serve::{Service, ServiceConfig};
use tare_farmem::session::connect;
use tare_farmem::transport::Waiting;

use crate::support::{node_config, options, service, session, store, ANY};

#[test]
fn several_workers_serve_many_clients_and_count_their_work() {
    for waiting in [
        Waiting::Asleep,
        Waiting::Adaptive(Duration::from_micros(50)),
        Waiting::Busy,
    ] {
        let config = ServiceConfig {
            workers: 3,
            waiting,
            ..ServiceConfig::new(ANY)
        };
        let service = Service::start(&config, Node::new(node_config(), store())).unwrap();
        let address = format!("udp://{}", service.address().unwrap());
        let clients: Vec<_> = (0..8u64)
            .map(|n| {
                let (address, options) = (address.clone(), options());
                std::thread::spawn(move || {
                    let mut session = connect(&address, &options).unwrap();
                    session.open().unwrap();
                    let base = session.alloc(8192).unwrap();
                    for round in 0..50 {
                        assert_eq!(session.fetch_add(base + n * 8, n).unwrap(), round * n);
                    }
                })
            })
            .collect();
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
        let work = service.work();
        assert_eq!(work.len(), 3);
        let received: u64 = work.iter().map(|work| work.traffic.received).sum();
        let sent: u64 = work.iter().map(|work| work.traffic.sent).sum();
        assert!(received >= 8 * 52 && sent >= 8 * 52, "{work:?}");
        assert!(!service.has_failed());
        let counters = service.stop().unwrap().counters();
        assert!(counters.executed >= 8 * 52);
    }
}

#[test]
fn a_service_stops_within_a_tenth_of_a_second_or_so_and_frees_its_port() {
    for (waiting, workers) in [
        (Waiting::Asleep, 1),
        (Waiting::Busy, 1),
        (Waiting::Asleep, 2),
    ] {
        let config = ServiceConfig {
            waiting,
            workers,
            ..ServiceConfig::new(ANY)
        };
        // One that takes less, of some on a machine with other things to do.
        let stopped_in_time = (0..10).any(|_| stops_in(&config) < Duration::from_secs(3));
        assert!(stopped_in_time, "{config:?}");
        let service = Service::start(&config, Node::new(node_config(), store())).unwrap();
        let listen = service.address().unwrap();
        for workers in [1, 2] {
            let config = ServiceConfig {
                workers,
                ..ServiceConfig::new(listen)
            };
            let second = Service::start(&config, Node::new(node_config(), store()));
            let error = second.err().map(|error| error.kind());
            assert_eq!(error, Some(std::io::ErrorKind::AddrInUse));
        }
        let mut session = session(&service);
        session.open().unwrap();
        let node = service.stop().unwrap();
        assert_eq!(node.store().counts().spaces, 1);
        UdpSocket::bind(listen).expect("the port is free");
    }
}

/// The time that a service takes to stop after it has served.
fn stops_in(config: &ServiceConfig) -> Duration {
    let service = Service::start(config, Node::new(node_config(), store())).unwrap();
    session(&service).open().unwrap();
    let start = Instant::now();
    service.stop().unwrap();
    start.elapsed()
}

#[test]
fn a_node_at_all_addresses_answers_from_the_one_that_was_asked() {
    let places = [("0.0.0.0:0", "127.0.0.2"), ("[::]:0", "127.0.0.3")];
    for (listen, asked) in places {
        let config = ServiceConfig {
            workers: 2,
            ..ServiceConfig::new(listen.parse().unwrap())
        };
        let service = match Service::start(&config, Node::new(node_config(), store())) {
            Ok(service) => service,
            Err(error) if listen.starts_with('[') => {
                eprintln!("NOT TESTED: a node at {listen}: {error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let port = service.address().unwrap().port();
        let mut session = connect(&format!("udp://{asked}:{port}"), &options()).unwrap();
        session.ping().unwrap();
        session.open().unwrap();
        let bytes: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        let address = session.alloc(bytes.len() as u64).unwrap();
        session.write(address, &bytes).unwrap();
        let mut found = vec![0; bytes.len()];
        session.read(address, &mut found).unwrap();
        assert!(found == bytes);
        service.stop().unwrap();
    }
}

/// A store that tells when there was nothing more to zero.
struct Watched {
    store: Store,
    done: Arc<AtomicBool>,
}

impl Execute for Watched {
    fn execute(
        &mut self,
        now: tare_sim::Instant,
        space: SpaceId,
        operation: &Operation<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Value, Error> {
        self.store.execute(now, space, operation, out)
    }

    fn idle(&mut self) -> bool {
        let has_more = self.store.idle();
        self.done.fetch_or(!has_more, Ordering::Relaxed);
        has_more
    }
}

#[test]
fn freed_memory_is_zeroed_while_the_node_has_nothing_else_to_do() {
    let done = Arc::new(AtomicBool::new(false));
    let watched = Watched {
        store: store(),
        done: Arc::clone(&done),
    };
    let node = Node::new(node_config(), watched);
    let service = Service::start(&ServiceConfig::new(ANY), node).unwrap();
    let address = format!("udp://{}", service.address().unwrap());
    let mut session = connect(&address, &options()).unwrap();
    session.open().unwrap();
    let bytes = 60 << 20;
    let address = session.alloc(bytes).unwrap();
    let data = vec![1; 1 << 20];
    for part in 0..60 {
        session.write(address + (part << 20), &data).unwrap();
    }
    session.free(address, bytes).unwrap();
    done.store(false, Ordering::Relaxed);
    let start = Instant::now();
    while !done.load(Ordering::Relaxed) {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
    let address = session.alloc(bytes).unwrap();
    session.write(address, &data).unwrap();
    let late = service.with_node(|node| node.store().store.counts().zeroed_late);
    assert_eq!(late, 0);
}

#[test]
fn noise_and_the_requests_of_strangers_get_no_answer_longer_than_they_are() {
    let service = service(ANY, 1);
    let stranger = UdpSocket::bind(ANY).unwrap();
    stranger.connect(service.address().unwrap()).unwrap();
    let mut random = tare_sim::Random::new(5);
    for length in 0..200 {
        let mut noise = vec![0; length];
        random.fill(&mut noise);
        if length % 2 == 0 {
            // The right version, so that more of it is looked at.
            noise.iter_mut().take(1).for_each(|first| *first = 1);
        }
        stranger.send(&noise).unwrap();
    }
    let mut client =
        tare_farmem::protocol::Client::new(tare_farmem::protocol::ClientConfig::new(1));
    let read = Operation::Read {
        address: 0,
        len: 1000,
    };
    let (now, space) = (tare_sim::Instant::now(), tare_farmem::operation::SpaceId(1));
    client.submit(now, space, &read).unwrap();
    let mut hello = tare_farmem::protocol::Datagrams::default();
    assert!(client.transmit(now, &mut hello));
    let hello = hello.iter().next().unwrap();
    stranger.send(hello).unwrap();
    stranger
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut answer = [0; 2048];
    let length = stranger.recv(&mut answer).unwrap();
    assert!(length <= hello.len(), "{length}");
    assert_eq!(
        answer[16..24],
        hello[16..24],
        "the first answer is that to the hello"
    );
    assert!(service.with_node(|node| node.counters().malformed) >= 199);
    assert!(session(&service).ping().is_ok());
}
