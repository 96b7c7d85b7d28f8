//! The requests of a load: which operation, on which key, with how large a value.

use tare_sim::Random;

use crate::trace::Lines;
use crate::Error;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads the value of a key, or a resource.
    Get,
    /// Writes the value of a key.
    Set,
}

/// A key of a store, or a resource of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// One of those that a load draws from.
    Number(u64),
    /// The key or path of a line of a trace.
    Name(Box<[u8]>),
}

/// A request, before a protocol writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its kind.
    pub operation: Operation,
    /// The key or the resource.
    pub key: Key,
    /// Bytes of the value that is written.
    pub value_len: u32,
}

/// The frequency of each key of a key space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyPattern {
    /// One after the other.
    Sequential,
    /// Each as often as any other, at random.
    Uniform,
    /// Key k (from 1) in proportion to k^-exponent. The exponent is above 0.
    Zipf(f64),
}

/// The length of values.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueLen {
    /// From the first to the second, both included, each as likely as another.
    Range(u32, u32),
    /// Lengths with their weights.
    Weighted(Vec<(u32, u32)>),
}

/// The longest value, in bytes.
pub const VALUE_LEN_MAX: u32 = 512 << 20;

/// The longest value that a datagram has room for, with its command, in bytes.
pub const DATAGRAM_VALUE_MAX: u32 = 65_000;

impl ValueLen {
    /// The longest value.
    pub fn longest(&self) -> u32 {
        match self {
            ValueLen::Range(_, most) => *most,
            ValueLen::Weighted(pairs) => pairs.iter().map(|&(len, _)| len).max().unwrap_or(0),
        }
    }

    fn draw(&self, random: &mut Random) -> u32 {
        match self {
            ValueLen::Range(least, most) if least == most => *least,
            ValueLen::Range(least, most) => {
                *least + random.below(u64::from(most - least) + 1) as u32
            }
            ValueLen::Weighted(pairs) => {
                let total = pairs.iter().map(|&(_, weight)| u64::from(weight)).sum();
                let (drawn, mut sum) = (random.below(total), 0);
                let is_drawn = |&&(_, weight): &&(u32, u32)| {
                    sum += u64::from(weight);
                    drawn < sum
                };
                pairs.iter().find(is_drawn).map_or(0, |&(len, _)| len)
            }
        }
    }
}

/// The mix of requests that a load draws from.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Writes of this many requests: a share from 0 to 1.
    pub set_share: f64,
    /// Keys in use, at least 1.
    pub keys: u64,
    /// The frequency of each.
    pub pattern: KeyPattern,
    /// The length of values.
    pub value_len: ValueLen,
    /// The share of reads that ask for a key of the key space, from 0 to 1; the others ask for
    /// keys beyond it, which no request writes.
    pub hit_share: f64,
}

impl Default for Workload {
    fn default() -> Workload {
        Workload {
            set_share: 0.0,
            keys: 1,
            pattern: KeyPattern::Sequential,
            value_len: ValueLen::Range(32, 32),
            hit_share: 1.0,
        }
    }
}

/// Draws the requests of one thread, or reads them from a trace.
#[derive(Debug)]
pub struct Requests {
    trace: Option<Lines>,
    workload: Workload,
    random: Random,
    keys: Keys,
}

/// The keys of one thread.
#[derive(Debug)]
enum Keys {
    /// Each one at this distance from the last, and the next one.
    Every(u64, u64),
    Uniform,
    Zipf(Zipf),
}

impl Requests {
    /// The requests of thread `thread` of `threads`, from a seed. Threads draw different requests;
    /// sequential keys are dealt out among them.
    pub fn new(workload: &Workload, seed: u64, thread: u64, threads: u64) -> Requests {
        Requests {
            trace: None,
            workload: workload.clone(),
            random: Random::new(seed ^ thread.rotate_left(32)).fork(),
            keys: match workload.pattern {
                KeyPattern::Sequential => Keys::Every(threads, thread % workload.keys),
                KeyPattern::Uniform => Keys::Uniform,
                KeyPattern::Zipf(exponent) => Keys::Zipf(Zipf::new(workload.keys, exponent)),
            },
        }
    }

    /// The requests of these lines.
    pub(crate) fn of_trace(lines: Lines) -> Requests {
        Requests {
            trace: Some(lines),
            ..Requests::new(&Workload::default(), 0, 0, 1)
        }
    }

    /// The next request.
    ///
    /// # Errors
    /// A trace cannot be read any more, or has fewer lines than before.
    #[inline]
    pub fn draw(&mut self) -> Result<Request, Error> {
        match &mut self.trace {
            None => Ok(self.draw_at_random()),
            Some(lines) => match lines.next()? {
                Some((_, request)) => Ok(request),
                None => Err(lines.ended()),
            },
        }
    }

    #[inline]
    fn draw_at_random(&mut self) -> Request {
        let is_set = self.random.chance(self.workload.set_share);
        let keys = self.workload.keys;
        let mut key = match &mut self.keys {
            Keys::Every(stride, next) => {
                let after = (*next + *stride) % keys;
                std::mem::replace(next, after)
            }
            Keys::Uniform => self.random.below(keys),
            Keys::Zipf(zipf) => zipf.draw(&mut self.random) - 1,
        };
        let hit_share = self.workload.hit_share;
        if !is_set && hit_share < 1.0 && !self.random.chance(hit_share) {
            key += keys;
        }
        let (operation, value_len) = match is_set {
            true => (
                Operation::Set,
                self.workload.value_len.draw(&mut self.random),
            ),
            false => (Operation::Get, 0),
        };
        Request {
            operation,
            key: Key::Number(key),
            value_len,
        }
    }
}

/// Numbers from 1 to n in proportion to k^-s, by rejection-inversion (Hörmann and Derflinger,
/// 1996): no table, and about one draw each.
#[derive(Clone, Copy, Debug)]
struct Zipf {
    n: f64,
    s: f64,
    /// The integral of x^-s to 1.5, less the probability of 1; and to n + 0.5.
    low: f64,
    high: f64,
    /// Numbers this close above their preimage need no test.
    accept: f64,
}

impl Zipf {
    fn new(n: u64, s: f64) -> Zipf {
        let n = n as f64;
        Zipf {
            n,
            s,
            low: integral(1.5, s) - 1.0,
            high: integral(n + 0.5, s),
            accept: 2.0 - inverse(integral(2.5, s) - 2f64.powf(-s), s),
        }
    }

    fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let unit = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            let y = self.high + unit * (self.low - self.high);
            let x = inverse(y, self.s);
            let k = (x + 0.5).floor().clamp(1.0, self.n);
            if k - x <= self.accept || y >= integral(k + 0.5, self.s) - k.powf(-self.s) {
                return k as u64;
            }
        }
    }
}

/// (x^(1-s) - 1) / (1 - s), which is ln x where s is 1.
fn integral(x: f64, s: f64) -> f64 {
    let (t, log) = (1.0 - s, x.ln());
    match (t * log).abs() < 1e-8 {
        true => log * (1.0 + t * log / 2.0),
        false => (t * log).exp_m1() / t,
    }
}

/// The x of which y is the integral.
fn inverse(y: f64, s: f64) -> f64 {
    let t = (y * (1.0 - s)).max(-1.0);
    match t.abs() < 1e-8 {
        true => (y * (1.0 - t / 2.0)).exp(),
        false => (t.ln_1p() * y / t).exp(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(request: &Request) -> u64 {
        match request.key {
            Key::Number(n) => n,
            Key::Name(_) => unreachable!("only traces have names"),
        }
    }

    #[test]
    fn zipf_draws_each_number_as_often_as_its_density_says() {
        for s in [0.5, 0.99, 1.0, 1.3, 2.0] {
            let zipf = Zipf::new(20, s);
            let mut random = Random::new(7);
            let mut counts = [0_u32; 20];
            let draws = 200_000;
            for _ in 0..draws {
                counts[zipf.draw(&mut random) as usize - 1] += 1;
            }
            let total: f64 = (1..=20).map(|k| f64::from(k).powf(-s)).sum();
            let mut chi_square = 0.0;
            for (k, &count) in (1..).zip(&counts) {
                let expected = f64::from(draws) * f64::from(k).powf(-s) / total;
                chi_square += (f64::from(count) - expected).powi(2) / expected;
            }
            // 19 degrees of freedom: 43.8 is exceeded once in a thousand.
            assert!(chi_square < 43.8, "exponent {s}: {chi_square}");
        }
    }

    #[test]
    fn lengths_of_values_are_drawn_from_ranges_and_by_weight() {
        let draw = |len: ValueLen| {
            let mut random = Random::new(1);
            let mut drawn: Vec<u32> = (0..1000).map(|_| len.draw(&mut random)).collect();
            drawn.sort_unstable();
            (drawn[0], drawn[500], drawn[999], len.longest())
        };
        assert_eq!(draw(ValueLen::Range(32, 32)), (32, 32, 32, 32));
        let (least, middle, most, longest) = draw(ValueLen::Range(10, 20));
        assert_eq!((least, most, longest), (10, 20, 20));
        assert!((13..=17).contains(&middle));
        let weighted = ValueLen::Weighted(vec![(1, 9), (100, 1)]);
        assert_eq!(draw(weighted), (1, 1, 100, 100));
    }

    #[test]
    fn shares_of_writes_and_misses_are_as_asked_and_threads_differ() {
        let workload = Workload {
            set_share: 0.25,
            keys: 1000,
            pattern: KeyPattern::Uniform,
            value_len: ValueLen::Range(8, 8),
            hit_share: 0.9,
        };
        let draw = |thread| -> Vec<Request> {
            let mut requests = Requests::new(&workload, 3, thread, 2);
            (0..20_000).map(|_| requests.draw().unwrap()).collect()
        };
        let drawn = draw(0);
        let sets = drawn.iter().filter(|r| r.operation == Operation::Set);
        assert!((4_700..5_300).contains(&sets.clone().count()));
        assert!(sets.clone().all(|r| key(r) < 1000 && r.value_len == 8));
        let misses = drawn.iter().filter(|r| key(r) >= 1000).count();
        assert!((1_300..1_700).contains(&misses), "{misses}");
        assert_ne!(drawn, draw(1));
        assert_eq!(drawn, draw(0));
    }

    #[test]
    fn sequential_keys_are_dealt_out_among_threads() {
        let workload = Workload {
            keys: 6,
            ..Workload::default()
        };
        let keys = |thread| -> Vec<u64> {
            let mut requests = Requests::new(&workload, 0, thread, 2);
            (0..4).map(|_| key(&requests.draw().unwrap())).collect()
        };
        assert_eq!((keys(0), keys(1)), (vec![0, 2, 4, 0], vec![1, 3, 5, 1]));
    }
}
