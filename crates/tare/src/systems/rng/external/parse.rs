//! Parsers of each battery's output. The verdicts are the batteries' own where they have one
//! (dieharder, PractRand); rngtest and ent only count, so their counts are judged here.

use serde::Serialize;
use tare_battery::special::{binomial_upper, chi_square_two_sided};
use tare_battery::FIPS_140_FAILURE_RATE;

use super::{probability, Status};

/// The false alarm rate at which counts are judged here.
const ALPHA: f64 = 1e-6;
/// rngtest spends the first 32 bits on its continuous run test.
const FIPS_BLOCK_BITS: u64 = 20_000;

/// One line of a battery.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Finding {
    pub(crate) test: String,
    /// The p-value, if the battery prints one.
    pub(crate) p_value: Option<f64>,
    /// The text of the battery.
    pub(crate) assessment: String,
}

/// The result of a battery's output.
pub(super) struct Judged {
    pub(super) status: Status,
    pub(super) summary: String,
    pub(super) findings: Vec<Finding>,
}

/// Output that does not look as it should: never a pass.
fn unreadable(battery: &str, output: &str) -> Judged {
    let last = output
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("nothing");
    let summary = format!(
        "{battery} gave no result that can be read; its last line: {}",
        last.trim()
    );
    Judged {
        status: Status::Inconclusive,
        summary,
        findings: Vec::new(),
    }
}

/// The serial correlation that `ent` prints if all bytes are equal.
const ENT_UNDEFINED: f64 = -100_000.0;

/// `ent -t`: a line of names and a line of values, separated by commas.
pub(super) fn ent(output: &str) -> Judged {
    let mut lines = output.lines().filter(|line| line.contains(','));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return unreadable("ent", output);
    };
    let column = |name: &str| -> Option<f64> {
        let at = names.split(',').position(|found| found == name)?;
        values.split(',').nth(at)?.trim().parse().ok()
    };
    let columns = ["File-bytes", "Entropy", "Chi-square", "Serial-Correlation"].map(column);
    let [Some(bytes), Some(entropy), Some(chi_square), Some(correlation)] = columns else {
        return unreadable("ent", output);
    };
    // z of a serial correlation is nearly ρ √n.
    let z = correlation * bytes.sqrt();
    let p = chi_square_two_sided(chi_square, 255.0);
    let status = if p <= ALPHA || z.abs() > 6.0 {
        Status::Fail
    } else {
        Status::Pass
    };
    let finding = |test: &str, p_value, assessment: String| Finding {
        test: test.into(),
        p_value,
        assessment,
    };
    let correlation = match correlation {
        ENT_UNDEFINED => "undefined, as all bytes are equal".to_owned(),
        _ => correlation.to_string(),
    };
    Judged {
        status,
        summary: format!("entropy {entropy} bits per byte, chi-square {chi_square} (p {}), serial correlation {correlation}", probability(p)),
        findings: vec![
            finding("entropy", None, format!("{entropy} bits per byte")),
            finding("chi-square", Some(p), format!("{chi_square}")),
            finding("serial correlation", None, correlation),
        ],
    }
}

/// `rngtest`: lines `rngtest: FIPS 140-2 successes: 999`.
pub(super) fn rngtest(output: &str) -> Judged {
    let count = |name: &str| -> Option<u64> {
        let mut lines = output
            .lines()
            .filter_map(|line| line.strip_prefix("rngtest: "));
        lines.find_map(|line| {
            line.strip_prefix(name)?
                .strip_prefix(": ")?
                .trim()
                .parse()
                .ok()
        })
    };
    let (Some(successes), Some(failures)) =
        (count("FIPS 140-2 successes"), count("FIPS 140-2 failures"))
    else {
        return unreadable("rngtest", output);
    };
    let blocks = successes + failures;
    let parts = ["Monobit", "Poker", "Runs", "Long run", "Continuous run"];
    let findings = parts.into_iter().filter_map(|part| {
        let failed = count(&format!("FIPS 140-2(2001-10-10) {part}"))?;
        Some(Finding {
            test: part.into(),
            p_value: None,
            assessment: format!("{failed} blocks failed"),
        })
    });
    let p = binomial_upper(failures, blocks, FIPS_140_FAILURE_RATE);
    let status = match blocks {
        0 => Status::Inconclusive,
        _ if p <= ALPHA => Status::Fail,
        _ => Status::Pass,
    };
    Judged {
        status,
        summary: format!(
            "{failures} of {blocks} blocks of {FIPS_BLOCK_BITS} bits failed, {:.1} expected (p {})",
            blocks as f64 * FIPS_140_FAILURE_RATE,
            probability(p)
        ),
        findings: findings.collect(),
    }
}

/// `dieharder -D test_name -D ntuple -D tsamples -D psamples -D pvalues -D assessment -c '|'`, the
/// output of several tests one after the other.
pub(super) fn dieharder(output: &str, tests: usize) -> Judged {
    let findings: Vec<Finding> = output
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split('|').map(str::trim).collect();
            let [name, ntuple, _tsamples, _psamples, p, assessment] = fields[..] else {
                return None;
            };
            let test = if ntuple == "0" {
                name.into()
            } else {
                format!("{name}, {ntuple}")
            };
            Some(Finding {
                test,
                p_value: Some(p.parse().ok()?),
                assessment: assessment.into(),
            })
        })
        .collect();
    if findings.is_empty() && !output.contains("EOF") {
        return unreadable("dieharder", output);
    }
    let count = |word: &str| {
        findings
            .iter()
            .filter(|finding| finding.assessment == word)
            .count()
    };
    let (passed, weak, failed) = (count("PASSED"), count("WEAK"), count("FAILED"));
    let starved = output.matches("Error: EOF").count();
    let status = match (failed, findings.len()) {
        (0, 0) => Status::Inconclusive,
        (0, _) => Status::Pass,
        _ => Status::Fail,
    };
    let mut summary = format!("{passed} passed, {weak} weak, {failed} failed");
    let mut names: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.assessment == "FAILED")
        .map(|finding| finding.test.as_str())
        .collect();
    names.dedup();
    for name in names.into_iter().take(3) {
        summary.push_str(&format!("; {name}"));
    }
    if starved > 0 {
        summary.push_str(&format!("; {starved} of {tests} tests had too few bytes"));
    }
    Judged {
        status,
        summary,
        findings,
    }
}

/// PractRand's `RNG_test`: for each length a table of the unusual results.
pub(super) fn practrand(output: &str) -> Judged {
    let mut length = None;
    let mut results = 0u64;
    let mut findings = Vec::new();
    for line in output.lines() {
        if let Some(rest) = line.strip_prefix("length= ") {
            length = rest.split(" (").next().map(str::to_owned);
        } else if let Some(count) = number_before(line, " test result(s)") {
            results += count;
        } else if let Some(finding) = practrand_row(line) {
            results += 1;
            findings.push(finding);
        }
    }
    let (Some(length), true) = (length, results > 0) else {
        return unreadable("PractRand", output);
    };
    let failed = findings
        .iter()
        .filter(|finding| finding.assessment.starts_with("FAIL"))
        .count();
    let suspicious = findings
        .iter()
        .filter(|f| f.assessment.to_lowercase().contains("suspicious"))
        .count();
    let status = if failed > 0 {
        Status::Fail
    } else {
        Status::Pass
    };
    let mut summary =
        format!("{results} results up to {length}: {failed} failed, {suspicious} suspicious");
    if let Some(worst) = findings
        .iter()
        .find(|finding| finding.assessment.starts_with("FAIL"))
    {
        summary.push_str(&format!("; {}", worst.test));
    }
    Judged {
        status,
        summary,
        findings,
    }
}

/// `  BCFN(2+4,13-5,T)                  R= +11.6  p =  1.0e-4   unusual`
fn practrand_row(line: &str) -> Option<Finding> {
    let (test, rest) = line.strip_prefix("  ")?.split_once("  R=")?;
    // `p = 1.0e-4`, `p~=  1e-102`, `p =1-7.2e-16`: the number, then two blanks or the end.
    let (_, rest) = rest.split_once('=')?;
    let rest = rest.trim_start();
    let (p, assessment) = rest.split_once(' ').unwrap_or((rest, ""));
    let p_value = match p.strip_prefix("1-") {
        Some(small) => small.parse::<f64>().ok().map(|small| 1.0 - small),
        None => p.parse().ok(),
    };
    Some(Finding {
        test: test.trim().into(),
        p_value,
        assessment: assessment.trim().into(),
    })
}

/// The number that ends right before `words`.
fn number_before(line: &str, words: &str) -> Option<u64> {
    line.split_once(words)?.0.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Recorded from the programs themselves, on AES-CTR output and on streams that must fail.
    const ENT_GOOD: &str = include_str!("../testdata/ent-good.txt");
    const ENT_COUNTER: &str = include_str!("../testdata/ent-counter.txt");
    const RNGTEST_GOOD: &str = include_str!("../testdata/rngtest-good.txt");
    const RNGTEST_BAD: &str = include_str!("../testdata/rngtest-bad.txt");
    const DIEHARDER_GOOD: &str = include_str!("../testdata/dieharder-good.txt");
    const DIEHARDER_BAD: &str = include_str!("../testdata/dieharder-bad.txt");
    const PRACTRAND_GOOD: &str = include_str!("../testdata/practrand-good.txt");
    const PRACTRAND_BAD: &str = include_str!("../testdata/practrand-bad.txt");

    #[test]
    fn good_streams_pass() {
        for judged in [
            ent(ENT_GOOD),
            rngtest(RNGTEST_GOOD),
            dieharder(DIEHARDER_GOOD, 20),
            practrand(PRACTRAND_GOOD),
        ] {
            assert_eq!(judged.status, Status::Pass, "{}", judged.summary);
            assert!(!judged.findings.is_empty(), "{}", judged.summary);
        }
    }

    #[test]
    fn bad_streams_fail() {
        for judged in [
            ent(ENT_COUNTER),
            rngtest(RNGTEST_BAD),
            dieharder(DIEHARDER_BAD, 20),
            practrand(PRACTRAND_BAD),
        ] {
            assert_eq!(judged.status, Status::Fail, "{}", judged.summary);
        }
    }

    #[test]
    fn the_figures_are_those_of_the_output() {
        let judged = rngtest(RNGTEST_GOOD);
        assert!(
            judged.summary.starts_with("3 of 3199 blocks"),
            "{}",
            judged.summary
        );
        assert_eq!(judged.findings.len(), 5);

        let judged = dieharder(DIEHARDER_GOOD, 20);
        let birthdays = Finding {
            test: "diehard_birthdays".into(),
            p_value: Some(0.582_467_73),
            assessment: "PASSED".into(),
        };
        assert!(
            judged.findings.contains(&birthdays),
            "{:?}",
            judged.findings
        );

        let judged = practrand(PRACTRAND_GOOD);
        // 150 + 1 + 164 + 180 over the three lengths.
        assert!(
            judged
                .summary
                .starts_with("495 results up to 64 mebibytes: 0 failed"),
            "{}",
            judged.summary
        );
        let unusual = Finding {
            test: "BCFN(2+4,13-5,T)".into(),
            p_value: Some(1e-4),
            assessment: "unusual".into(),
        };
        assert_eq!(judged.findings, [unusual]);

        let judged = practrand(PRACTRAND_BAD);
        let row = |test: &str| judged.findings.iter().find(|finding| finding.test == test);
        assert_eq!(
            row("BRank(12):128(2)").and_then(|row| row.p_value),
            Some(1e-102)
        );
        assert_eq!(
            row("FPF-14+6/16:(2,14-5)").map(|row| row.assessment.as_str()),
            Some("VERY SUSPICIOUS")
        );
    }

    #[test]
    fn rubbish_and_silence_are_no_pass() {
        for output in [
            "",
            "Segmentation fault",
            "0,1,2\n3,4,5\n",
            "rngtest: entropy source drained\n",
        ] {
            for judged in [
                ent(output),
                rngtest(output),
                dieharder(output, 20),
                practrand(output),
            ] {
                assert_eq!(
                    judged.status,
                    Status::Inconclusive,
                    "{output:?}: {}",
                    judged.summary
                );
            }
        }
    }

    #[test]
    fn a_test_that_ran_out_of_bytes_is_counted() {
        let judged = dieharder("# stdin_input_raw(): Error: EOF\n", 20);
        assert_eq!(judged.status, Status::Inconclusive);
        assert!(
            judged.summary.contains("1 of 20 tests had too few bytes"),
            "{}",
            judged.summary
        );
        let judged = dieharder(
            &format!("{DIEHARDER_GOOD}# stdin_input_raw(): Error: EOF\n"),
            20,
        );
        assert_eq!(judged.status, Status::Pass);
    }
}
