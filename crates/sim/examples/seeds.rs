//! Scenarios that a testbed runs per second of real time: two nodes and a bad line that is cut
//! for a while, and 100 numbers that are repeated until they are acknowledged.

use std::collections::BTreeSet;
use std::time::Duration;

use tare_sim::{for_seeds, Instant, LineConfig, Node, Outbox, Testbed};

#[derive(Default)]
struct End {
    to_send: Vec<u8>,
    received: BTreeSet<u8>,
    retry: Instant,
}

impl Node for End {
    type Message = Vec<u8>;

    fn receive(&mut self, _: Instant, _: usize, message: Vec<u8>, out: &mut Outbox<Vec<u8>>) {
        match message[0] {
            acknowledged @ 128.. => self.to_send.retain(|&n| n != acknowledged - 128),
            number => {
                self.received.insert(number);
                out.send(0, vec![number + 128]);
            }
        }
    }

    fn next_deadline(&self) -> Instant {
        match self.to_send[..] {
            [] => Instant::NEVER,
            _ => self.retry,
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Vec<u8>>) {
        for &number in &self.to_send {
            out.send(0, vec![number]);
        }
        self.retry = now + Duration::from_millis(100);
    }
}

fn main() {
    let bad = LineConfig {
        delay: Duration::from_millis(20),
        jitter: Duration::from_millis(5),
        loss: 0.2,
        duplication: 0.1,
        reordering: 0.1,
        ..LineConfig::new(1_000_000)
    };
    for numbers in [1, 10, 100] {
        let seeds = 100_000 / u64::from(numbers);
        let begin = std::time::Instant::now();
        let frames = std::cell::Cell::new(0);
        for_seeds(0..seeds, |seed| {
            let mut testbed = Testbed::new(seed);
            let sender = testbed.add(End {
                to_send: (0..numbers).collect(),
                ..End::default()
            });
            let receiver = testbed.add(End::default());
            let cable = testbed.connect(sender, receiver, &bad);
            let ms = Duration::from_millis;
            testbed.flap(
                cable,
                Instant::ZERO + ms(50),
                ms(200),
                ms(500),
                Instant::ZERO + ms(500),
            );
            testbed.run_for(Duration::from_secs(60));
            assert_eq!(testbed.node(receiver).received.len(), numbers.into());
            let offered = testbed.lines(cable).map(|line| line.counters().offered);
            frames.set(frames.get() + offered[0] + offered[1]);
        });
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{numbers} numbers: {:.0} seeds per second, {:.2} million frames per second",
            seeds as f64 / seconds,
            frames.get() as f64 / seconds / 1e6
        );
    }
}
