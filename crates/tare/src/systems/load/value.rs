//! Values of options.

use std::time::Duration;

use anyhow::{ensure, Context as _};
use tare_load::{KeyPattern, ValueLen, RATES, VALUE_LEN_MAX};

/// The parts of `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
pub(super) fn host_and_port(text: &str, default: u16) -> anyhow::Result<(&str, u16)> {
    let expected = || format!("found {text:?}, expected HOST or HOST:PORT");
    let (host, rest) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').with_context(expected)?,
        None => text.split_at(text.rfind(':').unwrap_or(text.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => port
            .parse()
            .ok()
            .filter(|&port| port > 0)
            .with_context(expected)?,
        None => default,
    };
    let is_whole = rest.is_empty() || rest.starts_with(':');
    ensure!(is_whole && !host.is_empty(), expected());
    Ok((host, port))
}

pub(super) fn field(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("found {text:?}, expected NAME: VALUE"))?;
    Ok((name.trim().into(), value.trim().into()))
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.filter(|seconds: &f64| (0.0..=86_400.0).contains(seconds));
    let expected = || format!("found {text:?}, expected seconds from 0 to 86400");
    seconds.map(Duration::from_secs_f64).ok_or_else(expected)
}

/// A number with k, M or G behind it, or none.
fn scaled(text: &str) -> Option<f64> {
    let (number, scale) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 1e3),
        (at, 'M') => (&text[..at], 1e6),
        (at, 'G') => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    Some(number.parse::<f64>().ok()? * scale)
}

pub(super) fn rate(text: &str) -> Result<f64, String> {
    let rate = scaled(text).filter(|rate| RATES.contains(rate));
    rate.ok_or_else(|| format!("found {text:?}, expected requests per second from 0.001 to 1e9"))
}

pub(super) fn count(text: &str) -> Result<u64, String> {
    let count = scaled(text).filter(|count| (1.0..=1e12).contains(count) && count.fract() == 0.0);
    let expected = || format!("found {text:?}, expected a number from 1 to 1e12, such as 100k");
    count.map(|count| count as u64).ok_or_else(expected)
}

pub(super) fn share(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("found {text:?}, expected a share from 0 to 1"))
}

/// The share of writes.
pub(super) fn ratio(text: &str) -> Result<f64, String> {
    let parts = text.split_once(':').and_then(|(set, get)| {
        let (set, get): (u32, u32) = (set.parse().ok()?, get.parse().ok()?);
        let total = f64::from(set) + f64::from(get);
        (total > 0.0).then(|| f64::from(set) / total)
    });
    parts.ok_or_else(|| format!("found {text:?}, expected writes and reads, such as 1:10"))
}

pub(super) fn pattern(text: &str) -> Result<KeyPattern, String> {
    let zipf = |text: &str| {
        let exponent = text.parse().ok();
        exponent.filter(|exponent: &f64| *exponent > 0.0 && *exponent <= 10.0)
    };
    match text {
        "sequential" => Some(KeyPattern::Sequential),
        "uniform" => Some(KeyPattern::Uniform),
        "zipf" => Some(KeyPattern::Zipf(0.99)),
        _ => text
            .strip_prefix("zipf:")
            .and_then(zipf)
            .map(KeyPattern::Zipf),
    }
    .ok_or_else(|| {
        format!(
            "found {text:?}, expected sequential, uniform, zipf, or zipf:EXPONENT with an exponent \
             above 0 up to 10"
        )
    })
}

/// The length of values.
pub(super) fn value_len(text: &str) -> Result<ValueLen, String> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let len = |text| number(text).filter(|&len| len <= VALUE_LEN_MAX);
    let read = || {
        if text.contains(':') {
            let pairs = text.split(',').map(|pair| {
                let (bytes, weight) = pair.split_once(':')?;
                Some((len(bytes)?, number(weight)?))
            });
            let pairs: Vec<(u32, u32)> = pairs.collect::<Option<_>>()?;
            let total: u64 = pairs.iter().map(|&(_, weight)| u64::from(weight)).sum();
            return (total > 0).then_some(ValueLen::Weighted(pairs));
        }
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        let (least, most) = (len(least)?, len(most)?);
        (least <= most).then_some(ValueLen::Range(least, most))
    };
    read().ok_or_else(|| {
        format!(
            "found {text:?}, expected bytes up to {VALUE_LEN_MAX} (\"32\"), a range (\"32-1024\"), \
             or lengths with weights (\"32:9,1024:1\")"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_a_host_and_a_port() {
        for (text, host, port) in [
            ("a", "a", 7),
            ("a:1", "a", 1),
            ("127.0.0.1:80", "127.0.0.1", 80),
            ("[::1]", "::1", 7),
            ("[::1]:8", "::1", 8),
        ] {
            assert_eq!(host_and_port(text, 7).unwrap(), (host, port));
        }
        for wrong in ["", ":1", "a:", "a:x", "a:0", "a:65536", "[::1", "[::1]8"] {
            let error = host_and_port(wrong, 7).unwrap_err().to_string();
            assert!(
                error.contains("expected HOST or HOST:PORT"),
                "{wrong}: {error}"
            );
        }
    }

    #[test]
    fn numbers_are_read_with_their_scale_and_refused_in_one_line() {
        assert_eq!(count("100k"), Ok(100_000));
        assert_eq!(rate("2.5M"), Ok(2_500_000.0));
        assert_eq!(ratio("1:3"), Ok(0.25));
        assert_eq!(share("0.5"), Ok(0.5));
        assert_eq!(pattern("zipf:1.2"), Ok(KeyPattern::Zipf(1.2)));
        assert_eq!(field("A: b:c "), Ok(("A".into(), "b:c".into())));
        assert!(count("0").is_err() && count("1.5").is_err() && count("").is_err());
        assert!(rate("0").is_err() && rate("nan").is_err() && rate("1é").is_err());
        assert!(ratio("0:0").is_err() && ratio("1").is_err() && ratio("-1:2").is_err());
        assert!(share("1.1").is_err() && seconds("-1").is_err() && seconds("inf").is_err());
        assert!(pattern("zipf:0").is_err() && pattern("x").is_err() && field("x").is_err());
    }

    #[test]
    fn lengths_of_values_are_one_a_range_or_several_with_weights() {
        assert_eq!(value_len("32"), Ok(ValueLen::Range(32, 32)));
        assert_eq!(value_len("10-20"), Ok(ValueLen::Range(10, 20)));
        let weighted = ValueLen::Weighted(vec![(1, 9), (100, 1)]);
        assert_eq!(value_len("1:9,100:1"), Ok(weighted));
        for wrong in ["", "x", "20-10", "1:0", "1:2,", "-1", "536870913", "1:2,3"] {
            let error = value_len(wrong).unwrap_err();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }
}
