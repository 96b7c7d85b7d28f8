//! A peer that behaves by the exchange's own rules and by nothing else, as Vita does: it repeats no
//! message, believes the first challenge, handles 100 messages per second, and its data plane takes
//! over new SAs up to two seconds later.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use tare_gateway::exchange::Timers;
use tare_sim::{Instant, Node, Outbox, Random};

use crate::noise::{message, prologue, public, Noise};
use crate::simulation::{Datagram, Passenger};

const AEAD: &str = "aes-gcm-16-icv";
const PER_SECOND: u32 = 100;
const INBOUND_MAX: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sa {
    pub(crate) spi: u32,
    pub(crate) key: Vec<u8>,
    expires: Instant,
    rekey: Instant,
    activate: Instant,
}

enum Initiator {
    Idle,
    /// Has knocked.
    Knocked {
        until: Instant,
    },
    /// Has proposed.
    Proposed {
        until: Instant,
        private: [u8; 32],
        noise: Box<Noise>,
    },
}

pub(crate) struct Vita {
    address: IpAddr,
    remote: IpAddr,
    spi: u32,
    psk: [u8; 32],
    sa_ttl: Duration,
    negotiation_ttl: Duration,
    random: Random,
    initiator: Initiator,
    /// The SPIs on offer as initiator and as responder.
    offers: [u32; 2],
    next_spi: u32,
    nonce: [u8; 32],
    inbound: Vec<Sa>,
    outbound: Vec<Sa>,
    queue: Vec<Sa>,
    /// The SAs of its data plane.
    pub(crate) used_inbound: Vec<Sa>,
    pub(crate) used_outbound: Vec<Sa>,
    commit: Instant,
    input: VecDeque<Vec<u8>>,
    second: Instant,
    left: u32,
    /// Negotiations that succeeded as initiator and as responder.
    pub(crate) negotiated: [u64; 2],
    /// Packets that its peer sent and it could open.
    pub(crate) packets: u64,
    /// Packets that it could not open, or not send.
    pub(crate) packets_lost: u64,
    /// True if it leaves it to its peer to begin.
    pub(crate) is_passive: bool,
}

impl Vita {
    pub(crate) fn new(address: IpAddr, remote: IpAddr, timers: Timers, seed: u64) -> Vita {
        let mut random = Random::new(seed);
        let mut nonce = [0; 32];
        random.fill(&mut nonce);
        Vita {
            address,
            remote,
            spi: 1001,
            psk: [0; 32],
            sa_ttl: timers.sa_ttl,
            negotiation_ttl: timers.negotiation_ttl,
            random,
            initiator: Initiator::Idle,
            offers: [256, 257],
            next_spi: 258,
            nonce,
            inbound: Vec::new(),
            outbound: Vec::new(),
            queue: Vec::new(),
            used_inbound: Vec::new(),
            used_outbound: Vec::new(),
            commit: Instant::NEVER,
            input: VecDeque::new(),
            second: Instant::ZERO,
            left: PER_SECOND,
            negotiated: [0; 2],
            packets: 0,
            packets_lost: 0,
            is_passive: false,
        }
    }

    /// Sends a packet of its host.
    pub(crate) fn send_packet(&mut self, out: &mut Outbox<Datagram>) {
        match self.used_outbound.first() {
            Some(sa) => {
                let passenger = Passenger::Packet(sa.spi, sa.key.clone());
                let from = self.address;
                out.send(0, Datagram { from, passenger });
            }
            None => self.packets_lost += 1,
        }
    }

    fn noise(&self, initiator: IpAddr, responder: IpAddr, nonce: &[u8; 32]) -> Noise {
        let (initiator, responder) = (octets(initiator), octets(responder));
        let prologue = prologue(self.spi, &initiator, &responder, AEAD, nonce);
        Noise::new(&prologue, &self.psk)
    }

    fn handle(&mut self, now: Instant, bytes: &[u8], out: &mut Vec<Vec<u8>>) -> Option<()> {
        let (header, body) = bytes.split_first_chunk::<8>()?;
        if header[..4] != self.spi.to_be_bytes() {
            return None;
        }
        match (header[4], body.len()) {
            (11, 4) => {
                let mut aead = AEAD.as_bytes().to_vec();
                aead.resize(32, 0);
                let body: [&[u8]; 3] = [&[0, 0, 0, 5], &aead, &self.nonce];
                out.push(message(self.spi, 12, &body));
            }
            (12, 68) => {
                let Initiator::Knocked { .. } = self.initiator else {
                    return None;
                };
                let nonce = body[36..].try_into().ok()?;
                let mut noise = self.noise(self.address, self.remote, &nonce);
                let mut private = [0; 32];
                self.random.fill(&mut private);
                let key = public(&private);
                noise.e(&key);
                let sealed = noise.payload(self.offers[0], 0);
                out.push(message(self.spi, 13, &[&key, &sealed]));
                self.initiator = Initiator::Proposed {
                    until: now + self.negotiation_ttl,
                    private,
                    noise: Box::new(noise),
                };
            }
            (13, 80) => {
                let key: [u8; 32] = body[..32].try_into().ok()?;
                let mut noise = self.noise(self.remote, self.address, &self.nonce);
                noise.e(&key);
                let outbound = noise.try_read(&body[32..])?;
                let mut private = [0; 32];
                self.random.fill(&mut private);
                let own = public(&private);
                noise.e(&own);
                noise.ee(&private, &key);
                let inbound = self.offers[1];
                let sealed = noise.payload(inbound, 0);
                out.push(message(self.spi, 14, &[&own, &sealed]));
                self.offers[1] = self.take_spi();
                let mut nonce = [0; 32];
                self.random.fill(&mut nonce);
                self.nonce = nonce;
                let keys = noise.split(40);
                self.add(now, (inbound, &keys[20..]), (outbound, &keys[..20]));
                self.negotiated[1] += 1;
            }
            (14, 80) => {
                let Initiator::Proposed { private, noise, .. } = &self.initiator else {
                    return None;
                };
                let key: [u8; 32] = body[..32].try_into().ok()?;
                let mut noise = Noise::clone(noise);
                noise.e(&key);
                noise.ee(private, &key);
                let outbound = noise.try_read(&body[32..])?;
                let inbound = self.offers[0];
                self.offers[0] = self.take_spi();
                self.initiator = Initiator::Idle;
                let keys = noise.split(40);
                self.add(now, (inbound, &keys[..20]), (outbound, &keys[20..]));
                self.negotiated[0] += 1;
            }
            _ => return None,
        }
        Some(())
    }

    fn take_spi(&mut self) -> u32 {
        self.next_spi += 1;
        self.next_spi - 1
    }

    fn add(&mut self, now: Instant, inbound: (u32, &[u8]), outbound: (u32, &[u8])) {
        let jitter = self.random.duration(Duration::ZERO, self.sa_ttl / 8);
        let sa = |(spi, key): (u32, &[u8])| Sa {
            spi,
            key: key.to_vec(),
            expires: now + self.sa_ttl,
            rekey: now + self.sa_ttl / 2 + jitter,
            activate: now + self.negotiation_ttl * 3 / 2,
        };
        let (inbound, outbound) = (sa(inbound), sa(outbound));
        self.inbound.insert(0, inbound);
        self.inbound.truncate(INBOUND_MAX);
        self.queue.retain(|sa| sa.spi != outbound.spi);
        self.outbound.retain(|sa| sa.spi != outbound.spi);
        self.queue.push(outbound);
        self.changed(now);
    }

    /// The SAs are written once a second and read once a second.
    fn changed(&mut self, now: Instant) {
        if self.commit == Instant::NEVER {
            let most = Duration::from_secs(2);
            self.commit = now + self.random.duration(Duration::from_millis(1), most);
        }
    }

    fn work(&mut self, now: Instant, out: &mut Vec<Vec<u8>>) {
        if now >= self.second {
            self.second = now + Duration::from_secs(1);
            self.left = PER_SECOND;
        }
        while self.left > 0 {
            let Some(bytes) = self.input.pop_front() else {
                break;
            };
            self.left -= 1;
            self.handle(now, &bytes, out);
        }
        match self.initiator {
            Initiator::Knocked { until } | Initiator::Proposed { until, .. } if until <= now => {
                self.initiator = Initiator::Idle;
            }
            _ => {}
        }
        let before = (self.inbound.len(), self.outbound.len());
        self.inbound.retain(|sa| sa.expires > now);
        self.outbound.retain(|sa| sa.expires > now);
        if before != (self.inbound.len(), self.outbound.len()) {
            self.changed(now);
        }
        while let Some(next) = self.queue.first() {
            if next.activate > now && !self.outbound.is_empty() {
                break;
            }
            let next = self.queue.remove(0);
            self.outbound = vec![next];
            self.changed(now);
        }
        let enough = !self.queue.is_empty() || self.outbound.iter().any(|sa| sa.rekey > now);
        if !enough && !self.is_passive && matches!(self.initiator, Initiator::Idle) {
            let until = now + self.negotiation_ttl;
            self.initiator = Initiator::Knocked { until };
            out.push(message(self.spi, 11, &[&[0, 0, 0, 5]]));
        }
        if self.commit <= now {
            self.commit = Instant::NEVER;
            self.used_inbound = self.inbound.clone();
            self.used_outbound = self.outbound.clone();
        }
    }

    fn send_all(&self, messages: Vec<Vec<u8>>, out: &mut Outbox<Datagram>) {
        for message in messages {
            out.send(0, Datagram::new(self.address, message));
        }
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

impl Node for Vita {
    type Message = Datagram;

    fn receive(&mut self, now: Instant, _: usize, datagram: Datagram, out: &mut Outbox<Datagram>) {
        match datagram.passenger {
            Passenger::Message(message) if self.input.len() < 1024 => {
                self.input.push_back(message);
            }
            Passenger::Message(_) => {}
            Passenger::Packet(spi, key) => {
                let mut known = self.used_inbound.iter();
                match known.any(|sa| sa.spi == spi && sa.key == key) {
                    true => self.packets += 1,
                    false => self.packets_lost += 1,
                }
            }
        }
        self.tick(now, out);
    }

    fn next_deadline(&self) -> Instant {
        let initiator = match self.initiator {
            Initiator::Knocked { until } | Initiator::Proposed { until, .. } => until,
            Initiator::Idle => Instant::NEVER,
        };
        let lives = self.inbound.iter().chain(&self.outbound);
        let lives = lives.map(|sa| sa.expires);
        let queue = self.queue.iter().map(|sa| sa.activate);
        let rekey = match self.outbound.first() {
            Some(sa) if self.queue.is_empty() => sa.rekey,
            None if self.queue.is_empty() => Instant::ZERO,
            _ => Instant::NEVER,
        };
        let rekey = match self.initiator {
            Initiator::Idle if !self.is_passive => rekey,
            _ => Instant::NEVER,
        };
        let input = match self.input.is_empty() {
            true => Instant::NEVER,
            false => self.second,
        };
        let own = [initiator, rekey, input, self.commit];
        lives
            .chain(queue)
            .chain(own)
            .min()
            .unwrap_or(Instant::NEVER)
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Datagram>) {
        let mut messages = Vec::new();
        self.work(now, &mut messages);
        self.send_all(messages, out);
    }
}
