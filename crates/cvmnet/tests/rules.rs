//! The rules of the RFCs, one by one: a stack and a peer that the test plays.

mod common;

use std::time::Duration;

use common::wire::{Bench, Open, Seg, MS, PEER_PORT};
use common::PORT;
use tare_cvmnet::tcp::{Failure, KeepAlive, State};

const SECOND: Duration = Duration::from_secs(1);

/// A connection without options but the segment size.
fn plain(change: impl FnOnce(&mut tare_cvmnet::tcp::Config)) -> (Bench, Open) {
    let mut bench = Bench::new(change);
    let open = bench.open(Seg::syn(100));
    (bench, open)
}

/// A connection with SACK and timestamps; the peer's clock is at 50.
fn modern(change: impl FnOnce(&mut tare_cvmnet::tcp::Config)) -> (Bench, Open) {
    let mut bench = Bench::new(change);
    let open = bench.open(Seg::syn(100).with(|it| {
        it.sack_permitted = true;
        it.scale = Some(7);
        it.stamps = Some((50, 0));
    }));
    (bench, open)
}

fn stamped(open: &Open, value: u32) -> Seg {
    Seg::new(open.seq, open.ack).with(|it| it.stamps = Some((value, 0)))
}

#[test]
fn a_syn_ack_offers_only_what_the_syn_offered() {
    let mut bench = Bench::new(|_| {});
    let answer = &bench.give(&Seg::syn(1))[0];
    assert_eq!(answer.mss, Some(1460));
    assert_eq!(
        (answer.scale, answer.stamps, answer.sack_permitted),
        (None, None, false)
    );
    let full = Seg::syn(7).with(|it| {
        it.from = 5001;
        it.scale = Some(0);
        it.sack_permitted = true;
        it.stamps = Some((9, 0));
    });
    let answer = &bench.give(&full)[0];
    assert_eq!((answer.scale, answer.sack_permitted), (Some(5), true));
    assert_eq!(answer.stamps.map(|(_, echo)| echo), Some(9));
}

#[test]
fn a_connection_to_a_port_that_nobody_listens_on_is_reset() {
    let mut bench = Bench::new(|_| {});
    let answer = bench.give(&Seg::syn(41).with(|it| it.to = 80));
    assert!(answer[0].rst && answer[0].ack == Some(42) && answer[0].seq == 0);
    let answer = bench.give(&Seg::new(41, 77).with(|it| it.to = 80));
    assert!(answer[0].rst && answer[0].ack.is_none() && answer[0].seq == 77);
    assert_eq!(
        bench.give(&Seg::new(41, 77).with(|it| (it.to, it.rst) = (80, true))),
        []
    );
}

#[test]
fn an_active_open_takes_the_peers_options_and_answers_with_an_acknowledgment() {
    let mut bench = Bench::new(|_| {});
    let (id, syn) = bench.connect();
    assert!(syn.syn && syn.ack.is_none() && syn.to == PEER_PORT);
    assert_eq!(
        (syn.mss, syn.scale, syn.sack_permitted),
        (Some(1460), Some(5), true)
    );
    // An acknowledgment of something else is answered with a reset and changes nothing.
    let wrong = Seg::new(500, syn.seq).with(|it| (it.syn, it.to) = (true, syn.from));
    assert!(bench.give(&wrong)[0].rst);
    assert_eq!(bench.stack.state(id), Some(State::SynSent));
    let answer = Seg::new(500, syn.seq.wrapping_add(1)).with(|it| {
        (it.syn, it.to, it.mss) = (true, syn.from, Some(1000));
    });
    let acks = bench.give(&answer);
    assert_eq!(
        (acks.len(), acks[0].ack, acks[0].syn),
        (1, Some(501), false)
    );
    assert_eq!(bench.stack.state(id), Some(State::Established));
    let sent = bench.send(id, &[1; 1500]);
    assert_eq!(sent[0].payload.len(), 1000);
}

#[test]
fn a_refused_or_unanswered_open_fails_with_its_reason() {
    let mut bench = Bench::new(|_| {});
    let (id, syn) = bench.connect();
    let refusal = Seg::new(0, syn.seq.wrapping_add(1));
    bench.give(&refusal.with(|it| (it.rst, it.to) = (true, syn.from)));
    assert_eq!(bench.stack.failure(id), Some(Failure::Refused));
    let to = std::net::SocketAddr::new(common::address4(common::B).into(), 80);
    let other = bench.stack.connect(bench.now, to).unwrap();
    let syns = bench.wait(SECOND * 40);
    // At 0, 1, 3, 7 and 15 s; given up at 30.
    assert_eq!(syns.iter().filter(|seg| seg.syn).count(), 5);
    assert_eq!(bench.stack.failure(other), Some(Failure::TimedOut));
    assert_eq!(
        bench.stack.event().map(|(it, ready)| (it, ready.closed)),
        Some((id, true))
    );
}

#[test]
fn syns_that_cross_open_one_connection() {
    let mut bench = Bench::new(|_| {});
    let (id, syn) = bench.connect();
    let answers = bench.give(&Seg::syn(900).with(|it| it.to = syn.from));
    assert!(answers[0].syn && answers[0].ack == Some(901) && answers[0].seq == syn.seq);
    bench.give(&Seg::new(901, syn.seq.wrapping_add(1)).with(|it| it.to = syn.from));
    assert_eq!(bench.stack.state(id), Some(State::Established));
}

#[test]
fn fins_that_cross_lead_both_ends_to_time_wait() {
    let (mut bench, open) = plain(|_| {});
    bench.stack.shutdown(bench.now, open.id);
    let fin = &bench.poll()[0];
    assert!(fin.fin && fin.seq == open.ack);
    bench.give(&Seg::new(open.seq, open.ack).with(|it| it.fin = true));
    assert_eq!(bench.stack.state(open.id), Some(State::Closing));
    bench.give(&Seg::new(open.seq + 1, open.ack.wrapping_add(1)));
    assert_eq!(bench.stack.state(open.id), Some(State::TimeWait));
    bench.stack.close(bench.now, open.id);
    bench.wait(SECOND * 59);
    assert_eq!(bench.stack.connections(), 1);
    bench.wait(SECOND * 2);
    assert_eq!(bench.stack.connections(), 0);
}

#[test]
fn after_half_a_close_the_other_direction_goes_on() {
    let (mut bench, open) = plain(|_| {});
    bench.stack.shutdown(bench.now, open.id);
    bench.poll();
    bench.give(&Seg::new(open.seq, open.ack.wrapping_add(1)));
    assert_eq!(bench.stack.state(open.id), Some(State::FinWait2));
    bench.give(&Seg::new(open.seq, open.ack.wrapping_add(1)).data(b"still here"));
    assert_eq!(bench.read(open.id), b"still here");
    let (mut bench, open) = plain(|_| {});
    bench.give(&Seg::new(open.seq, open.ack).with(|it| it.fin = true));
    assert!(bench.stack.is_finished(open.id));
    let sent = bench.send(open.id, b"and here");
    assert_eq!(
        (&sent[0].payload[..], sent[0].ack),
        (&b"and here"[..], Some(open.seq + 1))
    );
    bench.stack.close(bench.now, open.id);
    // Nagle's algorithm does not hold the FIN.
    assert!(bench.poll()[0].fin);
    bench.give(&Seg::new(open.seq + 1, open.ack.wrapping_add(9)));
    assert_eq!(bench.stack.connections(), 0);
}

#[test]
fn bytes_for_an_end_that_was_closed_reset_the_connection() {
    let (mut bench, open) = plain(|_| {});
    bench.stack.close(bench.now, open.id);
    assert!(bench.poll()[0].fin);
    let answers = bench.give(&Seg::new(open.seq, open.ack.wrapping_add(1)).data(b"late"));
    assert!(answers[0].rst && answers[0].seq == open.ack.wrapping_add(1));
    assert_eq!((bench.stack.connections(), bench.live.get()), (0, 0));
    // And so does closing before what has arrived was read.
    let (mut bench, open) = plain(|_| {});
    bench.give(&Seg::new(open.seq, open.ack).data(b"unread"));
    bench.stack.close(bench.now, open.id);
    assert!(bench.poll()[0].rst);
}

#[test]
fn what_was_not_read_of_a_connection_that_is_over_goes_with_it() {
    let (mut bench, open) = plain(|_| {});
    bench.give(
        &Seg::new(open.seq, open.ack)
            .with(|it| it.fin = true)
            .data(&[1; 1400]),
    );
    bench.stack.shutdown(bench.now, open.id);
    bench.poll();
    bench.give(&Seg::new(open.seq + 1401, open.ack.wrapping_add(1)));
    assert_eq!(bench.stack.state(open.id), Some(State::Closed));
    assert_eq!(
        (bench.stack.readable_len(open.id), bench.stack.pinned()),
        (1400, 2048)
    );
    bench.stack.close(bench.now, open.id);
    assert_eq!(
        (
            bench.stack.connections(),
            bench.stack.pinned(),
            bench.live.get()
        ),
        (0, 0, 0)
    );
}

#[test]
fn a_peer_that_never_sends_its_fin_does_not_keep_a_closed_connection() {
    let (mut bench, open) = plain(|_| {});
    bench.stack.close(bench.now, open.id);
    bench.poll();
    bench.give(&Seg::new(open.seq, open.ack.wrapping_add(1)));
    bench.wait(SECOND * 179);
    assert_eq!(bench.stack.connections(), 1);
    bench.wait(SECOND * 2);
    assert_eq!(bench.stack.connections(), 0);
}

#[test]
fn one_segment_is_acknowledged_late_two_at_once_and_a_gap_at_once_with_its_ranges() {
    let (mut bench, open) = modern(|_| {});
    assert_eq!(bench.give(&stamped(&open, 51).data(&[1; 100])), []);
    let acks = bench.wait(MS * 41);
    assert_eq!((acks.len(), acks[0].ack), (1, Some(open.seq + 100)));
    let at = |offset: u32| Seg {
        seq: open.seq + offset,
        ..stamped(&open, 52)
    };
    assert_eq!(bench.give(&at(100).data(&[1; 1448])), []);
    assert_eq!(bench.give(&at(1548).data(&[1; 1448])).len(), 1);
    let acks = bench.give(&at(4000).data(&[1; 10]));
    assert_eq!(acks[0].sack, [(open.seq + 4000, open.seq + 4010)]);
    let acks = bench.give(&at(5000).data(&[1; 10]));
    assert_eq!(
        acks[0].sack,
        [
            (open.seq + 5000, open.seq + 5010),
            (open.seq + 4000, open.seq + 4010)
        ]
    );
    let acks = bench.give(&at(2996).data(&[1; 1004]));
    assert_eq!((acks.len(), acks[0].ack), (1, Some(open.seq + 4010)));
}

#[test]
fn every_second_segment_of_a_peer_with_short_ones_is_acknowledged() {
    let (mut bench, open) = plain(|_| {});
    let acks: usize = (0..10)
        .map(|n| {
            bench
                .give(&Seg::new(open.seq + n * 500, open.ack).data(&[1; 500]))
                .len()
        })
        .sum();
    assert_eq!(acks, 5);
}

#[test]
fn a_peer_without_sack_gets_a_duplicate_acknowledgment_for_each_segment() {
    let (mut bench, open) = plain(|_| {});
    for offset in [1000, 2000, 3000] {
        bench.put(
            Seg::new(open.seq + offset, open.ack)
                .data(&[1; 1000])
                .frame(),
        );
    }
    let acks = bench.poll();
    assert_eq!(acks.len(), 3);
    assert!(acks
        .iter()
        .all(|ack| ack.ack == Some(open.seq) && ack.sack.is_empty()));
}

#[test]
fn three_duplicate_acknowledgments_or_their_ranges_repeat_the_first_segment() {
    let (mut bench, open) = plain(|_| {});
    let sent = bench.send(open.id, &[7; 14_600]);
    assert_eq!(sent.len(), 10);
    let duplicate = Seg::new(open.seq, open.ack);
    assert_eq!(bench.give(&duplicate), []);
    assert_eq!(bench.give(&duplicate), []);
    let again = bench.give(&duplicate);
    assert_eq!(
        (again.len(), again[0].seq, again[0].payload.len()),
        (1, open.ack, 1460)
    );

    let (mut bench, open) = modern(|_| {});
    let sent = bench.send(open.id, &[7; 14_480]);
    let ranges = |from: usize, to: usize| {
        let ack = stamped(&open, 51);
        ack.with(|it| it.sack = vec![(sent[from].seq, sent[to].seq)])
    };
    assert_eq!(bench.give(&ranges(1, 3)), []);
    // Four of ten segments have arrived; the first and the sixth have not.
    let again = bench.give(&ranges(1, 5).with(|it| it.sack.push((sent[6].seq, sent[9].seq))));
    // With nothing new to send, the last one too (RFC 6675, NextSeg, rule 4).
    let numbers: Vec<_> = again.iter().map(|seg| seg.seq).collect();
    assert_eq!(numbers, [sent[0].seq, sent[5].seq, sent[9].seq]);
}

#[test]
fn the_timeout_doubles_and_after_the_limit_the_connection_is_given_up() {
    let (mut bench, open) = plain(|_| {});
    bench.send(open.id, b"lost");
    let start = bench.now;
    let mut times = Vec::new();
    for _ in 0..400 {
        for seg in bench.wait(MS * 500) {
            let at = bench.now.since(start).as_millis() / 500;
            times.push((at, seg.rst));
        }
    }
    // The handshake took no time, so the timeout is the least of 200 ms: 0.2, 0.6, 1.4, 3.0 s, ….
    let repeats: Vec<_> = times.iter().filter(|it| !it.1).map(|it| it.0).collect();
    assert_eq!(repeats[..6], [1, 2, 3, 6, 13, 26]);
    let (at, rst) = *times.last().unwrap();
    assert!(rst && at >= 360, "{at}");
    assert_eq!(bench.stack.failure(open.id), Some(Failure::TimedOut));
}

/// RFC 5961, 4: a peer that has forgotten the connection is told where it stands, so that it can
/// reset it.
#[test]
fn a_syn_without_timestamps_is_challenged_on_a_connection_with_them() {
    let (mut bench, open) = modern(|_| {});
    for seq in [100, open.seq, 0x8000_0000] {
        let challenges = bench.give(&Seg::syn(seq));
        let [challenge] = &challenges[..] else {
            panic!("one challenge to a SYN with {seq}: {challenges:?}");
        };
        assert!(!challenge.syn && !challenge.rst && challenge.payload.is_empty());
        assert_eq!((challenge.seq, challenge.ack), (open.ack, Some(open.seq)));
        bench.wait(SECOND);
    }
    // Anything else without them is dropped (RFC 7323, 3.2).
    let data = Seg::new(open.seq, open.ack).data(&[1; 10]);
    assert_eq!(bench.give(&data), []);
    assert_eq!(bench.stack.state(open.id), Some(State::Established));
}

/// RFC 6298, 5.7 and Karn's algorithm: acknowledgments of what was sent twice end no back-off.
#[test]
fn a_timeout_below_the_round_trip_time_is_left_behind_without_timestamps() {
    let (mut bench, mut open) = plain(|_| {});
    // One burst is acknowledged at once, and all others after 300 ms, on a path that has changed.
    let mut repeats = Vec::new();
    for n in 0..8 {
        let sent = bench.send(open.id, &[7; 1000]);
        assert_eq!(sent.len(), 1);
        let again = match n {
            0 => Vec::new(),
            _ => bench.wait(MS * 300),
        };
        repeats.push(again.len());
        open.ack = open.ack.wrapping_add(1000);
        assert_eq!(bench.give(&Seg::new(open.seq, open.ack)), []);
    }
    assert_eq!(repeats, [0, 1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_closed_window_is_probed_until_it_opens() {
    let (mut bench, open) = plain(|_| {});
    bench.give(&Seg::new(open.seq, open.ack).with(|it| it.window = 0));
    assert_eq!(bench.send(open.id, &[3; 2920]), []);
    let probes = bench.wait(SECOND * 3);
    assert!((3..=5).contains(&probes.len()), "{probes:?}");
    assert!(probes
        .iter()
        .all(|it| it.seq == open.ack.wrapping_sub(1) && it.payload.is_empty()));
    let sent = bench.give(&Seg::new(open.seq, open.ack).with(|it| it.window = 5000));
    assert_eq!(sent.iter().map(|it| it.payload.len()).sum::<usize>(), 2920);
    // A window that stays closed ends the connection some time: it costs memory.
    let (mut bench, open) = plain(|_| {});
    bench.give(&Seg::new(open.seq, open.ack).with(|it| it.window = 0));
    bench.send(open.id, &[3; 3000]);
    for _ in 0..200 {
        for probe in bench.wait(SECOND) {
            assert!(
                bench.now.since(tare_sim::Instant::ZERO) < SECOND * 1250,
                "{probe:?}"
            );
            bench.give(&Seg::new(open.seq, open.ack).with(|it| it.window = 0));
        }
    }
    assert_eq!(bench.stack.failure(open.id), Some(Failure::TimedOut));
}

#[test]
fn a_window_too_small_for_a_segment_is_used_late() {
    let (mut bench, open) = plain(|_| {});
    bench.give(&Seg::new(open.seq, open.ack).with(|it| it.window = 100));
    assert_eq!(bench.send(open.id, &[3; 3000]), []);
    let sent = bench.wait(SECOND);
    assert_eq!((sent[0].seq, sent[0].payload.len()), (open.ack, 100));
}

#[test]
fn the_window_closes_when_nothing_is_read_and_opens_again() {
    let (mut bench, open) = plain(|config| config.receive_buffer = 3000);
    let mut window = 3000;
    for offset in [0, 1000, 2000] {
        let acks = [
            bench.give(&Seg::new(open.seq + offset, open.ack).data(&[5; 1000])),
            bench.wait(MS * 50),
        ];
        window -= 1000;
        assert_eq!(acks.concat().last().unwrap().window, window);
    }
    // A byte more is not taken, but what its segment acknowledges is.
    let acks = bench.give(&Seg::new(open.seq + 3000, open.ack).data(&[6]));
    assert_eq!((acks[0].ack, acks[0].window), (Some(open.seq + 3000), 0));
    assert_eq!(bench.read(open.id), [5; 3000]);
    let acks = bench.poll();
    assert_eq!((acks.len(), acks[0].window), (1, 3000));
}

#[test]
fn short_segments_wait_for_an_acknowledgment_unless_that_is_switched_off() {
    let (mut bench, open) = plain(|_| {});
    assert_eq!(bench.send(open.id, b"one").len(), 1);
    assert_eq!(bench.send(open.id, b"two"), []);
    assert_eq!(bench.send(open.id, b"three"), []);
    let sent = bench.give(&Seg::new(open.seq, open.ack.wrapping_add(3)));
    assert_eq!(sent[0].payload, b"twothree");
    bench.stack.set_no_delay(bench.now, open.id, true);
    assert_eq!(bench.send(open.id, b"four").len(), 1);
}

#[test]
fn an_idle_connection_is_probed_and_a_dead_one_given_up() {
    let keep_alive = KeepAlive {
        idle: SECOND * 60,
        interval: SECOND * 10,
        probes: 3,
    };
    let (mut bench, open) = plain(|config| config.keep_alive = Some(keep_alive));
    assert_eq!(bench.wait(SECOND * 59), []);
    let probes = bench.wait(SECOND * 2);
    assert_eq!((probes.len(), probes[0].seq), (1, open.ack.wrapping_sub(1)));
    bench.give(&Seg::new(open.seq, open.ack));
    assert_eq!(bench.wait(SECOND * 58), []);
    let probes = bench.wait(SECOND * 40);
    assert_eq!(probes.iter().filter(|it| !it.rst).count(), 3);
    assert!(probes.last().unwrap().rst);
    assert_eq!(bench.stack.failure(open.id), Some(Failure::TimedOut));
}

#[test]
fn an_old_timestamp_or_none_at_all_is_not_accepted() {
    let (mut bench, open) = modern(|_| {});
    let acks = bench.give(&stamped(&open, 49).data(b"old"));
    assert_eq!((acks.len(), acks[0].ack), (1, Some(open.seq)));
    assert_eq!(bench.give(&Seg::new(open.seq, open.ack).data(b"none")), []);
    assert_eq!(bench.stack.readable_len(open.id), 0);
    bench.give(&stamped(&open, 50).data(b"new"));
    assert_eq!(bench.read(open.id), b"new");
    // One that was sent later than what is expected next does not move the clock.
    bench.give(&stamped(&open, 90).with(|it| it.seq += 10).data(b"ahead"));
    bench.give(&stamped(&open, 60).with(|it| it.seq += 3).data(b"in time"));
    assert_eq!(bench.read(open.id), b"in timeahead");
    // After 24 days a timestamp is too old to compare with.
    bench.now += SECOND * 86_400 * 25;
    bench.give(&stamped(&open, 40).with(|it| it.seq += 15).data(b"next"));
    assert_eq!(bench.read(open.id), b"next");
}

#[test]
fn a_syn_in_time_wait_opens_anew_if_it_is_later() {
    let (mut bench, open) = modern(|_| {});
    bench.stack.close(bench.now, open.id);
    bench.poll();
    let fin =
        stamped(&open, 60).with(|it| (it.fin, it.ack) = (true, Some(open.ack.wrapping_add(1))));
    bench.give(&fin);
    assert_eq!(bench.stack.state(open.id), Some(State::TimeWait));
    let syn = Seg::syn(50).with(|it| it.stamps = Some((59, 0)));
    let answers = bench.give(&syn);
    assert!(
        !answers[0].syn && answers[0].ack == Some(open.seq + 1),
        "{answers:?}"
    );
    let answers = bench.give(&syn.with(|it| it.stamps = Some((61, 0))));
    assert!(answers[0].syn && answers[0].ack == Some(51), "{answers:?}");
}

#[test]
fn sequence_numbers_wrap_in_both_directions() {
    let mut bench = Bench::new(|_| {});
    let open = bench.open(Seg::syn(u32::MAX - 5000));
    let mut seq = open.seq;
    for n in 0..20u8 {
        bench.give(&Seg::new(seq.wrapping_add(1000), open.ack).data(&[n + 100; 500]));
        bench.give(&Seg::new(seq, open.ack).data(&[n; 1000]));
        let bytes = bench.read(open.id);
        assert_eq!(
            bytes,
            [[n; 1000].to_vec(), [n + 100; 500].to_vec()].concat()
        );
        seq = seq.wrapping_add(1500);
    }
    // 5 GB, so that the stack's numbers wrap wherever they began; in acknowledged steps of 1 MB.
    let mut bench = Bench::new(|_| {});
    let open = bench.open(Seg::syn(1).with(|it| it.scale = Some(10)));
    let mut ack = open.ack;
    for _ in 0..5000 {
        let mut left = 1_000_000;
        let buffer = common::Pooled::without_bytes(&bench.live);
        bench
            .stack
            .send(bench.now, open.id, buffer, 0..left)
            .unwrap();
        let mut sink = Count::default();
        while left > 0 {
            while bench.stack.poll(bench.now, &mut sink) {}
            assert_eq!(sink.seq, ack.wrapping_add(sink.bytes as u32));
            left -= sink.bytes;
            ack = ack.wrapping_add(sink.bytes as u32);
            sink = Count::default();
            bench.put(Seg::new(open.seq, ack).frame());
        }
    }
    assert_eq!(bench.live.get(), 0);
}

/// Counts what is sent without looking at it.
#[derive(Default)]
struct Count {
    bytes: usize,
    seq: u32,
}

impl tare_cvmnet::tcp::Transmit<common::Pooled> for Count {
    fn room(&mut self) -> usize {
        1000
    }

    fn send(&mut self, packet: tare_cvmnet::tcp::Packet<'_, common::Pooled>) {
        self.bytes += packet.payload_len;
        let seq = packet.headers[38..42].try_into().unwrap();
        self.seq = u32::from_be_bytes(seq).wrapping_add(packet.payload_len as u32);
    }
}

#[test]
fn the_path_mtu_shrinks_only_by_errors_about_segments_in_flight() {
    let (mut bench, open) = plain(|_| {});
    let sent = bench.send(open.id, &[1; 2920]);
    assert_eq!(sent[0].payload.len(), 1460);
    let error = |seq: u32, mtu: u16| {
        let mut quoted = tare_packet::ipv4::Repr {
            src: common::address4(common::A).to_bits(),
            dst: common::address4(common::B).to_bits(),
            protocol: 6,
            ttl: 60,
            tos: 0,
            total_len: 1500,
            fragment: 0x4000,
        }
        .to_bytes()
        .to_vec();
        quoted.extend(PORT.to_be_bytes());
        quoted.extend(PEER_PORT.to_be_bytes());
        quoted.extend(seq.to_be_bytes());
        let mut message = vec![3, 4, 0, 0, 0, 0];
        message.extend(mtu.to_be_bytes());
        message.extend(quoted);
        let sum = tare_packet::checksum::finish(tare_packet::checksum::sum(&message));
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let router = std::net::Ipv4Addr::new(192, 0, 2, 254);
        let own = common::address4(common::A);
        tare_packet::frame::ipv4(
            common::mac(common::A),
            [2, 0, 0, 0, 0, 9],
            router,
            own,
            1,
            &message,
        )
    };
    bench.put(error(open.ack.wrapping_sub(1), 1300));
    bench.put(error(open.ack.wrapping_add(2920), 1300));
    bench.put(error(open.ack, 1500));
    assert_eq!(bench.poll(), []);
    bench.put(error(open.ack, 1300));
    assert_eq!(bench.poll()[0].payload.len(), 1260);
    bench.put(error(open.ack, 0));
    assert_eq!(bench.poll()[0].payload.len(), 512);
}

#[test]
fn pings_and_arp_are_answered() {
    let mut bench = Bench::new(|_| {});
    let (own, peer) = (common::address4(common::A), common::address4(common::B));
    let mut message = vec![8, 0, 0, 0, 1, 2, 3, 4];
    message.extend([9; 100]);
    let sum = tare_packet::checksum::finish(tare_packet::checksum::sum(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let (to, from) = (common::mac(common::A), common::mac(common::B));
    let ping = tare_packet::frame::ipv4(to, from, peer, own, 1, &message);
    bench.put(ping.clone());
    let replies = bench.frames();
    assert_eq!(
        (replies.len(), replies[0][34], &replies[0][38..]),
        (1, 0, &ping[38..])
    );
    assert_eq!(
        (&replies[0][..6], &replies[0][26..30]),
        (&from[..], &own.octets()[..])
    );
    let (own, peer) = (common::address6(common::A), common::address6(common::B));
    let ping = vec![128, 0, 0, 0, 1, 2, 3, 4, 5];
    bench.put(tare_packet::frame::icmpv6(to, from, peer, own, 64, ping));
    let replies = bench.frames();
    assert_eq!(
        (replies.len(), replies[0][54], &replies[0][58..63]),
        (1, 129, &[1, 2, 3, 4, 5][..])
    );
    // At a bounded rate.
    for _ in 0..1000 {
        let ping = vec![128, 0, 0, 0, 1, 2, 3, 4, 5];
        bench.put(tare_packet::frame::icmpv6(to, from, peer, own, 64, ping));
    }
    assert!(bench.frames().len() < 110);
}

/// RFC 4862, 5.4: another station is about to take the guest's address.
#[test]
fn a_station_that_asks_whether_the_address_is_in_use_is_told() {
    use std::net::Ipv6Addr;
    let own = common::address6(common::A);
    let group: Ipv6Addr = "ff02::1:ff00:1".parse().unwrap();
    let ask = |kind: u8, source: Ipv6Addr| {
        let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        message.extend(own.octets());
        let to = [0x33, 0x33, 0xff, 0, 0, 1];
        tare_packet::frame::icmpv6(to, common::mac(common::B), source, group, 255, message)
    };
    for headers in [
        tare_cvmnet::variant::Headers::CopiedFirst,
        tare_cvmnet::variant::Headers::InPlace,
    ] {
        let mut bench = Bench::new(|config| config.headers = headers);
        bench.put(ask(135, Ipv6Addr::UNSPECIFIED));
        let answers = bench.frames();
        assert_eq!(answers.len(), 1, "{headers:?}");
        let [answer] = &answers[..] else { return };
        let all_nodes: Ipv6Addr = "ff02::1".parse().unwrap();
        assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!((answer[54], &answer[22..38]), (136, &own.octets()[..]));
        assert_eq!(answer[38..54], all_nodes.octets());
        assert_eq!(answer[62..78], own.octets());
        // No other message comes from the unspecified address.
        let before = bench.stack.counters().source;
        for kind in [128, 136, 2] {
            bench.put(ask(kind, Ipv6Addr::UNSPECIFIED));
        }
        let ping = vec![128, 0, 0, 0, 1, 2, 3, 4, 5];
        let (to, from) = (common::mac(common::A), common::mac(common::B));
        let none = Ipv6Addr::UNSPECIFIED;
        bench.put(tare_packet::frame::icmpv6(to, from, none, own, 64, ping));
        assert!(bench.frames().is_empty());
        assert_eq!(bench.stack.counters().source, before + 4, "{headers:?}");
    }
}
