//! A diagnosis of the random number instructions, for `tare doctor`.

use std::fmt::Write as _;
use std::time::Instant;

use serde::Serialize;
use tare_lab::fingerprint::Machine;
use tare_rdrand::processor::{self, Processor, RDSEED_SWITCH};
use tare_rdrand::{Counts, Error, Instruction, KnownIssue, Rdrand, Rdseed};

/// The state of one instruction.
#[derive(Serialize)]
pub(crate) struct Diagnosis {
    instruction: &'static str,
    /// CPUID reports it.
    in_cpuid: bool,
    /// The kernel hides it though CPUID reports it; absent where the kernel lists no features.
    hidden_by_kernel: Option<bool>,
    /// The user has switched it off.
    switched_off: bool,
    /// The result of drawing from it and of the start-up self-test.
    self_test: SelfTest,
    /// A published defect of this processor.
    known_issue: Option<String>,
}

#[derive(Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
enum SelfTest {
    Passed {
        draws: u64,
        underflows: u64,
        milliseconds: f64,
    },
    Failed {
        reason: String,
    },
}

/// Draws from both instructions and runs their self-tests.
pub(crate) fn diagnose(machine: &Machine) -> Vec<Diagnosis> {
    let rdrand = || Rdrand::new().map(|generator| generator.counts());
    let rdseed = || Rdseed::new().map(|generator| generator.counts());
    vec![
        of(Instruction::Rdrand, "RDRAND", "rdrand", machine, rdrand),
        of(Instruction::Rdseed, "RDSEED", "rdseed", machine, rdseed),
    ]
}

fn of(
    instruction: Instruction,
    name: &'static str,
    flag: &str,
    machine: &Machine,
    draw: impl FnOnce() -> Result<Counts, Error>,
) -> Diagnosis {
    let in_cpuid = processor::in_cpuid(instruction);
    let flags = &machine.cpu_flags;
    let listed = (!flags.is_empty()).then(|| flags.iter().any(|listed| listed == flag));
    let issue = Processor::current().and_then(|processor| processor.known_issue());
    let is_of_both = !matches!(issue, Some(KnownIssue::AmdZen5NarrowRdseed));
    let from = Instant::now();
    Diagnosis {
        instruction: name,
        in_cpuid,
        hidden_by_kernel: listed.map(|listed| in_cpuid && !listed),
        switched_off: processor::switched_off(instruction),
        self_test: match draw() {
            Ok(counts) => SelfTest::Passed {
                draws: counts.draws,
                underflows: counts.underflows,
                milliseconds: from.elapsed().as_secs_f64() * 1000.0,
            },
            Err(error) => SelfTest::Failed {
                reason: error.to_string(),
            },
        },
        known_issue: issue
            .filter(|_| is_of_both || instruction == Instruction::Rdseed)
            .map(|issue| issue.to_string()),
    }
}

/// The section of the report.
pub(crate) fn in_words(all: &[Diagnosis]) -> String {
    let mut text = String::from("Random numbers\n");
    for one in all {
        let name = one.instruction;
        let _ = match &one.self_test {
            _ if one.switched_off => {
                writeln!(
                    text,
                    "  ! {name} is switched off by {RDSEED_SWITCH} in the environment"
                )
            }
            SelfTest::Passed {
                draws,
                underflows,
                milliseconds,
            } => writeln!(
                text,
                "  ✓ {name} passed its self-test: {draws} numbers in {milliseconds:.2} ms, \
                 {underflows} attempts without data"
            ),
            SelfTest::Failed { reason } => writeln!(text, "  ! {name}: {reason}"),
        };
        for line in remarks(one) {
            let _ = writeln!(text, "      {line}");
        }
    }
    text
}

fn remarks(one: &Diagnosis) -> Vec<String> {
    let name = one.instruction;
    let known = one
        .known_issue
        .as_ref()
        .map(|issue| format!("known of this processor: {issue}"));
    if one.hidden_by_kernel != Some(true) {
        return known.into_iter().collect();
    }
    let mut remarks = vec![format!(
        "the kernel hides {name}, which CPUID still reports: for a defect, or by a boot option"
    )];
    remarks.extend(known);
    if name == "RDSEED" {
        remarks.push(
            "the defect of AMD Zen 5 (AMD-SB-7055) is one of the 16- and 32-bit forms; the 64-bit \
             form, the only one used here, is sound"
                .to_owned(),
        );
        remarks.push(format!(
            "to do without RDSEED: {RDSEED_SWITCH}=off in the environment"
        ));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(flags: &[&str]) -> Machine {
        Machine {
            cpu_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            ..Machine::default()
        }
    }

    #[test]
    fn what_the_kernel_hides_is_said_with_the_switch_to_do_without_it() {
        for (flags, hidden) in [
            (&["aes", "rdseed"][..], Some(false)),
            (&["aes"], Some(processor::in_cpuid(Instruction::Rdseed))),
            (&[], None),
        ] {
            let all = diagnose(&machine(flags));
            let rdseed = &all[1];
            assert_eq!(rdseed.hidden_by_kernel, hidden, "{flags:?}");
            let text = in_words(&all);
            assert_eq!(
                text.contains("the kernel hides RDSEED")
                    && text.contains("AMD-SB-7055")
                    && text.contains("TARE_RDSEED=off"),
                hidden == Some(true),
                "{text}"
            );
        }
    }

    #[test]
    fn an_instruction_that_fails_its_self_test_is_not_fine_though_cpuid_reports_it() {
        let stuck = || {
            use tare_rdrand::scripted::ScriptedRdrand;
            let generator = tare_rdrand::Generator::with_source(ScriptedRdrand::stuck(u64::MAX));
            generator.map(|generator| generator.counts())
        };
        let found = of(
            Instruction::Rdrand,
            "RDRAND",
            "rdrand",
            &machine(&[]),
            stuck,
        );
        let text = in_words(&[found]);
        assert!(
            text.contains("! RDRAND: RDRAND failed its start-up self-test"),
            "{text}"
        );
        assert!(!text.contains('✓'));
    }
}
