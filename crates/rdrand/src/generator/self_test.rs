//! The start-up self-test; [`health`](crate::health) lists what it finds and what it does not.

use super::{draw, Dry, Generator, Stop};
use crate::error::{Error, HealthFailure};
use crate::processor::{Instruction, KnownIssue};
use crate::source::Source;

/// The number of 64-bit values that the start-up self-test draws and discards (SP 800-90B, 4.3: at
/// least 1024).
pub const SELF_TEST_DRAWS: usize = 1024;

impl<S: Source> Generator<S> {
    /// Draws and discards the values of the self-test and leaves the continuous tests running.
    pub(super) fn self_test(&mut self, known: Option<KnownIssue>) -> Result<(), Error> {
        let instruction = S::INSTRUCTION;
        let mut values = [0; SELF_TEST_DRAWS];
        let drawn = values.iter_mut().try_for_each(|value| {
            *value = draw(
                &mut self.source,
                &mut self.values64,
                &mut self.underflows,
                self.limit,
            )?;
            Ok(())
        });
        match drawn.and_then(|()| look(&mut values).map_err(Stop::Sick)) {
            Ok(()) => Ok(()),
            Err(Stop::Dry(Dry { attempts, waited })) => Err(Error::Underflow {
                instruction,
                attempts,
                waited,
                written: 0,
            }),
            Err(Stop::Sick(failure)) => Err(Error::SelfTest {
                instruction,
                failure,
                known: known.filter(|issue| explains(*issue, instruction, &failure)),
            }),
        }
    }
}

/// Returns true if this failure is what that defect causes.
fn explains(issue: KnownIssue, instruction: Instruction, failure: &HealthFailure) -> bool {
    let stuck_at = |stuck: u64| match failure {
        HealthFailure::Repetition { value, .. } | HealthFailure::Duplicate { value, .. } => {
            *value == stuck
        }
        _ => false,
    };
    match issue {
        KnownIssue::AmdAllOnesAfterSuspend | KnownIssue::AmdZen2AllOnes => stuck_at(u64::MAX),
        KnownIssue::AmdZen5NarrowRdseed => instruction == Instruction::Rdseed && stuck_at(0),
    }
}

/// Tests what only all values together show; sorts them.
fn look(values: &mut [u64]) -> Result<(), HealthFailure> {
    let ones = values.iter().fold(0, |all, value| all | value);
    let zeros = values.iter().fold(0, |all, value| all | !value);
    if ones & zeros != u64::MAX {
        return Err(HealthFailure::StuckBits {
            mask: !(ones & zeros),
        });
    }
    values.sort_unstable();
    match values.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(HealthFailure::Duplicate {
            value: pair[0],
            draws: values.len() as u32,
        }),
        None => Ok(()),
    }
}
