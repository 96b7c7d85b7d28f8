//! Datagrams of any content at a client with operations of every kind on the way: bytes as they
//! are, and responses that are sealed as the node would. Nothing panics, and every operation ends
//! once; with encryption, what was not sealed ends none.

use std::time::Duration;

use tare_farmem::operation::{Operation, SpaceId};
use tare_farmem::protocol::{Client, ClientConfig, Datagrams, Protection, Response, Secret};
use tare_sim::Instant;

use crate::farmem::{authentication, SPACES};

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let [choice, input @ ..] = input else { return };
    let is_sealed = choice % 3 == 2;
    let secret = || Secret::new(&[4; 32]);
    let mut client = Client::new(ClientConfig {
        authentication: authentication(*choice, 1),
        operations_max: 16,
        requests_max: 16,
        ..ClientConfig::new(1)
    });
    SPACES
        .iter()
        .for_each(|space| client.authorize(secret().capability(*space)));
    let mut keys = Protection::new(authentication(*choice, 2));
    keys.set_secret(secret());
    let mut now = Instant::from_nanos(1_000_000_000);
    let (mut submitted, mut ended) = (0, 0);
    for piece in input.chunks(40) {
        let [choice, time, rest @ ..] = piece else {
            break;
        };
        now += Duration::from_millis(u64::from(*time % 64));
        client.tick(now);
        ended += std::iter::from_fn(|| client.poll()).count();
        let space = SPACES[usize::from(choice >> 3 & 1)];
        let address = u64::from(*time) * 8;
        let data = [*choice; 3000];
        let operation = match choice & 7 {
            0 => Operation::Open,
            1 => Operation::Read { address, len: 16 },
            2 => Operation::Read { address, len: 5000 },
            3 => Operation::Write {
                address,
                data: &data,
                guard: None,
            },
            4 => Operation::FetchAdd {
                address,
                add: 1,
                guard: None,
            },
            5 => Operation::Fence,
            6 => Operation::Lock {
                address,
                lease: Duration::from_secs(1),
            },
            _ => Operation::Find { name: b"name" },
        };
        submitted += usize::from(client.submit(now, space, &operation).is_ok());
        let mut sent = Datagrams::default();
        while client.transmit(now, &mut sent) {}
        // A fence ends without the node.
        ended += std::iter::from_fn(|| client.poll()).count();
        let mut datagram = Vec::new();
        let is_forged = choice & 0x40 != 0;
        if is_forged {
            datagram.extend_from_slice(rest);
        } else {
            response(space, rest, now, &mut keys, &mut datagram);
        }
        let before = client.outstanding();
        client.receive(now, &mut datagram);
        if is_forged && is_sealed {
            assert_eq!(client.outstanding(), before);
        }
        ended += std::iter::from_fn(|| client.poll()).count();
        assert_eq!(submitted, ended + client.outstanding());
    }
    client.tick(Instant::NEVER);
    ended += std::iter::from_fn(|| client.poll()).count();
    assert_eq!((submitted, client.outstanding()), (ended, 0));
}

/// A response whose fields come from the input: the answer to the question for the epoch, or one
/// with a number that a request may have.
fn response(
    space: SpaceId,
    input: &[u8],
    now: Instant,
    keys: &mut Protection,
    datagram: &mut Vec<u8>,
) {
    let at = |n: usize| u64::from(input.get(n).copied().unwrap_or(0));
    let hello = [1024 + at(4), 100_000_000, 1 << 20].map(u64::to_le_bytes);
    let data = [7; 1400];
    let status = at(0) as u8 % 32;
    let body = match status {
        5 => hello.as_flattened(),
        _ if at(1) & 1 == 0 => &data[..0],
        _ if at(1) & 2 == 0 => &data[..16],
        _ => &data[..(at(5) * 5) as usize],
    };
    let response = Response {
        status,
        space,
        id: at(2) + 1,
        epoch: 3 + at(1) / 128,
        time_ns: now.as_nanos().wrapping_add(at(6) << (at(7) % 64)),
        value: if status == 0 {
            body.len() as u64
        } else {
            at(3)
        },
        body,
    };
    response
        .emit(keys, datagram)
        .expect("the keys of all spaces");
}
