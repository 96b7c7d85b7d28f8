//! Hosts and gateways in network namespaces, and numbered packets between the hosts.

use std::collections::HashSet;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use tare_port::namespaces::Namespaces;
use tare_port::Interface;

pub(crate) const TARE: &str = env!("CARGO_BIN_EXE_tare");

/// The longest time for which a thread that sends may not run: half of what an exchange of keys
/// has before it is tried again.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// At most two tests run at a time: each starts two daemons.
pub(crate) static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Hosts and gateways in namespaces, which go away with it.
pub(crate) struct Testbed {
    pub(crate) spaces: Namespaces,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) options: Vec<String>,
    /// The socket of the service manager.
    pub(crate) notify: Option<PathBuf>,
    pub(crate) gateways: [Option<Child>; 2],
    pub(crate) timers: &'static str,
    pub(crate) _alone: MutexGuard<'static, ()>,
}

/// The numbers of processors on which this process may run, as options name them, `n` of them; the
/// last one again where there are fewer.
pub(crate) fn cpus(n: usize) -> String {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let allowed = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let mut numbers: Vec<String> = allowed.take(n).map(|cpu| cpu.to_string()).collect();
    let last = numbers.last().expect("a processor").clone();
    numbers.resize(n, last);
    numbers.join(",")
}

pub(crate) const PLACES: [&str; 4] = ["h0", "g0", "g1", "h1"];

impl Testbed {
    /// Returns `None` where it cannot be made, and fails there under CI.
    pub(crate) fn new(options: &[&str]) -> Option<Testbed> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let bed = Testbed {
            spaces: Namespaces::of_test("gateway", &PLACES)?,
            directory: tempfile::tempdir().unwrap(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            notify: None,
            gateways: [None, None],
            timers: "negotiation-ttl 1; sa-ttl 8;",
            _alone: alone,
        };
        for place in PLACES {
            bed.spaces.within(place, || {
                // The kernel sends no packets of its own on the wires.
                for of in ["all", "default"] {
                    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6"), "1");
                }
            });
            bed.spaces.ip(place, "link set lo up");
        }
        for (places, names) in [
            (["h0", "g0"], ["lan", "private"]),
            (["g0", "g1"], ["public", "public"]),
            (["h1", "g1"], ["lan", "private"]),
        ] {
            bed.spaces.link(places, names);
        }
        for side in 0..2 {
            let gateway = format!("g{side}");
            // Room for the tunnel around packets of 1500 bytes.
            bed.spaces.ip(&gateway, "link set public mtu 1600 up");
            bed.spaces.ip(&gateway, "link set private up");
            bed.set_up_host(side);
        }
        Some(bed)
    }

    /// Gives a host its address and its route, at an interface that is there and down.
    pub(crate) fn set_up_host(&self, side: usize) {
        let (host, net) = (format!("h{side}"), 16 + side);
        for arguments in [
            format!("addr add 172.{net}.1.2/16 dev lan"),
            "link set lan up".to_owned(),
            format!("route add default via 172.{net}.0.10"),
        ] {
            self.spaces.ip(&host, &arguments);
        }
        // A host leaves checksums and segmentation to its network card, which veth is not.
        self.spaces.within(&host, || {
            let lan = Interface::by_name("lan").unwrap();
            lan.switch_offloads_off().unwrap();
        });
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn config(&self, side: usize) -> PathBuf {
        self.path(&format!("gateway{side}.conf"))
    }

    /// Writes a gateway's file, as an editor does: another file, moved over the one that was.
    pub(crate) fn configure(&self, side: usize, more: &str) {
        let (own, peer) = (side + 1, 2 - side);
        let text = format!(
            r#"{}
            status-socket "{}";
            private-interface {{ device private; ip4 172.{}.0.10; nexthop-ip4 172.{}.1.2; }}
            public-interface {{ device public; ip4 192.0.2.{own}; nexthop-ip4 192.0.2.{peer}; }}
            route {{
              id peer; gw-ip4 192.0.2.{peer}; net-cidr4 "172.{}.0.0/16";
              preshared-key 91440DA06376A668AC4959A840A125D75FB544E8AA25A08B813E49F0A4B2E270; spi 1001;
            }}
            {more}"#,
            self.timers,
            self.socket(side).display(),
            16 + side,
            16 + side,
            17 - side,
        );
        let next = self.path("next");
        fs::write(&next, text).unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(next, self.config(side)).unwrap();
    }

    pub(crate) fn socket(&self, side: usize) -> PathBuf {
        self.path(&format!("gateway{side}.sock"))
    }

    pub(crate) fn start(&mut self, side: usize) {
        self.begin(side, "run");
    }

    /// Starts a gateway in one of the ways to begin.
    pub(crate) fn begin(&mut self, side: usize, how: &str) {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file(side));
        self.begin_with_log(side, how, log.unwrap().into());
    }

    /// The same with the log to somewhere else.
    pub(crate) fn begin_with_log(&mut self, side: usize, how: &str, log: Stdio) {
        let notify = self.notify.iter().map(|path| ("NOTIFY_SOCKET", path));
        // Ahead of the test and of what else runs: a gateway that does not run loses packets.
        let child = Command::new("nice")
            .envs(notify)
            .args(["-n", "-15", "ip"])
            .args([
                "netns",
                "exec",
                &self.spaces.name(&format!("g{side}")),
                TARE,
                "gateway",
                how,
            ])
            .args(&self.options)
            .arg(self.config(side))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.gateways[side] = Some(child);
    }

    pub(crate) fn log_file(&self, side: usize) -> PathBuf {
        self.path(&format!("gateway{side}.log"))
    }

    pub(crate) fn log(&self, side: usize) -> String {
        fs::read_to_string(self.log_file(side)).unwrap_or_default()
    }

    /// Both gateways, with keys for each other.
    pub(crate) fn up(&mut self) {
        for side in 0..2 {
            self.configure(side, "");
            self.start(side);
        }
        self.wait_until_up();
    }

    pub(crate) fn wait_until_up(&self) {
        for side in 0..2 {
            self.wait(20.0, "the route to come up", || {
                let status = self.status(side)?;
                (status["routes"][0]["state"] == "up").then_some(())
            });
        }
    }

    pub(crate) fn wait<T>(
        &self,
        seconds: f64,
        what: &str,
        mut until: impl FnMut() -> Option<T>,
    ) -> T {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        loop {
            if let Some(result) = until() {
                return result;
            }
            let logs = || format!("{}\n{}", self.log(0), self.log(1));
            assert!(
                Instant::now() < end,
                "waited {seconds} s for {what}\n{}",
                logs()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The output of `tare gateway status --json`; `None` if no gateway listens. One that does not
    /// answer in time is asked again, for a minute.
    pub(crate) fn status(&self, side: usize) -> Option<Value> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let output = status(&["--json"], &self.socket(side));
            let status = serde_json::from_slice(&output.stdout).ok();
            let said = String::from_utf8_lossy(&output.stderr);
            let gone = ["Connection refused", "No such file"];
            let is_gone = gone.iter().any(|words| said.contains(words));
            if status.is_some() || is_gone || Instant::now() > end {
                return status;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Frames that the kernel dropped at either end of the cables.
    pub(crate) fn dropped_by_cables(&self) -> u64 {
        let dropped = |place: &str| -> u64 {
            let table = self.spaces.within(place, || {
                fs::read_to_string("/proc/thread-self/net/dev").unwrap()
            });
            // The fourth column counts what was not received, the twelfth what was not sent.
            let columns = table.lines().filter_map(|line| line.split_once(':'));
            let of_both = |(_, counts): (&str, &str)| {
                let counts: Vec<u64> = counts
                    .split_whitespace()
                    .map(|count| count.parse().unwrap())
                    .collect();
                counts[3] + counts[11]
            };
            columns.map(of_both).sum()
        };
        PLACES.into_iter().map(dropped).sum()
    }

    /// The same, and the packets that the kernel had no room for between them, of all programs.
    fn dropped_by_kernel(&self) -> u64 {
        let table = fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
        let columns = table.lines().filter_map(|line| line.split(' ').nth(1));
        let dropped = columns.filter_map(|count| u64::from_str_radix(count, 16).ok());
        dropped.sum::<u64>() + self.dropped_by_cables()
    }

    pub(crate) fn signal(&self, side: usize, signal: Signal) {
        let child = self.gateways[side].as_ref().unwrap();
        // `ip netns exec` execs the program, so the process is the program's.
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    /// A socket of a host.
    pub(crate) fn udp(&self, side: usize, port: u16) -> UdpSocket {
        let address = format!("172.{}.1.2:{port}", 16 + side);
        self.spaces
            .within(&format!("h{side}"), || UdpSocket::bind(address).unwrap())
    }

    /// Waits until packets arrive: the first ones are lost while hosts resolve addresses.
    pub(crate) fn wait_for_packets(&self) {
        let ended: Option<()> = self.wait_for_packets_unless(|| None);
        assert!(ended.is_none());
    }

    /// The same, unless something else happens first, which is then returned.
    pub(crate) fn wait_for_packets_unless<T>(
        &self,
        mut other: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let sockets = [self.udp(0, 7000), self.udp(1, 7000)];
        for (side, from) in sockets.iter().enumerate() {
            let to = &sockets[1 - side];
            to.set_read_timeout(Some(Duration::from_millis(50)))
                .unwrap();
            let ended = self.wait(20.0, "packets to come through", || {
                let ended = other();
                if ended.is_some() {
                    return Some(ended);
                }
                from.send_to(b"?", to.local_addr().unwrap()).unwrap();
                to.recv(&mut [0; 8]).ok().map(|_| None)
            });
            if ended.is_some() {
                return ended;
            }
        }
        // Packets still in flight do not belong to what is counted next.
        thread::sleep(Duration::from_millis(100));
        None
    }

    /// Sends numbered packets both ways until it is stopped.
    pub(crate) fn traffic(&self) -> Traffic {
        let ends = [self.udp(0, 7001), self.udp(1, 7001)];
        // The usual buffer holds a fifth of a second, for which a busy machine may not run the
        // thread that receives.
        for end in &ends {
            set_socket_recv_buffer_size_force(end, 64 << 20).unwrap();
        }
        let [stop, all_sent] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let addresses = [1, 0].map(|side: usize| ends[side].local_addr().unwrap());
        let senders = ends.each_ref().map(|end| end.try_clone().unwrap());
        let mut sending = Vec::new();
        for (from, to) in senders.into_iter().zip(addresses) {
            let stop = Arc::clone(&stop);
            sending.push(thread::spawn(move || {
                let mut times = Vec::new();
                let mut packet = [0; 1400];
                while !stop.load(Ordering::Relaxed) {
                    let n = times.len() as u64;
                    let len = 8 + (n * 577 % 1392) as usize;
                    packet[..8].copy_from_slice(&n.to_be_bytes());
                    times.push(Instant::now());
                    // What cannot be sent is lost.
                    let _ = from.send_to(&packet[..len], to);
                    thread::sleep(Duration::from_millis(2));
                }
                times
            }));
        }
        let receiving = ends.map(|end| {
            end.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            let all_sent = Arc::clone(&all_sent);
            thread::spawn(move || {
                let (mut seen, mut packet) = (HashSet::new(), [0; 2000]);
                let (mut last, mut longest_gap) = (None, Duration::ZERO);
                let mut is_last_wait = false;
                loop {
                    match end.recv(&mut packet) {
                        Ok(len) => {
                            let now = Instant::now();
                            let since = last.replace(now).map_or(Duration::ZERO, |at| now - at);
                            longest_gap = longest_gap.max(since);
                            let n = u64::from_be_bytes(packet[..8].try_into().unwrap());
                            assert_eq!(len, 8 + (n * 577 % 1392) as usize);
                            assert!(seen.insert(n), "packet {n} came twice");
                        }
                        Err(_) if is_last_wait => return (seen, longest_gap),
                        // The last packet has a whole second from now.
                        Err(_) => is_last_wait = all_sent.load(Ordering::Relaxed),
                    }
                }
            })
        });
        Traffic {
            dropped: self.dropped_by_kernel(),
            stop,
            all_sent,
            sending,
            receiving: receiving.into(),
        }
    }
}

pub(crate) struct Traffic {
    /// The frames that the kernel had dropped before.
    dropped: u64,
    pub(crate) stop: Arc<AtomicBool>,
    /// Set when no sender runs: one that was stopped may have stood still before its last packet.
    all_sent: Arc<AtomicBool>,
    /// The times at which packets were sent, by their numbers.
    pub(crate) sending: Vec<JoinHandle<Vec<Instant>>>,
    /// The numbers that came, and the longest time without any.
    pub(crate) receiving: Vec<JoinHandle<(HashSet<u64>, Duration)>>,
}

impl Traffic {
    /// Ends it, and counts.
    pub(crate) fn end(self, bed: &Testbed) -> Count {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self
            .sending
            .into_iter()
            .map(|sender| sender.join().unwrap());
        let sent: Vec<Vec<Instant>> = sent.collect();
        self.all_sent.store(true, Ordering::Relaxed);
        let mut count = Count::default();
        // Received is what the other end sent.
        for (times, seen) in sent.into_iter().zip(self.receiving.into_iter().rev()) {
            let (seen, longest_gap) = seen.join().unwrap();
            let pauses = times.windows(2).map(|pair| pair[1] - pair[0]);
            let pause = pauses.max().unwrap_or_default().max(longest_gap);
            count.longest_pause = count.longest_pause.max(pause);
            count.sent += times.len() as u64;
            let lost = (0..).zip(times).filter(|(n, _)| !seen.contains(n));
            count.lost.extend(lost.map(|(_, at)| at));
        }
        count.dropped = bed.dropped_by_kernel().saturating_sub(self.dropped);
        count
    }
}

/// Packets sent, and packets lost of those.
#[derive(Default)]
pub(crate) struct Count {
    pub(crate) sent: u64,
    /// The times at which those were sent that were lost.
    pub(crate) lost: Vec<Instant>,
    /// The longest time in which none was sent, or none came: then a gateway stood still.
    pub(crate) longest_pause: Duration,
    /// Frames that the kernel dropped.
    pub(crate) dropped: u64,
}

impl Count {
    /// True if packets were lost on a machine so busy that processes stood still for longer than
    /// a change of keys has, or that the kernel dropped frames that no gateway had received: what
    /// was lost then is no measure of the gateway.
    pub(crate) fn is_of_a_stalled_machine(&self) -> bool {
        let is_stalled = self.longest_pause > PAUSE_MAX || self.dropped > 0;
        let is = !self.lost.is_empty() && is_stalled;
        if is {
            let (lost, pause, dropped) = (self.lost.len(), self.longest_pause, self.dropped);
            eprintln!(
                "to be repeated: {lost} packets lost, a pause of {pause:?}, and {dropped} frames \
                 dropped by the kernel"
            );
        }
        is
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        // One that a gateway started in its place is no child of the test.
        for side in 0..self.gateways.len() {
            let pid = self.status(side).and_then(|status| status["pid"].as_i64());
            if let Some(process) = pid.and_then(|pid| Pid::from_raw(pid as i32)) {
                let _ = kill_process(process, Signal::KILL);
            }
        }
        for child in self.gateways.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn status(options: &[&str], at: &Path) -> Output {
    Command::new(TARE)
        .args(["gateway", "status"])
        .args(options)
        .arg(at)
        .output()
        .unwrap()
}
