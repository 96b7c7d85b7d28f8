//! The throughput of the processor's units: the clock, and the rates of AES and carry-less
//! multiplication and of a path's whole mix of instructions, measured with small kernels, and what
//! bound they set to each path.

#[cfg(target_arch = "x86_64")]
use std::arch::asm;
use tare_gcm::Path;

/// Cycles that one run of [`chain`] takes.
pub const CHAIN_CYCLES: f64 = 3.0 * 256.0;

/// Instructions in one run of a throughput kernel.
pub const KERNEL_LEN: f64 = 120.0;

/// A chain of multiplications, each on the result before. They take three cycles on every processor
/// with these paths (Intel since Nehalem, AMD since Zen), and none is ever skipped. `state` ties
/// one run to the next.
#[cfg(target_arch = "x86_64")]
pub fn chain(state: &mut u64) {
    // SAFETY: register arithmetic only.
    unsafe {
        asm!(
            ".rept 256",
            "imul {a}, {a}",
            ".endr",
            a = inout(reg) * state,
            options(nomem, nostack)
        );
    }
}

/// The same of other processors, where no kernel is measured against it.
#[cfg(not(target_arch = "x86_64"))]
pub fn chain(state: &mut u64) {
    for _ in 0..256 {
        *state = std::hint::black_box(*state).wrapping_mul(*state);
    }
}

/// Twelve independent registers, ten times over: more work in flight than any latency needs.
#[cfg(target_arch = "x86_64")]
macro_rules! kernel {
    ($operation:literal, $width:literal, $middle:literal) => {
        || {
            // SAFETY: register arithmetic only, by instructions that the caller has checked for.
            unsafe {
                asm!(
                    ".rept 10",
                    concat!($operation, " ", $width, "0, ", $width, "0, ", $width, "15", $middle),
                    concat!($operation, " ", $width, "1, ", $width, "1, ", $width, "15", $middle),
                    concat!($operation, " ", $width, "2, ", $width, "2, ", $width, "15", $middle),
                    concat!($operation, " ", $width, "3, ", $width, "3, ", $width, "15", $middle),
                    concat!($operation, " ", $width, "4, ", $width, "4, ", $width, "15", $middle),
                    concat!($operation, " ", $width, "5, ", $width, "5, ", $width, "15", $middle),
                    concat!($operation, " ", $width, "6, ", $width, "6, ", $width, "15", $middle),
                    concat!($operation, " ", $width, "7, ", $width, "7, ", $width, "15", $middle),
                    concat!($operation, " ", $width, "8, ", $width, "8, ", $width, "15", $middle),
                    concat!($operation, " ", $width, "9, ", $width, "9, ", $width, "15", $middle),
                    concat!($operation, " ", $width, "10, ", $width, "10, ", $width, "15", $middle),
                    concat!($operation, " ", $width, "11, ", $width, "11, ", $width, "15", $middle),
                    ".endr",
                    "vzeroupper",
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                    out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    options(nomem, nostack),
                );
            }
        }
    };
}

/// Registers of data in one run of a kernel of all instructions.
pub const MIX_LEN: f64 = 20.0;

/// All vector instructions of a register of data, none of which waits for another: rounds of AES,
/// multiplications, and the others. So they take the time that the processor's units need for them.
#[cfg(target_arch = "x86_64")]
macro_rules! mix {
    ($width:literal, $($aes:literal)*; $($product:literal)*; $($other:literal)*) => {
        || {
            // SAFETY: register arithmetic only, by instructions that the caller has checked for.
            unsafe {
                asm!(
                    ".rept 20",
                    $(concat!("vaesenc ", $width, $aes, ", ", $width, "15, ", $width, "14"),)*
                    $(concat!("vpclmulqdq ", $width, $product, ", ", $width, "15, ", $width, "14, 1"),)*
                    $(concat!($other, " ", $width, "0, ", $width, "15, ", $width, "14"),)*
                    ".endr",
                    "vzeroupper",
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    options(nomem, nostack),
                );
            }
        }
    };
}

/// The bounds that the units set for one path.
pub struct Bound {
    /// AES rounds of one register per cycle, measured.
    pub aes_per_cycle: f64,
    /// Carry-less multiplications of one register per cycle, measured.
    pub multiplications_per_cycle: f64,
    /// Cycles per byte that the AES unit needs.
    pub aes: f64,
    /// Cycles per byte that the multiplier needs.
    pub multiply: f64,
    /// Cycles per byte that all vector instructions need together, measured.
    pub all: f64,
}

impl Bound {
    /// The largest of the three, in cycles per byte.
    pub fn cycles_per_byte(&self) -> f64 {
        self.aes.max(self.multiply).max(self.all)
    }
}

/// Kernels that measure the throughput of a path's units.
pub struct Kernels {
    pub aes: fn(),
    pub multiply: fn(),
    /// All vector instructions for AES-128 and for AES-256.
    pub all: [fn(); 2],
}

/// The throughput kernels of a path; `None` for the portable one and for paths that the processor
/// lacks.
///
/// Besides rounds and multiplications a register has whitening, data, byte order, and sums (two
/// with three-way additions, four without); on 128 bits three sums, and four instructions for the
/// halves that save a multiplication.
#[cfg(target_arch = "x86_64")]
pub fn kernels(path: Path) -> Option<Kernels> {
    /// Both key sizes: ten rounds of AES and fourteen.
    macro_rules! mixes {
        ($width:literal, $($product:literal)*; $($other:literal)*) => {
            [
                mix!($width, 0 1 2 3 0 1 2 3 0 1; $($product)*; $($other)*),
                mix!($width, 0 1 2 3 0 1 2 3 0 1 2 3 0 1; $($product)*; $($other)*),
            ]
        };
    }
    match path {
        _ if !path.is_available() => None,
        Path::Vaes512 => Some(Kernels {
            aes: kernel!("vaesenc", "zmm", ""),
            multiply: kernel!("vpclmulqdq", "zmm", ", 1"),
            all: mixes!("zmm", 2 3 0 1; "vpxorq" "vpshufb" "vpxorq" "vpxorq" "vpxorq"),
        }),
        Path::Vaes256 => Some(Kernels {
            aes: kernel!("vaesenc", "ymm", ""),
            multiply: kernel!("vpclmulqdq", "ymm", ", 1"),
            all: mixes!("ymm", 2 3 0 1; "vpxor" "vpshufb" "vpxor" "vpxor" "vpxor" "vpxor" "vpxor"),
        }),
        Path::AesNi if std::arch::is_x86_feature_detected!("avx") => Some(Kernels {
            aes: kernel!("vaesenc", "xmm", ""),
            multiply: kernel!("vpclmulqdq", "xmm", ", 1"),
            all: mixes!("xmm", 2 3 0; "vpxor" "vpshufb" "vpunpckhqdq" "vpunpckhqdq" "vpxor" "vpxor" "vpxor" "vpxor" "vpxor" "vpxor"),
        }),
        _ => None,
    }
}

/// The same of other processors: there are none yet.
#[cfg(not(target_arch = "x86_64"))]
pub fn kernels(_: Path) -> Option<Kernels> {
    None
}

/// The bound of a path whose units do so many instructions a cycle, and all that a register of data
/// needs in so many cycles.
pub fn bound(path: Path, rounds: f64, aes: f64, multiplications: f64, all: f64) -> Bound {
    let (len, products) = match path {
        Path::Vaes512 => (64.0, 4.0),
        Path::Vaes256 => (32.0, 4.0),
        _ => (16.0, 3.0),
    };
    Bound {
        aes_per_cycle: aes,
        multiplications_per_cycle: multiplications,
        aes: rounds / aes / len,
        multiply: products / multiplications / len,
        all: all / len,
    }
}
