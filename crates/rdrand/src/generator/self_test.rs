//! The start-up self-test; what it finds and what not stands in [`health`](crate::health).

use super::{draw, Dry, Generator, Stop};
use crate::error::{Error, HealthFailure};
use crate::processor::KnownIssue;
use crate::source::Source;

/// 64-bit values that the start-up self-test draws and throws away (SP 800-90B, 4.3: at
/// least 1024).
pub const SELF_TEST_DRAWS: usize = 1024;

impl<S: Source> Generator<S> {
    /// Draws what the self-test needs, throws it away, and leaves the continuous tests running.
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
                known: known.filter(|issue| issue.explains(instruction, &failure)),
            }),
        }
    }
}

/// What only all values together show; sorts them.
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
