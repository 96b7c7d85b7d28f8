//! The side that asks a daemon for its status.

use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder of the sockets that no configuration names.
pub(crate) const DIRECTORY: &str = "/run/tare";

/// The longest answer that is read: 10,000 routes of a gateway take about 10 MB.
const ANSWER_MAX: u64 = 1 << 30;

const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the status socket of a daemon `kind` with this configuration file, unless another one is
/// set: `/run/tare/KIND-STEM.sock`.
pub fn default_socket(kind: &str, config: &Path) -> PathBuf {
    let stem = config.file_stem().unwrap_or_default().to_string_lossy();
    Path::new(DIRECTORY).join(format!("{kind}-{stem}.sock"))
}

/// Returns the status socket of the only daemon `kind` of this machine.
///
/// # Errors
/// There is none, or several.
pub fn only_socket(kind: &str) -> Result<PathBuf, String> {
    only_socket_in(Path::new(DIRECTORY), kind)
}

fn only_socket_in(directory: &Path, kind: &str) -> Result<PathBuf, String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let prefix = format!("{kind}-");
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&prefix) && name.ends_with(".sock")
    };
    let mut sockets = entries.map(|entry| entry.path()).filter(is_one);
    match (sockets.next(), sockets.next()) {
        (Some(socket), None) => Ok(socket),
        (Some(_), Some(_)) => Err(format!(
            "several {kind}s run here; name the configuration of one"
        )),
        (None, _) => Err(format!(
            "no {kind} has a socket below {}; name its socket or configuration",
            directory.display()
        )),
    }
}

/// Returns the status, as JSON, of the daemon that answers at a socket.
///
/// # Errors
/// It does not answer.
pub fn ask(socket: &Path) -> io::Result<String> {
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

    #[test]
    fn the_only_socket_is_found_and_no_other_kind_is_taken_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let find = || only_socket_in(directory.path(), "gateway");
        let add = |name: &str| std::fs::write(directory.path().join(name), "").unwrap();
        assert!(find().unwrap_err().contains("no gateway"));
        add("memory-a.sock");
        add("gateway-a.conf");
        assert!(find().unwrap_err().contains("no gateway"));
        add("gateway-a.sock");
        assert_eq!(find().unwrap(), directory.path().join("gateway-a.sock"));
        add("gateway-b.sock");
        assert!(find().unwrap_err().contains("several gateways"));
    }

    #[test]
    fn the_default_socket_has_the_name_of_the_configuration() {
        let socket = default_socket("gateway", Path::new("/etc/tare/node 1.conf"));
        assert_eq!(socket, Path::new("/run/tare/gateway-node 1.sock"));
    }
}
