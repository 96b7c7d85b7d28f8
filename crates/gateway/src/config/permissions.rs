//! The permissions of the file with the keys.

use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::error::Warning;

/// A warning where a configuration can be read or changed by others than its owner.
pub fn permissions_warning(path: &Path, metadata: &Metadata) -> Option<Warning> {
    let mode = metadata.permissions().mode() & 0o777;
    // Devices and pipes have no keys of their own.
    if !metadata.is_file() || mode & 0o066 == 0 {
        return None;
    }
    let file = path.display().to_string();
    let may = if mode & 0o022 == 0 { "read" } else { "change" };
    Some(Warning {
        text: format!("holds keys and its mode {mode:04o} lets others {may} it; chmod 600 {file}"),
        file,
        line: None,
    })
}
