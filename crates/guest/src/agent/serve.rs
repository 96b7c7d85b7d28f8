//! Commands of the host, one at a time.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::{ioctl_fionbio, ioctl_fionread, Errno};
use rustix::process::WaitOptions;

use super::{read, write, Exit, Kind, Ready, Run, PROTOCOL};
use crate::evidence::slots_peak;
use crate::Evidence;

/// The time between two looks at a command that runs.
const LOOK: Duration = Duration::from_millis(10);
/// The time in which no output is read or sent after a command's end, and then none is waited for:
/// a server that it started may hold its standard output for good.
const LAST_OUTPUT: Duration = Duration::from_millis(300);

/// The port, for threads that send.
type Port = Arc<Mutex<File>>;

fn send(port: &Port, kind: Kind, command: u32, content: &[u8]) -> io::Result<()> {
    let mut port = port.lock().unwrap_or_else(PoisonError::into_inner);
    write(&mut *port, kind, command, content)
}

/// Serves the host until it is gone.
///
/// # Errors
/// The port fails, or what arrives is not of the protocol.
pub(super) fn serve(port: &File) -> io::Result<()> {
    let shared: Port = Arc::new(Mutex::new(port.try_clone()?));
    let ready = Ready {
        protocol: PROTOCOL,
        evidence: Evidence::gather(),
    };
    send(&shared, Kind::Ready, 0, &serde_json::to_vec(&ready)?)?;
    let mut input: Option<ChildStdin> = None;
    let mut current = 0;
    let is_running = Arc::new(AtomicBool::new(false));
    while let Some(frame) = read(port)? {
        let number = frame.command;
        match frame.kind {
            Kind::Run => {
                if is_running.load(Ordering::Acquire) {
                    let reason = b"a command is running already";
                    send(&shared, Kind::Refused, number, reason)?;
                    continue;
                }
                // Processes that lost their parents are this process's.
                while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
                match start(&frame.content) {
                    Ok(mut child) => {
                        input = child.stdin.take();
                        if let Some(to) = &input {
                            ioctl_fionbio(to, true)?;
                        }
                        current = number;
                        is_running.store(true, Ordering::Release);
                        let (shared, is_running) = (Arc::clone(&shared), Arc::clone(&is_running));
                        thread::spawn(move || {
                            // If the port fails, the loop below ends, too.
                            let Ok(content) = watch(child, number, &shared) else {
                                return;
                            };
                            // The host's next command may follow at once.
                            is_running.store(false, Ordering::Release);
                            let _ = send(&shared, Kind::Exit, number, &content);
                        });
                    }
                    Err(reason) => send(&shared, Kind::Refused, number, reason.as_bytes())?,
                }
            }
            // The rest of the input of a command that has ended.
            Kind::Input if number != current => {}
            Kind::Input if frame.content.is_empty() => input = None,
            // A command need not read all of its input.
            Kind::Input => {
                input = input.filter(|to| feed(to, &frame.content, &is_running));
            }
            other => return Err(io::Error::other(format!("found a frame {other:?}"))),
        }
    }
    Ok(())
}

/// Writes input to a command's pipe, which does not block, and waits for room while the command
/// runs: what it has left behind may keep the pipe and never read. Returns false if there is no
/// one to read it.
fn feed(to: impl AsFd, mut input: &[u8], is_running: &AtomicBool) -> bool {
    let timeout = Timespec::try_from(LOOK).ok();
    while !input.is_empty() {
        match rustix::io::write(&to, input) {
            Ok(written) => input = input.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if is_running.load(Ordering::Acquire) => {
                let _ = poll(&mut [PollFd::new(&to, PollFlags::OUT)], timeout.as_ref());
            }
            Err(_) => return false,
        }
    }
    true
}

fn start(content: &[u8]) -> Result<Child, String> {
    let run: Run = serde_json::from_slice(content).map_err(|error| error.to_string())?;
    let (program, arguments) = run.command.split_first().ok_or("found no command")?;
    Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", "/bin:/sbin:/usr/bin:/usr/sbin")
        .env("HOME", "/root")
        .env("TERM", "dumb")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: {error}"))
}

/// Sends the output of a command, and returns the content of the frame about its end.
fn watch(mut child: Child, number: u32, port: &Port) -> io::Result<Vec<u8>> {
    let (ended, ends) = mpsc::channel();
    let moves = Arc::new(AtomicU64::new(0));
    // The same pipes, to see what is left in them.
    let mut pipes = Vec::new();
    let output = child.stdout.take().map(OwnedFd::from);
    let errors = child.stderr.take().map(OwnedFd::from);
    for (stream, kind) in [(output, Kind::Output), (errors, Kind::Errors)] {
        if let Some(stream) = stream {
            pipes.push(stream.try_clone()?);
            let state = (ended.clone(), Arc::clone(&moves));
            forward(File::from(stream), (kind, number), Arc::clone(port), state);
        }
    }
    let mut slots = None;
    let status = loop {
        slots = slots.max(slots_peak());
        if let Some(status) = child.try_wait()? {
            break status;
        }
        thread::sleep(LOOK);
    };
    drain(&pipes, &ends, &moves);
    let exit = Exit {
        status: status.code(),
        signal: status.signal(),
        bounce_slots_max: slots.max(slots_peak()),
    };
    Ok(serde_json::to_vec(&exit)?)
}

/// One piece that was sent, in the count of [`forward`]. The rest are those that are being sent.
const SENT: u64 = 1 << 8;

/// Waits until the streams have ended, or hold nothing and nothing moves: a host may be slow to
/// take output.
fn drain(pipes: &[OwnedFd], ends: &Receiver<()>, moves: &AtomicU64) {
    let is_empty = |pipe| ioctl_fionread(pipe).unwrap_or(0) == 0;
    let mut ended = 0;
    let mut before = moves.load(Ordering::Acquire);
    while ended < pipes.len() {
        if ends.recv_timeout(LAST_OUTPUT).is_ok() {
            ended += 1;
            continue;
        }
        // In this order: what has left a pipe since is counted.
        let is_drained = pipes.iter().all(is_empty);
        let now = moves.load(Ordering::Acquire);
        if is_drained && is_still(before, now) {
            return;
        }
        before = now;
    }
}

/// Returns true if nothing was sent between two counts, and nothing is being sent.
fn is_still(before: u64, now: u64) -> bool {
    now == before && now.is_multiple_of(SENT)
}

/// Sends all that a stream has, on a thread, and counts what it does: a piece before it leaves the
/// pipe, so that it is always seen in the one or in the other.
fn forward(
    mut from: File,
    (kind, number): (Kind, u32),
    port: Port,
    (ended, moves): (Sender<()>, Arc<AtomicU64>),
) {
    thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        loop {
            // Until there is something, or the end.
            if let Err(Errno::INTR) = poll(&mut [PollFd::new(&from, PollFlags::IN)], None) {
                continue;
            }
            moves.fetch_add(1, Ordering::AcqRel);
            let is_sent = match from.read(&mut bytes) {
                Ok(len @ 1..) => send(&port, kind, number, &bytes[..len]).is_ok(),
                _ => false,
            };
            moves.fetch_add(SENT - 1, Ordering::AcqRel);
            if !is_sent {
                break;
            }
        }
        let _ = ended.send(());
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    /// The port of a host, and what that reads.
    fn port() -> (Port, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(ours));
        (Arc::new(Mutex::new(file)), theirs)
    }

    fn run(script: &str, port: &Port) -> thread::JoinHandle<()> {
        let child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let port = Arc::clone(port);
        thread::spawn(move || {
            let exit = watch(child, 7, &port).unwrap();
            send(&port, Kind::Exit, 7, &exit).unwrap();
        })
    }

    /// Reads frames until the command's end, and returns the length of its output.
    fn output(host: &UnixStream) -> usize {
        let mut len = 0;
        loop {
            let frame = read(host).unwrap().unwrap();
            match frame.kind {
                Kind::Output => len += frame.content.len(),
                Kind::Exit => return len,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_host_that_is_slow_to_take_output_gets_all_of_it() {
        let (port, host) = port();
        let watching = run("head -c 1000000 /dev/zero", &port);
        // What is under way fills the port, and the command ends before the host reads on.
        let mut len = 0;
        while len < 700_000 {
            len += read(&host).unwrap().unwrap().content.len();
        }
        thread::sleep(LAST_OUTPUT * 3);
        assert_eq!(len + output(&host), 1_000_000);
        watching.join().unwrap();
    }

    #[test]
    fn output_is_waited_for_while_it_moves() {
        // Sent: nothing, one piece, two; the last is being sent.
        for (before, now, expected) in [
            (0, 0, true),
            (0, SENT, false),
            (SENT, SENT, true),
            (2 * SENT + 1, 2 * SENT + 1, false),
        ] {
            assert_eq!(is_still(before, now), expected, "{before} {now}");
        }
        // A piece that is being sent, or is left in a pipe, is waited for.
        for is_sending in [true, false] {
            let (pipe, to) = rustix::pipe::pipe().unwrap();
            let (ended, ends) = mpsc::channel();
            let moves = AtomicU64::new(is_sending.into());
            rustix::io::write(&to, &[0; 8][usize::from(is_sending) * 8..]).unwrap();
            let sender = thread::spawn(move || {
                thread::sleep(LAST_OUTPUT * 3);
                ended.send(()).unwrap();
            });
            drain(&[pipe], &ends, &moves);
            sender.join().unwrap();
            assert!(ends.recv().is_err(), "it was not waited for");
        }
    }

    #[test]
    fn input_that_is_not_read_is_dropped_when_its_command_has_ended() {
        let (from, to) = rustix::pipe::pipe().unwrap();
        ioctl_fionbio(&to, true).unwrap();
        let input = vec![7; 1 << 20];
        let is_running = AtomicBool::new(true);
        thread::scope(|scope| {
            let fed = scope.spawn(|| feed(&to, &input, &is_running));
            thread::sleep(LOOK * 10);
            assert!(!fed.is_finished(), "it may still be read");
            is_running.store(false, Ordering::Release);
            assert!(!fed.join().unwrap());
        });
        // A command that is slow gets all of it.
        is_running.store(true, Ordering::Release);
        let mut taken = 0;
        let mut bytes = vec![0; 1 << 16];
        thread::scope(|scope| {
            let fed = scope.spawn(|| feed(&to, &input, &is_running));
            while !fed.is_finished() || ioctl_fionread(&from).unwrap() > 0 {
                if ioctl_fionread(&from).unwrap() > 0 {
                    taken += rustix::io::read(&from, &mut bytes).unwrap();
                }
                thread::sleep(Duration::from_millis(1));
            }
            assert!(fed.join().unwrap());
        });
        assert!(taken >= input.len());
        drop(from);
        assert!(!feed(&to, &input, &is_running), "none can read it");
    }

    #[test]
    fn a_server_that_holds_the_output_does_not_keep_its_command() {
        let (port, host) = port();
        let began = Instant::now();
        let watching = run("echo up; sleep 30 & echo $!", &port);
        assert!(output(&host) > 4);
        assert!(began.elapsed() < Duration::from_secs(20));
        watching.join().unwrap();
    }
}
