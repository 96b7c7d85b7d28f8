//! Measures remote memory over the frames of a veth pair, beside what the same ports do without it.
//!
//! ```text
//! sudo -E cargo run --release -p tare-farmem --example xdp_latency [ORDER…]
//! ```
//!
//! It makes two network namespaces with a cable between them, which go away with it. For each
//! order, 2^ORDER pages of 4 KiB: reads of 16 bytes, one at a time, each verified, in random order
//! of the pages; beside it frames as long, to and fro through the same two ports without client and
//! node. The two sides take turns of 80 ms, served by the same threads, which ask again and again.
//! Figures are medians over the turns; the ratio is the median of the ratios of neighbouring turns,
//! with its quartiles. `KIND=packet` measures packet sockets.

use std::hint::black_box;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{PageSize, Permission, SpaceId};
use tare_farmem::protocol::{
    Client, ClientConfig, Node, NodeConfig, REQUEST_HEADER, RESPONSE_HEADER,
};
use tare_farmem::serve::{FairMutex, Service, Source, Turn, XdpSource};
use tare_farmem::session::Session;
use tare_farmem::transport::xdp::{XdpAddress, XdpLink, XdpStation};
use tare_farmem::transport::{Remote, Waiting};
use tare_packet::{ethernet, ipv4, udp};
use tare_port::namespaces::Namespaces;
use tare_port::Kind;

use turns::{median, TURN, TURNS};

#[path = "udp_latency/turns.rs"]
mod turns;

const PAGE: u64 = 4096;
const BASE: u64 = 0x4000_0000;
const NODE: &str = "10.79.0.1:7311";
const CLIENT: &str = "10.79.0.2:50000";
/// The kind of raw frames (IEEE 802: for experiments), which no station of farmem takes.
const KIND: u16 = 0x88b5;
/// Bytes in front of a datagram.
const HEADERS: usize = ethernet::HEADER + ipv4::HEADER + udp::HEADER;
const REQUEST: usize = HEADERS + REQUEST_HEADER;
const RESPONSE: usize = HEADERS + RESPONSE_HEADER + 16;

fn main() {
    let mut orders: Vec<u32> = std::env::args()
        .skip(1)
        .map(|order| order.parse().expect("an order, such as 20"))
        .collect();
    if orders.is_empty() {
        orders = vec![7, 20];
    }
    let kind = match std::env::var("KIND").as_deref() {
        Ok("packet") => Kind::Packet,
        _ => Kind::Auto,
    };
    let spaces = match Namespaces::new("farmem", &["node", "client"]) {
        Ok(spaces) => spaces,
        Err(why) => return eprintln!("not testable: {why}"),
    };
    spaces.cable(["node", "client"], ["net", "net"]);
    for order in orders {
        Bench::new(&spaces, order, kind).run();
    }
}

/// The source of the node's only worker: the node, or the other end of raw frames.
struct Either {
    is_raw: Arc<AtomicBool>,
    node: XdpSource,
}

impl Source<Store> for Either {
    fn turn(
        &mut self,
        node: &FairMutex<Node<Store>>,
        wait: Duration,
        waiting: Waiting,
    ) -> io::Result<Turn> {
        if !self.is_raw.load(Ordering::Relaxed) {
            return self.node.turn(node, wait.min(TURN / 20), waiting);
        }
        let port = self.node.station_mut().port_mut();
        // As long as a worker that has work stays with its source.
        for _ in 0..64 {
            let mut answer = [7; RESPONSE];
            let mut is_raw = false;
            port.receive(1, |frame| {
                is_raw = ethernet::kind(frame) == Some(KIND);
                answer[..6].copy_from_slice(&frame[6..12]);
                answer[6..12].copy_from_slice(&frame[..6]);
                answer[12..14].copy_from_slice(&frame[12..14]);
            })?;
            if is_raw && port.put(RESPONSE, |place| place.copy_from_slice(&answer)) {
                port.send()?;
            }
        }
        Ok(Turn::default())
    }
}

struct Bench {
    order: u32,
    is_raw: Arc<AtomicBool>,
    service: Service<Store>,
    session: Session<Remote<XdpLink>>,
    /// The addresses of raw frames.
    link: [u8; ethernet::HEADER],
    random: u64,
}

impl Bench {
    fn new(spaces: &Namespaces, order: u32, kind: Kind) -> Bench {
        let open = |place: &str, address: &str| {
            let at: XdpAddress = format!("net,{address}").parse().expect("an address");
            spaces.within(place, || XdpStation::open(&at, kind).expect("a port"))
        };
        let ((there, opened), (here, _)) = (open("node", NODE), open("client", CLIENT));
        println!("2^{order} pages, {}", opened.kind);
        let mac = |place: &str| {
            let mac = || tare_port::Interface::by_name("net").map(|net| net.mac().ok());
            spaces
                .within(place, mac)
                .expect("an interface")
                .expect("a MAC address")
        };
        let link = ethernet::header(mac("node"), mac("client"), KIND);
        let is_raw = Arc::new(AtomicBool::new(false));
        let source = Either {
            is_raw: Arc::clone(&is_raw),
            node: XdpSource::new(there),
        };
        let config = NodeConfig {
            timeout: Duration::from_secs(2),
            bytes_per_second: 100_000_000,
            ..NodeConfig::new(1)
        };
        let pages = 1u64 << order;
        let store = Store::new(&Config::new((pages * PAGE).max(64 << 20)));
        let sources: Vec<Vec<Box<dyn Source<Store>>>> = vec![vec![Box::new(source)]];
        let service = Service::with_sources(Node::new(config, store), sources, Waiting::Busy);
        let client = Client::new(ClientConfig {
            timeout: Duration::from_secs(2),
            ..ClientConfig::new(1)
        });
        let node: SocketAddr = NODE.parse().expect("an address");
        let channel = Remote::new(client, XdpLink::new(here, node, Waiting::Busy));
        let mut session = Session::new(channel, SpaceId(1));
        session.open().expect("a space");
        let (page, permission) = (PageSize::Small, Permission::READ_WRITE);
        for at in (0..pages).step_by(1 << 18) {
            let bytes = (pages - at).min(1 << 18) * PAGE;
            let part = session.alloc_with(bytes, page, Some(BASE + at * PAGE), permission, false);
            part.expect("memory");
        }
        for page in 0..pages {
            let written = session.write(BASE + page * PAGE, &content(page));
            written.expect("a write");
        }
        Bench {
            order,
            is_raw,
            service: service.expect("a thread"),
            session,
            link,
            random: 1,
        }
    }

    fn run(mut self) {
        let mut samples = Vec::new();
        self.reads();
        self.ping_pong();
        for _ in 0..TURNS {
            let (read, raw) = (self.reads(), self.ping_pong());
            samples.push([read / raw, read, raw]);
        }
        let middle = |of: usize, at: usize| {
            let mut sorted: Vec<f64> = samples.iter().map(|sample| sample[of]).collect();
            sorted.sort_by(f64::total_cmp);
            sorted[sorted.len() * at / 4]
        };
        println!(
            "  round trip {:8.1} / {:8.1} = {:6.3} [{:.3}, {:.3}]   (ns)",
            middle(1, 2),
            middle(2, 2),
            middle(0, 2),
            middle(0, 1),
            middle(0, 3)
        );
        println!("  {:?}", self.session.channel().link().station().counters());
        println!("  {:?}", self.service.work()[0]);
    }

    fn next_page(&mut self) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 31)) & ((1 << self.order) - 1)
    }

    /// The median time of a synchronous read of 16 bytes.
    fn reads(&mut self) -> f64 {
        self.is_raw.store(false, Ordering::Relaxed);
        median(|| {
            let page = self.next_page();
            let mut bytes = [0; 16];
            let read = self.session.read(BASE + page * PAGE, &mut bytes);
            read.expect("a read");
            assert_eq!(bytes, content(page));
        })
    }

    /// The median time of a round trip of frames of the same size.
    fn ping_pong(&mut self) -> f64 {
        self.is_raw.store(true, Ordering::Relaxed);
        let mut request = [7; REQUEST];
        request[..ethernet::HEADER].copy_from_slice(&self.link);
        median(|| {
            black_box(self.next_page());
            let port = self.session.channel_mut().link_mut().station_mut();
            let port = port.port_mut();
            let send = |port: &mut tare_port::Exclusive| {
                assert!(port.put(REQUEST, |place| place.copy_from_slice(&request)));
                port.send().expect("the port");
            };
            send(port);
            let mut len = 0;
            let mut looks = 0u32;
            while len == 0 {
                let see = |frame: &[u8]| {
                    if ethernet::kind(frame) == Some(KIND) {
                        len = frame.len();
                    }
                };
                port.receive(1, see).expect("the port");
                looks += 1;
                // The other side may have been at the end of its turn.
                if looks.is_multiple_of(1 << 16) {
                    send(port);
                }
            }
            assert_eq!(len, RESPONSE);
        })
    }
}

fn content(page: u64) -> [u8; 16] {
    let mut bytes = [0x5a; 16];
    bytes[..8].copy_from_slice(&page.to_le_bytes());
    bytes
}
