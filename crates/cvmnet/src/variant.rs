//! The variants of the network path, as plain values: everything that differs between them.
//!
//! | variant | buffers of the device | headers | cipher | segments are merged and cut |
//! |---|---|---|---|---|
//! | `baseline` | the guest's own, no copies | read in place | single reads | by the guest |
//! | `baseline-gro` | the guest's own, no copies | read in place | single reads | by the device |
//! | `cvm` | bounced, a copy each way | private by the copy | single reads | by the guest |
//! | `zc` | shared, no copies | copied first | single reads | by the guest |
//! | `prpr` | bounced, a copy each way | private by the copy | single reads | by the host, outside of the ring |
//! | `bifrost` | shared, no copies | copied first | single reads | by the host, outside of the ring |
//! | `bifrost-unprotected` | shared, no copies | read in place | ordinary | by the host, outside of the ring |
//!
//! The driver of the ring is the same in all of them, with all of its checks.
//!
//! Where segments are merged and cut outside of the guest, frames of up to 64 KiB cross the ring in
//! both directions, and the checksum of what is sent is computed there too: TLS, not TCP's
//! checksum, is what a confidential guest relies on. The publication merges what is received; its
//! guests leave cutting to the device in all variants. Here the offloads of the device are off in
//! the variants without merging, in both directions alike. So `zc` to `cvm` is zero copy with
//! frames of the MTU, `bifrost` to `prpr` is zero copy with large frames, and `prpr` to `cvm` is
//! the size of the frames.
//!
//! The speed of the cipher must not decide between variants: five of the six published ones have
//! the same, which reads each byte once, and is also the fastest. `bifrost-unprotected` has one on
//! the same instructions that reads twice, as most libraries do
//! ([`Key::open_reading_twice`](tare_gcm::Key::open_reading_twice)), and where its records lie in
//! private memory it takes the single reads too. Sealing is the same in all.

use crate::region::{Config, SLOT};
use crate::tcp;

/// The memory that the device reads and writes frames in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// The memory that the stack and the cipher work on: no copy.
    Shared,
    /// Slots of a bounce buffer, as with Linux's `swiotlb`: every frame is copied between them and
    /// private memory.
    Bounced,
}

/// The way in which headers of frames are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// From where they arrived, by each part of the parser that looks at them: the host may change
    /// shared ones in between.
    InPlace,
    /// Once, into private memory, and only then looked at.
    CopiedFirst,
}

/// The implementation of AES-GCM for records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// One that reads shared bytes twice, as most do: it authenticates the first reading and
    /// decrypts the second.
    Ordinary,
    /// `tare-gcm`, which reads each byte of shared memory once.
    SingleRead,
}

/// The party that makes large frames of consecutive segments, and cuts large frames into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merging {
    /// None: frames of the MTU.
    None,
    /// The host, outside of the ring (PRPR).
    Host,
    /// The device, by its offloads, as in a plain VM of today (a control; off in all others).
    Device,
}

/// The kind of exits that the machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exits {
    /// Each notification is one.
    Each,
    /// RIF: one in [`RIF_COMPLETIONS`] transmit completions interrupts.
    Rif,
    /// Posted interrupts: the host's notifications cause none.
    Posted,
}

impl Exits {
    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Exits::Each => "each",
            Exits::Rif => "rif",
            Exits::Posted => "posted",
        }
    }
}

/// With RIF, the transmit completions for one interrupt.
pub const RIF_COMPLETIONS: u16 = 16;

/// The costs of a world switch that are reported, in cycles; targets are judged at the first. The
/// second and third are those that the published breakdown adds to each exit, the last stands for
/// machines with posted interrupts.
pub const SWITCH_CYCLES: [u64; 4] = [0, 1400, 9500, 10500];

/// A variant of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The name on the command line.
    pub name: &'static str,
    /// The label in the published figures; `None` for a control of Tare's own.
    pub label: Option<&'static str>,
    /// The memory of the device.
    pub buffers: Buffers,
    /// The way to read headers.
    pub headers: Headers,
    /// The cipher of records.
    pub cipher: Cipher,
    /// The party that merges segments.
    pub merging: Merging,
}

/// A plain VM: the host may touch all of the guest's memory.
pub const BASELINE: Variant = Variant {
    name: "baseline",
    label: Some("Baseline"),
    buffers: Buffers::Shared,
    headers: Headers::InPlace,
    cipher: Cipher::SingleRead,
    merging: Merging::None,
};

/// A plain VM with the offloads of its device on.
pub const BASELINE_GRO: Variant = Variant {
    name: "baseline-gro",
    label: None,
    merging: Merging::Device,
    ..BASELINE
};

/// A confidential VM as Linux is today.
pub const CVM: Variant = Variant {
    name: "cvm",
    label: Some("CVM"),
    buffers: Buffers::Bounced,
    ..BASELINE
};

/// Zero copy: records are opened from shared memory and sealed into it.
pub const ZC: Variant = Variant {
    name: "zc",
    label: Some("+ZC"),
    buffers: Buffers::Shared,
    headers: Headers::CopiedFirst,
    cipher: Cipher::SingleRead,
    merging: Merging::None,
};

/// Packets reassembled by the host before they reach the bounce buffer.
pub const PRPR: Variant = Variant {
    name: "prpr",
    label: Some("+PRPR"),
    merging: Merging::Host,
    ..CVM
};

/// Both.
pub const BIFROST: Variant = Variant {
    name: "bifrost",
    label: Some("Bifrost"),
    merging: Merging::Host,
    ..ZC
};

/// Both, without what makes them safe from a host that changes memory while it is read.
pub const BIFROST_UNPROTECTED: Variant = Variant {
    name: "bifrost-unprotected",
    label: Some("w/o TOCTTOU protection"),
    headers: Headers::InPlace,
    cipher: Cipher::Ordinary,
    ..BIFROST
};

impl Variant {
    /// All, in the order of the published figures, the control last.
    pub const ALL: [Variant; 7] = [
        BASELINE,
        CVM,
        ZC,
        PRPR,
        BIFROST,
        BIFROST_UNPROTECTED,
        BASELINE_GRO,
    ];

    /// Returns the variant of this name.
    pub fn by_name(name: &str) -> Option<Variant> {
        Variant::ALL
            .into_iter()
            .find(|variant| variant.name == name)
    }

    /// Returns true if frames of up to 64 KiB cross the ring.
    pub fn has_large_frames(&self) -> bool {
        self.merging != Merging::None
    }

    /// Returns the settings of the guest's TCP: these, with checksums and cutting left to the
    /// device where frames are large.
    pub fn tcp(&self, config: tcp::Config) -> tcp::Config {
        tcp::Config {
            checksum_offload: self.has_large_frames(),
            segmentation_offload: self.has_large_frames(),
            ..config
        }
    }

    /// Returns the region of shared memory for this number of queue pairs, and an MTU of 1500.
    pub fn config(&self, pairs: u16) -> Config {
        self.config_of_mtu(pairs, MTU)
    }

    /// Returns the region of shared memory for this number of queue pairs and an MTU, the bytes of
    /// the longest IP packet.
    ///
    /// Large frames have buffers of 64 KiB and few of them, so that what is in use stays in the
    /// second-level cache. Others have buffers for a frame of the MTU, and as many as fit into what
    /// those of the usual MTU take; at least twice as many as are on the ring.
    pub fn config_of_mtu(&self, pairs: u16, mtu: usize) -> Config {
        let mut config = Config {
            pairs,
            headers: self.headers,
            cipher: self.cipher,
            ..Config::default()
        };
        if self.has_large_frames() {
            config.receive_bytes = LARGE_FRAME;
            config.receive_posted = 64;
            config.receive_buffers = 256;
        } else {
            let usual = config.receive_bytes;
            let longest = (FRAME_HEADERS as usize).saturating_add(mtu);
            let longest = u32::try_from(longest).unwrap_or(LARGE_FRAME);
            config.receive_bytes = longest.clamp(usual, LARGE_FRAME);
            let all = usual * config.receive_buffers;
            let least = 2 * u32::from(config.receive_posted);
            config.receive_buffers = (all / config.receive_bytes).max(least);
        }
        match self.buffers {
            Buffers::Shared => config.bounce_slots = BOUNCE_SLOTS_MIN,
            Buffers::Bounced => {
                config.bounced = true;
                config.bounce_slots = BOUNCE_SLOTS;
                // Those of posted buffers leave half of them to what is sent.
                let most = BOUNCE_SLOTS / 2 / config.receive_bytes.div_ceil(SLOT as u32);
                let most = u16::try_from(most).unwrap_or(u16::MAX);
                config.receive_posted = config.receive_posted.min(most);
            }
        }
        config
    }
}

/// Bytes before the IP packet in a buffer: the header of the device and an Ethernet header.
const FRAME_HEADERS: u32 = 12 + 14;

/// Bytes of a buffer for a frame of 64 KiB: those headers and the longest IP packet.
pub const LARGE_FRAME: u32 = FRAME_HEADERS + 65_535;

/// The usual MTU: bytes of the longest IP packet.
const MTU: usize = 1500;

/// Slots of the bounce buffer of a queue pair: 16 MiB in each direction at most. Linux takes 64 MiB
/// for a machine.
const BOUNCE_SLOTS: u32 = 8192;

/// Slots for what is not in shared buffers anyway: answers to ARP and ICMP.
const BOUNCE_SLOTS_MIN: u32 = 256;

/// A row of the published tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The table, but for that of the plain exits, and the published label with the pair of `mode`,
    /// the kernel of the guest, and `swiotlb_opt`, which is 0 for a plain VM, as in
    /// `PI: +ZC (numatx, 1)`. The modes of breakdowns end in `bd`.
    pub name: &'static str,
    /// The variant that the row measures.
    pub variant: Variant,
    /// The kind of exits.
    pub exits: Exits,
}

impl Row {
    /// The rows of the published tables, in their order.
    pub const ALL: [Row; 26] = {
        use Exits::{Each, Posted, Rif};
        [
            row("Baseline (vanilla, 0)", BASELINE, Each),
            row("CVM (vanilla, 2)", CVM, Each),
            row("RIF: Baseline (vo, 0)", BASELINE, Rif),
            row("RIF: CVM+RIF (vo, 2)", CVM, Rif),
            row("RIF: +ZC (no, 2)", ZC, Rif),
            row("RIF: +PRPR (vgo, 2)", PRPR, Rif),
            row("RIF: Bifrost (ngo, 2)", BIFROST, Rif),
            row(
                "RIF: w/o TOCTTOU protection (ngonp, 2)",
                BIFROST_UNPROTECTED,
                Rif,
            ),
            row("PI: Baseline (vanilla, 0)", BASELINE, Posted),
            row("PI: CVM+PI (vanilla, 1)", CVM, Posted),
            row("PI: +ZC (numatx, 1)", ZC, Posted),
            row("PI: +PRPR (vg, 1)", PRPR, Posted),
            row("PI: Bifrost (ng, 1)", BIFROST, Posted),
            row(
                "PI: w/o TOCTTOU protection (ngnp, 1)",
                BIFROST_UNPROTECTED,
                Posted,
            ),
            row("Baseline (bd, 0)", BASELINE, Each),
            row("CVM (bd, 2)", CVM, Each),
            row("RIF: Baseline (vobd, 0)", BASELINE, Rif),
            row("RIF: CVM+RIF (vobd, 2)", CVM, Rif),
            row("RIF: +ZC (nobd, 2)", ZC, Rif),
            row("RIF: +PRPR (vgobd, 2)", PRPR, Rif),
            row("RIF: Bifrost (ngobd, 2)", BIFROST, Rif),
            row("PI: Baseline (bd, 0)", BASELINE, Posted),
            row("PI: CVM+PI (bd, 1)", CVM, Posted),
            row("PI: +ZC (nbd, 1)", ZC, Posted),
            row("PI: +PRPR (vgbd, 1)", PRPR, Posted),
            row("PI: Bifrost (ngbd, 1)", BIFROST, Posted),
        ]
    };

    /// Returns the published label, `mode` and `swiotlb_opt`.
    pub fn published(&self) -> (&'static str, &'static str, &'static str) {
        let (label, pair) = self.name.split_once(" (").unwrap_or_default();
        let label = label.split_once(": ").map_or(label, |(_, label)| label);
        let (mode, swiotlb_opt) = pair.split_once(", ").unwrap_or_default();
        (label, mode, swiotlb_opt.trim_end_matches(')'))
    }

    /// Returns true if the row is one of the tables of breakdowns.
    pub fn is_breakdown(&self) -> bool {
        self.published().1.ends_with("bd")
    }
}

const fn row(name: &'static str, variant: Variant, exits: Exits) -> Row {
    Row {
        name,
        variant,
        exits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Layout;
    use std::collections::HashSet;

    #[test]
    fn variants_are_found_by_name_and_differ_from_each_other() {
        for (n, variant) in Variant::ALL.into_iter().enumerate() {
            assert_eq!(Variant::by_name(variant.name), Some(variant));
            for other in &Variant::ALL[..n] {
                let renamed = Variant {
                    name: variant.name,
                    label: variant.label,
                    ..*other
                };
                assert_ne!(renamed, variant, "{} and {}", other.name, variant.name);
            }
        }
        assert_eq!(Variant::by_name("Bifrost"), None);
    }

    #[test]
    fn only_variants_of_one_kind_keep_frames_where_the_host_can_change_them() {
        for variant in Variant::ALL {
            let bounced = variant.buffers == Buffers::Bounced;
            assert_eq!(variant.config(1).bounced, bounced, "{}", variant.name);
        }
    }

    #[test]
    fn a_buffer_has_room_for_a_frame_of_the_mtu_and_the_region_for_all_buffers() {
        let before = Config::default();
        for variant in Variant::ALL {
            for mtu in [1280, 1500, 2022, 2023, 9000, 65_535, usize::MAX] {
                let config = variant.config_of_mtu(64, mtu);
                assert!(Layout::new(&config).is_ok(), "{} {mtu}", variant.name);
                let frame = FRAME_HEADERS as usize + mtu.min(65_535);
                assert!(config.receive_bytes as usize >= frame, "{mtu}");
                let posted = u32::from(config.receive_posted);
                assert!(config.receive_buffers >= 2 * posted, "{mtu}");
            }
            // What the usual MTU had before it could be chosen.
            let usual = variant.config(1);
            assert_eq!(usual, variant.config_of_mtu(1, 1500));
            if !variant.has_large_frames() {
                let sizes = (usual.receive_bytes, usual.receive_buffers);
                assert_eq!(sizes, (before.receive_bytes, before.receive_buffers));
            }
        }
    }

    #[test]
    fn the_rows_of_the_matrix_differ_and_plain_machines_are_the_baseline() {
        let rows: HashSet<_> = Row::ALL.iter().map(|row| row.name).collect();
        assert_eq!(rows.len(), 26);
        for row in Row::ALL {
            let (label, mode, swiotlb_opt) = row.published();
            assert_eq!(swiotlb_opt == "0", row.variant == BASELINE, "{row:?}");
            // Confidential machines are those of AMD with 2 and those of Intel with 1.
            let of_exits = match row.exits {
                Exits::Posted => "1",
                Exits::Each | Exits::Rif => "2",
            };
            assert!(["0", of_exits].contains(&swiotlb_opt), "{row:?}");
            let table = match row.exits {
                Exits::Each => "",
                Exits::Rif => "+RIF",
                Exits::Posted => "+PI",
            };
            let expected = match row.variant {
                CVM => format!("CVM{table}"),
                variant => variant.label.unwrap().to_owned(),
            };
            assert_eq!(label, expected, "{row:?}");
            assert!(!mode.is_empty() && !row.name.contains("  "), "{row:?}");
        }
        let breakdowns = Row::ALL.iter().filter(|row| row.is_breakdown());
        assert_eq!(breakdowns.count(), 12);
    }
}
