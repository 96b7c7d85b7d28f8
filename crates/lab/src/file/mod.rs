//! Reads experiment files: strict TOML, in which every name must resolve.
//!
//! A file is judged as a whole before anything runs. What is wrong with it comes back as a list
//! of [`FileError`]s, each with its place, what was found there and what was expected, and not
//! as the first of them only, so that an author can correct all of them at once.
//!
//! Both sizes of an experiment are checked whichever is asked for, so that a file which passes
//! at `--quick` does not fail at `--full`.

mod claim;
mod error;
mod experiment;
mod matrix;
mod metric;
mod nearest;
mod node;
mod selector;
mod words;

pub use error::FileError;
pub use nearest::nearest;

use toml::de::DeTable;
use toml::Spanned;

use crate::driver::Drivers;
use crate::experiment::Experiment;
use node::{Fields, Report};

/// The largest file that is read, in bytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// The most cells an experiment may have, its references included.
pub const MAX_CELLS: usize = 10_000;
/// The most errors that are reported at once.
pub const MAX_ERRORS: usize = 20;
/// The most experiments in a file.
pub const MAX_EXPERIMENTS: usize = 100;

/// The size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Size {
    /// Short trials and thin axes: `[experiment.quick]`.
    Quick,
    /// The published size: `[experiment.full]`.
    Full,
}

impl Size {
    /// Both, in the order of the command line.
    pub const ALL: [Size; 2] = [Size::Quick, Size::Full];

    /// The name of its table and of its option.
    pub const fn name(self) -> &'static str {
        match self {
            Size::Quick => "quick",
            Size::Full => "full",
        }
    }
}

/// The context for which a file is resolved.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The processors that `"cpus"` stands for; 0 counts as 1.
    pub cpus: usize,
    /// The size whose values the experiments get.
    pub size: Size,
    /// The drivers that a file may name.
    pub drivers: &'a Drivers,
}

/// Reads the experiments of `text`; `name` is the file's name in errors.
///
/// A claim whose selector names a value that only another size or another machine has (size
/// 8192 where `--quick` stops at 2048, four threads where there are two processors) is kept: it
/// chooses no cell here, which the verdict then states. A value that no machine and no size
/// would ever have is an error.
///
/// # Errors
/// All that is wrong with the file, in file order, at most [`MAX_ERRORS`].
pub fn parse(
    text: &str,
    name: &str,
    context: &Context<'_>,
) -> Result<Vec<Experiment>, Vec<FileError>> {
    let report = Report::new(text, name);
    if text.len() > MAX_FILE_BYTES {
        report.add(
            0,
            "",
            format!("a file of {} bytes", text.len()),
            format!("at most {MAX_FILE_BYTES} bytes"),
            None,
        );
        return Err(report.into_errors());
    }
    let (document, syntax_errors) = DeTable::parse_recoverable(text);
    if !syntax_errors.is_empty() {
        report.syntax(&syntax_errors);
        // The parser recovers by guessing, and its guesses would add errors that are not there.
        return Err(report.into_errors());
    }
    let experiments = document_of(&document, &report, context);
    let errors = report.into_errors();
    if errors.is_empty() {
        Ok(experiments)
    } else {
        Err(errors)
    }
}

fn document_of<'a>(
    table: &'a Spanned<DeTable<'a>>,
    report: &'a Report<'a>,
    context: &Context<'_>,
) -> Vec<Experiment> {
    let mut fields = Fields::root(table, report);
    let list = fields.need("experiment", "at least one [[experiment]]");
    fields.close();
    let Some(items) = list.and_then(|node| node.list("[[experiment]] tables", MAX_EXPERIMENTS))
    else {
        return Vec::new();
    };
    let mut experiments: Vec<Experiment> = Vec::new();
    for node in items {
        let Some(experiment) = experiment::read(&node, context) else {
            // Its errors say why; were there none, it must not go missing in silence.
            if report.count() == 0 {
                node.reject("an experiment that cannot be read", "");
            }
            continue;
        };
        if experiments.iter().any(|other| other.id == experiment.id) {
            node.field("id")
                .unwrap_or(node)
                .reject(format!("a second {:?}", experiment.id), "a unique id");
        }
        experiments.push(experiment);
    }
    experiments
}
