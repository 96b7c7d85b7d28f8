//! Classification of the frames that arrive.

use tare_sim::Instant;

use crate::ledger::Ledger;
use crate::stamp::{self, Found, IpPacket};
use crate::stream::Stream;

/// Frames that arrived at a port in a trial: `received` is the sum of the others and of the frames
/// in the ledgers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortCounts {
    pub(crate) received: u64,
    pub(crate) stray: u64,
    pub(crate) damaged: u64,
    pub(crate) foreign: u64,
    pub(crate) misdelivered: u64,
}

/// Sorts arriving frames into the ledgers of their streams.
#[derive(Debug)]
pub(crate) struct Receiver {
    rx_ports: Vec<usize>,
    /// By the stream of a stamp: those of all streams by the tester's thread, then by each other.
    pub(crate) ledgers: Vec<Ledger>,
    window: usize,
    /// Frames without a stamp that are one of a stream's, by stream.
    pub(crate) plain: Vec<Plain>,
    /// The fingerprints of the streams' frames, sorted.
    looks: Vec<Look>,
    pub(crate) ports: Vec<PortCounts>,
    pub(crate) trial: u16,
    pub(crate) start: Instant,
    /// The arrival of the last frame of this trial; `None` before the first.
    pub(crate) last: Option<Instant>,
    /// The largest latency of this trial.
    pub(crate) latency_max_ns: u64,
    /// Streams that send the same unstamped frames to the same port.
    alike: Vec<[usize; 2]>,
}

/// Unstamped frames that arrived of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plain {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Plain {
    /// Bytes of so many of them: their mean, as it is not known which they are.
    pub(crate) fn bytes_of(&self, packets: u64) -> u64 {
        (u128::from(self.bytes) * u128::from(packets))
            .checked_div(u128::from(self.packets))
            .unwrap_or(0) as u64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Look {
    fingerprint: u64,
    stream: usize,
    stamped: bool,
}

impl Receiver {
    pub(crate) fn new(streams: &[Stream], ports: usize, window: usize) -> Receiver {
        let mut receiver = Receiver {
            rx_ports: Vec::new(),
            ledgers: streams.iter().map(|_| Ledger::new(window)).collect(),
            window,
            plain: vec![Plain::default(); streams.len()],
            looks: Vec::new(),
            ports: vec![PortCounts::default(); ports],
            trial: 0,
            start: Instant::ZERO,
            last: None,
            latency_max_ns: 0,
            alike: Vec::new(),
        };
        receiver.expect(streams);
        receiver
    }

    /// Replaces what is expected by as many other streams.
    pub(crate) fn expect(&mut self, streams: &[Stream]) {
        self.rx_ports = streams.iter().map(|stream| stream.rx_port).collect();
        self.looks = streams
            .iter()
            .enumerate()
            .flat_map(|(n, stream)| {
                stream.templates.iter().map(move |template| Look {
                    fingerprint: fingerprint(&template.bytes),
                    stream: n,
                    stamped: template.has_room(),
                })
            })
            .collect();
        self.looks.sort_unstable();
        self.looks.dedup();
        self.alike.clear();
        let plain: Vec<&Look> = self.looks.iter().filter(|look| !look.stamped).collect();
        for group in plain.chunk_by(|a, b| a.fingerprint == b.fingerprint) {
            for (n, one) in group.iter().enumerate() {
                let others = group[..n].iter().map(|other| other.stream);
                let same_port = |&other: &usize| self.rx_ports[other] == self.rx_ports[one.stream];
                let pairs = others.filter(same_port);
                self.alike.extend(pairs.map(|other| [other, one.stream]));
            }
        }
        self.alike.sort_unstable();
        self.alike.dedup();
    }

    /// Gives what arrived of a stream's unstamped frames beyond those `sent` to streams that sent
    /// the same frames and miss some: nothing else tells whose they are.
    pub(crate) fn share_surplus(&mut self, sent: impl Fn(usize) -> u64) {
        for &[one, other] in &self.alike {
            for (from, to) in [(one, other), (other, one)] {
                let surplus = self.plain[from].packets.saturating_sub(sent(from));
                let missing = sent(to).saturating_sub(self.plain[to].packets);
                let packets = surplus.min(missing);
                let bytes = self.plain[from].bytes_of(packets);
                self.plain[from].packets -= packets;
                self.plain[from].bytes -= bytes;
                self.plain[to].packets += packets;
                self.plain[to].bytes += bytes;
            }
        }
    }

    /// Expects frames of a further thread.
    pub(crate) fn expect_thread(&mut self) {
        let more = (0..self.rx_ports.len()).map(|_| Ledger::new(self.window));
        self.ledgers.extend(more);
    }

    /// The ledgers of a stream, one for each thread.
    pub(crate) fn of(&self, stream: usize) -> impl Iterator<Item = &Ledger> {
        self.ledgers
            .iter()
            .skip(stream)
            .step_by(self.rx_ports.len())
    }

    /// Begins a trial.
    pub(crate) fn begin(&mut self, trial: u16, start: Instant) {
        self.ledgers.iter_mut().for_each(Ledger::clear);
        self.plain.fill(Plain::default());
        self.ports.fill(PortCounts::default());
        self.trial = trial;
        self.start = start;
        self.last = None;
        self.latency_max_ns = 0;
    }

    /// Enters a frame. `produced` says how many stamped frames each
    /// stream of a thread has made in this trial.
    #[inline]
    pub(crate) fn accept(
        &mut self,
        port: usize,
        at: Instant,
        frame: &[u8],
        produced: impl Fn(usize) -> u64,
    ) {
        let counts = &mut self.ports[port];
        counts.received += 1;
        match stamp::read(frame) {
            Found::Stamp(stamp) => {
                let stream = usize::from(stamp.stream);
                let expected = self.rx_ports[stream % self.rx_ports.len()];
                if stamp.trial != self.trial || stream >= self.ledgers.len() {
                    counts.stray += 1;
                } else if stamp.sequence >= produced(stream) {
                    counts.damaged += 1;
                } else if expected != port {
                    counts.misdelivered += 1;
                } else {
                    let elapsed = at.as_nanos().saturating_sub(self.start.as_nanos());
                    let latency = elapsed.saturating_sub(stamp.time_ns);
                    self.ledgers[stream].record(stamp.sequence, frame.len(), latency);
                    self.latency_max_ns = self.latency_max_ns.max(latency);
                    self.last = self.last.max(Some(at));
                }
            }
            Found::Damaged => counts.damaged += 1,
            Found::Nothing => self.accept_plain(port, at, frame),
        }
    }

    fn accept_plain(&mut self, port: usize, at: Instant, frame: &[u8]) {
        let fingerprint = fingerprint(frame);
        let first = self
            .looks
            .partition_point(|look| look.fingerprint < fingerprint);
        let mut alike = self.looks[first..]
            .iter()
            .take_while(|look| look.fingerprint == fingerprint);
        match alike.find(|look| self.rx_ports[look.stream] == port) {
            // It was sent with a stamp.
            Some(look) if look.stamped => self.ports[port].damaged += 1,
            Some(look) => {
                let plain = &mut self.plain[look.stream];
                plain.packets += 1;
                plain.bytes += frame.len() as u64;
                self.last = self.last.max(Some(at));
            }
            None => self.ports[port].foreign += 1,
        }
    }
}

/// A hash of what a router does not change in a frame: of an IP packet addresses, protocol and
/// length, of another the first 48 bytes behind the addresses.
fn fingerprint(frame: &[u8]) -> u64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    let Some(packet) = IpPacket::of(frame) else {
        hash.add(frame.get(12..60).or(frame.get(12..)).unwrap_or_default());
        return hash.0;
    };
    let ip = frame.get(packet.header..packet.end).unwrap_or_default();
    hash.add(&((packet.end - packet.header) as u64).to_be_bytes());
    match packet.version {
        4 => {
            hash.add(ip.get(9..10).unwrap_or_default());
            hash.add(ip.get(12..20).unwrap_or_default());
        }
        _ => {
            hash.add(ip.get(6..7).unwrap_or_default());
            hash.add(ip.get(8..40).unwrap_or_default());
        }
    }
    hash.0
}

/// FNV-1a.
struct Fnv(u64);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
