//! The vocabularies of the drivers that the tests' files name.

use tare_lab::driver::{
    Driver, Drivers, Invocation, Missing, Mistake, Parameter, ParameterKind, Role, Vocabulary,
};
use tare_lab::unit::Dimension;
use tare_lab::value::{Parameters, Value};

/// A driver for remote memory, and one for programs that it knows nothing of.
pub(crate) fn drivers() -> Drivers {
    drivers_that(|_| {})
}

/// The same drivers, each changed by `change`.
pub(crate) fn drivers_that(change: impl Fn(&mut Vocabulary)) -> Drivers {
    let all = [farmem(), anything()];
    let boxed = all.into_iter().map(|mut words| {
        change(&mut words);
        Box::new(Wordy(words)) as Box<dyn Driver>
    });
    Drivers::new(boxed.collect())
}

/// A driver of which only the words matter.
struct Wordy(Vocabulary);

impl Driver for Wordy {
    fn vocabulary(&self) -> Vocabulary {
        self.0.clone()
    }

    fn examine(&self, parameters: &Parameters) -> Result<(), Mistake> {
        match parameters.get("even") {
            Some(Value::Int(n)) if n % 2 == 1 => Err(Mistake {
                parameter: "even".into(),
                found: n.to_string(),
                expected: "an even number".into(),
            }),
            _ => Ok(()),
        }
    }

    fn check(&self, _: &Parameters) -> Result<(), Missing> {
        Ok(())
    }

    fn invocation(&self, _: &Role, parameters: &Parameters) -> Invocation {
        Invocation {
            speaks_protocol: parameters.get("protocol") != Some(&Value::Bool(false)),
            ..Invocation::default()
        }
    }
}

fn farmem() -> Vocabulary {
    Vocabulary {
        name: "farmem".into(),
        about: "Remote memory".into(),
        parameters: vec![
            required("transport", choice("shm udp")),
            required("size", ParameterKind::Quantity(Dimension::Data)),
            required("op", choice("read write")),
            optional("sessions", ParameterKind::Int(1, 100_000), 1),
            Parameter {
                default: Some(Value::Bool(false)),
                ..required("encrypt", ParameterKind::Bool)
            },
            Parameter {
                default: Some(Value::Float(0.0)),
                ..required("loss", ParameterKind::Number)
            },
            Parameter {
                default: Some(Value::from("")),
                ..required("note", ParameterKind::Text)
            },
        ],
        references: words("ping-pong/udp ping-pong/shm"),
        metrics: vec![("latency".into(), Dimension::Time)],
        counters: vec!["operations".into(), "bytes verified".into()],
        open: false,
        deterministic: false,
    }
}

/// A driver for programs it knows nothing of.
fn anything() -> Vocabulary {
    Vocabulary {
        name: "program".into(),
        counters: words("operations"),
        open: true,
        deterministic: false,
        ..Vocabulary::default()
    }
}

fn required(name: &str, kind: ParameterKind) -> Parameter {
    Parameter {
        name: name.into(),
        kind,
        default: None,
        about: String::new(),
    }
}

fn optional(name: &str, kind: ParameterKind, default: i64) -> Parameter {
    Parameter {
        default: Some(Value::Int(default)),
        ..required(name, kind)
    }
}

fn choice(text: &str) -> ParameterKind {
    ParameterKind::Choice(words(text))
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
