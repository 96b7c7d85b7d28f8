//! The result, for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use tare_histogram::Histogram;

use super::workload::Subject;

/// Returns a table of all targets.
pub(crate) fn text(subjects: &mut [Subject]) -> String {
    let mut text = String::new();
    for subject in &mut *subjects {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (entries, data) = (subject.entries(), mib(subject.data_bytes()));
        let _ = writeln!(
            text,
            "{}: {entries} entries, {data:.1} MiB of values",
            subject.target
        );
        let _ = writeln!(
            text,
            "  phase   operations  per second   p50 µs   p99 µs  longest ms"
        );
        for phase in &subject.phases {
            let micros = |share| micros(&phase.latency, share);
            let _ = writeln!(
                text,
                "  {:6}  {:10}  {:10.0}  {:7.0}  {:7.0}  {:10.1}",
                phase.name,
                phase.operations,
                phase.rate(),
                micros(0.5),
                micros(0.99),
                micros(1.0) / 1e3,
            );
        }
        if let Some(bytes) = subject.index.bytes() {
            let _ = writeln!(text, "  memory there: {:.1} MiB", mib(bytes));
        }
        let events = subject.index.events();
        let _ = writeln!(
            text,
            "  wrong: {}; outcomes unknown: {}, of which {} had happened; repeated: {}; resumed: {}",
            subject.wrong,
            events.had_happened + events.had_not,
            events.had_happened,
            events.repeated,
            events.resumed,
        );
    }
    if let Some([low, median, high]) = ratio(subjects) {
        let _ = writeln!(
            text,
            "first over second in `run`, by turns: {median:.2}, quartiles {low:.2} and {high:.2}"
        );
    }
    if let Some(bytes) = peak_memory() {
        let mib = bytes as f64 / f64::from(1 << 20);
        let _ = writeln!(text, "memory of this program: {mib:.1} MiB at most");
    }
    text
}

/// Returns the same as one line of JSON.
pub(crate) fn json(subjects: &mut [Subject]) -> String {
    let mut all = Vec::new();
    for subject in &mut *subjects {
        let measured = subject.phases.iter().map(|phase| {
            format!(
                r#"{{"name":"{}","operations":{},"seconds":{:.3},"p50_us":{:.1},"p99_us":{:.1},"longest_us":{:.1}}}"#,
                phase.name,
                phase.operations,
                phase.elapsed.as_secs_f64(),
                micros(&phase.latency, 0.5),
                micros(&phase.latency, 0.99),
                micros(&phase.latency, 1.0),
            )
        });
        let measured: Vec<String> = measured.collect();
        let events = subject.index.events();
        let bytes = subject.index.bytes();
        all.push(format!(
            r#"{{"target":{:?},"entries":{},"data_bytes":{},"index_bytes":{},"wrong":{},"had_happened":{},"had_not":{},"repeated":{},"resumed":{},"phases":[{}]}}"#,
            subject.target,
            subject.entries(),
            subject.data_bytes(),
            bytes.map_or("null".to_string(), |bytes| bytes.to_string()),
            subject.wrong,
            events.had_happened,
            events.had_not,
            events.repeated,
            events.resumed,
            measured.join(","),
        ));
    }
    let ratio = ratio(subjects).map_or("null".to_string(), |[low, median, high]| {
        format!("[{low:.3},{median:.3},{high:.3}]")
    });
    let peak = peak_memory().map_or("null".to_string(), |bytes| bytes.to_string());
    format!(
        r#"{{"schema":1,"targets":[{}],"ratio_quartiles":{ratio},"peak_memory_bytes":{peak}}}"#,
        all.join(",")
    )
}

/// Returns the quartiles of the first target's rate over the second's, turn by turn.
fn ratio(subjects: &[Subject]) -> Option<[f64; 3]> {
    let [first, second, ..] = subjects else {
        return None;
    };
    let rates = |subject: &Subject| -> Option<Vec<f64>> {
        let run = subject.phases.iter().find(|phase| phase.name == "run")?;
        Some(run.rates.clone())
    };
    let pairs = rates(first)?.into_iter().zip(rates(second)?);
    let mut ratios: Vec<f64> = pairs.map(|(first, second)| first / second).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |quarter: usize| {
        ratios
            .get((ratios.len().checked_sub(1)? * quarter + 2) / 4)
            .copied()
    };
    Some([at(1)?, at(2)?, at(3)?])
}

fn micros(latency: &Histogram, share: f64) -> f64 {
    let latency = latency.quantile(share).unwrap_or(Duration::ZERO);
    latency.as_secs_f64() * 1e6
}

/// Returns the most memory that the process had, in bytes.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
