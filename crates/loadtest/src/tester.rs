//! Runs trials: warm up, offer the load, stop, drain, then read.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tare_port::{Counters, Layout, Pool, BURST, HEADROOM};
use tare_sim::Instant;

use crate::ledger::Ledger;
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

/// Settings of a tester.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Sent and forgotten before the first trial.
    pub warm_up: Option<Load>,
    /// Sent and forgotten before each trial.
    pub warm_up_each: Option<Load>,
    /// The share of the load that may be missing before a trial is invalid.
    pub tolerance: f64,
    /// The number of times that a trial is repeated after it was invalid.
    pub invalid_retries: u32,
    /// The wait for what else may come, once all has arrived.
    pub quiet: Duration,
    /// The time without any arrival after which what is missing is given up.
    pub patience: Duration,
    /// The longest wait after sending.
    pub drain_max: Duration,
    /// By how many frames the generator may catch up at once when it was held up.
    pub catch_up: u32,
    /// Sequences within which duplicates and late packets are told apart: one bit each.
    pub window: usize,
    /// Frames that may be under way at a time.
    pub frames: usize,
    /// The interfaces of the ports, by port, where frames can be too long for them.
    pub links: Vec<Link>,
    /// The number of the first trial. Different for two runs in a row, leftovers of the first are
    /// known in the second.
    pub first_trial: u16,
}

/// The interface of a port, as far as it limits frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The name of the interface.
    pub name: String,
    /// The largest payload of its frames, in bytes.
    pub mtu: usize,
}

impl Default for Options {
    /// No warm-up, 0.5 % tolerance, three retries, a window of 2²⁴ sequences (2 MiB a stream) and
    /// 2¹⁴ frames.
    fn default() -> Options {
        Options {
            warm_up: None,
            warm_up_each: None,
            tolerance: 0.005,
            invalid_retries: 3,
            quiet: Duration::from_millis(20),
            patience: Duration::from_millis(250),
            drain_max: Duration::from_secs(2),
            catch_up: 256,
            window: (1 << 24) - 64,
            frames: 1 << 14,
            links: Vec::new(),
            first_trial: 0,
        }
    }
}

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
        let pool = pool(&streams, options.frames)?;
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
    /// The error of `open`, and [`Error::StreamCount`] if a stamp cannot tell so many streams and
    /// threads apart.
    ///
    /// # Panics
    /// In virtual time.
    pub fn add_sender(&mut self, open: OpenPorts) -> Result<(), Error> {
        assert!(self.testbed.is_real(), "threads in virtual time");
        let count = self.streams.len() * (self.senders.len() + 2);
        if count > 256 {
            return Err(Error::StreamCount(count));
        }
        self.senders.add(self.streams.len(), open)?;
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
        check_lengths(&streams, &self.options.links)?;
        if !fits(&self.pool, &streams) {
            self.pool = pool(&streams, self.options.frames)?;
        }
        self.receiver.expect(&streams);
        self.streams = streams.into();
        Ok(())
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
                Some(reason) if invalid.len() >= self.options.invalid_retries as usize => {
                    return Err(Error::NotOffered {
                        attempts: self.options.invalid_retries + 1,
                        reason,
                    })
                }
                Some(reason) => invalid.push(reason),
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
        let before: Vec<Counters> = (0..self.testbed.ports())
            .map(|port| self.testbed.counters(port))
            .collect();
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
        let on_time: Vec<u64> = (0..self.streams.len())
            .map(|stream| self.arrived(stream))
            .collect();
        self.drain(&pulse)?;
        Ok(self.read(number, load, time, &before, &on_time))
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
            let now = self.testbed.now();
            if self.testbed.is_quiet() || now >= deadline {
                return Ok(());
            }
            if self.testbed.is_real() {
                let all_here =
                    (0..self.streams.len()).all(|n| self.arrived(n) >= self.offered(n).packets);
                let enough = if all_here {
                    self.options.quiet
                } else {
                    self.options.patience
                };
                if now.since(self.receiver.last.max(stopped)) >= enough {
                    return Ok(());
                }
            }
            self.testbed.wait(now + Duration::from_micros(10));
            loops += 1;
            if loops % LOOPS_PER_PULSE == 0 {
                self.pulse(pulse)?;
            }
        }
    }

    /// Packets of a stream that have arrived, each counted once.
    fn arrived(&self, stream: usize) -> u64 {
        let plain = self.receiver.plain[stream]
            .packets
            .min(self.offered(stream).plain());
        self.receiver.of(stream).map(Ledger::unique).sum::<u64>() + plain
    }

    /// Packets of a stream that all threads have sent.
    fn offered(&self, stream: usize) -> Offered {
        let source = &self.sources[stream];
        let mut offered = Offered {
            packets: source.packets,
            bytes: source.bytes,
            stamped: source.stamped,
        };
        for counts in self.senders.counts(stream) {
            offered.packets += counts.packets();
            offered.bytes += counts.bytes();
            offered.stamped += counts.stamped();
        }
        offered
    }

    fn read(
        &self,
        number: u16,
        load: &Load,
        time: Duration,
        before: &[Counters],
        on_time: &[u64],
    ) -> Trial {
        let counters: Vec<Counters> = (0..self.testbed.ports())
            .map(|port| self.testbed.counters(port))
            .collect();
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
            let plain_bytes = (u128::from(plain.bytes) * u128::from(counted))
                .checked_div(u128::from(plain.packets))
                .unwrap_or(0) as u64;
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
    fn shortfall(&self, load: &Load, trial: &Trial) -> Option<String> {
        let tolerance = self.options.tolerance;
        for (n, stream) in self.streams.iter().enumerate() {
            let source = self.offered(n);
            let name = &stream.name;
            let port = &trial.ports[stream.tx_port];
            if port.egress_drop as f64 > tolerance * source.packets as f64 {
                let dropped = port.egress_drop;
                return Some(format!(
                    "{name}: the sending interface dropped {dropped} of {} packets",
                    source.packets
                ));
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
                return Some(format!("{name}: {rate} offered of {} asked", load.rate));
            }
            let slipped = self.sources[n].plan(Plan::slipped).unwrap_or_default();
            if slipped.as_secs_f64() > tolerance * trial.duration.as_secs_f64()
                && matches!(load.length, Length::Frames(_))
            {
                return Some(format!("{name}: the burst was held up for {slipped:?}"));
            }
        }
        None
    }
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

/// Refuses frames that are longer than what their interfaces send.
fn check_lengths(streams: &[Stream], links: &[Link]) -> Result<(), Error> {
    for stream in streams {
        let Some(link) = links.get(stream.tx_port) else {
            continue;
        };
        if let Some((frame, length)) = stream.longer_than(link.mtu) {
            return Err(Error::OverMtu {
                stream: stream.name.clone(),
                frame,
                length,
                interface: link.name.clone(),
                mtu: link.mtu,
            });
        }
    }
    Ok(())
}

fn pool(streams: &[Stream], frames: usize) -> Result<Pool, Error> {
    let capacity = capacity(streams).min(usize::from(u16::MAX));
    Pool::new(frames, capacity, Layout::Spread).map_err(Error::Memory)
}

fn fits(pool: &Pool, streams: &[Stream]) -> bool {
    pool.capacity() >= capacity(streams)
}

/// The capacity that a slot needs for the longest frame: what a pool keeps in front of each is
/// within the last number.
fn capacity(streams: &[Stream]) -> usize {
    let templates = streams.iter().flat_map(|stream| &stream.templates);
    let longest = templates.map(|template| template.bytes.len()).max();
    HEADROOM + longest.unwrap_or(0) + 64
}

impl<B: fmt::Debug> fmt::Debug for Tester<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tester")
            .field("testbed", &self.testbed)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
