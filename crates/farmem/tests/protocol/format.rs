//! The format: what is written is read, nothing else is, and no bytes make either side panic.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tare_farmem::operation::{Error, Operation, RegionId, SpaceId, Value};
use tare_farmem::operation::{Guard, PageSize, Permission};
use tare_farmem::protocol::{
    Authentication, ClientConfig, Datagrams, Execute, Failure, Malformed, NodeConfig, Request,
    Response, GUARD_LEN, REQUEST_HEADER, RESPONSE_HEADER,
};
use tare_sim::Instant;

use crate::world::{aead, client, client_config, memory_node, node_config, protection, Memory};

const NOW: Instant = Instant::from_nanos(1_000_000);

fn authentication() -> impl Strategy<Value = Authentication> {
    prop_oneof![
        Just(Authentication::None),
        Just(Authentication::Checksum),
        any::<u64>().prop_map(aead)
    ]
}

/// A node that keeps what it was asked as text, and answers what it is told.
struct Echo {
    asked: Vec<String>,
    outcome: Result<Value, Error>,
}

impl Execute for Echo {
    fn execute(
        &mut self,
        _now: Instant,
        space: SpaceId,
        operation: &Operation<'_>,
        _out: &mut Vec<u8>,
    ) -> Result<Value, Error> {
        self.asked.push(format!("{space:?} {operation:?}"));
        self.outcome
    }
}

/// Runs an operation between a client and a node without a network.
fn travel(
    operation: &Operation<'_>,
    outcome: Result<Value, Error>,
) -> (String, Result<Value, Failure>) {
    let echo = Echo {
        asked: Vec::new(),
        outcome,
    };
    let node = NodeConfig {
        authentication: aead(1),
        ..node_config(3)
    };
    let mut node = memory_node(node, echo);
    let config = ClientConfig {
        authentication: aead(2),
        ..client_config(77)
    };
    let mut client = client(config, &[SpaceId(5)]);
    client.submit(NOW, SpaceId(5), operation).unwrap();
    let (mut sent, mut replies) = (Datagrams::default(), Datagrams::default());
    while client.transmit(NOW, &mut sent) {
        replies.clear();
        for datagram in sent.iter() {
            node.receive(NOW, &mut datagram.to_vec(), &mut replies);
        }
        sent.clear();
        for reply in replies.iter() {
            client.receive(NOW, &mut reply.to_vec());
        }
    }
    let completion = client.poll().expect("an outcome");
    (node.store().asked.join("; "), completion.outcome)
}

fn guard() -> impl Strategy<Value = Option<Guard>> {
    proptest::option::of(any::<(u64, u64)>().prop_map(|(lock, token)| Guard { lock, token }))
}

fn check(operation: &Operation<'_>) -> Result<(), TestCaseError> {
    let (asked, _) = travel(operation, Err(Error::Quota));
    prop_assert_eq!(asked, format!("{:?} {:?}", SpaceId(5), operation));
    Ok(())
}

proptest! {
    #[test]
    fn every_operation_arrives_as_it_was_submitted(
        (a, b, c) in any::<(u64, u64, u64)>(),
        bits in 1u8..4,
        page in 0usize..3,
        at in any::<Option<u64>>(),
        sparse in any::<bool>(),
        data in vec(any::<u8>(), 0..5000),
        guard in guard(),
    ) {
        let permission = Permission::from_bits(bits).unwrap();
        let page = PageSize::ALL[page];
        let address = a >> 1;
        let name = &data[..data.len().min(64)];
        let (region, lease) = (RegionId(b), Duration::from_nanos(c));
        for operation in [
            Operation::Open,
            Operation::Close,
            Operation::Alloc { bytes: b, page, at, permission, sparse },
            Operation::Free { address: a, bytes: b },
            Operation::Read { address, len: b as u32 % 900 },
            Operation::Write { address, data: &data, guard },
            Operation::CompareAndSwap { address: a, expected: b, new: c, guard },
            Operation::FetchAdd { address: a, add: b, guard },
            Operation::Lock { address: a, lease },
            Operation::Unlock { address: a, token: b },
            Operation::Region { name, address: a, bytes: b },
            Operation::Find { name },
            Operation::Grant { region, to: SpaceId(c), permission },
            Operation::Revoke { region, from: SpaceId(c) },
            Operation::Map { region, at },
            Operation::Retire { region },
        ] {
            check(&operation)?;
        }
    }

    #[test]
    fn every_outcome_arrives_as_it_was(word in any::<u64>()) {
        let lock = Operation::Lock { address: 0, lease: Duration::ZERO };
        let alloc = Operation::Alloc {
            bytes: 1,
            page: PageSize::Small,
            at: None,
            permission: Permission::READ,
            sparse: false,
        };
        let add = Operation::FetchAdd { address: 0, add: 1, guard: None };
        let find = Operation::Find { name: b"x" };
        for (operation, value) in [
            (Operation::Open, Value::None),
            (alloc, Value::Address(word)),
            (add, Value::Old(word)),
            (lock, Value::Token(word)),
            (find, Value::Region(RegionId(word))),
        ] {
            prop_assert_eq!(travel(&operation, Ok(value)).1, Ok(value));
        }
        for error in [
            Error::NoSuchSpace,
            Error::Permission { address: word },
            Error::Unmapped { address: word },
            Error::Overlap { address: word },
            Error::Quota,
            Error::OutOfMemory,
            Error::Misaligned { multiple: word },
            Error::Length,
            Error::Lease,
            Error::Locked { retry_after: Duration::from_nanos(word) },
            Error::StaleToken,
            Error::NoSuchRegion,
            Error::Name,
            Error::InUse,
        ] {
            for operation in [Operation::Read { address: 0, len: 8 }, add, Operation::Close] {
                prop_assert_eq!(travel(&operation, Err(error)).1, Err(Failure::Refused(error)));
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_no_shorter(
        words in any::<[u64; 6]>(),
        code in 0u8..128,
        length in 0u32..=1 << 30,
        guard in guard(),
        body in vec(any::<u8>(), 0..100),
        authentication in authentication(),
        rest in vec(any::<u8>(), 0..10),
    ) {
        let [space, id, epoch, replaced, sent_ns, address] = words;
        let request = Request {
            code,
            space: SpaceId(space),
            id: id | 1,
            epoch,
            replaced,
            sent_ns,
            address,
            length,
            offset: 0,
            segment: 0,
            guard,
            body: &body,
        };
        let mut keys = protection(authentication);
        let mut bytes = Vec::new();
        request.emit(&mut keys, &mut bytes).unwrap();
        let guard_len = if guard.is_some() { GUARD_LEN } else { 0 };
        let trailer = authentication.trailer_len();
        prop_assert_eq!(bytes.len(), REQUEST_HEADER + guard_len + body.len() + trailer);
        let len = bytes.len();
        bytes.extend(&rest);
        let copy = &mut bytes.clone();
        prop_assert_eq!(Response::parse(copy, &mut keys), Err(Malformed::Direction));
        for n in 0..len {
            let mut cut = bytes[..n].to_vec();
            prop_assert!(Request::parse(&mut cut, &mut keys).is_err());
        }
        let parsed = Request::parse(&mut bytes, &mut keys);
        prop_assert_eq!(parsed, Ok((request, &mut rest.clone()[..])));
        let response = Response {
            status: code,
            space: SpaceId(space),
            id,
            epoch,
            time_ns: sent_ns,
            value: address,
            body: &body,
        };
        let mut bytes = Vec::new();
        response.emit(&mut keys, &mut bytes).unwrap();
        prop_assert_eq!(bytes.len(), RESPONSE_HEADER + body.len() + trailer);
        let len = bytes.len();
        bytes.extend(&rest);
        prop_assert!(Request::parse(&mut bytes.clone(), &mut keys).is_err());
        for n in 0..len {
            let mut cut = bytes[..n].to_vec();
            prop_assert!(Response::parse(&mut cut, &mut keys).is_err());
        }
        let parsed = Response::parse(&mut bytes, &mut keys);
        prop_assert_eq!(parsed, Ok((response, &mut rest.clone()[..])));
    }

    /// Bytes without any order, and real messages with some bytes changed.
    #[test]
    fn no_bytes_make_a_side_panic_or_take_memory(
        mut noise in vec(any::<u8>(), 0..300),
        operations in vec((0u8..20, any::<u64>(), any::<[u32; 3]>(), 0usize..40), 1..20),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        authentication in authentication(),
    ) {
        let node = NodeConfig { authentication, assembly_bytes: 1 << 20, ..node_config(1) };
        let mut node = memory_node(node, Memory::new(4096));
        let config = ClientConfig { authentication, ..client_config(1) };
        let mut client = client(config, &[SpaceId(0)]);
        let mut keys = protection(authentication);
        client.submit(NOW, SpaceId(0), &Operation::Read { address: 0, len: 3000 }).unwrap();
        client.submit(NOW, SpaceId(0), &Operation::Close).unwrap();
        let (mut replies, mut sent) = (Datagrams::default(), Datagrams::default());
        node.receive(NOW, &mut noise, &mut replies);
        client.receive(NOW, &mut noise);
        for (code, id, [length, offset, segment], body) in operations {
            let request = Request {
                code,
                space: SpaceId(0),
                id: id % 8 + 1,
                epoch: 1,
                replaced: 0,
                sent_ns: NOW.as_nanos(),
                address: id >> (length % 64),
                length,
                offset,
                segment: [0, segment % 1024, 512][id as usize % 3],
                guard: None,
                body: &noise[..body.min(noise.len())],
            };
            let mut bytes = Vec::new();
            request.emit(&mut keys, &mut bytes).unwrap();
            for (index, value) in &changes {
                *index.get_mut(&mut bytes) = *value;
            }
            node.receive(NOW, &mut bytes, &mut replies);
            client.transmit(NOW, &mut sent);
            for datagram in sent.iter() {
                node.receive(NOW, &mut datagram.to_vec(), &mut replies);
            }
            sent.clear();
            for reply in replies.iter() {
                client.receive(NOW, &mut reply.to_vec());
                let mut reply = reply.to_vec();
                for (index, value) in &changes {
                    *index.get_mut(&mut reply) = *value;
                }
                client.receive(NOW, &mut reply);
            }
            replies.clear();
        }
        node.tick(Instant::NEVER);
        client.tick(Instant::NEVER);
        prop_assert_eq!(client.outstanding(), 0);
    }
}

#[test]
fn segments_that_do_not_fit_together_are_refused() {
    let body = [0; 600];
    let good = Request {
        code: 6,
        space: SpaceId(1),
        id: 1,
        epoch: 1,
        replaced: 0,
        sent_ns: 0,
        address: 0,
        length: 2000,
        offset: 600,
        segment: 600,
        guard: None,
        body: &body,
    };
    let parse = |request: Request<'_>| {
        let mut bytes = Vec::new();
        let keys = &mut protection(Authentication::None);
        request.emit(keys, &mut bytes).unwrap();
        Request::parse(&mut bytes, keys).map(|_| ())
    };
    assert_eq!(parse(good), Ok(()));
    let last = Request {
        offset: 1800,
        body: &body[..200],
        ..good
    };
    assert_eq!(parse(last), Ok(()));
    for (offset, segment, length, body) in [
        (0, 600, 2000, 599),
        (1, 600, 2000, 600),
        (599, 600, 2000, 600),
        (1800, 600, 2000, 600),
        (1800, 600, 2000, 199),
        (2400, 600, 2000, 0),
        (0, 511, 2000, 511),
        (0, 600, 600, 600),
        (0, 600, (1 << 30) + 1, 600),
        (600, 0, 2000, 600),
        (0, 0, (1 << 30) + 1, 600),
    ] {
        let request = Request {
            offset,
            segment,
            length,
            body: &good.body[..body],
            ..good
        };
        assert_eq!(
            parse(request),
            Err(Malformed::Segment),
            "{offset} {segment} {length} {body}"
        );
    }
    assert_eq!(parse(Request { id: 0, ..good }), Err(Malformed::Reserved));
}

/// The layout of the guide, byte for byte.
#[test]
fn the_layout_is_that_of_the_guide() {
    let request = Request {
        code: 6,
        space: SpaceId(0x0807_0605_0403_0201),
        id: 0x11,
        epoch: 0x12,
        replaced: 0x13,
        sent_ns: 0x14,
        address: 0x15,
        length: 0x0600,
        offset: 0x0400,
        segment: 0x0200,
        guard: Some(Guard {
            lock: 0x19,
            token: 0x1a,
        }),
        body: &[0xbb; 512],
    };
    let mut bytes = Vec::new();
    let none = &mut protection(Authentication::None);
    request.emit(none, &mut bytes).unwrap();
    let mut expected = vec![0; 88];
    for (at, value) in [
        (0, 1),
        (1, 6),
        // 600 bytes.
        (4, 0x58),
        (5, 0x02),
        (16, 0x11),
        (24, 0x12),
        (32, 0x13),
        (40, 0x14),
        (48, 0x15),
        (57, 0x06),
        (61, 0x04),
        (65, 0x02),
        (68, 0x01),
        (72, 0x19),
        (80, 0x1a),
    ] {
        expected[at] = value;
    }
    expected[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    expected.extend([0xbb; 512]);
    assert_eq!(bytes, expected);
    let response = Response {
        status: 17,
        space: SpaceId(0x10),
        id: 0x11,
        epoch: 0x12,
        time_ns: 0x13,
        value: 0x14,
        body: &[0xcc; 3],
    };
    let mut bytes = Vec::new();
    let checksum = &mut protection(Authentication::Checksum);
    response.emit(checksum, &mut bytes).unwrap();
    let mut expected = vec![0; 48];
    for (at, value) in [
        (0, 1),
        (1, 0x91),
        (2, 1),
        (4, 59),
        (8, 0x10),
        (16, 0x11),
        (24, 0x12),
        (32, 0x13),
        (40, 0x14),
    ] {
        expected[at] = value;
    }
    expected.extend([0xcc; 3]);
    assert_eq!(bytes[..51], expected);
    for (at, value, error) in [
        (0, 2, Malformed::Version),
        (2, 0, Malformed::Authentication),
        (2, 2, Malformed::Authentication),
        (3, 1, Malformed::Checksum),
        (4, 60, Malformed::Length),
        (5, 1, Malformed::Length),
        (7, 1, Malformed::Length),
        (50, 0, Malformed::Checksum),
        (58, bytes[58] ^ 1, Malformed::Checksum),
    ] {
        let mut changed = bytes.clone();
        changed[at] = value;
        let parsed = Response::parse(&mut changed, checksum);
        assert_eq!(parsed.map(|_| ()), Err(error), "byte {at}");
    }
}
