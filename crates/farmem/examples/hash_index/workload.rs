//! The same work on every index, all of it verified.

use std::time::{Duration, Instant};

use tare_histogram::Histogram;

use super::index::{Done, Error, Index, Request};
use super::layout::{mix, Value, VALUE_MAX};

/// Shortest value, in bytes.
const VALUE_MIN: usize = 64;

/// The key of the number of entries.
const ENTRIES_KEY: u64 = 0;

/// The share of puts in the mixed phase, as one of so many requests.
const ONE_PUT_OF: u64 = 3;

/// The time between two messages about the progress.
const PROGRESS: Duration = Duration::from_millis(250);

/// An index with what is known of it.
pub(crate) struct Subject {
    pub(crate) target: String,
    pub(crate) index: Box<dyn Index>,
    /// Most requests that have not ended.
    pub(crate) outstanding: usize,
    /// Messages about the progress go to standard error.
    pub(crate) has_progress: bool,
    /// The version of each key's value, from key 1 on.
    versions: Vec<u32>,
    pub(crate) phases: Vec<Phase>,
    /// Requests that found something else than what must be there.
    pub(crate) wrong: u64,
    random: u64,
}

/// A kind of work, measured in one or more turns.
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) operations: u64,
    pub(crate) elapsed: Duration,
    pub(crate) latency: Histogram,
    /// Operations per second of each turn.
    pub(crate) rates: Vec<f64>,
}

impl Phase {
    fn new(name: &'static str) -> Phase {
        Phase {
            name,
            operations: 0,
            elapsed: Duration::ZERO,
            latency: Histogram::new(),
            rates: Vec::new(),
        }
    }

    /// Returns operations per second.
    pub(crate) fn rate(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

impl Subject {
    /// An index of which nothing is known.
    pub(crate) fn new(target: &str, index: Box<dyn Index>) -> Subject {
        Subject {
            target: target.to_string(),
            index,
            outstanding: 64,
            has_progress: false,
            versions: Vec::new(),
            phases: Vec::new(),
            wrong: 0,
            random: 1,
        }
    }

    /// Returns the number of entries.
    pub(crate) fn entries(&self) -> u64 {
        self.versions.len() as u64
    }

    /// Returns the bytes of all values.
    pub(crate) fn data_bytes(&self) -> u64 {
        let keys = 1..;
        let contents = keys
            .zip(&self.versions)
            .map(|(key, version)| content(key, *version));
        contents.map(|value| value.bytes().len() as u64).sum()
    }

    /// Makes the index anew, and inserts entries.
    pub(crate) fn fill(&mut self, entries: u64) -> Result<(), Error> {
        self.index.create(entries + 1)?;
        let count = Value::new(&entries.to_le_bytes()).expect("8 bytes");
        let mut first = Some(put(ENTRIES_KEY, count));
        self.drive("mark", |_, _| first.take(), |_, _, _| true)?;
        self.phases.pop();
        self.versions = vec![1; entries as usize];
        let mut keys = 1..=entries;
        self.drive(
            "fill",
            |_, _| keys.next().map(|key| put(key, content(key, 1))),
            |_, _, done| !done.is_known || done.value.is_none(),
        )
    }

    /// Reads all entries, whose versions are not known yet.
    pub(crate) fn learn(&mut self) -> Result<(), Error> {
        let mut count = None;
        let mut first = Some(get(ENTRIES_KEY));
        self.drive(
            "mark",
            |_, _| first.take(),
            |_, _, done| {
                count = done.value;
                true
            },
        )?;
        self.phases.pop();
        let count = count.and_then(|value| Some(u64::from_le_bytes(*value.bytes().first_chunk()?)));
        let none = || Error(format!("{}: there is no index: fill it", self.target));
        self.versions = vec![0; count.ok_or_else(none)? as usize];
        self.verify()
    }

    /// Reads and compares all entries. Where the version is not known, it is taken from the value.
    pub(crate) fn verify(&mut self) -> Result<(), Error> {
        let mut keys = 1..=self.entries();
        self.drive(
            "verify",
            |_, _| keys.next().map(get),
            |versions, request, done| {
                let version = &mut versions[request.key as usize - 1];
                if *version == 0 {
                    let bytes = done.value.and_then(|value| {
                        let (words, _) = value.bytes().as_chunks::<8>();
                        words.get(1).map(|word| u64::from_le_bytes(*word))
                    });
                    *version = bytes.and_then(|n| n.try_into().ok()).unwrap_or(0);
                }
                *version > 0 && done.value == Some(content(request.key, *version))
            },
        )
    }

    /// Gets and puts random entries for some time.
    pub(crate) fn run(&mut self, time: Duration) -> Result<(), Error> {
        let end = Instant::now() + time;
        let mut random = self.random;
        let result = self.drive(
            "run",
            |versions, is_busy| {
                if Instant::now() >= end {
                    return None;
                }
                let key = loop {
                    random = mix(random);
                    let key = random % versions.len() as u64 + 1;
                    if !is_busy(key) {
                        break key;
                    }
                };
                let version = versions[key as usize - 1];
                Some(match (random >> 40) % ONE_PUT_OF {
                    0 => put(key, content(key, version + 1)),
                    _ => get(key),
                })
            },
            |versions, request, done| {
                let version = &mut versions[request.key as usize - 1];
                let is_right = !done.is_known || done.value == Some(content(request.key, *version));
                *version += u32::from(request.put.is_some());
                is_right
            },
        );
        self.random = random;
        result
    }

    /// Submits requests while there is room, until there is no next one and all have ended. At most
    /// one request for a key is outstanding.
    fn drive(
        &mut self,
        name: &'static str,
        mut next: impl FnMut(&[u32], &dyn Fn(u64) -> bool) -> Option<Request>,
        mut is_right: impl FnMut(&mut [u32], &Request, &Done) -> bool,
    ) -> Result<(), Error> {
        let most = self.outstanding.min(self.versions.len().max(2) / 2);
        let mut running: Vec<Option<(Request, Instant)>> = vec![None; most];
        let mut free: Vec<usize> = (0..most).collect();
        let (mut done, mut has_more) = (Vec::new(), true);
        // Merged at once: a histogram for each turn would be most of this program's memory.
        let known = self.phases.iter().position(|phase| phase.name == name);
        let place = known.unwrap_or(self.phases.len());
        let mut phase = match known {
            Some(place) => self.phases.remove(place),
            None => Phase::new(name),
        };
        let before = phase.operations;
        let start = Instant::now();
        // A line of progress says that there was some.
        let mut said = (start, phase.operations);
        while has_more || free.len() < most {
            while has_more {
                let Some(ticket) = free.pop() else {
                    break;
                };
                let is_busy = |key| running.iter().flatten().any(|(other, _)| other.key == key);
                match next(&self.versions, &is_busy) {
                    Some(request) => {
                        running[ticket] = Some((request, Instant::now()));
                        self.index.submit(ticket, request);
                    }
                    None => {
                        has_more = false;
                        free.push(ticket);
                    }
                }
            }
            self.index.poll(&mut done)?;
            let now = Instant::now();
            for done in done.drain(..) {
                let Some((request, since)) = running[done.ticket].take() else {
                    continue;
                };
                phase.latency.record_duration(now - since);
                phase.operations += 1;
                free.push(done.ticket);
                self.wrong += u64::from(!is_right(&mut self.versions, &request, &done));
            }
            let is_due = now - said.0 >= PROGRESS && phase.operations > said.1;
            if self.has_progress && is_due {
                said = (now, phase.operations);
                eprintln!("{}: {name} {}", self.target, phase.operations);
            }
        }
        let elapsed = start.elapsed();
        phase.elapsed += elapsed;
        let operations = (phase.operations - before) as f64;
        phase.rates.push(operations / elapsed.as_secs_f64());
        self.phases.insert(place, phase);
        Ok(())
    }
}

fn get(key: u64) -> Request {
    Request { key, put: None }
}

fn put(key: u64, value: Value) -> Request {
    let put = Some(value);
    Request { key, put }
}

/// Returns the only right value of a key in a version: 64 to 224 bytes, with the version in it.
fn content(key: u64, version: u32) -> Value {
    let mut bytes = [0; VALUE_MAX];
    let mut state = mix(key ^ mix(version.into()));
    let len = VALUE_MIN + (state % (VALUE_MAX - VALUE_MIN + 1) as u64) as usize;
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        state = mix(state);
        let number = match place {
            0 => key,
            1 => version.into(),
            _ => state,
        };
        *word = number.to_le_bytes();
    }
    Value::new(&bytes[..len]).expect("a length within bounds")
}
