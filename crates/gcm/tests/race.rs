//! A hostile thread writes while records are opened and sealed: the short run. The long one is
//! `cargo run -p tare-gcm --release --features testing --example race -- --seconds N`.
#![cfg(feature = "testing")]

use std::time::Duration;
use tare_gcm::testing::{race, Op, Race, Subject};
use tare_gcm::Path;

/// Prints past the test runner's capture: what is not tested must be seen.
macro_rules! eprint_always {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

const MILLIS: u64 = 60;

/// The limit of a race that ends when it has caught its subject: on a busy machine the two threads
/// may miss each other for a while.
const LONGEST_MILLIS: u64 = 60_000;

fn run(
    subject: Subject,
    op: Op,
    key_len: usize,
    record_len: usize,
) -> tare_gcm::testing::RaceReport {
    let millis = match subject {
        Subject::Path(_) => MILLIS,
        Subject::TwoReads => LONGEST_MILLIS,
    };
    race(&Race {
        subject,
        op,
        key_len,
        record_len,
        duration: Duration::from_millis(millis),
    })
    .unwrap()
}

#[test]
fn no_path_accepts_what_was_not_sealed_nor_authenticates_foreign_bytes() {
    for path in Path::ALL {
        if !path.is_available() {
            eprint_always!("NOT TESTED: this processor cannot run the {path} path");
            continue;
        }
        for record_len in [60, 200, 1440, 4096, 16384] {
            for op in [Op::Open, Op::Seal] {
                let report = run(
                    Subject::Path(path),
                    op,
                    if record_len % 3 == 0 { 32 } else { 16 },
                    record_len,
                );
                assert!(report.is_clean(), "{path} {op:?} {record_len}: {report:?}");
            }
        }
    }
}

#[test]
fn the_race_catches_an_implementation_that_reads_twice() {
    for op in [Op::Open, Op::Seal] {
        let report = run(Subject::TwoReads, op, 16, 1440);
        assert_eq!(
            report.wrong, 1,
            "{op:?}: the detector never fired, so its silence about the others means nothing: \
             {report:?}"
        );
    }
}
