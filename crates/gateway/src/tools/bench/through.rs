//! The whole gateway: what the data plane leaves out, the worker's loop, ports, the clock, keys
//! that were negotiated and next hops that were asked for.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use tare_neighbor::{Local, Neighbors};
use tare_packet::ethernet::{self, Mac, HEADER};
use tare_port::{memory, Burst, Memory, Pool, Port, BURST};
use tare_sim::{Instant, TokenBucket};

use super::{net, Bench, Done, Setup, Turn, FAR, MAC, MIRROR, NEAR, TTL_OUT};
use crate::config::{Aead, Config, Device, InterfaceConfig, Keys, PresharedKey, Route};
use crate::daemon::InMemory;
use crate::dataplane::{error_limit, SequenceMode};
use crate::interface::InterfaceState;

/// The MAC addresses of the hosts behind the gateways, and of the gateways' public interfaces.
const HOSTS: [Mac; 2] = [[2, 0, 0, 0, 1, 9], [2, 0, 0, 0, 2, 9]];
const PUBLIC_MACS: [Mac; 2] = [[2, 0, 0, 0, 1, 2], [2, 0, 0, 0, 2, 2]];

/// Public addresses: 203.0.113.1 and 203.0.113.2.
const PUBLIC: [u32; 2] = [0xcb00_7101, 0xcb00_7102];

/// The longest negotiation, in simulated time, and the steps that it is simulated in.
const NEGOTIATION: Duration = Duration::from_secs(600);
const STEP: Duration = Duration::from_millis(5);

/// Packets between two times at which the control sides do what is due.
const CONTROL_EVERY: u64 = 1 << 14;

/// Rounds in which all that waits has been sent: queues hold 4,096 frames, a burst 32 and more.
const SETTLING_ROUNDS: usize = 256;

/// Two whole gateways on one thread, back to back.
pub struct Through<'a> {
    bench: &'a Bench,
    pool: Pool,
    gateways: [InMemory; 2],
    hosts: [Host; 2],
    next: Turn,
    packets: Burst,
}

/// The station on the private side of a gateway.
struct Host {
    port: Memory,
    neighbors: Neighbors,
    answers: TokenBucket,
}

impl Host {
    /// Receives a burst, and answers what asks for the host's MAC address.
    fn receive(&mut self, now: Instant, pool: &Pool, burst: &mut Burst) -> Result<(), String> {
        self.port.receive(burst, BURST).map_err(|e| e.to_string())?;
        let is_arp = |frame: &[u8]| ethernet::kind(frame) == Some(ethernet::ARP);
        if burst.iter().any(|frame| is_arp(frame)) {
            let mut answers = Vec::new();
            for frame in burst.extract_if(.., |frame| is_arp(frame)) {
                let arp = &frame[HEADER..];
                let Host {
                    neighbors,
                    answers: limit,
                    ..
                } = self;
                let _ = neighbors.receive_arp(now, arp, limit, &mut answers);
            }
            let mut answers: Burst = answers
                .iter()
                .filter_map(|frame| pool.copy(frame))
                .collect();
            self.port.send(&mut answers).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

impl<'a> Through<'a> {
    /// Starts both gateways and lets them find their next hops and negotiate the keys of all
    /// routes. That takes simulated time, and of real time what the computations take.
    pub(super) fn new(bench: &'a Bench) -> Result<Through<'a>, String> {
        let setup = &bench.setup;
        let pool = bench.pool()?;
        let start = Instant::now();
        let mut keys = Vec::new();
        for _ in 0..setup.routes {
            let mut key = zeroize::Zeroizing::new([0; 32]);
            getrandom::fill(&mut *key).map_err(|e| format!("no random numbers: {e}"))?;
            keys.push(PresharedKey::new(*key));
        }
        // Room for the messages of many negotiations at once.
        let (near_public, far_public) = memory(4096);
        let mut gateways = Vec::new();
        let mut hosts = Vec::new();
        for (side, public) in [near_public, far_public].into_iter().enumerate() {
            let (inside, outside) = memory(4096);
            let state = |mac| InterfaceState {
                mac,
                mtu: 9000,
                up: true,
            };
            let ports: [(InterfaceState, Box<dyn Port>); 2] = [
                (state(MAC), Box::new(inside)),
                (state(PUBLIC_MACS[side]), Box::new(public)),
            ];
            let config = config(side, setup, &keys);
            let own = Pool::new(4096, 2048, tare_port::Layout::Spread);
            let own = own.map_err(|e| format!("no memory for packets: {e}"))?;
            gateways.push(InMemory::new(config, ports, own, start)?);
            hosts.push(Host {
                port: outside,
                neighbors: Neighbors::new(Local {
                    mac: HOSTS[side],
                    ip4: Some(host(side)),
                    ip6: None,
                }),
                answers: error_limit(),
            });
        }
        let mut through = Through {
            bench,
            pool,
            gateways: gateways.try_into().map_err(|_| "two gateways")?,
            hosts: hosts.try_into().map_err(|_| "two hosts")?,
            next: Turn::default(),
            packets: Burst::new(),
        };
        through.negotiate(start, setup.routes)?;
        let warm_up = bench.warm_up();
        let done = through.run(warm_up)?;
        if done.packets != warm_up {
            return Err(format!(
                "{} of {warm_up} packets came through the ports; dropped: {}",
                done.packets,
                through.drops()
            ));
        }
        Ok(through)
    }

    fn negotiate(&mut self, start: Instant, routes: usize) -> Result<(), String> {
        let mut now = start;
        while now.since(start) < NEGOTIATION {
            for (gateway, host) in self.gateways.iter_mut().zip(&mut self.hosts) {
                gateway.control(now);
                gateway.work(now)?;
                host.receive(now, &self.pool, &mut self.packets)?;
                self.packets.clear();
            }
            let [near, far] = self.gateways.each_ref().map(InMemory::tables);
            // The SA that is used must have been received at the far end, too.
            let mut sas = near.routes.iter().map(|route| route.outbound(0));
            let have_keys = near.routes.len() == routes
                && sas.all(|sa| sa.is_some_and(|sa| far.inbound.by_spi(sa.spi()).is_some()));
            let hops = [&near.public, &far.private].map(|interface| interface.next_hop4);
            if have_keys && hops.iter().all(Option::is_some) {
                return Ok(());
            }
            now += STEP;
        }
        Err(format!(
            "the gateways did not agree on keys within {} s",
            NEGOTIATION.as_secs()
        ))
    }

    /// Sends so many packets through both gateways.
    ///
    /// # Errors
    /// A worker has ended.
    pub fn run(&mut self, packets: u64) -> Result<Done, String> {
        let mut done = Done::default();
        let mut left = packets;
        let mut until_control = 0;
        while left > 0 {
            if until_control == 0 {
                until_control = CONTROL_EVERY;
                let now = Instant::now();
                self.gateways
                    .iter_mut()
                    .for_each(|gateway| gateway.control(now));
                self.settle(now)?;
            }
            let n = left.min(self.bench.burst as u64).min(until_control);
            self.burst(n as usize, &mut done)?;
            left -= n;
            until_control -= n;
        }
        Ok(done)
    }

    /// Lets frames of the control sides arrive: hundreds at once, as after negotiations, would hold
    /// up the packets behind them for a round, and those would count as lost.
    fn settle(&mut self, now: Instant) -> Result<(), String> {
        for _ in 0..SETTLING_ROUNDS {
            for (gateway, host) in self.gateways.iter_mut().zip(&mut self.hosts) {
                gateway.work(now)?;
                host.receive(now, &self.pool, &mut self.packets)?;
                self.packets.clear();
            }
            if self.gateways.iter().all(InMemory::is_idle) {
                break;
            }
        }
        Ok(())
    }

    /// Returns why packets were dropped.
    fn drops(&self) -> String {
        let mut reasons = Vec::new();
        for (gateway, side) in self.gateways.iter().zip(["first", "second"]) {
            let dataplane = gateway.dataplane();
            let directions = [
                ("outbound", dataplane.sent()),
                ("inbound", dataplane.received()),
            ];
            for (direction, counters) in directions {
                let dropped = counters.dropped.iter().filter(|(_, n)| *n > 0);
                reasons.extend(
                    dropped.map(|(reason, n)| format!("{side} {direction} {} {n}", reason.name())),
                );
            }
        }
        reasons.join(", ")
    }

    fn burst(&mut self, n: usize, done: &mut Done) -> Result<(), String> {
        let made = self.bench.make(&self.pool, self.next, n, &mut self.packets);
        let [near, far] = &mut self.hosts;
        near.port
            .send(&mut self.packets)
            .map_err(|e| e.to_string())?;
        // What a port does not take is lost, and counted as wrong.
        self.packets.clear();
        for gateway in &mut self.gateways {
            gateway.work(Instant::now())?;
        }
        near.receive(Instant::ZERO, &self.pool, &mut self.packets)?;
        self.packets.clear();
        far.receive(Instant::ZERO, &self.pool, &mut self.packets)?;
        self.bench
            .compare(self.next, TTL_OUT, &mut self.packets, done);
        self.next = made;
        Ok(())
    }
}

fn host(side: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits([NEAR, FAR][side] ^ 1)
}

/// The configuration of one of the gateways.
fn config(side: usize, setup: &Setup, keys: &[PresharedKey]) -> Config {
    let interface = |device: &str, ip4: u32, hop: Ipv4Addr| InterfaceConfig {
        device: Device::Name(device.into()),
        device_queue: None,
        mac: None,
        ip4: Some(Ipv4Addr::from_bits(ip4)),
        ip6: None,
        nat_ip4: None,
        nat_ip6: None,
        nexthop_ip4: Some(hop),
        nexthop_ip6: None,
        nexthop_mac: None,
    };
    let peer = Ipv4Addr::from_bits(PUBLIC[1 - side]);
    let route = |(n, key): (usize, &PresharedKey)| {
        let network = if side == 0 { net(n) } else { net(n) ^ MIRROR };
        let network = Ipv4Net::new_assert(Ipv4Addr::from_bits(network), 29);
        Route {
            id: format!("route{n}"),
            gateway: IpAddr::V4(peer),
            prefixes: vec![IpNet::V4(network)],
            keys: Keys::Exchange {
                preshared_key: key.clone(),
                spi: super::FIRST_SPI + n as u32,
                aead: if setup.key_bytes == 32 {
                    Aead::Aes256Gcm
                } else {
                    Aead::Aes128Gcm
                },
            },
            esn: setup.sequence_mode == SequenceMode::Extended,
            window: Config::WINDOW,
        }
    };
    Config::new(
        interface("private", [NEAR, FAR][side], host(side)),
        interface("public", PUBLIC[side], peer),
        keys.iter().enumerate().map(route).collect(),
    )
}
