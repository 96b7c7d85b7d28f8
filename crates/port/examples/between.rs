//! Passes frames between two interfaces, in both directions and unchanged, on one thread: the cost
//! of the ports alone, as a reference for programs that work on the frames.
//!
//! `between FIRST SECOND` runs until it is ended. It waits as the gateway does: after 128 rounds
//! without a frame it sleeps until there is one. Needs root.

use std::error::Error;
use std::time::Duration;

use tare_port::{open, Burst, Interface, Kind, Layout, Pool, Port, BURST};

/// Rounds without a frame after which it sleeps.
const IDLE: u32 = 128;

fn main() -> Result<(), Box<dyn Error>> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let [first, second] = &names[..] else {
        return Err("expected two interfaces: between FIRST SECOND".into());
    };
    let pool = Pool::new(4096, 2048, Layout::PowerOfTwo)?;
    let mut ports = Vec::new();
    for name in [first, second] {
        let (port, opened) = open(&Interface::find(name)?, 0, &pool, Kind::Auto)?;
        println!("{name}: {}", opened.kind);
        ports.push(port);
    }
    let [first, second] = &mut ports[..] else {
        return Err("two ports were opened".into());
    };
    let (mut burst, mut idle) = (Burst::new(), 0);
    loop {
        let mut moved = pass(first, second, &mut burst)?;
        moved |= pass(second, first, &mut burst)?;
        idle = if moved { 0 } else { idle + 1 };
        if idle >= IDLE {
            wait(first, second);
            idle = IDLE / 2;
        }
    }
}

/// Passes a burst on; returns false if there was none.
fn pass(from: &mut dyn Port, to: &mut dyn Port, burst: &mut Burst) -> std::io::Result<bool> {
    if from.receive(burst, BURST)? == 0 {
        return Ok(false);
    }
    // A second attempt: the port may have made room meanwhile.
    for _ in 0..2 {
        if !burst.is_empty() {
            to.send(burst)?;
        }
    }
    burst.clear();
    Ok(true)
}

/// Waits for a frame, at most 100 ms.
fn wait(first: &dyn Port, second: &dyn Port) {
    let (Some(first), Some(second)) = (first.wait_on(), second.wait_on()) else {
        return std::thread::sleep(Duration::from_micros(50));
    };
    use std::os::fd::AsRawFd as _;
    let mut waiting = [first, second].map(|fd| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: two descriptors that are borrowed, in an array of two.
    unsafe { libc::poll(waiting.as_mut_ptr(), 2, 100) };
}
