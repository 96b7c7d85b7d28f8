//! A root file system for a guest, made of programs of this machine and modules of a kernel.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::path_of;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// The image, in the format "newc" of cpio, which the kernel unpacks: `init`, the programs in
/// `/bin` with the libraries that they load, applets of busybox, and in `/modules` these modules
/// after those that they depend on, with a list of them.
pub(crate) fn build(
    init: &str,
    programs: &[&str],
    applets: &[&str],
    modules: &Path,
    wanted: &[&str],
) -> Result<Vec<u8>, String> {
    let mut files: BTreeMap<String, (u32, Vec<u8>)> = BTreeMap::new();
    for folder in ["proc", "sys", "dev"] {
        files.insert(folder.into(), (DIRECTORY, Vec::new()));
    }
    files.insert("init".into(), (PROGRAM, init.into()));
    for program in programs {
        let path = path_of(program).ok_or(format!("{program} is missing"))?;
        for library in libraries(&path)? {
            let name = library.trim_start_matches('/').to_string();
            files.insert(name, (PROGRAM, read(Path::new(&library))?));
        }
        files.insert(format!("bin/{program}"), (PROGRAM, read(&path)?));
    }
    for applet in applets {
        files.insert(format!("bin/{applet}"), (LINK, b"busybox".to_vec()));
    }
    let mut order = String::new();
    for (name, bytes) in in_order(modules, wanted)? {
        order += &format!("{name}.ko\n");
        files.insert(format!("modules/{name}.ko"), (PROGRAM, bytes));
    }
    files.insert("modules/order".into(), (PROGRAM, order.into()));
    for folder in files
        .keys()
        .flat_map(|name| parents(name))
        .collect::<Vec<_>>()
    {
        files.entry(folder).or_insert((DIRECTORY, Vec::new()));
    }
    Ok(archive(&files))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn parents(name: &str) -> Vec<String> {
    let slashes = name.match_indices('/');
    slashes.map(|(at, _)| name[..at].to_string()).collect()
}

/// The files that the dynamic loader loads for a program, itself included; empty for a static one.
fn libraries(program: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .map_err(|error| format!("ldd could not be started: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.lines().flat_map(str::split_whitespace);
    let paths = words.filter(|word| word.starts_with('/') && !word.ends_with(':'));
    Ok(paths.map(str::to_string).collect())
}

/// The modules and, before each, those that it depends on.
fn in_order(folder: &Path, wanted: &[&str]) -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut paths = BTreeMap::new();
    find_modules(folder, &mut paths);
    let mut done = Vec::new();
    for name in wanted {
        add(name, &paths, &mut done)?;
    }
    Ok(done)
}

fn find_modules(folder: &Path, found: &mut BTreeMap<String, PathBuf>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = path.path();
        if path.is_dir() {
            find_modules(&path, found);
        } else if let Some((name, _)) = path
            .file_name()
            .and_then(|name| name.to_str()?.split_once(".ko"))
        {
            found.insert(name.replace('-', "_"), path.clone());
        }
    }
}

fn add(
    name: &str,
    paths: &BTreeMap<String, PathBuf>,
    done: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), String> {
    if done.iter().any(|(other, _)| other == name) {
        return Ok(());
    }
    // One that is not there is built into the kernel, or the guest will miss it and say so.
    let Some(path) = paths.get(name) else {
        return Ok(());
    };
    let bytes = if path.extension().is_some_and(|extension| extension == "xz") {
        let output = Command::new("xz").arg("-dc").arg(path).output();
        output
            .map_err(|error| format!("xz could not be started: {error}"))?
            .stdout
    } else {
        read(path)?
    };
    for other in depends(&bytes) {
        add(&other.replace('-', "_"), paths, done)?;
    }
    done.push((name.to_string(), bytes));
    Ok(())
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
    names.map(str::to_string).collect()
}

/// The files as an archive. Names are in order, so a folder comes before what is in it.
fn archive(files: &BTreeMap<String, (u32, Vec<u8>)>) -> Vec<u8> {
    let mut archive = Vec::new();
    let console = ("dev/console", 0o020_600, &[][..], (5, 1));
    let entries = files
        .iter()
        .map(|(name, (mode, bytes))| (name.as_str(), *mode, &bytes[..], (0, 0)));
    let end = ("TRAILER!!!", 0, &[][..], (0, 0));
    for (inode, (name, mode, bytes, device)) in entries.chain([console, end]).enumerate() {
        archive.extend(b"070701");
        let fields = [
            inode + 1,
            mode as usize,
            0,
            0,
            1,
            0,
            bytes.len(),
            0,
            0,
            device.0,
            device.1,
            name.len() + 1,
            0,
        ];
        for field in fields {
            archive.extend(format!("{field:08x}").as_bytes());
        }
        archive.extend(name.as_bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(bytes);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
    archive
}
