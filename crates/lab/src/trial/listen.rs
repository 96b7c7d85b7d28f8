//! Reads what the processes of a trial write, each stream on a thread of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use crate::extract::OUTPUT_MAX;
use crate::placement::{Agent, Process};
use crate::protocol::LINE_MAX;

/// The number of bytes of a trial's output, from its end, that a log keeps.
const LOG_MAX: usize = 64 * 1024;

/// An event of a process of a trial.
pub(super) enum Event {
    /// It wrote a line to its standard output.
    Line(Vec<u8>),
    /// It wrote a line of more than [`LINE_MAX`] bytes, after which nothing is read.
    LineTooLong,
    /// Its standard output is closed.
    OutputClosed,
    /// It wrote to its standard error.
    ErrorOutput(Vec<u8>),
    /// It exited.
    Exited(Instant),
}

/// The events of a trial's processes, each with the place of its role.
pub(super) struct Events {
    sender: SyncSender<(usize, Event)>,
    receiver: Receiver<(usize, Event)>,
}

impl Events {
    pub(super) fn new() -> Events {
        // Bounded, so that a process that floods its output waits instead of filling memory.
        let (sender, receiver) = mpsc::sync_channel(256);
        Events { sender, receiver }
    }

    /// Listens to a process, as the role at `place`. Returns its handle, and where lines for its
    /// standard input are left.
    pub(super) fn listen(
        &self,
        place: usize,
        agent: Agent,
        speaks_protocol: bool,
        captured: &Arc<Captured>,
    ) -> (Box<dyn Process>, Sender<Vec<u8>>) {
        let Agent {
            stdin,
            stdout,
            mut stderr,
            exit,
            process,
        } = agent;
        let (sender, captured) = (self.sender.clone(), Arc::clone(captured));
        thread::spawn(move || {
            if speaks_protocol {
                read_lines(stdout, place, &sender);
            } else {
                captured.read(stdout);
                let _ = sender.send((place, Event::OutputClosed));
            }
        });
        let sender = self.sender.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; 8192];
            while let Ok(n @ 1..) = stderr.read(&mut buffer) {
                let event = Event::ErrorOutput(buffer[..n].to_vec());
                if sender.send((place, event)).is_err() {
                    return;
                }
            }
        });
        let sender = self.sender.clone();
        thread::spawn(move || {
            exit();
            let _ = sender.send((place, Event::Exited(Instant::now())));
        });
        // On a thread as well: a process that does not read must not make the trial wait.
        let (commands, lines) = mpsc::channel::<Vec<u8>>();
        if let Some(mut stdin) = stdin {
            thread::spawn(move || {
                for line in lines {
                    if stdin.write_all(&line).and_then(|()| stdin.flush()).is_err() {
                        return;
                    }
                }
            });
        }
        (process, commands)
    }

    /// The events so far and to come. The channel closes when every process is gone and none of
    /// their outputs is held open.
    pub(super) fn receiver(self) -> Receiver<(usize, Event)> {
        self.receiver
    }
}

fn read_lines(stdout: impl Read, place: usize, events: &SyncSender<(usize, Event)>) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let limit = LINE_MAX as u64 + 1;
        match reader.by_ref().take(limit).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let event = match line.last() {
            Some(b'\n') => {
                line.pop();
                Event::Line(line)
            }
            _ if line.len() as u64 == limit => Event::LineTooLong,
            _ => Event::Line(line),
        };
        let too_long = matches!(event, Event::LineTooLong);
        if events.send((place, event)).is_err() || too_long {
            return;
        }
    }
    let _ = events.send((place, Event::OutputClosed));
}

/// The standard output of a program without the protocol.
#[derive(Default)]
pub(super) struct Captured {
    pub(super) bytes: AtomicU64,
    /// True if the text is kept too, as far as it is searched.
    pub(super) keep: bool,
    text: Mutex<Vec<u8>>,
}

impl Captured {
    pub(super) fn new(keep: bool) -> Captured {
        Captured {
            keep,
            ..Captured::default()
        }
    }

    pub(super) fn text(&self) -> MutexGuard<'_, Vec<u8>> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, mut stdout: impl Read) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(n @ 1..) = stdout.read(&mut buffer) {
            self.bytes.fetch_add(n as u64, Ordering::Relaxed);
            if self.keep {
                keep_start(&mut self.text(), &buffer[..n]);
            }
        }
    }
}

/// Adds to a text that is searched for a metric. One byte too many tells that there was more.
pub(super) fn keep_start(text: &mut Vec<u8>, more: &[u8]) {
    let room = (OUTPUT_MAX + 1).saturating_sub(text.len());
    text.extend_from_slice(&more[..more.len().min(room)]);
}

/// Adds to a log of which only the end matters. It is cut now and then, not at every line.
pub(super) fn keep_end(log: &mut Vec<u8>, more: &[u8]) {
    log.extend_from_slice(end_of(more));
    if log.len() > 4 * LOG_MAX {
        log.drain(..log.len() - LOG_MAX);
    }
}

/// The part of a log that is kept.
pub(super) fn end_of(log: &[u8]) -> &[u8] {
    &log[log.len().saturating_sub(LOG_MAX)..]
}
