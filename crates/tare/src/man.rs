//! The manual pages: one for each command that is not hidden.

use std::fs;
use std::io;
use std::path::Path;

use clap::builder::Resettable;
use clap::Command;
use clap_mangen::roff::{roman, Roff};
use clap_mangen::Man;

/// Writes the pages of a command and those below it into a folder, which is made.
///
/// # Errors
/// The folder or a page cannot be written.
pub(crate) fn write(command: Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_all(&command, folder)
}

fn write_all(command: &Command, folder: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        write_all(below, folder)?;
    }
    let name = Man::new(command.clone()).get_filename();
    fs::write(folder.join(name), page(command)?)
}

/// Returns the page of a command. The part after the help is not clap_mangen's, which fills the
/// lines of examples.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let after = command.get_after_help().map(ToString::to_string);
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).to_owned();
    let man = Man::new(
        command
            .clone()
            .after_help(Resettable::Reset)
            .override_usage(usage),
    );
    let mut page = Vec::new();
    man.render(&mut page)?;
    if let Some(after) = after {
        page.extend(examples(&after).render().into_bytes());
    }
    Ok(page)
}

/// Returns the section of examples: lines that are indented stay as they are, others are filled.
fn examples(text: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    let mut is_verbatim = false;
    for line in text.strip_prefix("Examples:\n").unwrap_or(text).lines() {
        let is_indented = line.starts_with(' ');
        if is_indented != is_verbatim {
            roff.control(if is_indented { "nf" } else { "fi" }, []);
            is_verbatim = is_indented;
        }
        match line {
            "" => roff.control("PP", []),
            _ => roff.text([roman(line)]),
        };
    }
    if is_verbatim {
        roff.control("fi", []);
    }
    roff
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn pages_have_the_arguments_and_the_lines_of_examples_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        write(Cli::command(), &folder.path().join("man1")).unwrap();
        let page = |name: &str| fs::read_to_string(folder.path().join("man1").join(name)).unwrap();
        let status = page("tare-cvm-status.1");
        let synopsis = "\\fBtare cvm status\\fR [OPTIONS] [TAP or SOCKET]\n";
        assert!(status.contains(synopsis), "{status}");
        let examples = ".nf\n  tare cvm status\n  tare cvm status tare0\n  \
                        tare cvm status \\-\\-json | jq .guest\n.fi\n.PP\nWithout TAP";
        assert!(status.contains(examples), "{status}");
        let run = page("tare-run.1");
        assert!(run.contains("[OPTIONS] [EXPERIMENT]...\n"), "{run}");
        for entry in fs::read_dir(folder.path().join("man1")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let page = page(&name);
            let count = |what: &str| page.lines().filter(|line| *line == what).count();
            assert_eq!(count(".nf"), count(".fi"), "{name}");
            assert!(!name.contains("guest-agent"), "hidden");
        }
    }
}
