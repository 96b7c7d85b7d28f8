//! The log: one line per event on standard error, `key=value` or JSON.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tare_sim::{Instant, TokenBucket};

use crate::log_writer::LogWriter;
use crate::record::{Level, Record, Value};

/// Records of one event that are written at once. Ten thousand SAs that come up together are an
/// event each, and still worth their lines.
const BURST: u32 = 50_000;

/// The interval after which one more is written: a thousand per second do not fill a disk in a
/// night.
const INTERVAL: Duration = Duration::from_millis(1);

/// Settings of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// JSON instead of `key=value`.
    pub json: bool,
    /// The lowest level that is written.
    pub level: Level,
}

/// Writes records that have the level, at a bounded rate per event.
///
/// A thread of its own writes, so that a reader of standard error that does not read stops nothing
/// else. When the log is dropped, what waits is written, for as long as five seconds.
#[derive(Debug)]
pub struct Log {
    options: LogOptions,
    writer: LogWriter,
    /// By event; there are as many as the program has names.
    limits: Mutex<HashMap<&'static str, Limit>>,
}

#[derive(Debug)]
struct Limit {
    bucket: TokenBucket,
    suppressed: u64,
}

impl Log {
    /// Creates a log.
    pub fn new(options: LogOptions) -> Log {
        Log::to(options, std::io::stderr())
    }

    fn to(options: LogOptions, output: impl Write + Send + 'static) -> Log {
        let lost = move |lost: u64| {
            let record = Record::new(Level::Warn, "log_lost").with("suppressed", lost);
            text(options, SystemTime::now(), &record)
        };
        Log {
            options,
            writer: LogWriter::start(output, lost),
            limits: Mutex::default(),
        }
    }

    /// Writes a record, unless there are too many of its event; the next one that is written has
    /// their number in the field `suppressed`. A log that cannot be written does not stop the
    /// daemon, and this never waits for it: if too much waits to be written, the record is lost,
    /// and `log_lost` says how many were once there is room.
    pub fn write(&self, record: &Record) {
        if let Some(line) = self.line(record, Instant::now(), SystemTime::now()) {
            self.writer.write(line);
        }
    }

    fn line(&self, record: &Record, now: Instant, time: SystemTime) -> Option<String> {
        if record.level < self.options.level {
            return None;
        }
        let suppressed = self.take(record.event, now)?;
        let counted;
        let record = match suppressed {
            0 => record,
            n => {
                counted = record.clone().with("suppressed", n);
                &counted
            }
        };
        Some(text(self.options, time, record))
    }

    /// Returns how many records of this event were suppressed before, or `None` if this one is to
    /// be.
    fn take(&self, event: &'static str, now: Instant) -> Option<u64> {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = limits.entry(event).or_insert_with(|| Limit {
            bucket: TokenBucket::new(INTERVAL, BURST),
            suppressed: 0,
        });
        if limit.bucket.take(now) {
            Some(std::mem::take(&mut limit.suppressed))
        } else {
            limit.suppressed += 1;
            None
        }
    }
}

/// Returns the line of a record.
fn text(options: LogOptions, time: SystemTime, record: &Record) -> String {
    let time = timestamp(time);
    match options.json {
        true => json(&time, record),
        false => format!("ts={time} {record}\n"),
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

/// Returns a time as `2026-01-31T12:00:00.000Z`.
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
    use std::io::Read as _;

    use super::*;

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

    #[test]
    fn an_event_that_floods_is_bounded_counted_and_does_not_silence_others() {
        let log = Log::new(LogOptions {
            json: false,
            level: Level::Info,
        });
        let line = |event, level, ms| {
            let now = Instant::ZERO + Duration::from_millis(ms);
            log.line(&Record::new(level, event), now, UNIX_EPOCH)
        };
        let written = (0..60_000).filter(|_| line("flood", Level::Info, 0).is_some());
        assert_eq!(written.count(), BURST as usize);
        assert!(line("other", Level::Warn, 0).is_some());
        assert!(line("other", Level::Debug, 0).is_none());
        let next = line("flood", Level::Info, 1).unwrap();
        assert!(next.ends_with("event=flood suppressed=10000\n"), "{next}");
        let after = line("flood", Level::Info, 2).unwrap();
        assert!(after.ends_with("event=flood\n"), "{after}");
    }

    #[test]
    fn a_reader_that_stops_stops_no_daemon_and_is_told_what_it_missed() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let options = LogOptions {
            json: false,
            level: Level::Info,
        };
        let log = Log::to(options, writer);
        let padding = "x".repeat(1000);
        let begun = Instant::now();
        // More than pipe and queue hold, and fewer than the rate limit of an event.
        let n = 30_000u64;
        for n in 0..n {
            let record = Record::new(Level::Info, "line").with("n", n);
            log.write(&record.with("padding", padding.as_str()));
        }
        let took = Instant::now().since(begun);
        // A wait for the reader, if only 2 ms for each, would take as long.
        assert!(took < Duration::from_secs(60), "{took:?}");
        let read = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text)
        });
        // The reader reads again, and the queue becomes empty.
        let end = Instant::now() + Duration::from_secs(60);
        while !log.writer.is_idle() {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(1));
        }
        log.write(&Record::new(Level::Info, "last"));
        drop(log);
        let text = read.join().unwrap().unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let field = |line: &str, name: &str| {
            let at = line.find(&format!("{name}="))? + name.len() + 1;
            line[at..].split(' ').next()?.parse::<u64>().ok()
        };
        let [kept @ .., lost, last] = &lines[..] else {
            panic!("{} lines", lines.len());
        };
        assert!(kept.len() > 1000);
        // In order, without a gap, and the rest is accounted for.
        for (at, line) in kept.iter().enumerate() {
            assert_eq!(field(line, " n"), Some(at as u64), "{line}");
        }
        assert!(lost.contains("level=warn event=log_lost"), "{lost}");
        assert_eq!(field(lost, "suppressed"), Some(n - kept.len() as u64));
        assert!(last.ends_with("event=last"), "{last}");
    }

    #[test]
    fn lines_are_written_in_order_and_before_the_log_is_gone() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let read = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text)
        });
        let options = LogOptions {
            json: true,
            level: Level::Info,
        };
        let log = Log::to(options, writer);
        for n in 0..10_000u32 {
            log.write(&Record::new(Level::Info, "line").with("n", n));
        }
        drop(log);
        let text = read.join().unwrap().unwrap();
        let numbers = text.lines().map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["n"].as_u64().unwrap()
        });
        assert!(numbers.eq(0..10_000));
    }

    #[test]
    fn a_log_that_nobody_reads_ends() {
        let (reader, writer) = std::io::pipe().unwrap();
        let options = LogOptions {
            json: false,
            level: Level::Info,
        };
        let log = Log::to(options, writer);
        let padding = "x".repeat(1000);
        for _ in 0..1000 {
            log.write(&Record::new(Level::Info, "line").with("padding", padding.as_str()));
        }
        let begun = Instant::now();
        drop(log);
        let took = Instant::now().since(begun);
        // Five seconds, and what a busy machine takes: without an end it would be for ever.
        assert!(took < Duration::from_secs(60), "{took:?}");
        drop(reader);
    }
}
