//! The promises of the protocol one by one, each where it is hardest to keep.

use std::time::Duration;

use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{Error, Operation, PageSize, Permission, SpaceId, Value};
use tare_farmem::protocol::{
    Authentication, Client, Datagrams, Failure, Node, NodeConfig, Protection, Response,
    REQUEST_HEADER,
};
use tare_sim::{Instant, Random};

use crate::bench::{add, read, store, write, Bench, START};
use crate::world::{client_config, line, node_config, Memory, Pair, MILLISECOND, SPACE};

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
fn a_request_is_sent_again_a_few_round_trips_after_a_later_one_was_answered() {
    const ROUND_TRIP: Duration = Duration::from_micros(100);
    for is_later_answered in [false, true] {
        let mut bench = Bench::new(node_config(5), client_config(100));
        let round_trip = |bench: &mut Bench, page: u64| {
            bench.submit(&read(page << 12, 8));
            let sent = bench.sent().concat();
            bench.wait(ROUND_TRIP);
            let answers = bench.answers(&sent);
            bench.give(&answers);
        };
        (0..30).for_each(|_| round_trip(&mut bench, 0));
        bench.completions();
        // This one is lost.
        bench.submit(&read(0, 8));
        assert_eq!(bench.sent().len(), 1);
        bench.wait(ROUND_TRIP / 10);
        if is_later_answered {
            round_trip(&mut bench, 1);
        }
        bench.wait(2 * ROUND_TRIP);
        // Long before the least timeout, which is a millisecond.
        let again = bench.sent().concat();
        let retransmissions = bench.client.counters().retransmissions;
        assert_eq!(retransmissions, u64::from(is_later_answered));
        assert_eq!(again.is_empty(), !is_later_answered);
        let answers = bench.answers(&again);
        bench.give(&answers);
        assert_eq!(
            bench.completions().len(),
            2 * usize::from(is_later_answered)
        );
    }
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
    let mut replies = Datagrams::default();
    let mut client = Client::new(client_config(500));
    let now = pair.testbed.now();
    let mut copies = Datagrams::default();
    client.submit(now, SPACE, &add(0x1000, 1)).unwrap();
    let node = &mut pair.testbed.node_mut(pair.server).node;
    while client.transmit(now, &mut copies) {
        let mut datagram = copies.iter().last().unwrap().to_vec();
        node.receive(now, &mut datagram, &mut replies);
        let answers: Vec<_> = replies.iter().map(<[u8]>::to_vec).collect();
        for mut answer in answers {
            client.receive(now, &mut answer);
        }
        replies.clear();
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
        .for_each(|copy| node.receive(now, &mut copy.to_vec(), &mut replies));
    assert_eq!(node.counters().repeated, 1);
    assert_eq!(pair.run(&read(0x1000, 8)).data, [0; 8]);
}

#[test]
fn a_node_without_room_for_records_runs_nothing_that_it_could_not_remember() {
    // Four requests per horizon of 60 ms, and memory for four.
    let by_network = NodeConfig {
        bytes_per_second: 4 * REQUEST_HEADER as u64 * 1000 / 60 + 1,
        ..node_config(5)
    };
    let by_memory = NodeConfig {
        record_bytes: 4 * 48 + 47,
        ..node_config(5)
    };
    for node in [by_network, by_memory] {
        assert_eq!(node.records_max(), 4);
        nothing_runs_that_could_not_be_remembered(node);
    }
}

/// Runs a node that remembers four operations.
fn nothing_runs_that_could_not_be_remembered(node: NodeConfig) {
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
fn a_node_that_is_older_than_the_last_one_repeats_nothing_that_was_sent() {
    let mut bench = Bench::new(node_config(6), client_config(100));
    // It was started before the operations are sent, and has run none of them.
    let mut older = Node::new(node_config(5), bench.memory.clone());
    older.receive(bench.now, &mut [0], &mut Datagrams::default());
    bench.wait(MILLISECOND);
    bench.submit(&add(0, 1));
    let sent = bench.sent();
    bench.answers(&sent[0]);
    bench.submit(&read(8192, 8));
    bench.submit(&add(8, 2));
    bench.sent();
    bench.node = older;
    bench.wait(3 * MILLISECOND);
    bench.exchange();
    let mut completions = bench.completions();
    completions.sort_by_key(|completion| completion.id);
    let outcomes: Vec<_> = completions.iter().map(|end| end.outcome).collect();
    let unknown = Err(Failure::OutcomeUnknown);
    // The last one had waited for the first, and was never sent before.
    assert_eq!(outcomes, [unknown, Ok(Value::Bytes(8)), Ok(Value::Old(0))]);
    assert_eq!([1, 2].map(|n| bench.memory.runs(n)), [1, 1]);
    assert_eq!(bench.client.epoch(), 5);
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
    let none = &mut Protection::new(Authentication::None);
    let mut first = old[0].clone();
    let (answer, _) = Response::parse(&mut first, none).unwrap();
    let mut other = Vec::new();
    let space = SpaceId(SPACE.0 + 1);
    Response { space, ..answer }.emit(none, &mut other).unwrap();
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

#[test]
fn allocations_without_an_address_and_lookups_are_ordered_with_fences_and_spaces_alone() {
    let alloc = Operation::Alloc {
        bytes: 4096,
        page: PageSize::Small,
        at: None,
        permission: Permission::READ_WRITE,
        sparse: false,
    };
    let find = Operation::Find { name: b"shared" };
    let requests = |bench: &mut Bench, operations: &[Operation<'_>]| -> Vec<u64> {
        let count = |operation| {
            let before = bench.client.counters().requests;
            bench.submit(operation);
            bench.sent();
            bench.client.counters().requests - before
        };
        operations.iter().map(count).collect()
    };
    for operation in [alloc, find] {
        let mut bench = Bench::new(node_config(5), client_config(100));
        // A fence, and all that would change a space that it is in.
        let around = [
            operation,
            Operation::Fence,
            Operation::Close,
            Operation::Open,
        ];
        assert_eq!(requests(&mut bench, &around), [1, 0, 0, 0], "{operation:?}");
        assert_eq!(bench.completions(), [], "the fence waits");
        bench.wait(3 * MILLISECOND);
        bench.exchange();
        let ids: Vec<_> = bench.completions().iter().map(|end| end.id.0).collect();
        assert_eq!(ids, [1, 2, 3, 4], "{operation:?}");
        let behind = [Operation::Open, operation, operation];
        assert_eq!(requests(&mut bench, &behind), [1, 0, 0], "{operation:?}");
        bench.wait(3 * MILLISECOND);
        bench.exchange();
        assert_eq!(bench.completions().len(), 3);
        // Nothing else waits for it, nor it for anything else. No page of more than 4 KiB begins in
        // what is freed.
        let free = Operation::Free {
            address: 4096,
            bytes: (1 << 20) - 4096,
        };
        let others = [operation, read(4096, 8), operation, free, operation];
        assert_eq!(requests(&mut bench, &others), [1, 1, 1, 0, 1]);
        let page = [operation, add(1 << 20, 1), operation, read(1 << 20, 8)];
        assert_eq!(requests(&mut bench, &page), [1, 1, 1, 0]);
    }
}

#[test]
fn an_answer_that_no_node_gives_to_a_read_leaves_it_to_be_sent_again() {
    let mut bench = Bench::new(node_config(5), client_config(100));
    bench.submit(&read(0, 8));
    let sent = bench.sent();
    let mut answer = bench.answers(&sent[0]).remove(0);
    let none = &mut Protection::new(Authentication::None);
    let (response, _) = Response::parse(&mut answer, none).unwrap();
    // Beyond the horizon.
    let expired = Response {
        status: 4,
        body: &[],
        ..response
    };
    let mut forged = Vec::new();
    expired.emit(none, &mut forged).unwrap();
    bench.give(&[forged]);
    assert_eq!(bench.completions(), []);
    assert_eq!(bench.client.counters().malformed, 1);
    bench.wait(3 * MILLISECOND);
    bench.exchange();
    assert_eq!(bench.completions().len(), 1);
}

#[test]
fn an_answer_of_another_epoch_or_space_ends_nothing() {
    // Without a checksum, so that it is the fields that are looked at.
    let (mut node, mut client) = (node_config(5), client_config(100));
    node.authentication = Authentication::None;
    client.authentication = Authentication::None;
    // The space, and the epoch.
    for at in [8, 24] {
        let mut bench = Bench::new(node, client);
        bench.submit(&read(0, 8));
        let sent = bench.sent();
        let answers = bench.answers(&sent[0]);
        let mut other = answers.clone();
        other[0][at] ^= 1;
        bench.give(&other);
        assert_eq!(bench.completions(), []);
        bench.give(&answers);
        assert_eq!(bench.completions().len(), 1);
    }
}

/// A node and a client, whose space has allocated memory with old bytes. None is zeroed by itself.
fn with_old_bytes(bytes: u64) -> Pair<Store> {
    let mut store = Store::new(&Config::new(bytes));
    store.open(SPACE).unwrap();
    let page = PageSize::Small;
    let alloc = |store: &mut Store| {
        let permission = Permission::READ_WRITE;
        store.alloc(SPACE, bytes, page, Some(0), permission, false)
    };
    alloc(&mut store).unwrap();
    store.write(SPACE, 0, &vec![5; bytes as usize]).unwrap();
    store.free(SPACE, 0, bytes).unwrap();
    alloc(&mut store).unwrap();
    Pair::new(node_config(1), client_config(1), store, &line())
}

#[test]
fn a_long_region_is_made_by_a_node_that_is_never_idle() {
    const BYTES: u64 = 64 << 20;
    let mut pair = with_old_bytes(BYTES);
    // The client knows the round trip.
    assert!(pair.run(&read(0, 8)).outcome.is_ok());
    let region = Operation::Region {
        name: b"all",
        address: 0,
        bytes: BYTES,
    };
    let outcome = pair.run(&region).outcome;
    assert!(matches!(outcome, Ok(Value::Region(_))), "{outcome:?}");
    assert_eq!(pair.node().counters().busy, BYTES >> 21);
    // Each time it was asked again after the least pause.
    assert!(pair.testbed.now() < Instant::ZERO + 40 * MILLISECOND);
}

#[test]
fn a_region_over_sockets_is_busy_until_its_pages_are_prepared() {
    const BYTES: u64 = 4 << 20;
    let mut pair = with_old_bytes(BYTES);
    let region = Operation::Region {
        name: b"all",
        address: 0,
        bytes: BYTES,
    };
    assert!(matches!(pair.run(&region).outcome, Ok(Value::Region(_))));
    // 2 MiB are zeroed for each request, and the last one finds that all is.
    assert_eq!(pair.node().counters().busy, 2);
    assert_eq!(pair.node().store().counts().zeroed_late, BYTES >> 12);
    // One that is refused is refused at once.
    let refused = Operation::Region {
        name: b"other",
        address: 1,
        bytes: BYTES,
    };
    let misaligned = Error::Misaligned { multiple: 4096 };
    let outcome = pair.run(&refused).outcome;
    assert_eq!(outcome, Err(Failure::Refused(misaligned)));
    assert_eq!(pair.node().counters().busy, 2);
}

#[test]
fn a_client_that_was_idle_asks_for_the_time_before_its_next_change() {
    // The clocks of both sides may run wrong by 500 millionths in all.
    for (gain, share) in [(-500_000, 0.0), (500_000, 0.0), (500_000, 1.0)] {
        let mut pair = Pair::new(node_config(1), client_config(1), Memory::new(64), &line());
        let clock = pair.testbed.clock_mut(pair.server);
        clock.set_gain(Instant::ZERO, gain);
        let host = pair.testbed.node_mut(pair.host);
        host.client.exchange(share, Random::new(1));
        let mut sum = 0;
        // A timeout of the node is 20 ms.
        for (n, (idle_ms, asks)) in [
            (0, true),
            (5000, false),
            (6000, true),
            (83 * 60_000, true),
            (1, false),
        ]
        .into_iter()
        .enumerate()
        {
            pair.testbed.run_for(idle_ms * MILLISECOND);
            let before = pair.client().counters().requests;
            let done = pair.run(&add(8, 1 + n as u64));
            assert_eq!(done.outcome, Ok(Value::Old(sum)), "after {idle_ms} ms");
            let requests = pair.client().counters().requests - before;
            assert_eq!(requests, 1 + u64::from(asks), "after {idle_ms} ms");
            sum += 1 + n as u64;
        }
        // Reads need no time, and bring it along.
        pair.testbed.run_for(83 * 60_000 * MILLISECOND);
        let before = pair.client().counters().requests;
        for operation in [read(8, 8), add(8, 1)] {
            assert!(pair.run(&operation).outcome.is_ok());
        }
        assert_eq!(pair.client().counters().requests - before, 2);
        // A change that waits for the time was not sent.
        pair.testbed.run_for(6000 * MILLISECOND);
        pair.testbed.kill(pair.server);
        assert_eq!(pair.run(&add(8, 1)).outcome, Err(Failure::NodeGone));
    }
}

#[test]
fn a_long_write_after_an_idle_time_asks_for_the_time_once() {
    let mut pair = Pair::new(
        node_config(1),
        client_config(1),
        Memory::new(1 << 16),
        &line(),
    );
    let clock = pair.testbed.clock_mut(pair.server);
    clock.set_gain(Instant::ZERO, 500_000);
    const IDLE_MS: u32 = 83 * 60_000;
    let mut sent = Vec::new();
    // The write alone, several times, since every second one is sent as a run; and behind a read,
    // which needs no time.
    for (idle_ms, has_read) in [
        (0, false),
        (1, false),
        (IDLE_MS, false),
        (IDLE_MS, false),
        (IDLE_MS, true),
        (IDLE_MS, true),
        (1, true),
    ] {
        pair.testbed.run_for(idle_ms * MILLISECOND);
        let before = pair.client().counters().requests;
        if has_read {
            pair.submit(SPACE, &read(8, 8));
        }
        pair.submit(SPACE, &write(4096, &[7; 10_000]));
        pair.submit(SPACE, &add(0, 1));
        let done = pair.complete();
        assert_eq!(done.len(), 2 + usize::from(has_read));
        assert!(done.iter().all(|done| done.outcome.is_ok()), "{done:?}");
        let requests = pair.client().counters().requests - before;
        sent.push(requests - u64::from(has_read));
    }
    let once = sent[1];
    assert_eq!(sent, [1, 0, 1, 1, 1, 1, 0].map(|asks| once + asks));
}
