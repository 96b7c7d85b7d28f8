//! The endpoints at which a daemon reports its status: Prometheus over HTTP, and JSON over a Unix
//! socket.
//!
//! Each client has a thread of its own, with short timeouts and small requests; there are at most
//! [`CLIENTS_MAX`] at each endpoint. The daemon itself never waits for them.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{connect, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use serde::Serialize;

use crate::client::DIRECTORY;

/// The longest request, in bytes.
const REQUEST_MAX: usize = 4096;
/// Clients at a time of each endpoint; others are closed at once.
const CLIENTS_MAX: usize = 64;
/// Bytes of the longest path of a Unix socket: the kernel has room for one more, which is 0.
const SOCKET_PATH_MAX: usize = 107;
/// The timeout of a request, and of its answer. A busy machine may not run a thread for seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The status of a daemon: JSON for the status socket, a page of metrics for Prometheus.
pub trait Report: Serialize + Send + Sync + 'static {
    /// Returns the page of metrics.
    fn prometheus(&self) -> String;
}

/// The part of a report that is asked for, with the greater one last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// The part that the page of metrics needs.
    Metrics,
    /// All of it, for the status socket.
    Status,
}

/// A request for a report, and the way of the answer.
pub(crate) type Ask<R> = (Asked, SyncSender<Arc<R>>);

/// The way to ask the thread that has the daemon's state.
pub(crate) struct Asker<R> {
    pub(crate) asks: SyncSender<Ask<R>>,
    pub(crate) wake: Arc<dyn Fn() + Send + Sync>,
}

impl<R> Clone for Asker<R> {
    fn clone(&self) -> Self {
        Asker {
            asks: self.asks.clone(),
            wake: Arc::clone(&self.wake),
        }
    }
}

impl<R> fmt::Debug for Asker<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asker")
    }
}

impl<R> Asker<R> {
    fn ask(&self, asked: Asked) -> Option<Arc<R>> {
        let (reply, answer) = sync_channel(1);
        self.asks.try_send((asked, reply)).ok()?;
        (self.wake)();
        answer.recv_timeout(PATIENCE).ok()
    }
}

/// The addresses at which a daemon reports its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// Address of the Prometheus endpoint.
    pub metrics: Option<SocketAddr>,
    /// Path of the status socket.
    pub socket: Option<PathBuf>,
}

/// A thread that answers; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Service {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    socket: Option<PathBuf>,
}

impl Service {
    /// Listens at the endpoints that can be had, and adds the errors of the others.
    pub(crate) fn start<R: Report>(
        endpoints: &Endpoints,
        asker: Asker<R>,
        errors: &mut Vec<String>,
    ) -> Option<Service> {
        let mut listen = |what: &str, result: io::Result<Listener>| {
            result
                .map_err(|error| errors.push(context(what, error)))
                .ok()
        };
        let metrics = endpoints.metrics.and_then(|at| {
            let bound = TcpListener::bind(at).and_then(|l| l.set_nonblocking(true).map(|()| l));
            listen(&format!("metrics at {at}"), bound.map(Listener::Metrics))
        });
        let socket = endpoints.socket.as_deref().and_then(|path| {
            let what = format!("status at {}", path.display());
            listen(&what, bind_socket(path).map(Listener::Status))
        });
        let path = socket.is_some().then(|| endpoints.socket.clone()).flatten();
        let listeners: Vec<Listener> = metrics.into_iter().chain(socket).collect();
        if listeners.is_empty() {
            return None;
        }
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|e| errors.push(e.to_string())).ok()?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("tare-service".into())
            .spawn(move || serve(&listeners, &stopped, &asker))
            .map_err(|e| errors.push(e.to_string()))
            .ok()?;
        Some(Service {
            stop,
            thread: Some(thread),
            socket: path,
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

enum Listener {
    Metrics(TcpListener),
    Status(UnixListener),
}

/// Binds a socket with access for its owner alone. A socket that a process left behind when it was
/// killed is removed. The folder of [`default_socket`](crate::default_socket) is made if it is
/// missing, and no other.
///
/// # Errors
/// There is no such folder, another process answers there, or the system refuses.
pub fn bind_socket(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        if folder == Path::new(DIRECTORY) {
            std::fs::create_dir_all(folder)?;
        } else if !folder.exists() {
            let error = format!("there is no folder {}", folder.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, error));
        }
    }
    let len = path.as_os_str().len();
    if len > SOCKET_PATH_MAX {
        let error = format!(
            "found a path of {len} bytes, expected at most {SOCKET_PATH_MAX}: name a shorter one"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    }
    let found = path.symlink_metadata().map(|meta| meta.file_type());
    if found.as_ref().is_ok_and(|found| !found.is_socket()) {
        let error = "found something else than a socket there, expected a socket or nothing: \
                     name another path, or remove what is there";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, error));
    }
    if found.is_ok() {
        if is_served(path)? {
            let error = "another process answers there";
            return Err(io::Error::new(io::ErrorKind::AddrInUse, error));
        }
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns true if a process listens there. It is not waited for: where its queue of connections is
/// full, that shows that it is there.
fn is_served(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let connected = connect(&socket, &SocketAddrUnix::new(path)?);
    Ok(matches!(connected, Ok(()) | Err(Errno::AGAIN)))
}

fn serve<R: Report>(listeners: &[Listener], stop: &OwnedFd, asker: &Asker<R>) {
    let clients: Vec<Arc<()>> = listeners.iter().map(|_| Arc::default()).collect();
    loop {
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        fds.extend(listeners.iter().map(|listener| match listener {
            Listener::Metrics(listener) => PollFd::new(listener, PollFlags::IN),
            Listener::Status(listener) => PollFd::new(listener, PollFlags::IN),
        }));
        let _ = poll(&mut fds, None);
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready.first() == Some(&true) {
            return;
        }
        let ready = listeners.iter().zip(&clients).zip(&ready[1..]);
        for ((listener, clients), _) in ready.filter(|(_, ready)| **ready) {
            let answer: io::Result<Answer<R>> = match listener {
                Listener::Metrics(listener) => listener.accept().map(|(stream, _)| {
                    Box::new(move |asker: &Asker<R>| metrics(stream, asker)) as Answer<R>
                }),
                Listener::Status(listener) => listener.accept().map(|(stream, _)| {
                    Box::new(move |asker: &Asker<R>| status(&stream, asker)) as Answer<R>
                }),
            };
            let begun = answer.and_then(|answer| {
                if Arc::strong_count(clients) > CLIENTS_MAX {
                    return Ok(());
                }
                let (client, asker) = (Arc::clone(clients), asker.clone());
                let thread = std::thread::Builder::new().name("tare-client".into());
                thread
                    .spawn(move || {
                        // A client that went away has no answer.
                        let _ = answer(&asker);
                        drop(client);
                    })
                    .map(drop)
            });
            // There may be no descriptors or threads left: without a pause that would be a busy
            // loop.
            if begun.is_err_and(|e| e.kind() != io::ErrorKind::WouldBlock) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// The answer to a client that has come.
type Answer<R> = Box<dyn FnOnce(&Asker<R>) -> io::Result<()> + Send>;

fn status<R: Report>(mut stream: &UnixStream, asker: &Asker<R>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let report = asker.ask(Asked::Status).ok_or(io::ErrorKind::TimedOut)?;
    let mut text = serde_json::to_vec(&*report)?;
    text.push(b'\n');
    stream.write_all(&text)
}

fn metrics<R: Report>(mut stream: TcpStream, asker: &Asker<R>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read_request(&mut stream)?;
    let line = request.lines().next().unwrap_or_default();
    let mut words = line.split(' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let version = words.next().unwrap_or_default();
    let (code, body) = match (method, path) {
        _ if !version.starts_with("HTTP/1.") => ("400 Bad Request", String::new()),
        (Some("GET"), "/metrics") => match asker.ask(Asked::Metrics) {
            Some(report) => ("200 OK", report.prometheus()),
            None => ("503 Service Unavailable", String::new()),
        },
        (Some("GET"), _) => ("404 Not Found", "The metrics are at /metrics.\n".into()),
        _ => ("405 Method Not Allowed", String::new()),
    };
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Reads the head of a request, within the time and the size that one may have.
fn read_request(stream: &mut TcpStream) -> io::Result<String> {
    let end = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let mut buffer = [0; 512];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > REQUEST_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => request.extend_from_slice(&buffer[..n]),
        }
    }
    String::from_utf8(request).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Returns the error of an operation of the operating system with what it was for.
pub(crate) fn context(what: &str, error: io::Error) -> String {
    format!("{what}: {error}")
}
