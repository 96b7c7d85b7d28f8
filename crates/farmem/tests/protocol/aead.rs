//! Encryption: what is not authentic has no effect, and no nonce is used twice.

use std::collections::HashSet;

use tare_farmem::operation::{Guard, Operation, SpaceId, Value};
use tare_farmem::protocol::{
    Authentication, Capability, ClientConfig, Datagrams, Failure, NodeConfig, Protection, Request,
    Response, Secret, SubmitError, TextError, Unauthorized, REQUEST_HEADER,
};

use crate::bench::{add, read, store, write, Bench, START};
use crate::world::{
    aead, client, client_config, memory_node, node_config, protection, secret, Memory, MILLISECOND,
    SPACE,
};

/// Bytes behind the body: nonce and tag.
const TRAILER: usize = 28;

const OTHER: SpaceId = SpaceId(8);

fn node_settings(epoch: u64) -> NodeConfig {
    NodeConfig {
        authentication: aead(1000 + epoch),
        ..node_config(epoch)
    }
}

fn client_settings(first_id: u64) -> ClientConfig {
    ClientConfig {
        authentication: aead(first_id),
        ..client_config(first_id)
    }
}

fn bench() -> Bench {
    Bench::new(node_settings(5), client_settings(100))
}

/// The first request of an operation, as the wire has it.
fn request(bench: &mut Bench, operation: &Operation<'_>) -> Vec<u8> {
    bench.submit(operation);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    sent[0].clone()
}

/// All messages that differ from one in a bit, or are shorter.
fn changed(message: &[u8]) -> impl Iterator<Item = (String, Vec<u8>)> + '_ {
    let flipped = (0..message.len() * 8).map(|bit| {
        let mut bytes = message.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        (format!("bit {bit}"), bytes)
    });
    let cut = (0..message.len()).map(|len| (format!("{len} bytes"), message[..len].to_vec()));
    // A cut message whose length says so is complete but for its tag.
    let shorter = (REQUEST_HEADER..message.len()).map(|len| {
        let mut bytes = message[..len].to_vec();
        bytes[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        (format!("a message of {len} bytes"), bytes)
    });
    flipped.chain(cut).chain(shorter)
}

#[test]
fn a_request_with_any_bit_changed_or_cut_has_no_effect() {
    let mut bench = bench();
    let guard = Some(Guard { lock: 8, token: 1 });
    let guarded = Operation::Write {
        address: 4096,
        data: &[0xaa; 16],
        guard,
    };
    // On pages of their own, so that none waits for another.
    for operation in [
        write(64, &[0xaa; 16]),
        guarded,
        add(8192, 1),
        read(12288, 16),
    ] {
        let request = request(&mut bench, &operation);
        let before = bench.node.counters();
        let mut dropped = 0;
        for (what, bytes) in changed(&request).filter(|(_, bytes)| !bytes.is_empty()) {
            assert!(bench.answers(&bytes).is_empty(), "{what} of {operation:?}");
            dropped += 1;
        }
        let after = bench.node.counters();
        assert_eq!(bench.memory.bytes(0..20_000), [0; 20_000]);
        assert_eq!(after.requests, before.requests);
        let counted = after.malformed - before.malformed + after.unauthenticated;
        assert_eq!(counted - before.unauthenticated, dropped);
        assert!(
            after.unauthenticated - before.unauthenticated > 8 * 80,
            "{after:?}"
        );
    }
    assert!(bench.completions().is_empty());
}

#[test]
fn a_response_with_any_bit_changed_or_cut_has_no_effect() {
    let mut bench = bench();
    for operation in [add(64, 1), read(64, 16)] {
        let request = request(&mut bench, &operation);
        let answers = bench.answers(&request);
        let before = bench.client.counters();
        for (what, bytes) in changed(&answers[0]) {
            bench.give(&[bytes]);
            assert!(bench.completions().is_empty(), "{what} of {operation:?}");
        }
        let after = bench.client.counters();
        assert_eq!(after.unmatched, before.unmatched, "nothing was believed");
        assert!(
            after.unauthenticated - before.unauthenticated > 8 * 60,
            "{after:?}"
        );
        bench.give(&answers);
        assert_eq!(bench.completions().len(), 1, "the true one still counts");
    }
}

#[test]
fn a_client_that_lies_about_its_space_gets_nothing_of_anothers() {
    let mut node = memory_node(node_settings(5), store());
    let alloc = Operation::Alloc {
        bytes: 4096,
        page: tare_farmem::operation::PageSize::Small,
        at: Some(0),
        permission: tare_farmem::operation::Permission::READ_WRITE,
        sparse: false,
    };
    for (space, byte) in [(SPACE, 7), (OTHER, 8)] {
        for operation in [alloc, write(0, &[byte; 16])] {
            let done = node
                .store_mut()
                .execute(START, space, &operation, &mut Vec::new());
            assert!(done.is_ok());
        }
    }
    // It has the capability of one space, and writes requests for the other: with the keys that it
    // has, and by changing the space of what it has sealed.
    let mut keys = Protection::new(aead(1));
    keys.authorize(secret().capability(OTHER));
    let mut parsed = |space: SpaceId, pretended: SpaceId| {
        let request = Request {
            code: 5,
            space,
            id: 1,
            epoch: 5,
            replaced: 0,
            sent_ns: START.as_nanos(),
            address: 0,
            length: 16,
            offset: 0,
            segment: 0,
            guard: None,
            body: &[],
        };
        let (mut bytes, mut replies) = (Vec::new(), Datagrams::default());
        let emitted = request.emit(&mut keys, &mut bytes);
        if emitted.is_err() {
            assert!(bytes.is_empty());
            return Err(Unauthorized);
        }
        bytes[8..16].copy_from_slice(&pretended.0.to_le_bytes());
        node.receive(START, &mut bytes, &mut replies);
        let answer = replies.iter().next().map(<[u8]>::to_vec);
        Ok(answer.map(|mut answer| {
            let (response, _) = Response::parse(&mut answer, &mut keys).expect("readable");
            response.body.to_vec()
        }))
    };
    assert_eq!(parsed(OTHER, OTHER), Ok(Some(vec![8; 16])));
    assert_eq!(parsed(OTHER, SPACE), Ok(None));
    assert_eq!(parsed(SPACE, SPACE), Err(Unauthorized));
    // The other's keys are now at hand, and are no more use to it.
    let mut own = protection(aead(2));
    let request = Request {
        code: 5,
        space: SPACE,
        id: 1,
        epoch: 5,
        replaced: 0,
        sent_ns: 0,
        address: 0,
        length: 16,
        offset: 0,
        segment: 0,
        guard: None,
        body: &[],
    };
    let mut bytes = Vec::new();
    request.emit(&mut own, &mut bytes).unwrap();
    let mut replies = Datagrams::default();
    node.receive(START, &mut bytes, &mut replies);
    let mut answer = replies.iter().next().unwrap().to_vec();
    assert!(Response::parse(&mut answer.clone(), &mut own).is_ok());
    answer[8..16].copy_from_slice(&OTHER.0.to_le_bytes());
    let mut keys = Protection::new(aead(3));
    keys.authorize(secret().capability(OTHER));
    assert!(Response::parse(&mut answer, &mut keys).is_err());
    assert_eq!(node.counters().unauthenticated, 1);
    // The client says so before anything is sent.
    let mut client = client(client_settings(1), &[OTHER]);
    let refused = client.submit(START, SPACE, &read(0, 16));
    assert_eq!(refused, Err(SubmitError::Unauthorized));
    assert_eq!(client.outstanding(), 0);
    assert!(client.submit(START, OTHER, &read(0, 16)).is_ok());
}

#[test]
fn a_message_of_another_direction_or_another_epoch_is_refused() {
    let mut bench = bench();
    let request = request(&mut bench, &add(0, 1));
    let answer = bench.answers(&request).remove(0);
    // Reflected, as they are and with the other direction's code.
    for message in [&request, &answer] {
        for code in [message[1], message[1] ^ 0x80] {
            let mut reflected = message.clone();
            reflected[1] = code;
            let executed = bench.node.counters().executed;
            if message == &request {
                bench.give(&[reflected]);
            } else {
                assert!(bench.answers(&reflected).is_empty());
            }
            assert_eq!(bench.node.counters().executed, executed);
            assert!(bench.completions().is_empty());
        }
    }
    // The node's next start has other keys: a request for it cannot be made of an old one.
    bench.node = memory_node(node_settings(6), bench.memory.clone());
    let mut renamed = request.clone();
    renamed[24..32].copy_from_slice(&6u64.to_le_bytes());
    assert!(bench.answers(&renamed).is_empty());
    assert_eq!(bench.node.counters().unauthenticated, 1);
    // As it is it is answered, with the new epoch, so that the client learns of the restart.
    let answers = bench.answers(&request);
    let mut answer = answers[0].clone();
    let (response, _) = Response::parse(&mut answer, &mut protection(aead(9))).unwrap();
    assert_eq!((response.status, response.epoch), (3, 6));
    bench.give(&answers);
    bench.exchange();
    assert_eq!(bench.client.epoch(), 6);
    bench.submit(&read(0, 8));
    bench.exchange();
    assert!(bench
        .completions()
        .iter()
        .any(|end| end.data == 1u64.to_le_bytes()));
}

#[test]
fn a_replay_gives_the_recorded_outcome_and_later_none() {
    let mut bench = bench();
    let request = request(&mut bench, &add(0, 1));
    let answers = bench.answers(&request);
    bench.give(&answers);
    assert_eq!(bench.completions()[0].outcome, Ok(Value::Old(0)));
    let mut outcomes = Vec::new();
    for wait in [1, 50, 20, 1000] {
        bench.wait(wait * MILLISECOND);
        let mut answer = bench.answers(&request).remove(0);
        let (response, _) = Response::parse(&mut answer, &mut protection(aead(9))).unwrap();
        outcomes.push((response.status, response.value));
    }
    // Done, with the old value; then beyond the horizon.
    assert_eq!(outcomes, [(0, 0), (0, 0), (4, 0), (4, 0)]);
    assert_eq!(bench.memory.bytes(0..8), 1u64.to_le_bytes());
}

#[test]
fn messages_of_a_datagram_may_change_places_and_stand_for_themselves() {
    let mut bench = bench();
    bench.submit(&add(0, 1));
    bench.submit(&add(4096, 2));
    let sent = bench.sent();
    let len = u32::from_le_bytes(sent[0][4..8].try_into().unwrap()) as usize;
    let (first, second) = sent[0].split_at(len);
    let mut forged = first.to_vec();
    forged[len - 1] ^= 1;
    // What follows a forged message is not looked at.
    assert!(bench.answers(&[&forged, second].concat()).is_empty());
    let answers = bench.answers(&[second, first].concat());
    bench.give(&answers);
    assert_eq!(bench.completions().len(), 2);
    assert_eq!(bench.memory.log(), [4096, 0]);
}

/// Two clients of a space, retransmissions, answers given twice, and a restart of the node, whose
/// counter begins where that of a client does.
#[test]
fn no_nonce_is_used_twice() {
    let memory = Memory::new(1 << 20);
    let (mut seen, mut sent) = (HashSet::new(), 0);
    let mut messages = 0;
    let mut look = |mut datagram: &[u8]| {
        while let Some(head) = datagram.first_chunk::<32>() {
            let len = u32::from_le_bytes(head[4..8].try_into().unwrap()) as usize;
            let nonce = datagram[len - TRAILER..len - 16].to_vec();
            let key = (head[8..16].to_vec(), head[24..32].to_vec());
            assert!(seen.insert((key, nonce)), "a nonce came twice");
            messages += 1;
            datagram = &datagram[len..];
        }
    };
    let mut clients = [1u64, 1 << 20].map(|id| client(client_settings(id), &[SPACE, OTHER]));
    let mut now = START;
    for epoch in [5, 6] {
        let config = NodeConfig {
            authentication: aead(1),
            ..node_settings(epoch)
        };
        let mut node = memory_node(config, memory.clone());
        for round in 0..40u64 {
            for client in &mut clients {
                for space in [SPACE, OTHER] {
                    client.submit(now, space, &add(round * 4096, 1)).unwrap();
                }
                let mut datagrams = Datagrams::default();
                while client.transmit(now, &mut datagrams) {}
                for datagram in datagrams.iter() {
                    look(datagram);
                    // Every third is lost, and all others arrive twice.
                    sent += 1;
                    for _ in 0..2 * (sent % 3).min(1) {
                        let mut replies = Datagrams::default();
                        node.receive(now, &mut datagram.to_vec(), &mut replies);
                        for reply in replies.iter() {
                            look(reply);
                            client.receive(now, &mut reply.to_vec());
                        }
                    }
                }
                client.tick(now);
            }
            now += MILLISECOND;
        }
        assert!(node.counters().repeated > 20, "{:?}", node.counters());
    }
    let counters = clients[0].counters();
    assert!(
        counters.retransmissions > 20 && counters.restarts == 1,
        "{counters:?}"
    );
    assert!(messages > 500, "{messages}");
}

#[test]
fn more_spaces_than_there_is_room_for_keys_are_served() {
    let node = NodeConfig {
        keys_max: 8,
        ..node_settings(5)
    };
    let mut node = memory_node(node, Memory::new(4096));
    let spaces: Vec<SpaceId> = (0..100).map(SpaceId).collect();
    let mut client = client(client_settings(1), &spaces);
    let (mut sent, mut replies) = (Datagrams::default(), Datagrams::default());
    for _ in 0..3 {
        for space in &spaces {
            client.submit(START, *space, &read(0, 8)).unwrap();
            while client.transmit(START, &mut sent) {
                replies.clear();
                for datagram in sent.iter() {
                    node.receive(START, &mut datagram.to_vec(), &mut replies);
                }
                sent.clear();
                for reply in replies.iter() {
                    client.receive(START, &mut reply.to_vec());
                }
            }
            let end = client.poll().expect("an outcome");
            assert_eq!(end.outcome, Ok(Value::Bytes(8)));
        }
    }
}

#[test]
fn a_node_with_another_secret_or_none_and_a_client_do_not_hear_each_other() {
    for secret in [None, Some(Secret::new(&[1; 32]))] {
        let mut node = tare_farmem::protocol::Node::new(node_settings(5), Memory::new(4096));
        if let Some(secret) = secret {
            node.set_secret(secret);
        }
        let mut client = client(client_settings(1), &[SPACE]);
        client.submit(START, SPACE, &add(0, 1)).unwrap();
        let (mut datagrams, mut replies) = (Datagrams::default(), Datagrams::default());
        for n in 0..30 {
            while client.transmit(START + n * MILLISECOND, &mut datagrams) {}
            client.tick(START + n * MILLISECOND);
        }
        for datagram in datagrams.iter() {
            node.receive(START, &mut datagram.to_vec(), &mut replies);
        }
        assert!(replies.is_empty() && datagrams.len() > 1);
        let sent = datagrams.len() as u64;
        assert_eq!(node.counters().unauthenticated, sent);
        let end = client.poll().expect("an outcome");
        assert_eq!(end.outcome, Err(Failure::NodeGone));
    }
    // Nor do those of which only one encrypts.
    let mut node = memory_node(node_config(5), Memory::new(4096));
    let mut client = client(client_settings(1), &[SPACE]);
    client.submit(START, SPACE, &add(0, 1)).unwrap();
    let (mut sent, mut replies) = (Datagrams::default(), Datagrams::default());
    assert!(client.transmit(START, &mut sent));
    let mut datagram = sent.iter().flatten().copied().collect::<Vec<u8>>();
    node.receive(START, &mut datagram, &mut replies);
    assert_eq!((replies.iter().count(), node.counters().malformed), (0, 1));
}

/// The layout of the guide, with a key that another implementation derived.
#[test]
fn the_encrypted_layout_is_that_of_the_guide() {
    let request = Request {
        code: 7,
        space: SPACE,
        id: 0x11,
        epoch: 5,
        replaced: 0x13,
        sent_ns: 0x14,
        address: 0x1516_1718,
        length: 0,
        offset: 0,
        segment: 0,
        guard: Some(Guard { lock: 8, token: 9 }),
        body: &[0xbb; 16],
    };
    let (mut plain, mut bytes) = (Vec::new(), Vec::new());
    let none = &mut Protection::new(Authentication::None);
    request.emit(none, &mut plain).unwrap();
    let authentication = Authentication::Aead {
        first_nonce: *b"first nonce!",
    };
    request
        .emit(&mut protection(authentication), &mut bytes)
        .unwrap();
    assert_eq!(bytes.len(), plain.len() + TRAILER);
    let (content, trailer) = bytes.split_at(plain.len());
    // In clear: kind, length, space, number, epoch.
    plain[2] = 2;
    plain[4] += TRAILER as u8;
    assert_eq!(content[..32], plain[..32]);
    let differing = (32..plain.len()).filter(|n| content[*n] != plain[*n]);
    assert!(differing.count() > 60, "the rest is encrypted");
    assert_eq!(trailer[..12], *b"first nonce!");
    let key = data_encoding::HEXLOWER.decode(KEY.as_bytes()).unwrap();
    let key = tare_gcm::Key::new(&key).unwrap();
    let mut opened = content[32..].to_vec();
    let tag = trailer[12..].try_into().unwrap();
    let opened_well =
        key.open_in_place(&(*b"first nonce!").into(), &plain[..32], &mut opened, &tag);
    assert_eq!(opened_well, Ok(()));
    assert_eq!(opened, plain[32..]);
}

/// Of [`SPACE`] in epoch 5: Python's `hashlib.blake2s`, 16 bytes of it.
const KEY: &str = "a545720988bfbce5c6f4410bf30dd40d";

const TEXT: &str = "farmem-space:7:nzeQ48KJVNKuw8lJi5aEBx26Yhi0rflZ136_-g79GZr3VA_d";

#[test]
fn a_capability_that_was_copied_wrongly_is_refused() {
    let capability = secret().capability(SPACE);
    assert_eq!(capability.to_text().as_str(), TEXT);
    let parsed: Capability = format!(" {TEXT}\n").parse().expect("surrounding space");
    assert_eq!((parsed.space(), parsed.to_text().as_str()), (SPACE, TEXT));
    let error = |text: &str| text.parse::<Capability>().err();
    for (at, c) in TEXT.char_indices() {
        for other in ['a', 'Z', '7', '9', '-', '_', ':', ' ', 'é']
            .iter()
            .filter(|o| **o != c)
        {
            let changed = format!("{}{other}{}", &TEXT[..at], &TEXT[at + 1..]);
            assert!(error(&changed).is_some(), "{changed}");
        }
        let missing = format!("{}{}", &TEXT[..at], &TEXT[at + 1..]);
        assert!(error(&missing).is_some(), "{missing}");
    }
    let prefix = |expected| Some(TextError::Prefix { expected });
    assert_eq!(error("farmem-secret:7:x"), prefix("farmem-space:"));
    assert_eq!(error("farmem-space:x:y"), Some(TextError::Space));
    assert_eq!(
        error("farmem-space:7:y"),
        Some(TextError::Length { found: 1 })
    );
    let place = TEXT.replace("7:", "8:");
    assert_eq!(error(&place), Some(TextError::Check));
    let strange = format!("{}/{}", &TEXT[..20], &TEXT[21..]);
    assert_eq!(error(&strange), Some(TextError::Character { place: 6 }));
    // The text of the secret gives the same secret.
    let text = secret().to_text();
    let again: Secret = text.parse().expect("the text of a secret");
    assert_eq!(again.capability(SPACE).to_text().as_str(), TEXT);
    let as_secret = text
        .replace("secret:", "space:7:")
        .parse::<Capability>()
        .err();
    assert_eq!(as_secret, Some(TextError::Check));
}

#[test]
fn addresses_values_and_data_are_not_in_what_is_sent() {
    let mut bench = bench();
    let (data, address) = (*b"sixteen bytes!!!", 0x7654u64);
    let mut wire = request(&mut bench, &write(address, &data));
    let answers = bench.answers(&wire);
    bench.give(&answers);
    wire.extend(answers.concat());
    let added = request(&mut bench, &add(address, 0x1122_3344_5566_7788));
    let answers = bench.answers(&added);
    bench.give(&answers);
    wire.extend([added, answers.concat()].concat());
    let again = request(&mut bench, &read(address, 16));
    wire.extend(bench.answers(&again).concat());
    wire.extend(again);
    let old = u64::from_le_bytes(data[..8].try_into().unwrap());
    for secret in [old, address, 0x1122_3344_5566_7788] {
        let bytes = secret.to_le_bytes();
        assert!(
            !wire.windows(8).any(|window| window == bytes),
            "{secret:#x}"
        );
    }
    assert!(wire.len() > 500);
}
