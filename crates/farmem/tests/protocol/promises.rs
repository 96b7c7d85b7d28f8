//! The promises of the protocol one by one, each where it is hardest to keep.

use std::time::Duration;

use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{
    Error, Guard, Operation, PageSize, Permission, SpaceId, Value, LEASE_MAX,
};
use tare_farmem::protocol::{
    Authentication, Client, ClientConfig, Completion, Failure, Node, NodeConfig, Replies, Response,
    SubmitError, OPERATION_MAX, REQUEST_HEADER, RESPONSE_HEADER,
};
use tare_sim::{Instant, LineConfig, Queue, Random};

use crate::world::{client_config, line, node_config, Corruption, Memory, Pair, Server, SPACE};
use crate::world::{Host, Manual, MILLISECOND};

const START: Instant = Instant::from_nanos(1_000_000_000);

fn write(address: u64, data: &[u8]) -> Operation<'_> {
    Operation::Write {
        address,
        data,
        guard: None,
    }
}

fn add(address: u64, add: u64) -> Operation<'static> {
    Operation::FetchAdd {
        address,
        add,
        guard: None,
    }
}

fn read(address: u64, len: u32) -> Operation<'static> {
    Operation::Read { address, len }
}

/// A client and a node without a line: the test carries the datagrams.
struct Bench {
    client: Client,
    node: Node<Memory>,
    memory: Memory,
    now: Instant,
    /// The time by which the node's clock is ahead.
    ahead: Duration,
}

impl Bench {
    fn new(node: NodeConfig, client: ClientConfig) -> Bench {
        let memory = Memory::new(1 << 20);
        let mut bench = Bench {
            client: Client::new(client),
            node: Node::new(node, memory.clone()),
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

    fn submit(&mut self, operation: &Operation<'_>) {
        self.client.submit(self.now, SPACE, operation).unwrap();
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        let (mut sent, mut datagram) = (Vec::new(), Vec::new());
        while self.client.transmit(self.now, &mut datagram) {
            sent.push(datagram.clone());
        }
        sent
    }

    fn answers(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let mut replies = Replies::default();
        self.node
            .receive(self.now + self.ahead, datagram, &mut replies);
        replies.iter().map(<[u8]>::to_vec).collect()
    }

    fn give(&mut self, answers: &[Vec<u8>]) {
        for answer in answers {
            self.client.receive(self.now, answer);
        }
    }

    /// Carries everything there and back until there is nothing more.
    fn exchange(&mut self) {
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

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.client.tick(self.now);
        self.node.tick(self.now + self.ahead);
    }

    fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.client.poll()).collect()
    }
}

#[test]
fn a_request_that_comes_again_and_again_runs_once_and_is_answered_alike() {
    let mut bench = Bench::new(node_config(5), client_config(100));
    bench.submit(&add(8, 3));
    let [datagram] = &bench.sent()[..] else {
        panic!("one datagram")
    };
    let first = bench.answers(datagram);
    let horizon = node_config(5).horizon();
    assert_eq!(horizon, 60 * MILLISECOND);
    let status_and_value = |answers: &[Vec<u8>]| [&answers[0][1..2], &answers[0][40..48]].concat();
    for step in 0..=60 {
        assert_eq!(bench.now, START + step * MILLISECOND);
        let again = bench.answers(datagram);
        assert_eq!(status_and_value(&again), status_and_value(&first));
        assert_eq!(bench.memory.runs(3), 1);
        bench.wait(MILLISECOND);
    }
    // From now on it is refused, and so it need not be remembered.
    assert_eq!(bench.node.records(), 0);
    let refused = bench.answers(datagram);
    assert_ne!(status_and_value(&refused), status_and_value(&first));
    assert_eq!(
        (bench.memory.runs(3), bench.node.counters().expired),
        (1, 1)
    );
    let repeated = bench.node.counters().repeated;
    assert_eq!(repeated, 61);
}

#[test]
fn attempts_may_arrive_in_any_order_and_each_answer_will_do() {
    let orders = [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]];
    for (order, answered) in orders
        .into_iter()
        .flat_map(|order| [(order, 0), (order, 2)])
    {
        let mut bench = Bench::new(node_config(5), client_config(u64::MAX - 1));
        bench.submit(&add(8, 3));
        let mut attempts = Vec::new();
        for _ in 0..3 {
            attempts.extend(bench.sent());
            bench.wait(6 * MILLISECOND);
        }
        assert_eq!(attempts.len(), 3);
        let answers = order.map(|n| (n, bench.answers(&attempts[n])));
        assert_eq!(bench.memory.runs(3), 1);
        let answer = answers.iter().find(|(n, _)| *n == answered).unwrap();
        bench.give(&answer.1);
        let completions = bench.completions();
        assert_eq!(completions[0].outcome, Ok(Value::Old(0)), "{order:?}");
        answers.iter().for_each(|(_, answer)| bench.give(answer));
        assert!(bench.completions().is_empty());
    }
}

#[test]
fn a_refusal_is_final_even_if_the_request_comes_again_when_it_could_run() {
    let mut pair = Pair::new(node_config(1), client_config(1), store(), &line());
    let mut replies = Replies::default();
    let mut client = Client::new(client_config(500));
    let now = pair.testbed.now();
    let (mut datagram, mut copies) = (Vec::new(), Vec::new());
    client.submit(now, SPACE, &add(0x1000, 1)).unwrap();
    let node = &mut pair.testbed.node_mut(pair.server).node;
    while client.transmit(now, &mut datagram) {
        node.receive(now, &datagram, &mut replies);
        replies.iter().for_each(|reply| client.receive(now, reply));
        replies.clear();
        copies.push(datagram.clone());
    }
    let unmapped = Error::Unmapped { address: 0x1000 };
    let end = client.poll().map(|end| end.outcome);
    assert_eq!(end, Some(Err(Failure::Refused(unmapped))));
    let alloc = Operation::Alloc {
        bytes: 4096,
        page: PageSize::Small,
        at: Some(0x1000),
        permission: Permission::READ_WRITE,
        sparse: false,
    };
    assert_eq!(pair.run(&alloc).outcome, Ok(Value::Address(0x1000)));
    let node = &mut pair.testbed.node_mut(pair.server).node;
    copies
        .iter()
        .for_each(|copy| node.receive(now, copy, &mut replies));
    assert_eq!(node.counters().repeated, 1);
    assert_eq!(pair.run(&read(0x1000, 8)).data, [0; 8]);
}

#[test]
fn a_node_without_room_for_records_runs_nothing_that_it_could_not_remember() {
    let node = NodeConfig {
        // Four requests per horizon of 60 ms.
        bytes_per_second: 4 * REQUEST_HEADER as u64 * 1000 / 60 + 1,
        ..node_config(5)
    };
    assert_eq!(node.records_max(), 4);
    let mut bench = Bench::new(node, client_config(100));
    for n in 1..=6 {
        bench.submit(&add(4096 * n, n));
    }
    bench.exchange();
    let done = bench.completions();
    assert_eq!((done.len(), bench.node.records()), (4, 4));
    assert_eq!(bench.node.counters().busy, 2);
    assert_eq!((bench.memory.runs(5), bench.memory.runs(6)), (0, 0));
    bench.submit(&read(4096, 8));
    bench.exchange();
    assert_eq!(bench.completions().len(), 1, "reads need no record");
    // Not run as far as the node is concerned; but the client cannot know what happens to copies.
    bench.wait(21 * MILLISECOND);
    let unknown = bench.completions();
    assert!(unknown
        .iter()
        .all(|end| end.outcome == Err(Failure::OutcomeUnknown)));
    assert_eq!(unknown.len(), 2);
    bench.wait(60 * MILLISECOND);
    bench.submit(&add(0, 9));
    bench.exchange();
    assert_eq!(bench.completions()[0].outcome, Ok(Value::Old(0)));
}

#[test]
fn after_a_restart_only_what_the_old_node_may_have_run_is_unknown() {
    let mut bench = Bench::new(node_config(5), client_config(100));
    // One operation reaches the old node, the answer to it is lost; one never arrives anywhere.
    bench.submit(&add(0, 1));
    let sent = bench.sent();
    bench.answers(&sent[0]);
    bench.submit(&add(4096, 2));
    assert_eq!(bench.sent().len(), 1);
    bench.submit(&read(8192, 8));
    assert_eq!(bench.sent().len(), 1);
    bench.wait(MILLISECOND / 2);
    bench.node = Node::new(node_config(6), bench.memory.clone());
    bench.wait(MILLISECOND);
    // Sent after the restart, and refused by the new node.
    bench.submit(&add(0x3000, 3));
    bench.wait(2 * MILLISECOND);
    bench.exchange();
    let mut completions = bench.completions();
    completions.sort_by_key(|completion| completion.id);
    let outcomes: Vec<_> = completions.iter().map(|end| end.outcome).collect();
    let unknown = Err(Failure::OutcomeUnknown);
    assert_eq!(
        outcomes,
        [unknown, unknown, Ok(Value::Bytes(8)), Ok(Value::Old(0))]
    );
    assert_eq!([1, 2, 3].map(|n| bench.memory.runs(n)), [1, 0, 1]);
    assert_eq!(
        (bench.client.epoch(), bench.client.counters().restarts),
        (6, 1)
    );
    // What is left on the way of the first request is refused by the new node.
    let refused = bench.answers(&sent[0]);
    bench.give(&refused);
    assert_eq!((bench.memory.runs(1), bench.client.epoch()), (1, 6));
    // And a client that was idle loses nothing at all.
    bench.wait(50 * MILLISECOND);
    bench.node = Node::new(node_config(7), bench.memory.clone());
    bench.wait(MILLISECOND);
    bench.wait(MILLISECOND);
    bench.submit(&add(0, 4));
    bench.exchange();
    assert_eq!(bench.completions()[0].outcome, Ok(Value::Old(1)));
}

#[test]
fn a_clock_that_jumps_makes_outcomes_unknown_and_never_wrong() {
    let mut bench = Bench::new(node_config(5), client_config(100));
    bench.submit(&add(0, 1));
    let sent = bench.sent();
    bench.answers(&sent[0]);
    bench.ahead += 100 * MILLISECOND;
    bench.wait(6 * MILLISECOND);
    assert_eq!((bench.node.records(), bench.memory.runs(1)), (0, 1));
    bench.exchange();
    let end = bench.completions().remove(0);
    assert_eq!(end.outcome, Err(Failure::OutcomeUnknown));
    assert_eq!(
        (bench.node.counters().expired, bench.memory.runs(1)),
        (1, 1)
    );
    // The refusal tells the client the node's time.
    bench.submit(&add(0, 2));
    bench.exchange();
    assert_eq!(bench.completions()[0].outcome, Ok(Value::Old(1)));
    // A request from the future would be remembered for too long.
    bench.submit(&add(0, 3));
    let sent = bench.sent();
    bench.ahead -= 41 * MILLISECOND;
    bench.node = Node::new(node_config(5), bench.memory.clone());
    bench.answers(&sent[0]);
    assert_eq!(
        (bench.node.counters().expired, bench.memory.runs(3)),
        (1, 0)
    );
}

#[test]
fn answers_of_another_space_or_of_an_earlier_node_are_not_taken() {
    let mut bench = Bench::new(node_config(5), client_config(100));
    bench.ahead = 1000 * MILLISECOND;
    bench.submit(&read(0, 8));
    let sent = bench.sent();
    let old = bench.answers(&sent[0]);
    let (answer, _) = Response::parse(&old[0], Authentication::None).unwrap();
    let mut other = Vec::new();
    let space = SpaceId(SPACE.0 + 1);
    Response { space, ..answer }.emit(Authentication::None, &mut other);
    bench.give(&[other]);
    assert_eq!(
        (bench.completions().len(), bench.client.counters().malformed),
        (0, 1)
    );
    // The new node's clock is behind that of the old one.
    bench.ahead = Duration::ZERO;
    bench.node = Node::new(node_config(6), bench.memory.clone());
    bench.submit(&add(4096, 1));
    let sent = bench.sent();
    let refused = bench.answers(&sent[0]);
    bench.give(&refused);
    let [hello] = &bench.sent()[..] else {
        panic!("one question")
    };
    let welcome = bench.answers(hello);
    bench.give(&welcome);
    assert_eq!(bench.client.epoch(), 6);
    bench.give(&old);
    let unknown = bench.completions();
    assert_eq!(unknown.len(), 1);
    bench.submit(&add(4096, 2));
    bench.exchange();
    let outcomes: Vec<_> = bench.completions().iter().map(|end| end.outcome).collect();
    assert_eq!(outcomes, [Ok(Value::Bytes(8)), Ok(Value::Old(0))]);
}

#[test]
fn a_failure_says_whether_something_may_have_happened() {
    let mut pair = Pair::new(node_config(1), client_config(9), Memory::new(8192), &line());
    pair.testbed.set_cut(pair.cable, true);
    let gone = pair.run(&add(0, 1));
    assert_eq!(gone.outcome, Err(Failure::NodeGone));
    let requests = pair.client().counters().requests;
    assert!(
        (3..12).contains(&requests),
        "{requests} requests within the timeout"
    );
    pair.testbed.set_cut(pair.cable, false);
    assert_eq!(pair.run(&add(0, 2)).outcome, Ok(Value::Old(0)));
    pair.testbed.set_cut(pair.cable, true);
    let start = pair.testbed.now();
    pair.submit(SPACE, &add(0, 3));
    pair.submit(SPACE, &read(0, 8));
    pair.submit(SPACE, &read(4096, 8));
    let mut ends = pair.complete();
    ends.sort_by_key(|end| end.id);
    let failures: Vec<_> = ends.iter().map(|end| end.outcome.unwrap_err()).collect();
    // The first was sent; the second waited for it; the third only reads.
    let gone = Failure::NodeGone;
    assert_eq!(failures, [Failure::OutcomeUnknown, gone, gone]);
    let waited = pair.testbed.now().since(start);
    assert!((20..22).contains(&waited.as_millis()), "{waited:?}");
    pair.testbed.set_cut(pair.cable, false);
    assert_eq!(pair.run(&read(0, 8)).data, 2u64.to_le_bytes());
    let refused = pair.run(&read(8192, 8));
    let unmapped = Error::Unmapped { address: 8192 };
    assert_eq!(refused.outcome, Err(Failure::Refused(unmapped)));
}

#[test]
fn operations_on_one_page_run_in_their_order_and_others_do_not_wait() {
    let mut bench = Bench::new(node_config(5), client_config(100));
    let count = |sent: Vec<Vec<u8>>| {
        sent.iter()
            .map(|datagram| datagram.len() / 80)
            .sum::<usize>()
    };
    // Read, write and read of one page; one of another.
    bench.submit(&add(0, 1));
    bench.submit(&add(8, 2));
    bench.submit(&add(4096, 3));
    assert_eq!(count(bench.sent()), 2, "one per page");
    bench.wait(30 * MILLISECOND);
    bench.completions();
    let before = bench.client.counters().requests;
    for n in 0..10 {
        bench.submit(&read(16 * n, 8));
    }
    bench.sent();
    assert_eq!(bench.client.counters().requests - before, 10, "reads fly");
    bench.submit(&add(0, 4));
    bench.submit(&write(4090, &[1; 12]));
    bench.submit(&read(0x1010, 8));
    bench.submit(&add(0x2000, 5));
    let sent = bench.sent();
    assert_eq!(count(sent.clone()), 1, "the last alone");
    sent.iter().for_each(|sent| {
        bench.answers(sent);
    });
    assert_eq!(bench.memory.log(), [0x2000]);
    bench.wait(2 * MILLISECOND);
    bench.exchange();
    assert_eq!(bench.memory.log(), [0x2000, 0, 4090]);
    let read = bench.completions().into_iter().last().unwrap();
    assert_eq!(
        (read.outcome, &read.data[..]),
        (Ok(Value::Bytes(8)), &[0; 8][..])
    );
}

#[test]
fn long_operations_fences_and_locks_are_ordered_with_all_they_touch() {
    let mut bench = Bench::new(node_config(5), client_config(100));
    // Over five pages, and within the first window.
    let data = [7; 12_290];
    let lease = Duration::from_secs(1);
    let lock = Operation::Lock { address: 0, lease };
    let unlock = Operation::Unlock {
        address: 0,
        token: 1,
    };
    let requests = |bench: &mut Bench, operations: &[Operation<'_>]| -> Vec<u64> {
        let mut before = bench.client.counters().requests;
        let mut counts = Vec::new();
        for operation in operations {
            bench.submit(operation);
            bench.sent();
            let after = bench.client.counters().requests;
            counts.push(std::mem::replace(&mut before, after).abs_diff(after));
        }
        bench.wait(30 * MILLISECOND);
        bench.exchange();
        bench.completions();
        counts
    };
    let long = write(4095, &data);
    let counts = requests(
        &mut bench,
        &[long, add(16_384, 1), add(20_480, 2), read(9000, 8)],
    );
    assert_eq!(counts, [13, 0, 1, 0]);
    let counts = requests(&mut bench, &[add(16_384, 3), long, read(9000, 8)]);
    assert_eq!(counts, [1, 0, 0]);
    for barrier in [lock, Operation::Fence] {
        let sent = u64::from(barrier != Operation::Fence);
        assert_eq!(requests(&mut bench, &[barrier]), [sent]);
        let around = [read(0, 8), barrier, read(4096, 8), add(0, 4)];
        assert_eq!(requests(&mut bench, &around), [1, 0, 0, 0]);
    }
    assert_eq!(requests(&mut bench, &[lock, add(0, 5), unlock]), [1, 0, 0]);
    // A fence with nothing before it is over at once.
    bench.submit(&Operation::Fence);
    assert_eq!(bench.completions()[0].outcome, Ok(Value::None));
    // Another space is not concerned.
    bench.submit(&lock);
    assert_eq!(bench.sent().len(), 1);
    bench
        .client
        .submit(bench.now, SpaceId(8), &add(0, 6))
        .unwrap();
    assert_eq!(bench.sent().len(), 1);
}

/// A transfer of many messages over a line that loses some.
fn transfer(bytes: usize, datagram_bytes: usize, line: &LineConfig) -> Pair<Memory> {
    let second = 1000 * MILLISECOND;
    let node = NodeConfig {
        datagram_bytes,
        timeout: second,
        ..node_config(1)
    };
    let client = ClientConfig {
        datagram_bytes,
        timeout: second,
        requests_max: 1024,
        ..client_config(1 << 40)
    };
    let mut pair = Pair::new(node, client, Memory::new(bytes + 20), line);
    let mut data = vec![0; bytes];
    Random::new(1).fill(&mut data);
    assert_eq!(pair.run(&write(10, &data)).outcome, Ok(Value::None));
    let expected = [&[0; 10], &data[..], &[0; 10]].concat();
    let read = pair.run(&read(0, bytes as u32 + 20));
    assert_eq!(read.outcome, Ok(Value::Bytes(bytes as u32 + 20)));
    assert!(read.data == expected, "bytes differ");
    assert_eq!(
        pair.node().counters().executed,
        1,
        "one write, whatever its length"
    );
    pair
}

#[test]
fn long_transfers_are_complete_whatever_is_lost_duplicated_and_overtaken() {
    let bad = LineConfig {
        loss: 0.05,
        duplication: 0.05,
        reordering: 0.05,
        ..line()
    };
    for bytes in [900, 952, 953, 1904, 1905, 100_000] {
        let pair = transfer(bytes, 1024, &bad);
        if bytes == 100_000 {
            assert!(pair.client().counters().retransmissions > 5);
        }
    }
    let fast = LineConfig {
        loss: 0.001,
        queue: Queue::Bytes(8 << 20),
        ..LineConfig::new(10_000_000_000)
    };
    transfer(64 << 20, 65_507, &fast);
}

#[test]
fn the_longest_transfer_is_1_gib_and_what_a_node_cannot_take_is_refused() {
    let mut bench = Bench::new(node_config(5), client_config(100));
    let mut submit = |operation: &Operation<'_>| bench.client.submit(START, SPACE, operation);
    assert!(submit(&read(0, OPERATION_MAX)).is_ok());
    assert_eq!(
        submit(&read(0, OPERATION_MAX + 1)),
        Err(SubmitError::Length)
    );
    assert_eq!(submit(&read(u64::MAX, 8)), Err(SubmitError::Length));
    let node = NodeConfig {
        assembly_bytes_per_space: 5000,
        ..node_config(5)
    };
    let mut bench = Bench::new(node, client_config(100));
    let data = [1; 5001];
    bench.submit(&write(0, &data));
    bench.submit(&write(8192, &data[..5000]));
    bench.exchange();
    let outcomes: Vec<_> = bench.completions().iter().map(|end| end.outcome).collect();
    let refused = Err(Failure::Refused(Error::Length));
    assert_eq!(outcomes, [refused, Ok(Value::None)]);
    for _ in 0..63 {
        bench.submit(&read(0, 8));
    }
    bench.submit(&read(0, 8));
    let full = bench.client.submit(bench.now, SPACE, &read(0, 8));
    assert_eq!(full, Err(SubmitError::Full));
}

#[test]
fn a_write_of_many_messages_is_seen_as_a_whole_or_not_at_all() {
    let mut bench = Bench::new(node_config(5), client_config(100));
    let data: Vec<u8> = (0..5000).map(|n| n as u8 | 1).collect();
    bench.submit(&write(0, &data));
    let sent = bench.sent();
    assert_eq!(sent.len(), 6);
    for (n, datagram) in sent.iter().enumerate().rev() {
        assert_eq!(bench.memory.bytes(0..5000), vec![0; 5000], "{n}");
        // Each arrives twice.
        bench.answers(datagram);
        bench.answers(datagram);
    }
    assert_eq!(bench.memory.bytes(0..5000), data);
    assert_eq!(bench.node.counters().executed, 1);
    // All but one arrive, and then the node is restarted, or gives up.
    bench.wait(100 * MILLISECOND);
    bench.completions();
    for restarts in [false, true] {
        bench.submit(&write(0, &[9; 5000]));
        let sent = bench.sent();
        for datagram in &sent[1..] {
            bench.answers(datagram);
        }
        if restarts {
            bench.node = Node::new(node_config(6), bench.memory.clone());
        } else {
            bench.wait(61 * MILLISECOND);
            assert_eq!(bench.node.counters().abandoned, 1);
        }
        bench.answers(&sent[0]);
        bench.wait(20 * MILLISECOND);
        assert_eq!(bench.memory.bytes(0..5000), data);
        bench.exchange();
        let end = bench.completions().remove(0);
        assert_eq!(end.outcome, Err(Failure::OutcomeUnknown));
    }
}

#[test]
fn small_operations_share_datagrams() {
    let mut bench = Bench::new(node_config(5), client_config(100));
    for n in 0..12 {
        bench.submit(&write(4096 * n, &[1; 12]));
    }
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].len(), 12 * (REQUEST_HEADER + 12));
    let answers = bench.answers(&sent[0]);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].len(), 12 * RESPONSE_HEADER);
    bench.give(&answers);
    assert_eq!(bench.completions().len(), 12);
    // Answers that do not fit into one datagram come in several.
    for n in 0..12 {
        bench.submit(&read(4096 * n, 500));
    }
    let sent = bench.sent();
    let answers = bench.answers(&sent[0]);
    assert_eq!(answers.len(), 12);
    assert!(answers
        .iter()
        .all(|answer| answer.len() == RESPONSE_HEADER + 500));
}

#[test]
fn responses_on_the_way_stay_within_the_window_against_incast() {
    let client = ClientConfig {
        response_bytes_max: 10_000,
        queueing: 100 * MILLISECOND,
        ..client_config(100)
    };
    let mut bench = Bench::new(node_config(5), client);
    bench.submit(&read(0, 200_000));
    let mut most = 0;
    while bench.client.outstanding() > 0 {
        let sent = bench.sent();
        assert!(!sent.is_empty());
        let answers: Vec<_> = sent.iter().flat_map(|sent| bench.answers(sent)).collect();
        let bytes = answers.iter().map(Vec::len).sum::<usize>();
        most = most.max(bytes);
        bench.give(&answers);
    }
    assert!((8_000..=10_000).contains(&most), "{most}");
}

#[test]
fn the_window_fills_a_line_without_filling_its_queue() {
    let line = LineConfig {
        queue: Queue::Frames(2000),
        ..LineConfig::new(100_000_000)
    };
    let node = NodeConfig {
        timeout: Duration::from_secs(2),
        ..node_config(1)
    };
    let client = ClientConfig {
        timeout: Duration::from_secs(2),
        requests_max: 4096,
        retransmission_initial: 20 * MILLISECOND,
        retransmission_min: 10 * MILLISECOND,
        retransmission_max: 100 * MILLISECOND,
        ..client_config(1)
    };
    let bytes = 10 << 20;
    let mut pair = Pair::new(node, client, Memory::new(bytes), &line);
    let start = pair.testbed.now();
    let data = vec![1; bytes];
    pair.submit(SPACE, &write(0, &data));
    let mut longest = 0;
    while pair.client().outstanding() > 0 && pair.testbed.now().since(start).as_millis() < 3000 {
        pair.testbed.run_for(MILLISECOND);
        longest = longest.max(pair.testbed.lines(pair.cable)[0].in_flight());
    }
    let took = pair.testbed.now().since(start).as_secs_f64();
    // A megabyte takes 84 ms; 952 of 1048 bytes are data.
    let least = bytes as f64 * 8.0 / 1e8 * 1048.0 / 952.0;
    assert!(took < least * 1.15, "{took} s, at least {least} s");
    let counters = pair.testbed.lines(pair.cable)[0].counters();
    assert_eq!(counters.queue_dropped, 0);
    // The queueing time aimed at is 500 µs, which is six frames; slow start goes beyond that once.
    assert!(longest < 100, "{longest} frames");
    assert_eq!(pair.client().counters().retransmissions, 0);
}

/// A node with the real memory, and its spaces opened.
fn store() -> Store {
    let mut store = Store::new(&Config::new(8 << 20));
    for space in [SPACE, SpaceId(8)] {
        let open = store.execute(START, space, &Operation::Open, &mut Vec::new());
        assert_eq!(open, Ok(Value::None));
    }
    store
}

#[test]
fn every_operation_travels() {
    let mut pair = Pair::new(node_config(1), client_config(1), store(), &line());
    let alloc = Operation::Alloc {
        bytes: 8192,
        page: PageSize::Small,
        at: Some(0x4000_0000),
        permission: Permission::READ_WRITE,
        sparse: false,
    };
    let address = 0x4000_0000;
    assert_eq!(pair.run(&alloc).outcome, Ok(Value::Address(address)));
    assert_eq!(pair.run(&write(address, &[5; 8])).outcome, Ok(Value::None));
    let swap = Operation::CompareAndSwap {
        address,
        expected: 1,
        new: 2,
        guard: None,
    };
    let old = u64::from_le_bytes([5; 8]);
    assert_eq!(pair.run(&swap).outcome, Ok(Value::Old(old)));
    assert_eq!(pair.run(&add(address, 1)).outcome, Ok(Value::Old(old)));
    assert_eq!(pair.run(&read(address, 2)).data, [6, 5]);
    let name = b"shared";
    let region = Operation::Region {
        name,
        address,
        bytes: 4096,
    };
    let Ok(Value::Region(region)) = pair.run(&region).outcome else {
        panic!("a region")
    };
    let find = pair.run(&Operation::Find { name }).outcome;
    assert_eq!(find, Ok(Value::Region(region)));
    let to = SpaceId(8);
    let permission = Permission::READ;
    let grant = Operation::Grant {
        region,
        to,
        permission,
    };
    assert_eq!(pair.run(&grant).outcome, Ok(Value::None));
    let at = Some(0x1000);
    pair.submit(to, &Operation::Map { region, at });
    assert_eq!(pair.complete()[0].outcome, Ok(Value::Address(0x1000)));
    pair.submit(to, &read(0x1000, 2));
    assert_eq!(pair.complete()[0].data, [6, 5]);
    pair.submit(to, &write(0x1000, &[1]));
    let denied = Err(Failure::Refused(Error::Permission { address: 0x1000 }));
    assert_eq!(pair.complete()[0].outcome, denied);
    let revoke = Operation::Revoke { region, from: to };
    assert_eq!(pair.run(&revoke).outcome, Ok(Value::None));
    pair.submit(to, &read(0x1000, 2));
    let unmapped = Err(Failure::Refused(Error::Unmapped { address: 0x1000 }));
    assert_eq!(pair.complete()[0].outcome, unmapped);
    assert_eq!(
        pair.run(&Operation::Retire { region }).outcome,
        Ok(Value::None)
    );
    let lease = LEASE_MAX + MILLISECOND;
    let long = pair.run(&Operation::Lock { address, lease });
    assert_eq!(long.outcome, Err(Failure::Refused(Error::Lease)));
    let bytes = 8192;
    assert_eq!(
        pair.run(&Operation::Free { address, bytes }).outcome,
        Ok(Value::None)
    );
    let freed = Err(Failure::Refused(Error::Unmapped { address }));
    assert_eq!(pair.run(&read(address, 2)).outcome, freed);
    assert_eq!(pair.run(&Operation::Close).outcome, Ok(Value::None));
    let none = Err(Failure::Refused(Error::NoSuchSpace));
    assert_eq!(pair.run(&read(address, 2)).outcome, none);
    assert_eq!(pair.run(&Operation::Open).outcome, Ok(Value::None));
}

#[test]
fn a_client_that_dies_with_a_lock_neither_blocks_others_nor_writes_afterwards() {
    let mut pair = Pair::new(node_config(1), client_config(1), store(), &line());
    let (address, lease) = (0x1000, 100 * MILLISECOND);
    let alloc = Operation::Alloc {
        bytes: 4096,
        page: PageSize::Small,
        at: Some(address),
        permission: Permission::READ_WRITE,
        sparse: false,
    };
    assert_eq!(pair.run(&alloc).outcome, Ok(Value::Address(address)));
    let lock = Operation::Lock { address, lease };
    let Ok(Value::Token(token)) = pair.run(&lock).outcome else {
        panic!("a token")
    };
    // It dies, and another client of the space takes its place.
    let host = Host::new(
        client_config(1 << 32),
        Manual::default(),
        Corruption::none(),
    );
    pair.testbed.restart(pair.host, host);
    let Err(Failure::Refused(Error::Locked { retry_after })) = pair.run(&lock).outcome else {
        panic!("locked")
    };
    assert!(retry_after <= lease && retry_after > lease / 2);
    pair.testbed.run_for(retry_after);
    let Ok(Value::Token(next)) = pair.run(&lock).outcome else {
        panic!("a token")
    };
    assert!(next > token);
    let guarded = |token| Operation::Write {
        address: 0x1100,
        data: &[1],
        guard: Some(Guard {
            lock: address,
            token,
        }),
    };
    // What the first had on the way comes too late; the same token from any client.
    let stale = pair.run(&guarded(token)).outcome;
    assert_eq!(stale, Err(Failure::Refused(Error::StaleToken)));
    assert_eq!(pair.run(&guarded(next)).outcome, Ok(Value::None));
    let unlock = Operation::Unlock {
        address,
        token: next,
    };
    assert_eq!(pair.run(&unlock).outcome, Ok(Value::None));
}

#[test]
fn a_thousand_spaces_of_one_client_use_the_same_address() {
    let store = Store::new(&Config::new(16 << 20));
    let client = ClientConfig {
        operations_max: 5000,
        ..client_config(1)
    };
    let mut pair = Pair::new(node_config(1), client, store, &line());
    let alloc = Operation::Alloc {
        bytes: 4096,
        page: PageSize::Small,
        at: Some(0x1000),
        permission: Permission::READ_WRITE,
        sparse: false,
    };
    let numbers: Vec<[u8; 8]> = (0..1000u64).map(u64::to_le_bytes).collect();
    for (space, number) in (0..).map(SpaceId).zip(&numbers) {
        // Without waiting for any: they are ordered.
        pair.submit(space, &Operation::Open);
        pair.submit(space, &alloc);
        pair.submit(space, &write(0x1000, number));
        pair.submit(space, &read(0x1000, 8));
    }
    let completions = pair.complete();
    assert_eq!(completions.len(), 4000);
    let reads = completions.iter().filter(|end| !end.data.is_empty());
    assert!(reads
        .clone()
        .all(|end| end.data == end.space.0.to_le_bytes()));
    assert_eq!(reads.count(), 1000);
}

#[test]
fn a_server_of_the_testbed_forgets_everything_when_nothing_comes() {
    let mut pair = Pair::new(node_config(1), client_config(9), Memory::new(8192), &line());
    for n in 1..50 {
        pair.run(&add(0, n));
    }
    assert_eq!(pair.node().records(), 49);
    pair.testbed.run_for(100 * MILLISECOND);
    assert_eq!(pair.node().records(), 0);
    assert_eq!(pair.node().next_deadline(), Instant::NEVER);
    let _: &Server<Memory> = pair.testbed.node(pair.server);
}
