use super::*;
use crate::unit::Better;

fn metric(statistic: Statistic) -> Metric {
    Metric {
        name: "throughput".into(),
        statistic,
        across: Statistic::Median,
        from: None,
        unit: Unit::MebibytesPerSecond,
        better: Better::Higher,
        work: Some("bytes".into()),
    }
}

fn converse(lines: &[&str]) -> Result<Findings, Violation> {
    let mut conversation = Conversation::new(Position::Alone);
    for line in lines {
        conversation.hear(line.as_bytes())?;
    }
    conversation.finish(&[metric(Statistic::Median)])
}

const VERSION: &str = r#"{"type":"version","protocol":1,"program":"p 1"}"#;
const START: &str = r#"{"type":"start"}"#;
const END: &str = r#"{"type":"end"}"#;

#[test]
fn a_proper_conversation_gives_values_in_the_metrics_unit() {
    let findings = converse(&[
        VERSION,
        START,
        r#"{"type":"progress","done":0.5}"#,
        r#"{"type":"sample","metric":"throughput","value":1048576,"unit":"B/s"}"#,
        r#"{"type":"sample","metric":"throughput","value":3,"unit":"MiB/s"}"#,
        r#"{"type":"counters","counters":{"bytes":1,"operations":1}}"#,
        r#"{"type":"counters","counters":{"bytes":9}}"#,
        END,
    ])
    .unwrap();
    let Findings::Done {
        values,
        samples,
        counters,
    } = findings
    else {
        panic!("{findings:?}")
    };
    assert_eq!(values["throughput"], 2.0);
    assert_eq!(samples["throughput"], [1.0, 3.0]);
    assert_eq!((counters["bytes"], counters["operations"]), (9, 1));
}

#[test]
fn a_ratio_may_be_negative() {
    let mut metric = metric(Statistic::Median);
    metric.unit = Unit::Ratio;
    let sample = r#"{"type":"sample","metric":"throughput","value":-12.5,"unit":"%"}"#;
    let mut conversation = Conversation::new(Position::Alone);
    for line in [VERSION, START, sample, END] {
        conversation.hear(line.as_bytes()).unwrap();
    }
    let Findings::Done { values, .. } = conversation.finish(&[metric]).unwrap() else {
        panic!("not done")
    };
    assert_eq!(values["throughput"], -0.125);
}

#[test]
fn notes_are_kept_by_name_and_bounded() {
    let mut conversation = Conversation::new(Position::Alone);
    let note = |name: &str, value: &str| {
        format!(r#"{{"type":"note","name":"{name}","value":{value}}}"#).into_bytes()
    };
    assert!(conversation.hear(&note("early", "1")).is_err());
    let mut conversation = Conversation::new(Position::Alone);
    conversation.hear(VERSION.as_bytes()).unwrap();
    conversation.hear(&note("guest", "[1]")).unwrap();
    conversation.hear(START.as_bytes()).unwrap();
    conversation.hear(&note("guest", "{\"vcpus\":4}")).unwrap();
    let notes = conversation.notes();
    assert_eq!((notes.len(), &notes["guest"]["vcpus"]), (1, &4.into()));
    let long = note("long", &format!("\"{}\"", "x".repeat(NOTE_MAX)));
    let long = conversation.hear(&long).unwrap_err().0;
    assert!(
        long.contains("found 16390 bytes in a note, expected at most 16384"),
        "{long}"
    );
    for n in 1..NOTES_MAX {
        conversation.hear(&note(&n.to_string(), "null")).unwrap();
    }
    let more = conversation.hear(&note("more", "null")).unwrap_err().0;
    assert!(more.contains("found more than 16 notes"), "{more}");
}

#[test]
fn every_breach_is_named_with_its_line() {
    let cases: &[(&[&str], &str)] = &[
            (&["hello"], "line 1 of its output: found \"hello\", expected a message"),
            (&[START], "line 1 of its output: found \"{\\\"type\\\":\\\"start\\\"}\", expected a version message first"),
            (
                &[r#"{"type":"version","protocol":7,"program":"p 1"}"#],
                "line 1 of its output: found protocol 7 (of \"p 1\"), expected 1",
            ),
            (&[VERSION, VERSION], "expected a start message"),
            (&[VERSION, END], "expected a start message"),
            (&[VERSION, START, START], "expected progress, sample, counters or end"),
            (&[VERSION, START, END, END], "after the end, expected nothing"),
            (&[VERSION, START, END], "ended without a sample of metric \"throughput\""),
            (&[VERSION, START], "its output stopped after 2 lines"),
            (&[VERSION, START, r#"{"type":"sample","metric":"throughput","value":1,"unit":"Hz"}"#, END], "Hz cannot be converted to MiB/s"),
            (&[VERSION, START, r#"{"type":"sample","metric":"throughput","value":1,"unit":"furlong"}"#], "found unit"),
            (&[VERSION, START, r#"{"type":"sample","metric":"throughput","value":1e999,"unit":"B/s"}"#], "line 3"),
            (&[VERSION, START, r#"{"type":"sample","metric":"throughput","value":-0.5,"unit":"MiB/s"}"#], "line 3 of its output: found -0.5 MiB/s, expected 0 or more"),
            (&[VERSION, START, r#"{"type":"sample","metric":"throughput","value":-1,"unit":"ns"}"#], "found -1 ns, expected 0 or more"),
            (&[VERSION, START, r#"{"type":"sample","metric":"throughput","value":1.7e308,"unit":"GiB/s"}"#, END], "metric \"throughput\": found inf"),
            (
                &[
                    VERSION,
                    START,
                    r#"{"type":"sample","metric":"throughput","value":1e200,"unit":"MiB/s"}"#,
                    END,
                ],
                "metric \"throughput\": found 1e200",
            ),
            (&[VERSION, START, r#"{"type":"counters","counters":{"bytes":-1}}"#], "line 3"),
        ];
    for (lines, expected) in cases {
        let error = converse(lines).unwrap_err().to_string();
        assert!(error.contains(expected), "{lines:?}: {error}");
    }
    let long = vec![b'x'; LINE_MAX + 1];
    assert!(Conversation::new(Position::Alone).hear(&long).is_err());
}

#[test]
fn a_role_of_several_waits_for_each_command_and_ends_after_all_are_done() {
    const READY: &str = r#"{"type":"ready","data":{"port":7}}"#;
    const DONE: &str = r#"{"type":"done"}"#;
    const COUNT: &str = r#"{"type":"counters","counters":{"bytes":1}}"#;
    const PROGRESS: &str = r#"{"type":"progress","done":0.5}"#;
    let commands = || {
        let roles = BTreeMap::new();
        [
            (">start", Command::Start { roles }),
            (">stop", Command::Stop {}),
            (">drain", Command::Drain {}),
        ]
    };
    let said = |position, lines: &[&str]| {
        let mut conversation = Conversation::new(position);
        for line in lines {
            match commands().iter().find(|(name, _)| name == line) {
                Some((_, command)) => conversation.told(command),
                None => _ = conversation.hear(line.as_bytes())?,
            }
        }
        conversation.check_over()
    };
    let measures: &[&str] = &[
        VERSION, READY, ">start", START, PROGRESS, COUNT, DONE, ">drain", COUNT, END,
    ];
    let serves: &[&str] = &[
        VERSION, READY, ">start", COUNT, ">stop", COUNT, DONE, ">drain", COUNT, END,
    ];
    assert_eq!(said(Position::Measures, measures), Ok(()));
    assert_eq!(said(Position::Serves, serves), Ok(()));
    let (measures, serves) = (Position::Measures, Position::Serves);
    let before_start = "expected nothing before the lab's start command";
    let before_drain = "expected nothing before the lab's drain command";
    let cases: &[(Position, &[&str], &str)] = &[
        (
            Position::Alone,
            &[VERSION, READY],
            "expected a start message",
        ),
        (Position::Alone, &[VERSION, START, DONE], "counters or end"),
        (measures, &[VERSION, START], "expected a ready message"),
        (measures, &[VERSION, READY, START], before_start),
        (
            measures,
            &[VERSION, READY, ">start", COUNT],
            "expected a start message",
        ),
        (
            measures,
            &[VERSION, READY, ">start", START, END],
            "counters or done",
        ),
        (
            measures,
            &[VERSION, READY, ">start", START, DONE, COUNT],
            before_drain,
        ),
        (
            measures,
            &[VERSION, READY, ">start", START, DONE, END],
            before_drain,
        ),
        (
            measures,
            &[VERSION, READY, ">start", START, DONE, ">drain", DONE],
            "counters or end",
        ),
        (serves, &[VERSION, READY, COUNT], before_start),
        (serves, &[VERSION, READY, READY], before_start),
        (
            serves,
            &[VERSION, READY, ">start", START],
            "before the lab's stop command",
        ),
        (
            serves,
            &[VERSION, READY, ">start", PROGRESS],
            "before the lab's stop command",
        ),
        (
            serves,
            &[VERSION, READY, ">start", DONE],
            "before the lab's stop command",
        ),
        (
            serves,
            &[VERSION, READY, ">start", END],
            "before the lab's stop command",
        ),
        (
            serves,
            &[VERSION, READY, ">start", ">stop", END],
            "counters or done",
        ),
        (
            serves,
            &[VERSION, READY, ">start", ">stop", DONE, END],
            before_drain,
        ),
        (
            serves,
            &[VERSION, READY, ">start", ">stop"],
            "without an end message",
        ),
    ];
    for (position, lines, expected) in cases {
        let error = said(*position, lines).unwrap_err().to_string();
        assert!(error.contains(expected), "{position:?} {lines:?}: {error}");
    }
}

#[test]
fn a_trial_may_say_that_the_machine_lacks_something() {
    let findings = converse(&[
        VERSION,
        r#"{"type":"error","message":"no RDSEED","missing":true,"remedy":"another CPU"}"#,
    ]);
    assert_eq!(
        findings,
        Ok(Findings::Error(Refusal {
            message: "no RDSEED".into(),
            missing: true,
            remedy: Some("another CPU".into())
        }))
    );
}

#[test]
fn statistics_of_a_trial() {
    let samples = [4.0, 1.0, 3.0, 2.0];
    assert_eq!(Statistic::Median.of(&samples), Some(2.5));
    assert_eq!(Statistic::Mean.of(&samples), Some(2.5));
    assert_eq!(Statistic::P50.of(&samples), Some(2.0));
    assert_eq!(Statistic::P999.of(&samples), Some(4.0));
    assert_eq!(Statistic::Min.of(&samples), Some(1.0));
    assert_eq!(Statistic::Max.of(&[]), None);
}

proptest::proptest! {
    #[test]
    fn no_output_makes_the_reader_panic(lines: Vec<Vec<u8>>, valid in 0usize..4) {
        let mut conversation = Conversation::new(Position::Alone);
        for line in [VERSION, START, END].iter().take(valid) {
            let _ = conversation.hear(line.as_bytes());
        }
        for line in &lines {
            let _ = conversation.hear(line);
        }
        let _ = conversation.finish(&[metric(Statistic::P99)]);
    }
}
