//! Neither sending nor receiving a packet allocates.

mod network;

use network::{looped, one_way, quick, udp4};
use tare_loadtest::{Length, Load, Options, Ports, Rate, Testbed, Tester};
use tare_port::{memory, Burst, Counters, Frame, Port};
use tare_sim::LineConfig;

/// The most trials until one is not held up by a busy machine, where the rest of the frames has no
/// room.
const ATTEMPTS: usize = 50;

/// Allocations of a trial of so many frames, of which most come back.
fn allocations<B: Testbed>(tester: &mut Tester<B>, rate: u64, frames: u64) -> u64 {
    let load = Load {
        rate: Rate::from_bits(rate),
        length: Length::Frames(frames),
    };
    let mut trials = (0..ATTEMPTS).map(|_| {
        let mut arrived = 0;
        let counted = allocation_counter::measure(|| {
            arrived = tester.trial(&load).unwrap().streams[0].rx_packets;
        });
        (arrived, counted.count_total)
    });
    let whole = trials.find(|(arrived, _)| *arrived > frames / 2);
    whole.expect("a trial of which most frames come back").1
}

#[test]
fn a_trial_in_virtual_time_allocates_as_much_for_many_packets_as_for_few() {
    let config = LineConfig {
        loss: 0.01,
        duplication: 0.01,
        reordering: 0.01,
        ..LineConfig::new(1_000_000_000)
    };
    let testbed = looped(&config, |_: &mut Frame| true);
    let mut tester = Tester::new(testbed, one_way(&[udp4(60, 1)]), quick()).unwrap();
    // The first trial finds out how much memory the line needs.
    allocations(&mut tester, 900_000_000, 100_000);
    let few = allocations(&mut tester, 900_000_000, 1_000);
    let many = allocations(&mut tester, 900_000_000, 100_000);
    assert!(few > 0, "the counter counts");
    assert_eq!(few, many);
}

/// A port that gives back what it is sent.
struct Mirror {
    near: tare_port::Memory,
    far: tare_port::Memory,
    burst: Burst,
}

impl Port for Mirror {
    fn receive(&mut self, burst: &mut Burst, max: usize) -> std::io::Result<usize> {
        self.far.receive(&mut self.burst, max)?;
        self.far.send(&mut self.burst)?;
        self.near.receive(burst, max)
    }

    fn send(&mut self, burst: &mut Burst) -> std::io::Result<usize> {
        self.near.send(burst)
    }

    fn counters(&self) -> Counters {
        self.near.counters()
    }
}

#[test]
fn a_trial_in_real_time_allocates_as_much_for_many_packets_as_for_few() {
    let (near, far) = memory(1024);
    let port = Mirror {
        near,
        far,
        burst: Burst::with_capacity(64),
    };
    // A machine that is busy with other things holds the generator up; that is no matter here.
    let options = Options {
        tolerance: f64::INFINITY,
        ..quick()
    };
    let mut tester = Tester::new(Ports::new(vec![port]), one_way(&[udp4(60, 1)]), options).unwrap();
    allocations(&mut tester, 500_000_000, 50_000);
    let few = allocations(&mut tester, 500_000_000, 500);
    let many = allocations(&mut tester, 500_000_000, 50_000);
    assert!(few > 0, "the counter counts");
    assert_eq!(few, many);
}
