//! The benchmarks of RFC 2544: throughput, latency, frame loss rate, back-to-back frames, for each
//! frame size.
//!
//! Differences from the RFC: durations and repetitions are the caller's, shorter by default
//! (section 24: trials should last 60 seconds, those of latency 120; section 26.4: bursts of 2
//! seconds, 50 times); latency is measured on every packet and not on one of each trial, and is the
//! time from handing a frame to the interface for sending until it is received, both of which this
//! machine adds to (section 26.2 and RFC 1242 have the time from the last bit in to the first bit
//! out of a device that stores and forwards); after a trial the tester waits until nothing more
//! comes, and not for two and five seconds. System recovery and reset (sections 26.5 and 26.6) are
//! not measured.

use std::time::Duration;

use serde::Serialize;

use crate::bisect::Bisection;
use crate::schedule::wire_bits;
use crate::stream::Stream;
use crate::testbed::Testbed;
use crate::trial::{Length, Load, Trial};
use crate::{Error, Limit, Rate, Tester};

/// The sizes of section 9.1, Ethernet checksum included.
pub const SIZES: [usize; 7] = [64, 128, 256, 512, 1024, 1280, 1518];

/// Bytes of the Ethernet checksum, which RFC 2544 counts and ports do not carry.
pub const CHECKSUM: usize = 4;

/// The measurements to make.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Frame sizes, Ethernet checksum included.
    pub sizes: Vec<usize>,
    /// The rate of the medium.
    pub max: Rate,
    /// Steps of the search for the throughput.
    pub precision: Rate,
    /// Of each trial, bursts aside.
    pub duration: Duration,
    /// Trials for the latency.
    pub latency_trials: u32,
    /// The longest burst tried.
    pub burst_max: Duration,
    /// The number of searches for the longest burst.
    pub burst_trials: u32,
}

impl Config {
    /// All sizes up to this rate: trials of a second, 20 for the latency, bursts of up to two
    /// seconds searched for five times, and a precision of a thousandth.
    pub fn new(max: Rate) -> Config {
        Config {
            sizes: SIZES.to_vec(),
            max,
            precision: Rate::from_bits(max.bits() / 1000),
            duration: Duration::from_secs(1),
            latency_trials: 20,
            burst_max: Duration::from_secs(2),
            burst_trials: 5,
        }
    }
}

/// The results for a frame size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeReport {
    /// Ethernet checksum included.
    pub frame_bytes: usize,
    /// Frames of this size in the loops of all streams that have no room for a stamp: of those only
    /// totals are known.
    pub frames_without_stamp: usize,
    /// Section 26.1: the highest rate without loss.
    pub throughput: Limit,
    /// The same in packets per second, of each stream.
    pub throughput_pps: f64,
    /// The most that the medium carries, in packets per second.
    pub medium_pps: f64,
    /// Section 26.2, at the throughput; `None` if there is none, or no frame has room for a
    /// stamp.
    pub latency: Option<LatencyReport>,
    /// Section 26.3, from the maximum downwards.
    pub frame_loss: Vec<FrameLoss>,
    /// Section 26.4.
    pub back_to_back: BackToBack,
}

/// Latency over some trials, of all streams.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyReport {
    /// Trials.
    pub trials: u32,
    /// The mean of their means.
    pub mean_ns: f64,
    /// The lowest of all.
    pub min_ns: u64,
    /// The highest of their 99th percentiles.
    pub p99_ns: u64,
    /// The highest of all.
    pub max_ns: u64,
}

/// The loss at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FrameLoss {
    /// The rate.
    #[serde(rename = "load_bits_per_second")]
    pub load: Rate,
    /// Its share of the maximum, in percent.
    pub percent_of_max: u32,
    /// Lost of sent, in percent.
    pub loss_percent: f64,
}

/// The longest burst at the maximum rate that arrives whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackToBack {
    /// Frames of each search, of each stream.
    pub frames: Vec<u64>,
    /// Their mean.
    pub mean_frames: f64,
    /// The longest burst tried: where the mean is this, longer ones may arrive whole too.
    pub longest_tried: u64,
}

/// A step that is done.
#[derive(Debug)]
pub enum Progress<'a> {
    /// A trial.
    Trial {
        /// The frame size, Ethernet checksum included.
        frame_bytes: usize,
        /// The benchmark that it is part of.
        benchmark: &'static str,
        /// The trial itself.
        trial: &'a Trial,
    },
    /// All benchmarks of a frame size.
    Size(&'a SizeReport),
}

/// Is told of what is done, as soon as it is.
pub type OnProgress<'a> = &'a mut dyn FnMut(Progress<'_>);

/// Runs all benchmarks. Sizes that the frames cannot have, or the interfaces cannot send, are
/// refused before the first trial.
///
/// # Errors
/// Those of [`Tester::trial`], and frames that cannot be made of a size. `on_progress` has been
/// told of the sizes before.
pub fn run<B: Testbed>(
    tester: &mut Tester<B>,
    config: &Config,
    on_progress: OnProgress<'_>,
) -> Result<(), Error> {
    let streams = tester.streams().to_vec();
    let mut sizes = Vec::new();
    for &size in &config.sizes {
        let resized = streams
            .iter()
            .map(|stream| stream.resize(size.saturating_sub(CHECKSUM)));
        let resized: Vec<Stream> = resized.collect::<Result<_, _>>()?;
        tester.check_streams(&resized)?;
        sizes.push((size, resized));
    }
    let done = sizes.into_iter().try_for_each(|(size, resized)| {
        let mut bench = Bench {
            tester,
            config,
            size,
            on_progress,
        };
        let report = bench.run(resized)?;
        on_progress(Progress::Size(&report));
        Ok(())
    });
    done.and(tester.replace_streams(streams))
}

struct Bench<'a, 'b, B> {
    tester: &'a mut Tester<B>,
    config: &'a Config,
    size: usize,
    on_progress: OnProgress<'b>,
}

impl<B: Testbed> Bench<'_, '_, B> {
    fn run(&mut self, streams: Vec<Stream>) -> Result<SizeReport, Error> {
        let frames_without_stamp = streams.iter().map(|stream| stream.frames().1).sum();
        self.tester.replace_streams(streams)?;
        let throughput = self.throughput()?;
        let bits = wire_bits(self.size.saturating_sub(CHECKSUM)) as f64;
        Ok(SizeReport {
            frame_bytes: self.size,
            frames_without_stamp,
            throughput,
            throughput_pps: throughput.passed.bits() as f64 / bits,
            medium_pps: self.config.max.bits() as f64 / bits,
            latency: self.latency(throughput.passed)?,
            frame_loss: self.frame_loss()?,
            back_to_back: self.back_to_back()?,
        })
    }

    fn trial(
        &mut self,
        benchmark: &'static str,
        rate: Rate,
        length: Length,
    ) -> Result<Trial, Error> {
        let trial = self.tester.trial(&Load { rate, length })?;
        (self.on_progress)(Progress::Trial {
            frame_bytes: self.size,
            benchmark,
            trial: &trial,
        });
        Ok(trial)
    }

    fn throughput(&mut self) -> Result<Limit, Error> {
        let mut search = Bisection::new(self.config.max, self.config.precision, 0);
        while let Some(rate) = search.next_rate() {
            let trial = self.trial("throughput", rate, Length::Time(self.config.duration))?;
            search.record(trial.is_lossless());
        }
        Ok(search.limit())
    }

    fn latency(&mut self, rate: Rate) -> Result<Option<LatencyReport>, Error> {
        if rate.bits() == 0 {
            return Ok(None);
        }
        let mut all = Vec::new();
        for _ in 0..self.config.latency_trials {
            let trial = self.trial("latency", rate, Length::Time(self.config.duration))?;
            all.extend(
                trial
                    .streams
                    .into_iter()
                    .filter_map(|stream| stream.latency),
            );
        }
        let means: f64 = all.iter().map(|latency| latency.mean_ns).sum();
        Ok((!all.is_empty()).then(|| LatencyReport {
            trials: self.config.latency_trials,
            mean_ns: means / all.len() as f64,
            min_ns: all.iter().map(|latency| latency.min_ns).min().unwrap_or(0),
            p99_ns: all.iter().map(|latency| latency.p99_ns).max().unwrap_or(0),
            max_ns: all.iter().map(|latency| latency.max_ns).max().unwrap_or(0),
        }))
    }

    /// Down in steps of a tenth, until two successive trials lose nothing.
    fn frame_loss(&mut self) -> Result<Vec<FrameLoss>, Error> {
        let mut losses: Vec<FrameLoss> = Vec::new();
        for percent_of_max in (1..=10).rev().map(|tenth| tenth * 10) {
            let load = Rate::from_bits(self.config.max.bits() / 100 * u64::from(percent_of_max));
            let trial = self.trial("frame loss", load, Length::Time(self.config.duration))?;
            losses.push(FrameLoss {
                load,
                percent_of_max,
                loss_percent: trial.loss_ratio() * 100.0,
            });
            if losses
                .iter()
                .rev()
                .take_while(|loss| loss.loss_percent == 0.0)
                .count()
                == 2
            {
                break;
            }
        }
        Ok(losses)
    }

    fn back_to_back(&mut self) -> Result<BackToBack, Error> {
        let bits = wire_bits(self.size.saturating_sub(CHECKSUM)) as f64;
        let longest = self.config.burst_max.as_secs_f64() * self.config.max.bits() as f64 / bits;
        let longest = (longest as u64).max(1);
        let mut frames = Vec::new();
        for _ in 0..self.config.burst_trials {
            frames.push(self.longest_burst(longest)?);
        }
        Ok(BackToBack {
            mean_frames: frames.iter().sum::<u64>() as f64 / frames.len().max(1) as f64,
            frames,
            longest_tried: longest,
        })
    }

    /// Bursts of twice the length until one does not arrive whole, then by halves between.
    fn longest_burst(&mut self, longest: u64) -> Result<u64, Error> {
        let (mut whole, mut broken) = (0, None);
        let mut burst = longest.min(64);
        loop {
            let trial = self.trial("back-to-back", self.config.max, Length::Frames(burst))?;
            if trial.is_lossless() {
                whole = burst;
            } else {
                broken = Some(burst);
            }
            burst = match broken {
                None if whole == longest => return Ok(whole),
                None => (whole * 2).min(longest),
                Some(broken) if broken - whole == 1 => return Ok(whole),
                Some(broken) => whole + (broken - whole) / 2,
            };
        }
    }
}
