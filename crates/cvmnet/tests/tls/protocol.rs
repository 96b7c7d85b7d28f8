//! The promises of a session, and its answers to a peer that breaks the protocol.

use proptest::prelude::*;
use tare_cvmnet::tls::{
    Alert, Content, Error, Header, Options, Piece, Room, Session, Suites, DATA_MAX, OVERHEAD,
};
use tare_memory::SharedMemory;

use crate::link::{configs, deliver, pair, receive, records, seal, shake_hands};

fn options() -> Options {
    Options::default()
}

#[test]
fn data_goes_both_ways_with_either_key_size_and_cut_anywhere() {
    for suites in [Suites::Aes128, Suites::Aes256] {
        let (mut server, mut client) = pair(&Options {
            suites,
            ..options()
        });
        for len in [0, 1, 15, 16, 17, 1000, DATA_MAX] {
            let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
            for piece in [1, 16, 17, 1448, 20_000] {
                let half = len / 2;
                let record = seal(&mut client, &[&data[..half], &data[half..]]).unwrap();
                let (content, out) = receive(&mut server, &record, piece).unwrap();
                if len == 0 {
                    assert_eq!(content, Content::Message);
                } else {
                    assert_eq!(
                        (content, &out),
                        (Content::Data(len), &data),
                        "{len} {piece}"
                    );
                }
                let record = seal(&mut server, &[b"one", &data[half..], b"two"]).unwrap();
                let (_, out) = receive(&mut client, &record, piece).unwrap();
                assert_eq!(out, [b"one", &data[half..], b"two"].concat());
            }
        }
    }
}

#[test]
fn a_record_that_is_changed_in_any_place_ends_its_session_and_shows_nothing() {
    let data = [0x5a; 40];
    for at in 0..data.len() + OVERHEAD {
        let (mut server, mut client) = pair(&options());
        let mut record = seal(&mut client, &[&data]).unwrap();
        record[at] ^= 1;
        let Ok(header) = Header::parse(record[..Header::LEN].try_into().unwrap()) else {
            continue;
        };
        if header.body_len() != record.len() - Header::LEN {
            continue;
        }
        let shared = SharedMemory::create("record", record.len()).unwrap();
        shared.view().copy_from(&record).unwrap();
        let body = shared.view().range(Header::LEN, header.body_len()).unwrap();
        let mut out = [0xaa; 64];
        let found = server.open(header, &[Piece::Shared(body)], &mut out);
        let alert = if at == 0 {
            Alert::UNEXPECTED_MESSAGE
        } else {
            Alert::BAD_RECORD_MAC
        };
        assert_eq!(found, Err(Error::Peer(alert)), "{at}");
        assert!(!out.windows(4).any(|bytes| bytes == [0x5a; 4]), "{at}");
        assert!(!server.is_open());
        assert_eq!(server.open(header, &[], &mut out), Err(Error::Over));
        // The peer is told why.
        let told = deliver(&mut server, &mut client, 100);
        assert_eq!(told, Err(Error::Alerted(alert)), "{at}");
    }
}

#[test]
fn records_replayed_left_out_or_swapped_do_not_open() {
    for order in [&[0, 0][..], &[1], &[0, 2]] {
        let (mut server, mut client) = pair(&options());
        let sealed: Vec<_> = (0..3)
            .map(|n| seal(&mut client, &[&[n; 9]]).unwrap())
            .collect();
        let (last, first) = order.split_last().unwrap();
        for at in first {
            receive(&mut server, &sealed[*at], 99).unwrap();
        }
        let found = receive(&mut server, &sealed[*last], 99);
        assert_eq!(found, Err(Error::Peer(Alert::BAD_RECORD_MAC)), "{order:?}");
    }
}

#[test]
fn keys_are_replaced_in_time_and_when_asked_without_a_byte_lost() {
    let (server, client) = configs(&options());
    let mut pair = (
        Session::server(&server).unwrap().with_records_per_key(3),
        Session::client(&client).unwrap().with_records_per_key(5),
    );
    shake_hands(&mut pair);
    let (mut server, mut client) = pair;
    let mut updates = 0;
    for round in 0..40_u8 {
        let record = seal(&mut client, &[&[round; 100]]).unwrap();
        assert_eq!(receive(&mut server, &record, 50).unwrap().1, [round; 100]);
        updates += deliver(&mut client, &mut server, 50).unwrap().len();
        let record = seal(&mut server, &[&[round; 200]]).unwrap();
        assert_eq!(receive(&mut client, &record, 50).unwrap().1, [round; 200]);
        updates += deliver(&mut server, &mut client, 50).unwrap().len();
        if round % 7 == 0 {
            client.update_keys().unwrap();
            updates += deliver(&mut client, &mut server, 50).unwrap().len();
        }
    }
    // 40 / 3 of the server's; of the client's 8 without those that were asked for.
    assert!(updates >= 13 + 6, "{updates}");
}

#[test]
fn what_is_queued_comes_before_what_is_sealed() {
    let (mut server, _client) = pair(&options());
    server.update_keys().unwrap();
    let shared = SharedMemory::create("record", 100).unwrap();
    let found = server.seal(&[b"data"], Room::Shared(shared.view()));
    assert!(matches!(found, Err(Error::Usage(_))), "{found:?}");
    // Many that are asked for before one is sent are one.
    let len = server.take_outgoing().len();
    server.update_keys().unwrap();
    server.update_keys().unwrap();
    assert_eq!(server.take_outgoing().len(), len);
    assert!(server.seal(&[b"data"], Room::Shared(shared.view())).is_ok());
}

#[test]
fn a_peer_that_sends_no_data_is_given_up() {
    let (mut server, mut client) = pair(&options());
    let mut found = Ok(vec![]);
    let mut updates = 0;
    while found.is_ok() {
        client.update_keys().unwrap();
        found = deliver(&mut client, &mut server, 50);
        updates += 1;
        assert!(updates < 100);
    }
    assert_eq!(found, Err(Error::Peer(Alert::UNEXPECTED_MESSAGE)));
    assert_eq!(updates, 33);
}

#[test]
fn a_session_ends_one_side_after_the_other_and_data_after_the_notice_is_ignored() {
    let (mut server, mut client) = pair(&options());
    let late = seal(&mut client, &[b"late"]).unwrap();
    client.close();
    client.close();
    assert!(!client.is_open());
    let shared = SharedMemory::create("record", 100).unwrap();
    let notice = client.take_outgoing();
    assert_eq!(records(&notice).len(), 1);
    assert_eq!(
        client.seal(&[b"more"], Room::Shared(shared.view())),
        Err(Error::Over)
    );
    receive(&mut server, &late, 50).unwrap();
    assert!(!server.is_closed_by_peer());
    assert_eq!(
        receive(&mut server, &notice, 50).unwrap().0,
        Content::Closed
    );
    assert!(server.is_closed_by_peer());
    assert_eq!(receive(&mut server, &late, 50).unwrap().0, Content::Closed);
    // The other direction still works.
    let record = seal(&mut server, &[b"answer"]).unwrap();
    assert_eq!(receive(&mut client, &record, 50).unwrap().1, b"answer");
    server.close();
    assert_eq!(
        deliver(&mut server, &mut client, 50).unwrap(),
        [Content::Closed]
    );
}

#[test]
fn headers_are_checked_before_anything_waits_for_their_records() {
    for (header, alert) in [
        ([23, 3, 3, 0x41, 1], Some(Alert::RECORD_OVERFLOW)),
        ([23, 3, 3, 0x41, 0], None),
        ([22, 3, 1, 0x40, 1], Some(Alert::RECORD_OVERFLOW)),
        ([22, 3, 1, 0x40, 0], None),
        ([23, 3, 3, 0, 0], Some(Alert::UNEXPECTED_MESSAGE)),
        ([24, 3, 3, 0, 5], Some(Alert::UNEXPECTED_MESSAGE)),
        (
            [b'G', b'E', b'T', b' ', b'/'],
            Some(Alert::UNEXPECTED_MESSAGE),
        ),
    ] {
        let found = Header::parse(header).err();
        assert_eq!(found, alert.map(Error::Peer), "{header:?}");
    }
}

#[test]
fn a_handshake_of_nonsense_or_without_end_is_refused() {
    let (server, _) = configs(&options());
    let mut session = Session::server(&server).unwrap();
    let nonsense = [22, 3, 1, 0, 4, 1, 0, 0, 0];
    assert!(matches!(
        session.handshake(&nonsense),
        Err(Error::Handshake(_))
    ));
    // An alert in the clear.
    assert_eq!(session.take_outgoing().first(), Some(&21));
    assert_eq!(session.handshake(&nonsense), Err(Error::Over));

    // A message of 64 KiB - 1 whose parts never end.
    let mut session = Session::server(&server).unwrap();
    let mut record = vec![22, 3, 1, 0x40, 0, 1, 0, 255, 255];
    record.resize(5 + DATA_MAX, 0);
    let taken = (0..100).take_while(|_| session.handshake(&record).is_ok());
    assert_eq!(taken.count(), 1);
    // Neither do short ones: 20 KiB are kept.
    let mut session = Session::server(&server).unwrap();
    let mut record = vec![22, 3, 1, 0x03, 0xfb, 1, 0, 255, 255];
    record.resize(1024, 0);
    let taken = (0..100).take_while(|_| session.handshake(&record).is_ok());
    assert_eq!(taken.count(), 20);
}

#[test]
fn a_header_that_is_refused_is_told_to_the_peer_in_every_state_of_a_connection() {
    // Before anything is sent, in the clear.
    for alert in [Alert::UNEXPECTED_MESSAGE, Alert::RECORD_OVERFLOW] {
        let (config, _) = configs(&options());
        let mut server = Session::server(&config).unwrap();
        server.refuse(alert);
        assert_eq!(server.take_outgoing(), [21, 3, 3, 0, 2, 2, alert.0]);
        assert!(!server.is_handshaking() && !server.is_open());
        server.refuse(alert);
        assert!(!server.has_outgoing());
    }
    // When the server has sent all of its part of the handshake, encrypted.
    let (server, client) = configs(&options());
    let mut server = Session::server(&server).unwrap();
    let mut client = Session::client(&client).unwrap();
    deliver(&mut client, &mut server, 1500).unwrap();
    deliver(&mut server, &mut client, 1500).unwrap();
    assert!(server.is_handshaking() && client.is_open());
    // The keys are those of rustls, and so is the alert.
    server.refuse(Alert::RECORD_OVERFLOW);
    let told = deliver(&mut server, &mut client, 100);
    assert_eq!(told, Err(Error::Alerted(Alert::UNEXPECTED_MESSAGE)));
    // After it, by the keys of data.
    for alert in [Alert::UNEXPECTED_MESSAGE, Alert::RECORD_OVERFLOW] {
        let (mut server, mut client) = pair(&options());
        server.refuse(alert);
        let told = deliver(&mut server, &mut client, 100);
        assert_eq!(told, Err(Error::Alerted(alert)));
        assert!(seal(&mut server, &[b"more"]).is_err());
    }
}

#[test]
fn resumption_is_by_tickets_and_only_if_wanted() {
    for resumption in [true, false] {
        let (server, client) = configs(&Options {
            resumption,
            ..options()
        });
        let mut sizes = Vec::new();
        for _ in 0..2 {
            let mut pair = (
                Session::server(&server).unwrap(),
                Session::client(&client).unwrap(),
            );
            let hello = pair.1.take_outgoing();
            for record in records(&hello) {
                pair.0.handshake(&record).unwrap();
            }
            let answer = pair.0.take_outgoing();
            // Without its certificate the answer is short.
            sizes.push(answer.len());
            for record in records(&answer) {
                pair.1.handshake(&record).unwrap();
            }
            shake_hands(&mut pair);
        }
        assert_eq!(sizes[1] < sizes[0] / 2, resumption, "{sizes:?}");
    }
}

#[test]
fn the_key_log_has_every_secret_and_is_the_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    pair(&Options {
        key_log: Some(path.clone()),
        ..options()
    });
    let log = std::fs::read_to_string(&path).unwrap();
    for label in [
        "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
        "SERVER_HANDSHAKE_TRAFFIC_SECRET",
        "CLIENT_TRAFFIC_SECRET_0",
        "SERVER_TRAFFIC_SECRET_0",
    ] {
        // Both sides log.
        let lines: Vec<_> = log.lines().filter(|line| line.starts_with(label)).collect();
        assert_eq!(lines.len(), 2, "{log}");
        assert_eq!(lines[0], lines[1]);
        assert_eq!(
            lines[0].split(' ').map(str::len).collect::<Vec<_>>()[1..],
            [64, 64]
        );
    }
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_of_a_peer_make_a_session_panic(
        shakes in any::<bool>(),
        changes in prop::collection::vec((any::<u16>(), any::<u8>()), 1..6),
        piece in 1_usize..300,
    ) {
        let (server, client) = configs(&options());
        let mut server = Session::server(&server).unwrap();
        let mut client = Session::client(&client).unwrap();
        if !shakes {
            let mut both = (server, client);
            shake_hands(&mut both);
            (server, client) = both;
            client.update_keys().unwrap();
        }
        let mut bytes = client.take_outgoing();
        for (at, value) in changes {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
        }
        // As whole as its header says.
        let header = Header::parse(bytes[..Header::LEN].try_into().unwrap());
        if let Ok(header) = header {
            bytes.resize(Header::LEN + header.body_len(), 0);
            if server.is_handshaking() {
                let _ = server.handshake(&bytes);
            } else {
                let _ = receive(&mut server, &bytes, piece);
            }
        }
    }
}

#[test]
fn a_handshake_message_that_is_too_long_is_answered_with_decode_error() {
    // From one that is only longer than this server takes to the longest that can be announced.
    for len in [30_000_u32, 65_535, 65_536, (1 << 24) - 1] {
        let mut session = Session::server(&configs(&options()).0).unwrap();
        let [_, length @ ..] = len.to_be_bytes();
        let start = [&[22, 3, 1, 0x40, 0, 1][..], &length].concat();
        let mut record = vec![0; Header::LEN + DATA_MAX];
        record[..start.len()].copy_from_slice(&start);
        let ended = (0..2).find_map(|_| session.handshake(&record).err());
        assert!(
            matches!(ended, Some(Error::Handshake(_))),
            "{len}: {ended:?}"
        );
        assert_eq!(session.take_outgoing(), [21, 3, 3, 0, 2, 2, 50], "{len}");
    }
}
