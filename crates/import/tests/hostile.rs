//! Logs as they are in practice: cut, interleaved, drawn over, coloured, of any locale, and no logs
//! at all.

mod common;

use std::io::Read;

use common::{figures, findings, finds, lacks, log};
use proptest::prelude::*;
use tare_import::{check, read, Input, Reader, JSON_MAX, LINE_MAX, RECORDS_MAX, REFUSALS_MAX};

fn text(name: &str) -> String {
    std::fs::read_to_string(common::path(name)).unwrap()
}

fn import(text: &str) -> Input {
    read("log", None, text.as_bytes()).unwrap()
}

fn refusals(input: &Input) -> Vec<String> {
    input.refused.iter().map(ToString::to_string).collect()
}

#[test]
fn a_log_that_was_cut_is_refused_with_its_last_line() {
    for (name, expected) in [
        ("tdx-host.txt", "expected its line Transfer/sec: first"),
        ("bifrost-memcached.txt", "expected its row Totals first"),
        (
            "clio-sizes.txt",
            "expected its line \"All tests are done.\" first",
        ),
        (
            "vita-find-limit.txt",
            "expected the rate that it found first",
        ),
        ("sockperf.txt", "expected its statistics first"),
    ] {
        let whole = text(name);
        let lines: Vec<&str> = whole.lines().collect();
        let cut = lines[..lines.len() - 1].join("\n") + "\n";
        let input = import(&cut);
        assert_eq!(input.runs.len(), 0, "{name}");
        let said = refusals(&input);
        assert_eq!(said.len(), 1, "{name}: {said:?}");
        assert!(
            said[0].starts_with(&format!("log:{}: ", lines.len() - 1)),
            "{said:?}"
        );
        assert!(said[0].contains(expected), "{said:?}");
    }
    let cut = &text("iperf3.json")[..2000];
    let said = refusals(&import(cut));
    assert!(said[0].contains("expected whole JSON"), "{said:?}");
    assert!(
        said[0].starts_with(&format!("log:{}: ", cut.lines().count())),
        "{said:?}"
    );
}

#[test]
fn a_file_that_ends_within_its_last_number_is_a_finding() {
    let whole = text("tdx-host.txt");
    let cut = whole.trim_end().strip_suffix("5GB").unwrap().to_owned() + "GB";
    let found = check(&[import(&cut)]);
    finds(
        &found,
        8,
        &["throughput 1.6 GB", "the file ends within this line"],
    );
    common::lacks(&findings("tdx-host.txt"), "ends within");
}

#[test]
fn a_row_or_line_that_is_not_whole_is_refused_and_the_others_are_read() {
    let broken = text("bifrost-memcached.txt").replace("Gets        58137.26 ", "Gets ");
    let input = import(&broken);
    assert_eq!(refusals(&input).len(), 1);
    assert!(
        refusals(&input)[0].starts_with("log:17: found 8 cells"),
        "{:?}",
        refusals(&input)
    );
    assert!(figures(&input).contains(&"16 operation_rate 5817.81 ops/s".to_owned()));

    let broken =
        text("tdx-host.txt").replace("Requests/sec: 162588.64", "Requests/sec: 1625 88.64");
    assert_eq!(
        refusals(&import(&broken)),
        ["log:7: found \"Requests/sec: 1625 88.64\", expected a whole line of \"Requests/sec:\""]
    );
}

#[test]
fn kernel_messages_within_a_log_and_within_its_lines_change_no_figure() {
    let plain = text("bifrost-memcached.txt");
    let figures_of = |text: &str| -> Vec<String> {
        let input = import(text);
        assert_eq!(input.refused, []);
        figures(&input)
            .iter()
            .map(|f| f.split_once(' ').unwrap().1.to_owned())
            .collect()
    };
    let expected = figures_of(&plain);
    let message = "[959708.354675] usb 1-1: reset high-speed USB device\n";
    let between: String = plain
        .lines()
        .map(|line| format!("{message}{line}\n"))
        .collect();
    assert_eq!(figures_of(&between), expected);
    // A line that the kernel cut in two goes on after its message.
    let within = plain.replace(
        "  5845.21     52292.05         3.94853",
        &format!("  58{message}45.21     52292.05         3.94853"),
    );
    assert_ne!(within, plain);
    assert_eq!(figures_of(&within), expected);
    // And what cannot be joined again is refused.
    let broken = plain.replace(
        "  5845.21     52292.05         3.94853",
        &format!("  58{message}"),
    );
    assert_eq!(import(&broken).refused.len(), 1);
}

#[test]
fn carriage_returns_colours_and_line_ends_of_other_systems_change_no_figure() {
    for name in [
        "bifrost-memcached.txt",
        "tdx-host.txt",
        "redis.txt",
        "vita-find-limit.txt",
        "clio-threads.txt",
    ] {
        let plain = text(name);
        let expected = figures(&import(&plain));
        let others = [
            plain.replace('\n', "\r\n"),
            plain
                .lines()
                .map(|line| format!("\u{1b}[2;35m{line}\u{1b}[0m\n"))
                .collect(),
            plain
                .lines()
                .map(|line| format!("\u{1b}]0;title\u{7}{line}\n"))
                .collect(),
            plain
                .lines()
                .map(|line| format!("working…\r          \r{line} \n"))
                .collect(),
        ];
        for other in others {
            let input = import(&other);
            assert_eq!(input.refused, [], "{name}");
            assert_eq!(figures(&input), expected, "{name}: {other:?}");
        }
    }
}

#[test]
fn a_decimal_comma_is_read_and_a_comma_of_two_meanings_is_refused() {
    let german = text("vita-software.txt")
        .replace("4.77 seconds", "4,77 seconds")
        .replace("2.096", "2,09");
    let all = figures(&import(&german));
    assert!(all.contains(&"2 time 4.77 s".to_owned()), "{all:?}");
    assert!(
        all.contains(&"4 packet_rate 2.09 Mpps".to_owned()),
        "{all:?}"
    );
    assert!(
        all.contains(&"3 breaths 180398 count".to_owned()),
        "{all:?}"
    );
    let unclear = text("vita-software.txt").replace("2.096", "2,096");
    let said = refusals(&import(&unclear));
    assert!(
        said[0].starts_with("log:4: found \"2,096\", expected a number whose comma"),
        "{said:?}"
    );
}

/// A generator of bytes, for inputs that are larger than memory should be.
struct Stream<'a> {
    pattern: &'a [u8],
    left: usize,
    at: usize,
}

impl Read for Stream<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = out.len().min(self.left);
        let mut rest = &mut out[..n];
        while !rest.is_empty() {
            let piece = rest.len().min(self.pattern.len() - self.at);
            let (now, later) = rest.split_at_mut(piece);
            now.copy_from_slice(&self.pattern[self.at..self.at + piece]);
            self.at = (self.at + piece) % self.pattern.len();
            rest = later;
        }
        self.left -= n;
        Ok(n)
    }
}

/// Bytes that look random, with a line end now and then.
fn noise() -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::once(1)
        .chain((0..1 << 20).map(|_| next()))
        .collect()
}

#[test]
fn a_gibibyte_of_garbage_costs_bounded_memory() {
    let progress =
        "[RUN #1 3%,   0 secs]  8 threads:  53172 ops,  57453 (avg:  57453) ops/sec, 1.31GB/sec\r";
    let failing = "Running 30s test @ x\n".repeat(10) + "Requests/sec: x\n";
    let times = [
        &b"{\"results\":[{\"times\":["[..],
        &b"1,".repeat(7 << 20),
        b"1]}]}",
    ]
    .concat();
    let length = times.len();
    let errors = ["Connecting to x port 1...\n", "ERROR: x\n"];
    let errors = [errors[0], &errors[1].repeat(1 << 20)].concat();
    let cases: [(&str, Vec<u8>, usize); 8] = [
        ("figures in JSON", times, length),
        ("noise", noise(), 1 << 28),
        ("one line", vec![b'x'], 1 << 30),
        ("JSON", b"{\"a\":[1,2,3],".to_vec(), 1 << 28),
        ("blanks", b" \n".to_vec(), 1 << 23),
        ("figures", progress.into(), 1 << 24),
        ("refusals", failing.into(), 1 << 23),
        ("errors", errors.into(), 1 << 25),
    ];
    // A figure has a few small allocations; a line and a JSON text have their limits.
    let most = (RECORDS_MAX * 2000 + 2 * JSON_MAX + 4 * LINE_MAX) as u64;
    for (name, pattern, length) in cases {
        let stream = Stream {
            pattern: &pattern,
            left: length,
            at: 0,
        };
        let mut refused = 0;
        let info = allocation_counter::measure(|| {
            let input = read(name, None, stream).unwrap();
            refused = input.refused.len();
        });
        assert!(info.bytes_max < most, "{name}: {} bytes", info.bytes_max);
        assert!(
            (1..=REFUSALS_MAX + 1).contains(&refused),
            "{name}: {refused}"
        );
    }
}

#[test]
fn the_first_errors_of_a_log_are_listed_and_the_others_counted() {
    let errors = (1..=100).map(|n| format!("ERROR: {n}\n"));
    let text = format!("Connecting to x port 1...\n{}", errors.collect::<String>());
    let found = check(&[import(&text)]);
    assert_eq!(found.len(), 20);
    finds(&found, 2, &["ERROR: 1:", "the log reports an error"]);
    finds(
        &found,
        21,
        &["ERROR: 20", "(and so do 80 more of its lines)"],
    );
}

#[test]
fn a_line_that_is_too_long_is_refused_and_the_next_is_read() {
    let text = format!("{}\n{}", "x".repeat(LINE_MAX + 1), text("tdx-host.txt"));
    let input = import(&text);
    assert_eq!(
        refusals(&input),
        [format!(
            "log:1: found a longer line, expected lines of at most {LINE_MAX} bytes"
        )]
    );
    assert_eq!(figures(&input)[11], "8 request_rate 162588.64 req/s");
}

#[test]
fn a_figure_beyond_every_number_is_refused_and_quotients_of_nothing_are_no_findings() {
    let hours = "9".repeat(308) + "h";
    let said = refusals(&import(&text("tdx-host.txt").replace("0.95ms", &hours)));
    assert!(
        said[0].starts_with("log:4: found \"999")
            && said[0].ends_with(", expected a number that is finite in s"),
        "{said:?}"
    );
    for (name, figure) in [
        ("memtier-2-command.txt", &["2719.91", "1481.01"][..]),
        ("memtier-2-time.txt", &["234091"]),
    ] {
        let log = text(name);
        let log = figure
            .iter()
            .fold(log, |log, figure| log.replace(figure, "0"));
        let input = import(&log);
        assert_eq!(input.refused, [], "{name}");
        lacks(&check(&[input]), "NaN");
    }
    let nothing = text("tdx-host.txt").replace("646.74us", "-0.00us");
    let found = check(&[import(&nothing)]);
    finds(&found, 4, &["latency_mean 0 us"]);
    lacks(&found, "-0");
}

#[test]
fn what_is_no_log_is_refused() {
    for text in ["", "\n\n", "hello\n", "\0\u{1b}[", "[1, 2]", "PK\u{3}\u{4}"] {
        let said = refusals(&import(text));
        assert_eq!(said.len(), 1, "{text:?}: {said:?}");
        assert!(said[0].contains("no figures"), "{said:?}");
    }
    for (text, expected) in [
        ("{}", "expected the output of iperf3"),
        (
            "{\"results\": [{\"mean\": \"x\"}]}",
            "expected a number at /mean",
        ),
        (
            "{\"results\": []}",
            "found no figures in the output of hyperfine",
        ),
        ("{\"results\": [", "expected whole JSON"),
    ] {
        let said = refusals(&import(text));
        assert!(said[0].contains(expected), "{text:?}: {said:?}");
    }
}

proptest! {
    #[test]
    fn pieces_of_any_size_give_what_the_whole_gives(sizes in prop::collection::vec(1usize..200, 1..50)) {
        for name in ["bifrost-breakdown.txt", "redis.txt", "iperf3.json"] {
            let whole = text(name).replace('\n', "\r\n");
            let mut reader = Reader::new("log", None);
            let mut rest = whole.as_bytes();
            for size in sizes.iter().cycle() {
                if rest.is_empty() { break; }
                let (piece, after) = rest.split_at((*size).min(rest.len()));
                reader.push(piece);
                rest = after;
            }
            let (pieces, at_once) = (reader.finish(), import(&whole));
            prop_assert_eq!(figures(&pieces), figures(&at_once));
            prop_assert_eq!(pieces.refused, at_once.refused);
        }
    }

    #[test]
    fn a_log_that_was_changed_anywhere_is_read_or_refused(
        which in 0usize..6,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let names = ["bifrost-breakdown.txt", "redis.txt", "iperf3.json", "vita-find-limit.txt", "tdx-unixbench.txt", "go.txt"];
        let mut bytes = text(names[which]).into_bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let input = read("log", None, &bytes[..]).unwrap();
        let records = input.runs.iter().flat_map(|run| &run.records);
        for record in records {
            prop_assert!(record.value.is_finite());
            prop_assert!(record.line >= 1);
        }
        let _ = check(&[input]);
    }
}

#[test]
fn every_input_that_the_fuzzer_found_worth_keeping_is_read_or_refused() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/import_log");
    let mut inputs = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        // The first byte is the size of the pieces.
        let Some((size, bytes)) = bytes.split_first() else {
            continue;
        };
        let whole = read("log", None, bytes).unwrap();
        let mut reader = Reader::new("log", None);
        for piece in bytes.chunks(usize::from(*size).max(1)) {
            reader.push(piece);
        }
        let pieces = reader.finish();
        assert_eq!(
            format!("{whole:?}"),
            format!("{pieces:?}"),
            "{}",
            path.display()
        );
        let _ = check(&[whole, pieces]);
        inputs += 1;
    }
    assert!(inputs >= 50, "{inputs} inputs in {folder}");
}

#[test]
fn every_log_of_the_tests_is_read_whole() {
    let folder = format!("{}/tests/logs", env!("CARGO_MANIFEST_DIR"));
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!log(&name).runs.is_empty(), "{name}");
    }
}
