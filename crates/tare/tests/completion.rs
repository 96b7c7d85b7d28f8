//! Completion in bash, zsh and fish.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// A folder with an experiment file and two runs, and `tare` on the path.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for run in [
        "tare-runs/20260101T000000Z",
        "tare-runs/20260102T000000Z",
        "tare-runs/no-run",
    ] {
        fs::create_dir_all(folder.path().join(run)).unwrap();
    }
    for run in ["20260101T000000Z", "20260102T000000Z"] {
        fs::write(
            folder.path().join("tare-runs").join(run).join("run.json"),
            "{}",
        )
        .unwrap();
    }
    fs::write(folder.path().join("mine.toml"), "").unwrap();
    fs::write(folder.path().join("notes.txt"), "").unwrap();
    folder
}

/// The lines that a shell's `script` prints; `None`, with a notice, without that shell.
fn offered(folder: &Path, shell: &str, script: &str) -> Option<Vec<String>> {
    let built = Path::new(env!("CARGO_BIN_EXE_tare")).parent().unwrap();
    let path = format!("{}:{}", built.display(), std::env::var("PATH").unwrap());
    let flags: &[&str] = match shell {
        "bash" => &["--norc", "--noprofile", "-c"],
        "zsh" => &["-f", "-c"],
        _ => &["--no-config", "-c"],
    };
    let run = Command::new(shell)
        .args(flags)
        .arg(script)
        .current_dir(folder)
        .env("PATH", path)
        .env("HOME", folder)
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .output();
    let Ok(run) = run else {
        let notice = format!("NOT TESTED completion in {shell}: it is not installed");
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{notice}");
        println!("{notice}");
        return None;
    };
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(
        run.status.success(),
        "{shell}: {said}{}",
        String::from_utf8_lossy(&run.stderr)
    );
    Some(said.lines().map(|line| line.trim().to_owned()).collect())
}

/// The candidates after these words, the last of which is being typed.
fn complete(shell: &str, words: &[&str]) -> Option<Vec<String>> {
    let folder = folder();
    let line = words.join(" ");
    let script = match shell {
        "bash" => format!(
            "source <(tare completions bash)
             COMP_WORDS=({}); COMP_CWORD={}; COMP_TYPE=9
             function=$(complete -p tare | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
             $function tare '{}' '' 2>/dev/null
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
            words.len() - 1,
            words.last().unwrap()
        ),
        // The real completion system, in a terminal of its own: what it adds is written down.
        "zsh" => format!(
            "zmodload zsh/zpty
             zpty -b z zsh -f -i
             zpty -w z \"PS1=; autoload -Uz compinit; compinit -u -D; source <(tare completions zsh)\"
             zpty -w z 'record() {{ builtin compadd -O found \"$@\"; print -rl -- $found >> offered; builtin compadd \"$@\" }}'
             zpty -w z 'compadd() {{ record \"$@\" }}'
             zpty -w z 'bindkey \"^I\" complete-word; print READY > ready'
             repeat 1200 {{ [[ -f ready ]] && break; sleep 0.05 }}
             zpty -n -w z $'{line}\\t'
             repeat 1200 {{ [[ -s offered ]] && break; sleep 0.05 }}
             before=; repeat 60 {{
                 sleep 2; now=$(cat offered 2>/dev/null)
                 [[ $now == $before ]] && break; before=$now
             }}
             zpty -d z; cat offered 2>/dev/null; true"
        ),
        _ => format!("tare completions fish | source; complete -C '{line}' | cut -f1"),
    };
    offered(folder.path(), shell, &script)
}

fn in_every_shell(words: &[&str], expected: &[&str], unwanted: &[&str]) {
    for shell in ["bash", "zsh", "fish"] {
        let Some(offered) = complete(shell, words) else {
            continue;
        };
        for name in expected {
            assert!(
                offered.iter().any(|one| one == name),
                "{shell} {words:?}: {name} in {offered:?}"
            );
        }
        for name in unwanted {
            assert!(
                !offered.iter().any(|one| one == name),
                "{shell} {words:?}: {name} in {offered:?}"
            );
        }
    }
}

#[test]
fn experiments_are_offered_by_id_suite_and_file() {
    in_every_shell(
        &["tare", "run", ""],
        &["rdrand", "rdrand/size", "gcm", "mine.toml"],
        &["notes.txt"],
    );
    in_every_shell(
        &["tare", "show", "rdrand/si"],
        &["rdrand/size"],
        &["gcm", "rdrand/width"],
    );
    in_every_shell(&["tare", "doctor", "mi"], &["mine.toml"], &["rdrand"]);
}

#[test]
fn drivers_are_offered_by_their_name() {
    in_every_shell(
        &["tare", "explain", "gcm"],
        &["gcm", "gcm-race"],
        &["rdrand", "gcm/size"],
    );
}

#[test]
fn runs_are_offered_by_their_directory() {
    let runs = ["tare-runs/20260101T000000Z", "tare-runs/20260102T000000Z"];
    in_every_shell(&["tare", "report", ""], &runs, &["tare-runs/no-run"]);
    in_every_shell(&["tare", "run", "--resume", ""], &runs, &["rdrand"]);
    in_every_shell(
        &["tare", "export", "tare-runs/20260102"],
        &runs[1..],
        &runs[..1],
    );
}

#[test]
fn subcommands_and_options_are_offered() {
    in_every_shell(&["tare", "d"], &["doctor"], &["run"]);
    // A hidden command is not offered.
    in_every_shell(&["tare", "r"], &["run", "report", "rng"], &["trial"]);
    in_every_shell(&["tare", "run", "--qu"], &["--quick"], &["--full"]);
}
