//! The software benchmark: two gateways in one process, back to back, with nothing between them but
//! this machine's caches.
//!
//! Every packet is made (copied from a template), sealed by the first gateway, opened by the
//! second, compared with what it was made from, and counted. What must come out is the same packet,
//! with a TTL that two hops have decremented and the right header checksum.

mod cipher;
mod through;

use std::sync::{Arc, Mutex, PoisonError};

use ipnet::{IpNet, Ipv4Net};
use tare_gcm::Key;
use tare_memory::Shared;
use tare_packet::ethernet::{self, HEADER};
use tare_packet::{checksum, ipv4, protocol};
use tare_port::{Burst, Layout, Pool, BURST};
use tare_sim::Instant;

pub use cipher::Cipher;
pub use through::Through;

use crate::dataplane::{
    BoundTables, Dataplane, InboundSa, InterfaceView, OutboundSa, Outer, Output, Prefixes, Route,
    SequenceMode, SpiTable, Tables, TrafficCounters, WorkerGroup, WorkerId, WINDOW_DEFAULT,
};

/// The parameters of a benchmark.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Bytes of each packet of the mix, with Ethernet header; they come in turn.
    pub sizes: Vec<u16>,
    /// Routes, which packets take in turn, each with keys of its own; up to [`ROUTES_MAX`].
    pub routes: usize,
    /// Bytes of a key: 16 or 32.
    pub key_bytes: usize,
    /// The width of sequence numbers.
    pub sequence_mode: SequenceMode,
    /// Workers, each of which has an outbound SA of its own for every route.
    pub workers: usize,
}

/// The work that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Everything: packets are made, sealed, opened, compared and counted.
    Gateway,
    /// They are only sealed and opened, in place.
    Cipher,
    /// They are only made, compared and counted: the benchmark's own share.
    Tester,
    /// Everything, by whole gateways: [`Bench::through`]. There is one worker.
    Worker,
}

impl Subject {
    /// All of them.
    pub const ALL: [Subject; 4] = [
        Subject::Gateway,
        Subject::Cipher,
        Subject::Tester,
        Subject::Worker,
    ];

    /// Returns its name in parameters and arguments.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Gateway => "gateway",
            Subject::Cipher => "cipher",
            Subject::Tester => "tester",
            Subject::Worker => "worker",
        }
    }

    /// Returns the one of this name.
    pub fn by_name(name: &str) -> Option<Subject> {
        Subject::ALL.into_iter().find(|s| s.name() == name)
    }
}

/// A function that processes so many packets.
pub type Step<'a> = Box<dyn FnMut(u64) -> Result<Done, String> + 'a>;

/// The most routes: so many networks of eight addresses are in the block that they are taken from.
pub const ROUTES_MAX: usize = 100_000;

/// The address of the network behind the far end of a route. What comes in there is from addresses
/// that mirror these.
fn net(n: usize) -> u32 {
    0xac12_0000 + (n as u32) * 8
}

const NEAR: u32 = 0xac10_000a;
const FAR: u32 = 0xac11_000a;
const MAC: ethernet::Mac = [2, 0, 0, 0, 0, 0];

/// The tables of both gateways, which all workers share.
pub struct Bench {
    setup: Setup,
    near: Arc<BoundTables>,
    far: Arc<BoundTables>,
    /// A packet of each size of the mix.
    templates: Vec<Template>,
    /// The addresses of the packets of each route.
    flows: Vec<Flow>,
    /// The identities, near and far, of workers that have not begun.
    waiting: Mutex<Vec<[WorkerId; 2]>>,
    /// Packets of a burst.
    burst: usize,
}

impl Bench {
    /// Makes keys, tables and packets.
    ///
    /// # Errors
    /// The system has no random numbers, or AES has no keys of this length.
    pub fn new(setup: &Setup) -> Result<Bench, String> {
        if !(1..=ROUTES_MAX).contains(&setup.routes) {
            let routes = setup.routes;
            return Err(format!("found {routes} routes, expected 1 to {ROUTES_MAX}"));
        }
        let prefix = |address: u32, len| {
            let net = Ipv4Net::new(address.into(), len).map_err(|e| e.to_string());
            net.map(IpNet::V4)
        };
        let mut near = Vec::new();
        let mut inbound = Vec::new();
        let outer = Outer::V4 {
            src: NEAR,
            dst: FAR,
        };
        for n in 0..setup.routes {
            let mut outbound = Vec::new();
            for worker in 0..setup.workers {
                let mut secret = zeroize::Zeroizing::new([0; 36]);
                getrandom::fill(&mut *secret).map_err(|e| format!("no random numbers: {e}"))?;
                let key = &secret[..setup.key_bytes.min(32)];
                let key = || Key::new(key).map_err(|e| e.to_string());
                let salt = [secret[32], secret[33], secret[34], secret[35]];
                let spi = FIRST_SPI + (worker * setup.routes + n) as u32;
                let sa = OutboundSa::new(spi, key()?, salt, setup.sequence_mode, outer);
                outbound.push(Shared::new(sa));
                let window = WINDOW_DEFAULT;
                let sa = InboundSa::new(spi, key()?, salt, setup.sequence_mode, window, n);
                inbound.push(Shared::new(sa));
            }
            near.push(Route::new(outbound, 9000));
        }
        let to_far = (0..setup.routes).map(|n| Ok((prefix(net(n), 29)?, n as u32)));
        let to_far: Vec<_> = to_far.collect::<Result<_, String>>()?;
        let from_near = (0..setup.routes).map(|n| Ok((prefix(net(n) ^ MIRROR, 29)?, n as u32)));
        let from_near: Vec<_> = from_near.collect::<Result<_, String>>()?;
        let side = |ip4| InterfaceView {
            mac: MAC,
            ip4: Some(ip4),
            next_hop4: Some(MAC),
            mtu: 9000,
            ..InterfaceView::default()
        };
        let (near_group, near_ids) = WorkerGroup::new(setup.workers);
        let (far_group, far_ids) = WorkerGroup::new(setup.workers);
        let ids = near_ids
            .into_iter()
            .zip(far_ids)
            .map(|(near, far)| [near, far]);
        let tables = |group: &WorkerGroup, ip4, prefixes: Vec<_>, routes, inbound: Vec<_>| {
            group.bind(Tables {
                prefixes: Arc::new(Prefixes::new(prefixes)),
                routes,
                inbound: SpiTable::new(inbound),
                private: side(ip4),
                public: side(ip4),
                exchange_port: tare_packet::udp::KEY_EXCHANGE,
            })
        };
        let template = |&size: &u16| Template::new(&template(usize::from(size)));
        let flow = |n: usize| Flow::between((net(n) + 1) ^ MIRROR, net(n) + 1);
        Ok(Bench {
            setup: setup.clone(),
            near: tables(&near_group, NEAR, to_far, near, vec![]),
            far: tables(&far_group, FAR, from_near, vec![], inbound),
            templates: setup.sizes.iter().map(template).collect(),
            flows: (0..setup.routes).map(flow).collect(),
            // Taken from the end: the first worker has the number 0.
            waiting: Mutex::new(ids.rev().collect()),
            burst: burst(&setup.sizes),
        })
    }

    /// The next worker of this benchmark, for the calling thread, after a warm-up in which every
    /// route is used.
    ///
    /// # Errors
    /// If there is no memory for the packets, none of them comes through, or all
    /// [`Setup::workers`] have begun.
    pub fn worker(&self) -> Result<Worker<'_>, String> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let ids = waiting
            .pop()
            .ok_or("all workers of this benchmark have begun")?;
        drop(waiting);
        Worker::new(self, ids)
    }

    /// Returns a function that does the work `subject`, for the calling thread, after a warm-up.
    ///
    /// # Errors
    /// As [`Bench::worker`], [`Bench::cipher`] and [`Bench::through`].
    pub fn step(&self, subject: Subject) -> Result<Step<'_>, String> {
        Ok(match subject {
            Subject::Gateway => {
                let mut worker = self.worker()?;
                Box::new(move |packets| Ok(worker.run(packets)))
            }
            Subject::Cipher => {
                let mut cipher = self.cipher()?;
                Box::new(move |packets| cipher.run(packets))
            }
            Subject::Tester => {
                let mut worker = self.worker()?;
                Box::new(move |packets| Ok(worker.run_tester(packets)))
            }
            Subject::Worker => {
                let mut through = self.through()?;
                Box::new(move |packets| through.run(packets))
            }
        })
    }

    /// The cipher alone, to compare with, for the calling thread.
    ///
    /// # Errors
    /// There is no memory for the packets.
    pub fn cipher(&self) -> Result<Cipher<'_>, String> {
        Cipher::new(self)
    }

    /// Two whole gateways with ports in memory, for the calling thread, after a warm-up in which
    /// every route is used.
    ///
    /// # Errors
    /// The gateways cannot be started, or do not agree on keys.
    pub fn through(&self) -> Result<Through<'_>, String> {
        Through::new(self)
    }

    /// Packets after which every route has been used.
    fn warm_up(&self) -> u64 {
        self.flows.len().max(16 * BURST) as u64
    }

    /// Frames for one worker, a few bursts.
    fn pool(&self) -> Result<Pool, String> {
        let longest = self
            .templates
            .iter()
            .map(|t| t.bytes().len())
            .max()
            .unwrap_or(0);
        Pool::new(4 * BURST, 512 + longest, Layout::Spread)
            .map_err(|e| format!("no memory for packets: {e}"))
    }

    /// The next packet: sizes and routes in turn.
    #[inline]
    fn after(&self, at: &mut Turn) -> (&[u8], &Flow) {
        let next = (self.templates[at.size].bytes(), &self.flows[at.route]);
        at.size = if at.size + 1 == self.templates.len() {
            0
        } else {
            at.size + 1
        };
        at.route = if at.route + 1 == self.flows.len() {
            0
        } else {
            at.route + 1
        };
        next
    }

    /// Makes so many packets from a position on, and returns the position after them.
    #[inline]
    fn make(&self, pool: &Pool, from: Turn, n: usize, packets: &mut Burst) -> Turn {
        let mut made = from;
        for _ in 0..n {
            let (template, flow) = self.after(&mut made);
            // Not `push`, which is a call where the vector may grow.
            packets.extend(pool.copy(template).map(|mut frame| {
                flow.write(&mut frame);
                frame
            }));
        }
        made
    }

    /// Counts the packets that are what was made from a position on, but with this TTL.
    #[inline]
    fn compare(&self, from: Turn, ttl: u8, packets: &mut Burst, done: &mut Done) {
        let mut next = from;
        let (mut right, mut bytes) = (0, 0);
        for frame in &*packets {
            let (template, flow) = self.after(&mut next);
            if flow.is_of(template, ttl, frame) {
                right += 1;
                bytes += frame.len() as u64;
            }
        }
        done.packets += right;
        done.bytes += bytes;
        packets.clear();
    }
}

/// Both gateways on one thread.
pub struct Worker<'a> {
    bench: &'a Bench,
    pool: Pool,
    near: Dataplane,
    far: Dataplane,
    next: Turn,
    packets: Burst,
    public: Output,
    private: Output,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Packets that came out as they went in.
    pub packets: u64,
    /// Their bytes, with Ethernet headers.
    pub bytes: u64,
}

impl<'a> Worker<'a> {
    fn new(bench: &'a Bench, [near, far]: [WorkerId; 2]) -> Result<Worker<'a>, String> {
        let pool = bench.pool()?;
        let dataplane = |tables, id| Dataplane::new(Arc::clone(tables), pool.clone(), id);
        let mut worker = Worker {
            bench,
            near: dataplane(&bench.near, near),
            far: dataplane(&bench.far, far),
            pool,
            next: Turn::default(),
            packets: Burst::new(),
            public: Output::default(),
            private: Output::default(),
        };
        let warm_up = bench.warm_up();
        let done = worker.run(warm_up);
        if done.packets != warm_up {
            return Err(format!(
                "{} of {warm_up} packets came through: sent {:?}, received {:?}",
                done.packets,
                worker.near.sent(),
                worker.far.received()
            ));
        }
        Ok(worker)
    }

    /// Sends so many packets through both gateways.
    pub fn run(&mut self, packets: u64) -> Done {
        let mut done = Done::default();
        let mut left = packets;
        while left > 0 {
            let n = left.min(self.bench.burst as u64);
            self.burst(n as usize, &mut done);
            left -= n;
        }
        done
    }

    /// Makes and compares so many packets, with no gateway between.
    pub fn run_tester(&mut self, packets: u64) -> Done {
        let mut done = Done::default();
        let mut left = packets;
        while left > 0 {
            let n = left.min(self.bench.burst as u64);
            let Worker {
                bench,
                pool,
                packets,
                ..
            } = self;
            let made = bench.make(pool, self.next, n as usize, packets);
            bench.compare(self.next, TTL, packets, &mut done);
            self.next = made;
            left -= n;
        }
        done
    }

    /// Returns the counters of the first gateway and of the second.
    pub fn counters(&self) -> (&TrafficCounters, &TrafficCounters) {
        (self.near.sent(), self.far.received())
    }

    fn burst(&mut self, n: usize, done: &mut Done) {
        let made = self.send(n);
        self.receive(made, done);
    }

    /// Makes so many packets, seals them, and returns the position after them.
    #[inline]
    fn send(&mut self, n: usize) -> Turn {
        let made = self.bench.make(&self.pool, self.next, n, &mut self.packets);
        self.near
            .outbound(Instant::ZERO, &mut self.packets, &mut self.public);
        made
    }

    /// Opens what was sealed, and compares.
    #[inline]
    fn receive(&mut self, made: Turn, done: &mut Done) {
        let sealed = &mut self.public.forward;
        self.far.inbound(Instant::ZERO, sealed, &mut self.private);
        let opened = &mut self.private.forward;
        self.bench.compare(self.next, TTL_OUT, opened, done);
        self.next = made;
    }
}

/// The position of a sequence of packets in the mix and in the routes.
#[derive(Clone, Copy, Default)]
struct Turn {
    size: usize,
    route: usize,
}

/// The offset of the payload of IPv4.
const PAYLOAD: usize = HEADER + ipv4::HEADER;

/// The TTL of the packets as they are made, and as they come out of the second gateway.
const TTL: u8 = protocol::TTL_DEFAULT;
const TTL_OUT: u8 = TTL - 2;

/// Addresses of a packet, source first, and what they add to the checksum, as in memory.
struct Flow {
    addresses: [u8; 8],
    sum: u32,
}

impl Flow {
    fn between(src: u32, dst: u32) -> Flow {
        let addresses = (u64::from(src) << 32 | u64::from(dst)).to_be_bytes();
        let sum = checksum::finish(checksum::sum(&addresses));
        Flow {
            addresses,
            sum: u32::from((!sum).to_be()),
        }
    }

    /// Puts the addresses into a copy of a template, whose own are zero.
    #[inline]
    fn write(&self, frame: &mut [u8]) {
        let Some(frame) = frame.first_chunk_mut::<PAYLOAD>() else {
            return;
        };
        let checksum = !folded(header_sum(frame) + self.sum);
        frame[24..26].copy_from_slice(&checksum.to_ne_bytes());
        frame[26..].copy_from_slice(&self.addresses);
    }

    /// Returns true if a frame is this flow's copy of a template, with this TTL and the checksum
    /// that belongs to it, whatever its Ethernet header.
    #[inline]
    fn is_of(&self, template: &[u8], ttl: u8, frame: &[u8]) -> bool {
        let (Some((header, payload)), Some((made, rest))) = (
            frame.split_first_chunk::<PAYLOAD>(),
            template.split_first_chunk::<PAYLOAD>(),
        ) else {
            return false;
        };
        let Some(ip) = header.last_chunk::<{ ipv4::HEADER }>() else {
            return false;
        };
        // Worked out from the template, which is faster; a zero has two forms, though, and a sum of
        // three may have a carry more.
        let less = u16::from_ne_bytes([TTL - ttl, 0]);
        let checksum = !folded(header_sum(made) + self.sum + u32::from(!less));
        header[HEADER..22] == made[HEADER..22]
            && header[22..24] == [ttl, made[23]]
            && (header[24..26] == checksum.to_ne_bytes() || checksum::is_right(ip))
            && header[26..] == self.addresses
            && payload == rest
    }
}

/// Returns the sum of a template's header, as its bytes stand in memory: the order of the bytes
/// makes no difference to a sum in ones' complement (RFC 1071, 2 B).
#[inline]
fn header_sum(template: &[u8; PAYLOAD]) -> u32 {
    u32::from(!u16::from_ne_bytes([template[24], template[25]]))
}

/// Returns the sum of two 16-bit words in ones' complement.
#[inline]
fn folded(sum: u32) -> u16 {
    (sum + (sum >> 16)) as u16
}

/// Bytes of a burst, so that no pass finds the first packets gone from a first-level cache of 32
/// KiB.
const BURST_BYTES: usize = 20_000;

/// Returns the number of packets of these sizes that make a burst. Between 16 and 64 short ones
/// there is no difference with one route; with 10,000, fewer at a time leave more room in that
/// cache for their keys.
fn burst(sizes: &[u16]) -> usize {
    let total: usize = sizes.iter().map(|&size| usize::from(size)).sum();
    let mean = (total / sizes.len().max(1)).max(1);
    (BURST_BYTES / mean).clamp(8, 48)
}

/// The bit that turns a destination address into a source address.
const MIRROR: u32 = 0x0010_0000;

/// The SPI of the first route, as in a configuration of one.
const FIRST_SPI: u32 = 1001;

/// A packet that others are copied from and compared with, as far from the start of a cache line as
/// those are: otherwise both take a third longer.
struct Template {
    memory: Vec<u8>,
    start: usize,
}

impl Template {
    fn new(packet: &[u8]) -> Template {
        const LINE: usize = 64;
        // The packet ends where the memory does, so that one comparison finds its bytes.
        let mut memory = vec![0; packet.len() + LINE];
        let start = (LINE - HEADER).wrapping_sub(memory.as_ptr().addr()) % LINE;
        memory.truncate(start + packet.len());
        memory[start..].copy_from_slice(packet);
        Template { memory, start }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }
}

/// A UDP packet of `size` bytes with its Ethernet header, with no addresses yet and no UDP
/// checksum.
fn template(size: usize) -> Box<[u8]> {
    let mut bytes = ethernet::header(MAC, MAC, ethernet::IPV4).to_vec();
    let total = size - HEADER;
    let header = ipv4::Repr {
        src: 0,
        dst: 0,
        protocol: protocol::UDP,
        ttl: TTL,
        tos: 0,
        total_len: total as u16,
        fragment: ipv4::DONT_FRAGMENT,
    };
    bytes.extend(header.to_bytes());
    bytes.extend([0x10, 0x01, 0x10, 0x02]);
    bytes.extend(((total - ipv4::HEADER) as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend((bytes.len()..size).map(|i| (i * 7) as u8));
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_stands_still_loses_nothing_to_the_other() {
        let setup = Setup {
            sizes: vec![60, 1514],
            routes: 3,
            key_bytes: 16,
            sequence_mode: SequenceMode::Extended,
            workers: 2,
        };
        let bench = Bench::new(&setup).unwrap();
        let mut workers = [bench.worker().unwrap(), bench.worker().unwrap()];
        let mut done = Done::default();
        for round in 0..4 {
            let made = workers[round % 2].send(20);
            // More than a window spans, while that burst waits.
            let others = workers[1 - round % 2].run(20_000);
            assert_eq!(others.packets, 20_000);
            workers[round % 2].receive(made, &mut done);
        }
        assert_eq!(done.packets, 4 * 20);
        for route in &bench.near.routes {
            let packets: Vec<u64> = route.all_outbound().map(|sa| sa.packets()).collect();
            let tops = route.all_outbound().map(|sa| {
                let inbound = bench.far.inbound.by_spi(sa.spi()).unwrap();
                (inbound.top(), inbound.packets())
            });
            let wanted: Vec<_> = packets.iter().map(|&n| (n, n)).collect();
            assert_eq!(tops.collect::<Vec<_>>(), wanted);
            assert!(packets.len() == 2 && packets.iter().all(|&n| n > 10_000));
        }
    }

    /// Of all bytes of a packet that came out, only those of its Ethernet header may be others.
    #[test]
    fn a_packet_with_another_ttl_checksum_address_or_payload_is_wrong() {
        let (template, flow) = (template(60), Flow::between(0x0a00_0001, 0x0b00_0002));
        let mut made = template.to_vec();
        flow.write(&mut made);
        assert!(flow.is_of(&template, TTL, &made));
        let mut out = made.clone();
        ipv4::decrement_ttl(&mut out[HEADER..]);
        assert!(!flow.is_of(&template, TTL_OUT, &out), "one hop, not two");
        ipv4::decrement_ttl(&mut out[HEADER..]);
        assert!(flow.is_of(&template, TTL_OUT, &out));
        for at in 0..out.len() {
            let mut other = out.clone();
            other[at] ^= 1;
            assert_eq!(
                flow.is_of(&template, TTL_OUT, &other),
                at < HEADER,
                "byte {at}"
            );
        }
        // A TTL that is decremented without the checksum, and one more with it.
        let mut other = out.clone();
        other[22] -= 1;
        assert!(!flow.is_of(&template, TTL_OUT - 1, &other));
        ipv4::decrement_ttl(&mut out[HEADER..]);
        assert!(!flow.is_of(&template, TTL_OUT, &out));
        assert!(!flow.is_of(&template, TTL_OUT, &out[..PAYLOAD - 1]));
    }

    /// Through the ports every packet comes out as it would without them.
    #[test]
    fn whole_gateways_with_ports_in_memory_carry_every_packet_of_every_route() {
        for (routes, key_bytes, sequence_mode) in [
            (1, 16, SequenceMode::Extended),
            (5, 32, SequenceMode::Plain),
            (300, 16, SequenceMode::Extended),
        ] {
            let setup = Setup {
                sizes: vec![60, 590, 1514],
                routes,
                key_bytes,
                sequence_mode,
                workers: 1,
            };
            let bench = Bench::new(&setup).unwrap();
            let mut through = bench.through().unwrap();
            for packets in [1, 47, 40_000] {
                assert_eq!(through.run(packets).unwrap().packets, packets);
            }
        }
    }
}
