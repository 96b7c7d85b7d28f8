//! What the processor's units can do: the clock and the throughput of AES and carry-less multiplication, measured
//! with small kernels, and what bound they set to each path.

use std::arch::asm;
use std::time::Instant;
use tare_gcm::Path;

/// Nanoseconds an instruction, the best of several tries (a unit cannot be faster than it is).
fn best_ns(instructions: u32, mut kernel: impl FnMut()) -> f64 {
    let repetitions = 1000;
    (0..60)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..repetitions {
                kernel();
            }
            start.elapsed().as_nanos() as f64 / f64::from(repetitions * instructions)
        })
        .fold(f64::MAX, f64::min)
}

/// The time of one cycle in nanoseconds: a chain of operations of one cycle, each on the result before.
pub fn cycle_ns() -> f64 {
    best_ns(256, || {
        // SAFETY: register arithmetic only.
        unsafe {
            asm!(".rept 256", "xor {a}, {b}", ".endr", a = inout(reg) 1u64 => _, b = in(reg) 3u64,
                options(nomem, nostack));
        }
    })
}

/// Twelve independent registers, ten times over: more work in flight than any latency needs.
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

/// What one path's units allow.
pub struct Bound {
    /// AES rounds of one register a cycle, measured.
    pub aes_per_cycle: f64,
    /// Carry-less multiplications of one register a cycle, measured.
    pub multiplications_per_cycle: f64,
    /// Cycles a byte that the AES unit needs.
    pub aes: f64,
    /// Cycles a byte that the multiplier needs.
    pub multiply: f64,
    /// Cycles a byte that all vector operations need together on the ports there are.
    pub ports: f64,
}

impl Bound {
    /// The largest of the three, in cycles a byte.
    pub fn cycles_per_byte(&self) -> f64 {
        self.aes.max(self.multiply).max(self.ports)
    }
}

/// Measures the units of a path; None for the portable one and for paths that the processor lacks.
pub fn bound(path: Path, rounds: f64, cycle_ns: f64) -> Option<Bound> {
    if !path.is_available() {
        return None;
    }
    let rate = |kernel: fn()| cycle_ns / best_ns(120, kernel);
    // Vector operations besides rounds and the four multiplications, a register: whitening, data, byte order, and sums
    // (two with three-way additions, four or five without); ports: two for 512 bits, three for less.
    let (len, aes, multiply, others, ports) = match path {
        Path::Vaes512 => {
            let aes: fn() = kernel!("vaesenc", "zmm", "");
            (64.0, rate(aes), rate(kernel!("vpclmulqdq", "zmm", ", 1")), 5.0, 2.0)
        }
        Path::Vaes256 => {
            let aes: fn() = kernel!("vaesenc", "ymm", "");
            (32.0, rate(aes), rate(kernel!("vpclmulqdq", "ymm", ", 1")), 7.0, 3.0)
        }
        Path::AesNi if std::arch::is_x86_feature_detected!("avx") => {
            let aes: fn() = kernel!("vaesenc", "xmm", "");
            (16.0, rate(aes), rate(kernel!("vpclmulqdq", "xmm", ", 1")), 7.0, 3.0)
        }
        _ => return None,
    };
    Some(Bound {
        aes_per_cycle: aes,
        multiplications_per_cycle: multiply,
        aes: rounds / aes / len,
        multiply: 4.0 / multiply / len,
        ports: (rounds + 4.0 + others) / ports / len,
    })
}
