//! Measures remote memory over UDP on the loopback interface, beside what the same sockets do
//! without it.
//!
//! ```text
//! GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
//!     cargo run --release -p tare-farmem --example udp_latency [ORDER…]
//! ```
//!
//! For each order, 2^ORDER pages of 4 KiB with a frame of their own:
//! - `round trip`: reads of 16 bytes, one at a time, each verified, in random order of the pages;
//!   beside it the same datagrams (72 bytes there, 64 back) without client and node, between
//!   sockets without any option. Busy and asleep.
//! - `floor`: such round trips beside those of the same datagrams to a server that looks the
//!   address up in the same memory and returns what is there, and does nothing else; and these
//!   beside `round trip`'s reference, which is what the memory costs.
//! - `sessions`: from 1 to 1000 and from 1000 to 100,000 with a page each, of a socket each up to
//!   1000 and of 64 sockets above, beside as many sockets of the raw ping-pong in the same turns.
//!   With 2^7 pages only. It needs 2100 descriptors (`ulimit -n`).
//! - `1 / 16 x 8`: a synchronous read beside the same reads, 16 in a datagram, 8 datagrams on the
//!   way; `1 / 64 x 32` likewise.
//! - `64 KiB`: reads and writes of so many bytes; beside them a stream of bytes in one direction,
//!   also with UDP_SEGMENT and UDP_GRO. Of what is read, the first bytes of each page are verified
//!   as they come, and all bytes of the same ranges after the turn, outside of its time; all that
//!   was written is read back and verified in the same way.
//!
//! The two sides of a comparison take turns of 80 ms, served by the same thread. Figures are
//! medians over the turns; the ratio is the median of the ratios of neighbouring turns, with its
//! quartiles. `ONLY` is a part of the names of the comparisons to be made, `PROFILE` names one side
//! to be run alone, `OUT` sets the operations of 64 KiB outstanding (8), `DATAGRAM` the bytes of
//! datagrams (1472).

mod sessions;
mod turns;

use std::hint::black_box;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use rustix::net::{recv, recvfrom, send, sendto, RecvFlags, SendFlags};
use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{Operation, SpaceId};
use tare_farmem::protocol::{ClientConfig, Node, NodeConfig, OwnedWrite};
use tare_farmem::serve::{FairMutex, Service, Source, Turn, UdpSource};
use tare_farmem::session::{connect, Options, Session};
use tare_farmem::transport::Waiting;
use turns::{median, TURN, TURNS};

const PAGE: u64 = 4096;
const REQUEST: usize = 72;
const RESPONSE: usize = 64;
const BULK: usize = 64 << 10;
const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// A run of datagrams of the raw stream: as many of 1472 bytes as fit.
const RUN: usize = 1472 * 44;

fn main() {
    let mut orders: Vec<u32> = std::env::args()
        .skip(1)
        .map(|order| order.parse().expect("an order, such as 20"))
        .collect();
    if orders.is_empty() {
        orders = vec![7, 20];
    }
    for order in orders {
        for waiting in [Waiting::Busy, Waiting::Asleep] {
            Bench::new(order, waiting).run();
        }
    }
}

/// The source of the node's only worker: the node, or one of the references.
struct Either {
    role: Arc<AtomicU8>,
    node: UdpSource,
    /// The socket of the ping-pong, without any option, and that of the stream.
    echo: UdpSocket,
    sink: UdpSocket,
    /// Bytes of the raw stream that came.
    streamed: Arc<AtomicU64>,
    buffer: Vec<u8>,
    answer: Vec<u8>,
}

impl Source<Store> for Either {
    fn turn(
        &mut self,
        node: &FairMutex<Node<Store>>,
        wait: Duration,
        waiting: Waiting,
    ) -> io::Result<Turn> {
        let flags = match waiting {
            Waiting::Busy => RecvFlags::DONTWAIT,
            _ => RecvFlags::empty(),
        };
        let role = self.role.load(Ordering::Relaxed);
        let socket = match role {
            NODE => return self.node.turn(node, wait.min(TURN / 20), waiting),
            ECHO => &self.echo,
            _ => &self.sink,
        };
        // As long as a worker that has work stays with its source.
        for _ in 0..64 {
            match recvfrom(socket, &mut self.buffer[..], flags) {
                Ok((_, _, Some(from))) if role == ECHO && self.buffer[0] == FLOOR => {
                    let words = self.buffer.as_chunks().0;
                    let (space, address) =
                        (u64::from_le_bytes(words[1]), u64::from_le_bytes(words[6]));
                    self.answer.truncate(RESPONSE - 16);
                    let node = node.lock();
                    let read = (node.store()).read(SpaceId(space), address, 16, &mut self.answer);
                    drop(node);
                    read.expect("memory");
                    sendto(socket, &self.answer, SendFlags::empty(), &from)?;
                }
                Ok((_, _, Some(from))) if role == ECHO => {
                    let answer = &self.buffer[..RESPONSE];
                    sendto(socket, answer, SendFlags::empty(), &from)?;
                }
                Ok((_, len, _)) => {
                    self.streamed.fetch_add(len as u64, Ordering::Relaxed);
                }
                Err(_) if waiting == Waiting::Busy => {}
                Err(_) => break,
            }
        }
        Ok(Turn::default())
    }
}

/// The roles of the worker.
const NODE: u8 = 0;
const ECHO: u8 = 1;
const SINK: u8 = 2;

/// The first byte of a datagram that asks for memory.
const FLOOR: u8 = 8;

struct Bench {
    order: u32,
    waiting: Waiting,
    role: Arc<AtomicU8>,
    streamed: Arc<AtomicU64>,
    service: Service<Store>,
    address: SocketAddr,
    echo: UdpSocket,
    stream: UdpSocket,
    session: Session,
    base: u64,
    random: u64,
    /// The number of times that each range of 64 KiB was written, modulo 256: few bytes, because
    /// they are looked up within the time of a read.
    versions: Vec<u8>,
}

impl Bench {
    fn new(order: u32, waiting: Waiting) -> Bench {
        let pages = 1u64 << order;
        let store = Store::new(&Config::new((pages * PAGE).max(512 << 20)));
        let node = UdpSource::bind(ANY).expect("a socket");
        let address = node.local_addr().expect("an address");
        let (echo, echo_here) = pair();
        let (sink, stream) = pair();
        setsockopt(&sink, sockopt::UdpGroSegment, &true).expect("Linux 5.0");
        setsockopt(&stream, sockopt::UdpGsoSegment, &1472).expect("Linux 4.18");
        let room = rustix::net::sockopt::set_socket_recv_buffer_size(&sink, 4 << 20);
        room.expect("room");
        let (role, streamed) = (Arc::new(AtomicU8::new(NODE)), Arc::default());
        let source = Either {
            role: Arc::clone(&role),
            node,
            echo,
            sink,
            streamed: Arc::clone(&streamed),
            buffer: vec![0; 1 << 16],
            answer: vec![0; RESPONSE],
        };
        let config = NodeConfig {
            timeout: Duration::from_secs(2),
            bytes_per_second: 100_000_000,
            datagram_bytes: datagram_bytes(),
            ..NodeConfig::new(1)
        };
        let node = Node::new(config, store);
        let sources: Vec<Vec<Box<dyn Source<Store>>>> = vec![vec![Box::new(source)]];
        let service = Service::with_sources(node, sources, waiting).expect("threads");
        let client = ClientConfig {
            timeout: Duration::from_secs(2),
            datagram_bytes: Some(datagram_bytes()),
            ..ClientConfig::new(1)
        };
        let options = Options {
            waiting,
            client: Some(client),
            ..Options::default()
        };
        let mut session = connect(&format!("udp://{address}"), &options).expect("a session");
        session.open().expect("a space");
        let mut base = 0;
        for at in (0..pages).step_by(1 << 18) {
            let bytes = (pages - at).min(1 << 18) * PAGE;
            let part = 0x4000_0000 + at * PAGE;
            let permission = tare_farmem::operation::Permission::READ_WRITE;
            let page = tare_farmem::operation::PageSize::Small;
            let part = session.alloc_with(bytes, page, Some(part), permission, false);
            let part = part.expect("memory");
            base = if at == 0 { part } else { base };
        }
        let mut bench = Bench {
            order,
            waiting,
            role,
            streamed,
            service,
            address,
            echo: echo_here,
            stream,
            session,
            base,
            random: 1,
            versions: vec![0; (pages * PAGE).div_ceil(BULK as u64) as usize],
        };
        bench.fill();
        bench
    }

    /// Writes all pages.
    fn fill(&mut self) {
        let bytes = (1u64 << self.order) * PAGE;
        let mut data = pattern();
        for place in 0..bytes.div_ceil(BULK as u64) {
            stamp(&mut data, place, 0);
            let len = (bytes - place * BULK as u64).min(BULK as u64) as usize;
            let address = self.base + place * BULK as u64;
            self.session.write(address, &data[..len]).expect("a write");
        }
    }

    /// Returns the first bytes of a page as they should be.
    fn content(&self, page: u64) -> [u8; 16] {
        content(page, self.versions[(page * PAGE) as usize / BULK])
    }

    /// Reads ranges of 64 KiB and verifies every byte.
    fn verify(&mut self, mut places: Vec<u64>) {
        places.sort_unstable();
        places.dedup();
        // As many as take about as long as a turn.
        let step = places.len().div_ceil(VERIFIED_MAX).max(1);
        let (mut expected, mut found) = (pattern(), vec![0; BULK]);
        for place in places.into_iter().step_by(step) {
            stamp(&mut expected, place, self.versions[place as usize]);
            let address = self.base + place * BULK as u64;
            self.session.read(address, &mut found).expect("a read");
            assert!(found == expected, "range {place} has other bytes");
        }
    }

    fn run(mut self) {
        let (order, waiting) = (self.order, self.waiting);
        println!("2^{order} pages, {waiting:?}");
        if let Ok(what) = std::env::var("PROFILE") {
            if waiting != Waiting::Busy {
                return;
            }
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(3) {
                let figure = match &what[..] {
                    "reads" => self.reads(),
                    "raw" => self.ping_pong(),
                    "coalesced" => self.coalesced(16, 8),
                    "bulk_reads" => self.bulk_reads(),
                    "bulk_writes" => self.bulk_writes(),
                    _ => self.stream(),
                };
                print!("{figure:.1} ");
            }
            println!("{:?}", self.service.with_node(|node| node.counters()));
            println!("{:?}", self.service.work()[0]);
            return;
        }
        let only = std::env::var("ONLY").unwrap_or_default();
        type Side = fn(&mut Bench) -> f64;
        let all: [(&str, Side, Side, &str); 7] = [
            ("round trip", Bench::reads, Bench::ping_pong, "ns"),
            ("floor", Bench::reads, Bench::floor, "ns"),
            ("floor / raw", Bench::floor, Bench::ping_pong, "ns"),
            (
                "1 / 16 x 8",
                Bench::reads,
                |b| b.coalesced(16, 8),
                "ns per read",
            ),
            (
                "1 / 64 x 32",
                Bench::reads,
                |b| b.coalesced(64, 32),
                "ns per read",
            ),
            ("64 KiB reads", Bench::bulk_reads, Bench::stream, "Gb/s"),
            ("64 KiB writes", Bench::bulk_writes, Bench::stream, "Gb/s"),
        ];
        for (name, left, right, unit) in all {
            if name.contains(&only) && (order >= 4 || !name.starts_with("64")) {
                let result = self.compare(left, right);
                println!("  {name:13} {result}   ({unit})");
            }
        }
        if "sessions".contains(&only) && order == 7 && waiting == Waiting::Busy {
            sessions::compare(&mut self, 1, 1000);
            sessions::compare(&mut self, 1000, 100_000);
        }
        let work = self.service.work();
        println!("  {:?}", self.service.with_node(|node| node.counters()));
        println!("  {:?}", work[0]);
    }

    fn compare(
        &mut self,
        mut left: impl FnMut(&mut Bench) -> f64,
        mut right: impl FnMut(&mut Bench) -> f64,
    ) -> String {
        let mut samples = Vec::new();
        left(self);
        right(self);
        for _ in 0..TURNS {
            let pair = (left(self), right(self));
            samples.push((pair.0 / pair.1, pair.0, pair.1));
        }
        let figure = |by: fn(&(f64, f64, f64)) -> f64| quartiles(samples.iter().map(by).collect());
        let ([_, left, _], [_, right, _]) = (figure(|s| s.1), figure(|s| s.2));
        let [from, ratio, to] = figure(|s| s.0);
        format!("{left:8.1} / {right:8.1} = {ratio:6.3} [{from:.3}, {to:.3}]")
    }

    fn next_page(&mut self) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 31)) & ((1 << self.order) - 1)
    }

    /// The median time of a synchronous read of 16 bytes.
    fn reads(&mut self) -> f64 {
        self.play(NODE);
        median(|| {
            let page = self.next_page();
            let mut bytes = [0; 16];
            let address = self.base + page * PAGE;
            self.session.read(address, &mut bytes).expect("a read");
            assert_eq!(bytes, self.content(page));
        })
    }

    /// The median time of a round trip of datagrams of the same size.
    fn ping_pong(&mut self) -> f64 {
        self.play(ECHO);
        median(|| {
            black_box(self.next_page());
            self.round_trip(&self.echo);
        })
    }

    /// The median time of a read of 16 bytes without client and node.
    fn floor(&mut self) -> f64 {
        self.play(ECHO);
        let mut request = [FLOOR; REQUEST];
        request[8..16].copy_from_slice(&self.session.space().0.to_le_bytes());
        median(|| {
            let page = self.next_page();
            request[48..56].copy_from_slice(&(self.base + page * PAGE).to_le_bytes());
            let answer = self.exchange(&self.echo, &request);
            assert_eq!(answer[RESPONSE - 16..], self.content(page));
        })
    }

    /// Lets the worker play a role.
    fn play(&self, role: u8) {
        self.role.store(role, Ordering::Relaxed);
    }

    /// One round trip of the raw ping-pong.
    fn round_trip(&self, socket: &UdpSocket) {
        self.exchange(socket, &[7; REQUEST]);
    }

    fn exchange(&self, socket: &UdpSocket, request: &[u8]) -> [u8; RESPONSE] {
        let mut answer = [0; RESPONSE];
        send(socket, request, SendFlags::empty()).expect("a send");
        let flags = match self.waiting {
            Waiting::Busy => RecvFlags::DONTWAIT,
            _ => RecvFlags::empty(),
        };
        loop {
            match recv(socket, &mut answer, flags) {
                Ok((_, len)) => {
                    assert_eq!(len, RESPONSE);
                    return answer;
                }
                Err(error) => assert_eq!(error, rustix::io::Errno::AGAIN),
            }
        }
    }

    /// The time per read, `outstanding` datagrams of `per_datagram` reads on the way.
    fn coalesced(&mut self, per_datagram: usize, outstanding: usize) -> f64 {
        self.play(NODE);
        let (start, mut reads, mut waiting) = (Instant::now(), 0u64, 0);
        // Ids are consecutive, so that they tell the page.
        let mut pages = [0; 1 << 12];
        loop {
            while waiting <= per_datagram * (outstanding - 1) {
                for _ in 0..per_datagram {
                    let page = self.next_page();
                    let address = self.base + page * PAGE;
                    let read = Operation::Read { address, len: 16 };
                    let id = self.session.submit(&read).expect("room");
                    pages[id.0 as usize % (1 << 12)] = page;
                }
                waiting += per_datagram;
            }
            while let Some(ended) = self.session.poll(TURN).expect("an end") {
                ended.outcome.expect("a read");
                let page = pages[ended.id.0 as usize % (1 << 12)];
                // Two words, because bytes that were just written one by one are slow to compare.
                let (words, expected) = (ended.data.as_chunks().0, self.content(page));
                let expected = expected.as_chunks().0;
                let is_same =
                    |n: usize| u64::from_le_bytes(words[n]) == u64::from_le_bytes(expected[n]);
                assert!(words.len() == 2 && is_same(0) && is_same(1));
                self.session.release(ended);
                (reads, waiting) = (reads + 1, waiting - 1);
                if waiting <= per_datagram * (outstanding - 1) {
                    break;
                }
            }
            if start.elapsed() >= TURN {
                let elapsed = start.elapsed().as_nanos() as f64;
                self.drain();
                return elapsed / reads as f64;
            }
        }
    }

    fn drain(&mut self) {
        while self.session.outstanding() > 0 {
            let ended = self.session.poll(TURN).expect("no error");
            ended
                .into_iter()
                .for_each(|ended| self.session.release(ended));
        }
    }

    fn bulk_reads(&mut self) -> f64 {
        self.bulk(false)
    }

    fn bulk_writes(&mut self) -> f64 {
        self.bulk(true)
    }

    /// Gigabits per second of operations on 64 KiB, eight of them outstanding.
    fn bulk(&mut self, is_write: bool) -> f64 {
        self.play(NODE);
        let outstanding = std::env::var("OUT").map_or(8, |out| out.parse().expect("a number"));
        let places = ((1u64 << self.order) * PAGE) / BULK as u64;
        let mut spare: Vec<Vec<u8>> = Vec::new();
        let mut used = Vec::with_capacity(1 << 16);
        // Ids are consecutive, so that they tell the range.
        let mut recent = [0; 1 << 12];
        let (start, mut bytes) = (Instant::now(), 0u64);
        while start.elapsed() < TURN {
            while self.session.outstanding() < outstanding {
                let place = self.next_page() % places;
                let address = self.base + place * BULK as u64;
                let id = if is_write {
                    let version = &mut self.versions[place as usize];
                    *version = version.wrapping_add(1);
                    let mut data = spare.pop().unwrap_or_else(pattern);
                    stamp(&mut data, place, *version);
                    let write = OwnedWrite {
                        address,
                        data,
                        guard: None,
                    };
                    self.session
                        .submit_write(write)
                        .map_err(|(e, _)| e)
                        .expect("room")
                } else {
                    let len = BULK as u32;
                    self.session
                        .submit(&Operation::Read { address, len })
                        .expect("room")
                };
                recent[id.0 as usize % (1 << 12)] = place;
                used.push(place);
            }
            if let Some(ended) = self.session.poll(TURN).expect("an end") {
                ended.outcome.expect("success");
                bytes += BULK as u64;
                let place = recent[ended.id.0 as usize % (1 << 12)];
                if is_write {
                    spare.push(ended.data);
                    continue;
                }
                for (page, found) in (place * 16..).zip(ended.data.chunks(PAGE as usize)) {
                    assert_eq!(found[..16], self.content(page));
                }
                self.session.release(ended);
            }
        }
        let elapsed = start.elapsed().as_nanos() as f64;
        self.drain();
        self.verify(used);
        bytes as f64 * 8.0 / elapsed
    }

    /// Gigabits per second of a stream of datagrams in one direction, as far as they arrive.
    fn stream(&mut self) -> f64 {
        self.play(SINK);
        let data = vec![3; RUN];
        let before = self.streamed.load(Ordering::Relaxed);
        let start = Instant::now();
        while start.elapsed() < TURN {
            let _ = send(&self.stream, &data, SendFlags::empty());
        }
        let elapsed = start.elapsed().as_nanos() as f64;
        let bytes = self.streamed.load(Ordering::Relaxed) - before;
        // What is still in the queue must not be counted for the next turn.
        std::thread::sleep(Duration::from_millis(2));
        bytes as f64 * 8.0 / elapsed
    }
}

/// The quartiles of samples.
fn quartiles(mut samples: Vec<f64>) -> [f64; 3] {
    samples.sort_by(f64::total_cmp);
    [1, 2, 3].map(|at| samples[samples.len() * at / 4])
}

/// A socket of the worker, and one that is connected with it.
fn pair() -> (UdpSocket, UdpSocket) {
    let there = UdpSocket::bind(ANY).expect("a socket");
    let timeout = Some(Duration::from_millis(4));
    there.set_read_timeout(timeout).expect("a time-out");
    let here = UdpSocket::bind(ANY).expect("a socket");
    let address = there.local_addr().expect("an address");
    here.connect(address).expect("a socket");
    (there, here)
}

fn datagram_bytes() -> usize {
    std::env::var("DATAGRAM").map_or(1472, |bytes| bytes.parse().expect("a number"))
}

/// Ranges of 64 KiB that are verified after a turn at most, spread over all.
const VERIFIED_MAX: usize = 2048;

/// Returns 64 KiB of which each word is another one.
fn pattern() -> Vec<u8> {
    let words = (0..BULK as u64 / 8).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Writes what tells a range and its version apart from others into the pages of a pattern.
fn stamp(data: &mut [u8], place: u64, version: u8) {
    for (page, bytes) in (place * 16..).zip(data.chunks_mut(PAGE as usize)) {
        bytes[..16].copy_from_slice(&content(page, version));
    }
}

fn content(page: u64, version: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&page.to_le_bytes());
    bytes[8..].fill(version);
    bytes
}
