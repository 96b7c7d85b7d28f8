//! The station address of a next hop: asked for, kept fresh, and forgotten when it no longer
//! answers.
//!
//! There are at most four of them, one an interface and address family: whatever stations say about
//! others is of no interest, so there is nothing that they could fill.

use std::net::IpAddr;
use std::time::Duration;

use tare_packet::ethernet::Mac;
use tare_sim::Instant;

/// After a first question without an answer; each pause after that is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause between questions.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// How long an address is taken for granted.
const FRESH: Duration = Duration::from_secs(60);
/// Between the questions that an address in doubt is asked.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// Questions to the station itself before all stations are asked, and to all of them before it is
/// forgotten.
const PROBES: u32 = 3;

/// A question that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// To all stations.
    Everyone,
    /// To the one that is known.
    Station(Mac),
}

/// A next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Neighbor {
    pub(super) address: IpAddr,
    mac: Option<Mac>,
    /// Questions in a row that were not answered.
    asked: u32,
    due: Instant,
}

impl Neighbor {
    pub(super) fn new(address: IpAddr, now: Instant) -> Neighbor {
        Neighbor {
            address,
            mac: None,
            asked: 0,
            due: now,
        }
    }

    /// Its station address, if it is known.
    pub(super) fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// When there is something to ask.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn state(&self) -> &'static str {
        match (self.mac, self.asked) {
            (None, _) => "asking",
            (Some(_), 0) => "reachable",
            (Some(_), _) => "probing",
        }
    }

    /// The question that is due.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Ask> {
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
            Some(mac) if self.asked <= PROBES => Ask::Station(mac),
            _ => Ask::Everyone,
        })
    }

    /// Whether it was asked and has not answered yet.
    pub(super) fn is_asked(&self) -> bool {
        self.asked > 0
    }

    /// It has told its station address.
    pub(super) fn told(&mut self, now: Instant, mac: Mac) {
        self.mac = Some(mac);
        self.asked = 0;
        self.due = now + FRESH;
    }

    /// The address may have changed: asks at once, and goes on with the one that was known
    /// meanwhile.
    pub(super) fn doubt(&mut self, now: Instant) {
        self.asked = 0;
        self.due = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 9];

    fn questions(neighbor: &mut Neighbor, from: f64, to: f64) -> Vec<(f64, Ask)> {
        let mut questions = Vec::new();
        while neighbor.due().as_secs_f64() <= to {
            let at = neighbor.due().max(Instant::from_nanos((from * 1e9) as u64));
            questions.push((at.as_secs_f64(), neighbor.tick(at).unwrap()));
            assert_eq!(neighbor.tick(at), None);
        }
        questions
    }

    #[test]
    fn one_that_does_not_answer_is_asked_ever_less_often() {
        let mut neighbor = Neighbor::new(IpAddr::from([10, 0, 0, 1]), Instant::ZERO);
        let asked = questions(&mut neighbor, 0.0, 100.0);
        let times: Vec<f64> = asked.iter().map(|(at, _)| *at).collect();
        assert_eq!(
            times[..8],
            [0.0, 0.25, 0.75, 1.75, 3.75, 7.75, 15.75, 23.75]
        );
        assert!(asked.len() < 20);
        assert!(asked.iter().all(|(_, ask)| *ask == Ask::Everyone));
    }

    #[test]
    fn one_that_falls_silent_is_used_until_it_was_asked_six_times() {
        let mut neighbor = Neighbor::new(IpAddr::from([10, 0, 0, 1]), Instant::ZERO);
        neighbor.tick(Instant::ZERO);
        neighbor.told(Instant::ZERO, MAC);
        let asked = questions(&mut neighbor, 0.0, 65.0);
        let station = (60..63).map(|at| (f64::from(at), Ask::Station(MAC)));
        let everyone = (63..66).map(|at| (f64::from(at), Ask::Everyone));
        assert_eq!(asked, station.chain(everyone).collect::<Vec<_>>());
        assert_eq!(neighbor.mac(), Some(MAC));
        neighbor.tick(neighbor.due());
        assert_eq!(neighbor.mac(), None);
        neighbor.told(neighbor.due(), MAC);
        assert_eq!((neighbor.mac(), neighbor.state()), (Some(MAC), "reachable"));
    }
}
