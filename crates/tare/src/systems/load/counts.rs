//! Requests as the server counts them, beside those that were sent.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context as _};
use serde::Serialize;
use tare_load::protocol::{Http, Protocol as _};
use tare_load::{ask, Key, Operation, Record, Request, Target};

/// The time that a server has to answer, and to write its log.
const PATIENCE: Duration = Duration::from_secs(10);

/// A source of a server's counts.
pub(super) enum Counter {
    /// nginx's stub_status: a server and a request for it.
    Status(Box<(Target, Http)>),
    /// An access log with a line per request.
    Log(PathBuf),
    /// `stats` of memcached: `cmd_get` and `cmd_set`.
    Memcached,
    /// `INFO commandstats` of Redis: the calls of GET and SET.
    Resp,
}

/// The requests of a trial as both sides count them, from its first connection to its last.
#[derive(Debug, Serialize)]
pub(super) struct Counts {
    source: &'static str,
    /// Requests that the server counts.
    pub(super) server: u64,
    /// Requests that were sent, those of the warm-up and those sent again included.
    pub(super) sent: u64,
    /// Responses that came back and report no error.
    pub(super) served: u64,
}

impl Counts {
    /// The reason why the two sides do not agree, if they do not. A request without a response may
    /// have been served or not, and one that is refused counted or not.
    pub(super) fn mismatch(&self) -> Option<String> {
        let Counts {
            source,
            server,
            sent,
            served,
        } = self;
        if (served..=sent).contains(&server) {
            return None;
        }
        let expected = match served == sent {
            true => format!("the {sent} that were sent"),
            false => format!("from the {served} served to the {sent} sent"),
        };
        let why = match server > sent {
            true => "others use the server too",
            false => "something else answered, or the server's processes count apart",
        };
        Some(format!(
            "found {server} requests that the server counts ({source}), expected {expected}: {why}"
        ))
    }
}

impl Counter {
    /// The state of the server's counter; of a log, its length.
    pub(super) fn read(&self, target: &Target) -> anyhow::Result<u64> {
        match self {
            Counter::Log(path) => {
                let log = path.metadata().with_context(|| at(path))?;
                Ok(log.len())
            }
            Counter::Status(status) => {
                let (target, http) = &**status;
                let mut request = Vec::new();
                let get = Request {
                    operation: Operation::Get,
                    key: Key::Number(0),
                    value_len: 0,
                };
                http.clone().write(&get, &mut request);
                let is_whole = |bytes: &[u8]| {
                    let read = http.clone().read(bytes);
                    read.is_err() || read.is_ok_and(|progress| progress.response.is_some())
                };
                let answer = ask(target, &request, is_whole, PATIENCE)?;
                let text = String::from_utf8_lossy(&answer);
                let mut lines = text.lines();
                let heading = "server accepts handled requests";
                let count = lines.find(|line| line.trim() == heading);
                let count =
                    count.and_then(|_| lines.next()?.split_whitespace().nth(2)?.parse().ok());
                count.with_context(|| expected("stub_status of nginx", &text))
            }
            Counter::Memcached => {
                let is_whole = |bytes: &[u8]| bytes.ends_with(b"END\r\n") || is_error(bytes);
                let answer = ask(target, b"stats\r\n", is_whole, PATIENCE)?;
                let text = String::from_utf8_lossy(&answer);
                let count = |name| {
                    let mut lines = text.lines();
                    let line = lines.find_map(|line| line.strip_prefix(name));
                    let count = line.and_then(|count| count.trim().parse::<u64>().ok());
                    count.with_context(|| expected("stats of memcached", &text))
                };
                Ok(count("STAT cmd_get ")? + count("STAT cmd_set ")?)
            }
            Counter::Resp => {
                let is_whole = |bytes: &[u8]| is_bulk(bytes) || is_error(bytes);
                let answer = ask(target, b"INFO commandstats\r\n", is_whole, PATIENCE)?;
                let text = String::from_utf8_lossy(&answer);
                let is_known = text.contains("# Commandstats");
                ensure!(is_known, expected("INFO commandstats of Redis", &text));
                // A command that was never sent has no line.
                let of = |line: &str| {
                    let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
                    let fields = fields.split(',').filter_map(|field| field.split_once('='));
                    let counted = |&(name, _): &_| ["calls", "rejected_calls"].contains(&name);
                    let counts = fields.filter(counted).map(|(_, n)| n.parse::<u64>());
                    let count: Result<u64, _> = counts.sum();
                    ["get", "set"].contains(&name).then_some(count.ok()?)
                };
                Ok(text.lines().filter_map(of).sum())
            }
        }
    }

    /// The counts of a trial since the counter was at `before`.
    pub(super) fn counts(
        &self,
        target: &Target,
        before: u64,
        record: &Record,
    ) -> anyhow::Result<Counts> {
        let begin = Instant::now();
        loop {
            let now = match self {
                Counter::Log(path) => lines_since(path, before)?,
                _ => {
                    let now = self.read(target)?;
                    let difference = now.checked_sub(before);
                    difference
                        .context("found lower counts after the trial: the server was restarted")?
                }
            };
            let counts = Counts {
                source: match self {
                    Counter::Status(_) => "stub_status",
                    Counter::Log(_) => "access log",
                    Counter::Memcached => "stats",
                    Counter::Resp => "INFO commandstats",
                },
                server: match self {
                    // The second question counts itself.
                    Counter::Status(_) => now.saturating_sub(1),
                    _ => now,
                },
                sent: record.sent_in_all,
                served: record.served_in_all,
            };
            // A log is written a moment after the response.
            let waits = matches!(self, Counter::Log(_)) && begin.elapsed() < PATIENCE;
            if !waits || counts.mismatch().is_none() {
                return Ok(counts);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn at(path: &Path) -> String {
    path.display().to_string()
}

fn expected(what: &str, found: &str) -> String {
    let shown: String = found.chars().take(80).collect();
    format!("--server-counts: found {shown:?}, expected {what}")
}

/// True if bytes are an error of memcached or RESP, which has no further line.
fn is_error(bytes: &[u8]) -> bool {
    let starts = [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR", b"-"];
    bytes.ends_with(b"\r\n") && starts.iter().any(|start| bytes.starts_with(start))
}

/// True if bytes are a whole bulk string of RESP.
fn is_bulk(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let parts = text
        .strip_prefix('$')
        .and_then(|rest| rest.split_once("\r\n"));
    let len = parts.and_then(|(len, value)| Some((len.parse::<usize>().ok()?, value.len())));
    len.is_some_and(|(len, found)| found >= len + 2)
}

/// Lines of a file from a place on.
fn lines_since(path: &Path, before: u64) -> anyhow::Result<u64> {
    let count = || -> io::Result<Option<u64>> {
        let mut file = File::open(path)?;
        if file.metadata()?.len() < before {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(before))?;
        let (mut lines, mut piece) = (0, vec![0; 64 << 10]);
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(Some(lines)),
                n => lines += piece[..n].iter().filter(|&&byte| byte == b'\n').count() as u64,
            }
        }
    };
    match count().with_context(|| at(path))? {
        Some(lines) => Ok(lines),
        None => bail!("{}: found a shorter log than before the trial", at(path)),
    }
}
