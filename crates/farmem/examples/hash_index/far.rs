//! The index in far memory.
//!
//! One program at a time changes an index: it holds the index's lock, and every write names the
//! lock's token. An entry is written as a whole or not at all, so that a reader needs no lock. It
//! takes one round trip to get a value, and two to put one.
//!
//! A write whose outcome is unknown may have happened, and a copy of it may still be on its way.
//! So the lock is first given back and taken anew: from then on the node refuses whatever names
//! the old token. Then reading shows what happened, and that stays so.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use tare_farmem::operation::{Error as Refusal, Guard, Operation, PageSize, Permission, SpaceId};
use tare_farmem::protocol::{Completion, Failure, OperationId};
use tare_farmem::session::{connect, Error as SessionError, Options, Session};
use tare_farmem::transport::Faults;

use super::index::{Done, Error, Events, Index, Request, PATIENCE};
use super::layout::{
    address, home, Entry, Value, BASE, BUCKET_BYTES, ENTRIES, ENTRY_BYTES, MAGIC, PAGE,
};

/// The space of the index, the same in every run: another run finds it again.
const SPACE: SpaceId = SpaceId(0x6861_7368_2069_6478);

/// The lock's lease, and the time after which it is taken anew. If the program is killed, the next
/// one waits for the lease at most.
const LEASE: Duration = Duration::from_secs(3);
const RENEWAL: Duration = Duration::from_secs(1);

/// Entries that come to a bucket on average, of the four that it has room for.
const LOAD: u64 = 3;

/// Longest allocation, in bytes.
const ALLOCATION_MAX: u64 = 1 << 30;

/// The time after which the node refuses copies of what was sent before, or longer.
const HORIZON: Duration = Duration::from_secs(2);

/// The time for which a poll waits.
const WAIT: Duration = Duration::from_millis(20);

/// A hash index in far memory.
pub(crate) struct Far {
    session: Session,
    buckets: u64,
    guard: Option<Guard>,
    locked: Instant,
    /// The lock is to be taken anew before anything else is sent.
    is_stale: bool,
    running: HashMap<usize, Running>,
    tickets: HashMap<OperationId, usize>,
    /// Requests of which an operation is to be sent.
    ready: VecDeque<usize>,
    /// Buckets that a put is looking at and may write to.
    claimed: HashSet<u64>,
    last_success: Instant,
    events: Events,
}

/// A request that has not ended.
struct Running {
    request: Request,
    bucket: u64,
    /// Buckets that were full and did not have the key.
    probes: u64,
    has_claim: bool,
    /// The write that comes next; a read of the bucket if `None`.
    write: Option<Write>,
    /// The write whose outcome is unknown.
    unknown: Option<Write>,
}

#[derive(Clone, Copy)]
struct Write {
    entry: usize,
    version: u64,
    /// The value that it replaces.
    before: Option<Value>,
}

impl Far {
    /// Connects to a node; the index need not exist.
    pub(crate) fn connect(address: &str, faults: Option<(Faults, u64)>) -> Result<Far, Error> {
        let options = Options {
            space: Some(SPACE),
            faults,
            ..Options::default()
        };
        let now = Instant::now();
        Ok(Far {
            session: connect(address, &options)?,
            buckets: 0,
            guard: None,
            locked: now,
            is_stale: true,
            running: HashMap::new(),
            tickets: HashMap::new(),
            ready: VecDeque::new(),
            claimed: HashSet::new(),
            last_success: now,
            events: Events::default(),
        })
    }

    /// Finds the index that is there.
    pub(crate) fn open(&mut self) -> Result<(), Error> {
        let mut header = [0; 24];
        self.persist(|session| session.read(BASE, &mut header))?;
        let words = header.as_chunks::<8>().0;
        let [_, magic, buckets] = words else {
            unreachable!("24 bytes");
        };
        if u64::from_le_bytes(*magic) != MAGIC {
            return Err(Error("there is no index in this space: fill it".into()));
        }
        self.buckets = u64::from_le_bytes(*buckets);
        self.take_lock()
    }

    /// Repeats something that may be repeated, while the node is away.
    fn persist<T>(
        &mut self,
        mut run: impl FnMut(&mut Session) -> Result<T, SessionError>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        loop {
            match run(&mut self.session) {
                Err(error) if !is_passing(&error) => return Err(error.into()),
                Err(error) if start.elapsed() > PATIENCE => return Err(gone(&error)),
                Err(_) => {}
                Ok(value) => return Ok(value),
            }
        }
    }

    /// Takes the lock, or takes it anew under another token.
    fn take_lock(&mut self) -> Result<(), Error> {
        if let Some(guard) = self.guard.take() {
            // That the token is stale is as good: the lease has ended, or the node was restarted.
            self.persist(|session| match session.unlock(guard) {
                Err(error) if refusal(&error).is_some() => Ok(()),
                result => result,
            })?;
        }
        // If it is not known whether the lock was taken, its lease is waited for.
        let guard = self.persist(|session| session.lock_within(BASE, LEASE, PATIENCE))?;
        self.guard = Some(guard);
        // Another program may have had the lock in between: what was read is to be read again.
        self.running
            .values_mut()
            .for_each(|running| running.write = None);
        (self.locked, self.is_stale) = (Instant::now(), false);
        Ok(())
    }

    /// Sends the next operation of a request.
    fn step(&mut self, ticket: usize) -> Result<(), Error> {
        let Some(running) = self.running.get_mut(&ticket) else {
            return Ok(());
        };
        let bucket = running.bucket;
        if running.request.put.is_some() && !running.has_claim {
            if !self.claimed.insert(bucket) {
                // Another put may be writing there what this one would not see.
                self.ready.push_back(ticket);
                return Ok(());
            }
            running.has_claim = true;
        }
        let id = match (running.write, running.request.put) {
            (Some(write), Some(value)) => {
                let entry = Entry {
                    version: write.version,
                    key: running.request.key,
                    value,
                };
                self.session.submit(&Operation::Write {
                    address: address(bucket) + (write.entry * ENTRY_BYTES) as u64,
                    data: &entry.encode(),
                    guard: self.guard,
                })?
            }
            _ => self.session.submit(&Operation::Read {
                address: address(bucket),
                len: BUCKET_BYTES as u32,
            })?,
        };
        self.tickets.insert(id, ticket);
        Ok(())
    }

    /// Takes the end of an operation.
    fn handle(&mut self, completion: Completion, done: &mut Vec<Done>) -> Result<(), Error> {
        let ticket = self.tickets.remove(&completion.id);
        let Some((ticket, running)) =
            ticket.and_then(|ticket| Some((ticket, self.running.get_mut(&ticket)?)))
        else {
            return Ok(());
        };
        match (completion.outcome, running.write) {
            (Ok(_), Some(write)) => self.finish(ticket, write.before, done),
            (Ok(_), None) => {
                let result = self.look(ticket, &completion.data, done);
                self.session.release(completion);
                result?;
            }
            (Err(Failure::OutcomeUnknown), write) => {
                (running.unknown, running.write) = (write, None);
                self.is_stale = true;
                self.ready.push_back(ticket);
                return Ok(());
            }
            (Err(Failure::Refused(Refusal::StaleToken)), _) => {
                running.write = None;
                self.is_stale = true;
                self.ready.push_back(ticket);
                self.events.repeated += 1;
                return Ok(());
            }
            (Err(error @ Failure::Refused(_)), _) => {
                return Err(SessionError::from(error).into());
            }
            (Err(error @ (Failure::Timeout | Failure::NodeGone)), _) => {
                if self.last_success.elapsed() > PATIENCE {
                    return Err(gone(&error.into()));
                }
                self.ready.push_back(ticket);
                self.events.repeated += 1;
                return Ok(());
            }
        }
        self.last_success = Instant::now();
        Ok(())
    }

    /// Looks for the key in its bucket, or in the next one.
    fn look(&mut self, ticket: usize, bytes: &[u8], done: &mut Vec<Done>) -> Result<(), Error> {
        let Some(running) = self.running.get_mut(&ticket) else {
            return Ok(());
        };
        let bucket = running.bucket;
        let mut entries = [None; ENTRIES];
        for (entry, bytes) in entries.iter_mut().zip(bytes.chunks_exact(ENTRY_BYTES)) {
            *entry = Entry::parse(bytes)
                .map_err(|_| Error(format!("damaged: an entry of bucket {bucket}")))?;
        }
        let key = running.request.key;
        let found = |entry: &Option<Entry>| entry.is_some_and(|entry| entry.key == key);
        let found = entries.iter().position(found);
        if let Some(write) = running.unknown.take() {
            let version = entries[write.entry].map_or(0, |entry| entry.version);
            if found == Some(write.entry) && version == write.version {
                self.events.had_happened += 1;
                self.finish(ticket, write.before, done);
                return Ok(());
            }
            self.events.had_not += 1;
        }
        let free = entries.iter().position(Option::is_none);
        match (running.request.put, found.or(free)) {
            (Some(_), Some(place)) => {
                running.write = Some(Write {
                    entry: place,
                    version: entries[place].map_or(0, |entry| entry.version) + 1,
                    before: entries[place].map(|entry| entry.value),
                });
                self.ready.push_back(ticket);
            }
            (None, Some(place)) => {
                self.finish(ticket, entries[place].map(|entry| entry.value), done);
            }
            (_, None) => {
                // Entries neither move nor go away, so a full bucket may be left behind.
                running.probes += 1;
                if running.probes >= self.buckets {
                    return Err(Error("the index is full: fill it with more room".into()));
                }
                running.bucket = (bucket + 1) % self.buckets;
                if std::mem::take(&mut running.has_claim) {
                    self.claimed.remove(&bucket);
                }
                self.ready.push_back(ticket);
            }
        }
        Ok(())
    }

    fn finish(&mut self, ticket: usize, value: Option<Value>, done: &mut Vec<Done>) {
        if let Some(running) = self.running.remove(&ticket) {
            if running.has_claim {
                self.claimed.remove(&running.bucket);
            }
            done.push(Done {
                ticket,
                value,
                is_known: true,
            });
        }
    }
}

impl Index for Far {
    fn create(&mut self, entries: u64) -> Result<(), Error> {
        self.buckets = entries.div_ceil(LOAD).max(1);
        self.persist(|session| {
            let result = session.close();
            match &result {
                Err(error) if matches!(refusal(error), Some(Refusal::NoSuchSpace)) => return Ok(()),
                // A copy that is still on its way must not close the space that is opened next.
                Err(_) => std::thread::sleep(HORIZON),
                Ok(()) => {}
            }
            result
        })?;
        self.persist(Session::open)?;
        let end = address(self.buckets);
        let mut at = BASE;
        while at < end {
            let bytes = (end - at).min(ALLOCATION_MAX);
            self.persist(|session| {
                let permission = Permission::READ_WRITE;
                match session.alloc_with(bytes, PageSize::Small, Some(at), permission, false) {
                    // The space was empty: an attempt of unknown outcome has happened.
                    Err(error) if matches!(refusal(&error), Some(Refusal::Overlap { .. })) => {
                        Ok(at)
                    }
                    result => result,
                }
            })?;
            at += bytes;
        }
        let mut header = [0; 16];
        header[..8].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..].copy_from_slice(&self.buckets.to_le_bytes());
        self.persist(|session| session.write(BASE + 8, &header))?;
        self.guard = None;
        self.take_lock()
    }

    fn submit(&mut self, ticket: usize, request: Request) {
        let running = Running {
            request,
            bucket: home(request.key, self.buckets),
            probes: 0,
            has_claim: false,
            write: None,
            unknown: None,
        };
        self.running.insert(ticket, running);
        self.ready.push_back(ticket);
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), Error> {
        let is_due = self.is_stale || self.locked.elapsed() > RENEWAL;
        if is_due && self.tickets.is_empty() {
            self.events.resumed += u64::from(self.is_stale);
            self.take_lock()?;
        } else if !is_due {
            for _ in 0..self.ready.len() {
                if let Some(ticket) = self.ready.pop_front() {
                    self.step(ticket)?;
                }
            }
        }
        let mut wait = WAIT;
        while let Some(completion) = self.session.poll(wait)? {
            self.handle(completion, done)?;
            wait = Duration::ZERO;
        }
        Ok(())
    }

    fn events(&self) -> Events {
        self.events
    }

    fn bytes(&mut self) -> Option<u64> {
        Some(PAGE + self.buckets * BUCKET_BYTES as u64)
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            // If it does not arrive, the lease ends by itself.
            let _ = self.session.unlock(guard);
        }
    }
}

fn refusal(error: &SessionError) -> Option<Refusal> {
    match error.failure() {
        Some(Failure::Refused(refusal)) => Some(refusal),
        _ => None,
    }
}

fn gone(error: &SessionError) -> Error {
    let seconds = PATIENCE.as_secs();
    Error(format!("nothing has succeeded for {seconds} s: {error}"))
}

/// True if it may succeed when it is repeated.
fn is_passing(error: &SessionError) -> bool {
    let failure = error.failure();
    failure.is_some_and(|failure| !matches!(failure, Failure::Refused(_)))
}
