//! The kernel's figures of the memory of this system.

use std::fs;

/// The fields of `/proc/meminfo` at one moment.
#[derive(Clone, Debug)]
pub struct Meminfo(String);

impl Meminfo {
    /// Returns the present fields; none are known if the file cannot be read.
    pub fn read() -> Meminfo {
        Meminfo(fs::read_to_string("/proc/meminfo").unwrap_or_default())
    }

    /// Returns the field with this name, such as `MemAvailable`, in bytes; `None` if it is unknown
    /// or not a number of kB.
    pub fn bytes(&self, name: &str) -> Option<u64> {
        let mut fields = self.0.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = fields.find(|(found, _)| *found == name)?;
        let kib: u64 = value.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    }
}

impl From<String> for Meminfo {
    /// Takes the text of the file.
    fn from(text: String) -> Meminfo {
        Meminfo(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name_in_bytes() {
        let text = "MemTotal:       24576000 kB\nMemAvailable:   1024 kB\nHugePages_Free: 3\n";
        let info = Meminfo::from(text.to_owned());
        assert_eq!(info.bytes("MemAvailable"), Some(1 << 20));
        assert_eq!(info.bytes("MemTotal"), Some(24_576_000 << 10));
        // A number of pages is not one of bytes.
        for name in ["Mem", "Available", "MemAvailable:", "", "HugePages_Free"] {
            assert_eq!(info.bytes(name), None, "{name}");
        }
        for none in [
            "",
            "MemAvailable:",
            "MemAvailable: x kB",
            "MemAvailable: 18446744073709551615 kB",
        ] {
            let info = Meminfo::from(none.to_owned());
            assert_eq!(info.bytes("MemAvailable"), None, "{none}");
        }
        let total = Meminfo::read().bytes("MemTotal");
        assert!(total.unwrap() > 0, "the kernel has this field");
    }
}
