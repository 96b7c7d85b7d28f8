//! Network namespaces joined by cables, for tests, examples and benchmarks. They go away with
//! their owner.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};

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
        possible()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let spaces = Namespaces {
            name: format!("tare-{of}-{}-{number}", std::process::id()),
            places: places.to_vec(),
        };
        for place in places {
            ip(&format!("netns add {}", spaces.space(place)));
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

    fn space(&self, place: &str) -> String {
        format!("{}-{place}", self.name)
    }

    /// Connects two places by a cable; each end is an interface of the given name, up, without
    /// offloads.
    ///
    /// # Panics
    /// Where a place or a name is not possible.
    pub fn cable(&self, [a, b]: [&str; 2], [name, other]: [&str; 2]) {
        let (space, peer) = (self.space(a), self.space(b));
        ip(&format!(
            "link add {name} netns {space} type veth peer name {other} netns {peer}"
        ));
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
        ip(&format!("-n {} {arguments}", self.space(place)));
    }

    /// Runs something on a thread in the namespace of a place.
    ///
    /// # Panics
    /// When the namespace is gone, or `run` panics.
    pub fn within<R: Send>(&self, place: &str, run: impl FnOnce() -> R + Send) -> R {
        let space = format!("/run/netns/{}", self.space(place));
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
            let space = self.space(place);
            let _ = Command::new("ip").args(["netns", "del", &space]).status();
        }
    }
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
