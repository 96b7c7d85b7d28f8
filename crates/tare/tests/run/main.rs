//! `tare run` as people use it: files, exit codes, Ctrl-C, SIGKILL, mistakes.

mod output;
mod results;
mod stopping;
mod usage;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Two variants a factor of two apart, one that crashes, one that the machine lacks.
const EXPERIMENT: &str = r#"
[[experiment]]
id     = "doors/speed"
title  = "Two doors"
source = "the test"
driver = "synthetic"
fixed  = { noise = 0.01, duration = "10 ms" }
matrix = { reading = [1.0, 2.0] }
metric = { name = "time", unit = "ms", better = "lower", work = "bytes" }

[[experiment.claim]]
id    = "twice"
text  = "The second door takes twice as long"
ratio = { of = { reading = 2.0 }, to = { reading = 1.0 }, between = [1.8, 2.2] }

[[experiment]]
id     = "doors/faults"
title  = "Doors that jam"
source = "the test"
driver = "synthetic"
matrix = { fault = ["none", "crash", "hang", "missing"] }
metric = { name = "time", unit = "ms", better = "lower" }

[[experiment.claim]]
id    = "jammed"
text  = "A door that jams is as fast as one that does not"
ratio = { of = { fault = "crash" }, to = { fault = "none" }, at_most = 1.1 }

[[experiment.claim]]
id    = "absent"
text  = "A door that is not there is as fast as one that is"
ratio = { of = { fault = "missing" }, to = { fault = "none" }, at_most = 1.1 }
"#;

/// The command with signals at their defaults: a runner may have been started with some ignored, as
/// by `nohup`.
fn tare(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command
        .arg("--default-signal=HUP,INT,QUIT,TERM")
        .arg(env!("CARGO_BIN_EXE_tare"))
        .args(arguments)
        .current_dir(folder);
    command
}

fn output(folder: &Path, arguments: &[&str]) -> Output {
    tare(folder, arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("doors.toml"), EXPERIMENT).unwrap();
    folder
}

fn samples(run: &Path) -> usize {
    fs::read_to_string(run.join("samples.jsonl")).map_or(0, |text| text.lines().count())
}

fn verdict<'a>(result: &'a Value, id: &str) -> &'a Value {
    result["experiments"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|experiment| experiment["claims"].as_array().unwrap())
        .find(|claim| claim["id"] == id)
        .unwrap()
}

/// An experiment of shell commands, one for each value of the axis `way`.
fn commands(folder: &Path, limit: &str, ways: &str) {
    let experiment = format!(
        r#"
[[experiment]]
id     = "shell/ways"
title  = "Ways"
source = "the test"
driver = "command"
fixed  = {{ command = "sh {{way}}", protocol = true, limit = "{limit}" }}
matrix = {{ way = {ways} }}
metric = {{ name = "time", unit = "ms", better = "lower" }}

[[experiment.claim]]
id    = "speed"
text  = "It is fast"
value = {{ of = {{}}, at_most = "2 s" }}
"#
    );
    fs::write(folder.join("ways.toml"), experiment).unwrap();
}

/// The two doors alone, with a claim and a target that are right or wrong.
fn doors(folder: &Path, claim: &str, target: &str) {
    let (speed, _) = EXPERIMENT.split_at(EXPERIMENT.rfind("[[experiment]]").unwrap());
    let ratio = |between| {
        format!(
            "ratio = {{ of = {{ reading = 2.0 }}, to = {{ reading = 1.0 }}, between = {between} }}"
        )
    };
    let speed = speed.replace(&ratio("[1.8, 2.2]"), &ratio(claim));
    let target = format!(
        "[[experiment.target]]\nid = \"own\"\ntext = \"A target\"\n{}\n",
        ratio(target)
    );
    fs::write(folder.join("two.toml"), speed + &target).unwrap();
}
