//! Detection of changes to a file.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file whose content is looked at from time to time.
#[derive(Debug)]
pub struct FileWatch {
    path: PathBuf,
    hasher: RandomState,
    seen: Option<Seen>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    /// Device, inode, length, and the time of the last change.
    place: (u64, u64, u64, i64, i64),
    content: u64,
}

impl FileWatch {
    /// Begins to watch a file.
    pub fn new(path: &Path) -> FileWatch {
        let mut watch = FileWatch {
            path: path.into(),
            hasher: RandomState::new(),
            seen: None,
        };
        watch.seen = watch.look(None);
        watch
    }

    /// Returns true if the content is another one than at the last call. A file that is missing has
    /// not changed: some editors remove it for a moment.
    pub fn changed(&mut self) -> bool {
        let Some(now) = self.look(self.seen) else {
            return false;
        };
        let content = self.seen.replace(now).map(|seen| seen.content);
        content != Some(now.content)
    }

    fn look(&self, before: Option<Seen>) -> Option<Seen> {
        let meta = fs::metadata(&self.path).ok()?;
        let place = (
            meta.dev(),
            meta.ino(),
            meta.len(),
            meta.mtime(),
            meta.mtime_nsec(),
        );
        if let Some(before) = before.filter(|before| before.place == place) {
            return Some(before);
        }
        let content = zeroize::Zeroizing::new(fs::read(&self.path).ok()?);
        Some(Seen {
            place,
            content: self.hasher.hash_one(&content[..]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_changed_when_its_content_has() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("conf");
        fs::write(&path, "one").unwrap();
        let mut watch = FileWatch::new(&path);
        assert!(!watch.changed());
        fs::write(&path, "other").unwrap();
        assert!(watch.changed());
        assert!(!watch.changed());
        let next = directory.path().join("next");
        fs::write(&next, "other").unwrap();
        fs::rename(&next, &path).unwrap();
        assert!(!watch.changed(), "another file of the same content");
        fs::remove_file(&path).unwrap();
        assert!(!watch.changed());
        fs::write(&path, "third").unwrap();
        assert!(watch.changed());
    }
}
