//! Clients that take turns at a counter under a lock while the network, the node and clients fail,
//! also clients that hold the lock: at each moment at most one of them changes it, whatever else is
//! on the way, and a lock whose holder is gone becomes free.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{Error, Guard, Operation, PageSize, Permission, SpaceId, Value};
use tare_farmem::protocol::{
    Authentication, ClientConfig, Completion, Execute, Failure, NodeConfig, OperationId,
};
use tare_sim::{for_seeds, Instant, LineConfig, Random, Testbed};

use crate::caller::Caller;
use crate::faults::{seeds, SEEDS};
use crate::part::{Machine, Part};
use crate::world::{
    aead, client_config, line, node_config, Corruption, Host, Server, User, MILLISECOND, SPACE,
};

const LOCK: u64 = 8;
const COUNTER: u64 = 4096;

/// The work of the node on the lock and the counter, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ran {
    Granted {
        at: Instant,
        token: u64,
        lease: Duration,
    },
    Locked {
        at: Instant,
    },
    Given {
        at: Instant,
        token: u64,
    },
    Written {
        at: Instant,
        token: u64,
        value: u64,
    },
    Stale {
        at: Instant,
        token: u64,
    },
    Restarted,
}

/// Returns what is wrong with a log.
fn fault(log: &[Ran]) -> Option<String> {
    let mut held: Option<(u64, Instant)> = None;
    let (mut last, mut value) = (0, 0);
    for (n, &ran) in log.iter().enumerate() {
        let holds = |token, at| held.is_some_and(|(by, until)| by == token && at < until);
        let is_held = |at| held.is_some_and(|(_, until)| at < until);
        let found = match ran {
            Ran::Granted { token, .. } if token <= last => "a token that is not greater",
            Ran::Granted { at, .. } if is_held(at) => "two holders",
            Ran::Locked { at } if !is_held(at) => "a lock that is held by none and not free",
            Ran::Given { at, token } if !holds(token, at) => "given back by another",
            Ran::Written { at, token, .. } if !holds(token, at) => "written by another",
            Ran::Written { value: new, .. } if new != value + 1 => "a holder had not seen all",
            Ran::Stale { at, token } if holds(token, at) => "the holder is refused",
            _ => "",
        };
        if !found.is_empty() {
            return Some(format!(
                "{found}: {ran:?}, after {held:?} and {value}, number {n}"
            ));
        }
        match ran {
            Ran::Granted { at, token, lease } => (held, last) = (Some((token, at + lease)), token),
            Ran::Given { .. } | Ran::Restarted => held = None,
            Ran::Written { value: new, .. } => value = new,
            Ran::Locked { .. } | Ran::Stale { .. } => {}
        }
    }
    None
}

/// A memory that is kept over restarts of its node, and what was run on it.
#[derive(Clone, Default)]
struct Memory(Rc<Inner>);

#[derive(Default)]
struct Inner {
    machine: Machine,
    store: RefCell<Option<Store<Part>>>,
    log: RefCell<Vec<Ran>>,
}

impl Memory {
    /// Opens what an earlier node has left.
    fn open(&self) {
        let config = Config::new(64 << 10);
        drop(self.0.store.take());
        let (mut store, restored) = self.0.machine.open(&config).unwrap();
        if restored.is_new {
            let (page, permission) = (PageSize::Small, Permission::READ_WRITE);
            store.open(SPACE).unwrap();
            store
                .alloc(SPACE, 8192, page, Some(0), permission, false)
                .unwrap();
        } else {
            self.0.log.borrow_mut().push(Ran::Restarted);
        }
        *self.0.store.borrow_mut() = Some(store);
    }
}

impl Execute for Memory {
    fn execute(
        &mut self,
        now: Instant,
        space: SpaceId,
        operation: &Operation<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Value, Error> {
        let mut store = self.0.store.borrow_mut();
        let result = store.as_mut().unwrap().execute(now, space, operation, out);
        let at = now;
        let ran = match (*operation, result) {
            (Operation::Lock { lease, .. }, Ok(Value::Token(token))) => {
                Some(Ran::Granted { at, token, lease })
            }
            (Operation::Lock { .. }, Err(Error::Locked { .. })) => Some(Ran::Locked { at }),
            (Operation::Unlock { token, .. }, Ok(_)) => Some(Ran::Given { at, token }),
            (Operation::Unlock { token, .. }, Err(Error::StaleToken)) => {
                Some(Ran::Stale { at, token })
            }
            (
                Operation::Write {
                    guard: Some(Guard { token, .. }),
                    data,
                    ..
                },
                result,
            ) => {
                let value = u64::from_le_bytes(data.try_into().unwrap());
                Some(match result {
                    Ok(_) => Ran::Written { at, token, value },
                    Err(Error::StaleToken) => Ran::Stale { at, token },
                    other => panic!("{other:?}"),
                })
            }
            (Operation::Read { .. }, Ok(_)) => None,
            other => panic!("{other:?}"),
        };
        self.0.log.borrow_mut().extend(ran);
        result
    }
}

/// The point at which a holder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Locking,
    Reading {
        token: u64,
    },
    /// It thinks about the value that it has read.
    Thinking {
        token: u64,
        value: u64,
    },
    Writing {
        token: u64,
        value: u64,
    },
    Unlocking {
        token: u64,
    },
}

/// The writes of all clients, by token and value.
type Writes = Rc<RefCell<HashMap<(u64, u64), Option<Result<Value, Failure>>>>>;

/// A client that takes the lock, adds to the counter some times, and gives the lock back or not.
struct Holder {
    random: Random,
    writes: Writes,
    coverage: Rc<Coverage>,
    rounds: u32,
    state: State,
    pending: Option<OperationId>,
    next: Instant,
}

impl Holder {
    fn token(&self) -> Option<u64> {
        match self.state {
            State::Idle | State::Locking => None,
            State::Reading { token }
            | State::Thinking { token, .. }
            | State::Writing { token, .. }
            | State::Unlocking { token } => Some(token),
        }
    }

    /// Does the next thing.
    fn step(&mut self, now: Instant, client: &mut Caller) {
        let random = &mut self.random;
        let bytes;
        let (operation, state) = match self.state {
            State::Idle => {
                let lease = random.duration(2 * MILLISECOND, 40 * MILLISECOND);
                let address = LOCK;
                (Operation::Lock { address, lease }, State::Locking)
            }
            State::Thinking { token, value } => {
                bytes = (value + 1).to_le_bytes();
                let value = value + 1;
                self.writes.borrow_mut().insert((token, value), None);
                let write = Operation::Write {
                    address: COUNTER,
                    data: &bytes,
                    guard: Some(Guard { lock: LOCK, token }),
                };
                (write, State::Writing { token, value })
            }
            other => panic!("{other:?}"),
        };
        self.pending = Some(client.submit(now, SPACE, &operation).unwrap());
        self.state = state;
    }

    /// Goes on with the lock: reads the counter, gives the lock back, or leaves it to its lease.
    fn go_on(&mut self, now: Instant, client: &mut Caller, token: u64) {
        let read = Operation::Read {
            address: COUNTER,
            len: 8,
        };
        let address = LOCK;
        let (operation, state) = match self.random.below(8) {
            0..=4 => (read, State::Reading { token }),
            5..=6 => (
                Operation::Unlock { address, token },
                State::Unlocking { token },
            ),
            _ => return self.end(now),
        };
        self.pending = Some(client.submit(now, SPACE, &operation).unwrap());
        self.state = state;
    }

    /// Ends a round.
    fn end(&mut self, now: Instant) {
        self.rounds -= 1;
        self.state = State::Idle;
        self.next = now + self.random.duration(Duration::ZERO, 5 * MILLISECOND);
    }

    fn take(&mut self, now: Instant, client: &mut Caller, completion: &Completion) {
        assert_eq!(self.pending.take(), Some(completion.id));
        let outcome = completion.outcome;
        match (self.state, outcome) {
            (State::Locking, Ok(Value::Token(token))) => self.go_on(now, client, token),
            (State::Locking, Err(Failure::Refused(Error::Locked { retry_after }))) => {
                assert!(retry_after <= 40 * MILLISECOND, "{retry_after:?}");
                // The node's clock may be slower than this one.
                self.next = now + retry_after + self.random.duration(Duration::ZERO, MILLISECOND);
                self.state = State::Idle;
            }
            (State::Reading { token }, Ok(Value::Bytes(8))) => {
                let value = u64::from_le_bytes(completion.data[..].try_into().unwrap());
                self.state = State::Thinking { token, value };
                // Now and then for longer than any lease.
                let longest = [0, 2, 5, 60][self.random.below(4) as usize];
                self.next = now + self.random.duration(Duration::ZERO, longest * MILLISECOND);
            }
            (State::Writing { token, value }, outcome) => {
                self.writes
                    .borrow_mut()
                    .insert((token, value), Some(outcome));
                match outcome {
                    Ok(Value::None) => self.go_on(now, client, token),
                    Err(Failure::Refused(error)) => {
                        assert_eq!(error, Error::StaleToken);
                        add(&self.coverage.stale, 1);
                        self.end(now);
                    }
                    Err(_) => self.end(now),
                    other => panic!("{other:?}"),
                }
            }
            (State::Unlocking { .. }, Ok(Value::None) | Err(_)) => self.end(now),
            (State::Locking | State::Reading { .. }, Err(failure)) => {
                assert!(!matches!(failure, Failure::Refused(_)), "{failure:?}");
                self.end(now);
            }
            other => panic!("{other:?}"),
        }
    }
}

impl User for Holder {
    fn act(&mut self, now: Instant, client: &mut Caller, completions: &mut Vec<Completion>) {
        for completion in completions.iter() {
            self.take(now, client, completion);
        }
        if self.wake() <= now {
            self.step(now, client);
        }
    }

    fn wake(&self) -> Instant {
        let is_ready = self.pending.is_none() && self.rounds > 0;
        if is_ready {
            self.next
        } else {
            Instant::NEVER
        }
    }
}

/// The counts that show that the faults do happen.
#[derive(Debug, Default)]
struct Coverage {
    granted: Cell<u64>,
    written: Cell<u64>,
    locked: Cell<u64>,
    stale: Cell<u64>,
    /// Clients that were killed while they held the lock.
    killed: Cell<u64>,
    /// Grants after a lease that ended by itself.
    expired: Cell<u64>,
    /// Writes of unknown outcome, and those of them that ran.
    unknown: Cell<u64>,
    unknown_that_ran: Cell<u64>,
    restarts: Cell<u64>,
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

/// One run: its faults, and how bad they are, come from the seed.
fn run(seed: u64, coverage: &Rc<Coverage>) {
    let mut random = Random::new(seed);
    let mut testbed = Testbed::new(random.next_u64());
    let memory = Memory::default();
    memory.open();
    let nonces = random.next_u64();
    let share = if random.chance(0.2) { 0.1 } else { 0.0 };
    let authentication = move |n: u64| match seed % 4 {
        1 => aead(nonces.wrapping_add(n)),
        _ => Authentication::Checksum,
    };
    let node = move |epoch| NodeConfig {
        authentication: authentication(epoch),
        ..node_config(epoch)
    };
    let mut corruption = {
        let mut random = random.fork();
        move || Corruption {
            share,
            random: random.fork(),
        }
    };
    let server = testbed.add(Server::new(node(1), memory.clone(), corruption()));
    let writes = Writes::default();
    let mut hosts = Vec::new();
    let mut host = {
        let (writes, coverage) = (Rc::clone(&writes), Rc::clone(coverage));
        let mut random = random.fork();
        move |number: u64, start, corruption| {
            let holder = Holder {
                random: random.fork(),
                writes: Rc::clone(&writes),
                coverage: Rc::clone(&coverage),
                rounds: 4,
                state: State::Idle,
                pending: None,
                next: start,
            };
            let config = ClientConfig {
                authentication: authentication(100 + number),
                ..client_config(random.next_u64())
            };
            let mut host = Host::new(config, holder, corruption);
            host.client
                .exchange(0.5 * random.below(3) as f64, random.fork());
            host
        }
    };
    for number in 0..3 {
        let id = testbed.add(host(number, Instant::ZERO, corruption()));
        let bad = if random.chance(0.5) { 0.3 } else { 0.05 };
        let config = LineConfig {
            loss: random.below(2) as f64 * bad,
            duplication: random.below(2) as f64 * bad,
            reordering: random.below(2) as f64 * bad,
            overtakers: 1 + random.below(6) as u32,
            hold: 10 * MILLISECOND * random.below(10) as u32,
            jitter: Duration::from_micros(random.below(3) * 500),
            ..line()
        };
        testbed.connect(id, server.interface(number as usize), &config);
        hosts.push(id);
    }
    let gain = random.below(1_000_000) as i32 - 500_000;
    let clock = testbed.clock_mut(server);
    clock.set_gain(Instant::ZERO, gain);
    for n in 0..random.below(3) {
        let at = Instant::ZERO + random.duration(MILLISECOND, 100 * MILLISECOND);
        let down = random.duration(Duration::ZERO, 10 * MILLISECOND);
        let (memory, corruption) = (memory.clone(), corruption());
        testbed.at(at, move |testbed| testbed.kill(server));
        testbed.at(at + down, move |testbed| {
            memory.open();
            testbed.restart(server, Server::new(node(2 + n), memory, corruption));
        });
    }
    for n in 0..random.below(3) {
        // As soon as it holds the lock, from some moment on. Another process takes its place.
        let victim = hosts[random.below(3) as usize];
        let at = Instant::ZERO + random.duration(MILLISECOND, 80 * MILLISECOND);
        let down = random.duration(Duration::ZERO, 20 * MILLISECOND);
        let next = host(200 + n, at + down, corruption());
        let coverage = Rc::clone(coverage);
        testbed.at(at, move |testbed| {
            let end = testbed.now() + 30 * MILLISECOND;
            kill_holder(testbed, victim, end, &coverage);
        });
        testbed.at(at + 31 * MILLISECOND + down, move |testbed| {
            testbed.restart(victim, next);
        });
    }
    testbed.run_for(4000 * MILLISECOND);
    for id in hosts {
        if testbed.is_running(id) {
            // A lock is never held for good, also if its holder is gone.
            let user = &testbed.node(id).user;
            assert_eq!((user.rounds, user.pending), (0, None), "{:?}", user.state);
        }
    }
    let log = memory.0.log.borrow();
    if let Some(fault) = fault(&log) {
        panic!("{fault}: {log:#?}");
    }
    for (&(token, value), outcome) in &*writes.borrow() {
        let is_it = |ran: &&Ran| matches!(ran, Ran::Written { token: by, value: new, .. } if (*by, *new) == (token, value));
        let runs = log.iter().filter(is_it).count();
        let allowed = match outcome {
            Some(Ok(_)) => 1..=1,
            Some(Err(Failure::OutcomeUnknown)) | None => 0..=1,
            Some(Err(_)) => 0..=0,
        };
        assert!(
            allowed.contains(&runs),
            "ran {runs} times: {token} {value} {outcome:?}"
        );
        if allowed == (0..=1) {
            add(&coverage.unknown, 1);
            add(&coverage.unknown_that_ran, runs as u64);
        }
    }
    count(&log, coverage);
}

/// Kills a client at the next event at which it holds the lock.
fn kill_holder(
    testbed: &mut Testbed<Vec<u8>>,
    victim: tare_sim::NodeId<Host<Holder>>,
    end: Instant,
    coverage: &Rc<Coverage>,
) {
    if !testbed.is_running(victim) || testbed.now() >= end {
        return testbed.kill(victim);
    }
    if testbed.node(victim).user.token().is_some() {
        add(&coverage.killed, 1);
        return testbed.kill(victim);
    }
    let (coverage, soon) = (Rc::clone(coverage), testbed.now() + MILLISECOND / 4);
    testbed.at(soon, move |testbed| {
        kill_holder(testbed, victim, end, &coverage)
    });
}

/// Adds up what there is in a log.
fn count(log: &[Ran], coverage: &Coverage) {
    let mut is_held = false;
    for ran in log {
        match ran {
            Ran::Granted { .. } => {
                add(&coverage.granted, 1);
                add(&coverage.expired, u64::from(is_held));
                is_held = true;
            }
            Ran::Written { .. } => add(&coverage.written, 1),
            Ran::Locked { .. } => add(&coverage.locked, 1),
            Ran::Given { .. } => is_held = false,
            Ran::Restarted => {
                add(&coverage.restarts, 1);
                is_held = false;
            }
            Ran::Stale { .. } => {}
        }
    }
}

#[test]
fn a_lock_has_one_holder_whichever_client_is_killed_and_stale_tokens_are_refused() {
    let coverage = Rc::new(Coverage::default());
    for_seeds(seeds(), |seed| run(seed, &coverage));
    // Per thousand grants.
    let all = coverage.granted.get();
    if all > SEEDS {
        for (count, least) in [
            (&coverage.written, 300),
            (&coverage.locked, 200),
            (&coverage.stale, 20),
            (&coverage.killed, 20),
            (&coverage.expired, 50),
            (&coverage.unknown, 5),
            (&coverage.unknown_that_ran, 1),
            (&coverage.restarts, 20),
        ] {
            assert!(count.get() * 1000 >= least * all, "{coverage:?}");
        }
    }
}

#[test]
fn logs_of_locks_that_do_not_hold_are_found() {
    let at = |ms: u32| Instant::ZERO + ms * MILLISECOND;
    let granted = |ms, token| Ran::Granted {
        at: at(ms),
        token,
        lease: 10 * MILLISECOND,
    };
    let written = |ms, token, value| Ran::Written {
        at: at(ms),
        token,
        value,
    };
    let given = |ms, token| Ran::Given { at: at(ms), token };
    let stale = |ms, token| Ran::Stale { at: at(ms), token };
    let locked = |ms| Ran::Locked { at: at(ms) };
    for (expected, log) in [
        (
            None,
            vec![
                granted(0, 1),
                locked(9),
                written(9, 1, 1),
                granted(10, 2),
                written(10, 2, 2),
            ],
        ),
        (
            None,
            vec![
                granted(0, 1),
                given(1, 1),
                stale(2, 1),
                granted(2, 2),
                stale(3, 1),
            ],
        ),
        (
            None,
            vec![granted(0, 1), Ran::Restarted, stale(2, 1), granted(2, 9)],
        ),
        (
            Some("a token that is not"),
            vec![granted(0, 1), granted(10, 1)],
        ),
        (Some("two holders"), vec![granted(0, 1), granted(9, 2)]),
        (
            Some("a lock that is held by none"),
            vec![granted(0, 1), locked(10)],
        ),
        (
            Some("given back by"),
            vec![granted(0, 1), granted(10, 2), given(11, 1)],
        ),
        (
            Some("written by another"),
            vec![granted(0, 1), written(10, 1, 1)],
        ),
        (
            Some("written by another"),
            vec![granted(0, 1), Ran::Restarted, written(1, 1, 1)],
        ),
        (
            Some("a holder had not"),
            vec![granted(0, 1), written(1, 1, 1), written(2, 1, 1)],
        ),
        (
            Some("the holder is refused"),
            vec![granted(0, 1), stale(9, 1)],
        ),
    ] {
        let found = fault(&log);
        let is_expected = match expected {
            Some(expected) => found
                .as_ref()
                .is_some_and(|found| found.starts_with(expected)),
            None => found.is_none(),
        };
        assert!(is_expected, "{expected:?} {found:?}");
    }
}
