//! The references: libraries that Tare is compared with, and runs nothing else on.
//!
//! aws-lc-rs and ring are C and assembly, and more than a quarter of the whole build; no experiment
//! of the tour needs them. So they are there in a build with the feature `references` only, and
//! elsewhere what needs them is not testable.

pub(crate) mod aead;
pub(crate) mod random;

/// The error where a library is asked for that this build does not have.
#[cfg(not(feature = "references"))]
fn absent() -> anyhow::Error {
    let missing = crate::machine::Feature::References.missing();
    anyhow::anyhow!("{}: {}", missing.reason, missing.remedy.unwrap_or_default())
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
            ("gcm", "beside", "ring"),
            ("rdrand", "method", "aws_lc_rs"),
            ("rdrand", "beside", "aws_lc_rs"),
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
