//! Frames and networks for the tests.

#![allow(dead_code)]

use tare_loadtest::{pair, Network, Options, Stream, StreamConfig, Tester, TesterPorts, Virtual};
use tare_packet::checksum;
use tare_port::Frame;
use tare_sim::{Cable, Instant, Line, LineConfig, LineCounters, Node, NodeId, Outbox, Testbed};

/// A UDP packet in an Ethernet frame of `length` bytes without checksum, with a right UDP checksum.
pub(crate) fn udp4(length: usize, flow: u8) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&((length - 14) as u16).to_be_bytes());
    frame[22] = 64;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&[172, 16, 1, flow]);
    frame[30..34].copy_from_slice(&[172, 17, 1, flow]);
    let sum = checksum::finish(checksum::sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[34..38].copy_from_slice(&[0x30, 0x39, 0x30, 0x3a]);
    frame[38..40].copy_from_slice(&((length - 34) as u16).to_be_bytes());
    for (n, byte) in frame[42..].iter_mut().enumerate() {
        *byte = n as u8;
    }
    let sum = checksum::finish(transport_sum(&frame, 34));
    frame[40..42].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// The same over IPv6.
pub(crate) fn udp6(length: usize, flow: u8) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[12..14].copy_from_slice(&0x86ddu16.to_be_bytes());
    frame[14] = 0x60;
    frame[18..20].copy_from_slice(&((length - 54) as u16).to_be_bytes());
    frame[20] = 17;
    frame[21] = 64;
    frame[22] = 0xfd;
    frame[37] = flow;
    frame[38] = 0xfd;
    frame[53] = flow;
    frame[54..58].copy_from_slice(&[0x30, 0x39, 0x30, 0x3a]);
    frame[58..60].copy_from_slice(&((length - 54) as u16).to_be_bytes());
    let sum = checksum::finish(transport_sum(&frame, 54));
    frame[60..62].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// The sum over pseudo-header and segment: all ones when the checksum is right.
pub(crate) fn transport_sum(frame: &[u8], at: usize) -> u64 {
    let (addresses, protocol) = if at == 34 {
        (26..34, frame[23])
    } else {
        (22..54, frame[20])
    };
    let (src, dst) = frame[addresses.clone()].split_at(addresses.len() / 2);
    checksum::pseudo_header(src, dst, protocol, frame.len() - at) + checksum::sum(&frame[at..])
}

/// Streams there and back between ports 0 and 1.
pub(crate) fn both_ways(frames: &[Vec<u8>]) -> Vec<Stream> {
    let config = |name: &str, rx: &str, port| StreamConfig {
        name: name.into(),
        rx: rx.into(),
        port,
        frames: frames.to_vec(),
    };
    pair(&[config("node1", "node2", 0), config("node2", "node1", 1)]).unwrap()
}

/// One stream from port 0 back to port 0.
pub(crate) fn one_way(frames: &[Vec<u8>]) -> Vec<Stream> {
    let config = StreamConfig {
        name: "NIC".into(),
        rx: "NIC".into(),
        port: 0,
        frames: frames.to_vec(),
    };
    pair(&[config]).unwrap()
}

/// A node that does something to each frame, and sends it back.
struct Reflector<F>(F);

impl<F: FnMut(&mut Frame) -> bool + 'static> Node for Reflector<F> {
    type Message = Frame;

    fn receive(&mut self, _: Instant, _: usize, mut frame: Frame, out: &mut Outbox<Frame>) {
        if (self.0)(&mut frame) {
            out.send(0, frame);
        }
    }
}

/// A network in which what port 0 sends comes back to it over a line.
pub(crate) struct Loop {
    simulation: Testbed<Frame>,
    ports: NodeId<TesterPorts<Frame>>,
    cable: Cable,
}

impl Loop {
    pub(crate) fn line(&self) -> &Line<Frame> {
        self.simulation.lines(self.cable)[1]
    }

    pub(crate) fn counters(&self) -> LineCounters {
        self.line().counters()
    }
}

impl Network for Loop {
    type Message = Frame;

    fn simulation(&self) -> &Testbed<Frame> {
        &self.simulation
    }

    fn simulation_mut(&mut self) -> &mut Testbed<Frame> {
        &mut self.simulation
    }

    fn tester(&self) -> NodeId<TesterPorts<Frame>> {
        self.ports
    }
}

/// The loop over this line, and what is done to each frame before it.
pub(crate) fn looped(
    config: &LineConfig,
    touch: impl FnMut(&mut Frame) -> bool + 'static,
) -> Virtual<Loop> {
    let mut simulation = Testbed::new(0);
    let ports = simulation.add(TesterPorts::new(0..1));
    let reflector = simulation.add(Reflector(touch));
    let cable = simulation.connect_lines(ports, reflector, &LineConfig::IDEAL, config);
    Virtual::new(Loop {
        simulation,
        ports,
        cable,
    })
}

pub(crate) fn quick() -> Options {
    Options {
        window: 1 << 16,
        frames: 1 << 12,
        ..Options::default()
    }
}

pub(crate) fn tester(
    config: &LineConfig,
    frames: &[Vec<u8>],
    options: Options,
    touch: impl FnMut(&mut Frame) -> bool + 'static,
) -> Tester<Virtual<Loop>> {
    Tester::new(looped(config, touch), one_way(frames), options).unwrap()
}
