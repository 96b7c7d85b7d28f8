//! Clients that take memory of the node: writes left incomplete, and regions.

use super::*;

/// Begins writes of so many bytes, and leaves them incomplete.
fn leave_incomplete(path: &Path, count: u64, bytes: u64) -> Vec<Hostile> {
    let begin = |n| {
        let mut hostile = Hostile::connect(path);
        let words = [2000 + n, BASE, place(100, 0), bytes << 32, 0, 0, 0];
        hostile.entry(WRITE, PART | AREA, 0, words);
        assert_eq!(hostile.answer(), RECEIVED);
        hostile
    };
    (0..count).map(begin).collect()
}

const RECEIVED: u8 = 1;
const EXPIRED: u8 = 4;

#[test]
fn writes_left_incomplete_keep_no_other_client_from_its_share() {
    let mut node = Node::start(ServerConfig {
        assembly_bytes_max: 4 << 20,
        ..ServerConfig::new(1)
    });
    let mut honest = node.connect();
    alloc(&mut honest, SpaceId(1), 4 << 20);
    // All of the memory for them, by two clients that go on with them all the time.
    let mut hostile = leave_incomplete(&node.path, 2, 2 << 20);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let (mut at, mut lost, mut is_last) = ([100; 2], 0, false);
            while !is_last {
                // Once more afterwards, in case that there was no time for it before.
                is_last = stop.load(Ordering::Relaxed);
                if !is_last && at[0] == (2 << 20) - 1 {
                    // They stay incomplete.
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                for (n, hostile) in hostile.iter_mut().enumerate() {
                    let body = 2u64 << 52 | at[n];
                    let words = [2000 + n as u64, BASE, place(1, 0), body, 0, 0, 0];
                    hostile.entry(WRITE, PART | AREA, 0, words);
                    at[n] += 1;
                    lost += u32::from(hostile.answer() == EXPIRED);
                }
            }
            lost
        });
        let data = vec![3; 1 << 20];
        let start = Instant::now();
        honest.write(SpaceId(1), BASE, &data, None).unwrap();
        let mut out = vec![0; data.len()];
        honest.read_into(SpaceId(1), BASE, &mut out).unwrap();
        assert!(out == data && start.elapsed() < Duration::from_secs(55));
        stop.store(true, Ordering::Relaxed);
        assert!(busy.join().unwrap() > 0, "the one that gave way is told");
    });
    assert_eq!(node.stop().0.evicted, 1);
}

#[test]
fn a_write_left_incomplete_for_a_second_gives_way_to_one_of_any_length() {
    let mut node = Node::start(ServerConfig {
        assembly_bytes_max: 4 << 20,
        ..ServerConfig::new(1)
    });
    let mut honest = node.connect();
    alloc(&mut honest, SpaceId(1), 4 << 20);
    // None of these has more than its share.
    let mut hostile = leave_incomplete(&node.path, 7, 1 << 19);
    let data = vec![3; 4 << 20];
    honest.write(SpaceId(1), BASE, &data, None).unwrap();
    let words = [2000, BASE, place(1, 0), 1 << 51 | 100, 0, 0, 0];
    for _ in 0..2 {
        hostile[0].entry(WRITE, PART | AREA, 0, words);
        assert_eq!(hostile[0].answer(), EXPIRED);
    }
    // It can begin another one.
    let words = [2000, BASE, place(1, 0), 1 << 51, 0, 0, 0];
    hostile[0].entry(WRITE, PART | AREA, 0, words);
    assert_eq!(hostile[0].answer(), RECEIVED);
    assert_eq!(node.stop().0.evicted, 7);
}

#[test]
fn a_write_for_which_there_is_never_room_is_refused_and_holds_up_no_one() {
    let node = Node::start(ServerConfig {
        assembly_bytes_max: 1 << 20,
        ..ServerConfig::new(1)
    });
    let (mut large, mut honest) = (node.connect(), node.connect());
    alloc(&mut honest, SpaceId(1), 4 << 20);
    let data = vec![3; 2 << 20];
    let refused = large.write(SpaceId(1), BASE, &data, None);
    assert_eq!(refused, Err(Failure::Timeout));
    large
        .write(SpaceId(1), BASE, &data[..1 << 20], None)
        .unwrap();
    let mut out = vec![0; 2 << 20];
    honest.read_into(SpaceId(1), BASE, &mut out).unwrap();
    assert!(out[..1 << 20].iter().all(|&byte| byte == 3));
    assert!(out[1 << 20..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_client_that_is_gone_keeps_no_memory_of_the_node() {
    let node = Node::start(ServerConfig::new(1));
    for is_cut_off in [false, true] {
        let hostile = Hostile::with_data(&node.path, 1 << 20);
        if is_cut_off {
            net::send(&hostile.socket, &[9], SendFlags::empty()).unwrap();
            assert_eq!(hostile.end(), Violation::Message as u8);
        }
        // It keeps the region itself.
        let Hostile { socket, memory, .. } = hostile;
        drop(socket);
        let start = Instant::now();
        while rustix::fs::fstat(memory.fd()).unwrap().st_blocks > 0 {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "the node pays for it"
            );
            thread::yield_now();
        }
    }
}

#[test]
fn few_long_regions_are_made_and_given_back_between_two_looks_at_the_rings() {
    const CLIENTS: u64 = 16;
    const BYTES: u32 = 8 << 20;
    const MOST: u64 = 6;
    let path = socket_path();
    let mut server = Server::listen(&path, ServerConfig::new(1)).unwrap();
    let sockets = [(); CLIENTS as usize].map(|()| greet(&path, BYTES));
    while (server.clients() as u64) < CLIENTS {
        server.wake().unwrap();
    }
    let mut before = server.counters();
    while before.connected < CLIENTS {
        server.wake().unwrap();
        let after = server.counters();
        assert!((1..=MOST).contains(&(after.connected - before.connected)));
        before = after;
    }
    let clients = sockets.map(Hostile::welcomed);
    assert!(clients
        .iter()
        .all(|client| client.memory.len() > BYTES as usize));
    drop(clients);
    while before.gone < CLIENTS {
        server.wake().unwrap();
        let after = server.counters();
        assert!((1..=MOST).contains(&(after.gone - before.gone)));
        before = after;
    }
    assert_eq!(server.clients(), 0);
}
