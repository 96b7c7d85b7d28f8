//! Responses as servers write them, whole and in pieces, and bytes that are none.

use proptest::prelude::*;
use tare_load::protocol::{
    Http, MemcachedBinary, MemcachedMeta, MemcachedText, Outcome, Protocol, Resp, RespVersion,
    Response, Udp,
};
use tare_load::{Key, Operation, Request};

fn http() -> Http {
    Http::new("host:80", &["/".into()], &[]).unwrap()
}

/// Reads all of `bytes`, `piece` at a time.
fn read(mut protocol: impl Protocol, bytes: &[u8], piece: usize) -> Result<Vec<Response>, String> {
    let (mut kept, mut responses) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(piece) {
        kept.extend_from_slice(piece);
        loop {
            let progress = protocol.read(&kept).map_err(|error| error.to_string())?;
            assert!(progress.consumed <= kept.len());
            kept.drain(..progress.consumed);
            match progress.response {
                Some(response) => responses.push(response),
                None => break,
            }
            if kept.is_empty() {
                break;
            }
        }
    }
    responses.extend(protocol.end());
    Ok(responses)
}

/// Outcome, length of the body, and whether the connection closes, of all that `text` holds.
fn outcomes<P: Protocol + Clone>(
    protocol: &P,
    text: &[u8],
) -> Result<Vec<(String, u64, bool)>, String> {
    let shown = |response: Response| {
        let outcome = match response.outcome {
            Outcome::Served => "served".into(),
            Outcome::Miss => "miss".into(),
            Outcome::Refused(error) => error,
        };
        (outcome, response.body_len, response.closes)
    };
    let whole = read(protocol.clone(), text, text.len().max(1));
    for piece in [1, 2, 3, 7, 11] {
        let pieces = read(protocol.clone(), text, piece);
        // An error quotes what has arrived.
        let is_same = whole == pieces || (whole.is_err() && pieces.is_err());
        assert!(is_same, "pieces of {piece}: {pieces:?}, whole: {whole:?}");
    }
    Ok(whole?.into_iter().map(shown).collect())
}

fn served(len: u64) -> (String, u64, bool) {
    ("served".into(), len, false)
}

fn miss() -> (String, u64, bool) {
    ("miss".into(), 0, false)
}

#[test]
fn responses_of_http_end_where_they_say() {
    let read = |text: &str| outcomes(&http(), text.as_bytes());
    let two = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 204 No\r\n\r\n";
    assert_eq!(read(two).unwrap(), [served(5), served(0)]);
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                   5;x=y\r\nhello\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n";
    assert_eq!(read(&chunked.repeat(2)).unwrap(), [served(15), served(15)]);
    let refused = "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno";
    assert_eq!(
        read(refused).unwrap(),
        [("HTTP status 404".into(), 2, true)]
    );
    let until_close = "HTTP/1.0 200 OK\r\n\r\nas long as it takes";
    assert_eq!(read(until_close).unwrap(), [("served".into(), 19, true)]);
    let hints = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(read(hints).unwrap(), [served(0)]);
    for wrong in [
        "SSH-2.0-x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    ] {
        assert!(read(wrong).is_err(), "{wrong:?}");
    }
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(20_000));
    assert!(read(&endless).is_err(), "a header without end");
}

#[test]
fn requests_of_http_are_refused_if_they_would_be_two() {
    let ok = Http::new("h", &["/a?b=c".into()], &[("X-Y".into(), "z z".into())]);
    let mut request = Vec::new();
    let get = Request {
        operation: Operation::Get,
        key: Key::Number(5),
        value_len: 0,
    };
    ok.unwrap().write(&get, &mut request);
    assert_eq!(
        request,
        b"GET /a?b=c HTTP/1.1\r\nHost: h\r\nX-Y: z z\r\n\r\n"
    );
    for path in ["", "a", "/a b", "/a\r\nX: y", "/ä"] {
        assert!(Http::new("h", &[path.into()], &[]).is_err(), "{path:?}");
    }
    for (name, value) in [("", "x"), ("a:b", "x"), ("a", "x\r\ny"), ("a b", "x")] {
        let field = [(name.into(), value.into())];
        assert!(
            Http::new("h", &["/".into()], &field).is_err(),
            "{name:?} {value:?}"
        );
    }
    assert!(Http::new("h", &[], &[]).is_err());
}

#[test]
fn replies_of_memcached_are_read_in_all_three_protocols() {
    let text =
        b"VALUE tare:1 0 5\r\nhello\r\nEND\r\nEND\r\nSTORED\r\nSERVER_ERROR out of memory\r\n";
    let refused = |text: &str| (text.to_string(), 0, false);
    assert_eq!(
        outcomes(&MemcachedText::default(), text).unwrap(),
        [
            served(5),
            miss(),
            served(0),
            refused("SERVER_ERROR out of memory")
        ]
    );
    let meta = b"VA 5\r\nhello\r\nEN\r\nHD\r\nNS\r\nVA 0 f0\r\n\r\n";
    assert_eq!(
        outcomes(&MemcachedMeta::default(), meta).unwrap(),
        [served(5), miss(), served(0), refused("NS"), served(0)]
    );
    let reply = |status: u16, extras: &[u8], value: &[u8]| {
        let mut reply = vec![0x81, 0, 0, 0, extras.len() as u8, 0];
        reply.extend_from_slice(&status.to_be_bytes());
        reply.extend_from_slice(&((extras.len() + value.len()) as u32).to_be_bytes());
        reply.resize(24, 0);
        [&reply[..], extras, value].concat()
    };
    let binary = [
        reply(0, &[0; 4], b"hello"),
        reply(1, &[], b"Not found"),
        reply(0, &[], b""),
        reply(0x82, &[], b"Out of memory"),
    ];
    assert_eq!(
        outcomes(&MemcachedBinary::default(), &binary.concat()).unwrap(),
        [
            served(5),
            miss(),
            served(0),
            refused("memcached status 0x0082")
        ]
    );
    for wrong in [
        &b"VALUE a 0 x\r\n"[..],
        b"WHAT\r\n",
        b"VALUE a 0 1\r\nxx\r\nSTORED\r\n",
    ] {
        assert!(
            outcomes(&MemcachedText::default(), wrong).is_err(),
            "{wrong:?}"
        );
    }
    assert!(outcomes(&MemcachedBinary::default(), &[0x80; 24]).is_err());
}

#[test]
fn replies_of_resp_are_read_in_both_versions() {
    let resp = Resp::new(RespVersion::Two);
    let two = b"$5\r\nhello\r\n$-1\r\n+OK\r\n-ERR no\r\n*2\r\n$1\r\na\r\n:1\r\n*-1\r\n*0\r\n";
    let refused = ("ERR no".to_string(), 0, false);
    let expected = [
        served(5),
        miss(),
        served(0),
        refused,
        served(1),
        miss(),
        served(0),
    ];
    assert_eq!(outcomes(&resp, two).unwrap(), expected);
    let three = b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n,1.5\r\n_\r\n|1\r\n+ttl\r\n:3\r\n$2\r\nhi\r\n\
                  >2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n#t\r\n";
    let expected = [served(0), miss(), served(2), served(0)];
    assert_eq!(
        outcomes(&Resp::new(RespVersion::Three), three).unwrap(),
        expected
    );
    for wrong in [
        &b"?\r\n"[..],
        b"$x\r\n",
        b"$-2\r\n",
        b"*99999999\r\n",
        b"\r\n",
        b"$999999999999\r\n",
    ] {
        assert!(outcomes(&resp, wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn requests_are_as_the_protocols_write_them() {
    let written = |protocol: &mut dyn Protocol| {
        let mut out = Vec::new();
        let request = |operation| Request {
            operation,
            key: Key::Number(10),
            value_len: 3,
        };
        protocol.write(&request(Operation::Get), &mut out);
        protocol.write(&request(Operation::Set), &mut out);
        out
    };
    assert_eq!(
        written(&mut MemcachedText::default()),
        b"get tare:10\r\nset tare:10 0 0 3\r\nabc\r\n"
    );
    assert_eq!(
        written(&mut MemcachedMeta::default()),
        b"mg tare:10 v\r\nms tare:10 3\r\nabc\r\n"
    );
    assert_eq!(
        written(&mut Resp::new(RespVersion::Two)),
        b"*2\r\n$3\r\nGET\r\n$7\r\ntare:10\r\n*3\r\n$3\r\nSET\r\n$7\r\ntare:10\r\n$3\r\nabc\r\n"
    );
    let binary = written(&mut MemcachedBinary::default());
    let get: [u8; 12] = [0x80, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 7];
    let set: [u8; 12] = [0x80, 1, 0, 7, 8, 0, 0, 0, 0, 0, 0, 18];
    assert_eq!((&binary[..12], &binary[31..43]), (&get[..], &set[..]));
    assert_eq!(&binary[24..31], b"tare:10");
    assert_eq!(&binary[55..], b"\0\0\0\0\0\0\0\0tare:10abc");
}

/// Something like a response: good ones, changed and cut.
fn almost_a_response() -> impl Strategy<Value = Vec<u8>> {
    let good = prop_oneof![
        Just(&b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"[..]),
        Just(&b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"[..]),
        Just(&b"VALUE tare:1 0 5\r\nhello\r\nEND\r\nSTORED\r\n"[..]),
        Just(&b"VA 5\r\nhello\r\nHD\r\n"[..]),
        Just(&b"%1\r\n+a\r\n*2\r\n:1\r\n$5\r\nhello\r\n|1\r\n+a\r\n:1\r\n_\r\n"[..]),
        Just(
            &[0x81, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2][..]
        ),
    ];
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (good, changes, 1usize..4).prop_map(|(good, changes, times)| {
        let mut bytes = good.repeat(times);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes
    })
}

proptest! {
    /// Pieces change nothing, and nothing panics.
    #[test]
    fn any_bytes_are_responses_or_an_error(bytes in almost_a_response(), piece in 1usize..9) {
        fn check<P: Protocol + Clone>(protocol: P, bytes: &[u8], piece: usize) {
            let whole = read(protocol.clone(), bytes, bytes.len());
            let pieces = read(protocol, bytes, piece);
            assert_eq!(whole.is_ok(), pieces.is_ok(), "{whole:?} {pieces:?}");
            if whole.is_ok() {
                assert_eq!(whole, pieces);
            }
        }
        check(http(), &bytes, piece);
        check(MemcachedText::default(), &bytes, piece);
        check(MemcachedMeta::default(), &bytes, piece);
        check(MemcachedBinary::default(), &bytes, piece);
        check(Resp::new(RespVersion::Two), &bytes, piece);
    }
}

/// The datagrams of a reply to request `id`, of `piece` bytes each.
fn datagrams(id: u16, reply: &[u8], piece: usize) -> Vec<Vec<u8>> {
    let pieces: Vec<&[u8]> = reply.chunks(piece).collect();
    let frame = |(place, piece): (usize, &&[u8])| {
        let words = [id, place as u16, pieces.len() as u16, 0];
        let header = words.map(u16::to_be_bytes).concat();
        [&header, *piece].concat()
    };
    pieces.iter().enumerate().map(frame).collect()
}

fn get(key: u64) -> Request {
    Request {
        operation: Operation::Get,
        key: Key::Number(key),
        value_len: 0,
    }
}

proptest! {
    /// In whatever order datagrams arrive, some twice, with those of other requests between them.
    #[test]
    fn replies_over_udp_are_put_together_in_any_order(
        len in 0usize..5000,
        piece in 1usize..1400,
        seed in any::<u64>(),
    ) {
        let mut udp = Udp::new(MemcachedText::default());
        let mut random = tare_sim::Random::new(seed);
        for n in 1..4_u16 {
            let mut request = Vec::new();
            udp.write(&get(n.into()), &mut request);
            assert_eq!(&request[..8], &[0, n as u8, 0, 0, 0, 1, 0, 0]);
            assert_eq!(&request[8..], format!("get tare:{n}\r\n").as_bytes());
            let reply = format!("VALUE tare:{n} 0 {len}\r\n{}\r\nEND\r\n", "x".repeat(len));
            let mut arriving = datagrams(n, reply.as_bytes(), piece);
            arriving.extend(datagrams(n - 1, b"VALUE a 0 1\r\nb\r\nEND\r\n", 5));
            arriving.push(arriving[0].clone());
            for at in (1..arriving.len()).rev() {
                arriving.swap(at, random.below(at as u64 + 1) as usize);
            }
            let mut responses = Vec::new();
            for datagram in &arriving {
                let progress = udp.read(datagram).unwrap();
                assert_eq!(progress.consumed, datagram.len());
                responses.extend(progress.response);
            }
            assert_eq!(responses.len(), 1, "{responses:?}");
            assert_eq!(responses[0].body_len, len as u64);
        }
    }

    #[test]
    fn any_datagrams_are_a_response_or_an_error(
        bytes in almost_a_response(),
        header in any::<[u8; 8]>(),
        piece in 1usize..40,
    ) {
        let mut udp = Udp::new(MemcachedText::default());
        udp.write(&get(1), &mut Vec::new());
        for mut datagram in datagrams(1, &bytes, piece) {
            let at = usize::from(header[0] % 32);
            if at < 8 {
                datagram[at] = header[1];
            }
            datagram.truncate(piece + usize::from(header[2] % 16));
            if udp.read(&datagram).is_err() {
                break;
            }
        }
    }
}

#[test]
fn datagrams_that_are_no_reply_are_refused() {
    for (datagram, said) in [
        (&[0, 1, 0, 0, 0, 1, 0][..], "the frame header of UDP"),
        (&[0, 1, 0, 1, 0, 1, 0, 0], "a place among the datagrams"),
        (&[0, 1, 0, 0, 0, 0, 0, 0], "a place among the datagrams"),
        (
            b"\0\x01\0\0\0\x01\0\0VALUE a 0 3\r\n",
            "ends with its datagrams",
        ),
        (
            b"\0\x01\0\0\0\x01\0\0END\r\nEND\r\n",
            "ends with its datagrams",
        ),
        (b"\0\x01\0\0\0\x02\0\0END\r\n", "ends with its datagrams"),
        (b"\0\x01\0\0\0\x01\0\0what\r\n", "a reply of memcached"),
    ] {
        let mut udp = Udp::new(MemcachedText::default());
        udp.write(&get(1), &mut Vec::new());
        let error = udp.read(datagram).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    // What arrives before the first datagram is kept up to 4 MiB.
    let mut udp = Udp::new(MemcachedText::default());
    udp.write(&get(1), &mut Vec::new());
    let kept = (1..u16::MAX).take_while(|&place| {
        let header = [1, place, u16::MAX, 0].map(u16::to_be_bytes).concat();
        udp.read(&[header, vec![0; 60_000]].concat()).is_ok()
    });
    assert_eq!(kept.count(), 69);
}
