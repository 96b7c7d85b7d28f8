use tare_cvmnet::server::bulk::{pattern, Sink, Source, BUFFER_MAX, PERIOD};

use crate::peer::Peer;

/// The bytes of the pattern in `range`.
fn expected(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|offset| pattern(offset, 1)[0]).collect()
}

#[test]
fn a_source_sends_the_pattern_up_to_its_limit_and_closes() {
    for buffer in [1, 1000, 32 << 10, BUFFER_MAX, usize::MAX] {
        let source = Source::new(200_001, buffer);
        let mut peer = Peer::with_room(&source, 4096);
        peer.send(b"whatever the peer sends is of no interest");
        assert!(peer.is_closed());
        assert!(peer.take() == expected(0..200_001));
        assert!(peer.queued_max < 4096 + buffer.min(BUFFER_MAX));
        let counters = source.counters();
        assert_eq!((counters.connections, counters.finished), (1, 1));
        assert_eq!(counters.bytes, 200_001);
    }
}

#[test]
fn a_source_goes_on_only_when_there_is_room() {
    let source = Source::new(u64::MAX, 32 << 10);
    let mut peer = Peer::with_room(&source, 64 << 10);
    for _ in 0..100 {
        assert!(peer.turn(1000));
    }
    assert!(!peer.is_closed());
    assert!(peer.take() == expected(0..100_000));
    assert!(source.counters().bytes < 100_000 + (96 << 10));
}

#[test]
fn a_sink_counts_and_finds_a_byte_that_is_wrong_missing_or_doubled() {
    let sent = expected(0..150_000);
    let sink = Sink::new(1);
    let mut peer = Peer::new(&sink);
    for piece in sent.chunks(997) {
        peer.send(piece);
    }
    assert!(!peer.is_closed());
    peer.end();
    assert!(peer.is_closed());
    let counters = sink.counters();
    assert_eq!((counters.bytes, counters.verified), (150_000, 150_000));
    assert_eq!((counters.finished, counters.wrong), (1, 0));
    let mut flipped = sent.clone();
    flipped[149_999] ^= 1;
    let missing = [&sent[..70_000], &sent[70_001..]].concat();
    let doubled = [&sent[..PERIOD], &sent[PERIOD - 1..]].concat();
    for wrong in [flipped, missing, doubled] {
        let sink = Sink::new(1);
        let mut peer = Peer::new(&sink);
        peer.send(&wrong);
        assert!(peer.is_closed());
        peer.end();
        assert_eq!((sink.counters().wrong, sink.counters().finished), (1, 0));
    }
}

#[test]
fn a_sink_compares_one_piece_in_so_many() {
    let sent = expected(0..100_000);
    for (every, verified) in [(0, 0), (4, 25_000), (100, 1000)] {
        let sink = Sink::new(every);
        let mut peer = Peer::new(&sink);
        sent.chunks(1000).for_each(|piece| peer.send(piece));
        assert_eq!(sink.counters().verified, verified);
        assert_eq!((sink.counters().bytes, sink.counters().wrong), (100_000, 0));
    }
}
