//! Text from outside made safe to show, and small pieces of text that several modules write.

use std::fmt::Write;

/// `1 trial`, `20 trials`.
pub(crate) fn count(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// `c`, or the replacement character for what would not show itself: a control character (it
/// could drive a terminal) or a direction override (it could reorder the text around it).
pub(crate) fn visible(c: char) -> char {
    match c {
        '\n' | '\t' => ' ',
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' => {
            char::REPLACEMENT_CHARACTER
        }
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

/// Returns `text` without what could drive a terminal or reorder a line.
pub fn clean(text: &str) -> String {
    text.chars().map(visible).collect()
}

/// Returns JSON with the control characters that serde_json leaves as they are (U+007F to U+009F)
/// as escapes. They stand within strings alone.
pub fn json_for_terminals(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\u{7f}'..='\u{9f}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// The first `limit` characters, made safe to show, with an ellipsis where more follow.
pub(crate) fn clip(text: &str, limit: usize) -> String {
    let mut short: String = text.chars().take(limit).map(visible).collect();
    if text.chars().nth(limit).is_some() {
        short.pop();
        short.truncate(short.trim_end().len());
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_for_terminals_is_the_same_json_without_control_characters() {
        let text = "a\u{1b}[2J\u{7f}\u{9b}2J\u{9f}\u{a0}é\\u";
        let json = json_for_terminals(&serde_json::to_string(text).unwrap());
        assert!(!json.contains(char::is_control), "{json:?}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn long_text_is_clipped_between_characters_and_cannot_hide_anything() {
        assert_eq!(clip("naïve", 5), "naïve");
        assert_eq!(clip("naïve text", 7), "naïve…");
        assert_eq!(clip("ééééé", 3), "éé…");
        assert_eq!(
            clip("\u{202e}gnp\u{1b}[31m\n", 99),
            "\u{fffd}gnp\u{fffd}[31m "
        );
    }
}
