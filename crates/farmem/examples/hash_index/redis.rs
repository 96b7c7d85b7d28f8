//! The index in Redis: the same requests as commands over TCP, pipelined.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::index::{Done, Error, Events, Index, Request, PATIENCE};
use super::layout::{Value, VALUE_MAX};

/// The time between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// The time for which an answer is waited for before the connection is given up.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The key that says that all others are this program's.
const MARK: &[u8] = b"hash_index";

/// Longest line of an answer, in bytes.
const LINE_MAX: usize = 4096;

/// Longest text that a command answers with, in bytes.
const TEXT_MAX: usize = 1 << 20;

/// A hash index in Redis.
pub(crate) struct Redis {
    address: String,
    stream: TcpStream,
    /// Commands that are not sent, and bytes of answers that are not read.
    out: Vec<u8>,
    received: Vec<u8>,
    /// Bytes of `received` that were read.
    taken: usize,
    /// Requests whose commands have no answer yet, in their order.
    pending: VecDeque<Pending>,
    events: Events,
}

struct Pending {
    ticket: usize,
    request: Request,
    /// The command only looks what is there: whether a put has happened is unknown.
    is_look: bool,
}

/// An answer.
enum Reply {
    /// A string or a number; `None` if there is no value.
    Text(Option<Vec<u8>>),
    Refused(String),
}

impl Redis {
    /// Connects to a server, `HOST:PORT`.
    pub(crate) fn connect(address: &str) -> Result<Redis, Error> {
        Ok(Redis {
            stream: stream(address)?,
            address: address.to_string(),
            out: Vec::new(),
            received: Vec::new(),
            taken: 0,
            pending: VecDeque::new(),
            events: Events::default(),
        })
    }

    /// Runs one command alone.
    fn command(&mut self, parts: &[&[u8]]) -> Result<Reply, Error> {
        let start = Instant::now();
        loop {
            encode(&mut self.out, parts);
            match self.transfer() {
                Ok(Some(Reply::Refused(text))) if is_loading(&text) => std::thread::sleep(PAUSE),
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => return Err(Error(format!("{}: not an answer of Redis", self.address))),
                Err(error) if start.elapsed() > PATIENCE => return Err(error.into()),
                Err(_) => self.reconnect()?,
            }
        }
    }

    /// Runs one command alone, which has a value.
    fn text(&mut self, parts: &[&[u8]]) -> Result<Vec<u8>, Error> {
        match self.command(parts)? {
            Reply::Text(text) => Ok(text.unwrap_or_default()),
            Reply::Refused(text) => Err(Error(format!("Redis: {text}"))),
        }
    }

    /// Sends what is to be sent, and waits for an answer; `None` if it is none.
    fn transfer(&mut self) -> std::io::Result<Option<Reply>> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        loop {
            match self.next() {
                Ok(Some(reply)) => return Ok(Some(reply)),
                Ok(None) => {}
                Err(NotAnswer) => return Ok(None),
            }
            self.received.drain(..std::mem::take(&mut self.taken));
            let mut buffer = [0; 16 << 10];
            let len = self.stream.read(&mut buffer)?;
            if len == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            self.received.extend_from_slice(&buffer[..len]);
        }
    }

    /// Returns the next answer that has come.
    fn next(&mut self) -> Result<Option<Reply>, NotAnswer> {
        let Some((reply, len)) = parse(&self.received[self.taken..])? else {
            return Ok(None);
        };
        self.taken += len;
        Ok(Some(reply))
    }

    /// Connects again, and sends what was not answered. What a put did is looked at first.
    fn reconnect(&mut self) -> Result<(), Error> {
        self.stream = stream(&self.address)?;
        self.events.resumed += 1;
        self.received.clear();
        self.taken = 0;
        self.out.clear();
        for mut pending in std::mem::take(&mut self.pending) {
            pending.is_look |= pending.request.put.is_some();
            self.events.repeated += u64::from(!pending.is_look);
            self.send(pending);
        }
        Ok(())
    }

    fn send(&mut self, pending: Pending) {
        let key = pending.request.key.to_le_bytes();
        match (pending.request.put, pending.is_look) {
            (Some(value), false) => {
                encode(&mut self.out, &[b"SET", &key, value.bytes(), b"GET"]);
            }
            _ => encode(&mut self.out, &[b"GET", &key]),
        }
        self.pending.push_back(pending);
    }

    /// Takes an answer to the first command that has none.
    fn handle(&mut self, reply: Reply, done: &mut Vec<Done>) -> Result<(), Error> {
        let Some(mut pending) = self.pending.pop_front() else {
            return Err(Error("Redis: an answer to no command".into()));
        };
        let value = match reply {
            Reply::Text(None) => None,
            Reply::Text(Some(bytes)) => Some(value(&bytes)?),
            Reply::Refused(text) if is_loading(&text) => {
                std::thread::sleep(PAUSE);
                self.events.repeated += 1;
                self.send(pending);
                return Ok(());
            }
            Reply::Refused(text) => return Err(Error(format!("Redis: {text}"))),
        };
        let ticket = pending.ticket;
        let mut is_known = true;
        if let (Some(new), true) = (pending.request.put, pending.is_look) {
            if value != Some(new) {
                self.events.had_not += 1;
                pending.is_look = false;
                self.send(pending);
                return Ok(());
            }
            self.events.had_happened += 1;
            is_known = false;
        }
        done.push(Done {
            ticket,
            value,
            is_known,
        });
        Ok(())
    }
}

impl Index for Redis {
    fn create(&mut self, _entries: u64) -> Result<(), Error> {
        let keys = self.text(&[b"DBSIZE"])?;
        if keys != b"0" && self.text(&[b"EXISTS", MARK])? != b"1" {
            return Err(Error(format!(
                "{} has keys of another program: use an empty server",
                self.address
            )));
        }
        self.text(&[b"FLUSHDB"])?;
        self.text(&[b"SET", MARK, b"1"]).map(drop)
    }

    fn submit(&mut self, ticket: usize, request: Request) {
        self.send(Pending {
            ticket,
            request,
            is_look: false,
        });
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), Error> {
        if self.pending.is_empty() {
            return Ok(());
        }
        match self.transfer() {
            Ok(Some(reply)) => self.handle(reply, done)?,
            Ok(None) => return Err(Error(format!("{}: not an answer of Redis", self.address))),
            Err(_) => return self.reconnect(),
        }
        // What else has come.
        while let Ok(Some(reply)) = self.next() {
            self.handle(reply, done)?;
        }
        Ok(())
    }

    fn events(&self) -> Events {
        self.events
    }

    fn bytes(&mut self) -> Option<u64> {
        let text = self.text(&[b"INFO", b"memory"]).ok()?;
        let text = String::from_utf8(text).ok()?;
        let used = text
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"));
        used?.trim().parse().ok()
    }
}

fn value(bytes: &[u8]) -> Result<Value, Error> {
    let too_long = || Error(format!("a value of more than {VALUE_MAX} bytes"));
    Value::new(bytes).ok_or_else(too_long)
}

fn stream(address: &str) -> Result<TcpStream, Error> {
    let start = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                return Ok(stream);
            }
            Err(error) if start.elapsed() > PATIENCE => {
                return Err(Error(format!("{address}: {error}")));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// True for the answer of a server that has started and still reads its file.
fn is_loading(text: &str) -> bool {
    text.starts_with("LOADING")
}

fn encode(out: &mut Vec<u8>, parts: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
    for part in parts {
        out.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        out.extend_from_slice(part);
        out.extend_from_slice(b"\r\n");
    }
}

struct NotAnswer;

/// Reads an answer and its length; `None` if it is not complete.
fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, NotAnswer> {
    let line = bytes.iter().take(LINE_MAX).position(|byte| *byte == b'\n');
    let Some(end) = line else {
        return match bytes.len() < LINE_MAX {
            true => Ok(None),
            false => Err(NotAnswer),
        };
    };
    let line = bytes[..end].strip_suffix(b"\r").ok_or(NotAnswer)?;
    let (kind, text) = line.split_first().ok_or(NotAnswer)?;
    let text = std::str::from_utf8(text).map_err(|_| NotAnswer)?;
    let start = end + 1;
    let reply = match kind {
        b'+' | b':' => Reply::Text(Some(text.as_bytes().to_vec())),
        b'-' => Reply::Refused(text.to_string()),
        b'$' if text == "-1" => Reply::Text(None),
        b'$' => {
            let len: usize = text.parse().map_err(|_| NotAnswer)?;
            if len > TEXT_MAX {
                return Err(NotAnswer);
            }
            let Some(body) = bytes.get(start..start + len + 2) else {
                return Ok(None);
            };
            let body = body.strip_suffix(b"\r\n").ok_or(NotAnswer)?;
            return Ok(Some((Reply::Text(Some(body.to_vec())), start + len + 2)));
        }
        _ => return Err(NotAnswer),
    };
    Ok(Some((reply, start)))
}
