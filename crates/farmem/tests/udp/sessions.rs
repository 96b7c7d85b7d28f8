//! Many sessions.

use std::rc::Rc;
use std::time::Duration;

use tare_farmem::operation::{Operation, SpaceId, Value};
use tare_farmem::protocol::{Client, ClientConfig};
use tare_farmem::session::Session;
use tare_farmem::transport::{Faults, Faulty, Member, Shared, UdpLink, Waiting};

use crate::support::{service, session, ANY};

const SECOND: Duration = Duration::from_secs(1);

fn client(first_id: u64) -> Client {
    Client::new(ClientConfig {
        timeout: Duration::from_secs(60),
        ..ClientConfig::new(first_id)
    })
}

#[test]
fn thousands_of_sessions_on_few_sockets_each_see_only_their_own_memory() {
    let service = service(ANY, 1);
    let node = service.address().unwrap();
    let sockets: Vec<_> = (0..8)
        .map(|_| Shared::new(UdpLink::connect(node, Waiting::Asleep).unwrap()))
        .collect();
    // All use the same numbers and the same addresses.
    let mut sessions: Vec<Session<Member<UdpLink>>> = (0..2000u64)
        .map(|n| {
            let member = sockets[n as usize % 8].join(SpaceId(n), client(1)).unwrap();
            Session::new(member, SpaceId(n))
        })
        .collect();
    assert!(sockets[0].join(SpaceId(8), client(1)).is_none(), "taken");
    let alloc = Operation::Alloc {
        bytes: 4096,
        page: tare_farmem::operation::PageSize::Small,
        at: Some(0x4000_0000),
        permission: tare_farmem::operation::Permission::READ_WRITE,
        sparse: false,
    };
    let write = |n: u64| n.to_le_bytes();
    for (n, session) in sessions.iter_mut().enumerate() {
        session.submit(&Operation::Open).unwrap();
        session.submit(&Operation::Fence).unwrap();
        session.submit(&alloc).unwrap();
        let data = &write(n as u64 * 3);
        let guard = None;
        session
            .submit(&Operation::Write {
                address: 0x4000_0000,
                data,
                guard,
            })
            .unwrap();
        session
            .submit(&Operation::Read {
                address: 0x4000_0000,
                len: 8,
            })
            .unwrap();
    }
    for (n, session) in sessions.iter_mut().enumerate() {
        let mut data = Vec::new();
        while session.outstanding() > 0 {
            if let Some(end) = session.poll(SECOND).unwrap() {
                end.outcome.unwrap();
                data = end.data;
            }
        }
        assert_eq!(data, write(n as u64 * 3));
    }
    for round in 0..10 {
        for session in &mut sessions {
            assert_eq!(session.fetch_add(0x4000_0008, 1).unwrap(), round);
        }
    }
    assert_eq!(service.with_node(|node| node.store().counts().spaces), 2000);
    assert!(sockets.iter().all(|socket| socket.unmatched() == 0));
}

#[test]
fn an_idle_client_takes_little_memory() {
    let info = allocation_counter::measure(|| drop(client(1)));
    let bytes = size_of::<Client>() as u64 + info.bytes_total;
    assert!(bytes <= 1024, "{bytes}");
}

#[test]
fn sessions_on_one_faulty_socket_make_progress_for_each_other_and_may_leave() {
    let service = service(ANY, 1);
    let link = UdpLink::connect(service.address().unwrap(), Waiting::Asleep).unwrap();
    let faults = Faults {
        loss: 0.05,
        duplication: 0.05,
        reordering: 0.05,
    };
    let shared = Rc::new(Shared::new(Faulty::new(link, faults, 7)));
    let join = |n, first_id| {
        let member = shared.join(SpaceId(n), client(first_id)).unwrap();
        Session::new(member, SpaceId(n))
    };
    let mut sessions: Vec<_> = (0..20).map(|n| join(n, 1)).collect();
    for session in &mut sessions {
        session.submit(&Operation::Open).unwrap();
    }
    // Only the last one is polled; the others complete all the same.
    let mut last = sessions.pop().unwrap();
    while last.outstanding() > 0
        || sessions
            .iter()
            .any(|s| s.channel().with(|c| c.outstanding()) != Some(0))
    {
        if last.outstanding() == 0 {
            last.submit(&Operation::Open).unwrap();
        }
        last.poll(SECOND).unwrap();
    }
    for session in &mut sessions {
        let end = session
            .poll(Duration::ZERO)
            .unwrap()
            .expect("it has completed");
        assert_eq!(end.outcome, Ok(Value::None));
        // One that leaves with something on the way.
        session.submit(&Operation::Open).unwrap();
        session.submit(&Operation::Fence).unwrap();
    }
    drop(sessions);
    // With numbers that the node has not seen of this space.
    let mut again = join(3, 1 << 40);
    let address = again.alloc(4096).unwrap();
    for n in 0..200 {
        assert_eq!(again.fetch_add(address, 1).unwrap(), n);
    }
}

#[test]
fn operations_of_one_session_on_a_page_take_effect_in_their_order() {
    let service = service(ANY, 2);
    let mut session = session(&service);
    session.open().unwrap();
    let address = session.alloc(4096).unwrap();
    for n in 0..500u64 {
        let data = &n.to_le_bytes();
        let guard = None;
        session
            .submit(&Operation::Write {
                address,
                data,
                guard,
            })
            .unwrap();
        session
            .submit(&Operation::Read { address, len: 8 })
            .unwrap();
    }
    let mut reads = 0u64;
    while session.outstanding() > 0 {
        let Some(end) = session.poll(SECOND).unwrap() else {
            continue;
        };
        if let Ok(Value::Bytes(8)) = end.outcome {
            assert_eq!(end.data, reads.to_le_bytes());
            reads += 1;
        }
        session.release(end);
    }
    assert_eq!(reads, 500);
}
