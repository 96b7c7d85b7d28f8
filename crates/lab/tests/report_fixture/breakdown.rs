//! An experiment whose metrics are parts of one whole.

use tare_lab::experiment::Published;
use tare_lab::result::ExperimentResult;
use tare_lab::unit::Unit;

use super::{axis_text, cell, empty, point, without};

/// The parts, in the order of the file.
pub(crate) const PARTS: [&str; 4] = ["exits", "bounce buffer", "packets", "application"];

/// Cells with a remainder, with sums of 100 % and above, without a value, and one that is only
/// published; a reference.
pub(crate) fn breakdown() -> ExperimentResult {
    let mut it = empty(
        "cvm/breakdown",
        "What the time of a guest is spent on",
        "Bifrost, figure 3",
    );
    it.axes = vec![axis_text(
        "variant",
        &["plain", "cvm", "zero copy", "bifrost"],
    )];
    it.parts = PARTS.map(String::from).to_vec();
    for (variant, shares, published) in [
        (
            "plain",
            [13.25, 0.0, 28.5, 50.25],
            [Some(13.2), None, Some(28.61), Some(58.19)],
        ),
        (
            "cvm",
            [21.5, 13.0, 27.0, 38.5],
            [Some(21.12), Some(13.4), Some(26.78), Some(38.7)],
        ),
        (
            "zero copy",
            [12.0, 0.5, 31.0, 54.0],
            [None, None, Some(30.3), Some(54.42)],
        ),
        ("bifrost", [13.0, 1.0, 21.0, 71.0], [None; 4]),
    ] {
        let at = point(&[("variant", variant.into())]);
        for ((metric, share), published) in PARTS.into_iter().zip(shares).zip(published) {
            let mut cell = cell(at.clone(), metric, Unit::Percent, share);
            cell.median = Some(share);
            if (variant, metric) == ("zero copy", "bounce buffer") {
                cell = without(cell, "the kernel has no probe", 0);
            }
            it.cells.push(cell);
            it.published.extend(published.map(|value| Published {
                at: at.clone(),
                metric: metric.into(),
                value,
                source: None,
            }));
        }
    }
    let at = point(&[("beside", "no encryption".into())]);
    it.cells.push(cell(at, "packets", Unit::Percent, 60.0));
    it
}
