//! A host with clients, well-behaved and hostile.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, CWD};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use tare_daemon::{Asked, Endpoints, Host, Level, LogOptions, Metrics, ProcessStatus, Signals};

tare_daemon::reasons! {
    /// Reasons.
    pub enum Why {
        /// One.
        One => "one",
        /// Two.
        Two => "two",
    }
}

tare_daemon::counters! {
    /// Counters.
    pub struct Counters {
        steps => "steps_total": "Steps done",
        bytes: "Bytes seen";
        /// By reason.
        refused: Why,
    }
}

#[derive(Serialize, Deserialize)]
struct Status {
    #[serde(flatten)]
    process: ProcessStatus,
    counters: Counters,
}

impl tare_daemon::Report for Status {
    fn prometheus(&self) -> String {
        let mut page = Metrics::new("test");
        self.process.metrics(&mut page);
        let labels = [("name", "a \"b\"\\\n")];
        page.counters(Counters::INFO, &[(&labels, self.counters.values())]);
        page.into_text()
    }
}

/// The log of errors, and a call that wakes who waits for the events beside it.
fn log_and_wake() -> (
    LogOptions,
    impl Fn() + Clone + Send + Sync + 'static,
    Receiver<()>,
) {
    let (wake, events) = sync_channel(16);
    let log = LogOptions {
        json: false,
        level: Level::Error,
    };
    let wake = move || {
        let _ = wake.try_send(());
    };
    (log, wake, events)
}

/// Returns a counter by which reports of both kinds are told apart.
fn bytes_of(asked: Asked) -> u64 {
    match asked {
        Asked::Metrics => 1,
        Asked::Status => 2,
    }
}

/// Runs a host until a stop is requested; it takes a configuration over unless it holds "wrong".
fn start(config: &Path, endpoints: Endpoints) -> (Signals, JoinHandle<ProcessStatus>) {
    let signals = Signals::default();
    let (log, wake, events) = log_and_wake();
    let mut host = Host::new(config, 1 << 20, log, signals.clone(), wake);
    host.first_config().unwrap();
    let errors = host.serve_at(endpoints);
    assert_eq!(errors, Vec::<String>::new());
    let thread = std::thread::spawn(move || {
        while !host.is_stopped() {
            let now = tare_sim::Instant::now();
            let _ = events.recv_timeout(host.wait(now));
            if let Some(changed) = host.changed_config(tare_sim::Instant::now()) {
                host.reloaded(match changed {
                    Ok(file) if file.bytes.starts_with(b"wrong") => Err("line 1\nmore".into()),
                    Ok(_) => Ok(()),
                    Err(error) => Err(error.to_string()),
                });
            }
            host.answer(|asked| {
                let mut counters = Counters {
                    steps: 7,
                    bytes: bytes_of(asked),
                    ..Counters::default()
                };
                counters.refused.count(Why::Two);
                Status {
                    process: host.status("1.2.3"),
                    counters,
                }
            });
        }
        host.status("1.2.3")
    });
    (signals, thread)
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn request(at: SocketAddr, request: &[u8]) -> String {
    let stream = TcpStream::connect(at).unwrap();
    answer_to(stream, request)
}

/// Returns nothing if there is no connection.
fn try_request(at: SocketAddr, request: &[u8]) -> String {
    let stream = TcpStream::connect(at);
    stream.map_or_else(|_| String::new(), |stream| answer_to(stream, request))
}

fn answer_to(mut stream: TcpStream, request: &[u8]) -> String {
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    // The other side may have closed already.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn clients_that_ask_without_a_pause_do_not_stop_the_owner() {
    let signals = Signals::default();
    let (log, wake, events) = log_and_wake();
    let mut host = Host::without_config(log, signals.clone(), wake);
    let metrics = free_address();
    let errors = host.serve_at(Endpoints {
        metrics: Some(metrics),
        socket: None,
    });
    assert_eq!(errors, Vec::<String>::new());
    let (made, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                while !signals.is_stopped() {
                    let answer = try_request(metrics, b"GET /metrics HTTP/1.1\r\n\r\n");
                    if answer.starts_with("HTTP/1.1 200") {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(60);
        // The owner comes back after each report, however many more are asked for.
        for turns in 1..=200 {
            let now = tare_sim::Instant::now();
            let _ = events.recv_timeout(host.wait(now));
            host.answer(|_| {
                std::thread::sleep(Duration::from_millis(5));
                made.fetch_add(1, Ordering::Relaxed);
                Status {
                    process: host.status("1.2.3"),
                    counters: Counters::default(),
                }
            });
            assert!(made.load(Ordering::Relaxed) <= turns);
            assert!(Instant::now() < end);
        }
        signals.stop();
        // So that those that wait get an answer or an end.
        drop(host);
    });
    let (made, answered) = (made.into_inner(), answered.into_inner());
    assert!(answered > made, "{answered} answers, {made} reports");
}

#[test]
fn status_and_metrics_are_answered_and_hostile_clients_do_not_stop_them() {
    let directory = tempfile::tempdir().unwrap();
    let (config, socket) = (
        directory.path().join("a.conf"),
        directory.path().join("a.sock"),
    );
    std::fs::write(&config, "").unwrap();
    let metrics = free_address();
    let endpoints = Endpoints {
        metrics: Some(metrics),
        socket: Some(socket.clone()),
    };
    let (signals, thread) = start(&config, endpoints);

    let status: Status = serde_json::from_str(&tare_daemon::ask(&socket).unwrap()).unwrap();
    assert_eq!(
        (status.counters.steps, &*status.process.version),
        (7, "1.2.3")
    );
    assert_eq!(status.counters.bytes, bytes_of(Asked::Status));
    assert_eq!(status.counters.refused.get(Why::Two), 1);

    // Never finished, too long, no HTTP, another method, another path.
    let silent: Vec<_> = (0..50)
        .map(|_| TcpStream::connect(metrics).unwrap())
        .collect();
    assert_eq!(request(metrics, &[b'A'; 100_000]), "");
    assert_eq!(
        request(metrics, &[0xff, 0xfe, b'\r', b'\n', b'\r', b'\n']),
        ""
    );
    let long = format!("GET /metrics?{} HTTP/1.1\r\n\r\n", "A".repeat(100_000));
    assert_eq!(request(metrics, long.as_bytes()), "");
    let answer = request(metrics, b"hello\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let answer = request(metrics, b"POST /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    let answer = request(metrics, b"GET /other HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");

    let answer = request(metrics, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let sample = r#"test_steps_total{name="a \"b\"\\\n"} 7"#;
    assert!(answer.contains(sample), "{answer}");
    assert!(answer.contains("# HELP test_bytes Bytes seen\n# TYPE test_bytes counter\n"));
    let sample = format!(
        "test_bytes{{name=\"a \\\"b\\\"\\\\\\n\"}} {}\n",
        bytes_of(Asked::Metrics)
    );
    assert!(answer.contains(&sample), "{answer}");

    signals.stop();
    thread.join().unwrap();
    drop(silent);
    assert!(!socket.exists(), "a socket was left behind");
    assert!(TcpStream::connect(metrics).is_err());
}

#[test]
fn a_report_for_several_clients_has_what_the_greatest_request_needs() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("a.sock");
    let (log, wake, events) = log_and_wake();
    let mut host = Host::without_config(log, Signals::default(), wake);
    let metrics = free_address();
    let errors = host.serve_at(Endpoints {
        metrics: Some(metrics),
        socket: Some(socket.clone()),
    });
    assert_eq!(errors, Vec::<String>::new());
    let (host, made) = (&host, AtomicU64::new(0));
    let answer = || {
        host.answer(|asked| {
            made.fetch_add(1, Ordering::Relaxed);
            Status {
                process: host.status("1.2.3"),
                counters: Counters {
                    bytes: bytes_of(asked),
                    ..Counters::default()
                },
            }
        });
    };
    std::thread::scope(|scope| {
        // Each wakes the owner once its request is there, which has ten seconds.
        let ask = || tare_daemon::ask(&socket);
        let page = || request(metrics, b"GET /metrics HTTP/1.1\r\n\r\n");
        let (status, page) = (scope.spawn(ask), scope.spawn(page));
        for _ in 0..2 {
            events.recv().unwrap();
        }
        answer();
        let status: Status = serde_json::from_str(&status.join().unwrap().unwrap()).unwrap();
        assert_eq!(status.counters.bytes, bytes_of(Asked::Status));
        let page = page.join().unwrap();
        assert!(page.contains("test_bytes{"), "{page}");
    });
    assert_eq!(made.into_inner(), 1);
}

#[test]
fn clients_that_send_nothing_cost_neither_others_nor_the_end_their_time() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("a.conf"), "").unwrap();
    // One that was waited for would have ten seconds. Other programs may take the processor for
    // as long, but not each time.
    let mut all = Vec::new();
    let is_short = |_| {
        let metrics = free_address();
        let endpoints = Endpoints {
            metrics: Some(metrics),
            socket: Some(at("a.sock")),
        };
        let (signals, thread) = start(&at("a.conf"), endpoints);
        let silent: Vec<_> = (0..100)
            .map(|_| TcpStream::connect(metrics).unwrap())
            .collect();
        let begun = Instant::now();
        let is_answered = tare_daemon::ask(&at("a.sock")).is_ok();
        signals.stop();
        thread.join().unwrap();
        let took = begun.elapsed();
        all.push((is_answered, took));
        drop(silent);
        is_answered && took < Duration::from_secs(8)
    };
    assert!((0..5).any(is_short), "{all:?}");
}

#[test]
fn a_configuration_is_reloaded_when_it_changes_or_a_signal_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let (config, socket) = (
        directory.path().join("a.conf"),
        directory.path().join("a.sock"),
    );
    std::fs::write(&config, "one").unwrap();
    let endpoints = Endpoints {
        metrics: None,
        socket: Some(socket.clone()),
    };
    let (signals, thread) = start(&config, endpoints);
    let wait_for = |reloads: u64, refused: u64, error: Option<&str>| {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let status: Status = serde_json::from_str(&tare_daemon::ask(&socket).unwrap()).unwrap();
            let process = status.process;
            let found = (
                process.reloads,
                process.reloads_refused,
                process.reload_error.as_deref(),
            );
            if found == (reloads, refused, error) {
                break;
            }
            assert!(Instant::now() < end, "{process:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait_for(0, 0, None);
    std::fs::write(&config, "wrong").unwrap();
    wait_for(0, 1, Some("line 1"));
    std::fs::write(&config, "other").unwrap();
    wait_for(1, 1, None);
    signals.reload();
    wait_for(2, 1, None);
    signals.stop();
    let status = thread.join().unwrap();
    assert_eq!((status.reloads, status.reloads_refused), (2, 1));
}

/// A file system that answers no request, until it is dropped.
struct Stalled {
    directory: tempfile::TempDir,
    device: Option<std::fs::File>,
}

impl Stalled {
    /// Mounts it; `None` where that is not possible, which is a failure under CI.
    fn mount() -> Option<Stalled> {
        let directory = tempfile::tempdir().unwrap();
        let mount = || -> std::io::Result<std::fs::File> {
            let options = std::fs::OpenOptions::new().read(true).write(true).clone();
            let device = options.open("/dev/fuse")?;
            let options = format!(
                "fd={},rootmode=40000,user_id=0,group_id=0",
                device.as_raw_fd()
            );
            let options = std::ffi::CString::new(options)?;
            let flags = MountFlags::NODEV | MountFlags::NOSUID;
            rustix::mount::mount("stalled", directory.path(), "fuse", flags, Some(&*options))?;
            Ok(device)
        };
        match mount() {
            Ok(device) => Some(Stalled {
                directory,
                device: Some(device),
            }),
            Err(error) => {
                let said = format!("NOT TESTED: a file system that does not answer: {error}");
                assert!(std::env::var("CI").as_deref() != Ok("true"), "{said}");
                let _ = writeln!(std::io::stderr(), "{said}");
                None
            }
        }
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        // Without the server, what waits for it fails.
        self.device = None;
        let _ = rustix::mount::unmount(self.directory.path(), UnmountFlags::DETACH);
    }
}

/// Waits until the status at a socket is as wanted. That it is answered within two seconds, however
/// long the condition takes, is a part of the test; but for two of many answers, while other
/// programs may have had the processor.
fn wait_for(socket: &Path, what: &str, is_so: impl Fn(&ProcessStatus) -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    let mut late = 0;
    loop {
        let asked = Instant::now();
        let answer = tare_daemon::ask(socket);
        if answer.is_err() || asked.elapsed() >= Duration::from_secs(2) {
            late += 1;
            assert!(late <= 2, "waiting for {what}: {answer:?}");
        }
        let Ok(answer) = answer else { continue };
        let status: Status = serde_json::from_str(&answer).unwrap();
        if is_so(&status.process) {
            return;
        }
        assert!(Instant::now() < end, "{what}: {:?}", status.process);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_configuration_path_that_becomes_a_fifo_or_stalls_stops_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (config, socket) = (at("a.conf"), at("a.sock"));
    let lead_to = |path: &Path| {
        let _ = std::fs::remove_file(at("next"));
        std::os::unix::fs::symlink(path, at("next")).unwrap();
        std::fs::rename(at("next"), &config).unwrap();
    };
    std::fs::write(at("file"), "one").unwrap();
    lead_to(&at("file"));
    let metrics = free_address();
    let endpoints = Endpoints {
        metrics: Some(metrics),
        socket: Some(socket.clone()),
    };
    let (signals, thread) = start(&config, endpoints);
    let is_current = || {
        let page = request(metrics, b"GET /metrics HTTP/1.1\r\n\r\n");
        page.contains("\ntest_config_current 1\n")
    };
    assert!(is_current());

    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, mode, 0).unwrap();
    lead_to(&at("fifo"));
    wait_for(&socket, "the FIFO to be refused", |process| {
        let error = process.reload_error.as_deref();
        error == Some("found a FIFO, expected a regular file")
    });
    assert!(!is_current());
    lead_to(&at("file"));
    wait_for(&socket, "the file to be taken over", |process| {
        (process.reloads, process.reloads_refused) == (1, 1) && process.reload_error.is_none()
    });

    if let Some(stalled) = Stalled::mount() {
        lead_to(&stalled.directory.path().join("a.conf"));
        wait_for(&socket, "the file system to be reported", |process| {
            let error = process.reload_error.as_deref().unwrap_or_default();
            error.contains("its file system does not answer")
        });
        assert!(!is_current());
        // A signal meanwhile is not forgotten.
        signals.reload();
        lead_to(&at("file"));
        drop(stalled);
        wait_for(&socket, "the file to be read again", |process| {
            process.reloads >= 2 && process.reload_error.is_none()
        });
        assert!(is_current());
    }
    signals.stop();
    thread.join().unwrap();
}

#[test]
fn a_socket_of_a_process_that_accepts_no_connection_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.sock");
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let address = SocketAddrUnix::new(&path).unwrap();
    let listener = socket();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    // Until its queue is full.
    let clients = std::iter::repeat_with(|| {
        let client = socket();
        rustix::net::connect(&client, &address).map(|()| client)
    });
    let waiting: Vec<_> = clients.map_while(Result::ok).take(100).collect();
    assert!(waiting.len() < 100);
    let error = tare_daemon::bind_socket(&path).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn an_address_that_is_taken_is_an_error_and_a_dead_socket_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (config, socket) = (
        directory.path().join("a.conf"),
        directory.path().join("a.sock"),
    );
    // A process that was killed leaves its socket behind.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let log = LogOptions {
        json: true,
        level: Level::Error,
    };
    let host = || Host::<Status>::new(&config, 1 << 20, log, Signals::default(), || {});
    let mut first = host();
    let errors = first.serve_at(Endpoints {
        metrics: Some(taken.local_addr().unwrap()),
        socket: Some(socket.clone()),
    });
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].starts_with("metrics at 127.0.0.1:"), "{errors:?}");
    let mut second = host();
    let errors = second.serve_at(Endpoints {
        metrics: None,
        socket: Some(socket.clone()),
    });
    assert!(
        errors[0].contains("another process answers there"),
        "{errors:?}"
    );
    drop(second);
    assert!(socket.exists(), "the socket of the first one was removed");
    // What is there and no socket is never removed.
    std::fs::write(&config, "kept").unwrap();
    let errors = host().serve_at(Endpoints {
        metrics: None,
        socket: Some(config.clone()),
    });
    assert_eq!(errors.len(), 1);
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "kept");
}

#[test]
fn a_socket_in_a_folder_that_is_missing_is_an_error_and_makes_no_folder() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("missing");
    let log = LogOptions {
        json: true,
        level: Level::Error,
    };
    let mut host = Host::<Status>::without_config(log, Signals::default(), || {});
    let errors = host.serve_at(Endpoints {
        metrics: None,
        socket: Some(folder.join("a.sock")),
    });
    assert_eq!(errors.len(), 1, "{errors:?}");
    let missing = format!("there is no folder {}", folder.display());
    assert!(errors[0].contains(&missing), "{errors:?}");
    assert!(!folder.exists());
}

#[test]
fn counters_add_subtract_and_survive_json_of_another_version() {
    let mut one = Counters {
        steps: 3,
        bytes: u64::MAX,
        ..Counters::default()
    };
    one.refused.count(Why::One);
    let mut sum = one;
    sum.add(&one);
    assert_eq!(sum.since(&one), one);
    assert_eq!(
        one.named().collect::<Vec<_>>(),
        [("steps", 3), ("bytes", u64::MAX)]
    );
    let json = serde_json::to_string(&one).unwrap();
    assert!(json.contains(r#""refused":{"one":1}"#), "{json}");
    assert_eq!(serde_json::from_str::<Counters>(&json).unwrap(), one);
    let newer = r#"{"steps":3,"bytes":1,"more":5,"refused":{"two":2,"three":3}}"#;
    let read: Counters = serde_json::from_str(newer).unwrap();
    assert_eq!((read.refused.get(Why::Two), read.refused.total()), (2, 2));
}
