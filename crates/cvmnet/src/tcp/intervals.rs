//! Sorted, disjoint ranges of stream positions, bounded in number.

/// Half-open ranges `[start, end)` in ascending order that neither overlap nor touch.
///
/// It is a plain vector: a window has few holes, and the ends of the list are where it changes.
#[derive(Clone, Debug)]
pub(crate) struct Intervals {
    list: Vec<(u64, u64)>,
    max: usize,
}

impl Intervals {
    /// Creates an empty list that holds at most `max` ranges.
    pub(crate) fn new(max: usize) -> Intervals {
        Intervals {
            list: Vec::new(),
            max,
        }
    }

    /// Adds a range and returns how many of its positions are new. A range that touches no other is
    /// ignored once there are `max`.
    pub(crate) fn insert(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let first = self.list.partition_point(|range| range.1 < start);
        let behind = self.list.partition_point(|range| range.0 <= end);
        if first == behind {
            if self.list.len() >= self.max {
                return 0;
            }
            self.list.insert(first, (start, end));
            return end - start;
        }
        let merged = (
            start.min(self.list[first].0),
            end.max(self.list[behind - 1].1),
        );
        let before: u64 = self.list[first..behind].iter().map(|r| r.1 - r.0).sum();
        self.list[first] = merged;
        self.list.drain(first + 1..behind);
        merged.1 - merged.0 - before
    }

    /// Forgets all positions below `at`.
    pub(crate) fn remove_below(&mut self, at: u64) {
        let gone = self.list.partition_point(|range| range.1 <= at);
        self.list.drain(..gone);
        if let Some(first) = self.list.first_mut() {
            first.0 = first.0.max(at);
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }

    /// Returns the range that `at` is in.
    pub(crate) fn containing(&self, at: u64) -> Option<(u64, u64)> {
        let behind = self.list.partition_point(|range| range.1 <= at);
        self.list.get(behind).copied().filter(|range| range.0 <= at)
    }

    /// Returns the ranges in ascending order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.list.iter().copied()
    }

    /// Returns the end of the last range.
    pub(crate) fn end(&self) -> Option<u64> {
        self.list.last().map(|range| range.1)
    }

    /// Returns what is missing between `from` and `to`, in ascending order.
    pub(crate) fn holes(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let skipped = self.list.partition_point(|range| range.1 <= from);
        let mut ranges = self.list[skipped..].iter();
        let mut at = from;
        std::iter::from_fn(move || {
            while at < to {
                let next = ranges.next().copied().unwrap_or((to, to));
                let hole = (at, next.0.min(to));
                at = next.1;
                if hole.0 < hole.1 {
                    return Some(hole);
                }
                if next.0 >= to {
                    return None;
                }
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_what_a_set_of_positions_is(
            steps in proptest::collection::vec((0u64..60, 0u64..20, any::<bool>()), 0..40),
        ) {
            let mut ranges = Intervals::new(100);
            let mut set = std::collections::BTreeSet::new();
            for (start, len, is_insert) in steps {
                if is_insert {
                    let before = set.len();
                    set.extend(start..start + len);
                    let new = ranges.insert(start, start + len);
                    prop_assert_eq!(new as usize, set.len() - before);
                } else {
                    set.retain(|&at| at >= start / 2);
                    ranges.remove_below(start / 2);
                }
                for at in 0..90 {
                    prop_assert_eq!(ranges.containing(at).is_some(), set.contains(&at));
                }
                prop_assert!(ranges.list.windows(2).all(|pair| pair[0].1 < pair[1].0));
                let missing: Vec<u64> = ranges.holes(5, 70).flat_map(|hole| hole.0..hole.1).collect();
                let expected: Vec<u64> = (5..70).filter(|at| !set.contains(at)).collect();
                prop_assert_eq!(missing, expected);
            }
        }
    }

    #[test]
    fn a_full_list_takes_only_what_touches_a_range() {
        let mut ranges = Intervals::new(2);
        assert_eq!((ranges.insert(0, 1), ranges.insert(4, 5)), (1, 1));
        assert_eq!((ranges.insert(8, 9), ranges.insert(5, 9)), (0, 4));
        assert_eq!((ranges.list.len(), ranges.end()), (2, Some(9)));
    }
}
