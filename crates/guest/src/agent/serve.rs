//! Commands of the host, one at a time.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::WaitOptions;

use super::{read, write, Exit, Kind, Ready, Run, PROTOCOL};
use crate::evidence::slots_peak;
use crate::Evidence;

/// The time between two looks at a command that runs.
const LOOK: Duration = Duration::from_millis(10);
/// The time for output that was written before a command's end: a server that it started may hold
/// its standard output for good.
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
    let mut streams = 0;
    if let Some(output) = child.stdout.take() {
        forward(
            output,
            (Kind::Output, number),
            Arc::clone(port),
            ended.clone(),
        );
        streams += 1;
    }
    if let Some(errors) = child.stderr.take() {
        forward(errors, (Kind::Errors, number), Arc::clone(port), ended);
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
    for _ in 0..streams {
        let _ = ends.recv_timeout(LAST_OUTPUT);
    }
    let exit = Exit {
        status: status.code(),
        signal: status.signal(),
        bounce_slots_max: slots.max(slots_peak()),
    };
    Ok(serde_json::to_vec(&exit)?)
}

/// Sends all that a stream has, on a thread.
fn forward(
    mut from: impl Read + Send + 'static,
    (kind, number): (Kind, u32),
    port: Port,
    ended: Sender<()>,
) {
    thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            if send(&port, kind, number, &bytes[..len]).is_err() {
                break;
            }
        }
        let _ = ended.send(());
    });
}
