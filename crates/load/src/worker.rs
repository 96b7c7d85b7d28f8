//! A thread of the generator: its connections, driven by `epoll`.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::time::{clock_gettime, ClockId};
use tare_histogram::Histogram;
use tare_sim::Instant;

use crate::pace::{Gaps, Pace, Schedule};
use crate::poller::Poller;
use crate::protocol::{Protocol, Wire};
use crate::record::Record;
use crate::session::{InFlight, Session};
use crate::trace::Trace;
use crate::transport::Transport;
use crate::trial::Trial;
use crate::workload::Requests;
use crate::Error;

/// Times that a connection is opened without a response before the trial is given up.
const OPENINGS_MAX: u32 = 3;

/// The longest wait between two looks at what has timed out.
const PULSE: Duration = Duration::from_millis(50);

pub(crate) struct Worker<'a, P> {
    trial: &'a Trial<'a, P>,
    /// The start and the end of the measured part.
    measured: Instant,
    end: Instant,
    /// Requests in flight per connection.
    pipeline: usize,
    requests: Requests,
    /// Requests that may be sent.
    quota: u64,
    /// `None` in a closed loop.
    schedule: Option<Schedule>,
    poller: Poller,
    connections: Vec<Connection<P>>,
    /// Places for a request in an open loop: the connection, and since when it is free. The one
    /// that is free for longest comes first.
    free: VecDeque<(usize, Instant)>,
    /// Connections that had an event and may have something to send. Sending begins when all that
    /// has arrived is read: a server that waits is then woken once for several requests, which
    /// costs both sides less than once for each.
    to_send: Vec<usize>,
    record: Record,
    /// Latencies of the intervals that are over, and their number.
    total: Histogram,
    intervals_over: u32,
    /// The time of an open loop's measured part in which there was nothing to do.
    idle: Duration,
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
    /// The time of the last one.
    opened: Instant,
    /// The time at which the handshake of a request ended.
    shaken: Option<Instant>,
}

/// The end of a connection: an error, or `None` if the server closed it in good order.
type Ended = Option<String>;

impl<'a, P: Protocol + Clone> Worker<'a, P> {
    /// Thread number `thread`, with its share of the trial.
    pub(crate) fn new(trial: &'a Trial<'a, P>, thread: usize) -> Result<Worker<'a, P>, Error> {
        let (options, threads) = (trial.options, trial.threads);
        let (n, of) = (thread as u64, threads as u64);
        let share = |whole: u64| whole / of + u64::from(n < whole % of);
        let trace = options.trace.as_ref();
        let lines = || trace.map(|trace| trace.lines(n, of)).transpose();
        let limits = [options.requests, trace.map(Trace::requests)];
        let limits = limits.into_iter().flatten();
        let connection = |_| Connection {
            transport: None,
            session: Session::new(trial.protocol.clone()),
            due: 0,
            waits_to_write: false,
            openings: 0,
            opened: Instant::ZERO,
            shaken: None,
        };
        let connections = share(options.connections.max(1) as u64);
        let measured = trial.start + options.warm_up;
        Ok(Worker {
            trial,
            measured,
            end: measured + options.duration,
            pipeline: match P::wire() {
                Wire::Stream => options.pipeline.max(1),
                Wire::Datagrams | Wire::Handshakes => 1,
            },
            requests: match lines()? {
                Some(lines) => Requests::of_trace(lines),
                None => Requests::new(&options.workload, options.seed, n, of),
            },
            quota: limits.map(share).min().unwrap_or(u64::MAX),
            schedule: match lines()?.filter(|_| options.pace == Pace::Trace) {
                Some(lines) => Some(Schedule::new(trial.start, Gaps::Trace(lines))),
                None => {
                    let (pace, seed) = (options.pace, options.seed);
                    pace.schedule(thread, threads, trial.start, seed)
                }
            },
            poller: Poller::new()?,
            connections: (0..connections).map(connection).collect(),
            free: VecDeque::new(),
            to_send: Vec::new(),
            record: Record::default(),
            total: Histogram::new(),
            intervals_over: 0,
            idle: Duration::ZERO,
        })
    }

    /// Runs the trial to its end.
    pub(crate) fn run(mut self) -> Result<Record, Error> {
        // A closed loop sends as soon as it has a connection; requests of an open loop should find
        // theirs open.
        if self.schedule.is_none() {
            self.trial.wait_for_start();
            self.begin_late();
        }
        for n in 0..self.connections.len() {
            self.open(n)?;
        }
        self.trial.wait_for_start();
        let (mut cpu_start, mut cpu_end) = (None, None);
        let mut look_at = Instant::ZERO;
        loop {
            let now = Instant::now();
            if cpu_start.is_none() && now >= self.measured {
                cpu_start = Some(processor_time());
            }
            let is_stopped = self.trial.is_stopped();
            if now >= self.end {
                cpu_end.get_or_insert_with(processor_time);
                let is_over = now.since(self.end) >= self.trial.options.timeout;
                if is_over || is_stopped || self.is_drained() {
                    break;
                }
            } else if is_stopped || self.quota == 0 {
                self.end = now;
                self.measured = self.measured.min(now);
                continue;
            }
            self.note_intervals(now);
            self.issue_due(now)?;
            if now >= look_at {
                self.end_overdue(now)?;
                look_at = now + PULSE;
            }
            let wait = self.next_event(now).since(now).min(PULSE);
            if self.schedule.is_none() {
                self.poller.wait_closed(now, wait)?;
            } else {
                let idle = self.poller.wait_open(wait)?;
                if now >= self.measured && now < self.end {
                    self.idle += idle;
                }
            }
            let mut events = std::mem::take(&mut self.poller.events);
            for event in events.drain(..) {
                self.work(event.data.u64() as usize, event.flags)?;
            }
            self.poller.events = events;
            self.send()?;
        }
        // Without a limit of time, the trial lasts until the last response.
        if self.quota == 0 && self.schedule.is_none() {
            self.end = Instant::now();
            cpu_end = Some(processor_time());
        }
        for n in 0..self.connections.len() {
            self.close(n);
        }
        // A thread that was not run for a while has not passed all of them.
        self.note_intervals(Instant::now());
        self.end_interval(true);
        self.count_unissued();
        let unanswered = self.record.in_flight();
        self.record.timed_out += unanswered;
        if unanswered > 0 && !self.trial.is_stopped() {
            self.note_no_response();
        }
        self.record.latency = self.total;
        let (start, end) = (cpu_start.unwrap_or_default(), cpu_end.unwrap_or_default());
        self.record.cpu = end.saturating_sub(start);
        self.record.duration = self.end.since(self.measured);
        if self.schedule.is_some() && !self.record.duration.is_zero() {
            let (idle, duration) = (self.idle, self.record.duration);
            self.record.idle = Some(idle.div_duration_f64(duration).min(1.0));
        }
        Ok(self.record)
    }

    /// Moves the measured part by as much as this thread is late, as on a busy machine: it is as
    /// long as asked. Several threads keep to one time, or their requests would not add up to a
    /// rate.
    fn begin_late(&mut self) {
        if self.trial.threads == 1 {
            let late = Instant::now().since(self.trial.start);
            self.measured += late;
            self.end += late;
        }
    }

    /// Ends the intervals that are over, but for the last one, whose end is that of the trial.
    fn note_intervals(&mut self, now: Instant) {
        let Some(intervals) = self.trial.intervals else {
            return;
        };
        while {
            let over = self.measured + intervals.length * (self.intervals_over + 1);
            over <= now && over < self.end
        } {
            self.end_interval(false);
        }
    }

    /// Hands on the latencies of an interval, if that is asked.
    fn end_interval(&mut self, is_last: bool) {
        let latency = std::mem::take(&mut self.record.latency);
        if let Some(intervals) = self.trial.intervals {
            let (n, threads) = (self.intervals_over, self.trial.threads);
            intervals.add(n, &latency, threads, is_last);
        }
        self.total.merge(&latency);
        self.intervals_over += 1;
    }

    /// True if all that is measured has been sent, and all that was sent is answered: also the
    /// requests of the warm-up, which the server counts as well. A handshake is an exception, since
    /// its connection is closed in any case.
    fn is_drained(&self) -> bool {
        let is_issued = |schedule: &Schedule| self.quota == 0 || schedule.peek() >= self.end;
        let is_idle = |connection: &Connection<P>| connection.session.in_flight().is_empty();
        self.record.in_flight() == 0
            && self.schedule.as_ref().is_none_or(is_issued)
            && (P::wire() == Wire::Handshakes || self.connections.iter().all(is_idle))
    }

    /// Counts the measured requests that were to be sent and have not been.
    fn count_unissued(&mut self) {
        let Some(schedule) = &mut self.schedule else {
            return;
        };
        self.quota -= schedule.pass(self.measured, self.quota);
        let unissued = schedule.pass(self.end, self.quota);
        self.quota -= unissued;
        self.record.scheduled += unissued;
    }

    /// The time at which something is to be done if nothing arrives.
    fn next_event(&self, now: Instant) -> Instant {
        let phases = [self.measured, self.end];
        let phase = phases.into_iter().find(|&phase| now < phase);
        let phase = phase.unwrap_or(Instant::NEVER);
        match &self.schedule {
            Some(schedule) if !self.free.is_empty() => phase.min(schedule.peek()),
            _ => phase,
        }
    }

    /// Sends the requests of an open loop that are due, as far as connections are free.
    fn issue_due(&mut self, now: Instant) -> Result<(), Error> {
        while let Some(schedule) = &mut self.schedule {
            let intended = schedule.peek();
            if intended > now || intended >= self.end || self.quota == 0 {
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
            if intended >= self.measured {
                let due = intended.max(free_since);
                self.record.waited += u64::from(free_since > intended);
                self.record.lateness.record_duration(issued.since(due));
            }
            self.issue(n, intended, issued)?;
            self.flush(n)?;
        }
        Ok(())
    }

    /// Writes a new request.
    #[inline]
    fn issue(&mut self, n: usize, intended: Instant, issued: Instant) -> Result<(), Error> {
        let is_measured = intended >= self.measured;
        let request = InFlight {
            request: self.requests.draw()?,
            intended,
            issued,
            is_measured,
        };
        let bytes = self.connections[n].session.issue(request);
        self.quota -= 1;
        self.record.sent_in_all += 1;
        if is_measured {
            self.record.scheduled += 1;
            self.record.issued += 1;
            self.record.sent_bytes += bytes;
        }
        Ok(())
    }

    /// Writes a request of a closed loop, if it is not over.
    #[inline]
    fn issue_closed(&mut self, n: usize, now: Instant) -> Result<(), Error> {
        match now < self.end && self.quota > 0 {
            true => self.issue(n, now, now),
            false => Ok(()),
        }
    }

    /// Lets a connection send `requests` more.
    #[inline]
    fn allow(&mut self, n: usize, requests: usize, now: Instant) -> Result<(), Error> {
        for _ in 0..requests {
            match self.schedule {
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
        let is_over = now >= self.end || self.quota == 0;
        if P::wire() == Wire::Handshakes && (is_over || self.schedule.is_some()) {
            // A handshake opens its connection when it is due.
            self.close(n);
            return self.allow(n, 1, now);
        }
        let resent = self.connect(n)?;
        self.allow(n, self.pipeline - resent, now)
    }

    /// Closes a connection, if it is open, and counts its handshake.
    fn close(&mut self, n: usize) {
        let transport = self.connections[n].transport.take();
        match transport.and_then(|transport| transport.handshake()) {
            Some(rustls::HandshakeKind::Resumed) => self.record.resumed_handshakes += 1,
            Some(_) => self.record.full_handshakes += 1,
            None => {}
        }
    }

    /// Replaces a connection by a new one, and returns the number of requests that were in flight
    /// and are sent again.
    fn connect(&mut self, n: usize) -> Result<usize, Error> {
        self.close(n);
        let connection = &mut self.connections[n];
        connection.openings += 1;
        connection.opened = Instant::now();
        connection.shaken = None;
        let opened = self.trial.target.open(P::wire());
        let transport = opened.map_err(|error| Error::connection(self.trial.target, &error))?;
        self.poller.add(transport.socket(), n)?;
        connection.transport = Some(transport);
        connection.waits_to_write = true;
        connection.due = 0;
        self.record.connections_opened += 1;
        let again = connection.session.reopen();
        let resent = again.len();
        self.record.resent += measured(&again);
        self.record.sent_in_all += resent as u64;
        for request in again {
            connection.session.issue(request);
        }
        Ok(resent)
    }

    /// Ends a connection and opens another. What was in flight is sent again if the server closed
    /// it in good order after a response; if not, it has failed.
    fn reopen(&mut self, n: usize, ended: Ended) -> Result<(), Error> {
        if ended.is_none() {
            self.conclude(n);
            if self.is_left_idle(n) {
                return self.reopen_idle(n);
            }
        }
        let target = self.trial.target;
        let connection = &mut self.connections[n];
        if connection.openings >= OPENINGS_MAX {
            let error = ended.unwrap_or_else(|| "it is closed without a response".into());
            return Err(Error::connection(target, &error));
        }
        if ended.is_some() || connection.openings > 0 {
            self.record.failed += measured(&connection.session.reopen());
            let closed = || format!("{}: the connection is closed", target.address);
            let error = || ended.unwrap_or_else(closed);
            self.record.first_error.get_or_insert_with(error);
        }
        self.open(n)
    }

    /// True if the server has closed a connection that it has answered nothing on and that it was
    /// asked nothing on, as servers do after some time.
    fn is_left_idle(&self, n: usize) -> bool {
        let connection = &self.connections[n];
        let is_open = |transport: &Transport| !transport.is_handshaking();
        P::wire() == Wire::Stream
            && connection.openings > 0
            && connection.session.in_flight().is_empty()
            && connection.transport.as_ref().is_some_and(is_open)
    }

    /// Opens a connection that was idle, which is no failure: at once, or, if the server has closed
    /// it at once, at the next look at what has timed out.
    fn reopen_idle(&mut self, n: usize) -> Result<(), Error> {
        let connection = &mut self.connections[n];
        connection.openings -= 1;
        if Instant::now().since(connection.opened) >= PULSE {
            return self.open(n);
        }
        self.close(n);
        self.free.retain(|&(other, _)| other != n);
        Ok(())
    }

    /// Ends the connections whose oldest request has waited too long, and opens those that were
    /// left closed.
    fn end_overdue(&mut self, now: Instant) -> Result<(), Error> {
        let timeout = self.trial.options.timeout;
        for n in 0..self.connections.len() {
            let connection = &mut self.connections[n];
            if P::wire() == Wire::Stream && connection.transport.is_none() {
                self.open(n)?;
                continue;
            }
            let oldest = connection.session.in_flight().front();
            if oldest.is_none_or(|oldest| now.since(oldest.issued) < timeout) {
                continue;
            }
            if connection.shaken.is_some() {
                // A server that does not close its connections.
                self.conclude(n);
                self.open(n)?;
                continue;
            }
            self.record.timed_out += measured(&connection.session.reopen());
            self.note_no_response();
            let connection = &mut self.connections[n];
            let answers = self.record.served_in_all > 0 || connection.openings < OPENINGS_MAX;
            if P::wire() == Wire::Datagrams && answers {
                // A datagram may be lost; the socket is as good as before.
                connection.openings += 1;
                self.allow(n, 1, now)?;
                self.flush(n)?;
            } else {
                // A server that answers nothing is given up as one that closes is.
                self.reopen(n, Some("no response in time".into()))?;
            }
        }
        Ok(())
    }

    fn note_no_response(&mut self) {
        let timeout = self.trial.options.timeout;
        let error = || format!("no response within {timeout:?}");
        self.record.first_error.get_or_insert_with(error);
    }

    fn work(&mut self, n: usize, flags: EventFlags) -> Result<(), Error> {
        let received = match self.connections[n].waits_to_write && !flags.contains(EventFlags::IN) {
            true => Ok(()),
            false => self.receive(n),
        };
        let connection = &mut self.connections[n];
        if P::wire() == Wire::Handshakes && connection.shaken.is_none() {
            let transport = connection.transport.as_mut();
            if let Some(transport) = transport.filter(|it| it.handshake().is_some()) {
                connection.shaken = Some(Instant::now());
                transport.finish();
            }
        }
        match received {
            Ok(()) => self.to_send.push(n),
            Err(ended) => self.reopen(n, ended)?,
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
                connection.openings = 0;
                self.record.count(&answered, at);
            }
        }
    }

    /// Reads what has arrived.
    fn receive(&mut self, n: usize) -> Result<(), Ended> {
        let connection = &mut self.connections[n];
        let Some(transport) = &mut connection.transport else {
            return Ok(());
        };
        loop {
            let room = connection.session.room();
            let wanted = room.len();
            let read = transport.read(room);
            let bytes = match read {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Ok(()),
                Err(error) => {
                    let closed = || closed_within::<P>(&connection.session);
                    return Err(unless_closed(&error).or_else(closed));
                }
            };
            let now = Instant::now();
            if bytes == 0 {
                let Some(answered) = connection.session.ended() else {
                    return Err(closed_within::<P>(&connection.session));
                };
                connection.openings = 0;
                self.record.count(&answered, now);
                return Err(None);
            }
            let (mut answers, mut closes) = (0, false);
            let read = connection.session.received(bytes, |answered| {
                answers += 1;
                closes |= answered.response.closes;
                self.record.count(&answered, now);
            });
            if answers > 0 {
                connection.openings = 0;
            }
            read.map_err(|error| Some(error.to_string()))?;
            if closes {
                return Err(None);
            }
            match self.schedule {
                None => connection.due += answers,
                Some(_) => self.free.extend((0..answers).map(|_| (n, now))),
            }
            // A short read took all that there was.
            if bytes < wanted && !transport.keeps_plaintext() {
                return Ok(());
            }
        }
    }

    /// Sends what is written, and asks to be told when the rest can be sent.
    fn flush(&mut self, n: usize) -> Result<(), Error> {
        let connection = &mut self.connections[n];
        let Some(transport) = &mut connection.transport else {
            return Ok(());
        };
        match send_all(&mut connection.session, transport) {
            Ok(is_whole) if connection.waits_to_write == is_whole => {
                connection.waits_to_write = !is_whole;
                self.poller.tell(transport.socket(), n, !is_whole)
            }
            Ok(_) => Ok(()),
            Err(error) => {
                // What the server said before it closed is read first, if it said something.
                let ended = self.receive(n).err();
                self.reopen(n, ended.unwrap_or_else(|| unless_closed(&error)))
            }
        }
    }
}

/// Sends what is written, and returns true if nothing is left.
#[inline]
fn send_all<P: Protocol>(session: &mut Session<P>, transport: &mut Transport) -> io::Result<bool> {
    while !session.unsent().is_empty() {
        match transport.write(session.unsent())? {
            Some(bytes) => session.sent(bytes),
            None => return Ok(false),
        }
    }
    transport.flush()
}

/// Returns the error of a connection, unless it is what a server that has closed it leaves: with a
/// request on its way, the end of the connection is a reset.
fn unless_closed(error: &io::Error) -> Ended {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    let is_closed = matches!(error.kind(), ConnectionReset | BrokenPipe);
    (!is_closed).then(|| error.to_string())
}

/// Returns the error of a connection that is closed before all of a response has come. What a
/// server says during handshakes is no response.
fn closed_within<P: Protocol>(session: &Session<P>) -> Ended {
    let is_cut = P::wire() == Wire::Stream && session.is_within_response();
    is_cut.then(|| "closed within a response".into())
}

fn measured(requests: &VecDeque<InFlight>) -> u64 {
    let measured = requests.iter().filter(|request| request.is_measured);
    measured.count() as u64
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
