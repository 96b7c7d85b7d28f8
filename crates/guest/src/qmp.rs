//! QEMU's monitor: one JSON object per line (QMP).

use std::fmt;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use crate::Error;

/// The most bytes of a line.
const LINE_MAX: u64 = 1 << 20;
/// Events in front of an answer.
const EVENTS_MAX: usize = 1000;
/// The longest time until an answer: on a busy machine an emulator may not run for seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// A connection to a monitor.
pub(crate) struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    /// Reads the greeting and asks for no extensions.
    ///
    /// # Errors
    /// [`Error::Protocol`] if this is no monitor, or it does not answer.
    pub(crate) fn new(stream: UnixStream) -> Result<Monitor, Error> {
        let mut monitor = Monitor {
            stream: BufReader::new(stream),
        };
        let until = Instant::now() + LIMIT;
        let greeting = monitor.line(until)?;
        if greeting.get("QMP").is_none() {
            return Err(wrong(&greeting, "a greeting"));
        }
        monitor.execute("qmp_capabilities")?;
        Ok(monitor)
    }

    /// Runs a command without arguments and returns its answer.
    ///
    /// # Errors
    /// [`Error::Protocol`]: it is refused, or there is no answer.
    pub(crate) fn execute(&mut self, command: &str) -> Result<Value, Error> {
        let mut line = json!({ "execute": command }).to_string();
        line.push('\n');
        let stream = self.stream.get_mut();
        let sent = stream.set_write_timeout(Some(LIMIT));
        sent.and_then(|()| stream.write_all(line.as_bytes()))
            .map_err(failed)?;
        let until = Instant::now() + LIMIT;
        for _ in 0..EVENTS_MAX {
            let mut answer = self.line(until)?;
            if answer.get("event").is_some() {
                continue;
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            return Err(wrong(&answer, &format!("the answer to {command}")));
        }
        let found = format!("{EVENTS_MAX} events and no answer to {command}");
        Err(failed(found))
    }

    /// Returns the state of the machine, such as `running`.
    ///
    /// # Errors
    /// As [`Monitor::execute`].
    pub(crate) fn status(&mut self) -> Result<String, Error> {
        let answer = self.execute("query-status")?;
        match answer.get("status").and_then(Value::as_str) {
            Some(status) => Ok(status.chars().take(40).collect()),
            None => Err(wrong(&answer, "a status")),
        }
    }

    fn line(&mut self, until: Instant) -> Result<Value, Error> {
        let mut line = Vec::new();
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Some(left.max(Duration::from_millis(1)));
        let set = self.stream.get_ref().set_read_timeout(timeout);
        let mut bounded = (&mut self.stream).take(LINE_MAX);
        set.and_then(|()| bounded.read_until(b'\n', &mut line))
            .map_err(|error| match error.kind() {
                ErrorKind::WouldBlock => failed(format!("no answer within {} s", LIMIT.as_secs())),
                _ => failed(error),
            })?;
        if line.last() != Some(&b'\n') {
            let found = line.len();
            return Err(failed(format!(
                "found {found} bytes without an end of line"
            )));
        }
        serde_json::from_slice(&line).map_err(failed)
    }
}

fn failed(reason: impl fmt::Display) -> Error {
    Error::Protocol(format!("QEMU's monitor: {reason}"))
}

fn wrong(found: &Value, expected: &str) -> Error {
    let found: String = found.to_string().chars().take(120).collect();
    failed(format!("found {found}, expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io, thread};

    /// A monitor that writes these lines, whatever it is asked.
    fn monitor(lines: &str) -> Result<Monitor, Error> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let lines = lines.to_owned();
        thread::spawn(move || {
            let _ = theirs.write_all(lines.as_bytes());
            let _ = io::copy(&mut theirs, &mut io::sink());
        });
        Monitor::new(ours)
    }

    const GREETING: &str = "{\"QMP\": {\"version\": {}}}\n{\"return\": {}}\n";

    #[test]
    fn answers_are_told_from_events() {
        let lines = "{\"event\": \"RESUME\"}\n{\"return\": {\"status\": \"running\"}}\n";
        let mut monitor = monitor(&format!("{GREETING}{lines}")).unwrap();
        assert_eq!(monitor.status().unwrap(), "running");
    }

    #[test]
    fn what_is_no_monitor_or_refuses_is_an_error() {
        for (lines, expected) in [
            ("{}\n", "expected a greeting"),
            ("nonsense\n", "expected"),
            (
                "{\"QMP\": 1}\n{\"error\": {\"desc\": \"no\"}}\n",
                "the answer to qmp_capabilities",
            ),
        ] {
            let text = monitor(lines).map(drop).unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
        let mut refuses = monitor(&format!("{GREETING}{{\"return\": 7}}\n")).unwrap();
        assert!(refuses
            .status()
            .unwrap_err()
            .to_string()
            .contains("a status"));
        let long = format!("{{\"QMP\": \"{}\"}}\n", "x".repeat(LINE_MAX as usize));
        assert!(monitor(&long)
            .map(drop)
            .unwrap_err()
            .to_string()
            .contains("end of line"));
    }
}
