//! The experiments: those embedded in the command, and those in files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use anyhow::{anyhow, bail};
use rustix::fs::{Mode, OFlags};
use tare_lab::driver::Drivers;
use tare_lab::experiment::Experiment;
use tare_lab::file::{self, Context, Size};

use crate::systems;

/// The files of `experiments/`, in the order in which `tare run` takes them.
pub(crate) const EMBEDDED: &[(&str, &str)] = &[
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
    (
        "experiments/load.toml",
        include_str!("../../../experiments/load.toml"),
    ),
    (
        "experiments/clio.toml",
        include_str!("../../../experiments/clio.toml"),
    ),
    (
        "experiments/tdx.toml",
        include_str!("../../../experiments/tdx.toml"),
    ),
    (
        "experiments/bifrost.toml",
        include_str!("../../../experiments/bifrost.toml"),
    ),
];

/// The largest experiment file that is read, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Returns every embedded experiment.
pub(crate) fn embedded(size: Size, drivers: &Drivers) -> anyhow::Result<Vec<Experiment>> {
    let mut all = Vec::new();
    for (name, text) in EMBEDDED {
        all.extend(parse(text, name, size, drivers)?);
    }
    Ok(all)
}

/// The features that an experiment lacks on this machine: the reason and the remedy of each, with
/// the number of cells that need it.
pub(crate) type Lacks = BTreeMap<(String, Option<String>), usize>;

/// Returns what this machine lacks for the cells of an experiment.
pub(crate) fn lacks(experiment: &Experiment, drivers: &Drivers) -> Lacks {
    let mut missing = Lacks::new();
    let Some(driver) = drivers.get(&experiment.driver) else {
        return missing;
    };
    for point in experiment.points() {
        let parameters = driver.vocabulary().complete(experiment.parameters(&point));
        if let Err(lack) = driver.check(&parameters) {
            *missing.entry((lack.reason, lack.remedy)).or_default() += 1;
        }
    }
    missing
}

/// The ids and suites of the embedded experiments, each once.
pub(crate) fn names() -> Vec<(String, String)> {
    let experiments = embedded(Size::Quick, &systems::all()).unwrap_or_default();
    let mut names: Vec<(String, String)> = Vec::new();
    for experiment in experiments {
        let suite = experiment.suite();
        if names.iter().all(|(name, _)| name != suite) {
            names.push((suite.to_owned(), format!("every experiment of {suite}")));
        }
        names.push((experiment.id, experiment.title));
    }
    names
}

/// The word that stands for every embedded experiment.
pub(crate) const ALL: &str = "all";

/// Returns the experiments that these words name: ids, suites, files, or [`ALL`].
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

/// Returns true if each of the words by which `chosen` was chosen names a whole suite, or [`ALL`].
pub(crate) fn are_suites(words: &[String], chosen: &[Experiment]) -> bool {
    words
        .iter()
        .all(|word| word == ALL || chosen.iter().any(|experiment| experiment.suite() == word))
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
    let text = read(path).map_err(|error| anyhow!("{word}: cannot be read: {error}"))?;
    parse(&text, word, size, drivers)
}

/// Reads an experiment file. It is opened with O_NONBLOCK: opening a FIFO that has no writer would
/// block for ever.
fn read(path: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(
            "found no regular file, expected an experiment file",
        ));
    }
    let mut text = String::new();
    file.take(FILE_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_MAX {
        let found = format!("found more than {FILE_MAX} bytes, expected an experiment file");
        return Err(io::Error::other(found));
    }
    Ok(text)
}

/// Parses the experiments of a file's text; `name` stands for the file in errors.
pub(crate) fn parse(
    text: &str,
    name: &str,
    size: Size,
    drivers: &Drivers,
) -> anyhow::Result<Vec<Experiment>> {
    let context = Context {
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        size,
        drivers,
    };
    file::parse(text, name, &context).map_err(|errors| {
        let mut lines = String::new();
        for (at, error) in errors.iter().enumerate() {
            let _ = write!(lines, "{}{error}", if at == 0 { "" } else { "\ntare: " });
        }
        anyhow!(lines)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_told_from_experiments_and_files() {
        let drivers = systems::all();
        for (words, expected) in [
            (&["all"][..], true),
            (&["clio"], true),
            (&["rdrand", "gcm"], true),
            (&["rdrand/size"], false),
            (&["rdrand", "gcm/race"], false),
        ] {
            let words: Vec<String> = words.iter().map(|&word| word.into()).collect();
            let chosen = chosen(&words, Size::Quick, &drivers).unwrap();
            assert_eq!(are_suites(&words, &chosen), expected, "{words:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rdrand.toml");
        std::fs::write(&file, EMBEDDED[0].1).unwrap();
        let words = [file.display().to_string()];
        let chosen = chosen(&words, Size::Quick, &drivers).unwrap();
        assert!(!are_suites(&words, &chosen));
    }
}
