//! The data area: lines that are given out and taken back in the same order.

/// Lines after which runs begin at the front again if there is room, so that a client with little
/// on the way uses few lines, which stay in the caches: 512 KiB.
const HOT: u32 = 8192;

/// The free and taken lines. A run of lines never goes around the end; the lines in front of the
/// end that are left over for that belong to the run after them.
#[derive(Debug)]
pub(super) struct Area {
    lines: u32,
    /// The next line.
    head: u32,
    /// Lines that are taken, up to `head`.
    taken: u32,
}

impl Area {
    pub(super) fn new(lines: u32) -> Area {
        Area {
            lines,
            head: 0,
            taken: 0,
        }
    }

    /// Takes lines for so many bytes. Returns the first line, and how many lines to give back.
    #[inline]
    pub(super) fn take(&mut self, bytes: u32) -> Option<(u32, u32)> {
        if self.taken == 0 {
            // Those that were used last are in the caches.
            self.head = 0;
        }
        let lines = bytes.div_ceil(64);
        let to_end = self.lines - self.head;
        let is_early = self.head >= HOT && self.taken + to_end + lines <= self.lines;
        let skipped = if lines > to_end || is_early {
            to_end
        } else {
            0
        };
        if lines > self.lines || self.taken + skipped + lines > self.lines {
            return None;
        }
        let first = if skipped > 0 { 0 } else { self.head };
        self.head = first + lines;
        if self.head == self.lines {
            self.head = 0;
        }
        self.taken += skipped + lines;
        Some((first, skipped + lines))
    }

    /// Gives back the lines that were taken first.
    #[inline]
    pub(super) fn give_back(&mut self, lines: u32) {
        self.taken -= lines;
    }

    /// Gives back everything.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.taken = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tare_sim::Random;

    use super::*;

    #[test]
    fn no_line_is_given_out_twice_and_all_come_back() {
        for lines in [64, 2 * HOT] {
            give_and_take(lines);
        }
    }

    fn give_and_take(total: u32) {
        let mut random = Random::new(3);
        let mut area = Area::new(total);
        let mut runs: VecDeque<(u32, u32, u32)> = VecDeque::new();
        let mut refused = 0;
        for _ in 0..100_000 {
            let bytes = 1 + random.below(u64::from(total) * 20) as u32;
            match area.take(bytes) {
                Some((first, lines)) => {
                    let len = bytes.div_ceil(64);
                    assert!(first + len <= total && lines >= len);
                    let is_apart =
                        |run: &(u32, u32, u32)| first + len <= run.0 || run.0 + run.1 <= first;
                    assert!(runs.iter().all(is_apart));
                    runs.push_back((first, len, lines));
                }
                None => {
                    refused += 1;
                    let (_, _, lines) = runs.pop_front().expect("an empty area has room");
                    area.give_back(lines);
                }
            }
            if random.below(3) == 0 {
                if let Some((_, _, lines)) = runs.pop_front() {
                    area.give_back(lines);
                }
            }
        }
        assert!(refused > 1000);
        for (_, _, lines) in runs {
            area.give_back(lines);
        }
        assert_eq!((area.taken, area.take(64 * total)), (0, Some((0, total))));
        assert_eq!(area.take(1), None);
    }
}
