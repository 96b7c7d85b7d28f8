//! The kernel of the distribution and its modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// A kernel and the folder of its modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The image.
    pub image: PathBuf,
    /// The folder of its modules.
    pub modules: PathBuf,
}

impl Kernel {
    /// Returns the newest kernel below a root that has modules: `boot/vmlinuz-V` and
    /// `lib/modules/V`, or both below `usr`.
    pub fn below(root: &Path) -> Option<Kernel> {
        let mut found: Vec<(Vec<u64>, Kernel)> = Vec::new();
        for entry in fs::read_dir(root.join("boot")).ok()?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(release) = name.strip_prefix("vmlinuz-") else {
                continue;
            };
            let modules = ["lib/modules", "usr/lib/modules"].map(|at| root.join(at).join(release));
            if let Some(modules) = modules.into_iter().find(|folder| folder.is_dir()) {
                let image = entry.path();
                found.push((numbers(release), Kernel { image, modules }));
            }
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found.pop().map(|(_, kernel)| kernel)
    }

    /// Returns the kernel that `TARE_GUEST_KERNEL` and `TARE_GUEST_MODULES` name, or the newest one
    /// of this machine.
    ///
    /// # Errors
    /// [`Error::Kernel`] if there is none with its modules.
    pub fn installed() -> Result<Kernel, Error> {
        let named = |name| std::env::var_os(name).map(PathBuf::from);
        let missing = "found no kernel in /boot with modules in /lib/modules: as root: apt-get \
                       install linux-image-amd64";
        let named = named("TARE_GUEST_KERNEL").zip(named("TARE_GUEST_MODULES"));
        match named {
            Some((image, modules)) => Ok(Kernel { image, modules }),
            None => Kernel::below(Path::new("/")).ok_or(Error::Kernel(missing.into())),
        }
    }

    /// Returns the memory that the kernel needs to begin, in bytes, as its image says; `None` if
    /// it does not (`init_size` of version 2.10 of Linux' x86 boot protocol).
    pub(crate) fn memory(&self) -> Option<u64> {
        let mut header = [0; 0x264];
        let mut image = fs::File::open(&self.image).ok()?;
        image.read_exact(&mut header).ok()?;
        let version = u16::from_le_bytes([header[0x206], header[0x207]]);
        let is_stated = &header[0x202..0x206] == b"HdrS" && version >= 0x20a;
        let size = u32::from_le_bytes(header[0x260..].try_into().ok()?);
        is_stated.then_some(size.into())
    }

    /// Returns these modules and, before each, those that it depends on, as bytes that the kernel
    /// loads. One that is absent is taken to be built into the kernel.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Program`] if one cannot be decompressed.
    pub fn modules(&self, wanted: &[&str]) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let mut paths = BTreeMap::new();
        find(&self.modules, &mut paths, 0);
        let (mut seen, mut done) = (BTreeSet::new(), Vec::new());
        for name in wanted {
            add(name, &paths, &mut seen, &mut done)?;
        }
        Ok(done)
    }
}

/// The numbers of a release in their order, to compare 6.12 with 6.1.
fn numbers(release: &str) -> Vec<u64> {
    let parts = release.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

/// The deepest folder of modules.
const DEPTH: usize = 16;

fn find(folder: &Path, found: &mut BTreeMap<String, PathBuf>, depth: usize) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // The links `build` and `source` lead elsewhere.
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = entry.file_name();
        if is_folder && depth < DEPTH {
            find(&path, found, depth + 1);
        } else if let Some((name, _)) = name.to_str().and_then(|name| name.split_once(".ko")) {
            found.insert(name.replace('-', "_"), path);
        }
    }
}

fn add(
    name: &str,
    paths: &BTreeMap<String, PathBuf>,
    seen: &mut BTreeSet<String>,
    done: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), Error> {
    // Before those it depends on: a circle ends here.
    let is_new = seen.insert(name.to_owned());
    let Some(path) = paths.get(name).filter(|_| is_new) else {
        return Ok(());
    };
    let bytes = read(path)?;
    for other in depends(&bytes) {
        add(&other, paths, seen, done)?;
    }
    done.push((name.to_owned(), bytes));
    Ok(())
}

/// Reads a module, decompressed.
fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |error| Error::File(path.to_owned(), error);
    let (program, package) = match path.extension().and_then(|it| it.to_str()) {
        Some("xz") => ("xz", "xz-utils"),
        Some("zst") => ("zstd", "zstd"),
        Some("gz") => ("gzip", "gzip"),
        _ => return fs::read(path).map_err(failed),
    };
    let output = Command::new(program).arg("-dc").arg(path).output();
    let output = output.map_err(|_| Error::Program(program.into(), package))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(failed(std::io::Error::other(format!("{program}: {said}"))));
    }
    Ok(output.stdout)
}

/// The names in a module's own list of what it depends on.
fn depends(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|bytes| bytes == key) else {
        return Vec::new();
    };
    let list = module[at + key.len()..].split(|&byte| byte == 0).next();
    let list = String::from_utf8_lossy(list.unwrap_or_default());
    let names = list.split(',').filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_with_modules_is_found() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Kernel::below(root.path()), None);
        fs::create_dir_all(root.path().join("boot")).unwrap();
        for release in [
            "6.1.0-9-amd64",
            "6.12.1-amd64",
            "6.2.0-1-amd64",
            "6.13-amd64",
        ] {
            fs::write(root.path().join(format!("boot/vmlinuz-{release}")), "").unwrap();
        }
        assert_eq!(Kernel::below(root.path()), None);
        for modules in [
            "lib/modules/6.1.0-9-amd64",
            "lib/modules/6.2.0-1-amd64",
            "usr/lib/modules/6.12.1-amd64",
        ] {
            fs::create_dir_all(root.path().join(modules)).unwrap();
        }
        let kernel = Kernel::below(root.path()).unwrap();
        assert_eq!(kernel.image, root.path().join("boot/vmlinuz-6.12.1-amd64"));
        assert_eq!(
            kernel.modules,
            root.path().join("usr/lib/modules/6.12.1-amd64")
        );
    }

    #[test]
    fn the_memory_that_a_kernel_needs_is_that_of_its_header() {
        let root = tempfile::tempdir().unwrap();
        let kernel = Kernel {
            image: root.path().join("vmlinuz"),
            modules: PathBuf::new(),
        };
        assert_eq!(kernel.memory(), None);
        let mut image = vec![0; 0x264];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&[0x0a, 2]);
        image[0x260..].copy_from_slice(&[0x00, 0x80, 0x37, 0x03]);
        for (len, change, expected) in [
            (0x264, None, Some(0x0337_8000)),
            (0x263, None, None),
            (0x264, Some((0x202, b'h')), None),
            (0x264, Some((0x206, 9)), None),
        ] {
            let mut image = image[..len].to_vec();
            if let Some((at, byte)) = change {
                image[at] = byte;
            }
            fs::write(&kernel.image, image).unwrap();
            assert_eq!(kernel.memory(), expected, "{len} {change:?}");
        }
    }

    #[test]
    fn modules_come_after_those_that_they_depend_on() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("kernel/drivers");
        fs::create_dir_all(&folder).unwrap();
        for (name, depends) in [
            ("virtio_net.ko", "net_failover,virtio-ring"),
            ("net_failover.ko", "failover"),
            ("failover.ko", "virtio_net"),
            ("virtio-ring.ko", ""),
            ("other.ko", "virtio_net"),
        ] {
            let text = format!("\x7fELF\0depends={depends}\0name={name}\0");
            fs::write(folder.join(name), text).unwrap();
        }
        let kernel = Kernel {
            image: PathBuf::new(),
            modules: root.path().to_owned(),
        };
        let modules = kernel
            .modules(&["virtio_net", "failover", "built_in"])
            .unwrap();
        let names: Vec<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["failover", "net_failover", "virtio_ring", "virtio_net"]
        );
        assert!(modules
            .iter()
            .all(|(_, bytes)| bytes.starts_with(b"\x7fELF")));
    }
}
