//! Network namespaces joined by cables, for tests, examples and benchmarks. They go away with
//! their owner, and those of an owner that was killed when others are made.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Once;
use std::thread;

use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};

/// The directory with a file for each namespace that has a name.
const NAMESPACES: &str = "/run/netns";

/// Namespaces by the places of the ends of cables in them.
pub struct Namespaces {
    name: String,
    places: Vec<&'static str>,
}

impl Namespaces {
    /// Makes a namespace for each place, named after the test `of` which they are.
    ///
    /// # Errors
    /// The reason where that is not possible: not root, or no `ip`.
    ///
    /// # Panics
    /// Where it should be possible and fails.
    pub fn new(of: &str, places: &[&'static str]) -> Result<Namespaces, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        static SWEEP: Once = Once::new();
        possible()?;
        SWEEP.call_once(sweep);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let spaces = Namespaces {
            name: format!("tare-{of}-{}-{number}", std::process::id()),
            places: places.to_vec(),
        };
        for place in places {
            assert!(
                !place.contains('-'),
                "{place}: a hyphen ends the name's part before it"
            );
            ip(&format!("netns add {}", spaces.name(place)));
            spaces.within(place, || {
                // So that the kernel sends nothing of its own, and addresses can be used at once.
                let _ = fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
            });
        }
        Ok(spaces)
    }

    /// As [`Namespaces::new`]; where it is not possible it says so past the capture of the test
    /// runner, and fails in CI, where it must be possible.
    ///
    /// # Panics
    /// As [`Namespaces::new`], and in CI where that is not possible.
    pub fn of_test(of: &str, places: &[&'static str]) -> Option<Namespaces> {
        match Namespaces::new(of, places) {
            Ok(spaces) => Some(spaces),
            Err(why) => {
                assert!(std::env::var_os("CI").is_none(), "cannot be tested: {why}");
                let _ = writeln!(io::stderr(), "NOT TESTED: {why}");
                None
            }
        }
    }

    /// The name of a place's namespace, as `ip netns exec` takes it.
    #[must_use]
    pub fn name(&self, place: &str) -> String {
        format!("{}-{place}", self.name)
    }

    /// Connects two places by a cable; each end is an interface of the given name, down.
    ///
    /// # Panics
    /// Where a place or a name is not possible.
    pub fn link(&self, [a, b]: [&str; 2], [name, other]: [&str; 2]) {
        let (space, peer) = (self.name(a), self.name(b));
        ip(&format!(
            "link add {name} netns {space} type veth peer name {other} netns {peer}"
        ));
    }

    /// As [`Namespaces::link`], with both ends up and without offloads.
    ///
    /// # Panics
    /// Where a place or a name is not possible.
    pub fn cable(&self, [a, b]: [&str; 2], [name, other]: [&str; 2]) {
        self.link([a, b], [name, other]);
        for (place, end) in [(a, name), (b, other)] {
            self.ip(place, &format!("link set {end} up"));
            // No card fills in checksums, or cuts segments.
            self.within(place, || {
                let end = crate::Interface::by_name(end).unwrap();
                end.switch_offloads_off().unwrap();
            });
        }
    }

    /// Runs `ip` in the namespace of a place.
    ///
    /// # Panics
    /// When it fails.
    pub fn ip(&self, place: &str, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.name(place)));
    }

    /// Runs something on a thread in the namespace of a place.
    ///
    /// # Panics
    /// When the namespace is gone, or `run` panics.
    pub fn within<R: Send>(&self, place: &str, run: impl FnOnce() -> R + Send) -> R {
        let space = Path::new(NAMESPACES).join(self.name(place));
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                let space = fs::File::open(&space).unwrap();
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(space.as_fd(), network).unwrap();
                run()
            });
            there
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for place in &self.places {
            delete(&self.name(place));
        }
    }
}

/// Deletes the namespaces of tests that were killed before they could.
fn sweep() {
    let entries = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        let gone = |pid: u32| !Path::new(&format!("/proc/{pid}")).exists();
        if owner(&name).is_some_and(gone) {
            delete(&name);
        }
    }
}

/// The process that made a namespace, from the namespace's name; `None` if no test made it.
fn owner(name: &str) -> Option<u32> {
    let parts: Vec<&str> = name.strip_prefix("tare-")?.split('-').collect();
    let [.., pid, number, _place] = parts[..] else {
        return None;
    };
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// Deletes a namespace; another process may have done so before.
fn delete(name: &str) {
    let _ = Command::new("ip").args(["netns", "del", name]).output();
}

fn possible() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root may make network namespaces; run `sudo -E cargo test`".into());
    }
    let ip = Command::new("ip").arg("-V").stdout(Stdio::null()).status();
    ip.map(drop)
        .map_err(|error| format!("`ip`: {error}; install iproute2"))
}

fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "ip {arguments}: {said}");
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{owner, Namespaces, Path, NAMESPACES};

    #[test]
    fn the_owner_is_read_from_the_name_of_a_namespace() {
        assert_eq!(owner("tare-farmem-4711-0-node"), Some(4711));
        assert_eq!(owner("tare-two-words-4711-12-h0"), Some(4711));
        for other in [
            "tare-4711-node",
            "tare-farmem-x-0-node",
            "mine-a-4711-0-node",
            "tare-",
        ] {
            assert_eq!(owner(other), None, "{other}");
        }
    }

    #[test]
    fn namespaces_of_a_process_that_is_gone_are_deleted_and_no_others() {
        // Its process has been waited for, so that there is none of its number.
        let mut ended = Command::new("true").spawn().unwrap();
        let (gone, own) = (ended.id(), std::process::id());
        ended.wait().unwrap();
        let Some(first) = Namespaces::of_test("port", &["a"]) else {
            return;
        };
        let left = format!("tare-port-{gone}-0-left");
        super::ip(&format!("netns add {left}"));
        super::sweep();
        assert!(!Path::new(NAMESPACES).join(left).exists());
        assert!(first.name("a").starts_with(&format!("tare-port-{own}-")));
        assert!(Path::new(NAMESPACES).join(first.name("a")).exists());
        let name = first.name("a");
        drop(first);
        assert!(!Path::new(NAMESPACES).join(name).exists());
    }
}
