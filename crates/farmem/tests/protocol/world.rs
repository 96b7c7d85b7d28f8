//! Clients and a node in a testbed, a memory that counts what is run on it, and what they did.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{Error, Operation, PageSize, Permission, SpaceId, Value};
use tare_farmem::protocol::{
    Authentication, Client, ClientConfig, Completion, Datagrams, Execute, Node as MemoryNode,
    NodeConfig, Protection, Secret,
};
use tare_sim::{Instant, LineConfig, Node, NodeId, Outbox, Random, Testbed};

use crate::caller::Caller;

pub(crate) const SPACE: SpaceId = SpaceId(7);

/// The secret of all nodes.
pub(crate) fn secret() -> Secret {
    Secret::new(&[0x5e; 32])
}

/// Encryption with nonces that begin at a number of the test's.
pub(crate) fn aead(first_nonce: u64) -> Authentication {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&first_nonce.to_le_bytes());
    Authentication::Aead { first_nonce: bytes }
}

/// A protection with the keys of all spaces.
pub(crate) fn protection(authentication: Authentication) -> Protection {
    let mut protection = Protection::new(authentication);
    protection.set_secret(secret());
    protection
}

/// A node with the secret.
pub(crate) fn memory_node<S: Execute>(config: NodeConfig, store: S) -> MemoryNode<S> {
    let mut node = MemoryNode::new(config, store);
    node.set_secret(secret());
    node
}

/// A client that may act for some spaces.
pub(crate) fn client(config: ClientConfig, spaces: &[SpaceId]) -> Client {
    let mut client = Client::new(config);
    for space in spaces {
        client.authorize(secret().capability(*space));
    }
    client
}

/// Plain memory, one for all spaces and for all nodes that come one after the other. It counts how
/// often each value was written: tests write no value twice.
#[derive(Clone, Default)]
pub(crate) struct Memory(Rc<RefCell<Cells>>);

#[derive(Default)]
pub(crate) struct Cells {
    pub(crate) bytes: Vec<u8>,
    pub(crate) runs: HashMap<u64, u32>,
    /// All that ran, except reads, by address.
    pub(crate) log: Vec<u64>,
    /// The memory that is used instead of the bytes.
    store: Option<Store>,
}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Memory {
        let memory = Memory::default();
        memory.0.borrow_mut().bytes = vec![0; bytes];
        memory
    }

    /// The memory of a node, with this many bytes allocated from address 0 on.
    pub(crate) fn real(bytes: u64) -> Memory {
        let mut store = Store::new(&Config::new(4 * bytes));
        let alloc = Operation::Alloc {
            bytes,
            page: PageSize::Small,
            at: Some(0),
            permission: Permission::READ_WRITE,
            sparse: false,
        };
        for operation in [Operation::Open, alloc] {
            let done = store.execute(Instant::ZERO, SPACE, &operation, &mut Vec::new());
            assert!(done.is_ok(), "{done:?}");
        }
        let memory = Memory::default();
        memory.0.borrow_mut().store = Some(store);
        memory
    }

    /// The number of times that the operation with this value was run.
    pub(crate) fn runs(&self, value: u64) -> u32 {
        self.0.borrow().runs.get(&value).copied().unwrap_or(0)
    }

    pub(crate) fn bytes(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        self.0.borrow().bytes[range].to_vec()
    }

    pub(crate) fn log(&self) -> Vec<u64> {
        self.0.borrow().log.clone()
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
        let mut cells = self.0.borrow_mut();
        let cells = &mut *cells;
        if let Some(store) = &mut cells.store {
            let tag = match *operation {
                Operation::Write { data, .. } => data.first_chunk().copied(),
                Operation::CompareAndSwap { new, .. } => Some(new.to_le_bytes()),
                Operation::FetchAdd { add, .. } => Some(add.to_le_bytes()),
                _ => None,
            };
            if let Some(tag) = tag {
                *cells.runs.entry(u64::from_le_bytes(tag)).or_insert(0) += 1;
            }
            return store.execute(now, space, operation, out);
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let (address, len) = match *operation {
            Operation::Read { address, len } => (address, len as usize),
            Operation::Write { address, data, .. } => (address, data.len()),
            Operation::CompareAndSwap { address, .. } | Operation::FetchAdd { address, .. } => {
                (address, 8)
            }
            _ => return Ok(Value::None),
        };
        let start = address as usize;
        let Some(place) = cells.bytes.get_mut(start..start + len) else {
            return Err(Error::Unmapped { address });
        };
        let (written, value) = match *operation {
            Operation::Write { data, .. } => {
                place.copy_from_slice(data);
                let tag = data.first_chunk().map_or(0, |tag| u64::from_le_bytes(*tag));
                (tag, Value::None)
            }
            Operation::CompareAndSwap { expected, new, .. } => {
                let old = word(place);
                if old == expected {
                    place.copy_from_slice(&new.to_le_bytes());
                }
                (new, Value::Old(old))
            }
            Operation::FetchAdd { add, .. } => {
                let old = word(place);
                place.copy_from_slice(&old.wrapping_add(add).to_le_bytes());
                (add, Value::Old(old))
            }
            _ => {
                out.extend_from_slice(place);
                return Ok(Value::Bytes(len as u32));
            }
        };
        cells.log.push(address);
        *cells.runs.entry(written).or_insert(0) += 1;
        Ok(value)
    }
}

/// A node of the testbed with an interface for each client.
pub(crate) struct Server<S> {
    pub(crate) node: MemoryNode<S>,
    pub(crate) corruption: Corruption,
    replies: Datagrams,
    received: u64,
}

impl<S: Execute + 'static> Server<S> {
    pub(crate) fn new(config: NodeConfig, store: S, corruption: Corruption) -> Server<S> {
        Server {
            node: memory_node(config, store),
            corruption,
            replies: Datagrams::default(),
            received: 0,
        }
    }
}

impl<S: Execute + 'static> Node for Server<S> {
    type Message = Vec<u8>;

    fn receive(
        &mut self,
        now: Instant,
        interface: usize,
        mut message: Vec<u8>,
        out: &mut Outbox<Vec<u8>>,
    ) {
        self.replies.clear();
        // Every second one as a part of a buffer that the node may keep.
        self.received += 1;
        if self.received.is_multiple_of(2) {
            self.node.receive(now, &mut message, &mut self.replies);
        } else {
            let (start, len) = ((self.received % 64) as usize, message.len());
            message.splice(..0, std::iter::repeat_n(0xee, start));
            let mut buffer = message.into_boxed_slice();
            {
                let mut pieces = self.node.pieces(&mut buffer);
                let range = start..start + len;
                let taken = pieces.receive(now, range, &mut self.replies, usize::MAX);
                assert_eq!(taken, len);
                if !self.received.is_multiple_of(7) {
                    pieces.give();
                }
            }
            buffer.fill(0xdd);
        }
        for datagram in self.replies.iter() {
            out.send(interface, self.corruption.pass(datagram));
        }
    }

    fn next_deadline(&self) -> Instant {
        self.node.next_deadline()
    }

    fn tick(&mut self, now: Instant, _out: &mut Outbox<Vec<u8>>) {
        self.node.tick(now);
    }
}

/// The fault that lines do not have: some messages get flipped bits, or are cut.
#[derive(Clone)]
pub(crate) struct Corruption {
    pub(crate) share: f64,
    pub(crate) random: Random,
}

impl Corruption {
    pub(crate) fn none() -> Corruption {
        Corruption {
            share: 0.0,
            random: Random::new(0),
        }
    }

    fn pass(&mut self, datagram: &[u8]) -> Vec<u8> {
        let mut bytes = datagram.to_vec();
        if self.random.chance(self.share) {
            if self.random.chance(0.2) {
                bytes.truncate(self.random.below(bytes.len() as u64) as usize);
            }
            for _ in 0..self.random.below(4) + 1 {
                let bits = bytes.len() as u64 * 8;
                if bits > 0 {
                    let bit = self.random.below(bits) as usize;
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
            }
        }
        bytes
    }
}

/// The program that uses a client.
pub(crate) trait User: 'static {
    /// Called when something has completed, and at [`User::wake`]; submits operations.
    fn act(&mut self, now: Instant, client: &mut Caller, completions: &mut Vec<Completion>);

    /// The time of the next call.
    fn wake(&self) -> Instant {
        Instant::NEVER
    }
}

/// A client of the testbed and its user.
pub(crate) struct Host<U> {
    pub(crate) client: Caller,
    pub(crate) user: U,
    pub(crate) corruption: Corruption,
    /// The longest datagram sent.
    pub(crate) longest: usize,
}

impl<U: User> Host<U> {
    pub(crate) fn new(config: ClientConfig, user: U, corruption: Corruption) -> Host<U> {
        Host {
            client: Caller::new(client(config, &[SPACE])),
            user,
            corruption,
            longest: 0,
        }
    }

    /// Lets the user act, and sends.
    pub(crate) fn work(&mut self, now: Instant, out: &mut Outbox<Vec<u8>>) {
        let (mut completions, mut sent) = (Vec::new(), Datagrams::default());
        loop {
            if !completions.is_empty() || self.user.wake() <= now {
                self.user.act(now, &mut self.client, &mut completions);
                completions.clear();
            }
            while self.client.transmit(now, &mut sent) {}
            for datagram in sent.iter() {
                self.longest = self.longest.max(datagram.len());
                out.send(0, self.corruption.pass(datagram));
            }
            sent.clear();
            completions.extend(std::iter::from_fn(|| self.client.poll()));
            if completions.is_empty() && self.user.wake() > now {
                break;
            }
        }
    }
}

impl<U: User> Node for Host<U> {
    type Message = Vec<u8>;

    fn receive(
        &mut self,
        now: Instant,
        _interface: usize,
        mut message: Vec<u8>,
        out: &mut Outbox<Vec<u8>>,
    ) {
        self.client.receive(now, &mut message);
        self.work(now, out);
    }

    fn next_deadline(&self) -> Instant {
        self.client.next_deadline().min(self.user.wake())
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Vec<u8>>) {
        self.client.tick(now);
        self.work(now, out);
    }
}

/// A user that does what a test tells it, and keeps what came back.
#[derive(Default)]
pub(crate) struct Manual {
    pub(crate) completions: Vec<Completion>,
}

impl User for Manual {
    fn act(&mut self, _now: Instant, _client: &mut Caller, completions: &mut Vec<Completion>) {
        self.completions.append(completions);
    }
}

pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);

/// Settings with times that fit a line of 100 µs.
pub(crate) fn client_config(first_id: u64) -> ClientConfig {
    ClientConfig {
        datagram_bytes: Some(1024),
        timeout: 20 * MILLISECOND,
        operations_max: 64,
        requests_max: 64,
        retransmission_initial: 2 * MILLISECOND,
        retransmission_min: MILLISECOND,
        retransmission_max: 8 * MILLISECOND,
        ..ClientConfig::new(first_id)
    }
}

pub(crate) fn node_config(epoch: u64) -> NodeConfig {
    NodeConfig {
        datagram_bytes: 1024,
        timeout: 20 * MILLISECOND,
        ..NodeConfig::new(epoch)
    }
}

pub(crate) fn line() -> LineConfig {
    LineConfig {
        delay: Duration::from_micros(100),
        ..LineConfig::new(1_000_000_000)
    }
}

/// A node and one client that a test tells what to do.
pub(crate) struct Pair<S: Execute + 'static> {
    pub(crate) testbed: Testbed<Vec<u8>>,
    pub(crate) server: NodeId<Server<S>>,
    pub(crate) host: NodeId<Host<Manual>>,
    pub(crate) cable: tare_sim::Cable,
}

impl<S: Execute + 'static> Pair<S> {
    pub(crate) fn new(
        node: NodeConfig,
        client: ClientConfig,
        store: S,
        line: &LineConfig,
    ) -> Pair<S> {
        let mut testbed = Testbed::new(1);
        let server = testbed.add(Server::new(node, store, Corruption::none()));
        let host = testbed.add(Host::new(client, Manual::default(), Corruption::none()));
        let cable = testbed.connect(host, server, line);
        Pair {
            testbed,
            server,
            host,
            cable,
        }
    }

    pub(crate) fn submit(&mut self, space: SpaceId, operation: &Operation<'_>) {
        self.testbed.act(self.host, |host, now, out| {
            host.client.submit(now, space, operation).unwrap();
            host.work(now, out);
        });
    }

    /// Runs until all has completed, or for a second; what completed since the last call.
    pub(crate) fn complete(&mut self) -> Vec<Completion> {
        let host = self.host;
        let end = self.testbed.now() + 1000 * MILLISECOND;
        self.testbed
            .run_until_reached(end, |testbed| testbed.node(host).client.outstanding() == 0);
        std::mem::take(&mut self.testbed.node_mut(host).user.completions)
    }

    /// Runs one operation.
    pub(crate) fn run(&mut self, operation: &Operation<'_>) -> Completion {
        self.submit(SPACE, operation);
        let mut completions = self.complete();
        assert_eq!(completions.len(), 1, "{completions:?}");
        completions.remove(0)
    }

    pub(crate) fn node(&self) -> &MemoryNode<S> {
        &self.testbed.node(self.server).node
    }

    pub(crate) fn client(&self) -> &Client {
        &self.testbed.node(self.host).client
    }
}
