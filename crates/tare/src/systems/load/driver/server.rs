//! A server of a trial: started on a free port of the loopback interface, ended with its value.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _};
use nix::time::clock_getcpuclockid;
use rustix::process::{kill_process_group, Pid, Signal};
use tare_lab::choices;
use tare_lab::parameters::Choice as _;

use super::service::{folder_text, Service};
use crate::machine::load_program;
use crate::program::leash;

choices! {
    /// The server of a trial.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Server {
        /// One worker that serves a file.
        Nginx = "nginx",
        /// One thread.
        Memcached = "memcached",
        /// One thread for commands, nothing on disk.
        Redis = "redis-server",
    }
}

/// The longest time until a server answers.
const START_MAX: Duration = Duration::from_secs(10);

/// Bytes of the values of a store, for memcached's memory.
const STORE: u64 = 96 << 20;

/// The longest time for an answer to the question what it has served.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Ports that are tried: another program may take a free port before the server does.
const PORTS_MAX: u32 = 3;

/// The path of nginx's own counts.
pub(super) const STATUS: &str = "/tare-status";

/// A server that is running.
pub(in crate::systems) struct Running {
    child: Child,
    service: Service,
    /// Its configuration, its files and its log.
    folder: tempfile::TempDir,
}

/// The requests that a server has served since its start, by its own counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::systems) struct Served {
    pub(in crate::systems) requests: u64,
    /// Bytes that it sent; `None` if it does not count them.
    pub(super) bytes: Option<u64>,
    /// Reads of a key that there was; `None` if it has no keys.
    pub(in crate::systems) hits: Option<u64>,
    /// Bytes of the answer that these numbers are from.
    answer: u64,
}

impl Running {
    /// Starts a server, with a document of this length if it is nginx, and waits until it answers.
    ///
    /// # Errors
    /// It cannot be started: with the end of its log.
    pub(in crate::systems) fn start(kind: Server, document_len: usize) -> anyhow::Result<Running> {
        let mut attempt = 1;
        loop {
            // Closed before the server opens it.
            let address = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
            match Running::start_on(kind, document_len, address) {
                Err(_) if attempt < PORTS_MAX => attempt += 1,
                done => return done,
            }
        }
    }

    fn start_on(kind: Server, document: usize, address: SocketAddr) -> anyhow::Result<Running> {
        let service = Service {
            kind,
            address,
            document,
            threads: 1,
            store: STORE,
            identity: None,
        };
        let mut running = Running::begin(service, false)?;
        Served::wait(kind, address, START_MAX, || running.check())?;
        Ok(running)
    }

    /// Starts a server, which the kernel ends with this thread; `is_apart` is true for a network
    /// namespace of its own.
    ///
    /// # Errors
    /// It cannot be started.
    pub(in crate::systems) fn begin(service: Service, is_apart: bool) -> anyhow::Result<Running> {
        let name = service.program();
        let folder = tempfile::Builder::new().prefix("tare-load-").tempdir()?;
        let path = folder_text(folder.path())?;
        for (name, bytes) in service.files(path, false) {
            fs::write(folder.path().join(name), bytes)?;
        }
        let log = File::create(folder.path().join("log"))?;
        let program = load_program(name).with_context(|| format!("no {name}"))?;
        let mut command = leash();
        if is_apart {
            command.args(["unshare", "--net", "--"]);
        }
        command
            .arg(program)
            .args(service.arguments(path, false))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn().context(name)?;
        Ok(Running {
            child,
            service,
            folder,
        })
    }

    /// Checks that it runs.
    ///
    /// # Errors
    /// It has ended: with the end of its log.
    pub(in crate::systems) fn check(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(());
        };
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.trim().lines().collect();
        let last = lines[lines.len().saturating_sub(3)..].join("; ");
        bail!(
            "{} ended by itself: {status}; {last}",
            self.service.program()
        )
    }

    /// Its address.
    pub(in crate::systems) fn address(&self) -> SocketAddr {
        self.service.address
    }

    /// Its process.
    pub(in crate::systems) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// A folder that is there for as long as the server is.
    pub(super) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Asks the server what it has served.
    ///
    /// # Errors
    /// As [`Served::ask`].
    pub(super) fn served(&self) -> anyhow::Result<Served> {
        Served::ask(self.service.kind, self.service.address)
    }

    /// Processor time of all its threads since its start.
    ///
    /// # Errors
    /// It has ended.
    pub(in crate::systems) fn processor_time(&self) -> anyhow::Result<Duration> {
        processor_time_of(&self.child)
    }
}

/// Returns the processor time of a server so far.
///
/// # Errors
/// It has ended.
pub(in crate::systems) fn processor_time_of(server: &Child) -> anyhow::Result<Duration> {
    // Not that of `/proc/PID/stat`, which counts in ticks of 10 ms.
    let pid = nix::unistd::Pid::from_raw(i32::try_from(server.id())?);
    let clock = clock_getcpuclockid(pid).context("the server has ended")?;
    Ok(clock.now().context("the server has ended")?.into())
}

impl Drop for Running {
    /// SIGKILL ends a server that is stopped too, and there is nothing that it would have to save.
    fn drop(&mut self) {
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Served {
    /// Asks a server what it has served.
    ///
    /// # Errors
    /// It gives no answer, or one without the numbers.
    pub(in crate::systems) fn ask(kind: Server, address: SocketAddr) -> anyhow::Result<Served> {
        let question = match kind {
            Server::Nginx => format!("GET {STATUS} HTTP/1.0\r\n\r\n"),
            Server::Memcached => "stats\r\n".into(),
            Server::Redis => "INFO\r\n".into(),
        };
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.write_all(question.as_bytes())?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        read_served(kind, &answer).with_context(|| format!("{} says {answer:?}", kind.name()))
    }

    /// Waits until a server answers; `check` returns an error if it never will.
    ///
    /// # Errors
    /// As that; no answer in time.
    pub(in crate::systems) fn wait(
        kind: Server,
        address: SocketAddr,
        limit: Duration,
        mut check: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + limit;
        while let Err(error) = Served::ask(kind, address) {
            check()?;
            if Instant::now() > until {
                let name = kind.name();
                return Err(error.context(format!("{name} does not answer for {limit:?}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The difference to an earlier answer, without the questions themselves.
    ///
    /// # Errors
    /// The count is smaller than the earlier one.
    pub(in crate::systems) fn since(
        &self,
        kind: Server,
        before: &Served,
    ) -> anyhow::Result<Served> {
        // nginx counts the second question when it answers, Redis the first one after it answered.
        let questions = u64::from(kind != Server::Memcached);
        let requests = self.requests.checked_sub(before.requests + questions);
        let bytes = self.bytes.zip(before.bytes);
        let hits = self.hits.zip(before.hits);
        Ok(Served {
            requests: requests.context("the server's count went back")?,
            bytes: bytes.and_then(|(now, then)| now.checked_sub(then + before.answer)),
            hits: hits.and_then(|(now, then)| now.checked_sub(then)),
            answer: 0,
        })
    }
}

/// Reads a server's answer.
fn read_served(kind: Server, answer: &str) -> Option<Served> {
    let number = |name: &str| -> Option<u64> {
        let line = answer.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    let (requests, bytes, hits) = match kind {
        Server::Nginx => {
            let numbers = answer
                .lines()
                .skip_while(|line| !line.starts_with("server accepts"));
            let requests = numbers
                .skip(1)
                .find_map(|line| line.split_whitespace().nth(2));
            (requests?.parse().ok()?, None, None)
        }
        Server::Memcached => {
            let of = |operation| number(operation);
            let requests = of("STAT cmd_get ")? + of("STAT cmd_set ")?;
            (
                requests,
                number("STAT bytes_written "),
                of("STAT get_hits "),
            )
        }
        Server::Redis => (
            number("total_commands_processed:")?,
            number("total_net_output_bytes:"),
            number("keyspace_hits:"),
        ),
    };
    Some(Served {
        requests,
        bytes,
        hits,
        answer: answer.len() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_three_servers_are_read_without_the_questions() {
        let nginx = |n| {
            format!(
                "HTTP/1.1 200 OK\r\n\r\nActive connections: 1 \nserver accepts handled requests\n \
                 7 7 {n} \nReading: 0 Writing: 1 Waiting: 0 \n"
            )
        };
        let memcached = |n, bytes| {
            format!(
                "STAT cmd_get {n}\r\nSTAT cmd_set 2\r\nSTAT get_hits {}\r\n\
                 STAT bytes_written {bytes}\r\nEND\r\n",
                n / 2
            )
        };
        let redis = |n, bytes| {
            format!(
                "$9\r\ntotal_commands_processed:{n}\r\ntotal_net_output_bytes:{bytes}\r\n\
                 keyspace_hits:{}\r\n",
                n / 2
            )
        };
        let length = |answer: &str| answer.len() as u64;
        for (kind, before, after, bytes, hits) in [
            (Server::Nginx, nginx(5), nginx(106), None, None),
            (
                Server::Memcached,
                memcached(1, 10),
                memcached(101, 10 + length(&memcached(1, 10)) + 900),
                Some(900),
                Some(50),
            ),
            (
                Server::Redis,
                redis(3, 20),
                redis(104, 20 + length(&redis(3, 20)) + 900),
                Some(900),
                Some(51),
            ),
        ] {
            let read = |answer: &str| read_served(kind, answer).unwrap();
            let served = read(&after).since(kind, &read(&before)).unwrap();
            let counts = (served.requests, served.bytes, served.hits);
            assert_eq!(counts, (100, bytes, hits), "{kind:?}");
            assert_eq!(read_served(kind, "ERROR\r\n"), None);
            assert!(read(&before).since(kind, &read(&after)).is_err());
        }
    }
}
