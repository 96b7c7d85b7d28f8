//! nginx in place of a guest: in a network namespace of its own, on the kernel's stack, behind the
//! TAP device that a guest would have.
//!
//! A guest's host moves frames between the TAP device and the guest's ring; here a thread moves
//! them between that TAP device and another one, in nginx's namespace.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context as _};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use tare_cvmnet::tls::self_signed_pem;
use tare_port::{VnetTap, VNET_HEADER};

use super::wrk::{Process, CLIENT_NET, PORT, SERVER, SERVER_NET, START_MAX};
use crate::machine::load_program;
use crate::program::leash;
use crate::systems::load::driver::pin;
use crate::systems::namespace::{ip, within};

/// The device of the client, which a guest's host has too, and nginx's.
const NEAR: &str = "near";
const FAR: &str = "far";
/// Frames of one direction before those of the other.
const BURST: usize = 64;
/// More than the longest frame.
const FRAME_ROOM: usize = 65_536;

/// nginx, with the network that leads to it.
pub(crate) struct Nginx {
    process: Process,
    cpu: usize,
    stop: Arc<AtomicBool>,
    mover: Option<JoinHandle<io::Result<()>>>,
}

impl Nginx {
    /// Starts nginx, which ends with this thread, on a processor of its own, and waits until it
    /// answers.
    pub(crate) fn start(folder: &Path, cpu: usize, other_cpu: usize) -> anyhow::Result<Nginx> {
        let path = folder.to_str().context("a path of no text")?;
        let names = [SERVER.to_string()];
        let (certificate, key) = self_signed_pem(&names).map_err(|e| anyhow!("{e}"))?;
        fs::write(folder.join("cert.pem"), certificate)?;
        fs::write(folder.join("key.pem"), key)?;
        fs::write(folder.join("nginx.conf"), configuration(path))?;
        let program = load_program("nginx").context("no nginx")?;
        pin(cpu)?;
        let log = folder.join("log");
        let child = leash()
            .args(["unshare", "--net", "--"])
            .arg(program)
            .args(["-e", "stderr", "-p", path, "-c", "nginx.conf"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .spawn();
        pin(other_cpu)?;
        let mut process = Process(child.context("nginx")?);
        let (pid, until) = (process.0.id(), Instant::now() + START_MAX);
        let here = fs::read_link("/proc/self/ns/net")?;
        // `unshare` has not made the namespace when it is started.
        while fs::read_link(format!("/proc/{pid}/ns/net"))? == here {
            ensure!(Instant::now() < until, "unshare makes no network namespace");
            std::thread::sleep(Duration::from_millis(1));
        }
        let near = VnetTap::open(NEAR, false)?;
        ip(&["address", "add", CLIENT_NET, "dev", NEAR])?;
        let far = within(pid, || {
            let far = VnetTap::open(FAR, false)?;
            ip(&["address", "add", SERVER_NET, "dev", FAR])?;
            receive_on(cpu)?;
            Ok(far)
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let mover = std::thread::spawn(move || move_frames(near, far, &stopped));
        let address = SocketAddr::from((SERVER, PORT));
        while TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
            if Instant::now() > until || process.0.try_wait()?.is_some() {
                let log = fs::read_to_string(&log).unwrap_or_default();
                bail!("nginx does not answer: {}", log.trim());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Nginx {
            process,
            cpu,
            stop,
            mover: Some(mover),
        })
    }

    /// Returns the time for which nginx's processor was busy, with what the kernel did there in
    /// interrupts, to a clock tick.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        if self.mover.as_ref().is_some_and(JoinHandle::is_finished) {
            bail!("a TAP device of nginx is gone");
        }
        // It is there: its figures would be those of another program.
        fs::metadata(format!("/proc/{}", self.process.0.id())).context("nginx has ended")?;
        let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let ticks = busy_ticks(&text, self.cpu).context("/proc/stat has no such processor")?;
        let per_second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.mover.take().map(JoinHandle::join);
    }
}

/// The clock ticks in `/proc/stat` for which a processor did something: all but the idle ones,
/// those of waiting for a disk, and those that a hypervisor took.
fn busy_ticks(stat: &str, cpu: usize) -> Option<u64> {
    let name = format!("cpu{cpu}");
    let line = stat
        .lines()
        .find(|line| line.split(' ').next() == Some(&name))?;
    let ticks: Result<Vec<u64>, _> = line.split_whitespace().skip(1).map(str::parse).collect();
    match *ticks.ok()? {
        [user, nice, system, _, _, irq, softirq, ..] => Some(user + nice + system + irq + softirq),
        _ => None,
    }
}

/// Lets the kernel receive what comes to nginx's device on this processor: else it is received
/// where it is sent, by the thread that moves frames. For the namespace of this thread, in which
/// `/sys` has to be mounted again.
fn receive_on(cpu: usize) -> anyhow::Result<()> {
    let (group, bit) = (cpu / 32, 1u32 << (cpu % 32));
    let mask = format!("{bit:x}{}", ",00000000".repeat(group));
    let script = format!(
        "mount -t sysfs sysfs /sys && echo {mask} > /sys/class/net/{FAR}/queues/rx-0/rps_cpus"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--", "sh", "-c", &script]);
    let output = command.stdin(Stdio::null()).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", errors.trim());
    Ok(())
}

/// Moves frames between two devices until it is told to stop.
fn move_frames(mut near: VnetTap, mut far: VnetTap, stop: &AtomicBool) -> io::Result<()> {
    let mut room = vec![0; FRAME_ROOM];
    while !stop.load(Ordering::Relaxed) {
        if move_some(&mut near, &mut far, &mut room)? | move_some(&mut far, &mut near, &mut room)? {
            continue;
        }
        let mut waiting = [near.as_fd(), far.as_fd()]
            .map(|device| PollFd::from_borrowed_fd(device, PollFlags::IN));
        let most = Timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        match poll(&mut waiting, Some(&most)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Returns false if there was nothing to move.
fn move_some(from: &mut VnetTap, to: &mut VnetTap, room: &mut [u8]) -> io::Result<bool> {
    let mut header = [0; VNET_HEADER];
    for n in 0..BURST {
        let Some(len) = from.receive(&mut header, room)? else {
            return Ok(n > 0);
        };
        // A full device drops it, as a cable would.
        to.send(&header, &room[..len])?;
    }
    Ok(true)
}

/// Returns the configuration of nginx: one process, TLS 1.3 with the cipher of the guests.
fn configuration(folder: &str) -> String {
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|name| format!("{name}_temp_path \"{folder}/{name}\";"));
    format!(
        "daemon off;\nmaster_process off;\npid \"{folder}/pid\";\nerror_log stderr;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n  access_log off;\n  keepalive_requests 1000000000;\n  \
         open_file_cache max=16;\n  {}\n  server {{\n    \
         listen 0.0.0.0:{PORT} ssl;\n    ssl_certificate cert.pem;\n    \
         ssl_certificate_key key.pem;\n    ssl_protocols TLSv1.3;\n    \
         ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;\n    root \"{folder}\";\n  }}\n}}\n",
        temporary.join("\n  ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_ticks_are_all_but_the_idle_and_the_stolen_ones() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 4 100 200 8 16 400 0 0\n\
                    cpu10 1 0 0 0 0 0 0 0 0 0\nintr 5\n";
        assert_eq!(busy_ticks(stat, 0), Some(31));
        assert_eq!(busy_ticks(stat, 10), Some(1));
        assert_eq!(busy_ticks(stat, 1), None);
        assert_eq!(busy_ticks("cpu0 1 2\n", 0), None);
    }
}
