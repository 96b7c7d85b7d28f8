//! `tare compare`: the time of several programs, compared.
//!
//! The commands become an experiment file, which runs like any other and can be kept (`--save`).
//! Each command after the first is compared with the first.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, Context as _};
use serde::Serialize;
use tare_lab::experiment::{Experiment, Rounds};
use tare_lab::file::Size;
use tare_lab::report::text::clean;
use tare_lab::result::{ClaimResult, RunResult, Verdict};
use tare_lab::schedule;
use tare_lab::store::{self, RunDirectory};
use tare_lab::unit::significant;

use crate::{catalog, cli, forecast, report, run, systems, terminal};

/// The metrics that are compared, in the order in which they are shown.
const METRICS: [(&str, &str); 2] = [("time", "wall time"), ("cpu_time", "processor time")];

/// The number of trials of a command after which the comparison ends if all of them failed.
const GIVE_UP_AFTER: u32 = 10;

/// The most commands.
const COMMANDS_MAX: usize = 16;

/// A command compared with the first.
#[derive(Debug, Serialize)]
struct Comparison<'r> {
    /// Its place among the commands, from 1.
    place: usize,
    command: &'r str,
    to: &'r str,
    metric: &'static str,
    difference: Difference,
    /// The target "it takes no longer", judged: the ratio, its interval, p and rounds.
    judged: &'r ClaimResult,
}

/// The direction in which a command differs from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Difference {
    /// It needs less.
    Less,
    /// It needs more.
    More,
    /// The rounds do not show which.
    NotShown,
    /// There is no ratio.
    NotCompared,
}

#[derive(Serialize)]
struct Printed<'r> {
    comparisons: &'r [Comparison<'r>],
    run: &'r RunResult,
}

/// Runs the comparison and prints its result.
pub(crate) fn compare(arguments: &cli::Compare) -> anyhow::Result<ExitCode> {
    let commands = &arguments.commands;
    if commands.len() > COMMANDS_MAX {
        bail!(
            "found {} commands, expected at most {COMMANDS_MAX}",
            commands.len()
        );
    }
    let drivers = systems::all();
    let text = file(arguments)?;
    let experiments = catalog::parse(&text, "compare", Size::Quick, &drivers)?;
    for experiment in &experiments {
        can_run(experiment, &drivers)?;
    }
    if let Some(path) = &arguments.save {
        save(path, &text)?;
        let path = terminal::word(path);
        // The file alone would go on to its last round.
        let until = match arguments.rounds {
            Some(rounds) => format!("--rounds {rounds}"),
            None => format!("--budget \"{}\"", forecast::exact(arguments.budget)),
        };
        terminal::say(&format!("tare: saved; to repeat: tare run {path} {until}"));
    }
    // The run's files go when this does.
    let temporary;
    let out: PathBuf = match &arguments.out {
        Some(out) => out.clone(),
        None => {
            temporary = tempfile::tempdir().with_context(|| {
                let parent = std::env::temp_dir();
                format!(
                    "no directory for the run's files can be created in {}; --out DIR keeps them in \
                     another",
                    parent.display()
                )
            })?;
            temporary.path().join("compare")
        }
    };
    let budget = arguments.rounds.is_none().then_some(arguments.budget);
    let name = Size::Quick.name();
    let (give_up_after, seed) = (Some(GIVE_UP_AFTER), arguments.seed);
    let mut directory = run::create(experiments, name, budget, give_up_after, seed, Some(&out))?;
    let in_words = |text: &str| as_given(text, arguments);
    let Some(result) = run::execute(&mut directory, &drivers, &in_words)? else {
        if arguments.out.is_some() {
            let out = terminal::word(&out);
            terminal::say(&format!("tare: stopped. To go on: tare run --resume {out}"));
        }
        return Ok(ExitCode::from(run::INTERRUPTED));
    };
    let comparisons = comparisons(commands, &result);
    if arguments.json {
        let (comparisons, run) = (comparisons.as_slice(), &result);
        terminal::print_last(&terminal::json(&Printed { comparisons, run })?)?;
    } else {
        let mut text = shown(arguments, &result, &comparisons);
        // An open comparison had rounds left: a command was given up, or time was short.
        let open = comparisons.iter().any(|comparison| comparison.judged.open);
        if let Some(place) = given_up(&directory).filter(|_| open) {
            let place = place + 1;
            let _ = writeln!(
                text,
                "\nThe comparison ended early: the first {GIVE_UP_AFTER} trials of command {place} \
                 all failed."
            );
        } else if let Some(budget) = budget.filter(|_| open) {
            let budget = forecast::exact(budget);
            let _ = writeln!(
                text,
                "\nThe budget of {budget} was used up; --budget TIME gives more."
            );
        }
        terminal::print_last(&terminal::fitted(&text))?;
    }
    if arguments.out.is_some() {
        let page = report::write_html(&out, &result)?;
        terminal::say(&format!("tare: report: {}", page.display()));
    }
    let code = report::exit_code(&result, false);
    let compared = |comparison: &Comparison<'_>| comparison.difference != Difference::NotCompared;
    Ok(match comparisons.iter().all(compared) {
        true => code,
        false => ExitCode::from(2),
    })
}

/// Returns the place, from 0, of the command whose first trials all failed; `None` if there is
/// none.
fn given_up(directory: &RunDirectory) -> Option<usize> {
    let plan = directory.plan();
    let at = schedule::given_up(plan, directory.records(), 0)?;
    // Cells come in the order of the commands.
    let points = plan.experiments.first()?.points();
    points.into_iter().position(|point| point == at)
}

/// Writes the experiment file, unless it is there already. A link stays, and the file that it names
/// is written; what is no file stays as it is, since the new file would take its place, as does a
/// file with another text, which may have been edited since it was saved.
fn save(path: &Path, text: &str) -> anyhow::Result<()> {
    let path = match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => path
            .canonicalize()
            .with_context(|| format!("--save {}", path.display()))?,
        _ => path.to_owned(),
    };
    if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
        let path = path.display();
        bail!("--save {path}: found no regular file, expected one or none; give another path");
    }
    match fs::read(&path) {
        Ok(found) if found == text.as_bytes() => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("--save {}", path.display())),
        Ok(_) => bail!(
            "--save {}: found a file with another text, expected none: give another path, or \
             remove it",
            path.display()
        ),
    }
    Ok(store::write_whole(&path, text.as_bytes())?)
}

/// Refuses commands that this machine lacks: they could not be measured.
fn can_run(experiment: &Experiment, drivers: &tare_lab::driver::Drivers) -> anyhow::Result<()> {
    let driver = drivers.get(&experiment.driver).context("the driver")?;
    for point in experiment.points() {
        let parameters = driver.vocabulary().complete(experiment.parameters(&point));
        if let Err(missing) = driver.check(&parameters) {
            let remedy = missing.remedy.map_or(String::new(), |r| format!("; {r}"));
            bail!("{}{remedy}", missing.reason);
        }
    }
    Ok(())
}

/// The comparison as an experiment file.
fn file(arguments: &cli::Compare) -> anyhow::Result<String> {
    let rounds = match arguments.rounds {
        Some(rounds) => Rounds::exactly(rounds),
        // The budget ends the comparison, not a number of rounds.
        None => Rounds {
            least: 10,
            most: 1000,
        },
    };
    let commands = &arguments.commands;
    let all = [&arguments.prepare, &arguments.cleanup];
    let mut all = commands.iter().chain(all.into_iter().flatten());
    if let Some(odd) = all.find(|command| command.chars().any(char::is_control)) {
        bail!("found {odd:?}, expected a command on one line; put a longer one into a script");
    }
    let mut distinct: Vec<&String> = commands.iter().collect();
    distinct.sort();
    distinct.dedup();
    // Values of an axis differ, so that one command against itself needs another axis.
    let itself = distinct.len() == 1;
    if !itself && distinct.len() < commands.len() {
        bail!("found a command twice, expected each once, or one command against itself");
    }
    let values: Vec<String> = commands
        .iter()
        .map(|command| Ok(quoted(&value(command, arguments.shell)?)))
        .collect::<anyhow::Result<_>>()?;
    let cell = |place: usize| match itself {
        true => format!("{{ copy = {} }}", place + 1),
        false => format!("{{ command = {} }}", values[place]),
    };
    let matrix = match itself {
        true => {
            let copies: Vec<String> = (1..=values.len()).map(|n| n.to_string()).collect();
            format!(
                "{{ command = [{}], copy = [{}] }}",
                values[0],
                copies.join(", ")
            )
        }
        false => format!("{{ command = [{}] }}", values.join(", ")),
    };
    let mut fixed = format!("limit = \"{} s\"", arguments.limit.as_secs_f64());
    for (name, command) in [
        ("prepare", &arguments.prepare),
        ("cleanup", &arguments.cleanup),
    ] {
        if let Some(command) = command {
            let _ = write!(fixed, ", {name} = {}", quoted(&command.replace('{', "{{")));
        }
    }
    let mut text = format!(
        "# Written by `tare compare`: each command after the first against the first.\n\
         [[experiment]]\n\
         id      = \"compare/commands\"\n\
         title   = \"Time of {} commands\"\n\
         source  = \"tare compare\"\n\
         driver  = \"command\"\n\
         rounds  = {{ least = {}, most = {} }}\n\
         fixed   = {{ {fixed} }}\n\
         matrix  = {matrix}\n\
         metrics = [\n",
        values.len(),
        rounds.least,
        rounds.most,
    );
    for (name, _) in METRICS {
        let _ = writeln!(
            text,
            "  {{ name = \"{name}\", unit = \"ms\", better = \"lower\" }},"
        );
    }
    text.push_str("]\n");
    for place in 1..values.len() {
        for (metric, words) in METRICS {
            let _ = write!(
                text,
                "\n[[experiment.target]]\n\
                 id     = \"{}\"\n\
                 text   = \"Command {} needs no more {words} than command 1\"\n\
                 metric = \"{metric}\"\n\
                 ratio  = {{ of = {}, to = {}, at_most = 1 }}\n",
                target_id(place, metric),
                place + 1,
                cell(place),
                cell(0),
            );
        }
    }
    Ok(text)
}

/// The parameter of the file that stands for a command.
fn value(command: &str, shell: bool) -> anyhow::Result<String> {
    let whole = match shell {
        true => shlex::try_join(["sh", "-c", command]).context("a command with a NUL byte")?,
        false => command.to_owned(),
    };
    // A brace stands for itself here, not for a parameter.
    Ok(whole.replace('{', "{{"))
}

/// A text about trials or of the result, with the commands in it as they were given.
fn as_given(text: &str, arguments: &cli::Compare) -> String {
    let commands = arguments.commands.iter();
    let pairs =
        commands.filter_map(|command| Some((value(command, arguments.shell).ok()?, command)));
    pairs.fold(clean(text), |text, (value, command)| {
        text.replace(&clean(&value), &clean(command))
    })
}

fn target_id(place: usize, metric: &str) -> String {
    format!("{}-{metric}", place + 1)
}

/// A TOML string; without control characters, JSON's escapes are TOML's.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The comparison of every command after the first with the first.
fn comparisons<'r>(commands: &'r [String], result: &'r RunResult) -> Vec<Comparison<'r>> {
    // No publication states them.
    let all: Vec<&ClaimResult> = result.experiments.iter().flat_map(|e| &e.targets).collect();
    let found = |place: usize, metric: &str| {
        let id = format!("compare/commands/{}", target_id(place, metric));
        all.iter().copied().find(|target| target.id == id)
    };
    (1..commands.len())
        .flat_map(|place| METRICS.map(|(metric, _)| (place, metric)))
        .filter_map(|(place, metric)| {
            let judged = found(place, metric)?;
            Some(Comparison {
                place: place + 1,
                command: &commands[place],
                to: &commands[0],
                metric,
                difference: match judged.verdict {
                    _ if judged.measured.is_none() => Difference::NotCompared,
                    Verdict::Reproduced | Verdict::Held => Difference::Less,
                    Verdict::NotReproduced | Verdict::Missed => Difference::More,
                    Verdict::Inconclusive | Verdict::NotTestable => Difference::NotShown,
                },
                judged,
            })
        })
        .collect()
}

/// The figures of every command, then the comparisons.
fn shown(arguments: &cli::Compare, result: &RunResult, comparisons: &[Comparison<'_>]) -> String {
    let mut text = String::new();
    let cells = || result.experiments.iter().flat_map(|e| &e.cells);
    for (place, command) in arguments.commands.iter().enumerate() {
        let _ = writeln!(text, "{}  {}", place + 1, clean(command));
        for (metric, words) in METRICS {
            // Cells come in the order of the commands.
            let Some(cell) = cells().filter(|c| c.metric == metric).nth(place) else {
                continue;
            };
            let figure = cell.median.map_or("–".into(), |m| cell.unit.show(m));
            // In the unit of the figure.
            let per = cell.median.map_or(1.0, |m| cell.unit.short(&[m]).per);
            let interval = cell.ci95.map_or(String::new(), |[low, high]| {
                format!(" [{}, {}]", significant(low / per), significant(high / per))
            });
            let failed = match cell.failed {
                0 => String::new(),
                failed => format!(", {failed} failed"),
            };
            let _ = writeln!(
                text,
                "   {words:<14}  {figure}{interval}, {} trials{failed}",
                cell.n
            );
        }
    }
    for comparison in comparisons {
        let judged = comparison.judged;
        let reason = judged.reason.as_ref();
        let reason = reason.map(|reason| as_given(reason, arguments));
        if comparison.difference == Difference::NotCompared {
            let words = capitalized(comparison);
            let why = all_failed(result, judged);
            let why = why.or(reason).unwrap_or_else(|| "no ratio".to_owned());
            let _ = writeln!(text, "\n{words}: not compared: {why}");
        } else {
            let _ = writeln!(text, "\n{}", sentence(comparison));
            if let Some(reason) = reason {
                let _ = writeln!(text, "   {reason}");
            }
        }
        for failures in &judged.failures {
            let _ = writeln!(
                text,
                "   {} of {} trials of {} failed: {}",
                failures.failed,
                failures.of,
                as_given(&failures.at.in_words(), arguments),
                as_given(&failures.reason, arguments)
            );
            for line in &failures.last_lines {
                let _ = writeln!(text, "     {}", clean(line));
            }
        }
    }
    text
}

/// Returns the commands of a comparison of which every trial failed, in words; `None` if there is
/// none.
fn all_failed(result: &RunResult, judged: &ClaimResult) -> Option<String> {
    // Cells come in the order of the commands.
    let cells = result.experiments.iter().flat_map(|e| &e.cells);
    let cells = cells.filter(|cell| cell.metric == judged.metric);
    let places = (1..).zip(cells).filter(|(_, cell)| {
        let mut failures = judged.failures.iter();
        failures.any(|failures| failures.at == cell.at && failures.failed == failures.of)
    });
    let places: Vec<String> = places.map(|(place, _)| place.to_string()).collect();
    match places.as_slice() {
        [] => None,
        [one] => Some(format!("every trial of command {one} failed")),
        both => Some(format!(
            "every trial of commands {} failed",
            both.join(" and ")
        )),
    }
}

/// The metric of a comparison, as the beginning of a sentence.
fn capitalized(comparison: &Comparison<'_>) -> String {
    let words = METRICS
        .iter()
        .find(|(metric, _)| *metric == comparison.metric)
        .map_or("time", |(_, words)| words);
    words[..1].to_uppercase() + &words[1..]
}

/// The result of one command in one metric, as a sentence.
fn sentence(comparison: &Comparison<'_>) -> String {
    let place = comparison.place;
    let judged = comparison.judged;
    let ratio = match (judged.measured, judged.ci95) {
        (Some(ratio), Some([low, high])) => format!(
            "× {} [{}, {}]",
            significant(ratio),
            significant(low),
            significant(high)
        ),
        (Some(ratio), None) => format!("× {}", significant(ratio)),
        (None, _) => "no ratio".to_owned(),
    };
    let found = match comparison.difference {
        Difference::Less => format!("command {place} needs less than command 1"),
        Difference::More => format!("command {place} needs more than command 1"),
        Difference::NotShown | Difference::NotCompared => {
            format!("no difference shown between commands 1 and {place}")
        }
    };
    let p = judged
        .evidence
        .in_words()
        .map_or(String::new(), |p| format!(", p {p}"));
    let words = capitalized(comparison);
    format!("{words}: {found}: {ratio}, {} rounds{p}", judged.n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use std::os::unix::fs::symlink;
    use std::process::Command;
    use std::time::Duration;
    use tare_lab::driver::Role;

    fn arguments(words: &[&str]) -> cli::Compare {
        let all = ["tare", "compare"].iter().chain(words);
        match cli::Cli::try_parse_from(all).unwrap().command {
            cli::Command::Compare(arguments) => arguments,
            _ => panic!("not compare"),
        }
    }

    fn read(words: &[&str]) -> Vec<Experiment> {
        let text = file(&arguments(words)).unwrap();
        catalog::parse(&text, "compare", Size::Quick, &systems::all()).unwrap()
    }

    #[test]
    fn a_command_reaches_the_driver_as_it_was_given() {
        let odd = "awk '{print}' \"{x}\" 'a\"b\\cé'";
        let [experiment] = &read(&["true", odd])[..] else {
            panic!("one experiment")
        };
        let driver = systems::all();
        let driver = driver.get("command").unwrap();
        let point = &experiment.points()[1];
        let parameters = driver.vocabulary().complete(experiment.parameters(point));
        let invocation = driver.invocation(&Role::only(), &parameters);
        assert_eq!(invocation.program.to_str(), Some("awk"));
        assert_eq!(invocation.arguments, ["{print}", "{x}", "a\"b\\cé"]);
    }

    #[test]
    fn a_command_of_several_lines_is_refused() {
        let refused = file(&arguments(&["true", "echo a\necho b"])).unwrap_err();
        assert!(refused.to_string().contains("on one line"), "{refused}");
    }

    #[test]
    fn a_limit_is_the_one_that_was_given() {
        for (given, nanoseconds) in [
            ("0.4 ms", 400_000),
            ("1.9 ms", 1_900_000),
            ("2500 ms", 2_500_000_000),
        ] {
            let [experiment] = &read(&["--limit", given, "true", "true"])[..] else {
                panic!("one experiment")
            };
            let driver = systems::all();
            let driver = driver.get("command").unwrap();
            let parameters = experiment.parameters(&experiment.points()[0]);
            let invocation =
                driver.invocation(&Role::only(), &driver.vocabulary().complete(parameters));
            assert_eq!(invocation.limit, Duration::from_nanos(nanoseconds));
        }
        let budget = arguments(&["--budget", "2.0005 s", "true", "false"]).budget;
        assert_eq!(forecast::exact(budget), "2.0005 s");
    }

    #[test]
    fn a_file_is_never_saved_in_place_of_another_or_of_what_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, fifo, dangling] =
            ["file", "link", "fifo", "dangling"].map(|name| folder.path().join(name));
        symlink(&file, &link).unwrap();
        save(&file, "after").unwrap();
        for path in [&file, &link] {
            save(path, "after").unwrap();
            let refused = save(path, "another").unwrap_err().to_string();
            assert!(
                refused.contains("found a file with another text"),
                "{refused}"
            );
        }
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "after");
        let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        symlink(folder.path().join("nothing"), &dangling).unwrap();
        for path in [&fifo, &dangling] {
            let kind = || fs::symlink_metadata(path).unwrap().file_type();
            let before = kind();
            let said = format!("{:#}", save(path, "after").unwrap_err());
            assert!(said.starts_with("--save "), "{said}");
            assert_eq!(kind(), before);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_shell_gets_the_whole_command_as_one_word() {
        let [experiment] = &read(&["--shell", "true", "echo 'a b' | wc -c"])[..] else {
            panic!("one experiment")
        };
        let driver = systems::all();
        let driver = driver.get("command").unwrap();
        let parameters = experiment.parameters(&experiment.points()[1]);
        let invocation =
            driver.invocation(&Role::only(), &driver.vocabulary().complete(parameters));
        assert_eq!(invocation.arguments, ["-c", "echo 'a b' | wc -c"]);
    }

    #[test]
    fn a_command_is_compared_with_itself_but_never_twice_among_others() {
        let [experiment] = &read(&["true", "true"])[..] else {
            panic!("one experiment")
        };
        assert_eq!(experiment.points().len(), 2);
        assert_eq!(experiment.claims.len(), METRICS.len());
        let refused = file(&arguments(&["true", "false", "true"])).unwrap_err();
        assert!(refused.to_string().contains("a command twice"), "{refused}");
    }
}
