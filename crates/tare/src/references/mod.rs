//! Other libraries that do what Tare's do, to be measured beside them: aws-lc-rs and ring.
//!
//! They are C and assembly, and more than a quarter of the whole build; no experiment of the tour
//! needs them. So they are there in a build with the feature `references` only, and elsewhere what
//! needs them is not testable.

pub(crate) mod aead;

use tare_lab::driver::Missing;

const REASON: &str = "this build of tare has no other libraries to compare with";
const REMEDY: &str = "build with them: cargo build --release --features references";

/// Whether this build has the other libraries.
pub(crate) fn check() -> Result<(), Missing> {
    if cfg!(feature = "references") {
        return Ok(());
    }
    Err(Missing {
        reason: REASON.into(),
        remedy: Some(REMEDY.into()),
    })
}

/// The error where a library is asked for that this build does not have.
#[cfg(not(feature = "references"))]
pub(crate) fn absent() -> anyhow::Error {
    anyhow::anyhow!("{REASON}: {REMEDY}")
}

/// Fills the buffer with aws-lc-rs's random numbers.
pub(crate) fn fill_aws_lc_rs(buffer: &mut [u8]) -> anyhow::Result<()> {
    #[cfg(feature = "references")]
    return aws_lc_rs::rand::fill(buffer)
        .map_err(|_| anyhow::anyhow!("aws-lc-rs gave no random bytes"));
    #[cfg(not(feature = "references"))]
    {
        let _ = buffer;
        Err(absent())
    }
}

#[cfg(test)]
mod tests {
    use crate::systems;
    use tare_lab::value::{Parameters, Value};

    #[test]
    fn what_needs_other_libraries_runs_with_them_and_says_how_to_get_them_without() {
        let drivers = systems::all();
        for (driver, parameter, name) in [
            ("gcm", "implementation", "ring"),
            ("gcm", "implementation", "copy_aws_lc_rs"),
            ("rdrand", "method", "aws_lc_rs"),
        ] {
            let mut parameters = Parameters::new();
            parameters.insert(parameter.into(), Value::Text(name.into()));
            let checked = drivers.get(driver).unwrap().check(&parameters);
            if cfg!(feature = "references") {
                assert!(checked.is_ok(), "{name}: {checked:?}");
            } else {
                let remedy = checked.unwrap_err().remedy.unwrap();
                assert!(remedy.contains("--features references"), "{name}: {remedy}");
            }
        }
    }
}
