//! Large packets, and what connections send in a turn.

mod common;

use common::wire::{Bench, Seg, PEER_PORT};
use common::PORT;

#[test]
fn large_packets_have_the_fields_that_a_device_needs_to_cut_them() {
    let mut bench = Bench::new(|config| {
        (config.checksum_offload, config.segmentation_offload) = (true, true);
    });
    let mut sink = common::wire::Sink::default();
    bench.put(Seg::syn(1).with(|it| it.scale = Some(7)).frame());
    while bench.stack.poll(bench.now, &mut sink) {}
    let seq = u32::from_be_bytes(sink.frames[0][38..42].try_into().unwrap());
    bench.put(Seg::new(2, seq.wrapping_add(1)).frame());
    let id = bench.stack.accept(PORT).unwrap();
    let buffer = common::Pooled::new(vec![1; 100_000], 100_000, &bench.live);
    bench.stack.send(bench.now, id, buffer, 0..100_000).unwrap();
    sink = common::wire::Sink::default();
    while bench.stack.poll(bench.now, &mut sink) {}
    // The initial window, in one packet.
    let offload = sink.offloads[0];
    assert_eq!((sink.frames.len(), sink.frames[0].len()), (1, 14_600 + 54));
    assert_eq!(offload.segmentation, tare_cvmnet::tcp::Segmentation::Tcp4);
    assert_eq!((offload.segment_bytes, offload.header_bytes), (1460, 54));
    assert_eq!((offload.checksum_start, offload.checksum_offset), (34, 16));
    assert!(offload.needs_checksum);
}

/// A host that merges segments finds as many in a row as fit into a large frame.
#[test]
fn connections_take_turns_of_the_bytes_of_a_large_frame() {
    const BYTES: usize = 2 << 20;
    let mut bench = Bench::new(|config| {
        (config.send_buffer, config.send_references) = (BYTES, BYTES);
    });
    let opens = [PEER_PORT, PEER_PORT + 1]
        .map(|port| bench.open(Seg::syn(100).with(|it| (it.from, it.scale) = (port, Some(7)))));
    let mut next = opens.map(|open| open.ack);
    for open in &opens {
        let buffer = common::Pooled::new(vec![1; BYTES], BYTES, &bench.live);
        bench
            .stack
            .send(bench.now, open.id, buffer, 0..BYTES)
            .unwrap();
    }
    // The congestion window grows with each answer.
    let mut turns: Vec<(u16, usize)> = Vec::new();
    for _ in 0..8 {
        turns.clear();
        for seg in bench.poll() {
            let which = usize::from(seg.to - PEER_PORT);
            next[which] = seg.seq.wrapping_add(seg.payload.len() as u32);
            match turns.last_mut().filter(|turn| turn.0 == seg.to) {
                Some(turn) => turn.1 += seg.payload.len(),
                None => turns.push((seg.to, seg.payload.len())),
            }
        }
        for (which, open) in opens.iter().enumerate() {
            let port = PEER_PORT + which as u16;
            bench.put(
                Seg::new(open.seq, next[which])
                    .with(|it| it.from = port)
                    .frame(),
            );
        }
    }
    // As many segments as fit into a packet, and none is left over.
    const FULL: usize = (65_535 - 120) / 1460 * 1460;
    assert!(turns.len() >= 6, "{turns:?}");
    assert!(
        turns.iter().filter(|turn| turn.1 == FULL).count() >= 4,
        "{turns:?}"
    );
    assert!(turns.iter().all(|turn| turn.1 <= FULL), "{turns:?}");
}
