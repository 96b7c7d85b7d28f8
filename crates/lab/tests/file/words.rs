//! The words of the drivers that the tests' files name.

use tare_lab::driver::{
    Driver, Drivers, Invocation, Missing, Mistake, Parameter, ParameterKind, Role, Vocabulary,
};
use tare_lab::unit::Dimension;
use tare_lab::value::{Parameters, Value};

/// The drivers of the RdRand chapter and one of the design's example.
pub(crate) fn drivers() -> Drivers {
    drivers_that(|_| {})
}

/// The same drivers, each changed by `change`.
pub(crate) fn drivers_that(change: impl Fn(&mut Vocabulary)) -> Drivers {
    let all = [rdrand(), underflow(), battery(), farmem(), anything()];
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

fn rdrand() -> Vocabulary {
    Vocabulary {
        name: "rdrand".into(),
        about: "Fills buffers with random numbers".into(),
        parameters: vec![
            required(
                "method",
                choice(
                    "get_bytes get_bytes_of_32 uint8_array uint16_array uint32_array uint64_array reseed_delay \
                     reseed_skip aes_ctr rdseed seed bare_16 bare_32 bare_64 getrandom_syscall \
                     getrandom_libc rand_chacha aws_lc_rs rdrand_crate",
                ),
            ),
            optional("size", ParameterKind::Int(1, 1_048_576), 2048),
            optional("threads", ParameterKind::Int(1, 1024), 1),
            optional("offset", ParameterKind::Int(0, 63), 0),
            Parameter {
                default: Some(Value::Bool(false)),
                ..required("in_step", ParameterKind::Bool)
            },
            Parameter {
                default: Some(Value::from("none")),
                ..required("output", choice("none pipe file"))
            },
            required("duration", ParameterKind::Quantity(Dimension::Time)),
        ],
        peers: words(
            "bare_64 getrandom_syscall getrandom_libc rand_chacha aws_lc_rs rdrand_crate rdseed",
        ),
        metrics: vec![
            ("throughput".into(), Dimension::DataRate),
            ("cpu_throughput".into(), Dimension::DataRate),
        ],
        counters: words("bytes operations draws underflows"),
        open: false,
        deterministic: false,
    }
}

fn underflow() -> Vocabulary {
    Vocabulary {
        name: "rdrand-underflow".into(),
        about: "Counts draws that give nothing".into(),
        parameters: vec![
            required("instruction", choice("rdrand rdseed")),
            optional("threads", ParameterKind::Int(1, 1024), 1),
            required("duration", ParameterKind::Quantity(Dimension::Time)),
        ],
        peers: Vec::new(),
        metrics: vec![("underflow_rate".into(), Dimension::Ratio)],
        counters: words("draws underflows operations"),
        open: false,
        deterministic: false,
    }
}

fn battery() -> Vocabulary {
    Vocabulary {
        name: "rng-battery".into(),
        about: "Tests streams of random numbers".into(),
        parameters: vec![
            required(
                "generator",
                choice(
                    "get_bytes uint64_array aes_ctr rdseed seed getrandom_syscall rand_chacha \
                     counter constant biased repeating",
                ),
            ),
            required("amount", ParameterKind::Quantity(Dimension::Data)),
        ],
        peers: Vec::new(),
        metrics: vec![("failed_tests".into(), Dimension::Count)],
        counters: words("bytes operations wrong_verdicts judged"),
        open: false,
        deterministic: false,
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
        peers: words("ping-pong/udp ping-pong/shm"),
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
