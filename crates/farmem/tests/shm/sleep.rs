//! Each step of falling asleep and of serving in turn, one side after the other in one thread.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use tare_farmem::protocol::{Node as ProtocolNode, NodeConfig};
use tare_farmem::serve::{ShmSource, Source};
use tare_farmem::transport::Waiting;

use super::*;

/// A node and clients, all idle.
fn node_and<const CLIENTS: usize>(config: ServerConfig) -> (Server, [Client; CLIENTS]) {
    let path = socket_path();
    let mut server = Server::listen(&path, config).unwrap();
    let connect = move || [(); CLIENTS].map(|()| Client::connect(&path, &PATIENT).unwrap());
    let clients = thread::spawn(connect);
    while server.counters().connected < CLIENTS as u64 {
        server.wait(Some(Duration::from_secs(1))).unwrap();
    }
    (server, clients.join().unwrap())
}

fn pair() -> (Server, Client) {
    let (server, [client]) = node_and(ServerConfig::new(1));
    (server, client)
}

fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    let mut ready = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    poll(&mut ready, Some(&Timespec::default())).unwrap() > 0
}

fn submit(client: &mut Client) {
    client.submit(SpaceId(1), &Operation::Open).unwrap();
    client.progress(Duration::ZERO).unwrap();
}

fn answer(server: &mut Server, memory: &mut Store) {
    let before = server.counters().entries;
    while server.counters().entries == before {
        server.turn(memory, &tare_sim::Instant::now).unwrap();
    }
    // The fence before the look at the client's word is in a turn without entries.
    server.turn(memory, &tare_sim::Instant::now).unwrap();
}

#[test]
fn a_node_does_not_sleep_if_an_entry_is_there_already() {
    let (mut server, mut client) = pair();
    // It polls after its first message.
    submit(&mut client);
    server.wake().unwrap();
    answer(&mut server, &mut store());
    submit(&mut client);
    assert!(!server.prepare_to_sleep());
    answer(&mut server, &mut store());
    assert!(server.prepare_to_sleep());
}

#[test]
fn an_entry_wakes_a_node_that_is_asleep() {
    let (mut server, mut client) = pair();
    assert!(server.prepare_to_sleep());
    assert!(!is_readable(server.as_fd()));
    submit(&mut client);
    assert!(is_readable(server.as_fd()));
    server.wake().unwrap();
    answer(&mut server, &mut store());
    client.progress(Duration::ZERO).unwrap();
    assert_eq!(client.poll().unwrap().outcome, Ok(Value::None));
}

#[test]
fn a_client_does_not_sleep_if_the_answer_is_there_already_and_is_woken_if_it_comes_later() {
    let (mut server, mut client) = pair();
    let mut memory = store();
    submit(&mut client);
    server.wake().unwrap();
    answer(&mut server, &mut memory);
    assert!(is_readable(client.descriptor().unwrap()));
    client.progress(Duration::ZERO).unwrap();
    assert!(client.poll().is_some());
    submit(&mut client);
    server.wake().unwrap();
    assert!(!is_readable(client.descriptor().unwrap()));
    answer(&mut server, &mut memory);
    // Notified, since it was asleep when the answer came.
    assert_eq!(server.counters().notifications, 1);
    client.progress(Duration::ZERO).unwrap();
    assert!(client.poll().is_some());
}

#[test]
fn a_worker_does_not_sleep_on_the_descriptor_if_an_entry_is_there_already() {
    let (server, mut client) = pair();
    let node = tare_farmem::serve::FairMutex::new(ProtocolNode::new(NodeConfig::new(1), store()));
    let mut source = ShmSource::new(server).unwrap();
    let turn = |source: &mut ShmSource| {
        let turn = source.turn(&node, Duration::ZERO, Waiting::Busy).unwrap();
        turn.received
    };
    let is_ready = |source: &ShmSource| {
        let descriptor = Source::<Store>::descriptor(source).unwrap();
        is_readable(descriptor)
    };
    assert!(!is_ready(&source));
    submit(&mut client);
    assert!(is_ready(&source));
    assert_eq!(turn(&mut source), 1);
    // Now it polls the client, which does not notify it.
    submit(&mut client);
    assert!(is_ready(&source));
    assert_eq!(turn(&mut source), 1);
    assert!(!is_ready(&source));
}

#[test]
fn a_client_that_is_idle_while_another_is_not_is_no_longer_polled() {
    let (mut server, [mut busy, mut idle]) = node_and(ServerConfig {
        idle_rounds: 100,
        ..ServerConfig::new(1)
    });
    let mut memory = store();
    for client in [&mut busy, &mut idle] {
        submit(client);
        server.wake().unwrap();
        answer(&mut server, &mut memory);
        client.progress(Duration::ZERO).unwrap();
    }
    assert_eq!(server.clients_polled(), 2);
    let mut turns = 0;
    while server.clients_polled() == 2 {
        turns += 1;
        assert!(turns < 20_000, "both are polled");
        submit(&mut busy);
        server.turn(&mut memory, &tare_sim::Instant::now).unwrap();
        busy.progress(Duration::ZERO).unwrap();
        assert!(busy.poll().is_some());
    }
    assert!(turns >= 100, "{turns}");
    let before = server.counters().wakeups;
    // The one that is not polled notifies the node.
    submit(&mut idle);
    assert!(is_readable(server.as_fd()));
    server.wake().unwrap();
    answer(&mut server, &mut memory);
    assert_eq!(server.clients_polled(), 2);
    assert_eq!(server.counters().wakeups, before + 1);
}

#[test]
fn a_client_is_answered_in_the_middle_of_the_long_allocation_of_another() {
    const PAGES: u64 = 4096;
    let (mut server, [mut slow, mut quick]) = node_and(ServerConfig::new(1));
    let mut memory = store();
    // Both are polled after their first messages.
    for (n, client) in [&mut slow, &mut quick].into_iter().enumerate() {
        let id = client.submit(SpaceId(n as u64), &Operation::Open).unwrap();
        client.progress(Duration::ZERO).unwrap();
        server.wake().unwrap();
        answer(&mut server, &mut memory);
        client.progress(Duration::ZERO).unwrap();
        assert_eq!(client.poll().unwrap().id, id);
    }
    for _ in 0..2 {
        let alloc = Operation::Alloc {
            bytes: PAGES << 12,
            page: PageSize::Small,
            at: Some(BASE),
            permission: Permission::READ_WRITE,
            sparse: false,
        };
        slow.submit(SpaceId(0), &alloc).unwrap();
        slow.progress(Duration::ZERO).unwrap();
        let mut answers = 0;
        while slow.outstanding() > 0 {
            quick.submit(SpaceId(1), &Operation::Fence).unwrap();
            quick
                .submit(
                    SpaceId(1),
                    &Operation::Read {
                        address: BASE,
                        len: 1,
                    },
                )
                .unwrap();
            quick.progress(Duration::ZERO).unwrap();
            server.turn(&mut memory, &tare_sim::Instant::now).unwrap();
            quick.progress(Duration::ZERO).unwrap();
            assert_eq!(quick.outstanding(), 0, "answered in one turn");
            while quick.poll().is_some() {}
            answers += 1;
            slow.progress(Duration::ZERO).unwrap();
        }
        assert_eq!(slow.poll().unwrap().outcome, Ok(Value::Address(BASE)));
        assert!(answers > PAGES / 64, "{answers}");
        assert_eq!(memory.counts().entries[0], PAGES);
        // What it frees goes in parts too, in front of its next allocation.
        let free = Operation::Free {
            address: BASE,
            bytes: PAGES << 12,
        };
        slow.submit(SpaceId(0), &free).unwrap();
        slow.progress(Duration::ZERO).unwrap();
        server.turn(&mut memory, &tare_sim::Instant::now).unwrap();
        slow.progress(Duration::ZERO).unwrap();
        assert_eq!(slow.poll().unwrap().outcome, Ok(Value::None));
        assert!(memory.counts().entries[0] > PAGES - 64);
    }
}

#[test]
fn a_client_that_is_not_polled_is_answered_while_the_write_of_another_waits_for_room() {
    let (mut server, [mut slow, mut quick]) = node_and(ServerConfig {
        assembly_bytes_max: 1 << 20,
        ..ServerConfig::new(1)
    });
    let mut memory = store();
    // No time goes by, so that it waits for ever.
    let clock = || tare_sim::Instant::ZERO;
    assert!(server.prepare_to_sleep());
    let write = Operation::Write {
        address: BASE,
        data: &vec![1; 2 << 20],
        guard: None,
    };
    slow.submit(SpaceId(1), &write).unwrap();
    slow.progress(Duration::ZERO).unwrap();
    server.wake().unwrap();
    for _ in 0..10 {
        server.turn(&mut memory, &clock).unwrap();
        server.wait(Some(Duration::from_secs(1))).unwrap();
    }
    assert_eq!(server.clients_polled(), 1);
    submit(&mut quick);
    let mut turns = 0;
    while server.counters().entries == 0 {
        server.wait(Some(Duration::from_secs(1))).unwrap();
        server.turn(&mut memory, &clock).unwrap();
        turns += 1;
    }
    assert!(turns <= 2, "{turns}");
}

#[test]
fn a_client_waits_for_few_turns_of_one_whose_operations_take_long() {
    const CLIENTS: usize = 100;
    let path = socket_path();
    let mut server = Server::listen(&path, ServerConfig::new(1)).unwrap();
    let connect = move || {
        let config = ClientConfig {
            entries: 64,
            data_bytes: 16 << 10,
            ..PATIENT
        };
        [(); CLIENTS].map(|()| Client::connect(&path, &config).unwrap())
    };
    let clients = thread::spawn(connect);
    while server.counters().connected < CLIENTS as u64 {
        server.wait(Some(Duration::from_secs(1))).unwrap();
    }
    let mut memory = store();
    let mut clients = clients.join().unwrap();
    for client in &mut clients {
        submit(client);
        server.wake().unwrap();
        answer(&mut server, &mut memory);
        client.progress(Duration::ZERO).unwrap();
        assert!(client.poll().is_some());
    }
    let [long, clients @ ..] = &mut clients;
    // What an operation on a region takes is not in its length.
    let flood = |long: &mut Client| {
        while long.outstanding() < 64 {
            let region = tare_farmem::operation::RegionId(1);
            let map = Operation::Map { region, at: None };
            long.submit(SpaceId(1), &map).unwrap();
        }
        long.progress(Duration::ZERO).unwrap();
        while long.poll().is_some() {}
    };
    let mut most = 0;
    for client in clients {
        for _ in 0..5 {
            flood(long);
            server.turn(&mut memory, &tare_sim::Instant::now).unwrap();
        }
        submit(client);
        let before = server.counters().entries;
        while client.poll().is_none() {
            flood(long);
            server.turn(&mut memory, &tare_sim::Instant::now).unwrap();
            client.progress(Duration::ZERO).unwrap();
        }
        most = most.max(server.counters().entries - before);
    }
    // A turn out of turn in each of two rounds, and its own, at most twice.
    assert!(most <= 4 * 16 + 1, "{most}");
}
