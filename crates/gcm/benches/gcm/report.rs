//! The results, as a table or as JSON lines.

use crate::measure::{Random, Samples};
use crate::units::Bound;

/// A comparison and its target.
pub struct Target<'a> {
    pub fast: &'a str,
    pub slow: &'a str,
    pub at_least: Option<f64>,
}

/// The output of results.
pub struct Report {
    json: bool,
    missed: Vec<String>,
}

impl Report {
    pub fn new(json: bool, key_bits: usize) -> Self {
        if !json {
            println!("AES-{key_bits}-GCM, 12 bytes of additional data; ns per operation, medians of interleaved rounds");
        }
        Self {
            json,
            missed: Vec::new(),
        }
    }

    /// One experiment: the times of its cells, for `bytes` each (none if 0), and its comparisons.
    pub fn section(
        &mut self,
        what: &str,
        bytes: f64,
        samples: &Samples,
        targets: &[Target<'_>],
        random: &mut Random,
    ) {
        if !self.json {
            println!("\n{what}");
        }
        let width = samples.names.iter().map(String::len).fold(28, usize::max);
        for name in &samples.names {
            let Some(ns) = samples.median_ns(name) else {
                continue;
            };
            if self.json {
                println!("{{\"experiment\":\"{what}\",\"cell\":\"{name}\",\"metric\":\"time\",\"unit\":\"ns\",\"better\":\"lower\",\"n\":{},\"median\":{ns:.2}}}", samples.ns[0].len());
            } else {
                let rate = match bytes {
                    0.0 => String::new(),
                    bytes => format!("  {:7.2} GB/s", bytes / ns),
                };
                println!("  {name:width$} {ns:9.1} ns{rate}");
            }
        }
        for target in targets {
            let Some(e) = samples.speedup(target.fast, target.slow, random) else {
                continue;
            };
            let verdict = match target.at_least {
                None => "",
                Some(least) if e.low >= least => "met",
                Some(least) if e.high < least => "missed",
                Some(_) => "inconclusive",
            };
            if self.json {
                let least = target
                    .at_least
                    .map_or("null".to_owned(), |least| least.to_string());
                println!("{{\"experiment\":\"{what}\",\"fast\":\"{}\",\"slow\":\"{}\",\"metric\":\"speedup\",\"unit\":\"ratio\",\"better\":\"higher\",\"median\":{:.3},\"ci95\":[{:.3},{:.3}],\"at_least\":{least},\"verdict\":\"{verdict}\"}}", target.fast, target.slow, e.median, e.low, e.high);
            } else {
                let least = target.at_least.map_or(String::new(), |least| {
                    format!("  at least {least}: {verdict}")
                });
                println!(
                    "  {} is {:.2} × as fast as {} [{:.2}, {:.2}]{least}",
                    target.fast, e.median, target.slow, e.low, e.high
                );
            }
            if matches!(verdict, "missed" | "inconclusive") {
                self.missed.push(format!(
                    "{what}: {} over {} {:.2} [{:.2}, {:.2}], {verdict}",
                    target.fast, target.slow, e.median, e.low, e.high
                ));
            }
        }
    }

    /// The bound of a path's units and what sealing and opening take, in cycles per byte.
    pub fn bound(&mut self, path: &str, cycle_ns: f64, bound: &Bound, taken: [f64; 2]) {
        let least = bound.cycles_per_byte();
        let clock = 1.0 / cycle_ns;
        let [seal, open] = taken;
        let Bound {
            aes_per_cycle,
            multiplications_per_cycle,
            aes,
            multiply,
            all,
        } = bound;
        if self.json {
            println!("{{\"experiment\":\"bound\",\"cell\":\"{path}\",\"clock_ghz\":{clock:.3},\"aes_per_cycle\":{aes_per_cycle:.2},\"multiplications_per_cycle\":{multiplications_per_cycle:.2},\"unit\":\"cycles/B\",\"aes\":{aes:.4},\"multiply\":{multiply:.4},\"all\":{all:.4},\"bound\":{least:.4},\"seal\":{seal:.4},\"open\":{open:.4}}}");
        } else {
            let percent = |taken| 100.0 * least / taken;
            println!(
                "\nbound of {path} at {clock:.2} GHz: {aes_per_cycle:.2} AES rounds or {multiplications_per_cycle:.2} multiplications of a register per cycle\n  \
                 cycles per byte: AES {aes:.3}, multiplier {multiply:.3}, all vector instructions {all:.3}\n  \
                 16 KiB: seal {seal:.3}, {:.0} % of what is possible; open {open:.3}, {:.0} %",
                percent(seal),
                percent(open),
            );
        }
    }

    pub fn finish(self) {
        if !self.json {
            match self.missed.len() {
                0 => println!("\nEvery target that could be measured here is met."),
                n => println!("\n{n} not shown:\n  {}", self.missed.join("\n  ")),
            }
        }
    }
}
