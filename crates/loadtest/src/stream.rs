//! Streams: the frames of a capture, replayed in a loop, with room for stamps where there is some.

use tare_packet::protocol::{self, ICMP, ICMPV6, TCP, UDP};
use tare_packet::{checksum, ethernet, ipv6, udp};

use crate::error::{Error, FRAME_MAX};
use crate::schedule::wire_bits;
use crate::stamp::{self, IpPacket, Place, Stamp};

/// The shortest thing that has an Ethernet header.
const FRAME_MIN: usize = ethernet::HEADER;

/// The frames of a stream, and its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// Its name, and that of the interface it is sent on.
    pub name: String,
    /// The name of the stream on whose interface its frames come back.
    pub rx: String,
    /// The interface it is sent on, counted from 0; streams may share one.
    pub port: usize,
    /// Ethernet frames without their checksum, sent in a loop. One shorter than 60 bytes is padded.
    pub frames: Vec<Vec<u8>>,
}

/// Frames to be sent in a loop, and where they are expected.
#[derive(Clone, Debug)]
pub struct Stream {
    pub(crate) name: String,
    pub(crate) tx_port: usize,
    pub(crate) rx_port: usize,
    pub(crate) templates: Vec<Template>,
}

/// Joins each stream with the interface on which it is received.
///
/// # Errors
/// On no or too many streams, a stream without frames, a frame that cannot be sent, two streams of
/// one name, and a receiver that is the name of no stream.
pub fn pair(configs: &[StreamConfig]) -> Result<Vec<Stream>, Error> {
    if !(1..=255).contains(&configs.len()) {
        return Err(Error::StreamCount(configs.len()));
    }
    let mut streams = Vec::with_capacity(configs.len());
    for (n, config) in configs.iter().enumerate() {
        if configs[..n].iter().any(|other| other.name == config.name) {
            return Err(Error::DuplicateName(config.name.clone()));
        }
        let receiver = configs.iter().find(|other| other.name == config.rx);
        let receiver = receiver.ok_or_else(|| Error::UnknownReceiver {
            stream: config.name.clone(),
            rx: config.rx.clone(),
        })?;
        if config.frames.is_empty() {
            return Err(Error::NoFrames {
                stream: config.name.clone(),
            });
        }
        let templates = config.frames.iter().enumerate().map(|(frame, bytes)| {
            if (FRAME_MIN..=FRAME_MAX).contains(&bytes.len()) {
                Ok(Template::new(bytes))
            } else {
                Err(Error::FrameLength {
                    stream: config.name.clone(),
                    frame: frame + 1,
                    length: bytes.len(),
                })
            }
        });
        streams.push(Stream {
            name: config.name.clone(),
            tx_port: config.port,
            rx_port: receiver.port,
            templates: templates.collect::<Result<_, _>>()?,
        });
    }
    Ok(streams)
}

impl Stream {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Frames of the loop, and how many of them have no room for a stamp.
    pub fn frames(&self) -> (usize, usize) {
        let plain = self.templates.iter().filter(|t| t.room.is_none()).count();
        (self.templates.len(), plain)
    }

    /// Bytes of the longest frame.
    pub fn longest(&self) -> usize {
        let lengths = self.templates.iter().map(|template| template.bytes.len());
        lengths.max().unwrap_or(0)
    }

    /// The first frame with a longer payload than `mtu`, counted from 1, and its bytes. A VLAN tag
    /// is no payload.
    pub(crate) fn longer_than(&self, mtu: usize) -> Option<(usize, usize)> {
        let lengths = self.templates.iter().map(|template| {
            let header = stamp::ethertype(&template.bytes).map_or(FRAME_MIN, |(_, at)| at);
            (template.bytes.len(), header)
        });
        let mut numbered = lengths.enumerate();
        numbered
            .find_map(|(n, (length, header))| (length - header > mtu).then_some((n + 1, length)))
    }

    /// Bits that this many frames of the loop occupy on the wire.
    pub(crate) fn bits_of(&self, frames: u64) -> u64 {
        let bits = |templates: &[Template]| {
            templates
                .iter()
                .map(|t| wire_bits(t.bytes.len()))
                .sum::<u64>()
        };
        let (loops, rest) = (
            frames / self.templates.len() as u64,
            frames % self.templates.len() as u64,
        );
        bits(&self.templates)
            .saturating_mul(loops)
            .saturating_add(bits(&self.templates[..rest as usize]))
    }

    /// The same stream, each frame `length` bytes long without its checksum.
    ///
    /// # Errors
    /// If a frame is no IP packet or its headers do not fit.
    pub fn resize(&self, length: usize) -> Result<Stream, Error> {
        let mut resized = self.clone();
        for (frame, template) in resized.templates.iter_mut().enumerate() {
            *template = template.resize(length).map_err(|why| Error::Resize {
                stream: self.name.clone(),
                frame: frame + 1,
                length,
                why,
            })?;
        }
        Ok(resized)
    }
}

/// A frame as it is sent, but for the stamp.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub(crate) bytes: Box<[u8]>,
    room: Option<Room>,
}

/// The place of a template's stamp, and the checksum that it changes.
#[derive(Clone, Copy, Debug)]
struct Room {
    at: usize,
    /// Of the payload in front of the stamp.
    covered: u16,
    checksum: Option<Checksum>,
}

/// A checksum that covers the stamp.
#[derive(Clone, Copy, Debug)]
struct Checksum {
    at: usize,
    /// The sum of all that it covers but the stamp.
    rest: u64,
    /// The stamp begins at an odd distance from what the checksum covers.
    odd: bool,
    /// Zero means that there is no checksum, so it is sent as all ones (RFC 768).
    udp: bool,
}

impl Template {
    fn new(frame: &[u8]) -> Template {
        let mut bytes = frame.to_vec();
        bytes.resize(bytes.len().max(tare_packet::ethernet::MIN), 0);
        let room = room(&mut bytes);
        Template {
            bytes: bytes.into(),
            room,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.room.is_some()
    }

    /// Writes a stamp into a frame that holds a copy of this template's bytes; nothing where there
    /// is no room.
    #[inline]
    pub(crate) fn stamp(&self, frame: &mut [u8], stamp: &Stamp) {
        let Some(room) = &self.room else {
            return;
        };
        let bytes = stamp::encode(stamp, room.covered);
        if let Some(place) = frame
            .get_mut(room.at..)
            .and_then(|rest| rest.first_chunk_mut())
        {
            *place = bytes;
        }
        if let Some(checksum) = &room.checksum {
            let mut sum = !checksum::finish(checksum::sum(&bytes));
            if checksum.odd {
                // Each byte is the other half of a word (RFC 1071 section 2, byte order
                // independence).
                sum = sum.swap_bytes();
            }
            let mut value = checksum::finish(checksum.rest + u64::from(sum));
            if checksum.udp && value == 0 {
                value = 0xffff;
            }
            if let Some(place) = frame
                .get_mut(checksum.at..)
                .and_then(|rest| rest.first_chunk_mut())
            {
                *place = value.to_be_bytes();
            }
        }
    }

    fn resize(&self, length: usize) -> Result<Template, &'static str> {
        let packet = IpPacket::of(&self.bytes).ok_or("it is no IP packet")?;
        if packet.fragment {
            return Err("it is a fragment");
        }
        let transport = Transport::of(&self.bytes, &packet);
        let headers = transport.map_or(packet.payload, |transport| transport.data);
        if length < headers || length > FRAME_MAX {
            return Err("its headers do not fit");
        }
        let mut bytes = self.bytes[..packet.end.min(length)].to_vec();
        bytes.resize(length, 0);
        let header = packet.header;
        let total = (length - header) as u16;
        if packet.version == 4 {
            bytes[header + 2..header + 4].copy_from_slice(&total.to_be_bytes());
            bytes[header + 10..header + 12].fill(0);
            let sum = checksum::finish(checksum::sum(&bytes[header..packet.payload]));
            bytes[header + 10..header + 12].copy_from_slice(&sum.to_be_bytes());
        } else {
            bytes[header + 4..header + 6]
                .copy_from_slice(&(total - ipv6::HEADER as u16).to_be_bytes());
        }
        if let Some(transport) = transport {
            let start = transport.start;
            if transport.protocol == UDP {
                let length = (length - start) as u16;
                bytes[start + 4..start + 6].copy_from_slice(&length.to_be_bytes());
            }
            // The field of a stamped template is empty: stamping fills it.
            let own = self.room.and_then(|room| room.checksum);
            let field = own.map(|own| own.at);
            if let Some(field) = field.or(transport.checksum_in(&bytes, &packet)) {
                bytes[field..field + 2].fill(0);
                let resized = IpPacket {
                    end: length,
                    ..packet
                };
                let sum = checksum::finish(transport.sum(&bytes, &resized));
                let sum = if transport.protocol == UDP && sum == 0 {
                    0xffff
                } else {
                    sum
                };
                bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
            }
        }
        Ok(Template::new(&bytes))
    }
}

/// The transport header of a packet.
#[derive(Clone, Copy, Debug)]
struct Transport {
    protocol: u8,
    start: usize,
    /// The first byte of its data.
    data: usize,
    /// The checksum field.
    checksum: Option<usize>,
}

impl Transport {
    /// `None` if the packet has none that can be read, or one whose contents are not to be
    /// changed: another packet (IP in IP, GRE), what is authenticated (ESP, AH), what has a
    /// checksum of another kind or in another place (SCTP, DCCP, UDP-Lite, those of routers).
    fn of(frame: &[u8], packet: &IpPacket) -> Option<Transport> {
        let (mut protocol, mut start) = match packet.version {
            4 => (*frame.get(packet.header + 9)?, packet.payload),
            _ => (*frame.get(packet.header + 6)?, packet.payload),
        };
        let byte = |at: usize| frame.get(..packet.end)?.get(at).map(|&b| usize::from(b));
        // Hop-by-hop, routing and destination options (RFC 8200 section 4).
        while packet.version == 6
            && matches!(
                protocol,
                protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS
            )
        {
            let length = 8 * (byte(start + 1)? + 1);
            protocol = byte(start)? as u8;
            start += length;
        }
        let (header, checksum) = match protocol {
            UDP => (udp::HEADER, Some(6)),
            TCP => (byte(start + 12)? / 16 * 4, Some(16)),
            ICMP | ICMPV6 => (udp::HEADER, Some(2)),
            protocol::IPV4 | protocol::IPV6 | protocol::FRAGMENT | protocol::GRE => return None,
            protocol::ESP | protocol::AH | protocol::SCTP | protocol::DCCP => return None,
            protocol::UDP_LITE | protocol::MOBILITY | protocol::IGMP => return None,
            protocol::OSPF | protocol::PIM | protocol::VRRP => return None,
            _ => (0, None),
        };
        let data = start + header;
        let sane = data <= packet.end && (protocol != TCP || header >= 20);
        sane.then_some(Transport {
            protocol,
            start,
            data,
            checksum: checksum.map(|at| start + at),
        })
    }

    /// The place of the checksum, if the packet has one: a UDP checksum of zero over IPv4 is none
    /// (RFC 768).
    fn checksum_in(&self, frame: &[u8], packet: &IpPacket) -> Option<usize> {
        let optional = self.protocol == UDP && packet.version == 4;
        self.checksum
            .filter(|&field| !(optional && frame[field..field + 2] == [0, 0]))
    }

    /// True unless it is UDP whose length says that the checksum covers another part of the packet.
    fn is_whole(&self, frame: &[u8], packet: &IpPacket) -> bool {
        let length = frame
            .get(self.start + 4..)
            .and_then(|rest| rest.first_chunk());
        let length = length.map(|length| usize::from(u16::from_be_bytes(*length)));
        self.protocol != UDP || length == Some(packet.end - self.start)
    }

    /// The sum of all that the checksum covers.
    fn sum(&self, frame: &[u8], packet: &IpPacket) -> u64 {
        let segment = checksum::sum(&frame[self.start..packet.end]);
        if self.protocol == ICMP {
            return segment;
        }
        // The final destination stands in a routing header where there is one; none is expected
        // here.
        let addresses = match packet.version {
            4 => packet.header + 12..packet.header + 20,
            _ => packet.header + 8..packet.header + 40,
        };
        let (src, dst) = frame[addresses.clone()].split_at(addresses.len() / 2);
        let length = packet.end - self.start;
        segment + checksum::pseudo_header(src, dst, self.protocol, length)
    }
}

/// The room for a stamp in a frame; the bytes that it takes are zeroed.
fn room(frame: &mut [u8]) -> Option<Room> {
    let Place { payload, at } = stamp::place(frame)?;
    let packet = IpPacket::of(frame)?;
    let transport = Transport::of(frame, &packet)?;
    // Behind extension headers, the stamp's own check would cover a checksum that covers the stamp.
    let unchecked = payload + stamp::TRANSLATED;
    if at < transport.data
        || !transport.is_whole(frame, &packet)
        || transport
            .checksum
            .is_some_and(|field| field + 2 > unchecked)
    {
        return None;
    }
    frame.get_mut(at..packet.end)?.fill(0);
    let checksum = transport.checksum_in(frame, &packet).map(|field| {
        frame[field..field + 2].fill(0);
        Checksum {
            at: field,
            rest: transport.sum(frame, &packet),
            odd: (at - transport.start) % 2 == 1,
            udp: transport.protocol == UDP,
        }
    });
    let covered = Place { payload, at }.covered(frame);
    Some(Room {
        at,
        covered,
        checksum,
    })
}
