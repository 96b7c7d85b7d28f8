//! Nodes and clients that end, stop answering or are refused.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};

use super::*;

#[test]
fn a_node_that_stops_answering_is_a_timeout_and_what_was_given_up_never_runs() {
    let node = Node::start(ServerConfig::new(1));
    let config = ClientConfig {
        timeout: Duration::from_millis(300),
        ..PATIENT
    };
    let mut client = node.connect();
    alloc(&mut client, SpaceId(1), 1 << 20);
    let mut other = node.connect_hasty(config.timeout);
    // The node has seen this client, and polls it no more than others.
    let retry = |client: &mut Client| loop {
        if client.read_into(SpaceId(1), BASE, &mut [0; 8]).is_ok() {
            break;
        }
    };
    retry(&mut other);
    node.pause();
    let probe = Client::connect(&node.path, &config).err();
    assert!(matches!(probe, Some(ConnectError::Silent)));
    assert_eq!(
        other.write(SpaceId(1), BASE, &[1; 8], None),
        Err(Failure::OutcomeUnknown)
    );
    assert_eq!(
        other.read_into(SpaceId(1), BASE, &mut [0; 8]),
        Err(Failure::NodeGone)
    );
    let long = vec![1; 700_000];
    for data in [&long[..], &long[..8]] {
        let write = Operation::Write {
            address: BASE + 8,
            data,
            guard: None,
        };
        other.submit(SpaceId(1), &write).unwrap();
    }
    for data in [long.clone(), vec![1; 8]] {
        let (address, guard) = (BASE + 8, None);
        let write = OwnedWrite {
            address,
            data,
            guard,
        };
        other.submit_write(SpaceId(1), write).unwrap();
    }
    let done = finish(&mut other);
    assert!(done
        .iter()
        .all(|done| done.outcome == Err(Failure::OutcomeUnknown)));
    let lens: Vec<_> = done.iter().map(|done| done.data.len()).collect();
    assert_eq!(lens, [0, 0, long.len(), 8]);
    node.resume();
    let mut out = [9; 64];
    // The ring works on, and the node found retracted entries only.
    retry(&mut other);
    client.read_into(SpaceId(1), BASE, &mut out).unwrap();
    assert_eq!(out, [0; 64]);
}

#[test]
fn a_node_that_ends_is_seen_at_once() {
    let mut node = Node::start(ServerConfig::new(1));
    let mut client = node.connect();
    alloc(&mut client, SpaceId(1), 4096);
    node.pause();
    let start = Instant::now();
    let read = Operation::Read {
        address: BASE,
        len: 8,
    };
    let write = Operation::Write {
        address: BASE,
        data: &[1; 8],
        guard: None,
    };
    node.stop();
    for operation in [read, write] {
        client.submit(SpaceId(1), &operation).unwrap();
    }
    let outcomes: Vec<_> = finish(&mut client)
        .into_iter()
        .map(|done| done.outcome)
        .collect();
    assert_eq!(
        outcomes,
        [Err(Failure::NodeGone), Err(Failure::OutcomeUnknown)]
    );
    assert!(client.is_gone() && start.elapsed() < Duration::from_secs(30));
    assert_eq!(
        client.write(SpaceId(1), BASE, &[1; 8], None),
        Err(Failure::NodeGone)
    );
}

#[test]
fn a_space_needs_its_capability_where_the_node_has_a_check() {
    let secret = |n| Secret::new(&[n; 32]);
    let node = Node::start(ServerConfig::with_secret(1, secret(1)));
    let mut client = node.connect();
    let refused = Err(Failure::Refused(Error::NoSuchSpace));
    assert_eq!(client.call(SpaceId(3), &Operation::Open, &mut []), refused);
    assert_eq!(client.attach(&secret(2).capability(SpaceId(3))), Ok(false));
    assert_eq!(client.call(SpaceId(3), &Operation::Open, &mut []), refused);
    assert_eq!(client.attach(&secret(1).capability(SpaceId(4))), Ok(true));
    assert_eq!(client.call(SpaceId(3), &Operation::Open, &mut []), refused);
    assert_eq!(client.attach(&secret(1).capability(SpaceId(3))), Ok(true));
    alloc(&mut client, SpaceId(3), 4096);
    client.write(SpaceId(3), BASE, &[1; 100], None).unwrap();
    let mut other = node.connect();
    let mut out = [0; 100];
    for len in [16, 100] {
        let read = other.read_into(SpaceId(3), BASE, &mut out[..len]);
        assert_eq!(read, Err(Failure::Refused(Error::NoSuchSpace)));
    }
    let long = vec![0; 300_000];
    let write = other.write(SpaceId(3), BASE, &long, None);
    assert_eq!(write, Err(Failure::Refused(Error::NoSuchSpace)));
    assert_eq!(out, [0; 100]);
}

#[test]
fn an_answer_that_comes_after_the_timeout_is_not_that_to_the_next_capability() {
    let secret = |n| Secret::new(&[n; 32]);
    let node = Node::start(ServerConfig::with_secret(1, secret(1)));
    let mut client = node.connect();
    let mut hasty = node.connect_hasty(Duration::from_millis(20));
    node.pause();
    let right = secret(1).capability(SpaceId(3));
    while hasty.attach(&right) != Err(Failure::Timeout) {}
    node.resume();
    assert_eq!(client.attach(&right), Ok(true));
    let wrong = secret(2).capability(SpaceId(3));
    let answer = std::iter::repeat_with(|| hasty.attach(&wrong))
        .find(|answer| *answer != Err(Failure::Timeout));
    assert_eq!(answer, Some(Ok(false)));
}

#[test]
fn a_capability_that_could_not_be_shown_is_not_waited_for_later() {
    let secret = Secret::new(&[1; 32]);
    let node = Node::start(ServerConfig::with_secret(1, Secret::new(&[1; 32])));
    let mut hasty = node.connect_hasty(Duration::from_millis(1));
    let right = secret.capability(SpaceId(3));
    node.pause();
    // More than the socket has room for.
    for _ in 0..1500 {
        let _ = hasty.attach(&right);
    }
    node.resume();
    let start = Instant::now();
    while hasty.attach(&right) != Ok(true) {
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn a_killed_client_under_load_disturbs_no_other() {
    let mut node = Node::start(ServerConfig::new(1));
    let mut client = node.connect();
    let space = SpaceId(1);
    alloc(&mut client, space, 1 << 20);
    let add = Operation::FetchAdd {
        address: BASE,
        add: 1,
        guard: None,
    };
    let mut expected = 0;
    let mut data = vec![0; 100_000];
    for round in 0..8 {
        let mut child = child_under_load(&node.path);
        for _ in 0..200 {
            assert_eq!(client.call(space, &add, &mut []), Ok(Value::Old(expected)));
            expected += 1;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        data.fill(round);
        client.write(space, BASE + 8, &data, None).unwrap();
        let mut out = vec![99; data.len()];
        client.read_into(space, BASE + 8, &mut out).unwrap();
        assert!(out == data);
    }
    let start = Instant::now();
    drop(client);
    let mut last = node.connect();
    assert_eq!(last.call(space, &add, &mut []), Ok(Value::Old(expected)));
    assert!(start.elapsed() < Duration::from_secs(30));
    let (counters, _) = node.stop();
    assert_eq!((counters.connected, counters.cut_off), (10, 0));
    assert!(counters.gone >= 8, "{counters:?}");
}

/// Starts this program again as a client that never stops, and waits until it works.
fn child_under_load(path: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "ends::client_process",
            "--ignored",
            "--nocapture",
        ])
        .env("TARE_SHM_SOCKET", path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = output.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with("working")));
    child
}

#[test]
#[ignore = "a part of another test, in a process of its own"]
fn client_process() {
    let Some(path) = std::env::var_os("TARE_SHM_SOCKET") else {
        return;
    };
    let mut client = Client::connect(Path::new(&path), &PATIENT).unwrap();
    let space = SpaceId(100 + u64::from(std::process::id()));
    alloc(&mut client, space, 4 << 20);
    let long = vec![5; 1_000_000];
    for n in 0u64.. {
        let write = Operation::Write {
            address: BASE,
            data: &long,
            guard: None,
        };
        let read = Operation::Read {
            address: BASE,
            len: 16,
        };
        let operation = if n % 5 == 0 { write } else { read };
        if client.submit(space, &operation).is_err() || client.outstanding() > 30 {
            client.progress(Duration::from_secs(1)).unwrap();
        }
        while let Some(done) = client.poll() {
            done.outcome.unwrap();
        }
        if n == 100 {
            println!("working");
        }
    }
}

#[test]
fn a_refused_connection_says_why() {
    let config = ServerConfig {
        clients_max: 1,
        region_bytes_max: 1 << 20,
        ..ServerConfig::new(1)
    };
    let node = Node::start(config);
    let refusal = |config: &ClientConfig| match Client::connect(&node.path, config) {
        Err(ConnectError::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(&PATIENT), Refusal::Memory);
    assert_eq!(
        refusal(&ClientConfig {
            entries: 17,
            ..PATIENT
        }),
        Refusal::Sizes
    );
    let small = ClientConfig {
        data_bytes: 64 << 10,
        ..PATIENT
    };
    let first = Client::connect(&node.path, &small).unwrap();
    assert_eq!(refusal(&small), Refusal::Full);
    drop(first);
    let absent = Client::connect(Path::new("/nonexistent/socket"), &PATIENT);
    assert!(matches!(absent, Err(ConnectError::Os { .. })));
    assert!(Server::listen(&node.path, ServerConfig::new(2)).is_err());
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let path = socket_path();
    std::fs::write(&path, "kept").unwrap();
    let refused = Server::listen(&path, ServerConfig::new(1)).map(drop);
    let found = std::fs::read(&path);
    std::fs::remove_file(&path).unwrap();
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("expected a socket or nothing"), "{error}");
    assert_eq!(found.unwrap(), b"kept");
}

#[test]
fn the_socket_of_a_node_is_for_its_user_alone() {
    let node = Node::start(ServerConfig::new(1));
    let mode = std::fs::metadata(&node.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
