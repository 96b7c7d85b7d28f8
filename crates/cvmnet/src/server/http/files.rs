//! The files of a folder, small ones kept in memory.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use tare_sim::Instant;

use super::super::lru::Lru;
use super::super::output::Body;
use super::super::store::OVERHEAD;
use super::super::Time;
use super::{date, Status};

/// A file that is in memory is compared with the disk when its last comparison is older.
const CHECK_AFTER: Duration = Duration::from_secs(1);

/// A file as it is served.
pub(super) struct Entity {
    pub(super) content: Content,
    pub(super) len: u64,
    pub(super) modified_s: u64,
    /// The entity tag with its quotes.
    pub(super) etag: String,
    /// The header's lines that all responses with or about it have.
    pub(super) head: String,
}

pub(super) enum Content {
    Memory(Body),
    /// A large file, read as it is sent.
    Disk(File),
}

/// The files below a folder.
pub(super) struct Files {
    folder: OwnedFd,
    cache: Lru<Cached>,
    cache_max: usize,
    file_max: u64,
}

struct Cached {
    entity: Rc<Entity>,
    version: Version,
    checked: Instant,
    /// It had not changed for a second when it was read. Of one that had, a later change may have
    /// the same time and length.
    is_settled: bool,
}

/// Differs between versions of a path's file: device, inode, length, and times of modification and
/// change in ns.
type Version = (u64, u64, u64, i128, i128);

impl Files {
    /// Opens the folder. Files of at most `file_max` bytes are kept, at most `cache_max` bytes of
    /// them.
    pub(super) fn new(folder: &Path, cache_max: usize, file_max: usize) -> io::Result<Files> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Files {
            folder: rustix::fs::open(folder, flags, Mode::empty())?,
            cache: Lru::new(),
            cache_max,
            file_max: file_max.min(cache_max.saturating_sub(2 * OVERHEAD)) as u64,
        })
    }

    /// Returns the file of a path below the folder; `None` if it is a folder itself.
    pub(super) fn find(&mut self, path: &[u8], time: Time) -> Result<Option<Rc<Entity>>, Status> {
        if let Some(cached) = self.cache.get(path) {
            if time.now.since(cached.checked) < CHECK_AFTER {
                return Ok(Some(Rc::clone(&cached.entity)));
            }
        }
        let found = self.look_up(path, time);
        if !matches!(&found, Ok(Some(entity)) if matches!(entity.content, Content::Memory(_))) {
            self.cache.remove(path);
        }
        found
    }

    fn look_up(&mut self, path: &[u8], time: Time) -> Result<Option<Rc<Entity>>, Status> {
        let file = self.open(path)?;
        let metadata = file.metadata().map_err(|_| Status::InternalServerError)?;
        if metadata.is_dir() {
            return Ok(None);
        }
        if !metadata.is_file() {
            return Err(Status::NotFound);
        }
        let ns = |s: i64, ns: i64| i128::from(s) * 1_000_000_000 + i128::from(ns);
        let modified = ns(metadata.mtime(), metadata.mtime_nsec());
        let changed = ns(metadata.ctime(), metadata.ctime_nsec());
        let len = metadata.len();
        let version = (metadata.dev(), metadata.ino(), len, modified, changed);
        if let Some(cached) = self.cache.get(path) {
            if cached.version == version && cached.is_settled {
                cached.checked = time.now;
                return Ok(Some(Rc::clone(&cached.entity)));
            }
        }
        let is_small = len <= self.file_max;
        let content = match is_small {
            true => Content::Memory(read(&file, len)?),
            false => Content::Disk(file),
        };
        let modified_s = u64::try_from(metadata.mtime()).unwrap_or(0);
        let etag = format!("\"{modified:x}-{len:x}\"");
        let head = format!(
            "Content-Type: {}\r\nLast-Modified: {}\r\nETag: {etag}\r\nAccept-Ranges: bytes\r\n",
            content_type(path),
            date::write(modified_s),
        );
        let entity = Rc::new(Entity {
            content,
            len,
            modified_s,
            etag,
            head,
        });
        if is_small {
            let weight = path.len() + len as usize + 2 * OVERHEAD;
            let cached = Cached {
                entity: Rc::clone(&entity),
                version,
                checked: time.now,
                is_settled: changed.max(modified) + 1_000_000_000 < time.unix.as_nanos() as i128,
            };
            self.cache.insert(path, cached, weight);
            while self.cache.weight() > self.cache_max && self.cache.remove_oldest() {}
        }
        Ok(Some(entity))
    }

    /// Opens a path for reading. The kernel refuses what leads out of the folder, by symbolic links
    /// as well and if they change meanwhile; a FIFO does not block.
    fn open(&self, path: &[u8]) -> Result<File, Status> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let path = OsStr::from_bytes(path);
        for _ in 0..4 {
            match rustix::fs::openat2(&self.folder, path, flags, Mode::empty(), within) {
                Ok(file) => return Ok(file.into()),
                // Something was renamed meanwhile.
                Err(Errno::AGAIN) => {}
                Err(Errno::ACCESS | Errno::PERM) => return Err(Status::Forbidden),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOSYS | Errno::IO) => {
                    return Err(Status::InternalServerError);
                }
                Err(_) => return Err(Status::NotFound),
            }
        }
        Err(Status::InternalServerError)
    }
}

/// Reads a whole file; one that is shorter than it was a moment ago is changing.
fn read(file: &File, len: u64) -> Result<Body, Status> {
    let mut bytes = Vec::with_capacity(len as usize);
    match file.take(len).read_to_end(&mut bytes) {
        Ok(count) if count as u64 == len => Ok(Arc::new(bytes)),
        _ => Err(Status::InternalServerError),
    }
}

fn content_type(path: &[u8]) -> &'static str {
    let name = path.rsplit(|&byte| byte == b'.').next().unwrap_or_default();
    match &name.to_ascii_lowercase()[..] {
        b"html" | b"htm" => "text/html; charset=utf-8",
        b"css" => "text/css; charset=utf-8",
        b"js" | b"mjs" => "text/javascript; charset=utf-8",
        b"txt" | b"md" | b"log" => "text/plain; charset=utf-8",
        b"csv" => "text/csv; charset=utf-8",
        b"json" => "application/json",
        b"xml" => "application/xml",
        b"pdf" => "application/pdf",
        b"wasm" => "application/wasm",
        b"svg" => "image/svg+xml",
        b"png" => "image/png",
        b"jpg" | b"jpeg" => "image/jpeg",
        b"gif" => "image/gif",
        b"webp" => "image/webp",
        b"ico" => "image/x-icon",
        b"woff2" => "font/woff2",
        b"mp4" => "video/mp4",
        _ => "application/octet-stream",
    }
}
