//! Whether a file has changed.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file that is looked at now and then.
pub(super) struct Watch {
    path: PathBuf,
    hasher: RandomState,
    seen: Option<Seen>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// InterfaceQueues, number, length, and the time of the last change.
    place: (u64, u64, u64, i64, i64),
    content: u64,
}

impl Watch {
    pub(super) fn new(path: &Path) -> Watch {
        let mut watch = Watch {
            path: path.into(),
            hasher: RandomState::new(),
            seen: None,
        };
        watch.seen = watch.look(None);
        watch
    }

    /// Whether it holds something else than when this was asked last. A file that is away for a
    /// moment, as some editors have it, has not changed.
    pub(super) fn changed(&mut self) -> bool {
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
        let mut watch = Watch::new(&path);
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
