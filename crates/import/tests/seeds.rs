//! The reference outputs of five publications: their figures, and what is wrong with them.

mod common;

use common::{figures, findings, finds, lacks, log};
use tare_import::check;

#[test]
fn bifrosts_tls_prints_mib_as_mb_and_counts_24_bytes_of_the_close_message_as_data() {
    let input = log("bifrost-tls.txt");
    assert_eq!(
        figures(&input),
        [
            "17 sent_bytes 8589934592 B",
            "17 returned_bytes 0 B",
            "19 received_bytes 8589934616 B",
            "19 time 24811163 µs",
            "20 throughput 330.173963 MiB/s",
            "21 sent_bytes 8589934592 B",
            "21 returned_bytes 0 B",
            "23 received_bytes 8589934616 B",
            "23 time 24960063 µs",
            "24 throughput 328.204301 MiB/s",
            "25 sent_bytes 8589934592 B",
            "25 returned_bytes 0 B",
            "27 received_bytes 8589934616 B",
            "27 time 25036358 µs",
            "28 throughput 327.204141 MiB/s",
            "29 sent_bytes 8589934592 B",
            "29 returned_bytes 0 B",
            "31 received_bytes 8589934616 B",
            "31 time 25061380 µs",
            "32 throughput 326.877451 MiB/s",
        ]
    );
    let records = &input.runs[0].records;
    assert_eq!(&*records[19].parameters["connection"], "4");
    assert_eq!(&*records[0].parameters["buffer"], "32768");
    let found = findings("bifrost-tls.txt");
    finds(
        &found,
        20,
        &[
            "330.173963 MB/s",
            "divides by powers of 1024",
            "330.173963 MiB/s, which is 346.212 MB/s",
        ],
    );
    for line in [19, 23, 27, 31] {
        finds(
            &found,
            line,
            &[
                "24 B more were received than sent",
                "close message",
                "at most 8589934592 B",
            ],
        );
    }
    for line in [18, 22, 26, 30] {
        finds(&found, line, &["ERROR: read error 0", "reports an error"]);
    }
    finds(&found, 17, &["one run only"]);
    lacks(&found, "it is not");
}

const MEMCACHED: [&str; 23] = [
    "operation_rate 5817.81 ops/s",
    "latency_mean 4.5166 ms",
    "latency_p50 3.711 ms",
    "latency_p99 14.015 ms",
    "latency_p99.9 61.695 ms",
    "throughput 1489603.69 KiB/s",
    "operation_rate 58137.26 ops/s",
    "hit_rate 5845.21 ops/s",
    "miss_rate 52292.05 ops/s",
    "latency_mean 3.94853 ms",
    "latency_p50 3.215 ms",
    "latency_p99 12.863 ms",
    "latency_p99.9 22.015 ms",
    "throughput 2037.46 KiB/s",
    "operation_rate 0 ops/s",
    "operation_rate 63955.07 ops/s",
    "hit_rate 5845.21 ops/s",
    "miss_rate 52292.05 ops/s",
    "latency_mean 4.00021 ms",
    "latency_p50 3.263 ms",
    "latency_p99 12.991 ms",
    "latency_p99.9 22.655 ms",
    "throughput 1491641.15 KiB/s",
];

/// Figures without their lines.
fn without_lines(figures: &[String]) -> Vec<&str> {
    figures
        .iter()
        .filter_map(|f| Some(f.split_once(' ')?.1))
        .collect()
}

#[test]
fn memtiers_gets_do_not_multiply_to_the_bytes_that_its_hits_brought_back() {
    let input = log("bifrost-memcached.txt");
    assert_eq!(without_lines(&figures(&input)), MEMCACHED);
    let records = &input.runs[0].records;
    let of_progress: Vec<f64> = records.iter().take(8).map(|r| r.value).collect();
    assert_eq!(
        of_progress,
        [53172.0, 57453.0, 57453.0, 1.31, 118993.0, 65795.0, 61786.0, 1.46]
    );
    let last = records.last().unwrap();
    let parameters: Vec<String> = last
        .parameters
        .iter()
        .map(|(n, v)| format!("{n}={v}"))
        .collect();
    assert_eq!(
        parameters.join(" "),
        "connections_per_thread=32 seconds=30 threads=8 type=Totals"
    );
    let found = findings("bifrost-memcached.txt");
    finds(
        &found,
        17,
        &[
            "throughput 2037.46 KB/sec",
            "does not multiply",
            "5845.21 hits per second of 262187 B",
            "1496620 KiB/s (1.53254 GB/s)",
        ],
    );
    finds(
        &found,
        19,
        &[
            "throughput 1491641.15 KB/sec",
            "lacks the values that hits brought back",
            "2986220 KiB/s",
        ],
    );
    finds(
        &found,
        16,
        &[
            "1489603.69 KB/sec",
            "1489603.69 KiB/s, which is 1525350 kB/s",
        ],
    );
    finds(&found, 4, &["1.31 GB/sec", "1.31 GiB/s"]);
    finds(&found, 16, &["one run only"]);
}

#[test]
fn the_breakdown_is_read_out_of_memtiers_log_and_its_shares_were_rounded_down() {
    let input = log("bifrost-breakdown.txt");
    let formats: Vec<&str> = input.runs.iter().map(|run| run.format).collect();
    assert_eq!(formats, ["memtier", "bifrost-breakdown"]);
    let all = figures(&input);
    assert_eq!(without_lines(&all[..23]), MEMCACHED);
    let rows = &all[23..];
    // 31 rows of five figures, the total, 17 rows of three.
    assert_eq!(rows.len(), 31 * 5 + 1 + 17 * 3);
    for figure in [
        "7 exits 92023 count",
        "7 cycle 853669630 cycles",
        "7 cycle_percent 1 %",
        "7 cycle1 1599055930 cycles",
        "7 cycle1_percent 3 %",
        "37 exits 88 count",
        "38 total_cycles 50353519748 cycles",
        "40 calls 4239361 count",
        "40 cycles 23170072766 cycles",
        "40 cycles_percent 46 %",
        "55 cycles 602484763 cycles",
    ] {
        assert!(rows.iter().any(|row| row == figure), "{figure}");
    }
    let sum = |name: &str| {
        let records = input.runs[1].records.iter();
        records
            .filter(|r| r.figure == name)
            .map(|r| r.value)
            .sum::<f64>()
    };
    assert_eq!(sum("cycles"), 52_514_667_710.0);
    assert_eq!(sum("cycle_percent"), 20.0);
    let found = findings("bifrost-breakdown.txt");
    finds(
        &found,
        7,
        &[
            "cycle 853669630",
            "add up to 20",
            "rounded down",
            "at least 24.4002 % in all",
        ],
    );
    finds(
        &found,
        7,
        &["cycle1 1599055930", "add up to 56", "at least 60.0186 %"],
    );
    finds(&found, 39, &["104.292 % of all", "add up to 96"]);
    finds(
        &found,
        38,
        &["the parts are 52514667710 cycles, more than the whole"],
    );
    finds(&found, 7, &["cycle1", "not measured", "8100 for each exit"]);
}

#[test]
fn the_memcached_and_the_breakdown_table_are_one_run_printed_twice() {
    let found = check(&[log("bifrost-memcached.txt"), log("bifrost-breakdown.txt")]);
    let twice: Vec<&tare_import::Finding> = found
        .iter()
        .filter(|f| f.problem.contains("printed twice"))
        .collect();
    assert_eq!(twice.len(), 1);
    assert_eq!(twice[0].file, "bifrost-breakdown.txt");
    assert!(
        twice[0].problem.contains("bifrost-memcached.txt:4"),
        "{}",
        twice[0]
    );
    assert!(found
        .iter()
        .any(|f| f.file == "bifrost-memcached.txt" && f.problem.starts_with("one run only")));
}

#[test]
fn wrk_on_the_host_and_in_the_tdx_guest_did_not_fetch_the_same_bytes() {
    let (host, guest) = (log("tdx-host.txt"), log("tdx-guest.txt"));
    assert_eq!(
        figures(&host),
        [
            "4 latency_mean 646.74 µs",
            "4 latency_stdev 0.95 ms",
            "4 latency_max 27.51 ms",
            "4 latency_within_stdev 92.63 %",
            "5 thread_request_rate_mean 40850 req/s",
            "5 thread_request_rate_stdev 5430 req/s",
            "5 thread_request_rate_max 70050 req/s",
            "5 thread_request_rate_within_stdev 68.92 %",
            "6 requests 4879138 count",
            "6 time 30.01 s",
            "6 read 49.63 GiB",
            "7 request_rate 162588.64 req/s",
            "8 throughput 1.65 GiB/s",
        ]
    );
    assert_eq!(
        figures(&guest),
        [
            "4 latency_mean 3.22 ms",
            "4 latency_stdev 2.71 ms",
            "4 latency_max 32.92 ms",
            "4 latency_within_stdev 78.31 %",
            "5 thread_request_rate_mean 8780 req/s",
            "5 thread_request_rate_stdev 1140 req/s",
            "5 thread_request_rate_max 14800 req/s",
            "5 thread_request_rate_within_stdev 71.33 %",
            "6 requests 1049350 count",
            "6 time 30.02 s",
            "6 read 862.63 MiB",
            "7 request_rate 34951.73 req/s",
            "8 throughput 28.73 MiB/s",
        ]
    );
    let found = check(&[host, guest]);
    finds(
        &found,
        6,
        &[
            "request_rate 34951.73 req/s",
            "862 B per response, and 10922 B in the run of tdx-host.txt:6",
            "cannot be compared",
        ],
    );
    finds(&found, 6, &["49.63 GB", "49.63 GiB"]);
    finds(
        &found,
        8,
        &["28.73 MB", "28.73 MiB/s, which is 30.1256 MB/s"],
    );
    finds(&found, 4, &["one run only"]);
    lacks(&found, "an average without spread");
}

#[test]
fn bifrosts_nginx_log_is_read() {
    let input = log("bifrost-nginx.txt");
    let all = figures(&input);
    assert_eq!(
        all[8..],
        [
            "6 requests 485451 count",
            "6 time 30.1 s",
            "6 read 14.93 GiB",
            "7 request_rate 16128.06 req/s",
            "8 throughput 507.94 MiB/s",
        ]
    );
    assert_eq!(all[0], "4 latency_mean 0.96 ms");
    assert_eq!(
        &*input.runs[0].records[0].parameters["url"],
        "https://10.1.1.222/32kb.bin"
    );
}

#[test]
fn clios_processes_use_one_session_and_its_pages_are_the_same_128() {
    let processes = log("clio-processes.txt");
    let all = figures(&processes);
    assert_eq!(all.len(), 24);
    assert_eq!(
        all[..2],
        [
            "1 latency_mean 1993.539062 ns",
            "1 throughput 64.20742 Mbit/s"
        ]
    );
    assert_eq!(
        all[22..],
        [
            "12 latency_mean 2009.648438 ns",
            "12 throughput 63.692732 Mbit/s"
        ]
    );
    assert_eq!(
        &*processes.runs[0].records[23].parameters["sessions"],
        "1000"
    );
    let found = findings("clio-processes.txt");
    finds(&found, 2, &["opens the sessions and uses one of them"]);
    finds(
        &found,
        1,
        &["latency_mean 1993.539062 ns", "an average without spread"],
    );
    finds(&found, 1, &["one run only"]);

    let pages = log("clio-pages.txt");
    assert_eq!(
        figures(&pages),
        [
            "1 latency_mean 1870.289062",
            "2 latency_mean 1902.945312",
            "3 latency_mean 1939.851562",
            "4 latency_mean 1939",
            "5 latency_mean 1959.398438",
            "6 latency_mean 1970.945312",
            "7 latency_mean 2018.070312 ns",
            "8 latency_mean 2049.742188 ns",
            "9 latency_mean 2171.21875 ns",
            "10 latency_mean 2157.304688 ns",
            "11 latency_mean 2151.273438 ns",
            "12 latency_mean 2153.398438 ns",
        ]
    );
    let found = findings("clio-pages.txt");
    finds(&found, 1, &["no unit is printed", "in ns, as on line 7"]);
    finds(&found, 4, &["the same 128 pages from order 7"]);
    finds(&found, 1, &["an average without spread"]);
}

#[test]
fn clios_rows_of_threads_accumulate_and_each_row_apart_is_named() {
    assert_eq!(
        figures(&log("clio-threads.txt")),
        [
            "1 read_latency_mean 4685.632812 ns",
            "1 write_latency_mean 3185.238281 ns",
            "1 read_throughput 1748.323082 Mbit/s",
            "1 write_throughput 2571.864105 Mbit/s",
            "2 read_latency_mean 4718.240234 ns",
            "2 write_latency_mean 3666.972656 ns",
            "2 read_throughput 5220.980647 Mbit/s",
            "2 write_throughput 7095.573646 Mbit/s",
            "3 read_latency_mean 4861.271484 ns",
            "3 write_latency_mean 4162.446289 ns",
            "3 read_throughput 11963.518062 Mbit/s",
            "3 write_throughput 15137.270581 Mbit/s",
        ]
    );
    let found = findings("clio-threads.txt");
    for (line, printed, right) in [
        (2, "read_throughput 5220.980647", "3472.66 Mbit/s"),
        (2, "write_throughput 7095.573646", "4523.71 Mbit/s"),
        (3, "read_throughput 11963.518062", "6742.54 Mbit/s"),
        (3, "write_throughput 15137.270581", "8041.7 Mbit/s"),
    ] {
        finds(&found, line, &[printed, "accumulates over the rows", right]);
    }
    assert_eq!(
        found
            .iter()
            .filter(|f| f.problem.contains("accumulates"))
            .count(),
        4
    );
}

#[test]
fn clios_sizes_multiply_and_are_averages_of_one_run() {
    assert_eq!(
        figures(&log("clio-sizes.txt")),
        [
            "1 latency_mean 1866.296875 ns",
            "1 throughput 17.146254 Mbit/s",
            "2 latency_mean 2279.40625 ns",
            "2 throughput 224.619898 Mbit/s",
            "3 latency_mean 2464.367188 ns",
            "3 throughput 831.044988 Mbit/s",
            "4 latency_mean 3194.648438 ns",
            "4 throughput 2564.288422 Mbit/s",
            "5 latency_mean 10318.382812 ns",
            "5 throughput 3175.691443 Mbit/s",
            "6 latency_mean 2034.742188 ns",
            "6 throughput 15.726808 Mbit/s",
            "7 latency_mean 2212.59375 ns",
            "7 throughput 231.402624 Mbit/s",
            "8 latency_mean 2705.5 ns",
            "8 throughput 756.976529 Mbit/s",
            "9 latency_mean 4699.71875 ns",
            "9 throughput 1743.08303 Mbit/s",
            "10 latency_mean 10098.554688 ns",
            "10 throughput 3244.82077 Mbit/s",
        ]
    );
    let found = findings("clio-sizes.txt");
    finds(&found, 1, &["an average without spread"]);
    finds(&found, 1, &["one run only"]);
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn unixbenchs_index_is_no_factor() {
    let input = log("tdx-unixbench.txt");
    assert_eq!(
        figures(&input),
        [
            "2 baseline 15000 ops/s",
            "2 result_mean 18750490.3 ops/s",
            "2 index 12500.3 index",
            "3 claimed_factor 12500 ratio",
            "5 baseline 15000 ops/s",
            "5 result_mean 18801524.5 ops/s",
            "5 index 12534.3 index",
            "7 baseline 15000 ops/s",
            "7 result_mean 19818118.3 ops/s",
            "7 index 13212.1 index",
        ]
    );
    let found = findings("tdx-unixbench.txt");
    finds(
        &found,
        3,
        &[
            "claimed_factor 12500",
            "the index of line 2 is read as a factor",
            "1250.03 times",
        ],
    );
    finds(
        &found,
        2,
        &[
            "index 12500.3",
            "no factor",
            "1250.03 times the reference machine",
        ],
    );
    finds(&found, 5, &["index 12534.3", "1253.43 times"]);
    finds(&found, 7, &["index 13212.1", "1321.21 times"]);
    finds(&found, 2, &["result_mean 18750490.3", "number of copies"]);
}

#[test]
fn vitas_software_benchmark_multiplies() {
    let input = log("vita-software.txt");
    assert_eq!(
        figures(&input),
        [
            "2 packets 10000000 count",
            "2 time 4.77 s",
            "2 bytes 3425807426 B",
            "2 throughput 5.74 Gbit/s",
            "3 breaths 180398 count",
            "3 packets_per_breath_mean 55.43 ratio",
            "3 time_per_breath_mean 26.45 µs",
            "4 packet_rate 2.096 Mpps",
            "6 packets 10000000 count",
            "6 time 2.29 s",
            "6 bytes 600004080 B",
            "6 throughput 2.1 Gbit/s",
            "7 breaths 135754 count",
            "7 packets_per_breath_mean 73.66 ratio",
            "7 time_per_breath_mean 16.87 µs",
            "8 packet_rate 4.367 Mpps",
        ]
    );
    assert_eq!(&*input.runs[0].records[7].parameters["packet_size"], "IMIX");
    let found = findings("vita-software.txt");
    finds(&found, 2, &["one run only"]);
    finds(
        &found,
        3,
        &["packets_per_breath_mean 55.43", "an average without spread"],
    );
    lacks(&found, "it is not");
}

#[test]
fn find_limit_received_more_than_it_sent_and_its_loss_is_negative() {
    let input = log("vita-find-limit.txt");
    let all = figures(&input);
    assert_eq!(all.len(), 6 * 11 + 1);
    assert_eq!(
        all[..11],
        [
            "3 sent_packets 744128 count",
            "3 sent_packet_rate 0.744128 Mpps",
            "3 sent_bytes 44647680 B",
            "3 sent_wire_rate 0.500054 Gbit/s",
            "4 received_packets 746467 count",
            "4 received_packet_rate 0.746467 Mpps",
            "4 received_bytes 44788020 B",
            "4 received_wire_rate 0.501626 Gbit/s",
            "5 ingress_drop 0 count",
            "5 lost_packets -2339 count",
            "5 loss -0.314328 %",
        ]
    );
    assert!(
        all.contains(&"15 lost_packets 22327 count".to_owned()),
        "{all:?}"
    );
    assert_eq!(all[66], "32 no_drop_rate 0.609 Gbit/s");
    let run = &input.runs[0];
    assert_eq!(&*run.records[11].parameters["stream"], "node2");
    assert_eq!(run.records[66].parameters.len(), 0);
    let found = findings("vita-find-limit.txt");
    for (line, received, sent) in [
        (4, 746_467, 744_128),
        (8, 746_439, 744_128),
        (25, 907_728, 906_253),
        (29, 907_623, 906_253),
    ] {
        finds(
            &found,
            line,
            &[
                &format!("{} more were received than sent", received - sent),
                &format!("at most {sent}"),
            ],
        );
        finds(
            &found,
            line + 1,
            &[
                &format!("lost_packets -{}", received - sent),
                "the loss is negative",
            ],
        );
    }
    assert_eq!(
        found
            .iter()
            .filter(|f| f.problem.contains("negative"))
            .count(),
        4
    );
}

#[test]
fn the_rdrand_chapter_prints_mib_as_mb_and_a_data_rate_in_hz() {
    assert_eq!(
        figures(&log("rdrand.tex")),
        [
            "2 throughput_mean 170 MiB/s",
            "3 throughput_mean 730 MiB/s",
            "3 throughput_mean 500 MiB/s",
            "4 throughput_max 730 MiB/s",
            "4 throughput_as_frequency_max 765 Hz",
            "5 throughput_mean 212.806 MiB/s",
            "6 throughput_mean 0.116 MiB/s",
            "7 throughput_mean 0.224 MiB/s",
        ]
    );
    let found = findings("rdrand.tex");
    finds(
        &found,
        4,
        &["765 Hz", "a data rate is printed in Hz", "765.46 MB/s"],
    );
    finds(
        &found,
        5,
        &["212.806 MB/s", "212.806 MiB/s, which is 223.143 MB/s"],
    );
    finds(&found, 2, &["an average without spread"]);
}
