//! Two namespaces with a cable between them, a node and a Redis server in one of them, and limits
//! for the program in the other.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{setrlimit, Resource, Rlimit};
use tare_port::namespaces::Namespaces;

const TARE: &str = env!("CARGO_BIN_EXE_tare");

/// The addresses of the node and of Redis.
pub(crate) const NODE: &str = "10.77.0.1:7311";
pub(crate) const REDIS: &str = "10.77.0.1:6379";

/// The variable with the file of the control group that the program joins.
const GROUP: &str = "TARE_TEST_GROUP";

/// Both namespaces, and what runs there. All of it goes away with this.
pub(crate) struct Scene {
    spaces: Namespaces,
    directory: tempfile::TempDir,
    group: Option<Group>,
    node: Option<Child>,
    redis: Option<Child>,
}

impl Scene {
    /// Returns `None` where it cannot be made, and fails there under CI.
    pub(crate) fn new(limit: u64) -> Option<Scene> {
        let spaces = Namespaces::of_test("memory", &["node", "program"])?;
        let group = Group::new(&format!("tare-memory-{}", std::process::id()), limit);
        if group.is_none() {
            not_tested(
                "a control group cannot be made here; the program's memory is limited by \
                 RLIMIT_DATA instead",
            );
        }
        let scene = Scene {
            // The kept memory is not to be written to a disk, if there is a way. Other tests look
            // there for what they left, and know what begins like this for a test's.
            directory: tempfile::Builder::new()
                .prefix("tare-test-")
                .tempdir_in("/dev/shm")
                .or_else(|_| tempfile::tempdir())
                .unwrap(),
            spaces,
            group,
            node: None,
            redis: None,
        };
        let spaces = &scene.spaces;
        spaces.link(["node", "program"], ["net", "net"]);
        for (place, address) in [("node", "10.77.0.1/24"), ("program", "10.77.0.2/24")] {
            spaces.ip(place, &format!("addr add {address} dev net"));
            spaces.ip(place, "link set net up");
            spaces.ip(place, "link set lo up");
        }
        Some(scene)
    }

    /// Starts a program in one of the namespaces.
    fn spawn(&self, place: &str, command: &mut Command) -> io::Result<Child> {
        // Not by `ip netns exec`, which would hide the control groups.
        self.spaces.within(place, || command.spawn())
    }

    /// Starts the node with the memory that the last one left.
    pub(crate) fn start_node(&mut self) {
        let directory = self.directory.path();
        let mut command = Command::new(TARE);
        command
            .args(["memory", "serve", "--insecure", "--memory", "64Mi"])
            .args(["--listen", NODE, "--keep"])
            .arg(directory.join("pool"))
            .arg("--status-socket")
            .arg(directory.join("status"))
            .stderr(Stdio::null());
        self.node = Some(self.spawn("node", &mut command).unwrap());
    }

    /// Kills the node, which can do nothing about it.
    pub(crate) fn kill_node(&mut self) {
        let mut node = self.node.take().unwrap();
        assert!(node.try_wait().unwrap().is_none(), "the node has ended");
        node.kill().unwrap();
        node.wait().unwrap();
    }

    /// Starts Redis with the file that the last one left; returns false if it is not installed.
    pub(crate) fn start_redis(&mut self) -> bool {
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "10.77.0.1", "--protected-mode", "no"])
            .args(["--save", "", "--appendonly", "yes", "--dir"])
            .arg(self.directory.path())
            // Else it answers before it writes, for up to two seconds, where a sync is slow, and
            // what it has answered is lost with its process.
            .args(["--appendfsync", "no"])
            .stdout(Stdio::null());
        match self.spawn("node", &mut command) {
            Ok(child) => self.redis = Some(child),
            Err(error) => {
                assert!(
                    std::env::var_os("CI").is_none(),
                    "redis-server: {error}; install it"
                );
                return false;
            }
        }
        true
    }

    /// Kills Redis.
    pub(crate) fn kill_redis(&mut self) {
        let mut redis = self.redis.take().unwrap();
        redis.kill().unwrap();
        redis.wait().unwrap();
    }

    /// Starts this test again as the program, with limited memory.
    pub(crate) fn program(&self, variable: &str, arguments: &str) -> Program {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--nocapture", "--test-threads", "1"])
            .env(variable, arguments)
            // It would take more memory than there is.
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(group) = &self.group {
            command.env(GROUP, group.path.join("cgroup.procs"));
        }
        Program(self.spawn("program", &mut command).unwrap())
    }

    /// Returns true if the kernel ended no process of the group for its memory.
    pub(crate) fn is_within_limit(&self) -> bool {
        self.group.as_ref().is_none_or(|group| {
            let events = ["memory.events", "memory.oom_control"];
            let mut events = events.iter().map(|name| group.path.join(name));
            let events = events.find_map(|path| fs::read_to_string(path).ok());
            let events = events.unwrap_or_default();
            let mut kills = events
                .lines()
                .filter_map(|line| line.strip_prefix("oom_kill "));
            kills.all(|count| count == "0")
        })
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for child in [&mut self.node, &mut self.redis].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A process that ends with this.
pub(crate) struct Program(pub(crate) Child);

impl Program {
    /// Waits for its end; kills it after some time.
    pub(crate) fn wait(&mut self, longest: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            if start.elapsed() > longest {
                self.0.kill().unwrap();
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A control group whose processes together may have so much memory.
struct Group {
    path: PathBuf,
}

impl Group {
    /// Makes a group of version 2 or 1, whichever has the memory controller; `None` if that cannot
    /// be done.
    fn new(name: &str, limit: u64) -> Option<Group> {
        for (root, file) in [
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ] {
            let path = Path::new(root).join(name);
            if fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Group { path };
            // Not a group but a directory, if the kernel has not put these files there.
            let is_group = ["cgroup.procs", file]
                .iter()
                .all(|name| group.path.join(name).exists());
            if is_group && fs::write(group.path.join(file), limit.to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// Limits the memory of this process: by the group that it was given, or by the sum of its
/// writable memory.
pub(crate) fn limit(bytes: u64) -> io::Result<()> {
    if let Some(group) = std::env::var_os(GROUP) {
        // 0 is the process that writes.
        return fs::write(group, "0");
    }
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    Ok(setrlimit(Resource::Data, limit)?)
}

/// Says past the capture of the test runner what is not tested.
pub(crate) fn not_tested(why: &str) {
    let _ = writeln!(io::stderr(), "NOT TESTED: {why}");
}
