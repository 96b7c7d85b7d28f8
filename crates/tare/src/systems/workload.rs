//! The drivers of this program as typed values, and the adapter to the lab's [`Driver`].

use std::ffi::OsString;
use std::marker::PhantomData;
use std::time::Duration;

use anyhow::anyhow;
use tare_lab::driver::{Driver, Expected, Invocation, Missing, Mistake, Role, Vocabulary};
use tare_lab::figures::{CounterDefinition, Figures, MetricDefinition};
use tare_lab::parameters::ParameterSet;
use tare_lab::value::{Parameters, Value, BESIDE};

use crate::agent::{Agent, TrialError};
use crate::machine::Machine;

/// Time that a trial may take beyond what its parameters ask for: a slow machine's start-up.
const SLACK: Duration = Duration::from_secs(30);

/// The time that a trial takes to start and to end, about.
const START: Duration = Duration::from_millis(10);

/// A workload that experiments can name.
pub(crate) trait Workload: 'static {
    /// The name that experiments use.
    const NAME: &'static str;
    /// One line for people.
    const ABOUT: &'static str;
    /// True if equal parameters always give equal figures: the time in the trials is virtual.
    const DETERMINISTIC: bool = false;
    /// The parameters of a cell.
    type Parameters: ParameterSet;
    /// The figures of a trial.
    type Figures: Figures;

    /// The references that `beside` may name.
    fn references() -> Option<References> {
        None
    }

    /// Checks whether the parameters make sense together, on any machine.
    ///
    /// # Errors
    /// The first parameter that is wrong.
    fn examine(_: &Self::Parameters) -> Result<(), Mistake> {
        Ok(())
    }

    /// Checks whether a machine can run the cell.
    ///
    /// # Errors
    /// The feature that is missing, and the command that would change that.
    fn check(_: &Self::Parameters, _: &Machine) -> Result<(), Missing> {
        Ok(())
    }

    /// The time that a trial is expected to take; `None` if that is unknown.
    fn expected(_: &Self::Parameters) -> Option<Expected>;

    /// The longest time of a trial on a slow machine, start-up not counted.
    fn longest(parameters: &Self::Parameters) -> Duration {
        Self::expected(parameters).map_or(Duration::ZERO, |expected| expected.clock)
    }

    /// The roles of a trial, each a process of its own; the first one measures.
    fn roles() -> Vec<Role> {
        vec![Role::only()]
    }

    /// Changes the process that the lab would start for a role: this program.
    fn invocation(_: &Role, _: &Self::Parameters, own_trial: Invocation) -> Invocation {
        own_trial
    }

    /// Runs one trial in the role that measures. `agent` is told when the warm-up is over.
    fn run(parameters: Self::Parameters, agent: &mut Agent) -> Result<Self::Figures, TrialError>;

    /// Serves in another role until the lab has ended the measurement.
    fn serve(role: &str, _: Self::Parameters, _: &mut Agent) -> Result<(), TrialError> {
        Err(anyhow!(
            "found the role \"{role}\", which does nothing in {}",
            Self::NAME
        )
        .into())
    }
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
    /// The values that each parameter may have, in words.
    pub(crate) expectations: Vec<String>,
    pub(crate) roles: Vec<Role>,
    pub(crate) metrics: Vec<MetricDefinition>,
    pub(crate) counters: Vec<CounterDefinition>,
    pub(crate) references: Option<References>,
}

/// A driver of this program, whatever its parameters and figures.
pub(crate) trait OwnDriver: Driver {
    /// Describes it.
    fn description(&self) -> Description;

    /// Plays a role of one trial; the role that measures reports the figures. A trial of one role
    /// names none.
    fn play(
        &self,
        role: Option<&str>,
        parameters: &Parameters,
        agent: &mut Agent,
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
            references: references.into_iter().map(str::to_owned).collect(),
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

    fn roles(&self, _: &Parameters) -> Vec<Role> {
        W::roles()
    }

    fn invocation(&self, role: &Role, parameters: &Parameters) -> Invocation {
        let own_trial = own_trial(W::NAME, role, parameters);
        match Self::parse(parameters) {
            Ok(parameters) => {
                let own_trial = Invocation {
                    limit: W::longest(&parameters) + SLACK,
                    expected: W::expected(&parameters),
                    ..own_trial
                };
                W::invocation(role, &parameters, own_trial)
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
            expectations: W::Parameters::expectations(),
            roles: W::roles(),
            metrics: W::Figures::metrics(),
            counters: W::Figures::counters(),
            references: W::references(),
        }
    }

    fn play(
        &self,
        role: Option<&str>,
        parameters: &Parameters,
        agent: &mut Agent,
    ) -> Result<(), TrialError> {
        let parameters = Self::read(parameters)?;
        let roles = W::roles();
        let names: Vec<&str> = roles.iter().map(|role| role.name.as_str()).collect();
        let place = match role {
            None if names.len() == 1 => Some(0),
            None => None,
            Some(role) => names.iter().position(|name| *name == role),
        };
        match place {
            Some(0) => {
                let figures = W::run(parameters, agent)?;
                agent.report(&figures)?;
            }
            Some(place) => {
                W::serve(names[place], parameters, agent)?;
                agent.done()?;
            }
            None => {
                let found = role.map_or("no role".into(), |role| format!("role \"{role}\""));
                let expected = names.join(", ");
                return Err(anyhow!("found {found}, expected one of {expected}").into());
            }
        }
        Ok(())
    }
}

/// The expected time of a trial whose measured part ends by the clock.
pub(crate) fn by_the_clock(measured: Duration) -> Expected {
    Expected {
        clock: measured,
        work: START,
    }
}

/// This program as a trial of `driver` in a role.
fn own_trial(driver: &str, role: &Role, parameters: &Parameters) -> Invocation {
    let json = serde_json::to_string(parameters).expect("parameters are plain data");
    let mut arguments: Vec<OsString> = vec!["trial".into(), driver.into(), json.into()];
    if *role != Role::only() {
        arguments.extend(["--role".into(), role.name.clone().into()]);
    }
    Invocation {
        // The file that is running, even when another has taken its place meanwhile.
        program: "/proc/self/exe".into(),
        arguments,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems;
    use tare_lab::driver::{Parameter, ParameterKind};

    /// The parameters that must be given, with a value that is right.
    fn required(words: &Vocabulary) -> Parameters {
        let value = |parameter: &Parameter| match &parameter.kind {
            ParameterKind::Choice(names) => Some(Value::Text(names[0].clone())),
            ParameterKind::Text => Some("true".into()),
            _ => None,
        };
        let required = words.parameters.iter().filter(|one| one.default.is_none());
        required
            .filter_map(|one| Some((one.name.clone(), value(one)?)))
            .collect()
    }

    #[test]
    fn every_default_is_a_value_that_its_driver_accepts() {
        for driver in systems::on(&Machine::This) {
            let words = driver.vocabulary();
            let given = required(&words);
            assert_eq!(driver.examine(&given), Ok(()), "{}", words.name);
            assert_eq!(
                driver.examine(&words.complete(given)),
                Ok(()),
                "{}",
                words.name
            );
            for parameter in words.parameters {
                let (name, kind, default) = (parameter.name, parameter.kind, parameter.default);
                assert!(
                    default.is_none_or(|value| kind.admits(&value)),
                    "{name}: {kind}"
                );
            }
        }
    }

    #[test]
    fn a_value_that_a_driver_does_not_know_is_refused_and_never_becomes_a_default() {
        for driver in systems::on(&Machine::This) {
            let words = driver.vocabulary();
            for parameter in &words.parameters {
                let wrong: Value = match parameter.kind {
                    ParameterKind::Text if words.open => Value::Bool(true),
                    ParameterKind::Table => continue,
                    _ => "AES-128".into(),
                };
                let mut given = required(&words);
                given.insert(parameter.name.clone(), wrong.clone());
                let mistake = driver.examine(&given).unwrap_err();
                assert_eq!(
                    mistake.parameter, parameter.name,
                    "{}: {mistake}",
                    words.name
                );
                let reason = driver.check(&given).unwrap_err().reason;
                assert_eq!(reason, mistake.to_string(), "{}", words.name);
            }
            let mut given = required(&words);
            given.insert("thraeds".into(), Value::Int(2));
            match driver.examine(&given) {
                Ok(()) => assert!(words.open, "{}", words.name),
                Err(mistake) => assert_eq!(mistake.parameter, "thraeds", "{mistake}"),
            }
        }
    }

    #[test]
    fn parameters_that_contradict_each_other_are_refused() {
        let drivers = systems::all();
        for (driver, given, expected) in [
            (
                "rdrand",
                &[("in_step", Value::Bool(true)), ("output", "pipe".into())][..],
                "parameter in_step: found true, expected false where output is pipe or file",
            ),
            (
                "gcm",
                &[("keys", "each".into()), ("source", "cold".into())],
                "parameter keys: found \"each\", expected one where source is cold",
            ),
            (
                "gcm",
                &[("keys", "each".into()), ("implementation", "ring".into())],
                "parameter keys: found \"each\", expected one for ring",
            ),
            (
                "gcm",
                &[("implementation", "copy_best".into())],
                "parameter operation: found \"seal\", expected open for copy_best",
            ),
            (
                "gcm",
                &[("key", Value::Int(192))],
                "parameter key: found 192, expected 128 or 256",
            ),
            (
                "vita",
                &[("size", "59".into())],
                "parameter size: found \"59\", expected \"60\" to \"9014\" bytes, or \"IMIX\"",
            ),
            (
                "rdrand",
                &[("offset", Value::Int(1)), ("output", "file".into())],
                "parameter offset: found 1, expected 0 where output is pipe or file",
            ),
            (
                "farmem",
                &[("system", "redis".into()), ("order", Value::Int(20))],
                "parameter order: found 20, expected 7 for this system",
            ),
            (
                "farmem",
                &[("system", "ucx".into()), ("aead", "on".into())],
                "parameter aead: found \"on\", expected off for this system",
            ),
            (
                "farmem",
                &[("system", "memcached".into()), ("sessions", Value::Int(100))],
                "parameter sessions: found 100, expected 1 for this system",
            ),
            (
                "farmem",
                &[("system", "raw".into()), ("size", "32 KiB".into())],
                "parameter size: found \"32768 B\", expected below 32 KiB for raw",
            ),
            (
                "farmem",
                &[("threads", Value::Int(2)), ("transport", "shm".into())],
                "parameter transport: found \"shm\", expected udp with threads",
            ),
            (
                "farmem",
                &[("misses", "on".into()), ("order", Value::Int(7))],
                "parameter order: found 7, expected 8 or more with misses",
            ),
            (
                "farmem",
                &[("misses", "on".into()), ("sessions", Value::Int(2))],
                "parameter misses: found \"on\", expected off unless one session of one thread has \
                 one operation at a time",
            ),
            (
                "cvmnet",
                &[("switch_cycles", Value::Int(1400))],
                "parameter switch_cycles: found 1400, expected 0 unless wait = \"interrupts\": who polls \
                 switches nothing",
            ),
            (
                "cvmnet",
                &[("buffer", "1 MiB".into())],
                "parameter buffer: found \"1048576 B\", expected 1 B to 64 KiB",
            ),
        ] {
            let given = given
                .iter()
                .map(|(name, value)| ((*name).into(), value.clone()));
            let mistake = drivers.get(driver).unwrap().examine(&given.collect());
            assert_eq!(mistake.unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn threads_of_remote_memory_need_a_processor_each_and_one_for_the_node() {
        use systems::memory::driver::Farmem;
        let check = |cpus, threads| {
            let machine = Machine::Described {
                cpus,
                without: Vec::new(),
            };
            let given = Parameters::from([("threads".into(), Value::Int(threads))]);
            On::<Farmem>::new(machine).check(&given)
        };
        for (cpus, threads) in [(1, 1), (3, 2), (5, 4)] {
            assert_eq!(
                check(cpus, threads),
                Ok(()),
                "{cpus} CPUs, {threads} threads"
            );
        }
        let missing = check(2, 2).unwrap_err();
        assert_eq!(
            missing.reason,
            "a node and 2 busy threads need 3 CPUs, this machine has 2"
        );
        assert!(check(4, 4).is_err());
    }

    #[test]
    fn a_faster_simulated_line_has_more_time() {
        use systems::vita::Vita;
        for line in ["1 Gbit/s", "10 Gbit/s", "100 Gbit/s"] {
            let given = Parameters::from([("line".into(), line.into())]);
            let parameters = On::<Vita>::read(&given).unwrap();
            let expected = Vita::expected(&parameters).unwrap().work;
            assert!(Vita::longest(&parameters) >= 10 * expected, "{line}");
        }
    }

    #[test]
    fn a_reference_takes_the_place_of_the_parameter_that_it_is_a_value_of() {
        let given = |name: &str| Parameters::from([(BESIDE.into(), name.into())]);
        let driver = On::<systems::rng::drivers::rdrand::Rdrand>::new(Machine::Described {
            cpus: 1,
            without: vec![crate::machine::Feature::Rdrand],
        });
        assert_eq!(driver.check(&given("rand_chacha")), Ok(()));
        assert!(driver.check(&given("bare_64")).is_err());
        let mistake = driver.examine(&given("get_bytes")).unwrap_err();
        assert_eq!(mistake.parameter, BESIDE);
    }

    #[test]
    fn processor_time_is_told_from_the_clock_by_the_name_of_a_metric() {
        let mut named = 0;
        for driver in systems::on(&Machine::This) {
            for metric in driver.description().metrics {
                let is_processor_time = metric.about.contains("processor time");
                let is_called_so = metric.name.starts_with("cpu_");
                named += u32::from(is_called_so);
                // A ratio of processor time to the clock, or to itself, is neither.
                let is_ratio = metric.unit.dimension() == tare_lab::unit::Dimension::Ratio;
                assert!(
                    is_ratio || is_processor_time == is_called_so,
                    "{}: {}: {}",
                    driver.vocabulary().name,
                    metric.name,
                    metric.about
                );
            }
        }
        assert!(named >= 10, "{named}");
    }

    #[test]
    fn a_driver_gives_at_least_one_metric_and_counts_its_operations() {
        for driver in systems::on(&Machine::This) {
            let words = driver.vocabulary();
            assert!(!words.metrics.is_empty(), "{}", words.name);
            let operations = words.counters.first().map(String::as_str);
            assert_eq!(
                operations,
                Some(tare_lab::sample::OPERATIONS),
                "{}",
                words.name
            );
        }
    }
}
