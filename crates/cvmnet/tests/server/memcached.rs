use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use tare_cvmnet::server::{Memcached, Store, MEMCACHED_LINE_MAX, MEMCACHED_VALUE_MAX};

use crate::peer::{at, cut_anywhere, Peer};

fn server(bytes: usize) -> Memcached {
    Memcached::new(Arc::new(Mutex::new(Store::new(bytes))))
}

fn peer() -> Peer {
    Peer::new(&server(8 << 20))
}

#[test]
fn the_answers_of_each_command_do_not_depend_on_where_the_stream_is_cut() {
    let script = b"set a 5 0 3\r\nabc\r\nadd a 0 0 1\r\nx\r\nappend a 0 0 2\r\nde\r\n\
        prepend a 0 0 1\r\n_\r\ngets a nothing a\r\ncas a 6 0 2 3\r\nno\r\ncas a 6 0 2 99\r\nno\r\n\
        get a\r\nset n 0 0 2 noreply\r\n10\r\nincr n 5\r\ndecr n 7\r\nget n\r\ntouch n 50\r\n\
        gat 60 n a\r\nset bad 0 0 2\r\nlong\r\ndelete a\r\ndelete a noreply\r\nget\r\n\
        set big 0 0 1048577\r\n";
    let answer = cut_anywhere(|| server(8 << 20), script);
    let expected = "STORED\r\nNOT_STORED\r\nSTORED\r\nSTORED\r\n\
        VALUE a 5 6 3\r\n_abcde\r\nVALUE a 5 6 3\r\n_abcde\r\nEND\r\nSTORED\r\nEXISTS\r\n\
        VALUE a 6 2\r\nno\r\nEND\r\n15\r\n8\r\nVALUE n 0 2\r\n8 \r\nEND\r\nTOUCHED\r\n\
        VALUE n 0 2\r\n8 \r\nVALUE a 6 2\r\nno\r\nEND\r\nCLIENT_ERROR bad data chunk\r\nERROR\r\n\
        DELETED\r\nERROR\r\nSERVER_ERROR object too large for cache\r\n";
    assert_eq!(String::from_utf8(answer).unwrap(), expected);
}

#[test]
fn values_expire_by_relative_times_and_by_dates() {
    let mut peer = peer();
    peer.send(b"set a 0 2 1\r\na\r\nset b 0 1700000003 1\r\nb\r\nset c 0 -1 1\r\nc\r\n");
    peer.send(b"set d 0 1600000000 1\r\nd\r\nset e 0 2592000 1\r\ne\r\n");
    peer.take();
    let mut there = |ms| {
        peer.time = at(ms);
        let answer = peer.ask("get a b c d e\r\n");
        let keys = answer
            .lines()
            .filter_map(|line| line.strip_prefix("VALUE "));
        keys.map(|line| line[..1].to_string()).collect::<String>()
    };
    assert_eq!(there(0), "abe");
    assert_eq!(there(1999), "abe");
    assert_eq!(there(2000), "be");
    assert_eq!(there(3000), "e");
    assert_eq!(there(2_592_000_000 - 1), "e");
    assert_eq!(there(2_592_000_000), "");
}

#[test]
fn a_touched_value_lives_as_long_as_it_was_last_told() {
    let mut peer = peer();
    peer.send(b"set a 0 1 1\r\na\r\nset b 0 1 1\r\nb\r\ntouch a 10\r\ngat 20 b\r\n");
    peer.take();
    peer.time = at(9_000);
    assert_eq!(peer.ask("get a b\r\n").matches("VALUE").count(), 2);
    peer.time = at(10_000);
    assert_eq!(peer.ask("get a b\r\n").matches("VALUE b").count(), 1);
    peer.send(b"touch b 0\r\n");
    peer.time = at(1_000_000_000);
    assert_eq!(peer.ask("get b\r\n").matches("VALUE b").count(), 1);
}

#[test]
fn all_is_flushed_now_or_later() {
    let mut peer = peer();
    let set = "set a 0 0 1\r\na\r\n";
    assert_eq!(
        peer.ask(format!("{set}flush_all\r\nget a\r\n")),
        "STORED\r\nOK\r\nEND\r\n"
    );
    assert_eq!(
        peer.ask(format!("{set}flush_all 5\r\nget a\r\n"))
            .matches("VALUE")
            .count(),
        1
    );
    peer.time = at(5000);
    assert_eq!(peer.ask("get a\r\n"), "END\r\n");
    assert_eq!(
        peer.ask(format!("{set}flush_all noreply\r\nget a\r\n")),
        "STORED\r\nEND\r\n"
    );
}

#[test]
fn a_value_of_the_largest_size_is_stored_and_one_byte_more_is_skipped() {
    let mut peer = peer();
    let mut script = format!("set a 0 0 {MEMCACHED_VALUE_MAX}\r\n").into_bytes();
    script.resize(script.len() + MEMCACHED_VALUE_MAX, b'x');
    script.extend_from_slice(b"\r\nappend a 0 0 1\r\ny\r\n");
    assert_eq!(
        peer.ask(&script),
        "STORED\r\nSERVER_ERROR object too large for cache\r\n"
    );
    peer.send(b"get a\r\n");
    assert_eq!(
        peer.take().len(),
        MEMCACHED_VALUE_MAX + "VALUE a 0 1048576\r\n\r\nEND\r\n".len()
    );
    let large = 300_000_000;
    assert_eq!(
        peer.ask(format!("set a 0 0 {large}\r\n")),
        "SERVER_ERROR object too large for cache\r\n"
    );
    // An older value would be taken for the one that was refused.
    let piece = vec![b'x'; 1_000_000];
    (0..large / piece.len()).for_each(|_| peer.send(&piece));
    assert_eq!(peer.ask("\r\nget a\r\n"), "END\r\n");
}

#[test]
fn a_number_in_a_value_of_any_size_is_counted_up_and_down() {
    let mut peer = peer();
    for size in [65_535, 65_536, MEMCACHED_VALUE_MAX] {
        let blanks = " ".repeat(size - 2);
        let set = format!("set n 0 0 {size}\r\n9{blanks} \r\n");
        assert_eq!(peer.ask(set), "STORED\r\n");
        assert_eq!(peer.ask("incr n 1\r\n"), "10\r\n", "{size} bytes");
        let value = format!("VALUE n 0 {size}\r\n10{blanks}\r\nEND\r\n");
        assert!(peer.ask("get n\r\n") == value, "{size} bytes");
        assert_eq!(peer.ask("decr n 3\r\n"), "7\r\n", "{size} bytes");
        let value = format!("VALUE n 0 {size}\r\n7 {blanks}\r\nEND\r\n");
        assert!(peer.ask("get n\r\n") == value, "{size} bytes");
    }
}

#[test]
fn a_line_without_end_ends_the_connection() {
    let mut peer = peer();
    peer.send(&vec![b'a'; MEMCACHED_LINE_MAX - 1]);
    assert!(!peer.is_closed());
    assert_eq!(peer.ask("a"), "CLIENT_ERROR line too long\r\n");
    assert!(peer.is_closed());
    let mut longest = vec![b' '; MEMCACHED_LINE_MAX - 7];
    longest.extend_from_slice(b"get a\r\n");
    assert_eq!(Peer::new(&server(8 << 20)).ask(&longest), "END\r\n");
}

#[test]
fn quit_and_requests_of_a_browser_end_the_connection() {
    let mut peer = peer();
    assert_eq!(peer.ask("quit\r\nget a\r\n"), "");
    assert!(peer.is_closed());
    let mut peer = Peer::new(&server(8 << 20));
    assert_eq!(
        peer.ask("POST / HTTP/1.1\r\nset a 0 0 1\r\nx\r\n"),
        "ERROR\r\n"
    );
    assert!(peer.is_closed());
}

#[test]
fn one_request_for_many_large_values_is_answered_as_there_is_room() {
    let server = server(8 << 20);
    let mut peer = Peer::with_room(&server, 100_000);
    let mut script = b"set a 0 0 90000\r\n".to_vec();
    script.resize(script.len() + 90_000, b'x');
    script.extend_from_slice(b"\r\n");
    peer.send(&script);
    peer.take();
    let keys = "a ".repeat(1000);
    peer.send(format!("get {keys}\r\nversion\r\n").as_bytes());
    peer.end();
    let answer = peer.take();
    assert_eq!(
        answer.windows(9).filter(|w| w == b"VALUE a 0").count(),
        1000
    );
    assert!(answer.ends_with(b"-tare\r\n"));
    assert!(peer.queued_max < 200_000, "{}", peer.queued_max);
    assert!(peer.is_closed());
}

#[test]
fn a_peer_that_sends_and_does_not_read_is_not_read_either() {
    let server = server(8 << 20);
    let mut peer = Peer::with_room(&server, 1000);
    for _ in 0..1000 {
        peer.turn(0);
        // What the owner would keep in the receive window.
        if peer.waiting() < 16_384 {
            let script = b"get a\r\n".repeat(2000);
            peer.send_unread(&script);
        }
    }
    assert!(peer.queued_max < 1100, "{}", peer.queued_max);
    assert!(peer.waiting() >= 13_000);
}

#[test]
fn what_is_stored_is_counted() {
    let mut peer = peer();
    let stats = peer.ask("set a 0 0 1\r\nx\r\nget a b\r\nstats\r\n");
    for line in [
        "curr_items 1",
        "get_hits 1",
        "get_misses 1",
        "cmd_set 1",
        "evictions 0",
    ] {
        assert!(stats.contains(&format!("STAT {line}\r\n")), "{stats}");
    }
    assert!(stats.ends_with("END\r\n"));
}

proptest! {
    #[test]
    fn any_bytes_at_all_are_answered_within_bounds(
        words in prop::collection::vec(prop_oneof![
            prop::sample::select(vec![
                &b"get "[..], b"gets ", b"set ", b"cas ", b"append ", b"incr ", b"gat ", b"a ",
                b"b ", b"0 ", b"1 ", b"2 ", b"-1 ", b"99999999999999999999 ", b"\r\n", b"\n",
                b"a\r\n", b"noreply\r\n", b"flush_all ", b"touch ", b"delete ", b"verbosity ",
            ]).prop_map(<[u8]>::to_vec),
            prop::collection::vec(any::<u8>(), 0..20),
        ], 0..60),
    ) {
        let script = words.concat();
        let server = server(2000);
        let mut peer = Peer::with_room(&server, 100);
        peer.send(&script);
        prop_assert!(peer.waiting() == 0 || peer.is_closed());
        prop_assert!(peer.take().len() < 2000 + script.len() * 300);
        prop_assert!(peer.queued_max < 3000);
    }
}
