//! Histograms of intervals, in the log format of HdrHistogram.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::BASE64;
use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};

use crate::Histogram;

/// Nanoseconds in the unit of the column of the longest latency, which is milliseconds as in the
/// logs of other tools. The histograms are in nanoseconds.
const MAX_UNIT_NS: f64 = 1e6;

/// Writes a log of histograms in the format of HdrHistogram (`.hlog`, version 1.3), each as V2,
/// compressed. Its own tools and others read and plot it.
pub struct HistogramLog<W> {
    out: W,
    serializer: V2DeflateSerializer,
    bytes: Vec<u8>,
}

impl<W: Write> HistogramLog<W> {
    /// Writes the head of a log that begins at `start`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W, start: SystemTime) -> io::Result<HistogramLog<W>> {
        let start = start.duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = start.as_secs_f64();
        writeln!(out, "#[Histogram log format version 1.3]")?;
        writeln!(out, "#[StartTime: {start:.3} (seconds since epoch)]")?;
        let columns = ["StartTimestamp", "Interval_Length", "Interval_Max"];
        let columns = columns.map(|column| format!("\"{column}\"")).join(",");
        writeln!(out, "{columns},\"Interval_Compressed_Histogram\"")?;
        Ok(HistogramLog {
            out,
            serializer: V2DeflateSerializer::new(),
            bytes: Vec::new(),
        })
    }

    /// Writes an interval: its begin, from the log's, its length, and its latencies.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(
        &mut self,
        begin: Duration,
        length: Duration,
        latencies: &Histogram,
    ) -> io::Result<()> {
        self.bytes.clear();
        let latencies = &latencies.latencies;
        let written = self.serializer.serialize(latencies, &mut self.bytes);
        written.map_err(|error| io::Error::other(format!("{error:?}")))?;
        let (begin, length) = (begin.as_secs_f64(), length.as_secs_f64());
        let max = latencies.max() as f64 / MAX_UNIT_NS;
        let bytes = BASE64.encode(&self.bytes);
        writeln!(self.out, "{begin:.3},{length:.3},{max:.3},{bytes}")?;
        // A line at a time, so that a trial that is ended leaves whole lines.
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    use hdrhistogram::serialization::Deserializer;

    use super::*;

    #[test]
    fn a_log_is_read_back_and_its_intervals_merge_to_the_whole() {
        let mut text = Vec::new();
        let mut log = HistogramLog::new(
            &mut text,
            UNIX_EPOCH + Duration::from_millis(1_700_000_000_500),
        );
        let log = log.as_mut().unwrap();
        let mut whole = Histogram::new();
        for n in 0..3 {
            let mut part = Histogram::new();
            (0..=n * 1000).for_each(|at| part.record(at * 7_919 + n));
            whole.merge(&part);
            let begin = Duration::from_secs(n);
            log.write(begin, Duration::from_secs(1), &part).unwrap();
        }
        let head = std::str::from_utf8(&text).unwrap();
        assert!(
            head.starts_with("#[Histogram log format version 1.3]\n#[StartTime: 1700000000.500")
        );
        let mut merged = hdrhistogram::Histogram::<u64>::new(3).unwrap();
        let (mut begins, mut start) = (Vec::new(), None);
        for entry in IntervalLogIterator::new(&text) {
            match entry.unwrap() {
                LogEntry::StartTime(at) => start = Some(at),
                LogEntry::Interval(line) => {
                    begins.push((line.start_timestamp(), line.duration(), line.max()));
                    let bytes = line.encoded_histogram();
                    let bytes = BASE64.decode(bytes.as_bytes()).unwrap();
                    let part: hdrhistogram::Histogram<u64> =
                        Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
                    merged.add(part).unwrap();
                }
                LogEntry::BaseTime(_) => unreachable!("times count from the start"),
            }
        }
        assert_eq!(start, Some(Duration::from_millis(1_700_000_000_500)));
        let second = Duration::from_secs(1);
        let maxima = [0.0, 7.919, 15.838];
        assert_eq!(begins.len(), 3);
        for (n, (begin, length, max)) in begins.into_iter().enumerate() {
            assert_eq!((begin, length), (second * n as u32, second));
            assert!(
                (max / maxima[n] - 1.0).abs() < 1e-3 || max == maxima[n],
                "{max}"
            );
        }
        assert_eq!(merged, whole.latencies);
    }
}
