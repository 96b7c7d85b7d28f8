//! Opening as most libraries do it, for comparison.

use crate::key::{check, total};
use crate::stream::{Pieces, Work};
use crate::wipe::wipe;
use crate::{Error, Key, Nonce, SharedRead, Tag};

impl Key {
    /// Opens as most libraries do: a first reading of the ciphertext is authenticated, a second one
    /// decrypted. **For comparison only**: whatever writes to the ciphertext meanwhile chooses the
    /// plaintext. Use [`Key::open_scattered`]. Needs the feature `comparison`.
    ///
    /// It is no slower than it has to be: in the long middle of a message, each reading takes the
    /// instructions of [`Key::open_scattered`] for hashing or for decrypting. The portable path
    /// does the whole work twice. `between` is called between the readings.
    ///
    /// # Errors
    /// As [`Key::open_scattered`].
    pub fn open_reading_twice(
        &self,
        nonce: &Nonce,
        aad: &[u8],
        ciphertext: &[SharedRead<'_>],
        tag: &Tag,
        out: &mut [u8],
        between: impl FnOnce(),
    ) -> Result<(), Error> {
        let len = total(ciphertext.iter().map(SharedRead::len));
        check(aad.len(), len, out.len())?;
        let mut read = |work| {
            let pieces = ciphertext.iter();
            let mut src = Pieces::new(pieces.map(|piece| (piece.start().cast_mut(), piece.len())));
            let mut dst = Pieces::new([(out.as_mut_ptr(), len)].into_iter());
            // SAFETY: both sides have the same number of bytes, the views vouch for theirs and
            // `out` is borrowed exclusively; the source is only read.
            unsafe { self.streamed(work, nonce, aad, &mut src, &mut dst, len) }
        };
        if tag.matches(Tag::from_u128(read(Work::Hash))) {
            between();
            read(Work::Decrypt);
            Ok(())
        } else {
            wipe(out);
            Err(Error::Forged)
        }
    }
}
