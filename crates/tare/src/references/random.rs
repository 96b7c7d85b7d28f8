//! Random numbers of the kernel, the C library and other libraries.
//!
//! Each has a function or a generator that fills a buffer, and nothing else: what is measured is
//! the library, not a layer around it.

use anyhow::anyhow;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng as _, SeedableRng as _, TryRng as _};
use rustix::rand::GetRandomFlags;

/// Fills the buffer by the system call.
#[inline]
pub(crate) fn fill_by_system_call(mut buffer: &mut [u8]) -> rustix::io::Result<()> {
    while !buffer.is_empty() {
        let filled = rustix::rand::getrandom(&mut *buffer, GetRandomFlags::empty())?;
        buffer = &mut buffer[filled..];
    }
    Ok(())
}

/// Fills the buffer by the C library's getrandom.
#[inline]
pub(crate) fn fill_by_libc(buffer: &mut [u8]) -> Result<(), getrandom::Error> {
    getrandom::fill(buffer)
}

/// Fills the buffer with aws-lc-rs's random numbers.
#[inline]
pub(crate) fn fill_by_aws_lc_rs(buffer: &mut [u8]) -> anyhow::Result<()> {
    #[cfg(feature = "references")]
    return aws_lc_rs::rand::fill(buffer).map_err(|_| anyhow!("aws-lc-rs gave no random bytes"));
    #[cfg(not(feature = "references"))]
    {
        let _ = buffer;
        Err(super::absent())
    }
}

/// ChaCha20 of the crate rand_chacha.
pub(crate) struct RandChacha(ChaCha20Rng);

impl RandChacha {
    pub(crate) fn new(seed: u64) -> RandChacha {
        RandChacha(ChaCha20Rng::seed_from_u64(seed))
    }

    #[inline]
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) {
        self.0.fill_bytes(buffer);
    }
}

/// RDRAND through the crate rdrand.
pub(crate) struct RdrandCrate(rdrand::RdRand);

impl RdrandCrate {
    pub(crate) fn new() -> anyhow::Result<RdrandCrate> {
        let random = rdrand::RdRand::new();
        random
            .map(RdrandCrate)
            .map_err(|_| anyhow!("the rdrand crate finds no RDRAND here"))
    }

    #[inline]
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) -> anyhow::Result<()> {
        let filled = self.0.try_fill_bytes(buffer);
        filled.map_err(|_| anyhow!("the rdrand crate's generator had no data"))
    }
}
