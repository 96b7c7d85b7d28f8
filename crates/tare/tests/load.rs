//! `tare load` as users run it: the built program, its output and its exit status.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tare"));
    command.arg("load").args(arguments).stdin(Stdio::null());
    command.output().expect("tare runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server that answers everything that arrives at once with the same bytes.
fn server(answer: &'static [u8], delay: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let mut stream = stream.unwrap();
                while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                    thread::sleep(delay);
                    stream.write_all(answer).unwrap();
                }
            });
        }
    });
    address
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn an_open_loop_is_reported_to_people_and_to_programs() {
    let url = format!("http://{}/", server(OK, Duration::ZERO));
    let load = [
        "http", &url, "-c", "4", "-r", "200", "-d", "0.5", "-w", "0.1",
    ];
    let done = run(&[&load[..], &["--json", "--seed", "7"]].concat());
    let result: Value = serde_json::from_slice(&done.stdout).unwrap();
    // On a busy machine the generator may fall behind, and says so.
    let code = i32::from(!result["invalid"].is_null());
    let error = text(&done.stderr);
    assert_eq!(done.status.code(), Some(code), "{error}");
    assert_eq!(error.contains("the generator fell behind"), code == 1);
    let count = |name: &str| result[name].as_u64().unwrap();
    assert_eq!(count("scheduled"), 100);
    assert_eq!(count("issued") + count("unissued"), 100);
    let ended = ["served", "misses", "refused", "failed", "timed_out"].map(count);
    assert_eq!(ended.iter().sum::<u64>(), count("issued"));
    assert_eq!(result["bytes_per_response"], 43.0);
    assert_eq!(count("body_bytes"), 5 * count("served"));
    assert_eq!(
        (&result["seed"], &result["loop"]),
        (&Value::from(7), &Value::from("open"))
    );
    assert!(result["latency"]["p99_ns"].as_u64().unwrap() > 0);
    assert!(result["latency_histogram"]["counts"].is_array());
    let table = text(&run(&load).stdout);
    for said in [
        "200 requests per second",
        "100 scheduled = ",
        "lateness",
        "43 B",
        "p99.9",
    ] {
        assert!(table.contains(said), "{said}: {table}");
    }
}

#[test]
fn errors_of_the_server_are_counted_and_the_first_is_told() {
    let busy = b"-LOADING the data set\r\n";
    let address = server(busy, Duration::ZERO).to_string();
    let done = run(&["resp", &address, "-d", "0.2", "-w", "0"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let table = text(&done.stdout);
    assert!(table.contains("0 served, 0 misses"), "{table}");
    assert!(
        table.contains("the first one: LOADING the data set"),
        "{table}"
    );
    let filled = run(&["resp", &address, "--fill", "--keys", "100", "-d", "0.2"]);
    assert_eq!(filled.status.code(), Some(2));
    assert!(text(&filled.stderr).contains("--fill: found 0 of 100 keys written: LOADING"));
}

#[test]
fn what_is_wrong_is_one_line_and_exit_code_2() {
    let address = server(b"SSH-2.0\r\n", Duration::ZERO);
    let ssh = format!("http://{address}/");
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    for (arguments, said) in [
        (
            &["http", &ssh, "-d", "1"][..],
            "expected the header of an HTTP response",
        ),
        (&["memcached", &free, "-d", "1"], "refused"),
        (
            &["http", "http://127.0.0.1/", "http://127.0.0.2/"],
            "expected URLs of one server",
        ),
        (&["http", "ftp://a/"], "expected http://HOST"),
        (
            &["http", &ssh, "-H", "a b: c"],
            "expected the name of a header field",
        ),
        (&["resp", "127.0.0.1:x"], "expected HOST or HOST:PORT"),
        (
            &["resp", "127.0.0.1", "-t", "4", "-c", "2"],
            "expected at least one for each",
        ),
        (
            &["resp", "127.0.0.1", "--ratio", "0:0"],
            "expected writes and reads",
        ),
        (&["resp", "127.0.0.1", "--poisson"], "--rate"),
        (
            &["resp", "127.0.0.1", "--tls", "--cacert", "/absent.pem"],
            "/absent.pem",
        ),
    ] {
        let done = run(arguments);
        let error = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
}
