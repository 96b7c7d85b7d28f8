//! Trials are child processes that may fail in many ways: each is recorded with its reason, and
//! none leaves a process behind.

mod processes;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::time::{Duration, Instant};

use processes::processes_with;
use tare_lab::driver::{Invocation, Part};
use tare_lab::experiment::{Metric, Statistic};
use tare_lab::extract::{Extract, Place, Stream, OUTPUT_MAX};
use tare_lab::placement::Local;
use tare_lab::sample::Outcome;
use tare_lab::trial::{self, Finished};
use tare_lab::unit::{Better, Unit};
use tare_lab::usage::METRICS;

const PREFIX: &str =
    r#"echo '{"type":"version","protocol":1,"program":"sh"}'; echo '{"type":"start"}';"#;
const SAMPLE: &str = r#"echo '{"type":"sample","metric":"time","value":2,"unit":"ms"}';"#;
const END: &str = r#"echo '{"type":"end"}'"#;

/// The limit of trials that are to end before it, also where they wait for a processor.
const LIMIT: Duration = Duration::from_secs(90);

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
        speaks_protocol,
        limit,
        ..invocation(script)
    };
    run(&invocation, &[named(metric, unit)])
}

/// A shell script as a program that does not speak the protocol.
fn invocation(script: &str) -> Invocation {
    Invocation {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into()],
        limit: LIMIT,
        ..Invocation::default()
    }
}

fn named(metric: &str, unit: Unit) -> Metric {
    Metric {
        name: metric.into(),
        statistic: Statistic::Median,
        across: Statistic::Median,
        from: None,
        unit,
        better: Better::Lower,
        work: None,
    }
}

fn run(invocation: &Invocation, metrics: &[Metric]) -> Finished {
    run_roles(&[invocation.clone().into()], metrics)
}

fn run_roles(parts: &[Part], metrics: &[Metric]) -> Finished {
    let here = Local::new().unwrap();
    trial::run(here, parts, metrics, &|| false, &mut |_| {})
}

fn values(invocation: &Invocation, metrics: &[Metric]) -> BTreeMap<String, f64> {
    let finished = run(invocation, metrics);
    match finished.outcome {
        Some(Outcome::Done { values, .. }) => values,
        _ => panic!("{finished:?}"),
    }
}

fn names(invocation: &Invocation, metrics: &[Metric]) -> Vec<String> {
    values(invocation, metrics).into_keys().collect()
}

fn reason(finished: &Finished) -> &str {
    match &finished.outcome {
        Some(Outcome::Failed { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

fn failure(script: &str) -> String {
    match shell(script, true, LIMIT).outcome {
        Some(Outcome::Failed { reason }) => reason,
        other => panic!("{script}: {other:?}"),
    }
}

#[test]
fn a_proper_trial_gives_its_value_in_the_metrics_unit() {
    let finished = shell(&format!("{PREFIX} {SAMPLE} {END}"), true, LIMIT);
    let Some(Outcome::Done { values, .. }) = finished.outcome else {
        panic!("{finished:?}")
    };
    assert_eq!(values["time"], 0.002);
    assert!(finished.overhead.unwrap() <= finished.elapsed);
}

#[test]
fn a_trial_that_crashes_prints_garbage_or_stops_short_is_a_failure_with_its_reason() {
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
    let finished = shell("echo why >&2; exit 1", true, LIMIT);
    assert!(
        String::from_utf8_lossy(&finished.log).contains("why"),
        "{finished:?}"
    );
    // It comes long after the exit, as it may on a busy machine, where it may also come too late.
    let late = "x=$(setsid sh -c '(sleep 0.3; echo why >&2) > /dev/null & echo started'); exit 1";
    let mut all = Vec::new();
    let is_kept = |_| {
        let finished = shell(late, false, LIMIT);
        let is_kept = String::from_utf8_lossy(&finished.log).contains("why");
        all.push(finished);
        is_kept
    };
    assert!((1..=5).any(is_kept), "{all:?}");
    let flood = shell(
        "i=0; while [ $i -lt 20000 ]; do echo 'a line of complaint' >&2; i=$((i+1)); done; exit 1",
        true,
        LIMIT,
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
    assert!(began.elapsed() < LIMIT);
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
        LIMIT,
    );
    assert!(
        matches!(finished.outcome, Some(Outcome::Done { .. })),
        "{finished:?}"
    );
    assert_eq!(processes_with(&marker), 0);
}

#[test]
fn a_program_without_the_protocol_is_timed_as_a_whole() {
    let finished = shell("sleep 0.05; printf 12345", false, LIMIT);
    let Some(Outcome::Done {
        values, counters, ..
    }) = finished.outcome
    else {
        panic!("{finished:?}")
    };
    let range = 0.05..LIMIT.as_secs_f64();
    assert!(range.contains(&values["time"]), "{values:?}");
    assert_eq!((counters["operations"], counters["stdout_bytes"]), (1, 5));
}

#[test]
fn a_program_that_reads_its_standard_input_finds_it_empty() {
    for speaks_protocol in [false, true] {
        let script = format!("[ -z \"$(cat)\" ] && {PREFIX} {SAMPLE} {END}");
        let finished = shell(&script, speaks_protocol, LIMIT);
        assert!(
            matches!(finished.outcome, Some(Outcome::Done { .. })),
            "{finished:?}"
        );
    }
}

#[test]
fn a_flood_on_standard_error_does_not_stop_a_trial_that_has_closed_or_ended_its_output() {
    // More than the lab's channel and a pipe hold.
    let flood = "head -c 4000000 /dev/zero >&2";
    let closed = shell(&format!("exec >&-; {flood}"), false, LIMIT);
    let ended = shell(&format!("{PREFIX} {SAMPLE} {END}; {flood}"), true, LIMIT);
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
fn a_trial_is_over_when_its_process_is_even_if_its_output_is_still_held_open() {
    for script in [
        "printf 12345; sleep 200 &",
        "printf 12345; setsid sleep 200 &",
    ] {
        let began = Instant::now();
        let finished = shell(script, false, LIMIT);
        assert!(began.elapsed() < LIMIT, "{script}");
        let Some(Outcome::Done {
            values, counters, ..
        }) = finished.outcome
        else {
            panic!("{script}: {:?}", finished.outcome)
        };
        assert!(values["time"] < LIMIT.as_secs_f64(), "{script}: {values:?}");
        assert_eq!(counters["stdout_bytes"], 5, "{script}");
    }
    let began = Instant::now();
    let reason = failure("sleep 200 & exit 3");
    assert!(began.elapsed() < LIMIT);
    assert!(reason.contains("status 3"), "{reason}");
}

#[test]
fn a_program_without_the_protocol_is_timed_in_the_metrics_unit_and_gives_no_other_metric() {
    let limit = LIMIT;
    let timed = shell_in("sleep 0.05", false, limit, "time", Unit::Milliseconds);
    let Some(Outcome::Done { values, .. }) = timed.outcome else {
        panic!("{timed:?}")
    };
    assert!((50.0..60_000.0).contains(&values["time"]), "{values:?}");
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
        limit: LIMIT,
        ..Invocation::default()
    };
    let began = Instant::now();
    let finished = trial::run(
        Local::new().unwrap(),
        &[invocation.into()],
        &[],
        &|| began.elapsed() > Duration::from_millis(100),
        &mut |_| {},
    );
    assert!(finished.outcome.is_none());
    assert!(began.elapsed() < LIMIT);
    assert_eq!(processes_with(&marker), 0);
}

/// A loop that keeps a shell busy.
fn busy(turns: u32) -> String {
    format!("i=0; while [ $i -lt {turns} ]; do i=$((i+1)); done")
}

#[test]
fn every_program_has_its_processor_time_memory_switches_and_faults() {
    let metrics: Vec<Metric> = METRICS
        .iter()
        .map(|(name, unit)| named(name, *unit))
        .chain([named("time", Unit::Seconds)])
        .collect();
    // 60 MB in the memory of a child that is waited for.
    let hungry = "head -c 60000000 /dev/zero | tail -c 60000000 > /dev/null";
    let values = values(
        &invocation(&format!("sleep 0.3; {}; {hungry}", busy(200_000))),
        &metrics,
    );
    let value = |name: &str| values[name];
    assert_eq!(values.len(), 9, "{values:?}");
    let parts = value("user_time") + value("system_time");
    assert!((value("cpu_time") - parts).abs() < 1e-9, "{values:?}");
    assert!(value("user_time") > 0.02, "{values:?}");
    assert!((60e6..90e6).contains(&value("peak_memory")), "{values:?}");
    assert!(value("minor_faults") > 60e6 / 4096.0, "{values:?}");
    assert!(value("context_switches") >= 3.0, "{values:?}");
    // A small one is known, too; the tests of `tare run` have one that is smaller than `tare`.
    let small = "head -c 8000000 /dev/zero | tail -c 8000000 > /dev/null";
    let small = self::values(&invocation(small), &[named("peak_memory", Unit::Bytes)]);
    assert!((8e6..14e6).contains(&small["peak_memory"]), "{small:?}");
    // What is below the memory that is copied to it cannot be told, and is missing then.
    let ballast = vec![1u8; 64 << 20];
    let finished = run(&invocation("true"), &[named("peak_memory", Unit::Bytes)]);
    assert!(
        reason(&finished).contains("peak_memory is no larger than"),
        "{finished:?}"
    );
    let both = [
        named("peak_memory", Unit::Bytes),
        named("time", Unit::Seconds),
    ];
    let others: Vec<String> = names(&invocation("true"), &both);
    assert_eq!(others, ["time"]);
    assert_eq!(ballast[ballast.len() / 2], 1);
}

#[test]
fn waiting_takes_wall_clock_time_and_no_processor_time() {
    let metrics = [
        named("time", Unit::Seconds),
        named("cpu_time", Unit::Seconds),
    ];
    let waiting = values(&invocation("sleep 1"), &metrics);
    assert!(waiting["time"] > 1.0, "{waiting:?}");
    assert!(waiting["cpu_time"] < 0.5 * waiting["time"], "{waiting:?}");
    // At a high niceness, beside many programs, it gets a small share of a processor.
    let working = Invocation {
        limit: Duration::from_secs(300),
        ..invocation(&busy(1_000_000))
    };
    let working = values(&working, &metrics);
    assert!(working["cpu_time"] > 0.1, "{working:?}");
    // One thread cannot use more than the time there is; the kernel's two clocks differ a little.
    assert!(
        working["cpu_time"] < 1.1 * working["time"] + 0.02,
        "{working:?}"
    );
}

#[test]
fn a_program_that_speaks_the_protocol_has_them_too_and_its_own_sample_takes_precedence() {
    let speaking = |sample: &str| Invocation {
        speaks_protocol: true,
        ..invocation(&format!("{PREFIX} {sample} {SAMPLE} {END}"))
    };
    let metrics = [
        named("time", Unit::Milliseconds),
        named("cpu_time", Unit::Seconds),
    ];
    let measured = values(&speaking(""), &metrics);
    assert_eq!(measured["time"], 2.0);
    assert!((1e-6..1.0).contains(&measured["cpu_time"]), "{measured:?}");
    let own = r#"echo '{"type":"sample","metric":"cpu_time","value":7,"unit":"s"}';"#;
    assert_eq!(values(&speaking(own), &metrics)["cpu_time"], 7.0);
}

fn taken(stream: Stream, place: Place) -> Metric {
    Metric {
        from: Some(Extract { stream, place }),
        ..named("rate", Unit::OperationsPerSecond)
    }
}

#[test]
fn a_metric_is_taken_from_either_output_of_any_program() {
    let json = || Place::Json("/summary/rps".into());
    let regex = || Place::Regex(r"Requests/sec:\s+([0-9.]+)".into());
    let wrk = "Running; Requests/sec:   1234.5";
    let cases = [
        (
            r#"echo '{"summary":{"rps":1234.5}}'"#.to_owned(),
            taken(Stream::Stdout, json()),
        ),
        (
            r#"echo ready; echo '{"summary":{"rps":1234.5}}' >&2"#.to_owned(),
            taken(Stream::Stderr, json()),
        ),
        (format!("echo '{wrk}'"), taken(Stream::Stdout, regex())),
        (format!("echo '{wrk}' >&2"), taken(Stream::Stderr, regex())),
        (
            format!("echo 'Requests/sec: 1'; echo '{wrk}'; echo 'Requests/sec: 2000'"),
            taken(Stream::Stdout, regex()),
        ),
    ];
    for (script, metric) in cases {
        assert_eq!(
            values(&invocation(&script), &[metric])["rate"],
            1234.5,
            "{script}"
        );
    }
    // Beside the protocol, on standard error.
    let speaking = Invocation {
        speaks_protocol: true,
        ..invocation(&format!("echo '{wrk}' >&2; {PREFIX} {SAMPLE} {END}"))
    };
    let metrics = [
        named("time", Unit::Milliseconds),
        taken(Stream::Stderr, regex()),
    ];
    let measured = values(&speaking, &metrics);
    assert_eq!((measured["time"], measured["rate"]), (2.0, 1234.5));
}

#[test]
fn an_output_without_the_metric_fails_the_trial_and_is_kept_in_its_log() {
    let metric = taken(Stream::Stdout, Place::Json("/summary/rps".into()));
    let cases = [
        ("echo '{\"summary\":{}}'", "has nothing at \"/summary/rps\""),
        ("echo oops", "is not one JSON value"),
        ("echo '{\"summary\":{\"rps\":1e200}}'", "found 1e200"),
    ];
    for (script, expected) in cases {
        let finished = run(&invocation(script), std::slice::from_ref(&metric));
        let reason = reason(&finished);
        assert!(reason.contains(expected), "{script}: {reason}");
        assert!(reason.contains("metric \"rate\": "), "{script}: {reason}");
        let log = String::from_utf8_lossy(&finished.log);
        assert!(
            script.contains(log.trim()) && log.len() > 3,
            "{script}: {log}"
        );
    }
    let flood = format!("head -c {} /dev/zero", OUTPUT_MAX + 1);
    let finished = run(&invocation(&flood), &[metric]);
    assert!(reason(&finished).contains("is longer than"), "{finished:?}");
}

fn command(script: &str) -> Vec<OsString> {
    vec!["/bin/sh".into(), "-c".into(), script.into()]
}

#[test]
fn prepare_and_cleanup_run_around_every_trial_and_are_not_timed() {
    let folder = tempfile::tempdir().unwrap();
    let trial = Invocation {
        directory: Some(folder.path().into()),
        environment: [("WHO".into(), "env".into())].into(),
        prepare: command("sleep 0.5; echo prepare-$WHO >> trace"),
        cleanup: command("sleep 0.5; echo cleanup-$WHO >> trace"),
        ..invocation("echo trial-$WHO >> trace")
    };
    let trace = || fs::read_to_string(folder.path().join("trace")).unwrap();
    let whole = "prepare-env\ntrial-env\ncleanup-env\n";
    // In one of several trials: on a busy machine a program may take as long as that.
    let is_timed_alone = |n| {
        let timed = values(&trial, &[named("time", Unit::Seconds)]);
        assert_eq!(trace(), whole.repeat(n));
        timed["time"] < 0.5
    };
    assert!((1..=10).any(is_timed_alone));
    let failing = Invocation {
        arguments: vec!["-c".into(), "exit 3".into()],
        ..trial
    };
    assert!(reason(&run(&failing, &[])).contains("status 3"));
    assert!(
        trace().ends_with("prepare-env\ncleanup-env\n"),
        "{}",
        trace()
    );
}

#[test]
fn a_prepare_or_cleanup_that_fails_is_a_failed_trial_with_its_reason_and_output() {
    let failing = |prepare, cleanup, limit| {
        let trial = Invocation {
            prepare,
            cleanup,
            limit,
            ..invocation("true")
        };
        let finished = run(&trial, &[named("time", Unit::Seconds)]);
        let log = String::from_utf8_lossy(&finished.log).into_owned();
        [reason(&finished).to_owned(), log]
    };
    let said = "-- standard error --\nwhy\n";
    let found = failing(command("echo why >&2; exit 4"), vec![], LIMIT);
    assert_eq!(found, ["prepare: it exited with status 4", said]);
    let found = failing(vec![], command("echo why >&2; exit 5"), LIMIT);
    assert_eq!(found, ["cleanup: it exited with status 5", said]);
    // It comes long after the exit, as it may on a busy machine, where it may also come too late.
    let late = || command("(sleep 0.3; echo why >&2) > /dev/null & exit 6");
    for (prepare, cleanup, step) in [(late(), vec![], "prepare"), (vec![], late(), "cleanup")] {
        let expected = format!("{step}: it exited with status 6");
        let mut all = Vec::new();
        let is_as_expected = |_| {
            let found = failing(prepare.clone(), cleanup.clone(), LIMIT);
            // The reason is known in any case.
            assert_eq!(found[0], expected);
            all.push(found.clone());
            found[1] == said
        };
        assert!((1..=5).any(is_as_expected), "{all:?}");
    }
    let hangs = || command("echo why >&2; sleep 200");
    for (prepare, cleanup, step) in [(hangs(), vec![], "prepare"), (vec![], hangs(), "cleanup")] {
        // A busy machine may not come to what is before it within the shorter limits.
        let mut all = Vec::new();
        let is_as_expected = |seconds| {
            let limit = Duration::from_secs_f64(seconds);
            let found = failing(prepare.clone(), cleanup.clone(), limit);
            let expected = format!("{step}: it did not end within its limit of {seconds} s");
            all.push(found.clone());
            found == [&expected, said]
        };
        assert!([0.3, 3.0, 30.0].into_iter().any(is_as_expected), "{all:?}");
    }
    let nowhere = Invocation {
        prepare: vec!["./no-such-program".into()],
        ..invocation("true")
    };
    let finished = run(&nowhere, &[]);
    assert!(reason(&finished).contains("prepare: ./no-such-program could not be started"));
}

#[test]
fn what_prepare_leaves_running_serves_the_trial_and_ends_after_cleanup() {
    let folder = tempfile::tempdir().unwrap();
    let marker = format!("{}", 4_000_000 + std::process::id());
    let alive = "kill -0 $(cat server)";
    let trial = Invocation {
        directory: Some(folder.path().into()),
        prepare: command(&format!("sleep {marker} & echo $! > server")),
        cleanup: command(alive),
        ..invocation(alive)
    };
    values(&trial, &[named("time", Unit::Seconds)]);
    assert_eq!(processes_with(&marker), 0);
}

#[test]
fn a_process_that_left_its_group_ends_with_its_trial_and_no_other_does() {
    let marker = format!("{}", 5_000_000 + std::process::id());
    // A program that has nothing to do with any trial, and another trial's.
    let mut foreign = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    let concurrent = std::thread::spawn(move || {
        // It has not begun to sleep where a busy machine has not run it yet.
        let sleeper = "setsid sleep 600 & sleep 1; n=0
            while [ $((n += 1)) -le 60 ]; do
                [ $(ps -o stat= -p $! | cut -c1) = S ] && exit 0; sleep 0.5
            done; exit 1";
        run(&invocation(sleeper), &[named("time", Unit::Seconds)])
    });
    for script in [
        format!("setsid sleep {marker} & sleep 0.2"),
        format!("setsid sh -c 'setsid sleep {marker} & sleep {marker}' & sleep 0.2"),
        format!("(setsid sleep {marker} &) ; sleep 0.2"),
        format!("setsid sh -c 'env -i sleep {marker} & sleep {marker}' & sleep 0.2"),
    ] {
        values(&invocation(&script), &[named("time", Unit::Seconds)]);
        assert_eq!(processes_with(&marker), 0, "{script}");
    }
    let hanging = Invocation {
        limit: Duration::from_millis(300),
        ..invocation(&format!("setsid sleep {marker} & sleep {marker}"))
    };
    assert!(reason(&run(&hanging, &[])).contains("limit"));
    assert_eq!(processes_with(&marker), 0);
    assert!(matches!(
        concurrent.join().unwrap().outcome,
        Some(Outcome::Done { .. })
    ));
    assert!(foreign.try_wait().unwrap().is_none());
    foreign.kill().unwrap();
    foreign.wait().unwrap();
    let _ = std::process::Command::new("sh")
        .args(["-c", "true"])
        .status();
}

#[test]
fn the_lab_adds_less_than_20_ms_to_a_trial() {
    let script = format!("{PREFIX} {SAMPLE} {END}");
    // Beside the same program without the lab: on a busy machine that takes long, too.
    let (mut added, mut all_alone): (Vec<f64>, Vec<f64>) = (0..21)
        .map(|_| {
            let began = Instant::now();
            let alone = std::process::Command::new("/bin/sh")
                .args(["-c", &script])
                .output();
            assert!(alone.unwrap().status.success());
            let alone = began.elapsed();
            let finished = shell(&script, true, LIMIT);
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            (ms(finished.overhead.unwrap()) - ms(alone), ms(alone))
        })
        .unzip();
    added.sort_by(f64::total_cmp);
    all_alone.sort_by(f64::total_cmp);
    let (added, alone) = (added[10], all_alone[10]);
    println!("added to a trial: median {added:.2} ms; alone {alone:.2} ms");
    assert!(added < 20.0 + 2.0 * alone, "{added} ms, {alone} ms alone");
}
