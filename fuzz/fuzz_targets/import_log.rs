//! Any bytes as a log, in pieces of any size: figures or refusals, and findings about them; the
//! pieces change nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tare_import::{check, read, Reader};

fuzz_target!(|input: &[u8]| {
    let Some((size, bytes)) = input.split_first() else {
        return;
    };
    let whole = read("fuzz.log", None, bytes).unwrap();
    let mut reader = Reader::new("fuzz.log", None);
    for piece in bytes.chunks(usize::from(*size).max(1)) {
        reader.push(piece);
    }
    let pieces = reader.finish();
    assert_eq!(format!("{whole:?}"), format!("{pieces:?}"));
    for run in &whole.runs {
        assert!(run
            .records
            .iter()
            .all(|record| record.value.is_finite() && record.line >= 1));
    }
    let _ = check(&[whole, pieces]);
});
