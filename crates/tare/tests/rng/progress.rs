//! The progress bars on a terminal.

use std::process::{Command, Stdio};

use super::text;

/// The lines that a command prints or redraws on a terminal of 60 columns.
fn on_a_terminal(arguments: &str) -> Vec<String> {
    let output = Command::new("script")
        .args([
            "-qec",
            &format!("stty rows 40 cols 60; \"$TARE\" {arguments}"),
            "/dev/null",
        ])
        .env("TARE", env!("CARGO_BIN_EXE_tare"))
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let mut plain = String::new();
    let mut shown = text(&output.stdout);
    // Control sequences: ESC [ … letter.
    while let Some(at) = shown.find("\x1b[") {
        plain.push_str(&shown[..at]);
        let rest = &shown[at + 2..];
        let end = rest.find(|c: char| c.is_ascii_alphabetic());
        let end = end.unwrap_or(rest.len() - 1);
        if rest[..=end].ends_with('K') {
            plain.push('\n');
        }
        shown = rest[end + 1..].to_owned();
    }
    plain.push_str(&shown);
    let lines = plain.split(['\r', '\n']);
    lines
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn long_work_shows_a_bar_with_the_time_left_that_fits_the_terminal() {
    let cases = [
        ("rng gen -n 20M -m reseed_skip -o /dev/null", " of 20.00 MB"),
        ("rng bench -m rand_chacha -d 2 -r 1 -t 1", ", 1 of 1 ["),
        (
            "rng test /dev/zero -n 300M --external none",
            " of 300.00 MB",
        ),
    ];
    std::thread::scope(|scope| {
        for (arguments, part) in cases {
            scope.spawn(move || {
                // On a busy machine the program may not have begun after some seconds.
                let found = [5, 20, 60].into_iter().any(|seconds| {
                    let arguments = match arguments.contains("skip") {
                        true => format!("{arguments} & sleep {seconds}; kill $!"),
                        false => arguments.to_owned(),
                    };
                    let lines = on_a_terminal(&arguments);
                    let mut bars = lines.iter().filter(|line| line.contains('['));
                    for bar in bars.clone() {
                        assert!(bar.chars().count() <= 60, "{bar}");
                    }
                    bars.any(|bar| bar.contains(part) && bar.ends_with(" left"))
                });
                assert!(found, "{arguments}: no bar");
            });
        }
    });
}
