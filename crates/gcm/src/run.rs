//! Many packets in one call, each in place and followed by its tag, as a rule under one key.
//!
//! Tags are written and read where they stand, and what packets of a batch may differ in is looked
//! at once where the key is one: a packet takes half of the instructions around the kernels that
//! [`seal_each`](crate::seal_each) and [`open_each`](crate::open_each) take.

use crate::columns::{Columns, Lens, Tags};
use crate::kernel::{wipe_checked, Batch4};
use crate::key::check;
use crate::memory::goes_past_page_end;
use crate::wipe::wipe;
use crate::{Key, Nonce, Tag};
use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;

/// Additional data of 8 or 12 bytes in registers: that of ESP (RFC 4106, section 5).
#[derive(Clone, Copy, Debug)]
pub struct ShortAad {
    /// In the order of memory, zero-padded.
    words: [u64; 2],
    len: usize,
}

impl ShortAad {
    /// A word of 32 bits and one of 64, in network order: 12 bytes.
    #[inline(always)]
    pub const fn long(first: u32, second: u64) -> Self {
        let second = second.swap_bytes();
        Self {
            words: [
                (first.swap_bytes() as u64 | second << 32).to_le(),
                (second >> 32).to_le(),
            ],
            len: 12,
        }
    }

    /// Two words of 32 bits, in network order: 8 bytes.
    #[inline(always)]
    pub const fn short(first: u32, second: u32) -> Self {
        let second = second.swap_bytes() as u64;
        Self {
            words: [(first.swap_bytes() as u64 | second << 32).to_le(), 0],
            len: 8,
        }
    }

    /// Returns the bytes.
    #[inline]
    pub const fn as_bytes(&self) -> &[u8] {
        // SAFETY: two words without padding, of which the bytes are at most 12.
        unsafe { core::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }
}

/// A packet in place, with its tag behind it, for [`seal_run`] or [`open_run`], [`seal_keyed`] or
/// [`open_keyed`].
pub struct RunPacket<'a> {
    nonce: [u64; 2],
    aad: ShortAad,
    data: *mut u8,
    len: usize,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> RunPacket<'a> {
    /// A packet of which the last 16 bytes are the tag, or the place for it; `None` if it is
    /// shorter, or longer than AES-GCM allows.
    #[inline(always)]
    pub fn new(nonce: Nonce, aad: ShortAad, message: &'a mut [u8]) -> Option<Self> {
        let len = message.len().checked_sub(Tag::LEN)?;
        check(aad.len, len, len).ok()?;
        Some(Self {
            nonce: *nonce.words(),
            aad,
            data: message.as_mut_ptr(),
            len,
            memory: PhantomData,
        })
    }

    /// Describes the packet in the `i`-th place of each column but that of the schedules.
    ///
    /// # Safety
    /// `to` must be valid for writes, `i` below four; a packet to be opened has its tag.
    #[inline(always)]
    unsafe fn describe<const SEAL: bool>(&self, to: *mut Columns, i: usize) {
        // SAFETY: the caller's contract; what is read is the tag behind the data.
        unsafe {
            put(&raw mut (*to).nonce, i, self.nonce);
            put(&raw mut (*to).aad, i, self.aad.words);
            put(&raw mut (*to).src, i, self.data.cast_const());
            put(&raw mut (*to).dst, i, self.data);
            put(&raw mut (*to).len, i, Lens::new(self.len, self.aad.len));
            if !SEAL {
                let tag = tag_behind(self.data, self.len);
                put(&raw mut (*to).tag, i, tag.words());
            }
        }
    }

    /// Works on this packet alone, and returns false if it is forged.
    #[inline]
    fn whole<const SEAL: bool>(&self, key: &Key) -> bool {
        let nonce = Nonce::of_words(&self.nonce).copy();
        let (data, len) = (self.data, self.len);
        // A copy: a reference into the packet would force all of it into memory, also where it is
        // one of four.
        let aad = self.aad;
        // SAFETY: the slice that the packet was made from is borrowed, and its tag is behind the
        // data.
        unsafe {
            let tag = key.whole(SEAL, &nonce, aad.as_bytes(), data, data, len);
            conclude::<SEAL>(data, len, Tag::from_u128(tag))
        }
    }
}

impl fmt::Debug for RunPacket<'_> {
    /// Writes the lengths.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunPacket")
            .field("aad_len", &self.aad.len)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Stores the `i`-th value of a column.
///
/// # Safety
/// `to` must be valid for writes, `i` below four.
#[inline(always)]
unsafe fn put<T>(to: *mut [T; 4], i: usize, value: T) {
    // SAFETY: the caller's contract.
    unsafe { to.cast::<T>().add(i).write(value) };
}

/// Loads the tag behind `len` bytes.
///
/// # Safety
/// It must be there.
#[inline(always)]
unsafe fn tag_behind(data: *mut u8, len: usize) -> Tag {
    // SAFETY: the caller's contract; any bytes are a tag.
    unsafe { data.add(len).cast::<Tag>().read_unaligned() }
}

/// Writes the tag behind the data of a packet that was sealed; of one that was opened, compares it
/// and wipes the data if it is another. Returns false for that.
///
/// # Safety
/// Data and tag must be there, and not borrowed elsewhere.
#[inline(always)]
unsafe fn conclude<const SEAL: bool>(data: *mut u8, len: usize, computed: Tag) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        if SEAL {
            data.add(len).cast::<Tag>().write_unaligned(computed);
            return true;
        }
        let is_right = tag_behind(data, len).matches(computed);
        if !is_right {
            wipe(core::slice::from_raw_parts_mut(data, len));
        }
        is_right
    }
}

/// Seals packets under one key as they come and writes their tags behind them. Returns how many
/// there were.
#[inline(always)]
pub fn seal_run<'a>(key: &Key, packets: impl IntoIterator<Item = RunPacket<'a>>) -> usize {
    work_on::<true, true, _>(Some(key), packets, |packet| (key, packet), |_| {})
}

/// [`seal_run`] of packets under a key each.
#[inline(always)]
pub fn seal_keyed<'a>(packets: impl IntoIterator<Item = (&'a Key, RunPacket<'a>)>) -> usize {
    work_on::<true, false, _>(None, packets, |keyed| keyed, |_| {})
}

/// Opens packets under one key as they come. Calls `forged` with the number of each that is not
/// authentic, whose data has been wiped, and returns how many packets there were.
#[inline(always)]
pub fn open_run<'a>(
    key: &Key,
    packets: impl IntoIterator<Item = RunPacket<'a>>,
    forged: impl FnMut(usize),
) -> usize {
    work_on::<false, true, _>(Some(key), packets, |packet| (key, packet), forged)
}

/// [`open_run`] of packets under a key each.
#[inline(always)]
pub fn open_keyed<'a>(
    packets: impl IntoIterator<Item = (&'a Key, RunPacket<'a>)>,
    forged: impl FnMut(usize),
) -> usize {
    work_on::<false, false, _>(None, packets, |keyed| keyed, forged)
}

/// Works on packets, of which `ONE` says that all are under the key `first`. `keyed` gives one with
/// its key.
#[inline(always)]
fn work_on<'a, 'k, const SEAL: bool, const ONE: bool, P>(
    first: Option<&Key>,
    packets: impl IntoIterator<Item = P>,
    keyed: impl Fn(P) -> (&'k Key, RunPacket<'a>),
    mut forged: impl FnMut(usize),
) -> usize {
    // Zeros: a reference must not point to what was never written, and not every column is.
    let mut columns = MaybeUninit::<Columns>::zeroed();
    let to = columns.as_mut_ptr();
    let mut batch4 = first.and_then(Key::batch4);
    if let (true, Some(first), Some(_)) = (ONE, first, batch4) {
        // SAFETY: the key has a `batch4`, and the place is there.
        unsafe { (*to).schedule = [core::ptr::from_ref(first.schedule()); 4] };
    }
    let mut numbers = [0; 4];
    let (mut count, mut waiting) = (0, 0);
    packets.into_iter().for_each(|packet| {
        let (key, packet) = keyed(packet);
        let number = count;
        count += 1;
        let own = if ONE { batch4 } else { key.batch4() };
        let Some(own) = own.filter(|_| packet.len <= 64 && !goes_past_page_end(packet.data)) else {
            if !packet.whole::<SEAL>(key) {
                forged(number);
            }
            return;
        };
        if !ONE {
            if !batch4.is_some_and(|batch4| core::ptr::eq(batch4, own)) {
                // SAFETY: as for those that are left at the end.
                unsafe { rest::<SEAL>(batch4, to, waiting, |i| forged(numbers[i])) };
                waiting = 0;
                batch4 = Some(own);
            }
            // SAFETY: the key has a `batch4`; fewer than four wait.
            unsafe {
                let schedule = core::ptr::from_ref(key.schedule());
                put(&raw mut (*to).schedule, waiting, schedule);
            }
        }
        // SAFETY: fewer than four wait; a packet to be opened has its tag.
        unsafe { packet.describe::<SEAL>(to, waiting) };
        if !SEAL {
            numbers[waiting] = number;
        }
        waiting += 1;
        if waiting == 4 {
            waiting = 0;
            // SAFETY: all four are described, for the `batch4` of their keys, and their memory is
            // borrowed for 'a.
            unsafe { four::<SEAL>(own, &*to, |i| forged(numbers[i])) };
        }
    });
    // SAFETY: the first of them are described, for the `batch4` of their keys, and their memory is
    // borrowed for 'a.
    unsafe { rest::<SEAL>(batch4, to, waiting, |i| forged(numbers[i])) };
    count
}

/// Works on the packets that are left, each alone, and calls `forged` with the places of those that
/// are not authentic.
///
/// # Safety
/// The first `waiting` columns must be filled with packets for `batch4`, whose memory is there with
/// that of their tags, and not borrowed elsewhere.
#[inline(never)]
unsafe fn rest<const SEAL: bool>(
    batch4: Option<&Batch4>,
    columns: *const Columns,
    waiting: usize,
    mut forged: impl FnMut(usize),
) {
    let Some(batch4) = batch4 else { return };
    for i in 0..waiting {
        // SAFETY: the caller's contract.
        unsafe {
            let (data, len) = ((*columns).dst[i], (*columns).len[i].data());
            let computed = Tag::from_u128(batch4.one(&*columns, i, SEAL));
            if !conclude::<SEAL>(data, len, computed) {
                forged(i);
            }
        }
    }
}

/// Works on four packets.
///
/// # Safety
/// All columns that this direction reads must be filled with packets for `batch4`, whose memory is
/// there with that of their tags, and not borrowed elsewhere.
#[inline(always)]
unsafe fn four<const SEAL: bool>(batch4: &Batch4, columns: &Columns, forged: impl FnMut(usize)) {
    // SAFETY: the caller's contract; the kernel fills the tags.
    unsafe {
        if SEAL {
            let mut tags = MaybeUninit::<Tags>::uninit();
            (batch4.seal)(columns, &mut tags);
            wipe_checked();
            for (i, tag) in tags.assume_init_ref().0.iter().enumerate() {
                let (data, len) = (columns.dst[i], columns.len[i].data());
                conclude::<true>(data, len, Tag::from_words(*tag));
            }
        } else {
            let which = (batch4.open)(columns);
            wipe_checked();
            if which != 0 {
                refuse(columns, which, forged);
            }
        }
    }
}

/// Wipes the packets that have a bit, and tells of them.
///
/// # Safety
/// They must be there, and not borrowed elsewhere.
#[cold]
#[inline(never)]
unsafe fn refuse(columns: &Columns, which: u8, forged: impl FnMut(usize)) {
    let refused = (0..4).filter(|i| which & 1 << i != 0);
    for i in refused.clone() {
        // SAFETY: the caller's contract.
        wipe(unsafe { core::slice::from_raw_parts_mut(columns.dst[i], columns.len[i].data()) });
    }
    // Not before all are wiped: it may panic.
    refused.for_each(forged);
}
