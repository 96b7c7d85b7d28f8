//! The report of a run: one HTML file, terminal tables, CSV and Markdown.
//!
//! The contents of a report are decided once, in `table`; every format renders the same tables.
//! Published claims and targets never share one.
//!
//! [`html`] writes a page that needs nothing but itself: figures are SVG drawn here, the style
//! is inline, the raw data is a link that holds it, and a content security policy in the page
//! forbids every request and every script. Its template library escapes what comes from outside
//! (ids, titles, reasons); it cannot be left out by mistake.
//!
//! Every measured mark of a figure carries `data-experiment`, `data-metric`, `data-at` and
//! `data-value`, so that a drawing can be checked against the data it was drawn from. A segment of
//! stacked shares has `data-part` in the place of the first two: its value is drawn again.

mod csv;
mod figure;
mod forest;
mod markdown;
mod page;
mod table;
pub mod text;
mod words;

use crate::result::RunResult;

pub use self::csv::{claims_csv, csv};
pub use self::markdown::markdown;

/// The whole report as one HTML file.
pub fn html(result: &RunResult) -> String {
    page::page(result)
}
