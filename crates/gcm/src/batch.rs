//! Many packets in one call.
//!
//! A 60-byte packet is too short to keep the processor's cipher and multiplier busy. Packets of up to 64 bytes go four at a
//! time where the path has a way to; others one after the other, which for them is as fast.
//!
//! What four packets need is laid out in columns as they come, so that one load fills a register with all four.

use crate::key::check;
#[cfg(target_arch = "x86_64")]
use crate::x86::{words, Columns, Fours, Schedule, Tags};
use crate::{Error, Key, Nonce, SharedRead, SharedWrite, Tag};
use std::marker::PhantomData;
#[cfg(target_arch = "x86_64")]
use std::mem::MaybeUninit;

/// What sealing and opening a packet have in common.
#[derive(Clone, Copy)]
struct Packet<'a> {
    key: &'a Key,
    /// The nonce with a zero counter.
    nonce: [u64; 2],
    aad: &'a [u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
    memory: PhantomData<&'a [u8]>,
}

/// A packet to be sealed by [`seal_batch`] or [`seal_each`].
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

/// A packet to be opened by [`open_batch`] or [`open_each`].
pub struct OpenPacket<'a> {
    packet: Packet<'a>,
    tag: Tag,
    /// Whether the packet was authentic, once it has been opened.
    outcome: Option<bool>,
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
            outcome: None,
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
            outcome: None,
        })
    }

    /// Whether the packet was authentic, once it has been opened; otherwise [`Error::Forged`], and its output
    /// has been wiped.
    pub fn outcome(&self) -> Option<Result<(), Error>> {
        self.outcome
            .map(|authentic| authentic.then_some(()).ok_or(Error::Forged))
    }
}

/// Seals packets as they come and gives `sealed` the number and the tag of each, not necessarily in their order.
///
/// This is the fastest way to seal many short packets: they are described while those before them are worked on.
#[inline(always)]
pub fn seal_each<'a>(
    packets: impl IntoIterator<Item = SealPacket<'a>>,
    mut sealed: impl FnMut(usize, Tag),
) {
    let mut queue = Queue::<_, true>::new();
    // Not a `for` loop, which would put each packet into an `Option` in memory first.
    packets
        .into_iter()
        .enumerate()
        .for_each(|(number, p)| match p.tag {
            Some(tag) => sealed(number, tag),
            None => queue.push(&p.packet, number, &mut |done: Done<usize>| {
                sealed(done.item, Tag::from_u128(done.computed));
            }),
        });
    queue.finish(&mut |done| sealed(done.item, Tag::from_u128(done.computed)));
}

/// Opens packets as they come and gives `opened` the number of each, not necessarily in their order, with `Ok` when it is
/// authentic; otherwise [`Error::Forged`], and its output has been wiped. Returns how many packets are authentic.
///
/// This is the fastest way to open many short packets: they are described while those before them are worked on.
#[inline(always)]
pub fn open_each<'a>(
    packets: impl IntoIterator<Item = OpenPacket<'a>>,
    mut opened: impl FnMut(usize, Result<(), Error>),
) -> usize {
    let mut queue = Queue::<_, false>::new();
    let mut authentic = 0;
    let mut told = |number: usize, is_authentic: bool| {
        authentic += usize::from(is_authentic);
        opened(
            number,
            if is_authentic {
                Ok(())
            } else {
                Err(Error::Forged)
            },
        );
    };
    let verify = |done: &Done<(usize, Tag)>| {
        // SAFETY: the packet was made from an exclusive borrow of these bytes, which lasts as long as this call.
        unsafe { done.verify(done.item.1) }
    };
    for (number, p) in packets.into_iter().enumerate() {
        match p.outcome {
            Some(before) => told(number, before),
            None => queue.push(&p.packet, (number, p.tag), &mut |done| {
                told(done.item.0, verify(&done));
            }),
        }
    }
    queue.finish(&mut |done| told(done.item.0, verify(&done)));
    authentic
}

/// Seals every packet of the batch that is not sealed yet.
pub fn seal_batch(packets: &mut [SealPacket<'_>]) {
    let mut queue = Queue::<_, true>::new();
    for i in 0..packets.len() {
        if packets[i].tag.is_none() {
            let packet = packets[i].packet;
            queue.push(&packet, i, &mut |done: Done<usize>| {
                packets[done.item].tag = Some(Tag::from_u128(done.computed));
            });
        }
    }
    queue.finish(&mut |done| packets[done.item].tag = Some(Tag::from_u128(done.computed)));
}

/// Opens every packet of the batch that is not opened yet; returns how many packets are authentic.
pub fn open_batch(packets: &mut [OpenPacket<'_>]) -> usize {
    fn verify(packets: &mut [OpenPacket<'_>], done: Done<usize>) {
        let p = &mut packets[done.item];
        // SAFETY: the packet was made from an exclusive borrow of these bytes, which it still holds.
        p.outcome = Some(unsafe { done.verify(p.tag) });
    }
    let mut queue = Queue::<_, false>::new();
    for i in 0..packets.len() {
        if packets[i].outcome.is_none() {
            let packet = packets[i].packet;
            queue.push(&packet, i, &mut |done| verify(packets, done));
        }
    }
    queue.finish(&mut |done| verify(packets, done));
    packets.iter().filter(|p| p.outcome == Some(true)).count()
}

/// A packet that has been worked on.
struct Done<T> {
    /// What came with it.
    item: T,
    computed: u128,
    dst: *mut u8,
    len: usize,
}

impl<T> Done<T> {
    /// Compares the tags, and wipes the output unless they match.
    ///
    /// # Safety
    /// The packet's output must still be there, and borrowed by nobody else.
    #[inline(always)]
    unsafe fn verify(&self, tag: Tag) -> bool {
        if tag.matches(self.computed) {
            return true;
        }
        // SAFETY: the caller's contract.
        unsafe { self.dst.write_bytes(0, self.len) };
        false
    }
}

/// Packets on their way to be worked on four at a time, each with an item that is handed back when it is done.
#[cfg(target_arch = "x86_64")]
struct Queue<'a, T, const SEAL: bool> {
    /// How the packets in here are worked on; all of them are alike.
    fours: Option<&'static Fours>,
    group: MaybeUninit<Columns>,
    items: [MaybeUninit<T>; 4],
    /// How many packets wait: fewer than four.
    waiting: usize,
    memory: PhantomData<&'a Key>,
}

#[cfg(target_arch = "x86_64")]
impl<'a, T: Copy, const SEAL: bool> Queue<'a, T, SEAL> {
    #[inline(always)]
    fn new() -> Self {
        Self {
            fours: None,
            group: MaybeUninit::uninit(),
            items: [const { MaybeUninit::uninit() }; 4],
            waiting: 0,
            memory: PhantomData,
        }
    }

    #[inline(always)]
    fn push(&mut self, packet: &Packet<'a>, item: T, done: &mut impl FnMut(Done<T>)) {
        let together = packet.len <= 64 && packet.aad.len() <= 16;
        let (Some((fours, schedule)), true) = (packet.key.fours(), together) else {
            // SAFETY: the packet's constructors made sure of its memory.
            done(unsafe { packet.whole(SEAL, item) });
            return;
        };
        if !self.fours.is_some_and(|f| core::ptr::eq(f, fours)) {
            self.finish(done);
            self.fours = Some(fours);
        }
        let i = self.waiting;
        if i < 3 {
            // SAFETY: `i` is below four.
            unsafe { packet.describe(schedule, self.group.as_mut_ptr(), i) };
            self.items[i] = MaybeUninit::new(item);
            self.waiting = i + 1;
            return;
        }
        // SAFETY: the last place of four; with it all are filled, with packets for `fours`, whose memory is borrowed for 'a.
        unsafe {
            packet.describe(schedule, self.group.as_mut_ptr(), 3);
            self.items[3] = MaybeUninit::new(item);
            self.four(fours, done);
        }
        self.waiting = 0;
    }

    /// Works on the packets that wait.
    #[inline(always)]
    fn finish(&mut self, done: &mut impl FnMut(Done<T>)) {
        let Some(fours) = self.fours else { return };
        for i in 0..self.waiting {
            // SAFETY: the packet has filled its columns and item, it is for `fours`, and its memory is borrowed for 'a.
            unsafe {
                let columns = &*self.group.as_ptr();
                done(Done {
                    item: self.items[i].assume_init(),
                    computed: fours.one(columns, i, SEAL),
                    dst: columns.dst[i],
                    len: columns.len[i],
                });
            }
        }
        self.waiting = 0;
    }

    /// Works on four packets.
    ///
    /// # Safety
    /// There must be four, for `fours`; their memory must still be what the constructors checked.
    #[inline(always)]
    unsafe fn four(&mut self, fours: &Fours, done: &mut impl FnMut(Done<T>)) {
        let work = if SEAL { fours.seal } else { fours.open };
        let mut tags = MaybeUninit::<Tags>::uninit();
        // SAFETY: four packets have filled their columns and items; `Key::with_path` made sure of schedules and processor, and
        // `push` of their lengths; the kernel fills the tags.
        unsafe {
            let columns = &*self.group.as_ptr();
            work(columns, &mut tags);
            for i in 0..4 {
                let [low, high] = (*tags.as_ptr()).0[i];
                done(Done {
                    item: self.items[i].assume_init(),
                    computed: u128::from(low) | u128::from(high) << 64,
                    dst: columns.dst[i],
                    len: columns.len[i],
                });
            }
        }
    }
}

/// Where there is nothing to wait for, every packet is done when it comes.
#[cfg(not(target_arch = "x86_64"))]
struct Queue<'a, T, const SEAL: bool> {
    memory: PhantomData<(&'a Key, T)>,
}

#[cfg(not(target_arch = "x86_64"))]
impl<'a, T: Copy, const SEAL: bool> Queue<'a, T, SEAL> {
    fn new() -> Self {
        Self {
            memory: PhantomData,
        }
    }

    fn push(&mut self, packet: &Packet<'a>, item: T, done: &mut impl FnMut(Done<T>)) {
        // SAFETY: the packet's constructors made sure of its memory.
        done(unsafe { packet.whole(SEAL, item) });
    }

    fn finish(&mut self, _done: &mut impl FnMut(Done<T>)) {}
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
        Self {
            key,
            nonce: nonce.words(),
            aad,
            src,
            dst,
            len,
            memory: PhantomData,
        }
    }

    /// Describes the packet in the `i`-th place of each column.
    ///
    /// # Safety
    /// `to` must be valid for writes, `i` below four.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn describe(&self, schedule: &Schedule, to: *mut Columns, i: usize) {
        // SAFETY: the caller's contract; nothing is read.
        unsafe {
            (&raw mut (*to).nonce[i]).write(self.nonce);
            (&raw mut (*to).aad[i]).write(words(self.aad));
            (&raw mut (*to).lengths[i]).write([8 * self.len as u64, 8 * self.aad.len() as u64]);
            (&raw mut (*to).schedule[i]).write(schedule);
            (&raw mut (*to).src[i]).write(self.src);
            (&raw mut (*to).dst[i]).write(self.dst);
            (&raw mut (*to).len[i]).write(self.len);
        }
    }

    /// Works on this packet alone.
    ///
    /// # Safety
    /// Source and destination must still be what the constructors checked.
    #[inline]
    unsafe fn whole<T>(&self, seal: bool, item: T) -> Done<T> {
        let nonce = Nonce::from_words(self.nonce);
        // SAFETY: the caller's contract.
        let computed = unsafe {
            self.key.whole(
                seal,
                nonce.as_bytes(),
                self.aad,
                self.src,
                self.dst,
                self.len,
            )
        };
        Done {
            item,
            computed,
            dst: self.dst,
            len: self.len,
        }
    }
}

// SAFETY: a packet stands for its key (Sync), a shared borrow of private bytes, and an exclusive borrow of private
// bytes or a SharedWrite, all of which may go to another thread.
unsafe impl Send for Packet<'_> {}
// SAFETY: as above; nothing can be done with a shared packet but look at its tag or outcome.
unsafe impl Sync for Packet<'_> {}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::time::Instant;

    /// `cargo test -p tare-gcm --release --lib -- --ignored --nocapture`: what four packets cost that are described already.
    #[test]
    #[ignore = "a measurement"]
    fn kernel_alone() {
        let keys: Vec<Key> = (0..32u8).filter_map(|i| Key::new(&[i; 16]).ok()).collect();
        let shapes = [48, 60].map(|len| [("one key", false, len), ("a key each", true, len)]);
        for (name, mixed, len) in shapes.into_iter().flatten() {
            let mut data = vec![[0u8; 64]; 32];
            let mut groups: Vec<MaybeUninit<Columns>> =
                (0..8).map(|_| MaybeUninit::uninit()).collect();
            let mut fours = None;
            for (i, data) in data.iter_mut().enumerate() {
                let key = &keys[if mixed { i } else { 0 }];
                let p = data.as_mut_ptr();
                let packet = Packet::new(key, Nonce::from([1; 12]), &[7; 12], p, p, len);
                let Some((these, schedule)) = key.fours() else {
                    return;
                };
                fours = Some(these);
                // SAFETY: the place is there.
                unsafe { packet.describe(schedule, groups[i / 4].as_mut_ptr(), i % 4) };
            }
            let Some(fours) = fours else { return };
            for (op, work) in [("seal", fours.seal), ("open", fours.open)] {
                let mut tags = MaybeUninit::<Tags>::uninit();
                let mut best = f64::MAX;
                for _ in 0..2000 {
                    let start = Instant::now();
                    for _ in 0..20 {
                        for group in &groups {
                            // SAFETY: all four are described, and their memory is alive.
                            unsafe { work(&*group.as_ptr(), &mut tags) };
                        }
                    }
                    best = best.min(start.elapsed().as_nanos() as f64 / (20.0 * 32.0));
                }
                println!("{op} {len} B, {name}: {best:.2} ns a packet in the kernel");
            }
        }
    }
}
