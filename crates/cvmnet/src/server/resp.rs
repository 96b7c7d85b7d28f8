//! A subset of Redis: RESP2 over a [`Store`].
//!
//! Strings only. Replies and errors are those of Redis 7.0, but for what is not there: RESP3, more
//! than one database, options of `EXPIRE`. `MGET` reads its keys one after the other as its reply
//! is sent, not at one moment.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tare_sim::Instant;

use super::output::{Body, Output};
use super::request::{integer, Requests, Share, ARGUMENT_OVERHEAD, TOO_MUCH};
use super::store::{lock, Store};
use super::{Application, Service, Time};

/// The commands with the number of their arguments, the name included; at least that for a negative
/// one.
const COMMANDS: &[(&str, i32)] = &[
    ("get", 2),
    ("set", -3),
    ("append", 3),
    ("client", -2),
    ("command", -1),
    ("config", -2),
    ("dbsize", 1),
    ("decr", 2),
    ("decrby", 3),
    ("del", -2),
    ("echo", 2),
    ("exists", -2),
    ("expire", -3),
    ("flushall", -1),
    ("flushdb", -1),
    ("getset", 3),
    ("hello", -1),
    ("incr", 2),
    ("incrby", 3),
    ("info", -1),
    ("mget", -2),
    ("mset", -3),
    ("persist", 2),
    ("pexpire", -3),
    ("ping", -1),
    ("pttl", 2),
    ("quit", -1),
    ("select", 2),
    ("setnx", 3),
    ("strlen", 2),
    ("ttl", 2),
];

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";
const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// The limits of a RESP server.
#[derive(Clone, Copy, Debug)]
pub struct RespConfig {
    /// The most bytes of a key or value.
    pub value_max: usize,
    /// The most bytes of a request, each argument with [`super::ARGUMENT_OVERHEAD`].
    pub request_max: usize,
    /// The most bytes that unfinished requests hold, those of all connections of all servers over
    /// the store; the connection that would exceed it is told so and closed. A request is
    /// unfinished until all of it has arrived, one for many keys until all of them are answered.
    pub unfinished_max: usize,
}

impl Default for RespConfig {
    fn default() -> RespConfig {
        RespConfig {
            value_max: 16 << 20,
            request_max: 32 << 20,
            unfinished_max: 256 << 20,
        }
    }
}

/// A RESP server: connections that share a store.
pub struct Resp {
    store: Arc<Mutex<Store>>,
    config: RespConfig,
}

impl Resp {
    /// Returns a server over a store, which other servers may use as well.
    pub fn new(store: Arc<Mutex<Store>>, config: RespConfig) -> Resp {
        Resp { store, config }
    }
}

impl Service for Resp {
    fn accept(&self) -> Box<dyn Application> {
        let config = &self.config;
        let all = Arc::clone(lock(&self.store).unfinished());
        let share = Share::new(all, config.unfinished_max);
        Box::new(Connection {
            store: Arc::clone(&self.store),
            requests: Requests::new(config.value_max, config.request_max, share),
            value_max: config.value_max,
            keys: Vec::new().into_iter(),
            has_ended: false,
            wants_close: false,
        })
    }
}

struct Connection {
    store: Arc<Mutex<Store>>,
    requests: Requests,
    value_max: usize,
    /// The keys of an `MGET` that are not answered yet.
    keys: std::vec::IntoIter<Vec<u8>>,
    has_ended: bool,
    wants_close: bool,
}

/// A reply. An error is the other side of a `Result`.
enum Reply {
    Simple(&'static str),
    Integer(i64),
    Bulk(Body),
    Text(Cow<'static, str>),
    Nil,
    /// An array of strings.
    Array(Vec<&'static str>),
    /// The values of keys.
    Values(Vec<Vec<u8>>),
}

type Answer = Result<Reply, Cow<'static, str>>;

impl Application for Connection {
    fn receive(&mut self, bytes: &[u8], time: Time, out: &mut Output) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() && !self.wants_close && self.keys.len() == 0 && out.has_room() {
            match self.requests.next(&mut rest) {
                Ok(Some(request)) => {
                    let store = Arc::clone(&self.store);
                    let answer = self.answer(&mut lock(&store), request, time);
                    self.reply(answer, time, out);
                }
                Ok(None) => {}
                Err(error) => {
                    self.reply(Err(error), time, out);
                    self.wants_close = true;
                }
            }
        }
        bytes.len() - rest.len()
    }

    fn produce(&mut self, time: Time, out: &mut Output) {
        while out.has_room() {
            let Some(key) = self.keys.next() else { return };
            match lock(&self.store).get(&key, time.now) {
                Some(item) => write_bulk(&item.body, out),
                None => out.push(b"$-1\r\n"),
            }
            if self.keys.len() == 0 {
                // With the memory of the list.
                self.keys = Vec::new().into_iter();
                self.requests.keep(0);
            }
        }
    }

    fn end(&mut self, _: Time, _: &mut Output) {
        self.has_ended = true;
    }

    fn wants_close(&self) -> bool {
        self.wants_close || (self.has_ended && self.keys.len() == 0)
    }
}

impl Connection {
    fn reply(&mut self, answer: Answer, time: Time, out: &mut Output) {
        match answer {
            Ok(Reply::Simple(text)) => out.print(format_args!("+{text}\r\n")),
            Ok(Reply::Integer(number)) => out.print(format_args!(":{number}\r\n")),
            Ok(Reply::Bulk(body)) => write_bulk(&body, out),
            Ok(Reply::Text(text)) => out.print(format_args!("${}\r\n{text}\r\n", text.len())),
            Ok(Reply::Nil) => out.push(b"$-1\r\n"),
            Ok(Reply::Array(texts)) => {
                out.print(format_args!("*{}\r\n", texts.len()));
                for text in texts {
                    out.print(format_args!("${}\r\n{text}\r\n", text.len()));
                }
            }
            Ok(Reply::Values(keys)) => {
                let bytes = keys.iter().map(|key| key.len() + ARGUMENT_OVERHEAD).sum();
                if !self.requests.keep(bytes) {
                    self.wants_close = true;
                    return self.reply(Err(TOO_MUCH.into()), time, out);
                }
                out.print(format_args!("*{}\r\n", keys.len()));
                self.keys = keys.into_iter();
                self.produce(time, out);
            }
            // One line, whatever of the request is in it.
            Err(error) => out.print(format_args!("-{}\r\n", error.replace(['\r', '\n'], " "))),
        }
    }

    fn answer(&mut self, store: &mut Store, mut request: Vec<Vec<u8>>, time: Time) -> Answer {
        let given = std::mem::take(&mut request[0]);
        let known = COMMANDS
            .iter()
            .find(|(name, _)| given.eq_ignore_ascii_case(name.as_bytes()));
        let Some(&(name, count)) = known else {
            return Err(self.unknown(&given, &request[1..]));
        };
        let given = request.len() as i32;
        if (count >= 0 && given != count) || given < -count {
            return Err(wrong_count(name));
        }
        let now = time.now;
        // Values are moved out of the request, not copied.
        let mut argument = |at: usize| request.get_mut(at).map(std::mem::take).unwrap_or_default();
        let key = argument(1);
        match name {
            "get" => Ok(self.value(store, &key, now)),
            "set" => self.set(store, &key, argument(2), &request[3..], time),
            "append" => self.append(store, &key, &argument(2), now),
            "strlen" => {
                let len = store.get(&key, now).map_or(0, |item| item.body.len());
                Ok(Reply::Integer(len as i64))
            }
            "getset" => {
                let old = self.value(store, &key, now);
                self.put(store, &key, argument(2), Instant::NEVER, now)?;
                Ok(old)
            }
            "setnx" => {
                let is_new = store.peek(&key, now).is_none();
                if is_new {
                    self.put(store, &key, argument(2), Instant::NEVER, now)?;
                }
                Ok(Reply::Integer(is_new.into()))
            }
            "mget" => {
                request[1] = key;
                Ok(Reply::Values(request.split_off(1)))
            }
            "mset" => {
                if given % 2 == 0 {
                    return Err(wrong_count(name));
                }
                request[1] = key;
                let mut pairs = request[1..].chunks_exact(2);
                if !pairs.all(|pair| store.fits(&pair[0], pair[1].len())) {
                    return Err(OUT_OF_MEMORY.into());
                }
                for pair in request[1..].chunks_exact_mut(2) {
                    let value = std::mem::take(&mut pair[1]);
                    self.put(store, &pair[0], value, Instant::NEVER, now)?;
                }
                Ok(Reply::Simple("OK"))
            }
            "del" | "exists" => {
                request[1] = key;
                let found = request[1..].iter().filter(|key| match name {
                    "del" => store.remove(key, now).is_some(),
                    _ => store.get(key, now).is_some(),
                });
                Ok(Reply::Integer(found.count() as i64))
            }
            "incr" => self.add(store, &key, 1, now),
            "decr" => self.add(store, &key, -1, now),
            "incrby" => self.add(
                store,
                &key,
                integer(&argument(2)).ok_or(NOT_AN_INTEGER)?,
                now,
            ),
            "decrby" => {
                let delta = integer(&argument(2)).ok_or(NOT_AN_INTEGER)?;
                let delta = delta.checked_neg().ok_or("ERR decrement would overflow")?;
                self.add(store, &key, delta, now)
            }
            "expire" => self.expire(store, &key, &request[2..], name, 1000, time),
            "pexpire" => self.expire(store, &key, &request[2..], name, 1, time),
            "ttl" | "pttl" => Ok(Reply::Integer(match store.peek(&key, now) {
                None => -2,
                Some(item) if item.expires == Instant::NEVER => -1,
                Some(item) => {
                    let left_ms = item.expires.since(now).as_millis() as i64;
                    let is_ms = name == "pttl";
                    if is_ms {
                        left_ms
                    } else {
                        (left_ms + 500) / 1000
                    }
                }
            })),
            "persist" => {
                let expires = store.peek(&key, now).map(|item| item.expires);
                let had = expires.is_some_and(|expires| expires != Instant::NEVER);
                if had {
                    store.touch(&key, Instant::NEVER, now);
                }
                Ok(Reply::Integer(had.into()))
            }
            "dbsize" => Ok(Reply::Integer(store.len(now) as i64)),
            "flushall" | "flushdb" => {
                let is_plain = given == 1
                    || given == 2
                        && [&b"sync"[..], b"async"]
                            .iter()
                            .any(|word| key.eq_ignore_ascii_case(word));
                if !is_plain {
                    return Err(SYNTAX.into());
                }
                store.flush(now, now);
                Ok(Reply::Simple("OK"))
            }
            "ping" => match given {
                1 => Ok(Reply::Simple("PONG")),
                2 => Ok(Reply::Bulk(Arc::new(key))),
                _ => Err(wrong_count(name)),
            },
            "echo" => Ok(Reply::Bulk(Arc::new(key))),
            "select" => match integer(&key).ok_or(NOT_AN_INTEGER)? {
                0 => Ok(Reply::Simple("OK")),
                _ => Err("ERR DB index is out of range".into()),
            },
            "hello" => match integer(&key) {
                _ if given > 2 => Err(SYNTAX.into()),
                Some(2) => Ok(Reply::Array(GREETING.to_vec())),
                None if given == 1 => Ok(Reply::Array(GREETING.to_vec())),
                None => Err("ERR Protocol version is not an integer or out of range".into()),
                Some(_) => Err("NOPROTO unsupported protocol version".into()),
            },
            "command" => Ok(Reply::Array(Vec::new())),
            "config" | "client" => subcommand(name, &key, given),
            "info" => Ok(Reply::Text(self.info(store, now).into())),
            _ => {
                self.wants_close = true;
                Ok(Reply::Simple("OK"))
            }
        }
    }

    /// The value of a key, or nil.
    fn value(&self, store: &mut Store, key: &[u8], now: Instant) -> Reply {
        store
            .get(key, now)
            .map_or(Reply::Nil, |item| Reply::Bulk(Arc::clone(&item.body)))
    }

    /// Stores a value; one that does not fit changes nothing.
    fn put(
        &self,
        store: &mut Store,
        key: &[u8],
        value: Vec<u8>,
        expires: Instant,
        now: Instant,
    ) -> Result<(), Cow<'static, str>> {
        if !store.fits(key, value.len()) {
            return Err(OUT_OF_MEMORY.into());
        }
        let done = store.set(key, Arc::new(value), 0, expires, now);
        done.map(drop).map_err(|_| OUT_OF_MEMORY.into())
    }

    /// `SET KEY VALUE [NX|XX] [GET] [EX s|PX ms|KEEPTTL]`.
    fn set(
        &mut self,
        store: &mut Store,
        key: &[u8],
        value: Vec<u8>,
        options: &[Vec<u8>],
        time: Time,
    ) -> Answer {
        let now = time.now;
        let (mut must_exist, mut keep, mut get, mut lifetime) = (None, false, false, None);
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let option = option.to_ascii_uppercase();
            match &option[..] {
                b"NX" if must_exist != Some(true) => must_exist = Some(false),
                b"XX" if must_exist != Some(false) => must_exist = Some(true),
                b"GET" => get = true,
                b"KEEPTTL" if lifetime.is_none() => keep = true,
                b"EX" | b"PX" if !keep => {
                    let unit_ms = if option == b"EX" { 1000 } else { 1 };
                    if lifetime.is_some_and(|(_, unit)| unit != unit_ms) {
                        return Err(SYNTAX.into());
                    }
                    lifetime = Some((options.next().ok_or(SYNTAX)?, unit_ms));
                }
                _ => return Err(SYNTAX.into()),
            }
        }
        let mut expires = Instant::NEVER;
        if let Some((lifetime, unit_ms)) = lifetime {
            let lifetime = integer(lifetime).ok_or(NOT_AN_INTEGER)?;
            let left = lifetime_of(lifetime, unit_ms, time).filter(|left| !left.is_zero());
            expires = now + left.ok_or_else(|| invalid_expire("set"))?;
        }
        let old = store.get(key, now).cloned();
        if keep {
            expires = old.as_ref().map_or(expires, |old| old.expires);
        }
        let is_due = must_exist.is_none_or(|must| must == old.is_some());
        if is_due {
            self.put(store, key, value, expires, now)?;
        }
        Ok(match old {
            Some(old) if get => Reply::Bulk(old.body),
            _ if is_due && !get => Reply::Simple("OK"),
            _ => Reply::Nil,
        })
    }

    fn append(&mut self, store: &mut Store, key: &[u8], more: &[u8], now: Instant) -> Answer {
        let len = store.peek(key, now).map_or(0, |item| item.body.len()) + more.len();
        if len > self.value_max {
            let error = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
            return Err(error.into());
        }
        if !store.fits(key, len) {
            return Err(OUT_OF_MEMORY.into());
        }
        // Removed, so that it is not copied unless a response holds it, too.
        let old = store.remove(key, now);
        let (mut body, expires) = old.map_or((Body::default(), Instant::NEVER), |old| {
            (old.body, old.expires)
        });
        Arc::make_mut(&mut body).extend_from_slice(more);
        let done = store.set(key, body, 0, expires, now);
        done.map_err(|_| OUT_OF_MEMORY)?;
        Ok(Reply::Integer(len as i64))
    }

    fn add(&mut self, store: &mut Store, key: &[u8], delta: i64, now: Instant) -> Answer {
        let (old, expires) = match store.peek(key, now) {
            Some(item) => (integer(&item.body).ok_or(NOT_AN_INTEGER)?, item.expires),
            None => (0, Instant::NEVER),
        };
        let overflow = "ERR increment or decrement would overflow";
        let new = old.checked_add(delta).ok_or(overflow)?;
        self.put(store, key, new.to_string().into_bytes(), expires, now)?;
        Ok(Reply::Integer(new))
    }

    fn expire(
        &mut self,
        store: &mut Store,
        key: &[u8],
        arguments: &[Vec<u8>],
        name: &str,
        unit_ms: i64,
        time: Time,
    ) -> Answer {
        let (lifetime, options) = arguments.split_first().ok_or(SYNTAX)?;
        if let Some(option) = options.first() {
            let option = String::from_utf8_lossy(option);
            return Err(format!("ERR Unsupported option {option}").into());
        }
        let lifetime = integer(lifetime).ok_or(NOT_AN_INTEGER)?;
        let left = lifetime_of(lifetime, unit_ms, time).ok_or_else(|| invalid_expire(name))?;
        let is_there = store.touch(key, time.now + left, time.now);
        Ok(Reply::Integer(is_there.into()))
    }

    fn unknown(&mut self, name: &[u8], arguments: &[Vec<u8>]) -> Cow<'static, str> {
        // A browser was made to send a form here: what follows is not meant for a store.
        self.wants_close |= name.eq_ignore_ascii_case(b"post") || name == b"Host:";
        let text = |bytes: &[u8], most: usize| {
            String::from_utf8_lossy(&bytes[..bytes.len().min(most)]).into_owned()
        };
        let mut shown = String::new();
        for argument in arguments {
            if shown.len() >= 128 {
                break;
            }
            shown += &format!("'{}' ", text(argument, 128 - shown.len()));
        }
        let name = text(name, 128);
        format!("ERR unknown command '{name}', with args beginning with: {shown}").into()
    }

    fn info(&self, store: &mut Store, now: Instant) -> String {
        let counters = store.counters();
        format!(
            "# Server\r\nredis_version:7.0.0\r\ntare_version:{}\r\n# Memory\r\nused_memory:{}\r\n\
             maxmemory:{}\r\n# Stats\r\nkeyspace_hits:{}\r\nkeyspace_misses:{}\r\n\
             evicted_keys:{}\r\n# Keyspace\r\ndb0:keys={}\r\n",
            env!("CARGO_PKG_VERSION"),
            store.bytes(),
            store.bytes_max(),
            counters.hits,
            counters.misses,
            counters.evicted,
            store.len(now),
        )
    }
}

/// The answer to `HELLO 2`.
const GREETING: [&str; 8] = [
    "server",
    "redis",
    "version",
    "7.0.0",
    "proto",
    "2",
    "mode",
    "standalone",
];

/// Answers `CONFIG GET`, which knows no parameter, and `CLIENT SETINFO` and `SETNAME`, which have
/// no effect.
fn subcommand(name: &str, word: &[u8], count: i32) -> Answer {
    let (wanted, answer) = match (name, &word.to_ascii_lowercase()[..]) {
        ("config", b"get") => (3.., Reply::Array(Vec::new())),
        ("client", b"setname") => (3.., Reply::Simple("OK")),
        ("client", b"setinfo") => (4.., Reply::Simple("OK")),
        _ => {
            let (word, help) = (String::from_utf8_lossy(word), name.to_ascii_uppercase());
            let error = format!("ERR unknown subcommand '{word}'. Try {help} HELP.");
            return Err(error.into());
        }
    };
    let is_exact = name == "config" || count == wanted.start;
    match wanted.contains(&count) && is_exact {
        true => Ok(answer),
        false => {
            let word = String::from_utf8_lossy(word).to_ascii_lowercase();
            Err(wrong_count(&format!("{name}|{word}")))
        }
    }
}

fn wrong_count(name: &str) -> Cow<'static, str> {
    format!("ERR wrong number of arguments for '{name}' command").into()
}

fn invalid_expire(name: &str) -> Cow<'static, str> {
    format!("ERR invalid expire time in '{name}' command").into()
}

/// The time from now; zero if it has passed, `None` if Redis could not represent its end.
fn lifetime_of(lifetime: i64, unit_ms: i64, time: Time) -> Option<Duration> {
    let ms = lifetime.checked_mul(unit_ms)?;
    ms.checked_add(i64::try_from(time.unix.as_millis()).ok()?)?;
    Some(Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
}

fn write_bulk(body: &Body, out: &mut Output) {
    out.print(format_args!("${}\r\n", body.len()));
    out.push_body(body, 0..body.len());
    out.push(b"\r\n");
}
