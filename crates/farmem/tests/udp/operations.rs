//! Every operation, once over real sockets.

use std::net::SocketAddr;
use std::time::Duration;

use tare_farmem::operation::{Error as Refusal, Operation, PageSize, Permission, SpaceId, Value};
use tare_farmem::protocol::{Client, Failure, OwnedWrite, SubmitError};
use tare_farmem::session::{Error, Session};
use tare_farmem::transport::{Remote, UdpLink, Waiting};

use crate::support::{options, service, session, ANY};

fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> Refusal {
    match result.expect_err("a refusal").failure() {
        Some(Failure::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn operations_that_fill_datagrams_are_sent_before_anyone_waits_for_them() {
    let service = service(ANY, 1);
    let node = service.address().unwrap();
    let link = UdpLink::connect(node, Waiting::Asleep).unwrap();
    let client = Client::new(options().client.unwrap());
    let mut session = Session::new(Remote::new(client, link), SpaceId(1));
    session.open().unwrap();
    let address = session.alloc(1 << 20).unwrap();
    let requests =
        |session: &Session<Remote<UdpLink>>| session.channel().client().counters().requests;
    let before = requests(&session);
    let read = |n: u64| Operation::Read {
        address: address + n * 4096,
        len: 16,
    };
    for n in 0..10 {
        session.submit(&read(n)).unwrap();
    }
    assert_eq!(
        requests(&session),
        before,
        "they may share a datagram with others"
    );
    for n in 10..200 {
        session.submit(&read(n)).unwrap();
    }
    assert!(requests(&session) >= before + 100);
    for _ in 0..200 {
        let ended = session
            .poll(Duration::from_secs(60))
            .unwrap()
            .expect("an end");
        assert_eq!(ended.data, [0; 16]);
        session.release(ended);
    }
}

#[test]
fn every_operation_does_over_ipv4_and_ipv6_what_it_says() {
    let v6: SocketAddr = "[::1]:0".parse().unwrap();
    for listen in [ANY, v6] {
        let service = service(listen, 1);
        let (mut ours, mut theirs) = (session(&service), session(&service));
        assert_eq!(refusal(ours.alloc(1)), Refusal::NoSuchSpace);
        assert!(ours.ping().unwrap() < Duration::from_secs(60));
        ours.open().unwrap();
        theirs.open().unwrap();

        let address = ours.alloc(1 << 20).unwrap();
        let data: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        ours.write(address + 5, &data).unwrap();
        let mut back = vec![0; data.len()];
        ours.read(address + 5, &mut back).unwrap();
        assert!(back == data);
        ours.fence().unwrap();

        assert_eq!(ours.fetch_add(address + (1 << 19), 7).unwrap(), 0);
        assert_eq!(ours.compare_and_swap(address + (1 << 19), 7, 9).unwrap(), 7);
        assert_eq!(ours.compare_and_swap(address + (1 << 19), 7, 8).unwrap(), 9);

        let guard = ours.lock(address, Duration::from_secs(60)).unwrap();
        let locked = ours.lock(address, Duration::from_secs(60));
        assert!(matches!(refusal(locked), Refusal::Locked { .. }));
        let patience = Duration::from_millis(1);
        let locked = ours.lock_within(address, Duration::from_secs(60), patience);
        let Refusal::Locked { retry_after } = refusal(locked) else {
            panic!("the lock is held");
        };
        assert!(retry_after > Duration::ZERO && retry_after <= Duration::from_secs(60));
        ours.write_guarded(address, b"guarded", Some(guard))
            .unwrap();
        ours.unlock(guard).unwrap();
        let stale = ours.write_guarded(address, b"too late", Some(guard));
        assert_eq!(refusal(stale), Refusal::StaleToken);
        let stale = ours.fetch_add_guarded(address, 1, Some(guard));
        assert_eq!(refusal(stale), Refusal::StaleToken);
        let stale = ours.compare_and_swap_guarded(address, 1, 2, Some(guard));
        assert_eq!(refusal(stale), Refusal::StaleToken);

        let region = ours.region(b"shared", address, 8192).unwrap();
        assert_eq!(refusal(theirs.find(b"shared")), Refusal::NoSuchRegion);
        ours.grant(region, theirs.space(), Permission::READ)
            .unwrap();
        assert_eq!(theirs.find(b"shared").unwrap(), region);
        let mapped = theirs.map(region, None).unwrap();
        let mut seven = [0; 7];
        theirs.read(mapped, &mut seven).unwrap();
        assert_eq!(&seven, b"guarded");
        let denied = theirs.write(mapped, b"x");
        assert!(matches!(refusal(denied), Refusal::Permission { .. }));
        ours.revoke(region, theirs.space()).unwrap();
        let gone = theirs.read(mapped, &mut seven);
        assert!(matches!(refusal(gone), Refusal::Unmapped { .. }));
        ours.retire(region).unwrap();

        ours.free(address, 1 << 20).unwrap();
        let gone = ours.read(address, &mut seven);
        assert!(matches!(refusal(gone), Refusal::Unmapped { .. }));
        let fixed = 0x4000_0000;
        let (page, permission) = (PageSize::Small, Permission::READ);
        let at = ours.alloc_with(4096, page, Some(fixed), permission, false);
        assert_eq!(at.unwrap(), fixed);
        let denied = ours.write(fixed, b"x");
        assert!(matches!(refusal(denied), Refusal::Permission { .. }));
        ours.close().unwrap();
        assert_eq!(refusal(ours.alloc(1)), Refusal::NoSuchSpace);
        let node = service.stop().unwrap();
        assert_eq!(node.store().counts().spaces, 1);
    }
}

#[test]
fn batches_of_more_parts_than_may_be_outstanding_are_read_and_written_completely() {
    let service = service(ANY, 1);
    let mut session = session(&service);
    session.open().unwrap();
    let address = session.alloc(16 << 20).unwrap();
    let parts: Vec<_> = (0..5000u64)
        .map(|n| (address + n * 3000, n.to_le_bytes()))
        .collect();
    let slices: Vec<_> = parts.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
    session.write_many(&slices).unwrap();
    let mut back = vec![[0; 8]; parts.len()];
    let mut into: Vec<_> = parts
        .iter()
        .zip(&mut back)
        .map(|((at, _), bytes)| (*at, &mut bytes[..]))
        .collect();
    session.read_many(&mut into).unwrap();
    for ((_, bytes), back) in parts.iter().zip(&back) {
        assert_eq!(bytes, back);
    }
    let unmapped = address + (1 << 40);
    let failing = [
        (address, &b"a"[..]),
        (unmapped, b"b"),
        (address + 1, b"c"),
        (unmapped, b"d"),
    ];
    let failed = session.write_many(&failing);
    let Err(Error::Part { index: 1, failure }) = failed else {
        panic!("{failed:?}");
    };
    assert_eq!(
        failure,
        Failure::Refused(Refusal::Unmapped { address: unmapped })
    );
    let mut two = [0; 2];
    session.read(address, &mut two).unwrap();
    assert_eq!(&two, b"ac");
}

#[test]
fn owned_writes_are_read_back_and_give_back_their_bytes() {
    let service = service(ANY, 1);
    let mut session = session(&service);
    session.open().unwrap();
    let address = session.alloc(16 * 100_000).unwrap();
    for n in 0..16 {
        let write = OwnedWrite {
            address: address + n * 100_000,
            data: vec![n as u8 | 0x80; 100_000],
            guard: None,
        };
        session.submit_write(write).unwrap();
    }
    let mut given_back = 0;
    while session.outstanding() > 0 {
        let ended = session.poll(Duration::from_secs(60)).unwrap();
        let ended = ended.expect("it ends");
        assert_eq!(ended.outcome, Ok(Value::None));
        given_back += ended.data.len();
    }
    assert_eq!(given_back, 16 * 100_000);
    let mut bytes = vec![0; 16 * 100_000];
    session.read(address, &mut bytes).unwrap();
    for (n, part) in bytes.chunks(100_000).enumerate() {
        assert!(part.iter().all(|byte| *byte == n as u8 | 0x80), "{n}");
    }
}

#[test]
fn a_blocking_call_returns_its_own_result_while_others_are_on_the_way() {
    let service = service(ANY, 1);
    let mut session = session(&service);
    session.open().unwrap();
    let address = session.alloc(4096).unwrap();
    let add = |n: u64| Operation::FetchAdd {
        address: address + n * 8,
        add: n,
        guard: None,
    };
    for n in 1..100 {
        let id = session.submit(&add(n)).unwrap();
        // On the same page, so that it ends after the one before it.
        assert_eq!(session.fetch_add(address + n * 8, 0).unwrap(), n);
        assert_eq!(session.outstanding(), 1);
        let ended = session.poll(Duration::ZERO).unwrap().expect("it has ended");
        assert_eq!((ended.id, ended.outcome), (id, Ok(Value::Old(0))));
    }
}

#[test]
fn a_batch_with_a_range_that_no_operation_can_have_does_nothing() {
    let service = service(ANY, 1);
    let mut session = session(&service);
    session.open().unwrap();
    let address = session.alloc(4096).unwrap();
    let mut into = [[7; 8]; 2];
    let beyond = u64::MAX - 7;
    let refused = session.write_many(&[(address, &[1; 8]), (beyond, &[1; 8])]);
    assert!(matches!(refused, Err(Error::Submit(SubmitError::Length))));
    let [first, second] = &mut into;
    let refused = session.read_many(&mut [(address, first), (beyond, second)]);
    assert!(matches!(refused, Err(Error::Submit(SubmitError::Length))));
    assert_eq!(session.outstanding(), 0);
    assert!(session.poll(Duration::from_millis(20)).unwrap().is_none());
    assert_eq!(into, [[7; 8]; 2]);
    session.read(address, &mut into[0]).unwrap();
    assert_eq!(into[0], [0; 8], "it was not written");
}

#[test]
fn names_of_any_length_beyond_the_limit_are_refused_at_once_and_hold_up_nothing() {
    let service = service(ANY, 1);
    let mut session = session(&service);
    session.open().unwrap();
    let address = session.alloc(4096).unwrap();
    for len in [65, 247, 248, 255, 256, 1400, 1472, 2000, 100_000] {
        let name = vec![b'x'; len];
        let add = Operation::FetchAdd {
            address,
            add: 1,
            guard: None,
        };
        session.submit(&add).unwrap();
        let start = std::time::Instant::now();
        let region = session.region(&name, address, 4096);
        assert_eq!(refusal(region), Refusal::Name, "{len}");
        assert_eq!(refusal(session.find(&name)), Refusal::Name, "{len}");
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(30), "{len}: {waited:?}");
        let end = session.poll(Duration::from_secs(60)).unwrap().unwrap();
        assert!(matches!(end.outcome, Ok(Value::Old(_))));
        assert_eq!(session.outstanding(), 0);
    }
    let longest = [b'y'; 64];
    let region = session.region(&longest, address, 4096).unwrap();
    assert_eq!(session.find(&longest).unwrap(), region);
}
