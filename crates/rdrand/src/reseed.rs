//! RDRAND output with a reseed of the hardware generator between any two values.
//!
//! The hardware reseeds its generator at the latest after 511 samples of 128 bits, which is
//! 1022 draws of 64 bits (Intel's implementation guide). *Skip* discards 1024 draws
//! before each value it keeps, which is enough whatever other programs do. *Delay* leaves the
//! hardware idle for 20 µs, in which it reseeds by itself, unless other cores keep drawing:
//! then only the bound of 1022 holds, and skip is the stronger of the two.

use crate::error::Error;
use crate::generator::Generator;
use crate::source::Source;

/// The number of 64-bit draws that skip discards for each value it keeps: more than the 1022 after
/// which a reseed is certain, and the number that librdrand's users know.
pub const SKIPPED_DRAWS: usize = 1024;

/// Draws discarded at a time; divides [`SKIPPED_DRAWS`].
const SKIP_BLOCK: usize = 256;

/// The pause of the delay method, in microseconds.
pub const DELAY_US: u64 = 20;

impl<S: Source> Generator<S> {
    /// Fills with bytes; each 8 (and the rest) come from one value of 1025 drawn.
    /// Writes exactly `destination.len()` bytes.
    ///
    /// # Errors
    /// [`Error::Underflow`] (`written` in bytes) or [`Error::Health`].
    pub fn fill_bytes_reseed_skip(&mut self, destination: &mut [u8]) -> Result<(), Error> {
        self.fill_apart(destination, |generator| {
            // In blocks, whose loop is as tight as the bare one. They need not be wiped: they are
            // never delivered, and no value that is kept can be computed from them.
            let mut discarded = [0; SKIP_BLOCK];
            for _ in 0..SKIPPED_DRAWS / SKIP_BLOCK {
                generator.fill_u64(&mut discarded)?;
            }
            Ok(())
        })
    }

    /// Fills with values, each one of 1025 drawn.
    ///
    /// # Errors
    /// [`Error::Underflow`] (`written` in values) or [`Error::Health`].
    pub fn fill_u64_reseed_skip(&mut self, destination: &mut [u64]) -> Result<(), Error> {
        in_values(destination, |bytes| self.fill_bytes_reseed_skip(bytes))
    }

    /// Fills with bytes; `wait` is called before each draw and must let at least
    /// [`DELAY_US`] pass.
    ///
    /// # Errors
    /// [`Error::Underflow`] (`written` in bytes) or [`Error::Health`].
    pub fn fill_bytes_reseed_delay_with(
        &mut self,
        destination: &mut [u8],
        mut wait: impl FnMut(),
    ) -> Result<(), Error> {
        self.fill_apart(destination, |_| {
            wait();
            Ok(())
        })
    }

    /// Fills with bytes, sleeping [`DELAY_US`] before each draw. The system's timer slack
    /// (50 µs by default on Linux) comes on top.
    ///
    /// # Errors
    /// [`Error::Underflow`] (`written` in bytes) or [`Error::Health`].
    #[cfg(feature = "std")]
    pub fn fill_bytes_reseed_delay(&mut self, destination: &mut [u8]) -> Result<(), Error> {
        let pause = std::time::Duration::from_micros(DELAY_US);
        self.fill_bytes_reseed_delay_with(destination, || std::thread::sleep(pause))
    }

    /// Fills with values, sleeping [`DELAY_US`] before each draw.
    ///
    /// # Errors
    /// [`Error::Underflow`] (`written` in values) or [`Error::Health`].
    #[cfg(feature = "std")]
    pub fn fill_u64_reseed_delay(&mut self, destination: &mut [u64]) -> Result<(), Error> {
        in_values(destination, |bytes| self.fill_bytes_reseed_delay(bytes))
    }

    /// Eight bytes at a time, with `between` before each.
    pub(crate) fn fill_apart(
        &mut self,
        destination: &mut [u8],
        mut between: impl FnMut(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut written = 0;
        for chunk in destination.chunks_mut(8) {
            let drawn = between(self).and_then(|()| self.next_u64());
            match drawn {
                Ok(value) => match <&mut [u8; 8]>::try_from(&mut *chunk) {
                    Ok(word) => *word = value.to_ne_bytes(),
                    Err(_) => chunk.copy_from_slice(&value.to_ne_bytes()[..chunk.len()]),
                },
                Err(error @ Error::Underflow { .. }) => return Err(error.with_written(written)),
                Err(error) => {
                    destination.fill(0);
                    return Err(error);
                }
            }
            written += chunk.len();
        }
        Ok(())
    }
}

/// Runs a byte filler over 64-bit values.
fn in_values(
    destination: &mut [u64],
    fill: impl FnOnce(&mut [u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    fill(crate::generator::bytes_of_u64(destination))
        .map_err(|error| error.with_written(error.written() / 8))
}
