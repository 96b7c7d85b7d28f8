//! Traces, checked and replayed against a server in this process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tare_load::protocol::{Http, Resp, RespVersion};
use tare_load::{run, run_with, Intervals, Options, Pace, Record, Target, Trace, TraceKind};

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("requests.trace");
    std::fs::write(&path, text).unwrap();
    (directory, path)
}

type Lines = Arc<Mutex<Vec<(Instant, String)>>>;

/// A server that answers each line with `end` with `answer`, and notes when which line arrived.
fn server(end: &'static str, answer: &'static str) -> (Target, Lines) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let lines = Lines::default();
    let noted = Arc::clone(&lines);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let noted = Arc::clone(&noted);
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                    let Ok(line) = line else { return };
                    if line.contains(end) {
                        noted.lock().unwrap().push((Instant::now(), line));
                        if stream.write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    (Target { address, tls: None }, lines)
}

fn options(trace: Trace) -> Options {
    Options {
        connections: 4,
        trace: Some(trace),
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(60),
        timeout: Duration::from_secs(60),
        ..Options::default()
    }
}

fn replay(target: &Target, options: &Options) -> Record {
    let http = Http::new("localhost", &["/".into()], &[]).unwrap();
    run(target, &http, options, &AtomicBool::new(false)).unwrap()
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[test]
fn each_line_of_a_trace_is_sent_once_whatever_the_number_of_threads() {
    let paths: Vec<String> = (0..999).map(|n| format!("/{n}?q")).collect();
    let text: String = paths.iter().map(|path| format!("GET {path}\n")).collect();
    let (_directory, path) = file(text.trim_end());
    for threads in [1, 3] {
        let trace = Trace::check(&path, TraceKind::Http).unwrap();
        assert_eq!((trace.requests(), trace.is_timed()), (999, false));
        let (target, lines) = server("GET ", OK);
        let begin = Instant::now();
        let record = replay(
            &target,
            &Options {
                threads,
                ..options(trace)
            },
        );
        // It ends with the trace.
        assert!(begin.elapsed() < Duration::from_secs(60));
        assert_eq!(
            (record.served, record.scheduled, record.issued),
            (999, 999, 999)
        );
        assert_eq!(record.unissued(), 0);
        let mut expected: Vec<String> = paths.iter().map(|p| format!("GET {p} HTTP/1.1")).collect();
        let lines = lines.lock().unwrap();
        let mut found: Vec<String> = lines.iter().map(|(_, line)| line.clone()).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }
}

#[test]
fn times_of_a_trace_are_those_of_its_requests() {
    let text =
        "1700000000.5 GET /a\n1700000000.5 GET /b\n1700000000.9 GET /c\n1700000001.1 GET /d\n";
    let (_directory, path) = file(text);
    let trace = Trace::check(&path, TraceKind::Http).unwrap();
    assert!(trace.is_timed());
    let (target, lines) = server("GET ", OK);
    let options = Options {
        pace: Pace::Trace,
        threads: 2,
        ..options(trace)
    };
    // On a busy machine requests arrive late, but not in each of several trials.
    let mut seen = Vec::new();
    let is_in_time = |_| {
        let record = replay(&target, &options);
        assert_eq!((record.served, record.unissued()), (4, 0));
        assert_eq!(record.lateness.count(), 4);
        let mut lines = std::mem::take(&mut *lines.lock().unwrap());
        lines.sort();
        let path = |n: usize| lines[n].1.split(' ').nth(1).unwrap();
        let at = |n: usize| (lines[n].0 - lines[0].0).as_secs_f64();
        seen.push([1, 2, 3].map(at));
        let are_near = [(1, 0.0), (2, 0.4), (3, 0.6)]
            .iter()
            .all(|(n, expected)| (at(*n) - expected).abs() < 0.15);
        lines.len() == 4 && are_near && [path(2), path(3)] == ["/c", "/d"]
    };
    assert!((0..10).any(is_in_time), "{seen:?}");
    // One connection, and a server that is slower than the trace: what is late is still sent.
    let slow = Options {
        connections: 1,
        threads: 1,
        duration: Duration::from_millis(500),
        ..options
    };
    let record = replay(&target, &slow);
    assert_eq!((record.scheduled, record.served), (3, 3));
}

#[test]
fn writes_and_reads_of_a_trace_have_its_keys_and_lengths() {
    let (_directory, path) = file("SET user:1 5\r\nGET user:1\r\nGET \u{e9}\r\n");
    let error = Trace::check(&path, TraceKind::KeyValue).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("requests.trace:3: found \"GET é\""),
        "{error}"
    );
    let (_directory, path) = file("SET user:1 5\nGET user:1\n");
    let trace = Trace::check(&path, TraceKind::KeyValue).unwrap();
    let (target, lines) = server("user:1", "+OK\r\n");
    let options = Options {
        connections: 1,
        ..options(trace)
    };
    let resp = Resp::new(RespVersion::Two);
    let record = run(&target, &resp, &options, &AtomicBool::new(false)).unwrap();
    assert_eq!((record.served, lines.lock().unwrap().len()), (2, 2));
    let set = "*3\r\n$3\r\nSET\r\n$6\r\nuser:1\r\n$5\r\nabcde\r\n".len();
    let get = "*2\r\n$3\r\nGET\r\n$6\r\nuser:1\r\n".len();
    assert_eq!(record.sent_bytes, (set + get) as u64);
}

#[test]
fn wrong_lines_are_refused_with_file_and_line() {
    let long = format!("GET {}", "k".repeat(251));
    let endless = "x".repeat(20_000);
    for (kind, text, line, said) in [
        (TraceKind::Http, "", 1, "expected a request"),
        (TraceKind::Http, "GET /\n\nGET /\n", 2, "GET /PATH"),
        (TraceKind::Http, "GET a\n", 1, "GET /PATH"),
        (TraceKind::Http, "SET / 3\n", 1, "GET /PATH"),
        (TraceKind::Http, "GET / HTTP/1.1\n", 1, "GET /PATH"),
        (
            TraceKind::Http,
            "1 GET /\nGET /\n",
            2,
            "a time on each line or on none",
        ),
        (
            TraceKind::Http,
            "GET /\n1 GET /\n",
            2,
            "a time on each line or on none",
        ),
        (TraceKind::Http, "2 GET /\n1.9 GET /\n", 2, "not before"),
        (TraceKind::Http, "1x GET /\n", 1, "GET /PATH"),
        (TraceKind::Http, "9e99 GET /\n", 1, "GET /PATH"),
        (TraceKind::KeyValue, "GET a\nSET a\n", 2, "SET KEY BYTES"),
        (TraceKind::KeyValue, "SET a -1\n", 1, "SET KEY BYTES"),
        (TraceKind::KeyValue, "SET a 536870913\n", 1, "SET KEY BYTES"),
        (
            TraceKind::Datagrams,
            "SET a 65000\nSET a 65001\n",
            2,
            "a request is one datagram",
        ),
        (TraceKind::KeyValue, "DEL a\n", 1, "SET KEY BYTES"),
        (TraceKind::KeyValue, &long, 1, "SET KEY BYTES"),
        (TraceKind::KeyValue, &endless, 1, "at most 16 KiB"),
    ] {
        let (_directory, path) = file(text);
        let error = Trace::check(&path, kind).unwrap_err().to_string();
        let place = format!("requests.trace:{line}: found ");
        assert!(error.contains(&place) && error.contains(said), "{error}");
        assert!(error.len() < 300 && !error.contains('\n'), "{error}");
    }
    let error = Trace::check("/dev/null".as_ref(), TraceKind::Http).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("/dev/null: found no regular file"),
        "{error}"
    );
    let error = Trace::check("/absent".as_ref(), TraceKind::Http).unwrap_err();
    assert!(error.to_string().contains("/absent"), "{error}");
}

#[test]
fn a_trace_that_loses_lines_while_it_is_replayed_is_an_error() {
    let (_directory, path) = file(&"GET /\n".repeat(1000));
    let trace = Trace::check(&path, TraceKind::Http).unwrap();
    std::fs::write(&path, "GET /\n".repeat(10)).unwrap();
    let (target, _) = server("GET ", OK);
    let http = Http::new("localhost", &["/".into()], &[]).unwrap();
    let error = run(&target, &http, &options(trace), &AtomicBool::new(false)).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("requests.trace:10: found \"the end of the file\""),
        "{error}"
    );
}

#[test]
fn a_trace_of_megabytes_is_checked_in_bounded_memory() {
    let text: String = (0..200_000)
        .map(|n| format!("{n} SET key-{n} 100\n"))
        .collect();
    let (_directory, path) = file(&text);
    let mut requests = 0;
    let memory = allocation_counter::measure(|| {
        requests = Trace::check(&path, TraceKind::KeyValue).unwrap().requests();
    });
    assert_eq!(requests, 200_000);
    assert!(memory.bytes_max < 64 << 10, "{memory:?}");
}

#[test]
fn intervals_add_up_to_the_trial() {
    let (target, _) = server("GET ", OK);
    let trial = |threads, duration| {
        let seen: Arc<Mutex<Vec<_>>> = Arc::default();
        let noted = Arc::clone(&seen);
        let intervals = Intervals::new(Duration::from_millis(100), move |begin, length, part| {
            noted.lock().unwrap().push((begin, length, part.clone()));
            Ok(())
        });
        let options = Options {
            threads,
            connections: 3,
            pace: Pace::Constant(2000.0),
            warm_up: Duration::from_millis(100),
            duration: Duration::from_millis(duration),
            timeout: Duration::from_secs(60),
            ..Options::default()
        };
        let http = Http::new("localhost", &["/".into()], &[]).unwrap();
        let stop = AtomicBool::new(false);
        let record = run_with(&target, &http, &options, &stop, Some(&intervals)).unwrap();
        let seen = seen.lock().unwrap();
        let begins: Vec<u128> = seen.iter().map(|part| part.0.as_millis()).collect();
        assert_eq!(begins, [0, 100, 200, 300, 400]);
        let length: Duration = seen.iter().map(|part| part.1).sum();
        assert_eq!(length, Duration::from_millis(duration));
        let mut merged = tare_histogram::Histogram::new();
        seen.iter().for_each(|part| merged.merge(&part.2));
        assert_eq!(merged, record.latency);
        seen.iter().filter(|part| !part.2.is_empty()).count()
    };
    for (threads, duration) in [(1, 500), (3, 450)] {
        // A busy machine may answer all of them in one interval, but not in each of ten trials.
        assert!((0..10).any(|_| trial(threads, duration) > 1));
    }
    let failing = Intervals::new(Duration::from_millis(20), |_, _, _| {
        Err(std::io::Error::other("the disk is full"))
    });
    let options = Options {
        warm_up: Duration::ZERO,
        duration: Duration::from_millis(100),
        ..Options::default()
    };
    let http = Http::new("localhost", &["/".into()], &[]).unwrap();
    let stop = AtomicBool::new(false);
    let error = run_with(&target, &http, &options, &stop, Some(&failing)).unwrap_err();
    assert_eq!(error.to_string(), "the disk is full");
}
