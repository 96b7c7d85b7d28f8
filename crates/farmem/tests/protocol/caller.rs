//! A client which runs some operations as exchanges, as channels do if there is one at a time.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use tare_farmem::operation::{Operation, SpaceId, Value};
use tare_farmem::protocol::{Client, Completion, Datagrams, Exchange, OperationId, SubmitError};
use tare_sim::{Instant, Random};

/// A client, and the exchange that it has started. All that is not an exchange is the client's.
pub(crate) struct Caller {
    client: Client,
    random: Random,
    /// The share of operations that become exchanges, if they can.
    share: f64,
    held: Option<(Exchange, Held)>,
    started: Datagrams,
    gathers: bool,
    ended: VecDeque<Completion>,
    pub(crate) counts: Counts,
}

/// The ends of exchanges, by their answers or entered as operations of the client, and runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) answered: u64,
    pub(crate) entered: u64,
    /// The runs of segments.
    pub(crate) runs: u64,
}

/// The operation of an exchange.
struct Held {
    id: OperationId,
    space: SpaceId,
    /// The operation without its data.
    operation: Operation<'static>,
    data: Vec<u8>,
    deadline: Instant,
}

impl Held {
    fn operation(&self) -> Operation<'_> {
        match self.operation {
            Operation::Write { address, guard, .. } => Operation::Write {
                address,
                data: &self.data,
                guard,
            },
            other => other,
        }
    }
}

impl Deref for Caller {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Caller {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl Caller {
    /// A client that makes no exchanges.
    pub(crate) fn new(client: Client) -> Caller {
        Caller {
            client,
            random: Random::new(0),
            share: 0.0,
            held: None,
            started: Datagrams::default(),
            gathers: false,
            ended: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// Makes exchanges of a share of the operations.
    pub(crate) fn exchange(&mut self, share: f64, random: Random) {
        (self.share, self.random) = (share, random);
    }

    pub(crate) fn submit(
        &mut self,
        now: Instant,
        space: SpaceId,
        operation: &Operation<'_>,
    ) -> Result<OperationId, SubmitError> {
        self.enter();
        if self.random.chance(self.share) {
            let id = OperationId(self.client.counters().submitted);
            let (client, out) = (&mut self.client, &mut self.started);
            if let Some(exchange) = client.start_exchange(now, space, operation, out) {
                let held = Held {
                    id,
                    space,
                    operation: without_data(operation),
                    data: match *operation {
                        Operation::Write { data, .. } => data.to_vec(),
                        _ => Vec::new(),
                    },
                    deadline: now + self.client.exchange_timeout(),
                };
                self.held = Some((exchange, held));
                return Ok(id);
            }
        }
        self.client.submit(now, space, operation)
    }

    /// Enters the exchange, if there is one.
    fn enter(&mut self) {
        if let Some((exchange, held)) = self.held.take() {
            let id = self.client.enter_exchange(exchange, &held.operation());
            assert_eq!(id, held.id);
            self.counts.entered += 1;
        }
    }

    pub(crate) fn receive(&mut self, now: Instant, datagram: &mut [u8]) {
        if datagram.is_empty() {
            return;
        }
        let Some((exchange, held)) = self.held.take() else {
            return self.client.receive(now, datagram);
        };
        let len = match held.operation {
            Operation::Read { len, .. } => len as usize,
            _ => 0,
        };
        let mut into = vec![0; len];
        let (client, operation) = (&mut self.client, held.operation());
        match client.finish_exchange(now, exchange, &operation, datagram, &mut into) {
            Ok(outcome) => {
                self.counts.answered += 1;
                self.ended.push_back(Completion {
                    id: held.id,
                    space: held.space,
                    outcome,
                    data: match outcome {
                        Ok(Value::Bytes(_)) => into,
                        _ => Vec::new(),
                    },
                });
            }
            Err(id) => {
                self.counts.entered += 1;
                assert_eq!(id, held.id);
            }
        }
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        if self
            .held
            .as_ref()
            .is_some_and(|(_, held)| held.deadline <= now)
        {
            self.enter();
        }
        if self.held.is_none() {
            self.client.tick(now);
        }
    }

    pub(crate) fn transmit(&mut self, now: Instant, out: &mut Datagrams) -> bool {
        for datagram in self.started.iter() {
            out.push(datagram);
        }
        self.started.clear();
        if self.held.is_some() {
            return false;
        }
        // Every second time as over a link that gathers.
        self.gathers = !self.gathers;
        if self.gathers {
            while let Some(run) = self.client.transmit_run(now, 1) {
                run.datagrams().for_each(|parts| out.push(&parts.concat()));
                self.counts.runs += 1;
            }
        }
        self.client.transmit(now, out)
    }

    pub(crate) fn poll(&mut self) -> Option<Completion> {
        self.ended.pop_front().or_else(|| self.client.poll())
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        match &self.held {
            Some((_, held)) => held.deadline,
            None => self.client.next_deadline(),
        }
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.client.outstanding() + usize::from(self.held.is_some())
    }
}

fn without_data(operation: &Operation<'_>) -> Operation<'static> {
    match *operation {
        Operation::Read { address, len } => Operation::Read { address, len },
        Operation::Write { address, guard, .. } => Operation::Write {
            address,
            data: &[],
            guard,
        },
        Operation::CompareAndSwap {
            address,
            expected,
            new,
            guard,
        } => Operation::CompareAndSwap {
            address,
            expected,
            new,
            guard,
        },
        Operation::FetchAdd {
            address,
            add,
            guard,
        } => Operation::FetchAdd {
            address,
            add,
            guard,
        },
        _ => panic!("no exchange can be made of {operation:?}"),
    }
}
