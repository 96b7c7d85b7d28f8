use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use tare_cvmnet::server::{Resp, RespConfig, Store, ARGUMENT_OVERHEAD, OVERHEAD, RESP_LINE_MAX};

use crate::peer::{at, cut_anywhere, Peer};

const CONFIG: RespConfig = RespConfig {
    value_max: 1 << 20,
    request_max: 2 << 20,
    unfinished_max: 100_000,
};

fn server(bytes: usize) -> Resp {
    Resp::new(Arc::new(Mutex::new(Store::new(bytes))), CONFIG)
}

fn peer() -> Peer {
    Peer::new(&server(8 << 20))
}

/// A request as an array.
pub(crate) fn array(words: &[&[u8]]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    request
}

#[test]
fn the_answers_do_not_depend_on_where_the_stream_is_cut() {
    let script = [
        &array(&[b"SET", b"a", b"one\r\ntwo"])[..],
        b"GET a\r\nset n 5\r\nINCR n\nDECRBY n 10\r\n\r\n",
        &array(&[b"MGET", b"a", b"nothing", b"n"]),
        &array(&[b"mset", b"x", b"1", b"y", b""]),
        b"DEL a x y z\r\nEXISTS n n\r\nAPPEND n 00\r\nSTRLEN n\r\nEXPIRE n 100\r\nTTL n\r\n",
        b"ECHO \"\\x41 \\\"\\n\" \r\nGET\r\nNOSUCH 'a b'\r\nHELLO 3\r\nQUIT\r\nGET n\r\n",
    ]
    .concat();
    let answer = cut_anywhere(|| server(8 << 20), &script);
    let expected = "+OK\r\n$8\r\none\r\ntwo\r\n+OK\r\n:6\r\n:-4\r\n\
        *3\r\n$8\r\none\r\ntwo\r\n$-1\r\n$2\r\n-4\r\n+OK\r\n:3\r\n:2\r\n:4\r\n:4\r\n:1\r\n:100\r\n\
        $4\r\nA \"\n\r\n-ERR wrong number of arguments for 'get' command\r\n\
        -ERR unknown command 'NOSUCH', with args beginning with: 'a b' \r\n\
        -NOPROTO unsupported protocol version\r\n+OK\r\n";
    assert_eq!(String::from_utf8(answer).unwrap(), expected);
}

#[test]
fn values_expire_to_the_millisecond() {
    let mut peer = peer();
    peer.send(b"SET a 1 PX 1500\r\nSET b 2 EX 2\r\nSET c 3\r\nPEXPIRE c 2500\r\n");
    assert_eq!(
        peer.ask("SET c 4 KEEPTTL\r\nPTTL c\r\n"),
        "+OK\r\n+OK\r\n+OK\r\n:1\r\n+OK\r\n:2500\r\n"
    );
    peer.time = at(1499);
    assert_eq!(
        peer.ask("EXISTS a b c\r\nPTTL a\r\nTTL b\r\n"),
        ":3\r\n:1\r\n:1\r\n"
    );
    peer.time = at(1500);
    assert_eq!(peer.ask("EXISTS a b c\r\nPTTL a\r\n"), ":2\r\n:-2\r\n");
    peer.time = at(2000);
    assert_eq!(
        peer.ask("GET b\r\nPERSIST c\r\nPERSIST c\r\nTTL c\r\n"),
        "$-1\r\n:1\r\n:0\r\n:-1\r\n"
    );
    peer.time = at(1_000_000);
    assert_eq!(
        peer.ask("GET c\r\nEXPIRE c -1\r\nGET c\r\n"),
        "$1\r\n4\r\n:1\r\n$-1\r\n"
    );
}

#[test]
fn what_breaks_the_protocol_is_told_and_ends_the_connection() {
    let many = "*1048577\r\n";
    let large = format!("*1\r\n${}\r\n", CONFIG.value_max + 1);
    let long = "a".repeat(RESP_LINE_MAX);
    let digits = format!("*1\r\n${}", "0".repeat(RESP_LINE_MAX));
    let crlf = "*1\r\n$4\r\nPINGxx";
    for (request, error) in [
        ("*x\r\n", "invalid multibulk length"),
        ("*01\r\n", "invalid multibulk length"),
        (many, "invalid multibulk length"),
        ("*1\r\nPING\r\n", "expected '$', got 'P'"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        (&large, "invalid bulk length"),
        (&long, "too big inline request"),
        (&digits, "too big bulk count string"),
        ("ECHO \"a\r\n", "unbalanced quotes in request"),
        ("ECHO 'a'b\r\n", "unbalanced quotes in request"),
        (crlf, "expected CRLF after a bulk string"),
    ] {
        let mut peer = peer();
        let answer = peer.ask(format!("PING\r\n{request}"));
        assert_eq!(answer, format!("+PONG\r\n-ERR Protocol error: {error}\r\n"));
        assert!(peer.is_closed());
    }
}

#[test]
fn a_request_is_refused_when_its_arguments_together_are_too_large() {
    let mut peer = peer();
    let value = vec![b'x'; 1 << 20];
    // ECHO and one value and their overhead leave less than a value's room.
    let left = (1 << 20) - 4 - 3 * ARGUMENT_OVERHEAD;
    assert!(peer
        .ask(array(&[b"ECHO", &value, &value[..left]]))
        .starts_with("-ERR wrong number"));
    assert!(!peer.is_closed());
    let answer = peer.ask(array(&[b"ECHO", &value, &value[..left + 1]]));
    assert_eq!(answer, "-ERR Protocol error: invalid multibulk length\r\n");
    assert!(peer.is_closed());
}

#[test]
fn empty_requests_are_ignored_and_names_are_told_in_one_line() {
    let mut peer = peer();
    assert_eq!(peer.ask("*0\r\n*-1\r\n\r\n   \r\nPING\r\n"), "+PONG\r\n");
    let answer = peer.ask(array(&[b"a\r\nb", &[b'c'; 200], b"d"]));
    let shown = "c".repeat(128);
    assert_eq!(
        answer,
        format!("-ERR unknown command 'a  b', with args beginning with: '{shown}' \r\n")
    );
    assert_eq!(
        peer.ask("POST / HTTP/1.1\r\nSET a b\r\n").lines().count(),
        1
    );
    assert!(peer.is_closed());
}

#[test]
fn many_large_values_are_answered_as_there_is_room() {
    let mut peer = Peer::with_room(&server(8 << 20), 100_000);
    peer.send(&array(&[b"SET", b"a", &[b'x'; 90_000]]));
    peer.take();
    let mut keys = vec![&b"a"[..]; 501];
    keys[0] = b"MGET";
    peer.send(&[&array(&keys)[..], b"PING\r\n"].concat());
    peer.end();
    let answer = peer.take();
    assert_eq!(answer.len(), 6 + 500 * 90_010 + 7);
    assert!(answer.starts_with(b"*500\r\n$90000\r\nx") && answer.ends_with(b"x\r\n+PONG\r\n"));
    assert!(peer.queued_max < 200_000 && peer.is_closed());
}

#[test]
fn a_value_that_is_being_sent_does_not_change_when_it_is_appended_to() {
    let server = server(8 << 20);
    let (mut reader, mut writer) = (Peer::new(&server), Peer::new(&server));
    writer.send(&array(&[b"SET", b"a", &[b'x'; 50_000]]));
    reader.send_unread(b"GET a\r\n");
    reader.turn(100);
    assert_eq!(
        writer.ask("APPEND a yyy\r\nSTRLEN a\r\n"),
        "+OK\r\n:50003\r\n:50003\r\n"
    );
    reader.send(b"");
    let sent = reader.take();
    assert!(sent[8..] == [&[b'x'; 50_000][..], b"\r\n"].concat());
    let all = writer.ask("GET a\r\n");
    assert!(all.ends_with("xyyy\r\n"));
}

#[test]
fn a_value_larger_than_the_store_is_refused_and_the_rest_stays() {
    let mut peer = Peer::new(&server(2000));
    let answer = peer.ask([&b"SET b 1\r\n"[..], &array(&[b"SET", b"a", &[b'x'; 2000]])].concat());
    assert_eq!(
        answer,
        "+OK\r\n-OOM command not allowed when used memory > 'maxmemory'.\r\n"
    );
    assert_eq!(peer.ask("GET b\r\n"), "$1\r\n1\r\n");
}

#[test]
fn what_is_refused_changes_no_value_and_what_fits_by_its_length_is_stored() {
    const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    let mut peer = Peer::new(&server(1000));
    let largest = 1000 - OVERHEAD - 1;
    peer.send(&array(&[b"SET", b"a", &[b'x'; 500]]));
    peer.take();
    // A vector that grows doubles its room, and that is more than the store has.
    let grown = peer.ask(array(&[b"APPEND", b"a", &[b'y'; 300]]));
    assert_eq!(grown, ":800\r\n");
    let rest = vec![b'z'; largest - 800];
    let full = peer.ask(array(&[b"APPEND", b"a", &rest]));
    assert_eq!(full, format!(":{largest}\r\n"));
    let large = vec![b'x'; largest + 1];
    let refused: [&[&[u8]]; 4] = [
        &[b"APPEND", b"a", b"z"],
        &[b"SET", b"a", &large],
        &[b"GETSET", b"a", &large],
        &[b"MSET", b"b", b"1", b"a", &large],
    ];
    for request in refused {
        assert_eq!(peer.ask(array(request)), OOM);
        let left = peer.ask("STRLEN a\r\nEXISTS b\r\n");
        assert_eq!(left, format!(":{largest}\r\n:0\r\n"));
    }
    // More than what is reserved for a value before it arrives.
    let config = RespConfig {
        value_max: 2 << 20,
        request_max: 4 << 20,
        unfinished_max: 4 << 20,
    };
    let store = Arc::new(Mutex::new(Store::new(1_500_000)));
    let mut peer = Peer::new(&Resp::new(store, config));
    assert_eq!(
        peer.ask(array(&[b"SET", b"a", &vec![b'x'; 1_400_000]])),
        "+OK\r\n"
    );
}

#[test]
fn unfinished_requests_have_a_bound_for_all_connections_together() {
    let store = Arc::new(Mutex::new(Store::new(8 << 20)));
    // As those of two threads.
    let servers = [(); 2].map(|()| Resp::new(Arc::clone(&store), CONFIG));
    let peer = |server: usize| Peer::new(&servers[server]);
    let request = array(&[b"SET", b"a", &[b'x'; 60_000]]);
    let (begun, rest) = request.split_at(50_000);
    let is_refused = |peer: &mut Peer| {
        let answer = peer.ask(begun);
        let is_told = answer.starts_with("-OOM unfinished requests of all connections");
        assert_eq!((is_told, peer.is_closed()), (!answer.is_empty(), is_told));
        is_told
    };
    let mut first = peer(0);
    assert!(!is_refused(&mut first));
    assert!(is_refused(&mut peer(1)));
    // What is whole at once, or short, is no part of it.
    assert_eq!(peer(1).ask(&request), "+OK\r\n");
    assert_eq!(peer(1).ask("PI") + &peer(1).ask("PING\r\n"), "+PONG\r\n");
    assert_eq!(first.ask(rest), "+OK\r\n");
    // It is given back by a request that is whole, and by a connection that is gone.
    let mut second = peer(1);
    assert!(!is_refused(&mut second));
    drop(second);
    assert!(!is_refused(&mut first));
    assert_eq!(first.ask(rest), "+OK\r\n");
    // Keys that are not answered are held too.
    let mut reader = Peer::with_room(&servers[0], 100);
    let mut keys = vec![&b"none"[..]; 1001];
    keys[0] = b"MGET";
    reader.send_unread(&array(&keys));
    reader.turn(0);
    assert!(is_refused(&mut peer(1)));
    reader.send(b"");
    assert_eq!(reader.take().len(), 7 + 1000 * 5);
    assert!(!is_refused(&mut peer(1)));
    let mut keys = vec![&[b'k'; 100][..]; 1001];
    keys[0] = b"MGET";
    assert!(peer(1).ask(array(&keys)).starts_with("-OOM unfinished"));
}

#[test]
fn clients_that_greet_and_ask_about_the_server_are_answered() {
    let mut peer = peer();
    assert!(peer
        .ask("HELLO 2\r\n")
        .contains("$5\r\nproto\r\n$1\r\n2\r\n"));
    assert_eq!(
        peer.ask("CONFIG GET save\r\nCOMMAND DOCS\r\n"),
        "*0\r\n*0\r\n"
    );
    assert_eq!(
        peer.ask("CLIENT SETINFO lib-name x\r\nCLIENT SETNAME y\r\n"),
        "+OK\r\n+OK\r\n"
    );
    assert!(peer
        .ask("CLIENT KILL x\r\n")
        .starts_with("-ERR unknown subcommand 'KILL'"));
    assert!(peer.ask("SET a 1\r\nINFO\r\n").contains("db0:keys=1\r\n"));
}

proptest! {
    #[test]
    fn any_bytes_at_all_are_answered_within_bounds(
        words in prop::collection::vec(prop_oneof![
            prop::sample::select(vec![
                &b"*1\r\n"[..], b"*3\r\n", b"$1\r\n", b"$3\r\n", b"SET", b"GET ", b"\r\n", b"a\r\n",
                b"MGET a b ", b"APPEND a ", b"INCR ", b"\"", b"'", b"\\x", b"$-1\r\n", b"EX ", b"1 ",
            ]).prop_map(<[u8]>::to_vec),
            prop::collection::vec(any::<u8>(), 0..20),
        ], 0..60),
    ) {
        let script = words.concat();
        let mut peer = Peer::with_room(&server(2000), 100);
        peer.send(&script);
        prop_assert!(peer.waiting() == 0 || peer.is_closed());
        prop_assert!(peer.take().len() < 2000 + script.len() * 300);
        prop_assert!(peer.queued_max < 3000);
    }
}
