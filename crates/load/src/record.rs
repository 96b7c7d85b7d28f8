//! Counts and latencies of a trial.

use std::time::Duration;

use serde::Serialize;
use tare_histogram::{Histogram, LoadFigures};
use tare_sim::Instant;

use crate::protocol::Outcome;
use crate::session::Answered;

/// The requests of a trial's measured part, and what happened to them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Record {
    /// Requests that were to be sent: those that were, and in an open loop those that were not.
    pub scheduled: u64,
    /// Requests that were sent.
    pub issued: u64,
    /// Responses that served the request.
    pub served: u64,
    /// Responses that there is no such key.
    pub misses: u64,
    /// Responses that report an error.
    pub refused: u64,
    /// Requests whose connection failed, or was closed within a response, before all of the
    /// response had come.
    pub failed: u64,
    /// Requests whose response did not come in time.
    pub timed_out: u64,
    /// Requests that were sent once more, since the server closed the connection in good order.
    pub resent: u64,
    /// Requests that were sent in the whole trial, those of the warm-up and those that were sent
    /// again included.
    pub sent_in_all: u64,
    /// Responses in the whole trial, without those that report an error.
    pub served_in_all: u64,
    /// Bytes of the requests, without TLS.
    pub sent_bytes: u64,
    /// Bytes of the responses, without TLS.
    pub received_bytes: u64,
    /// Bytes of the bodies and values in them.
    pub body_bytes: u64,
    /// Connections that were opened, in the whole trial.
    pub connections_opened: u64,
    /// Full TLS handshakes, in the whole trial.
    pub full_handshakes: u64,
    /// TLS handshakes that resumed a session, in the whole trial.
    pub resumed_handshakes: u64,
    /// From the intended start to the last byte of the response. In a closed loop a request is
    /// intended when it is sent.
    pub latency: Histogram,
    /// By how much the generator itself was late: from the time at which a request was due and a
    /// connection free for it, to its sending.
    pub lateness: Histogram,
    /// Requests of an open loop that had no free connection when they were due.
    pub waited: u64,
    /// The share of the measured part of an open loop in which the generator had nothing to do; of
    /// several threads, that of the busiest. `None` for a closed loop.
    pub idle: Option<f64>,
    /// Processor time of the generator's threads.
    #[serde(skip)]
    pub cpu: Duration,
    /// The length of the measured part.
    #[serde(skip)]
    pub duration: Duration,
    /// The first error that a response reported, or a connection had.
    pub first_error: Option<String>,
}

/// The share of the latency's 99th percentile that the lateness's may have.
const LATENESS_MAX: f64 = 0.10;

/// The share of requests that may have waited for a connection: of more, the 99th percentile is one
/// of theirs.
const WAITED_MAX: f64 = 0.01;

/// The share of the time in which a generator is idle at least, if what its requests wait for is
/// the server: it then sleeps until a response arrives.
const IDLE_MIN: f64 = 0.02;

impl Record {
    /// Enters a response, if its request is measured.
    #[inline]
    pub(crate) fn count(&mut self, answered: &Answered, now: Instant) {
        let response = &answered.response;
        let is_served = !matches!(response.outcome, Outcome::Refused(_));
        self.served_in_all += u64::from(is_served);
        if !answered.of.is_measured {
            return;
        }
        match &response.outcome {
            Outcome::Served => self.served += 1,
            Outcome::Miss => self.misses += 1,
            Outcome::Refused(error) => {
                self.refused += 1;
                self.first_error.get_or_insert_with(|| error.clone());
            }
        }
        self.received_bytes += answered.bytes;
        self.body_bytes += response.body_len;
        let latency = now.since(answered.of.intended);
        self.latency.record_duration(latency);
    }

    /// Adds the record of another thread.
    pub(crate) fn merge(&mut self, other: Record) {
        macro_rules! add {
            ($($count:ident)*) => { $(self.$count += other.$count;)* };
        }
        add!(scheduled issued served misses refused failed timed_out resent);
        add!(sent_in_all served_in_all sent_bytes received_bytes body_bytes);
        add!(connections_opened full_handshakes resumed_handshakes cpu waited);
        self.latency.merge(&other.latency);
        self.lateness.merge(&other.lateness);
        let idle = [self.idle, other.idle].into_iter().flatten();
        self.idle = idle.min_by(f64::total_cmp);
        self.duration = self.duration.max(other.duration);
        self.first_error = self.first_error.take().or(other.first_error);
    }

    /// Responses of any kind.
    pub fn answered(&self) -> u64 {
        self.served + self.misses + self.refused
    }

    /// Requests that were to be sent and were not: the trial was over, and no connection free.
    pub fn unissued(&self) -> u64 {
        self.scheduled - self.issued
    }

    /// Requests that were sent and of which nothing else is known yet.
    pub(crate) fn in_flight(&self) -> u64 {
        self.issued - self.answered() - self.failed - self.timed_out
    }

    /// Responses per second; `None` if it took no time.
    pub fn rate(&self) -> Option<f64> {
        per(self.answered() as f64, self.duration.as_secs_f64())
    }

    /// Bytes of bodies and values per second; `None` if it took no time.
    pub fn body_rate(&self) -> Option<f64> {
        per(self.body_bytes as f64, self.duration.as_secs_f64())
    }

    /// Bytes per response; `None` without one.
    pub fn bytes_per_response(&self) -> Option<f64> {
        per(self.received_bytes as f64, self.answered() as f64)
    }

    /// Processor time of the generator per response; `None` without one.
    pub fn cpu_per_response(&self) -> Option<Duration> {
        let answered = self.answered();
        (answered > 0).then(|| self.cpu.div_f64(answered as f64))
    }

    /// The counts as figures that merge with those of other generators.
    pub fn figures(&self) -> LoadFigures {
        let received = self.served + self.misses;
        LoadFigures::new(
            self.scheduled,
            self.issued,
            received,
            self.refused,
            self.duration,
        )
        .unwrap_or_else(|error| unreachable!("each request ends in one way: {error}"))
        .with_bytes(self.sent_bytes, self.received_bytes)
    }

    /// The reason why the latencies are not those of the server, if there is one.
    pub fn is_invalid(&self) -> Option<String> {
        self.is_late().or_else(|| self.is_overloaded())
    }

    /// The reason why a generator that never rests is what its requests wait for. Its lateness does
    /// not show it: a connection counts as free from when its response was read, however long that
    /// had been there.
    fn is_overloaded(&self) -> Option<String> {
        let (waited, idle) = (self.waited + self.unissued(), self.idle?);
        let waited = per(waited as f64, self.scheduled as f64)?;
        (waited > WAITED_MAX && idle < IDLE_MIN).then(|| {
            format!(
                "the generator fell behind: it was idle for {:.1} % of the time, and {:.1} % of \
                 its requests waited for a connection; use more threads or a lower rate",
                100.0 * idle,
                100.0 * waited
            )
        })
    }

    /// The reason why the generator's lateness is too large a part of the latency.
    fn is_late(&self) -> Option<String> {
        let p99 = |histogram: &Histogram| histogram.quantile(0.99);
        let (late, latency) = (p99(&self.lateness)?, p99(&self.latency)?);
        let is_late = late.as_secs_f64() > LATENESS_MAX * latency.as_secs_f64();
        is_late.then(|| {
            format!(
                "the generator fell behind: the 99th percentile of its lateness is {late:?}, more \
                 than 10 % of the latency's, {latency:?}; use more threads or a lower rate"
            )
        })
    }
}

fn per(amount: f64, of: f64) -> Option<f64> {
    (of > 0.0).then(|| amount / of)
}
