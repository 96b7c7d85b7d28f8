//! Trials of the driver `cvmnet` that move an amount of data, and those of the cipher alone.

use std::process::{Command, Stdio};

use serde_json::Value;

const TARE: &str = env!("CARGO_BIN_EXE_tare");

/// Returns the lines of a trial.
fn trial(parameters: &str) -> Vec<Value> {
    let output = Command::new(TARE)
        .args(["trial", "cvmnet", parameters])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line| serde_json::from_str(line).unwrap();
    text.lines().map(line).collect()
}

fn counters(lines: &[Value]) -> &Value {
    let line = lines.iter().rfind(|line| line["counters"].is_object());
    &line.unwrap_or_else(|| panic!("{lines:?}"))["counters"]
}

#[test]
fn a_trial_by_amount_moves_as_many_bytes_in_every_variant_and_compares_all() {
    const AMOUNT: u64 = 3 << 20;
    for variant in ["baseline", "cvm", "zc", "bifrost", "baseline-gro"] {
        for work in ["receive", "send"] {
            let lines = trial(&format!(
                r#"{{"variant":"{variant}","work":"{work}","connections":3,"until":"amount","amount":"3 MiB","verify":1}}"#
            ));
            let counters = counters(&lines);
            let at = format!("{variant} {work}: {counters}");
            assert_eq!(counters["bytes"], AMOUNT, "{at}");
            assert_eq!(counters["verified"], AMOUNT, "{at}");
            assert_eq!(
                (&counters["wrong"], &counters["unequal"]),
                (&0.into(), &0.into()),
                "{at}"
            );
        }
    }
    // A part that is not compared is not taken for compared.
    let lines = trial(r#"{"until":"amount","amount":"3 MiB","verify":2}"#);
    let verified = counters(&lines)["verified"].as_u64().unwrap();
    assert!(verified > 0 && verified < AMOUNT, "{verified}");
}

#[test]
fn the_cipher_alone_opens_records_of_every_key_and_kind_of_reading() {
    for (variant, key) in [
        ("bifrost", 128),
        ("bifrost", 256),
        ("bifrost-unprotected", 128),
    ] {
        let lines = trial(&format!(
            r#"{{"work":"open","variant":"{variant}","key":{key},"duration":"20 ms","verify":10}}"#
        ));
        let counters = counters(&lines);
        let count = |name: &str| counters[name].as_u64().unwrap();
        assert_eq!(count("bytes"), count("operations") * 16_384, "{counters}");
        assert_eq!(
            count("verified"),
            count("operations") / 10 * 16_385,
            "{counters}"
        );
        assert_eq!(count("wrong"), 0, "{counters}");
        let time = lines.iter().find(|line| line["metric"] == "cpu_guest_time");
        assert!(time.unwrap()["value"].as_f64().unwrap() > 0.0, "{lines:?}");
    }
}

#[test]
fn works_and_ends_that_contradict_each_other_are_refused() {
    for (parameters, expected) in [
        (r#"{"work":"https","until":"amount"}"#, "parameter until"),
        (
            r#"{"until":"amount","amount":"3 B"}"#,
            "a byte per connection",
        ),
        (r#"{"work":"open","vcpus":2}"#, "parameter work"),
        (r#"{"duration":"0 s"}"#, "parameter duration"),
        (r#"{"work":"https","size":"1 MiB"}"#, "1 B to 512 KiB"),
    ] {
        let lines = trial(parameters);
        let message = lines.iter().find_map(|line| line["message"].as_str());
        assert!(
            message.is_some_and(|text| text.contains(expected)),
            "{lines:?}"
        );
    }
}
