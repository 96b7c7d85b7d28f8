//! One connection's requests and their responses, as bytes and times: no socket, no clock.

use std::collections::VecDeque;

use tare_sim::Instant;

use crate::protocol::{Outcome, Protocol, Response};
use crate::workload::Request;
use crate::Unexpected;

/// Bytes that one read takes.
const INPUT: usize = 64 << 10;

/// A request that has been written and not answered.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) request: Request,
    /// The time at which it was to be sent.
    pub(crate) intended: Instant,
    /// The time at which it was.
    pub(crate) issued: Instant,
    /// True if it belongs to the measured part of the trial.
    pub(crate) is_measured: bool,
}

/// A request that was answered.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) of: InFlight,
    pub(crate) response: Response,
    /// Bytes of the response.
    pub(crate) bytes: u64,
}

/// The state of a connection.
pub(crate) struct Session<P> {
    protocol: P,
    out: Vec<u8>,
    written: usize,
    input: Box<[u8]>,
    /// Bytes of the input that are to be read again, with more behind them.
    kept: usize,
    in_flight: VecDeque<InFlight>,
    /// Responses to what was sent when the connection opened.
    greetings: usize,
    response_bytes: u64,
}

impl<P: Protocol> Session<P> {
    pub(crate) fn new(protocol: P) -> Session<P> {
        Session {
            protocol,
            out: Vec::new(),
            written: 0,
            input: vec![0; INPUT].into(),
            kept: 0,
            in_flight: VecDeque::new(),
            greetings: 0,
            response_bytes: 0,
        }
    }

    /// Begins on a new connection, and returns the requests of the old one that have no response.
    pub(crate) fn reopen(&mut self) -> VecDeque<InFlight> {
        self.protocol.end();
        self.out.clear();
        (self.written, self.kept, self.response_bytes) = (0, 0, 0);
        self.greetings = self.protocol.greet(&mut self.out);
        std::mem::take(&mut self.in_flight)
    }

    /// Writes a request, and returns its bytes.
    #[inline]
    pub(crate) fn issue(&mut self, request: InFlight) -> u64 {
        let before = self.out.len();
        self.protocol.write(&request.request, &mut self.out);
        self.in_flight.push_back(request);
        (self.out.len() - before) as u64
    }

    pub(crate) fn in_flight(&self) -> &VecDeque<InFlight> {
        &self.in_flight
    }

    /// The bytes that are to be sent.
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// Notes that this many of them were.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.written += bytes;
        // Where requests are added before all is sent, there may be no moment at which it is.
        if self.written > self.out.len() / 2 {
            self.out.drain(..self.written);
            self.written = 0;
        }
    }

    /// The place for what is received.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.input[self.kept..]
    }

    /// Reads what was received into `room`, and gives each answered request to `answered`.
    pub(crate) fn received(
        &mut self,
        bytes: usize,
        mut answered: impl FnMut(Answered),
    ) -> Result<(), Unexpected> {
        let end = self.kept + bytes;
        let mut at = 0;
        loop {
            let progress = self.protocol.read(&self.input[at..end])?;
            at += progress.consumed;
            self.response_bytes += progress.consumed as u64;
            let Some(response) = progress.response else {
                break;
            };
            if self.greetings > 0 {
                if let Outcome::Refused(error) = &response.outcome {
                    let expected = "a server that accepts what is sent when a connection opens: \
                                    HELLO 3, if it is asked for RESP 3";
                    return Err(Unexpected::said(error, expected));
                }
                self.greetings -= 1;
                self.response_bytes = 0;
                continue;
            }
            let answer = self.answer(response);
            let wrong = || Unexpected::bytes(&[], "no response without a request");
            answered(answer.ok_or_else(wrong)?);
            if at == end {
                break;
            }
        }
        self.input.copy_within(at..end, 0);
        self.kept = end - at;
        Ok(())
    }

    #[inline]
    fn answer(&mut self, response: Response) -> Option<Answered> {
        Some(Answered {
            of: self.in_flight.pop_front()?,
            response,
            bytes: std::mem::take(&mut self.response_bytes),
        })
    }

    /// Ends the oldest request without a response of the protocol.
    pub(crate) fn conclude(&mut self) -> Option<Answered> {
        self.response_bytes = 0;
        self.answer(Response::new(Outcome::Served, 0))
    }

    /// True if a part of the response to a request has been received, and not its end.
    pub(crate) fn is_within_response(&self) -> bool {
        let has_begun = self.kept > 0 || self.response_bytes > 0;
        has_begun && !self.in_flight.is_empty()
    }

    /// Notes the end of the connection, which may be that of a response.
    pub(crate) fn ended(&mut self) -> Option<Answered> {
        let response = self.protocol.end()?;
        self.answer(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Resp, RespVersion};
    use crate::{Key, Operation};

    fn request() -> InFlight {
        InFlight {
            request: Request {
                operation: Operation::Set,
                key: Key::Number(1),
                value_len: 1000,
            },
            intended: Instant::ZERO,
            issued: Instant::ZERO,
            is_measured: true,
        }
    }

    #[test]
    fn memory_for_requests_is_bounded_where_something_is_always_left_to_send() {
        let mut session = Session::new(Resp::new(RespVersion::Two));
        session.issue(request());
        for n in 0..10_000 {
            let bytes = session.issue(request()) as usize;
            // All but a part of the last one.
            let sent = session.unsent().len() - bytes / 2;
            session.sent(sent);
            let capacity = session.out.capacity();
            assert!(capacity < 16 << 10, "{capacity} bytes after {n} requests");
        }
    }

    #[test]
    fn a_greeting_that_is_refused_is_an_error_with_the_server_s_words() {
        let mut session = Session::new(Resp::new(RespVersion::Three));
        session.reopen();
        session.issue(request());
        let answers = b"-ERR unknown command 'HELLO'\r\n+OK\r\n";
        session.room()[..answers.len()].copy_from_slice(answers);
        let error = session.received(answers.len(), |_| ()).unwrap_err();
        let error = error.to_string();
        let found = error.contains("ERR unknown command") && error.contains("HELLO 3");
        assert!(found, "{error}");
    }
}
