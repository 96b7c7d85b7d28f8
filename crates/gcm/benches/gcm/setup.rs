//! The costs of a message beside its bytes: making a key and dropping it, and additional data.

use crate::measure::{interleave, Cell, Random};
use crate::references::{AwsLc, Ring};
use crate::report::{Report, Target};
use crate::Settings;
use std::hint::black_box;
use tare_gcm::{Key, Nonce, Path};

/// Bytes of plaintext beside the additional data.
const LEN: usize = 60;

/// Makes a key from its bytes and drops it, which wipes it.
pub fn keys(settings: &Settings, report: &mut Report, random: &mut Random) {
    let bytes = &settings.key[..];
    let cell = |name: &str, make: fn(&[u8])| Cell {
        name: name.to_owned(),
        run: Box::new(move |n| (0..n).for_each(|_| make(black_box(bytes)))),
    };
    let mut cells = vec![
        cell("aws-lc-rs", |bytes| drop(black_box(AwsLc::new(bytes)))),
        cell("ring", |bytes| drop(black_box(Ring::new(bytes)))),
    ];
    for path in Path::available() {
        let make = move || Key::with_path(black_box(bytes), path).expect("16 or 32 bytes");
        cells.push(Cell {
            name: path.name().to_owned(),
            run: Box::new(move |n| (0..n).for_each(|_| drop(black_box(make())))),
        });
    }
    let samples = interleave(cells, settings.rounds, 300, random);
    let what = "make a key and drop it";
    report.section(what, 0.0, &samples, &over_both(), random);
}

/// Seals a short message with much additional data.
pub fn additional_data(settings: &Settings, report: &mut Report, random: &mut Random) {
    for len in [65, 256, 1500, 16384] {
        let aad = &vec![5; len][..];
        let mut cells = Vec::new();
        for path in Path::available() {
            let key = Key::with_path(&settings.key, path).expect("16 or 32 bytes");
            let mut data = [3; LEN];
            cells.push(Cell {
                name: path.name().to_owned(),
                run: Box::new(move |n| {
                    for _ in 0..n {
                        let tag = key.seal_in_place(Nonce::from([1; 12]), aad, &mut data);
                        let _ = black_box(tag.expect("a short message"));
                    }
                }),
            });
        }
        let aws = AwsLc::new(&settings.key).0;
        let mut data = [3; LEN];
        cells.push(Cell {
            name: "aws-lc-rs".to_owned(),
            run: Box::new(move |n| {
                for _ in 0..n {
                    let nonce = aws_lc_rs::aead::Nonce::assume_unique_for_key([1; 12]);
                    let aad = aws_lc_rs::aead::Aad::from(aad);
                    let tag = aws.seal_in_place_separate_tag(nonce, aad, &mut data);
                    let _ = black_box(tag.expect("a short message"));
                }
            }),
        });
        let samples = interleave(cells, settings.rounds, 300, random);
        let what = format!("seal {LEN} B with {len} B of additional data");
        report.section(&what, len as f64, &samples, &over_both()[..1], random);
    }
}

/// Comparisons without a target.
fn over_both() -> [Target<'static>; 2] {
    ["aws-lc-rs", "ring"].map(|slow| Target {
        fast: Path::best().name(),
        slow,
        at_least: None,
    })
}
