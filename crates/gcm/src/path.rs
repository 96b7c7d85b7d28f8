//! The implementations of AES-GCM, and which of them this processor can run.

use core::fmt;
use core::sync::atomic::{AtomicU8, Ordering};

/// One implementation. All give the same results under the same contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Path {
    /// VAES and VPCLMULQDQ on 512-bit registers, with AVX-512 byte masks (Ice Lake, Zen 4 and
    /// later).
    Vaes512,
    /// VAES and VPCLMULQDQ on 256-bit registers (Alder Lake, Zen 3 and later).
    Vaes256,
    /// AES-NI and PCLMULQDQ on 128-bit registers (Westmere and later).
    AesNi,
    /// AES and PMULL on the 128-bit registers of NEON (AArch64 processors with the cryptographic
    /// extension).
    Neon,
    /// Any processor: staged through a small private buffer into the `aes` and `ghash` crates.
    Portable,
}

impl Path {
    /// Every path, the fastest first.
    pub const ALL: [Path; 5] = [
        Path::Vaes512,
        Path::Vaes256,
        Path::AesNi,
        Path::Neon,
        Path::Portable,
    ];

    /// Returns the fastest path of this processor; chosen once, the same for all keys and inputs.
    pub fn best() -> Path {
        const UNKNOWN: u8 = u8::MAX;
        static BEST: AtomicU8 = AtomicU8::new(UNKNOWN);
        let known = BEST.load(Ordering::Relaxed);
        if let Some(path) = Path::ALL.get(usize::from(known)) {
            return *path;
        }
        let best = Path::available().next().unwrap_or(Path::Portable);
        // Other threads find the same.
        BEST.store(best as u8, Ordering::Relaxed);
        best
    }

    /// Returns the paths that this processor can run, the fastest first; the last is always
    /// [`Path::Portable`].
    pub fn available() -> impl Iterator<Item = Path> {
        Path::ALL.into_iter().filter(|path| path.is_available())
    }

    /// Returns true if this processor can run the path.
    pub fn is_available(self) -> bool {
        self == Path::Portable || crate::native::is_available(self)
    }

    /// Returns the path's name on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Path::Vaes512 => "vaes512",
            Path::Vaes256 => "vaes256",
            Path::AesNi => "aesni",
            Path::Neon => "neon",
            Path::Portable => "portable",
        }
    }

    /// Returns the path with this name.
    pub fn by_name(name: &str) -> Option<Path> {
        Path::ALL.into_iter().find(|path| path.name() == name)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
