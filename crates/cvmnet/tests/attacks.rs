//! Segments of attackers: blind guesses, floods and garbage. Connections stay as they were, and
//! memory is bounded.

mod common;

use std::time::Duration;

use common::wire::{Bench, Open, Seg, MS, PEER_PORT};
use common::PORT;
use tare_cvmnet::tcp::{State, COPIED_RESERVE};
use tare_sim::{for_seeds, Instant, Random};

fn established() -> (Bench, Open) {
    let mut bench = Bench::new(|_| {});
    let open = bench.open(Seg::syn(1000));
    (bench, open)
}

#[test]
fn a_reset_within_the_window_is_challenged_and_only_the_exact_one_resets() {
    let (mut bench, open) = established();
    for ahead in [1, 1000, 60_000] {
        let reset = Seg::new(open.seq + ahead, open.ack).with(|it| it.rst = true);
        let answers = bench.give(&reset);
        assert_eq!(
            (answers.len(), answers[0].ack, answers[0].rst),
            (1, Some(open.seq), false)
        );
    }
    for outside in [
        open.seq - 1,
        open.seq.wrapping_sub(70_000),
        open.seq + 2_000_000,
    ] {
        let reset = Seg::new(outside, open.ack).with(|it| it.rst = true);
        assert_eq!(bench.give(&reset), []);
    }
    assert_eq!(bench.stack.state(open.id), Some(State::Established));
    bench.give(&Seg::new(open.seq, open.ack).with(|it| it.rst = true));
    assert_eq!(bench.stack.state(open.id), Some(State::Closed));
}

#[test]
fn a_syn_within_the_connection_is_challenged() {
    let (mut bench, open) = established();
    for seq in [open.seq, open.seq + 500, open.seq.wrapping_sub(9_000_000)] {
        let answers = bench.give(&Seg::syn(seq));
        assert_eq!(
            (answers.len(), answers[0].ack, answers[0].syn),
            (1, Some(open.seq), false)
        );
    }
    assert_eq!(bench.stack.state(open.id), Some(State::Established));
}

#[test]
fn data_with_an_acknowledgment_of_what_was_never_sent_or_long_ago_is_not_taken() {
    let (mut bench, open) = established();
    for ack in [1, 1000, 1 << 30, 1 << 31, (1 << 31) + 5, u32::MAX - 70_000] {
        let forged = Seg::new(open.seq, open.ack.wrapping_add(ack)).data(b"forged");
        let answers = bench.give(&forged);
        assert_eq!(
            (answers.len(), answers[0].ack),
            (1, Some(open.seq)),
            "{ack}"
        );
        bench.now += MS * 200;
    }
    assert_eq!(bench.stack.readable_len(open.id), 0);
    bench.give(&Seg::new(open.seq, open.ack).data(b"true"));
    assert_eq!(bench.read(open.id), b"true");
}

#[test]
fn challenges_are_sent_at_a_bounded_rate_that_other_connections_do_not_share() {
    let mut bench = Bench::new(|_| {});
    let open = bench.open(Seg::syn(1000));
    let other = bench.open(Seg::syn(5000).with(|it| it.from = 5001));
    let reset = Seg::new(open.seq + 1, open.ack).with(|it| it.rst = true);
    let answers: usize = (0..1000).map(|_| bench.give(&reset).len()).sum();
    assert!((5..=20).contains(&answers), "{answers}");
    let reset = Seg::new(other.seq + 1, other.ack).with(|it| (it.rst, it.from) = (true, 5001));
    assert_eq!(bench.give(&reset).len(), 1);
    bench.now += Duration::from_secs(1);
    let reset = Seg::new(open.seq + 1, open.ack).with(|it| it.rst = true);
    assert_eq!(bench.give(&reset).len(), 1);
}

#[test]
fn above_the_backlog_a_syn_gets_a_cookie_that_opens_a_connection_with_its_options() {
    let mut bench = Bench::new(|config| config.backlog = 4);
    let syn = |from: u16| {
        Seg::syn(u32::from(from)).with(|it| {
            it.from = from;
            it.scale = Some(6);
            it.sack_permitted = true;
            it.stamps = Some((70, 0));
            it.mss = Some(1445);
        })
    };
    let answers: Vec<_> = (6000..6100)
        .map(|from| bench.give(&syn(from)).remove(0))
        .collect();
    assert_eq!(bench.stack.connections(), 4);
    assert_eq!(bench.stack.counters().cookies_sent, 96);
    let cookie = &answers[50];
    assert_eq!(
        (cookie.scale, cookie.sack_permitted, cookie.mss),
        (Some(5), true, Some(1460))
    );
    let ack = Seg::new(6051, cookie.seq.wrapping_add(1)).with(|it| {
        it.from = 6050;
        it.window = 100;
        it.stamps = Some((71, cookie.stamps.unwrap().0));
    });
    // Neither a guess nor the cookie of another opens one.
    for wrong in [
        cookie.seq,
        cookie.seq.wrapping_add(2),
        answers[51].seq.wrapping_add(1),
    ] {
        let answers = bench.give(&ack.clone().with(|it| it.ack = Some(wrong)));
        assert!(answers[0].rst);
    }
    bench.give(&ack.clone().data(b"with bytes"));
    let id = bench.stack.accept(PORT).expect("a connection");
    assert_eq!(bench.read(id), b"with bytes");
    // The window is scaled (100 · 2⁶ bytes), and the segment size is the next below 1445.
    let sent = bench.send(id, &[1; 8000]);
    let bytes: usize = sent.iter().map(|it| it.payload.len()).sum();
    assert_eq!((sent[0].payload.len(), bytes), (1428, 4 * 1428));
    let ranges = bench.give(&ack.clone().with(|it| it.seq += 5000).data(b"ahead"));
    assert_eq!(ranges[0].sack.len(), 1);
    // Later, cookies are not taken any more.
    bench.now += Duration::from_secs(200);
    bench.poll();
    let late = &answers[60];
    let ack = Seg::new(6061, late.seq.wrapping_add(1)).with(|it| it.from = 6060);
    assert!(bench.give(&ack)[0].rst);
}

#[test]
fn connections_that_nobody_accepts_are_bounded() {
    let mut bench = Bench::new(|config| config.backlog = 4);
    for from in 6000..6020 {
        let syn = Seg::syn(1).with(|it| it.from = from);
        if let Some(answer) = bench.give(&syn).first() {
            let ack = Seg::new(2, answer.seq.wrapping_add(1)).with(|it| it.from = from);
            bench.give(&ack);
        }
    }
    assert_eq!(bench.stack.connections(), 4);
    assert_eq!(bench.stack.counters().overflow, 16);
    // One that the peer resets makes room for another.
    let first = bench.stack.accept(PORT).unwrap();
    bench.stack.close(bench.now, first);
    assert_eq!(bench.give(&Seg::syn(1).with(|it| it.from = 7000)).len(), 2);
}

#[test]
fn a_port_that_is_given_up_resets_what_was_not_accepted() {
    let mut bench = Bench::new(|_| {});
    let answer = bench.give(&Seg::syn(1)).remove(0);
    let other = bench.give(&Seg::syn(1).with(|it| it.from = 5001)).remove(0);
    bench.give(&Seg::new(2, other.seq.wrapping_add(1)).with(|it| it.from = 5001));
    let third = bench.give(&Seg::syn(1).with(|it| it.from = 5003)).remove(0);
    bench.stack.unlisten(bench.now, PORT);
    assert_eq!(bench.stack.connections(), 2);
    let resets = bench.poll();
    assert!(resets.len() == 1 && resets[0].rst && resets[0].to == 5001);
    let resets = bench.give(&Seg::new(2, third.seq.wrapping_add(1)).with(|it| it.from = 5003));
    assert!(resets[0].rst && bench.stack.connections() == 1);
    bench.stack.listen(PORT);
    // The one that was being opened is not known to the port any more, and is taken all the same.
    bench.give(&Seg::new(2, answer.seq.wrapping_add(1)));
    assert!(bench.stack.accept(PORT).is_some());
    bench.stack.unlisten(bench.now, PORT);
    assert!(bench.give(&Seg::syn(1).with(|it| it.from = 5002))[0].rst);
}

#[test]
fn the_oldest_in_time_wait_makes_room() {
    let mut bench = Bench::new(|config| (config.time_wait_max, config.connections_max) = (10, 12));
    for from in 6000..6100 {
        let open = bench.open(Seg::syn(1).with(|it| it.from = from));
        bench.stack.close(bench.now, open.id);
        bench.poll();
        let fin = Seg::new(open.seq, open.ack.wrapping_add(1));
        bench.give(&fin.with(|it| (it.fin, it.from) = (true, from)));
        assert!(bench.stack.connections() <= 11);
    }
    assert_eq!(bench.stack.connections(), 10);
    let mut bench = Bench::new(|config| config.connections_max = 5);
    for from in 6000..6010 {
        bench.give(&Seg::syn(1).with(|it| it.from = from));
    }
    assert_eq!(
        (bench.stack.connections(), bench.stack.counters().overflow),
        (5, 5)
    );
}

#[test]
fn ten_thousand_connections_opened_and_closed_leave_nothing() {
    let mut bench = Bench::new(|config| config.connections_max = 300);
    for n in 0..10_000u32 {
        let from = 6000 + (n % 20_000) as u16;
        let open = bench.open(Seg::syn(n).with(|it| it.from = from));
        // Large enough to stay in the pool, small enough to be copied, and out of order.
        let seg = |at: u32, bytes: &[u8]| {
            let seg = Seg::new(open.seq + at, open.ack).data(bytes);
            seg.with(|it| it.from = from)
        };
        bench.give(&seg(1500, &[2; 100]));
        bench.give(&seg(0, &[1; 1400]));
        bench.send(open.id, &[3; 2000]);
        assert!(bench.live.get() > 0);
        if n % 3 > 0 {
            bench.read(open.id);
        }
        match n % 4 {
            // Each side resets, or both end in order, the guest or the peer first.
            0 => bench.stack.abort(bench.now, open.id),
            1 => {
                bench.give(&Seg::new(open.seq + 1400, open.ack).with(|it| {
                    (it.rst, it.from) = (true, from);
                }));
                bench.stack.close(bench.now, open.id);
            }
            _ => {
                bench.give(&seg(1400, &[4; 100]));
                bench.read(open.id);
                let ack = open.ack.wrapping_add(2000);
                bench.give(&Seg::new(open.seq + 1600, ack).with(|it| it.from = from));
                bench.stack.close(bench.now, open.id);
                bench.poll();
                let fin = Seg::new(open.seq + 1600, ack.wrapping_add(1));
                bench.give(&fin.with(|it| (it.fin, it.from) = (true, from)));
            }
        }
        bench.poll();
        assert!(bench.stack.connections() <= 300, "{n}");
        assert!(bench.live.get() < 10, "{n}: {} buffers", bench.live.get());
        bench.now += MS;
    }
    bench.now += Duration::from_secs(200);
    bench.poll();
    assert_eq!((bench.stack.connections(), bench.live.get()), (0, 0));
    assert_eq!((bench.stack.pinned(), bench.stack.copied()), (0, 0));
    assert_eq!(bench.stack.next_timer(), Instant::NEVER);
}

#[test]
fn small_segments_do_not_pin_the_pool_and_large_ones_only_up_to_its_bounds() {
    let mut bench = Bench::new(|config| {
        config.pinned_max = 20_000;
        config.pool_max = 50_000;
        config.copied_max = 100_000;
    });
    let opens: Vec<Open> = (6000..6020)
        .map(|from| bench.open(Seg::syn(1).with(|it| (it.from, it.scale) = (from, Some(7)))))
        .collect();
    for (n, open) in opens.iter().enumerate() {
        let from = 6000 + n as u16;
        let seg = |at: u32, len| {
            let seg = Seg::new(open.seq + at, open.ack).data(&vec![1; len]);
            seg.with(|it| it.from = from)
        };
        let before = bench.stack.pinned();
        for at in 0..30 {
            bench.give(&seg(at * 511, 511));
        }
        // Short ones stay in a quarter of the pool, as long as there is one.
        assert!(bench.stack.pinned() <= before.max(50_000 / 4));
        for at in 0..30 {
            bench.give(&seg(15_330 + at * 1400, 1400));
        }
        assert!(bench.stack.pinned() - before <= 20_000);
        let reserves = (n + 1) * COPIED_RESERVE;
        assert!(bench.stack.pinned() <= 50_000 && bench.stack.copied() <= 100_000 + reserves);
        assert_eq!(bench.live.get() * 2048, bench.stack.pinned());
    }
    assert!(bench.stack.copied() >= 90_000);
    for open in opens {
        bench.stack.abort(bench.now, open.id);
    }
    assert_eq!(
        (bench.stack.pinned(), bench.stack.copied(), bench.live.get()),
        (0, 0, 0)
    );
}

#[test]
fn connections_that_are_not_read_leave_every_other_one_room_for_a_record() {
    const RECORD: u32 = 16_384 + 256 + 5;
    let mut bench = Bench::new(|config| {
        (config.pinned_max, config.pool_max) = (0, 0);
        config.copied_max = 100_000;
    });
    let open = |bench: &mut Bench, from| {
        bench.open(Seg::syn(1).with(|it| (it.from, it.scale) = (from, Some(7))))
    };
    let seg = |open: &Open, from, at, len: u32| {
        let seg = Seg::new(open.seq + at, open.ack).data(&vec![1; len as usize]);
        seg.with(|it| it.from = from)
    };
    // Of this one more has arrived than a record, ahead of a gap.
    let early = open(&mut bench, 5900);
    for at in 1..25 {
        bench.give(&seg(&early, 5900, at * 1400, 1400));
    }
    for from in 6000..6020 {
        let greedy = open(&mut bench, from);
        // What arrives ahead of a gap takes no part of the reserve.
        for at in [1..60, 0..60].into_iter().flatten() {
            bench.give(&seg(&greedy, from, at * 1400, 1400));
        }
    }
    let other = open(&mut bench, 7000);
    for record in 0..3 {
        let start = record * RECORD;
        for at in (0..RECORD).step_by(1400).skip(1) {
            bench.give(&seg(&other, 7000, start + at, 1400.min(RECORD - at)));
        }
        for at in (0..RECORD).step_by(1400) {
            bench.give(&seg(&other, 7000, start + at, 1400.min(RECORD - at)));
        }
        assert_eq!(bench.read(other.id).len(), RECORD as usize);
    }
    bench.give(&seg(&early, 5900, 0, 1400));
    assert_eq!(bench.read(early.id).len(), 25 * 1400);
}

/// Segments do not end where records do, and a record is read as soon as the whole of it is there.
#[test]
fn a_stream_of_records_goes_on_while_others_keep_all_memory() {
    const RECORD: usize = 16_384 + 256 + 5;
    const STREAM: usize = 3 * RECORD;
    let mut bench = Bench::new(|config| {
        (config.pinned_max, config.pool_max) = (0, 0);
        config.copied_max = 100_000;
    });
    let open = |bench: &mut Bench, from| {
        bench.open(Seg::syn(1).with(|it| (it.from, it.scale) = (from, Some(7))))
    };
    let seg = |open: &Open, from, at: usize, len: usize| {
        let seg = Seg::new(open.seq + at as u32, open.ack).data(&vec![1; len]);
        seg.with(|it| it.from = from)
    };
    for from in 6000..6020 {
        let greedy = open(&mut bench, from);
        for at in 0..60 {
            bench.give(&seg(&greedy, from, at * 1400, 1400));
        }
    }
    for (from, len) in [(7000, 1400), (7001, 9000), (7002, 100)] {
        let other = open(&mut bench, from);
        let (mut acknowledged, mut read) = (0, 0);
        for _ in 0..100 {
            for at in (0..STREAM).step_by(len) {
                if at + len <= acknowledged {
                    continue;
                }
                bench.give(&seg(&other, from, at, len.min(STREAM - at)));
                // The header is read for itself.
                let readable = bench.stack.readable_len(other.id);
                let left = RECORD - read % RECORD;
                let n = match read % RECORD {
                    0 => readable.min(5),
                    _ if readable >= left => left,
                    _ => 0,
                };
                read += bench.stack.consume(bench.now, other.id, n);
                let arrived = read + bench.stack.readable_len(other.id);
                acknowledged = acknowledged.max(arrived);
            }
        }
        assert_eq!(read, STREAM, "segments of {len} bytes");
    }
}

#[test]
fn a_connection_that_was_closed_keeps_nothing_that_arrived_ahead_of_a_gap() {
    let (mut bench, open) = established();
    bench.give(&Seg::new(open.seq + 10, open.ack).data(&[1; 1400]));
    assert!(bench.stack.pinned() > 0);
    bench.stack.close(bench.now, open.id);
    assert!(bench.poll()[0].fin);
    assert_eq!((bench.stack.pinned(), bench.live.get()), (0, 0));
}

/// At one moment of the clock, as a turn takes many frames.
#[test]
fn a_forged_segment_does_not_redirect_a_connection_to_its_sender() {
    let (mut bench, open) = established();
    bench.put(Seg::new(open.seq, open.ack).data(b"genuine").frame());
    // Far beyond the window.
    let mut forged = Seg::new(open.seq.wrapping_add(1 << 30), open.ack).data(b"forged");
    forged.ack = Some(open.ack.wrapping_add(1 << 30));
    let mut frame = forged.frame();
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 99]);
    bench.put(frame);
    let buffer = common::Pooled::new(vec![3; 9], 9, &bench.live);
    bench.stack.send(bench.now, open.id, buffer, 0..9).unwrap();
    let frames = bench.frames();
    assert!(!frames.is_empty());
    assert!(frames
        .iter()
        .all(|frame| frame[..6] == common::mac(common::B)));
}

#[test]
fn a_tiny_segment_size_is_not_believed() {
    let mut bench = Bench::new(|_| {});
    let open = bench.open(Seg::syn(1).with(|it| it.mss = Some(1)));
    let sent = bench.send(open.id, &[1; 1000]);
    assert!(sent.iter().all(|it| it.payload.len() == 88));
}

#[test]
fn frames_that_are_damaged_or_for_others_are_counted_and_dropped() {
    let mut bench = Bench::new(|_| {});
    let good = Seg::syn(1).frame();
    let changed = |at: usize, to: u8| {
        let mut frame = good.clone();
        frame[at] = to;
        frame
    };
    bench.put(good[..13].to_vec());
    bench.put(good[..33].to_vec());
    bench.put(good[..50].to_vec());
    assert_eq!(bench.stack.counters().malformed, 3);
    bench.put(changed(5, 99));
    bench.put(changed(12, 0x88));
    assert_eq!(bench.stack.counters().not_for_us, 2);
    bench.put(changed(20, 99));
    bench.put(changed(40, 99));
    assert_eq!(bench.stack.counters().checksum, 2);
    for source in [[224, 0, 0, 1], [127, 0, 0, 1], [192, 0, 2, 1], [0, 0, 0, 0]] {
        let from = std::net::Ipv4Addr::from(source);
        let own = common::address4(common::A);
        let tcp = Seg::syn(1).tcp(from, own);
        bench.put(tare_packet::frame::ipv4(
            common::mac(common::A),
            common::mac(common::B),
            from,
            own,
            6,
            &tcp,
        ));
    }
    assert_eq!(bench.stack.counters().source, 4);
    assert_eq!(
        (bench.poll(), bench.stack.connections(), bench.live.get()),
        (vec![], 0, 0)
    );
}

/// Segments whose fields are near those of the connection, or anything at all.
fn any(random: &mut Random, opens: &[Open]) -> Seg {
    let n = random.below(opens.len() as u64);
    let open = opens[n as usize];
    let near = |random: &mut Random, base: u32| match random.below(5) {
        0 => random.next_u64() as u32,
        1 => base,
        2 => base.wrapping_add(random.below(70_000) as u32),
        3 => base.wrapping_sub(random.below(70_000) as u32),
        _ => base.wrapping_add(random.below(3000) as u32),
    };
    let mut seg = Seg::new(near(random, open.seq), near(random, open.ack));
    let mut is = |one_in| random.below(one_in) == 0;
    seg.from = PEER_PORT + n as u16;
    (seg.syn, seg.fin, seg.rst) = (is(10), is(20), is(20));
    if is(20) {
        seg.ack = None;
    }
    if is(20) {
        seg.from += 100;
    }
    let has_stamps = is(2);
    let has_sack = is(3);
    seg.window = random.next_u64() as u16;
    if has_stamps {
        seg.stamps = Some((random.below(200) as u32, random.next_u64() as u32));
    }
    if has_sack {
        let range = |random: &mut Random| (near(random, open.ack), near(random, open.ack));
        seg.sack = (0..1 + random.below(3)).map(|_| range(random)).collect();
    }
    seg.payload = vec![n as u8; random.below(1400) as usize];
    seg
}

#[test]
fn random_segments_neither_panic_nor_leak_nor_exceed_the_bounds() {
    for_seeds(0..60, |seed| {
        let mut random = Random::new(seed);
        let mut bench = Bench::new(|config| {
            config.connections_max = 40;
            config.backlog = 8;
            config.pinned_max = 30_000;
            config.pool_max = 100_000;
            config.copied_max = 100_000;
            config.time_wait_max = 4;
            config.sack = seed % 2 == 0;
            config.segmentation_offload = seed % 3 == 0;
            config.checksum_offload = seed % 3 == 0;
        });
        let mut opens = Vec::new();
        for n in 0..8 {
            if seed % 3 == 0 {
                // The answers to these have no checksum yet, so the test plays no handshake.
                let seq = random.next_u64() as u32;
                let ack = random.next_u64() as u32;
                bench.put(Seg::syn(seq).with(|it| it.from = PEER_PORT + n).frame());
                let id = bench
                    .stack
                    .connect(bench.now, ([192, 0, 2, 2], 1 + n).into())
                    .unwrap();
                opens.push(Open {
                    id,
                    seq: seq.wrapping_add(1),
                    ack,
                });
                continue;
            }
            let syn = Seg::syn(random.next_u64() as u32).with(|it| {
                it.from = PEER_PORT + n;
                it.sack_permitted = n % 2 == 0;
                it.scale = (n % 3 == 0).then_some(n as u8);
                it.stamps = (n % 4 == 0).then_some((100, 0));
            });
            opens.push(bench.open(syn));
        }
        for _ in 0..3000 {
            match random.below(12) {
                0 => {
                    let open = opens[random.below(8) as usize];
                    let len = random.below(9000) as usize;
                    let buffer = common::Pooled::new(vec![7; len], len, &bench.live);
                    let _ = bench.stack.send(bench.now, open.id, buffer, 0..len);
                }
                1 => {
                    let open = opens[random.below(8) as usize];
                    bench
                        .stack
                        .consume(bench.now, open.id, random.below(5000) as usize);
                }
                2 => bench.now += random.duration(MS, MS * 500),
                3 if random.below(40) == 0 => {
                    let open = opens[random.below(8) as usize];
                    bench.stack.shutdown(bench.now, open.id);
                }
                4 => {
                    let mut frame = any(&mut random, &opens).frame();
                    for _ in 0..random.below(5) {
                        let at = random.below(frame.len() as u64) as usize;
                        frame[at] = random.next_u64() as u8;
                    }
                    frame.truncate(random.below(2000) as usize);
                    bench.put(frame);
                }
                _ => bench.put(any(&mut random, &opens).frame()),
            }
            bench.frames();
            while let Some(id) = bench.stack.accept(PORT) {
                bench.stack.close(bench.now, id);
            }
            let copied_max = 100_000 + bench.stack.connections() * COPIED_RESERVE;
            assert!(bench.stack.pinned() <= 100_000 && bench.stack.copied() <= copied_max);
            assert!(bench.stack.connections() <= 40);
            let timer = bench.stack.next_timer();
            assert!(timer > bench.now, "due at {timer:?} at {:?}", bench.now);
        }
        for open in opens {
            bench.stack.abort(bench.now, open.id);
        }
        while let Some(id) = bench.stack.accept(PORT) {
            bench.stack.close(bench.now, id);
        }
        // Whatever is left ends by itself.
        let mut events = 0;
        while bench.stack.connections() > 0 {
            assert!(
                bench.now < Instant::ZERO + Duration::from_secs(1_000_000),
                "seed {seed}"
            );
            bench.now = bench.now.max(bench.stack.next_timer());
            bench.frames();
            events += 1;
            assert!(events < 100_000);
        }
        assert_eq!(
            (bench.live.get(), bench.stack.pinned(), bench.stack.copied()),
            (0, 0, 0)
        );
    });
}
