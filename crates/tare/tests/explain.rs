//! `tare explain` as people use it, and `tare trial` where a parameter is wrong.

use std::process::{Command, Output};

use serde_json::Value;

fn tare(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tare"));
    command.args(arguments).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = tare(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn explain_lists_the_drivers_and_all_that_an_experiment_may_say_to_each() {
    let list: Value = serde_json::from_str(&printed(&["explain", "--json"])).unwrap();
    let text = printed(&["explain"]);
    for driver in list.as_array().unwrap() {
        let name = driver["name"].as_str().unwrap();
        assert!(text.contains(name), "{text}");
        let one: Value = serde_json::from_str(&printed(&["explain", name, "--json"])).unwrap();
        assert_eq!(one, *driver);
        let text = printed(&["explain", name]);
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{text}");
        for kind in ["parameters", "metrics", "counters", "roles"] {
            let all = driver[kind].as_array().unwrap();
            assert!(!all.is_empty(), "{name}: {kind}");
            for one in all {
                let begins = format!("\n  {} ", one["name"].as_str().unwrap());
                assert!(text.contains(&begins), "{name}: {kind}: {begins}: {text}");
            }
        }
        for parameter in driver["parameters"].as_array().unwrap() {
            let default = &parameter["default"];
            if !default.is_null() {
                assert_ne!(parameter["expected"].as_str(), Some(""), "{parameter}");
            }
        }
    }
}

#[test]
fn explain_has_ranges_units_references_and_roles() {
    let rdrand = printed(&["explain", "rdrand"]);
    for expected in [
        "threads   1             threads; a whole number from 1 to 1024",
        "throughput      B/s  bytes per second of wall time",
        "References for `beside`, in place of `method`",
        "  rdrand_crate",
    ] {
        assert!(rdrand.contains(expected), "{expected}: {rdrand}");
    }
    let veth = printed(&["explain", "vita-veth"]);
    for role in ["tester  measures", "left    serves", "right   serves"] {
        assert!(veth.contains(role), "{role}: {veth}");
    }
}

#[test]
fn a_driver_that_is_not_there_is_one_line_with_the_nearest_name() {
    let output = tare(&["explain", "gcm-rase"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.ends_with("did you mean \"gcm-race\"?\n"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_trial_refuses_what_its_driver_does_not_know() {
    for (driver, parameters, expected) in [
        (
            "gateway",
            r#"{"key":"AES-256"}"#,
            "parameter key: found \"AES-256\", expected aes128 or aes256 (did you mean \"aes256\"?)",
        ),
        (
            "gateway",
            r#"{"esn":"offf"}"#,
            "parameter esn: found \"offf\", expected on or off (did you mean \"off\"?)",
        ),
        (
            "gateway",
            r#"{"workrs":2}"#,
            "parameter workrs: found 2, expected one of the parameters subject, size, routes, \
             workers, key, esn, duration (did you mean \"workers\"?)",
        ),
        (
            "gcm-race",
            "{}",
            "parameter subject: found nothing, expected one of vaes512, vaes256, aesni, neon, \
             portable, two_reads",
        ),
        (
            "vita",
            r#"{"duration":"1e18 s"}"#,
            "parameter duration: found \"1e18 s\", expected a time such as \"40 ms\", of at most \
             1e9 s",
        ),
    ] {
        let messages = printed(&["trial", driver, parameters]);
        let last: Value = serde_json::from_str(messages.lines().last().unwrap()).unwrap();
        assert_eq!(last["type"], "error", "{messages}");
        assert_eq!(last["message"], expected);
    }
}

#[test]
fn a_trial_of_several_roles_says_which_ones_there_are() {
    for (arguments, found) in [
        (&["trial", "vita-veth", "{}"][..], "no role"),
        (
            &["trial", "vita-veth", "{}", "--role", "middle"],
            "role \"middle\"",
        ),
    ] {
        let messages = printed(arguments);
        let expected = format!("found {found}, expected one of tester, left, right");
        assert!(
            messages.contains(&expected.replace('"', "\\\"")),
            "{messages}"
        );
    }
}
