//! The cost of forwarding between two pairs of veth, for each kind of port. Needs root; makes a
//! network namespace of its own.
//!
//! `forward [BYTES] [SECONDS]`: one thread sends bursts of frames of that size (default 60) for
//! that long (default 2) into one pair, and forwards them from its end to the other pair, whose far
//! end drops them. Figures are packets per second of processor time, which other work on the
//! machine disturbs less, for the forwarding alone and with the sending: over veth the kernel's
//! work of receiving is done by the sender.

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use tare_port::{open, Burst, Interface, Kind, Layout, Pool, Port as _, XdpMode, BURST};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let bytes: usize = arguments.next().map_or(Ok(60), |text| text.parse())?;
    let seconds: f64 = arguments.next().map_or(Ok(2.0), |text| text.parse())?;
    // SAFETY: takes a number; moves this thread only.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err("only root may make a network namespace".into());
    }
    for ends in [["gen", "in"], ["out", "sink"]] {
        ip(&[
            "link", "add", "dev", ends[0], "type", "veth", "peer", "name", ends[1],
        ])?;
        for end in ends {
            ip(&["link", "set", "dev", end, "addrgenmode", "none", "up"])?;
        }
    }
    let kinds = [
        Kind::Xdp(XdpMode::Generic),
        Kind::Xdp(XdpMode::Native),
        Kind::Packet,
    ];
    for round in 0..3 {
        for kind in kinds {
            let (alone, in_all, lost) = measure(kind, bytes, seconds)?;
            println!("round {round}: {kind}: forwarding {alone:.3} Mpps, with the sending {in_all:.3} Mpps, {lost} lost");
        }
    }
    Ok(())
}

fn measure(kind: Kind, bytes: usize, seconds: f64) -> Result<(f64, f64, u64), Box<dyn Error>> {
    let (here, there) = (
        Pool::new(2048, 2048, Layout::PowerOfTwo)?,
        Pool::new(2048, 2048, Layout::PowerOfTwo)?,
    );
    // The same sender for all kinds.
    let (mut generator, _) = open(&Interface::find("gen")?, 0, &there, Kind::Packet)?;
    let (mut from, _) = open(&Interface::find("in")?, 0, &here, kind)?;
    let (mut to, _) = open(&Interface::find("out")?, 0, &here, kind)?;
    let mut burst = Burst::new();
    let (mut sent, mut forwarding) = (0, Duration::ZERO);
    let begin = processor_time();
    while processor_time() - begin < Duration::from_secs_f64(seconds) {
        while burst.len() < BURST {
            let Some(mut frame) = there.take() else { break };
            let header = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
            frame.append(bytes).ok_or("too long")?[..14].copy_from_slice(&header);
            burst.push(frame);
        }
        sent += generator.send(&mut burst)?;
        burst.clear();
        let begin = processor_time();
        while from.receive(&mut burst, BURST)? > 0 {
            to.send(&mut burst)?;
            burst.clear();
        }
        forwarding += processor_time() - begin;
    }
    let in_all = processor_time() - begin;
    let counters = to.counters();
    let forwarded = counters.tx_packets - counters.tx_dropped;
    let rate = |time: Duration| forwarded as f64 / time.as_secs_f64() / 1e6;
    Ok((rate(forwarding), rate(in_all), sent as u64 - forwarded))
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    // SAFETY: two numbers, for which zero is a value, and a valid place for the answer.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        time
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn ip(arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    match Command::new("ip").args(arguments).status()?.success() {
        true => Ok(()),
        false => Err(format!("ip {}", arguments.join(" ")).into()),
    }
}
