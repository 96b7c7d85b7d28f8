//! The pages of the operating system that the node's memory is made of.

use std::fs;

use anyhow::Context as _;
use serde::Serialize;
use tare_farmem::memory::{Config, Store};
use tare_memory::{Mapping, Pages};

/// The memory of a node, as the system gave it.
#[derive(Debug, Serialize)]
pub(super) struct Backing {
    /// Page table and pool, in this order.
    mappings: Vec<Part>,
    /// Bytes of both.
    bytes: u64,
    /// Those in pages of 2 MiB or 1 GiB.
    huge_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Part {
    pages: String,
    bytes: u64,
}

impl Backing {
    /// Makes a store in the best pages that there are.
    ///
    /// # Errors
    /// There is not as much memory.
    pub(super) fn store(config: &Config) -> anyhow::Result<(Store<Mapping>, Backing)> {
        let mut backing = Backing {
            mappings: Vec::new(),
            bytes: 0,
            huge_bytes: 0,
        };
        let before = transparent_bytes()?;
        let store = Store::in_memory(config, |len| {
            let mapping = Mapping::best(len)?;
            backing.add(mapping.pages(), len as u64);
            Ok::<_, tare_memory::Error>(mapping)
        })?;
        // They are all there from the start.
        backing.huge_bytes += transparent_bytes()?.saturating_sub(before);
        backing.huge_bytes = backing.huge_bytes.min(backing.bytes);
        Ok((store, backing))
    }

    fn add(&mut self, pages: Pages, bytes: u64) {
        self.bytes += bytes;
        if matches!(pages, Pages::Huge1G | Pages::Huge2M) {
            self.huge_bytes += bytes;
        }
        self.mappings.push(Part {
            pages: pages.to_string(),
            bytes,
        });
    }

    /// The part of the memory in pages of 2 MiB or 1 GiB, from 0 to 1.
    pub(super) fn huge(&self) -> f64 {
        self.huge_bytes as f64 / self.bytes as f64
    }
}

/// Returns the bytes of this process in pages of 2 MiB that the kernel found for it.
fn transparent_bytes() -> anyhow::Result<u64> {
    let path = "/proc/self/smaps_rollup";
    let text = fs::read_to_string(path).context(path)?;
    transparent(&text).context(path)
}

/// Reads that number.
fn transparent(rollup: &str) -> Option<u64> {
    let mut lines = rollup.lines();
    let kib = lines.find_map(|line| line.strip_prefix("AnonHugePages:"))?;
    let kib: u64 = kib.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_transparent_pages_are_read() {
        let text = "7f00-7fff ---p 00000000 00:00 0 [rollup]\nRss: 8192 kB\n\
                    AnonHugePages:      2048 kB\nShmemPmdMapped: 0 kB\n";
        assert_eq!(transparent(text), Some(2 << 20));
        for none in ["", "AnonHugePages:", "AnonHugePages: x kB"] {
            assert_eq!(transparent(none), None, "{none}");
        }
    }

    #[test]
    fn pages_of_every_kind_are_told_apart() {
        let mut backing = Backing {
            mappings: Vec::new(),
            bytes: 0,
            huge_bytes: 0,
        };
        let kinds = [
            Pages::Huge1G,
            Pages::Huge2M,
            Pages::Transparent,
            Pages::Small,
        ];
        for pages in kinds {
            backing.add(pages, 1 << 30);
        }
        assert_eq!((backing.huge(), backing.mappings.len()), (0.5, 4));
        let config = Config::new(8 << 20);
        let (store, backing) = Backing::store(&config).unwrap();
        assert_eq!((store.bytes(), backing.mappings.len()), (8 << 20, 2));
        assert!(backing.bytes > 8 << 20 && (0.0..=1.0).contains(&backing.huge()));
    }
}
