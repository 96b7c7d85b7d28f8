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

    /// One experiment: the times of its cells, for `bytes` each, and its comparisons.
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
                println!("  {name:width$} {ns:9.1} ns  {:7.2} GB/s", bytes / ns);
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

    /// The bound of a path's units and what the path needs, in cycles per byte.
    pub fn bound(&mut self, path: &str, cycle_ns: f64, bound: &Bound, measured: f64) {
        let least = bound.cycles_per_byte();
        if self.json {
            println!("{{\"experiment\":\"bound\",\"cell\":\"{path}\",\"clock_ghz\":{:.3},\"aes_per_cycle\":{:.2},\"multiplications_per_cycle\":{:.2},\"unit\":\"cycles/B\",\"aes\":{:.4},\"multiply\":{:.4},\"ports\":{:.4},\"bound\":{least:.4},\"measured\":{measured:.4}}}", 1.0 / cycle_ns, bound.aes_per_cycle, bound.multiplications_per_cycle, bound.aes, bound.multiply, bound.ports);
        } else {
            println!(
                "\nbound of {path} at {:.2} GHz: {:.2} AES rounds and {:.2} multiplications of a register a cycle\n  \
                 cycles per byte: AES {:.3}, multiplier {:.3}, ports {:.3}; 16 KiB takes {measured:.3}, {:.0} % of what is possible",
                1.0 / cycle_ns, bound.aes_per_cycle, bound.multiplications_per_cycle, bound.aes, bound.multiply, bound.ports,
                100.0 * least / measured,
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
