//! Trials are child processes, and children misbehave: each way is recorded in words, and none
//! leaves a process behind.

use std::time::{Duration, Instant};

use tare_lab::driver::Invocation;
use tare_lab::experiment::{Metric, Statistic};
use tare_lab::sample::Outcome;
use tare_lab::trial::{self, Finished};
use tare_lab::unit::{Better, Unit};

const PREFIX: &str =
    r#"echo '{"type":"version","protocol":1,"program":"sh"}'; echo '{"type":"start"}';"#;
const SAMPLE: &str = r#"echo '{"type":"sample","metric":"time","value":2,"unit":"ms"}';"#;
const END: &str = r#"echo '{"type":"end"}'"#;

fn shell(script: &str, speaks_protocol: bool, limit: Duration) -> Finished {
    shell_in(script, speaks_protocol, limit, "time", Unit::Seconds)
}

fn shell_in(
    script: &str,
    speaks_protocol: bool,
    limit: Duration,
    metric: &str,
    unit: Unit,
) -> Finished {
    let invocation = Invocation {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into()],
        speaks_protocol,
        limit,
        ..Invocation::default()
    };
    let metrics = [Metric {
        name: metric.into(),
        statistic: Statistic::Median,
        unit,
        better: Better::Lower,
        work: None,
    }];
    trial::run(&invocation, &metrics, &|| false, &mut |_| {}).unwrap()
}

fn failure(script: &str) -> String {
    match shell(script, true, Duration::from_secs(5)).outcome {
        Some(Outcome::Failed { reason }) => reason,
        other => panic!("{script}: {other:?}"),
    }
}

#[test]
fn a_proper_trial_gives_its_value_in_the_metrics_unit() {
    let finished = shell(
        &format!("{PREFIX} {SAMPLE} {END}"),
        true,
        Duration::from_secs(5),
    );
    let Some(Outcome::Done { values, .. }) = finished.outcome else {
        panic!("{finished:?}")
    };
    assert_eq!(values["time"], 0.002);
    assert!(finished.overhead.unwrap() <= finished.elapsed);
}

#[test]
fn a_trial_that_crashes_prints_rubbish_or_stops_short_is_a_failure_in_words() {
    let end_then_more = format!("{PREFIX} {SAMPLE} {END}; echo more");
    let end_then_fail = format!("{PREFIX} {SAMPLE} {END}; exit 3");
    let cases = [
        ("exit 7", "status 7"),
        ("kill -SEGV $$", "signal 11"),
        ("echo hello", "line 1 of its output: found \"hello\""),
        (
            "echo '{\"type\":\"version\",\"protocol\":2,\"program\":\"x\"}'",
            "found protocol 2",
        ),
        (PREFIX, "without an end message"),
        (
            "head -c 100000 /dev/zero | tr '\\0' x",
            "line of over 65536 bytes",
        ),
        ("printf '\\377\\376\\n'", "line 1"),
        (&end_then_more, "after the end"),
        (&end_then_fail, "status 3"),
    ];
    for (script, expected) in cases {
        let reason = failure(script);
        assert!(reason.contains(expected), "{script}: {reason}");
    }
}

#[test]
fn a_failed_trial_leaves_the_end_of_its_output_for_the_log() {
    let finished = shell("echo why >&2; exit 1", true, Duration::from_secs(5));
    assert!(
        String::from_utf8_lossy(&finished.log).contains("why"),
        "{finished:?}"
    );
    let flood = shell(
        "i=0; while [ $i -lt 20000 ]; do echo 'a line of complaint' >&2; i=$((i+1)); done; exit 1",
        true,
        Duration::from_secs(20),
    );
    assert!(flood.log.len() < 70_000, "{}", flood.log.len());
}

#[test]
fn a_trial_that_hangs_is_stopped_at_its_limit_with_all_it_started() {
    let marker = format!("{}", 1_000_000 + std::process::id());
    let began = Instant::now();
    let finished = shell(
        &format!("{PREFIX} sleep {marker} & sleep {marker}"),
        true,
        Duration::from_millis(300),
    );
    assert!(began.elapsed() < Duration::from_secs(3));
    let Some(Outcome::Failed { reason }) = finished.outcome else {
        panic!("{finished:?}")
    };
    assert!(reason.contains("limit of 0.3 s"), "{reason}");
    assert_eq!(processes_with(&marker), 0);
}

#[test]
fn a_process_left_behind_by_a_proper_trial_is_ended_too() {
    let marker = format!("{}", 2_000_000 + std::process::id());
    let finished = shell(
        &format!("sleep {marker} > /dev/null 2>&1 & {PREFIX} {SAMPLE} {END}"),
        true,
        Duration::from_secs(5),
    );
    assert!(
        matches!(finished.outcome, Some(Outcome::Done { .. })),
        "{finished:?}"
    );
    assert_eq!(processes_with(&marker), 0);
}

#[test]
fn a_program_that_knows_nothing_of_the_protocol_is_timed_as_a_whole() {
    let finished = shell("sleep 0.05; printf 12345", false, Duration::from_secs(5));
    let Some(Outcome::Done {
        values, counters, ..
    }) = finished.outcome
    else {
        panic!("{finished:?}")
    };
    assert!((0.05..1.0).contains(&values["time"]), "{values:?}");
    assert_eq!((counters["operations"], counters["stdout_bytes"]), (1, 5));
}

#[test]
fn a_flood_of_complaints_does_not_stop_a_trial_that_has_closed_or_ended_its_output() {
    let flood = "head -c 20000000 /dev/zero >&2";
    let closed = shell(
        &format!("exec >&-; {flood}"),
        false,
        Duration::from_secs(10),
    );
    let ended = shell(
        &format!("{PREFIX} {SAMPLE} {END}; {flood}"),
        true,
        Duration::from_secs(10),
    );
    for finished in [closed, ended] {
        assert!(
            matches!(finished.outcome, Some(Outcome::Done { .. })),
            "{:?}",
            finished.outcome
        );
        assert!(finished.log.len() < 70_000, "{}", finished.log.len());
    }
}

#[test]
fn a_trial_is_over_when_its_process_is_whoever_still_holds_its_output() {
    for script in [
        "printf 12345; sleep 20 &",
        "printf 12345; setsid sleep 20 &",
    ] {
        let began = Instant::now();
        let finished = shell(script, false, Duration::from_secs(15));
        assert!(began.elapsed() < Duration::from_secs(5), "{script}");
        let Some(Outcome::Done {
            values, counters, ..
        }) = finished.outcome
        else {
            panic!("{script}: {:?}", finished.outcome)
        };
        assert!(values["time"] < 5.0, "{script}: {values:?}");
        assert_eq!(counters["stdout_bytes"], 5, "{script}");
    }
    let began = Instant::now();
    let reason = failure("sleep 20 & exit 3");
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(reason.contains("status 3"), "{reason}");
}

#[test]
fn a_program_without_the_protocol_is_timed_in_the_metrics_unit_and_gives_no_other_metric() {
    let limit = Duration::from_secs(5);
    let timed = shell_in("sleep 0.05", false, limit, "time", Unit::Milliseconds);
    let Some(Outcome::Done { values, .. }) = timed.outcome else {
        panic!("{timed:?}")
    };
    assert!((50.0..1000.0).contains(&values["time"]), "{values:?}");
    for (metric, unit) in [("throughput", Unit::BytesPerSecond), ("time", Unit::Bytes)] {
        let refused = shell_in("true", false, limit, metric, unit);
        assert!(
            matches!(refused.outcome, Some(Outcome::Failed { .. })),
            "{metric} in {unit}: {refused:?}"
        );
    }
}

#[test]
fn an_interrupted_trial_has_no_outcome_and_no_process() {
    let marker = format!("{}", 3_000_000 + std::process::id());
    let invocation = Invocation {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), format!("sleep {marker}").into()],
        speaks_protocol: true,
        limit: Duration::from_secs(60),
        ..Invocation::default()
    };
    let began = Instant::now();
    let finished = trial::run(
        &invocation,
        &[],
        &|| began.elapsed() > Duration::from_millis(100),
        &mut |_| {},
    )
    .unwrap();
    assert!(finished.outcome.is_none());
    assert!(began.elapsed() < Duration::from_secs(3));
    assert_eq!(processes_with(&marker), 0);
}

#[test]
fn the_lab_adds_less_than_20_ms_to_a_trial() {
    let script = format!("{PREFIX} {SAMPLE} {END}");
    let mut overheads: Vec<f64> = (0..21)
        .map(|_| {
            let finished = shell(&script, true, Duration::from_secs(5));
            finished.overhead.unwrap().as_secs_f64() * 1e3
        })
        .collect();
    overheads.sort_by(f64::total_cmp);
    println!("overhead per trial: median {:.2} ms", overheads[10]);
    assert!(overheads[10] < 20.0, "{overheads:?}");
}

/// Processes that have `marker` on their command line, once those that were killed had a second
/// to vanish.
fn processes_with(marker: &str) -> usize {
    let until = Instant::now() + Duration::from_secs(1);
    loop {
        let alive = count_processes_with(marker);
        if alive == 0 || Instant::now() > until {
            return alive;
        }
    }
}

fn count_processes_with(marker: &str) -> usize {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .filter(|line| {
            line.split(|&byte| byte == 0)
                .any(|word| word == marker.as_bytes())
        })
        .count()
}
