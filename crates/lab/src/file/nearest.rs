//! The nearest of a few known words.

/// Names longer than this are nobody's typo.
const MAX_CHARS: usize = 64;

/// The word nearest to `found`, where one is near enough to be what was meant: at most a third
/// of the longer word's letters differ, and always one.
pub fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let (distance, word) = known
        .iter()
        .map(|word| (distance(found, word), *word))
        .min_by_key(|(distance, _)| *distance)?;
    let longer = found.chars().count().max(word.chars().count());
    (distance <= (longer / 3).max(1) && distance < longer).then_some(word)
}

/// Letters inserted, removed, replaced or swapped with their neighbour (the optimal string
/// alignment distance), case ignored.
fn distance(a: &str, b: &str) -> usize {
    let letters = |text: &str| -> Vec<char> {
        text.chars()
            .flat_map(char::to_lowercase)
            .take(MAX_CHARS)
            .collect()
    };
    let (a, b) = (letters(a), letters(b));
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let mut cost = (above[j] + usize::from(a[i] != b[j]))
                .min(above[j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                cost = cost.min(before[j - 1] + 1);
            }
            row.push(cost);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
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
        assert_eq!(distance("abcd", "badc"), 2);
        assert_eq!(distance("threads", "thread"), 1);
    }
}
