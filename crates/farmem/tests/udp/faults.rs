//! Loss, duplication, reordering, restarts of the node and killed clients.

use std::cell::Cell;
use std::io::{self, BufRead as _, BufReader};
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{ipproto, AddressFamily, SendFlags, SocketType};
use tare_farmem::operation::{Operation, SpaceId};
use tare_farmem::protocol::{Client, ClientConfig, Datagrams, Failure, Node, NodeConfig};
use tare_farmem::serve::{Service, ServiceConfig};
use tare_farmem::session::{connect, random_id, Error, Options, Session};
use tare_farmem::transport::{Channel, Faults, Link, Remote, Shared, UdpLink, Waiting};

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

/// The next call of a link that fails, though what it was to do has been done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Send,
    Receive,
}

/// A link with a call that fails.
struct Failing {
    link: UdpLink,
    next: Rc<Cell<Option<Broken>>>,
}

impl Failing {
    fn end(&self, call: Broken) -> io::Result<()> {
        if self.next.get() != Some(call) {
            return Ok(());
        }
        self.next.set(None);
        Err(io::Error::other("made by a test"))
    }
}

impl Link for Failing {
    fn send(&mut self, datagrams: &Datagrams) -> io::Result<()> {
        self.link.send(datagrams)?;
        self.end(Broken::Send)
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<usize> {
        let len = self.link.receive(buffer, wait)?;
        self.end(Broken::Receive)?;
        Ok(len)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }
}

#[test]
fn after_an_error_of_the_link_no_operation_gets_the_outcome_of_another() {
    let service = service(ANY, 1);
    let link = || {
        let next = Rc::new(Cell::new(None));
        let link = UdpLink::connect(service.address().unwrap(), Waiting::Asleep).unwrap();
        let failing = Failing {
            link,
            next: Rc::clone(&next),
        };
        (failing, next)
    };
    let client = || Client::new(options().client.unwrap());
    for (space, broken) in [(SpaceId(1), Broken::Send), (SpaceId(2), Broken::Receive)] {
        let (failing, next) = link();
        let remote = Session::new(Remote::new(client(), failing), space);
        add_around_an_error(remote, &next, broken);
        let (failing, next) = link();
        let shared = Shared::new(failing);
        let member = shared.join(space, client()).unwrap();
        add_around_an_error(Session::new(member, space), &next, broken);
    }
}

fn add_around_an_error<C: Channel>(
    mut session: Session<C>,
    next: &Cell<Option<Broken>>,
    broken: Broken,
) {
    session.open().unwrap();
    let counter = session.alloc(4096).unwrap();
    assert_eq!(session.fetch_add(counter, 1).unwrap(), 0);
    next.set(Some(broken));
    let failed = session.fetch_add(counter, 10);
    assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
    assert_eq!(session.fetch_add(counter, 100).unwrap(), 11);
    assert_eq!(session.fetch_add(counter, 0).unwrap(), 111);
    assert_eq!(session.outstanding(), 0);
    assert!(session.poll(Duration::ZERO).unwrap().is_none());
    session.close().unwrap();
}

/// A message of ICMP that says why a datagram of a client to its node did not arrive.
fn unreachable(kind: u8, code: u8, client: SocketAddrV4, node: SocketAddrV4) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0, 0, 0, 0, 0];
    message.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    message.extend(client.ip().octets());
    message.extend(node.ip().octets());
    message.extend(client.port().to_be_bytes());
    message.extend(node.port().to_be_bytes());
    message.extend([0, 8, 0, 0]);
    let words = message.as_chunks::<2>().0.iter();
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

#[test]
fn messages_of_icmp_end_no_session() {
    let raw = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP));
    let Ok(raw) = raw else {
        println!("NOT TESTED: only root may send messages of ICMP");
        return;
    };
    let service = service(ANY, 1);
    let (SocketAddr::V4(node), waiting) = (service.address().unwrap(), Waiting::Asleep) else {
        panic!("an address of IPv4")
    };
    let link = UdpLink::connect(node.into(), waiting).unwrap();
    let SocketAddr::V4(own) = link.local_addr().unwrap() else {
        panic!("an address of IPv4")
    };
    let client = Client::new(options().client.unwrap());
    let mut session = Session::new(Remote::new(client, link), SpaceId(1));
    session.open().unwrap();
    let counter = session.alloc(4096).unwrap();
    // Protocol, port and network unreachable, a host alone, a source route, wrong parameters.
    for (round, (kind, code)) in [(3, 2), (3, 3), (3, 6), (3, 8), (3, 5), (12, 0)]
        .into_iter()
        .enumerate()
    {
        let message = unreachable(kind, code, own, node);
        let send = || rustix::net::sendto(&raw, &message, SendFlags::empty(), &own).unwrap();
        send();
        let old = session.fetch_add(counter, 1);
        assert_eq!(old.unwrap(), round as u64, "{kind}, {code}");
        // While it waits too, and many in succession.
        for _ in 0..2000 {
            send();
        }
        let mut bytes = [0; 8];
        session.read(counter, &mut bytes).unwrap();
    }
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
        let guard = heir
            .lock_within(0x4000_0000, 60 * SECOND, 60 * SECOND)
            .unwrap();
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
