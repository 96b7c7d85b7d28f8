//! Work that the kernel of a sender on the same machine leaves to a network card that veth does not
//! have.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use tare_packet::checksum;
use tare_port::{open, Burst, Interface, Kind, Layout, Offload, PacketPort, Pool, Port, XdpMode};

use crate::namespace::{in_namespace, ip, veth};
use crate::traffic::{becomes, receive, receive_all, send};

/// A veth pair, of which the kernel sends on the first, to an address that it takes for its
/// neighbour's.
fn wired() -> (Interface, Interface) {
    let ends = veth("a", "b");
    // An interface that comes up before it has a carrier drops what the kernel sends until a thread
    // of the kernel has seen the carrier; now it has one.
    ends.0.set_up(false).unwrap();
    ends.0.set_up(true).unwrap();
    ip("addr add 192.0.2.1/24 dev a");
    ip("neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev a");
    ends
}

fn udp() -> UdpSocket {
    let socket = UdpSocket::bind("192.0.2.1:7000").unwrap();
    socket.connect("192.0.2.2:7000").unwrap();
    socket
}

/// Sends many datagrams of 1000 bytes as one packet, for the network card to cut.
fn send_superframe(datagrams: usize) {
    const UDP_SEGMENT: i32 = 103;
    let (socket, size) = (udp(), 1000_i32);
    // SAFETY: a number, of the size told.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            UDP_SEGMENT,
            (&size as *const i32).cast(),
            4,
        )
    };
    assert_eq!(set, 0);
    socket.send(&vec![0x55; 1000 * datagrams]).unwrap();
}

fn pool() -> Pool {
    Pool::new(1024, 2048, Layout::PowerOfTwo).unwrap()
}

#[test]
fn a_superframe_is_dropped_and_counted_or_cut_by_the_sender_but_never_truncated() {
    for (kind, arrive, dropped) in [
        (Kind::Xdp(XdpMode::Generic), 0, 1),
        (Kind::Packet, 0, 1),
        // This mode has the far end cut it.
        (Kind::Xdp(XdpMode::Native), 9, 0),
        (Kind::Auto, 9, 0),
    ] {
        in_namespace(move || {
            let (_, b) = wired();
            let pool = pool();
            let (mut port, _) = open(&b, 0, &pool, kind).unwrap();
            send_superframe(9);
            let mut burst = Burst::new();
            receive_all(&mut port, &mut burst, arrive);
            // However long the kernel takes to drop one.
            becomes(|| {
                receive(&mut port, &mut burst, 9);
                port.counters().rx_dropped == dropped
            });
            assert_eq!(burst.len(), arrive, "{kind:?}");
            assert!(burst.iter().all(|frame| frame.len() == 1042));
            assert_eq!(port.counters().rx_dropped, dropped, "{kind:?}");
        });
    }
}

#[test]
fn two_datagrams_in_one_are_dropped_even_where_a_frame_had_room_for_both() {
    in_namespace(|| {
        let (_, b) = wired();
        let pool = Pool::new(64, 9000, Layout::Spread).unwrap();
        let (mut port, _) = open(&b, 0, &pool, Kind::Packet).unwrap();
        send_superframe(2);
        let mut burst = Burst::new();
        becomes(|| {
            receive(&mut port, &mut burst, 1);
            port.counters().rx_dropped == 1
        });
        assert!(burst.is_empty());
        assert_eq!(port.counters().rx_dropped, 1);
    });
}

#[test]
fn datagrams_arrive_with_their_checksum() {
    for (kind, offloads_off) in [
        (Kind::Packet, false),
        (Kind::Packet, true),
        (Kind::Xdp(XdpMode::Generic), true),
        (Kind::Xdp(XdpMode::Native), true),
    ] {
        in_namespace(move || {
            let (a, b) = wired();
            assert!(a.offloads().contains(&Offload::TransmitChecksum));
            if offloads_off {
                a.switch_offloads_off().unwrap();
                assert_eq!(a.offloads(), []);
            }
            let pool = pool();
            let (mut port, opened) = open(&b, 0, &pool, kind).unwrap();
            assert!(opened.offloads.contains(&Offload::TransmitChecksum));
            udp().send(b"an odd number").unwrap();
            let mut burst = Burst::new();
            receive_all(&mut port, &mut burst, 1);
            assert_eq!(burst.len(), 1, "{kind:?}");
            let frame = &burst[0][..14 + 20 + 8 + 13];
            let (addresses, datagram) = (&frame[26..34], &frame[34..]);
            let sum = checksum::sum(addresses) + 17 + datagram.len() as u64;
            let sum = sum + checksum::sum(datagram);
            assert_eq!(checksum::finish(sum), 0, "{kind:?}, {offloads_off}");
        });
    }
}

#[test]
fn a_vlan_tag_that_the_kernel_took_out_is_put_back() {
    in_namespace(|| {
        let (a, b) = veth("a", "b");
        let pool = pool();
        let mut a = PacketPort::open(&a, &pool).unwrap();
        let mut b = PacketPort::open(&b, &pool).unwrap();
        let mut tagged = [7; 90];
        tagged[12..18].copy_from_slice(&[0x81, 0, 0xe0, 5, 0x88, 0xb5]);
        let mut burst = vec![pool.copy(&tagged).unwrap()];
        send(&mut a, &mut burst);
        receive_all(&mut b, &mut burst, 1);
        assert_eq!(&*burst[0], tagged);
    });
}
