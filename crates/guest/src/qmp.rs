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
/// Processors that are described.
const PROCESSORS_MAX: usize = 8;
/// The longest time until an answer: on a busy machine an emulator may not run for seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// A connection to a monitor.
pub(crate) struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    /// Reads the greeting and asks for no extensions, until a time at most.
    ///
    /// # Errors
    /// [`Error::Protocol`] if this is no monitor, or it does not answer.
    pub(crate) fn new(stream: UnixStream, until: Instant) -> Result<Monitor, Error> {
        let mut monitor = Monitor {
            stream: BufReader::new(stream),
        };
        let until = until.min(Instant::now() + LIMIT);
        let greeting = monitor.line(until)?;
        if greeting.get("QMP").is_none() {
            return Err(wrong(&greeting, "a greeting"));
        }
        monitor.send(
            "qmp_capabilities",
            &json!({ "execute": "qmp_capabilities" }),
            until,
        )?;
        Ok(monitor)
    }

    /// Runs a command without arguments and returns its answer.
    ///
    /// # Errors
    /// [`Error::Protocol`]: it is refused, or there is no answer.
    pub(crate) fn execute(&mut self, command: &str) -> Result<Value, Error> {
        let until = Instant::now() + LIMIT;
        self.send(command, &json!({ "execute": command }), until)
    }

    fn send(&mut self, command: &str, request: &Value, until: Instant) -> Result<Value, Error> {
        let mut line = request.to_string();
        line.push('\n');
        let stream = self.stream.get_mut();
        let sent = stream.set_write_timeout(Some(left(until)));
        sent.and_then(|()| stream.write_all(line.as_bytes()))
            .map_err(failed)?;
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

    /// Returns for each processor of the guest, but not for more than some, where it is and whether
    /// it waits for an interrupt.
    ///
    /// # Errors
    /// As [`Monitor::execute`].
    pub(crate) fn processors(&mut self) -> Result<Vec<String>, Error> {
        let command = "human-monitor-command";
        let arguments = json!({ "command-line": "info registers -a" });
        let request = json!({ "execute": command, "arguments": arguments });
        let answer = self.send(command, &request, Instant::now() + LIMIT)?;
        match answer.as_str() {
            Some(registers) => Ok(processors(registers)),
            None => Err(wrong(&answer, "registers")),
        }
    }

    fn line(&mut self, until: Instant) -> Result<Value, Error> {
        let mut line = Vec::new();
        let left = left(until);
        let set = self.stream.get_ref().set_read_timeout(Some(left));
        let mut bounded = (&mut self.stream).take(LINE_MAX);
        set.and_then(|()| bounded.read_until(b'\n', &mut line))
            .map_err(|error| match error.kind() {
                ErrorKind::WouldBlock => {
                    failed(format!("no answer within {:.1} s", left.as_secs_f64()))
                }
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

/// Returns the time that is left, which as a timeout may not be 0.
fn left(until: Instant) -> Duration {
    let left = until.saturating_duration_since(Instant::now());
    left.max(Duration::from_millis(1))
}

/// Finds the instruction pointer and the halted state of each processor among its registers.
fn processors(registers: &str) -> Vec<String> {
    let found = registers.split("CPU#").skip(1).filter_map(|processor| {
        let field = |names: &[&str]| {
            let mut words = processor.split_whitespace();
            words.find_map(|word| names.iter().find_map(|name| word.strip_prefix(name)))
        };
        let number: u32 = processor.split_whitespace().next()?.parse().ok()?;
        let address: String = field(&["RIP=", "EIP="])?.chars().take(16).collect();
        let state = match field(&["HLT="])? {
            "0" => "running",
            _ => "halted",
        };
        Some(format!("processor {number} at {address}, {state}"))
    });
    found.take(PROCESSORS_MAX).collect()
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
        Monitor::new(ours, Instant::now() + LIMIT)
    }

    #[test]
    fn a_monitor_that_is_silent_is_waited_for_no_longer_than_the_guest_is() {
        let began = Instant::now();
        for lines in ["", "{\"QMP\": 1}\n"] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(lines.as_bytes()).unwrap();
            let until = Instant::now() + Duration::from_millis(100);
            let error = Monitor::new(ours, until).map(drop).unwrap_err();
            assert!(error.to_string().contains("no answer within 0."), "{error}");
        }
        assert!(began.elapsed() < LIMIT / 2);
    }

    const GREETING: &str = "{\"QMP\": {\"version\": {}}}\n{\"return\": {}}\n";

    #[test]
    fn answers_are_told_from_events() {
        let lines = "{\"event\": \"RESUME\"}\n{\"return\": {\"status\": \"running\"}}\n";
        let mut monitor = monitor(&format!("{GREETING}{lines}")).unwrap();
        assert_eq!(monitor.status().unwrap(), "running");
    }

    #[test]
    fn each_processor_is_found_among_the_registers() {
        let registers =
            "\r\nCPU#0\r\nRAX=01 RBX=02\r\nRIP=ffffffff81a2b3c4 RFL=00000246 [---Z-P-] \
                         CPL=0 II=0 A20=1 SMM=0 HLT=1\r\nES =0000\r\n\r\nCPU#1\r\nEAX=0\r\n\
                         EIP=0000fff0 EFL=00000002 HLT=0\r\nCPU#2\r\nnothing\r\nCPU#";
        let answer = json!({ "return": registers });
        let mut monitor = monitor(&format!("{GREETING}{answer}\n")).unwrap();
        let expected = [
            "processor 0 at ffffffff81a2b3c4, halted",
            "processor 1 at 0000fff0, running",
        ];
        assert_eq!(monitor.processors().unwrap(), expected);
        assert_eq!(
            processors(&"CPU#7 EIP=1 HLT=0 ".repeat(99)).len(),
            PROCESSORS_MAX
        );
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
