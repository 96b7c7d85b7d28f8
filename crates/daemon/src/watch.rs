//! Reading a file and noticing that it changed, by a thread of its own.
//!
//! What a path leads to can change at any time: a file system that does not answer, or a FIFO that
//! nothing writes to, holds up the thread that reads, and never the one that asks.

use std::fs::{File, Metadata, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender, TryRecvError};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use tare_sim::Instant;
use zeroize::Zeroizing;

/// The time that reading a file may take.
pub(crate) const READ_MAX: Duration = Duration::from_secs(5);

/// The content of a regular file.
#[derive(Debug)]
pub struct FileContent {
    /// Its bytes: all of them, or one more than the caller allowed.
    pub bytes: Zeroizing<Vec<u8>>,
    /// Its metadata.
    pub metadata: Metadata,
}

/// Reads a regular file of up to `bytes_max` bytes; of a longer one, that many and one more.
///
/// # Errors
/// It cannot be read, is no regular file, or takes more than five seconds.
pub fn read_file(path: &Path, bytes_max: usize) -> io::Result<FileContent> {
    FileWatch::new(path, bytes_max, Arc::new(|| ())).first()
}

/// The result of a look at a file: its content if that was asked for or has changed.
type Look = io::Result<Option<FileContent>>;

/// A file whose content is looked at from time to time.
#[derive(Debug)]
pub(crate) struct FileWatch {
    /// Asks for a look; true if the content is wanted whether it has changed or not.
    requests: SyncSender<bool>,
    looks: Receiver<Look>,
    /// The time at which the look was begun that is under way.
    since: Option<Instant>,
}

impl FileWatch {
    /// Begins to watch a file, with a look that returns its content. `wake` is called by another
    /// thread after each look.
    pub(crate) fn new(
        path: &Path,
        bytes_max: usize,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> FileWatch {
        let (requests, requested) = sync_channel(1);
        let (answers, looks) = sync_channel(1);
        let mut watcher = Watcher {
            path: path.into(),
            bytes_max,
            hasher: RandomState::new(),
            seen: None,
        };
        let watch = move || {
            while let Ok(whole) = requested.recv() {
                if answers.send(watcher.look(whole)).is_err() {
                    return;
                }
                wake();
            }
        };
        // Without a thread, the ends of the channels are gone, which every look reports.
        let _ = std::thread::Builder::new()
            .name("tare-config".into())
            .spawn(watch);
        let mut watch = FileWatch {
            requests,
            looks,
            since: None,
        };
        watch.begin(Instant::now(), true);
        watch
    }

    /// Waits for the first look, up to [`READ_MAX`].
    pub(crate) fn first(&mut self) -> io::Result<FileContent> {
        let look = self.looks.recv_timeout(READ_MAX);
        let look = look.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, stalled()))?;
        self.since = None;
        look?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Begins a look unless one is under way, and returns true if it did.
    pub(crate) fn begin(&mut self, now: Instant, whole: bool) -> bool {
        let begins = self.since.is_none();
        if begins {
            self.since = Some(now);
            let _ = self.requests.try_send(whole);
        }
        begins
    }

    /// Returns the result of a look that has ended.
    pub(crate) fn ended(&mut self) -> Option<Look> {
        let look = match self.looks.try_recv() {
            Ok(look) => look,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => self
                .since
                .map(|_| Err(io::Error::other("the thread that reads it has ended")))?,
        };
        self.since = None;
        Some(look)
    }

    /// Returns true if a look is under way for longer than it may take.
    pub(crate) fn is_stalled(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.since(since) >= READ_MAX)
    }
}

/// Returns the text for a look that takes too long.
pub(crate) fn stalled() -> String {
    let seconds = READ_MAX.as_secs();
    format!("not read within {seconds} s: its file system does not answer")
}

/// The state of the thread that reads.
struct Watcher {
    path: PathBuf,
    bytes_max: usize,
    hasher: RandomState,
    seen: Option<Seen>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// Device, inode, length, and the time of the last change.
    place: (u64, u64, u64, i64, i64),
    content: u64,
}

impl Watcher {
    /// Returns the content if it is another one than at the last look, or if `whole`. A file that
    /// is missing has not changed: some editors remove it for a moment.
    fn look(&mut self, whole: bool) -> Look {
        let result = self.changed(whole);
        match &result {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !whole => Ok(None),
            Err(_) => {
                // Whatever can be read next is to be taken over.
                self.seen = None;
                result
            }
            Ok(_) => result,
        }
    }

    fn changed(&mut self, whole: bool) -> Look {
        let (file, metadata) = open(&self.path)?;
        let place = (
            metadata.dev(),
            metadata.ino(),
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        );
        if !whole && self.seen.is_some_and(|seen| seen.place == place) {
            return Ok(None);
        }
        // One allocation: a vector that grows leaves copies of keys behind.
        let length = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        let mut bytes = Zeroizing::new(Vec::with_capacity(length.min(self.bytes_max) + 1));
        file.take(self.bytes_max as u64 + 1)
            .read_to_end(&mut bytes)?;
        let content = self.hasher.hash_one(&bytes[..]);
        let before = self.seen.replace(Seen { place, content });
        let changed = before.is_none_or(|before| before.content != content);
        Ok((whole || changed).then_some(FileContent { bytes, metadata }))
    }
}

/// Opens a regular file, without waiting for the other end of a FIFO or for a device.
fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits() as i32);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    let found = match kind {
        _ if kind.is_file() => return Ok((file, metadata)),
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a FIFO",
        _ => "a device",
    };
    let error = format!("found {found}, expected a regular file");
    Err(io::Error::new(io::ErrorKind::InvalidInput, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const BYTES_MAX: usize = 8;

    fn watcher(path: &Path) -> Watcher {
        Watcher {
            path: path.into(),
            bytes_max: BYTES_MAX,
            hasher: RandomState::new(),
            seen: None,
        }
    }

    #[test]
    fn a_file_has_changed_when_its_content_has() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("conf");
        fs::write(&path, "one").unwrap();
        let mut watcher = watcher(&path);
        let mut look = |whole| watcher.look(whole).unwrap().map(|file| file.bytes.to_vec());
        assert_eq!(look(true).unwrap(), b"one");
        assert_eq!(look(false), None);
        fs::write(&path, "other").unwrap();
        assert_eq!(look(false).unwrap(), b"other");
        assert_eq!(look(false), None);
        assert_eq!(look(true).unwrap(), b"other");
        let next = directory.path().join("next");
        fs::write(&next, "other").unwrap();
        fs::rename(&next, &path).unwrap();
        assert_eq!(look(false), None, "another file of the same content");
        fs::remove_file(&path).unwrap();
        assert_eq!(look(false), None);
        fs::write(&path, "third").unwrap();
        assert_eq!(look(false).unwrap(), b"third");
    }

    #[test]
    fn only_regular_files_are_read_and_no_more_of_them_than_allowed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("conf");
        fs::write(&path, "first").unwrap();
        let mut watcher = watcher(&path);
        watcher.look(true).unwrap();
        let fifo = directory.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
        for (what, found) in [
            (&*fifo, "a FIFO"),
            (directory.path(), "a directory"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            watcher.path = what.into();
            let error = watcher.look(false).unwrap_err().to_string();
            assert_eq!(error, format!("found {found}, expected a regular file"));
        }
        // After an error, the same content as before is to be taken over again.
        watcher.path = path.clone();
        assert!(watcher.look(false).unwrap().is_some());
        fs::write(&path, "longer than allowed").unwrap();
        let content = watcher.look(false).unwrap().unwrap();
        assert_eq!(content.bytes.len(), BYTES_MAX + 1);
    }
}
