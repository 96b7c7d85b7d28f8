//! The MAC address of one neighbor: asked for, kept fresh, and forgotten when it no longer answers.

use std::time::Duration;

use tare_packet::ethernet::Mac;
use tare_sim::Instant;

/// The pause after a first request without an answer; each one after that is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause between requests.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// The time for which an address is not probed.
const FRESH: Duration = Duration::from_secs(60);
/// The pause between probes of an address in doubt.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// Probes to the station itself before requests are broadcast, and broadcasts before the address is
/// forgotten.
const PROBES: u32 = 3;

/// The state of a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its address is unknown and asked for.
    Asking,
    /// Its address is known.
    Reachable,
    /// Its address is known and in doubt.
    Probing,
}

impl State {
    /// Returns its name in status reports.
    pub fn name(self) -> &'static str {
        match self {
            State::Asking => "asking",
            State::Reachable => "reachable",
            State::Probing => "probing",
        }
    }
}

/// A request that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// To all stations.
    Broadcast,
    /// To the one that is known.
    Station(Mac),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    mac: Option<Mac>,
    /// Consecutive requests without an answer.
    asked: u32,
    due: Instant,
}

impl Entry {
    pub(crate) fn new(now: Instant) -> Entry {
        Entry {
            mac: None,
            asked: 0,
            due: now,
        }
    }

    pub(crate) fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// Returns the time of the next request.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    pub(crate) fn state(&self) -> State {
        match (self.mac, self.asked) {
            (None, _) => State::Asking,
            (Some(_), 0) => State::Reachable,
            (Some(_), _) => State::Probing,
        }
    }

    /// Returns the request that is due.
    pub(crate) fn tick(&mut self, now: Instant) -> Option<Request> {
        if now < self.due {
            return None;
        }
        if self.asked >= 2 * PROBES && self.mac.take().is_some() {
            self.asked = 0;
        }
        self.asked += 1;
        let pause = match self.mac {
            Some(_) => PROBE_PAUSE,
            None => LONGEST_PAUSE.min(FIRST_PAUSE * 2u32.pow(self.asked.min(10) - 1)),
        };
        self.due = now + pause;
        Some(match self.mac {
            Some(mac) if self.asked <= PROBES => Request::Station(mac),
            _ => Request::Broadcast,
        })
    }

    /// Returns true if a request was sent and not answered yet.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked > 0
    }

    /// Takes over the address that the neighbor told.
    pub(crate) fn told(&mut self, now: Instant, mac: Mac) {
        self.mac = Some(mac);
        self.asked = 0;
        self.due = now + FRESH;
    }

    /// Asks at once, because the address may have changed, and uses the known one meanwhile.
    pub(crate) fn doubt(&mut self, now: Instant) {
        self.asked = 0;
        self.due = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 9];

    fn requests(entry: &mut Entry, from: f64, to: f64) -> Vec<(f64, Request)> {
        let mut requests = Vec::new();
        while entry.due().as_secs_f64() <= to {
            let at = entry.due().max(Instant::from_nanos((from * 1e9) as u64));
            requests.push((at.as_secs_f64(), entry.tick(at).unwrap()));
            assert_eq!(entry.tick(at), None);
        }
        requests
    }

    #[test]
    fn one_that_does_not_answer_is_asked_ever_less_often() {
        let mut entry = Entry::new(Instant::ZERO);
        let asked = requests(&mut entry, 0.0, 100.0);
        let times: Vec<f64> = asked.iter().map(|(at, _)| *at).collect();
        assert_eq!(
            times[..8],
            [0.0, 0.25, 0.75, 1.75, 3.75, 7.75, 15.75, 23.75]
        );
        assert!(asked.len() < 20);
        assert!(asked.iter().all(|(_, ask)| *ask == Request::Broadcast));
    }

    #[test]
    fn one_that_falls_silent_is_used_until_it_was_asked_six_times() {
        let mut entry = Entry::new(Instant::ZERO);
        entry.tick(Instant::ZERO);
        entry.told(Instant::ZERO, MAC);
        let asked = requests(&mut entry, 0.0, 65.0);
        let station = (60..63).map(|at| (f64::from(at), Request::Station(MAC)));
        let broadcast = (63..66).map(|at| (f64::from(at), Request::Broadcast));
        assert_eq!(asked, station.chain(broadcast).collect::<Vec<_>>());
        assert_eq!(entry.mac(), Some(MAC));
        entry.tick(entry.due());
        assert_eq!(entry.mac(), None);
        entry.told(entry.due(), MAC);
        assert_eq!((entry.mac(), entry.state()), (Some(MAC), State::Reachable));
    }
}
