//! A client and a node whose datagrams a test carries, and operations in short.

use std::time::Duration;

use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{Operation, SpaceId, Value};
use tare_farmem::protocol::{Client, ClientConfig, Completion, Datagrams, Node, NodeConfig};
use tare_sim::Instant;

use crate::world::{memory_node, Memory, SPACE};

pub(crate) const START: Instant = Instant::from_nanos(1_000_000_000);

pub(crate) fn write(address: u64, data: &[u8]) -> Operation<'_> {
    Operation::Write {
        address,
        data,
        guard: None,
    }
}

pub(crate) fn add(address: u64, add: u64) -> Operation<'static> {
    Operation::FetchAdd {
        address,
        add,
        guard: None,
    }
}

pub(crate) fn read(address: u64, len: u32) -> Operation<'static> {
    Operation::Read { address, len }
}

/// A client and a node without a line: the test carries the datagrams.
pub(crate) struct Bench {
    pub(crate) client: Client,
    pub(crate) node: Node<Memory>,
    pub(crate) memory: Memory,
    pub(crate) now: Instant,
    /// The time by which the node's clock is ahead.
    pub(crate) ahead: Duration,
}

impl Bench {
    pub(crate) fn new(node: NodeConfig, client: ClientConfig) -> Bench {
        let memory = Memory::new(1 << 20);
        let mut bench = Bench {
            client: crate::world::client(client, &[SPACE]),
            node: memory_node(node, memory.clone()),
            memory,
            now: START,
            ahead: Duration::ZERO,
        };
        // A first operation makes the two known to each other.
        bench.submit(&read(0, 8));
        bench.exchange();
        assert_eq!(bench.completions().len(), 1);
        bench
    }

    pub(crate) fn submit(&mut self, operation: &Operation<'_>) {
        self.client.submit(self.now, SPACE, operation).unwrap();
    }

    pub(crate) fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Datagrams::default();
        while self.client.transmit(self.now, &mut sent) {}
        sent.iter().map(<[u8]>::to_vec).collect()
    }

    pub(crate) fn answers(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let mut replies = Datagrams::default();
        let now = self.now + self.ahead;
        self.node.receive(now, &mut datagram.to_vec(), &mut replies);
        replies.iter().map(<[u8]>::to_vec).collect()
    }

    pub(crate) fn give(&mut self, answers: &[Vec<u8>]) {
        for answer in answers {
            self.client.receive(self.now, &mut answer.clone());
        }
    }

    /// Carries everything there and back until there is nothing more.
    pub(crate) fn exchange(&mut self) {
        loop {
            let sent = self.sent();
            if sent.is_empty() {
                return;
            }
            for datagram in sent {
                let answers = self.answers(&datagram);
                self.give(&answers);
            }
        }
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time;
        self.client.tick(self.now);
        self.node.tick(self.now + self.ahead);
    }

    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.client.poll()).collect()
    }
}

/// A node with the real memory, and its spaces opened.
pub(crate) fn store() -> Store {
    let mut store = Store::new(&Config::new(8 << 20));
    for space in [SPACE, SpaceId(8)] {
        let open = store.execute(START, space, &Operation::Open, &mut Vec::new());
        assert_eq!(open, Ok(Value::None));
    }
    store
}
