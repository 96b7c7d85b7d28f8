//! The nearest of a few known words.

use strsim::osa_distance;

/// The work grows with the square of the length, and no name is longer than this.
const MAX_CHARS: usize = 64;

/// Returns the word nearest to `found`, case ignored, if it is near enough to be what was meant: at
/// most a third of the longer word's letters are inserted, removed, replaced or swapped with their
/// neighbour, or one letter is.
pub fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let letters = |text: &str| -> String {
        let lower = text.chars().flat_map(char::to_lowercase);
        lower.take(MAX_CHARS).collect()
    };
    let found = letters(found);
    let distance = |word: &&'a str| {
        let known = letters(word);
        let longer = found.chars().count().max(known.chars().count());
        (osa_distance(&found, &known), longer, *word)
    };
    let (distance, longer, word) = known
        .iter()
        .map(distance)
        .min_by_key(|(distance, ..)| *distance)?;
    (distance <= (longer / 3).max(1) && distance < longer).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_keyboard_is_recognised_and_another_word_is_not() {
        let known = ["higher", "lower"];
        for (found, expected) in [
            ("hihger", Some("higher")),
            ("Higher", Some("higher")),
            ("lowr", Some("lower")),
            ("", None),
            ("sideways", None),
        ] {
            assert_eq!(nearest(found, &known), expected, "{found}");
        }
        assert_eq!(nearest("x", &[]), None);
        assert_eq!(nearest("x", &["y"]), None);
        assert_eq!(nearest("badc", &["abcd"]), None);
        assert_eq!(nearest("badcef", &["abcdef"]), Some("abcdef"));
        assert_eq!(nearest("thread", &["threads"]), Some("threads"));
        let long = "x".repeat(1_000_000);
        assert_eq!(nearest(&long, &["x"]), None);
    }
}
