//! QEMU's version.

use std::fmt;
use std::process::Command;

use crate::Error;

/// The program.
pub const QEMU: &str = "qemu-system-x86_64";
/// The package of Debian that has it.
pub const PACKAGE: &str = "qemu-system-x86";

/// A version of QEMU: major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u16, pub u16);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Version {
    /// Reads what `qemu-system-x86_64 --version` prints.
    ///
    /// # Errors
    /// [`Error::Version`] with the line that was found.
    pub fn parse(text: &str) -> Result<Version, Error> {
        let line = text.lines().next().unwrap_or_default();
        let number = line.strip_prefix("QEMU emulator version ");
        let mut parts = number.unwrap_or_default().split(['.', ' ', '(']);
        let mut part = || parts.next()?.parse().ok();
        match (part(), part()) {
            (Some(major), Some(minor)) => Ok(Version(major, minor)),
            _ => {
                let shown: String = line.chars().take(80).collect();
                let found = format!("found \"{shown}\", expected \"QEMU emulator version 7.2…\"");
                Err(Error::Version(format!("{QEMU} --version: {found}")))
            }
        }
    }

    /// Returns the version of the installed program.
    ///
    /// # Errors
    /// [`Error::Program`] if there is none; as [`Version::parse`].
    pub fn installed() -> Result<Version, Error> {
        let output = Command::new(QEMU).arg("--version").output();
        let output = output.map_err(|_| Error::Program(QEMU.into(), PACKAGE))?;
        Version::parse(&String::from_utf8_lossy(&output.stdout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_the_first_line_and_anything_else_is_shown() {
        for (text, expected) in [
            (
                "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright",
                Version(7, 2),
            ),
            ("QEMU emulator version 10.1.0", Version(10, 1)),
            ("QEMU emulator version 9.1(x)", Version(9, 1)),
            (
                "QEMU emulator version 10.1.0 (Debian 1:10.1.0+ds-5)\nCopyright (c) 2003-2025",
                Version(10, 1),
            ),
            (
                "QEMU emulator version 8.2.2 (Debian 1:8.2.2+ds-0ubuntu1.4)\n",
                Version(8, 2),
            ),
            ("QEMU emulator version 9.1.0-dirty", Version(9, 1)),
            (
                "QEMU emulator version 9.2.4 (qemu-9.2.4-1.fc42)\r\n",
                Version(9, 2),
            ),
            (
                "QEMU emulator version 10.0.94 (v10.1.0-rc4)",
                Version(10, 0),
            ),
        ] {
            assert_eq!(Version::parse(text).unwrap(), expected);
        }
        for text in [
            "",
            "QEMU emulator version ",
            "QEMU emulator version 7",
            "qemu 7.2",
            "QEMU emulator version 65536.1",
            "QEMU emulator version -1.2",
            "QEMU emulator version 10,1",
            "Copyright\nQEMU emulator version 10.1",
            "\n7.2",
        ] {
            let error = Version::parse(text).unwrap_err().to_string();
            assert!(error.contains("expected"), "{error}");
        }
        assert!(Version(10, 1) > Version(9, 1) && Version(9, 10) > Version(9, 2));
    }
}
