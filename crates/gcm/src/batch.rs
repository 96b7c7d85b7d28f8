//! Many packets in one call.
//!
//! A 60-byte packet is too short to keep the processor's cipher and multiplier busy. Packets of a batch that are at
//! most 128 bytes long go four at a time where the path has a way to; longer ones one after the other.

use crate::key::{check, Key};
#[cfg(target_arch = "x86_64")]
use crate::x86::{Block, Short, SHORT_LEN_MAX};
use crate::{Error, Nonce, SharedRead, SharedWrite, Tag};
use std::marker::PhantomData;

/// What sealing and opening a packet have in common.
struct Packet<'a> {
    key: &'a Key,
    short: Short<'a>,
    /// Which packets it may go together with: key size and length; [`ALONE`] when with none.
    class: usize,
    memory: PhantomData<&'a mut [u8]>,
}

/// The class of packets that go one at a time.
const ALONE: usize = 4;

/// A packet to be sealed by [`seal_batch`].
pub struct SealPacket<'a> {
    packet: Packet<'a>,
    tag: Option<Tag>,
}

impl<'a> SealPacket<'a> {
    /// From private memory to `out`, as [`Key::seal`].
    ///
    /// # Errors
    /// As [`Key::seal`].
    #[inline(always)]
    pub fn new(
        key: &'a Key,
        nonce: Nonce,
        aad: &'a [u8],
        plaintext: &'a [u8],
        out: SharedWrite<'a>,
    ) -> Result<Self, Error> {
        check(aad.len(), plaintext.len(), out.len())?;
        let (src, dst, len) = (plaintext.as_ptr(), out.start(), out.len());
        Ok(Self {
            packet: Packet::new(key, nonce, aad, src, dst, len),
            tag: None,
        })
    }

    /// In place, as [`Key::seal_in_place`].
    ///
    /// # Errors
    /// As [`Key::seal_in_place`].
    #[inline(always)]
    pub fn in_place(
        key: &'a Key,
        nonce: Nonce,
        aad: &'a [u8],
        data: &'a mut [u8],
    ) -> Result<Self, Error> {
        check(aad.len(), data.len(), data.len())?;
        let (dst, len) = (data.as_mut_ptr(), data.len());
        Ok(Self {
            packet: Packet::new(key, nonce, aad, dst, dst, len),
            tag: None,
        })
    }

    /// The tag, once the packet is sealed.
    pub fn tag(&self) -> Option<Tag> {
        self.tag
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Due,
    Authentic,
    Forged,
}

/// A packet to be opened by [`open_batch`].
pub struct OpenPacket<'a> {
    packet: Packet<'a>,
    tag: Tag,
    outcome: Outcome,
}

impl<'a> OpenPacket<'a> {
    /// From `ciphertext` to private memory, as [`Key::open`].
    ///
    /// # Errors
    /// As [`Key::open`], but for [`Error::Forged`].
    #[inline(always)]
    pub fn new(
        key: &'a Key,
        nonce: Nonce,
        aad: &'a [u8],
        ciphertext: SharedRead<'a>,
        tag: Tag,
        out: &'a mut [u8],
    ) -> Result<Self, Error> {
        check(aad.len(), ciphertext.len(), out.len())?;
        let (src, dst, len) = (ciphertext.start(), out.as_mut_ptr(), out.len());
        Ok(Self {
            packet: Packet::new(key, nonce, aad, src, dst, len),
            tag,
            outcome: Outcome::Due,
        })
    }

    /// In place, as [`Key::open_in_place`].
    ///
    /// # Errors
    /// As [`Key::open_in_place`], but for [`Error::Forged`].
    #[inline(always)]
    pub fn in_place(
        key: &'a Key,
        nonce: Nonce,
        aad: &'a [u8],
        data: &'a mut [u8],
        tag: Tag,
    ) -> Result<Self, Error> {
        check(aad.len(), data.len(), data.len())?;
        let (dst, len) = (data.as_mut_ptr(), data.len());
        Ok(Self {
            packet: Packet::new(key, nonce, aad, dst, dst, len),
            tag,
            outcome: Outcome::Due,
        })
    }

    /// Whether the packet was authentic, once it has been opened; otherwise [`Error::Forged`], and its output
    /// has been wiped.
    pub fn outcome(&self) -> Option<Result<(), Error>> {
        match self.outcome {
            Outcome::Due => None,
            Outcome::Authentic => Some(Ok(())),
            Outcome::Forged => Some(Err(Error::Forged)),
        }
    }
}

/// Seals every packet of the batch that is not sealed yet.
pub fn seal_batch(packets: &mut [SealPacket<'_>]) {
    run(
        true,
        packets,
        |p| p.tag.is_none().then_some(&p.packet),
        |p, tag| p.tag = Some(Tag::from_u128(tag)),
    );
}

/// Opens every packet of the batch that is not opened yet; returns how many packets are authentic.
pub fn open_batch(packets: &mut [OpenPacket<'_>]) -> usize {
    run(
        false,
        packets,
        |p| (p.outcome == Outcome::Due).then_some(&p.packet),
        |p, computed| {
            p.outcome = if p.tag.matches(computed) {
                Outcome::Authentic
            } else {
                // SAFETY: the packet was made from an exclusive borrow of these bytes, which it still holds.
                unsafe { p.packet.short.dst.write_bytes(0, p.packet.short.len) };
                Outcome::Forged
            };
        },
    );
    packets
        .iter()
        .filter(|p| p.outcome == Outcome::Authentic)
        .count()
}

/// Runs the packets that `due` picks, four at a time where possible, and gives each its tag.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn run<P>(
    seal: bool,
    packets: &mut [P],
    due: impl Fn(&P) -> Option<&Packet<'_>>,
    mut done: impl FnMut(&mut P, u128),
) {
    // Packets wait, by class, until there are four.
    let mut waiting = [[0usize; 4]; ALONE];
    let mut waiting_len = [0usize; ALONE];
    let mut at = 0;
    while at < packets.len() {
        // Often the next four can go as they are.
        if let [a, b, c, d, ..] = &packets[at..] {
            if let (Some(a), Some(b), Some(c), Some(d)) = (due(a), due(b), due(c), due(d)) {
                let class = a.class;
                if class != ALONE && class == b.class && class == c.class && class == d.class {
                    // SAFETY: see `four`.
                    let tags = unsafe { four(seal, [a, b, c, d]) };
                    for (packet, tag) in packets[at..at + 4].iter_mut().zip(tags) {
                        done(packet, u128::from_le_bytes(tag.0));
                    }
                    at += 4;
                    continue;
                }
            }
        }
        let now = at;
        at += 1;
        let Some(packet) = due(&packets[now]) else {
            continue;
        };
        let class = packet.class;
        if class == ALONE {
            // SAFETY: the packet's constructors made sure of its memory.
            let tag = unsafe { packet.whole(seal) };
            done(&mut packets[now], tag);
            continue;
        }
        waiting[class][waiting_len[class]] = now;
        waiting_len[class] += 1;
        if waiting_len[class] == 4 {
            waiting_len[class] = 0;
            let indices = waiting[class];
            let [a, b, c, d] = indices.map(|i| due(&packets[i]));
            if let (Some(a), Some(b), Some(c), Some(d)) = (a, b, c, d) {
                // SAFETY: see `four`.
                let tags = unsafe { four(seal, [a, b, c, d]) };
                for (i, tag) in indices.into_iter().zip(tags) {
                    done(&mut packets[i], u128::from_le_bytes(tag.0));
                }
            }
        }
    }
    for (waiting, len) in waiting.iter().zip(waiting_len) {
        for at in &waiting[..len] {
            // SAFETY: as above.
            let tag = due(&packets[*at]).map(|packet| unsafe { packet.whole(seal) });
            if let Some(tag) = tag {
                done(&mut packets[*at], tag);
            }
        }
    }
}

/// Four packets of one class.
///
/// # Safety
/// Their memory must still be what the constructors checked.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn four(seal: bool, packets: [&Packet<'_>; 4]) -> [Block; 4] {
    let mut tags = [Block([0; 16]); 4];
    if let Some(fours) = packets[0].key.fours() {
        let work = if seal { fours.seal } else { fours.open };
        // SAFETY: the caller's contract; `Key::with_path` made sure of schedules and processor; all four are of one
        // class, so of this kernel, and at most SHORT_LEN_MAX bytes long.
        unsafe { work(packets.map(|p| &p.short), &mut tags) };
    }
    tags
}

/// Runs the packets that `due` picks and gives each its tag.
#[cfg(not(target_arch = "x86_64"))]
fn run<P>(
    seal: bool,
    packets: &mut [P],
    due: impl Fn(&P) -> Option<&Packet<'_>>,
    mut done: impl FnMut(&mut P, u128),
) {
    for packet in packets {
        // SAFETY: the packet's constructors made sure of its memory.
        let tag = due(packet).map(|packet| unsafe { packet.whole(seal) });
        if let Some(tag) = tag {
            done(packet, tag);
        }
    }
}

impl<'a> Packet<'a> {
    #[inline(always)]
    fn new(
        key: &'a Key,
        nonce: Nonce,
        aad: &'a [u8],
        src: *const u8,
        dst: *mut u8,
        len: usize,
    ) -> Self {
        let short = Short {
            schedule: key.schedule(),
            nonce: nonce.0,
            aad,
            src,
            dst,
            len,
        };
        let class = match key.fours() {
            Some(fours) if len <= SHORT_LEN_MAX && aad.len() <= 16 => {
                2 * usize::from(fours.rounds == 14) + usize::from(len > 64)
            }
            _ => ALONE,
        };
        Self {
            key,
            short,
            class,
            memory: PhantomData,
        }
    }

    /// # Safety
    /// Source and destination must still be what the constructors checked.
    unsafe fn whole(&self, seal: bool) -> u128 {
        let Short {
            nonce,
            aad,
            src,
            dst,
            len,
            ..
        } = &self.short;
        // SAFETY: the caller's contract.
        unsafe { self.key.whole(seal, nonce, aad, *src, *dst, *len) }
    }
}

// SAFETY: a packet stands for its key (Sync), a shared borrow of private bytes, and an exclusive borrow of private
// bytes or a SharedWrite, all of which may go to another thread.
unsafe impl Send for Packet<'_> {}
// SAFETY: as above; nothing can be done with a shared packet but look at its tag or outcome.
unsafe impl Sync for Packet<'_> {}
