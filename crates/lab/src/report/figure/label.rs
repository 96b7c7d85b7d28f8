//! Text in figures: how wide it is, and how labels make room for each other.

use super::super::escape::{clip, visible};

/// The font size of figures, in the units of their view box.
pub(crate) const FONT: f64 = 13.0;

/// About how wide `text` is at [`FONT`]; rather too wide than too narrow, because the reader's
/// font is not known here.
pub(crate) fn width(text: &str) -> f64 {
    text.chars().map(|c| FONT * advance(c)).sum()
}

fn advance(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '|' | '\'' | '!' | 'I' | ' ' => 0.36,
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '/' | '-' => 0.46,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '…' => 1.0,
        'A'..='Z' => 0.74,
        c if c.is_ascii() => 0.64,
        '\u{300}'..='\u{36f}' => 0.0,
        '\u{1100}'..='\u{115f}' | '\u{2e80}'..='\u{a4cf}' | '\u{ac00}'..='\u{d7a3}' => 1.05,
        '\u{f900}'..='\u{faff}' | '\u{fe30}'..='\u{ff60}' | '\u{1f000}'..='\u{3fffd}' => 1.2,
        _ => 0.72,
    }
}

/// `text` cut to fit into `room`: its middle gives way to an ellipsis, because long names often
/// differ only at their ends.
pub(crate) fn fit(text: &str, room: f64) -> String {
    let text: Vec<char> = ends(text, 200).chars().map(visible).collect();
    let wide = |c: &char| FONT * advance(*c);
    if text.iter().map(wide).sum::<f64>() <= room {
        return text.into_iter().collect();
    }
    let mut left = room - FONT * advance('…');
    let (mut head, mut tail) = (0, text.len());
    // Two from the head for one from the tail.
    for turn in 0.. {
        let next = if turn % 3 == 2 { tail - 1 } else { head };
        left -= wide(&text[next]);
        if left < 0.0 || head >= tail {
            break;
        }
        if turn % 3 == 2 {
            tail -= 1;
        } else {
            head += 1;
        }
    }
    let begin: String = text[..head].iter().collect();
    let end: String = text[tail..].iter().collect();
    format!("{}…{}", begin.trim_end(), end.trim_start())
}

/// The first and last `limit` characters of what is longer than both.
fn ends(text: &str, limit: usize) -> String {
    let count = text.chars().count();
    if count <= 2 * limit {
        return text.to_owned();
    }
    let last: String = text.chars().skip(count - limit).collect();
    clip(text, limit) + &last
}

/// Moves `places` apart until neighbours are `gap` from each other, each as near to where it
/// wanted to be as that allows, all within `low..=high` where there is room for all.
pub(crate) fn apart(places: &mut [f64], gap: f64, low: f64, high: f64) {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|&a, &b| places[a].total_cmp(&places[b]));
    // Blocks of touching labels, each centred on the mean of its wishes.
    let mut blocks: Vec<(f64, usize)> = Vec::new(); // first place, how many
    for &index in &order {
        blocks.push((places[index].clamp(low, high.max(low)), 1));
        while let [.., (above, many), (below, few)] = blocks[..] {
            if below - above >= gap * many as f64 {
                break;
            }
            let (m, f) = (many as f64, few as f64);
            let first = (above * m + (below - gap * m) * f) / (m + f);
            let last = high - gap * (m + f - 1.0);
            blocks.truncate(blocks.len() - 2);
            blocks.push((first.min(last).max(low), many + few));
        }
    }
    let spread = blocks
        .iter()
        .flat_map(|&(first, many)| (0..many).map(move |i| first + gap * i as f64));
    for (&index, place) in order.iter().zip(spread) {
        places[index] = place;
    }
}

/// Which of the labels at `places` (centres, ascending) with these widths are shown so that none
/// touch: every second, third… where that is nearly as many as fit, else as many as fit.
pub(crate) fn thinned(places: &[f64], widths: &[f64]) -> Vec<bool> {
    let count = places.len();
    let clear = |a: usize, b: usize| {
        (places[b] - places[a]).abs() >= (widths[a] + widths[b]) / 2.0 + FONT * 0.5
    };
    let Some(last) = count.checked_sub(1) else {
        return Vec::new();
    };
    let mut keep = vec![false; count];
    keep[0] = true;
    keep[last] = last == 0 || clear(0, last);
    let mut previous = 0;
    for index in 1..last {
        if clear(previous, index) && (!keep[last] || clear(index, last)) {
            keep[index] = true;
            previous = index;
        }
    }
    let fitting = keep.iter().filter(|&&kept| kept).count();
    let even = (1..=count)
        .find(|&stride| {
            (stride..count)
                .step_by(stride)
                .all(|i| clear(i - stride, i))
        })
        .unwrap_or(count);
    if count.div_ceil(even) as f64 >= 0.7 * fitting as f64 {
        keep = (0..count).map(|index| index % even == 0).collect();
    }
    keep
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_collide_move_apart_and_stay_inside() {
        let mut places = [100.0, 101.0, 20.0, 102.0];
        apart(&mut places, 16.0, 10.0, 300.0);
        assert_eq!(places[2], 20.0);
        assert_eq!(places[1] - places[0], 16.0);
        assert_eq!(places[3] - places[1], 16.0);
        assert!((places[1] - 101.0).abs() < 1e-9);
        let mut low = [299.0, 300.0, 300.0];
        apart(&mut low, 16.0, 10.0, 300.0);
        assert_eq!(low, [268.0, 284.0, 300.0]);
    }

    #[test]
    fn tick_labels_never_touch() {
        let keep = thinned(&[0.0, 4.0, 60.0, 118.0, 120.0], &[20.0; 5]);
        assert_eq!(keep, [true, false, true, false, true]);
        assert_eq!(thinned(&[], &[]), Vec::<bool>::new());
        assert_eq!(thinned(&[5.0], &[500.0]), [true]);
        // 1, 2, 4 … 16384 at equal distances: every second one, not the first eight and gaps.
        let powers: Vec<f64> = (0..15).map(|i| 27.0 * f64::from(i)).collect();
        let widths: Vec<f64> = (0..15).map(|i| width(&(1 << i).to_string())).collect();
        let even: Vec<bool> = (0..15).map(|i| i % 2 == 0).collect();
        assert_eq!(thinned(&powers, &widths), even);
    }

    #[test]
    fn long_labels_lose_their_middle() {
        assert_eq!(fit("read", 100.0), "read");
        assert_eq!(fit("", 0.0), "");
        assert_eq!(fit("x", 0.0), "…");
        let cut = |n: u32| fit(&format!("{} {n}", "long ".repeat(2000)), 100.0);
        assert!(width(&cut(1)) <= 100.0 && cut(1).contains('…'));
        assert_ne!(cut(1), cut(2));
    }
}
