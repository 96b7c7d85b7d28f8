//! Interleaved rounds and what is said of them: medians of paired ratios with their intervals.

use std::time::Instant;

/// A cell of the experiment: a name and a function that does `n` operations.
pub struct Cell<'a> {
    pub name: String,
    pub run: Box<dyn FnMut(u32) + 'a>,
}

/// Nanoseconds per operation, by cell and round.
pub struct Samples {
    pub names: Vec<String>,
    pub ns: Vec<Vec<f64>>,
}

/// A median with its 95 % interval.
#[derive(Clone, Copy)]
pub struct Estimate {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

/// A small generator for orders and resamples: splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// Runs every cell once per round, in an order shuffled anew each round, for about `micros` each.
pub fn interleave(
    mut cells: Vec<Cell<'_>>,
    rounds: usize,
    micros: u64,
    random: &mut Random,
) -> Samples {
    let iterations: Vec<u32> = cells
        .iter_mut()
        .map(|cell| {
            (cell.run)(16);
            let start = Instant::now();
            (cell.run)(64);
            let ns = (start.elapsed().as_nanos() as u64 / 64).max(1);
            (micros * 1000 / ns).clamp(8, 10_000_000) as u32
        })
        .collect();
    let mut ns = vec![Vec::with_capacity(rounds); cells.len()];
    let mut order: Vec<usize> = (0..cells.len()).collect();
    for _ in 0..rounds {
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i + 1));
        }
        for &i in &order {
            let cell = &mut cells[i];
            (cell.run)(iterations[i] / 16 + 1);
            let start = Instant::now();
            (cell.run)(iterations[i]);
            ns[i].push(start.elapsed().as_nanos() as f64 / f64::from(iterations[i]));
        }
    }
    Samples {
        names: cells.into_iter().map(|cell| cell.name).collect(),
        ns,
    }
}

impl Samples {
    fn of(&self, name: &str) -> Option<&[f64]> {
        self.names
            .iter()
            .position(|n| n == name)
            .map(|i| &self.ns[i][..])
    }

    /// The median time of a cell in nanoseconds.
    pub fn median_ns(&self, name: &str) -> Option<f64> {
        self.of(name).map(|ns| median(ns.to_vec()))
    }

    /// Returns the factor by which `fast` is faster than `slow`: the median over rounds of slow /
    /// fast.
    pub fn speedup(&self, fast: &str, slow: &str, random: &mut Random) -> Option<Estimate> {
        let ratios: Vec<f64> = self
            .of(slow)?
            .iter()
            .zip(self.of(fast)?)
            .map(|(s, f)| s / f)
            .collect();
        let mut medians: Vec<f64> = (0..1000)
            .map(|_| {
                median(
                    (0..ratios.len())
                        .map(|_| ratios[random.below(ratios.len())])
                        .collect(),
                )
            })
            .collect();
        medians.sort_by(f64::total_cmp);
        Some(Estimate {
            median: median(ratios),
            low: medians[25],
            high: medians[974],
        })
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    }
}
