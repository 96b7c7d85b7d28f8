//! A thread of the generator: its connections, driven by `epoll`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::epoll;
use rustix::event::Timespec;
use rustix::time::{clock_gettime, ClockId};
use tare_histogram::Histogram;
use tare_sim::Instant;

use crate::intervals::Intervals;
use crate::pace::Schedule;
use crate::protocol::{Outcome, Protocol, Wire};
use crate::record::Record;
use crate::session::{Answered, InFlight, Session};
use crate::transport::{Target, Transport};
use crate::workload::Requests;
use crate::Error;

/// Times that a connection is opened without a response before the trial is given up.
const OPENINGS_MAX: u32 = 3;

/// The longest wait between two looks at what has timed out.
const PULSE: Duration = Duration::from_millis(50);

/// The time for which a closed loop looks for responses before it sleeps. To wake it is work of the
/// server, of several microseconds on virtual machines: one that answers a request every 10 µs and
/// wakes its client for each answers a tenth fewer.
const LOOK_MAX: Duration = Duration::from_micros(10);

/// Sleeps without a look after one in which nothing came: a server that is slower than that is not
/// worth the generator's processor time.
const SLEEPS_WITHOUT_LOOK: u32 = 15;

/// The last part of a wait of an open loop, for which it looks instead of sleeping: sleeps are
/// whole milliseconds, and end up to a tenth of one late. To send a millisecond late would be more
/// than most latencies.
const WAKE_EARLY: Duration = Duration::from_micros(500);

/// Events that one call returns.
const EVENTS: usize = 256;

/// The times at which a trial's parts begin and end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) measured: Instant,
    pub(crate) end: Instant,
    /// The time that a response may take.
    pub(crate) timeout: Duration,
}

/// The part of a trial that one thread does.
pub(crate) struct Share<'a> {
    pub(crate) target: &'a Target,
    pub(crate) times: Times,
    pub(crate) connections: usize,
    /// Requests in flight per connection.
    pub(crate) pipeline: usize,
    pub(crate) requests: Requests,
    /// Requests that may be sent.
    pub(crate) quota: u64,
    /// `None` in a closed loop.
    pub(crate) schedule: Option<Schedule>,
    /// The receiver of intervals, and the number of threads.
    pub(crate) intervals: Option<(&'a Intervals, usize)>,
    /// Ends the trial before its time if one is true.
    pub(crate) stops: [&'a AtomicBool; 2],
}

pub(crate) struct Worker<'a, P> {
    share: Share<'a>,
    epoll: OwnedFd,
    connections: Vec<Connection<P>>,
    /// Places for a request in an open loop: the connection, and since when it is free. The one
    /// that is free for longest comes first.
    free: VecDeque<(usize, Instant)>,
    /// Connections that had an event and may have something to send. Sending begins when all that
    /// has arrived is read: a server that waits is then woken once for several requests, which
    /// costs both sides less than once for each.
    to_send: Vec<usize>,
    record: Record,
    /// Requests that are measured and not answered.
    measured_in_flight: u64,
    /// Latencies of the intervals that are over, and their number.
    total: Histogram,
    intervals_over: u32,
}

struct Connection<P> {
    /// `None` until it is opened.
    transport: Option<Transport>,
    session: Session<P>,
    /// Requests of a closed loop that are due, one for each response that has come.
    due: usize,
    /// True if `epoll` tells when it can be written.
    waits_to_write: bool,
    /// Openings without a response; with datagrams, requests in turn without one.
    openings: u32,
    /// The time at which the handshake of a request ended.
    shaken: Option<Instant>,
}

/// The next step with a connection after some work on it.
enum After {
    Keep,
    /// The server closed it, in good order or with an error.
    Reopen(Option<String>),
}

impl<'a, P: Protocol + Clone> Worker<'a, P> {
    pub(crate) fn new(share: Share<'a>, protocol: &P) -> io::Result<Worker<'a, P>> {
        let connection = |_| Connection {
            transport: None,
            session: Session::new(protocol.clone()),
            due: 0,
            waits_to_write: false,
            openings: 0,
            shaken: None,
        };
        Ok(Worker {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: (0..share.connections).map(connection).collect(),
            share,
            free: VecDeque::new(),
            to_send: Vec::new(),
            record: Record::default(),
            measured_in_flight: 0,
            total: Histogram::new(),
            intervals_over: 0,
        })
    }

    /// Runs the trial to its end.
    pub(crate) fn run(mut self) -> Result<Record, Error> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; EVENTS];
        for n in 0..self.connections.len() {
            self.open(n)?;
        }
        let (mut cpu_start, mut cpu_end) = (None, None);
        let mut look_at = Instant::ZERO;
        let (mut idle_since, mut sleeps) = (None, 0);
        loop {
            let now = Instant::now();
            if cpu_start.is_none() && now >= self.share.times.measured {
                cpu_start = Some(processor_time());
            }
            if now >= self.share.times.end {
                cpu_end.get_or_insert_with(processor_time);
                let is_over = now.since(self.share.times.end) >= self.share.times.timeout;
                if is_over || self.is_stopped() || self.is_drained() {
                    break;
                }
            }
            if now < self.share.times.end && (self.is_stopped() || self.share.quota == 0) {
                self.share.times.end = now;
                self.share.times.measured = self.share.times.measured.min(now);
                continue;
            }
            self.note_interval(now);
            self.issue_due(now)?;
            if now >= look_at {
                self.end_overdue(now)?;
                look_at = now + PULSE;
            }
            let mut wait = self.next_event(now).since(now).min(PULSE);
            if self.share.schedule.is_some() {
                let sleep = wait.saturating_sub(WAKE_EARLY);
                wait = Duration::from_millis(sleep.as_millis() as u64);
            } else {
                let idle = now.since(*idle_since.get_or_insert(now));
                match sleeps {
                    0 if idle < LOOK_MAX => wait = Duration::ZERO,
                    0 => sleeps = SLEEPS_WITHOUT_LOOK,
                    _ => sleeps -= 1,
                }
            }
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: wait.subsec_nanos().into(),
            };
            let count = match epoll::wait(&self.epoll, &mut events, Some(&wait)) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => 0,
                Err(error) => return Err(Error::System(error.into())),
            };
            if count > 0 {
                idle_since = None;
            }
            for event in &events[..count] {
                let connection = event.data.u64() as usize;
                let flags = event.flags;
                self.work(connection, flags)?;
            }
            self.send()?;
        }
        // Without a limit of time, the trial lasts until the last response.
        if self.share.quota == 0 && self.share.schedule.is_none() {
            self.share.times.end = Instant::now();
            cpu_end = Some(processor_time());
        }
        for n in 0..self.connections.len() {
            self.note_handshake(n);
        }
        // A thread that was not run for a while has not passed all of them.
        self.note_interval(Instant::now());
        if let Some((intervals, threads)) = self.share.intervals {
            intervals.add(self.intervals_over, &self.record.latency, threads, true);
        }
        self.record.latency.merge(&self.total);
        self.count_unissued();
        self.record.timed_out += self.measured_in_flight;
        let (start, end) = (cpu_start.unwrap_or_default(), cpu_end.unwrap_or_default());
        self.record.cpu = end.saturating_sub(start);
        self.record.duration = self.share.times.end.since(self.share.times.measured);
        Ok(self.record)
    }

    /// Hands on the latencies of an interval that is over. The last one is that of the trial's end.
    fn note_interval(&mut self, now: Instant) {
        let Some((intervals, threads)) = self.share.intervals else {
            return;
        };
        let Times { measured, end, .. } = self.share.times;
        while {
            let over = measured + intervals.length * (self.intervals_over + 1);
            over <= now && over < end
        } {
            intervals.add(self.intervals_over, &self.record.latency, threads, false);
            self.total.merge(&self.record.latency);
            self.record.latency.clear();
            self.intervals_over += 1;
        }
    }

    fn is_stopped(&self) -> bool {
        self.share
            .stops
            .iter()
            .any(|stop| stop.load(Ordering::Relaxed))
    }

    /// True if all that is measured has been sent and answered.
    fn is_drained(&self) -> bool {
        let is_issued =
            |schedule: &Schedule| self.share.quota == 0 || schedule.peek() >= self.share.times.end;
        self.measured_in_flight == 0 && self.share.schedule.as_ref().is_none_or(is_issued)
    }

    /// Counts the measured requests that were to be sent and have not been.
    fn count_unissued(&mut self) {
        let Some(schedule) = &mut self.share.schedule else {
            return;
        };
        while schedule.peek() < self.share.times.end && self.share.quota > 0 {
            self.share.quota -= 1;
            self.record.scheduled += u64::from(schedule.peek() >= self.share.times.measured);
            schedule.advance();
        }
    }

    /// The time at which something is to be done if nothing arrives.
    fn next_event(&self, now: Instant) -> Instant {
        let phase = match now < self.share.times.measured {
            true => self.share.times.measured,
            false if now < self.share.times.end => self.share.times.end,
            false => Instant::NEVER,
        };
        match &self.share.schedule {
            Some(schedule) if !self.free.is_empty() => phase.min(schedule.peek()),
            _ => phase,
        }
    }

    /// Sends the requests of an open loop that are due, as far as connections are free.
    fn issue_due(&mut self, now: Instant) -> Result<(), Error> {
        while let Some(schedule) = &mut self.share.schedule {
            let intended = schedule.peek();
            if intended > now || intended >= self.share.times.end {
                break;
            }
            if self.share.quota == 0 {
                break;
            }
            let Some((n, free_since)) = self.free.pop_front() else {
                break;
            };
            schedule.advance();
            let issued = Instant::now();
            if P::wire() == Wire::Handshakes {
                self.connect(n)?;
            }
            let is_measured = intended >= self.share.times.measured;
            if is_measured {
                self.record.scheduled += 1;
                let due = intended.max(free_since);
                self.record.lateness.record_duration(issued.since(due));
            }
            self.issue(n, intended, issued, is_measured)?;
            self.flush(n)?;
        }
        Ok(())
    }

    /// Writes a new request.
    #[inline]
    fn issue(
        &mut self,
        n: usize,
        intended: Instant,
        issued: Instant,
        is_measured: bool,
    ) -> Result<(), Error> {
        let request = InFlight {
            request: self.share.requests.draw()?,
            intended,
            issued,
            is_measured,
        };
        let bytes = self.connections[n].session.issue(request);
        self.share.quota -= 1;
        self.record.sent_in_all += 1;
        if is_measured {
            self.record.issued += 1;
            self.record.sent_bytes += bytes;
            self.measured_in_flight += 1;
        }
        Ok(())
    }

    /// Writes a request of a closed loop, if it is not over.
    #[inline]
    fn issue_closed(&mut self, n: usize, now: Instant) -> Result<(), Error> {
        if now < self.share.times.end && self.share.quota > 0 {
            let is_measured = now >= self.share.times.measured;
            self.record.scheduled += u64::from(is_measured);
            self.issue(n, now, now, is_measured)?;
        }
        Ok(())
    }

    /// Lets a connection send `requests` more.
    #[inline]
    fn allow(&mut self, n: usize, requests: usize, now: Instant) -> Result<(), Error> {
        for _ in 0..requests {
            match self.share.schedule {
                None => self.issue_closed(n, now)?,
                Some(_) => self.free.push_back((n, now)),
            }
        }
        Ok(())
    }

    /// Opens a connection, and sends once more the requests that were in flight on the old one.
    fn open(&mut self, n: usize) -> Result<(), Error> {
        self.free.retain(|&(other, _)| other != n);
        let now = Instant::now();
        if P::wire() == Wire::Handshakes {
            let is_over = now >= self.share.times.end || self.share.quota == 0;
            if is_over || self.share.schedule.is_some() {
                // A handshake opens its connection when it is due.
                self.note_handshake(n);
                self.connections[n].transport = None;
                return self.allow(n, 1, now);
            }
        }
        let resent = self.connect(n)?;
        self.allow(n, self.share.pipeline - resent, now)
    }

    /// Counts the handshake of a connection that is closed next.
    fn note_handshake(&mut self, n: usize) {
        let transport = self.connections[n].transport.as_ref();
        match transport.and_then(Transport::handshake) {
            Some(rustls::HandshakeKind::Resumed) => self.record.resumed_handshakes += 1,
            Some(_) => self.record.full_handshakes += 1,
            None => {}
        }
    }

    /// Replaces a connection by a new one, and returns the number of requests that were in flight
    /// and are sent again.
    fn connect(&mut self, n: usize) -> Result<usize, Error> {
        self.note_handshake(n);
        let connection = &mut self.connections[n];
        connection.openings += 1;
        connection.shaken = None;
        let opened = self.share.target.open(P::wire());
        let transport = opened.map_err(|error| Error::connection(self.share.target, &error))?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT;
        let data = epoll::EventData::new_u64(n as u64);
        epoll::add(&self.epoll, transport.socket(), data, flags)
            .map_err(|error| Error::System(error.into()))?;
        // Closing the old one removes it from the set.
        connection.transport = Some(transport);
        connection.waits_to_write = true;
        connection.due = 0;
        self.record.connections += 1;
        let again = connection.session.reopen();
        let resent = again.len();
        for request in again {
            self.record.resent += u64::from(request.is_measured);
            connection.session.issue(request);
        }
        self.record.sent_in_all += resent as u64;
        Ok(resent)
    }

    /// Ends a connection and opens another. What was in flight is sent again if the server closed
    /// it in good order after a response; if not, it has failed.
    fn reopen(&mut self, n: usize, error: Option<String>) -> Result<(), Error> {
        if error.is_none() {
            self.conclude(n);
        }
        let connection = &mut self.connections[n];
        let openings = connection.openings;
        if openings >= OPENINGS_MAX {
            let error = error.unwrap_or_else(|| "it is closed without a response".into());
            return Err(Error::connection(self.share.target, &error));
        }
        if error.is_some() || openings > 0 {
            let lost = connection.session.reopen();
            self.fail(lost, |record| &mut record.failed);
            let note = || format!("{}: the connection is closed", self.share.target.address);
            self.record
                .first_error
                .get_or_insert_with(|| error.unwrap_or_else(note));
        }
        self.open(n)
    }

    fn fail(&mut self, lost: VecDeque<InFlight>, count: impl Fn(&mut Record) -> &mut u64) {
        let measured = lost.iter().filter(|request| request.is_measured).count() as u64;
        self.measured_in_flight -= measured;
        *count(&mut self.record) += measured;
    }

    /// Ends the connections whose oldest request has waited too long.
    fn end_overdue(&mut self, now: Instant) -> Result<(), Error> {
        for n in 0..self.connections.len() {
            let connection = &mut self.connections[n];
            let oldest = connection.session.in_flight().front();
            if oldest.is_some_and(|oldest| now.since(oldest.issued) >= self.share.times.timeout) {
                if connection.shaken.is_some() {
                    // A server that does not close its connections.
                    self.conclude(n);
                    self.open(n)?;
                    continue;
                }
                let lost = connection.session.reopen();
                self.fail(lost, |record| &mut record.timed_out);
                self.record.first_error.get_or_insert_with(|| {
                    format!("no response within {:?}", self.share.times.timeout)
                });
                let connection = &mut self.connections[n];
                // A datagram may be lost; the socket is as good as before.
                let is_datagram = P::wire() == Wire::Datagrams;
                if is_datagram
                    && (self.record.served_in_all > 0 || connection.openings < OPENINGS_MAX)
                {
                    connection.openings += 1;
                    self.allow(n, 1, now)?;
                    self.flush(n)?;
                    continue;
                }
                // A server that answers nothing is given up as one that closes is.
                self.reopen(n, Some("no response in time".into()))?;
            }
        }
        Ok(())
    }

    fn work(&mut self, n: usize, flags: epoll::EventFlags) -> Result<(), Error> {
        let after =
            match self.connections[n].waits_to_write && !flags.contains(epoll::EventFlags::IN) {
                true => After::Keep,
                false => self.receive(n)?,
            };
        if P::wire() == Wire::Handshakes {
            let connection = &mut self.connections[n];
            let transport = connection.transport.as_mut();
            let is_done = |transport: &&mut Transport| transport.handshake().is_some();
            if let Some(transport) = transport.filter(is_done) {
                if connection.shaken.is_none() {
                    connection.shaken = Some(Instant::now());
                    transport.finish();
                }
            }
        }
        match after {
            After::Keep => self.to_send.push(n),
            After::Reopen(error) => self.reopen(n, error)?,
        }
        Ok(())
    }

    /// Sends what is due on the connections that had an event.
    fn send(&mut self) -> Result<(), Error> {
        let mut to_send = std::mem::take(&mut self.to_send);
        for n in to_send.drain(..) {
            let due = std::mem::take(&mut self.connections[n].due);
            if due > 0 {
                let now = Instant::now();
                (0..due).try_for_each(|_| self.issue_closed(n, now))?;
            }
            self.flush(n)?;
        }
        self.to_send = to_send;
        Ok(())
    }

    /// Counts a handshake that the server has not refused. In TLS 1.3 a client has ended its
    /// handshake before the server has seen, say, its certificate: a refusal is known only when
    /// the connection is closed.
    fn conclude(&mut self, n: usize) {
        let connection = &mut self.connections[n];
        if let Some(at) = connection.shaken.take() {
            if let Some(answered) = connection.session.conclude() {
                self.count(n, &answered, at);
            }
        }
    }

    /// Reads what has arrived.
    fn receive(&mut self, n: usize) -> Result<After, Error> {
        loop {
            let connection = &mut self.connections[n];
            let Some(transport) = &mut connection.transport else {
                return Ok(After::Keep);
            };
            let room = connection.session.room();
            let wanted = room.len();
            let bytes = match transport.read(room) {
                Ok(0) => {
                    let last = connection.session.ended();
                    let now = Instant::now();
                    if let Some(answered) = last {
                        self.count(n, &answered, now);
                    }
                    return Ok(After::Reopen(None));
                }
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(After::Keep),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Ok(After::Reopen(unless_closed(&error))),
            };
            let keeps_plaintext = transport.keeps_plaintext();
            let now = Instant::now();
            let mut answers = 0;
            let mut closes = false;
            let (record, times) = (&mut self.record, &self.share.times);
            let in_flight = &mut self.measured_in_flight;
            let read = connection.session.received(bytes, |answered| {
                answers += 1;
                closes |= answered.response.closes;
                *in_flight -= u64::from(answered.of.is_measured);
                count(record, times, &answered, now);
            });
            if answers > 0 {
                connection.openings = 0;
            }
            if let Err(violation) = read {
                return Ok(After::Reopen(Some(violation.to_string())));
            }
            if closes {
                return Ok(After::Reopen(None));
            }
            match self.share.schedule {
                None => self.connections[n].due += answers,
                Some(_) => self.free.extend((0..answers).map(|_| (n, now))),
            }
            // A short read took all that there was.
            if bytes < wanted && !keeps_plaintext {
                return Ok(After::Keep);
            }
        }
    }

    fn count(&mut self, n: usize, answered: &Answered, now: Instant) {
        self.connections[n].openings = 0;
        self.measured_in_flight -= u64::from(answered.of.is_measured);
        count(&mut self.record, &self.share.times, answered, now);
    }

    /// Sends what is written, and asks to be told when the rest can be sent.
    fn flush(&mut self, n: usize) -> Result<(), Error> {
        let connection = &mut self.connections[n];
        let Some(transport) = &mut connection.transport else {
            return Ok(());
        };
        let mut is_whole = true;
        let mut failed = None;
        while !connection.session.unsent().is_empty() {
            match transport.write(connection.session.unsent()) {
                Ok(bytes) => connection.session.sent(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    is_whole = false;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    failed = Some(unless_closed(&error));
                    break;
                }
            }
        }
        if failed.is_none() {
            match transport.flush() {
                Ok(is_flushed) => is_whole &= is_flushed,
                Err(error) => failed = Some(unless_closed(&error)),
            }
        }
        if let Some(error) = failed {
            // What the server said before it closed is read first, if it said something.
            return match self.receive(n)? {
                After::Reopen(error) => self.reopen(n, error),
                After::Keep => self.reopen(n, error),
            };
        }
        if connection.waits_to_write == is_whole {
            connection.waits_to_write = !is_whole;
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, !is_whole);
            let data = epoll::EventData::new_u64(n as u64);
            epoll::modify(&self.epoll, transport.socket(), data, flags)
                .map_err(|error| Error::System(error.into()))?;
        }
        Ok(())
    }
}

/// Returns the error of a connection, unless it is what a server that has closed it leaves: with a
/// request on its way, the end of the connection is a reset.
fn unless_closed(error: &io::Error) -> Option<String> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    let is_closed = matches!(error.kind(), ConnectionReset | BrokenPipe);
    (!is_closed).then(|| error.to_string())
}

/// Enters a response into the record, if its request is measured.
#[inline]
fn count(record: &mut Record, times: &Times, answered: &Answered, now: Instant) {
    debug_assert!(times.measured <= times.end);
    let is_served = !matches!(answered.response.outcome, Outcome::Refused(_));
    record.served_in_all += u64::from(is_served);
    if !answered.of.is_measured {
        return;
    }
    match &answered.response.outcome {
        Outcome::Served => record.served += 1,
        Outcome::Miss => record.misses += 1,
        Outcome::Refused(error) => {
            record.refused += 1;
            record.first_error.get_or_insert_with(|| error.clone());
        }
    }
    record.received_bytes += answered.bytes;
    record.body_bytes += answered.response.body_len;
    record
        .latency
        .record_duration(now.since(answered.of.intended));
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
