//! `tare gateway bench` at the command line.

use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_tare");
    let mut command = Command::new(program);
    command.args(["gateway", "bench"]).args(arguments);
    command.output().expect("the program runs")
}

#[test]
fn whole_gateways_are_measured_beside_the_data_plane_and_the_difference_is_given() {
    let arguments = ["IMIX", "2e5", "3", "--through", "port"];
    let out = bench(&[&arguments[..], &["--json"]].concat());
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let json: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let through = &json["through_port"];
    for figures in [&json, through] {
        assert_eq!(
            (&figures["packets"], &figures["wrong"]),
            (&200_000.into(), &0.into())
        );
        assert!(figures["mpps"].as_f64().is_some_and(|mpps| mpps > 0.0));
        assert!(figures["gbps"].as_f64().is_some_and(|gbps| gbps > 0.0));
    }
    let ns = |figures: &Value| figures["seconds"].as_f64().map(|s| s * 1e9 / 2e5);
    let difference = ns(through)
        .zip(ns(&json))
        .map(|(through, alone)| through - alone);
    let found = json["difference_ns"].as_f64();
    assert!(
        found
            .zip(difference)
            .is_some_and(|(a, b)| (a - b).abs() < 1e-6),
        "{json}"
    );

    let text = String::from_utf8(bench(&arguments).stdout).expect("text");
    for part in [
        "\nRate(Mpps):\t",
        "\nThrough ports (Mpps):\t",
        "\nDifference:\t",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let json = bench(&["60", "1e4", "--json"]).stdout;
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(
        (json.get("through_port"), json.get("difference_ns")),
        (None, None)
    );
}

#[test]
fn what_cannot_be_measured_together_is_refused() {
    for (arguments, reason) in [
        (
            ["60", "1e4", "1", "0,1", "--through", "port"].as_slice(),
            "expected one at most",
        ),
        (
            &["60", "1e4", "--through", "port", "--only", "cipher"],
            "cannot be used with",
        ),
        (&["60", "1e4", "--through", "wire"], "port"),
        (&["60", "1e4", "100001"], "100000"),
    ] {
        let out = bench(arguments);
        let errors = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{errors}");
        assert!(errors.contains(reason), "{errors}");
    }
}
