//! Exchanges: when there is one, what ends it, and what is left to the tables of the client.

use std::time::Duration;

use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{Error, Operation, SpaceId, Value};
use tare_farmem::protocol::{
    Authentication, Client, ClientConfig, Completion, Datagrams, Failure, Node, NodeConfig,
    OperationId, Protection, Response,
};
use tare_sim::Instant;

use crate::world::{aead, client, memory_node, SPACE};

const PAGE: u64 = 4096;

/// A client and a node that know each other, with a page at address 0, most of which is zero.
struct Pair {
    client: Client,
    node: Node<Store>,
    now: Instant,
}

impl Pair {
    fn new(authentication: [Authentication; 2], client_config: ClientConfig) -> Pair {
        let config = NodeConfig {
            authentication: authentication[0],
            ..NodeConfig::new(3)
        };
        let config_of_client = ClientConfig {
            authentication: authentication[1],
            ..client_config
        };
        let mut pair = Pair {
            client: client(config_of_client, &[SPACE]),
            node: memory_node(config, Store::new(&Config::new(1 << 20))),
            now: Instant::from_nanos(1),
        };
        let alloc = Operation::Alloc {
            bytes: PAGE,
            page: tare_farmem::operation::PageSize::Small,
            at: Some(0),
            permission: tare_farmem::operation::Permission::READ_WRITE,
            sparse: false,
        };
        for operation in [Operation::Open, alloc] {
            let outcome = pair.run(&operation).outcome;
            assert!(outcome.is_ok(), "{outcome:?}");
        }
        pair
    }

    fn plain() -> Pair {
        Pair::new([Authentication::None; 2], ClientConfig::new(1))
    }

    /// Submits an operation, and lets it end.
    fn run(&mut self, operation: &Operation<'_>) -> Completion {
        self.client.submit(self.now, SPACE, operation).unwrap();
        self.complete()
    }

    /// Lets what was submitted or entered end.
    fn complete(&mut self) -> Completion {
        for _ in 0..10 {
            self.now += Duration::from_micros(10);
            let mut sent = Datagrams::default();
            while self.client.transmit(self.now, &mut sent) {}
            for mut reply in self.replies(&sent) {
                self.client.receive(self.now, &mut reply);
            }
            if let Some(completion) = self.client.poll() {
                return completion;
            }
        }
        panic!("it has not ended");
    }

    fn replies(&mut self, sent: &Datagrams) -> Vec<Vec<u8>> {
        let mut replies = Datagrams::default();
        for datagram in sent.iter() {
            let mut datagram = datagram.to_vec();
            self.node.receive(self.now, &mut datagram, &mut replies);
        }
        replies.iter().map(<[u8]>::to_vec).collect()
    }

    /// Runs an operation as an exchange whose answer is changed; returns its end if that is taken
    /// for the answer, else the number of the operation.
    fn exchange(
        &mut self,
        operation: &Operation<'_>,
        into: &mut [u8],
        change: impl FnOnce(Vec<u8>) -> Vec<u8>,
    ) -> Result<Result<Value, Failure>, OperationId> {
        let mut sent = Datagrams::default();
        let exchange = self
            .client
            .start_exchange(self.now, SPACE, operation, &mut sent);
        let exchange = exchange.expect("nothing is outstanding");
        assert_eq!(sent.len(), 1);
        let reply = self.replies(&sent).pop().expect("an answer");
        self.now += Duration::from_micros(10);
        let mut reply = change(reply);
        let client = &mut self.client;
        client.finish_exchange(self.now, exchange, operation, &mut reply, into)
    }
}

const READ: Operation<'_> = Operation::Read {
    address: 64,
    len: 8,
};

fn write(data: &[u8]) -> Operation<'_> {
    Operation::Write {
        address: 64,
        data,
        guard: None,
    }
}

#[test]
fn an_answer_ends_each_kind_of_operation_with_and_without_encryption() {
    let encrypted = [aead(1), aead(2)];
    for authentication in [
        [Authentication::None; 2],
        [Authentication::Checksum; 2],
        encrypted,
    ] {
        let mut pair = Pair::new(authentication, ClientConfig::new(1));
        let before = pair.client.counters();
        let mut into = [0; 8];
        let same = |reply| reply;
        let wrote = pair.exchange(&write(&7u64.to_le_bytes()), &mut [], same);
        assert_eq!(wrote, Ok(Ok(Value::None)));
        let add = Operation::FetchAdd {
            address: 64,
            add: 5,
            guard: None,
        };
        assert_eq!(pair.exchange(&add, &mut [], same), Ok(Ok(Value::Old(7))));
        let swap = Operation::CompareAndSwap {
            address: 64,
            expected: 12,
            new: 13,
            guard: None,
        };
        assert_eq!(pair.exchange(&swap, &mut [], same), Ok(Ok(Value::Old(12))));
        assert_eq!(
            pair.exchange(&READ, &mut into, same),
            Ok(Ok(Value::Bytes(8)))
        );
        assert_eq!(into, 13u64.to_le_bytes());
        let outside = Operation::Read {
            address: PAGE,
            len: 8,
        };
        let refused = Failure::Refused(Error::Unmapped { address: PAGE });
        assert_eq!(pair.exchange(&outside, &mut into, same), Ok(Err(refused)));
        assert_eq!(into, 13u64.to_le_bytes(), "as it was");
        // They count as others do, and leave nothing behind.
        let after = pair.client.counters();
        assert_eq!(after.submitted - before.submitted, 5);
        assert_eq!(after.requests - before.requests, 5);
        assert_eq!(after.retransmissions, 0);
        assert_eq!(pair.client.outstanding(), 0);
        assert_eq!(pair.client.poll(), None);
        let next = pair.run(&READ);
        assert_eq!(next.id, OperationId(after.submitted), "a number of its own");
        assert_eq!(next.data, 13u64.to_le_bytes());
        let counters = pair.node.counters();
        assert_eq!((counters.repeated, counters.malformed), (0, 0));
    }
}

/// A response of the node with another content.
fn changed(reply: &[u8], change: impl FnOnce(&mut Response<'_>)) -> Vec<u8> {
    let (mut bytes, mut out) = (reply.to_vec(), Vec::new());
    let none = &mut Protection::new(Authentication::None);
    let (mut response, rest) = Response::parse(&mut bytes, none).expect("a response");
    assert!(rest.is_empty());
    change(&mut response);
    response.emit(none, &mut out).expect("no key is needed");
    out
}

#[test]
fn what_is_not_the_answer_leaves_the_operation_to_the_client() {
    type Change = fn(Vec<u8>) -> Vec<u8>;
    let others: [(&str, Change); 9] = [
        ("another request", |reply| changed(&reply, |r| r.id += 1)),
        ("another space", |reply| {
            changed(&reply, |r| r.space = SpaceId(r.space.0 + 1))
        }),
        ("another epoch", |reply| changed(&reply, |r| r.epoch += 1)),
        ("too short", |reply| {
            changed(&reply, |r| r.body = &r.body[1..])
        }),
        ("too long", |reply| changed(&reply, |r| r.body = &[1; 9])),
        ("a status that an operation does not have", |reply| {
            changed(&reply, |r| r.status = 99)
        }),
        ("no response", |_| vec![1; 60]),
        ("cut", |reply| reply[..20].to_vec()),
        ("of another one, in front of it", |reply| {
            let other = changed(&reply, |r| r.id += 1);
            [other, reply].concat()
        }),
    ];
    for (what, change) in others {
        let mut pair = Pair::plain();
        assert!(pair.run(&write(&[9; 8])).outcome.is_ok());
        let mut into = [0; 8];
        let id = OperationId(pair.client.counters().submitted);
        let taken = pair.exchange(&READ, &mut into, change);
        assert_eq!(taken, Err(id), "{what}");
        assert_eq!(into, [0; 8], "{what}: nothing is taken from it");
        // Its own timer sends it again, unless the answer was there too.
        pair.now += Duration::from_millis(60);
        pair.client.tick(pair.now);
        let completion = pair.complete();
        assert_eq!(completion.id, id, "{what}");
        assert_eq!(completion.data, [9; 8], "{what}");
        assert_eq!(pair.client.poll(), None, "{what}: once");
    }
}

#[test]
fn a_change_whose_answer_is_lost_is_sent_again_under_its_first_number() {
    let mut pair = Pair::plain();
    let add = Operation::FetchAdd {
        address: 64,
        add: 1,
        guard: None,
    };
    let mut sent = Datagrams::default();
    let exchange = pair.client.start_exchange(pair.now, SPACE, &add, &mut sent);
    pair.replies(&sent);
    pair.now += Duration::from_millis(60);
    let id = pair
        .client
        .enter_exchange(exchange.expect("nothing is outstanding"), &add);
    pair.client.tick(pair.now);
    let completion = pair.complete();
    assert_eq!((completion.id, completion.outcome), (id, Ok(Value::Old(0))));
    assert_eq!(pair.node.counters().repeated, 1, "the node knew it");
    assert_eq!(pair.client.counters().retransmissions, 1);
    assert_eq!(pair.run(&READ).data, 1u64.to_le_bytes(), "it ran once");
}

#[test]
fn there_is_no_exchange_of_what_has_to_be_submitted() {
    let mut pair = Pair::plain();
    let long = vec![1; 1472];
    let longer = Operation::Read {
        address: 0,
        len: 1472,
    };
    let beyond = Operation::Read {
        address: u64::MAX,
        len: 8,
    };
    let sent = &mut Datagrams::default();
    for operation in [
        Operation::Open,
        Operation::Fence,
        Operation::Unlock {
            address: 0,
            token: 1,
        },
        write(&long),
        longer,
        beyond,
    ] {
        let exchange = pair
            .client
            .start_exchange(pair.now, SPACE, &operation, sent);
        assert!(exchange.is_none(), "{operation:?}");
    }
    pair.client.submit(pair.now, SPACE, &READ).unwrap();
    let exchange = pair.client.start_exchange(pair.now, SPACE, &READ, sent);
    assert!(exchange.is_none(), "another one has not completed");
    pair.complete();
    // No capability.
    let mut pair = Pair::new([aead(1), aead(2)], ClientConfig::new(1));
    let exchange = pair
        .client
        .start_exchange(pair.now, SpaceId(SPACE.0 + 1), &READ, sent);
    assert!(exchange.is_none(), "no capability for the space");
    // A node that has not answered yet.
    let mut new = Client::new(ClientConfig::new(1));
    let exchange = new.start_exchange(Instant::from_nanos(1), SPACE, &READ, sent);
    assert!(exchange.is_none(), "the epoch is not known");
    assert!(sent.is_empty(), "nothing was sent for any of them");
}

#[test]
fn an_exchange_is_waited_for_no_longer_than_a_request_or_an_operation() {
    let mut pair = Pair::plain();
    // Two round trips of 10 µs: the least timeout.
    assert_eq!(pair.client.exchange_timeout(), Duration::from_micros(200));
    let config = ClientConfig {
        timeout: Duration::from_micros(150),
        ..ClientConfig::new(1)
    };
    let mut short = Pair::new([Authentication::None; 2], config);
    assert_eq!(short.client.exchange_timeout(), Duration::from_micros(150));
    for pair in [&mut pair, &mut short] {
        assert_eq!(
            pair.exchange(&READ, &mut [1; 8], |reply| reply),
            Ok(Ok(Value::Bytes(8)))
        );
    }
}

#[test]
fn an_exchange_that_is_dropped_leaves_its_number_to_no_other_operation() {
    let add = |add| Operation::FetchAdd {
        address: 64,
        add,
        guard: None,
    };
    for ends_as_exchange in [false, true] {
        let mut pair = Pair::plain();
        let mut sent = Datagrams::default();
        let client = &mut pair.client;
        let dropped = client.start_exchange(pair.now, SPACE, &add(1), &mut sent);
        assert!(dropped.is_some());
        pair.replies(&sent);
        // The node remembers the first, and would answer the second with what that returned.
        let outcome = match ends_as_exchange {
            true => pair.exchange(&add(10), &mut [], |reply| reply).unwrap(),
            false => pair.run(&add(10)).outcome,
        };
        assert_eq!(outcome, Ok(Value::Old(1)));
        assert_eq!(pair.run(&READ).data, 11u64.to_le_bytes());
        assert_eq!(pair.node.counters().repeated, 0);
    }
}
