//! The region: all memory that guest and host have in common, and its layout.
//!
//! The layout follows from plain numbers that both sides are given when they start. It is never
//! read from the region, where the other side could change it.

use std::fmt;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use tare_memory::{AtomicValue, Means, SharedMemory, View, Window};

use crate::ring::PIECES_MAX;
use crate::variant::{Cipher, Headers};

/// Bytes of a slot of the bounce buffer, as with Linux's `swiotlb`.
pub const SLOT: usize = 2048;

/// Slots of the bounce buffer for a packet of 64 KiB, whatever its pieces: one for the headers, and
/// each piece may take a slot that it hardly needs.
pub(crate) const SLOTS_OF_PACKET: usize = 1 + 32 + PIECES_MAX;

/// The fewest descriptors of a transmit queue: a power of two that has those of a packet in the
/// most pieces.
const TRANSMIT_MIN: u32 = (PIECES_MAX as u32 + 1).next_power_of_two();

/// Bytes of a page.
const PAGE: usize = 4096;

/// Bytes per line of the cache.
const LINE: usize = 64;

/// The most queue pairs.
pub const PAIRS_MAX: usize = 64;

/// The sizes of the region's parts. All are limited by [`Layout::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Queue pairs, one for each core of the guest.
    pub pairs: u16,
    /// Descriptors of a receive queue: a power of two.
    pub receive_queue: u16,
    /// Descriptors of a transmit queue: a power of two, at least 32.
    pub transmit_queue: u16,
    /// Notifications by event index (`VIRTIO_F_EVENT_IDX`) and not by flags.
    pub event_index: bool,
    /// Buffers that the guest keeps in the receive queue.
    pub receive_posted: u16,
    /// Bytes of a buffer for a received frame, the header of the device included.
    pub receive_bytes: u32,
    /// Buffers for received frames of a queue pair.
    pub receive_buffers: u32,
    /// Bytes of a buffer for a sealed record.
    pub record_bytes: u32,
    /// Buffers for sealed records of a queue pair.
    pub record_buffers: u32,
    /// Those buffers are private, and the device sees the bounce buffer alone.
    pub bounced: bool,
    /// Slots of the bounce buffer of a queue pair, [`SLOT`] bytes each: with private buffers, at
    /// least those of all posted buffers and of a packet of 64 KiB in the most pieces.
    pub bounce_slots: u32,
    /// The way in which the guest reads headers.
    pub headers: Headers,
    /// The guest's cipher for records in shared buffers.
    pub cipher: Cipher,
}

impl Default for Config {
    /// One queue pair with frames of the MTU in shared buffers, which are read once.
    fn default() -> Config {
        Config {
            pairs: 1,
            receive_queue: 256,
            transmit_queue: 1024,
            event_index: true,
            receive_posted: 256,
            receive_bytes: 2048,
            receive_buffers: 4096,
            record_bytes: 16_384 + 256 + 5,
            record_buffers: 512,
            bounced: false,
            bounce_slots: 256,
            headers: Headers::CopiedFirst,
            cipher: Cipher::SingleRead,
        }
    }
}

/// The place of a virtqueue, in bytes from the start of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLayout {
    /// Descriptors.
    pub size: u16,
    /// The descriptor table.
    pub descriptors: usize,
    /// The available ring, which the guest writes.
    pub available: usize,
    /// The used ring, which the host writes.
    pub used: usize,
}

impl QueueLayout {
    /// Returns the place of `used_event` (virtio 1.2, 2.7.10), behind the available ring.
    pub fn used_event(&self) -> usize {
        self.available + 4 + 2 * usize::from(self.size)
    }

    /// Returns the place of `avail_event`, behind the used ring.
    pub fn available_event(&self) -> usize {
        self.used + 4 + 8 * usize::from(self.size)
    }
}

/// The place of a pool of equal buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLayout {
    /// The first buffer.
    pub start: usize,
    /// Bytes from one buffer to the next: an odd number of cache lines, so that the starts of all
    /// buffers do not compete for a few places of the caches.
    pub stride: usize,
    /// Bytes of a buffer.
    pub bytes: usize,
    /// The number of buffers.
    pub count: usize,
}

/// The parts of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairLayout {
    /// The status that the guest writes.
    pub driver_status: usize,
    /// The status that the host writes.
    pub device_status: usize,
    /// The number of interrupts, which the host counts up.
    pub interrupts: usize,
    /// Notifications by event index.
    pub event_index: bool,
    /// The receive queue.
    pub receive: QueueLayout,
    /// The transmit queue.
    pub transmit: QueueLayout,
    /// Buffers that the guest keeps in the receive queue.
    pub receive_posted: usize,
    /// The buffers for frames and records are private, and have no place in the region.
    pub bounced: bool,
    /// Buffers for received frames.
    pub frames: PoolLayout,
    /// Buffers for sealed records.
    pub records: PoolLayout,
    /// Shared buffers for headers of frames to send.
    pub headers: PoolLayout,
    /// The first slot of the bounce buffer.
    pub bounce: usize,
    /// Slots of the bounce buffer.
    pub bounce_slots: usize,
    /// The way in which the guest reads headers.
    pub parsing: Headers,
    /// The guest's cipher for records in shared buffers.
    pub cipher: Cipher,
}

/// The layout of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pairs: Vec<PairLayout>,
    len: usize,
}

/// The longest region: 4 GiB.
const LEN_MAX: usize = 4 << 30;

/// Bytes of a buffer for the headers of a frame to send: those of the device, Ethernet, IPv6 and
/// TCP with all options take 126.
pub const HEADER_BYTES: usize = 192;

impl Layout {
    /// Computes the layout.
    ///
    /// # Errors
    /// A number is out of its range.
    pub fn new(config: &Config) -> Result<Layout, Error> {
        let range = |what, found: u32, expected: Range<u32>| match expected.contains(&found) {
            true => Ok(found as usize),
            false => Err(Error::Number {
                what,
                found,
                expected,
            }),
        };
        let power =
            |what, found: u16| match found.is_power_of_two() && (2..=32_768).contains(&found) {
                true => Ok(found),
                false => Err(Error::Size { what, found }),
            };
        range("queue pairs", config.pairs.into(), 1..PAIRS_MAX as u32 + 1)?;
        let receive = power("receive queue", config.receive_queue)?;
        let transmit = power("transmit queue", config.transmit_queue)?;
        range(
            "transmit queue",
            transmit.into(),
            TRANSMIT_MIN..u32::from(u16::MAX),
        )?;
        let posted = range(
            "posted buffers",
            config.receive_posted.into(),
            1..u32::from(receive) + 1,
        )?;
        let receive_bytes = range(
            "bytes of a frame's buffer",
            config.receive_bytes,
            76..65_562,
        )?;
        let frames = range("frames' buffers", config.receive_buffers, 1..1 << 20)?;
        let record_bytes = range(
            "bytes of a record's buffer",
            config.record_bytes,
            64..65_536,
        )?;
        let records = range("records' buffers", config.record_buffers, 1..1 << 20)?;
        let slots_min = match config.bounced {
            true => posted * receive_bytes.div_ceil(SLOT) + SLOTS_OF_PACKET,
            false => 1,
        };
        let slots_min = u32::try_from(slots_min).unwrap_or(u32::MAX);
        let slots = range("bounce slots", config.bounce_slots, slots_min..1 << 20)?;

        let mut at = 0;
        let mut take = |bytes: usize| {
            let start = at;
            at = (at + bytes).next_multiple_of(PAGE);
            start
        };
        let mut pairs = Vec::new();
        for _ in 0..config.pairs {
            // The status of each side on a line of its own; and no queue at the address 0, which
            // the host's library takes for "not set".
            let status = take(2 * LINE);
            let mut queue = |size: u16| {
                let n = usize::from(size);
                QueueLayout {
                    size,
                    descriptors: take(16 * n),
                    available: take(6 + 2 * n),
                    used: take(6 + 8 * n),
                }
            };
            let (receive, transmit) = (queue(receive), queue(transmit));
            let mut pool = |bytes: usize, count: usize, private: bool| {
                let stride = (bytes.div_ceil(LINE) | 1) * LINE;
                PoolLayout {
                    start: take(if private { 0 } else { stride * count }),
                    stride,
                    bytes,
                    count,
                }
            };
            pairs.push(PairLayout {
                driver_status: status,
                device_status: status + LINE,
                interrupts: status + LINE + 8,
                event_index: config.event_index,
                receive,
                transmit,
                receive_posted: posted,
                bounced: config.bounced,
                frames: pool(receive_bytes, frames, config.bounced),
                records: pool(record_bytes, records, config.bounced),
                headers: pool(HEADER_BYTES, usize::from(transmit.size) / 2, false),
                bounce: take(slots * SLOT),
                bounce_slots: slots,
                parsing: config.headers,
                cipher: config.cipher,
            });
        }
        if at > LEN_MAX {
            return Err(Error::TooLong(at));
        }
        Ok(Layout { pairs, len: at })
    }

    /// Returns the bytes of the region.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of queue pairs.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Returns the layout of a queue pair; `None` beyond the last.
    pub fn pair(&self, n: usize) -> Option<&PairLayout> {
        self.pairs.get(n)
    }
}

/// One thread's mapping of the region, with its layout.
pub struct Region {
    memory: SharedMemory,
    layout: Layout,
}

impl Region {
    /// Creates a region, all 0 and sealed against changes of its length: the host's part.
    ///
    /// # Errors
    /// The layout is impossible, or there is not as much memory.
    pub fn create(config: &Config) -> Result<Region, Error> {
        let layout = Layout::new(config)?;
        let memory = SharedMemory::create("tare-cvmnet", layout.len())?;
        Ok(Region { memory, layout })
    }

    /// Maps the region that the host has created: the guest's part.
    ///
    /// # Errors
    /// The file is no memfd, is not sealed against shrinking (the host could end the guest by
    /// cutting it off), or is shorter than the layout.
    pub fn open(fd: OwnedFd, config: &Config) -> Result<Region, Error> {
        let layout = Layout::new(config)?;
        let memory = SharedMemory::open(fd)?;
        if memory.len() < layout.len() {
            return Err(Error::TooShort {
                found: memory.len(),
                expected: layout.len(),
            });
        }
        Ok(Region { memory, layout })
    }

    /// Maps the region once more, for another thread.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub fn try_clone(&self) -> Result<Region, Error> {
        Ok(Region {
            memory: self.memory.try_clone()?,
            layout: self.layout.clone(),
        })
    }

    /// Keeps the guest off the region outside of its driver, its TCP and its records: applications
    /// and handshakes that read or write there by mistake end the process.
    ///
    /// # Errors
    /// Processor or kernel have no protection keys, or the region has a guard already.
    pub fn guard(&mut self, means: Means) -> Result<(), Error> {
        Ok(self.memory.guard(means)?)
    }

    /// Opens a guarded region until the window is dropped.
    #[inline]
    pub(crate) fn open_window(&self) -> Window<'_> {
        self.memory.open_window()
    }

    /// Closes a guarded region until the window is dropped.
    #[inline]
    pub(crate) fn closed_window(&self) -> Window<'_> {
        self.memory.closed_window()
    }

    /// Returns the file descriptor, to be sent to the other side.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// Returns the layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns a view of all of it.
    pub fn view(&self) -> View<'_> {
        self.memory.view()
    }

    /// Returns a view of bytes that the layout has.
    ///
    /// # Panics
    /// If it has not: places come from the layout, never from the other side.
    #[inline]
    pub(crate) fn bytes(&self, at: usize, len: usize) -> View<'_> {
        let view = self.memory.view().range(at, len);
        view.expect("the layout is within the memory")
    }

    /// Loads a value of the layout, in one access.
    #[inline]
    pub(crate) fn load<T: AtomicValue>(&self, at: usize, order: Ordering) -> T {
        let value = self.memory.view().atomic(at);
        value.expect("the layout is within the memory").load(order)
    }

    /// Stores a value of the layout, in one access.
    #[inline]
    pub(crate) fn store<T: AtomicValue>(&self, at: usize, value: T, order: Ordering) {
        let place = self.memory.view().atomic(at);
        place
            .expect("the layout is within the memory")
            .store(value, order);
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.memory.len())
    }
}

/// The reason why there is no region.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The memory is refused.
    Memory(tare_memory::Error),
    /// A number is out of its range.
    Number {
        /// The name of the number.
        what: &'static str,
        /// The number.
        found: u32,
        /// The range.
        expected: Range<u32>,
    },
    /// The size of a queue is no power of two from 2 to 32,768.
    Size {
        /// The queue.
        what: &'static str,
        /// Its size.
        found: u16,
    },
    /// The region would be longer than 4 GiB.
    TooLong(usize),
    /// The memory is shorter than the layout.
    TooShort {
        /// Its bytes.
        found: usize,
        /// Those of the layout.
        expected: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Memory(error) => error.fmt(f),
            Error::Number {
                what,
                found,
                expected,
            } => write!(
                f,
                "{what}: found {found}, expected {} to {}",
                expected.start,
                expected.end - 1
            ),
            Error::Size { what, found } => write!(
                f,
                "{what}: found {found} descriptors, expected a power of two from 2 to 32768"
            ),
            Error::TooLong(len) => write!(
                f,
                "a region of {len} bytes: expected at most {LEN_MAX}; take fewer or shorter buffers"
            ),
            Error::TooShort { found, expected } => write!(
                f,
                "the region has {found} bytes, expected {expected}: give host and guest the same \
                 configuration"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Memory(error) => Some(error),
            _ => None,
        }
    }
}

impl From<tare_memory::Error> for Error {
    fn from(error: tare_memory::Error) -> Error {
        Error::Memory(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variant::Variant;
    use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};

    fn parts(pair: &PairLayout) -> Vec<Range<usize>> {
        let mut parts = vec![
            pair.driver_status..pair.driver_status + 4,
            pair.device_status..pair.device_status + 4,
            pair.bounce..pair.bounce + SLOT * pair.bounce_slots,
        ];
        for queue in [pair.receive, pair.transmit] {
            parts.push(queue.descriptors..queue.descriptors + 16 * usize::from(queue.size));
            parts.push(queue.available..queue.used_event() + 2);
            parts.push(queue.used..queue.available_event() + 2);
            assert_eq!(queue.descriptors % 16, 0);
            assert_eq!(queue.available % 2, 0);
            assert_eq!(queue.used % 4, 0);
        }
        for (pool, private) in [
            (pair.frames, pair.bounced),
            (pair.records, pair.bounced),
            (pair.headers, false),
        ] {
            assert!(pool.bytes <= pool.stride && pool.stride / 64 % 2 == 1);
            if private {
                continue;
            }
            parts.push(pool.start..pool.start + pool.stride * pool.count);
        }
        parts
    }

    #[test]
    fn no_part_overlaps_another_and_all_are_within_the_region() {
        for variant in Variant::ALL {
            let layout = Layout::new(&variant.config(3)).unwrap();
            let mut all: Vec<_> = (0..3)
                .flat_map(|n| parts(layout.pair(n).unwrap()))
                .collect();
            assert!(layout.pair(3).is_none());
            all.retain(|part| !part.is_empty());
            all.sort_by_key(|part| part.start);
            assert!(all.windows(2).all(|two| two[0].end <= two[1].start));
            assert!(all.last().unwrap().end <= layout.len());
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let good = Config::default();
        let bad = [
            Config { pairs: 0, ..good },
            Config { pairs: 65, ..good },
            Config {
                receive_queue: 0,
                ..good
            },
            Config {
                receive_queue: 100,
                ..good
            },
            Config {
                transmit_queue: 1,
                ..good
            },
            Config {
                receive_posted: 0,
                ..good
            },
            Config {
                receive_posted: 257,
                ..good
            },
            Config {
                receive_bytes: 75,
                ..good
            },
            Config {
                receive_bytes: 65_562,
                ..good
            },
            Config {
                record_bytes: 0,
                ..good
            },
            Config {
                receive_buffers: 0,
                ..good
            },
            Config {
                record_buffers: 0,
                ..good
            },
            Config {
                bounce_slots: 0,
                ..good
            },
            Config {
                receive_bytes: 65_561,
                receive_buffers: 100_000,
                ..good
            },
        ];
        assert!(Layout::new(&good).is_ok());
        for config in bad {
            assert!(Layout::new(&config).is_err(), "{config:?}");
        }
    }

    /// With fewer, a guest would never have room for a packet.
    #[test]
    fn sizes_with_which_nothing_could_be_sent_are_refused() {
        let shared = Config::default();
        let bounced = |receive_bytes, bounce_slots| Config {
            bounced: true,
            receive_posted: 64,
            receive_bytes,
            bounce_slots,
            ..shared
        };
        let queue = |transmit_queue| Config {
            transmit_queue,
            ..shared
        };
        for (least, less, what) in [
            (queue(32), queue(16), "transmit queue: found 16"),
            (
                bounced(2048, 64 + 50),
                bounced(2048, 64 + 49),
                "bounce slots: found 113",
            ),
            (
                bounced(2049, 2 * 64 + 50),
                bounced(2049, 2 * 64 + 49),
                "bounce slots: found 177",
            ),
        ] {
            assert!(Layout::new(&least).is_ok(), "{least:?}");
            let refused = Layout::new(&less).unwrap_err().to_string();
            assert!(refused.starts_with(what), "{refused}");
        }
        // Without copies there are few slots, for what is in no other buffer.
        assert!(Layout::new(&Config {
            bounce_slots: 1,
            ..shared
        })
        .is_ok());
    }

    #[test]
    fn a_memfd_that_the_host_could_shrink_is_refused() {
        let config = Config::default();
        let len = Layout::new(&config).unwrap().len() as u64;
        let make = |seals: Option<SealFlags>, len| {
            let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&fd, len).unwrap();
            if let Some(seals) = seals {
                fcntl_add_seals(&fd, seals).unwrap();
            }
            Region::open(fd, &config)
        };
        for seals in [None, Some(SealFlags::GROW)] {
            let refused = make(seals, len).unwrap_err();
            assert!(matches!(
                refused,
                Error::Memory(tare_memory::Error::NotSealed)
            ));
        }
        assert!(make(Some(SealFlags::SHRINK), len).is_ok());
        let short = make(Some(SealFlags::SHRINK), len - 1).unwrap_err();
        assert!(matches!(short, Error::TooShort { .. }), "{short}");
    }
}
