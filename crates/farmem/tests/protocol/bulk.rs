//! Long operations, which take fewer steps than others, have the same effect.

use tare_farmem::operation::{Error, Guard, Operation, PageSize, Permission, SpaceId, Value};
use tare_farmem::protocol::{
    Authentication, Client, ClientConfig, Datagrams, Failure, Node, NodeConfig, OwnedWrite,
    SubmitError, REQUEST_HEADER,
};

use crate::bench::{read, store, write, Bench, START};
use crate::transfers::open_window;
use crate::world::{client_config, node_config, MILLISECOND, SPACE};

fn owned(address: u64, data: Vec<u8>) -> OwnedWrite {
    OwnedWrite {
        address,
        data,
        guard: None,
    }
}

/// Adds to the little-endian field of a request, with wrap-around.
fn add_to_field(request: &mut [u8], at: usize, add: u64) {
    let field: &mut [u8; 8] = request[at..].first_chunk_mut().unwrap();
    *field = u64::from_le_bytes(*field).wrapping_add(add).to_le_bytes();
}

#[test]
fn each_segment_of_a_piece_is_checked_like_the_first() {
    let data: Vec<u8> = (0..9000).map(|n| n as u8 | 1).collect();
    // The field of the fourth segment that is wrong, what is added to it, and the numbers of
    // requests that are then malformed, of another epoch, and too old.
    let long_ago = 0u64.wrapping_sub(61 * 1_000_000);
    let cases = [
        (8, 1, (0, 0, 0)),
        (24, 1, (0, 1, 0)),
        (40, long_ago, (0, 0, 1)),
        (40, 21 * 1_000_000, (0, 0, 1)),
        (48, 8, (1, 0, 0)),
        (56, 8, (1, 0, 0)),
    ];
    for (at, add, expected) in cases {
        let mut bench = Bench::new(node_config(5), client_config(100));
        bench.submit(&write(0, &data));
        let mut sent = bench.sent();
        let right = sent[3].clone();
        add_to_field(&mut sent[3], at, add);
        bench.answers(&sent.concat());
        let counters = bench.node.counters();
        let found = (counters.malformed, counters.stale, counters.expired);
        assert_eq!(found, expected, "field at {at}");
        assert_eq!(bench.memory.bytes(0..9000), vec![0; 9000], "field at {at}");
        assert_eq!(counters.executed, 0, "field at {at}");
        bench.answers(&right);
        assert_eq!(bench.memory.bytes(0..9000), data, "field at {at}");
    }
}

#[test]
fn a_second_copy_of_a_segment_right_behind_the_first_changes_nothing() {
    let mut bench = Bench::new(node_config(5), client_config(100));
    let data: Vec<u8> = (0..5000).map(|n| n as u8 | 1).collect();
    bench.submit(&write(0, &data));
    let sent = bench.sent();
    for place in [1, sent.len() - 2] {
        // With the number of the next attempt, and other bytes.
        let mut copy = sent[place].clone();
        add_to_field(&mut copy, 16, 1);
        let first: [u8; 8] = sent[0][16..24].try_into().unwrap();
        copy[32..40].copy_from_slice(&first);
        copy[REQUEST_HEADER..].fill(0);
        bench.answers(&[&sent[0], &sent[place], &copy].map(Vec::as_slice).concat());
    }
    bench.answers(&sent.concat());
    assert_eq!(bench.memory.bytes(0..5000), data);
    assert_eq!(bench.node.counters().executed, 1);
}

#[test]
fn the_bytes_of_an_owned_write_are_sent_again_and_come_back_whatever_its_end() {
    let mut bench = Bench::new(node_config(5), client_config(100));
    let data: Vec<u8> = (0..5000).map(|n| n as u8 | 1).collect();
    let (copy, place) = (data.clone(), data.as_ptr());
    let submit = |client: &mut Client, now, write| client.submit_write(now, SPACE, write);
    submit(&mut bench.client, bench.now, owned(0, data)).unwrap();
    // All are lost but one.
    let sent = bench.sent();
    let answers = bench.answers(&sent[2]);
    bench.give(&answers);
    bench.wait(10 * MILLISECOND);
    bench.exchange();
    let end = bench.completions().remove(0);
    assert_eq!(end.outcome, Ok(Value::None));
    assert_eq!((end.data.as_ptr(), end.data.len()), (place, copy.len()));
    assert_eq!(bench.memory.bytes(0..5000), copy);
    // It is refused, and then nothing answers.
    submit(&mut bench.client, bench.now, owned(1 << 40, end.data)).unwrap();
    bench.exchange();
    let end = bench.completions().remove(0);
    assert!(matches!(end.outcome, Err(Failure::Refused(_))));
    assert_eq!(end.data, copy);
    submit(&mut bench.client, bench.now, owned(0, end.data)).unwrap();
    bench.sent();
    bench.wait(100 * MILLISECOND);
    let end = bench.completions().remove(0);
    assert_eq!(end.outcome, Err(Failure::OutcomeUnknown));
    assert_eq!(end.data, copy);
    // It is not taken.
    let (error, write) = submit(&mut bench.client, bench.now, owned(u64::MAX, end.data))
        .expect_err("beyond the last address");
    assert_eq!((error, &write.data), (SubmitError::Length, &copy));
}

#[test]
fn an_owned_write_waits_for_others_on_its_pages_and_others_for_it() {
    let mut bench = Bench::new(node_config(5), client_config(100));
    bench.submit(&write(0, &[1; 16]));
    let write = owned(8, vec![2; 16]);
    bench.client.submit_write(bench.now, SPACE, write).unwrap();
    bench.submit(&read(0, 32));
    assert_eq!(bench.sent().len(), 1);
    assert_eq!(bench.client.counters().ordered, 2);
}

/// Everything that a client sends, as over a link that gathers, and the number of runs.
fn gathered(bench: &mut Bench) -> (Vec<Vec<u8>>, usize) {
    let (mut sent, mut runs) = (Vec::new(), 0);
    loop {
        while let Some(run) = bench.client.transmit_run(bench.now, 1) {
            let datagrams: Vec<_> = run.datagrams().map(|parts| parts.concat()).collect();
            assert!(datagrams
                .iter()
                .all(|one| one.len() == run.datagram_bytes()));
            assert!(datagrams.iter().map(Vec::len).sum::<usize>() <= 65_535 - 48);
            sent.extend(datagrams);
            runs += 1;
        }
        let others = bench.sent();
        if others.is_empty() {
            return (sent, runs);
        }
        sent.extend(others);
    }
}

/// The messages of datagrams, sorted.
fn messages(datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (all, mut messages) = (datagrams.concat(), Vec::new());
    let mut rest = &all[..];
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[4..8].try_into().unwrap());
        let (message, more) = rest.split_at(len as usize);
        messages.push(message.to_vec());
        rest = more;
    }
    messages.sort();
    messages
}

#[test]
fn runs_are_the_datagrams_that_are_sent_otherwise() {
    let guard = Some(Guard { lock: 8, token: 3 });
    for (len, guard, expected) in [
        (2800, None, 1),
        (1399, None, 0),
        (2800, guard, 1),
        (9000, guard, 1),
        (65_536, None, 2),
        (100_000, None, 2),
    ] {
        let data: Vec<u8> = (0..len).map(|n| (n % 251) as u8 | 1).collect();
        let write = |address| Operation::Write {
            address,
            data: &data,
            guard,
        };
        let mut benches = [open_window(), open_window()];
        for bench in &mut benches {
            bench.submit(&write(0));
        }
        let [whole, parts] = &mut benches;
        let (sent, runs) = gathered(parts);
        assert!(sent == whole.sent(), "{len} bytes");
        assert_eq!(runs, expected, "{len} bytes");
        assert_eq!(parts.client.next_deadline(), whole.client.next_deadline());
        // With another write, which takes turns with it, nothing is left out and nothing doubled.
        for bench in &mut benches {
            bench.submit(&write(1 << 19));
            bench.submit(&read(1 << 18, 9000));
        }
        let [whole, parts] = &mut benches;
        let (sent, _) = gathered(parts);
        assert!(messages(&sent) == messages(&whole.sent()), "{len} bytes");
    }
}

#[test]
fn several_writes_share_a_run() {
    let mut bench = open_window();
    let data: Vec<u8> = (0..3 * 1400).map(|n| (n % 251) as u8 | 1).collect();
    for n in 0..3 {
        bench.submit(&write(8192 * n, &data));
    }
    let (sent, runs) = gathered(&mut bench);
    assert_eq!((sent.len(), runs), (9, 1));
    for datagram in sent {
        let answers = bench.answers(&datagram);
        bench.give(&answers);
    }
    assert_eq!(bench.completions().len(), 3);
    for n in 0..3 {
        assert_eq!(bench.memory.bytes(8192 * n..8192 * n + data.len()), data);
    }
}

#[test]
fn long_writes_take_turns_in_runs() {
    let mut bench = open_window();
    let data = vec![7; 150_000];
    bench.submit(&write(0, &data));
    bench.submit(&write(1 << 19, &data));
    // The window has room for less than one of them.
    let (sent, runs) = gathered(&mut bench);
    assert!(runs > 0 && sent.len() * 1400 < data.len());
    let of_second = |datagram: &&Vec<u8>| datagram[48..56] == (1u64 << 19).to_le_bytes();
    let second = sent.iter().filter(of_second).count();
    assert!((1..sent.len()).contains(&second), "{second}");
}

#[test]
fn a_run_ends_where_the_window_does_and_what_is_lost_is_sent_again() {
    let config = ClientConfig {
        window_bytes_max: 10_000,
        ..client_config(100)
    };
    let mut bench = Bench::new(node_config(5), config);
    let data: Vec<u8> = (0..60_000u32).map(|n| (n % 251) as u8 | 1).collect();
    bench.submit(&write(4096, &data));
    let (sent, runs) = gathered(&mut bench);
    let bytes: usize = sent.iter().map(Vec::len).sum();
    assert_eq!(runs, 1);
    assert!((7_000..=10_000).contains(&bytes), "{bytes}");
    // All of it is lost.
    for _ in 0..200 {
        bench.wait(MILLISECOND);
        let (sent, _) = gathered(&mut bench);
        for datagram in sent {
            let answers = bench.answers(&datagram);
            bench.give(&answers);
        }
    }
    assert_eq!(bench.completions()[0].outcome, Ok(Value::None));
    assert_eq!(bench.memory.bytes(4096..64_096), data);
    assert_eq!(bench.node.counters().executed, 1);
}

#[test]
fn messages_with_a_trailer_are_never_in_runs() {
    let authentication = Authentication::Checksum;
    let node = NodeConfig {
        authentication,
        ..node_config(5)
    };
    let client = ClientConfig {
        authentication,
        ..client_config(100)
    };
    let mut bench = Bench::new(node, client);
    bench.submit(&write(0, &[9; 30_000]));
    let (sent, runs) = gathered(&mut bench);
    assert_eq!(runs, 0);
    for datagram in sent {
        let answers = bench.answers(&datagram);
        bench.give(&answers);
    }
    bench.exchange();
    assert_eq!(bench.memory.bytes(0..30_000), vec![9; 30_000]);
}

/// Both sides, with a window of several runs.
fn wide_window() -> Bench {
    let mut bench = open_window();
    let data = vec![7; 50_000];
    for _ in 0..50 {
        (0..5).for_each(|n| bench.submit(&write(65_536 * n, &data)));
        bench.exchange();
        assert_eq!(bench.completions().len(), 5);
    }
    bench
}

/// The datagrams that a link sends at a time.
fn run(bench: &mut Bench) -> Datagrams {
    let mut run = Datagrams::default();
    while run.bytes() < 62 << 10 && bench.client.transmit(bench.now, &mut run) {}
    run
}

fn answer(bench: &mut Bench, run: &Datagrams) {
    let answers = bench.answers(&run.iter().collect::<Vec<_>>().concat());
    bench.give(&answers);
}

#[test]
fn the_end_of_a_long_write_leaves_with_the_next_operation_or_when_less_is_on_the_way() {
    let data = vec![7; 50_000];
    for has_next in [false, true] {
        let mut bench = wide_window();
        (0..3).for_each(|n| bench.submit(&write(65_536 * n, &data)));
        let runs = [run(&mut bench), run(&mut bench)];
        assert!(runs.iter().all(|run| run.bytes() > 62 << 10));
        // Two runs are on the way, and the rest is not as long as half of one.
        assert!(run(&mut bench).is_empty());
        if has_next {
            bench.submit(&write(65_536 * 3, &data));
            let third = run(&mut bench);
            assert!(third.bytes() > 62 << 10, "{}", third.bytes());
            answer(&mut bench, &third);
        }
        answer(&mut bench, &runs[0]);
        let last = run(&mut bench);
        assert!(!last.is_empty());
        answer(&mut bench, &last);
        answer(&mut bench, &runs[1]);
        let outcomes = bench.completions().into_iter().map(|end| end.outcome);
        assert_eq!(
            outcomes.collect::<Vec<_>>(),
            vec![Ok(Value::None); 3 + usize::from(has_next)]
        );
    }
}

#[test]
fn what_is_sent_again_does_not_wait_with_the_end_of_a_long_write() {
    let mut bench = wide_window();
    let data = vec![7; 50_000];
    (0..3).for_each(|n| bench.submit(&write(65_536 * n, &data)));
    let runs = [run(&mut bench), run(&mut bench)];
    assert!(runs.iter().all(|run| run.bytes() > 62 << 10));
    for _ in 0..100 {
        bench.wait(MILLISECOND);
        bench.exchange();
    }
    let outcomes = bench.completions().into_iter().map(|end| end.outcome);
    assert_eq!(outcomes.collect::<Vec<_>>(), vec![Ok(Value::None); 3]);
}

#[test]
fn reads_of_a_page_of_several_and_of_none_have_the_bytes_or_the_error_that_they_should() {
    let mut store = store();
    let alloc = Operation::Alloc {
        bytes: 3 * 4096,
        page: PageSize::Small,
        at: Some(0),
        permission: Permission::READ_WRITE,
        sparse: false,
    };
    let allocated = store.execute(START, SPACE, &alloc, &mut Vec::new());
    assert_eq!(allocated, Ok(Value::Address(0)));
    let data: Vec<u8> = (0..8192u32).map(|n| (n % 251) as u8 | 1).collect();
    // The third page was never written.
    store.write(SPACE, 0, &data).unwrap();
    let expected = [data, vec![0; 4096]].concat();
    let node = NodeConfig {
        datagram_bytes: 8192,
        ..node_config(5)
    };
    let mut node = Node::new(node, store);
    let config = ClientConfig {
        datagram_bytes: Some(8192),
        ..client_config(100)
    };
    let mut client = Client::new(config);
    let mut run = |space: SpaceId, operation: &Operation<'_>| {
        client.submit(START, space, operation).unwrap();
        // One exchange for the epoch, one for the operation.
        for _ in 0..3 {
            let mut sent = Datagrams::default();
            while client.transmit(START, &mut sent) {}
            for datagram in sent.iter() {
                let mut replies = Datagrams::default();
                node.receive(START, &mut datagram.to_vec(), &mut replies);
                for reply in replies.iter() {
                    client.receive(START, &mut reply.to_vec());
                }
            }
            if let Some(end) = client.poll() {
                return (end.outcome, end.data);
            }
        }
        panic!("no end of {operation:?}");
    };
    for (address, len) in [
        (0, 1),
        (0, 4096),
        (4080, 16),
        (4090, 12),
        (1, 8191),
        (8192, 9),
        (100, 7000),
    ] {
        let (outcome, data) = run(SPACE, &read(address, len));
        assert_eq!(outcome, Ok(Value::Bytes(len)), "{address} {len}");
        assert_eq!(data, expected[address as usize..][..len as usize]);
    }
    let unmapped = Error::Unmapped { address: 3 * 4096 };
    let refused = [
        (SPACE, 3 * 4096, 8, unmapped),
        (SPACE, 3 * 4096 - 8, 16, unmapped),
        (SPACE, 0, 0, Error::Length),
        (SpaceId(8), 0, 8, Error::Unmapped { address: 0 }),
        (SpaceId(99), 0, 8, Error::NoSuchSpace),
    ];
    for (space, address, len, error) in refused {
        let (outcome, data) = run(space, &read(address, len));
        let refused = Err(Failure::Refused(error));
        assert_eq!((outcome, data.len()), (refused, 0), "{address} {len}");
    }
}
