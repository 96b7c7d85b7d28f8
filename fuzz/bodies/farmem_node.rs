//! Datagrams of any content at a memory node with its real memory: bytes as they are, and messages
//! that are sealed as a client with the capability of a space would. Nothing panics, memory is
//! bounded, and every message is in one count. With encryption, what was not sealed changes
//! nothing.

use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{Guard, Operation, PageSize, Permission};
use tare_farmem::protocol::{Datagrams, Node, NodeConfig, Protection, Request, Response, Secret};
use tare_sim::Instant;

use crate::farmem::{authentication, SPACES};

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let [choice, input @ ..] = input else { return };
    let is_sealed = choice % 3 == 2;
    let config = NodeConfig {
        authentication: authentication(*choice, 1),
        keys_max: 8,
        assembly_bytes: 1 << 16,
        assembly_bytes_per_space: 1 << 15,
        // Some 20 records.
        bytes_per_second: 2000,
        ..NodeConfig::new(3)
    };
    let mut store = Store::new(&Config::new(1 << 20));
    let mut now = Instant::from_nanos(1_000_000_000);
    for space in SPACES {
        let alloc = Operation::Alloc {
            bytes: 8192,
            page: PageSize::Small,
            at: Some(0),
            permission: Permission::READ_WRITE,
            sparse: false,
        };
        for operation in [Operation::Open, alloc] {
            store
                .execute(now, space, &operation, &mut Vec::new())
                .unwrap();
        }
    }
    let mut node = Node::new(config, store);
    node.set_secret(Secret::new(&[4; 32]));
    let mut keys = Protection::new(authentication(*choice, 2));
    keys.set_secret(Secret::new(&[4; 32]));
    let mut replies = Datagrams::default();
    let mut read = 0;
    for piece in input.chunks(64) {
        let [choice, time, rest @ ..] = piece else {
            break;
        };
        now += std::time::Duration::from_millis(u64::from(*time));
        replies.clear();
        let mut datagram = Vec::new();
        if choice & 1 == 0 {
            datagram.extend_from_slice(rest);
        } else {
            request(*choice, rest, now, &mut keys, &mut datagram);
        }
        let before = node.counters();
        let is_forged = is_sealed && choice & 1 == 0;
        node.receive(now, &mut datagram, &mut replies);
        node.tick(now);
        let after = node.counters();
        if is_forged {
            assert_eq!(
                (after.requests, after.executed),
                (before.requests, before.executed)
            );
            assert_eq!(replies.iter().count(), 0);
        }
        for reply in replies.iter() {
            assert!(reply.len() <= config.datagram_bytes);
            let mut reply = reply.to_vec();
            let mut rest = &mut reply[..];
            while !rest.is_empty() {
                let (response, next) = Response::parse(rest, &mut keys).expect("a response");
                assert_eq!(response.epoch, 3);
                rest = next;
                read += 1;
            }
        }
        assert!(node.records() <= config.records_max());
    }
    let counters = node.counters();
    // A request that was read is answered, unless it was no operation.
    assert!(read <= counters.requests && counters.requests <= read + counters.malformed);
    node.tick(Instant::NEVER);
    assert_eq!(node.records(), 0);
}

/// A request whose fields come from the input, most of them small.
fn request(choice: u8, input: &[u8], now: Instant, keys: &mut Protection, datagram: &mut Vec<u8>) {
    let mut bytes = input.iter().copied();
    let mut next = || u64::from(bytes.next().unwrap_or(0));
    let code = next() as u8 % 20;
    let big = if choice & 2 == 0 { 1 } else { 1 << 40 };
    let segment = if choice & 4 == 0 { 0 } else { 512 };
    let length = next() as u32 * 16;
    let data = [choice; 2048];
    let body = match code {
        6 if segment == 0 => &data[..length.min(2048) as usize],
        6 => &data[..512],
        _ => input.get(8..).unwrap_or(&[]),
    };
    let guard = Guard {
        lock: 8,
        token: u64::from(choice),
    };
    let request = Request {
        code,
        space: SPACES[usize::from(choice >> 3 & 1)],
        id: next() % 16 + 1,
        epoch: 3 - u64::from(choice >> 4 & 1),
        replaced: next() % 16,
        sent_ns: now.as_nanos().wrapping_sub(next() * 10_000_000),
        address: next() * 256 * big,
        length: if matches!(code, 5 | 6) { length } else { 0 },
        offset: if segment == 0 { 0 } else { next() as u32 * 512 },
        segment,
        guard: (choice & 0xc0 == 0xc0).then_some(guard),
        body,
    };
    request
        .emit(keys, datagram)
        .expect("the keys of all spaces");
}
