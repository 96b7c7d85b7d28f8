//! The single rounds of a figure: whether they are drawn, and where.

use super::plan::Panel;
use super::scale::Scale;
use crate::result::CellResult;

/// More single rounds than this are not drawn one by one.
const DOTS: usize = 1500;

/// The single rounds of a panel, where there are few enough to show.
pub(crate) struct Samples {
    shown: bool,
}

impl Samples {
    pub(crate) fn of(panel: &Panel<'_>) -> Samples {
        let count: usize = panel.cells().map(|cell| cell.samples.len()).sum();
        let several = panel
            .cells()
            .any(|cell| cell.samples.iter().flatten().count() > 1);
        Samples {
            shown: several && count <= DOTS,
        }
    }

    pub(crate) fn shown(&self) -> bool {
        self.shown
    }

    /// The values that the scale must hold: all figures, and those rounds that are near enough
    /// to them not to compress them. The others are counted by [`Samples::place`].
    pub(crate) fn domain(&self, panel: &Panel<'_>) -> Vec<f64> {
        let mut values = panel.values();
        if self.shown {
            let most = values.iter().copied().fold(0.0f64, f64::max) * 1.25;
            let least = values.iter().copied().fold(f64::INFINITY, f64::min) / 1.25;
            let rounds = panel.cells().flat_map(|c| c.samples.iter().flatten());
            let near: Vec<f64> = rounds
                .copied()
                .filter(|v| (least..=most).contains(v))
                .collect();
            values.extend(near);
        }
        values
    }

    /// Hands over the pixel of each round of the cell; returns how many are out of range.
    pub(crate) fn place(
        &self,
        cell: &CellResult,
        scale: &Scale,
        mut dot: impl FnMut(f64),
    ) -> usize {
        if !self.shown {
            return 0;
        }
        let (inside, outside): (Vec<f64>, Vec<f64>) = cell
            .samples
            .iter()
            .flatten()
            .partition(|&&value| scale.holds(value));
        inside.into_iter().for_each(|value| dot(scale.at(value)));
        outside.len()
    }
}
