//! Packets that a simulated line carries per second of real time.

use tare_sim::{Carried, Instant, Line, LineConfig};

struct Packet(#[allow(dead_code)] u64);

impl Carried for Packet {
    fn frame_len(&self) -> usize {
        60
    }

    fn duplicate(&self) -> Option<Packet> {
        Some(Packet(self.0))
    }
}

fn main() {
    let perfect = LineConfig::new(1_000_000_000);
    let faulty = LineConfig {
        loss: 0.001,
        duplication: 0.001,
        reordering: 0.001,
        delay: std::time::Duration::from_micros(50),
        ..perfect
    };
    for (what, config) in [("perfect", perfect), ("faulty", faulty)] {
        for (load, gap_ns) in [("idle", 800), ("line rate", 672), ("overloaded", 400)] {
            let mut line = Line::new(&config);
            let begin = std::time::Instant::now();
            let packets = 30_000_000;
            for n in 0..packets {
                let now = Instant::from_nanos(n * gap_ns);
                line.offer(now, Packet(n));
                while line.pop(now).is_some() {}
            }
            let rate = packets as f64 / begin.elapsed().as_secs_f64() / 1e6;
            println!(
                "{what} line, {load}: {rate:.1} Mpps, {} delivered",
                line.counters().delivered
            );
        }
    }
}
