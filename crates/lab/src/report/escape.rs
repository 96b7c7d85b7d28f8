//! The border between other people's text and our markup.
//!
//! [`Shown`] is for what people read: it also replaces control characters and the invisible
//! characters that turn the direction of what follows. [`Exact`] is for attributes that programs
//! read back: nothing is lost.

use std::fmt::{self, Write};

/// Text for people, safe between tags and inside quoted attributes.
pub(super) struct Shown<'a>(pub(super) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| escaped(f, visible(c)))
    }
}

/// Text for programs, safe inside quoted attributes; comes back as it was.
pub(super) struct Exact<'a>(pub(super) &'a str);

impl fmt::Display for Exact<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\0' => f.write_char(char::REPLACEMENT_CHARACTER), // HTML has no way to write it.
            c if c.is_control() => write!(f, "&#{};", u32::from(c)),
            c => escaped(f, c),
        })
    }
}

fn escaped(f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
    match c {
        '&' => f.write_str("&amp;"),
        '<' => f.write_str("&lt;"),
        '>' => f.write_str("&gt;"),
        '"' => f.write_str("&quot;"),
        '\'' => f.write_str("&#39;"),
        c => f.write_char(c),
    }
}

/// `c`, or the replacement character for what would not show itself: a control character (it
/// could drive a terminal) or a direction override (it could reorder the text around it).
pub(super) fn visible(c: char) -> char {
    match c {
        '\n' | '\t' => ' ',
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' => {
            char::REPLACEMENT_CHARACTER
        }
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

/// The first `limit` characters, with an ellipsis where more follow.
pub(super) fn clip(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(limit.saturating_sub(1)).collect();
    short.truncate(short.trim_end().len());
    short.push('…');
    short
}

/// A name for an anchor or a file: ASCII letters, digits and dashes, at most 48 of them.
pub(super) fn slug(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            name.push(c.to_ascii_lowercase());
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
        if name.len() >= 48 {
            break;
        }
    }
    name.truncate(name.trim_end_matches('-').len());
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_text_stays_text() {
        let hostile = "<script>alert(\"1\")</script>' ]]> & \u{202e}kcab\u{1b}[31m";
        assert_eq!(
            Shown(hostile).to_string(),
            "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&#39; ]]&gt; &amp; \u{fffd}kcab\u{fffd}[31m"
        );
        assert_eq!(Exact("\r\u{202e}\"").to_string(), "&#13;\u{202e}&quot;");
    }

    #[test]
    fn long_text_is_clipped_between_characters() {
        assert_eq!(clip("naïve", 5), "naïve");
        assert_eq!(clip("naïve text", 7), "naïve…");
        assert_eq!(clip("ééééé", 3), "éé…");
    }

    #[test]
    fn an_anchor_holds_only_letters_digits_and_dashes() {
        assert_eq!(slug("rdrand/threads"), "rdrand-threads");
        assert_eq!(slug("../<x>\"' é"), "x");
        assert_eq!(slug("\u{202e}"), "");
        assert_eq!(slug(&"ab/".repeat(5000)).len(), 47);
    }
}
