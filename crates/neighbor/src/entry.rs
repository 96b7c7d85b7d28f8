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
/// The pause between probes of an address that another station claims. A station that has taken
/// over an address says so, and is believed after three of these pauses without an answer.
const CONTEST_PAUSE: Duration = Duration::from_millis(25);
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
    /// The last known address, also after it was forgotten.
    last: Option<Mac>,
    /// Consecutive requests without an answer.
    asked: u32,
    due: Instant,
    /// True if another station claims the address.
    contested: bool,
    /// The time of the last answer.
    told: Instant,
}

impl Entry {
    pub(crate) fn new(now: Instant) -> Entry {
        Entry {
            mac: None,
            last: None,
            asked: 0,
            due: now,
            contested: false,
            told: now,
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
            Some(_) if self.contested && self.asked <= PROBES => CONTEST_PAUSE,
            Some(_) => PROBE_PAUSE,
            None => LONGEST_PAUSE.min(FIRST_PAUSE * 2u32.pow(self.asked.min(10) - 1)),
        };
        self.due = now + pause;
        Some(match self.mac {
            Some(mac) if self.asked <= PROBES => Request::Station(mac),
            _ => Request::Broadcast,
        })
    }

    /// Returns true if a request was sent that the station with this address may answer, and no
    /// answer came yet. A request to one station may be answered by that station alone.
    pub(crate) fn expects(&self, mac: Mac) -> bool {
        match self.mac {
            Some(known) if self.asked <= PROBES => self.asked > 0 && mac == known,
            _ => self.asked > 0,
        }
    }

    /// Takes over the address of an expected answer and returns the one before, if it was another.
    pub(crate) fn answered(&mut self, now: Instant, mac: Mac) -> Option<Mac> {
        let before = self.last.replace(mac);
        self.mac = Some(mac);
        self.asked = 0;
        self.contested = false;
        self.told = now;
        self.due = now + FRESH;
        before.filter(|before| *before != mac)
    }

    /// Takes note of a message that was not asked for: if it claims another address than the known
    /// one, the station that is known is asked, a second after its last answer at the earliest. It
    /// is used as long as it answers.
    pub(crate) fn claimed(&mut self, now: Instant, mac: Mac) {
        if self.asked > PROBES || self.mac.is_none_or(|known| known == mac) {
            return;
        }
        self.contested = true;
        let due = match self.asked {
            0 => now.max(self.told + PROBE_PAUSE),
            _ => now + CONTEST_PAUSE,
        };
        self.due = self.due.min(due);
    }

    /// Asks all stations at once, because the link may be another one, and uses the known address
    /// meanwhile.
    pub(crate) fn doubt(&mut self, now: Instant) {
        self.asked = match self.mac {
            Some(_) => PROBES,
            None => 0,
        };
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
        entry.answered(Instant::ZERO, MAC);
        let asked = requests(&mut entry, 0.0, 65.0);
        let station = (60..63).map(|at| (f64::from(at), Request::Station(MAC)));
        let broadcast = (63..66).map(|at| (f64::from(at), Request::Broadcast));
        assert_eq!(asked, station.chain(broadcast).collect::<Vec<_>>());
        assert_eq!(entry.mac(), Some(MAC));
        entry.tick(entry.due());
        assert_eq!(entry.mac(), None);
        assert_eq!(entry.answered(entry.due(), MAC), None);
        assert_eq!((entry.mac(), entry.state()), (Some(MAC), State::Reachable));
    }

    #[test]
    fn a_change_is_noticed_also_after_the_address_was_forgotten() {
        let mut entry = Entry::new(Instant::ZERO);
        entry.tick(Instant::ZERO);
        assert_eq!(entry.answered(Instant::ZERO, MAC), None);
        requests(&mut entry, 0.0, 70.0);
        assert_eq!(entry.mac(), None);
        assert_eq!(entry.answered(entry.due(), [2; 6]), Some(MAC));
    }

    #[test]
    fn claims_cause_a_request_per_second_at_most() {
        let mut entry = Entry::new(Instant::ZERO);
        entry.tick(Instant::ZERO);
        entry.answered(Instant::ZERO, MAC);
        let mut requests = 0;
        for ms in 0..10_000 {
            let now = Instant::from_nanos(ms * 1_000_000);
            let before = entry.clone();
            entry.claimed(now, MAC);
            assert_eq!(
                entry, before,
                "a claim of the known address changes nothing"
            );
            entry.claimed(now, [2; 6]);
            if let Some(request) = entry.tick(now) {
                assert_eq!(request, Request::Station(MAC));
                requests += 1;
                assert!(entry.expects(MAC) && !entry.expects([2; 6]));
                entry.answered(now, MAC);
            }
        }
        assert_eq!(requests, 9);
    }
}
