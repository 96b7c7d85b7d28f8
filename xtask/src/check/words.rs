//! Plain words: the list of `xtask/words.toml`, and the width of prose.

use std::fs;
use std::path::Path;

use regex_lite::Regex;
use serde::Deserialize;

use super::collect;
use crate::shell::root;

/// Columns that a line of prose has at most, in comments and in Markdown.
const WIDTH: usize = 100;

/// The list of words.
const LIST: &str = "xtask/words.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    word: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    pattern: String,
    instead: String,
    #[serde(default)]
    only: String,
    /// True if it is looked for in the first line of a doc comment alone.
    #[serde(default)]
    opening: bool,
    #[serde(default)]
    except: Vec<String>,
}

/// An entry of the list, ready to search with.
struct Word {
    pattern: Regex,
    entry: Entry,
}

/// No source file and no document has a listed word, or prose that is too wide.
pub(super) fn check() -> Result<(), String> {
    let text = fs::read_to_string(root().join(LIST)).map_err(|error| format!("{LIST}: {error}"))?;
    let words = parse(&text)?;
    let mut files = Vec::new();
    for extension in ["rs", "md", "toml", "h", "c", "sh", "3", "1"] {
        collect(root(), extension, &mut files);
    }
    let mut found = Vec::new();
    for file in &files {
        let name = file.strip_prefix(root()).unwrap_or(file);
        if name == Path::new(LIST) {
            continue;
        }
        let text =
            fs::read_to_string(file).map_err(|error| format!("{}: {error}", name.display()))?;
        examine(&name.to_string_lossy(), &text, &words, &mut found);
    }
    if found.is_empty() {
        let (words, files) = (words.len(), files.len());
        eprintln!("xtask: words: none of {words} patterns in {files} files");
        return Ok(());
    }
    let shown = found.len().min(50);
    let more = found.len() - shown;
    let mut message = format!(
        "words that {LIST} lists:\n  {}",
        found[..shown].join("\n  ")
    );
    if more > 0 {
        message += &format!("\n  and {more} more");
    }
    Err(message)
}

fn parse(text: &str) -> Result<Vec<Word>, String> {
    let list: List = toml::from_str(text).map_err(|error| format!("{LIST}: {error}"))?;
    let words = list.word.into_iter().map(|entry| {
        let pattern = Regex::new(&entry.pattern)
            .map_err(|error| format!("{LIST}: pattern {}: {error}", entry.pattern))?;
        Ok(Word { pattern, entry })
    });
    words.collect()
}

/// Adds a line for each finding in a file.
fn examine(name: &str, text: &str, words: &[Word], found: &mut Vec<String>) {
    let markdown = name.ends_with(".md");
    let mut fenced = false;
    let mut doc_before = false;
    for (at, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", at + 1);
        for word in words {
            if !name.ends_with(&word.entry.only)
                || word.entry.opening && doc_before
                || word.entry.except.iter().any(|part| name.contains(part))
            {
                continue;
            }
            if let Some(hit) = word.pattern.find(line) {
                found.push(format!(
                    "{place}: found \"{}\", expected {}",
                    hit.as_str().trim(),
                    word.entry.instead
                ));
            }
        }
        let body = line.trim_start();
        let comment = name.ends_with(".rs") && body.starts_with("//");
        doc_before = body.starts_with("///") || body.starts_with("//!");
        // A block of code ends with its comment, whatever a macro or a string left open.
        fenced &= markdown || comment;
        fenced ^= body.trim_start_matches(['/', '!', ' ']).starts_with("```");
        let prose = (markdown || comment) && !fenced;
        if prose && is_too_wide(line) {
            found.push(format!(
                "{place}: found {} columns, expected at most {WIDTH} in prose",
                line.chars().count()
            ));
        }
    }
}

/// Tables, links and single long words cannot be broken.
fn is_too_wide(line: &str) -> bool {
    let body = line.trim_start_matches(['/', '!', ' ', '>', '-', '*']);
    let breakable = line.char_indices().nth(WIDTH).is_some_and(|(end, _)| {
        line[..end]
            .trim_start_matches(['/', '!', ' '])
            .contains(' ')
    });
    line.chars().count() > WIDTH
        && breakable
        && !body.starts_with('|')
        && !body.starts_with("<!--")
        && !line.contains("://")
        && !line.contains("](")
        && !body.starts_with('[')
}

#[cfg(test)]
mod tests {
    use super::{examine, parse};

    const LIST: &str = r#"
        [[word]]
        pattern = '(?i)\bzap\b'
        instead = "conditions"
        except = ["glossary"]

        [[word]]
        pattern = '^\s*/// What\b'
        instead = "an opening"
        only = ".rs"
        opening = true
    "#;

    fn found(name: &str, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        examine(name, text, &parse(LIST).unwrap(), &mut found);
        found
    }

    #[test]
    fn a_listed_word_is_found_with_its_line() {
        assert_eq!(
            found("a.md", "one\nthe Zap of it"),
            ["a.md:2: found \"Zap\", expected conditions"]
        );
        assert_eq!(found("a.rs", "    /// What it is").len(), 1);
    }

    #[test]
    fn an_opening_is_the_first_line_of_a_doc_comment() {
        assert_eq!(found("a.rs", "/// What it is\nstruct A;").len(), 1);
        assert_eq!(found("a.rs", "/// The A.\n///\n/// What it is"), [""; 0]);
    }

    #[test]
    fn only_and_except_restrict_it() {
        assert_eq!(found("a.md", "/// What it is"), [""; 0]);
        assert_eq!(found("docs/glossary.md", "zap"), [""; 0]);
        assert_eq!(found("a.rs", "// zapper"), [""; 0]);
    }

    #[test]
    fn prose_is_at_most_100_wide_and_tables_code_and_links_are_not_prose() {
        let wide = "word ".repeat(21);
        assert_eq!(found("a.md", &wide).len(), 1);
        assert_eq!(found("a.rs", &format!("// {wide}")).len(), 1);
        assert_eq!(found("a.rs", &format!("let s = \"{wide}\";")), [""; 0]);
        assert_eq!(found("a.md", &format!("| {wide} |")), [""; 0]);
        assert_eq!(found("a.md", &format!("```\n{wide}\n```")), [""; 0]);
        assert_eq!(
            found("a.rs", &format!("//! ```\n//! {wide}\n//! ```")),
            [""; 0]
        );
        assert_eq!(found("a.md", &format!("[a {wide}](b)")), [""; 0]);
        assert_eq!(found("a.md", &"x".repeat(101)), [""; 0]);
    }

    #[test]
    fn a_broken_list_is_an_error() {
        assert!(parse("[[word]]\npattern = '('\ninstead = 'x'").is_err());
        assert!(parse("[[word]]\npattern = 'a'").is_err());
    }
}
