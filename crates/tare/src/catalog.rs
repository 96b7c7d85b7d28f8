//! The experiments that come with the command, and those that people write.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{anyhow, bail, Context as _};
use tare_lab::driver::Drivers;
use tare_lab::experiment::Experiment;
use tare_lab::file::{self, Context, Size};

/// The files of `experiments/`, in the order in which `tare run` takes them.
const EMBEDDED: &[(&str, &str)] = &[
    (
        "experiments/rdrand.toml",
        include_str!("../../../experiments/rdrand.toml"),
    ),
    (
        "experiments/gcm.toml",
        include_str!("../../../experiments/gcm.toml"),
    ),
    (
        "experiments/vita.toml",
        include_str!("../../../experiments/vita.toml"),
    ),
];

/// The largest experiment file that is read, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Every experiment that comes with the command.
pub(crate) fn embedded(size: Size, drivers: &Drivers) -> anyhow::Result<Vec<Experiment>> {
    let mut all = Vec::new();
    for (name, text) in EMBEDDED {
        all.extend(parse(text, name, size, drivers)?);
    }
    Ok(all)
}

/// The word for every experiment that comes with the command.
pub(crate) const ALL: &str = "all";

/// The experiments that these words name: ids, suites, files, or [`ALL`].
pub(crate) fn chosen(
    words: &[String],
    size: Size,
    drivers: &Drivers,
) -> anyhow::Result<Vec<Experiment>> {
    let embedded = embedded(size, drivers)?;
    let mut chosen: Vec<Experiment> = Vec::new();
    for word in words {
        let mut found: Vec<Experiment> = embedded
            .iter()
            .filter(|experiment| [ALL, &experiment.id, experiment.suite()].contains(&word.as_str()))
            .cloned()
            .collect();
        if found.is_empty() {
            found = from_file(word, size, drivers, &embedded)?;
        }
        for experiment in found {
            match chosen.iter().find(|before| before.id == experiment.id) {
                None => chosen.push(experiment),
                Some(before) if *before == experiment => {}
                Some(_) => bail!(
                    "{word}: found another experiment with the id \"{}\", expected each id once in a run",
                    experiment.id
                ),
            }
        }
    }
    Ok(chosen)
}

fn from_file(
    word: &str,
    size: Size,
    drivers: &Drivers,
    embedded: &[Experiment],
) -> anyhow::Result<Vec<Experiment>> {
    let path = Path::new(word);
    if !path.exists() && path.extension().is_none_or(|extension| extension != "toml") {
        let names: Vec<&str> = embedded
            .iter()
            .flat_map(|experiment| [experiment.id.as_str(), experiment.suite()])
            .collect();
        let meant = file::nearest(word, &names)
            .map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"));
        bail!("found \"{word}\", expected an experiment, a suite or a file{meant} (`tare list` lists them)");
    }
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text))
        .with_context(|| format!("{word}: cannot be read"))?;
    if text.len() as u64 > FILE_MAX {
        bail!("{word}: found more than {FILE_MAX} bytes, expected an experiment file");
    }
    parse(&text, word, size, drivers)
}

fn parse(text: &str, name: &str, size: Size, drivers: &Drivers) -> anyhow::Result<Vec<Experiment>> {
    let vocabularies = drivers.vocabularies();
    let context = Context {
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        size,
        drivers: &vocabularies,
    };
    file::parse(text, name, &context).map_err(|errors| {
        let mut lines = String::new();
        for (at, error) in errors.iter().enumerate() {
            let _ = write!(lines, "{}{error}", if at == 0 { "" } else { "\ntare: " });
        }
        anyhow!(lines)
    })
}
