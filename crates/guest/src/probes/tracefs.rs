//! The files of the kernel's trace (tracefs).

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;

/// A folder of tracefs, or of an instance of it.
pub(super) struct Tracefs(pub(super) PathBuf);

impl Tracefs {
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Names the file in an error.
    pub(super) fn named<T>(&self, name: &str, result: io::Result<T>) -> io::Result<T> {
        let path = self.path(name);
        result.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    /// Writes to a file as it is: one that is opened to be empty loses its triggers.
    pub(super) fn put(&self, name: &str, text: &str) -> io::Result<()> {
        self.write(name, text, OpenOptions::new().write(true))
    }

    pub(super) fn append(&self, name: &str, text: &str) -> io::Result<()> {
        self.write(name, text, OpenOptions::new().append(true))
    }

    fn write(&self, name: &str, text: &str, options: &OpenOptions) -> io::Result<()> {
        let file = options.open(self.path(name));
        self.named(name, file.and_then(|mut it| it.write_all(text.as_bytes())))
    }

    pub(super) fn empty(&self, name: &str) -> io::Result<()> {
        self.named(name, fs::write(self.path(name), ""))
    }

    pub(super) fn text(&self, name: &str) -> io::Result<String> {
        self.named(name, fs::read_to_string(self.path(name)))
    }

    /// Returns the events that the buffers of the processors had no room for.
    pub(super) fn lost(&self) -> io::Result<u64> {
        let mut lost = 0;
        for cpu in fs::read_dir(self.path("per_cpu"))?.flatten() {
            lost += lost_events(&fs::read_to_string(cpu.path().join("stats"))?);
        }
        Ok(lost)
    }
}

/// Returns the events that a processor's buffer had no room for, from its `stats`.
pub(super) fn lost_events(stats: &str) -> u64 {
    let names = ["overrun", "dropped events", "commit overrun"];
    let lines = stats.lines().filter_map(|line| line.split_once(':'));
    let counts = lines.filter(|(name, _)| names.contains(&name.trim()));
    let counts = counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok());
    counts.sum()
}

/// Returns the numbers of a process' threads, as its folder in /proc has them.
pub(super) fn threads(process: &str) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{process}/task"));
    let entries = entries.into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.collect()
}
