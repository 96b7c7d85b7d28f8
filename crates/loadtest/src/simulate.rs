//! A network to try the tester on, without hardware and without root: two gateways with a line
//! between them, in virtual time.

use std::str::FromStr;
use std::time::Duration;

use tare_packet::{checksum, esp, ethernet, ipv4, protocol};
use tare_port::{Frame, BURST};
use tare_sim::{Carried, Instant, LineConfig, Node, Outbox, Queue};

use crate::schedule::{wire_bits, Rate};
use crate::stream::Stream;
use crate::testbed::{Testbed, TesterPorts, Virtual};

/// The bytes that a gateway adds to a frame on the line between two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overhead {
    /// A fixed number of bytes.
    Bytes(usize),
    /// ESP in tunnel mode over IPv4 with AES-GCM ([`esp::overhead`]).
    Esp,
}

impl Overhead {
    /// Bytes added to a frame of this length, both without checksum.
    pub fn of(self, length: usize) -> usize {
        match self {
            Overhead::Bytes(bytes) => bytes,
            Overhead::Esp => {
                let inner = length.saturating_sub(ethernet::HEADER);
                ipv4::HEADER + esp::overhead(inner)
            }
        }
    }
}

/// The properties of a simulated network: a line to the first gateway, one between the gateways,
/// and one from the second, in each direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulation {
    /// All lines, without faults.
    pub line: LineConfig,
    /// The bytes that the gateways add between them.
    pub overhead: Overhead,
    /// The line between the gateways: faults are there.
    pub between: LineConfig,
}

impl Simulation {
    /// Lines of this rate, with queues of 512 frames as network cards have them, and ESP between
    /// the gateways.
    pub fn new(bits_per_second: u64) -> Simulation {
        let line = LineConfig {
            queue: Queue::Frames(512),
            ..LineConfig::new(bits_per_second)
        };
        Simulation {
            line,
            overhead: Overhead::Esp,
            between: line,
        }
    }

    /// The frames of a stream that are under way at most when it is sent at this rate: those in the
    /// queues and those on the lines.
    pub fn frames_under_way(&self, rate: Rate) -> usize {
        let of = |line: &LineConfig| {
            let bits = wire_bits(ethernet::MIN) as f64;
            let rate = rate.bits().min(line.bits_per_second) as f64;
            let on_line = rate * line.delay.as_secs_f64() / bits * (1.0 + line.duplication);
            let queued = match line.queue {
                Queue::Frames(frames) => frames as f64,
                Queue::Bytes(bytes) => bytes as f64 / ethernet::MIN as f64,
            };
            on_line + queued + f64::from(line.overtakers)
        };
        // The tester makes frames in bursts, and each line has one more on its way into it.
        (2.0 * of(&self.line) + of(&self.between)) as usize + 2 * BURST
    }
}

impl FromStr for Simulation {
    type Err = String;

    /// Reads
    /// `rate=1e9,overhead=esp,queue=512,delay=10e-6,loss=0.01,duplication=0,reordering=0,seed=1`,
    /// each part by choice.
    fn from_str(text: &str) -> Result<Simulation, String> {
        let mut simulation = Simulation::new(1_000_000_000);
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let wrong = |expected: &str| format!("{key}: found \"{value}\", expected {expected}");
            let number = |least: f64, most: f64, expected: &str| {
                value
                    .parse()
                    .ok()
                    .filter(|number: &f64| (least..=most).contains(number))
                    .ok_or_else(|| wrong(expected))
            };
            let share = || number(0.0, 1.0, "a share from 0 to 1");
            match key {
                "rate" => {
                    let rate = number(1e3, 1e12, "bits per second from 1e3 to 1e12")? as u64;
                    simulation.line.bits_per_second = rate;
                    simulation.between.bits_per_second = rate;
                }
                "overhead" if value == "esp" => simulation.overhead = Overhead::Esp,
                "overhead" => {
                    let bytes = number(0.0, 1000.0, "esp, or bytes from 0 to 1000")?;
                    simulation.overhead = Overhead::Bytes(bytes as usize);
                }
                "queue" => {
                    let frames = number(0.0, 1e6, "frames from 0 to 1e6")?;
                    simulation.line.queue = Queue::Frames(frames as usize);
                    simulation.between.queue = simulation.line.queue;
                }
                "delay" => {
                    let delay = Duration::from_secs_f64(number(0.0, 1.0, "seconds from 0 to 1")?);
                    simulation.between.delay = delay;
                }
                "loss" => simulation.between.loss = share()?,
                "duplication" => simulation.between.duplication = share()?,
                "reordering" => simulation.between.reordering = share()?,
                "seed" => {
                    let seed = value.parse().map_err(|_| wrong("a whole number"))?;
                    simulation.between.seed = seed;
                }
                _ => {
                    return Err(format!(
                        "found \"{key}\", expected rate, overhead, queue, delay, loss, duplication, reordering or seed"
                    ))
                }
            }
        }
        let faults = simulation.between;
        if faults.loss + faults.duplication + faults.reordering > 1.0 {
            return Err("loss, duplication and reordering together are more than 1".into());
        }
        Ok(simulation)
    }
}

/// An Ethernet frame with a UDP packet over IPv4, `length` bytes long without its checksum, for a
/// network that has no capture. It is at least 60 bytes long and at most an IPv4 packet.
pub fn frame(length: usize) -> Vec<u8> {
    const IP: usize = ethernet::HEADER;
    const UDP: usize = IP + ipv4::HEADER;
    let length = length.clamp(ethernet::MIN, usize::from(u16::MAX));
    let mut frame = vec![0; length];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    frame[12..IP].copy_from_slice(&ethernet::IPV4.to_be_bytes());
    frame[IP] = ipv4::VERSION_AND_LENGTH;
    frame[IP + 2..IP + 4].copy_from_slice(&((length - IP) as u16).to_be_bytes());
    frame[IP + 8..IP + 10].copy_from_slice(&[protocol::TTL_DEFAULT, protocol::UDP]);
    // The networks of RFC 2544 for tests (RFC 6890), and the discard service.
    frame[IP + 12..IP + 20].copy_from_slice(&[198, 18, 0, 1, 198, 19, 0, 1]);
    let sum = checksum::finish(checksum::sum(&frame[IP..UDP]));
    frame[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
    frame[UDP..UDP + 4].copy_from_slice(&[0, 9, 0, 9]);
    frame[UDP + 4..UDP + 6].copy_from_slice(&((length - UDP) as u16).to_be_bytes());
    frame
}

/// A frame, and how many bytes a gateway has put around it.
#[derive(Debug)]
struct Wrapped {
    frame: Frame,
    extra: usize,
}

impl Carried for Wrapped {
    fn frame_len(&self) -> usize {
        self.frame.len() + self.extra
    }

    fn duplicate(&self) -> Option<Wrapped> {
        Some(Wrapped {
            frame: self.frame.duplicate()?,
            extra: self.extra,
        })
    }
}

impl From<Frame> for Wrapped {
    fn from(frame: Frame) -> Wrapped {
        Wrapped { frame, extra: 0 }
    }
}

impl From<Wrapped> for Frame {
    fn from(wrapped: Wrapped) -> Frame {
        wrapped.frame
    }
}

/// A gateway that forwards what comes in on one interface by the other, and wraps or unwraps it.
struct Gateway(Overhead);

const PRIVATE: usize = 0;
const PUBLIC: usize = 1;

impl Node for Gateway {
    type Message = Wrapped;

    fn receive(&mut self, _: Instant, from: usize, packet: Wrapped, out: &mut Outbox<Wrapped>) {
        let frame = packet.frame;
        match from {
            PRIVATE => {
                let extra = self.0.of(frame.len());
                out.send(PUBLIC, Wrapped { frame, extra });
            }
            _ => out.send(PRIVATE, frame.into()),
        }
    }
}

/// A simulated network in which each stream's frames come out where they are expected: through two
/// gateways and three lines for each port that sends.
///
/// Boxed, so that its code is compiled here, and with optimization in development builds as well.
///
/// # Errors
/// If streams of one port are expected at different ones.
pub fn gateways(simulation: &Simulation, streams: &[Stream]) -> Result<Box<dyn Testbed>, String> {
    // By the port that sends: the port that receives.
    let mut paths: Vec<Option<usize>> = Vec::new();
    for stream in streams {
        let ports = stream.tx_port.max(stream.rx_port) + 1;
        paths.resize(paths.len().max(ports), None);
        let to = paths[stream.tx_port].get_or_insert(stream.rx_port);
        if *to != stream.rx_port {
            return Err(format!(
                "stream {}: the simulated network delivers what one interface sends to one interface only",
                stream.name
            ));
        }
    }
    let ports = paths.len();
    let mut network = tare_sim::Testbed::new(simulation.between.seed);
    // Each path ends at an interface of its own: several of them may lead to one port.
    let ends = paths.iter().map(|to| to.unwrap_or_default());
    let tester = network.add(TesterPorts::new((0..ports).chain(ends)));
    for (port, _) in paths.iter().enumerate().filter(|(_, to)| to.is_some()) {
        let [first, second] = [(); 2].map(|()| network.add(Gateway(simulation.overhead)));
        let between = LineConfig {
            seed: simulation.between.seed.wrapping_add(port as u64),
            ..simulation.between
        };
        let line = &simulation.line;
        let mut connect = |a, b, line| network.connect_lines(a, b, line, line);
        connect(tester.interface(port), first.interface(PRIVATE), line);
        connect(first.interface(PUBLIC), second.interface(PUBLIC), &between);
        connect(
            second.interface(PRIVATE),
            tester.interface(ports + port),
            line,
        );
    }
    Ok(Box::new(Virtual::new((network, tester))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn esp_makes_114_bytes_of_60() {
        assert_eq!(60 + Overhead::Esp.of(60), 114);
        // 1500 bytes of IP: 14 + 20 + 8 + 8 + 1504 + 16.
        assert_eq!(1514 + Overhead::Esp.of(1514), 1570);
    }

    #[test]
    fn a_simulation_is_read_or_refused_by_name() {
        let simulation: Simulation = "rate=10e9,overhead=0,queue=16,delay=1e-3,loss=0.25,seed=7"
            .parse()
            .unwrap();
        assert_eq!(simulation.line.bits_per_second, 10_000_000_000);
        assert_eq!(simulation.between.queue, Queue::Frames(16));
        assert_eq!(simulation.between.delay, Duration::from_millis(1));
        assert_eq!((simulation.between.loss, simulation.line.loss), (0.25, 0.0));
        assert_eq!(simulation.overhead, Overhead::Bytes(0));
        for (text, named) in [
            ("speed=1", "speed"),
            ("rate=fast", "fast"),
            ("rate=0", "rate"),
            ("loss=1.5", "loss"),
            ("loss=nan", "loss"),
            ("loss=0.6,duplication=0.6", "together"),
            ("queue", "queue"),
        ] {
            let error = text.parse::<Simulation>().unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
