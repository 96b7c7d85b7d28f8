//! Other people's programs, where they are installed.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Where a program is looked for when `PATH` says nothing, as the C library has it.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// The file that starting `name` would run: a path as it is, a plain name from `PATH`.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let name = Path::new(name);
    if name.components().count() != 1 {
        return is_executable(name).then(|| name.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(PATH_DEFAULT));
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
