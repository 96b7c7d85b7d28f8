//! Load on a server that the trial itself starts, by Tare's generator or by another one.

pub(in crate::systems) mod own;
mod server;
pub(in crate::systems) mod service;
mod tool;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use rustix::process::{kill_process, Signal};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use rustix::time::{clock_gettime, ClockId};
use tare_lab::driver::{Expected, Missing, Mistake};
use tare_lab::parameters::{Bytes, Choice as _};
use tare_lab::{choices, figures, parameters};
use tare_load::{Pace, Record};

use crate::agent::{Agent, TrialError};
use crate::machine::{Feature, Machine};
use crate::systems::workload::{mistake, Workload};
pub(in crate::systems) use server::{processor_time_of, Running, Served, Server};
pub(in crate::systems) use service::{Identity, Service};
pub(in crate::systems) use tool::{Generator, Report};

/// The document that nginx serves.
pub(in crate::systems) const DOCUMENT: &str = "/index.html";

/// The longest time for writing the keys before a trial.
const FILL_MAX: Duration = Duration::from_secs(60);

/// The time of all warm-ups in which nothing is served, and the least time of a repeated one.
const WARM_UP_MAX: Duration = Duration::from_secs(5);
const WARM_UP_AGAIN: Duration = Duration::from_millis(10);

/// The time that a response may take.
const TIMEOUT: Duration = Duration::from_secs(10);

choices! {
    /// The time at which a request is sent.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Loop {
        /// After a response.
        Closed = "closed",
        /// At its time, at a constant rate.
        Open = "open",
    }
}

parameters! {
    /// The parameters of the driver `load`.
    pub(crate) struct LoadParameters {
        /// the server, started for each trial on a processor of its own where there are two
        server: Server = "nginx",
        /// Tare's own generator, or another one
        generator: Generator = "load",
        /// a closed loop, or an open one, which Tare's own generator has
        pace: Loop = "closed",
        /// with pace = open: the rate, as a part of the closed loop's, which the warm-up measures
        share: f64 = 0.5,
        /// connections
        connections: usize [1..=4096] = 64,
        /// requests in flight per connection
        pipeline: usize [1..=1024] = 1,
        /// bytes of a value, or of nginx's document
        value: Bytes = "32 B",
        /// the part of the requests that write a key
        sets: f64 = 0.0,
        /// keys in use
        keys: u64 [1..=1_000_000] = 10_000,
        /// how long the server is stopped in the middle of the trial
        stall: Duration = "0 ms",
        /// the closed loop of Tare's own generator before the trial
        warm_up: Duration = "200 ms",
        /// the trial; whole seconds for wrk and memaslap
        duration: Duration = "1 s",
    }
}

figures! {
    /// The figures of a trial of `load`.
    pub(crate) struct LoadTrial {
        metrics {
            /// requests per second
            request_rate: f64 [OperationsPerSecond],
            /// processor time of the generator per request; of other programs from start to exit
            cpu_generator_time: f64 [Seconds],
            /// processor time of the server per request
            cpu_server_time: f64 [Seconds],
            /// median latency
            latency_p50: Option<f64> [Seconds],
            /// 99th percentile of the latency
            latency_p99: Option<f64> [Seconds],
            /// 99.9th percentile of the latency
            latency_p999: Option<f64> [Seconds],
            /// with pace = open: 99th percentile of the generator's own lateness
            lateness_p99: Option<f64> [Seconds],
            /// with a stall: the 99th percentile over what the stall makes of it
            p99_of_expected: Option<f64> [Ratio],
            /// with a stall: the 99.9th percentile over what the stall makes of it
            p999_of_expected: Option<f64> [Ratio],
        }
        counters {
            /// requests that the server counts
            operations,
            /// bytes of the responses: as memcached and redis-server count them, else the generator
            bytes,
            /// with Tare's own generator: requests that were to be sent
            scheduled,
            /// those of them that were not sent, or have no response
            unanswered,
            /// with Tare's own generator: the difference between its count of requests and the
            /// server's
            miscounted,
            /// with pace = open: the difference between requests that were to be sent and rate
            /// times duration, beyond one
            unscheduled,
        }
    }
}

/// The driver `load`.
pub(crate) struct Load;

impl Workload for Load {
    const NAME: &'static str = "load";
    const ABOUT: &'static str =
        "nginx, memcached or redis-server under Tare's load generator, and under others";
    type Parameters = LoadParameters;
    type Figures = LoadTrial;

    fn examine(parameters: &LoadParameters) -> Result<(), Mistake> {
        let (generator, server) = (parameters.generator, parameters.server);
        let name = generator.name();
        if !generator.servers().contains(&server) {
            let servers = generator.servers().iter().map(|server| server.name());
            let servers: Vec<&str> = servers.collect();
            let expected = format!("{} for {name}", servers.join(" or "));
            return Err(mistake("server", server.name(), &expected));
        }
        if parameters.pace == Loop::Open && generator != Generator::Load {
            let expected = format!("closed for {name}");
            return Err(mistake("pace", "open", &expected));
        }
        if !(parameters.share > 0.0 && parameters.share <= 1.0) {
            let expected = "a fraction above 0 and up to 1";
            return Err(mistake("share", parameters.share, expected));
        }
        let sets = parameters.sets;
        let can_write = server != Server::Nginx && (generator.mixes() || sets == 1.0);
        if !(sets == 0.0 || can_write && (0.0..=1.0).contains(&sets)) {
            let expected = match server {
                Server::Nginx => "0 for nginx".into(),
                _ if generator.mixes() => "0 to 1".into(),
                _ => format!("0 or 1 for {name}"),
            };
            return Err(mistake("sets", sets, &expected));
        }
        if parameters.pipeline > 1 && !generator.pipelines() {
            let found = parameters.pipeline as i64;
            return Err(mistake("pipeline", found, &format!("1 for {name}")));
        }
        examine_size("value", parameters.value)?;
        let (duration, stall) = (parameters.duration, parameters.stall);
        generator.examine_duration(duration)?;
        if stall * 2 > duration {
            let found = format!("{} s", duration.as_secs_f64());
            let expected = "at least twice the stall";
            return Err(mistake("duration", found.as_str(), expected));
        }
        Ok(())
    }

    fn check(parameters: &LoadParameters, machine: &Machine) -> Result<(), Missing> {
        machine.need(Feature::Load(parameters.server.name()))?;
        match parameters.generator {
            Generator::Load => Ok(()),
            other => machine.need(Feature::Load(other.name())),
        }
    }

    fn expected(parameters: &LoadParameters) -> Option<Expected> {
        Some(Expected {
            clock: parameters.warm_up + parameters.duration,
            // The server's start, and the keys.
            work: Duration::from_millis(100) + Duration::from_micros(10) * parameters.keys as u32,
        })
    }

    fn longest(parameters: &LoadParameters) -> Duration {
        // A generator that takes a number of requests may be slower than the one that measured the
        // server's rate.
        FILL_MAX + parameters.warm_up + WARM_UP_MAX * 2 + parameters.duration * 20
    }

    fn run(parameters: LoadParameters, agent: &mut Agent) -> Result<LoadTrial, TrialError> {
        let (server_cpu, own_cpu) = processors()?;
        pin(server_cpu)?;
        let server = Running::start(parameters.server, parameters.value.0 as usize)?;
        // Other generators inherit it.
        pin(own_cpu)?;
        own::prepare(&server, &parameters)?;
        parameters.generator.prepare(&server, &parameters)?;
        let closed_rate = closed_rate(parameters.warm_up, |duration| {
            own::load(&server, &parameters, Pace::Closed, duration)
        })?;
        agent.start()?;
        let served_before = server.served()?;
        let server_before = server.processor_time()?;
        let (trial, stall) = while_stalling(&server, server_cpu, &parameters, || match parameters
            .generator
        {
            Generator::Load => own_trial(&server, &parameters, closed_rate),
            other => other_trial(other, &server, &parameters, closed_rate),
        });
        let (trial, stall) = (trial?, stall?);
        let server_time = server.processor_time()?.saturating_sub(server_before);
        let served = server.served()?.since(parameters.server, &served_before)?;
        let operations = served.requests;
        let per_request = |time: Duration| time.as_secs_f64() / operations as f64;
        let report = trial.report;
        let of_expected = |level: f64, value: Option<f64>| {
            let expected = after_stall(level, &parameters, stall?);
            // The stall is in fewer requests than the percentile leaves out.
            (!expected.is_zero()).then_some(value? / expected.as_secs_f64())
        };
        let reported = |bytes: f64| (bytes * operations as f64).round() as u64;
        let bytes = served.bytes.or(report.bytes_per_response.map(reported));
        Ok(LoadTrial {
            request_rate: report.rate,
            cpu_generator_time: per_request(trial.cpu),
            cpu_server_time: per_request(server_time),
            latency_p50: report.p50,
            latency_p99: report.p99,
            latency_p999: report.p999,
            lateness_p99: trial.lateness_p99,
            p99_of_expected: of_expected(0.99, report.p99),
            p999_of_expected: of_expected(0.999, report.p999),
            operations,
            bytes: bytes.unwrap_or_default(),
            scheduled: trial.scheduled,
            unanswered: trial.unanswered,
            miscounted: trial.answered.map_or(0, |n| n.abs_diff(operations)),
            unscheduled: trial.unscheduled,
        })
    }
}

/// Checks the size of a value or a document.
///
/// # Errors
/// It is none, or more than a store takes.
pub(in crate::systems) fn examine_size(name: &str, size: Bytes) -> Result<(), Mistake> {
    let found = format!("{} B", size.0);
    match (1..=1 << 20).contains(&size.0) {
        true => Ok(()),
        false => Err(mistake(name, found.as_str(), "\"1 B\" to \"1 MiB\"")),
    }
}

/// Returns the requests per second of the warm-up, which `load` does for so long. Where a busy
/// machine lets nothing be served in that time, it is repeated with twice the time.
///
/// # Errors
/// That of `load`; or nothing was served in [`WARM_UP_MAX`], so that no rate of an open loop
/// follows.
fn closed_rate(
    warm_up: Duration,
    mut load: impl FnMut(Duration) -> anyhow::Result<Record>,
) -> anyhow::Result<f64> {
    let (mut duration, mut total) = (warm_up, Duration::ZERO);
    loop {
        if let Some(rate) = load(duration)?.rate().filter(|&rate| rate > 0.0) {
            return Ok(rate);
        }
        total += duration;
        if total >= WARM_UP_MAX {
            bail!(
                "no request was served in {:.1} s of warm-up: this machine is too busy for it; \
                 give a longer warm_up",
                total.as_secs_f64()
            );
        }
        duration = (duration * 2).max(WARM_UP_AGAIN);
    }
}

/// A trial of either kind of generator.
struct Trial {
    report: Report,
    cpu: Duration,
    scheduled: u64,
    unanswered: u64,
    unscheduled: u64,
    /// Responses, if they are counted apart from the server.
    answered: Option<u64>,
    lateness_p99: Option<f64>,
}

/// Tare's own generator on this thread, whose processor time is all of its own.
fn own_trial(
    server: &Running,
    parameters: &LoadParameters,
    closed_rate: f64,
) -> anyhow::Result<Trial> {
    let duration = parameters.duration;
    let pace = match parameters.pace {
        Loop::Closed => Pace::Closed,
        Loop::Open => Pace::Constant(closed_rate * parameters.share),
    };
    let cpu_before = clock_gettime(ClockId::ThreadCPUTime);
    let record = own::load(server, parameters, pace, duration)?;
    let cpu = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime) - cpu_before)?;
    let intended = pace.rate().map(|rate| rate * duration.as_secs_f64());
    // The last one of a trial is due at its end, give or take a rounding.
    let off = |intended: f64| (record.scheduled as f64 - intended).abs() as u64;
    Ok(Trial {
        report: Report::of(&record),
        cpu,
        scheduled: record.scheduled,
        unanswered: record.scheduled - record.answered(),
        unscheduled: intended.map_or(0, off).saturating_sub(1),
        answered: Some(record.answered()),
        lateness_p99: record
            .lateness
            .quantile(0.99)
            .map(|late| late.as_secs_f64()),
    })
}

fn other_trial(
    generator: Generator,
    server: &Running,
    parameters: &LoadParameters,
    closed_rate: f64,
) -> anyhow::Result<Trial> {
    let (report, cpu) =
        generator.run(server.address(), server.folder(), parameters, closed_rate)?;
    Ok(Trial {
        report,
        cpu,
        scheduled: 0,
        unanswered: 0,
        unscheduled: 0,
        answered: None,
        lateness_p99: None,
    })
}

/// Does `work` and stops the server in the middle of its time, if the parameters say so. Returns
/// with the work's result how long the server was stopped.
fn while_stalling<R>(
    server: &Running,
    cpu: usize,
    parameters: &LoadParameters,
    work: impl FnOnce() -> R,
) -> (R, anyhow::Result<Option<Duration>>) {
    if parameters.stall.is_zero() {
        return (work(), Ok(None));
    }
    let stall = || -> anyhow::Result<Option<Duration>> {
        // The server needs this processor only when it is not stopped.
        pin(cpu)?;
        thread::sleep((parameters.duration - parameters.stall) / 2);
        let from = Instant::now();
        kill_process(server.pid(), Signal::STOP)?;
        thread::sleep(parameters.stall);
        kill_process(server.pid(), Signal::CONT)?;
        Ok(Some(from.elapsed()))
    };
    thread::scope(|scope| {
        let stalling = scope.spawn(stall);
        let result = work();
        let stalled = stalling.join();
        let stalled = stalled.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (result, stalled)
    })
}

/// The percentile of the latencies of clients that come at a constant rate, whatever the server
/// does, if it stops once for `stall` and answers at once otherwise.
///
/// A client that comes at the time u after the server stopped waits until it goes on and has
/// answered those before: with a load of `share` of what the server can do, stall - u (1 - share).
/// So a part x of all clients, of a trial's duration T, waits longer than stall - x T (1 - share).
fn after_stall(level: f64, parameters: &LoadParameters, stall: Duration) -> Duration {
    let later = parameters
        .duration
        .mul_f64((1.0 - level) * (1.0 - parameters.share));
    stall.saturating_sub(later)
}

/// The processors of the server and of the generator: two where this process may use two.
pub(in crate::systems) fn processors() -> anyhow::Result<(usize, usize)> {
    let allowed = sched_getaffinity(None)?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let first = cpus.next().unwrap_or(0);
    Ok((first, cpus.next().unwrap_or(first)))
}

/// Pins this thread, and what it starts, to a processor.
pub(in crate::systems) fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_lab::parameters::ParameterSet as _;
    use tare_lab::value::Parameters;

    /// Returns the rate, and the durations of the warm-ups that it took, if the first `empty` of
    /// them serve nothing.
    fn rate_after(empty: usize, warm_up: Duration) -> (anyhow::Result<f64>, Vec<Duration>) {
        let mut durations = Vec::new();
        let rate = closed_rate(warm_up, |duration| {
            durations.push(duration);
            Ok(Record {
                served: if durations.len() > empty { 10 } else { 0 },
                duration: Duration::from_secs(2),
                ..Record::default()
            })
        });
        (rate, durations)
    }

    #[test]
    fn a_warm_up_in_which_nothing_was_served_is_repeated_and_gives_no_rate_in_the_end() {
        let ms = Duration::from_millis;
        let (rate, durations) = rate_after(0, ms(50));
        assert_eq!((rate.unwrap(), durations), (5.0, vec![ms(50)]));
        let (rate, durations) = rate_after(2, ms(50));
        assert_eq!(rate.unwrap(), 5.0);
        assert_eq!(durations, [ms(50), ms(100), ms(200)]);
        for warm_up in [ms(0), ms(50), ms(7000)] {
            let (rate, durations) = rate_after(usize::MAX, warm_up);
            let error = rate.unwrap_err().to_string();
            assert!(error.contains("longer warm_up"), "{error}");
            let total: Duration = durations.iter().sum();
            let most = warm_up + WARM_UP_MAX * 2;
            assert!((WARM_UP_MAX..=most).contains(&total), "{durations:?}");
        }
    }

    #[test]
    fn the_expected_percentiles_are_those_of_clients_that_come_while_the_server_is_stopped() {
        // 2000 clients in 2 s, of which the server can answer one in 0.5 ms.
        let given = Parameters::from([("duration".into(), "2 s".into())]);
        let parameters = LoadParameters::read(&given).unwrap();
        let (gap, work, from, until) = (1.0, 0.5, 900.0, 1100.0);
        let mut free_at: f64 = 0.0;
        let mut waits: Vec<f64> = (0..2000)
            .map(|n| {
                let comes = f64::from(n) * gap;
                let starts = free_at.max(comes);
                let is_stopped = (from..until).contains(&starts);
                free_at = if is_stopped { until } else { starts } + work;
                free_at - comes
            })
            .collect();
        waits.sort_by(f64::total_cmp);
        for (level, expected) in [(0.99, 190.0), (0.999, 199.0)] {
            let computed = after_stall(level, &parameters, Duration::from_millis(200));
            assert!((computed.as_secs_f64() * 1e3 - expected).abs() < 1e-6);
            let simulated = waits[(2000.0 * level) as usize];
            // A client comes every millisecond, and is answered in half of one.
            assert!((simulated - expected).abs() <= 1.5, "{level}: {simulated}");
        }
    }
}
