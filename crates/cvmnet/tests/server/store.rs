use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use tare_cvmnet::server::{Store, TooLarge, OVERHEAD};
use tare_sim::Instant;

use crate::peer::at;

fn put(store: &mut Store, key: &[u8], len: usize, expires: Instant, ms: u64) -> bool {
    store
        .set(key, Arc::new(vec![0; len]), 0, expires, at(ms).now)
        .is_ok()
}

#[test]
fn what_was_used_longest_ago_makes_room() {
    let mut store = Store::new(3 * (OVERHEAD + 1001));
    for key in [b"a", b"b", b"c"] {
        assert!(put(&mut store, key, 1000, Instant::NEVER, 0));
    }
    assert_eq!(store.bytes(), store.bytes_max());
    assert!(store.get(b"a", at(0).now).is_some());
    // Looking is not using.
    assert!(store.peek(b"b", at(0).now).is_some());
    assert!(put(&mut store, b"d", 1000, Instant::NEVER, 0));
    assert!(store.peek(b"b", at(0).now).is_none());
    assert!(put(&mut store, b"c", 1000, Instant::NEVER, 0));
    assert!(put(&mut store, b"e", 900, Instant::NEVER, 0));
    let left = [b"a", b"b", b"c", b"d", b"e"].map(|key| store.peek(key, at(0).now).is_some());
    assert_eq!(left, [false, false, true, true, true]);
    assert_eq!(store.counters().evicted, 2);
    assert_eq!(store.bytes(), 3 * (OVERHEAD + 1001) - 100);
}

#[test]
fn a_value_larger_than_the_store_is_refused_and_its_key_is_gone() {
    let mut store = Store::new(1000);
    assert!(put(&mut store, b"a", 10, Instant::NEVER, 0));
    assert!(put(&mut store, b"b", 10, Instant::NEVER, 0));
    let large = Arc::new(vec![0; 1000 - OVERHEAD]);
    let refused = store.set(b"a", large, 0, Instant::NEVER, at(0).now);
    assert_eq!(refused, Err(TooLarge));
    assert!(store.peek(b"a", at(0).now).is_none());
    assert!(store.peek(b"b", at(0).now).is_some());
    assert!(put(
        &mut store,
        b"a",
        1000 - OVERHEAD - 1,
        Instant::NEVER,
        0
    ));
}

#[test]
fn a_later_flush_takes_what_is_there_then() {
    let mut store = Store::new(1 << 20);
    assert!(put(&mut store, b"old", 10, Instant::NEVER, 0));
    store.flush(at(1000).now, at(0).now);
    assert!(put(&mut store, b"young", 10, Instant::NEVER, 500));
    assert!(store.peek(b"old", at(999).now).is_some());
    assert_eq!(store.len(at(1000).now), 0);
    assert_eq!(store.bytes(), 0);
    assert!(put(&mut store, b"new", 10, Instant::NEVER, 1000));
    assert!(store.peek(b"new", at(5000).now).is_some());
}

proptest! {
    #[test]
    fn a_store_is_a_map_with_times(
        steps in prop::collection::vec((0..6_u8, 0..8_u8, 0..400_u64), 1..200),
    ) {
        // Room for all, so that a model without eviction is exact.
        let mut store = Store::new(8 * (OVERHEAD + 1 + 400));
        let mut model: HashMap<u8, (usize, u64)> = HashMap::new();
        let mut cas = 0;
        for (ms, (kind, key, number)) in steps.into_iter().enumerate() {
            let ms = ms as u64 * 10;
            let now = at(ms).now;
            model.retain(|_, (_, until)| *until > ms);
            let until = ms + number;
            let expected = model.get(&key).copied();
            match kind {
                0 | 1 => {
                    let expires = if kind == 0 { Instant::NEVER } else { at(until).now };
                    let set = store.set(&[key], Arc::new(vec![1; number as usize]), 5, expires, now);
                    prop_assert!(set.is_ok_and(|new| new > cas));
                    cas = set.unwrap_or(0);
                    model.insert(key, (number as usize, if kind == 0 { u64::MAX } else { until }));
                }
                2 => prop_assert_eq!(store.remove(&[key], now).is_some(), model.remove(&key).is_some()),
                3 => {
                    prop_assert_eq!(store.touch(&[key], at(until).now, now), expected.is_some());
                    model.entry(key).and_modify(|value| value.1 = until);
                }
                4 if number < 20 => {
                    store.flush(now, now);
                    model.clear();
                }
                _ => {
                    let found = store.get(&[key], now).map(|item| (item.body.len(), item.flags));
                    prop_assert_eq!(found, expected.map(|(len, _)| (len, 5)));
                }
            }
        }
        prop_assert_eq!(store.counters().evicted, 0);
    }

    #[test]
    fn a_store_never_exceeds_its_bytes(
        steps in prop::collection::vec((0..40_u8, 0..900_usize), 1..200),
    ) {
        let mut store = Store::new(3000);
        for (key, len) in steps {
            put(&mut store, &[key], len, Instant::NEVER, 0);
            prop_assert!(store.bytes() <= 3000);
            prop_assert!(store.peek(&[key], at(0).now).is_some());
            prop_assert!(store.len(at(0).now) <= 3000 / OVERHEAD);
        }
    }
}
