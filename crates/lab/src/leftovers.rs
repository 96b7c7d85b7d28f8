//! The leftovers of a run that was killed, which the next one clears away.
//!
//! A run that ends by itself, or by a signal that it handles, leaves nothing. One that is killed
//! (SIGKILL, out of memory) takes its agents with it, which ask the kernel for that, but not what
//! they started, nor their temporary folders.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::descendants;

/// The beginning of the names of folders.
const PREFIX: &str = "tare-trial-";

/// The temporary folder of one trial, locked while the run that made it lives.
pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Makes a folder, which is locked before it has the name by which [`clear`] finds it.
    pub(crate) fn new(parent: &Path) -> io::Result<Folder> {
        let parent = std::path::absolute(parent)?;
        let hidden = format!(".{PREFIX}");
        let made = tempfile::Builder::new()
            .prefix(&hidden)
            .tempdir_in(&parent)?;
        let lock = File::open(made.path())?;
        lock.try_lock()?;
        let name = made
            .path()
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let path = parent.join(name.trim_start_matches('.'));
        fs::rename(made.path(), &path)?;
        // It has another name now.
        let _ = made.keep();
        Ok(Folder { path, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Ends the processes and removes the temporary folders of runs that were killed.
pub fn clear() {
    descendants::end_orphans();
    clear_folders(&std::env::temp_dir());
}

fn clear_folders(parent: &Path) {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        // Of a link or a FIFO that has the name nothing is opened.
        let is_own = |about: fs::Metadata| about.is_dir() && about.uid() == own;
        if !is_named || !entry.metadata().is_ok_and(is_own) {
            continue;
        }
        let lock = File::open(entry.path());
        if lock.is_ok_and(|folder| folder.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_runs_that_were_killed_are_removed_and_no_others() {
        let parent = tempfile::tempdir().unwrap();
        let names = || {
            let entries = fs::read_dir(parent.path()).unwrap().flatten();
            let mut names: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            names.sort();
            names
        };
        let live = Folder::new(parent.path()).unwrap();
        fs::write(live.path().join("file"), "x").unwrap();
        let killed = Folder::new(parent.path()).unwrap();
        fs::create_dir(killed.path().join("deep")).unwrap();
        fs::write(killed.path().join("deep/file"), "x").unwrap();
        // As after SIGKILL: the lock is gone and the folder is not.
        let (dead, at) = (killed.path().to_owned(), live.path().to_owned());
        let Folder { _lock: lock, .. } = &killed;
        lock.unlock().unwrap();
        std::mem::forget(killed);
        let other = parent.path().join("other");
        fs::create_dir(&other).unwrap();
        let link = parent.path().join("tare-trial-link");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        assert!(dead.exists());
        clear_folders(parent.path());
        let mut left = vec![other, at, link];
        left.sort();
        assert_eq!(names(), left);
        drop(live);
        assert_eq!(names().len(), 2);
    }
}
