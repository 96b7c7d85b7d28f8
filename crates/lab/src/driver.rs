//! The lab's view of a workload: its vocabulary, whether it can run here, how to start it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::unit::Dimension;
use crate::value::Parameters;

/// A workload that experiments can name.
///
/// A driver only describes: the work itself happens in the child process that
/// [`Driver::invocation`] starts, which speaks [`crate::protocol`] on its standard output. It may
/// therefore be any program in any language, here or, later, on another machine.
pub trait Driver: Send + Sync {
    /// The names and values that an experiment may use with this driver.
    fn vocabulary(&self) -> Vocabulary;

    /// Returns whether the parameters of a cell make sense together, on any machine: what no
    /// vocabulary can say. Parameters come [complete](Vocabulary::complete).
    ///
    /// # Errors
    /// The first parameter that is wrong.
    fn examine(&self, _parameters: &Parameters) -> Result<(), Mistake> {
        Ok(())
    }

    /// Returns whether this machine can run a cell. Parameters come
    /// [complete](Vocabulary::complete).
    ///
    /// # Errors
    /// Something is missing: says what, and the command that would change it.
    fn check(&self, parameters: &Parameters) -> Result<(), Missing>;

    /// The roles of a trial of a cell, each a process of its own. The first role measures: its
    /// output holds the trial's figures, and the measured part lasts until it is done. Parameters
    /// come [complete](Vocabulary::complete).
    ///
    /// A driver with several roles must not assume that they share a file system or see each
    /// other's process ids: all that a role learns about the others is what they said when they
    /// were [ready](crate::protocol::Message::Ready).
    fn roles(&self, _parameters: &Parameters) -> Vec<Role> {
        vec![Role::only()]
    }

    /// The process to start for a role in one trial of a cell. A driver with one role ignores
    /// `role`. Parameters come [complete](Vocabulary::complete).
    fn invocation(&self, role: &Role, parameters: &Parameters) -> Invocation;

    /// Every role of a trial with its process. Parameters come [complete](Vocabulary::complete).
    fn parts(&self, parameters: &Parameters) -> Vec<Part> {
        let roles = self.roles(parameters).into_iter();
        let part = |role| Part {
            invocation: self.invocation(&role, parameters),
            role,
        };
        roles.map(part).collect()
    }
}

/// A part of a trial that is a process of its own, such as a client or a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// Its name, different from that of the trial's other roles.
    pub name: String,
    /// True if it must run on the same machine as the trial's other roles that say so, because they
    /// share memory or a network namespace.
    pub same_host: bool,
}

impl Role {
    /// The role of a trial that has one.
    pub fn only() -> Role {
        Role {
            name: "trial".into(),
            same_host: false,
        }
    }
}

/// A role of a trial and the process that plays it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The role.
    pub role: Role,
    /// Its process.
    pub invocation: Invocation,
}

impl From<Invocation> for Part {
    /// The part of a trial that has one role.
    fn from(invocation: Invocation) -> Part {
        Part {
            role: Role::only(),
            invocation,
        }
    }
}

/// The drivers that a program has.
#[derive(Default)]
pub struct Drivers(Vec<Box<dyn Driver>>);

impl Drivers {
    /// With these drivers.
    pub fn new(drivers: Vec<Box<dyn Driver>>) -> Drivers {
        Drivers(drivers)
    }

    /// The driver of that name.
    pub fn get(&self, name: &str) -> Option<&dyn Driver> {
        self.0
            .iter()
            .find(|driver| driver.vocabulary().name == name)
            .map(Box::as_ref)
    }

    /// The vocabularies of all of them.
    pub fn vocabularies(&self) -> Vec<Vocabulary> {
        self.0.iter().map(|driver| driver.vocabulary()).collect()
    }
}

/// A parameter that is wrong on any machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The parameter.
    pub parameter: String,
    /// The value that was found, in words.
    pub found: String,
    /// The values that were expected, in words.
    pub expected: String,
}

/// Something that this machine lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The thing that is missing, in words.
    pub reason: String,
    /// The command or change that would help, if there is one.
    pub remedy: Option<String>,
}

/// A process to start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invocation {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables added to its environment.
    pub environment: BTreeMap<OsString, OsString>,
    /// The folder in which it starts, and `prepare` and `cleanup` with it; `None` for that of this
    /// process.
    pub directory: Option<PathBuf>,
    /// A program and its arguments that run before the trial and are not measured. Where it fails,
    /// the trial does. What it leaves running is ended after `cleanup`. Empty if there is none.
    pub prepare: Vec<OsString>,
    /// The same after the trial, however that ended.
    pub cleanup: Vec<OsString>,
    /// True if the program speaks the protocol. A program that does not is timed as a whole: it
    /// gives the metric `time` and one operation.
    pub speaks_protocol: bool,
    /// The time that the trial, `prepare` and `cleanup` may each take before they are ended and
    /// the trial is recorded as failed. In a trial with several roles it is the limit of each step
    /// that the role takes: until it is ready, until it is done, and until it has ended.
    pub limit: Duration,
    /// The time that it is expected to take; `None` if the driver cannot say. A run adds these up
    /// to say beforehand how long it will take.
    pub expected: Option<Expected>,
}

/// The time that a trial is expected to take on an idle machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// The part that ends by the clock, however busy the machine is.
    pub clock: Duration,
    /// The part that ends when its work is done: more on a busy machine.
    pub work: Duration,
}

/// The vocabulary of a driver: all that an experiment file may name, so that a misspelt name is
/// found before anything runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocabulary {
    /// The driver's name.
    pub name: String,
    /// A one-line description.
    pub about: String,
    /// The parameters it takes.
    pub parameters: Vec<Parameter>,
    /// The references that `beside` may name.
    pub references: Vec<String>,
    /// The metrics its trials give.
    pub metrics: Vec<(String, Dimension)>,
    /// The counters its trials give; `operations` is always among them.
    pub counters: Vec<String>,
    /// True if parameters beyond these are taken as they come, and metrics and counters of programs
    /// that speak the protocol (a driver for programs it does not know).
    pub open: bool,
    /// True if equal parameters always give equal figures: the time in the trials is virtual.
    pub deterministic: bool,
}

impl Vocabulary {
    /// The parameters with the defaults of those that were not given.
    pub fn complete(&self, mut parameters: Parameters) -> Parameters {
        for parameter in &self.parameters {
            if let Some(default) = &parameter.default {
                parameters
                    .entry(parameter.name.clone())
                    .or_insert_with(|| default.clone());
            }
        }
        parameters
    }
}

/// A parameter of a driver.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// The values it may have.
    pub kind: ParameterKind,
    /// Its value when the experiment gives none; a parameter without one must be given.
    pub default: Option<crate::value::Value>,
    /// A one-line description.
    pub about: String,
}

/// The values that a parameter may have.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterKind {
    /// A whole number in this range, both ends included.
    Int(i64, i64),
    /// A finite number.
    Number,
    /// Any text.
    Text,
    /// `true` or `false`.
    Bool,
    /// One of these words.
    Choice(Vec<String>),
    /// A quantity of that dimension, as text: `"40 ms"`.
    Quantity(Dimension),
    /// A table of texts; the text of each key is a parameter of its own, `name.key`.
    Table,
}
