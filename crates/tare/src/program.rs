//! Programs that are installed on this machine.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folders in which a program is looked for if `PATH` is not set, as the C library has them.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// The file that starting `name` would run: a path as it is, a plain name from `PATH`.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    find_in(name, Path::new("."), None)
}

/// The same for a server, which a user's `PATH` may not lead to.
pub(crate) fn find_system(name: &str) -> Option<PathBuf> {
    find(name).or_else(|| find(&format!("/usr/sbin/{name}")))
}

/// The same for a program that is started in `folder`, to which paths are relative, and with
/// another `PATH` if that is given.
pub(crate) fn find_in(name: &str, folder: &Path, path: Option<&OsStr>) -> Option<PathBuf> {
    if name.contains('/') {
        let file = folder.join(name);
        return is_executable(&file).then(|| name.into());
    }
    places(name, folder, path).find(|file| is_executable(file))
}

/// The file that starting `name` as in [`find_in`] would run if it were executable.
pub(crate) fn not_executable_in(
    name: &str,
    folder: &Path,
    path: Option<&OsStr>,
) -> Option<PathBuf> {
    if name.contains('/') {
        return folder.join(name).is_file().then(|| folder.join(name));
    }
    places(name, folder, path).find(|file| file.is_file())
}

/// The files of that name in the folders of `PATH`.
fn places<'a>(
    name: &'a str,
    folder: &'a Path,
    path: Option<&OsStr>,
) -> impl Iterator<Item = PathBuf> + 'a {
    let path = path
        .map(OsStr::to_owned)
        .or_else(|| std::env::var_os("PATH"));
    let path = path.unwrap_or_else(|| OsString::from(PATH_DEFAULT));
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders
        .into_iter()
        .map(move |found| folder.join(found).join(name))
}

/// The beginning of a command whose program the kernel ends with this thread, whatever ends that. A
/// program that changes its user is not ended.
pub(crate) fn leash() -> Command {
    let program = find("setpriv").unwrap_or_else(|| "/usr/bin/setpriv".into());
    let mut command = Command::new(program);
    command.args(["--pdeathsig", "KILL", "--"]);
    command
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
