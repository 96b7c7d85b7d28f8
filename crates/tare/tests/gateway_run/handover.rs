//! `tare gateway handover`: one program takes the place of another while packets flow.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::UdpSocket;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;

use crate::testbed::*;

/// Packets per second in each direction.
const RATE: u64 = 20_000;
/// The longest time that a handover may take, until both processes are past it.
const HANDOVER_MAX: Duration = Duration::from_secs(60);
/// Packets of 10 ms.
const LOSS_MAX: u64 = RATE / 100;

/// Numbered packets in one direction at [`RATE`].
struct Flow {
    stop: Arc<AtomicBool>,
    /// Set when the sender has ended: it may have stood still before its last packet.
    all_sent: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    sending: JoinHandle<u64>,
    receiving: JoinHandle<Arrived>,
}

#[derive(Debug, Default)]
struct Arrived {
    packets: HashSet<u64>,
    /// Packets that came before.
    twice: Vec<(u64, Instant)>,
    /// The longest time without a packet.
    gap: Duration,
}

impl Flow {
    fn start(from: UdpSocket, to: UdpSocket) -> Flow {
        let [stop, all_sent] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let address = to.local_addr().unwrap();
        let stopped = Arc::clone(&stop);
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let sending = thread::spawn(move || {
            let (begin, mut n) = (Instant::now(), 0u64);
            let mut packet = [0; 64];
            while !stopped.load(Ordering::Relaxed) {
                // A sender that did not run for a while does not catch up in one burst.
                let due = begin.elapsed().as_micros() as u64 * RATE / 1_000_000;
                for _ in 0..due.saturating_sub(n).min(64) {
                    packet[..8].copy_from_slice(&n.to_be_bytes());
                    from.send_to(&packet, address).unwrap();
                    n += 1;
                }
                count.store(n, Ordering::Relaxed);
                thread::sleep(Duration::from_micros(500));
            }
            n
        });
        // Room for what waits while the test itself does not run.
        set_socket_recv_buffer_size_force(&to, 256 << 20).unwrap();
        to.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let is_all_sent = Arc::clone(&all_sent);
        let receiving = thread::spawn(move || {
            let mut packet = [0; 64];
            let (mut arrived, mut last) = (Arrived::default(), None::<Instant>);
            let mut is_last_wait = false;
            loop {
                if to.recv(&mut packet).is_err() {
                    // Nothing came for a second.
                    if is_last_wait {
                        return arrived;
                    }
                    // The last packet has a whole second from now.
                    is_last_wait = is_all_sent.load(Ordering::Relaxed);
                    continue;
                }
                let now = Instant::now();
                let gap = last.map_or(Duration::ZERO, |last| now - last);
                arrived.gap = arrived.gap.max(gap);
                last = Some(now);
                let n = u64::from_be_bytes(packet[..8].try_into().unwrap());
                if !arrived.packets.insert(n) {
                    arrived.twice.push((n, now));
                }
            }
        });
        Flow {
            stop,
            all_sent,
            sent,
            sending,
            receiving,
        }
    }

    /// Returns the number of packets that were sent so far.
    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns the number of packets sent, the numbers of those that were lost, and the longest
    /// gap.
    fn end(self) -> (u64, Vec<u64>, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sending.join().unwrap();
        self.all_sent.store(true, Ordering::Relaxed);
        let arrived = self.receiving.join().unwrap();
        if let (Some(first), Some(last)) = (arrived.twice.first(), arrived.twice.last()) {
            panic!(
                "{} packets came twice: {first:?} … {last:?}",
                arrived.twice.len()
            );
        }
        let lost = (0..sent).filter(|n| !arrived.packets.contains(n));
        (sent, lost.collect(), arrived.gap)
    }
}

impl Testbed {
    /// Packets in both directions.
    fn flows(&self) -> [Flow; 2] {
        [(0, 1), (1, 0)].map(|(from, to)| {
            let port = 7100 + from as u16;
            Flow::start(self.udp(from, port), self.udp(to, port))
        })
    }

    fn handover_socket(&self, side: usize) -> PathBuf {
        self.path(&format!("gateway{side}.handover"))
    }

    fn pid(&self, side: usize) -> Option<u64> {
        self.status(side)?["pid"].as_u64()
    }

    /// Replaces the program of a gateway.
    fn hand_over(&mut self, side: usize) {
        let mut before = self.gateways[side].take().unwrap();
        let old = u64::from(before.id());
        self.begin(side, "handover");
        // On a busy machine the time for a handover may pass before each has done its part: the
        // other process ends then, and nothing has changed.
        let (mut begun, mut end) = (1, Instant::now() + HANDOVER_MAX);
        let status = loop {
            if let Some(status) = before.try_wait().unwrap() {
                break status;
            }
            let other = self.gateways[side].as_mut().unwrap();
            let ended = other.try_wait().unwrap();
            let is_late = Instant::now() > end;
            if is_late || ended.is_some() && begun == 3 {
                let _ = before.kill();
                let logs = [0, 1].map(|side| self.log(side)).join("\n");
                panic!("no handover; {begun} processes tried, the last ended: {ended:?}\n{logs}");
            }
            if let Some(ended) = ended {
                let _ = writeln!(io::stderr(), "handover again: {ended}");
                self.begin(side, "handover");
                (begun, end) = (begun + 1, Instant::now() + HANDOVER_MAX);
            }
            thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "{status}\n{}", self.log(side));
        self.wait(20.0, "the other process to answer", || {
            self.pid(side).filter(|pid| *pid != old)
        });
    }

    /// The frames that ports of a gateway had no room for.
    fn missed(&self, side: usize) -> u64 {
        let status = self.status(side).unwrap();
        let workers = status["workers"].as_array().unwrap();
        let ports = workers.iter().flat_map(|w| [&w["private"], &w["public"]]);
        let drops = ports.flat_map(|port| [&port["rx_dropped"], &port["tx_dropped"]]);
        drops.filter_map(Value::as_u64).sum()
    }

    /// The counters of packets that a gateway refused as replayed, too old, forged and of an
    /// unknown SPI: a sequence number that was used twice would be among them.
    fn refused(&self, side: usize) -> [u64; 4] {
        let status = self.status(side).unwrap();
        let dropped = &status["inbound"]["dropped"];
        let names = ["replayed", "too_old", "forged", "unknown_spi"];
        names.map(|name| dropped[name].as_u64().unwrap_or(0))
    }
}

fn handed_over_five_times(io: &str, cpus: &str) {
    crate::loses_nothing(|| lost_in_five_handovers(io, cpus));
}

/// Replaces the program of a gateway five times. Returns what was lost, if it is more than may be.
fn lost_in_five_handovers(io: &str, cpus: &str) -> Option<String> {
    let mut bed = Testbed::new(&["--io", io, "--cpu", cpus])?;
    bed.up();
    bed.wait_for_packets();
    let before = bed.status(0).unwrap();
    let refused = [0, 1].map(|side| bed.refused(side));
    let flows = bed.flows();
    thread::sleep(Duration::from_millis(500));
    // Numbers of the packets, and frames that were missed, before each handover and at the end.
    let mark = |bed: &Testbed| {
        let missed = bed.missed(0) + bed.missed(1);
        (flows.each_ref().map(Flow::sent), missed)
    };
    let mut marks = vec![mark(&bed)];
    for _ in 0..5 {
        bed.hand_over(0);
        thread::sleep(Duration::from_millis(500));
        marks.push(mark(&bed));
    }
    for (which, flow) in flows.into_iter().enumerate() {
        let direction = ["outbound", "inbound"][which];
        let (sent, numbers, gap) = flow.end();
        let lost = numbers.len() as u64;
        let each: Vec<_> = marks
            .windows(2)
            .map(|marks| {
                let [(from, missed), (until, missed_then)] = [&marks[0], &marks[1]];
                let during = from[which]..until[which];
                let lost = numbers.iter().filter(|n| during.contains(n)).count() as u64;
                (lost, missed_then.saturating_sub(*missed))
            })
            .collect();
        let _ = writeln!(
            io::stderr(),
            "{io} {cpus} {direction}: {lost} of {sent} packets lost in five handovers, {each:?}, {:.1} ms of packets; longest gap {:.1} ms",
            lost as f64 * 1000.0 / RATE as f64,
            gap.as_secs_f64() * 1000.0
        );
        let missed = bed.missed(0) + bed.missed(1);
        let is_fine = each.iter().all(|(lost, missed)| *lost <= LOSS_MAX + missed);
        if !is_fine || lost > 5 * LOSS_MAX + missed {
            return Some(format!(
                "{io} {direction}: {lost} of {sent} lost, {missed} missed; in each handover: {each:?}\n{}\n{:#}\n{:#}",
                bed.log(0),
                bed.status(0).unwrap()["workers"],
                bed.status(1).unwrap()["workers"],
            ));
        }
        assert!(sent > 10 * LOSS_MAX);
    }
    let refused_since = [0, 1].map(|side| bed.refused(side));
    assert_eq!(refused_since, refused, "{}", bed.log(0));
    // The counters went on, and so did the SAs: no packet of either was counted anew.
    let after = bed.status(0).unwrap();
    let forwarded = |status: &Value| status["outbound"]["forwarded"].as_u64().unwrap();
    assert!(forwarded(&after) > forwarded(&before) + RATE, "{after}");
    let packets = |status: &Value| status["routes"][0]["sent"]["packets"].as_u64().unwrap();
    assert!(packets(&after) > packets(&before) + RATE, "{after}");
    let kind = after["workers"][0]["private"]["kind"].as_str().unwrap();
    assert_eq!(kind.contains("AF_XDP"), io != "packet", "{kind}");
    None
}

#[test]
fn a_program_is_replaced_five_times_over_packet_sockets_and_at_most_10_ms_of_packets_are_lost() {
    handed_over_five_times("packet", &cpus(1));
}

#[test]
fn a_program_is_replaced_five_times_over_native_xdp_and_at_most_10_ms_of_packets_are_lost() {
    handed_over_five_times("auto", &cpus(1));
}

#[test]
fn a_program_is_replaced_five_times_over_generic_xdp_and_at_most_10_ms_of_packets_are_lost() {
    handed_over_five_times("xdp-generic", &cpus(1));
}

#[test]
fn a_program_with_two_workers_is_replaced_five_times() {
    // The control thread has the processor of a worker, and each worker its own if there are two.
    handed_over_five_times("packet", &format!("{},{}", cpus(1), cpus(2)));
}

#[test]
fn a_program_is_replaced_by_one_with_another_mode_of_xdp() {
    let Some(mut bed) = Testbed::new(&["--io", "xdp-generic"]) else {
        return;
    };
    bed.up();
    for (io, wanted) in [("xdp-native", "native"), ("xdp-generic", "generic")] {
        bed.options[1] = io.into();
        bed.hand_over(0);
        bed.wait(60.0, wanted, || {
            let status = bed.status(0)?;
            let is = |port: &str| {
                let kind = status["workers"][0][port]["kind"].as_str();
                kind.is_some_and(|kind| kind.contains(wanted))
            };
            (is("private") && is("public")).then_some(())
        });
        bed.wait_for_packets();
    }
}

/// A process that takes over up to some step only.
struct Impostor {
    socket: PathBuf,
    stream: UnixStream,
    /// Of the gateway.
    namespace: u64,
}

type Step = fn(&mut Impostor);

const HELLO: u8 = 1;
const PORT: u8 = 2;
const READY: u8 = 3;
const STATE: u8 = 4;
const TAKEN: u8 = 5;
const REFUSED: u8 = 6;

impl Impostor {
    fn at(bed: &Testbed) -> Impostor {
        let namespace = format!("/run/netns/{}", bed.spaces.name("g0"));
        let namespace = fs::metadata(namespace).unwrap().ino();
        Impostor::of(bed.handover_socket(0), namespace)
    }

    fn of(socket: PathBuf, namespace: u64) -> Impostor {
        let stream = UnixStream::connect(&socket).unwrap();
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).unwrap();
        Impostor {
            socket,
            stream,
            namespace,
        }
    }

    fn say(&mut self, kind: u8, content: &str) -> io::Result<()> {
        let mut message = vec![kind];
        message.extend((content.len() as u64).to_be_bytes());
        message.extend(content.as_bytes());
        self.stream.write_all(&message)
    }

    fn hear(&mut self) -> (u8, Vec<u8>) {
        let mut header = [0; 9];
        self.stream.read_exact(&mut header).unwrap();
        let length = u64::from_be_bytes(header[1..].try_into().unwrap());
        let mut content = vec![0; length as usize];
        self.stream.read_exact(&mut content).unwrap();
        (header[0], content)
    }

    fn greet(&mut self, workers: usize) {
        self.greet_from(workers, self.namespace);
    }

    fn greet_from(&mut self, workers: usize, namespace: u64) {
        let hello = format!(
            r#"{{"protocol":1,"version":"0","workers":{workers},"namespace":{namespace}}}"#
        );
        self.say(HELLO, &hello).unwrap();
    }

    fn receive_ports(&mut self) {
        self.greet(1);
        assert_eq!([HELLO, PORT, PORT], [0; 3].map(|_| self.hear().0));
    }

    /// On a busy machine a worker may not stop in time, after which another attempt is as good.
    fn receive_state(&mut self) {
        for _ in 0..5 {
            self.receive_ports();
            self.say(READY, "").unwrap();
            let (kind, content) = self.hear();
            if kind == STATE {
                return;
            }
            let text = String::from_utf8_lossy(&content);
            assert!(kind == REFUSED && text.contains("did not stop"), "{text}");
            *self = Impostor::of(self.socket.clone(), self.namespace);
        }
        panic!("workers do not stop in time in each of five attempts");
    }
}

#[test]
fn a_process_that_dies_or_hangs_or_refuses_at_any_step_leaves_the_gateway_forwarding() {
    for io in ["packet", "auto"] {
        let Some(mut bed) = Testbed::new(&["--io", io]) else {
            return;
        };
        bed.up();
        bed.wait_for_packets();
        let mode = fs::metadata(bed.handover_socket(0)).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        let pid = bed.pid(0);
        let refused = [0, 1].map(|side| bed.refused(side));
        let steps: [(&str, Step); 10] = [
            ("nothing", |_| ()),
            ("no message", |other| {
                other.stream.write_all(&[9; 64]).unwrap()
            }),
            ("another protocol", |other| {
                other
                    .say(HELLO, r#"{"protocol":2,"version":"9","workers":1}"#)
                    .unwrap();
                let (kind, text) = other.hear();
                let text = String::from_utf8(text).unwrap();
                assert!(kind == REFUSED && text.contains("protocol"), "{text}");
            }),
            ("another network namespace", |other| {
                other.greet_from(1, 1);
                let (kind, text) = other.hear();
                let text = String::from_utf8(text).unwrap();
                assert!(kind == REFUSED && text.contains("namespace"), "{text}");
            }),
            ("other workers", |other| {
                other.greet(2);
                let (kind, text) = other.hear();
                let text = String::from_utf8(text).unwrap();
                assert!(kind == REFUSED && text.contains("--cpu"), "{text}");
            }),
            ("ports", Impostor::receive_ports),
            ("state", Impostor::receive_state),
            ("half a message after the state", |other| {
                other.receive_state();
                // It may have been too long ago.
                let _ = other.stream.write_all(&[TAKEN, 0, 0]);
            }),
            ("a refusal", |other| {
                other.receive_state();
                // The same.
                let _ = other.say(REFUSED, "no");
            }),
            ("too late", |other| {
                other.receive_state();
                let mut kind = [0];
                let len = other.stream.read(&mut kind).unwrap();
                assert!(len == 0 || kind == [REFUSED], "{kind:?}");
                // The gateway goes on by now, so the kernel must not let this through.
                assert!(other.say(TAKEN, "").is_err());
            }),
        ];
        for (step, act) in steps {
            crate::loses_nothing(|| {
                let missed_before = bed.missed(0) + bed.missed(1);
                let flows = bed.flows();
                thread::sleep(Duration::from_millis(200));
                let mut other = Impostor::at(&bed);
                act(&mut other);
                drop(other);
                thread::sleep(Duration::from_millis(300));
                let all = flows.map(|flow| {
                    let (sent, lost, gap) = flow.end();
                    let lost = lost.len() as u64;
                    let _ = writeln!(
                        io::stderr(),
                        "{io}, {step}: {lost} of {sent} lost, longest gap {:.1} ms",
                        gap.as_secs_f64() * 1000.0
                    );
                    (lost, sent)
                });
                assert_eq!(bed.pid(0), pid, "{step}");
                let missed = (bed.missed(0) + bed.missed(1)).saturating_sub(missed_before);
                let is_fine = all.iter().all(|(lost, _)| *lost <= LOSS_MAX + missed);
                let log = || format!("{io}, {step}: {all:?}, {missed} missed\n{}", bed.log(0));
                (!is_fine).then(log)
            });
        }
        assert!(
            bed.log(0).contains("event=handover_failed"),
            "{}",
            bed.log(0)
        );
        bed.hand_over(0);
        bed.wait_for_packets();
        assert_eq!([0, 1].map(|side| bed.refused(side)), refused);
    }
}

#[test]
fn a_process_that_is_killed_while_it_takes_over_leaves_one_gateway() {
    let Some(mut bed) = Testbed::new(&[]) else {
        return;
    };
    bed.up();
    bed.wait_for_packets();
    for delay in [0, 5, 10, 20, 40, 80] {
        let mut before = bed.gateways[0].take().unwrap();
        bed.begin(0, "handover");
        thread::sleep(Duration::from_millis(delay));
        bed.signal(0, Signal::KILL);
        bed.gateways[0].take().unwrap().wait().unwrap();
        thread::sleep(Duration::from_millis(700));
        match bed.wait_for_packets_unless(|| before.try_wait().unwrap()) {
            None => bed.gateways[0] = Some(before),
            // It had taken over, so it was the gateway that was killed.
            Some(status) => {
                assert!(status.success(), "{status}");
                bed.start(0);
                bed.wait_until_up();
            }
        }
        bed.wait_for_packets();
    }
    assert_eq!(bed.refused(1)[..3], [0; 3]);
}

#[test]
fn what_cannot_be_taken_over_is_one_line_and_changes_nothing() {
    let Some(mut bed) = Testbed::new(&[]) else {
        return;
    };
    bed.configure(0, "");
    let gateway = |bed: &Testbed, what: &str, more: &[&str]| {
        let output = bed.spaces.within("g0", || {
            Command::new(TARE)
                .args(["gateway", what])
                .args(more)
                .arg(bed.config(0))
                .output()
                .unwrap()
        });
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        said
    };
    let run = |bed: &Testbed, more: &[&str]| gateway(bed, "handover", more);
    assert!(run(&bed, &[]).contains("is it running?"));
    bed.up();
    let pid = bed.pid(0);
    let three = [&*cpus(1); 3].join(",");
    assert!(run(&bed, &["--cpu", &three]).contains("--cpu must name as many"));
    // The configuration is checked before anything else.
    bed.configure(0, "route { id broken; }");
    assert!(run(&bed, &[]).contains("broken"));
    bed.configure(0, "");
    bed.wait_for_packets();
    assert_eq!(bed.pid(0), pid);
    // The locks on the interfaces go to the other process.
    bed.hand_over(0);
    let pid = bed.pid(0).unwrap();
    let socket = bed.path("second.sock");
    let second = ["--status-socket", socket.to_str().unwrap()];
    let said = gateway(&bed, "run", &second);
    assert!(said.contains(&format!("process {pid};")), "{said}");
}

#[test]
fn sigusr2_starts_the_program_again_in_the_place_of_the_one_that_runs_and_tells_the_service_manager(
) {
    let Some(mut bed) = Testbed::new(&[]) else {
        return;
    };
    let manager = std::os::unix::net::UnixDatagram::bind(bed.path("notify")).unwrap();
    let limit = Some(Duration::from_secs(60));
    manager.set_read_timeout(limit).unwrap();
    bed.notify = Some(bed.path("notify"));
    bed.up();
    bed.wait_for_packets();
    crate::loses_nothing(|| {
        let flows = bed.flows();
        for _ in 0..2 {
            let new = replaced_at_its_signal(&bed);
            let mut said = [0; 64];
            let len = manager.recv(&mut said).unwrap();
            assert_eq!(said[..len], *format!("MAINPID={new}").as_bytes());
        }
        let all = flows.map(|flow| {
            let (sent, lost, _) = flow.end();
            (lost.len() as u64, sent)
        });
        // What a busy machine had no room for is lost without a handover, too.
        let missed = bed.missed(0) + bed.missed(1);
        let is_fine = all.iter().all(|(lost, _)| *lost <= 2 * LOSS_MAX + missed);
        let log = || format!("{all:?}, {missed} missed\n{}", bed.log(0));
        (!is_fine).then(log)
    });
    // It is no child of the test.
    let pid = bed.pid(0).unwrap();
    let process = Pid::from_raw(pid as i32).unwrap();
    kill_process(process, Signal::TERM).unwrap();
    bed.wait(60.0, "it to end", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
    assert!(!bed.handover_socket(0).exists());
}

/// Signals to a gateway that it is to be replaced, and returns the number of the process that
/// replaces it. On a busy machine the time for a handover may pass, after which the signal is sent
/// again.
fn replaced_at_its_signal(bed: &Testbed) -> u64 {
    let old = bed.pid(0).unwrap();
    let process = Pid::from_raw(old as i32).unwrap();
    let failures = || bed.log(0).matches("event=handover_failed").count();
    let before = failures();
    kill_process(process, Signal::USR2).unwrap();
    bed.wait(120.0, "the successor to answer", || {
        let pid = bed.pid(0)?;
        if pid != old {
            return Some(pid);
        }
        // While the process that failed is there, the signal has no effect.
        if failures() > before {
            let _ = kill_process(process, Signal::USR2);
        }
        None
    })
}
