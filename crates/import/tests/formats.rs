//! Formats that no publication printed here: outputs of the programs, made on this kind of machine.

mod common;

use common::{figures, findings, finds, lacks, log, path};
use tare_import::{check, read, Format};

#[test]
fn wrks_percentiles_and_failed_responses_are_read() {
    let all = figures(&log("wrk-latency.txt"));
    assert_eq!(
        all[8..12],
        [
            "7 latency_p50 117 µs",
            "8 latency_p75 2.24 ms",
            "9 latency_p90 4.38 ms",
            "10 latency_p99 10.31 ms"
        ]
    );
    let found = check(&[log("wrk-latency.txt"), log("wrk-404.txt")]);
    finds(
        &found,
        7,
        &["response_errors 10068", "requests that failed"],
    );
    finds(
        &found,
        6,
        &["308 B per response, and 33010 B in the run of wrk-latency.txt:11"],
    );
}

#[test]
fn redis_benchmark_is_read_as_text_and_as_csv() {
    let input = log("redis.txt");
    assert_eq!(input.runs.len(), 2);
    let all = figures(&input);
    for figure in [
        "2 requests 2000 count",
        "2 time 0.15 s",
        "12 latency_p50 2.455 ms",
        "23 latency_p100 8.231 ms",
        "55 request_rate 13605.44 req/s",
        "58 latency_mean 2.557 ms",
        "58 latency_max 8.231 ms",
        "118 request_rate 9132.42 req/s",
    ] {
        assert!(all.iter().any(|f| f == figure), "{figure} not in {all:#?}");
    }
    assert_eq!(&*input.runs[1].records[0].parameters["test"], "GET");
    assert_eq!(&*input.runs[1].records[0].parameters["clients"], "50");
    // 2000 / 0.15 s is 13,333 per second, as near as two digits of a time can be.
    lacks(&findings("redis.txt"), "it is not");
    let all = figures(&log("redis-csv.txt"));
    assert_eq!(
        all[..2],
        ["2 request_rate 9478.67 req/s", "2 latency_mean 3.637 ms"]
    );
    assert_eq!(all[13], "3 latency_max 13.967 ms");
}

#[test]
fn redis_benchmark_with_q_overwrites_its_progress_with_carriage_returns() {
    let text = "SET: rps=0.0 (overall: -nan) avg_msec=-nan (overall: -nan)\r                    \r\
                SET: 9803.92 requests per second, p50=0.847 msec\n\
                GET: rps=2100.0 (overall: 13317.1)\rGET: 14285.71 requests per second, p50=1.071 msec\n\n";
    let input = read("q", None, text.as_bytes()).unwrap();
    assert_eq!(input.refused, []);
    assert_eq!(
        figures(&input),
        [
            "1 request_rate 9803.92 req/s",
            "1 latency_p50 0.847 ms",
            "2 request_rate 14285.71 req/s",
            "2 latency_p50 1.071 ms",
        ]
    );
}

#[test]
fn sockperfs_escape_sequences_are_removed_and_its_mbps_are_powers_of_1024() {
    let all = figures(&log("sockperf.txt"));
    for figure in [
        "11 time 0.555 s",
        "11 received_messages 9736 count",
        "12 latency_mean 28.483 µs",
        "12 latency_stdev 258.6 µs",
        "13 lost_messages 0 count",
        "19 latency_p99.9 3793.918 µs",
        "25 latency_min 5.112 µs",
    ] {
        assert!(all.iter().any(|f| f == figure), "{figure} not in {all:#?}");
    }
    assert_eq!(
        figures(&log("sockperf-tp.txt")),
        [
            "8 sent_messages 52389 count",
            "8 time 1.012 s",
            "11 message_rate 51766 ops/s",
            "12 throughput 69.115 MiB/s",
            "12 throughput_in_bits 552.921 Mibit/s",
        ]
    );
    let found = findings("sockperf-tp.txt");
    finds(&found, 12, &["69.115 MBps", "72.4723 MB/s"]);
    finds(&found, 12, &["552.921 Mbps", "579.78 Mbit/s"]);
    lacks(&found, "it is not");
}

#[test]
fn json_figures_know_their_lines() {
    let all = figures(&log("hyperfine.json"));
    assert_eq!(all[0], "5 time_mean 0.004362705600000001 s");
    assert_eq!(all[11], "17 time_sample 0.0019230970000000001 s");
    assert_eq!(
        findings("hyperfine.json"),
        [],
        "five runs with their spread"
    );

    let input = log("iperf3.json");
    let all = figures(&input);
    for figure in [
        "125 sent_bytes 2243952640 B",
        "126 sent_throughput 8947527425.807024 bit/s",
        "127 retransmits 3 count",
        "134 received_bytes 2243952640 B",
        "139 processor_time 19.977906628259205 %",
    ] {
        assert!(all.iter().any(|f| f == figure), "{figure} not in {all:#?}");
    }
    assert_eq!(&*input.runs[0].records[0].parameters["protocol"], "TCP");
    let found = findings("iperf3.json");
    assert_eq!(found.len(), 1, "{found:?}");
    finds(&found, 124, &["one run only"]);

    let all = figures(&log("estimates.json"));
    assert_eq!(
        all[..3],
        [
            "1 time_mean 131.05 ns",
            "1 time_low 130.1 ns",
            "1 time_high 132.2 ns"
        ]
    );
    assert_eq!(all.last().unwrap(), "5 time_stdev 4.5 ns");
    let text = std::fs::read(path("estimates.json")).unwrap();
    let input = read(
        "target/criterion/seal/1440/new/estimates.json",
        None,
        &text[..],
    )
    .unwrap();
    assert_eq!(
        &*input.runs[0].records[0].parameters["benchmark"],
        "seal/1440"
    );
}

#[test]
fn more_received_than_sent_and_rates_that_do_not_multiply_are_found_in_json_too() {
    let text = r#"{"start":{},"intervals":[],"end":{
        "sum_sent":{"seconds":2.0,"bytes":1000,"bits_per_second":4000},
        "sum_received":{"seconds":2.0,"bytes":1100,"bits_per_second":9000}}}"#;
    let found = check(&[read("x.json", None, text.as_bytes()).unwrap()]);
    finds(
        &found,
        3,
        &[
            "received_bytes 1100 B",
            "100 B more were received than sent",
            "at most 1000 B",
        ],
    );
    finds(
        &found,
        3,
        &["received_throughput 9000", "it is not", "4400 bit/s"],
    );
    lacks(&found, "sent_throughput 4000 bit/s: it is not");
}

#[test]
fn criterion_and_go_are_read_as_text() {
    assert_eq!(
        figures(&log("criterion.txt")),
        [
            "2 time_low 130.12 ns",
            "2 time_mean 131.05 ns",
            "2 time_high 132.2 ns",
            "3 throughput_low 10.144 GiB/s",
            "3 throughput_mean 10.233 GiB/s",
            "3 throughput_high 10.307 GiB/s",
            "7 time_low 1.01 µs",
            "7 time_mean 1.02 µs",
            "7 time_high 1.03 µs",
            "9 time_low 1.5 µs",
            "9 time_mean 1.51 µs",
            "9 time_high 1.52 µs",
            "10 throughput_low 10.039 GiB/s",
            "10 throughput_mean 10.105 GiB/s",
            "10 throughput_high 10.173 GiB/s",
            "16 time_low 20.1 ns",
            "16 time_mean 20.2 ns",
            "16 time_high 20.3 ns",
            "17 throughput_low 2.9362 GiB/s",
            "17 throughput_mean 2.9507 GiB/s",
            "17 throughput_high 2.9654 GiB/s",
        ]
    );
    let names: Vec<String> = log("criterion.txt").runs[0]
        .records
        .iter()
        .map(|r| r.parameters["benchmark"].to_string())
        .collect();
    let expected = [
        ["seal/1440"; 6].as_slice(),
        &["open"; 3],
        &["open/16384"; 6],
        &["seal/64"; 6],
    ];
    assert_eq!(names, expected.concat());
    assert_eq!(findings("criterion.txt"), []);
    let all = figures(&log("go.txt"));
    assert_eq!(
        all[..5],
        [
            "5 iterations 9073912 count",
            "5 time_mean 131.5 ns",
            "5 throughput_mean 10950.57 MB/s",
            "5 allocated_mean 0 B",
            "5 allocations_mean 0 ratio",
        ]
    );
    finds(&findings("go.txt"), 7, &["one run only"]);
    assert_eq!(
        &*log("go.txt").runs[0].records[0].parameters["package"],
        "example.org/pack"
    );
}

#[test]
fn the_columns_of_a_csv_are_those_of_its_header() {
    let input = log("transient.txt");
    let all = figures(&input);
    assert_eq!(all.len(), 22);
    assert_eq!(
        all[11..13],
        [
            "3 sent_packets 148810 count",
            "3 sent_packet_rate 0.14881 Mpps"
        ]
    );
    assert_eq!(all[20..], ["3 lost_packets 100 count", "3 loss 0.0672 %"]);
    assert_eq!(&*input.runs[0].records[11].parameters["stream"], "node2");
    let swapped = "load_gbps,stream,rx_packets,tx_packets\n0.1,node1,5,7\n";
    let input = read("swapped", None, swapped.as_bytes()).unwrap();
    assert_eq!(
        figures(&input),
        ["2 received_packets 5 count", "2 sent_packets 7 count"]
    );
    let other = "load_gbps,stream,colour\n0.1,node1,5\n";
    let input = read("other", None, other.as_bytes()).unwrap();
    assert_eq!(input.refused[0].line, 1);
    assert_eq!(input.refused[0].found, "the column \"colour\"");
}

#[test]
fn librdrands_tool_prints_mib_and_says_so() {
    let input = log("librdrand.txt");
    let all = figures(&input);
    assert_eq!(all[0], "2 throughput_mean 339.812 MiB/s");
    assert_eq!(all[4], "6 throughput_mean 681.004 MiB/s");
    assert_eq!(&*input.runs[0].records[4].parameters["threads"], "4");
    lacks(&findings("librdrand.txt"), "powers of 1024");
}

/// Asserts that the log has these figures.
fn has(name: &str, expected: &[&str]) {
    let all = figures(&log(name));
    for figure in expected {
        assert!(
            all.iter().any(|f| f == figure),
            "{name}: {figure} not in {all:#?}"
        );
    }
}

#[test]
fn outputs_with_other_options_and_of_other_versions_are_read() {
    has(
        "memaslap.txt",
        &[
            "58 latency_max 32144 µs",
            "61 latency_stdev 893.14 µs",
            "92 written_bytes 20642735 B",
            "96 time 3 s",
            "96 operations 118969 count",
            "96 operation_rate 39510 ops/s",
            "96 throughput 44.2 MiB/s",
        ],
    );
    let found = findings("memaslap.txt");
    finds(
        &found,
        96,
        &["44.2 M/s", "44.2 MiB/s, which is 46.3471 MB/s"],
    );
    lacks(&found, "it is not");
    let input = log("memaslap.txt");
    let operations: Vec<Option<&str>> = [1, 6, 11, 15]
        .map(|at| input.runs[0].records[at].parameters.get("operation"))
        .map(|operation| operation.map(|o| &**o))
        .to_vec();
    assert_eq!(operations, [Some("Get"), Some("Set"), Some("Total"), None]);
    let within = std::fs::read_to_string(path("tdx-host.txt")).unwrap();
    let within = within.replacen("  4 threads", "servers: 192.0.2.1\n  4 threads", 1);
    let input = read("within", None, within.as_bytes()).unwrap();
    assert_eq!(
        (input.runs.len(), input.refused.len()),
        (1, 0),
        "one line is no memaslap"
    );
    assert_eq!(
        figures(&log("memcslap.txt")),
        [
            "9 operations 2000 count",
            "9 time 0.05 s",
            "11 whole_time 0.098 s"
        ]
    );
    has(
        "sockperf-rtt.txt",
        &["12 latency_mean 11.628 µs", "20 latency_p99 14.771 µs"],
    );
    let rtt = log("sockperf-rtt.txt");
    let is_rtt = |r: &tare_import::Record| &*r.parameters["measured"] == "Round trip";
    assert!(rtt.runs[0].records.iter().all(is_rtt));
    has(
        "iperf3-bidir.json",
        &[
            "150 sent_bytes 251527168 B",
            "159 received_bytes 250216448 B",
            "167 reverse_sent_bytes 237240320 B",
            "169 reverse_retransmits 2 count",
            "177 reverse_received_throughput 1844981101.8036716 bit/s",
        ],
    );
    has(
        "iperf3-udp.json",
        &[
            "94 sent_bytes 6258688 B",
            "106 received_bytes 5996544 B",
            "83 offered_throughput 50065598.8832871 bit/s",
            "85 lost_packets 8 count",
            "87 loss 4.18848167539267 %",
        ],
    );
    lacks(&findings("iperf3-udp.json"), "it is not");
    assert_eq!(
        figures(&log("bencher.txt")),
        [
            "3 time_mean 131 ns",
            "3 time_spread 2 ns",
            "3 throughput_mean 10992 MB/s",
            "4 time_mean 1310 ns",
            "4 time_spread 1024 ns",
            "5 time_mean 2345.67 ns",
            "5 time_spread 12.3 ns",
        ]
    );
    assert_eq!(
        figures(&log("arping.txt")),
        [
            "2 round_trip_sample 0.567 ms",
            "3 round_trip_sample 0.597 ms"
        ]
    );
    let old = "SET: 57142.86 requests per second\nMSET (10 keys): 40000.00 requests per second\n\n";
    let input = read("old", None, old.as_bytes()).unwrap();
    assert_eq!(
        figures(&input),
        [
            "1 request_rate 57142.86 req/s",
            "2 request_rate 40000 req/s"
        ]
    );
    assert_eq!(
        &*input.runs[1].records[0].parameters["test"],
        "MSET (10 keys)"
    );
}

#[test]
fn wrk_without_a_response_and_with_socket_errors_is_read_and_said() {
    let all = figures(&log("wrk-none.txt"));
    assert!(!all.iter().any(|f| f.contains("within_stdev")), "{all:?}");
    assert!(all.contains(&"11 requests 0 count".to_owned()), "{all:?}");
    finds(
        &findings("wrk-none.txt"),
        11,
        &["requests 0", "no request was completed"],
    );
    has(
        "wrk-errors.txt",
        &[
            "5 thread_request_rate_mean 21600 req/s",
            "6 read 1.7 MiB",
            "7 read_errors 217 count",
            "9 throughput 859.39 KiB/s",
        ],
    );
    finds(
        &findings("wrk-errors.txt"),
        7,
        &["read_errors 217", "requests that failed"],
    );
    // 4.06 times 1000 is 4059.9999999999995 in binary.
    has(
        "bifrost-nginx.txt",
        &["5 thread_request_rate_mean 4060 req/s"],
    );
}

#[test]
fn the_units_of_unixbenchs_index_are_those_of_its_tests() {
    has(
        "unixbench.txt",
        &[
            "6 score_mean 12024.6 MWIPS",
            "7 score_mean 1224691.2 KBps",
            "12 result_mean 100246913.4 ops/s",
            "13 result_mean 12024.6 MWIPS",
            "14 baseline 3960 KBps",
            "15 result_mean 1203.4 lpm",
            "18 index_score 2644.6 index",
        ],
    );
    let input = log("unixbench.txt");
    assert_eq!(input.runs.len(), 1, "\"Benchmark Run:\" is no Go benchmark");
    assert_eq!(&*input.runs[0].records[0].parameters["copies"], "2");
    let found = findings("unixbench.txt");
    lacks(&found, "number of copies");
    lacks(&found, "no unit");
    let other = std::fs::read_to_string(path("unixbench.txt")).unwrap();
    let other = other.replace(
        "Double-Precision Whetstone   ",
        "2D graphics: rectangles      ",
    );
    let found = check(&[read("other", None, other.as_bytes()).unwrap()]);
    finds(&found, 13, &["no unit is printed", "printed with its unit"]);
}

#[test]
fn gos_own_metrics_have_their_unit_as_a_parameter_and_repetitions_are_a_spread() {
    let input = log("go-metrics.txt");
    let records = &input.runs[0].records;
    let metrics: Vec<(&str, &str, f64)> = records
        .iter()
        .filter(|r| r.figure == "metric")
        .map(|r| {
            (
                &*r.parameters["benchmark"],
                &*r.parameters["metric"],
                r.value,
            )
        })
        .take(3)
        .collect();
    assert_eq!(
        metrics,
        [
            ("BenchmarkMetric-2", "p99-ns", 1234.0),
            ("BenchmarkMetric-2", "req/s", 3e6),
            ("BenchmarkMetric-2", "widgets/op", 12.5),
        ]
    );
    has(
        "go-metrics.txt",
        &["11 metric_mean 7 ratio", "13 time_mean 0.4108 ns"],
    );
    lacks(&findings("go-metrics.txt"), "an average without spread");
    finds(&findings("go.txt"), 7, &["an average without spread"]);
}

#[test]
fn memtiers_rows_do_not_accumulate_and_its_distribution_is_no_part_of_the_run() {
    has(
        "memtier.txt",
        &["15 latency_p90 1.919 ms", "18 throughput 418.87 KiB/s"],
    );
    assert_eq!(log("memtier.txt").runs.len(), 1);
    lacks(&findings("memtier.txt"), "accumulates");
    // Gets at the sum of what their latency gives and the sets before: chance, as both rows have
    // the same threads.
    let log = std::fs::read_to_string(path("memtier.txt")).unwrap();
    let log = log.replace("349.71", "139.00");
    let found = check(&[read("log", None, log.as_bytes()).unwrap()]);
    lacks(&found, "accumulates");
}

#[test]
fn memtiers_totals_of_arbitrary_commands_are_twice_the_sum_of_their_rows() {
    let name = "memtier-2-command.txt";
    let input = log(name);
    let expected = [
        "10 operation_rate 35299.83 ops/s",
        "10 latency_mean 0.05669 ms",
        "10 latency_p50 0.047 ms",
        "10 latency_p99 0.111 ms",
        "10 latency_p99.9 0.151 ms",
        "10 throughput 2719.91 KiB/s",
        "11 operation_rate 35299.83 ops/s",
        "11 latency_mean 0.05615 ms",
        "11 latency_p50 0.047 ms",
        "11 latency_p99 0.111 ms",
        "11 latency_p99.9 0.159 ms",
        "11 throughput 1481.01 KiB/s",
        "12 operation_rate 70599.66 ops/s",
        "12 latency_mean 0.05642 ms",
        "12 latency_p50 0.047 ms",
        "12 latency_p99 0.111 ms",
        "12 latency_p99.9 0.159 ms",
        "12 throughput 8401.84 KiB/s",
    ];
    assert_eq!(figures(&input), expected);
    let parameters = &input.runs[0].records[0].parameters;
    let shown: Vec<String> = parameters.iter().map(|(n, v)| format!("{n}={v}")).collect();
    assert_eq!(
        shown.join(" "),
        "connections_per_thread=4 requests_per_client=2000 threads=1 type=Sets"
    );
    // Standard error stands behind standard output, and is whole.
    let progress: Vec<f64> = input.runs[1].records.iter().map(|r| r.value).collect();
    assert_eq!(progress, [8000.0, 0.0, 70600.0, 0.0]);
    finds(
        &findings(name),
        12,
        &["8401.84 KB/sec", "the sum is 2 times", "4200.92 KiB/s"],
    );
    lacks(&findings("memtier.txt"), "the sum is");
}

#[test]
fn memtiers_runs_have_the_same_parameters_and_its_worst_run_is_its_best() {
    let name = "memtier-2-runs.txt";
    let input = log(name);
    let of_run = |n: usize| {
        let records = &input.runs[n].records;
        let last = records.last().unwrap();
        (records.len(), &*last.parameters["results"], last.value)
    };
    assert_eq!(of_run(0), (23, "BEST RUN", 2483.82));
    assert_eq!(of_run(1), (23, "WORST RUN", 2483.82));
    assert_eq!(of_run(2), (23, "AGGREGATED AVERAGE", 2201.66));
    for run in &input.runs[..3] {
        assert!(run.records.iter().all(|r| &*r.parameters["threads"] == "1"));
        assert!(run.records[0]
            .parameters
            .contains_key("requests_per_client"));
    }
    has(
        name,
        &[
            "10 operation_rate 5328.62 ops/s",
            "249 latency_p99.9 0.167 ms",
            "489 miss_rate 47181.08 ops/s",
            "491 latency_p99 0.135 ms",
        ],
    );
    assert_eq!(
        input.runs[3].records.len(),
        2 * 4,
        "the progress of two runs"
    );
    let found = findings(name);
    finds(&found, 249, &["one run, printed twice"]);
    lacks(&found, "one run only");
}

#[test]
fn memtiers_rates_of_a_short_run_are_compared_with_what_it_counted() {
    let name = "memtier-2-time.txt";
    let expected = ["operation_rate 117063.8", "0.500078 times", "234091 ops/s"];
    finds(&findings(name), 18, &expected);
    // Of the same program, by a number of requests and by several runs.
    for other in ["memtier.txt", "memtier-2-command.txt", "memtier-2-runs.txt"] {
        lacks(&findings(other), "the rate counted");
    }
}

#[test]
fn memtiers_progress_of_any_version_is_read_and_its_connection_errors_are_a_finding() {
    let text = "[RUN #1] Launching threads now...\n\
                [RUN #1 33%,   0 secs]  2 threads  3 conns:       62802 ops,   62921 (avg:   62921) \
                ops/sec, 2.61MB/sec (avg: 2.61MB/sec),  0.10 (avg:  0.10) msec latency\r\
                [RUN #1 100%,   3 secs]  0 threads  3 conns 2 conn errors:      188921 ops,   62674 \
                (avg:   62968) ops/sec, 2.60MB/sec (avg: 2.61MB/sec),  0.10 (avg:  0.09) msec latency\r\n\n";
    let input = read("progress", None, text.as_bytes()).unwrap();
    assert_eq!(input.refused, []);
    let of_progress: Vec<f64> = input.runs[0].records.iter().map(|r| r.value).collect();
    assert_eq!(
        of_progress,
        [62802.0, 62921.0, 62921.0, 2.61, 2.0, 188_921.0, 62674.0, 62968.0, 2.6]
    );
    finds(&check(&[input]), 2, &["connect_errors_progress 2"]);
    let cut = text.split_once('\r').unwrap().0.to_owned() + "\n";
    let refused = read("cut", None, cut.as_bytes()).unwrap().refused;
    assert!(refused[0].expected.contains("row Totals"), "{refused:?}");
}

#[test]
fn every_format_has_a_name_of_its_own_and_can_be_forced() {
    let names: Vec<&str> = Format::all().map(|format| format.name).collect();
    let distinct: std::collections::BTreeSet<&&str> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    assert_eq!(names.len(), 21);
    let text = std::fs::read(path("tdx-host.txt")).unwrap();
    for name in names {
        let input = read("host", Format::named(name), &text[..]).unwrap();
        assert_eq!(input.runs.len(), usize::from(name == "wrk"), "{name}");
        assert_eq!(input.refused.len(), usize::from(name != "wrk"), "{name}");
    }
    assert!(Format::named("nothing").is_none());
}
