//! The software benchmark: two gateways in one process, back to back, with nothing between them but this machine's caches.
//!
//! Every packet is made (copied from a template), sealed by the first gateway, opened by the second, compared with what it was
//! made from, and counted.

use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use tare_gcm::Key;
use tare_packet::ethernet::{self, HEADER};
use tare_packet::{checksum, ipv4};
use tare_port::{Burst, Instant, Layout, Pool, BURST};

use crate::dataplane::{Dataplane, Direction, Output};
use crate::prefixes::Prefixes;
use crate::sa::{Counting, InboundSa, OutboundSa, Outer};
use crate::tables::{Route, Side, Spis, Tables};
use crate::window::WINDOW_DEFAULT;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Bytes of each packet of the mix, with Ethernet header; they come in turn.
    pub sizes: Vec<u16>,
    /// Routes, which packets take in turn, each with keys of its own; up to 10,000.
    pub routes: usize,
    /// Bytes of a key: 16 or 32.
    pub key_bytes: usize,
    /// How sequence numbers are counted.
    pub counting: Counting,
    /// Workers that share all SAs.
    pub workers: usize,
}

/// What one worker did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Packets that came out as they went in.
    pub packets: u64,
    /// Their bytes, with Ethernet headers.
    pub bytes: u64,
    /// Packets that did not.
    pub wrong: u64,
    /// The time it took.
    pub elapsed: Duration,
    /// What the first gateway counted.
    pub sent: Direction,
    /// What the second gateway counted.
    pub received: Direction,
}

const NEAR: u32 = 0xac10_000a;
const FAR: u32 = 0xac11_000a;
const MAC: ethernet::Mac = [2, 0, 0, 0, 0, 0];

/// The tables of both gateways, shared by all workers.
pub struct Bench {
    near: Arc<Tables>,
    far: Arc<Tables>,
    templates: Arc<[Box<[u8]>]>,
    alone: bool,
}

impl Bench {
    /// Makes keys, tables and packets.
    ///
    /// # Errors
    /// Where the system has no random numbers or the key length is none of AES.
    pub fn new(setup: &Setup) -> Result<Bench, String> {
        // Networks of eight addresses: 10,000 of them do not fit a /16, so they take two.
        let net = |n: usize| 0xac12_0000 + (n as u32) * 8;
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
            let mut secret = zeroize::Zeroizing::new([0; 36]);
            getrandom::fill(&mut *secret).map_err(|e| format!("no random numbers: {e}"))?;
            let key = || Key::new(&secret[..setup.key_bytes.min(32)]).map_err(|e| e.to_string());
            let salt = [secret[32], secret[33], secret[34], secret[35]];
            let spi = 1001 + n as u32;
            near.push(Route {
                outbound: Some(Arc::new(OutboundSa::new(
                    spi,
                    key()?,
                    salt,
                    setup.counting,
                    outer,
                ))),
                path_mtu: 9000,
            });
            let window = WINDOW_DEFAULT;
            let sa = InboundSa::new(spi, key()?, salt, setup.counting, window, n);
            inbound.push(Arc::new(sa));
        }
        let to_far = (0..setup.routes).map(|n| Ok((prefix(net(n), 29)?, n as u32)));
        let to_far: Vec<_> = to_far.collect::<Result<_, String>>()?;
        // What comes in at the far end is from addresses that mirror these.
        let from_near = (0..setup.routes).map(|n| Ok((prefix(net(n) ^ MIRROR, 29)?, n as u32)));
        let from_near: Vec<_> = from_near.collect::<Result<_, String>>()?;
        let side = |ip4| Side {
            mac: MAC,
            ip4: Some(ip4),
            next_hop4: Some(MAC),
            mtu: 9000,
            ..Side::default()
        };
        let tables = |ip4, prefixes: Vec<_>, routes, inbound: Vec<_>| {
            Arc::new(Tables {
                prefixes: Arc::new(Prefixes::new(prefixes)),
                routes,
                inbound: Spis::new(inbound),
                private: side(ip4),
                public: side(ip4),
                exchange_port: 303,
            })
        };
        let rounds = setup.sizes.len().max(1);
        // Each route gets packets of all sizes, once the two have gone through each other's length.
        let count = setup.routes
            * if setup.routes % rounds == 0 {
                rounds
            } else {
                1
            };
        let count = count.max(setup.sizes.len());
        let templates = (0..count).map(|n| {
            let dst = net(n % setup.routes) + 1;
            let size = setup.sizes[(n + n / setup.routes) % setup.sizes.len()];
            template(usize::from(size), dst ^ MIRROR, dst, n)
        });
        Ok(Bench {
            near: tables(NEAR, to_far, near, vec![]),
            far: tables(FAR, from_near, vec![], inbound),
            templates: templates.collect(),
            alone: setup.workers == 1,
        })
    }

    /// One worker: sends `packets` through both gateways on the calling thread, after a warm-up of a few bursts, and calls
    /// `progress` with how many are done, now and then.
    ///
    /// # Errors
    /// Where there is no memory for the packets.
    pub fn run(&self, packets: u64, mut progress: impl FnMut(u64)) -> Result<Outcome, String> {
        let longest = self.templates.iter().map(|t| t.len()).max().unwrap_or(0);
        let pool =
            Pool::new(4 * BURST, 512 + longest, Layout::Spread).map_err(|e| e.to_string())?;
        let mut near = Dataplane::new(Arc::clone(&self.near), pool.clone(), self.alone);
        let mut far = Dataplane::new(Arc::clone(&self.far), pool.clone(), self.alone);
        let mut loops = Loop::default();
        for _ in 0..self.templates.len().div_ceil(BURST).clamp(16, 1000) {
            self.burst(BURST, &pool, &mut near, &mut far, &mut loops);
        }
        let (sent, received) = (*near.sent(), *far.received());
        loops.outcome = Outcome::default();
        let start = Instant::now();
        let mut left = packets;
        let mut until_progress = PROGRESS;
        while left > 0 {
            let n = left.min(BURST as u64);
            self.burst(n as usize, &pool, &mut near, &mut far, &mut loops);
            left -= n;
            until_progress = until_progress.saturating_sub(n);
            if until_progress == 0 {
                progress(packets - left);
                until_progress = PROGRESS;
            }
        }
        let mut outcome = loops.outcome;
        outcome.elapsed = Instant::now().since(start);
        outcome.wrong = packets - outcome.packets;
        outcome.sent = near.sent().since(&sent);
        outcome.received = far.received().since(&received);
        Ok(outcome)
    }

    fn burst(
        &self,
        n: usize,
        pool: &Pool,
        near: &mut Dataplane,
        far: &mut Dataplane,
        l: &mut Loop,
    ) {
        let first = l.next;
        for _ in 0..n {
            l.packets.extend(pool.copy(&self.templates[l.next]));
            l.next = self.after(l.next);
        }
        near.outbound(Instant::ZERO, &mut l.packets, &mut l.public);
        far.inbound(Instant::ZERO, &mut l.public.forward, &mut l.private);
        let mut expected = first;
        for frame in l.private.forward.drain(..) {
            let template = &self.templates[expected];
            expected = self.after(expected);
            // Addresses, lengths and payload: all but the Ethernet header and the hops.
            if frame[HEADER + 12..] == template[HEADER + 12..] {
                l.outcome.packets += 1;
                l.outcome.bytes += frame.len() as u64;
            }
        }
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.templates.len() {
            0
        } else {
            at + 1
        }
    }
}

/// What makes a source address of a destination.
const MIRROR: u32 = 0x0010_0000;

/// Packets between two reports of progress.
const PROGRESS: u64 = 1 << 18;

#[derive(Default)]
struct Loop {
    next: usize,
    packets: Burst,
    public: Output,
    private: Output,
    outcome: Outcome,
}

/// A UDP packet of `size` bytes with its Ethernet header.
fn template(size: usize, src: u32, dst: u32, n: usize) -> Box<[u8]> {
    let mut bytes = ethernet::header(MAC, MAC, ethernet::IPV4).to_vec();
    let total = (size - HEADER) as u16;
    let header = ipv4::Repr {
        src,
        dst,
        protocol: 17,
        ttl: 64,
        tos: 0,
        total_len: total,
        fragment: 0x4000,
    };
    bytes.extend(header.to_bytes());
    let mut udp = vec![0x10, 0x01, 0x10, 0x02];
    udp.extend((total - 20).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend((8..usize::from(total) - 20).map(|i| (i * 7 + n) as u8));
    let pseudo = checksum::pseudo_header(&src.to_be_bytes(), &dst.to_be_bytes(), 17, udp.len());
    let sum = checksum::finish(pseudo + checksum::sum(&udp));
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(udp);
    bytes.into()
}
