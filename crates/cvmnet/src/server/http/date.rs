//! Dates in messages: `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110 section 5.6.7).
//!
//! The two obsolete forms are not read: a condition with one of them counts as none.

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The last second of the year 9999.
const LAST: u64 = 253_402_300_799;

/// Writes a time in seconds since 1970, at most the end of 9999.
pub(super) fn write(unix_s: u64) -> String {
    let unix_s = unix_s.min(LAST);
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Years that begin in March put the leap day last (Hinnant, "chrono-compatible low-level date
    // algorithms"); 719,468 days from 0000-03-01 to 1970-01-01.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = (month + 2) % 12;
    let year = era * 400 + year + u64::from(month < 2);
    format!(
        "{}, {day:02} {} {year:04} {:02}:{:02}:{:02} GMT",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        second / 3600,
        second / 60 % 60,
        second % 60,
    )
}

/// Reads a time in seconds since 1970; `None` if it is not one that [`write()`] writes.
pub(super) fn read(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let number = |at: std::ops::Range<usize>| text.get(at)?.parse::<u64>().ok();
    let month = text.get(8..11)?;
    let month = MONTHS.iter().position(|name| *name == month)? as u64;
    let (day, year) = (number(5..7)?, number(12..16)?);
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let is_leap = leaps(year) != leaps(year.checked_sub(1)?);
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month as usize];
    let of_year = before + u64::from(is_leap && month > 1) + day.checked_sub(1)?;
    // 719,162 days from 0001-01-01 to 1970-01-01.
    let days = ((year - 1) * 365 + leaps(year - 1) + of_year).checked_sub(719_162)?;
    let unix_s = days * 86_400 + number(17..19)? * 3600 + number(20..22)? * 60 + number(23..25)?;
    (write(unix_s) == text).then_some(unix_s)
}
