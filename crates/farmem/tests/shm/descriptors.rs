//! A node that may open few files.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{getrlimit, setrlimit, Resource};

use super::*;

/// The clients for which the node has descriptors: two for each.
const CLIENTS: usize = 10;

/// A node in a process of its own, which says each second how often it has waited.
struct Process {
    path: PathBuf,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start() -> Process {
        let path = socket_path();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "descriptors::node_process"])
            .args(["--ignored", "--nocapture"])
            .env("TARE_SHM_SOCKET", &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Process { path, child, lines };
        process.waits();
        process
    }

    /// Returns how often the node waited in its present second.
    fn waits(&mut self) -> u64 {
        let mut lines = self.lines.by_ref().map(Result::unwrap);
        let line = lines.find_map(|line| Some(line.split_once("waits ")?.1.to_owned()));
        line.expect("a node that runs").parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
#[ignore = "a part of another test, in a process of its own"]
fn node_process() {
    let Some(path) = std::env::var_os("TARE_SHM_SOCKET") else {
        return;
    };
    let (mut server, mut store) = (
        Server::listen(Path::new(&path), ServerConfig::new(1)).unwrap(),
        store(),
    );
    let is_free = |number: &u64| {
        let open = format!("/proc/self/fd/{number}");
        std::fs::symlink_metadata(open).is_err()
    };
    let last = (0..).filter(is_free).nth(2 * CLIENTS - 1).unwrap();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(last + 1);
    setrlimit(Resource::Nofile, limit).unwrap();
    println!("waits 0");
    loop {
        let (start, mut waits) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(1) {
            if !server.turn(&mut store, &tare_sim::Instant::now).unwrap() {
                server.wait(Some(Duration::from_millis(20))).unwrap();
                waits += 1;
            }
        }
        println!("waits {waits}");
    }
}

fn silent(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.unwrap();
    net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

#[test]
fn a_node_without_descriptors_sleeps_until_a_client_goes_and_silent_ones_make_room() {
    let mut node = Process::start();
    let path = node.path.clone();
    let connect = || Client::connect(&path, &PATIENT).unwrap();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| connect()).collect();
    let hasty = ClientConfig {
        timeout: Duration::ZERO,
        ..PATIENT
    };
    let more = Client::connect(&path, &hasty);
    assert!(matches!(more, Err(ConnectError::Silent)), "{more:?}");
    // One more waits all the time, of which the node can only be told again and again.
    let waiting = silent(&path);
    node.waits();
    let waits = node.waits();
    assert!(waits < 200, "{waits} in a second of 50 times 20 ms");
    // As soon as descriptors are free, there is one for the next; silent ones give way to it.
    drop((clients.pop(), waiting));
    let others: Vec<OwnedFd> = (0..3 * CLIENTS).map(|_| silent(&path)).collect();
    clients.push(connect());
    drop(others);
    for client in &mut clients {
        assert_eq!(
            client.call(SpaceId(1), &Operation::Open, &mut []),
            Ok(Value::None)
        );
    }
}
