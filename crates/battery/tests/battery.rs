//! The battery as an instrument: what it finds, from which length on, and how often it is wrong.
//! Every stream comes from a seed, so every figure here is the same on every machine.

use std::iter;

use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};

use tare_battery::special::binomial_upper;
use tare_battery::{Battery, Config, Outcome, Report, Verdict, BYTES_MIN};

/// A debug build is some thirty times slower: it sees fewer streams.
const fn scaled(release: usize, debug: usize) -> usize {
    if cfg!(debug_assertions) {
        debug
    } else {
        release
    }
}

fn judge(stream: &[u8], alpha: f64) -> Report {
    let mut battery = Battery::new(Config::default().with_family_alpha(alpha));
    battery.update(stream);
    battery.finish()
}

fn good(seed: u64, bytes: usize) -> Vec<u8> {
    let mut stream = vec![0; bytes];
    ChaCha20Rng::seed_from_u64(seed).fill_bytes(&mut stream);
    stream
}

fn describe(report: &Report) -> String {
    let line = |o: &Outcome| {
        let (value, p) = (o.value.unwrap_or(f64::NAN), o.p_value.unwrap_or(f64::NAN));
        format!(
            "{:9} {:32} {:>12.4} p {p:.2e} ({})\n",
            o.verdict.as_str(),
            o.test,
            value,
            o.note
        )
    };
    report.outcomes.iter().map(line).collect()
}

/// Bits that are one with probability `ones`.
fn biased(seed: u64, ones: f64, bytes: usize) -> Vec<u8> {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    let threshold = (ones * 65_536.0) as u64;
    let mut bit = || {
        let bits = rng.next_u64();
        (0..4)
            .map(|i| u8::from(bits >> (16 * i) & 0xFFFF < threshold))
            .fold(0, |a, b| a << 1 | b)
    };
    (0..bytes).map(|_| bit() << 4 | bit()).collect()
}

fn words(count: usize, word: impl FnMut() -> u64) -> Vec<u8> {
    iter::repeat_with(word)
        .take(count)
        .flat_map(u64::to_le_bytes)
        .collect()
}

/// Every generator that must fail, with the shortest length, in bytes, from which it is to.
fn bad_streams() -> Vec<(String, Vec<u8>)> {
    const KIB: usize = 1024;
    let mut bad: Vec<(String, Vec<u8>)> = Vec::new();
    let mut add = |name: &str, stream: Vec<u8>| bad.push((name.to_string(), stream));

    add("zeros", vec![0; 4 * KIB]);
    add("ones", vec![255; 4 * KIB]);
    add("constant byte", vec![0xA5; 4 * KIB]);
    let start = 0x0123_4567_89AB_CDEFu64;
    let count = |i: u64| start.wrapping_add(i);
    add("8-bit counter", (0..16 * KIB).map(|i| i as u8).collect());
    add(
        "16-bit LE",
        (0..8 * KIB as u64)
            .flat_map(|i| (count(i) as u16).to_le_bytes())
            .collect(),
    );
    add(
        "16-bit BE",
        (0..8 * KIB as u64)
            .flat_map(|i| (count(i) as u16).to_be_bytes())
            .collect(),
    );
    add(
        "32-bit LE",
        (0..4 * KIB as u64)
            .flat_map(|i| (count(i) as u32).to_le_bytes())
            .collect(),
    );
    add(
        "32-bit BE",
        (0..4 * KIB as u64)
            .flat_map(|i| (count(i) as u32).to_be_bytes())
            .collect(),
    );
    add(
        "64-bit LE",
        (0..2 * KIB as u64)
            .flat_map(|i| count(i).to_le_bytes())
            .collect(),
    );
    add(
        "64-bit BE",
        (0..2 * KIB as u64)
            .flat_map(|i| count(i).to_be_bytes())
            .collect(),
    );
    // A Weyl sequence looks random word by word; only its stride betrays it.
    let mut weyl = 1u64;
    add(
        "Weyl sequence",
        words(2 * KIB, || {
            weyl = weyl.wrapping_add(0xD1B5_4A32_D192_ED03);
            weyl
        }),
    );
    // A period that is no multiple of a word, and ones up to 1 MiB.
    for period in [16, 100, 4095, 65_536, 1_000_003, 1024 * KIB] {
        let block = good(period as u64, period);
        let length = (2 * period).max(4 * KIB);
        add(
            &format!("block of {period} bytes"),
            block.into_iter().cycle().take(length).collect(),
        );
    }
    for (name, shift) in [("low byte", 0), ("second byte", 8)] {
        let mut x = 42u64;
        let mut next = || {
            x = x
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (x >> shift) as u8
        };
        add(
            &format!("LCG, {name}"),
            (0..256 * KIB).map(|_| next()).collect(),
        );
    }
    let mut x = 42u64;
    add(
        "LCG, whole words",
        words(8 * KIB, || {
            x = x
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            x
        }),
    );
    // xorshift64 (Marsaglia 2003): linear, 64 bits of state.
    let mut x = 42u64;
    add(
        "xorshift64",
        words(128 * KIB, || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        }),
    );
    let mut stream = good(1, 64 * KIB);
    let mut rng = ChaCha20Rng::seed_from_u64(2);
    for block in stream.chunks_mut(16) {
        if rng.next_u32() % 100 < 64 {
            block.fill(0);
        }
    }
    add("64 % zero blocks", stream);
    let mut stream = good(3, 64 * KIB);
    stream[40_000..40_008].fill(0);
    add("one zero word", stream);
    for bit in [0, 17, 63] {
        let mut rng = ChaCha20Rng::seed_from_u64(bit);
        add(
            &format!("bit {bit} stuck"),
            words(4 * KIB, || rng.next_u64() | 1 << bit),
        );
    }
    let text = "All happy families are alike; each unhappy family is unhappy in its own way. ";
    add("text", text.bytes().cycle().take(4 * KIB).collect());
    let mut rng = ChaCha20Rng::seed_from_u64(9);
    add(
        "letters",
        (0..4 * KIB)
            .map(|_| b'a' + (rng.next_u32() % 26) as u8)
            .collect(),
    );
    add(
        "hexadecimal",
        good(10, 2 * KIB)
            .iter()
            .flat_map(|b| format!("{b:02x}").into_bytes())
            .collect(),
    );
    bad
}

#[test]
fn every_bad_generator_fails_at_its_stated_length() {
    for (name, stream) in bad_streams() {
        let report = judge(&stream, 1e-6);
        let found: Vec<_> = report
            .failures()
            .map(|outcome| outcome.test.as_str())
            .collect();
        eprintln!("{name}, {} bytes: {found:?}", stream.len());
        assert_eq!(
            report.verdict,
            Verdict::Fail,
            "{name}\n{}",
            describe(&report)
        );
    }
}

#[test]
fn a_bit_biased_to_51_percent_is_found_in_20_kilobytes_99_times_in_100() {
    let streams = scaled(400, 30);
    let fails = |seed: u64| judge(&biased(seed, 0.51, 20_480), 1e-6).verdict == Verdict::Fail;
    let found = (0..streams as u64).filter(|&seed| fails(seed)).count();
    eprintln!("{found} of {streams} found");
    assert!(found * 100 >= streams * 98, "{found} of {streams}");
}

/// At a family-wise rate of 5 % the alarms of an ideal source are binomial with at most 5 %.
#[test]
fn false_alarms_stay_within_the_stated_rate() {
    let streams = scaled(1000, 40);
    let alarms = (0..streams as u64)
        .filter(|&seed| judge(&good(seed, BYTES_MIN as usize), 0.05).verdict == Verdict::Fail)
        .count();
    eprintln!("{alarms} of {streams} at 5 %");
    let chance = binomial_upper(alarms as u64, streams as u64, 0.05);
    assert!(chance > 1e-3, "{alarms} of {streams}: p {chance:e}");
}

#[test]
fn a_good_stream_passes_at_the_default_rate() {
    for seed in 0..scaled(20, 2) as u64 {
        let report = judge(&good(seed, 2 * BYTES_MIN as usize), 1e-6);
        assert_eq!(
            report.verdict,
            Verdict::Pass,
            "seed {seed}\n{}",
            describe(&report)
        );
    }
}

/// D⁺ and D⁻ of Kolmogorov and Smirnov against the uniform distribution.
fn kolmogorov_smirnov(ps: &mut [f64]) -> (f64, f64) {
    ps.sort_by(f64::total_cmp);
    let n = ps.len() as f64;
    ps.iter()
        .enumerate()
        .fold((0.0, 0.0), |(above, below), (i, &p)| {
            (
                f64::max(above, (i + 1) as f64 / n - p),
                f64::max(below, p - i as f64 / n),
            )
        })
}

/// p-values of continuous statistics are uniform; those of small counts may only be too large.
#[test]
fn p_values_of_a_good_source_are_uniform() {
    let streams = scaled(1000, 40);
    let reports: Vec<Report> = (0..streams as u64)
        .map(|seed| judge(&good(1_000_000 + seed, BYTES_MIN as usize), 1e-6))
        .collect();
    // P(D√n ≥ 2.3) is about 2 exp(−2 · 2.3²) = 5e-5; there are about thirty tests.
    let limit = 2.3 / (streams as f64).sqrt();
    for (i, outcome) in reports[0].outcomes.iter().enumerate() {
        let mut ps: Vec<f64> = reports
            .iter()
            .map(|r| r.outcomes[i].p_value.expect("long enough"))
            .collect();
        let (above, below) = kolmogorov_smirnov(&mut ps);
        eprintln!(
            "{:32} D+ {above:.4} D- {below:.4} (limit {limit:.4})",
            outcome.test
        );
        assert!(
            above < limit,
            "{}: p-values are too small, D+ {above}",
            outcome.test
        );
        let counts = [
            "longest run",
            "largest count",
            "count",
            "duplicates",
            "rank ≤ 62",
            "failed blocks",
            "sum of deficiencies",
        ];
        let discrete = counts.contains(&outcome.statistic.as_str());
        assert!(
            discrete || below < limit,
            "{}: p-values are too large, D- {below}",
            outcome.test
        );
    }
}

#[test]
fn a_stream_that_is_too_short_is_reported_so_and_never_passes() {
    for bytes in [
        0,
        1,
        7,
        100,
        4095,
        4096,
        16_383,
        100_000,
        BYTES_MIN as usize - 1,
    ] {
        let report = judge(&good(5, bytes), 1e-6);
        assert_eq!(
            report.verdict,
            Verdict::TooShort,
            "{bytes} bytes\n{}",
            describe(&report)
        );
        assert!(report.too_short().all(|outcome| outcome.p_value.is_none()));
        assert!(report
            .outcomes
            .iter()
            .all(|o| (o.bytes_min > bytes as u64) == o.p_value.is_none()));
    }
    let most = judge(&[], 1e-6)
        .outcomes
        .iter()
        .map(|outcome| outcome.bytes_min)
        .max();
    assert_eq!(most, Some(BYTES_MIN));
}

#[test]
fn the_report_does_not_depend_on_how_the_stream_was_chunked() {
    let stream = good(6, 300_001);
    let whole = judge(&stream, 1e-6);
    for chunk in [1, 13, 4096, 65_537] {
        let mut battery = Battery::new(Config::default());
        stream.chunks(chunk).for_each(|piece| battery.update(piece));
        assert_eq!(battery.bytes(), 300_001);
        assert_eq!(battery.finish(), whole);
    }
}
