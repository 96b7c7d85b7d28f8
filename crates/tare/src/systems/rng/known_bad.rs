//! Generators that must fail, to see a test fail.

use clap::ValueEnum;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng as _, SeedableRng as _};
use tare_lab::choices;

use super::stream::Fill;

choices! {
    /// A generator that is broken on purpose.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
    pub(crate) enum KnownBad {
        /// Little-endian 64-bit numbers that increase by one
        Counter = "counter",
        /// The same byte, endlessly
        Constant = "constant",
        /// Independent bits of which 51 % are ones
        Biased = "biased",
        /// A block of 64 KiB of good numbers, repeated
        Repeating = "repeating",
        /// Good numbers, but 64 % of the 16-byte blocks are zero, as with an ignored underflow
        ZeroBlocks = "zero-blocks",
    }
}

impl KnownBad {
    /// The stream, always the same one.
    pub(crate) fn open(self) -> Fill {
        let mut good = ChaCha20Rng::seed_from_u64(0);
        match self {
            KnownBad::Constant => Box::new(|buffer| {
                buffer.fill(0xA5);
                Ok(())
            }),
            KnownBad::Counter => {
                let mut next = 0u64;
                Box::new(in_blocks([0; 8], move |block| {
                    *block = next.to_le_bytes();
                    next += 1;
                }))
            }
            KnownBad::Biased => Box::new(in_blocks([0], move |byte| {
                // 0.51 · 2^16 rounded.
                let bit = |_| u8::from(good.next_u32() >> 16 < 33_423);
                byte[0] = (0..8).map(bit).fold(0, |bits, bit| bits << 1 | bit);
            })),
            KnownBad::Repeating => {
                let mut block = vec![0; 64 * 1024];
                good.fill_bytes(&mut block);
                let mut at = 0;
                Box::new(move |buffer| {
                    for byte in buffer {
                        *byte = block[at];
                        at = (at + 1) % block.len();
                    }
                    Ok(())
                })
            }
            KnownBad::ZeroBlocks => Box::new(in_blocks([0; 16], move |block| {
                good.fill_bytes(block);
                if good.next_u32() % 100 < 64 {
                    block.fill(0);
                }
            })),
        }
    }
}

/// Cuts a generator of blocks into buffers of any length.
fn in_blocks<const N: usize>(
    mut block: [u8; N],
    mut next: impl FnMut(&mut [u8; N]) + Send,
) -> impl FnMut(&mut [u8]) -> anyhow::Result<()> + Send {
    let mut used = N;
    move |buffer| {
        for byte in buffer {
            if used == N {
                next(&mut block);
                used = 0;
            }
            *byte = block[used];
            used += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_lab::parameters::Choice as _;

    #[test]
    fn a_generator_has_one_name_on_the_command_line_and_in_experiments() {
        for bad in KnownBad::value_variants() {
            let value = bad.to_possible_value().unwrap();
            assert_eq!(value.get_name(), bad.name());
        }
    }

    #[test]
    fn a_stream_does_not_depend_on_the_buffers_it_is_read_into() {
        for bad in KnownBad::value_variants() {
            let mut whole = vec![0; 1000];
            bad.open()(&mut whole).unwrap();
            let mut pieces = vec![0; 1000];
            let mut fill = bad.open();
            pieces.chunks_mut(7).for_each(|piece| fill(piece).unwrap());
            assert_eq!(pieces, whole, "{bad:?}");
        }
    }
}
