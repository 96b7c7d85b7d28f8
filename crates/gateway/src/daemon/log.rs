//! The log: one line an event on standard error, `key=value` or JSON.

use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::control::{Level, Record, Value};

/// Writes records that matter enough.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    /// JSON in place of `key=value`.
    pub json: bool,
    /// The least that is written.
    pub level: Level,
}

impl Log {
    /// Writes a record. A log that cannot be written does not stop the gateway.
    pub fn write(&self, record: &Record) {
        if record.level < self.level {
            return;
        }
        let time = timestamp(SystemTime::now());
        let line = match self.json {
            true => json(&time, record),
            false => format!("ts={time} {record}\n"),
        };
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

fn json(time: &str, record: &Record) -> String {
    let mut object = serde_json::Map::new();
    object.insert("ts".into(), time.into());
    object.insert("level".into(), record.level.name().into());
    object.insert("event".into(), record.event.into());
    for (name, value) in &record.fields {
        let value = match value {
            Value::Number(number) => (*number).into(),
            Value::Text(text) => text.as_str().into(),
        };
        object.insert((*name).into(), value);
    }
    format!("{}\n", serde_json::Value::Object(object))
}

/// As `2026-01-31T12:00:00.000Z`.
fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, millis) = (since.as_secs(), since.subsec_millis());
    let (days, second) = (seconds / 86400, seconds % 86400);
    // Years that begin in March end with the leap day; 146,097 days are 400 years.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_399, "2000-02-28T23:59:59.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (1_709_251_199, "2024-02-29T23:59:59.007Z"),
            (1_709_251_200, "2024-03-01T00:00:00.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
            (1_767_225_599, "2025-12-31T23:59:59.007Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(7);
            assert_eq!(timestamp(time), expected);
        }
    }

    #[test]
    fn a_record_as_json_is_one_line() {
        let record = Record::new(Level::Info, "up")
            .with("spi", 7u32)
            .with("id", "a\n\"b");
        let line = json("now", &record);
        assert_eq!(line.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&value["spi"], &value["id"]), (&7.into(), &"a\n\"b".into()));
    }
}
