//! `tare guest boot`: a guest for a shell or a command.

use std::io::{self, IsTerminal as _, Read, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context as _};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tare_guest::accelerator::try_kvm;
use tare_guest::initramfs::Initramfs;
use tare_guest::kernel::Kernel;
use tare_guest::{Accelerator, Flavour, Guest, Hardware, Network, Stream};

use crate::size::parse_bytes;
use crate::terminal;

const MIB: u64 = 1 << 20;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare guest boot                                     a shell in a guest\n  \
    tare guest boot -- uname -a\n  \
    tare guest boot --flavour swiotlb --json -- dmesg   bounce buffer use in the report\n  \
    tare guest boot --program nginx --network user -- nginx -v\n\n\
    The guest contains the kernel, busybox, the named programs, and this program as its first \
    process. It cannot access the disks of this machine, and it stores nothing. It ends when the \
    command ends, and also when this program ends, for whatever reason.\n\n\
    If KVM cannot boot a guest within 6 s, the guest is emulated: results are correct, but times \
    are meaningless.\n\n\
    Exit status: that of the command; 128 plus the number of the signal that ended the command; 2 \
    usage error, or the guest could not run.")]
pub(crate) struct Args {
    /// Type of isolation: plain, swiotlb (devices can access only bounce buffers), sev-snp, tdx
    #[arg(long, value_name = "FLAVOUR", default_value = "plain")]
    flavour: Flavour,
    /// Number of virtual processors
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=255))]
    vcpus: u16,
    /// Memory size, such as 1Gi
    #[arg(long, value_name = "SIZE", default_value = "512Mi", value_parser = parse_bytes)]
    memory: u64,
    /// Network: none, user (the host's network, through QEMU), or the name of a TAP device
    #[arg(long, value_name = "NETWORK", default_value = "none")]
    network: String,
    /// Program of this machine to include in the guest, by name or path; may be repeated
    #[arg(long, value_name = "PROGRAM")]
    program: Vec<String>,
    /// Accelerator: auto (kvm if it boots a guest within 6 s, otherwise tcg), kvm, tcg (emulation)
    #[arg(long, default_value = "auto", value_name = "NAME", value_parser = ["auto", "kvm", "tcg"], hide_possible_values = true)]
    accelerator: String,
    /// Time limit for the boot of the guest, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    boot_limit: u64,
    /// Time limit for the command, in seconds [default: none]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Kernel image, used together with --modules [default: $TARE_GUEST_KERNEL, or the newest
    /// kernel in /boot]
    #[arg(long, value_name = "FILE", requires = "modules")]
    kernel: Option<PathBuf>,
    /// Folder of the kernel's modules [default: $TARE_GUEST_MODULES]
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
    /// Print a JSON report, which contains the standard output of the command, instead of that
    /// output
    #[arg(long)]
    json: bool,
    /// Command to run and its arguments [default: a shell]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Boots a guest, runs the command, and returns its exit status.
///
/// # Errors
/// There is no guest, or it ends early.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let memory_mib = u32::try_from(args.memory / MIB).unwrap_or(u32::MAX);
    ensure!(
        u64::from(memory_mib) * MIB == args.memory,
        "--memory: found {} bytes, expected a whole number of MiB, such as 512Mi",
        args.memory
    );
    let network = match args.network.as_str() {
        "none" => Network::None,
        "user" => Network::User,
        tap => Network::Tap(tap.to_owned()),
    };
    let kernel = match args.kernel.clone().zip(args.modules.clone()) {
        Some((image, modules)) => Kernel { image, modules },
        None => Kernel::installed()?,
    };
    let agent = std::env::current_exe().context("the path of this program")?;
    let mut initramfs = Initramfs::new(&agent, &kernel)?;
    for program in &args.program {
        initramfs.program(program, "the package that has it")?;
    }
    let image = initramfs.in_memory().context("the initramfs")?;

    let progress = bar();
    progress.set_message("checking whether KVM boots a guest");
    let reason = match args.accelerator.as_str() {
        "kvm" => None,
        "tcg" => Some("requested by --accelerator".into()),
        _ => try_kvm(&kernel, image.path()).err(),
    };
    let accelerator = Accelerator::for_times(reason.is_none());
    let hardware = Hardware {
        flavour: args.flavour,
        vcpus: args.vcpus,
        memory_mib,
        network,
        accelerator,
    };
    let limit = Duration::from_secs(args.boot_limit);
    progress.set_message(format!("booting a guest ({}, {accelerator})", args.flavour));
    let booted = Guest::boot(&hardware, &kernel, image.path(), limit);
    progress.finish_and_clear();
    let mut guest = booted?;
    if !args.json {
        let (flavour, seconds) = (args.flavour, guest.boot_time().as_secs_f64());
        let emulated = ", emulated: times mean nothing";
        let emulated = reason.as_ref().map_or("", |_| emulated);
        let release = &guest.evidence().kernel;
        terminal::say(&format!(
            "tare: guest {flavour} with Linux {release}, ready after {seconds:.1} s{emulated}"
        ));
    }
    finish(args, &mut guest, reason.as_deref())
}

/// Runs the command and prints what there is to print.
fn finish(args: &Args, guest: &mut Guest, reason: Option<&str>) -> anyhow::Result<ExitCode> {
    let words: Vec<&str> = match args.command.is_empty() {
        true => vec!["/bin/sh", "-i"],
        false => args.command.iter().map(String::as_str).collect(),
    };
    // A command that is not interactive does not take what the shell around it reads next.
    let input: Box<dyn Read + Send> = match args.command.is_empty() || !io::stdin().is_terminal() {
        true => Box::new(io::stdin()),
        false => Box::new(io::empty()),
    };
    let limit = args.limit.map(Duration::from_secs);
    let exit = if args.json {
        let began = Instant::now();
        let (exit, output) = guest.capture(&words, input, limit)?;
        let report = json!({
            "flavour": args.flavour.name(),
            "accelerator": guest.accelerator().name(),
            // True if times mean nothing, with the reason.
            "emulated": guest.accelerator() == Accelerator::Emulated,
            "reason": reason,
            "boot_seconds": guest.boot_time().as_secs_f64(),
            "command_seconds": began.elapsed().as_secs_f64(),
            "evidence": guest.evidence(),
            "exit": exit,
            "stdout": String::from_utf8_lossy(&output.stdout),
            "stderr": String::from_utf8_lossy(&output.stderr),
        });
        terminal::print_last(&terminal::json_pretty(&report)?)?;
        exit
    } else {
        let mut closed = Ok(());
        let exit = guest.run(&words, input, limit, |stream, bytes| {
            let written = match stream {
                Stream::Output => {
                    let mut to = io::stdout().lock();
                    to.write_all(bytes).and_then(|()| to.flush())
                }
                Stream::Errors => io::stderr().lock().write_all(bytes),
            };
            if closed.is_ok() {
                closed = written;
            }
        })?;
        // Who reads no more of the output may still ask for the exit status.
        match closed {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written?,
        }
        exit
    };
    // The guest's word: it may be any number.
    let of_signal = exit.signal.unwrap_or(0).saturating_add(128);
    let code = exit.status.unwrap_or(of_signal);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}

/// A line on the terminal that shows what is waited for.
pub(super) fn bar() -> ProgressBar {
    let progress = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        progress.set_style(style);
    }
    progress.enable_steady_tick(Duration::from_millis(100));
    progress
}
