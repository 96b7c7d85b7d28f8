//! The drivers of this program as typed values, and the adapter to the lab's [`Driver`].

use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;

use tare_lab::driver::{Driver, Expected, Invocation, Missing, Mistake, Vocabulary};
use tare_lab::figures::{CounterDefinition, Figures, MetricDefinition};
use tare_lab::parameters::ParameterSet;
use tare_lab::value::{Parameters, Value, BESIDE};

use crate::machine::Machine;
use crate::trial::{ProtocolWriter, TrialError};

/// Time that a trial may take beyond what its parameters ask for: a slow machine's start-up.
const SLACK: Duration = Duration::from_secs(30);

/// What a trial takes to start and to end, about.
const START: Duration = Duration::from_millis(10);

/// A workload that experiments can name.
pub(crate) trait Workload: 'static {
    /// The name that experiments use.
    const NAME: &'static str;
    /// One line for people.
    const ABOUT: &'static str;
    /// Whether equal parameters always give equal figures: the time in the trials is virtual.
    const DETERMINISTIC: bool = false;
    /// What a cell is run with.
    type Parameters: ParameterSet;
    /// What a trial gives.
    type Figures: Figures;

    /// The references that `beside` may name.
    fn references() -> Option<References> {
        None
    }

    /// Looks whether the parameters make sense together, on any machine.
    ///
    /// # Errors
    /// The first parameter that is wrong.
    fn examine(_: &Self::Parameters) -> Result<(), Mistake> {
        Ok(())
    }

    /// Looks whether a machine can run the cell.
    ///
    /// # Errors
    /// What is missing, and the command that would change it.
    fn check(_: &Self::Parameters, _: &Machine) -> Result<(), Missing> {
        Ok(())
    }

    /// How long a trial is expected to take; `None` if that is unknown.
    fn expected(_: &Self::Parameters) -> Option<Expected>;

    /// How long a trial may take on a slow machine, start-up not counted.
    fn longest(parameters: &Self::Parameters) -> Duration {
        Self::expected(parameters).map_or(Duration::ZERO, |expected| expected.clock)
    }

    /// Changes the process that the lab would start for a trial: this program.
    fn invocation(_: &Self::Parameters, own_trial: Invocation) -> Invocation {
        own_trial
    }

    /// Runs one trial. `writer` is told when the warm-up is over.
    fn run(
        parameters: Self::Parameters,
        writer: &mut ProtocolWriter,
    ) -> Result<Self::Figures, TrialError>;
}

/// The cells that may run beside a matrix: values of one parameter, with the other parameters as
/// the experiment fixes them.
pub(crate) struct References {
    /// The parameter.
    pub(crate) parameter: &'static str,
    /// Its values.
    pub(crate) names: Vec<&'static str>,
}

/// Everything that an experiment may say to a driver, for people.
pub(crate) struct Description {
    pub(crate) vocabulary: Vocabulary,
    pub(crate) metrics: Vec<MetricDefinition>,
    pub(crate) counters: Vec<CounterDefinition>,
    pub(crate) references: Option<References>,
}

/// A driver of this program, whatever its parameters and figures.
pub(crate) trait OwnDriver: Driver {
    /// Describes it.
    fn description(&self) -> Description;

    /// Runs one trial and reports its figures.
    fn run_trial(
        &self,
        parameters: &Parameters,
        writer: &mut ProtocolWriter,
    ) -> Result<(), TrialError>;
}

/// A [`Workload`] as a driver for one machine.
pub(crate) struct On<W> {
    machine: Machine,
    workload: PhantomData<fn() -> W>,
}

impl<W: Workload> On<W> {
    /// The driver for this machine.
    pub(crate) fn new(machine: Machine) -> On<W> {
        On {
            machine,
            workload: PhantomData,
        }
    }

    /// Reads the parameters of a cell; a cell beside the matrix names a value of one of them.
    fn parse(parameters: &Parameters) -> Result<W::Parameters, Mistake> {
        let mut parameters = parameters.clone();
        if let Some(references) = W::references() {
            if let Some(name) = parameters.remove(BESIDE) {
                let is_known = |name: &str| references.names.contains(&name);
                if !name.as_str().is_some_and(is_known) {
                    return Err(Mistake {
                        parameter: BESIDE.into(),
                        found: name.to_string(),
                        expected: format!("one of {}", references.names.join(", ")),
                    });
                }
                parameters.insert(references.parameter.into(), name);
            }
        }
        W::Parameters::read(&parameters)
    }

    /// Reads the parameters of a cell and examines them.
    fn read(parameters: &Parameters) -> Result<W::Parameters, Mistake> {
        let parameters = Self::parse(parameters)?;
        W::examine(&parameters)?;
        Ok(parameters)
    }
}

impl<W: Workload> Driver for On<W> {
    fn vocabulary(&self) -> Vocabulary {
        let references = W::references().map_or_else(Vec::new, |references| references.names);
        Vocabulary {
            name: W::NAME.into(),
            about: W::ABOUT.into(),
            parameters: W::Parameters::definitions(),
            peers: references.into_iter().map(str::to_owned).collect(),
            open: W::Parameters::OPEN,
            deterministic: W::DETERMINISTIC,
            ..Vocabulary::default()
        }
        .with_figures::<W::Figures>()
    }

    fn examine(&self, parameters: &Parameters) -> Result<(), Mistake> {
        Self::read(parameters).map(drop)
    }

    fn check(&self, parameters: &Parameters) -> Result<(), Missing> {
        let parameters = Self::read(parameters).map_err(|mistake| Missing {
            reason: mistake.to_string(),
            remedy: None,
        })?;
        W::check(&parameters, &self.machine)
    }

    fn invocation(&self, parameters: &Parameters) -> Invocation {
        let own_trial = own_trial(W::NAME, parameters);
        match Self::parse(parameters) {
            Ok(parameters) => {
                let own_trial = Invocation {
                    limit: W::longest(&parameters) + SLACK,
                    expected: W::expected(&parameters),
                    ..own_trial
                };
                W::invocation(&parameters, own_trial)
            }
            // The trial finds the same mistake and reports it.
            Err(_) => own_trial,
        }
    }
}

impl<W: Workload> OwnDriver for On<W> {
    fn description(&self) -> Description {
        Description {
            vocabulary: self.vocabulary(),
            metrics: W::Figures::metrics(),
            counters: W::Figures::counters(),
            references: W::references(),
        }
    }

    fn run_trial(
        &self,
        parameters: &Parameters,
        writer: &mut ProtocolWriter,
    ) -> Result<(), TrialError> {
        let figures = W::run(Self::read(parameters)?, writer)?;
        writer.figures(&figures)?;
        Ok(())
    }
}

/// What a trial is expected to take whose measured part ends by the clock.
pub(crate) fn by_the_clock(measured: Duration) -> Expected {
    Expected {
        clock: measured,
        work: START,
    }
}

/// This program as a trial of `driver`.
fn own_trial(driver: &str, parameters: &Parameters) -> Invocation {
    Invocation {
        // The file that is running, even when another has taken its place meanwhile.
        program: PathBuf::from("/proc/self/exe"),
        arguments: vec![
            "trial".into(),
            driver.into(),
            serde_json::to_string(parameters)
                .expect("parameters are plain data")
                .into(),
        ],
        speaks_protocol: true,
        limit: SLACK,
        ..Invocation::default()
    }
}

/// A mistake in a value of one parameter.
pub(crate) fn mistake(parameter: &str, found: impl Into<Value>, expected: &str) -> Mistake {
    let found = match found.into() {
        Value::Text(text) => format!("{text:?}"),
        other => other.to_string(),
    };
    Mistake {
        parameter: parameter.into(),
        found,
        expected: expected.into(),
    }
}
