//! Fragmenting inner IPv4 packets that may be (RFC 791, 3.2): before they are encrypted, so that
//! the peer need not put outer packets together before it can check them.

use tare_packet::checksum;
use tare_packet::ethernet::HEADER;
use tare_packet::ipv4::{self, Ipv4};
use tare_port::{Frame, Pool};

use super::DropReason;

/// The option type that ends the options, and the one of a single byte.
const END: u8 = 0;
const NO_OPERATION: u8 = 1;

/// Options with this bit are copied to every fragment.
const COPIED: u8 = 0x80;

/// Cuts the packet of `frame`, which `ip` describes, into packets of up to `mtu` bytes, and adds
/// those to `to`, each with the frame's Ethernet header. Returns how many.
///
/// # Errors
/// With nothing added, [`DropReason::NoBuffer`] where frames or room are short, and `malformed` of
/// a fragment that ends where no packet does.
pub(super) fn fragment(
    frame: &Frame,
    ip: &Ipv4,
    mtu: usize,
    pool: &Pool,
    malformed: DropReason,
    to: &mut Vec<Frame>,
) -> Result<usize, DropReason> {
    // The offsets of its pieces might be more than the field holds.
    if offset(ip) * 8 + ip.total_len > usize::from(u16::MAX) {
        return Err(malformed);
    }
    cut(frame, ip, mtu, pool, to).ok_or(DropReason::NoBuffer)
}

/// Returns the offset of a packet in units of 8 bytes.
fn offset(ip: &Ipv4) -> usize {
    (ip.fragment & ipv4::FRAGMENT_OFFSET) as usize
}

/// [`fragment`] for a packet that may be cut; `None` where frames or room are short.
fn cut(frame: &Frame, ip: &Ipv4, mtu: usize, pool: &Pool, to: &mut Vec<Frame>) -> Option<usize> {
    let packet = frame.get(HEADER..HEADER + ip.total_len)?;
    let payload = packet.get(ip.header_len..)?;
    let room = mtu.checked_sub(ip.header_len)? & !7;
    if room == 0 {
        return None;
    }
    let mut header = [0; 60];
    let header = &mut header[..ip.header_len];
    header.copy_from_slice(&packet[..ip.header_len]);
    let before = to.len();
    let mut at = 0;
    for piece in payload.chunks(room) {
        let more = at + piece.len() < payload.len();
        let made = pool.take().and_then(|mut new| {
            let offset = offset(ip) + at / 8;
            let flags = ip.fragment & 0xffff_e000 | if more { ipv4::MORE_FRAGMENTS } else { 0 };
            finish_header(header, header.len() + piece.len(), flags | offset as u32);
            new.append(HEADER)?.copy_from_slice(frame.get(..HEADER)?);
            new.append(header.len())?.copy_from_slice(header);
            new.append(piece.len())?.copy_from_slice(piece);
            Some(new)
        });
        let Some(new) = made else {
            to.truncate(before);
            return None;
        };
        to.push(new);
        if at == 0 {
            drop_options(&mut header[ipv4::HEADER..]);
        }
        at += piece.len();
    }
    Some(to.len() - before)
}

fn finish_header(header: &mut [u8], total_len: usize, fragment: u32) {
    header[2..4].copy_from_slice(&(total_len as u16).to_be_bytes());
    header[4..8].copy_from_slice(&fragment.to_be_bytes());
    header[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Turns options that belong in the first fragment alone into nothing.
fn drop_options(mut options: &mut [u8]) {
    while let Some(&kind) = options.first() {
        let len = match kind {
            END => return,
            NO_OPERATION => 1,
            _ => options.get(1).map_or(0, |&len| usize::from(len)),
        };
        // One that is longer than its place, or too short for its own header, has nothing that
        // could be kept.
        if len == 0 || len > options.len() || (kind != NO_OPERATION && len < 2) {
            options.fill(NO_OPERATION);
            return;
        }
        if kind & COPIED == 0 {
            options[..len].fill(NO_OPERATION);
        }
        options = &mut options[len..];
    }
}
