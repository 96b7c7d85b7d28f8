//! Runs trials: warm up, offer the load, stop, drain, then read.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tare_port::{Counters, Pool, BURST};
use tare_sim::Instant;

use crate::error::SENDERS_MAX;
use crate::ledger::Ledger;
use crate::options::{check_lengths, fits, make_pool, Options};
use crate::receiver::Receiver;
use crate::schedule::{time_of, wire_bits};
use crate::senders::{Job, OpenPorts, Senders};
use crate::source::{Moment, Plan, Source};
use crate::stamp::SEQUENCES;
use crate::stream::Stream;
use crate::testbed::{Arrival, Testbed};
use crate::trial::{Length, Load, PortRecord, StreamRecord, Trial};
use crate::{Error, Rate};

/// The longest trial.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// Loops between two calls of the function that reports progress and may stop the trial.
const LOOPS_PER_PULSE: u32 = 1024;

/// The progress of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pulse {
    /// The load that is being offered.
    pub load: Load,
    /// True for a warm-up.
    pub warm_up: bool,
    /// The part of the sending that is done, 0 to 1.
    pub done: f64,
}

type OnPulse = Box<dyn FnMut(&Pulse) -> bool>;

/// Offers loads to a testbed and accounts for every packet of them.
pub struct Tester<B> {
    testbed: B,
    streams: Arc<[Stream]>,
    options: Options,
    pool: Pool,
    receiver: Receiver,
    senders: Senders,
    number: u16,
    is_warm: bool,
    on_pulse: Option<OnPulse>,
    // Kept for their memory.
    sources: Vec<Source>,
    arrivals: Vec<Arrival>,
}

impl<B: Testbed> Tester<B> {
    /// A tester of these streams, which name ports of `testbed`.
    ///
    /// # Errors
    /// If there is no memory for the frames, and [`Error::OverMtu`].
    ///
    /// # Panics
    /// On a stream on a port that the testbed does not have.
    pub fn new(testbed: B, streams: Vec<Stream>, options: Options) -> Result<Tester<B>, Error> {
        check_lengths(&streams, &options.links)?;
        let pool = make_pool(&streams, options.frames)?;
        Ok(Tester::assemble(testbed, streams, options, pool))
    }

    /// A tester that sends frames of this pool, which saves ports over the same pool a copy; where
    /// its slots are too short, of one of its own.
    ///
    /// # Errors
    /// As [`Tester::new`].
    ///
    /// # Panics
    /// As [`Tester::new`].
    pub fn with_pool(
        testbed: B,
        streams: Vec<Stream>,
        options: Options,
        shared: Pool,
    ) -> Result<Tester<B>, Error> {
        if fits(&shared, &streams) {
            check_lengths(&streams, &options.links)?;
            Ok(Tester::assemble(testbed, streams, options, shared))
        } else {
            Tester::new(testbed, streams, options)
        }
    }

    fn assemble(testbed: B, streams: Vec<Stream>, options: Options, pool: Pool) -> Tester<B> {
        let ports = testbed.ports();
        for stream in &streams {
            assert!(
                stream.tx_port < ports && stream.rx_port < ports,
                "a port that the testbed has"
            );
        }
        Tester {
            receiver: Receiver::new(&streams, ports, options.window),
            pool,
            number: options.first_trial,
            is_warm: false,
            on_pulse: None,
            sources: streams.iter().map(|_| Source::new()).collect(),
            arrivals: Vec::with_capacity(ports * BURST),
            senders: Senders::default(),
            testbed,
            streams: streams.into(),
            options,
        }
    }

    /// Sends on a further thread as well, from ports that `open` opens there, one for each of the
    /// testbed's. What is received is received by the testbed.
    ///
    /// # Errors
    /// The error of `open`, and [`Error::ThreadCount`] if a stamp cannot tell so many streams and
    /// threads apart.
    ///
    /// # Panics
    /// In virtual time.
    pub fn add_sender(&mut self, open: OpenPorts) -> Result<(), Error> {
        assert!(self.testbed.is_real(), "threads in virtual time");
        let (streams, threads) = (self.streams.len(), self.senders.len() + 2);
        if streams * threads > SENDERS_MAX {
            return Err(Error::ThreadCount { streams, threads });
        }
        self.senders.add(streams, self.testbed.ports(), open)?;
        self.receiver.expect_thread();
        Ok(())
    }

    /// Calls `on_pulse` every now and then during a trial; when it says false, the trial ends with
    /// [`Error::Interrupted`].
    pub fn on_pulse(&mut self, on_pulse: impl FnMut(&Pulse) -> bool + 'static) {
        self.on_pulse = Some(Box::new(on_pulse));
    }

    /// The streams that are sent.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Sends other frames from now on.
    ///
    /// # Errors
    /// As [`Tester::new`].
    ///
    /// # Panics
    /// If they are not as many streams on the same ports as before.
    pub fn replace_streams(&mut self, streams: Vec<Stream>) -> Result<(), Error> {
        let ports = |streams: &[Stream]| -> Vec<_> {
            streams.iter().map(|s| (s.tx_port, s.rx_port)).collect()
        };
        assert_eq!(ports(&streams), ports(&self.streams), "the same ports");
        self.check_streams(&streams)?;
        if !fits(&self.pool, &streams) {
            self.pool = make_pool(&streams, self.options.frames)?;
        }
        self.receiver.expect(&streams);
        self.streams = streams.into();
        Ok(())
    }

    /// Refuses streams that the interfaces cannot send.
    pub(crate) fn check_streams(&self, streams: &[Stream]) -> Result<(), Error> {
        check_lengths(streams, &self.options.links)
    }

    /// The testbed.
    pub fn testbed(&self) -> &B {
        &self.testbed
    }

    /// The testbed, to change it between trials.
    pub fn testbed_mut(&mut self) -> &mut B {
        &mut self.testbed
    }

    /// Runs a trial, again if the load was not offered.
    ///
    /// # Errors
    /// [`Error::Load`] on a load that no trial can be made of, [`Error::NotOffered`] when all
    /// attempts were invalid, [`Error::Interrupted`], and what the ports say.
    pub fn trial(&mut self, load: &Load) -> Result<Trial, Error> {
        self.valid_trial(load).map_err(|error| match error {
            Error::Port { port, error, .. } => Error::Port {
                port,
                interface: self.options.links.get(port).map(|link| link.name.clone()),
                error,
            },
            error => error,
        })
    }

    fn valid_trial(&mut self, load: &Load) -> Result<Trial, Error> {
        self.check(load)?;
        if !self.is_warm {
            if let Some(load) = self.options.warm_up {
                self.check(&load)?;
                self.attempt(&load, true)?;
            }
            self.is_warm = true;
        }
        let mut invalid = Vec::new();
        loop {
            if let Some(load) = self.options.warm_up_each {
                self.check(&load)?;
                self.attempt(&load, true)?;
            }
            let mut trial = self.attempt(load, false)?;
            match self.shortfall(load, &trial) {
                None => {
                    trial.invalid = invalid;
                    return Ok(trial);
                }
                Some(shortfall) if invalid.len() < self.options.invalid_retries as usize => {
                    invalid.push(shortfall.reason)
                }
                Some(Shortfall { advice: None, .. }) => {
                    trial.invalid = invalid;
                    return Ok(trial);
                }
                Some(Shortfall {
                    reason,
                    advice: Some(advice),
                }) => {
                    return Err(Error::NotOffered {
                        attempts: self.options.invalid_retries + 1,
                        reason,
                        advice,
                    })
                }
            }
        }
    }

    fn check(&self, load: &Load) -> Result<(), Error> {
        if load.rate.bits() == 0 {
            return Err(Error::Load("found a rate of 0, expected more".into()));
        }
        let (time, frames) = (self.time(load), self.frames(load));
        if time.is_zero() || time > TIME_MAX || frames >= SEQUENCES {
            return Err(Error::Load(format!(
                "found a trial of {time:?} and {frames} frames a stream, expected more than none, at most 24 hours, and fewer than 2^40 frames"
            )));
        }
        Ok(())
    }

    /// The time for which a load is to be offered.
    fn time(&self, load: &Load) -> Duration {
        match load.length {
            Length::Time(time) => time,
            Length::Frames(frames) => {
                let bits = self.streams.iter().map(|stream| stream.bits_of(frames));
                time_of(bits.max().unwrap_or(0), load.rate)
            }
        }
    }

    /// The most frames of a stream that are offered.
    fn frames(&self, load: &Load) -> u64 {
        match load.length {
            Length::Frames(frames) => frames,
            Length::Time(time) => {
                let shortest = wire_bits(0) as f64;
                (time.as_secs_f64() * load.rate.bits() as f64 / shortest) as u64
            }
        }
    }

    fn attempt(&mut self, load: &Load, warm_up: bool) -> Result<Trial, Error> {
        let number = self.number;
        self.number = number.wrapping_add(1);
        let time = self.time(load);
        let before = self.counters();
        let start = self.testbed.now();
        self.receiver.begin(number, start);
        let plan = |stream| {
            let plan = Plan::new(stream, load, start, self.options.catch_up);
            Arc::new(Mutex::new(plan))
        };
        let plans: Vec<_> = self.streams.iter().map(plan).collect();
        for (source, plan) in self.sources.iter_mut().zip(&plans) {
            source.begin(Arc::clone(plan));
        }
        let end = start + time;
        let job = Job {
            streams: Arc::clone(&self.streams),
            plans,
            trial: number,
            start,
            end,
            // A port that takes no more frames must not hold the tester for ever.
            give_up: end + time / 2 + Duration::from_secs(1),
        };
        let mut pulse = Pulse {
            load: *load,
            warm_up,
            done: 0.0,
        };
        self.senders.start(&job);
        let sent = self.send(&job, &mut pulse);
        sent.and(self.senders.stop())?;
        self.share_surplus();
        let on_time: Vec<u64> = (0..self.streams.len())
            .map(|stream| self.arrived(stream))
            .collect();
        self.drain(&pulse)?;
        self.share_surplus();
        Ok(self.read(number, load, time, &before, &on_time))
    }

    /// The counters of all ports. What the ports of sending threads dropped is added here, as a
    /// trial ends with their last count of it.
    fn counters(&self) -> Vec<Counters> {
        let ports = (0..self.testbed.ports()).map(|port| {
            let mut counters = self.testbed.counters(port);
            counters.tx_dropped += self.senders.dropped(port);
            counters
        });
        ports.collect()
    }

    fn send(&mut self, job: &Job, pulse: &mut Pulse) -> Result<(), Error> {
        let (start, end) = (job.start, job.end);
        let mut loops = 0;
        loop {
            let now = self.testbed.now();
            let (mut all_sent, mut blocked, mut due) = (true, false, Instant::NEVER);
            for (n, source) in self.sources.iter_mut().enumerate() {
                let stream = &self.streams[n];
                let moment = Moment {
                    trial: job.trial,
                    start,
                    now,
                    end,
                };
                source.fill(stream, &self.pool, n, &moment);
                if !source.pending.is_empty() {
                    let taken = self.testbed.send(stream.tx_port, &mut source.pending)?;
                    source.took(stream, taken);
                }
                if !source.is_done() {
                    all_sent = false;
                    blocked |= source.is_blocked();
                    if !self.testbed.is_real() {
                        due = due.min(source.plan(Plan::due).unwrap_or(end));
                    }
                }
            }
            self.receive()?;
            all_sent &= self.senders.are_done()?;
            if (all_sent && now >= end) || now >= job.give_up {
                return Ok(());
            }
            let next = if blocked {
                now + Duration::from_micros(1)
            } else {
                due
            };
            // What is due after the end is not sent.
            let next = if all_sent || (next > end && now < end) {
                end
            } else {
                next
            };
            self.testbed.wait(next.max(now));
            loops += 1;
            if loops % LOOPS_PER_PULSE == 0 {
                let time = end.since(start).as_secs_f64();
                pulse.done = (now.since(start).as_secs_f64() / time).min(1.0);
                self.pulse(pulse)?;
            }
        }
    }

    fn pulse(&mut self, pulse: &Pulse) -> Result<(), Error> {
        let go_on = self
            .on_pulse
            .as_mut()
            .is_none_or(|on_pulse| on_pulse(pulse));
        go_on.then_some(()).ok_or(Error::Interrupted)
    }

    #[inline]
    fn receive(&mut self) -> Result<(), Error> {
        self.testbed.receive(&mut self.arrivals)?;
        for arrival in self.arrivals.drain(..) {
            let (sources, senders) = (&self.sources, &self.senders);
            let taken = |stream: usize| match stream.checked_sub(sources.len()) {
                None => sources[stream].stamped,
                Some(rest) => senders.made(rest / sources.len(), rest % sources.len()),
            };
            self.receiver
                .accept(arrival.port, arrival.at, &arrival.frame, taken);
        }
        Ok(())
    }

    /// Waits until nothing more is to be expected.
    fn drain(&mut self, pulse: &Pulse) -> Result<(), Error> {
        let stopped = self.testbed.now();
        let deadline = stopped + self.options.drain_max;
        let mut loops = 0;
        loop {
            self.receive()?;
            self.share_surplus();
            let now = self.testbed.now();
            let all_here =
                (0..self.streams.len()).all(|n| self.arrived(n) >= self.offered(n).packets);
            let Options {
                quiet,
                patience,
                drain_max,
                ..
            } = self.options;
            let enough = match self.receiver.last {
                _ if all_here => quiet,
                None => drain_max,
                Some(_) => patience.max(Duration::from_nanos(self.receiver.latency_max_ns) * 2),
            };
            let until = self.receiver.last.unwrap_or(stopped).max(stopped) + enough;
            let is_over = if self.testbed.is_real() {
                now >= until
            } else {
                self.testbed.is_quiet(until)
            };
            if is_over || now >= deadline {
                return Ok(());
            }
            self.testbed.wait(now + Duration::from_micros(10));
            loops += 1;
            if loops % LOOPS_PER_PULSE == 0 {
                self.pulse(pulse)?;
            }
        }
    }

    fn share_surplus(&mut self) {
        let (sources, senders) = (&self.sources, &self.senders);
        let sent = |stream| offered(sources, senders, stream).plain();
        self.receiver.share_surplus(sent);
    }

    /// Packets of a stream that have arrived, each counted once.
    fn arrived(&self, stream: usize) -> u64 {
        let plain = self.receiver.plain[stream]
            .packets
            .min(self.offered(stream).plain());
        self.receiver.of(stream).map(Ledger::unique).sum::<u64>() + plain
    }

    fn offered(&self, stream: usize) -> Offered {
        offered(&self.sources, &self.senders, stream)
    }

    fn read(
        &self,
        number: u16,
        load: &Load,
        time: Duration,
        before: &[Counters],
        on_time: &[u64],
    ) -> Trial {
        let counters = self.counters();
        let since = |port: usize, field: fn(&Counters) -> u64| {
            field(&counters[port]).saturating_sub(field(&before[port]))
        };
        // What an interface dropped is shared out among the streams that miss packets there.
        let mut dropped: Vec<u64> = (0..counters.len())
            .map(|port| since(port, |c| c.rx_dropped))
            .collect();
        let streams = self.streams.iter().enumerate().map(|(n, stream)| {
            let (source, plain) = (self.offered(n), &self.receiver.plain[n]);
            let sum = |of: fn(&Ledger) -> u64| self.receiver.of(n).map(of).sum::<u64>();
            let rx_packets = self.arrived(n);
            let lost = source.packets - rx_packets;
            let ingress_drop = lost.min(dropped[stream.rx_port]);
            dropped[stream.rx_port] -= ingress_drop;
            // Of unstamped ones, surplus bytes cannot be told from the others: their mean is taken.
            // Copies of a long one in place of a short one that was lost would still be more than
            // was sent.
            let counted = plain.packets.min(source.plain());
            let plain_bytes = plain.bytes_of(counted);
            StreamRecord {
                name: stream.name.clone(),
                tx_packets: source.packets,
                tx_bytes: source.bytes,
                rx_packets,
                rx_bytes: (sum(Ledger::bytes) + plain_bytes).min(source.bytes),
                lost,
                ingress_drop,
                duplicates: sum(Ledger::duplicates),
                reordered: sum(Ledger::reordered),
                reorder_offset_max: self
                    .receiver
                    .of(n)
                    .map(Ledger::reorder_offset_max)
                    .max()
                    .unwrap_or(0),
                late: sum(Ledger::late),
                drained: rx_packets - on_time[n],
                tx_unstamped: source.plain(),
                surplus: plain.packets - counted,
                latency: Ledger::latency_of_all(self.receiver.of(n)),
            }
        });
        let ports = self
            .receiver
            .ports
            .iter()
            .enumerate()
            .map(|(n, counts)| PortRecord {
                received: counts.received,
                stray: counts.stray,
                damaged: counts.damaged,
                foreign: counts.foreign,
                misdelivered: counts.misdelivered,
                ingress_drop: since(n, |c| c.rx_dropped),
                egress_drop: since(n, |c| c.tx_dropped),
                slipped_ns: self.slipped(n).as_nanos() as u64,
            });
        Trial {
            number,
            load: load.rate,
            duration: time,
            invalid: Vec::new(),
            streams: streams.collect(),
            ports: ports.collect(),
        }
    }

    /// The most time that a stream on this port did not make up for.
    fn slipped(&self, port: usize) -> Duration {
        let mine = self
            .streams
            .iter()
            .zip(&self.sources)
            .filter(|(stream, _)| stream.tx_port == port);
        let slipped = mine.filter_map(|(_, source)| source.plan(Plan::slipped));
        slipped.max().unwrap_or_default()
    }

    /// The reason why a trial is invalid, if it is.
    fn shortfall(&self, load: &Load, trial: &Trial) -> Option<Shortfall> {
        let tolerance = self.options.tolerance;
        for (n, stream) in self.streams.iter().enumerate() {
            let source = self.offered(n);
            let name = &stream.name;
            let port = &trial.ports[stream.tx_port];
            if port.egress_drop as f64 > tolerance * source.packets as f64 {
                let dropped = port.egress_drop;
                return Some(Shortfall {
                    reason: format!(
                        "{name}: the sending interface dropped {dropped} of {} packets",
                        source.packets
                    ),
                    advice: Some(TOO_SLOW),
                });
            }
            let asked = match load.length {
                Length::Time(time) => time.as_secs_f64() * load.rate.bits() as f64,
                Length::Frames(frames) => stream.bits_of(frames) as f64,
            };
            let offered = (source.bytes as f64 + source.packets as f64 * wire_overhead()) * 8.0;
            let longest = stream
                .templates
                .iter()
                .map(|t| wire_bits(t.bytes.len()))
                .max()
                .unwrap_or(0);
            // What starts in the last moment counts whole, so a frame more or less is no shortfall.
            if offered + longest as f64 <= asked * (1.0 - tolerance) {
                let seconds = trial.duration.as_secs_f64();
                let rate = Rate::from_f64(offered / seconds);
                let reason = format!("{name}: {rate} offered of {} asked", load.rate);
                return Some(self.held_up(n, reason));
            }
            let slipped = self.sources[n].plan(Plan::slipped).unwrap_or_default();
            if slipped.as_secs_f64() > tolerance * trial.duration.as_secs_f64()
                && matches!(load.length, Length::Frames(_))
            {
                let reason = format!("{name}: the burst was held up for {slipped:?}");
                return Some(self.held_up(n, reason));
            }
        }
        // Few enough to offer the load, but they may be all that was lost, and are no loss of the
        // network. An interface that always drops some, such as a veth pair whose other end is
        // full, has its limit there.
        let ports = trial.ports.iter().enumerate();
        let mut ports = ports.filter(|(_, port)| port.egress_drop > 0);
        ports.find_map(|(n, port)| {
            let mine = self.streams.iter().zip(&trial.streams);
            let mine = mine.filter(|(stream, _)| stream.tx_port == n);
            let lost: u64 = mine.clone().map(|(_, record)| record.lost).sum();
            let (stream, _) = mine.clone().next()?;
            (1..=port.egress_drop).contains(&lost).then(|| Shortfall {
                reason: format!(
                    "{}: {lost} packets lost, {} dropped by the sending interface",
                    stream.name, port.egress_drop
                ),
                advice: None,
            })
        })
    }

    /// The shortfall of a stream that was late, for want of frames or of time.
    fn held_up(&self, stream: usize, reason: String) -> Shortfall {
        if !self.sources[stream].was_starved {
            return Shortfall {
                reason,
                advice: Some(TOO_SLOW),
            };
        }
        let frames = self.pool.slots();
        Shortfall {
            reason: format!("{reason}, because all {frames} frames were under way"),
            advice: Some("lower the rate, or the delay and the queues on the path"),
        }
    }
}

/// The reason why a trial is invalid.
struct Shortfall {
    reason: String,
    /// The advice; `None` if the trial counts after all where repeating it is of no use.
    advice: Option<&'static str>,
}

/// The advice for a machine that does not keep up.
const TOO_SLOW: &str = "lower the rate, or make trials longer (-D) so that a pause weighs less, or give the tester a core of its own (--cpu), or more threads (--threads)";

/// The packets of a stream that all threads have sent.
fn offered(sources: &[Source], senders: &Senders, stream: usize) -> Offered {
    let source = &sources[stream];
    let mut offered = Offered {
        packets: source.packets,
        bytes: source.bytes,
        stamped: source.stamped,
    };
    for counts in senders.counts(stream) {
        offered.packets += counts.packets();
        offered.bytes += counts.bytes();
        offered.stamped += counts.stamped();
    }
    offered
}

/// Packets of a stream that were sent.
struct Offered {
    packets: u64,
    bytes: u64,
    stamped: u64,
}

impl Offered {
    fn plain(&self) -> u64 {
        self.packets - self.stamped
    }
}

fn wire_overhead() -> f64 {
    crate::schedule::OVERHEAD as f64
}

impl<B: fmt::Debug> fmt::Debug for Tester<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tester")
            .field("testbed", &self.testbed)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
