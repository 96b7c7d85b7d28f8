//! The numbers of a window, for another process.

use std::sync::atomic::Ordering;

use super::{bit_of, Window, WORDS};

/// The numbers that a window has received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    /// The highest.
    pub(crate) top: u64,
    /// A bit for each number: the word that holds the highest one, then those before it.
    pub(crate) words: Vec<u32>,
}

impl Received {
    /// All numbers up to `top`.
    pub(crate) fn up_to(top: u64) -> Received {
        let last = bit_of(top) | (bit_of(top) - 1);
        Received {
            top,
            words: if top == 0 { Vec::new() } else { vec![last] },
        }
    }

    /// Returns false if no window can have received these.
    pub(crate) fn is_valid(&self) -> bool {
        match self.words.first() {
            None => self.top == 0,
            Some(last) => {
                let above = !(bit_of(self.top) | (bit_of(self.top) - 1));
                self.top > 0
                    && self.words.len() < WORDS
                    && self.words.len() as u64 <= self.top / 32 + 1
                    && last & bit_of(self.top) != 0
                    && last & above == 0
            }
        }
    }
}

impl Window {
    /// Returns the numbers received. No worker may claim one meanwhile.
    pub(crate) fn received(&self) -> Received {
        let top = self.top();
        let words = match top {
            0 => 0,
            _ => (self.size().div_ceil(32) + 1).min(top / 32 + 1),
        };
        let number = |words_back: u64| (top / 32 - words_back) * 32;
        Received {
            top,
            words: (0..words)
                .map(|back| self.word(top, number(back)).load(Ordering::Relaxed))
                .collect(),
        }
    }

    /// Takes over what another window has received. Numbers that it does not tell of, because it
    /// was smaller, count as received.
    pub(crate) fn restore(&mut self, received: &Received) {
        if received.top == 0 {
            return;
        }
        let top = received.top;
        *self.top.get_mut() = top;
        let mut words = received.words.iter().copied();
        *self.last.get_mut() = words.next().unwrap_or(u32::MAX);
        for back in 1..(WORDS as u64).min(top / 32 + 1) {
            let at = (top / 32 - back) as usize % WORDS;
            *self.bits[at].get_mut() = words.next().unwrap_or(u32::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::WINDOW_MAX;
    use super::*;
    use crate::dataplane::SequenceMode;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_restored_window_refuses_what_the_first_one_refuses(
            size in 32u32..=WINDOW_MAX,
            other in 32u32..=WINDOW_MAX,
            start in 1u64..10_000,
            steps in proptest::collection::vec(
                prop_oneof![6 => -5000i64..50, 3 => 0i64..3, 1 => 0i64..20_000], 0..300),
        ) {
            let first = Window::new(size, SequenceMode::Extended);
            let mut at = start;
            let mut claimed = HashSet::new();
            for step in steps {
                at = at.saturating_add_signed(step).max(1);
                if first.claim(at).is_ok() {
                    claimed.insert(at);
                }
            }
            let received = first.received();
            prop_assert!(received.is_valid());
            let mut same = Window::new(size, SequenceMode::Extended);
            same.restore(&received);
            // Of another size, it accepts nothing that the first one has accepted.
            let mut another = Window::new(other, SequenceMode::Extended);
            another.restore(&received);
            let top = first.top();
            for number in top.saturating_sub(u64::from(WINDOW_MAX) + 64)..top + 40 {
                prop_assert_eq!(same.check(number), first.check(number), "{}", number);
                prop_assert!(another.check(number).is_err() || !claimed.contains(&number));
            }
            for number in top.saturating_sub(u64::from(size))..top + 5000 {
                prop_assert_eq!(same.claim(number), first.claim(number));
            }
        }
    }

    #[test]
    fn a_window_that_has_received_all_up_to_a_number_takes_the_next_one() {
        for top in [0, 1, 31, 32, 33, 4095, 4096, (1 << 32) - 1, 1 << 40] {
            let received = Received::up_to(top);
            assert!(received.is_valid());
            let mut window = Window::new(WINDOW_MAX, SequenceMode::Extended);
            window.restore(&received);
            for number in top.saturating_sub(9000)..=top {
                assert!(window.claim(number).is_err(), "{number} of {top}");
            }
            assert_eq!([top + 2, top + 1].map(|n| window.claim(n)), [Ok(()); 2]);
        }
    }

    #[test]
    fn what_no_window_has_received_is_not_valid() {
        let received = |top, words: &[u32]| Received {
            top,
            words: words.to_vec(),
        };
        assert!(received(0, &[]).is_valid());
        assert!(received(33, &[0b10, u32::MAX]).is_valid());
        for wrong in [
            received(0, &[0]),
            received(1, &[]),
            received(33, &[0b01]),
            received(33, &[0b110]),
            received(33, &[0b10, 1, 1]),
            received(u64::MAX, &[u32::MAX; WORDS]),
        ] {
            assert!(!wrong.is_valid(), "{wrong:?}");
        }
    }
}
