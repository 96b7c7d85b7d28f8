//! A guest that runs.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::{fcntl_setfd, Errno, FdFlags};
use rustix::net::{send, SendFlags};

use crate::agent::{self, Exit, Frame, Kind, Ready, Run, PROTOCOL};
use crate::arguments::{arguments, Descriptors, Hardware, Network};
use crate::clock;
use crate::console::Console;
use crate::kernel::Kernel;
use crate::qmp::Monitor;
use crate::version::{Version, PACKAGE, QEMU};
use crate::{Accelerator, Error, Evidence};

/// The time for QEMU to end by itself.
const FAREWELL: Duration = Duration::from_secs(2);
/// The time for it when it has closed the agent's socket: only a hang takes as long.
const LAST: Duration = Duration::from_secs(30);
/// The time between two looks at QEMU's process.
const LOOK: Duration = Duration::from_millis(20);
/// The longest time in which a frame arrives that has begun to.
const FRAME: Duration = Duration::from_secs(30);
/// The most bytes of output that are kept.
const OUTPUT_MAX: usize = 64 << 20;
/// The most characters of what a guest says that an error has.
const SAID_MAX: usize = 400;
/// The program that has the kernel end QEMU when this process ends, whatever ends it.
const LEASH: &str = "setpriv";
/// Becomes QEMU, unless the process that starts it ended before the kernel was told to watch it.
const UNLESS_ORPHANED: &str = "[ \"$PPID\" = \"$0\" ] && exec \"$@\"";

/// The stream that a command in a guest has written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Errors,
}

/// All that a command in a guest has written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Keeps as much as there is room for, and one byte more, to know that there was more.
    fn add(&mut self, stream: Stream, bytes: &[u8]) {
        let to = match stream {
            Stream::Output => &mut self.stdout,
            Stream::Errors => &mut self.stderr,
        };
        let room = (OUTPUT_MAX + 1).saturating_sub(to.len());
        to.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }
}

/// A guest, which ends with this value and with this process.
pub struct Guest {
    qemu: Process,
    console: Console,
    errors: Console,
    followers: Vec<JoinHandle<()>>,
    monitor: Option<Monitor>,
    agent: UnixStream,
    /// The sending side of the same socket, for one frame at a time.
    to_agent: Arc<Mutex<UnixStream>>,
    /// The number of the last command.
    command: u32,
    /// A command that exceeded its limit may run on.
    is_spent: bool,
    evidence: Evidence,
    accelerator: Accelerator,
    boot_time: Duration,
}

impl Guest {
    /// The usual limit of [`Guest::boot`].
    pub const BOOT_MAX: Duration = Duration::from_secs(300);

    /// Starts QEMU in this process' network namespace and returns when the agent is ready. `limit`
    /// is the longest time until then.
    ///
    /// # Errors
    /// QEMU or its version is not right, or the guest ends or hangs: then with the last of its
    /// console. A guest that is not what its flavour says, or whose memory is certainly too small,
    /// is [`Error::Flavour`].
    pub fn boot(
        hardware: &Hardware,
        kernel: &Kernel,
        initramfs: &Path,
        limit: Duration,
    ) -> Result<Guest, Error> {
        let version = Version::installed()?;
        check_memory(hardware, kernel, initramfs)?;
        let began = Instant::now();
        let failed = |error: io::Error| Error::Qemu(error.to_string());
        let (monitor, its_monitor) = UnixStream::pair().map_err(failed)?;
        let (agent, its_agent) = UnixStream::pair().map_err(failed)?;
        let descriptors = Descriptors {
            monitor: its_monitor.as_raw_fd(),
            agent: its_agent.as_raw_fd(),
        };
        let rate = match hardware.accelerator {
            Accelerator::Emulated => clock::rate_khz(),
            Accelerator::Kvm => None,
        };
        let list = arguments(
            hardware,
            version,
            &kernel.image,
            initramfs,
            rate,
            descriptors,
        )?;
        let mut qemu = Process::start(list, [its_monitor, its_agent])?;
        let (console, errors) = (Console::default(), Console::default());
        let output = qemu.child.stdout.take().map(|it| console.follow(it));
        let messages = qemu.child.stderr.take().map(|it| errors.follow(it));
        let mut guest = Guest {
            qemu,
            console,
            errors,
            followers: output.into_iter().chain(messages).collect(),
            monitor: None,
            to_agent: Arc::new(Mutex::new(agent.try_clone().map_err(failed)?)),
            agent,
            command: 0,
            is_spent: false,
            evidence: Evidence::default(),
            accelerator: hardware.accelerator,
            boot_time: Duration::ZERO,
        };
        guest.monitor = match Monitor::new(monitor, began + limit) {
            Ok(monitor) => Some(monitor),
            Err(error) => {
                let error = match began.elapsed() < limit {
                    true => error,
                    false => {
                        let mut last = guest.console.last();
                        last.0.push(format!("({error})"));
                        Error::Deadline(limit, last)
                    }
                };
                return Err(guest.reason(FAREWELL).unwrap_or(error));
            }
        };
        guest.evidence = guest.ready(began + limit, limit)?;
        guest.boot_time = began.elapsed();
        let checked = guest.evidence.check(hardware.flavour);
        checked.map_err(Error::Flavour)?;
        guest.set_up_network(&hardware.network)?;
        Ok(guest)
    }

    /// Returns the evidence, from inside, of what the guest is.
    pub fn evidence(&self) -> &Evidence {
        &self.evidence
    }

    /// Returns the way in which its instructions run. Times of an emulated guest mean nothing.
    pub fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    /// Returns the time from the start of QEMU until the agent was ready.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// Returns the process number of QEMU.
    pub fn pid(&self) -> u32 {
        self.qemu.child.id()
    }

    /// Runs a command in the guest: `output` gets what it writes, `input`, which is read on a
    /// thread of its own until the command ends, is its standard input. `limit` is the longest time
    /// until its end.
    ///
    /// Output of a process that the command left behind is lost after its end.
    ///
    /// # Errors
    /// [`Error::Command`] if it cannot be started or exceeds the limit, after which the guest takes
    /// no other command; the reason why the guest has ended.
    pub fn run(
        &mut self,
        command: &[&str],
        input: impl Read + Send + 'static,
        limit: Option<Duration>,
        output: impl FnMut(Stream, &[u8]),
    ) -> Result<Exit, Error> {
        let command: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
        let shown = command.first().cloned().unwrap_or_default();
        let run = serde_json::to_vec(&Run { command }).unwrap_or_default();
        if self.is_spent {
            let reason = "a command that exceeded its limit may run on: boot another guest";
            return Err(Error::Command(reason.into()));
        }
        self.command += 1;
        let until = limit.map(|limit| Instant::now() + limit);
        let limit = limit.unwrap_or_default().as_secs_f64();
        if !self.send(Kind::Run, &run, until)? {
            self.is_spent = true;
            let reason = format!("{shown}: the agent does not take it within {limit:.1} s");
            return Err(Error::Command(reason));
        }
        let (to, number) = (Arc::clone(&self.to_agent), self.command);
        let is_over = Arc::new(AtomicBool::new(false));
        let is_unread = Arc::clone(&is_over);
        thread::spawn(move || forward(input, &to, number, &is_unread));
        let exit = self.follow(until, output);
        is_over.store(true, Ordering::Release);
        exit?.ok_or_else(|| {
            self.is_spent = true;
            Error::Command(format!("{shown} still runs after {limit:.1} s"))
        })
    }

    /// Hands on what the last command writes until it ends; `None` if it does not in time.
    fn follow(
        &mut self,
        until: Option<Instant>,
        mut output: impl FnMut(Stream, &[u8]),
    ) -> Result<Option<Exit>, Error> {
        loop {
            let Some(frame) = self.receive(until)? else {
                return Ok(None);
            };
            if frame.command != self.command {
                continue;
            }
            match frame.kind {
                Kind::Output => output(Stream::Output, &frame.content),
                Kind::Errors => output(Stream::Errors, &frame.content),
                Kind::Exit => return parse(&frame).map(Some),
                Kind::Refused => {
                    let reason = String::from_utf8_lossy(&frame.content);
                    return Err(Error::Command(excerpt(&reason)));
                }
                _ => return Err(unexpected(&frame)),
            }
        }
    }

    /// Runs a command and returns all that it writes.
    ///
    /// # Errors
    /// As [`Guest::run`]; [`Error::Command`] if it writes more than 64 MiB.
    pub fn capture(
        &mut self,
        command: &[&str],
        input: impl Read + Send + 'static,
        limit: Option<Duration>,
    ) -> Result<(Exit, Output), Error> {
        let mut output = Output::default();
        let add = |stream, bytes: &[u8]| output.add(stream, bytes);
        let exit = self.run(command, input, limit, add)?;
        if output.stdout.len().max(output.stderr.len()) > OUTPUT_MAX {
            let found = "found more than 64 MiB of output, which could be redirected";
            return Err(Error::Command(format!("{}: {found}", command.join(" "))));
        }
        Ok((exit, output))
    }

    /// Runs a command without input and returns its standard output; both of its streams are in the
    /// error if it fails.
    ///
    /// # Errors
    /// As [`Guest::capture`]; [`Error::Command`] if its exit status is not 0.
    pub fn output(&mut self, command: &[&str], limit: Duration) -> Result<String, Error> {
        let (exit, output) = self.capture(command, io::empty(), Some(limit))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        if exit.status == Some(0) {
            return Ok(printed.into_owned());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let (shown, printed, errors) = (command.join(" "), excerpt(&printed), excerpt(&errors));
        Err(Error::Command(format!("{shown}: {printed} {errors}")))
    }

    /// Checks that the guest runs.
    ///
    /// # Errors
    /// The reason why it has ended.
    pub fn check(&mut self) -> Result<(), Error> {
        match self.qemu.wait(Duration::ZERO) {
            None => Ok(()),
            Some(_) => Err(self.ended()),
        }
    }

    /// Waits for the agent's first message.
    fn ready(&mut self, until: Instant, limit: Duration) -> Result<Evidence, Error> {
        let Some(frame) = self.receive(Some(until))? else {
            let mut last = self.console.last();
            if let Some(Ok(status)) = self.monitor.as_mut().map(Monitor::status) {
                last.0.push(format!("(QEMU: the machine is {status})"));
                let processors = self.monitor.as_mut().map(Monitor::processors);
                for processor in processors.into_iter().flatten().flatten() {
                    last.0.push(format!("(QEMU: {processor})"));
                }
            }
            return Err(Error::Deadline(limit, last));
        };
        if frame.kind != Kind::Ready {
            return Err(unexpected(&frame));
        }
        let ready: Ready = parse(&frame)?;
        if ready.protocol != PROTOCOL {
            let found = ready.protocol;
            let reason = format!("the agent: found protocol {found}, expected {PROTOCOL}");
            return Err(Error::Protocol(reason));
        }
        Ok(ready.evidence.bounded())
    }

    fn set_up_network(&mut self, network: &Network) -> Result<(), Error> {
        let mut script = "set -e; ip link set lo up; ".to_owned();
        if *network == Network::User {
            script += "ip address add 10.0.2.15/24 dev eth0; ip link set eth0 up; \
                       ip route add default via 10.0.2.2";
        }
        let set_up = self.output(&["sh", "-c", &script], Duration::from_secs(60));
        set_up.map(drop)
    }

    /// Sends a frame about the last command; returns false if the agent does not take it in time.
    fn send(&mut self, kind: Kind, content: &[u8], until: Option<Instant>) -> Result<bool, Error> {
        match put(&self.to_agent, (kind, self.command), content, until) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
            Err(error) => {
                let reason = self.reason(FAREWELL);
                Err(reason.unwrap_or(Error::Protocol(error.to_string())))
            }
        }
    }

    /// Returns the agent's next frame; `None` if there is none in time.
    fn receive(&mut self, until: Option<Instant>) -> Result<Option<Frame>, Error> {
        let failed = |error: io::Error| Error::Protocol(format!("the agent: {error}"));
        if !wait_for(&self.agent, until).map_err(failed)? {
            return Ok(None);
        }
        // A frame that has begun is there soon, as a whole: one that is cut short is an error.
        let timed = Timed {
            socket: &self.agent,
            until: Instant::now() + FRAME,
        };
        match agent::read(timed) {
            Ok(Some(frame)) => Ok(Some(frame)),
            Ok(None) => Err(self.ended()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(failed(error)),
            Err(error) => Err(self.reason(FAREWELL).unwrap_or(failed(error))),
        }
    }

    /// Returns the reason why the guest is gone.
    fn ended(&mut self) -> Error {
        let reason = self.reason(LAST);
        reason.unwrap_or_else(|| Error::Ended(self.console.last()))
    }

    /// Returns the reason why the guest has ended; `None` if it does not in this time.
    fn reason(&mut self, limit: Duration) -> Option<Error> {
        let status = self.qemu.wait(limit)?;
        for follower in self.followers.drain(..) {
            let _ = follower.join();
        }
        let last = self.console.last();
        if self.console.is_out_of_memory() {
            return Some(Error::Memory(last));
        }
        if let Some(reason) = self.console.panic() {
            return Some(Error::Panic(reason, last));
        }
        let said = self.errors.last().0.join("; ");
        if !status.success() || (last.0.is_empty() && !said.is_empty()) {
            return Some(Error::Qemu(format!("{status}: {said}")));
        }
        Some(Error::Ended(last))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // QEMU closes its devices; then its process ends in any case.
        let quit = self.monitor.as_mut().map(|it| it.execute("quit"));
        if matches!(quit, Some(Ok(_))) {
            self.qemu.wait(FAREWELL);
        }
    }
}

/// Refuses a memory that the kernel and the root file system do not fit into: some boots would hang
/// before the first line of the console. While the file system is unpacked it is there twice.
fn check_memory(hardware: &Hardware, kernel: &Kernel, initramfs: &Path) -> Result<(), Error> {
    let file = fs::metadata(initramfs);
    let file = file.map_err(|error| Error::File(initramfs.to_owned(), error))?;
    let kernel = kernel.memory().unwrap_or(0);
    let least = (2 * file.len() + kernel).div_ceil(MIB);
    if u64::from(hardware.memory_mib) >= least {
        return Ok(());
    }
    let (found, root, kernel) = (hardware.memory_mib, file.len() / MIB, kernel / MIB);
    Err(Error::Flavour(format!(
        "memory in MiB: found {found}, expected {least} or more: the root file system has {root} \
         and is there twice while it is unpacked, the kernel needs {kernel}"
    )))
}

const MIB: u64 = 1 << 20;

fn parse<T: serde::de::DeserializeOwned>(frame: &Frame) -> Result<T, Error> {
    serde_json::from_slice(&frame.content).map_err(|error| {
        let reason = excerpt(&error.to_string());
        Error::Protocol(format!("the agent: {:?}: {reason}", frame.kind))
    })
}

/// Returns the end of what a guest says, without what could drive a terminal.
fn excerpt(text: &str) -> String {
    let mut last: Vec<char> = text.trim().chars().rev().take(SAID_MAX).collect();
    last.reverse();
    let safe = |c: char| if c.is_control() { ' ' } else { c };
    last.into_iter().map(safe).collect()
}

fn unexpected(frame: &Frame) -> Error {
    Error::Protocol(format!("the agent: found a frame {:?}", frame.kind))
}

/// Reads a socket until a time, however its bytes trickle in.
struct Timed<'a> {
    socket: &'a UnixStream,
    until: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if !wait_for(self.socket, Some(self.until))? {
            let reason = format!("a frame is cut short for {} s", FRAME.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
        }
        self.socket.read(bytes)
    }
}

/// Returns true if there is something to read, or the other side is gone; false if that is not so
/// in time, or the time is over: a guest that never stops writing has no more of it.
fn wait_for(socket: &UnixStream, until: Option<Instant>) -> io::Result<bool> {
    wait(socket, PollFlags::IN, until)
}

/// As [`wait_for`], for something to read or for room to write.
fn wait(socket: &UnixStream, what: PollFlags, until: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(false);
        }
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(socket, what)], timeout.as_ref()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(ready) => return Ok(ready > 0),
        }
    }
}

/// Writes a socket until a time, whether or not the other side reads.
struct Bounded<'a> {
    socket: &'a UnixStream,
    until: Option<Instant>,
}

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match send(
                self.socket,
                bytes,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                sent => return Ok(sent?),
            }
            if !wait(self.socket, PollFlags::OUT, self.until)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends a frame. The time bounds the wait for one that another thread sends, too.
fn put(
    to: &Mutex<UnixStream>,
    (kind, command): (Kind, u32),
    content: &[u8],
    until: Option<Instant>,
) -> io::Result<()> {
    let socket = loop {
        match to.try_lock() {
            Ok(socket) => break socket,
            Err(TryLockError::Poisoned(socket)) => break socket.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(LOOK);
    };
    let to = Bounded {
        socket: &socket,
        until,
    };
    agent::write(to, kind, command, content)
}

/// Sends all of a reader as the command's input, and its end, unless the command is over before.
fn forward(mut input: impl Read, to: &Mutex<UnixStream>, command: u32, is_over: &AtomicBool) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let len = input.read(&mut bytes).unwrap_or(0);
        if is_over.load(Ordering::Acquire) {
            return;
        }
        let sent = put(to, (Kind::Input, command), &bytes[..len], None);
        if len == 0 || sent.is_err() {
            return;
        }
    }
}

/// QEMU's process, which ends with this value.
struct Process {
    child: Child,
    /// Dropped to end the thread that started it.
    _starter: Sender<()>,
}

impl Process {
    /// Starts QEMU on a thread that lives as long: the kernel ends it with the thread that started
    /// it.
    fn start(arguments: Vec<String>, inherited: [UnixStream; 2]) -> Result<Process, Error> {
        let (starter, kept) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let _ = tell.send(spawn(&arguments, inherited));
            let _: Result<(), _> = kept.recv();
        });
        let dead = || Error::Qemu("its thread has ended".into());
        Ok(Process {
            child: told.recv().map_err(|_| dead())??,
            _starter: starter,
        })
    }

    /// Returns the exit status; `None` if it still runs after this time.
    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => thread::sleep(LOOK),
                status => return status.ok().flatten(),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        self.wait(FAREWELL);
    }
}

fn spawn(arguments: &[String], inherited: [UnixStream; 2]) -> Result<Child, Error> {
    // Another guest that is started meanwhile must not inherit this one's sockets: they would stay
    // open after its end.
    static STARTING: Mutex<()> = Mutex::new(());
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    for socket in &inherited {
        fcntl_setfd(socket, FdFlags::empty()).map_err(|error| Error::Qemu(error.to_string()))?;
    }
    let child = Command::new(LEASH)
        .args(["--pdeathsig", "KILL", "--", "sh", "-c", UNLESS_ORPHANED])
        .arg(std::process::id().to_string())
        .arg(QEMU)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    child.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::Program(LEASH.into(), "util-linux"),
        _ => Error::Qemu(format!("{error} (package {PACKAGE})")),
    })
}

#[cfg(test)]
#[path = "guest_tests.rs"]
mod tests;
