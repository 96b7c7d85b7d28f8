//! SPECIFICATION.md: each promise names tests, and each of those exists.

use std::fs;

use super::collect;
use crate::shell::root;

/// Every promise has a test, and every test that it names exists.
pub(super) fn check() -> Result<(), String> {
    let text = fs::read_to_string(root().join("SPECIFICATION.md"))
        .map_err(|error| format!("SPECIFICATION.md: {error}"))?;
    let mut sources = Vec::new();
    collect(&root().join("crates"), "rs", &mut sources);
    collect(&root().join("xtask"), "rs", &mut sources);
    let sources: String = sources
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect();
    let (count, broken) = broken(&text, &sources);
    if broken.is_empty() {
        eprintln!("xtask: promises: {count} tests keep them");
        Ok(())
    } else {
        Err(broken.join("\n  "))
    }
}

/// The number of tests that the promises name, and a line for each promise that is not kept.
fn broken(text: &str, sources: &str) -> (usize, Vec<String>) {
    let mut broken = Vec::new();
    let mut count = 0;
    for (at, line) in text.lines().enumerate() {
        let Some(row) = line.strip_prefix("| ") else {
            continue;
        };
        let (promise, tests) = row.rsplit_once(" | ").unwrap_or((row, ""));
        if promise == "promise" {
            continue;
        }
        let place = format!("SPECIFICATION.md:{}", at + 1);
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            broken.push(format!("{place}: a promise without a test"));
        }
        for name in names {
            count += 1;
            if !sources.contains(&format!("fn {name}(")) {
                broken.push(format!("{place}: there is no test {name}"));
            }
        }
    }
    (count, broken)
}

#[cfg(test)]
mod tests {
    use super::broken;

    const SOURCES: &str = "struct A {}\n#[test]\nfn it_holds() {}\n";

    #[test]
    fn a_promise_with_its_test_is_kept() {
        let text = "| promise | tests |\n|---|---|\n| It holds | `it_holds` |\n";
        assert_eq!(broken(text, SOURCES), (1, vec![]));
    }

    #[test]
    fn a_promise_without_its_test_is_found() {
        let text = "| promise | tests |\n|---|---|\n| It holds | `it_held` |\n| More | |\n";
        let (_, broken) = broken(text, SOURCES);
        assert_eq!(
            broken,
            [
                "SPECIFICATION.md:3: there is no test it_held",
                "SPECIFICATION.md:4: a promise without a test"
            ]
        );
    }
}
