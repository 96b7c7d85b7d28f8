//! The reference of all leaves, made from the table that the reader goes by.

use std::fmt::Write as _;

use super::leaves::Block;

/// Every block and leaf of a file, in Markdown: a heading and a table each.
pub fn reference(file: &Block) -> String {
    let mut text = String::new();
    describe(file, "", &mut text);
    text
}

fn describe(block: &Block, within: &str, text: &mut String) {
    let path = match (within, block.name) {
        (_, "") => String::new(),
        ("", name) => name.to_string(),
        (within, name) => format!("{within} / {name}"),
    };
    // Writing to a string does not fail.
    if !path.is_empty() {
        let repeats = if block.repeats { " Repeats." } else { "" };
        let _ = write!(text, "\n### `{path}`\n\n{}{repeats}\n\n", block.about);
    }
    text.push_str("| leaf | value | default | |\n|---|---|---|---|\n");
    for leaf in block.leaves {
        let repeats = if leaf.repeats { " Repeats." } else { "" };
        let default = leaf.default.map(|default| format!("`{default}`"));
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {}{repeats} |",
            leaf.name,
            leaf.value,
            default.unwrap_or_default(),
            leaf.about,
        );
    }
    for block in block.blocks {
        describe(block, &path, text);
    }
}
