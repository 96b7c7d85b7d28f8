use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;
use tare_cvmnet::server::{Http, HttpConfig, BODY_MAX, HEAD_MAX, REQUEST_TIME};
use tempfile::TempDir;

use crate::peer::{at, cut_anywhere, Peer};

/// A file written so long ago that its second does not matter.
fn write(folder: &Path, name: &str, content: &[u8]) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    let modified = UNIX_EPOCH + Duration::from_secs(784_111_777);
    file.set_modified(modified).unwrap();
}

/// The date of the files: the example of RFC 9110.
const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "index.html", b"<p>index");
    write(folder.path(), "a.txt", b"0123456789");
    write(folder.path(), "empty", b"");
    write(folder.path(), "sub/index.html", b"sub");
    write(folder.path(), "sub/with space%.js", b"js");
    write(folder.path(), "no-index/x", b"x");
    write(folder.path(), ".secret", b"secret");
    write(folder.path(), ".git/config", b"secret");
    folder
}

fn server(folder: &TempDir) -> Http {
    with_cache(folder, 1 << 20, 1 << 20)
}

fn with_cache(folder: &TempDir, cache_max: usize, cached_file_max: usize) -> Http {
    let config = HttpConfig {
        folder: folder.path().to_path_buf(),
        cache_max,
        cached_file_max,
    };
    Http::new(&config).unwrap()
}

fn get(peer: &mut Peer, target: &str, fields: &str) -> String {
    peer.ask(format!("GET {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n"))
}

fn status(answer: &str) -> u16 {
    answer
        .get(9..12)
        .and_then(|code| code.parse().ok())
        .unwrap_or(0)
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split_once("\r\n\r\n").unwrap().0;
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    fields.find(|field| field.0 == name).map(|field| field.1)
}

#[test]
fn a_file_is_answered_with_its_type_length_date_and_tag() {
    let folder = folder();
    let mut peer = Peer::new(&server(&folder));
    let answer = get(&mut peer, "/a.txt", "");
    let head = "HTTP/1.1 200 OK\r\nDate: Tue, 14 Nov 2023 22:13:20 GMT\r\n\
        Content-Type: text/plain; charset=utf-8\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
        ETag: \"";
    assert!(answer.starts_with(head), "{answer}");
    assert!(answer.ends_with("Accept-Ranges: bytes\r\nContent-Length: 10\r\n\r\n0123456789"));
    for (target, content, kind) in [
        ("/", "<p>index", "text/html; charset=utf-8"),
        (
            "/index.html?q=/../x",
            "<p>index",
            "text/html; charset=utf-8",
        ),
        ("http://x:80/sub/", "sub", "text/html; charset=utf-8"),
        ("http://x", "<p>index", "text/html; charset=utf-8"),
        (
            "//sub//with%20space%25.js",
            "js",
            "text/javascript; charset=utf-8",
        ),
        ("/empty", "", "application/octet-stream"),
    ] {
        let answer = get(&mut peer, target, "");
        assert_eq!((status(&answer), body(&answer)), (200, content), "{target}");
        assert_eq!(field(&answer, "Content-Type"), Some(kind));
    }
    assert!(!peer.is_closed());
}

#[test]
fn pipelined_requests_are_answered_in_order_wherever_they_are_cut() {
    let folder = folder();
    let script = b"\r\nGET /a.txt HTTP/1.1\r\nHost: x\r\n\r\nHEAD /a.txt HTTP/1.1\nHost: x\n\n\
        POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde\
        GET /sub HTTP/1.1\r\nHost: x\r\nRange: bytes=1-2\r\n\r\n\
        GET /a.txt HTTP/1.1\r\nHost: x\r\nRange: bytes=1-2\r\n\r\n\
        GET /empty HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\n\r\n";
    for file_max in [1 << 20, 0] {
        let answer = cut_anywhere(|| with_cache(&folder, 1 << 20, file_max), script);
        let answer = String::from_utf8(answer).unwrap();
        let heads = answer.split("HTTP/1.1 ").skip(1);
        let codes: Vec<&str> = heads.clone().map(|head| &head[..3]).collect();
        assert_eq!(codes, ["200", "200", "405", "301", "206", "200"]);
        let bodies: Vec<&str> = heads.map(body).collect();
        let refused = "405 Method Not Allowed\n";
        let moved = "301 Moved Permanently\n";
        assert_eq!(bodies, ["0123456789", "", refused, moved, "12", ""]);
    }
}

#[test]
fn what_is_outside_of_the_folder_or_hidden_is_not_there() {
    let folder = folder();
    let outside = tempfile::tempdir().unwrap();
    write(outside.path(), "passwd", b"secret");
    symlink(outside.path().join("passwd"), folder.path().join("link")).unwrap();
    symlink(outside.path(), folder.path().join("links")).unwrap();
    symlink("../".repeat(20) + "etc/passwd", folder.path().join("up")).unwrap();
    symlink("a.txt", folder.path().join("inside")).unwrap();
    symlink("loop", folder.path().join("loop")).unwrap();
    let up = format!(
        "/sub/../../{}/passwd",
        outside.path().file_name().unwrap().to_str().unwrap()
    );
    let encoded = up.replace("..", "%2e%2E");
    let slashes = up.replace("../", "..%2f");
    for (target, code) in [
        ("/link", 404),
        ("/links/passwd", 404),
        ("/up", 404),
        ("/loop", 404),
        (&up, 404),
        (&encoded, 404),
        (&slashes, 404),
        ("/..", 404),
        ("/sub/..", 404),
        ("/sub/./x", 404),
        ("/.secret", 404),
        ("/%2esecret", 404),
        ("/.git/config", 404),
        ("/sub%2findex.html", 404),
        ("/no-index/", 404),
        ("/a.txt/", 404),
        ("/a.txt/x", 404),
        ("/nothing", 404),
        ("/a.txt%00", 400),
        ("/a%", 400),
        ("/a%4", 400),
        ("/a%zz", 400),
        ("a.txt", 400),
        ("*", 400),
        ("/inside", 200),
    ] {
        let mut peer = Peer::new(&server(&folder));
        let answer = get(&mut peer, target, "");
        assert_eq!(status(&answer), code, "{target}: {answer}");
        assert!(!answer.contains("secret"));
    }
    let long = format!("/{}", "a".repeat(5000));
    assert_eq!(
        status(&get(&mut Peer::new(&server(&folder)), &long, "")),
        404
    );
}

#[test]
fn a_fifo_or_a_socket_is_not_served_and_does_not_block() {
    let folder = folder();
    let fifo = folder.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    let mut peer = Peer::new(&server(&folder));
    for target in ["/fifo", "/socket"] {
        assert_eq!(status(&get(&mut peer, target, "")), 404);
    }
}

#[test]
fn a_folder_without_its_slash_is_redirected_within_this_host() {
    let folder = folder();
    write(folder.path(), "ä b/index.html", b"x");
    let mut peer = Peer::new(&server(&folder));
    for (target, location) in [
        ("/sub?q", "/sub/"),
        ("//sub", "/sub/"),
        ("/%C3%A4%20b", "/%C3%A4%20b/"),
    ] {
        let answer = get(&mut peer, target, "");
        assert_eq!(status(&answer), 301);
        assert_eq!(field(&answer, "Location"), Some(location));
    }
}

#[test]
fn ranges_are_answered_as_rfc_9110_says() {
    let folder = folder();
    for file_max in [1 << 20, 0] {
        let mut peer = Peer::new(&with_cache(&folder, 1 << 20, file_max));
        for (range, code, content, of) in [
            ("bytes=0-0", 206, "0", Some("bytes 0-0/10")),
            ("bytes=2-5", 206, "2345", Some("bytes 2-5/10")),
            ("Bytes=7-", 206, "789", Some("bytes 7-9/10")),
            ("bytes=-3", 206, "789", Some("bytes 7-9/10")),
            ("bytes=-99", 206, "0123456789", Some("bytes 0-9/10")),
            (
                "bytes=8-99999999999999999999999",
                206,
                "89",
                Some("bytes 8-9/10"),
            ),
            (
                "bytes=10-",
                416,
                "416 Range Not Satisfiable\n",
                Some("bytes */10"),
            ),
            (
                "bytes=99999999999999999999-",
                416,
                "416 Range Not Satisfiable\n",
                Some("bytes */10"),
            ),
            (
                "bytes=-0",
                416,
                "416 Range Not Satisfiable\n",
                Some("bytes */10"),
            ),
            ("bytes=5-2", 200, "0123456789", None),
            ("bytes=0-1,3-4", 200, "0123456789", None),
            ("bytes=+1-2", 200, "0123456789", None),
            ("bytes=-", 200, "0123456789", None),
            ("lines=0-1", 200, "0123456789", None),
        ] {
            let answer = get(&mut peer, "/a.txt", &format!("Range: {range}\r\n"));
            assert_eq!((status(&answer), body(&answer)), (code, content), "{range}");
            assert_eq!(field(&answer, "Content-Range"), of, "{range}");
        }
        assert_eq!(
            status(&get(&mut peer, "/empty", "Range: bytes=0-\r\n")),
            416
        );
        let head = peer.ask("HEAD /a.txt HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\n\r\n");
        assert_eq!(
            (status(&head), field(&head, "Content-Length")),
            (200, Some("10"))
        );
        assert_eq!(body(&head), "");
    }
}

/// The day before [`MODIFIED`].
const DAY_BEFORE: &str = "Sat, 05 Nov 1994 08:49:37 GMT";

/// Returns a client of the server of a folder, and the tag of `/a.txt`.
fn peer_and_tag(folder: &TempDir) -> (Peer, String) {
    let mut peer = Peer::new(&server(folder));
    let answer = get(&mut peer, "/a.txt", "");
    let tag = field(&answer, "ETag").unwrap().to_string();
    (peer, tag)
}

#[test]
fn a_version_that_the_client_has_is_not_sent_again() {
    let folder = folder();
    let (mut peer, tag) = peer_and_tag(&folder);
    for (fields, code) in [
        (format!("If-None-Match: {tag}"), 304),
        (format!("If-None-Match: \"x\", W/{tag}"), 304),
        ("If-None-Match: *".into(), 304),
        ("If-None-Match: \"x\"".into(), 200),
        (
            format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {MODIFIED}"),
            200,
        ),
        (format!("If-Modified-Since: {MODIFIED}"), 304),
        (format!("If-Modified-Since: {DAY_BEFORE}"), 200),
        ("If-Modified-Since: yesterday".into(), 200),
        (format!("Range: bytes=0-1\r\nIf-Range: {tag}"), 206),
        (format!("Range: bytes=0-1\r\nIf-Range: {MODIFIED}"), 206),
        (format!("Range: bytes=0-1\r\nIf-Range: {DAY_BEFORE}"), 200),
        ("Range: bytes=0-1\r\nIf-Range: \"x\"".into(), 200),
    ] {
        let answer = get(&mut peer, "/a.txt", &format!("{fields}\r\n"));
        assert_eq!(status(&answer), code, "{fields}");
        assert_eq!(field(&answer, "ETag"), Some(&tag[..]));
        if code == 304 {
            assert_eq!(
                (body(&answer), field(&answer, "Content-Length")),
                ("", None)
            );
        }
    }
}

#[test]
fn a_version_that_the_client_does_not_expect_is_not_sent_in_the_order_of_the_conditions() {
    let folder = folder();
    let (mut peer, tag) = peer_and_tag(&folder);
    for (fields, code) in [
        (format!("If-Match: \"x\", {tag}"), 200),
        ("If-Match: *".into(), 200),
        ("If-Match: \"x\"".into(), 412),
        // The comparison is a strong one.
        (format!("If-Match: W/{tag}"), 412),
        (format!("If-Unmodified-Since: {MODIFIED}"), 200),
        (format!("If-Unmodified-Since: {DAY_BEFORE}"), 412),
        ("If-Unmodified-Since: yesterday".into(), 200),
        // Of two, only the tag counts.
        (
            format!("If-Match: {tag}\r\nIf-Unmodified-Since: {DAY_BEFORE}"),
            200,
        ),
        (format!("If-Match: \"x\"\r\nIf-None-Match: {tag}"), 412),
        (format!("If-Match: {tag}\r\nIf-None-Match: {tag}"), 304),
        ("If-Match: \"x\"\r\nRange: bytes=0-1".into(), 412),
        (format!("If-Match: {tag}\r\nRange: bytes=0-1"), 206),
    ] {
        let answer = get(&mut peer, "/a.txt", &format!("{fields}\r\n"));
        assert_eq!(status(&answer), code, "{fields}");
        if code == 412 {
            assert_eq!(body(&answer), "412 Precondition Failed\n");
        }
    }
    // What has no version has no condition.
    let missing = get(&mut peer, "/missing", "If-Match: \"x\"\r\n");
    assert_eq!((status(&missing), peer.is_closed()), (404, false));
}

#[test]
fn requests_that_are_wrong_are_refused_and_end_the_connection() {
    let folder = folder();
    let long_target = format!("GET /{}", "a".repeat(HEAD_MAX));
    let long_field = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}", "a".repeat(HEAD_MAX));
    let many_fields = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "X: y\r\n".repeat(64));
    let large = format!(
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        BODY_MAX + 1
    );
    for (request, code) in [
        ("nonsense\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (
            "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n",
            400,
        ),
        (
            "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            400,
        ),
        (
            "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        ("GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
            501,
        ),
        (&large, 413),
        (
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
            413,
        ),
        (&long_target, 414),
        (&long_field, 431),
        (&many_fields, 431),
    ] {
        let mut peer = Peer::new(&server(&folder));
        let answer = peer.ask(format!("{request}GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert_eq!(status(&answer), code, "{request}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1);
        assert_eq!(field(&answer, "Connection"), Some("close"));
        assert!(peer.is_closed());
    }
}

#[test]
fn methods_that_are_not_served_are_refused_and_their_bodies_skipped() {
    let folder = folder();
    let mut peer = Peer::new(&server(&folder));
    let request = format!("PUT /a.txt HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY_MAX}\r\n\r\n");
    let answer = peer.ask(request);
    assert_eq!(
        (status(&answer), field(&answer, "Allow")),
        (405, Some("GET, HEAD"))
    );
    assert_eq!(
        peer.ask("GET / HTTP/1.1\r\n\r\n".repeat(BODY_MAX as usize / 18)),
        ""
    );
    let left = BODY_MAX as usize % 18;
    let answer = peer.ask(format!(
        "{}BREW / HTTP/1.1\r\nHost: x\r\n\r\n",
        "x".repeat(left)
    ));
    assert_eq!(status(&answer), 501);
    assert!(!peer.is_closed());
    let expects = "PUT / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(status(&peer.ask(expects)), 405);
    assert!(peer.is_closed());
}

#[test]
fn a_connection_is_kept_as_its_client_wants() {
    let folder = folder();
    for (request, connection, is_closed) in [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", None, false),
        (
            "GET / HTTP/1.1\r\nHost: x\r\nConnection: x, Close\r\n\r\n",
            Some("close"),
            true,
        ),
        ("GET / HTTP/1.0\r\n\r\n", Some("close"), true),
        (
            "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
            Some("keep-alive"),
            false,
        ),
    ] {
        let mut peer = Peer::new(&server(&folder));
        let answer = peer.ask(request);
        assert_eq!(field(&answer, "Connection"), connection);
        assert_eq!(peer.is_closed(), is_closed);
        peer.end();
        assert!(peer.is_closed());
    }
}

#[test]
fn a_request_has_a_time_to_come_and_a_response_has_not() {
    let folder = folder();
    let second = Duration::from_secs(1);
    let mut now = at(0).now;
    let mut after = |peer: &mut Peer, seconds: u64, is_sending: bool| {
        (0..seconds).any(|_| {
            now += second;
            peer.application.expire(now, is_sending)
        })
    };
    let most = REQUEST_TIME.as_secs();
    // None at all.
    let mut peer = Peer::new(&server(&folder));
    assert!(!after(&mut peer, most, false));
    assert!(after(&mut peer, 2, false));
    assert!(peer.is_closed());
    // One that does not end, a line at a time.
    let mut peer = Peer::new(&server(&folder));
    peer.ask("GET / HTTP/1.1\r\n");
    for _ in 0..most {
        assert!(!after(&mut peer, 1, false));
        peer.ask("X: y\r\n");
    }
    assert!(after(&mut peer, 2, false));
    // One that ends, and a long response.
    let mut peer = Peer::new(&server(&folder));
    peer.ask("GET / HTTP/1.1\r\n");
    assert!(!after(&mut peer, most - 1, false));
    peer.ask("Host: x\r\n\r\n");
    assert!(!after(&mut peer, 10 * most, true));
    assert!(!after(&mut peer, most, false));
    assert!(!peer.is_closed());
    assert!(after(&mut peer, 2, false));
}

#[test]
fn a_file_in_memory_is_compared_with_the_disk_once_a_second() {
    let folder = folder();
    let mut peer = Peer::new(&server(&folder));
    assert_eq!(body(&get(&mut peer, "/a.txt", "")), "0123456789");
    // The same length and time of modification, and maybe of change: only just written.
    write(folder.path(), "a.txt", b"9876543210");
    peer.time = at(999);
    assert_eq!(body(&get(&mut peer, "/a.txt", "")), "0123456789");
    peer.time = at(1000);
    assert_eq!(body(&get(&mut peer, "/a.txt", "")), "9876543210");
    fs::remove_file(folder.path().join("a.txt")).unwrap();
    peer.time = at(1999);
    assert_eq!(status(&get(&mut peer, "/a.txt", "")), 200);
    peer.time = at(2000);
    assert_eq!(status(&get(&mut peer, "/a.txt", "")), 404);
    write(folder.path(), "a.txt", b"new");
    assert_eq!(body(&get(&mut peer, "/a.txt", "")), "new");
}

#[test]
fn the_files_in_memory_used_longest_ago_make_room() {
    let folder = folder();
    for name in ["x", "y", "z"] {
        write(folder.path(), name, &[b'1'; 4000]);
    }
    let server = with_cache(&folder, 9000, 5000);
    let mut peer = Peer::new(&server);
    for name in ["/x", "/y", "/x", "/z"] {
        assert_eq!(body(&get(&mut peer, name, "")).len(), 4000);
    }
    for name in ["x", "y", "z"] {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    let there = ["/x", "/y", "/z"].map(|name| status(&get(&mut peer, name, "")));
    assert_eq!(there, [200, 404, 200]);
    let counters = server.counters();
    assert_eq!(
        (counters.by_class, counters.body_bytes),
        ([6, 0, 1, 0], 24_000)
    );
}

#[test]
fn a_large_file_is_read_as_it_is_sent() {
    let folder = folder();
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| (i >> 4) as u8).collect();
    write(folder.path(), "large", &content);
    let mut peer = Peer::with_room(&with_cache(&folder, 100_000, 1 << 30), 50_000);
    peer.send(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\nGET /a.txt HTTP/1.1\r\nHost: x\r\n\r\n");
    let answer = peer.take();
    let start = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    assert!(answer[start..].starts_with(&content));
    assert!(answer.ends_with(b"0123456789"));
    assert!(peer.queued_max < 50_000 + (64 << 10), "{}", peer.queued_max);
}

#[test]
fn a_file_that_becomes_shorter_ends_the_connection_and_is_not_taken_for_whole() {
    let folder = folder();
    write(folder.path(), "large", &vec![b'x'; 1_000_000]);
    let mut peer = Peer::with_room(&with_cache(&folder, 1000, 0), 1000);
    peer.send_unread(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    peer.turn(100);
    let file = fs::File::options()
        .write(true)
        .open(folder.path().join("large"))
        .unwrap();
    file.set_len(200_000).unwrap();
    peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(peer.is_closed());
    let answer = peer.ask("");
    assert_eq!(field(&answer, "Content-Length"), Some("1000000"));
    assert!(body(&answer).len() <= 200_000);
}

proptest! {
    #[test]
    fn any_bytes_at_all_are_answered_within_bounds(
        words in prop::collection::vec(prop_oneof![
            prop::sample::select(vec![
                &b"GET "[..], b"HEAD ", b"POST ", b"/ ", b"/a.txt ", b"/%", b"..", b" HTTP/1.1\r\n",
                b" HTTP/1.0\r\n", b"Host: x\r\n", b"\r\n", b"\r\n\r\n", b"Range: bytes=", b"1-2",
                b"Content-Length: 3\r\n", b"If-None-Match: *\r\n", b"Connection: close\r\n", b"\n",
            ]).prop_map(<[u8]>::to_vec),
            prop::collection::vec(any::<u8>(), 0..20),
        ], 0..40),
    ) {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "a.txt", b"content");
        write(folder.path(), "index.html", b"content");
        let script = words.concat();
        let mut peer = Peer::with_room(&server(&folder), 100);
        peer.send(&script);
        prop_assert!(peer.waiting() == 0 || peer.is_closed());
        prop_assert!(peer.take().len() <= 1000 + script.len() * 20);
        prop_assert!(peer.queued_max < 1000);
    }

    #[test]
    fn dates_are_told_as_the_calendar_has_them(unix_s in 0..253_402_300_799_u64) {
        let folder = tempfile::tempdir().unwrap();
        let mut peer = Peer::new(&server(&folder));
        peer.time.unix = Duration::from_secs(unix_s);
        let answer = get(&mut peer, "/", "");
        let told = field(&answer, "Date").unwrap();
        // The calendar as a count of days, year by year.
        let (mut days, mut year) = (unix_s / 86_400, 1970);
        let is_leap = |year: u64| {
            let every = |years| year.is_multiple_of(years);
            (every(4) && !every(100)) || every(400)
        };
        while days >= 365 + u64::from(is_leap(year)) {
            days -= 365 + u64::from(is_leap(year));
            year += 1;
        }
        let mut month = 0;
        let lens = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        while days >= lens[month] {
            days -= lens[month];
            month += 1;
        }
        let month = "JanFebMarAprMayJunJulAugSepOctNovDec".get(month * 3..month * 3 + 3).unwrap();
        let weekday = "ThuFriSatSunMonTueWed".get((unix_s / 86_400 % 7) as usize * 3..).unwrap();
        let (h, m, s) = (unix_s / 3600 % 24, unix_s / 60 % 60, unix_s % 60);
        let expected = format!(
            "{}, {:02} {month} {year} {h:02}:{m:02}:{s:02} GMT", &weekday[..3], days + 1,
        );
        prop_assert_eq!(told, expected);
    }
}
