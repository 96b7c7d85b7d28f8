//! Clients of memory: memcached, Redis, and Clio's remote memory.

use crate::format::{
    start, within, Format, Last, Line, Separator, Suffixes, Table, Take, BEGINS, CLOSES, ENDS,
    NEEDS, NEW,
};
use crate::record::Statistic::{Max, Mean, Min, Percentile, Progress, Total};
use crate::unit::*;
use Take::{Figure, Level, Parameter, Sized, Spelled};

// memtier_benchmark divides by 1024 and prints a decimal unit.
const PROGRESS: Suffixes = &[
    ("KB/sec", 1.0, KIB_S),
    ("MB/sec", 1.0, MIB_S),
    ("GB/sec", 1.0, GIB_S),
];

const MEMTIER_LINES: &[Line] = &[
    start("Writing results to", "^", &[]).flags(NEW | NEEDS),
    within(
        "[RUN #",
        r"\[RUN #(\d+) (\d+)%, +(\d+) secs\] +(\d+) threads: +({n}) ops, +({n}) \(avg: +({n})\) ops/sec, ({q})",
        &[
            Parameter("run"),
            Parameter("percent"),
            Parameter("second"),
            Parameter("threads"),
            Figure("operations", Progress, COUNT),
            Figure("operation_rate", Progress, OPS_S),
            Figure("operation_rate_so_far", Progress, OPS_S),
            Sized("throughput", Progress, PROGRESS),
        ],
    )
    .flags(BEGINS | NEEDS),
    within("[RUN #", r"\[RUN #\d+\] ", &[]).flags(BEGINS | NEEDS),
    within("Threads", r"^(\d+)\s+Threads\s*$", &[Parameter("threads")]),
    within(
        "Connections per thread",
        r"^(\d+)\s+Conn",
        &[Parameter("connections_per_thread")],
    ),
    within("Seconds", r"^(\d+)\s+Seconds\s*$", &[Parameter("seconds")]),
    within(
        "Requests per client",
        r"^(\d+)\s+Req",
        &[Parameter("requests_per_client")],
    ),
    within(
        " RESULTS",
        r"^(BEST RUN|WORST RUN|AGGREGATED AVERAGE) RESULTS",
        &[Parameter("results")],
    )
    .flags(BEGINS | NEEDS),
    start("ALL STATS", "^", &[]).flags(BEGINS | NEEDS),
];

pub(crate) static MEMTIER: Format = Format {
    lines: MEMTIER_LINES,
    tables: &[Table {
        header: "Type  ",
        columns: &[
            ("Type", Parameter("type")),
            ("Ops/sec", Figure("operation_rate", Total, OPS_S)),
            ("Hits/sec", Figure("hit_rate", Total, OPS_S)),
            ("Misses/sec", Figure("miss_rate", Total, OPS_S)),
            ("MOVED/sec", Figure("moved_rate", Total, OPS_S)),
            ("ASK/sec", Figure("ask_rate", Total, OPS_S)),
            ("Latency", Figure("latency", Mean, MS)),
            ("Avg. Latency", Figure("latency", Mean, MS)),
            ("p Latency", Figure("latency", Total, MS)),
            ("KB/sec", Spelled("throughput", Total, KIB_S, "KB/sec")),
            (
                "KB/sec RX",
                Spelled("received_throughput", Total, KIB_S, "KB/sec"),
            ),
            (
                "KB/sec TX",
                Spelled("sent_throughput", Total, KIB_S, "KB/sec"),
            ),
        ],
        separator: Separator::Blanks,
        last: Last::Cell("Totals"),
        flags: 0,
        row_flags: CLOSES,
    }],
    sections: &["results"],
    end: "its row Totals",
    ..Format::new("memtier", "memtier_benchmark")
};

const REDIS_LINES: &[Line] = &[
    start("======", r"^=+ (.+?) =+\s*$", &[Parameter("test")]).flags(NEW | NEEDS),
    within(
        "requests completed in",
        r"^\s*({n}) requests completed in ({n}) seconds",
        &[Figure("requests", Total, COUNT), Figure("time", Total, S)],
    ),
    within("parallel clients", r"^\s*(\d+) p", &[Parameter("clients")]),
    within("bytes payload", r"^\s*(\d+) b", &[Parameter("payload")]),
    within(
        "milliseconds",
        r"^({n})% <= ({n}) milliseconds",
        &[Level, Figure("latency", Total, MS)],
    ),
    start(
        "throughput summary:",
        r"summary: ({n}) requests per second",
        &[Figure("request_rate", Total, REQ_S)],
    ),
    within(
        "requests per second, p50=",
        r"^\s*(\S.*?): ({n}) requests per second, p50=({n}) msec",
        &[
            Parameter("test"),
            Figure("request_rate", Total, REQ_S),
            Figure("latency", Percentile(50.0), MS),
        ],
    )
    .flags(NEW),
    // Before version 6.2 this was the last line.
    within(
        "requests per second",
        r"^({n}) requests per second\s*$",
        &[Figure("request_rate", Total, REQ_S)],
    )
    .flags(ENDS),
];

pub(crate) static REDIS: Format = Format {
    lines: REDIS_LINES,
    tables: &[
        // The percentiles the other way round.
        Table {
            header: "Cumulative distribution",
            columns: &[],
            separator: Separator::Blanks,
            last: Last::BeforeBlank,
            flags: 0,
            row_flags: 0,
        },
        Table {
            header: "avg  ",
            columns: &[
                ("avg", Figure("latency", Mean, MS)),
                ("min", Figure("latency", Min, MS)),
                ("p", Figure("latency", Total, MS)),
                ("max", Figure("latency", Max, MS)),
            ],
            separator: Separator::Blanks,
            last: Last::First,
            flags: 0,
            row_flags: ENDS,
        },
        Table {
            header: "\"test\",\"rps\"",
            columns: &[
                ("test", Parameter("test")),
                ("rps", Figure("request_rate", Total, REQ_S)),
                ("avg_latency_ms", Figure("latency", Mean, MS)),
                ("min_latency_ms", Figure("latency", Min, MS)),
                ("p_latency_ms", Figure("latency", Total, MS)),
                ("max_latency_ms", Figure("latency", Max, MS)),
            ],
            separator: Separator::Commas,
            last: Last::BeforeBlank,
            flags: NEW,
            row_flags: 0,
        },
    ],
    end: "its latency summary",
    products: &[["requests", "time", "request_rate"]],
    ..Format::new(
        "redis-benchmark",
        "redis-benchmark, as text, with -q or with --csv",
    )
};

const CLIO_LINES: &[Line] = &[
    start(
        "nr_sessions:",
        r"nr_sessions: *(\d+) avg_(\w+): *({n}) ns Throughput: *({n}) Mbps\s*$",
        &[
            Parameter("sessions"),
            Parameter("operation"),
            Figure("latency", Mean, NS),
            Spelled("throughput", Total, MBIT_S, "Mbps"),
        ],
    )
    .flags(BEGINS | NEEDS),
    within(
        "nr_pte_order:",
        r"nr_pte_order: *(\d+) avg_(\w+): *({n}) ns\s*$",
        &[
            Parameter("page_order"),
            Parameter("operation"),
            Figure("latency", Mean, NS),
        ],
    )
    .flags(BEGINS | NEEDS),
    start(
        "nr_pte_order:",
        r"nr_pte_order: *(\d+) avg_(\w+): *({n})\s*$",
        &[
            Parameter("page_order"),
            Parameter("operation"),
            Figure("latency", Mean, UNKNOWN),
        ],
    )
    .flags(BEGINS | NEEDS),
    start(
        "#nr_theads=",
        r"nr_theads= *(\d+) Latency read=({n}) write=({n}) ns. Throughput read=({n}) write=({n}) Mbps\s*$",
        &[
            Parameter("threads"),
            Figure("read_latency", Mean, NS),
            Figure("write_latency", Mean, NS),
            Spelled("read_throughput", Total, MBIT_S, "Mbps"),
            Spelled("write_throughput", Total, MBIT_S, "Mbps"),
        ],
    )
    .flags(BEGINS | NEEDS),
    start(
        "size:",
        r"size: *(\d+) avg_(\w+): *({n}) ns Throughput: *({n}) Mbps\s*$",
        &[
            Parameter("size"),
            Parameter("operation"),
            Figure("latency", Mean, NS),
            Spelled("throughput", Total, MBIT_S, "Mbps"),
        ],
    )
    .flags(BEGINS | NEEDS),
    start("All tests are done", "^", &[]).flags(CLOSES),
];

pub(crate) static CLIO: Format = Format {
    lines: CLIO_LINES,
    end: "its line \"All tests are done.\"",
    ..Format::new(
        "clio",
        "Clio's four tests: processes, pages, threads, sizes",
    )
};
