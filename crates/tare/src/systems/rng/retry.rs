//! The retries for a number, as options of the command line.

use std::time::Duration;

use tare_rdrand::source::{Halves, RdrandInstruction};
use tare_rdrand::{Error, Generator, Instruction, Rdrand, Rdseed, RetryLimit, Seeder};

/// The options that limit the retries for a number.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(crate) struct Retry {
    /// Attempts per number before giving up [default: 10 for RDRAND; 1024, then 50 ms, for RDSEED]
    #[arg(long, value_name = "ATTEMPTS", value_parser = clap::value_parser!(u32).range(1..))]
    retry_limit: Option<u32>,
    /// Seconds to keep retrying after those attempts, multiplied by the number of waiting threads
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    retry_time: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    super::seconds(text, 3600.0)
}

impl Retry {
    /// For measurements: where other programs draw as well, it is busy and not broken.
    pub(crate) const PATIENT: Retry = Retry {
        retry_limit: None,
        retry_time: Some(Duration::from_secs(10)),
    };

    /// An explicit number of attempts is kept as given, an explicit time comes after the attempts.
    fn of(self, instruction: Instruction) -> RetryLimit {
        let attempts = self
            .retry_limit
            .map_or(RetryLimit::of(instruction), RetryLimit::new);
        self.retry_time
            .map_or(attempts, |time| attempts.with_time(time))
    }

    pub(crate) fn rdrand(self) -> Result<Rdrand, Error> {
        Rdrand::with_retry_limit(self.of(Instruction::Rdrand))
    }

    /// RDRAND as a 32-bit processor has it.
    pub(crate) fn rdrand_of_32(self) -> Result<Generator<Halves<RdrandInstruction>>, Error> {
        let mut generator = Generator::with_source(Halves(RdrandInstruction::detect()?))?;
        generator.set_retry_limit(self.of(Instruction::Rdrand));
        Ok(generator)
    }

    pub(crate) fn rdseed(self) -> Result<Rdseed, Error> {
        Rdseed::with_retry_limit(self.of(Instruction::Rdseed))
    }

    pub(crate) fn seeder(self) -> Result<Seeder, Error> {
        Seeder::with_retry_limit(self.of(Instruction::Rdseed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_kept_and_the_rest_is_the_librarys() {
        let time = Duration::from_secs(3);
        let retry = |retry_limit, retry_time| {
            Retry {
                retry_limit,
                retry_time,
            }
            .of(Instruction::Rdseed)
        };
        assert_eq!(retry(None, None), RetryLimit::RDSEED);
        assert_eq!(retry(Some(5), None), RetryLimit::new(5));
        assert_eq!(retry(None, Some(time)), RetryLimit::RDSEED.with_time(time));
        assert_eq!(
            retry(Some(5), Some(time)),
            RetryLimit::new(5).with_time(time)
        );
    }
}
