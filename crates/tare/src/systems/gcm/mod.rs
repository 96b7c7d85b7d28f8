//! AES-GCM on shared memory: its throughput, and the race against a hostile thread.

pub(crate) mod driver;
mod messages;
pub(crate) mod race;

use tare_lab::choices;
use tare_lab::driver::ParameterKind;
use tare_lab::parameters::ParameterType;
use tare_lab::value::Value;

choices! {
    /// The direction of a message.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Operation {
        /// From private to shared memory.
        Seal = "seal",
        /// From shared to private memory.
        Open = "open",
    }
}

/// The length of a key, which experiments write in bits.
#[derive(Clone, Copy)]
pub(crate) struct KeyBits(u16);

impl KeyBits {
    pub(crate) fn bytes(self) -> usize {
        usize::from(self.0) / 8
    }
}

impl ParameterType for KeyBits {
    fn kind() -> ParameterKind {
        ParameterKind::Int(128, 256)
    }

    fn from_value(value: &Value) -> Option<KeyBits> {
        match value {
            Value::Int(128) => Some(KeyBits(128)),
            Value::Int(256) => Some(KeyBits(256)),
            _ => None,
        }
    }

    fn expected(_: &ParameterKind) -> String {
        "128 or 256".into()
    }
}
