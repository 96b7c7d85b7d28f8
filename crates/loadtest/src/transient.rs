//! Traffic patterns: one trial after another at changing rates.

use crate::Rate;

/// A pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// From one step to the peak.
    RampUp,
    /// From the peak to one step.
    RampDown,
    /// Up, then down; the peak comes twice.
    RampUpDown,
    /// The peak, so many times.
    Constant(u32),
    /// These rates.
    Steps(Vec<Rate>),
}

impl Program {
    /// The rates of the trials, in steps of `step` up to `peak`. The last step up may be shorter.
    ///
    /// # Panics
    /// On a step of zero.
    pub fn rates(&self, peak: Rate, step: Rate) -> Vec<Rate> {
        assert!(step.bits() > 0, "a step of zero");
        let up = || {
            let steps = peak.bits().div_ceil(step.bits());
            (1..=steps)
                .map(move |n| Rate::from_bits(n.saturating_mul(step.bits()).min(peak.bits())))
        };
        match self {
            Program::RampUp => up().collect(),
            Program::RampDown => up().rev().collect(),
            Program::RampUpDown => up().chain(up().rev()).collect(),
            Program::Constant(times) => vec![peak; *times as usize],
            Program::Steps(rates) => rates.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_rise_and_fall_in_steps_and_do_not_exceed_the_peak() {
        let rates = |program: Program| -> Vec<u64> {
            let rates = program.rates(Rate::from_bits(10), Rate::from_bits(4));
            rates.into_iter().map(Rate::bits).collect()
        };
        assert_eq!(rates(Program::RampUp), [4, 8, 10]);
        assert_eq!(rates(Program::RampDown), [10, 8, 4]);
        assert_eq!(rates(Program::RampUpDown), [4, 8, 10, 10, 8, 4]);
        assert_eq!(rates(Program::Constant(2)), [10, 10]);
        assert_eq!(rates(Program::Steps(vec![Rate::from_bits(7)])), [7]);
    }
}
