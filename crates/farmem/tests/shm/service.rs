//! Sessions, and a service that has UDP too.

use std::sync::mpsc::sync_channel;

use rustix::event::{poll, PollFd, PollFlags};
use tare_farmem::protocol::{
    self, Authentication, Capability, Node as ProtocolNode, NodeConfig, Secret,
};
use tare_farmem::serve::{FairMutex, Service, ShmSource, Source, Turn, UdpSource};
use tare_farmem::session::{self, random_id, Options, Session};
use tare_farmem::transport::{Faults, Waiting};

use super::*;

type Sources = Vec<Box<dyn Source<Store>>>;

fn node_config() -> NodeConfig {
    NodeConfig {
        timeout: Duration::from_secs(60),
        bytes_per_second: 50_000_000,
        ..NodeConfig::new(random_id().unwrap())
    }
}

fn options(waiting: Waiting) -> Options {
    let client = protocol::ClientConfig::new(random_id().unwrap());
    Options {
        client: Some(protocol::ClientConfig {
            timeout: Duration::from_secs(60),
            ..client
        }),
        waiting,
        ..Options::default()
    }
}

/// The sources of a node for both transports, and their addresses.
fn sources(secret: impl Fn() -> Option<Secret>) -> ([Box<dyn Source<Store>>; 2], [String; 2]) {
    let path = socket_path();
    let shm = ShmSource::listen(&path, 1, secret()).unwrap();
    let udp = UdpSource::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let addresses = [
        format!("udp://{}", udp.local_addr().unwrap()),
        format!("shm:{}", path.display()),
    ];
    ([Box::new(udp), Box::new(shm)], addresses)
}

#[test]
fn one_node_serves_udp_and_shared_memory_whether_its_workers_sleep_or_not() {
    let adaptive = Waiting::Adaptive(Duration::from_micros(50));
    for waiting in [Waiting::Asleep, adaptive, Waiting::Busy] {
        for is_together in [false, true] {
            let ([udp, shm], addresses) = sources(|| None);
            let workers: Vec<Sources> = match is_together {
                true => vec![vec![udp, shm]],
                false => vec![vec![udp], vec![shm]],
            };
            let node = ProtocolNode::new(node_config(), store());
            let service = Service::with_sources(node, workers, waiting).unwrap();
            let mut first = session::connect(&addresses[0], &options(waiting)).unwrap();
            first.open().unwrap();
            let (address, space) = (first.alloc(4096).unwrap(), first.space());
            let threads = addresses.map(|at| {
                let options = Options {
                    space: Some(space),
                    ..options(Waiting::Asleep)
                };
                thread::spawn(move || {
                    let mut session = session::connect(&at, &options).unwrap();
                    for _ in 0..200 {
                        session.fetch_add(address, 1).unwrap();
                    }
                    session.write(address + 64, &[7; 3000]).unwrap();
                })
            });
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            assert_eq!(first.fetch_add(address, 0).unwrap(), 400);
            let work = service.work();
            let traffic = work.iter().map(|work| work.traffic);
            assert!(traffic.clone().map(|all| all.received).sum::<u64>() >= 404);
            assert!(traffic.map(|all| all.received_bytes).sum::<u64>() >= 6000);
            assert!(!service.has_failed());
            service.stop().unwrap();
        }
    }
}

#[test]
fn a_client_that_comes_before_a_worker_sleeps_on_the_descriptor_is_served() {
    let path = socket_path();
    let mut source = ShmSource::listen(&path, 1, None).unwrap();
    let node = FairMutex::new(ProtocolNode::new(node_config(), store()));
    let stop = Arc::new(AtomicBool::new(false));
    let worker = {
        let stop = stop.clone();
        thread::spawn(move || {
            let mut sleeps = 0;
            while !stop.load(Ordering::Relaxed) {
                let turn = source.turn(&node, Duration::ZERO, Waiting::Busy).unwrap();
                if turn.received == 0 {
                    sleeps += 1;
                    let descriptor = Source::<Store>::descriptor(&source).unwrap();
                    let mut ready = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
                    // Without an end: only a client can wake it.
                    poll(&mut ready, None).unwrap();
                }
            }
            sleeps
        })
    };
    let config = ClientConfig {
        busy: Duration::ZERO,
        ..PATIENT
    };
    let mut client = Client::connect(&path, &config).unwrap();
    alloc(&mut client, SpaceId(1), 4096);
    let mut random = Random::new(8);
    let add = Operation::FetchAdd {
        address: BASE,
        add: 1,
        guard: None,
    };
    for n in 0..10_000 {
        let order = random.below(12);
        for _ in 0..random.below(1 << order) {
            std::hint::spin_loop();
        }
        assert_eq!(client.call(SpaceId(1), &add, &mut []), Ok(Value::Old(n)));
    }
    stop.store(true, Ordering::Relaxed);
    drop(client);
    assert!(worker.join().unwrap() > 100);
}

#[test]
fn a_node_is_not_locked_while_no_client_wants_anything() {
    let path = socket_path();
    let mut source = ShmSource::listen(&path, 1, None).unwrap();
    let node = Arc::new(FairMutex::new(ProtocolNode::new(node_config(), store())));
    let (done, is_done) = sync_channel(1);
    let (connect, is_connected) = sync_channel(1);
    let locked = node.lock();
    let other = node.clone();
    let worker = thread::spawn(move || {
        let mut turns = 0;
        while is_connected.try_recv().is_err() {
            source.turn(&other, Duration::ZERO, Waiting::Busy).unwrap();
        }
        for wait in [0, 1, 20].map(Duration::from_millis) {
            for waiting in [Waiting::Busy, Waiting::Asleep] {
                turns += source.turn(&other, wait, waiting).unwrap().received;
            }
        }
        done.send(turns).unwrap();
        source
    });
    // It is polled from here on, and has nothing in its ring.
    let client = Client::connect(&path, &PATIENT).unwrap();
    connect.send(()).unwrap();
    let turns = is_done.recv_timeout(Duration::from_secs(60));
    assert_eq!(turns, Ok(0), "the source waits for the node");
    drop((locked, client));
    worker.join().unwrap();
}

#[test]
fn a_space_of_a_node_with_a_secret_needs_its_capability_over_both_transports() {
    let secret = || Secret::new(&[5; 32]);
    let ([udp, shm], addresses) = sources(|| Some(secret()));
    let mut node = ProtocolNode::new(
        NodeConfig {
            authentication: Authentication::Aead {
                first_nonce: [3; 12],
            },
            ..node_config()
        },
        store(),
    );
    node.set_secret(secret());
    let workers: Vec<Sources> = vec![vec![udp], vec![shm]];
    let service = Service::with_sources(node, workers, Waiting::Asleep).unwrap();
    let with = |address: &str, capability: Option<Capability>| -> Result<Session, _> {
        let options = Options {
            // Of no importance if there is a capability.
            space: Some(SpaceId(9 + u64::from(capability.is_some()))),
            ..options(Waiting::Asleep)
        };
        match capability {
            Some(capability) => session::connect_authorized(address, &options, capability),
            None => session::connect(address, &options),
        }
    };
    let right = || secret().capability(SpaceId(9));
    let mut sessions = addresses.each_ref().map(|address| {
        let session = with(address, Some(right())).unwrap();
        assert_eq!(session.space(), SpaceId(9));
        session
    });
    sessions[0].open().unwrap();
    let address = sessions[0].alloc(4096).unwrap();
    sessions[0].write(address, &[4; 100]).unwrap();
    let mut out = [0; 100];
    sessions[1].read(address, &mut out).unwrap();
    assert_eq!(out, [4; 100]);

    let wrong = Secret::new(&[6; 32]).capability(SpaceId(9));
    let refused = with(&addresses[1], Some(wrong)).err().unwrap();
    assert!(matches!(
        refused,
        session::Error::Submit(protocol::SubmitError::Unauthorized)
    ));
    let mut without = with(&addresses[1], None).unwrap();
    let refused = without.open().unwrap_err();
    assert!(matches!(
        refused,
        session::Error::Submit(protocol::SubmitError::Unauthorized)
    ));
    let failure = without.alloc(4096).unwrap_err().failure();
    assert_eq!(failure, Some(Failure::Refused(Error::NoSuchSpace)));
    assert_eq!(service.with_node(|node| node.store().counts().spaces), 1);
}

#[test]
fn an_address_that_cannot_be_used_says_what_is_expected() {
    let connect = |address: &str, options: &Options| {
        let error = session::connect(address, options).err().unwrap();
        error.to_string()
    };
    let plain = Options::default();
    for address in ["shm:", "shm", "udp:", "tcp://127.0.0.1:1", ""] {
        let error = connect(address, &plain);
        assert!(error.contains("udp://HOST:PORT, shm:PATH"), "{error}");
    }
    let absent = connect("shm:/nonexistent/socket", &plain);
    assert!(absent.contains("connecting to the node"), "{absent}");
    let faulty = Options {
        faults: Some((Faults::default(), 1)),
        ..Options::default()
    };
    let refused = connect("shm:/nonexistent/socket", &faulty);
    assert!(
        refused.contains("since there are to be faults"),
        "{refused}"
    );
}

#[test]
fn of_many_clients_each_is_served_while_others_always_have_entries() {
    const CLIENTS: u64 = 60;
    let mut node = Node::start(ServerConfig::new(1));
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| node.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        let space = SpaceId(n as u64);
        alloc(client, space, 4096);
        client.write(space, BASE, &[n as u8; 48], None).unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let floods: Vec<_> = (0..3)
        .map(|_| {
            let (mut client, stop) = (clients.pop().unwrap(), stop.clone());
            let space = SpaceId(clients.len() as u64);
            thread::spawn(move || {
                let read = Operation::Read {
                    address: BASE,
                    len: 4096,
                };
                while !stop.load(Ordering::Relaxed) {
                    while client.outstanding() < 64 {
                        client.submit(space, &read).unwrap();
                    }
                    client.progress(Duration::from_secs(1)).unwrap();
                    while let Some(completion) = client.poll() {
                        assert_eq!(completion.outcome, Ok(Value::Bytes(4096)));
                    }
                }
            })
        })
        .collect();
    let mut random = Random::new(9);
    for n in 0..3000 {
        // One after the other, in a fixed order, in any order, and one alone.
        let index = match n / 1000 {
            0 => n * 7 % clients.len(),
            1 => random.below(clients.len() as u64) as usize,
            _ => 30,
        };
        let mut bytes = [0; 48];
        let read = clients[index].read_into(SpaceId(index as u64), BASE, &mut bytes);
        read.unwrap();
        assert_eq!(bytes, [index as u8; 48]);
    }
    stop.store(true, Ordering::Relaxed);
    floods.into_iter().for_each(|flood| flood.join().unwrap());
    let (counters, _) = node.stop();
    assert_eq!(counters.cut_off, 0, "{:?}", counters.last_violation);
}

/// A source whose worker the test can hold up.
struct Held {
    source: ShmSource,
    shared: Arc<Hold>,
}

#[derive(Default)]
struct Hold {
    is_held: AtomicBool,
    is_holding: AtomicBool,
    /// Turns in which nothing came.
    idle: AtomicU64,
}

impl Source<Store> for Held {
    fn turn(
        &mut self,
        node: &FairMutex<ProtocolNode<Store>>,
        wait: Duration,
        waiting: Waiting,
    ) -> std::io::Result<Turn> {
        let hold = &self.shared;
        if hold.is_held.load(Ordering::Relaxed) {
            hold.is_holding.store(true, Ordering::Relaxed);
            while hold.is_held.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            return Ok(Turn::default());
        }
        let turn = self.source.turn(node, wait, waiting)?;
        if turn.received == 0 && !wait.is_zero() {
            hold.idle.fetch_add(1, Ordering::Relaxed);
        }
        Ok(turn)
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        Source::<Store>::descriptor(&self.source)
    }
}

#[test]
fn what_came_before_a_node_stops_is_answered_also_if_its_client_was_not_polled() {
    let path = socket_path();
    let shared = Arc::new(Hold::default());
    let held = Held {
        source: ShmSource::listen(&path, 1, None).unwrap(),
        shared: shared.clone(),
    };
    let node = ProtocolNode::new(node_config(), store());
    let sources: Vec<Sources> = vec![vec![Box::new(held)]];
    let service = Service::with_sources(node, sources, Waiting::Asleep).unwrap();
    let mut client = Client::connect(&path, &PATIENT).unwrap();
    alloc(&mut client, SpaceId(1), 4096);
    let idle = shared.idle.load(Ordering::Relaxed);
    while shared.idle.load(Ordering::Relaxed) < idle + 3 {
        thread::yield_now();
    }
    shared.is_held.store(true, Ordering::Relaxed);
    while !shared.is_holding.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    let add = Operation::FetchAdd {
        address: BASE,
        add: 1,
        guard: None,
    };
    client.submit(SpaceId(1), &add).unwrap();
    client.progress(Duration::ZERO).unwrap();
    let stopped = thread::spawn(move || service.stop().map(drop));
    // The time in which it is told to stop.
    thread::sleep(Duration::from_millis(300));
    shared.is_held.store(false, Ordering::Relaxed);
    stopped.join().unwrap().unwrap();
    assert_eq!(finish(&mut client)[0].outcome, Ok(Value::Old(0)));
}
