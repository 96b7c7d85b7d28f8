//! The clients that are polled, and in which order the node looks at them.
//!
//! The node looks at them in turn. With many, those that are likely to have the next entry are
//! looked at in between, since all others are as many cache misses: those that were served last,
//! and the one that was served after the last one the time before. They get a limited number of
//! turns in each round, so that no client waits for others for longer than that.

/// Clients up to this number are only looked at in turn.
const FEW: usize = 16;

/// The clients that are looked at between two looks at those that are likely to have an entry.
const STEP: usize = 16;

/// The clients that count as served last.
const RECENT: usize = 8;

/// The turns, or the 4 KiB of data, that clients get out of turn in each round.
const CREDIT: u32 = 256;

/// The clients that are polled, by index.
#[derive(Debug, Default)]
pub(super) struct Polled {
    /// In the order of looks.
    clients: Vec<usize>,
    /// The place of the next look.
    at: usize,
    /// Rounds through all of them.
    rounds: u64,
    /// Turns out of turn that are left in this round.
    credit: u32,
    /// Those served last, the latest first.
    recent: [usize; RECENT],
    /// By client, the one that was served after it.
    after: Vec<usize>,
}

impl Polled {
    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Rounds through all clients so far.
    pub(super) fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Adds a client that is not among them.
    pub(super) fn add(&mut self, client: usize) {
        self.clients.push(client);
        if self.after.len() <= client {
            self.after.resize(client + 1, client);
        }
    }

    /// Removes a client, if it is among them.
    pub(super) fn remove(&mut self, client: usize) {
        self.retain(|other| other != client);
    }

    /// Removes those for which `keep` returns false.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let (mut place, mut before) = (0, 0);
        self.clients.retain(|&client| {
            let is_kept = keep(client);
            before += usize::from(!is_kept && place < self.at);
            place += 1;
            is_kept
        });
        // The next look is at the same client, so that none loses its turn.
        self.at -= before;
    }

    /// Returns a client that has an entry; `None` if none has, of all of them.
    #[inline]
    pub(super) fn find(&mut self, has_entry: impl Fn(usize) -> bool) -> Option<usize> {
        let mut left = self.clients.len();
        if left <= FEW {
            return self.look(left, &has_entry);
        }
        loop {
            if let Some(client) = self.likely(&has_entry) {
                return Some(client);
            }
            if left == 0 {
                return None;
            }
            let found = self.look(left.min(STEP), &has_entry);
            if found.is_some() {
                return found;
            }
            left = left.saturating_sub(STEP);
        }
    }

    /// The same of the next [`STEP`] clients alone.
    #[inline]
    pub(super) fn find_near(&mut self, has_entry: impl Fn(usize) -> bool) -> Option<usize> {
        self.look(self.clients.len().min(STEP), &has_entry)
    }

    /// Looks at the next `count` clients.
    #[inline]
    fn look(&mut self, count: usize, has_entry: &impl Fn(usize) -> bool) -> Option<usize> {
        for _ in 0..count {
            if self.at >= self.clients.len() {
                self.at = 0;
                self.rounds += 1;
                self.credit = CREDIT;
            }
            let client = self.clients[self.at];
            self.at += 1;
            if has_entry(client) {
                return Some(client);
            }
        }
        None
    }

    /// Looks at those that are likely to have an entry.
    #[inline]
    fn likely(&mut self, has_entry: &impl Fn(usize) -> bool) -> Option<usize> {
        if self.credit == 0 {
            return None;
        }
        let next = self.after.get(self.recent[0]).copied();
        let found = next
            .into_iter()
            .chain(self.recent)
            .find(|&it| has_entry(it))?;
        self.credit -= 1;
        Some(found)
    }

    /// Takes note that a client was served, with so many bytes of data, or as many as take all
    /// credit.
    #[inline]
    pub(super) fn served(&mut self, client: usize, bytes: u64) {
        if self.clients.len() <= FEW {
            return;
        }
        let blocks = u32::try_from(bytes / 4096).unwrap_or(u32::MAX);
        self.credit = self.credit.saturating_sub(blocks);
        let last = self.recent[0];
        if let Some(after) = self.after.get_mut(last) {
            *after = client;
        }
        if last != client {
            let place = self.recent.iter().position(|&it| it == client);
            let place = place.unwrap_or(RECENT - 1);
            self.recent.copy_within(..place, 1);
            self.recent[0] = client;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    fn polled(count: usize) -> Polled {
        let mut polled = Polled::default();
        (0..count).for_each(|client| polled.add(client));
        polled
    }

    /// Serves the client with the only entry; returns how many were looked at for it.
    fn looks(polled: &mut Polled, client: usize) -> usize {
        let looks = Cell::new(0);
        let found = polled.find(|it| {
            looks.set(looks.get() + 1);
            it == client
        });
        assert_eq!(found, Some(client));
        polled.served(client, 16);
        looks.get()
    }

    #[test]
    fn each_client_is_looked_at_in_turn_whatever_the_others_have() {
        for count in [1, 2, FEW, FEW + 1, 100, 1000] {
            let mut polled = polled(count);
            // All always have entries, each of the most data.
            let mut last = vec![None; count];
            for turn in 0..3 * count + 100 {
                let client = polled.find(|_| true).unwrap();
                polled.served(client, 256 << 10);
                let since: Option<usize> = last[client].replace(turn);
                let waited = since.map_or(turn, |since| turn - since);
                assert!(waited <= count + 8, "{count} clients: {waited}");
            }
            assert!(last.iter().all(Option::is_some), "{count} clients");
        }
    }

    #[test]
    fn one_that_floods_gets_its_credit_and_a_turn_in_each_round() {
        let mut polled = polled(100);
        let most = 11 * (u64::from(CREDIT) + 1);
        let mut turns = 0;
        while polled.rounds() < 10 && turns <= most {
            looks(&mut polled, 3);
            turns += 1;
        }
        assert!((1000..=most).contains(&turns), "{turns}");
    }

    #[test]
    fn of_a_thousand_one_that_is_alone_active_is_found_at_once() {
        let mut polled = polled(1000);
        looks(&mut polled, 700);
        let total: usize = (0..1000).map(|_| looks(&mut polled, 700)).sum();
        // One look out of turn for each, and a round for each credit.
        assert!(total < 1000 * 8, "{total}");
    }

    #[test]
    fn the_order_in_which_clients_take_turns_is_found() {
        let mut polled = polled(1000);
        let order: Vec<usize> = (0..1000).map(|n| n * 7 % 1000).collect();
        for &client in &order {
            looks(&mut polled, client);
        }
        let total: usize = order.iter().map(|&client| looks(&mut polled, client)).sum();
        assert!(total < 1000 * 8, "{total}");
    }

    #[test]
    fn clients_in_use_are_found_in_any_order() {
        let mut polled = polled(1000);
        let mut state = 1_u64;
        let mut total = 0;
        for n in 0..2000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let client = 100 * ((state >> 33) as usize % RECENT);
            let looks = looks(&mut polled, client);
            total += if n < 100 { 0 } else { looks };
        }
        assert!(total < 1900 * 12, "{total}");
    }

    #[test]
    fn a_client_that_leaves_at_its_turn_takes_that_of_no_other() {
        for count in [3, FEW + 1, 100] {
            let mut polled = polled(count);
            let mut seen = Vec::new();
            while let Some(client) = polled.find_near(|_| true).filter(|_| polled.rounds() == 0) {
                seen.push(client);
                if client % 3 == 0 {
                    polled.remove(client);
                }
            }
            assert_eq!(seen, Vec::from_iter(0..count));
        }
    }

    #[test]
    fn none_is_said_only_after_a_look_at_all() {
        let mut polled = polled(100);
        looks(&mut polled, 3);
        let seen = RefCell::new(vec![false; 100]);
        let found = polled.find(|it| {
            seen.borrow_mut()[it] = true;
            false
        });
        assert_eq!(found, None);
        assert!(seen.borrow().iter().all(|&it| it));
    }
}
