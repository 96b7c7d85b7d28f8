//! The cipher alone: what the packets of a benchmark cost to seal and to open in place, in bursts
//! and under the same keys, with nothing else done to them.

use tare_gcm::{open_each, seal_each, Nonce, OpenPacket, SealPacket, Tag};
use tare_packet::ethernet::HEADER;
use tare_port::{Burst, Pool, BURST};

use super::{Bench, Done, Turn, FIRST_SPI};
use crate::dataplane::esp;

/// SPI and sequence number in full: as many bytes as a packet with extended numbers authenticates.
const AAD: [u8; 12] = [7; 12];

/// Seals and opens on one thread.
pub struct Cipher<'a> {
    bench: &'a Bench,
    pool: Pool,
    frames: Burst,
    tags: [Tag; BURST],
    next: Turn,
    number: u64,
}

impl<'a> Cipher<'a> {
    pub(super) fn new(bench: &'a Bench) -> Result<Cipher<'a>, String> {
        let mut cipher = Cipher {
            bench,
            pool: bench.pool()?,
            frames: Burst::new(),
            tags: [Tag::from([0; 16]); BURST],
            next: Turn::default(),
            number: 0,
        };
        cipher.run(bench.flows.len().max(16 * BURST) as u64)?;
        Ok(cipher)
    }

    /// Seals and opens so many packets. The bytes are those of the frames that they would be
    /// carried in.
    ///
    /// # Errors
    /// A packet could not be described, or none was free.
    pub fn run(&mut self, packets: u64) -> Result<Done, String> {
        let mut done = Done::default();
        let mut left = packets;
        while left > 0 {
            let n = left.min(self.bench.burst as u64) as usize;
            let first = self.next;
            done.bytes += self.prepare(n)?;
            done.packets += self.burst(first)?;
            left -= n as u64;
        }
        Ok(done)
    }

    /// Makes frames of the lengths that come next, where they are not there from the burst before,
    /// and returns their bytes.
    fn prepare(&mut self, n: usize) -> Result<u64, String> {
        let mut bytes = 0;
        self.frames.truncate(n);
        for i in 0..n {
            let frame = self.bench.after(&mut self.next).0.len();
            bytes += frame as u64;
            let inner = frame - HEADER;
            // Behind an Ethernet header, as in the gateway.
            let len = HEADER + inner + esp::padding(inner) + esp::TRAILER;
            if self.frames.get(i).is_some_and(|frame| frame.len() == len) {
                continue;
            }
            let mut frame = self.pool.take().ok_or("no frame is free")?;
            frame
                .append(len)
                .ok_or("a packet is too long for a frame")?;
            match self.frames.get_mut(i) {
                Some(place) => *place = frame,
                None => self.frames.push(frame),
            }
        }
        Ok(bytes)
    }

    fn burst(&mut self, first: Turn) -> Result<u64, String> {
        let (near, far) = (&self.bench.near, &self.bench.far);
        let routes = self.bench.flows.len();
        let route = |i: usize| (first.route + i) % routes;
        let number = self.number;
        self.number += self.frames.len() as u64;
        let mut sealed = 0;
        let packets = self.frames.iter_mut().enumerate().map_while(|(i, frame)| {
            let sa = near.routes[route(i)].outbound(0)?;
            let nonce = Nonce::from_parts(sa.salt, number + i as u64);
            SealPacket::in_place(&sa.key, nonce, &AAD, &mut frame[HEADER..]).ok()
        });
        let tags = &mut self.tags;
        seal_each(packets, |i, tag| {
            tags[i] = tag;
            sealed += 1;
        });
        if sealed != self.frames.len() {
            return Err(format!(
                "{sealed} of {} packets were sealed",
                self.frames.len()
            ));
        }
        let described = self.frames.iter_mut().zip(&self.tags).enumerate();
        let packets = described.map_while(|(i, (frame, tag))| {
            let sa = far.inbound.by_spi(FIRST_SPI + route(i) as u32)?;
            let nonce = Nonce::from_parts(sa.salt, number + i as u64);
            OpenPacket::in_place(&sa.key, nonce, &AAD, &mut frame[HEADER..], *tag).ok()
        });
        Ok(open_each(packets, |_, _| {}) as u64)
    }
}
