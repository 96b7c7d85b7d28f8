//! Ports that another process takes over; here, another port of this one.

use std::fs::File;

use tare_port::{
    Burst, Descriptors, Interface, Layout, PacketPort, Pool, Port, XdpMode, XdpPort, XdpProgram,
};

use crate::namespace::{in_namespace, veth};
use crate::traffic::{becomes, number, numbered, receive, receive_all, send};

fn pool() -> Pool {
    pool_of(2048)
}

fn pool_of(capacity: usize) -> Pool {
    Pool::new(1024, capacity, Layout::PowerOfTwo).unwrap()
}

/// Sends frames with these numbers.
fn say(port: &mut dyn Port, pool: &Pool, numbers: std::ops::Range<u32>) {
    let mut burst: Burst = numbers.map(|n| numbered(pool, n)).collect();
    send(port, &mut burst);
}

/// Receives frames with these numbers and no others.
fn hear(port: &mut dyn Port, numbers: std::ops::Range<u32>) {
    let mut burst = Burst::new();
    receive_all(port, &mut burst, numbers.len());
    receive(port, &mut burst, numbers.len() + 1);
    assert!(numbers.eq(burst.drain(..).map(|frame| number(&frame))));
}

fn null() -> std::os::fd::OwnedFd {
    File::open("/dev/null").unwrap().into()
}

#[test]
fn a_packet_socket_is_taken_over_with_the_frames_that_wait_in_it() {
    in_namespace(|| {
        let (a, b) = veth("a", "b");
        let pool = pool();
        let mut sender = PacketPort::open(&a, &pool).unwrap();
        let mut first = PacketPort::open_share(&b, &pool).unwrap();
        say(&mut sender, &pool, 0..20);
        hear(&mut first, 0..20);
        let offered = first.handover().unwrap().descriptors().unwrap();
        assert!(!first.handover().unwrap().pause().unwrap());
        say(&mut sender, &pool, 20..40);
        let fds = offered.try_clone().unwrap().into_fds();
        let Some(Descriptors::Packet(socket)) = Descriptors::new(&offered.name(), fds) else {
            panic!("it is a packet socket");
        };
        let mut second = PacketPort::take_over(&b, &pool, socket).unwrap();
        hear(&mut second, 20..40);
        // Another socket of this interface shares what arrives.
        let mut third = PacketPort::open_share(&b, &pool).unwrap();
        drop(first);
        say(&mut sender, &pool, 40..60);
        let mut burst = Burst::new();
        becomes(|| {
            for port in [&mut second, &mut third] {
                receive(port, &mut burst, 20);
            }
            burst.len() == 20
        });
        receive(&mut third, &mut burst, 21);
        assert_eq!(burst.len(), 20);
        // What is no packet socket of the interface is refused.
        let Descriptors::Packet(socket) = offered else {
            panic!("it is a packet socket");
        };
        let error = PacketPort::take_over(&a, &pool, socket).unwrap_err();
        assert!(error.to_string().contains("bound to interface"), "{error}");
        assert!(PacketPort::take_over(&b, &pool, null()).is_err());
        assert!(Descriptors::new("packet socket", Vec::new()).is_none());
        assert!(Descriptors::new("TAP", vec![null()]).is_none());
    });
}

#[test]
fn a_paused_xdp_port_leaves_frames_to_packet_sockets_until_it_is_resumed() {
    in_namespace(|| {
        for (mode, capacity, [a, b]) in [
            (XdpMode::Native, 2048, ["a", "b"]),
            (XdpMode::Generic, 2048, ["c", "d"]),
            (XdpMode::Native, 16_384, ["e", "f"]),
        ] {
            let (a, b) = veth(a, b);
            paused_and_resumed(mode, capacity, &a, &b);
        }
    });
}

fn paused_and_resumed(mode: XdpMode, capacity: usize, a: &Interface, b: &Interface) {
    let (pool, other) = (pool_of(capacity), pool_of(capacity));
    let mut sender = PacketPort::open(a, &pool).unwrap();
    let (mut port, _) = XdpPort::open(b, 0, &pool, &[mode]).unwrap();
    let mut spare = PacketPort::open_share(b, &other).unwrap();
    say(&mut sender, &pool, 0..20);
    hear(&mut port, 0..20);
    let handover = port.handover().unwrap();
    let offered = handover.descriptors().unwrap();
    // The other process knows the length of slots that the program is for.
    let name = offered.name();
    let offered = Descriptors::new(&name, offered.into_fds()).unwrap();
    for slots in [2048, 16_384] {
        assert_eq!(offered.fit(&pool_of(slots)), slots == capacity);
    }
    let Descriptors::Xdp { fds, .. } = offered else {
        panic!("it is AF_XDP");
    };
    assert!(handover.pause().unwrap());
    say(&mut sender, &pool, 20..40);
    hear(&mut spare, 20..40);
    hear(&mut port, 0..0);
    port.handover().unwrap().resume().unwrap();
    say(&mut sender, &pool, 40..60);
    hear(&mut port, 40..60);
    hear(&mut spare, 0..0);
    assert!(port.handover().unwrap().has_sent_all().unwrap());
    // What is no map and no link is refused.
    let [map, link] = fds;
    let swapped = [link.try_clone().unwrap(), map.try_clone().unwrap()];
    assert!(XdpProgram::take_over(b, &other, mode, swapped).is_err());
    assert!(XdpProgram::take_over(b, &other, mode, [null(), null()]).is_err());
    let wrong = [map.try_clone().unwrap(), link.try_clone().unwrap()];
    assert!(XdpProgram::take_over(a, &other, mode, wrong).is_err());
    // While another port has the queue, there is none; once it is closed, there is, and frames that
    // arrive in between go to the packet socket.
    let _program = XdpProgram::take_over(b, &other, mode, [map, link]).unwrap();
    assert!(XdpPort::open_after(b, 0, &other, mode).unwrap().is_none());
    port.handover().unwrap().leave();
    drop(port);
    say(&mut sender, &pool, 60..80);
    hear(&mut spare, 60..80);
    let mut next = None;
    becomes(|| {
        next = XdpPort::open_after(b, 0, &other, mode).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        next.is_some()
    });
    let mut next = next.expect("a queue that is free");
    say(&mut sender, &pool, 80..90);
    hear(&mut spare, 80..90);
    next.handover().unwrap().resume().unwrap();
    say(&mut sender, &pool, 90..100);
    hear(&mut next, 90..100);
    hear(&mut spare, 0..0);
}
