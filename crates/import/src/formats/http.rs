//! Clients of HTTP.

use crate::format::{start, within, Format, Line, Suffixes, Take, CLOSES, NEEDS, NEW};
use crate::record::Statistic::{Max, Mean, Stdev, Total, WithinStdev};
use crate::unit::*;
use Take::{Figure, Level, Parameter, Sized};

const TIMES: Suffixes = &[
    ("us", 1.0, US),
    ("ms", 1.0, MS),
    ("s", 1.0, S),
    ("m", 60.0, S),
    ("h", 3600.0, S),
];
// wrk divides by 1024 and prints a decimal unit.
const BYTES: Suffixes = &[
    ("B", 1.0, B),
    ("KB", 1.0, KIB),
    ("MB", 1.0, MIB),
    ("GB", 1.0, GIB),
    ("TB", 1.0, TIB),
];
const BYTES_PER_SECOND: Suffixes = &[
    ("B", 1.0, BYTES_S),
    ("KB", 1.0, KIB_S),
    ("MB", 1.0, MIB_S),
    ("GB", 1.0, GIB_S),
    ("TB", 1.0, TIB_S),
];
const RATES: Suffixes = &[("", 1.0, REQ_S), ("k", 1e3, REQ_S), ("M", 1e6, REQ_S)];

const WRK_LINES: &[Line] = &[
    start(
        "Running ",
        r"^\s*Running (\S+) test @ (\S+)",
        &[Parameter("duration"), Parameter("url")],
    )
    .flags(NEW | NEEDS),
    within(
        " threads and ",
        r"^\s*(\d+) threads and (\d+) connections",
        &[Parameter("threads"), Parameter("connections")],
    ),
    start("Latency Distribution", "Latency Distribution", &[]),
    start(
        "Latency",
        r"^\s*Latency\s+({q})\s+({q})\s+({q})\s+({n})%\s*$",
        &[
            Sized("latency", Mean, TIMES),
            Sized("latency", Stdev, TIMES),
            Sized("latency", Max, TIMES),
            Figure("latency", WithinStdev, PERCENT),
        ],
    ),
    start(
        "Req/Sec",
        r"^\s*Req/Sec\s+({q})\s+({q})\s+({q})\s+({n})%\s*$",
        &[
            Sized("thread_request_rate", Mean, RATES),
            Sized("thread_request_rate", Stdev, RATES),
            Sized("thread_request_rate", Max, RATES),
            Figure("thread_request_rate", WithinStdev, PERCENT),
        ],
    ),
    within(
        "%",
        r"^\s*({n})%\s+({q})\s*$",
        &[Level, Sized("latency", Total, TIMES)],
    ),
    within(
        " requests in ",
        r"^\s*({n}) requests in ({q}), ({q}) read",
        &[
            Figure("requests", Total, COUNT),
            Sized("time", Total, TIMES),
            Sized("read", Total, BYTES),
        ],
    ),
    start(
        "Socket errors:",
        r"connect ({n}), read ({n}), write ({n}), timeout ({n})",
        &[
            Figure("connect_errors", Total, COUNT),
            Figure("read_errors", Total, COUNT),
            Figure("write_errors", Total, COUNT),
            Figure("timeout_errors", Total, COUNT),
        ],
    ),
    start(
        "Non-2xx",
        r"responses: ({n})",
        &[Figure("response_errors", Total, COUNT)],
    ),
    start(
        "Requests/sec:",
        r"Requests/sec:\s+({n})\s*$",
        &[Figure("request_rate", Total, REQ_S)],
    ),
    start(
        "Transfer/sec:",
        r"Transfer/sec:\s+({q})\s*$",
        &[Sized("throughput", Total, BYTES_PER_SECOND)],
    )
    .flags(CLOSES),
];

pub(crate) static WRK: Format = Format {
    lines: WRK_LINES,
    end: "its line Transfer/sec:",
    products: &[
        ["requests", "time", "request_rate"],
        ["read", "time", "throughput"],
    ],
    work: Some(["read", "requests"]),
    ..Format::new("wrk", "wrk")
};
