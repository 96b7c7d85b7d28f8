//! The memory that this system can still give, asked before a node takes its own: the kernel ends a
//! process that touches more than there is, without a word.

use std::fs;
use std::path::{Path, PathBuf};

use tare_memory::Meminfo;

/// The bytes that a process can still get, and what bounds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// The name of the bound.
    pub bound: &'static str,
}

/// Returns the room for memory in ordinary pages; `None` if the system does not say. Memory that
/// is set aside for huge pages counts as room, as do swap space and, in a control group, what it
/// uses already: what is refused could not be had at all.
pub(super) fn available() -> Option<Room> {
    let info = Meminfo::read();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let system = Room {
        bytes: of_system(&info)?,
        bound: "the memory that is available",
    };
    // Pages that the system has set aside are not counted by the control group.
    if info.bytes("Hugetlb") > Some(0) {
        return Some(system);
    }
    let limits = limit_files(&groups).into_iter();
    let limits = limits.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    let group = limits.min().map(|bytes| Room {
        bytes,
        bound: "the limit of the control group",
    });
    [Some(system), group]
        .into_iter()
        .flatten()
        .min_by_key(|room| room.bytes)
}

fn of_system(info: &Meminfo) -> Option<u64> {
    let more = ["Hugetlb", "SwapFree"].map(|name| info.bytes(name).unwrap_or(0));
    info.bytes("MemAvailable")?
        .checked_add(more[0].checked_add(more[1])?)
}

/// Returns the files that may have the limits of the process's control groups, of both versions:
/// of its own group and of all above it. One of them says `max` if there is no limit.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let root = Path::new(root);
        let own = root.join(path.trim_start_matches('/'));
        let all = own
            .ancestors()
            .take_while(|folder| folder.starts_with(root));
        files.extend(all.map(|folder| folder.join(name)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_has_swap_and_huge_pages_in_it() {
        let of_system = |info: &str| of_system(&Meminfo::from(info.to_owned()));
        let info = "MemTotal: 9 kB\nMemAvailable:    100 kB\nSwapFree:  20 kB\nHugetlb:   3 kB\n";
        assert_eq!(of_system(info), Some(123 << 10));
        assert_eq!(of_system("MemAvailable: 7 kB\n"), Some(7 << 10));
        // Swap space alone is no answer.
        assert_eq!(of_system("SwapFree: 20 kB\n"), None);
        let room = available().unwrap();
        assert!(room.bytes > 0, "{room:?}");
    }

    #[test]
    fn limits_are_looked_for_in_all_groups_above_the_process() {
        let files = |groups: &str| {
            let files = limit_files(groups).into_iter();
            files
                .map(|file| file.to_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            files("0::/a/b.slice\n"),
            [
                "/sys/fs/cgroup/a/b.slice/memory.max",
                "/sys/fs/cgroup/a/memory.max",
                "/sys/fs/cgroup/memory.max"
            ]
        );
        assert_eq!(
            files("5:cpu:/x\n4:memory,pids:/y\n1:name=systemd:/\nbad\n"),
            [
                "/sys/fs/cgroup/memory/y/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes"
            ]
        );
        assert!(files("").is_empty());
    }
}
