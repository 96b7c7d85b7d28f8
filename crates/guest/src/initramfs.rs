//! The root file system of a guest, made of programs of this machine and modules of a kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use cpio::newc::{Builder, ModeFileType};
use rustix::fs::{memfd_create, MemfdFlags};

use crate::kernel::Kernel;
use crate::Error;

/// The modules of every guest: devices, and the network with its packet sockets.
const MODULES: [&str; 5] = [
    "virtio_ring",
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "af_packet",
];

/// The folders that there are without a file in them.
const FOLDERS: [&str; 10] = [
    "bin", "dev", "etc", "modules", "proc", "root", "run", "sys", "tmp", "var/log",
];

/// The file with the names of the modules, in the order in which they are loaded.
pub(crate) const ORDER: &str = "modules/order";

/// Users and groups: root, and those that Debian's servers run as where they are not told.
const USERS: &str = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n";
const GROUPS: &str = "root:x:0:\nnogroup:x:65534:\n";

/// A root file system that is being put together.
#[derive(Default)]
pub struct Initramfs {
    files: BTreeMap<String, File>,
}

/// An archive in memory, which is gone with this process however that ends.
pub struct Image {
    path: PathBuf,
    _memory: fs::File,
}

impl Image {
    /// Returns the path by which programs of the same user read it.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[derive(Debug)]
enum File {
    Regular(u32, Vec<u8>),
    Link(String),
}

impl Initramfs {
    /// Returns the file system with the agent as its first process, busybox with its applets, and
    /// the modules of a kernel that every guest needs. `agent` is this program.
    ///
    /// # Errors
    /// [`Error::Program`] without busybox or `ldd`; [`Error::File`].
    pub fn new(agent: &Path, kernel: &Kernel) -> Result<Initramfs, Error> {
        let mut image = Initramfs::default();
        image.program_as("init", agent)?;
        image.program("busybox", "busybox")?;
        let output = Command::new("busybox").arg("--list").output();
        let output = output.map_err(|_| Error::Program("busybox".into(), "busybox"))?;
        for applet in String::from_utf8_lossy(&output.stdout).lines() {
            // Without the first two the kernel ends where the agent cannot be started.
            let is_init = ["init", "linuxrc"].contains(&applet);
            if !applet.is_empty() && !applet.contains('/') && !is_init {
                image.link(&format!("bin/{applet}"), "/bin/busybox");
            }
        }
        let mut order = String::new();
        for (name, bytes) in kernel.modules(&MODULES)? {
            order += &format!("{name}.ko\n");
            image.file(&format!("modules/{name}.ko"), 0o644, bytes);
        }
        image.file(ORDER, 0o644, order.into());
        // Servers look up the users and groups that they are to run as.
        image.file("etc/passwd", 0o644, USERS.into());
        image.file("etc/group", 0o644, GROUPS.into());
        image.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n".to_vec());
        Ok(image)
    }

    /// Adds a program of this machine, by name or path, with the libraries that it loads, to
    /// `/bin`, in the place of an applet of that name.
    ///
    /// # Errors
    /// [`Error::Program`] if there is none, with the package that has it; [`Error::File`].
    pub fn program(&mut self, name: &str, package: &'static str) -> Result<(), Error> {
        let path = find(name).ok_or(Error::Program(name.to_owned(), package))?;
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        self.program_as(&format!("bin/{file}"), &path)
    }

    fn program_as(&mut self, name: &str, path: &Path) -> Result<(), Error> {
        for library in libraries(path)? {
            let bytes = read(&library)?;
            let name = library.to_string_lossy();
            self.file(name.trim_start_matches('/'), 0o755, loaded(bytes));
        }
        self.file(name, 0o755, loaded(read(path)?));
        Ok(())
    }

    /// Adds a file.
    pub fn file(&mut self, name: &str, mode: u32, bytes: Vec<u8>) {
        self.files
            .insert(name.to_owned(), File::Regular(mode, bytes));
    }

    /// Adds a symbolic link, if there is no file of that name.
    pub fn link(&mut self, name: &str, target: &str) {
        let link = File::Link(target.to_owned());
        self.files.entry(name.to_owned()).or_insert(link);
    }

    /// Writes the archive to memory that has a path while the value lives.
    ///
    /// # Errors
    /// As [`Initramfs::write`].
    pub fn in_memory(&self) -> io::Result<Image> {
        let memory = memfd_create(c"initramfs", MemfdFlags::CLOEXEC)?;
        let memory = fs::File::from(memory);
        self.write(BufWriter::new(&memory))?;
        // Of this process, and not its "self": QEMU is another.
        let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        Ok(Image {
            path: path.into(),
            _memory: memory,
        })
    }

    /// Writes the archive, in the format "newc" of cpio, which the kernel unpacks.
    ///
    /// # Errors
    /// As the writer; a file of 4 GiB or more.
    pub fn write(&self, to: impl Write) -> io::Result<()> {
        let mut folders = BTreeSet::from(FOLDERS);
        for name in self.files.keys().map(String::as_str).chain(FOLDERS) {
            folders.extend(name.match_indices('/').map(|(at, _)| &name[..at]));
        }
        let mut to = to;
        let mut inode = 0;
        let mut entry = |name: &str, mode: u32, kind: ModeFileType| {
            inode += 1;
            let builder = Builder::new(name).ino(inode).nlink(1).mode(mode);
            builder.set_mode_file_type(kind)
        };
        // A folder comes before what is in it.
        for folder in folders {
            let writer = entry(folder, 0o755, ModeFileType::Directory).write(to, 0);
            to = writer.finish()?;
        }
        // The standard streams of the first process.
        let console = entry("dev/console", 0o600, ModeFileType::Char);
        to = console.rdev_major(5).rdev_minor(1).write(to, 0).finish()?;
        for (name, file) in &self.files {
            let (mode, kind, bytes) = match file {
                File::Regular(mode, bytes) => (*mode, ModeFileType::Regular, &bytes[..]),
                File::Link(target) => (0o777, ModeFileType::Symlink, target.as_bytes()),
            };
            let too_long = |_| io::Error::other(format!("{name} is too long for an archive"));
            let len = u32::try_from(bytes.len()).map_err(too_long)?;
            let mut writer = entry(name, mode, kind).write(to, len);
            writer.write_all(bytes)?;
            to = writer.finish()?;
        }
        cpio::newc::trailer(to)?.flush()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|error| Error::File(path.to_owned(), error))
}

/// Returns the path of a program: itself if it has a slash, or the first in `PATH` and the folders
/// of servers.
fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Path::new(name).is_file().then(|| name.into());
    }
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let mut paths = std::env::split_paths(&path).map(|folder| folder.join(name));
    paths.find(|path| path.is_file())
}

/// Returns the files that the dynamic loader loads for a program, itself included; none for a
/// static one or a script.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, Error> {
    let output = Command::new("ldd").arg(program).output();
    let output = output.map_err(|_| Error::Program("ldd".into(), "libc-bin"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        let reason = format!("a library is missing: {}", line.trim());
        return Err(Error::File(program.to_owned(), io::Error::other(reason)));
    }
    let words = text.lines().flat_map(str::split_whitespace);
    let paths = words.filter(|word| word.starts_with('/') && !word.ends_with(':'));
    Ok(paths.map(PathBuf::from).collect())
}

/// Cuts off what is behind the last segment that is loaded, such as symbols and debugging data; a
/// guest has all of it in memory. Anything but a 64-bit little-endian ELF file stays as it is.
fn loaded(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = end_of_segments(&bytes) {
        if end < bytes.len() {
            bytes.truncate(end);
            // The file has no section headers any more: offset, number and index of names.
            bytes[0x28..0x30].fill(0);
            bytes[0x3c..0x40].fill(0);
        }
    }
    bytes
}

/// Returns the end of the last segment in the file (ELF-64, "Program Header").
fn end_of_segments(elf: &[u8]) -> Option<usize> {
    const HEADER: usize = 64;
    const ENTRY: usize = 56;
    let number = |at: usize, len: usize| {
        let bytes = elf.get(at..at.checked_add(len)?)?.iter().rev();
        let value = bytes.fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        usize::try_from(value).ok()
    };
    if !elf.starts_with(&[0x7f, b'E', b'L', b'F', 2, 1]) || number(0x36, 2)? != ENTRY {
        return None;
    }
    let (table, count) = (number(0x20, 8)?, number(0x38, 2)?);
    let mut end = HEADER.max(table.checked_add(count.checked_mul(ENTRY)?)?);
    for n in 0..count {
        let at = table.checked_add(n * ENTRY)?;
        end = end.max(number(at + 8, 8)?.checked_add(number(at + 32, 8)?)?);
    }
    (end <= elf.len()).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn an_archive_has_folders_first_then_the_files_and_is_read_back() {
        let mut image = Initramfs::default();
        image.file("bin/tool", 0o755, b"\x7fELF and more".to_vec());
        image.file("usr/lib/deep/library.so", 0o644, vec![7; 4097]);
        image.link("bin/sh", "/bin/busybox");
        image.link("bin/tool", "/bin/busybox");
        let mut bytes = Vec::new();
        image.write(&mut bytes).unwrap();
        let (mut names, mut rest) = (Vec::new(), &bytes[..]);
        loop {
            let reader = cpio::NewcReader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut content = Vec::new();
            rest = reader.to_writer(&mut content).unwrap();
            names.push((name, mode, content));
        }
        let at = |wanted: &str| names.iter().position(|(name, ..)| name == wanted);
        for folder in ["usr", "usr/lib", "usr/lib/deep", "proc", "var", "var/log"] {
            assert_eq!(names[at(folder).unwrap()].1, 0o040_755, "{folder}");
        }
        assert!(at("usr") < at("usr/lib") && at("usr/lib/deep") < at("usr/lib/deep/library.so"));
        assert_eq!(names[at("dev/console").unwrap()].1, 0o020_600);
        assert_eq!(names[at("bin/tool").unwrap()].1, 0o100_755);
        assert_eq!(
            names[at("usr/lib/deep/library.so").unwrap()].2,
            vec![7; 4097]
        );
        let link = &names[at("bin/sh").unwrap()];
        assert_eq!((link.1, &link.2[..]), (0o120_777, &b"/bin/busybox"[..]));
    }

    #[test]
    fn what_is_not_loaded_is_cut_off_and_the_program_still_runs() {
        let own = std::env::current_exe().unwrap();
        let bytes = read(&own).unwrap();
        let cut = loaded(bytes.clone());
        assert!(cut.len() < bytes.len());
        // Programs may run where this one does; below /tmp perhaps not.
        let folder = tempfile::tempdir_in(own.parent().unwrap()).unwrap();
        let path = folder.path().join("cut");
        fs::write(&path, &cut).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, mode).unwrap();
        // A process that another test starts meanwhile has the file open until it executes.
        let is_busy = |error: &io::Error| error.kind() == io::ErrorKind::ExecutableFileBusy;
        let output = loop {
            match Command::new(&path).arg("--list").output() {
                Err(error) if is_busy(&error) => thread::sleep(Duration::from_millis(1)),
                output => break output.unwrap(),
            }
        };
        assert!(output.status.success());
        assert_eq!(libraries(&path).unwrap(), libraries(&own).unwrap());
        // What is no ELF file, or a wrong one, stays.
        let mut wild = bytes;
        wild[0x20..0x28].fill(0xff);
        for other in [b"#!/bin/sh\n".to_vec(), vec![0x7f; 10], wild, Vec::new()] {
            assert!(loaded(other.clone()) == other);
        }
    }

    #[test]
    fn an_absent_program_is_named_with_its_package() {
        let mut image = Initramfs::default();
        let error = image.program("tare-absent", "tare-package").unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("tare-absent") && text.contains("install tare-package"),
            "{text}"
        );
    }
}
