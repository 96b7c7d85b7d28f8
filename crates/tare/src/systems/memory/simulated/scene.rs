//! A node, a machine with clients, and the cables between them.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use anyhow::ensure;
use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{Operation, PageSize, Permission, SpaceId, Value};
use tare_farmem::protocol::{
    Client, ClientConfig, Completion, Datagrams, Node, NodeConfig, OperationId,
};
use tare_histogram::Histogram;
use tare_sim::{self as sim, Carried, Instant, LineConfig, Outbox, Testbed};

use crate::systems::memory::layout::{fill, seed, Direction, Place};
use crate::systems::memory::load::Proof;

/// Bytes of a page.
const PAGE: u64 = PageSize::Small.bytes();

/// Bytes of the headers of Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;

/// Operations that are not measured, per thread: the clients learn the node's limits.
const WARM_UP: u64 = 2;

/// The network, the node and the clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    /// Threads of one machine, each with a client and a space of its own.
    pub(super) threads: u32,
    /// The rate of every cable.
    pub(super) bits_per_second: u64,
    /// The delay of every cable.
    pub(super) delay: Duration,
    /// Switches in a row between the clients' machine and the node.
    pub(super) switches: u32,
    /// The time that the node takes per datagram.
    pub(super) node_time: Duration,
    /// The time that each thread of the clients takes per operation.
    pub(super) client_time: Duration,
    /// The share of datagrams that is lost on each cable; half as many are duplicated, and as many
    /// reordered.
    pub(super) loss: f64,
    /// Read or write.
    pub(super) direction: Direction,
    /// Bytes per operation.
    pub(super) size: u32,
    /// Operations that a thread has on the way at a time.
    pub(super) outstanding: usize,
    /// Operations per thread.
    pub(super) operations: u64,
    /// The seed of the faults.
    pub(super) seed: u64,
}

/// The figures of a scene.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) latency: Histogram,
    /// From the first measured submission to the last completion.
    pub(super) time: Duration,
    pub(super) proof: Proof,
    pub(super) retransmissions: u64,
    /// The node's time for the datagrams of all operations, and their number, those included that
    /// are not measured.
    pub(super) node_time: Duration,
    pub(super) submitted: u64,
}

/// Runs a scene until every thread has done its operations.
///
/// # Errors
/// An operation was refused, or the scene did not end.
pub(super) fn play(scene: &Scene) -> anyhow::Result<Outcome> {
    let mut testbed = Testbed::new(scene.seed);
    let line = LineConfig {
        delay: scene.delay,
        loss: scene.loss,
        duplication: scene.loss / 2.0,
        reordering: scene.loss / 2.0,
        ..LineConfig::new(scene.bits_per_second)
    };
    let server = testbed.add(Server::new(scene)?);
    let host = testbed.add(Host::new(scene));
    let mut above = server.interface(0);
    for _ in 0..scene.switches {
        let switch = testbed.add(Switch);
        testbed.connect(above, switch.interface(UP), &line);
        above = switch.interface(DOWN);
    }
    testbed.connect(above, host.interface(0), &line);
    testbed.act(host, |host, now, out| host.work(now, out));
    let end = testbed.now() + LIMIT;
    testbed.run_until_reached(end, |testbed| testbed.node(host).is_done());
    let host = testbed.node(host);
    ensure!(
        host.is_done(),
        "not done after {} s of virtual time",
        LIMIT.as_secs()
    );
    let served = testbed.node(server);
    let store = served.node.store();
    let mut outcome = Outcome {
        latency: Histogram::new(),
        time: host.until.since(host.from),
        proof: Proof::default(),
        retransmissions: 0,
        node_time: served.busy,
        submitted: host.threads.iter().map(|thread| thread.submitted).sum(),
    };
    for thread in &host.threads {
        outcome.latency.merge(&thread.latency);
        outcome.proof.merge(&thread.proof);
        outcome.retransmissions += thread.client.counters().retransmissions;
        if scene.direction == Direction::Write {
            outcome.proof.merge(&thread.written(store, scene)?);
        }
    }
    Ok(outcome)
}

/// The interfaces of a switch.
const UP: usize = 0;
const DOWN: usize = 1;

/// The longest virtual time of a scene.
const LIMIT: Duration = Duration::from_secs(60);

/// Places that the operations of a thread go around.
const PLACES: u64 = 64;

/// A datagram on a cable, with the client that it is from or for.
#[derive(Clone, Debug)]
struct Datagram {
    client: usize,
    bytes: Vec<u8>,
}

impl Carried for Datagram {
    fn frame_len(&self) -> usize {
        self.bytes.len() + HEADERS
    }

    fn duplicate(&self) -> Option<Datagram> {
        Some(self.clone())
    }
}

/// A switch: it stores and forwards.
struct Switch;

impl sim::Node for Switch {
    type Message = Datagram;

    fn receive(&mut self, _: Instant, from: usize, message: Datagram, out: &mut Outbox<Datagram>) {
        out.send(if from == UP { DOWN } else { UP }, message);
    }
}

/// The node: one datagram at a time.
struct Server {
    node: Node<Store>,
    time: Duration,
    /// The time that all datagrams so far took.
    busy: Duration,
    free_at: Instant,
    /// Answers, and when they are ready.
    ready: VecDeque<(Instant, Datagram)>,
    replies: Datagrams,
}

impl Server {
    fn new(scene: &Scene) -> anyhow::Result<Server> {
        let bytes = (u64::from(scene.size) * PLACES).next_multiple_of(PAGE);
        let mut store = Store::new(&Config::new(2 * bytes * u64::from(scene.threads)));
        for number in 0..scene.threads as usize {
            let alloc = Operation::Alloc {
                bytes,
                page: PageSize::Small,
                at: Some(0),
                permission: Permission::READ_WRITE,
                sparse: false,
            };
            for operation in [Operation::Open, alloc] {
                store.execute(Instant::ZERO, space(number), &operation, &mut Vec::new())?;
            }
            let mut data = vec![0; scene.size as usize];
            for place in 0..PLACES {
                fill(&mut data, seed(at(number, place), 0));
                store.write(space(number), place * u64::from(scene.size), &data)?;
            }
        }
        Ok(Server {
            node: Node::new(NodeConfig::new(1), store),
            time: scene.node_time,
            busy: Duration::ZERO,
            free_at: Instant::ZERO,
            ready: VecDeque::new(),
            replies: Datagrams::default(),
        })
    }
}

impl sim::Node for Server {
    type Message = Datagram;

    fn receive(&mut self, now: Instant, _: usize, mut message: Datagram, _: &mut Outbox<Datagram>) {
        self.free_at = self.free_at.max(now) + self.time;
        self.busy += self.time;
        self.replies.clear();
        self.node
            .receive(now, &mut message.bytes, &mut self.replies);
        for bytes in self.replies.iter() {
            let answer = Datagram {
                client: message.client,
                bytes: bytes.to_vec(),
            };
            self.ready.push_back((self.free_at, answer));
        }
    }

    fn next_deadline(&self) -> Instant {
        let ready = self.ready.front();
        let ready = ready.map_or(Instant::NEVER, |(at, _)| *at);
        ready.min(self.node.next_deadline())
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Datagram>) {
        self.node.tick(now);
        while let Some((_, answer)) = self.ready.pop_front_if(|(at, _)| *at <= now) {
            out.send(0, answer);
        }
    }
}

/// The machine of the clients: threads behind one cable.
struct Host {
    threads: Vec<Thread>,
    scene: Scene,
    /// The first submission that is measured, and the last completion.
    from: Instant,
    until: Instant,
}

/// A client, and the program that uses it: a closed loop.
struct Thread {
    number: usize,
    client: Client,
    submitted: u64,
    completed: u64,
    /// The time when its program has done the last operation.
    free_at: Instant,
    /// The places and the times of the operations on the way.
    flying: HashMap<OperationId, (u64, Instant)>,
    latency: Histogram,
    proof: Proof,
}

impl Host {
    fn new(scene: &Scene) -> Host {
        let thread = |number| Thread {
            number,
            client: Client::new(ClientConfig::new(1 + ((number as u64) << 32))),
            submitted: 0,
            completed: 0,
            free_at: Instant::ZERO,
            flying: HashMap::new(),
            latency: Histogram::new(),
            proof: Proof::default(),
        };
        Host {
            threads: (0..scene.threads as usize).map(thread).collect(),
            scene: *scene,
            from: Instant::NEVER,
            until: Instant::ZERO,
        }
    }

    fn is_done(&self) -> bool {
        let is_done = |thread: &Thread| thread.completed == self.scene.operations;
        self.threads.iter().all(is_done)
    }

    /// Lets each thread take what has completed, submit as much, and send.
    fn work(&mut self, now: Instant, out: &mut Outbox<Datagram>) {
        let scene = &self.scene;
        for thread in &mut self.threads {
            while let Some(completion) = thread.client.poll() {
                thread.complete(now, &completion, scene);
                thread.client.recycle(completion.data);
                self.until = now;
            }
            while thread.may_submit(scene) && thread.free_at <= now {
                thread.free_at = now + scene.client_time;
                thread.submit(now, scene);
                if thread.submitted > WARM_UP {
                    self.from = self.from.min(now);
                }
            }
            let mut datagrams = Datagrams::default();
            while thread.client.transmit(now, &mut datagrams) {}
            for bytes in datagrams.iter() {
                let datagram = Datagram {
                    client: thread.number,
                    bytes: bytes.to_vec(),
                };
                out.send(0, datagram);
            }
        }
    }
}

impl Thread {
    fn may_submit(&self, scene: &Scene) -> bool {
        self.flying.len() < scene.outstanding && self.submitted < scene.operations
    }

    /// The time of the next call of [`Host::work`], unless something arrives before.
    fn next_deadline(&self, scene: &Scene) -> Instant {
        let submission = match self.may_submit(scene) {
            true => self.free_at,
            false => Instant::NEVER,
        };
        submission.min(self.client.next_deadline())
    }

    fn submit(&mut self, now: Instant, scene: &Scene) {
        let place = self.submitted % PLACES;
        let (address, mut data) = (place * u64::from(scene.size), Vec::new());
        let operation = match scene.direction {
            Direction::Read => Operation::Read {
                address,
                len: scene.size,
            },
            Direction::Write => {
                data.resize(scene.size as usize, 0);
                fill(&mut data, seed(at(self.number, place), 1 + self.submitted));
                Operation::Write {
                    address,
                    data: &data,
                    guard: None,
                }
            }
        };
        self.submitted += 1;
        match self.client.submit(now, space(self.number), &operation) {
            Ok(id) => {
                self.flying.insert(id, (place, now));
            }
            Err(_) => {
                self.proof.failed += 1;
                self.completed += 1;
            }
        }
    }

    fn complete(&mut self, now: Instant, completion: &Completion, scene: &Scene) {
        let Some((place, from)) = self.flying.remove(&completion.id) else {
            return;
        };
        self.completed += 1;
        self.proof.failed += u64::from(completion.outcome.is_err());
        if let Ok(Value::Bytes(_)) = completion.outcome {
            let expected = expected(scene, self.number, place, 0);
            self.proof.verified += expected.len() as u64;
            self.proof.wrong += u64::from(completion.data != expected);
        }
        if self.completed > WARM_UP {
            self.proof.operations += 1;
            self.latency.record_duration(now.since(from));
        }
    }

    /// Compares the node's memory with what was written last.
    fn written(&self, store: &Store, scene: &Scene) -> anyhow::Result<Proof> {
        let mut proof = Proof::default();
        let mut found = vec![0; scene.size as usize];
        for place in 0..PLACES.min(scene.operations) {
            let last = (scene.operations - 1 - place) / PLACES * PLACES + place;
            store.read_into(
                space(self.number),
                place * u64::from(scene.size),
                &mut found,
            )?;
            let expected = expected(scene, self.number, place, 1 + last);
            proof.verified += expected.len() as u64;
            proof.wrong += u64::from(found != expected);
        }
        Ok(proof)
    }
}

impl sim::Node for Host {
    type Message = Datagram;

    fn receive(
        &mut self,
        now: Instant,
        _: usize,
        mut message: Datagram,
        out: &mut Outbox<Datagram>,
    ) {
        if let Some(thread) = self.threads.get_mut(message.client) {
            thread.client.receive(now, &mut message.bytes);
        }
        self.work(now, out);
    }

    fn next_deadline(&self) -> Instant {
        let threads = self.threads.iter();
        let deadlines = threads.map(|thread| thread.next_deadline(&self.scene));
        deadlines.min().unwrap_or(Instant::NEVER)
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Datagram>) {
        for thread in &mut self.threads {
            thread.client.tick(now);
        }
        self.work(now, out);
    }
}

/// The space of a thread.
fn space(thread: usize) -> SpaceId {
    SpaceId(1 + thread as u64)
}

fn at(thread: usize, place: u64) -> Place {
    Place {
        session: thread as u64,
        number: place,
    }
}

fn expected(scene: &Scene, thread: usize, place: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; scene.size as usize];
    fill(&mut bytes, seed(at(thread, place), version));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCENE: Scene = Scene {
        threads: 1,
        bits_per_second: 10_000_000_000,
        delay: Duration::from_nanos(500),
        switches: 0,
        node_time: Duration::from_nanos(300),
        client_time: Duration::ZERO,
        loss: 0.0,
        direction: Direction::Read,
        size: 16,
        outstanding: 1,
        operations: 200,
        seed: 1,
    };

    #[test]
    fn the_latency_is_that_of_the_cables_and_the_node() {
        // Two delays, the node's time, and the bits of both frames with Ethernet's 24 bytes more.
        let bytes = (72 + HEADERS + 24) + (48 + 16 + HEADERS + 24);
        let wire = Duration::from_nanos((bytes as f64 * 0.8).round() as u64);
        for (switches, expected) in [
            (0, Duration::from_nanos(1300) + wire),
            (1, Duration::from_nanos(2300) + 2 * wire),
        ] {
            let outcome = play(&Scene { switches, ..SCENE }).unwrap();
            let latency = outcome.latency.quantile(0.5).unwrap();
            let off = latency.as_secs_f64() / expected.as_secs_f64();
            assert!(
                (0.99..1.01).contains(&off),
                "{latency:?}, expected {expected:?}"
            );
            assert_eq!(outcome.proof.operations, 200 - WARM_UP);
            assert_eq!(outcome.proof.verified, 200 * 16);
        }
    }

    #[test]
    fn the_nodes_time_is_that_of_the_datagrams_that_reach_it() {
        // A read of 16 bytes takes one; a write of 4096 has three segments, or one more.
        for (direction, size, datagrams) in [
            (Direction::Read, 16, 1..=1),
            (Direction::Write, 4096, 3..=4),
        ] {
            let scene = Scene {
                direction,
                size,
                ..SCENE
            };
            let outcome = play(&scene).unwrap();
            assert_eq!(outcome.submitted, SCENE.operations);
            let time = outcome.node_time.as_nanos() as u64;
            let each = time as f64 / 300.0 / SCENE.operations as f64;
            let rounded = each.round() as u64;
            assert!(
                datagrams.contains(&rounded) && (each - rounded as f64).abs() < 0.05,
                "{each}"
            );
        }
    }

    #[test]
    fn every_byte_arrives_on_a_line_that_loses_duplicates_and_reorders() {
        for direction in [Direction::Read, Direction::Write] {
            let scene = Scene {
                loss: 0.05,
                direction,
                size: 8000,
                outstanding: 8,
                ..SCENE
            };
            let outcome = play(&scene).unwrap();
            assert_eq!((outcome.proof.wrong, outcome.proof.failed), (0, 0));
            assert!(outcome.proof.verified >= PLACES * 8000);
            assert!(outcome.retransmissions > 0);
        }
    }
}
