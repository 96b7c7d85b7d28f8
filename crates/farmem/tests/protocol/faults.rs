//! Clients that change shared cells while the network, the node and other clients fail: every
//! history is linearizable, nothing runs twice, and what was reported is what happened.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use tare_farmem::operation::{Operation, PageSize, Permission, Value};
use tare_farmem::protocol::{
    Authentication, ClientConfig, Completion, Failure, NodeConfig, OperationId,
};
use tare_sim::{for_seeds, Instant, LineConfig, Random, Testbed};

use crate::caller::Caller;
use crate::linearizable::{is_linearizable, Action, Event};
use crate::world::{
    aead, client_config, line, node_config, Corruption, Host, Memory, Server, User, MILLISECOND,
    SPACE,
};

/// The cells: three small ones on two pages, and one of several messages, whose words are all
/// equal.
const CELLS: [u64; 4] = [0, 8, 4096, 8192];
const BIG: usize = 3;
const BIG_BYTES: usize = 2500;

/// The operations of all clients of a run.
#[derive(Default)]
struct History {
    clock: Cell<u64>,
    events: RefCell<Vec<Entry>>,
}

struct Entry {
    cell: usize,
    event: Event,
    /// The value that tells what ran; 0 for reads.
    tag: u64,
    outcome: Option<Result<Value, Failure>>,
}

impl History {
    fn moment(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }
}

/// A client that keeps some operations outstanding until it has submitted a number of them.
struct Worker {
    number: usize,
    random: Random,
    history: Rc<History>,
    left: u32,
    depth: usize,
    think: Duration,
    next: Instant,
    pending: HashMap<OperationId, usize>,
    /// Fences, and what only they are ordered with; true for fences.
    unpaged: BTreeMap<OperationId, bool>,
    seen: [u64; CELLS.len()],
}

impl Worker {
    fn submit(&mut self, now: Instant, client: &mut Caller) {
        let random = &mut self.random;
        let cell = random.below(CELLS.len() as u64) as usize;
        let address = CELLS[cell];
        // Odd, so never 0, and unlike all others.
        let tag = random.next_u64() | 1;
        let words = vec![tag.to_le_bytes(); BIG_BYTES / 8];
        let (operation, action) = match (random.below(4), cell) {
            (0 | 1, BIG) => (
                Operation::Write {
                    address,
                    data: words.as_flattened(),
                    guard: None,
                },
                Action::Write(tag),
            ),
            (_, BIG) => {
                let last = (BIG_BYTES / 8 - 2) as u64;
                let address = address + random.below(last) * 8;
                (Operation::Read { address, len: 16 }, Action::Read(None))
            }
            (0, _) => (Operation::Read { address, len: 8 }, Action::Read(None)),
            (1, _) => (
                Operation::Write {
                    address,
                    data: &words[0],
                    guard: None,
                },
                Action::Write(tag),
            ),
            (2, _) => {
                let (expected, new) = (self.seen[cell], tag);
                let old = None;
                (
                    Operation::CompareAndSwap {
                        address,
                        expected,
                        new,
                        guard: None,
                    },
                    Action::CompareAndSwap { expected, new, old },
                )
            }
            _ => (
                Operation::FetchAdd {
                    address,
                    add: tag,
                    guard: None,
                },
                Action::FetchAdd {
                    add: tag,
                    old: None,
                },
            ),
        };
        let start = self.history.moment();
        let id = client.submit(now, SPACE, &operation).unwrap();
        let mut events = self.history.events.borrow_mut();
        self.pending.insert(id, events.len());
        let is_read = matches!(action, Action::Read(_));
        events.push(Entry {
            cell,
            event: Event {
                action,
                start,
                end: None,
                client: self.number,
            },
            tag: if is_read { 0 } else { tag },
            outcome: None,
        });
    }

    /// Submits a fence, or an operation on no page that its client knows of.
    fn submit_unpaged(&mut self, now: Instant, client: &mut Caller) {
        let operation = match self.random.below(4) {
            0 => Operation::Find { name: b"name" },
            1 => Operation::Alloc {
                bytes: 4096,
                page: PageSize::Small,
                at: None,
                permission: Permission::READ_WRITE,
                sparse: false,
            },
            _ => Operation::Fence,
        };
        let id = client.submit(now, SPACE, &operation).unwrap();
        self.unpaged.insert(id, operation == Operation::Fence);
    }

    /// Asserts that a fence ends after all before it, and before all after it.
    fn check_fences(&self, ended: OperationId) {
        let is_open = |id: &OperationId| *id < ended;
        let mut fences = self.unpaged.iter().filter(|(_, is_fence)| **is_fence);
        assert!(!fences.any(|(id, _)| is_open(id)), "overtook a fence");
        if self.unpaged.get(&ended) == Some(&true) {
            let mut others = self.pending.keys().chain(self.unpaged.keys());
            assert!(!others.any(is_open), "a fence did not wait");
        }
    }

    fn take(&mut self, completion: &Completion) {
        self.check_fences(completion.id);
        if self.unpaged.remove(&completion.id).is_some() {
            return;
        }
        let index = self.pending.remove(&completion.id).expect("completed once");
        let mut events = self.history.events.borrow_mut();
        let entry = &mut events[index];
        entry.outcome = Some(completion.outcome);
        let Ok(value) = completion.outcome else {
            return;
        };
        entry.event.end = Some(self.history.moment());
        let seen = match (&mut entry.event.action, value) {
            (Action::Read(value), Value::Bytes(_)) => {
                let words = completion.data.as_chunks::<8>().0;
                assert!(
                    words.iter().all(|word| *word == words[0]),
                    "a write was seen in part"
                );
                *value = Some(u64::from_le_bytes(words[0]));
                *value
            }
            (
                Action::CompareAndSwap { old, .. } | Action::FetchAdd { old, .. },
                Value::Old(value),
            ) => {
                *old = Some(value);
                *old
            }
            (Action::Write(_), Value::None) => None,
            other => panic!("{other:?}"),
        };
        if let Some(seen) = seen {
            self.seen[entry.cell] = seen;
        }
    }
}

impl User for Worker {
    fn act(&mut self, now: Instant, client: &mut Caller, completions: &mut Vec<Completion>) {
        completions
            .iter()
            .for_each(|completion| self.take(completion));
        while self.wake() <= now {
            self.left -= 1;
            match self.random.chance(0.1) {
                true => self.submit_unpaged(now, client),
                false => self.submit(now, client),
            }
            self.next = now + self.random.duration(Duration::ZERO, self.think);
        }
    }

    fn wake(&self) -> Instant {
        if self.left > 0 && self.pending.len() + self.unpaged.len() < self.depth {
            self.next
        } else {
            Instant::NEVER
        }
    }
}

/// The counts that show that the faults do happen.
#[derive(Debug, Default)]
struct Coverage {
    succeeded: Cell<u64>,
    unknown: Cell<u64>,
    without_effect: Cell<u64>,
    unknown_that_ran: Cell<u64>,
    repeated: Cell<u64>,
    expired: Cell<u64>,
    stale: Cell<u64>,
    ordered: Cell<u64>,
    exchanges_answered: Cell<u64>,
    exchanges_entered: Cell<u64>,
    runs: Cell<u64>,
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

/// One run: its faults, and how bad they are, come from the seed.
fn run(seed: u64, coverage: &Coverage) {
    let mut random = Random::new(seed);
    let mut testbed = Testbed::new(random.next_u64());
    let memory = match seed % 8 {
        0 => Memory::real(16384),
        _ => Memory::new(16384),
    };
    let history = Rc::new(History::default());
    // A part of the runs is encrypted. Nonces begin elsewhere for each client and each start.
    let nonces = random.next_u64();
    let share = if random.chance(0.3) { 0.1 } else { 0.0 };
    // Without protection, where nothing is corrupted, long writes are sent in runs.
    let authentication = move |n: u64| match seed % 4 {
        1 => aead(nonces.wrapping_add(n)),
        2 if share == 0.0 => Authentication::None,
        _ => Authentication::Checksum,
    };
    let mut corruption = || Corruption {
        share,
        random: random.fork(),
    };
    let node = move |epoch| NodeConfig {
        authentication: authentication(epoch),
        ..node_config(epoch)
    };
    let server = Server::new(node(1), memory.clone(), corruption());
    let corruptions = [(); 3].map(|()| corruption());
    let server = testbed.add(server);
    let think = 8 * MILLISECOND * random.below(3) as u32;
    let mut workers = Vec::new();
    for (number, corruption) in corruptions.into_iter().enumerate() {
        let worker = Worker {
            number,
            random: random.fork(),
            history: Rc::clone(&history),
            left: 10,
            depth: random.below(6) as usize + 1,
            think,
            next: Instant::ZERO,
            pending: HashMap::new(),
            unpaged: BTreeMap::new(),
            seen: [0; CELLS.len()],
        };
        let config = ClientConfig {
            authentication: authentication(100 + number as u64),
            ..client_config(random.next_u64())
        };
        let mut host = Host::new(config, worker, corruption);
        let share = 0.5 * random.below(3) as f64;
        host.client.exchange(share, random.fork());
        let host = testbed.add(host);
        let bad = if random.chance(0.5) { 0.3 } else { 0.05 };
        let config = LineConfig {
            loss: random.below(2) as f64 * bad,
            duplication: random.below(2) as f64 * bad,
            // Some are held back for longer than the horizon.
            reordering: random.below(2) as f64 * bad,
            overtakers: 1 + random.below(6) as u32,
            hold: 10 * MILLISECOND * random.below(10) as u32,
            jitter: Duration::from_micros(random.below(3) * 500),
            ..line()
        };
        let cable = testbed.connect(host, server.interface(number), &config);
        if random.chance(0.3) {
            let (start, up) = (random.below(30) as u32, 5 + random.below(20) as u32);
            let down = MILLISECOND * (1 + random.below(30) as u32);
            let end = Instant::ZERO + 100 * MILLISECOND;
            testbed.flap(
                cable,
                Instant::ZERO + start * MILLISECOND,
                down,
                up * MILLISECOND,
                end,
            );
        }
        workers.push(host);
    }
    // A clock that started at another time, and that runs a little too fast or too slow.
    let ahead = random.duration(Duration::ZERO, 1000 * MILLISECOND);
    let gain = random.below(1_000_000) as i32 - 500_000;
    let clock = testbed.clock_mut(server);
    clock.step_ahead(Instant::ZERO, ahead);
    clock.set_gain(Instant::ZERO, gain);
    let restarts = random.below(3);
    for n in 0..restarts {
        let at = Instant::ZERO + random.duration(MILLISECOND, 80 * MILLISECOND);
        let down = random.duration(Duration::ZERO, 10 * MILLISECOND);
        let (memory, corruption) = (memory.clone(), corruptions_for(&mut random, share));
        testbed.at(at, move |testbed| testbed.kill(server));
        testbed.at(at + down, move |testbed| {
            testbed.restart(server, Server::new(node(2 + n), memory, corruption));
        });
    }
    if random.chance(0.2) {
        let victim = workers[2];
        let at = Instant::ZERO + random.duration(MILLISECOND, 60 * MILLISECOND);
        testbed.at(at, move |testbed| testbed.kill(victim));
    }
    testbed.run_for(1000 * MILLISECOND);
    for host in workers {
        if testbed.is_running(host) {
            let host = testbed.node(host);
            assert_eq!(
                (
                    host.user.left,
                    host.user.pending.len(),
                    host.user.unpaged.len()
                ),
                (0, 0, 0),
                "all completed"
            );
            assert_eq!(host.client.outstanding(), 0);
            assert!(host.longest <= 1024, "{} bytes", host.longest);
            add(&coverage.ordered, host.client.counters().ordered);
            add(&coverage.exchanges_answered, host.client.counts.answered);
            add(&coverage.exchanges_entered, host.client.counts.entered);
            add(&coverage.runs, host.client.counts.runs);
        }
    }
    let counters = testbed.node(server).node.counters();
    add(&coverage.repeated, counters.repeated);
    add(&coverage.expired, counters.expired);
    add(&coverage.stale, counters.stale);
    let entries = history.events.borrow();
    for entry in entries.iter().filter(|entry| entry.tag != 0) {
        let runs = memory.runs(entry.tag);
        let (allowed, counter) = match entry.outcome {
            Some(Ok(_)) => (1..=1, &coverage.succeeded),
            Some(Err(Failure::OutcomeUnknown)) | None => (0..=1, &coverage.unknown),
            Some(Err(_)) => (0..=0, &coverage.without_effect),
        };
        assert!(
            allowed.contains(&runs),
            "ran {runs} times: {:?} {:?}",
            entry.event,
            entry.outcome
        );
        add(counter, 1);
        add(
            &coverage.unknown_that_ran,
            u64::from(entry.event.end.is_none() && runs == 1),
        );
    }
    for cell in 0..CELLS.len() {
        let unknown_or_done = |entry: &&Entry| {
            let unknown = matches!(entry.outcome, None | Some(Err(Failure::OutcomeUnknown)));
            entry.cell == cell && (entry.event.end.is_some() || (unknown && entry.tag != 0))
        };
        let events = entries.iter().filter(unknown_or_done);
        let events: Vec<Event> = events.map(|entry| entry.event).collect();
        assert!(is_linearizable(&events), "cell {cell}: {events:#?}");
    }
}

fn corruptions_for(random: &mut Random, share: f64) -> Corruption {
    Corruption {
        share,
        random: random.fork(),
    }
}

/// The number of seeds, unless `TARE_SEEDS` has another one.
pub(crate) const SEEDS: u64 = 10_000;

/// The seeds to run.
pub(crate) fn seeds() -> std::ops::Range<u64> {
    let first = variable("TARE_SEEDS_FROM").unwrap_or(0);
    first..first.saturating_add(variable("TARE_SEEDS").unwrap_or(SEEDS))
}

/// A variable's number, if it is set.
fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}: found {text:?}, expected a number")),
    )
}

#[test]
fn every_history_is_linearizable_and_nothing_runs_twice() {
    let coverage = Coverage::default();
    for_seeds(seeds(), |seed| run(seed, &coverage));
    // Per thousand of the operations that change something.
    let all = coverage.succeeded.get() + coverage.unknown.get() + coverage.without_effect.get();
    if all > 10_000 {
        for (count, least) in [
            (&coverage.succeeded, 500),
            (&coverage.unknown, 20),
            (&coverage.without_effect, 1),
            (&coverage.unknown_that_ran, 5),
            (&coverage.repeated, 20),
            (&coverage.expired, 1),
            (&coverage.stale, 1),
            (&coverage.ordered, 100),
            (&coverage.exchanges_answered, 50),
            (&coverage.exchanges_entered, 50),
            (&coverage.runs, 5),
        ] {
            assert!(count.get() * 1000 >= least * all, "{coverage:?}");
        }
    }
}
