//! Any frames as a stream, over a device that changes, drops and injects frames as the input says:
//! every frame that was sent or received is counted once.
#![no_main]

#[path = "../../crates/loadtest/tests/network/mod.rs"]
mod network;

use libfuzzer_sys::fuzz_target;
use tare_loadtest::{pair, Length, Load, Rate, StreamConfig, Tester};
use tare_port::Frame;
use tare_sim::LineConfig;

fuzz_target!(|input: &[u8]| {
    let [choice, size, rest @ ..] = input else {
        return;
    };
    let mut frames = vec![network::udp4(60 + usize::from(*size), 1)];
    frames.extend(
        rest.chunks(80)
            .take(4)
            .filter(|frame| frame.len() >= 14)
            .map(<[u8]>::to_vec),
    );
    if choice & 1 == 1 {
        frames.push(network::udp6(80, 2));
    }
    let config = StreamConfig {
        name: "a".into(),
        rx: "a".into(),
        port: 0,
        frames,
    };
    let Ok(mut streams) = pair(&[config]) else {
        return;
    };
    if choice & 2 == 2 {
        if let Ok(resized) = streams[0].resize(64 + usize::from(*size)) {
            streams[0] = resized;
        }
    }
    let mut device = Vec::from(rest).into_iter().cycle();
    let touch = move |frame: &mut Frame| {
        let mut next = || device.next().map_or(0, usize::from);
        match next() % 8 {
            0 => return false,
            1 => {
                let (at, bit) = (next() % frame.len(), next() % 8);
                frame[at] ^= 1 << bit;
            }
            2 => frame.truncate(14 + next() % 100),
            _ => {}
        }
        true
    };
    let faulty = LineConfig {
        loss: 0.01,
        duplication: 0.05,
        reordering: 0.05,
        ..LineConfig::new(1_000_000_000)
    };
    let Ok(mut tester) = Tester::new(network::looped(&faulty, touch), streams, network::quick())
    else {
        return;
    };
    for rate in [100_000_000, 2_000_000_000] {
        let load = Load {
            rate: Rate::from_bits(rate),
            length: Length::Frames(40),
        };
        let Ok(trial) = tester.trial(&load) else {
            return;
        };
        let (stream, port) = (&trial.streams[0], &trial.ports[0]);
        assert_eq!(stream.tx_packets, 40);
        assert_eq!(stream.rx_packets + stream.lost, stream.tx_packets);
        assert!(stream.rx_bytes <= stream.tx_bytes);
        assert!(stream.late <= stream.lost);
        let others = port.stray + port.damaged + port.foreign + port.misdelivered;
        let known = stream.rx_packets + stream.duplicates + stream.late + stream.surplus;
        assert_eq!(port.received, others + known);
    }
});
