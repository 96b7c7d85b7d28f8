//! `tare memory serve`: a memory node.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{anyhow, bail, Context as _};
use clap::ValueEnum;
use tare_daemon::Signals;
use tare_farmem::daemon::{self, Listen, Options};
use tare_farmem::memory::{Preset, CHOSEN};
use tare_farmem::operation::{PageSize, SpaceId};
use tare_farmem::transport::Waiting;
use tare_memory::{Meminfo, Pages};

use super::keygen::read_secret;
use crate::daemon::DaemonArgs;
use crate::size::parse_bytes;

/// The time for which a worker asks again and again before it sleeps.
const ADAPTIVE: Duration = Duration::from_micros(50);

/// The most memory for pages, in bytes: pages of 4 KiB have numbers of 32 bits.
const MEMORY_MAX: u64 = 15 << 40;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare memory serve                              1 GiB for the programs of this machine\n  \
    tare memory serve -m 16Gi --quota 1Gi --cores 2 --wait busy\n  \
    tare memory serve -m 16Gi --quota 64Mi --space-quota 7=8Gi --space-quota 9=4Gi\n  \
    tare memory serve --preset 0x40000000-0xb4c0000000\n  \
    (umask 077; tare memory keygen > node.secret)\n  \
    tare memory serve --listen 10.0.0.1:7311 --secret node.secret\n  \
    tare memory serve --listen 10.0.0.1:7311 --insecure    on a trusted network\n  \
    tare memory serve --listen xdp:eth1,10.0.0.1:7311 --secret node.secret\n  \
    \x20                                             raw frames, without the kernel's network stack\n  \
    tare memory serve --shm /run/tare/node.shm    then: tare memory ping shm:/run/tare/node.shm\n  \
    tare memory serve --keep /dev/shm/node        the memory survives a restart\n  \
    tare memory serve --metrics 127.0.0.1:9304    then: curl 127.0.0.1:9304/metrics\n\n\
    SIGTERM and SIGINT stop the node after it has answered the requests already received.\n\n\
    Exit status: 0 ended by a signal; 2 usage error, or the node could not run.")]
pub(crate) struct Args {
    /// UDP address to listen on; port 0 lets the system choose one. With the prefix xdp:IFACE, the
    /// node receives the frames of that interface itself, through AF_XDP or a packet socket; the
    /// address must then be one that the system does not have
    #[arg(
        long,
        value_name = "[xdp:IFACE,]ADDRESS:PORT",
        default_value = "127.0.0.1:7311"
    )]
    listen: Listen,
    /// Also serve clients of this machine over shared memory, through a socket at this path
    #[arg(long, value_name = "PATH")]
    shm: Option<PathBuf>,
    /// Memory to serve, such as 512Mi or 16Gi
    #[arg(short, long, value_name = "BYTES", default_value = "1Gi", value_parser = memory)]
    memory: u64,
    /// Type of pages that hold this memory [default: the largest available]
    #[arg(long, value_enum, conflicts_with = "keep")]
    pages: Option<PageKind>,
    /// Keep the memory in a file that outlives this process: /dev/shm/NAME, or a file on hugetlbfs
    /// for huge pages
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Quota of each address space, in bytes [default: all of the memory]
    #[arg(long, value_name = "BYTES", value_parser = quota)]
    quota: Option<u64>,
    /// Quota of the address space SPACE, in bytes; may be repeated for other spaces. A space that
    /// is restored by --keep and not named here keeps its previous quota
    #[arg(long, value_name = "SPACE=BYTES", value_parser = space_quota)]
    space_quota: Vec<(SpaceId, u64)>,
    /// Maximum number of address spaces
    #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = spaces)]
    spaces: usize,
    /// Memory for the node's data about address spaces, allocations, locks, regions and grants:
    /// such as 1024 bytes per space and 128 per allocation. While it is full, clients that need
    /// more get the error that the node is out of memory
    #[arg(long, value_name = "BYTES", default_value = "1Gi", value_parser = metadata_memory)]
    metadata_memory: u64,
    /// Sparse range of addresses that each space has from the start
    #[arg(long, value_name = "FIRST-END", value_parser = preset)]
    preset: Option<Preset>,
    /// Number of threads that answer requests, each with its own socket
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    cores: u16,
    /// Waiting strategy while there are no requests
    #[arg(long, value_enum, default_value_t = Wait::Adaptive)]
    wait: Wait,
    /// Maximum datagram length in bytes; the network must carry it without fragmentation [default:
    /// 1472, or 1452 over IPv6, or 8264 on a loopback address]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1024..=65_507))]
    datagram: Option<u16>,
    /// Seconds after which clients abandon an operation, over UDP and frames. If the node stalls
    /// for longer, the operations in progress fail, and the outcome of changes is unknown. The node
    /// remembers the outcomes of changes for up to four times as long, within --outcome-memory
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25, value_parser = timeout)]
    timeout: f64,
    /// Memory for the outcomes of changes over UDP and frames, kept so that no change is made
    /// twice: 48 bytes per change. While it is full, the node makes no changes, and clients retry.
    /// With a timeout of 0.25 seconds, the changes that 10 Gbit/s can carry need 0.6 GiB; with 60
    /// seconds, 1 GiB is enough for 124,000 changes per second
    #[arg(long, value_name = "BYTES", default_value = "1Gi", value_parser = outcome_memory)]
    outcome_memory: u64,
    /// Maximum length of a write over UDP and frames, in bytes. A write is applied as a whole, and
    /// all clients wait while it is copied. The incomplete writes of one space together have the
    /// same limit
    #[arg(long, value_name = "BYTES", default_value = "1Gi", value_parser = write_max)]
    write_max: u64,
    /// Memory for the incomplete writes of all clients over UDP and frames, in bytes; parts of
    /// writes that do not fit are sent again later [default: twice --write-max, at least 64Mi]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    write_memory: Option<u64>,
    /// Encrypt and authenticate every message, with the secret in this file, as printed by `keygen`
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    secret: Option<PathBuf>,
    /// Serve a network without encryption: all who can reach the node can read and write everything
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// The pages of memory.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PageKind {
    /// Reserved huge pages of 1 GiB
    #[value(name = "1Gi")]
    Huge1G,
    /// Reserved huge pages of 2 MiB
    #[value(name = "2Mi")]
    Huge2M,
    /// Transparent huge pages of 2 MiB where the kernel can provide them, otherwise pages of 4 KiB
    Transparent,
    /// Pages of 4 KiB
    #[value(name = "4Ki")]
    Small,
}

impl From<PageKind> for Pages {
    fn from(kind: PageKind) -> Pages {
        match kind {
            PageKind::Huge1G => Pages::Huge1G,
            PageKind::Huge2M => Pages::Huge2M,
            PageKind::Transparent => Pages::Transparent,
            PageKind::Small => Pages::Small,
        }
    }
}

/// The way to wait.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Wait {
    /// Poll: lowest latency, but a full core in use
    Busy,
    /// Poll for 50 µs, then sleep
    Adaptive,
    /// Sleep immediately
    Blocking,
}

impl From<Wait> for Waiting {
    fn from(wait: Wait) -> Waiting {
        match wait {
            Wait::Busy => Waiting::Busy,
            Wait::Adaptive => Waiting::Adaptive(ADAPTIVE),
            Wait::Blocking => Waiting::Asleep,
        }
    }
}

/// Runs a node until a signal ends it.
///
/// # Errors
/// It cannot be started.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = Options {
        listen: args.listen.clone(),
        shm: args.shm.clone(),
        secret: args.secret.as_deref().map(read_secret).transpose()?,
        is_open: args.insecure,
        workers: args.cores.into(),
        waiting: args.wait.into(),
        datagram_bytes: args.datagram.map(usize::from),
        timeout: Duration::from_secs_f64(args.timeout),
        write_bytes_max: args.write_max,
        write_memory: write_memory(args.write_memory, args.write_max)?,
        outcome_memory: args.outcome_memory,
        memory: args.memory,
        pages: args.pages.map(Pages::from),
        keep: args.keep.clone(),
        quota: args.quota,
        quotas: quotas(&args.space_quota)?,
        spaces_max: args.spaces,
        metadata_memory: args.metadata_memory,
        preset: args.preset,
        endpoints: args.daemon.endpoints(),
        log: args.daemon.log(),
        signals: Signals::install().context("signals")?,
    };
    daemon::run(options).map_err(|error| remedied(args, &error))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the error of a node that could not be run, with what to do about it.
fn remedied(args: &Args, error: &daemon::Error) -> anyhow::Error {
    match error {
        daemon::Error::Memory(memory @ tare_memory::Error::Os { source, .. })
            if source.kind() == io::ErrorKind::OutOfMemory =>
        {
            let found = args.memory;
            let most = match Meminfo::read().bytes("MemAvailable") {
                Some(bytes) => format!("{bytes} bytes at most, which are available"),
                None => "no more than is available".to_owned(),
            };
            anyhow!("--memory: found {found} bytes, expected {most}: use less ({memory})")
        }
        daemon::Error::Listen(_, cause) if cause.kind() == io::ErrorKind::AddrInUse => {
            anyhow!("{error}: another node may run there: tare memory status, or another --listen")
        }
        error => anyhow!("{error}"),
    }
}

/// Reads the memory for pages.
fn memory(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    match (PageSize::Small.bytes()..=MEMORY_MAX).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!(
            "found \"{text}\", expected 4Ki to 15Ti: a node has whole pages of 4 KiB"
        )),
    }
}

/// Reads the quota of all spaces.
fn quota(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    match bytes >= PageSize::Small.bytes() {
        true => Ok(bytes),
        false => Err(format!(
            "found \"{text}\", expected 4Ki, a page, or more; leave it out for all of the memory"
        )),
    }
}

/// Reads the maximum number of address spaces.
fn spaces(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|&count| count > 0);
    count.ok_or_else(|| {
        format!("found \"{text}\", expected 1 or more; leave it out for the usual maximum")
    })
}

/// Reads the quota of a space: SPACE=BYTES.
fn space_quota(text: &str) -> Result<(SpaceId, u64), String> {
    let wrong = || format!("found \"{text}\", expected SPACE=BYTES, such as 7=8Gi");
    let (space, bytes) = text.split_once('=').ok_or_else(wrong)?;
    let space = space.parse().map_err(|_| wrong())?;
    Ok((SpaceId(space), parse_bytes(bytes)?))
}

/// Reads the time after which clients abandon an operation.
fn timeout(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s| (0.01..=60.0).contains(s));
    seconds.ok_or_else(|| format!("found \"{text}\", expected 0.01 to 60 seconds"))
}

/// Reads the length of the longest write.
fn write_max(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    match (1 << 16..=1 << 30).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("found \"{text}\", expected 64Ki to 1Gi")),
    }
}

/// Returns the memory for incomplete writes, of which the longest has its place.
///
/// # Errors
/// It has not.
fn write_memory(bytes: Option<u64>, write_max: u64) -> anyhow::Result<u64> {
    let bytes = bytes.unwrap_or((2 * write_max).max(64 << 20));
    if bytes < write_max {
        bail!("--write-memory: found {bytes} bytes, expected --write-max, {write_max}, at least");
    }
    Ok(bytes)
}

/// Reads the memory for outcomes.
fn outcome_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    match (1 << 16..=1 << 34).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("found \"{text}\", expected 64Ki to 16Gi")),
    }
}

/// Reads the memory for metadata.
fn metadata_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    match (1 << 16..=1 << 44).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("found \"{text}\", expected 64Ki to 16Ti")),
    }
}

/// Returns the quotas by space.
///
/// # Errors
/// A space has two.
fn quotas(list: &[(SpaceId, u64)]) -> anyhow::Result<BTreeMap<SpaceId, u64>> {
    let mut quotas = BTreeMap::new();
    for &(space, bytes) in list {
        if quotas.insert(space, bytes).is_some() {
            bail!(
                "--space-quota: found space {} twice, expected one quota",
                space.0
            );
        }
    }
    Ok(quotas)
}

/// Reads a range of addresses: FIRST-END, in hexadecimal or decimal.
fn preset(text: &str) -> Result<Preset, String> {
    let wrong = || {
        format!(
            "found \"{text}\", expected a range of whole pages of 4096 bytes, such as \
             0x40000000-0xb4c0000000"
        )
    };
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let (start, end) = text.split_once('-').ok_or_else(wrong)?;
    let (start, end) = (number(start), number(end));
    let (start, end) = start.zip(end).ok_or_else(wrong)?;
    let page = PageSize::Small;
    let is_whole = |address: u64| address.is_multiple_of(page.bytes());
    if !(is_whole(start) && is_whole(end) && start < end) {
        return Err(wrong());
    }
    if end > CHOSEN.start {
        return Err(format!(
            "found \"{text}\", expected a range that ends at {:#x} or before: the node itself \
             chooses the addresses from there on",
            CHOSEN.start
        ));
    }
    Ok(Preset { start, end, page })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_and_the_longest_write_and_memory_have_bounds() {
        assert_eq!(timeout("0.25"), Ok(0.25));
        assert_eq!(write_max("1Mi"), Ok(1 << 20));
        assert_eq!(outcome_memory("64Ki"), Ok(1 << 16));
        for wrong in ["0", "1Ki", "17Gi"] {
            let error = outcome_memory(wrong).unwrap_err();
            assert!(error.contains("expected 64Ki"), "{error}");
        }
        for (given, longest, expected) in [
            (None, 1 << 30, 2 << 30),
            (None, 1 << 16, 64 << 20),
            (Some(1 << 16), 1 << 16, 1 << 16),
        ] {
            assert_eq!(write_memory(given, longest).unwrap(), expected);
        }
        let error = write_memory(Some(65_535), 1 << 16).unwrap_err();
        assert!(error.to_string().contains("65536, at least"), "{error}");
        for wrong in ["0", "-1", "61", "NaN", "x"] {
            assert!(
                timeout(wrong).unwrap_err().contains("expected 0.01"),
                "{wrong}"
            );
        }
        for wrong in ["0", "1Ki", "2Gi"] {
            assert!(
                write_max(wrong).unwrap_err().contains("expected 64Ki"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn memory_a_quota_and_spaces_have_room_for_something() {
        assert_eq!(memory("4Ki"), Ok(4096));
        assert_eq!(memory("15Ti"), Ok(15 << 40));
        for wrong in ["0", "1K", "4095", "16Ti", "100Ti"] {
            let error = memory(wrong).unwrap_err();
            assert!(error.contains("expected 4Ki to 15Ti"), "{error}");
        }
        assert_eq!(quota("4Ki"), Ok(4096));
        assert!(quota("0").unwrap_err().contains("expected 4Ki, a page,"));
        assert_eq!(spaces("1"), Ok(1));
        for wrong in ["0", "-1", "x"] {
            assert!(spaces(wrong).unwrap_err().contains("expected 1 or more"));
        }
    }

    #[test]
    fn memory_that_the_system_does_not_give_is_the_option() {
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            args: Args,
        }
        let words = ["serve", "-m", "8Ti"];
        let args = <Program as clap::Parser>::parse_from(words).args;
        let error = |kind: io::ErrorKind| {
            let source = io::Error::from(kind);
            let doing = "mmap";
            let error = tare_memory::Error::Os { doing, source };
            remedied(&args, &daemon::Error::Memory(error)).to_string()
        };
        let said = error(io::ErrorKind::OutOfMemory);
        let found = "--memory: found 8796093022208 bytes, expected ";
        assert!(said.starts_with(found), "{said}");
        assert!(said.contains(": use less (mmap: "), "{said}");
        let said = error(io::ErrorKind::PermissionDenied);
        assert!(said.starts_with("mmap: "), "{said}");
    }

    #[test]
    fn a_preset_is_a_range_of_whole_pages() {
        let clio = preset("0x40000000-0xb4c0000000").unwrap();
        assert_eq!(clio, Preset::CLIO);
        assert_eq!(preset("4096-8192").unwrap().end, 8192);
        for wrong in [
            "",
            "1",
            "0-0",
            "8192-4096",
            "1-4096",
            "0x1000-0x2001",
            "a-b",
            "-",
        ] {
            let error = preset(wrong).unwrap_err();
            assert!(error.starts_with(&format!("found \"{wrong}\"")), "{error}");
        }
        preset("0x1000-0x400000000000").unwrap();
        let error = preset("0x1000-0x400000001000").unwrap_err();
        assert!(
            error.contains("ends at 0x400000000000 or before"),
            "{error}"
        );
    }
}
