//! Clients of the guest's servers, in the host's process: a script of requests on each connection,
//! the next one when the last is answered.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use tare_cvmnet::server::{Application, Body, Output, Time};

/// Requests in a turn of the published mix for stores: one set, and ten gets of which one hits.
pub(super) const MIX: u64 = 11;
/// The keys that are in the store when a trial begins.
pub(super) const KEYS: u64 = 100;
/// The keys that are asked for: those beyond [`KEYS`] are missing.
const KEYS_ASKED: u64 = 10_000;
/// The most bytes of a response's head.
const HEAD_MAX: usize = 4096;
/// Of so many bodies, one is compared byte by byte.
const COMPARED: u64 = 8;
/// The file that is fetched over HTTP.
pub(super) const FILE: &str = "value.bin";

/// The protocol of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// GET of a file.
    Http,
    /// memcached's text protocol, in the published mix.
    Memcached,
    /// RESP, in the published mix.
    Redis,
}

/// Counters of all clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// Requests that were answered.
    pub(super) requests: u64,
    /// Whole turns of the script: requests over HTTP, eleven requests to a store.
    pub(super) turns: u64,
    /// Bytes of values that were compared with what they must be.
    pub(super) verified: u64,
    /// Answers that are not what was asked for; the connection ends.
    pub(super) wrong: u64,
}

/// The part that all clients have in common.
#[derive(Clone)]
pub(super) struct Clients {
    protocol: Protocol,
    value: Body,
    counters: Rc<Cell<Counters>>,
}

impl Clients {
    pub(super) fn new(protocol: Protocol, value: Body) -> Clients {
        Clients {
            protocol,
            value,
            counters: Rc::default(),
        }
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters.get()
    }

    /// Returns the client of the `n`th connection. Each begins at another place of the script, so
    /// that they do not all set at once.
    pub(super) fn client(&self, n: u64) -> Client {
        Client {
            shared: self.clone(),
            step: n * 4,
            begun: n * 4,
            state: State::Idle,
            head: Vec::new(),
            answers: 0,
            is_over: false,
        }
    }

    fn count(&self, change: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }
}

/// The name of a key.
pub(super) fn key(n: u64) -> String {
    format!("memtier-{n}")
}

/// Returns `len` bytes without a period, the value of every key and file.
pub(super) fn value(len: usize) -> Body {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len);
    bytes.resize_with(len, || {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    Arc::new(bytes)
}

/// A step of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Fetch,
    Set(u64),
    Hit(u64),
    Miss(u64),
}

/// The part of the answer that is due next.
#[derive(Debug)]
enum State {
    /// No request is on its way.
    Idle,
    /// The head of the answer; then so many bytes of the value if there is one.
    Head,
    /// The value, from this byte on.
    Value(usize),
    /// The bytes behind it: as many have come.
    Tail(usize),
}

/// One connection's client.
pub(super) struct Client {
    shared: Clients,
    step: u64,
    begun: u64,
    state: State,
    head: Vec<u8>,
    answers: u64,
    is_over: bool,
}

/// An answer that no right server gives.
struct Wrong;

impl Client {
    fn current(&self) -> Step {
        let (turn, place) = (self.step / MIX, self.step % MIX);
        match (self.shared.protocol, place) {
            (Protocol::Http, _) => Step::Fetch,
            (_, 0) => Step::Set(turn % KEYS),
            (_, 1) => Step::Hit((turn * 7) % KEYS),
            _ => Step::Miss(KEYS + (self.step * 31) % (KEYS_ASKED - KEYS)),
        }
    }

    fn ask(&self, out: &mut Output) {
        let (value, step) = (&self.shared.value, self.current());
        match (self.shared.protocol, step) {
            (_, Step::Fetch) => {
                out.print(format_args!("GET /{FILE} HTTP/1.1\r\nHost: guest\r\n\r\n"));
            }
            (Protocol::Redis, Step::Set(n)) => {
                let (key, len) = (key(n), value.len());
                out.print(format_args!(
                    "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${len}\r\n",
                    key.len()
                ));
                out.push_body(value, 0..len);
                out.push(b"\r\n");
            }
            (Protocol::Redis, Step::Hit(n) | Step::Miss(n)) => {
                let key = key(n);
                out.print(format_args!(
                    "*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n",
                    key.len()
                ));
            }
            (_, Step::Set(n)) => {
                let (key, len) = (key(n), value.len());
                out.print(format_args!("set {key} 0 0 {len}\r\n"));
                out.push_body(value, 0..len);
                out.push(b"\r\n");
            }
            (_, Step::Hit(n) | Step::Miss(n)) => out.print(format_args!("get {}\r\n", key(n))),
        }
    }

    /// Returns the bytes that stand behind the value of an answer.
    fn tail(&self) -> &'static [u8] {
        match self.shared.protocol {
            Protocol::Http => b"",
            Protocol::Memcached => b"\r\nEND\r\n",
            Protocol::Redis => b"\r\n",
        }
    }

    /// Returns true if the whole head announces a value, false if it is all of the answer.
    fn announces_value(&self, head: &[u8]) -> Result<bool, Wrong> {
        let (len, step) = (self.shared.value.len(), self.current());
        let is = |expected: &str| head == expected.as_bytes();
        match (self.shared.protocol, step) {
            (_, Step::Fetch) => {
                let text = std::str::from_utf8(head).map_err(|_| Wrong)?;
                let mut lines = text.split("\r\n");
                let is_found = lines.next() == Some("HTTP/1.1 200 OK");
                let announced = lines.find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length")
                        .then(|| value.trim().to_owned())
                });
                let is_whole = announced == Some(len.to_string());
                (is_found && is_whole).then_some(true).ok_or(Wrong)
            }
            (Protocol::Redis, Step::Set(_)) if is("+OK\r\n") => Ok(false),
            (Protocol::Redis, Step::Miss(_)) if is("$-1\r\n") => Ok(false),
            (Protocol::Redis, Step::Hit(_)) if is(&format!("${len}\r\n")) => Ok(true),
            (Protocol::Memcached, Step::Set(_)) if is("STORED\r\n") => Ok(false),
            (Protocol::Memcached, Step::Miss(_)) if is("END\r\n") => Ok(false),
            (Protocol::Memcached, Step::Hit(n)) => {
                let expected = format!("VALUE {} 0 {len}\r\n", key(n));
                is(&expected).then_some(true).ok_or(Wrong)
            }
            _ => Err(Wrong),
        }
    }

    /// Takes bytes of the answer; what is behind it is wrong, as there is no other request.
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Wrong> {
        while let Some(&first) = bytes.first() {
            match self.state {
                State::Idle => return Err(Wrong),
                State::Head => {
                    let end: &[u8] = match self.shared.protocol {
                        Protocol::Http => b"\r\n\r\n",
                        _ => b"\r\n",
                    };
                    bytes = &bytes[1..];
                    self.head.push(first);
                    if self.head.len() > HEAD_MAX {
                        return Err(Wrong);
                    }
                    if !self.head.ends_with(end) {
                        continue;
                    }
                    let head = std::mem::take(&mut self.head);
                    let has_value = self.announces_value(&head)?;
                    self.head = head;
                    self.head.clear();
                    match has_value {
                        true => self.state = State::Value(0),
                        false => self.answered(),
                    }
                }
                State::Value(at) => {
                    let value = &self.shared.value;
                    let len = bytes.len().min(value.len() - at);
                    let (part, rest) = bytes.split_at(len);
                    if self.answers.is_multiple_of(COMPARED) {
                        if part != &value[at..at + len] {
                            return Err(Wrong);
                        }
                        self.shared
                            .count(|counters| counters.verified += len as u64);
                    }
                    bytes = rest;
                    self.state = State::Value(at + len);
                    if at + len == self.shared.value.len() {
                        self.state = State::Tail(0);
                        if self.tail().is_empty() {
                            self.answered();
                        }
                    }
                }
                State::Tail(at) => {
                    if self.tail().get(at) != Some(&first) {
                        return Err(Wrong);
                    }
                    bytes = &bytes[1..];
                    self.state = State::Tail(at + 1);
                    if at + 1 == self.tail().len() {
                        self.answered();
                    }
                }
            }
        }
        Ok(())
    }

    fn answered(&mut self) {
        if matches!(self.current(), Step::Fetch | Step::Hit(_)) {
            self.answers += 1;
        }
        self.state = State::Idle;
        self.step += 1;
        let turn = match self.shared.protocol {
            Protocol::Http => 1,
            _ => MIX,
        };
        let is_turn = (self.step - self.begun).is_multiple_of(turn);
        self.shared.count(|counters| {
            counters.requests += 1;
            counters.turns += u64::from(is_turn);
        });
    }
}

impl Application for Client {
    fn receive(&mut self, bytes: &[u8], _: Time, _: &mut Output) -> usize {
        if !self.is_over && self.take(bytes).is_err() {
            self.is_over = true;
            self.shared.count(|counters| counters.wrong += 1);
        }
        bytes.len()
    }

    fn produce(&mut self, _: Time, out: &mut Output) {
        if matches!(self.state, State::Idle) && !self.is_over {
            self.ask(out);
            self.state = State::Head;
        }
    }

    fn end(&mut self, _: Time, _: &mut Output) {
        self.is_over = true;
    }

    fn wants_close(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use tare_cvmnet::server::{Memcached, Resp, RespConfig, Service as _, Store};
    use tare_sim::Instant;

    use super::*;

    const TIME: Time = Time {
        now: Instant::ZERO,
        unix: Duration::ZERO,
    };

    /// Answers of `server`, in parts of `cut` bytes, with `change` made to each.
    fn converse(
        protocol: Protocol,
        cut: usize,
        turns: u64,
        mut change: impl FnMut(&mut Vec<u8>),
    ) -> Counters {
        let value = value(3000);
        let store = Arc::new(Mutex::new(Store::new(1 << 20)));
        for n in 0..KEYS {
            let set = &mut *store.lock().unwrap();
            set.set(
                key(n).as_bytes(),
                Arc::clone(&value),
                0,
                Instant::NEVER,
                TIME.now,
            )
            .unwrap();
        }
        let mut server = match protocol {
            Protocol::Redis => Resp::new(store, RespConfig::default()).accept(),
            _ => Memcached::new(store).accept(),
        };
        let clients = Clients::new(protocol, value);
        let mut client = clients.client(0);
        let mut asked = Output::new(1 << 20);
        for _ in 0..turns * MIX {
            client.produce(TIME, &mut asked);
            let bytes = asked.pieces(usize::MAX).concat();
            asked.consume(bytes.len());
            let mut answer = Output::new(1 << 20);
            assert_eq!(server.receive(&bytes, TIME, &mut answer), bytes.len());
            let mut bytes = answer.pieces(usize::MAX).concat();
            change(&mut bytes);
            for part in bytes.chunks(cut) {
                client.receive(part, TIME, &mut asked);
            }
        }
        clients.counters()
    }

    #[test]
    fn the_script_is_the_published_mix_and_is_answered_however_the_answers_are_cut() {
        for protocol in [Protocol::Memcached, Protocol::Redis] {
            for cut in [1, 7, 1 << 20] {
                let mut values = 0;
                let counters = converse(protocol, cut, 9, |answer| {
                    values += u64::from(answer.len() > 3000);
                });
                // One get in ten hits.
                assert_eq!(values, 9, "{protocol:?}");
                let expected = Counters {
                    requests: 99,
                    turns: 9,
                    verified: 2 * 3000,
                    wrong: 0,
                };
                assert_eq!(counters, expected, "{protocol:?} {cut}");
            }
        }
    }

    #[test]
    fn an_answer_with_another_byte_a_byte_more_or_fewer_is_wrong() {
        for protocol in [Protocol::Memcached, Protocol::Redis] {
            for fault in 0..4 {
                let counters = converse(protocol, 1 << 20, 1, |answer| {
                    let (len, is_value) = (answer.len(), answer.len() > 3000);
                    match fault {
                        0 if is_value => answer[len / 2] ^= 1,
                        1 if is_value => answer[len - 3] ^= 1,
                        2 if is_value => drop(answer.remove(100)),
                        3 if !is_value => answer.push(b'x'),
                        _ => {}
                    }
                });
                assert_eq!(counters.wrong, 1, "{protocol:?} fault {fault}");
            }
        }
    }
}
