//! A server of a trial: started on a free port of the loopback interface, ended with its value.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _};
use rustix::process::{kill_process, Pid, Signal};
use tare_lab::choices;
use tare_lab::parameters::Choice as _;

use crate::machine::load_program;

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

/// The longest time for an answer to the question what it has served.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Ports that are tried: another program may take a free port before the server does.
const PORTS_MAX: u32 = 3;

/// The unit of processor time in /proc: Linux's USER_HZ is 100 on x86-64.
const TICK: Duration = Duration::from_millis(10);

/// The path of nginx's own counts.
const STATUS: &str = "/tare-status";

/// A server that is running.
pub(in crate::systems) struct Running {
    child: Child,
    kind: Server,
    address: SocketAddr,
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

    fn start_on(kind: Server, document_len: usize, address: SocketAddr) -> anyhow::Result<Running> {
        let name = kind.name();
        let folder = tempfile::Builder::new().prefix("tare-load-").tempdir()?;
        let mut command = Command::new(load_program(name).context("no program")?);
        let port = address.port().to_string();
        match kind {
            Server::Nginx => {
                let path = folder.path().to_str().context("a path of no text")?;
                fs::write(folder.path().join("index.html"), "x".repeat(document_len))?;
                let config = nginx(&Nginx {
                    folder: path,
                    address,
                    tls: None,
                    workers: 1,
                    daemon: false,
                });
                fs::write(folder.path().join("nginx.conf"), config)?;
                command.args(["-e", "stderr", "-p", path, "-c", "nginx.conf"]);
            }
            Server::Memcached => {
                command.args(["-l", "127.0.0.1", "-p", &port, "-U", &port, "-t", "1"]);
                command.args(["-m", "256", "-c", "8192"]);
                if rustix::process::geteuid().is_root() {
                    command.args(["-u", "root"]);
                }
            }
            Server::Redis => {
                command.args(["--bind", "127.0.0.1", "--port", &port, "--save", ""]);
                command.args(["--appendonly", "no", "--daemonize", "no", "--dir"]);
                command.arg(folder.path());
            }
        }
        let log = File::create(folder.path().join("log"))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn().with_context(|| name.to_owned())?;
        let mut running = Running {
            child,
            kind,
            address,
            folder,
        };
        let deadline = Instant::now() + START_MAX;
        loop {
            let state = match (running.child.try_wait()?, running.served()) {
                (None, Ok(_)) => return Ok(running),
                (None, Err(_)) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                }
                (None, Err(error)) => format!("no answer after {START_MAX:?}: {error:#}"),
                (Some(status), _) => format!("it ended by itself: {status}"),
            };
            let log = fs::read_to_string(running.folder.path().join("log")).unwrap_or_default();
            let last: Vec<&str> = log.trim().lines().rev().take(3).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            bail!("{name}: {state}: {}", last.join("; "));
        }
    }

    /// Its address.
    pub(in crate::systems) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub(super) fn pid(&self) -> Pid {
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
        Served::ask(self.kind, self.address)
    }

    /// Processor time of all its threads since its start, to a [`TICK`].
    ///
    /// # Errors
    /// It has ended.
    pub(in crate::systems) fn processor_time(&self) -> anyhow::Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The program's name, in parentheses, may have blanks of its own.
        let (_, fields) = stat.rsplit_once(") ").context("/proc/PID/stat")?;
        let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
        let ticks = ticks.sum::<Result<u64, _>>()?;
        Ok(TICK * u32::try_from(ticks)?)
    }
}

impl Drop for Running {
    /// SIGKILL ends a server that is stopped too, and there is nothing that it would have to save.
    fn drop(&mut self) {
        let _ = kill_process(self.pid(), Signal::KILL);
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

/// The settings of nginx.
pub(in crate::systems) struct Nginx<'a> {
    /// The folder of its files.
    pub(in crate::systems) folder: &'a str,
    /// The address without TLS.
    pub(in crate::systems) address: SocketAddr,
    /// The address with TLS, for which `cert.pem` and `key.pem` are in the folder.
    pub(in crate::systems) tls: Option<SocketAddr>,
    /// Processes that serve.
    pub(in crate::systems) workers: usize,
    /// True if it is to go into the background.
    pub(in crate::systems) daemon: bool,
}

/// The configuration of nginx, which closes no connection by itself.
pub(in crate::systems) fn nginx(settings: &Nginx<'_>) -> String {
    let Nginx {
        folder,
        address,
        workers,
        ..
    } = settings;
    let on = |is_on: bool| if is_on { "on" } else { "off" };
    let daemon = on(settings.daemon);
    // One process alone needs no other that watches it. Several take the rights of another user,
    // who cannot read a folder of root's, unless they are told.
    let processes = match workers {
        1 => "master_process off;".to_owned(),
        _ if rustix::process::geteuid().is_root() => {
            format!("worker_processes {workers};\nuser root;")
        }
        _ => format!("worker_processes {workers};"),
    };
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|name| format!("{name}_temp_path \"{folder}/{name}\";"));
    let tls = settings.tls.map_or(String::new(), |tls| {
        format!(
            "listen {tls} ssl;\n    ssl_certificate \"{folder}/cert.pem\";\n    \
             ssl_certificate_key \"{folder}/key.pem\";\n    ssl_protocols TLSv1.3;\n    "
        )
    });
    format!(
        "daemon {daemon};\n{processes}\npid \"{folder}/pid\";\nerror_log stderr;\n\
         events {{ worker_connections 8192; }}\n\
         http {{\n  access_log off;\n  etag off;\n  keepalive_requests 1000000000;\n  open_file_cache max=16;\n  \
         {}\n  server {{\n    listen {address};\n    {tls}root \"{folder}\";\n    \
         location = {STATUS} {{ stub_status; }}\n  }}\n}}\n",
        temporary.join("\n  ")
    )
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
