//! Clients that do not keep to the protocol: they have the region and the socket, and write what
//! they like.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

use rustix::net::sockopt::Timeout;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use tare_memory::SharedMemory;

use super::*;

mod room;

const ENTRIES: u32 = 16;
const DATA: u32 = 64 << 10;
/// The number of the first entry, and where the ring is.
const FIRST: u32 = u32::MAX - 999;
const RING: usize = 256;

/// Connects, and sends nothing.
fn silent(path: &Path) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket = net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// Connects, and asks for a region with so many bytes of data.
fn greet(path: &Path, data: u32) -> OwnedFd {
    let socket = silent(path);
    let mut hello = [0; 32];
    hello[0] = 1;
    hello[8..16].copy_from_slice(b"tare-shm");
    for (at, value) in [(16, 1), (20, ENTRIES), (24, data)] {
        hello[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    net::sendmsg(
        &socket,
        &[IoSlice::new(&hello)],
        &mut Default::default(),
        SendFlags::empty(),
    )
    .unwrap();
    socket
}

struct Hostile {
    socket: OwnedFd,
    memory: SharedMemory,
    next: u32,
}

impl Hostile {
    fn connect(path: &Path) -> Hostile {
        Hostile::with_data(path, DATA)
    }

    /// Connects with a data area of so many bytes.
    fn with_data(path: &Path, data: u32) -> Hostile {
        Hostile::welcomed(greet(path, data))
    }

    /// Takes the region that the node sends.
    fn welcomed(socket: OwnedFd) -> Hostile {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 64];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        net::recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        Hostile {
            socket,
            memory: SharedMemory::open(file.unwrap()).unwrap(),
            next: FIRST,
        }
    }

    fn word(&self, at: usize, value: u64) {
        let word = self.memory.view().atomic::<u64>(at).unwrap();
        word.store(value, Ordering::Release);
    }

    /// Stores an entry with the next number.
    fn entry(&mut self, code: u8, flags: u8, arguments: u8, words: [u64; 7]) {
        let at = RING + (self.next % ENTRIES) as usize * 64;
        for (n, word) in words.iter().enumerate() {
            self.word(at + 8 + 8 * n, *word);
        }
        let first = u64::from(self.next)
            | u64::from(code) << 32
            | u64::from(flags) << 40
            | u64::from(arguments) << 48;
        self.word(at, first);
        self.next = self.next.wrapping_add(1);
        self.notify();
    }

    fn notify(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = net::send(&self.socket, &[3], flags);
    }

    /// Waits for the node to cut it off; returns the reason.
    fn end(&self) -> u8 {
        let patience = Some(Duration::from_secs(60));
        net::sockopt::set_socket_timeout(&self.socket, Timeout::Recv, patience).unwrap();
        loop {
            let mut bytes = [0; 64];
            match net::recv(&self.socket, &mut bytes[..], RecvFlags::empty()) {
                Ok((2, _)) if bytes[0] == 6 => return bytes[1],
                Ok((0, _)) => return 0,
                Ok(_) => {}
                // Of messages that the node has not read; its own is behind this.
                Err(rustix::io::Errno::CONNRESET) => {}
                Err(errno) => panic!("{errno}"),
            }
        }
    }

    /// Waits for the answer to the entry before the next; returns its status.
    fn answer(&self) -> u8 {
        let number = self.next.wrapping_sub(1);
        let at = RING + (ENTRIES + number % ENTRIES) as usize * 64;
        let word = self.memory.view().atomic::<u64>(at).unwrap();
        loop {
            let first = word.load(Ordering::Acquire);
            if first as u32 == number {
                return (first >> 32) as u8;
            }
            thread::yield_now();
        }
    }
}

const READ: u8 = 5;
const WRITE: u8 = 6;
const GUARD: u8 = 1;
const AREA: u8 = 2;
const PART: u8 = 4;

/// The third word: length and line.
fn place(length: u32, line: u32) -> u64 {
    u64::from(length) | u64::from(line) << 32
}

#[test]
fn a_client_that_breaks_the_protocol_is_cut_off_with_a_reason() {
    let mut node = Node::start(ServerConfig::new(1));
    let mut honest = node.connect();
    alloc(&mut honest, SpaceId(1), 1 << 20);
    let lines = DATA / 64;
    let whole = 100_000u64 << 32;
    let p = place;
    let cases: [(&str, u8, u8, u8, u64, u64, Violation); 15] = [
        ("reserved flag", READ, 8, 0, p(8, 0), 0, Violation::Reserved),
        ("the same", WRITE, 8, 0, p(8, 0), 0, Violation::Reserved),
        (
            "read of a part",
            READ,
            PART,
            0,
            p(8, 0),
            0,
            Violation::Reserved,
        ),
        ("parts of a read", 8, PART, 16, 0, 0, Violation::Reserved),
        (
            "read too long for an entry",
            READ,
            0,
            0,
            p(49, 0),
            0,
            Violation::Area,
        ),
        (
            "read beyond the area",
            READ,
            AREA,
            0,
            p(65, lines - 1),
            0,
            Violation::Area,
        ),
        (
            "read far beyond",
            READ,
            AREA,
            0,
            p(4096, u32::MAX),
            0,
            Violation::Area,
        ),
        (
            "read of everything",
            READ,
            AREA,
            0,
            p(u32::MAX, 0),
            0,
            Violation::Area,
        ),
        (
            "write too long for an entry",
            WRITE,
            0,
            0,
            p(33, 0),
            0,
            Violation::Area,
        ),
        (
            "write beyond the area",
            WRITE,
            AREA,
            0,
            p(DATA, 1),
            0,
            Violation::Area,
        ),
        ("arguments too long", 8, 0, 33, 0, 0, Violation::Area),
        ("unknown code", 99, 0, 0, 0, 0, Violation::Operation),
        ("arguments missing", 8, 0, 7, 0, 0, Violation::Operation),
        (
            "second part first",
            WRITE,
            PART | AREA,
            0,
            p(100, 0),
            whole | 100,
            Violation::Part,
        ),
        (
            "part beyond the whole",
            WRITE,
            PART | AREA,
            0,
            p(100, 0),
            99 << 32,
            Violation::Part,
        ),
    ];
    for (name, code, flags, arguments, place, body, violation) in cases {
        let mut hostile = Hostile::connect(&node.path);
        hostile.entry(code, flags, arguments, [1, BASE, place, body, 0, 0, 0]);
        assert_eq!(hostile.end(), violation as u8, "{name}");
        honest.write(SpaceId(1), BASE, &[7; 100], None).unwrap();
    }
    let hostile = Hostile::connect(&node.path);
    hostile.word(
        RING + (FIRST % ENTRIES) as usize * 64,
        1 << 56 | u64::from(FIRST),
    );
    hostile.notify();
    assert_eq!(hostile.end(), Violation::Reserved as u8);
    let mut hostile = Hostile::connect(&node.path);
    for _ in 0..3 {
        // Together more than 32 bits, whichever of them the node finds at once.
        hostile.entry(READ, AREA, 0, [1, BASE, place(u32::MAX, 0), 0, 0, 0, 0]);
    }
    assert_eq!(hostile.end(), Violation::Area as u8);
    for message in [&[9u8][..], &[4; 10], &[1; 32], &[3; 65]] {
        let hostile = Hostile::connect(&node.path);
        net::send(&hostile.socket, message, SendFlags::empty()).unwrap();
        assert_eq!(hostile.end(), Violation::Message as u8);
    }
    assert_eq!(node.stop().0.cut_off, 21);
}

#[test]
fn an_entry_with_more_data_than_a_part_is_cut_off_before_any_of_it_is_used() {
    let mut node = Node::start(ServerConfig::new(1));
    let mut honest = node.connect();
    let space = SpaceId(1);
    let operation = Operation::Alloc {
        bytes: 2 << 20,
        page: PageSize::Large,
        at: Some(BASE),
        permission: Permission::READ_WRITE,
        sparse: false,
    };
    honest.call(space, &Operation::Open, &mut []).unwrap();
    honest.call(space, &operation, &mut []).unwrap();
    // Its page has memory from then on.
    honest.write(space, BASE + 4096, &[7], None).unwrap();
    let large = 64 << 20;
    let whole = u64::from(large) << 32;
    for length in [PART_MAX + 1, 2 << 20, large] {
        for (code, flags, body) in [
            (READ, AREA, 0),
            (WRITE, AREA, 0),
            (WRITE, AREA | GUARD, 0),
            (WRITE, AREA | PART, whole),
        ] {
            let mut hostile = Hostile::with_data(&node.path, large);
            let area = hostile.memory.len() - large as usize;
            hostile.word(area, u64::MAX);
            let words = [1, BASE, place(length, 0), body, 0, 0, 0];
            // A reason, or an answer, which is one too many.
            hostile.entry(code, flags, 0, words);
            hostile.entry(READ, 8, 0, words);
            assert_eq!(hostile.end(), Violation::Area as u8, "{code} of {length}");
            let mut found = [9; 8];
            honest.read_into(space, BASE, &mut found).unwrap();
            assert_eq!(found, [0; 8], "{code} of {length}");
        }
    }
    // The longest part, and a client that has more to send.
    let mut longest = Hostile::with_data(&node.path, 64 << 20);
    for code in [WRITE, READ] {
        let words = [1, BASE, place(PART_MAX, 0), 0, 0, 0, 0];
        longest.entry(code, AREA, 0, words);
        assert_eq!(longest.answer(), 0);
    }
    let config = ClientConfig {
        data_bytes: 64 << 20,
        ..PATIENT
    };
    let mut honest = Client::connect(&node.path, &config).unwrap();
    let data: Vec<u8> = (0..1 << 20).map(|n| (n >> 12) as u8 | 1).collect();
    for len in [PART_MAX as usize + 1, data.len()] {
        honest.write(space, BASE, &data[..len], None).unwrap();
        let mut found = vec![0; len];
        honest.read_into(space, BASE, &mut found).unwrap();
        assert!(found == data[..len]);
    }
    assert_eq!(node.stop().0.cut_off, 12);
}

#[test]
fn a_part_of_another_write_is_refused() {
    let node = Node::start(ServerConfig::new(1));
    let whole = 200u64 << 32;
    let first = [1, BASE, place(100, 0), whole, 0, 0, 0];
    let second = |n: usize, value| {
        let mut words = [1, BASE, place(100, 0), whole | 100, 0, 0, 0];
        words[n] = value;
        words
    };
    for words in [
        second(0, 2),
        second(1, BASE + 1),
        second(2, place(99, 0)),
        second(3, whole | 101),
        second(3, (201 << 32) | 100),
        // Within the whole, but not behind the first.
        [1, BASE, place(50, 0), whole | 110, 0, 0, 0],
        [1, BASE, place(50, 0), whole | 50, 0, 0, 0],
    ] {
        let mut hostile = Hostile::connect(&node.path);
        hostile.entry(WRITE, PART | AREA, 0, first);
        assert_eq!(hostile.answer(), 1);
        hostile.entry(WRITE, PART | AREA, 0, words);
        if words[2] == place(99, 0) {
            // A shorter part is none: the next one may follow it.
            assert_eq!(hostile.answer(), 1);
            continue;
        }
        assert_eq!(hostile.end(), Violation::Part as u8);
    }
}

#[test]
fn the_region_cannot_shrink_or_grow() {
    let node = Node::start(ServerConfig::new(1));
    let hostile = Hostile::connect(&node.path);
    let len = hostile.memory.len() as u64;
    for len in [0, len / 2, len + 4096] {
        assert!(rustix::fs::ftruncate(hostile.memory.fd(), len).is_err());
    }
}

#[test]
fn a_client_that_falls_asleep_just_after_its_answer_is_notified_whatever_others_do() {
    for is_busy in [false, true] {
        let path = socket_path();
        let mut server = Server::listen(&path, ServerConfig::new(1)).unwrap();
        let connect = move || {
            (
                Hostile::connect(&path),
                Client::connect(&path, &PATIENT).unwrap(),
            )
        };
        let clients = thread::spawn(connect);
        while server.counters().connected < 2 {
            server.wait(Some(Duration::from_secs(1))).unwrap();
        }
        let (mut sleeper, mut other) = clients.join().unwrap();
        let mut memory = store();
        let mut turn = |server: &mut Server| {
            server.turn(&mut memory, &tare_sim::Instant::now).unwrap();
        };
        sleeper.entry(READ, 0, 0, [1, BASE, place(8, 0), 0, 0, 0, 0]);
        while server.counters().entries == 0 {
            server.wake().unwrap();
            turn(&mut server);
        }
        // It had not seen the answer when it looked for the last time.
        sleeper.word(128, 1);
        assert_eq!(server.counters().notifications, 0);
        let mut turns = 0;
        while server.counters().notifications == 0 {
            turns += 1;
            assert!(turns < 100, "it is not notified");
            if is_busy {
                other.submit(SpaceId(2), &Operation::Open).unwrap();
                other.progress(Duration::ZERO).unwrap();
                server.wake().unwrap();
            }
            turn(&mut server);
            other.progress(Duration::ZERO).unwrap();
            while other.poll().is_some() {}
        }
        assert!(is_busy || turns == 1, "{turns}");
    }
}

#[test]
fn random_lines_that_change_under_the_node_disturb_no_other_client() {
    let mut node = Node::start(ServerConfig {
        idle_rounds: 1000,
        ..ServerConfig::new(1)
    });
    let stop = Arc::new(AtomicBool::new(false));
    let lives = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let threads: Vec<_> = (0..)
        .zip(&lives)
        .map(|(seed, lives)| {
            let (stop, path, lives) = (stop.clone(), node.path.clone(), lives.clone());
            thread::spawn(move || {
                let mut random = Random::new(seed);
                while !stop.load(Ordering::Relaxed) {
                    scribble(&path, &mut random);
                    lives.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let has_each_lived = || lives.iter().all(|lives| lives.load(Ordering::Relaxed) > 0);
    let mut honest = node.connect();
    alloc(&mut honest, SpaceId(1), 1 << 20);
    // Every page gets its frame before the others can take all of them.
    honest
        .write(SpaceId(1), BASE, &vec![1; 1 << 20], None)
        .unwrap();
    let mut random = Random::new(77);
    let mut data = vec![0; 70_000];
    let (start, mut rounds) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(3) || rounds < 50 || !has_each_lived() {
        let len = 1 + random.below(70_000) as usize;
        random.fill(&mut data[..len]);
        honest.write(SpaceId(1), BASE, &data[..len], None).unwrap();
        let mut out = vec![0; len];
        honest.read_into(SpaceId(1), BASE, &mut out).unwrap();
        assert!(out == data[..len]);
        rounds += 1;
    }
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|t| t.join().unwrap());
    drop(honest);
    let (counters, _) = node.stop();
    assert!(counters.cut_off > 0, "{counters:?}");
    let lives = lives.map(|lives| u64::from(lives.load(Ordering::Relaxed)));
    assert_eq!(counters.connected, 1 + lives.iter().sum::<u64>());
}

/// Connects, and stores random words that are often nearly right, until it is cut off.
fn scribble(path: &Path, random: &mut Random) {
    let hostile = Hostile::connect(path);
    let len = hostile.memory.len() as u64;
    // Spaces from 1000 on: without capabilities, that of the honest client is open to all.
    for step in 0..2000 {
        let slot = random.below(ENTRIES.into());
        let at = RING + 64 * slot as usize;
        let number = FIRST.wrapping_add(random.below(40) as u32);
        let word = 1 + random.below(7) as usize;
        let value = match random.below(4) {
            0 => random.next_u64(),
            1 => random.below(70_000),
            2 => 1000 + random.below(3),
            _ => BASE + random.below(1 << 20),
        };
        let code = random.below(20) << 32 | random.below(9) << 40 | random.below(40) << 48;
        match random.below(4) {
            0 | 1 if word > 1 => hostile.word(at + 8 * word, value),
            2 => {
                hostile.word(at + 8, 1000 + random.below(3));
                hostile.word(at, u64::from(number) | code);
            }
            _ => {
                let at = random.below(len / 8) as usize * 8;
                if !(RING..RING + 64 * ENTRIES as usize).contains(&at) {
                    hostile.word(at, value);
                }
            }
        }
        if step % 16 == 0 {
            hostile.notify();
        }
    }
}

#[test]
fn of_the_silent_the_one_that_came_first_makes_room() {
    let path = socket_path();
    let mut server = Server::listen(
        &path,
        ServerConfig {
            clients_max: 3,
            ..ServerConfig::new(1)
        },
    )
    .unwrap();
    let first = [(); 3].map(|()| silent(&path));
    server.wake().unwrap();
    assert_eq!(server.clients(), 3);
    // Its greeting is there, and the node looks at it after the next connection.
    let greeted = greet(&path, DATA);
    let last = silent(&path);
    for _ in 0..2 {
        server.wake().unwrap();
    }
    assert_eq!(server.counters().connected, 1);
    let mut greeted = Hostile::welcomed(greeted);
    greeted.entry(READ, 0, 0, [1, BASE, place(8, 0), 0, 0, 0, 0]);
    let mut memory = store();
    while server.counters().entries == 0 {
        server.turn(&mut memory, &tare_sim::Instant::now).unwrap();
    }
    drop((first, last));
}

#[test]
fn an_entry_is_found_though_the_notification_had_no_room_among_capabilities() {
    let path = socket_path();
    let mut server = Server::listen(&path, ServerConfig::new(1)).unwrap();
    let client = thread::spawn(move || Hostile::connect(&path));
    while server.counters().connected == 0 {
        server.wait(Some(Duration::from_secs(1))).unwrap();
    }
    let mut client = client.join().unwrap();
    assert!(server.prepare_to_sleep());
    let mut shown = [0; 48];
    shown[0] = 4;
    while net::send(&client.socket, &shown, SendFlags::DONTWAIT).is_ok() {}
    client.entry(READ, 0, 0, [1, BASE, place(8, 0), 0, 0, 0, 0]);
    let mut memory = store();
    for _ in 0..1000 {
        server.wake().unwrap();
        server.turn(&mut memory, &tare_sim::Instant::now).unwrap();
    }
    assert_eq!(server.counters().entries, 1);
}
