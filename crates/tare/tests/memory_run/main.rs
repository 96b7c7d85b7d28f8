//! `tare memory serve` with root: a node in one network namespace, a program in another one, whose
//! memory is limited. The program is the example `hash_index` of `tare-farmem`.

#[expect(dead_code, reason = "the example's own `main` is not called")]
#[path = "../../../farmem/examples/hash_index/main.rs"]
mod hash_index;
mod scene;

use std::io::{BufRead as _, BufReader, Read as _};
use std::time::Duration;

use scene::{limit, not_tested, Program, Scene, NODE, REDIS};
use serde_json::Value;

/// The memory that the program may have, and its entries: they take half as much again.
const LIMIT: u64 = 16 << 20;
const ENTRIES: &str = "72000";

/// The variable with the arguments of the program, in a process that is the program.
const PROGRAM: &str = "TARE_TEST_HASH_INDEX";

#[test]
fn an_index_larger_than_the_programs_memory_stays_right_while_servers_are_killed_and_frames_lost() {
    if let Ok(arguments) = std::env::var(PROGRAM) {
        limit(LIMIT).unwrap();
        let is_right = hash_index::run(arguments.split(' ').map(str::to_string));
        assert!(is_right.unwrap_or_else(|error| panic!("{error}")));
        return;
    }
    let Some(mut scene) = Scene::new(LIMIT) else {
        return;
    };
    let has_redis = scene.start_redis();
    if !has_redis {
        not_tested("Redis beside the node: redis-server is not installed");
    }
    scene.start_node();
    let targets = match has_redis {
        true => format!("udp://{NODE} redis://{REDIS}"),
        false => format!("udp://{NODE}"),
    };

    // With faults: losses, and each server killed.
    let options = "--loss 0.01 --seconds 3 --progress --json";
    let mut program = scene.program(PROGRAM, &format!("all {ENTRIES} {options} {targets}"));
    let said = BufReader::new(program.0.stderr.take().unwrap());
    let mut lines = Vec::new();
    let (mut of_node, mut of_redis) = (0, 0);
    for line in said.lines() {
        let line = line.unwrap();
        if line.starts_with("udp:") && line.contains(": run ") {
            of_node += 1;
            // The targets take turns, and a turn has one line or two: after the last one a node
            // may die unnoticed. Of two lines in a row one comes in the middle of a turn.
            if let 1 | 3 | 4 | 6 | 7 = of_node {
                scene.kill_node();
                scene.start_node();
            }
        } else if line.contains(": run ") {
            of_redis += 1;
            if of_redis == 2 {
                scene.kill_redis();
                scene.start_redis();
            }
        }
        lines.push(line);
    }
    let faulty = result(&mut program, &lines);
    eprintln!("with faults: {faulty}");
    let of = |result: &Value, place: usize, name: &str| result["targets"][place][name].as_u64();
    assert_eq!(of(&faulty, 0, "wrong"), Some(0));
    assert!(
        of(&faulty, 0, "resumed") >= Some(2),
        "the node was killed twice or more while operations were on the way"
    );
    assert!(of(&faulty, 0, "index_bytes") > Some(LIMIT * 5 / 4));
    let peak = faulty["peak_memory_bytes"].as_u64();
    assert!(peak.is_some_and(|peak| peak < LIMIT), "{peak:?}");
    if has_redis {
        assert_eq!(of(&faulty, 1, "wrong"), Some(0));
        assert!(of(&faulty, 1, "resumed") >= Some(1));
    }

    // Side by side without faults, the index that is there compared first.
    let mut program = scene.program(PROGRAM, &format!("run --seconds 1 --json {targets}"));
    let sound = result(&mut program, &[]);
    eprintln!("side by side: {sound}");
    assert_eq!(of(&sound, 0, "wrong"), Some(0));
    if has_redis {
        assert_eq!(of(&sound, 1, "wrong"), Some(0));
    }
    assert!(scene.is_within_limit());
}

/// Waits for the program's end, and returns what it printed.
fn result(program: &mut Program, lines: &[String]) -> Value {
    let mut printed = String::new();
    let out = program.0.stdout.as_mut().unwrap();
    out.read_to_string(&mut printed).unwrap();
    let mut said = lines.join("\n");
    if let Some(error) = &mut program.0.stderr {
        error.read_to_string(&mut said).unwrap();
    }
    let status = program.wait(Duration::from_secs(60));
    assert!(status.success(), "{status}\n{printed}\n{said}");
    // The test harness prints on the same line.
    let start = printed.find("{\"schema\"").expect("a result");
    let line = printed[start..].lines().next().unwrap();
    serde_json::from_str(line).unwrap()
}
