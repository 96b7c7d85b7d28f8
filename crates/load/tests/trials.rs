//! Trials against servers in this process.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tare_load::protocol::{Http, Progress, Protocol, Resp, RespVersion};
use tare_load::{
    run, KeyPattern, Options, Pace, Record, Request, Target, Unexpected, ValueLen, Workload,
};

/// A server, whose threads end with their connections.
struct Server {
    address: SocketAddr,
    /// Requests that were served.
    served: Arc<AtomicU64>,
    /// Held to stop the server.
    gate: Arc<Mutex<()>>,
}

impl Server {
    /// `answer` gets what has arrived, and returns the length of the first request and its
    /// response; `None` if it is not whole. After `closes_after` responses of a connection the
    /// server closes it.
    fn start(
        closes_after: usize,
        answer: impl Fn(&[u8]) -> Option<(usize, Vec<u8>)> + Send + Clone + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server {
            address: listener.local_addr().unwrap(),
            served: Arc::default(),
            gate: Arc::default(),
        };
        let (served, gate) = (Arc::clone(&server.served), Arc::clone(&server.gate));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, served, gate) = (answer.clone(), served.clone(), gate.clone());
                let serve = move || serve(stream.unwrap(), closes_after, answer, &served, &gate);
                std::thread::spawn(serve);
            }
        });
        server
    }

    fn target(&self) -> Target {
        Target {
            address: self.address,
            tls: None,
        }
    }
}

fn serve(
    mut stream: TcpStream,
    closes_after: usize,
    answer: impl Fn(&[u8]) -> Option<(usize, Vec<u8>)>,
    served: &AtomicU64,
    gate: &Mutex<()>,
) {
    let (mut arrived, mut piece) = (Vec::new(), [0; 4096]);
    let mut responses = 0;
    while let Ok(n @ 1..) = stream.read(&mut piece) {
        arrived.extend_from_slice(&piece[..n]);
        while let Some((len, response)) = answer(&arrived) {
            drop(gate.lock().unwrap());
            arrived.drain(..len);
            responses += 1;
            served.fetch_add(1, Ordering::Relaxed);
            if stream.write_all(&response).is_err() || responses == closes_after {
                return;
            }
        }
    }
}

/// A response per request line, with 100 bytes.
fn http_answer(arrived: &[u8]) -> Option<(usize, Vec<u8>)> {
    let len = arrived.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let mut response = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n".to_vec();
    response.resize(response.len() + 100, b'x');
    Some((len, response))
}

/// GET of an even key is a hit of 10 bytes, of an odd one a miss; SET is an error.
fn resp_answer(arrived: &[u8]) -> Option<(usize, Vec<u8>)> {
    let mut lines = arrived.split_inclusive(|&byte| byte == b'\n');
    let mut len = 0;
    let mut next = || -> Option<&[u8]> {
        let line = lines.next().filter(|line| line.ends_with(b"\r\n"))?;
        len += line.len();
        Some(&line[..line.len() - 2])
    };
    let words = std::str::from_utf8(&next()?[1..]).unwrap().parse().unwrap();
    let mut command = Vec::new();
    for _ in 0..words {
        next()?;
        command.push(next()?.to_vec());
    }
    let is_even = |key: &[u8]| (key[key.len() - 1] - b'0').is_multiple_of(2);
    let response = match command[0].as_slice() {
        b"GET" if is_even(&command[1]) => &b"$10\r\n0123456789\r\n"[..],
        b"GET" => b"$-1\r\n",
        b"HELLO" => b"%1\r\n+proto\r\n:3\r\n",
        _ => b"-READONLY\r\n",
    };
    Some((len, response.to_vec()))
}

fn options() -> Options {
    Options {
        connections: 4,
        warm_up: Duration::from_millis(50),
        duration: Duration::from_millis(300),
        timeout: Duration::from_secs(60),
        ..Options::default()
    }
}

fn load(server: &Server, options: &Options) -> Record {
    let http = Http::new("localhost", &["/".into()], &[]).unwrap();
    run(&server.target(), &http, options, &AtomicBool::new(false)).unwrap()
}

/// The record of a trial that served more than `least` requests: each trial takes ten times as long
/// as the one before it, which a busy machine may have left little time.
fn load_until(least: u64, options: &Options, run: impl Fn(&Options) -> Record) -> Record {
    let mut records = [1, 10, 100].into_iter().map(|times| {
        run(&Options {
            duration: options.duration * times,
            ..options.clone()
        })
    });
    let record = records.find(|record| record.served > least);
    record.unwrap_or_else(|| panic!("no more than {least} requests in each of three trials"))
}

/// Each request that was to be sent is in one of the counts.
fn adds_up(record: &Record) {
    assert_eq!(record.scheduled, record.issued + record.unissued());
    let ended = record.answered() + record.failed + record.timed_out;
    assert_eq!(record.issued, ended, "{record:?}");
    assert_eq!(record.latency.count(), record.answered());
    assert_eq!(record.figures().received(), record.served + record.misses);
}

#[test]
fn a_closed_loop_counts_what_the_server_counts() {
    for (threads, pipeline, closes_after) in [(1, 1, usize::MAX), (2, 1, 7), (2, 3, usize::MAX)] {
        let options = Options {
            threads,
            pipeline,
            warm_up: Duration::ZERO,
            timeout: Duration::from_secs(60),
            ..options()
        };
        let record = load_until(50, &options, |options| {
            let server = Server::start(closes_after, http_answer);
            let record = load(&server, options);
            adds_up(&record);
            assert_eq!(record.duration, options.duration);
            assert_eq!(record.served, record.issued, "{:?}", record.first_error);
            // All is measured: the server has served nothing else.
            assert_eq!(record.served, server.served.load(Ordering::Relaxed));
            record
        });
        assert_eq!(record.received_bytes, record.served * 140);
        assert_eq!(record.body_bytes, record.served * 100);
        assert_eq!(record.bytes_per_response(), Some(140.0));
        let reopened = record.connections_opened > 4;
        assert_eq!(reopened, closes_after != usize::MAX, "{record:?}");
        assert!(record.cpu > Duration::ZERO);
    }
}

#[test]
fn responses_to_requests_of_the_warm_up_are_waited_for() {
    let server = Server::start(usize::MAX, http_answer);
    // On a busy machine the generator may begin after the end.
    let have_all_sent = |_| {
        let stopped = server.gate.lock().unwrap();
        let record = std::thread::scope(|scope| {
            let trial = scope.spawn(|| load(&server, &options()));
            // Longer than the trial's 350 ms, all of which pass before the first response.
            std::thread::sleep(Duration::from_millis(700));
            drop(stopped);
            trial.join().unwrap()
        });
        adds_up(&record);
        assert_eq!(record.served_in_all, record.sent_in_all, "{record:?}");
        record.sent_in_all >= 4
    };
    assert!((0..10).any(have_all_sent));
}

#[test]
fn hits_misses_and_errors_are_told_apart() {
    let server = Server::start(usize::MAX, resp_answer);
    let options = Options {
        pipeline: 4,
        workload: Workload {
            set_share: 0.2,
            keys: 1000,
            pattern: KeyPattern::Uniform,
            value_len: ValueLen::Range(1, 40),
            hit_share: 1.0,
        },
        ..options()
    };
    for version in [RespVersion::Two, RespVersion::Three] {
        let resp = Resp::new(version);
        let record = load_until(400, &options, |options| {
            run(&server.target(), &resp, options, &AtomicBool::new(false)).unwrap()
        });
        adds_up(&record);
        let share = |part: u64| part as f64 / record.issued as f64;
        assert!((share(record.served) - 0.4).abs() < 0.1, "{record:?}");
        assert!((share(record.misses) - 0.4).abs() < 0.1, "{record:?}");
        assert!((share(record.refused) - 0.2).abs() < 0.1, "{record:?}");
        assert_eq!(record.first_error.as_deref(), Some("READONLY"));
        assert_eq!(record.body_bytes, record.served * 10);
    }
}

/// The reason for open loops: while a server stands still, its clients go on to want something.
#[test]
fn an_open_loop_measures_the_wait_of_a_stopped_server_and_a_closed_one_does_not() {
    let stopped = Duration::from_millis(200);
    // The 90th percentile, and whether the longest wait was that for all of the stop.
    let p90_and_longest = |pace| {
        // The time of the first request, and how many are to be answered before the stop: as many
        // as an open loop sends in 400 ms.
        let gate = Arc::new(Mutex::new((None, Some(160))));
        let server = Server::start(usize::MAX, move |arrived: &[u8]| {
            let answer = http_answer(arrived)?;
            let (first, left) = &mut *gate.lock().unwrap();
            let elapsed = first.get_or_insert_with(Instant::now).elapsed();
            // A closed loop sends more.
            if *left == Some(0) && elapsed > Duration::from_millis(350) {
                *left = None;
                std::thread::sleep(stopped);
            }
            *left = left.map(|left: u32| left.saturating_sub(1));
            Some(answer)
        });
        let options = Options {
            pace,
            duration: Duration::from_secs(1),
            ..options()
        };
        let record = load(&server, &options);
        adds_up(&record);
        if let Some(rate) = pace.rate() {
            let scheduled = record.scheduled as f64;
            assert!(
                (scheduled / rate - 1.0).abs() < 0.15,
                "{scheduled} of {rate}"
            );
            assert_eq!(record.unissued(), 0);
        }
        let [p90, max] = [0.9, 1.0].map(|share| record.latency.quantile(share));
        let is_whole = max.is_some_and(|max| max >= stopped.mul_f64(0.9));
        (p90.unwrap_or(Duration::MAX), is_whole)
    };
    // A fifth of the requests of an open loop come while the server stands still: half of those
    // wait for half of the time.
    for pace in [Pace::Constant(400.0), Pace::Poisson(400.0)] {
        let (open, is_whole) = p90_and_longest(pace);
        assert!(
            is_whole && open >= stopped.mul_f64(0.3),
            "{pace:?}: {open:?}"
        );
    }
    // In one of several trials: a busy machine may let few requests through, which all wait.
    let is_short = |_| {
        let (closed, is_whole) = p90_and_longest(Pace::Closed);
        is_whole && closed < stopped.mul_f64(0.3)
    };
    assert!((0..10).any(is_short));
}

#[test]
fn a_rate_that_no_schedule_follows_from_is_refused() {
    let server = Server::start(usize::MAX, http_answer);
    for rate in [0.0, -1.0, 1e-4, 2e9, f64::INFINITY, f64::NAN] {
        for pace in [Pace::Constant(rate), Pace::Poisson(rate)] {
            let options = Options { pace, ..options() };
            let http = Http::new("localhost", &["/".into()], &[]).unwrap();
            let refused = run(&server.target(), &http, &options, &AtomicBool::new(false));
            let refused = refused.unwrap_err().to_string();
            assert!(
                refused.contains("requests per second, expected 0.001 to 1000000000"),
                "{refused}"
            );
        }
    }
}

#[test]
fn an_open_loop_sends_within_a_part_of_a_millisecond() {
    let server = Server::start(usize::MAX, http_answer);
    let options = Options {
        pace: Pace::Poisson(1000.0),
        ..options()
    };
    // Of sends that waited for the end of a whole millisecond, half would be later than half of
    // one and no more than a tenth within a tenth of one. A fifth within that, in one of several
    // trials, is none of those: other programs may take the processor, for most of a trial.
    let mut least = Duration::MAX;
    let is_in_time = |_| {
        let late = load(&server, &options).lateness.quantile(0.2);
        least = least.min(late.unwrap_or(Duration::MAX));
        least < Duration::from_micros(100)
    };
    assert!((0..30).any(is_in_time), "{least:?}");
}

#[test]
fn a_rate_beyond_the_server_s_is_counted_as_not_issued() {
    // One response in 20 ms on each of two connections.
    let server = Server::start(usize::MAX, |arrived: &[u8]| {
        let answer = http_answer(arrived)?;
        std::thread::sleep(Duration::from_millis(20));
        Some(answer)
    });
    let options = Options {
        connections: 2,
        pace: Pace::Constant(1000.0),
        // What was due before the measurement does not count.
        warm_up: Duration::from_millis(100),
        timeout: Duration::from_millis(200),
        ..options()
    };
    // That is the server's doing, which the generator's lateness is not about. On a busy machine
    // it is late in some of the trials.
    let http = Http::new("localhost", &["/".into()], &[]).unwrap();
    let is_valid = |_| {
        // An error if no response came at all, for a server without a processor.
        let record = run(&server.target(), &http, &options, &AtomicBool::new(false));
        let Ok(record) = record else { return false };
        adds_up(&record);
        assert!((299..=301).contains(&record.scheduled), "{record:?}");
        assert!(record.unissued() > 150, "{record:?}");
        record.is_invalid().is_none()
    };
    assert!((0..20).any(is_valid));
}

/// HTTP whose responses take the generator 200 µs.
#[derive(Clone)]
struct Laborious(Http);

impl Protocol for Laborious {
    fn write(&mut self, request: &Request, out: &mut Vec<u8>) {
        self.0.write(request, out);
    }

    fn read(&mut self, bytes: &[u8]) -> Result<Progress, Unexpected> {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_micros(200) {
            std::hint::spin_loop();
        }
        self.0.read(bytes)
    }
}

#[test]
fn a_generator_that_is_busy_all_the_time_makes_the_trial_invalid() {
    let server = Server::start(usize::MAX, http_answer);
    let http = Laborious(Http::new("localhost", &["/".into()], &[]).unwrap());
    let options = Options {
        connections: 32,
        pace: Pace::Constant(20_000.0),
        timeout: Duration::from_secs(60),
        ..options()
    };
    // The generator can do 5000 requests per second at most, and the server more, unless it gets no
    // processor for a while: then the generator waits for it.
    let mut idle = Vec::new();
    let is_found = |_| {
        let record = run(&server.target(), &http, &options, &AtomicBool::new(false)).unwrap();
        adds_up(&record);
        assert!(record.waited > record.scheduled / 2, "{record:?}");
        idle.push(record.idle.unwrap());
        let reason = record.is_invalid();
        reason.is_some_and(|reason| reason.contains("it was idle for"))
    };
    assert!((0..20).any(is_found), "{idle:?}");
}

#[test]
fn a_response_that_is_cut_off_is_a_request_that_failed() {
    // Of each connection's two responses the second ends in its middle.
    let responses = AtomicU64::new(0);
    let responses = Arc::new(responses);
    let server = Server::start(2, move |arrived: &[u8]| {
        let (len, mut response) = http_answer(arrived)?;
        if responses.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            response.truncate(100);
        }
        Some((len, response))
    });
    let options = Options {
        connections: 1,
        warm_up: Duration::ZERO,
        requests: Some(20),
        duration: Duration::from_secs(600),
        timeout: Duration::from_secs(60),
        ..options()
    };
    let record = load(&server, &options);
    adds_up(&record);
    let counts = (record.served, record.failed, record.resent);
    assert_eq!(counts, (10, 10, 0), "{record:?}");
    let error = record.first_error.as_deref();
    assert_eq!(error, Some("closed within a response"));
    // A server that leaves some of a request unread ends its connection with a reset.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx");
        }
    });
    let target = Target { address, tls: None };
    let http = Http::new("localhost", &["/".into()], &[]).unwrap();
    let error = run(&target, &http, &options, &AtomicBool::new(false)).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("closed within a response"), "{error}");
}

#[test]
fn connections_that_a_server_closes_while_they_are_idle_are_opened_again() {
    let open = |closes_after: Duration, times: u32, duration| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                if closes_after.is_zero() {
                    continue;
                }
                stream.set_read_timeout(Some(closes_after)).unwrap();
                let (served, gate) = (AtomicU64::new(0), Mutex::new(()));
                std::thread::spawn(move || {
                    serve(stream, usize::MAX, http_answer, &served, &gate);
                });
            }
        });
        let options = Options {
            connections: 10,
            pace: Pace::Constant(2.0 / f64::from(times)),
            warm_up: Duration::ZERO,
            duration: Duration::from_millis(duration) * times,
            ..options()
        };
        let http = Http::new("localhost", &["/".into()], &[]).unwrap();
        let target = Target { address, tls: None };
        let record = run(&target, &http, &options, &AtomicBool::new(false)).unwrap();
        adds_up(&record);
        record
    };
    // In one of three trials, the longer ones for a busy machine.
    // Four requests on ten connections, each of which is closed every 80 ms.
    let is_often = |times| {
        let record = open(Duration::from_millis(80), times, 1900);
        assert_eq!(record.scheduled, 4);
        record.connections_opened > 40
    };
    assert!([1, 10, 50].into_iter().any(is_often));
    // Each is closed at once, and not at once opened again. A third request that has no response
    // would end the trial.
    let is_often = |times| {
        let record = open(Duration::ZERO, times, 900);
        let opened = record.connections_opened;
        assert!(opened < 1000 * u64::from(times), "{record:?}");
        assert_eq!((record.scheduled, record.failed), (2, 2));
        opened >= 20
    };
    assert!([1, 10, 50].into_iter().any(is_often));
}

#[test]
fn servers_that_are_absent_silent_or_wrong_are_an_error_that_says_so() {
    let http = Http::new("localhost", &["/".into()], &[]).unwrap();
    let error_within = |address, timeout| {
        let target = Target { address, tls: None };
        let options = Options {
            connections: 1,
            timeout,
            duration: Duration::from_secs(60),
            ..options()
        };
        let error = run(&target, &http, &options, &AtomicBool::new(false));
        error.unwrap_err().to_string()
    };
    let error = |address| error_within(address, Duration::from_secs(60));
    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let refused = error(free);
    assert!(
        refused.contains(&free.to_string()) && refused.contains("refused"),
        "{refused}"
    );
    let silent = Server::start(usize::MAX, |_: &[u8]| None);
    let said = error_within(silent.address, Duration::from_millis(100));
    assert!(said.contains("no response in time"), "{said}");
    let wrong = Server::start(usize::MAX, |arrived: &[u8]| {
        Some((arrived.len(), b"+OK\r\n".to_vec()))
    });
    let said = error(wrong.address);
    assert!(
        said.contains("+OK") && said.contains("header of an HTTP response"),
        "{said}"
    );
    let closing = Server::start(1, |arrived: &[u8]| Some((arrived.len(), Vec::new())));
    assert!(error(closing.address).contains("closed without a response"));
    // A server that knows no RESP 3 would answer the requests behind in RESP 2.
    let old = Server::start(usize::MAX, |arrived: &[u8]| {
        let (len, response) = resp_answer(arrived)?;
        match response.starts_with(b"%") {
            true => Some((len, b"-ERR unknown command 'HELLO'\r\n".to_vec())),
            false => Some((len, response)),
        }
    });
    let resp = Resp::new(RespVersion::Three);
    let options = Options {
        duration: Duration::from_secs(60),
        ..options()
    };
    let said = run(&old.target(), &resp, &options, &AtomicBool::new(false));
    let said = said.unwrap_err().to_string();
    assert!(said.contains("found \"ERR unknown command "), "{said}");
}

#[test]
fn a_trial_that_ends_while_a_server_refuses_its_connections_is_an_error() {
    // A request of the warm-up is refused after the end, when no other is sent.
    let server = Server::start(usize::MAX, |arrived: &[u8]| {
        let (len, _) = resp_answer(arrived)?;
        std::thread::sleep(Duration::from_millis(400));
        Some((len, b"-ERR unknown command 'HELLO'\r\n".to_vec()))
    });
    let options = Options {
        connections: 1,
        warm_up: Duration::from_millis(100),
        duration: Duration::ZERO,
        ..options()
    };
    let resp = Resp::new(RespVersion::Three);
    let trial = || run(&server.target(), &resp, &options, &AtomicBool::new(false));
    // On a busy machine the connection may be opened after the end.
    let has_come = |result: &Result<Record, _>| {
        let record = result.as_ref().ok();
        record.is_none_or(|record| record.first_error.is_some())
    };
    let mut trials = (0..10).map(|_| trial());
    let error = trials.find(has_come).expect("a request in time");
    let error = error.unwrap_err().to_string();
    assert!(error.contains("found \"ERR unknown command "), "{error}");
}

#[test]
fn a_trial_ends_when_it_is_stopped() {
    let server = Server::start(usize::MAX, http_answer);
    let options = Options {
        duration: Duration::from_secs(600),
        warm_up: Duration::ZERO,
        threads: 2,
        ..options()
    };
    let stop = Arc::new(AtomicBool::new(false));
    let begin = Instant::now();
    let http = Http::new("localhost", &["/".into()], &[]).unwrap();
    let record = std::thread::scope(|scope| {
        scope.spawn(|| {
            // More than can be on their way: one for each connection.
            while server.served.load(Ordering::Relaxed) < 20 {
                std::thread::sleep(Duration::from_millis(10));
            }
            stop.store(true, Ordering::Relaxed);
        });
        run(&server.target(), &http, &options, &stop).unwrap()
    });
    assert!(begin.elapsed() < Duration::from_secs(120));
    assert!(record.served > 0 && record.duration < Duration::from_secs(120));
}
