//! Many packets in one call.
//!
//! A 60-byte packet is too short to keep the processor's cipher and multiplier busy. Packets of up
//! to 64 bytes are worked on four at a time if the path can; others one after the other, which for
//! them is as fast.
//!
//! Four packets are laid out in columns as they come, so that one load fills a register with all
//! four.

use crate::columns::{words, Columns, Lens, Tags};
use crate::kernel::{wipe_checked, Batch4};
use crate::key::check;
use crate::memory::goes_past_page_end;
use crate::schedule::Schedule;
use crate::wipe::wipe;
use crate::{Error, Key, Nonce, SharedRead, SharedWrite, Tag};
use core::fmt;
use core::marker::PhantomData;
use core::mem::{offset_of, MaybeUninit};

/// The common part of a packet to be sealed and of one to be opened.
#[derive(Clone, Copy)]
struct Packet<'a> {
    key: &'a Key,
    /// The nonce with a zero counter.
    nonce: [u64; 2],
    aad: &'a [u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
    /// The tag that an opened packet must have; without meaning for a sealed one.
    tag: Tag,
    memory: PhantomData<&'a [u8]>,
}

/// A packet to be sealed by [`seal_batch`] or [`seal_each`].
pub struct SealPacket<'a> {
    packet: Packet<'a>,
    tag: Option<Tag>,
}

impl<'a> SealPacket<'a> {
    /// A packet from private memory to `out`, as for [`Key::seal`].
    ///
    /// # Errors
    /// As [`Key::seal`], but for [`Error::Overlap`]: that they do not overlap is a part of what the
    /// maker of `out` has promised.
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
            packet: Packet::new(key, nonce, aad, src, dst, len, Tag::from([0; 16])),
            tag: None,
        })
    }

    /// A packet in place, as for [`Key::seal_in_place`].
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
            packet: Packet::new(key, nonce, aad, dst, dst, len, Tag::from([0; 16])),
            tag: None,
        })
    }

    /// The tag, once the packet is sealed.
    pub fn tag(&self) -> Option<Tag> {
        self.tag
    }
}

impl fmt::Debug for SealPacket<'_> {
    /// Writes the lengths, and whether it is sealed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealPacket")
            .field("aad_len", &self.packet.aad.len())
            .field("len", &self.packet.len)
            .field("is_sealed", &self.tag.is_some())
            .finish_non_exhaustive()
    }
}

/// A packet to be opened by [`open_batch`] or [`open_each`].
pub struct OpenPacket<'a> {
    packet: Packet<'a>,
    /// True if the packet was authentic; `None` until it has been opened.
    outcome: Option<bool>,
}

impl<'a> OpenPacket<'a> {
    /// A packet from `ciphertext` to private memory, as for [`Key::open`].
    ///
    /// # Errors
    /// As [`Key::open`], but for [`Error::Forged`] and, as with [`SealPacket::new`],
    /// [`Error::Overlap`].
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
            packet: Packet::new(key, nonce, aad, src, dst, len, tag),
            outcome: None,
        })
    }

    /// A packet in place, as for [`Key::open_in_place`].
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
            packet: Packet::new(key, nonce, aad, dst, dst, len, tag),
            outcome: None,
        })
    }

    /// The outcome, once the packet has been opened: `Ok` if it was authentic; otherwise
    /// [`Error::Forged`], and its output has been wiped.
    pub fn outcome(&self) -> Option<Result<(), Error>> {
        self.outcome
            .map(|authentic| authentic.then_some(()).ok_or(Error::Forged))
    }
}

impl fmt::Debug for OpenPacket<'_> {
    /// Writes the lengths, and the outcome once there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenPacket")
            .field("aad_len", &self.packet.aad.len())
            .field("len", &self.packet.len)
            .field("outcome", &self.outcome())
            .finish_non_exhaustive()
    }
}

/// Seals packets as they come and calls `sealed` with the number and the tag of each, not
/// necessarily in their order.
///
/// This is the fastest way to seal many short packets: they are described while those before them
/// are worked on.
#[inline(always)]
pub fn seal_each<'a>(
    packets: impl IntoIterator<Item = SealPacket<'a>>,
    mut sealed: impl FnMut(usize, Tag),
) {
    let mut queue = Queue::<_, Seal>::new();
    // Not a `for` loop, which would put each packet into an `Option` in memory first.
    packets
        .into_iter()
        .enumerate()
        .for_each(|(number, p)| match p.tag {
            Some(tag) => sealed(number, tag),
            None => queue.push(&p.packet, number, &mut sealed),
        });
    queue.finish(&mut sealed);
}

/// Opens packets as they come and calls `opened` with the number of each, not necessarily in their
/// order, and `Ok` if it is authentic; otherwise [`Error::Forged`], and its output has been
/// wiped. Returns how many packets are authentic.
///
/// This is the fastest way to open many short packets: they are described while those before them
/// are worked on.
#[inline(always)]
pub fn open_each<'a>(
    packets: impl IntoIterator<Item = OpenPacket<'a>>,
    mut opened: impl FnMut(usize, Result<(), Error>),
) -> usize {
    let mut queue = Queue::<_, Open>::new();
    let mut authentic = 0;
    let mut told = |number: usize, is_authentic: bool| {
        authentic += usize::from(is_authentic);
        opened(number, outcome(is_authentic));
    };
    packets
        .into_iter()
        .enumerate()
        .for_each(|(number, p)| match p.outcome {
            Some(before) => told(number, before),
            None => queue.push(&p.packet, number, &mut told),
        });
    queue.finish(&mut told);
    authentic
}

fn outcome(authentic: bool) -> Result<(), Error> {
    if authentic {
        Ok(())
    } else {
        Err(Error::Forged)
    }
}

/// Seals every packet of the batch that is not sealed yet.
pub fn seal_batch(packets: &mut [SealPacket<'_>]) {
    let mut queue = Queue::<_, Seal>::new();
    for i in 0..packets.len() {
        if packets[i].tag.is_none() {
            let packet = packets[i].packet;
            queue.push(&packet, i, &mut |i: usize, tag| packets[i].tag = Some(tag));
        }
    }
    queue.finish(&mut |i, tag| packets[i].tag = Some(tag));
}

/// Opens every packet of the batch that is not opened yet; returns how many packets are authentic.
pub fn open_batch(packets: &mut [OpenPacket<'_>]) -> usize {
    let mut queue = Queue::<_, Open>::new();
    for i in 0..packets.len() {
        if packets[i].outcome.is_none() {
            let packet = packets[i].packet;
            queue.push(&packet, i, &mut |i: usize, authentic| {
                packets[i].outcome = Some(authentic);
            });
        }
    }
    queue.finish(&mut |i, authentic| packets[i].outcome = Some(authentic));
    packets.iter().filter(|p| p.outcome == Some(true)).count()
}

/// Sealing or opening.
trait Operation {
    const SEAL: bool;
    /// The result for a packet that has been worked on.
    type Outcome;

    /// Returns the result for a packet with this output, from the tag computed and the one that the
    /// packet came with.
    ///
    /// # Safety
    /// The output must be there, and not borrowed elsewhere.
    unsafe fn conclude(
        computed: Tag,
        tag: impl FnOnce() -> Tag,
        output: (*mut u8, usize),
    ) -> Self::Outcome;

    /// Works on four packets and calls `done` for each.
    ///
    /// # Safety
    /// All columns must be filled with packets for `batch4`, whose memory is still what the
    /// constructors checked.
    unsafe fn four(batch4: &Batch4, columns: &Columns, done: impl FnMut(usize, Self::Outcome));
}

enum Seal {}

impl Operation for Seal {
    const SEAL: bool = true;
    type Outcome = Tag;

    #[inline(always)]
    unsafe fn conclude(computed: Tag, _: impl FnOnce() -> Tag, _: (*mut u8, usize)) -> Tag {
        computed
    }

    #[inline(always)]
    unsafe fn four(batch4: &Batch4, columns: &Columns, mut done: impl FnMut(usize, Tag)) {
        let mut tags = MaybeUninit::<Tags>::uninit();
        // SAFETY: the caller's contract; the kernel fills the tags.
        let tags = unsafe {
            (batch4.seal)(columns, &mut tags);
            wipe_checked();
            tags.assume_init_ref()
        };
        for (i, tag) in tags.0.iter().enumerate() {
            done(i, Tag::from_words(*tag));
        }
    }
}

enum Open {}

impl Operation for Open {
    const SEAL: bool = false;
    /// True if the packet is authentic; if not, its output has been wiped.
    type Outcome = bool;

    #[inline(always)]
    unsafe fn conclude(
        computed: Tag,
        tag: impl FnOnce() -> Tag,
        (dst, len): (*mut u8, usize),
    ) -> bool {
        if tag().matches(computed) {
            return true;
        }
        // SAFETY: the caller's contract.
        wipe(unsafe { core::slice::from_raw_parts_mut(dst, len) });
        false
    }

    #[inline(always)]
    unsafe fn four(batch4: &Batch4, columns: &Columns, mut done: impl FnMut(usize, bool)) {
        // SAFETY: the caller's contract.
        let forged = unsafe {
            let forged = (batch4.open)(columns);
            wipe_checked();
            forged
        };
        // One branch for four packets: the results of authentic ones do not wait for a comparison
        // of each tag.
        if forged == 0 {
            (0..4).for_each(|i| done(i, true));
        } else {
            // SAFETY: the caller's contract.
            unsafe { wipe_outputs(columns, forged) };
            (0..4).for_each(|i| done(i, forged & 1 << i == 0));
        }
    }
}

/// Wipes the outputs of the packets that have a bit.
///
/// # Safety
/// They must be there, and not borrowed elsewhere.
#[cold]
unsafe fn wipe_outputs(columns: &Columns, which: u8) {
    for i in (0..4).filter(|i| which & 1 << i != 0) {
        // SAFETY: the caller's contract.
        wipe(unsafe { core::slice::from_raw_parts_mut(columns.dst[i], columns.len[i].data()) });
    }
}

/// Stores what a column of this type has for a packet.
///
/// # Safety
/// `to` must be valid for writes.
#[inline(always)]
unsafe fn put_at<T>(to: *mut T, _: *const [T; 4], value: T) {
    // SAFETY: the caller's contract.
    unsafe { to.write(value) };
}

/// Collects packets until there are four.
struct Queue<'a, T, O> {
    /// The functions for the packets in here, all of one path and key size. Never null; before the
    /// first packet, it dangles.
    batch4: *const Batch4,
    columns: MaybeUninit<Columns>,
    /// The values that `done` is called with.
    items: [MaybeUninit<T>; 4],
    /// The number of packets that wait: fewer than four.
    waiting: usize,
    memory: PhantomData<(&'a Key, O)>,
}

impl<'a, T: Copy, O: Operation> Queue<'a, T, O> {
    #[inline(always)]
    fn new() -> Self {
        Self {
            batch4: core::ptr::dangling(),
            // Zeros: a reference must not point to what was never written, and not every column is.
            columns: MaybeUninit::zeroed(),
            items: [const { MaybeUninit::uninit() }; 4],
            waiting: 0,
            memory: PhantomData,
        }
    }

    #[inline(always)]
    fn push(&mut self, packet: &Packet<'a>, item: T, done: &mut impl FnMut(T, O::Outcome)) {
        let batch4 = packet
            .key
            .batch4()
            .map_or(core::ptr::null(), core::ptr::from_ref);
        // Also where the path has no `batch4`, on which every packet comes here.
        if (packet.len > 64) | (packet.aad.len() > 16) | batch4.is_null() {
            // SAFETY: the packet's constructors made sure of its memory.
            return done(item, unsafe { packet.whole::<O>() });
        }
        if batch4 != self.batch4 || packet.is_at_page_end() {
            // A copy: a reference to the packet would force it into memory on the common path too.
            return self.push_other(&{ *packet }, item, done);
        }
        // SAFETY: as just seen.
        unsafe { self.push_alike(packet, item, done) };
    }

    /// [`Queue::push`] of a short packet that is not like the one before, or is worked on alone.
    #[cold]
    #[inline(never)]
    fn push_other(&mut self, packet: &Packet<'a>, item: T, done: &mut impl FnMut(T, O::Outcome)) {
        match packet.key.batch4() {
            Some(batch4) if !packet.is_at_page_end() => {
                self.finish(done);
                self.batch4 = batch4;
                // SAFETY: as just seen.
                unsafe { self.push_alike(packet, item, done) };
            }
            // SAFETY: the packet's constructors made sure of its memory.
            _ => done(item, unsafe { packet.whole::<O>() }),
        }
    }

    /// [`Queue::push`] of a packet of the path and key size of those that wait.
    ///
    /// # Safety
    /// It must be of at most 64 bytes with at most 16 of additional data, and its key's
    /// `batch4` that of the queue.
    #[inline(always)]
    unsafe fn push_alike(
        &mut self,
        packet: &Packet<'a>,
        item: T,
        done: &mut impl FnMut(T, O::Outcome),
    ) {
        // SAFETY: the key has a `batch4`, which is that of the queue.
        let (batch4, schedule) = unsafe { (&*self.batch4, packet.key.schedule()) };
        let i = self.waiting;
        if i < 3 {
            // SAFETY: `i` is below four.
            unsafe { packet.describe::<O>(schedule, self.columns.as_mut_ptr(), i) };
            self.items[i] = MaybeUninit::new(item);
            self.waiting = i + 1;
            return;
        }
        // SAFETY: the last place of four; with it all are filled, with packets for `batch4`, whose
        // memory is borrowed for 'a.
        unsafe {
            packet.describe::<O>(schedule, self.columns.as_mut_ptr(), 3);
            self.items[3] = MaybeUninit::new(item);
            O::four(batch4, &*self.columns.as_ptr(), |i, outcome| {
                done(self.items[i].assume_init(), outcome);
            });
        }
        self.waiting = 0;
    }

    /// Works on the packets that wait.
    #[inline(always)]
    fn finish(&mut self, done: &mut impl FnMut(T, O::Outcome)) {
        for i in 0..self.waiting {
            // SAFETY: the packet has filled its columns and item, `batch4` is that of its key, and
            // its memory is borrowed for 'a.
            unsafe {
                let batch4 = &*self.batch4;
                let columns = &*self.columns.as_ptr();
                let computed = Tag::from_u128(batch4.one(columns, i, O::SEAL));
                let tag = || Tag::from_words(columns.tag[i]);
                done(
                    self.items[i].assume_init(),
                    O::conclude(computed, tag, (columns.dst[i], columns.len[i].data())),
                );
            }
        }
        self.waiting = 0;
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
        tag: Tag,
    ) -> Self {
        Self {
            key,
            nonce: *nonce.words(),
            aad,
            src,
            dst,
            len,
            tag,
            memory: PhantomData,
        }
    }

    /// Returns true if source or destination is so close before the end of a page that a register
    /// which begins there goes past it. Kernels for whole messages have a way around the page
    /// behind, which may not be mapped and is slow then.
    #[inline(always)]
    fn is_at_page_end(&self) -> bool {
        // Those on a cache line never are, and frames mostly begin on one.
        !(self.src.addr() | self.dst.addr()).is_multiple_of(64)
            && (goes_past_page_end(self.src) || goes_past_page_end(self.dst))
    }

    /// Describes the packet in the `i`-th place of each column.
    ///
    /// # Safety
    /// `to` must be valid for writes, `i` below four.
    #[inline(always)]
    unsafe fn describe<O: Operation>(&self, schedule: &Schedule, to: *mut Columns, i: usize) {
        // SAFETY: the caller's contract; nothing is read.
        unsafe {
            // By two addresses, one for columns of 16 bytes and one for those of 8, and constants
            // from there. Left to the compiler, each column has an address of its own.
            let (wide, narrow) = (to.byte_add(16 * i), to.byte_add(8 * i));
            macro_rules! put {
                ($at:ident, $column:ident, $value:expr) => {
                    let column = $at.byte_add(offset_of!(Columns, $column));
                    put_at(column.cast(), &raw const (*to).$column, $value);
                };
            }
            put!(wide, nonce, self.nonce);
            put!(wide, aad, words(self.aad));
            put!(narrow, schedule, core::ptr::from_ref(schedule));
            put!(narrow, src, self.src);
            put!(narrow, dst, self.dst);
            put!(narrow, len, Lens::new(self.len, self.aad.len()));
            if !O::SEAL {
                put!(wide, tag, self.tag.words());
            }
        }
    }

    /// Works on this packet alone.
    ///
    /// # Safety
    /// Source and destination must still be what the constructors checked.
    #[inline]
    unsafe fn whole<O: Operation>(&self) -> O::Outcome {
        // A copy: a reference into the packet would force all of it into memory, also where it
        // joins a batch.
        let nonce = Nonce::of_words(&self.nonce).copy();
        let output = (self.dst, self.len);
        // SAFETY: the caller's contract.
        unsafe {
            let key = self.key;
            let computed = key.whole(O::SEAL, &nonce, self.aad, self.src, self.dst, self.len);
            O::conclude(Tag::from_u128(computed), || self.tag, output)
        }
    }
}
// SAFETY: as above; nothing can be done with a shared packet but look at its tag or outcome.
unsafe impl Sync for Packet<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// `cargo test -p tare-gcm --release --lib -- --ignored --nocapture`: the time of four packets
    /// that are described already.
    #[test]
    #[ignore = "a measurement"]
    fn kernel_alone() {
        let keys: Vec<Key> = (0..32u8).filter_map(|i| Key::new(&[i; 16]).ok()).collect();
        let shapes = [48, 60].map(|len| [("one key", false, len), ("a key each", true, len)]);
        for (name, mixed, len) in shapes.into_iter().flatten() {
            let mut data = vec![[0u8; 64]; 32];
            let mut groups: Vec<MaybeUninit<Columns>> =
                (0..8).map(|_| MaybeUninit::uninit()).collect();
            let mut batch4 = None;
            for (i, data) in data.iter_mut().enumerate() {
                let key = &keys[if mixed { i } else { 0 }];
                let p = data.as_mut_ptr();
                let packet = Packet::new(
                    key,
                    Nonce::from([1; 12]),
                    &[7; 12],
                    p,
                    p,
                    len,
                    Tag::from([0; 16]),
                );
                batch4 = key.batch4();
                if batch4.is_none() {
                    return;
                }
                // SAFETY: the place is there, and the key has a `batch4`.
                unsafe {
                    packet.describe::<Open>(key.schedule(), groups[i / 4].as_mut_ptr(), i % 4)
                };
            }
            let Some(batch4) = batch4 else { return };
            for seal in [true, false] {
                let op = if seal { "seal" } else { "open" };
                let mut tags = MaybeUninit::<Tags>::uninit();
                let mut best = f64::MAX;
                for _ in 0..2000 {
                    let start = Instant::now();
                    for _ in 0..20 {
                        for group in &groups {
                            // SAFETY: all four are described, and their memory is alive.
                            unsafe {
                                if seal {
                                    (batch4.seal)(&*group.as_ptr(), &mut tags);
                                } else {
                                    std::hint::black_box((batch4.open)(&*group.as_ptr()));
                                }
                            }
                        }
                    }
                    best = best.min(start.elapsed().as_nanos() as f64 / (20.0 * 32.0));
                }
                println!("{op} {len} B, {name}: {best:.2} ns per packet in the kernel");
            }
        }
    }
}
