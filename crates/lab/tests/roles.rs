//! Trials of several roles: the lab holds the barriers between their processes, and a role that
//! fails in any way fails the trial in words, with all that was started.

mod processes;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use processes::processes_with;
use tare_lab::driver::{Invocation, Part, Role};
use tare_lab::experiment::{Metric, Statistic};
use tare_lab::placement::Local;
use tare_lab::protocol::READY_MAX;
use tare_lab::sample::Outcome;
use tare_lab::trial::{self, Finished};
use tare_lab::unit::{Better, Unit};

/// The beginning of every script of these tests. `ready` waits for the start command, `measured`
/// and `stopped` for the drain command; each leaves a line in the file `trace` of its folder.
const WORDS: &str = r#"
    trace() { echo "$ROLE $1" >> trace; }
    hear() { read -r line && trace "hears $line"; }
    say() { trace "says $1"; printf '{"type":"%s"%s}\n' "$1" "$2"; }
    version() { say version ',"protocol":1,"program":"sh"'; }
    ready() { version; say ready ",\"data\":{\"of\":\"$ROLE\"}"; hear; }
    sample() { say sample ",\"metric\":\"$1\",\"value\":$2,\"unit\":\"ms\""; }
    counters() { say counters ",\"counters\":{$1}"; }
    measured() { say start; sample time 2; say 'done'; hear; }
    stopped() { hear; say 'done'; hear; }
"#;

const CLIENT: &str = r#"ready; measured; counters '"operations":5'; say end"#;
const NODE: &str = r#"ready; stopped; counters '"served":5'; say end"#;

/// The limit of roles that are to end before it, also where they wait for a processor.
const LIMIT: Duration = Duration::from_secs(90);

fn part(name: &str, script: &str, folder: &Path) -> Part {
    Part {
        role: Role {
            name: name.into(),
            same_host: false,
        },
        invocation: Invocation {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), format!("{WORDS} {script}").into()],
            environment: [("ROLE".into(), name.into())].into(),
            directory: Some(folder.into()),
            speaks_protocol: true,
            limit: LIMIT,
            ..Invocation::default()
        },
    }
}

fn metric(name: &str) -> Metric {
    Metric {
        name: name.into(),
        statistic: Statistic::Median,
        across: Statistic::Median,
        from: None,
        unit: Unit::Seconds,
        better: Better::Lower,
        work: None,
    }
}

fn run(parts: &[Part], metrics: &[&str]) -> Finished {
    let metrics: Vec<Metric> = metrics.iter().map(|name| metric(name)).collect();
    let here = Local::new().unwrap();
    trial::run(here, parts, &metrics, &|| false, &mut |_| {})
}

/// Runs a client and a node in a folder of their own.
fn pair(client: &str, node: &str) -> Finished {
    let folder = tempfile::tempdir().unwrap();
    let parts = [
        part("client", client, folder.path()),
        part("node", node, folder.path()),
    ];
    run(&parts, &["time"])
}

fn reason(finished: &Finished) -> &str {
    match &finished.outcome {
        Some(Outcome::Failed { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_barriers_are_passed_in_order_and_every_role_learns_what_the_others_are_ready_with() {
    let slow = "sleep 0.2; ready; hear; sleep 0.2; say 'done'; hear; sleep 0.2; say end";
    barriers_hold(slow, NODE, ("right.served", 5));
    barriers_hold(NODE, slow, ("left.served", 5));
}

fn barriers_hold(left: &str, right: &str, served: (&str, u64)) {
    let folder = tempfile::tempdir().unwrap();
    let parts = [
        part("tester", CLIENT, folder.path()),
        part("left", left, folder.path()),
        part("right", right, folder.path()),
    ];
    let finished = run(&parts, &["time"]);
    let Some(Outcome::Done {
        values, counters, ..
    }) = &finished.outcome
    else {
        panic!("{finished:?}")
    };
    assert_eq!(values["time"], 0.002);
    let counted: Vec<(&str, u64)> = counters.iter().map(|(n, c)| (n.as_str(), *c)).collect();
    let mut expected = [("operations", 5), served];
    expected.sort();
    assert_eq!(counted, expected);

    let trace = fs::read_to_string(folder.path().join("trace")).unwrap();
    let place = |line: &str| {
        let found = trace.lines().position(|one| one == line);
        found.unwrap_or_else(|| panic!("no line {line:?} in\n{trace}"))
    };
    let start = r#"hears {"type":"start","roles":{"left":{"of":"left"},"right":{"of":"right"},"tester":{"of":"tester"}}}"#;
    let (stop, drain) = (r#"hears {"type":"stop"}"#, r#"hears {"type":"drain"}"#);
    let all = ["tester", "left", "right"];
    for role in all {
        for other in all {
            let before = |first: &str, then: &str| {
                let (first, then) = (format!("{role} {first}"), format!("{other} {then}"));
                assert!(place(&first) < place(&then), "{first} < {then} in\n{trace}");
            };
            before("says ready", start);
            before("says done", drain);
            if role == "tester" && other != "tester" {
                before("says done", stop);
            }
        }
    }
    assert!(!trace.contains(&format!("tester {stop}")), "{trace}");
    assert_eq!(trace.matches(stop).count(), 2);
    assert_eq!(trace.matches(drain).count(), 3);
}

#[test]
fn what_a_role_counts_while_it_drains_is_counted() {
    let client =
        r#"ready; say start; say 'done'; hear; sample time 3; counters '"lost":1'; say end"#;
    let node = r#"ready; counters '"lost":7'; stopped; counters '"lost":8'; say end"#;
    let finished = pair(client, node);
    let Some(Outcome::Done {
        values, counters, ..
    }) = &finished.outcome
    else {
        panic!("{finished:?}")
    };
    assert_eq!(values["time"], 0.003);
    assert_eq!((counters["lost"], counters["node.lost"]), (1, 8));
}

#[test]
fn roles_give_different_metrics_and_never_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let parts = |of_node: &str| {
        let node = format!("ready; sample {of_node} 4; stopped; say end");
        [
            part("client", CLIENT, folder.path()),
            part("node", &node, folder.path()),
        ]
    };
    let finished = run(&parts("service"), &["time", "service"]);
    let Some(Outcome::Done { values, .. }) = &finished.outcome else {
        panic!("{finished:?}")
    };
    assert_eq!((values["time"], values["service"]), (0.002, 0.004));
    let finished = run(&parts("time"), &["time"]);
    assert_eq!(
        reason(&finished),
        "found samples of metric \"time\" from the roles \"client\" and \"node\", \
         expected them from one"
    );
    let named = r#"ready; measured; counters '"node.served":1'; say end"#;
    let finished = pair(named, NODE);
    let expected = "found a counter \"node.served\" of the roles \"client\" and \"node\"";
    assert!(reason(&finished).contains(expected), "{finished:?}");
}

#[test]
fn a_role_that_fails_is_named_with_the_step_and_its_output_is_in_the_log() {
    let huge = "head -c 100000 /dev/zero | tr '\\0' x";
    let large = format!(
        "version; say ready \",\\\"data\\\":{{\\\"x\\\":\\\"$(head -c {READY_MAX} /dev/zero | tr '\\0' y)\\\"}}\"; hear"
    );
    // The node's script, and what is said of it.
    let cases = [
        ("exit 7", "node: it exited with status 7, before every role was ready"),
        (
            "version; exit 0",
            "node: its output stopped after 1 lines, without an end message, before every role was ready",
        ),
        ("kill -SEGV $$", "node: it was ended by signal 11, before every role was ready"),
        ("ready; exit 8", "node: it exited with status 8, during the measurement"),
        ("ready; hear; exit 9", "node: it exited with status 9, after the stop command"),
        ("ready; stopped; exit 5", "node: it exited with status 5, after the drain command"),
        ("ready; stopped; say end; exit 6", "node: it exited with status 6, after the drain command"),
        ("echo hello", "node: line 1 of its output: found \"hello\", expected a message"),
        ("ready; echo hello; hear", "node: line 3 of its output: found \"hello\""),
        (huge, "node: found a line of over 65536 bytes in its output"),
        (&large, "of data in a ready message, expected at most 4096"),
        ("version; say ready ',\"data\":7'; hear", "node: line 2 of its output: found"),
        ("version; say start; hear", "expected a ready message"),
        ("ready; hear; say end; sleep 200", "expected sample, counters or done"),
        (
            "version; say error ',\"message\":\"no room\"'",
            "node: no room",
        ),
    ];
    for (script, expected) in cases {
        let began = Instant::now();
        let client = match expected.contains("measurement") {
            true => "ready; say start; sleep 200",
            false => CLIENT,
        };
        let finished = pair(client, &format!("echo why >&2; {script}"));
        let reason = reason(&finished);
        assert!(reason.contains(expected), "{script}: {reason}");
        assert!(reason.starts_with("node: "), "{script}: {reason}");
        let log = String::from_utf8_lossy(&finished.log);
        let (client, node) = log.split_once("-- role node --\n").expect(script);
        assert!(client.starts_with("-- role client --\n"), "{script}: {log}");
        assert!(
            node.contains("-- standard error --\nwhy\n"),
            "{script}: {log}"
        );
        assert_eq!(finished.errors, b"why\n", "{script}");
        assert!(began.elapsed() < LIMIT, "{script}");
    }
}

#[test]
fn a_role_that_lacks_something_makes_the_cell_not_testable() {
    let lacking = r#"version; say error ',"message":"no RDMA","missing":true,"remedy":"a card"'"#;
    let finished = pair(CLIENT, lacking);
    let expected = Outcome::NotTestable {
        reason: "node: no RDMA".into(),
        remedy: Some("a card".into()),
    };
    assert_eq!(finished.outcome, Some(expected));
}

#[test]
fn a_role_that_fails_because_another_died_is_named_with_it() {
    // Something holds the node's output open, so the client mostly notices first that the node is
    // gone. Where it has no processor for half a second, the lab does.
    let client = r#"ready; say start; read -r pid < pid
        state=R; while [ "$state" != Z ]; do read -r _ _ state _ < "/proc/$pid/stat"; done
        say error ',"message":"no answer"'"#;
    let node = "setsid sleep 200 & echo $$ > pid; ready; kill -SEGV $$";
    let finished = pair(client, node);
    let reasons = [
        "client: no answer; node: it was ended by signal 11",
        "node: it was ended by signal 11, during the measurement",
    ];
    assert!(reasons.contains(&reason(&finished)), "{finished:?}");
}

#[test]
fn each_barrier_has_a_limit_and_the_late_role_is_named() {
    let cases = [
        (
            CLIENT,
            "version; sleep 200",
            "node: it was not ready within its limit of {limit} s",
        ),
        (
            "ready; say start; sleep 200",
            NODE,
            "client: it was not done within its limit of {limit} s",
        ),
        (
            CLIENT,
            "ready; sleep 200",
            "node: after the stop command it was not done within its limit of {limit} s",
        ),
        (
            CLIENT,
            "ready; stopped; sleep 200",
            "node: after the drain command it did not end within its limit of {limit} s",
        ),
        (
            "ready; measured; sleep 200",
            NODE,
            "client: after the drain command it did not end within its limit of {limit} s",
        ),
        (
            CLIENT,
            "ready; stopped; say end; sleep 200",
            "node: it did not exit within 30 s of its last message, or its limit of {limit} s",
        ),
    ];
    for (client, node, expected) in cases {
        let mut reasons = Vec::new();
        let is_named = |seconds: f64| {
            let folder = tempfile::tempdir().unwrap();
            let limited = |name: &str, script: &str| {
                let mut part = part(name, script, folder.path());
                // On a busy machine the other role may need longer for what it does.
                if expected.starts_with(name) {
                    part.invocation.limit = Duration::from_secs_f64(seconds);
                }
                part
            };
            let began = Instant::now();
            let parts = [limited("client", client), limited("node", node)];
            let finished = run(&parts, &["time"]);
            assert!(began.elapsed() < LIMIT, "{expected}");
            reasons.push(reason(&finished).to_owned());
            reason(&finished) == expected.replace("{limit}", &seconds.to_string())
        };
        // And this role may not come so far within the shorter limits.
        let is_named = [0.5, 3.0, 20.0].into_iter().any(is_named);
        assert!(is_named, "{expected}: {reasons:?}");
    }
}

#[test]
fn a_limit_is_that_of_each_step_and_the_others_may_take_theirs() {
    let is_done = |seconds: f64| {
        let folder = tempfile::tempdir().unwrap();
        let (short, long) = (0.5 * seconds, 1.4 * seconds);
        let client =
            format!("ready; say start; sleep {long}; sample time 2; say 'done'; hear; say end");
        let node = format!(
            "sleep {short}; ready; hear; sleep {short}; say 'done'; hear; sleep {short}; say end"
        );
        let mut node = part("node", &node, folder.path());
        node.invocation.limit = Duration::from_secs_f64(seconds);
        let parts = [part("client", &client, folder.path()), node];
        let finished = run(&parts, &["time"]);
        let is_done = matches!(finished.outcome, Some(Outcome::Done { .. }));
        if !is_done {
            eprintln!("limit of {seconds} s: {finished:?}");
        }
        is_done
    };
    // A busy machine may take longer than the shorter limits for a step.
    assert!([1.5, 6.0, 20.0].into_iter().any(is_done));
}

#[test]
fn a_process_that_holds_an_output_open_delays_no_other_role() {
    let client = format!("setsid sleep 200 & {CLIENT}");
    let node = "ready; stopped; sleep 1; say end";
    let began = Instant::now();
    let finished = pair(&client, node);
    assert!(
        matches!(finished.outcome, Some(Outcome::Done { .. })),
        "{finished:?}"
    );
    assert!(began.elapsed() < LIMIT);
}

#[test]
fn a_role_that_never_reads_its_commands_delays_no_other() {
    // Every role is ready with as much as it may be, which is more than a pipe holds.
    let filler = "y".repeat(READY_MAX - 10);
    let verbose = |script: &str| {
        let data = format!(",\\\"data\\\":{{\\\"x\\\":\\\"{filler}\\\"}}");
        format!("version; say ready \"{data}\"; {script}")
    };
    let deaf = verbose("sleep 200");
    let mut reasons = Vec::new();
    let is_named = |seconds: u64| {
        let folder = tempfile::tempdir().unwrap();
        let mut parts = vec![part("client", "ready; measured; say end", folder.path())];
        for place in 0..20 {
            parts.push(part(&format!("node{place}"), &deaf, folder.path()));
        }
        for part in &mut parts {
            part.invocation.limit = Duration::from_secs(seconds);
        }
        let finished = run(&parts, &["time"]);
        reasons.push(reason(&finished).to_owned());
        let expected = "node0: after the stop command it was not done within its limit of";
        reason(&finished) == format!("{expected} {seconds} s")
    };
    // A busy machine may not start so many within the shorter limits.
    assert!([3, 12, 50].into_iter().any(is_named), "{reasons:?}");
}

#[test]
fn nothing_of_a_failed_or_interrupted_trial_of_several_roles_is_left() {
    let marker = format!("{}", 6_000_000 + std::process::id());
    let leave = format!("setsid sleep {marker} & sleep {marker} &");
    let folder = tempfile::tempdir().unwrap();
    let client = format!("{leave} ready; say start; sleep {marker}");
    let failing = [
        part("client", &client, folder.path()),
        part("node", &format!("{leave} ready; exit 3"), folder.path()),
    ];
    assert!(reason(&run(&failing, &["time"])).contains("node: it exited with status 3"));
    assert_eq!(processes_with(&marker), 0);

    let hanging = [
        part("client", &client, folder.path()),
        part("node", &format!("{leave} {NODE}"), folder.path()),
    ];
    let began = Instant::now();
    let finished = trial::run(
        Local::new().unwrap(),
        &hanging,
        &[metric("time")],
        &|| began.elapsed() > Duration::from_millis(500),
        &mut |_| {},
    );
    assert!(finished.outcome.is_none(), "{finished:?}");
    assert!(began.elapsed() < LIMIT);
    assert_eq!(processes_with(&marker), 0);
}

#[test]
fn each_role_is_prepared_before_any_starts_and_tidied_up_after_all_have_ended() {
    let folder = tempfile::tempdir().unwrap();
    let command = |script: &str| vec!["/bin/sh".into(), "-c".into(), script.into()];
    let around = |name: &str, script: &str, prepare: &str| {
        let mut part = part(name, script, folder.path());
        part.invocation.prepare = command(&format!("echo $ROLE prepare >> trace; {prepare}"));
        part.invocation.cleanup = command("echo $ROLE cleanup >> trace");
        part
    };
    let steps = || {
        let trace = fs::read_to_string(folder.path().join("trace")).unwrap();
        let steps = ["prepare", "says version", "cleanup"];
        let kept = |line: &&str| steps.iter().any(|step| line.ends_with(step));
        trace
            .lines()
            .filter(kept)
            .map(String::from)
            .collect::<Vec<_>>()
    };
    let parts = [around("client", CLIENT, ""), around("node", NODE, "")];
    let finished = run(&parts, &["time"]);
    assert!(
        matches!(finished.outcome, Some(Outcome::Done { .. })),
        "{finished:?}"
    );
    let mut steps_of_one = steps();
    steps_of_one[2..4].sort();
    assert_eq!(
        steps_of_one,
        [
            "client prepare",
            "node prepare",
            "client says version",
            "node says version",
            "node cleanup",
            "client cleanup"
        ]
    );
    let parts = [around("client", CLIENT, ""), around("node", NODE, "exit 4")];
    let finished = run(&parts, &["time"]);
    assert_eq!(reason(&finished), "node: prepare: it exited with status 4");
    assert_eq!(
        steps()[6..],
        [
            "client prepare",
            "node prepare",
            "node cleanup",
            "client cleanup"
        ]
    );
}

#[test]
fn what_the_kernel_counts_is_that_of_the_role_that_measures() {
    let busy = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let folder = tempfile::tempdir().unwrap();
    let cpu_time = |client: &str, node: &str| {
        let parts = [
            part("client", client, folder.path()),
            part("node", node, folder.path()),
        ];
        match run(&parts, &["cpu_time"]).outcome {
            Some(Outcome::Done { values, .. }) => values["cpu_time"],
            other => panic!("{other:?}"),
        }
    };
    let of_node = cpu_time(CLIENT, &format!("ready; {busy}; stopped; say end"));
    let of_client = cpu_time(&format!("{busy}; {CLIENT}"), NODE);
    assert!(of_client > 3.0 * of_node, "{of_client} and {of_node} s");
}

#[test]
fn roles_that_no_trial_can_have_are_refused() {
    let folder = Path::new("/");
    let twice = [part("node", NODE, folder), part("node", NODE, folder)];
    assert_eq!(
        reason(&run(&twice, &[])),
        "the driver names the role \"node\" twice"
    );
    let mut silent = [part("client", CLIENT, folder), part("node", NODE, folder)];
    silent[1].invocation.speaks_protocol = false;
    assert!(reason(&run(&silent, &[])).contains("\"node\" must speak the protocol"));
    assert_eq!(reason(&run(&[], &[])), "the driver names no role");
    let mut absent = [part("client", CLIENT, folder), part("node", NODE, folder)];
    absent[1].invocation.program = "/no-such-program".into();
    let finished = run(&absent, &[]);
    assert!(reason(&finished).starts_with("node: /no-such-program could not be started: "));
}
