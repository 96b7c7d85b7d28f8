//! The side that asks a daemon for its status.

use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The folder of the sockets that no configuration names.
pub(crate) const DIRECTORY: &str = "/run/tare";

/// The longest answer that is read: 10,000 routes of a gateway take about 10 MB.
const ANSWER_MAX: u64 = 1 << 30;

/// The longest time without a byte of the answer: longer than the daemon takes to give it up.
const PATIENCE: Duration = Duration::from_secs(15);

/// The time for which a socket may have no listener while one process takes the place of another.
const TAKEOVER: Duration = Duration::from_secs(1);

/// Returns the status socket of a daemon `kind` with this configuration file, unless another one is
/// set: `/run/tare/KIND-STEM.sock`.
pub fn default_socket(kind: &str, config: &Path) -> PathBuf {
    let stem = config.file_stem().unwrap_or_default().to_string_lossy();
    Path::new(DIRECTORY).join(format!("{kind}-{stem}.sock"))
}

/// The words of errors about a kind of daemons.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// One of them, such as `gateway`; it is followed by an `s` for several.
    pub one: &'static str,
    /// The thing that tells one from another, and gives its socket the name, such as
    /// `configuration`.
    pub key: &'static str,
}

/// Returns the status socket of the only daemon `kind` of this machine. A socket without a
/// listener, as a daemon leaves it that was killed, does not count.
///
/// # Errors
/// There is none, or several.
pub fn only_socket(kind: &str, words: Words) -> Result<PathBuf, String> {
    only_socket_in(Path::new(DIRECTORY), kind, words)
}

/// Returns the status sockets of all daemons `kind` of this machine, with the stems of their
/// configurations, in the order of these. A socket without a listener does not count.
pub fn sockets(kind: &str) -> Vec<(String, PathBuf)> {
    sockets_in(Path::new(DIRECTORY), kind)
}

fn sockets_in(directory: &Path, kind: &str) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let named = |path: PathBuf| {
        let name = path.file_name()?.to_string_lossy();
        let rest = name.strip_prefix(kind)?.strip_prefix('-')?;
        let stem = rest.strip_suffix(".sock")?.to_owned();
        has_listener(&path).then_some((stem, path))
    };
    let mut sockets: Vec<_> = entries.filter_map(|entry| named(entry.path())).collect();
    sockets.sort();
    sockets
}

fn only_socket_in(directory: &Path, kind: &str, words: Words) -> Result<PathBuf, String> {
    let Words { one, key } = words;
    let mut sockets = sockets_in(directory, kind);
    match sockets.pop() {
        Some((_, socket)) if sockets.is_empty() => Ok(socket),
        Some(last) => {
            sockets.push(last);
            let names: Vec<String> = sockets.into_iter().map(|(stem, _)| stem).collect();
            let names = names.join(", ");
            Err(format!(
                "several {one}s run here: {names}; name the {key} of one"
            ))
        }
        None => Err(format!(
            "no {one} answers at a socket below {}; name its socket or {key}",
            directory.display()
        )),
    }
}

/// Returns true unless a socket is known to have no listener: an error of access is told when it is
/// asked.
fn has_listener(socket: &Path) -> bool {
    match UnixStream::connect(socket) {
        Ok(_) => true,
        Err(error) => !matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
        ),
    }
}

/// Returns the status, as JSON, of the daemon that answers at a socket. One that is just taking the
/// place of another is waited for.
///
/// # Errors
/// It does not answer.
pub fn ask(socket: &Path) -> io::Result<String> {
    let start = Instant::now();
    loop {
        let asked = ask_once(socket);
        let longest = match asked.as_ref().map_err(io::Error::kind) {
            Err(io::ErrorKind::NotFound) => TAKEOVER / 5,
            Err(
                io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::UnexpectedEof,
            ) => TAKEOVER,
            _ => return asked,
        };
        if start.elapsed() >= longest {
            return asked;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ask_once(socket: &Path) -> io::Result<String> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn the_only_socket_is_found_and_no_other_kind_is_taken_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let words = Words {
            one: "relay",
            key: "file",
        };
        let find = || only_socket_in(directory.path(), "gateway", words);
        let add = |name: &str| UnixListener::bind(directory.path().join(name)).unwrap();
        assert!(find().unwrap_err().contains("no relay"));
        let _others = [add("memory-a.sock"), add("gateway-a.conf")];
        // One that was killed.
        drop(add("gateway-0.sock"));
        assert!(find().unwrap_err().contains("no relay"));
        let _first = add("gateway-a.sock");
        assert_eq!(find().unwrap(), directory.path().join("gateway-a.sock"));
        let _second = add("gateway-b.c.sock");
        assert_eq!(
            find().unwrap_err(),
            "several relays run here: a, b.c; name the file of one"
        );
    }

    #[test]
    fn a_daemon_that_takes_the_place_of_another_is_waited_for_and_one_that_is_gone_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("status.sock");
        assert_eq!(ask(&socket).unwrap_err().kind(), io::ErrorKind::NotFound);
        drop(UnixListener::bind(&socket).unwrap());
        let refused = ask(&socket).unwrap_err().kind();
        assert_eq!(refused, io::ErrorKind::ConnectionRefused);
        // On a busy machine the other one may come too late, but not each time.
        assert!((0..10).any(|_| is_waited_for(&socket)));
    }

    /// Asks at a socket without a listener, in whose place another one comes meanwhile; returns
    /// true if that one has answered.
    fn is_waited_for(socket: &Path) -> bool {
        let _ = std::fs::remove_file(socket);
        drop(UnixListener::bind(socket).unwrap());
        let is_asked = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(TAKEOVER / 10);
                std::fs::remove_file(socket).unwrap();
                let listener = UnixListener::bind(socket).unwrap();
                listener.set_nonblocking(true).unwrap();
                while !is_asked.load(Ordering::Relaxed) {
                    if let Ok((mut client, _)) = listener.accept() {
                        let _ = io::Write::write_all(&mut client, b"{}");
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let answer = ask(socket);
            is_asked.store(true, Ordering::Relaxed);
            answer.is_ok_and(|answer| answer == "{}")
        })
    }

    #[test]
    fn the_default_socket_has_the_name_of_the_configuration() {
        let socket = default_socket("gateway", Path::new("/etc/tare/node 1.conf"));
        assert_eq!(socket, Path::new("/run/tare/gateway-node 1.sock"));
    }
}
