//! Keys, and the calls that seal and open one message.

use crate::kernel::{wipe_checked, Batch4, Kernel};
use crate::native;
use crate::place::Place;
use crate::portable::{self, PortableKey, PortableStream};
use crate::schedule::Schedule;
use crate::stream::{Pieces, Stream, Work};
use crate::wipe::wipe;
use crate::{Error, Nonce, Path, SharedRead, SharedWrite, Tag, AAD_LEN_MAX, MESSAGE_LEN_MAX};
use alloc::boxed::Box;
use core::fmt;
use zeroize::zeroize_stack;

/// An AES-128-GCM or AES-256-GCM key, expanded for one [`Path`], wiped on drop.
///
/// The calls take the nonce from the caller, who must never seal twice with the same one under the
/// same key; [`SealingContext`](crate::SealingContext) ensures that.
///
/// `Key` does not implement `Clone`, and `Debug` shows its size and path only. Its contents have
/// one place on the heap, so moving it leaves no copies behind.
pub struct Key {
    engine: Engine,
    /// Four short packets at once, if the path can.
    batch4: Option<&'static Batch4>,
}

impl fmt::Debug for Key {
    /// Size and path: nothing that the key's bytes decide.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = match &self.engine {
            Engine::Native { kernel, .. } if kernel.shape.rounds == 10 => 128,
            Engine::Native { .. } => 256,
            Engine::Portable(key) => key.bits(),
        };
        f.debug_struct("Key")
            .field("bits", &bits)
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}

enum Engine {
    Native {
        schedule: Place,
        kernel: &'static Kernel,
    },
    Portable(Box<PortableKey>),
}

/// Bytes of stack that a message in pieces uses at most on a kernel. `tests/wipe` looks for secrets
/// below.
const NATIVE_STACK: usize = 4096;
/// The same of the portable path, which uses more in builds without optimisation.
const PORTABLE_STACK: usize = 9216;
/// The same of its calls for whole messages. Every 256 bytes take about a nanosecond.
const PORTABLE_WHOLE_STACK: usize = if cfg!(debug_assertions) { 9216 } else { 8448 };
/// The same of making a key on the portable path: with AVX-512 the `aes` crate leaves parts of it
/// up to 17 KiB down.
const KEY_STACK: usize = 24576;

impl Key {
    /// Expands a key of 16 or 32 bytes for the fastest path of this processor. The caller wipes
    /// `key`.
    ///
    /// # Errors
    /// [`Error::KeyLength`] for any other length.
    pub fn new(key: &[u8]) -> Result<Self, Error> {
        Self::with_path(key, Path::best())
    }

    /// Expands a key for a path of the caller's choice, for tests and measurements.
    ///
    /// # Errors
    /// [`Error::KeyLength`]; [`Error::PathUnavailable`] when the processor lacks the instructions.
    pub fn with_path(key: &[u8], path: Path) -> Result<Self, Error> {
        if !matches!(key.len(), 16 | 32) {
            return Err(Error::KeyLength { found: key.len() });
        }
        if !path.is_available() {
            return Err(Error::PathUnavailable { path });
        }
        let engine = match native::kernel(path, key.len()) {
            Some(kernel) => {
                let schedule = Place::filled(Schedule::EMPTY, |schedule| {
                    // SAFETY: the path is available, so the processor has its instructions.
                    unsafe { (kernel.fill)(schedule, key) };
                    wipe_checked();
                });
                Engine::Native { schedule, kernel }
            }
            None => {
                let expanded = PortableKey::boxed(key);
                // The `aes` crate returns its round keys by value, and so leaves copies on the
                // stack.
                zeroize_stack::<KEY_STACK>();
                Engine::Portable(expanded.ok_or(Error::KeyLength { found: key.len() })?)
            }
        };
        let batch4 = match &engine {
            Engine::Native { kernel, .. } => kernel.batch4,
            Engine::Portable(_) => None,
        };
        Ok(Self { engine, batch4 })
    }

    /// Returns the path that the key was expanded for.
    pub fn path(&self) -> Path {
        match &self.engine {
            Engine::Native { kernel, .. } => kernel.path,
            Engine::Portable(_) => Path::Portable,
        }
    }

    /// Prefetches the cache lines that a message of `len` bytes under this key needs: round keys
    /// and powers of the hash key, 4 lines (AES-128, 512 bits) for a message of up to 48 bytes, 7
    /// for one of 576, up to 16 for a long one. A caller with more keys than the cache holds calls
    /// this some packets ahead.
    ///
    /// The `Key` itself, which has their address, is read at once. On the portable path this does
    /// nothing.
    #[inline]
    pub fn prefetch(&self, len: usize) {
        match &self.engine {
            Engine::Native { schedule, kernel } => {
                schedule.lines(&kernel.shape, len, native::prefetch)
            }
            Engine::Portable(_) => {
                let _ = len;
            }
        }
    }

    /// Seals `plaintext` into `out` and returns the tag.
    ///
    /// Every byte of `out` is stored once, as ciphertext; nothing is read from it.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], [`Error::MessageTooLong`], [`Error::AadTooLong`],
    /// [`Error::Overlap`]; nothing is stored then.
    #[inline]
    pub fn seal(
        &self,
        nonce: Nonce,
        aad: &[u8],
        plaintext: &[u8],
        out: SharedWrite<'_>,
    ) -> Result<Tag, Error> {
        check(aad.len(), plaintext.len(), out.len())?;
        check_overlap(plaintext.as_ptr(), out.start(), out.len())?;
        // SAFETY: both sides have the same number of bytes, `plaintext` is a slice, and the view
        // vouches for `out`. They do not overlap, for `plaintext` is borrowed, so
        // nothing may write to it.
        let tag = unsafe {
            self.whole(
                true,
                &nonce,
                aad,
                plaintext.as_ptr(),
                out.start(),
                out.len(),
            )
        };
        Ok(Tag::from_u128(tag))
    }

    /// Opens `ciphertext` into `out`, which is private memory.
    ///
    /// Every byte of `ciphertext` is loaded once, and what is decrypted is what was authenticated.
    ///
    /// # Errors
    /// [`Error::Forged`], with `out` wiped; [`Error::LengthMismatch`], [`Error::MessageTooLong`],
    /// [`Error::AadTooLong`], [`Error::Overlap`], with `out` untouched.
    #[inline]
    pub fn open(
        &self,
        nonce: &Nonce,
        aad: &[u8],
        ciphertext: SharedRead<'_>,
        tag: &Tag,
        out: &mut [u8],
    ) -> Result<(), Error> {
        check(aad.len(), ciphertext.len(), out.len())?;
        check_overlap(ciphertext.start(), out.as_ptr(), out.len())?;
        // SAFETY: both sides have the same number of bytes, `out` is a slice, and the view vouches
        // for `ciphertext`. They do not overlap, for `out` is borrowed exclusively.
        let computed = unsafe {
            self.whole(
                false,
                nonce,
                aad,
                ciphertext.start(),
                out.as_mut_ptr(),
                out.len(),
            )
        };
        if tag.matches(Tag::from_u128(computed)) {
            Ok(())
        } else {
            wipe(out);
            Err(Error::Forged)
        }
    }

    /// Seals private memory in place and returns the tag.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`], [`Error::AadTooLong`]; `data` is untouched then.
    #[inline]
    pub fn seal_in_place(&self, nonce: Nonce, aad: &[u8], data: &mut [u8]) -> Result<Tag, Error> {
        check(aad.len(), data.len(), data.len())?;
        let p = data.as_mut_ptr();
        // SAFETY: source and destination are the same slice.
        let tag = unsafe { self.whole(true, &nonce, aad, p, p, data.len()) };
        Ok(Tag::from_u128(tag))
    }

    /// Opens private memory in place.
    ///
    /// # Errors
    /// [`Error::Forged`], with `data` wiped; [`Error::MessageTooLong`], [`Error::AadTooLong`], with
    /// `data` untouched.
    #[inline]
    pub fn open_in_place(
        &self,
        nonce: &Nonce,
        aad: &[u8],
        data: &mut [u8],
        tag: &Tag,
    ) -> Result<(), Error> {
        check(aad.len(), data.len(), data.len())?;
        let p = data.as_mut_ptr();
        // SAFETY: source and destination are the same slice.
        let computed = unsafe { self.whole(false, nonce, aad, p, p, data.len()) };
        if tag.matches(Tag::from_u128(computed)) {
            Ok(())
        } else {
            wipe(data);
            Err(Error::Forged)
        }
    }

    /// [`Key::seal`] from and to lists of pieces, cut anywhere.
    ///
    /// # Errors
    /// As [`Key::seal`], with the sums of the lengths; overlaps are not looked for.
    pub fn seal_scattered(
        &self,
        nonce: Nonce,
        aad: &[u8],
        plaintext: &[&[u8]],
        out: &mut [SharedWrite<'_>],
    ) -> Result<Tag, Error> {
        let len = total(plaintext.iter().map(|piece| piece.len()));
        check(aad.len(), len, total(out.iter().map(SharedWrite::len)))?;
        let mut src = Pieces::new(
            plaintext
                .iter()
                .map(|piece| (piece.as_ptr().cast_mut(), piece.len())),
        );
        let mut dst = Pieces::new(out.iter().map(|piece| (piece.start(), piece.len())));
        // SAFETY: as in `seal`, piece by piece; the source is only read.
        let tag = unsafe { self.streamed(Work::Seal, &nonce, aad, &mut src, &mut dst, len) };
        Ok(Tag::from_u128(tag))
    }

    /// [`Key::open`] from and to lists of pieces, cut anywhere.
    ///
    /// # Errors
    /// As [`Key::open`], with the sums of the lengths; overlaps are not looked for.
    pub fn open_scattered(
        &self,
        nonce: &Nonce,
        aad: &[u8],
        ciphertext: &[SharedRead<'_>],
        tag: &Tag,
        out: &mut [&mut [u8]],
    ) -> Result<(), Error> {
        let len = total(ciphertext.iter().map(SharedRead::len));
        check(aad.len(), len, total(out.iter().map(|piece| piece.len())))?;
        let mut src = Pieces::new(
            ciphertext
                .iter()
                .map(|piece| (piece.start().cast_mut(), piece.len())),
        );
        let mut dst = Pieces::new(
            out.iter_mut()
                .map(|piece| (piece.as_mut_ptr(), piece.len())),
        );
        // SAFETY: as in `open`, piece by piece; the source is only read.
        let computed = unsafe { self.streamed(Work::Open, nonce, aad, &mut src, &mut dst, len) };
        if tag.matches(Tag::from_u128(computed)) {
            Ok(())
        } else {
            out.iter_mut().for_each(|piece| wipe(piece));
            Err(Error::Forged)
        }
    }

    /// Four short packets under this key at once, if the path can.
    #[inline(always)]
    pub(crate) fn batch4(&self) -> Option<&'static Batch4> {
        self.batch4
    }

    /// Returns the schedule.
    ///
    /// # Safety
    /// [`Key::batch4`] must be `Some`.
    #[inline(always)]
    pub(crate) unsafe fn schedule(&self) -> &Schedule {
        match &self.engine {
            Engine::Native { schedule, .. } => schedule,
            // SAFETY: `with_path` takes `batch4` from a kernel, which the portable path does not
            // have.
            Engine::Portable(_) => unsafe { core::hint::unreachable_unchecked() },
        }
    }

    pub(crate) fn stream(&self, nonce: &Nonce, aad: &[u8]) -> Stream<'_> {
        match &self.engine {
            Engine::Native { schedule, kernel } => {
                // SAFETY: `with_path` paired the kernel with its schedule and its processor.
                let progress = unsafe { (kernel.begin)(schedule, nonce, aad) };
                Stream::Native {
                    schedule,
                    kernel,
                    progress,
                }
            }
            Engine::Portable(key) => {
                Stream::Portable(PortableStream::new(key, nonce.as_bytes(), aad))
            }
        }
    }

    /// Seals or opens a message in pieces, and wipes what that leaves on the stack: the mask of the
    /// tag and the state of the hash in [`Progress`](crate::kernel::Progress), registers that the
    /// kernels spill, copies in the `aes` and `ghash` crates. Calls for whole messages on the
    /// kernels hold these in registers, and spill some of them on the narrower paths; to wipe 2 KiB
    /// took 15 ns, where a short message takes 12.
    ///
    /// # Safety
    /// As for [`Stream::run`].
    pub(crate) unsafe fn streamed(
        &self,
        work: Work,
        nonce: &Nonce,
        aad: &[u8],
        src: &mut Pieces<impl Iterator<Item = (*mut u8, usize)>>,
        dst: &mut Pieces<impl Iterator<Item = (*mut u8, usize)>>,
        len: usize,
    ) -> u128 {
        // SAFETY: the caller's contract.
        let tag = unsafe { self.run_stream(work, nonce, aad, src, dst, len) };
        match &self.engine {
            Engine::Native { .. } => zeroize_stack::<NATIVE_STACK>(),
            Engine::Portable(_) => zeroize_stack::<PORTABLE_STACK>(),
        }
        tag
    }

    /// [`Key::streamed`] before the wipe. Not inlined, so that all it uses of the stack is below
    /// its caller.
    ///
    /// # Safety
    /// As for [`Stream::run`].
    #[inline(never)]
    unsafe fn run_stream(
        &self,
        work: Work,
        nonce: &Nonce,
        aad: &[u8],
        src: &mut Pieces<impl Iterator<Item = (*mut u8, usize)>>,
        dst: &mut Pieces<impl Iterator<Item = (*mut u8, usize)>>,
        len: usize,
    ) -> u128 {
        // SAFETY: the caller's contract.
        unsafe { self.stream(nonce, aad).run(work, src, dst, len) }
    }

    /// # Safety
    /// `len` bytes must be readable at `src` and writable at `dst`, the same or without overlap.
    #[inline(always)]
    pub(crate) unsafe fn whole(
        &self,
        seal: bool,
        nonce: &Nonce,
        aad: &[u8],
        src: *const u8,
        dst: *mut u8,
        len: usize,
    ) -> u128 {
        match &self.engine {
            Engine::Native { schedule, kernel } => {
                // SAFETY: the caller's contract; `with_path` paired the kernel with its schedule
                // and processor.
                unsafe { kernel.whole(seal, schedule, nonce, aad, src, dst, len) }
            }
            // SAFETY: the caller's contract.
            Engine::Portable(key) => unsafe {
                whole_portable(key, seal, nonce, aad, src, dst, len)
            },
        }
    }
}

/// [`portable::whole`], with a wipe of what it leaves on the stack. Not inlined: callers of the
/// other paths would pay for its registers.
///
/// # Safety
/// As for [`portable::whole`].
#[inline(never)]
unsafe fn whole_portable(
    key: &PortableKey,
    seal: bool,
    nonce: &Nonce,
    aad: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u128 {
    // SAFETY: the caller's contract.
    let tag = unsafe { portable::whole(key, seal, nonce.as_bytes(), aad, src, dst, len) };
    zeroize_stack::<PORTABLE_WHOLE_STACK>();
    tag
}

/// Returns the sum of lengths; saturating, because a list may name the same bytes many times.
pub(crate) fn total(lens: impl Iterator<Item = usize>) -> usize {
    lens.fold(0, usize::saturating_add)
}

/// Refuses lengths that AES-GCM does not allow, before any byte is accessed.
#[inline(always)]
pub(crate) fn check(aad_len: usize, input: usize, output: usize) -> Result<(), Error> {
    // One branch in the common case.
    let too_long = input as u64 > MESSAGE_LEN_MAX;
    if (input != output) | too_long | (aad_len as u64 > AAD_LEN_MAX) {
        return Err(refusal(aad_len, input, output));
    }
    Ok(())
}

/// Refuses a destination that overlaps its source in part.
///
/// References cannot overlap so, and [`SharedRead::new`] and [`SharedWrite::new`] forbid it; a
/// caller that does it nevertheless gets an error, not garbage. Of a message of up to 64 bytes
/// every path loads all before it stores any, so that an overlap does no harm; the comparison would
/// take 4 % of its time.
#[inline(always)]
fn check_overlap(from: *const u8, to: *const u8, len: usize) -> Result<(), Error> {
    if len > 64 {
        let distance = from.addr().abs_diff(to.addr());
        if distance != 0 && distance < len {
            return Err(Error::Overlap);
        }
    }
    Ok(())
}

#[cold]
fn refusal(aad_len: usize, input: usize, output: usize) -> Error {
    if input != output {
        Error::LengthMismatch { input, output }
    } else if input as u64 > MESSAGE_LEN_MAX {
        Error::MessageTooLong {
            found: input as u64,
        }
    } else {
        Error::AadTooLong {
            found: aad_len as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In one piece such messages are not at hand.
    #[test]
    fn the_limits_are_those_of_the_standard() {
        let (message, aad) = (MESSAGE_LEN_MAX as usize, AAD_LEN_MAX as usize);
        assert_eq!(check(aad, message, message), Ok(()));
        let found = MESSAGE_LEN_MAX + 1;
        let too_long = Err(Error::MessageTooLong { found });
        assert_eq!(check(0, message + 1, message + 1), too_long);
        let found = AAD_LEN_MAX + 1;
        assert_eq!(check(aad + 1, 0, 0), Err(Error::AadTooLong { found }));
    }
}
