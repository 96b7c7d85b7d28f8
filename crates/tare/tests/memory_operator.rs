//! The means of a node's operator against memory of clients that are gone.

use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, waitpid, Pid, Signal, WaitOptions};
use serde_json::{json, Value};
use tare_farmem::operation::{Error as Refusal, PageSize, Permission, SpaceId};
use tare_farmem::protocol::{Authentication, Failure, Protection, Request, Response, Secret};
use tare_farmem::session::{connect, connect_authorized, Options, Session};
use tempfile::TempDir;

mod memory_common;
#[path = "memory_common/node.rs"]
mod node;

use memory_common::{answered, until};
use node::{giving_up_after, metrics_page, patient, run, text, Node};

/// Numbers of operations and of a status, from the guide.
const HELLO: u8 = 0;
const WRITE: u8 = 6;
const BUSY: u8 = 2;

/// Uses so many pages of a space.
fn use_pages(session: &mut Session, pages: u64) {
    session.open().unwrap();
    let at = session.alloc(pages * 4096).unwrap();
    session.write(at, &[1]).unwrap();
}

fn space(number: u64) -> Options {
    Options {
        space: Some(SpaceId(number)),
        ..patient()
    }
}

fn largest(node: &Node) -> Vec<(u64, u64)> {
    let status = node.status();
    let list = status["memory"]["largest"].as_array().unwrap().iter();
    let number = |each: &Value, name: &str| each[name].as_u64().unwrap();
    let numbers = list.map(|each| (number(each, "space"), number(each, "bytes")));
    numbers.collect()
}

#[test]
fn spaces_of_clients_that_are_gone_are_listed_by_their_bytes_and_closed() {
    let folder = TempDir::new().unwrap();
    let unused = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = unused.local_addr().unwrap();
    drop(unused);
    let shm = folder.path().join("node.shm");
    let (metrics_at, shm_at) = (metrics.to_string(), shm.to_str().unwrap());
    let arguments = ["--metrics", &metrics_at, "--shm", shm_at, "--timeout", "60"];
    let node = Node::start(folder.path(), &arguments);
    for number in 1..=23 {
        let mut session = connect(&node.url(), &space(7000 + number)).unwrap();
        use_pages(&mut session, number);
    }
    let mut expected: Vec<_> = (1..=23).map(|n| (7000 + n, 4096 * n)).collect();
    expected.reverse();
    assert_eq!(largest(&node), expected);
    let said = node.said(&[]);
    assert!(
        said.contains("\nspace     7023: 0.1 of 16.0 MiB\n"),
        "{said}"
    );
    assert!(said.contains("\nspace     7004: 0.0 of"), "{said}");
    assert!(!said.contains("\nspace     7003"), "{said}");
    assert!(
        said.contains("\n          and 3 more spaces, none of them larger"),
        "{said}"
    );
    // Who may read the metrics need not know them.
    let page = metrics_page(metrics);
    assert!(
        page.contains("tare_memory_spaces 23") && !page.contains("7023"),
        "{page}"
    );

    let close = |spaces: &[&str]| {
        let url = node.url();
        run(&[&["close", &url][..], spaces].concat())
    };
    let done = close(&["7023", "7001"]);
    assert_eq!(text(&done.stderr), "");
    assert_eq!(
        text(&done.stdout),
        "space 7023: closed\nspace 7001: closed\n"
    );
    assert_eq!(done.status.code(), Some(0));
    assert_eq!(largest(&node), expected[1..22]);
    let done = close(&["7001", "7002", "--json"]);
    assert_eq!(done.status.code(), Some(1));
    let result: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(
        (&result["closed"], &result["missing"]),
        (&json!([7002]), &json!([7001]))
    );
    // Over shared memory as well, of which there is a record too.
    let url = format!("shm:{}", shm.display());
    let done = run(&["close", &url, "7003"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(largest(&node), expected[1..20]);
    let record = until("a client to be gone", || {
        let record = node.status()["shm"].clone();
        (record["gone"] == 1).then_some(record)
    });
    assert_eq!(
        (&record["clients"], &record["connected"]),
        (&json!(0), &json!(1))
    );
    assert_eq!(
        (&record["requests"], &record["cut_off"]),
        (&json!(1), &json!(0))
    );
    let said = node.said(&[]);
    assert!(
        said.contains("\nshm       0 clients: 1 accepted, 0 refused, 1 gone,"),
        "{said}"
    );
    for wrong in [&["close", &node.url()][..], &["close", &node.url(), "x"]] {
        assert_eq!(run(wrong).status.code(), Some(2));
    }
    let (code, _) = node.end(Signal::TERM);
    assert_eq!(code, Some(0));
    let done = run(&["close", &url, "7004", "--json"]);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done.stdout));
    let result: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(
        (&result["closed"], &result["missing"]),
        (&json!([]), &json!([]))
    );
    let error = result["error"].as_str().unwrap();
    assert!(error.contains("space 7004: "), "{error}");
}

#[test]
fn with_encryption_only_who_has_the_secret_closes_a_space() {
    let folder = TempDir::new().unwrap();
    let secret = |name: &str| {
        let path = folder.path().join(name);
        node::secret(&path);
        path.to_str().unwrap().to_owned()
    };
    let (own, other) = (secret("node.secret"), secret("other.secret"));
    let arguments = ["--secret", &own, "--timeout", "60"];
    let node = Node::start_at("127.0.0.1:0", folder.path(), &arguments);
    let key: Secret = std::fs::read_to_string(Path::new(&own))
        .unwrap()
        .parse()
        .unwrap();
    let capability = key.capability(SpaceId(7));
    let mut session = connect_authorized(&node.url(), &patient(), capability).unwrap();
    use_pages(&mut session, 1);
    let url = node.url();
    for secret in [&[][..], &["--secret", &other]] {
        let refused = run(&[&["close", &url, "7"], secret].concat());
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stdout));
        let said = text(&refused.stderr);
        assert!(said.contains("space 7: "), "{said}");
        assert_eq!(largest(&node), [(7, 4096)]);
    }
    let closed = answered(|| run(&["close", &url, "7", "--secret", &own]));
    // It may have been closed by an attempt that was given up on a busy machine.
    let said = text(&closed.stderr);
    assert!(matches!(closed.status.code(), Some(0 | 1)), "{said}");
    assert_eq!(largest(&node), []);
}

#[test]
fn the_longest_write_and_the_time_limit_of_clients_are_those_of_the_options() {
    let folder = TempDir::new().unwrap();
    let node = Node::start(folder.path(), &["--write-max", "64Ki", "--timeout", "60"]);
    let mut session = node.session();
    session.open().unwrap();
    let at = session.alloc(1 << 20).unwrap();
    session.write(at, &[1; 64 << 10]).unwrap();
    let refused = session.write(at, &[2; (64 << 10) + 1]).unwrap_err();
    assert_eq!(refused.failure(), Some(Failure::Refused(Refusal::Length)));
    let mut byte = [0];
    session.read(at, &mut byte).unwrap();
    assert_eq!(byte, [1]);

    let folder = TempDir::new().unwrap();
    let node = Node::start(folder.path(), &["--timeout", "0.05"]);
    // It would wait for a minute by itself.
    let mut session = node.session();
    until("an open that is answered", || session.open().ok());
    let pid = Pid::from_child(&node.child);
    kill_process(pid, Signal::STOP).unwrap();
    // It answers nothing any more once it has stopped.
    waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    let from = Instant::now();
    let failure = session.open().unwrap_err().failure();
    assert!(
        matches!(failure, Some(Failure::OutcomeUnknown)),
        "{failure:?}"
    );
    assert!(from.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_number_of_pages_that_is_refused_is_named_with_the_most() {
    let folder = TempDir::new().unwrap();
    let node = Node::start(folder.path(), &["--timeout", "60"]);
    let mut session = node.session();
    session.open().unwrap();
    let at = session.alloc(4096).unwrap();
    let many = ((1 << 18) + 1) * 4096;
    let (page, all) = (PageSize::Large, Permission::READ_WRITE);
    let large = session.alloc_with(many << 9, page, None, all, false);
    for (refused, found) in [
        (session.alloc(0).unwrap_err(), "0"),
        (session.alloc(many).unwrap_err(), "262145"),
        (large.unwrap_err(), "262145"),
        (session.free(at, 0).unwrap_err(), "0 bytes"),
        (session.region(b"a", at, 0).unwrap_err(), "0 bytes"),
        (
            session.region(b"a", at, many).unwrap_err(),
            "1073745920 bytes",
        ),
    ] {
        let said = refused.to_string();
        let remedy = "use larger pages or several allocations";
        let expected = format!("at most 2^18 pages (found {found}); {remedy}");
        assert!(said.contains(&expected), "{said}");
        assert_eq!(refused.failure(), Some(Failure::Refused(Refusal::Length)));
    }
    // Reads and writes have bytes.
    let said = session.read(at, &mut []).unwrap_err().to_string();
    assert!(said.contains("at most 1073741824 bytes"), "{said}");
    let last = u64::MAX - 4095;
    let beyond = session.alloc_with(8192, PageSize::Small, Some(last), all, false);
    let said = beyond.unwrap_err().to_string();
    assert!(said.contains("beyond the last address"), "{said}");
}

#[test]
fn a_node_makes_no_change_whose_outcome_it_has_no_memory_for() {
    let folder = TempDir::new().unwrap();
    let arguments = ["--timeout", "60", "--outcome-memory", "64Ki"];
    let node = Node::start(folder.path(), &arguments);
    let mut session = node.session();
    session.open().unwrap();
    let at = session.alloc(4096).unwrap();
    // All of them are remembered for three minutes.
    let room = (64 << 10) / 48 - 2;
    for n in 0..room {
        assert_eq!(session.fetch_add(at, 1).unwrap(), n);
    }
    let options = giving_up_after(Duration::from_secs(3));
    // On a busy machine nothing may come from the node in that time.
    let failure = until("an open that the node has heard", || {
        let mut another = connect(&node.url(), &options).unwrap();
        let failure = another.open().unwrap_err().failure();
        (failure != Some(Failure::NodeGone)).then_some(failure)
    });
    assert_eq!(failure, Some(Failure::OutcomeUnknown));
    let mut word = [0; 8];
    session.read(at, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), room);
    let status = node.status();
    assert_eq!(status["memory"]["spaces"], 1);
    assert!(status["node"]["busy"].as_u64() > Some(0), "{status}");
}

#[test]
fn incomplete_writes_of_all_spaces_have_the_memory_of_the_options() {
    let folder = TempDir::new().unwrap();
    for (arguments, expected) in [(&[][..], 8), (&["--write-memory", "256Ki"], 4)] {
        let arguments = [&["--write-max", "64Ki", "--timeout", "60"], arguments].concat();
        let node = Node::start(folder.path(), &arguments);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(node.address).unwrap();
        let limit = Some(Duration::from_secs(60));
        socket.set_read_timeout(limit).unwrap();
        let mut protection = Protection::new(Authentication::None);
        let mut ask = |code, space, epoch, sent_ns, body: &[u8]| {
            let request = Request {
                code,
                space: SpaceId(space),
                id: 1,
                epoch,
                replaced: 0,
                sent_ns,
                address: 0,
                length: (64 * body.len()) as u32,
                offset: 0,
                segment: body.len() as u32,
                guard: None,
                body,
            };
            let (mut datagram, mut answer) = (Vec::new(), [0; 2048]);
            request.emit(&mut protection, &mut datagram).unwrap();
            socket.send(&datagram).unwrap();
            let len = socket.recv(&mut answer).unwrap();
            let (response, _) = Response::parse(&mut answer[..len], &mut protection).unwrap();
            (response.status, response.epoch, response.time_ns)
        };
        let (_, epoch, time_ns) = ask(HELLO, 1, 0, 0, &[]);
        // The first of 64 parts of the longest write, in each of eight spaces.
        let spaces = 1..=8;
        let statuses: Vec<_> = spaces
            .map(|space| ask(WRITE, space, epoch, time_ns, &[7; 1024]).0)
            .collect();
        let kept = statuses.iter().filter(|&&status| status != BUSY).count();
        assert_eq!(kept, expected, "{statuses:?}");
    }
}
