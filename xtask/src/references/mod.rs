//! The gateway beside other user-space tunnels, in the same topology and the same run. Theirs are
//! installed from their registries, below `target/references`.

mod reference;
mod statistics;
mod testbed;

use std::path::PathBuf;

use reference::{Running, Tunnel};
use testbed::{Testbed, Wires};

use crate::shell::{has, root, step, succeeds};

/// Rounds where none are asked for: the smallest and the largest of seven ratios hold the median
/// with 98 %.
const ROUNDS: u32 = 7;

/// Seconds of each measurement, after one that does not count.
const SECONDS: u32 = 4;

/// Measures TCP through ours and through each reference, in rounds, and prints rates and ratios.
pub(crate) fn gateway(rounds: Option<&str>, seconds: Option<&str>) -> Result<(), String> {
    let number = |word: Option<&str>, default| match word {
        None => Ok(default),
        Some(word) => word
            .parse()
            .ok()
            .filter(|number| (1..1000).contains(number))
            .ok_or(format!("found \"{word}\", expected a number from 1 to 999")),
    };
    let (rounds, seconds) = (number(rounds, ROUNDS)?, number(seconds, SECONDS)?);
    provide()?;
    let folder = root().join("target/references");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let (tare, ports) = ours()?;

    let mut tunnels = vec![Tunnel::None, Tunnel::Tare(tare), Tunnel::Ports(ports)];
    for installed in [
        reference::boringtun(&folder),
        reference::wireguard_go(&folder),
    ] {
        match installed {
            Ok(tunnel) => tunnels.push(tunnel),
            Err(error) => eprintln!("xtask: NOT MEASURED: {error}"),
        }
    }
    testbed::remove_leftovers();
    let mut running = Vec::new();
    for wires in [Wires::Frames, Wires::Offloaded] {
        for tunnel in &tunnels {
            // Ours handle frames one by one, with or without offloads.
            let is_ours = matches!(tunnel, Tunnel::Tare(_) | Tunnel::Ports(_));
            if wires == Wires::Offloaded && is_ours {
                continue;
            }
            let testbed = Testbed::new(running.len(), wires)?;
            eprintln!("xtask: {}, {}", tunnel.name(), wires.name());
            running.push(Running::start(tunnel.clone(), testbed)?);
        }
    }
    let order = |round: u32| {
        let mut order: Vec<usize> = (0..running.len()).collect();
        statistics::shuffle(&mut order, u64::from(round));
        order
    };
    let mut rates = vec![Vec::new(); running.len()];
    for round in 1..=rounds {
        for at in order(round) {
            let running = &running[at];
            let megabits = running.testbed.tcp_megabits(seconds)?;
            eprintln!(
                "xtask: round {round} of {rounds}: {}, {}: {megabits:.0} Mb/s",
                running.tunnel.name(),
                running.testbed.wires.name()
            );
            rates[at].push(megabits);
        }
    }
    print!("{}", table(&running, &rates, rounds, seconds));
    Ok(())
}

fn table(running: &[Running], rates: &[Vec<f64>], rounds: u32, seconds: u32) -> String {
    let mut text = format!(
        "TCP through two gateways in namespaces over veth, inner packets of 1500 bytes: iperf3, one stream, {rounds} rounds of \
         {seconds} s in shuffled order.\nMedian [smallest, largest]; that interval holds the true median with {:.1} %.\n\n",
        statistics::coverage(rounds) * 100.0
    );
    text += "| through | veth | Mb/s | ours / it |\n|---|---|---|---|\n";
    let ours = running
        .iter()
        .position(|running| matches!(running.tunnel, Tunnel::Tare(_)));
    for (running, own) in running.iter().zip(rates) {
        let ratio = match (ours, &running.tunnel) {
            (Some(ours), Tunnel::None | Tunnel::Ports(_) | Tunnel::WireGuard { .. }) => {
                let ratios = rates[ours].iter().zip(own).map(|(ours, it)| ours / it);
                statistics::summary(ratios.collect(), 2)
            }
            _ => String::new(),
        };
        text += &format!(
            "| {} | {} | {} | {ratio} |\n",
            running.tunnel.name(),
            running.testbed.wires.name(),
            statistics::summary(own.clone(), 0)
        );
    }
    text
}

/// The command, built as it is released, and the example of the ports.
fn ours() -> Result<(PathBuf, PathBuf), String> {
    let build = ["build", "--release", "--locked"];
    step("tare", "cargo", &[&build[..], &["-p", "tare"]].concat())?;
    let example = ["-p", "tare-port", "--example", "between"];
    step("ports", "cargo", &[&build[..], &example].concat())?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| root().join("target"));
    let release = root().join(target).join("release");
    Ok((release.join("tare"), release.join("examples/between")))
}

/// Programs that this needs and tests do not.
fn provide() -> Result<(), String> {
    if !succeeds("sh", &["-c", "test \"$(id -u)\" = 0"]) {
        return Err("network namespaces need root".into());
    }
    let needed = [
        ("ip", "iproute2"),
        ("iperf3", "iperf3"),
        ("ethtool", "ethtool"),
        ("wg", "wireguard-tools"),
        ("ping", "iputils-ping"),
    ];
    let missing: Vec<&str> = needed
        .iter()
        .filter(|(program, _)| !has(program))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(&missing);
    std::env::set_var("DEBIAN_FRONTEND", "noninteractive");
    step("packages", "apt-get", &arguments).or_else(|_| {
        step("package lists", "apt-get", &["update"])?;
        step("packages", "apt-get", &arguments)
    })
}
