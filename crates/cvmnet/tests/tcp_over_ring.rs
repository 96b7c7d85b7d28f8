//! The guest's TCP over its driver, the ring and the host's device, with a peer behind the device.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use tare_cvmnet::breakdown::Off;
use tare_cvmnet::host::merge::Limits;
use tare_cvmnet::host::{Device, DeviceSettings, Frames};
use tare_cvmnet::pool::GuestBuffer;
use tare_cvmnet::region::Region;
use tare_cvmnet::ring::{Driver, NetHeader, Settings};
use tare_cvmnet::tcp::{Checksum, Config, Frame, Id, Network, Packet, Secret, Stack, Transmit};
use tare_cvmnet::variant::{Merging, Variant};
use tare_sim::{Instant, Random};

const PORT: u16 = 4433;

fn config(host: u8, offloads: bool) -> Config {
    Config {
        ip4: Some(Network {
            address: Ipv4Addr::new(10, 0, 0, host),
            prefix_len: 24,
            gateway: None,
        }),
        checksum_offload: offloads,
        segmentation_offload: offloads,
        ..Config::new([2, 0, 0, 0, 0, host])
    }
}

/// The other end, in the memory of the host.
struct Peer {
    stack: Stack<Vec<u8>>,
    now: Instant,
    frames: VecDeque<(Vec<u8>, NetHeader)>,
    /// Frames for the guest.
    sent: usize,
}

struct Line<'a>(&'a mut VecDeque<(Vec<u8>, NetHeader)>);

impl Transmit<Vec<u8>> for Line<'_> {
    fn room(&mut self) -> usize {
        1024usize.saturating_sub(self.0.len())
    }

    fn send(&mut self, packet: Packet<'_, Vec<u8>>) {
        let mut frame = packet.headers.to_vec();
        let pieces: Vec<(&Vec<u8>, Range<usize>)> = packet.payload.collect();
        pieces
            .into_iter()
            .for_each(|(bytes, range)| frame.extend_from_slice(&bytes[range]));
        self.0.push_back((frame, packet.offload.into()));
    }
}

impl Frames for Peer {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        let (next, header) = self.frames.pop_front()?;
        frame.extend_from_slice(&next);
        self.sent += 1;
        Some(header)
    }

    fn send(&mut self, frame: &[u8], header: NetHeader) -> bool {
        let checksum = match header.checksum {
            tare_cvmnet::ring::Checksum::Unverified => Checksum::Unverified,
            _ => Checksum::Trusted,
        };
        let (buffer, range) = (frame.to_vec(), 0..frame.len());
        self.stack.receive(
            self.now,
            Frame {
                buffer,
                range,
                checksum,
            },
        );
        true
    }
}

/// A server that sends back what it receives.
struct Echo {
    stack: Stack<GuestBuffer>,
    driver: Driver<Off>,
    connection: Option<Id>,
}

impl Echo {
    fn step(&mut self, now: Instant) {
        let mut frames = Vec::new();
        self.driver.receive(&mut frames, 64).unwrap();
        for received in frames {
            self.stack.receive(now, received.into());
        }
        self.connection = self.connection.or_else(|| self.stack.accept(PORT));
        if let Some(id) = self.connection {
            self.echo(now, id);
        }
        self.stack.poll(now, &mut self.driver);
        self.driver.flush().unwrap();
    }

    fn echo(&mut self, now: Instant, id: Id) {
        while let Some(record) = self.driver.record() {
            let mut bytes = Vec::new();
            for chunk in self.stack.readable(id) {
                let mut part = vec![0; chunk.len()];
                match chunk {
                    tare_cvmnet::tcp::Chunk::Shared(buffer, range) => {
                        buffer.read(range.start, &mut part).unwrap();
                    }
                    tare_cvmnet::tcp::Chunk::Private(private) => part.copy_from_slice(private),
                }
                bytes.extend(part);
                if bytes.len() >= record.capacity() {
                    bytes.truncate(record.capacity());
                    break;
                }
            }
            record.write(0, &bytes).unwrap();
            let len = bytes.len();
            if len == 0 || self.stack.send(now, id, record, 0..len).is_err() {
                return;
            }
            assert_eq!(self.stack.consume(now, id, len), len);
        }
    }
}

/// Sends bytes to a guest that sends them back; returns how many frames the guest has received and
/// how many were sent to it.
fn exchange(variant: Variant, bytes: &[u8]) -> (u64, usize) {
    let region = Region::create(&variant.config(1)).unwrap();
    let offloads = variant.merging == Merging::Device;
    let settings = DeviceSettings {
        merge: (variant.merging == Merging::Host).then(Limits::default),
        ..DeviceSettings::default()
    };
    let peer = Peer {
        stack: Stack::new(config(1, offloads), Secret::new(&[1; 16])).unwrap(),
        now: Instant::ZERO,
        frames: VecDeque::new(),
        sent: 0,
    };
    let mut device = Device::new(&region, 0, settings, peer).unwrap();
    let mut guest = Echo {
        stack: Stack::new(config(2, offloads), Secret::new(&[2; 16])).unwrap(),
        driver: Driver::new(region, 0, Settings::default(), Off).unwrap(),
        connection: None,
    };
    guest.stack.listen(PORT);
    let mut now = Instant::ZERO + Duration::from_secs(1);
    device.poll(now).unwrap();
    assert!(guest.driver.start().unwrap());
    let fresh = guest.driver.free();
    let to = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 2), PORT));
    let id = device.frames().stack.connect(now, to).unwrap();
    let (mut sent, mut echoed) = (0, Vec::new());
    for _ in 0..100_000 {
        now += Duration::from_micros(50);
        let peer = device.frames();
        peer.now = now;
        while sent < bytes.len() {
            let part = bytes[sent..bytes.len().min(sent + 16_384)].to_vec();
            let range = 0..part.len();
            let len = part.len();
            if peer.stack.send(now, id, part, range).is_err() {
                break;
            }
            sent += len;
        }
        let ready: Vec<u8> = peer
            .stack
            .readable(id)
            .flat_map(|chunk| match chunk {
                tare_cvmnet::tcp::Chunk::Shared(buffer, range) => buffer[range].to_vec(),
                tare_cvmnet::tcp::Chunk::Private(bytes) => bytes.to_vec(),
            })
            .collect();
        peer.stack.consume(now, id, ready.len());
        echoed.extend(ready);
        if echoed.len() == bytes.len() {
            break;
        }
        peer.stack.poll(now, &mut Line(&mut peer.frames));
        device.poll(now).unwrap();
        guest.step(now);
        device.poll(now).unwrap();
    }
    assert!(
        echoed == bytes,
        "{}: {} of {}",
        variant.name,
        echoed.len(),
        bytes.len()
    );
    let received = guest.driver.counters().received;
    // With the connection go all of its buffers.
    if let Some(id) = guest.connection {
        guest.stack.abort(now, id);
    }
    for _ in 0..10 {
        device.poll(now).unwrap();
        guest.step(now);
    }
    assert_eq!(guest.driver.free(), fresh, "{}", variant.name);
    (received, device.frames().sent)
}

#[test]
fn a_stream_comes_back_with_the_same_bytes_in_every_variant_and_no_buffer_is_lost() {
    let mut bytes = vec![0; 3_000_000];
    Random::new(11).fill(&mut bytes);
    for variant in Variant::ALL {
        let (received, sent) = exchange(variant, &bytes);
        let merged = variant.merging == Merging::Host;
        assert_eq!(
            received as usize * 4 < sent,
            merged,
            "{} {received} {sent}",
            variant.name
        );
    }
}
