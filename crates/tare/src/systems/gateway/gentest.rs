//! `tare gateway gentest`: a configuration and the traffic that tests it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail, Context as _};
use serde::Serialize;
use tare_gateway::config::InterfaceConfig;
use tare_gateway::tools::gentest::{Meta, Traffic};
use tare_packet::pcap;

use crate::terminal;

/// The destination address of frames if none is configured.
const NO_STATION: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The time from one frame of the capture to the next.
const FRAME_NS: u64 = 1000;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare gateway gentest gentest-node1.conf node1.conf node1-private-in.pcap\n  \
    tare loadtest find-limit -b 1e9 node1-private-in.pcap node1 node2 22:00.0 …\n\n\
    META has the blocks private-interface and public-interface as in a configuration file, and:\n  \
    route-prefix \"172.17\";    the first part of all addresses behind the peer\n  \
    nroutes 40;               1 to 10000 [default: 1]\n  \
    packet-size IMIX;         or a number of bytes from 60 to 9014 [default: IMIX]\n  \
    source-prefix \"172.16\";   [default: that of the private interface's own address]\n\n\
    The peer is the next hop of the public interface. Frames are addressed to the `mac` of the \
    private interface; without one, to the MAC address of its device if that is on this machine; \
    otherwise, to 02:00:00:00:00:01.\n\n\
    Exit status: 0 both files were written; 2 an error occurred. Existing files are replaced only \
    when both new ones are complete.")]
pub(crate) struct Args {
    /// Meta-configuration file
    meta: PathBuf,
    /// Configuration file to write; it contains keys, so only its owner can read it
    conf: PathBuf,
    /// Capture file to write
    pcap: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Written<'a> {
    schema: u32,
    conf: &'a Path,
    pcap: &'a Path,
    routes: u32,
    packet_size: String,
    frames: usize,
    bytes: u64,
    destination: String,
}

/// Writes the configuration and the capture.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let meta = Meta::load(&args.meta)?;
    let paths = [&args.meta, &args.conf, &args.pcap];
    let real = paths.map(|path| fs::canonicalize(path).ok());
    for (i, j) in [(0, 1), (0, 2), (1, 2)] {
        if paths[i] == paths[j] || real[i].is_some() && real[i] == real[j] {
            let path = paths[j].display();
            bail!("{path}: found the same file twice, expected three different ones");
        }
    }
    let (destination, note) = destination(&meta.private);
    let traffic = meta.traffic(destination);
    // Both are complete before either gets its name. The configuration is last, because a gateway
    // may be waiting for it.
    let capture = NewFile::write(&args.pcap, 0o666, |file| capture(&traffic, file))?;
    let text = meta.config().text();
    let conf = NewFile::write(&args.conf, 0o600, |file| file.write_all(text.as_bytes()))?;
    capture.complete()?;
    conf.complete()?;
    if let Some(note) = note {
        terminal::say(&format!("tare: {note}"));
    }
    let written = Written {
        schema: 1,
        conf: &args.conf,
        pcap: &args.pcap,
        routes: meta.routes,
        packet_size: meta.packet_size.to_string(),
        frames: traffic.frames(),
        bytes: traffic.bytes(),
        destination: destination.map(|byte| format!("{byte:02x}")).join(":"),
    };
    if args.json {
        terminal::print(&terminal::json(&written)?)?;
    } else {
        terminal::print(&terminal::plain(&in_words(&written)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn in_words(written: &Written<'_>) -> String {
    let count = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    format!(
        "{}: {}\n{}: {} of {} in all, packet size {}, to {}",
        written.conf.display(),
        count(written.routes.into(), "route"),
        written.pcap.display(),
        count(written.frames as u64, "frame"),
        count(written.bytes, "byte"),
        written.packet_size,
        written.destination,
    )
}

/// The MAC address of the private interface, and a note if it is a guess.
fn destination(private: &InterfaceConfig) -> ([u8; 6], Option<String>) {
    if let Some(mac) = private.mac {
        return (mac, None);
    }
    let device = private.device.to_string();
    let here = tare_port::Interface::find(&device).ok();
    match here.and_then(|interface| interface.mac().ok()) {
        Some(mac) => (mac, None),
        None => (
            NO_STATION,
            Some(format!(
                "the private interface has no mac, and {device} is not on this machine: frames go to 02:00:00:00:00:01"
            )),
        ),
    }
}

fn capture(traffic: &Traffic, file: &mut dyn Write) -> io::Result<()> {
    let mut writer = pcap::Writer::new(file, pcap::Header::default())?;
    for (frame, n) in traffic.iter().zip(0..) {
        writer.write(n * FRAME_NS, &frame)?;
    }
    Ok(())
}

/// A file under its working name, or one that is no regular file and has been written as it is.
struct NewFile {
    rename: Option<(PathBuf, PathBuf)>,
}

impl NewFile {
    /// Writes the file by `write`. Until [`complete`](Self::complete) a regular file keeps its old
    /// content, and the new one is in a file beside it, with the permissions of `mode`.
    ///
    /// # Errors
    /// The path and why it cannot be written.
    fn write(
        path: &Path,
        mode: u32,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> anyhow::Result<NewFile> {
        let cannot = |error: io::Error| anyhow!("cannot write {}: {error}", path.display());
        // Of a symbolic link, the file it names is replaced, not the link.
        let (to, special) = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                bail!("cannot write {}: it is a directory", path.display())
            }
            Ok(metadata) if metadata.is_file() => (fs::canonicalize(path).map_err(cannot)?, false),
            Ok(_) => (path.to_owned(), true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (path.to_owned(), false),
            Err(error) => return Err(cannot(error)),
        };
        let mut options = OpenOptions::new();
        options.write(true);
        if special {
            fill(options.open(path).map_err(cannot)?, write).map_err(cannot)?;
            return Ok(NewFile { rename: None });
        }
        let mut part = to.clone().into_os_string();
        part.push(format!(".{}.part", std::process::id()));
        let part = PathBuf::from(part);
        let file = options
            .create_new(true)
            .mode(mode)
            .open(&part)
            .map_err(|error| anyhow!("cannot write {}: {error}", part.display()))?;
        let new = NewFile {
            rename: Some((part, to)),
        };
        let file = fill(file, write).map_err(cannot)?;
        file.sync_all().map_err(cannot)?;
        Ok(new)
    }

    /// Gives the file its name.
    fn complete(mut self) -> anyhow::Result<()> {
        if let Some((part, to)) = &self.rename {
            fs::rename(part, to).with_context(|| format!("cannot rename {}", part.display()))?;
            self.rename = None;
        }
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some((part, _)) = &self.rename {
            let _ = fs::remove_file(part);
        }
    }
}

fn fill(file: File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<File> {
    let mut buffer = BufWriter::with_capacity(1 << 18, file);
    write(&mut buffer)?;
    buffer.into_inner().map_err(io::IntoInnerError::into_error)
}
