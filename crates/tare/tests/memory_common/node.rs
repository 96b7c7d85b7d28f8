//! A node that a test starts, asks and ends.

use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{kill_process, waitid, Pid, Signal, WaitId, WaitIdOptions};
use serde_json::Value;
use tare_farmem::protocol::ClientConfig;
use tare_farmem::session::{connect, random_id, Options, Session};

use crate::memory_common::until;

pub(crate) fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tare"));
    command.arg("memory").args(arguments).stdin(Stdio::null());
    command.output().expect("tare runs")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Makes a file with a new secret, which its owner alone may read.
#[allow(dead_code, reason = "not every test program encrypts")]
pub(crate) fn secret(path: &Path) {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600);
    let printed = run(&["keygen"]).stdout;
    file.open(path).unwrap().write_all(&printed).unwrap();
}

/// Options of a session with a space that gives operations up as late as the node lets it.
pub(crate) fn patient() -> Options {
    giving_up_after(Duration::from_secs(60))
}

/// Options of a session that gives operations up after this time, or the node's if that is less.
pub(crate) fn giving_up_after(timeout: Duration) -> Options {
    let client = ClientConfig::new(random_id().unwrap());
    Options {
        client: Some(ClientConfig { timeout, ..client }),
        ..Options::default()
    }
}

/// A node that ends with the test.
pub(crate) struct Node {
    pub(crate) child: Child,
    log: BufReader<ChildStderr>,
    pub(crate) address: SocketAddr,
    pub(crate) socket: PathBuf,
}

impl Node {
    /// Starts a node on a loopback address, and waits until it serves.
    pub(crate) fn start(folder: &Path, arguments: &[&str]) -> Node {
        Node::start_at("127.0.0.1:0", folder, arguments)
    }

    pub(crate) fn start_at(listen: &str, folder: &Path, arguments: &[&str]) -> Node {
        let socket = folder.join("status.sock");
        let mut child = Command::new(env!("CARGO_BIN_EXE_tare"))
            .args(["memory", "serve", "--listen", listen, "--status-socket"])
            .arg(&socket)
            .args(["--memory", "16Mi"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("tare runs");
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("event=serving") {
            line.clear();
            let len = log.read_line(&mut line).unwrap();
            assert!(len > 0, "the node ended: {:?}", child.wait());
        }
        let address = line.split("address=").nth(1).unwrap();
        let address = address.split_whitespace().next().unwrap();
        Node {
            address: address.parse().unwrap(),
            child,
            log,
            socket,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("udp://{}", self.address)
    }

    pub(crate) fn session(&self) -> Session {
        connect(&self.url(), &patient()).unwrap()
    }

    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.said(&["--json"])).unwrap()
    }

    /// Returns what `tare memory status` prints. It is run again while the node is there and does
    /// not answer in time.
    pub(crate) fn said(&self, options: &[&str]) -> String {
        let arguments = [&["status", self.socket.to_str().unwrap()][..], options].concat();
        until("the status of a node", || {
            let done = run(&arguments);
            let is_answered = done.status.success();
            assert!(is_answered || self.is_there(), "{}", text(&done.stderr));
            is_answered.then(|| text(&done.stdout))
        })
    }

    /// Returns true if the process has not ended.
    fn is_there(&self) -> bool {
        let id = WaitId::Pid(Pid::from_child(&self.child));
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(id, options).unwrap().is_none()
    }

    /// Sends a signal; returns the exit status and the rest of the log.
    pub(crate) fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The page of metrics, as a monitoring system asks for it, until there is one.
pub(crate) fn metrics_page(address: SocketAddr) -> String {
    let ask = || -> io::Result<String> {
        let mut connection = TcpStream::connect(address)?;
        let request = "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        connection.write_all(request.as_bytes())?;
        let mut page = String::new();
        connection.read_to_string(&mut page)?;
        Ok(page)
    };
    until("a page of metrics", || {
        ask().ok().filter(|page| page.starts_with("HTTP/1.1 200 "))
    })
}
