//! Mistakes, lists and manual pages.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use super::{doors, folder, output, tare, text, EXPERIMENT};

#[test]
fn a_mistake_is_one_clear_line_and_exit_code_2() {
    let folder = folder();
    let bad = EXPERIMENT.replace("better = \"lower\", work", "beter = \"lower\", work");
    fs::write(folder.path().join("bad.toml"), bad).unwrap();
    fs::create_dir(folder.path().join("empty")).unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["run", "rdrnd"], "did you mean \"rdrand\"?"),
        (&["run", "no.toml"], "no.toml: cannot be read"),
        (&["run", "bad.toml"], "bad.toml:9"),
        (
            &["run", "--resume", "empty"],
            "empty: found no run.json, expected the directory of a run",
        ),
        (&["report", "nowhere"], "nowhere: found no run.json"),
        (&["run", "--rounds", "0"], "0"),
        (&["run", "--budget", "5"], "such as \"90 s\""),
        (&["run", "--budget", "5 bananas"], "such as \"90 s\""),
        (&["show", "rdrand/siez"], "did you mean \"rdrand/size\"?"),
        (&["frobnicate"], "frobnicate"),
    ];
    for (arguments, expected) in cases {
        let done = output(folder.path(), arguments);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        assert!(
            done.stdout.is_empty(),
            "{arguments:?}: results only on standard output"
        );
    }
    let run = ["run", "doors.toml", "--rounds", "1", "--out", "r"];
    assert_eq!(output(folder.path(), &run).status.code(), Some(0));
    let twice = output(folder.path(), &run);
    assert_eq!(twice.status.code(), Some(2));
    assert!(
        text(&twice.stderr).contains("--resume"),
        "{}",
        text(&twice.stderr)
    );
}

#[test]
fn the_embedded_experiments_are_listed_shown_and_diagnosed() {
    let folder = folder();
    let list: Value =
        serde_json::from_slice(&output(folder.path(), &["list", "--json"]).stdout).unwrap();
    // One of each suite; a test of the program itself reads all of them.
    let mut suites = BTreeSet::new();
    for experiment in list.as_array().unwrap() {
        let id = experiment["id"].as_str().unwrap();
        if !suites.insert(id.split('/').next()) {
            continue;
        }
        for size in [&["show", id][..], &["show", id, "--full", "--json"]] {
            let shown = output(folder.path(), size);
            assert_eq!(shown.status.code(), Some(0), "{id}");
            assert!(text(&shown.stdout).contains(id));
        }
    }
    // What was published names its machine, once for all values that have the same.
    let shown = text(&output(folder.path(), &["show", "vita/software"]).stdout);
    assert_eq!(shown.matches("AMD Ryzen 5 1600").count(), 1, "{shown}");
    // Published figures and thresholds have the digits of the file.
    let shown = text(&output(folder.path(), &["show", "vita/find-limit"]).stdout);
    assert!(shown.contains("  printed  1.0005 at "), "{shown}");
    let shown = text(&output(folder.path(), &["show", "rdrand/secure"]).stdout);
    assert!(shown.contains(": between 922.5 and 1127.5\n"), "{shown}");
    let doctor: Value =
        serde_json::from_slice(&output(folder.path(), &["doctor", "--json"]).stdout).unwrap();
    assert_eq!(
        doctor["experiments"].as_array().unwrap().len(),
        list.as_array().unwrap().len()
    );
    let programs = doctor["programs"].as_array().unwrap();
    for battery in ["dieharder", "rngtest", "ent", "RNG_test"] {
        assert!(programs.iter().any(|p| p["name"] == battery), "{battery}");
    }
}

#[test]
fn claims_and_targets_are_told_apart_before_a_run() {
    let folder = folder();
    doors(folder.path(), "[1.8, 2.2]", "[1.8, 2.2]");
    let shown = text(&output(folder.path(), &["show", "two.toml"]).stdout);
    assert!(shown.contains("\n  claim    "), "{shown}");
    assert!(shown.contains("\n  target   "), "{shown}");

    let shown = text(&output(folder.path(), &["show", "gcm/race"]).stdout);
    let (claims, targets) = (shown.matches("\n  claim "), shown.matches("\n  target "));
    let counts = (claims.count(), targets.count());
    assert!(counts.1 > 0, "{shown}");
    let list = output(folder.path(), &["list", "--json"]).stdout;
    let list: Value = serde_json::from_slice(&list).unwrap();
    let mut listed = list.as_array().unwrap().iter();
    let race = listed.find(|experiment| experiment["id"] == "gcm/race");
    let race = race.unwrap();
    assert_eq!(race["claims"], counts.0);
    assert_eq!(race["targets"], counts.1);

    let list = text(&output(folder.path(), &["list"]).stdout);
    let (mut one, mut both) = (0, 0);
    for line in list.lines().filter(|line| line.contains(" cells  ")) {
        let (claims, targets) = (line.contains(" claim"), line.contains(" target"));
        one += usize::from(claims != targets);
        both += usize::from(claims && targets && line.contains(", "));
    }
    assert!(one > 0 && both > 0, "{list}");
}

#[test]
fn manual_pages_cover_every_command() {
    let folder = folder();
    let made = output(folder.path(), &["man", "--out", "man1"]);
    assert_eq!(made.status.code(), Some(0));
    for page in ["tare.1", "tare-run.1", "tare-rng-gen.1", "tare-report.1"] {
        assert!(folder.path().join("man1").join(page).is_file(), "{page}");
    }
    assert!(
        !folder.path().join("man1/tare-trial.1").exists(),
        "an inner command has no page"
    );
}

#[test]
fn doctor_has_json_for_a_path_that_is_no_utf_8() {
    let folder = folder();
    let odd = folder.path().join(OsStr::from_bytes(b"odd-\xff"));
    fs::create_dir(&odd).unwrap();
    let program = odd.join("ent");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut path = odd.into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut doctor = tare(folder.path(), &["doctor", "doors.toml", "--json"]);
    let done = doctor.env("PATH", path).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let doctor: Value = serde_json::from_slice(&done.stdout).unwrap();
    let mut programs = doctor["programs"].as_array().unwrap().iter();
    let ent = programs.find(|program| program["name"] == "ent").unwrap();
    let path = ent["path"].as_str().unwrap();
    assert!(path.ends_with("/odd-\u{fffd}/ent"), "{path}");
}
