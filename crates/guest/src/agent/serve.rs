//! Commands of the host, one at a time.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

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

/// Serves the host until it is gone or ends the guest.
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
                    send(
                        &shared,
                        Kind::Refused,
                        number,
                        b"a command is running already",
                    )?;
                    continue;
                }
                // Processes that lost their parents are this process's.
                while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
                match start(&frame.content) {
                    Ok(mut child) => {
                        input = child.stdin.take();
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
            Kind::Input => {
                // A command need not read all of its input.
                if let Some(to) = &mut input {
                    if to.write_all(&frame.content).is_err() {
                        input = None;
                    }
                }
            }
            Kind::PowerOff => return Ok(()),
            other => return Err(io::Error::other(format!("found a frame {other:?}"))),
        }
    }
    Ok(())
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
    let mut streams = 0;
    if let Some(output) = child.stdout.take() {
        forward(
            output,
            (Kind::Output, number),
            Arc::clone(port),
            (ended.clone(), Arc::clone(&moves)),
        );
        streams += 1;
    }
    if let Some(errors) = child.stderr.take() {
        let port = Arc::clone(port);
        let state = (ended, Arc::clone(&moves));
        forward(errors, (Kind::Errors, number), port, state);
        streams += 1;
    }
    let mut slots = None;
    let status = loop {
        slots = slots.max(slots_peak());
        if let Some(status) = child.try_wait()? {
            break status;
        }
        thread::sleep(LOOK);
    };
    drain(streams, &ends, &moves);
    let exit = Exit {
        status: status.code(),
        signal: status.signal(),
        bounce_slots_max: slots.max(slots_peak()),
    };
    Ok(serde_json::to_vec(&exit)?)
}

/// One piece that was sent, in the count of [`forward`]. The rest are those that are being sent.
const SENT: u64 = 1 << 8;

/// Waits until that many streams have ended, or nothing moves: a host may be slow to take output.
fn drain(streams: usize, ends: &Receiver<()>, moves: &AtomicU64) {
    let mut ended = 0;
    let mut before = moves.load(Ordering::Acquire);
    while ended < streams {
        match ends.recv_timeout(LAST_OUTPUT) {
            Ok(()) => ended += 1,
            Err(_) => {
                let now = moves.load(Ordering::Acquire);
                if now == before && now.is_multiple_of(SENT) {
                    return;
                }
                before = now;
            }
        }
    }
}

/// Sends all that a stream has, on a thread, and counts what it does.
fn forward(
    mut from: impl Read + Send + 'static,
    (kind, number): (Kind, u32),
    port: Port,
    (ended, moves): (Sender<()>, Arc<AtomicU64>),
) {
    thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            moves.fetch_add(1, Ordering::AcqRel);
            let sent = send(&port, kind, number, &bytes[..len]);
            moves.fetch_add(SENT - 1, Ordering::AcqRel);
            if sent.is_err() {
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
        let (ended, ends) = mpsc::channel();
        let moves = Arc::new(AtomicU64::new(1));
        let began = Instant::now();
        let sender = {
            let moves = Arc::clone(&moves);
            thread::spawn(move || {
                // A piece that is being sent, then short ones, then the end.
                thread::sleep(LAST_OUTPUT * 2);
                for _ in 0..4 {
                    moves.fetch_add(SENT - 1, Ordering::AcqRel);
                    thread::sleep(LAST_OUTPUT / 2);
                    moves.fetch_add(1, Ordering::AcqRel);
                }
                moves.fetch_add(SENT - 1, Ordering::AcqRel);
                ended.send(()).unwrap();
            })
        };
        drain(1, &ends, &moves);
        assert!(began.elapsed() > LAST_OUTPUT * 4, "{:?}", began.elapsed());
        sender.join().unwrap();
        assert!(ends.recv().is_err(), "drain did not wait for the end");
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
