//! The testbed: what happens in it, when, and in which order.

use std::time::Duration;

use tare_sim::{for_seeds, Carried, Instant, LineConfig, Node, Outbox, Random, Testbed};

/// A message that is no frame: a number in a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Number(u64);

impl Carried for Number {
    fn frame_len(&self) -> usize {
        60
    }

    fn duplicate(&self) -> Option<Number> {
        Some(*self)
    }
}

/// Records what it gets, and sends a number from interface 0 whenever its timer fires.
#[derive(Default)]
struct Recorder {
    got: Vec<(Instant, usize, Number)>,
    ticks: Vec<Instant>,
    every: Option<Duration>,
    next: Instant,
    sent: u64,
    answers: bool,
}

impl Recorder {
    fn ticking(every: Duration) -> Recorder {
        Recorder {
            every: Some(every),
            next: Instant::ZERO + every,
            ..Recorder::default()
        }
    }

    fn numbers(&self) -> Vec<u64> {
        self.got.iter().map(|(.., number)| number.0).collect()
    }
}

impl Node for Recorder {
    type Message = Number;

    fn receive(
        &mut self,
        now: Instant,
        interface: usize,
        message: Number,
        out: &mut Outbox<Number>,
    ) {
        self.got.push((now, interface, message));
        if self.answers {
            out.send(interface, Number(message.0 + 1000));
        }
    }

    fn next_deadline(&self) -> Instant {
        self.every.map_or(Instant::NEVER, |_| self.next)
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Number>) {
        self.ticks.push(now);
        out.send(0, Number(self.sent));
        self.sent += 1;
        self.next = now + self.every.unwrap_or_default();
    }
}

const GIGABIT: u64 = 1_000_000_000;

fn ms(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn delayed(ms: u64) -> LineConfig {
    LineConfig {
        delay: Duration::from_millis(ms),
        ..LineConfig::new(GIGABIT)
    }
}

fn send(number: u64) -> impl FnOnce(&mut Recorder, Instant, &mut Outbox<Number>) {
    move |_, _, out| out.send(0, Number(number))
}

#[test]
fn messages_arrive_after_what_the_line_takes_and_answers_go_back() {
    let mut testbed = Testbed::new(0);
    let a = testbed.add(Recorder::default());
    let b = testbed.add(Recorder {
        answers: true,
        ..Recorder::default()
    });
    testbed.connect(a, b.interface(3), &delayed(5));
    testbed.run_until(ms(100));
    testbed.act(a, send(7));
    assert_eq!(testbed.next_arrival(), testbed.next_event());
    testbed.run_until(ms(105));
    assert!(testbed.node(b).got.is_empty());
    testbed.run_for(Duration::from_millis(6));
    let took = Duration::from_nanos(672);
    assert_eq!(testbed.node(b).got, [(ms(105) + took, 3, Number(7))]);
    assert_eq!(testbed.node(a).got, [(ms(110) + took * 2, 0, Number(1007))]);
    assert_eq!((testbed.now(), testbed.next_event()), (ms(111), None));
}

#[test]
fn what_is_due_at_one_moment_is_done_in_the_order_that_is_promised() {
    let mut testbed = Testbed::new(0);
    let hub = testbed.add(Recorder::ticking(Duration::from_millis(10)));
    let sources = [(); 3].map(|()| testbed.add(Recorder::default()));
    for n in [2, 0, 1] {
        // Connected in another order than added.
        testbed.connect(sources[n], hub.interface(n), &delayed(0));
    }
    let sink = testbed.add(Recorder::default());
    let _ = sink;
    let early = ms(10) - Duration::from_nanos(672);
    for n in [1, 2, 0] {
        testbed.at(early, move |testbed| {
            testbed.act(sources[n], send(n as u64))
        });
    }
    testbed.at(ms(10), move |testbed| {
        testbed.node_mut(hub).got.push((ms(10), 8, Number(80)))
    });
    testbed.at(ms(10), move |testbed| {
        testbed.node_mut(hub).got.push((ms(10), 9, Number(90)))
    });
    testbed.run_until(ms(10));
    assert_eq!(testbed.node(hub).numbers(), [2, 0, 1, 80, 90]);
    assert_eq!(testbed.node(hub).ticks, [ms(10)]);
}

/// All that happened in a scenario with every kind of fault.
fn trace(seed: u64) -> Vec<(Instant, usize, Number)> {
    let bad = LineConfig {
        loss: 0.2,
        duplication: 0.2,
        reordering: 0.2,
        jitter: Duration::from_millis(3),
        ..delayed(2)
    };
    let mut testbed = Testbed::new(seed);
    let a = testbed.add(Recorder::ticking(Duration::from_millis(1)));
    let b = testbed.add(Recorder {
        answers: true,
        ..Recorder::default()
    });
    let cable = testbed.connect(a, b, &bad);
    let down = testbed
        .random()
        .duration(Duration::ZERO, Duration::from_millis(50));
    testbed.flap(cable, ms(20), down, Duration::from_millis(30), ms(150));
    testbed.clock_mut(a).set_gain(Instant::ZERO, 50_000_000);
    testbed.run_until(ms(200));
    let mut trace = testbed.node(a).got.clone();
    trace.extend(&testbed.node(b).got);
    trace
}

#[test]
fn a_seed_makes_the_same_run_again_and_another_seed_another() {
    let mut seen = std::collections::HashSet::new();
    for_seeds(0..50, |seed| assert_eq!(trace(seed), trace(seed)));
    for seed in 0..50 {
        assert!(seen.insert(trace(seed)), "seed {seed} repeats another");
    }
}

#[test]
fn the_two_directions_of_a_cable_have_faults_of_their_own() {
    let half = LineConfig {
        loss: 0.5,
        ..delayed(0)
    };
    let mut testbed = Testbed::new(1);
    let [a, b] = [(); 2].map(|()| testbed.add(Recorder::ticking(Duration::from_millis(1))));
    let cable = testbed.connect(a, b, &half);
    testbed.run_until(ms(1001));
    assert_ne!(testbed.node(a).numbers(), testbed.node(b).numbers());
    for line in testbed.lines(cable) {
        let counters = line.counters();
        assert!((400..600).contains(&counters.lost), "{counters:?}");
    }
    // The seeds that lines are given are theirs.
    let mut testbed = Testbed::new(1);
    let [a, b] = [(); 2].map(|()| testbed.add(Recorder::ticking(Duration::from_millis(1))));
    testbed.connect_lines(a, b, &half, &half);
    testbed.run_until(ms(1001));
    assert_eq!(testbed.node(a).numbers(), testbed.node(b).numbers());
}

#[test]
fn a_cable_is_cut_joined_changed_and_flaps_when_it_is_told_to() {
    let mut testbed = Testbed::new(0);
    let a = testbed.add(Recorder::ticking(Duration::from_millis(1)));
    let b = testbed.add(Recorder::default());
    let cable = testbed.connect(a, b, &delayed(0));
    testbed.at(ms(10), move |testbed| testbed.set_cut(cable, true));
    testbed.at(ms(20), move |testbed| testbed.set_cut(cable, false));
    testbed.at(ms(30), move |testbed| {
        testbed.set_cable(cable, &delayed(100))
    });
    testbed.flap(
        cable,
        ms(40),
        Duration::from_millis(5),
        Duration::from_millis(5),
        ms(63),
    );
    testbed.run_until(ms(1000));
    // Number n leaves at n + 1 ms; what leaves at a moment is sent before that moment's changes.
    let lost = |n: &u64| {
        let at = n + 1;
        (11..=20).contains(&at)
            || (41..=45).contains(&at)
            || (51..=55).contains(&at)
            || (61..=63).contains(&at)
    };
    let expected: Vec<u64> = (0..900).filter(|n| !lost(n)).collect();
    assert_eq!(
        testbed.node(b).numbers()[..expected.len() - 1],
        expected[..expected.len() - 1]
    );
    let arrivals = &testbed.node(b).got;
    let of = |number: u64| {
        arrivals
            .iter()
            .find(|got| got.2 == Number(number))
            .unwrap()
            .0
    };
    assert_eq!(of(25), ms(26) + Duration::from_nanos(672));
    assert_eq!(of(35), ms(136) + Duration::from_nanos(672));
}

#[test]
fn a_node_that_is_killed_gets_nothing_and_one_in_its_place_starts_anew() {
    let mut testbed = Testbed::new(0);
    let a = testbed.add(Recorder::ticking(Duration::from_millis(1)));
    let b = testbed.add(Recorder::ticking(Duration::from_millis(1)));
    testbed.connect(a, b, &delayed(0));
    testbed.at(ms(10), move |testbed| testbed.kill(b));
    testbed.run_until(ms(15));
    assert!(!testbed.is_running(b) && testbed.is_running(a));
    // What is in flight by then arrives.
    testbed.restart(b, Recorder::default());
    testbed.run_until(ms(20) + Duration::from_micros(1));
    assert_eq!(testbed.node(b).numbers(), [14, 15, 16, 17, 18, 19]);
    assert_eq!(testbed.node(a).got.len(), 10);
}

#[test]
fn a_node_lives_by_its_own_clock() {
    let mut testbed = Testbed::new(0);
    let a = testbed.add(Recorder::ticking(Duration::from_millis(10)));
    let b = testbed.add(Recorder::default());
    testbed.connect(a, b, &delayed(0));
    let second = Duration::from_secs(1);
    testbed.at(ms(95), move |testbed| {
        let now = testbed.now();
        testbed.clock_mut(a).step_ahead(now, second);
    });
    testbed.run_until(ms(100));
    // What was due within the second was done at once, and the next ten later.
    assert_eq!(testbed.node(a).ticks.last(), Some(&(ms(95) + second)));
    assert_eq!(testbed.time_of(a), ms(1100));
    assert_eq!(testbed.time_of(b), ms(100));
    // What it receives it receives at its own time.
    testbed.act(b, send(1));
    testbed.run_for(Duration::from_micros(1));
    let received = testbed.node(a).got[0].0;
    assert_eq!(received, ms(1100) + Duration::from_nanos(672));
    let now = testbed.now();
    testbed.clock_mut(a).step_back(now, second);
    let before = testbed.node(a).ticks.len();
    testbed.run_until(ms(1100));
    assert_eq!(testbed.node(a).ticks.len(), before);
    testbed.run_until(ms(1106));
    assert_eq!(testbed.node(a).ticks.len(), before + 1);
    // Twice as fast: twice as many.
    testbed.clock_mut(a).set_gain(ms(1106), 999_999_999);
    let before = testbed.node(a).ticks.len();
    testbed.run_until(ms(2106));
    assert_eq!(testbed.node(a).ticks.len(), before + 200);
}

#[test]
fn waiting_ends_when_it_is_reached_or_at_its_end() {
    let mut testbed = Testbed::new(0);
    let a = testbed.add(Recorder::ticking(Duration::from_millis(1)));
    let b = testbed.add(Recorder::default());
    testbed.connect(a, b, &delayed(0));
    let reached = testbed.run_until_reached(ms(100), |testbed| testbed.node(b).got.len() == 5);
    assert!(reached);
    assert_eq!(testbed.now(), ms(5) + Duration::from_nanos(672));
    assert!(!testbed.run_until_reached(ms(9), |testbed| testbed.node(b).got.len() == 50));
    assert_eq!(testbed.now(), ms(9));
}

#[test]
#[should_panic(expected = "node 0 sent from interface 0, which is not connected")]
fn a_message_from_an_interface_without_a_cable_is_a_mistake() {
    let mut testbed = Testbed::new(0);
    let a = testbed.add(Recorder::default());
    testbed.act(a, send(1));
}

#[test]
#[should_panic(expected = "is connected already")]
fn an_interface_has_one_cable() {
    let mut testbed = Testbed::new(0);
    let [a, b, c] = [(); 3].map(|()| testbed.add(Recorder::default()));
    testbed.connect(a, b, &delayed(0));
    testbed.connect(c, b, &delayed(0));
}

#[test]
#[should_panic(expected = "node 0 is still due at 0.000000000 s, after 10000 calls at that time")]
fn a_node_whose_deadline_does_not_move_is_a_mistake() {
    let mut testbed = Testbed::new(0);
    let a = testbed.add(Recorder::ticking(Duration::ZERO));
    let b = testbed.add(Recorder::default());
    testbed.connect(a, b, &delayed(0));
    testbed.run_until(ms(1));
}

#[test]
fn nodes_of_different_types_and_a_star_of_them_work_together() {
    struct Echo;
    impl Node for Echo {
        type Message = Number;
        fn receive(&mut self, _: Instant, from: usize, number: Number, out: &mut Outbox<Number>) {
            out.send(from, number);
        }
    }
    for_seeds(0..20, |seed| {
        let mut testbed = Testbed::new(seed);
        let echo = testbed.add(Echo);
        let clients = 1 + Random::new(seed).below(20) as usize;
        let clients: Vec<_> = (0..clients)
            .map(|n| {
                let client = testbed.add(Recorder::ticking(Duration::from_millis(1 + n as u64)));
                testbed.connect(client, echo.interface(n), &delayed(n as u64));
                client
            })
            .collect();
        testbed.run_until(ms(100));
        for client in clients {
            let client = testbed.node(client);
            let expected: Vec<u64> = (0..client.got.len() as u64).collect();
            assert_eq!(client.numbers(), expected);
            assert!(client.got.len() > 2);
        }
    });
}
