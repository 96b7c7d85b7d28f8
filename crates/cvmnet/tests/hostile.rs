//! The driver against a hostile host.

use std::time::Duration;

use tare_cvmnet::breakdown::{Field, State};
use tare_cvmnet::hostile::{
    campaign, race, schedule, serve, serve_race, FrameField, Keys, Plan, Report,
};
use tare_cvmnet::region::Config;
use tare_cvmnet::variant::{Variant, BIFROST, CVM, ZC};

fn config(variant: Variant, event_index: bool) -> Config {
    Config {
        receive_queue: 16,
        transmit_queue: 32,
        event_index,
        receive_posted: 16,
        receive_buffers: 32,
        record_bytes: 4096,
        record_buffers: 32,
        bounce_slots: 256,
        ..variant.config(1)
    }
}

fn has_all(report: &Report, event_index: bool) {
    let suppression = match event_index {
        true => Field::AvailableEvent,
        false => Field::UsedFlags,
    };
    let ring = [
        Field::UsedIndex,
        Field::UsedId,
        Field::UsedLength,
        suppression,
    ];
    for queue in 0..2 {
        for field in ring {
            for state in [State::Partial, State::Full] {
                let count = report.consumed.of(queue, field, state);
                assert!(count > 0, "{queue} {field:?} {state:?}\n{report}");
            }
        }
        let empty = report.consumed.of(queue, Field::UsedIndex, State::Empty);
        assert!(empty > 0, "{report}");
    }
    assert!(
        report.consumed.of(0, Field::Header, State::Partial) > 0,
        "{report}"
    );
    assert!(
        report.consumed.of(0, Field::DeviceStatus, State::Resetting) > 0,
        "{report}"
    );
    assert!(
        report.consumed.of(0, Field::Interrupts, State::Full) > 0,
        "{report}"
    );
}

#[test]
fn a_hundred_thousand_hostile_values_end_in_faults_and_resets_and_nothing_else() {
    for (variant, event_index, seed) in [
        (ZC, true, 1),
        (ZC, false, 2),
        (CVM, true, 3),
        (CVM, false, 4),
    ] {
        let config = config(variant, event_index);
        let report = schedule(&config, seed, 30_000).unwrap();
        println!("{}, event index {event_index}:\n{report}", variant.name);
        assert!(report.consumed.total() >= 30_000);
        has_all(&report, event_index);
        let faults: Vec<_> = report.faults.keys().copied().collect();
        let expected = [
            "buffer count",
            "id",
            "length",
            "not in flight",
            "used index",
        ];
        assert_eq!(faults, expected);
        assert!(report.payloads > 1000, "{report}");
    }
}

#[test]
fn the_same_seed_is_the_same_attack() {
    let run = |seed| schedule(&config(ZC, true), seed, 2000).unwrap();
    let (one, other) = (run(7), run(7));
    assert_eq!(one.consumed, other.consumed);
    assert_eq!(one.faults, other.faults);
    assert_ne!(run(8).consumed, one.consumed);
}

#[test]
fn a_host_that_changes_memory_at_full_speed_does_not_harm_the_guest() {
    for variant in [ZC, CVM] {
        let report = race(&config(variant, true), 5, 20_000, Duration::from_secs(2)).unwrap();
        println!("{}:\n{report}", variant.name);
        assert!(report.consumed.total() > 0 && report.resets > 0, "{report}");
    }
}

#[test]
fn a_guest_that_gets_wrong_frames_delivers_right_bytes_alone_and_serves_on() {
    let keys = Keys::new().unwrap();
    for (variant, seed) in [(ZC, 21), (CVM, 22)] {
        let config = Config {
            receive_posted: 2,
            ..config(variant, true)
        };
        let extent = [1500, 60_000];
        let report = serve(&config, false, seed, [0.3, 0.0], extent, &keys).unwrap();
        println!("{}:\n{report}", variant.name);
        assert!(report.consumed.total() >= 300, "{report}");
        for field in FrameField::ALL {
            let count = report.consumed.of_frames(field, State::Partial);
            assert!(count > 0, "{field:?}\n{report}");
        }
        assert!(report.tls_failures > 0, "{report}");
        assert!(report.delivered > 1_000_000, "{report}");
        // A device that does nothing for long is reset.
        let is_fault = |why: &&str| *why != "silent";
        assert_eq!(
            report.faults.keys().copied().find(is_fault),
            None,
            "{report}"
        );
    }
}

#[test]
fn a_guest_whose_memory_changes_between_its_reads_delivers_right_bytes_alone_and_serves_on() {
    let keys = Keys::new().unwrap();
    for (variant, merges, seed) in [(ZC, false, 31), (CVM, false, 32), (BIFROST, true, 33)] {
        let config = config(variant, true);
        let extent = [2000, 10_000];
        let report = serve(&config, merges, seed, [0.02, 0.01], extent, &keys);
        let report = report.unwrap_or_else(|why| panic!("{} {seed}: {why}", variant.name));
        println!("{}:\n{report}", variant.name);
        assert!(report.consumed.total() > 50, "{report}");
        assert!(report.delivered > 50_000 && report.resets > 0, "{report}");
        assert!(report.connections > 10, "{report}");
    }
}

#[test]
fn a_host_at_full_speed_beside_a_guest_that_serves_does_not_forge_a_byte() {
    let keys = Keys::new().unwrap();
    for variant in [ZC, CVM] {
        let time = Duration::from_millis(500);
        let report = serve_race(&config(variant, true), false, 41, time, &keys).unwrap();
        println!("{}:\n{report}", variant.name);
        assert!(report.frames[0] > 0, "{report}");
    }
}

#[test]
fn a_campaign_is_the_sum_of_its_attacks_and_ends_in_time() {
    let plan = Plan {
        seed: 8,
        values: 45_000,
        at_most: Duration::from_secs(60),
    };
    let mut told = Vec::new();
    let report = campaign(&plan, |sum| told.push(sum.consumed.total())).unwrap();
    assert_eq!((report.attacks, told.len()), (2, 2));
    assert!(told[0] >= 30_000 && told[1] == report.consumed.total());
    let none = Plan {
        at_most: Duration::ZERO,
        ..plan
    };
    assert_eq!(campaign(&none, |_| {}).unwrap().attacks, 0);
}
