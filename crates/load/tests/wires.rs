//! TLS and UDP, against servers in this process.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use tare_load::protocol::{Handshake, Http, MemcachedText, Udp};
use tare_load::{ask, run, Options, Pace, Record, Target};

const CERT: &[u8] = include_bytes!("data/cert.pem");
const KEY: &[u8] = include_bytes!("data/key.pem");

/// A TLS server that answers each request with this many bytes; and its handshakes.
fn tls_server(body: usize) -> (SocketAddr, Arc<AtomicU64>) {
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certs(), key());
    start(config.unwrap(), body)
}

fn certs() -> Vec<CertificateDer<'static>> {
    let certs = CertificateDer::pem_slice_iter(CERT).map(Result::unwrap);
    certs.collect()
}

fn key() -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(KEY).unwrap()
}

fn start(config: ServerConfig, body: usize) -> (SocketAddr, Arc<AtomicU64>) {
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let handshakes: Arc<AtomicU64> = Arc::default();
    let counted = Arc::clone(&handshakes);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (config, counted) = (Arc::clone(&config), Arc::clone(&counted));
            std::thread::spawn(move || serve_tls(stream.unwrap(), config, body, &counted));
        }
    });
    (address, handshakes)
}

fn serve_tls(mut stream: TcpStream, config: Arc<ServerConfig>, body: usize, counted: &AtomicU64) {
    let mut session = ServerConnection::new(config).unwrap();
    while session.is_handshaking() {
        if session.complete_io(&mut stream).is_err() {
            return;
        }
    }
    counted.fetch_add(1, Ordering::Relaxed);
    let mut stream = StreamOwned::new(session, stream);
    let mut response = format!("HTTP/1.1 200 OK\r\nContent-Length: {body}\r\n\r\n").into_bytes();
    response.resize(response.len() + body, b'x');
    while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
        if stream.write_all(&response).is_err() {
            return;
        }
    }
}

fn target(
    address: SocketAddr,
    resumes: bool,
    version: &'static rustls::SupportedProtocolVersion,
) -> Target {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(CERT).map(Result::unwrap));
    let mut config = ClientConfig::builder_with_protocol_versions(&[version])
        .with_root_certificates(roots)
        .with_no_client_auth();
    if !resumes {
        config.resumption = rustls::client::Resumption::disabled();
    }
    let name = ServerName::try_from("localhost").unwrap();
    Target {
        address,
        tls: Some((Arc::new(config), name)),
    }
}

fn options() -> Options {
    Options {
        connections: 3,
        warm_up: Duration::ZERO,
        duration: Duration::from_millis(400),
        ..Options::default()
    }
}

/// For a trial that ends by itself long before, unless the machine is busy.
fn patient() -> Options {
    Options {
        duration: Duration::from_secs(60),
        timeout: Duration::from_secs(60),
        ..options()
    }
}

/// The record of a trial that served at least `least` requests: each trial takes ten times as long
/// as the one before it, which a busy machine may have left little time.
fn load_until(least: u64, options: &Options, run: impl Fn(&Options) -> Record) -> Record {
    let mut records = [1, 10, 50].into_iter().map(|times| {
        run(&Options {
            duration: options.duration * times,
            timeout: Duration::from_secs(60),
            ..options.clone()
        })
    });
    let record = records.find(|record| record.served >= least);
    record.unwrap_or_else(|| panic!("fewer than {least} requests in each of three trials"))
}

fn adds_up(record: &Record) {
    assert_eq!(record.scheduled, record.issued + record.unissued());
    let ended = record.answered() + record.failed + record.timed_out;
    assert_eq!(record.issued, ended);
    assert_eq!(record.latency.count(), record.answered());
}

#[test]
fn handshakes_are_full_or_resumed_as_asked_and_counted_as_the_server_counts_them() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for pace in [Pace::Closed, Pace::Constant(100.0)] {
            for resumes in [false, true] {
                let options = Options {
                    pace,
                    threads: 2,
                    ..options()
                };
                let asked = format!("{version:?} {pace:?} {resumes}");
                let record = load_until(10, &options, |options| {
                    let (address, handshakes) = tls_server(0);
                    let target = target(address, resumes, version);
                    let record = run(&target, &Handshake, options, &AtomicBool::new(false));
                    let record = record.unwrap();
                    adds_up(&record);
                    assert_eq!(
                        (record.first_error.as_ref(), record.failed),
                        (None, 0),
                        "{asked}"
                    );
                    assert_eq!(record.served, handshakes.load(Ordering::Relaxed), "{asked}");
                    record
                });
                assert_eq!(record.connections_opened, record.served, "{asked}");
                let (full, resumed) = (record.full_handshakes, record.resumed_handshakes);
                assert_eq!(full + resumed, record.served, "{asked}");
                match resumes {
                    false => assert_eq!(resumed, 0, "{asked}"),
                    // Those that begin before a session was granted are full.
                    true => assert!(full <= 6, "{asked}"),
                }
            }
        }
    }
}

#[test]
fn handshakes_with_a_server_whose_certificate_is_not_trusted_are_an_error() {
    let (address, _) = tls_server(0);
    let mut untrusting = target(address, true, &rustls::version::TLS13);
    untrusting.tls.as_mut().unwrap().1 = ServerName::try_from("example.org").unwrap();
    let error = run(&untrusting, &Handshake, &patient(), &AtomicBool::new(false));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}

#[test]
fn bulk_over_tls_is_counted_in_bytes_of_bodies() {
    let (address, handshakes) = tls_server(1 << 20);
    let target = target(address, true, &rustls::version::TLS13);
    let http = Http::new("localhost", &["/big".into()], &[]).unwrap();
    let record = load_until(4, &options(), |options| {
        handshakes.store(0, Ordering::Relaxed);
        run(&target, &http, options, &AtomicBool::new(false)).unwrap()
    });
    adds_up(&record);
    assert_eq!(record.body_bytes, record.served << 20);
    let rate = record.body_bytes as f64 / record.duration.as_secs_f64();
    assert_eq!(record.body_rate(), Some(rate));
    assert_eq!(record.full_handshakes + record.resumed_handshakes, 3);
    assert_eq!(handshakes.load(Ordering::Relaxed), 3);
    let answer = ask(
        &target,
        b"x",
        |answer| answer.len() > 1 << 19,
        Duration::from_secs(60),
    );
    assert!(answer.unwrap().starts_with(b"HTTP/1.1 200 OK"));
    let silent = ask(&target, b"", |_| false, Duration::from_millis(100));
    assert!(silent
        .unwrap_err()
        .to_string()
        .contains("no whole answer within 100ms"));
}

/// In TLS 1.3 the client has ended its handshake when the server asks for more.
#[test]
fn a_handshake_that_the_server_refuses_after_its_end_is_not_served() {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(CERT).map(Result::unwrap));
    let wants = rustls::server::WebPkiClientVerifier::builder(Arc::new(roots));
    let config = ServerConfig::builder()
        .with_client_cert_verifier(wants.build().unwrap())
        .with_single_cert(certs(), key());
    let (address, handshakes) = start(config.unwrap(), 0);
    let target = target(address, true, &rustls::version::TLS13);
    let error = run(&target, &Handshake, &patient(), &AtomicBool::new(false));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("CertificateRequired"), "{error}");
    assert_eq!(handshakes.load(Ordering::Relaxed), 0);
}

/// A memcached server of UDP whose values are 3000 bytes in three datagrams, which arrive in the
/// wrong order. It drops every `lost`th request, and answers every `twice`th twice.
fn udp_server(lost: u64, twice: u64) -> (Target, Arc<[AtomicU64; 2]>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let counts: Arc<[AtomicU64; 2]> = Arc::default();
    let counted = Arc::clone(&counts);
    std::thread::spawn(move || {
        let mut datagram = [0; 2048];
        for n in 1.. {
            let (len, from) = socket.recv_from(&mut datagram).unwrap();
            assert_eq!(&datagram[2..8], [0, 0, 0, 1, 0, 0]);
            assert!(datagram[8..len].starts_with(b"get tare:"));
            counted[0].fetch_add(1, Ordering::Relaxed);
            if n % lost == 0 {
                counted[1].fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let mut reply = b"VALUE tare:0 0 3000\r\n".to_vec();
            reply.resize(reply.len() + 3000, b'x');
            reply.extend_from_slice(b"\r\nEND\r\n");
            for _ in 0..1 + usize::from(n % twice == 0) {
                for (place, part) in reply.chunks(1010).enumerate().rev() {
                    let place = place as u8;
                    let header = [datagram[0], datagram[1], 0, place, 0, 3, 0, 0];
                    let _ = socket.send_to(&[&header, part].concat(), from);
                }
            }
        }
    });
    (Target { address, tls: None }, counts)
}

#[test]
fn a_lost_datagram_is_a_request_that_timed_out_and_nothing_else() {
    let udp = Udp::new(MemcachedText::default());
    for pace in [Pace::Closed, Pace::Constant(400.0)] {
        let (target, counts) = udp_server(50, 3);
        let options = Options {
            pace,
            requests: Some(120),
            // A request that was not lost may take nearly this long on a busy machine.
            timeout: Duration::from_secs(15),
            duration: Duration::from_secs(600),
            // One in flight, whatever is asked.
            pipeline: 16,
            ..options()
        };
        let record = run(&target, &udp, &options, &AtomicBool::new(false)).unwrap();
        adds_up(&record);
        let [arrived, lost] = [0, 1].map(|n: usize| counts[n].load(Ordering::Relaxed));
        assert_eq!((arrived, lost), (120, 2));
        let counted = (record.issued, record.timed_out, record.served);
        assert_eq!(counted, (120, 2, 118), "{record:?}");
        assert_eq!((record.failed, record.resent, record.misses), (0, 0, 0));
        assert_eq!(record.body_bytes, record.served * 3000);
        assert_eq!(
            record.connections_opened, 3,
            "a socket outlives what was lost"
        );
        let error = record.first_error.unwrap();
        assert!(error.contains("no response within"), "{error}");
    }
}

/// The trial is over before the next look at what has timed out.
#[test]
fn a_request_without_a_response_at_the_end_is_an_error_too() {
    let udp = Udp::new(MemcachedText::default());
    let (target, _) = udp_server(1, u64::MAX);
    for timeout in [1, 5, 20] {
        let options = Options {
            connections: 1,
            requests: Some(1),
            timeout: Duration::from_millis(timeout),
            ..patient()
        };
        let record = run(&target, &udp, &options, &AtomicBool::new(false)).unwrap();
        assert_eq!((record.issued, record.timed_out), (1, 1), "{record:?}");
        let error = record.first_error.unwrap();
        assert!(error.contains("no response within"), "{error}");
    }
}

#[test]
fn a_udp_server_that_is_absent_or_silent_is_an_error() {
    let udp = Udp::new(MemcachedText::default());
    let options = |timeout| Options {
        connections: 1,
        timeout,
        duration: Duration::from_secs(60),
        ..options()
    };
    let (silent, _) = udp_server(1, 1);
    let free = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let absent = Target {
        address: free,
        tls: None,
    };
    let [short, long] = [Duration::from_millis(100), Duration::from_secs(60)];
    for (target, timeout, said) in [
        (silent, short, "no response in time"),
        (absent, long, "refused"),
    ] {
        let error = run(&target, &udp, &options(timeout), &AtomicBool::new(false));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}
