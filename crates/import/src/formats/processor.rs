//! The processor: UnixBench, and the throughput tool of librdrand.

use crate::format::{start, within, Format, Line, Suffixes, Take, BEGINS, ENDS, NEEDS};
use crate::record::Statistic::{Max, Mean, Total};
use crate::unit::*;
use Take::{Figure, Nothing, Parameter, Sized, Spelled};

const SCORES: Suffixes = &[
    ("lps", 1.0, OPS_S),
    ("KBps", 1.0, KBPS),
    ("MWIPS", 1.0, MWIPS),
    ("lpm", 1.0, LPM),
];

const UNIXBENCH_LINES: &[Line] = &[
    within(
        "parallel cop",
        r"running (\d+) parallel cop(?:y|ies) of tests",
        &[Parameter("copies")],
    )
    .flags(BEGINS),
    within(
        " samples)",
        r"^\s*(\S.*?) {2,}({q}) +\(({n}) s, ({n}) samples\)",
        &[
            Parameter("test"),
            Sized("score", Mean, SCORES),
            Nothing,
            Nothing,
        ],
    ),
    start(
        "System Benchmarks Index Score",
        r"({n})\s*$",
        &[Figure("index_score", Total, INDEX)],
    )
    .flags(ENDS),
    start(
        "System Benchmarks",
        r"Index +(?:Values +)?BASELINE +RESULT +INDEX",
        &[],
    )
    .flags(BEGINS | NEEDS),
    // Loops per second; the units of other tests are not printed here.
    within(
        ".",
        r"^\s*(System Call.*?|Pipe.*?|Process Creation.*?|Execl.*?|Dhrystone.*?) {2,}({n}) +({n}) +({n})\s*$",
        &[
            Parameter("test"),
            Figure("baseline", Total, OPS_S),
            Figure("result", Mean, OPS_S),
            Figure("index", Total, INDEX),
        ],
    )
    .flags(ENDS),
    within(
        ".",
        r"^\s*(\S.*?) {2,}({n}) +({n}) +({n})\s*$",
        &[
            Parameter("test"),
            Figure("baseline", Total, UNKNOWN),
            Figure("result", Mean, UNKNOWN),
            Figure("index", Total, INDEX),
        ],
    )
    .flags(ENDS),
    within(
        "times faster",
        r"({n})\W* times faster",
        &[Figure("claimed_factor", Total, RATIO)],
    ),
];

pub(crate) static UNIXBENCH: Format = Format {
    lines: UNIXBENCH_LINES,
    end: "the results below its header",
    repeats: true,
    ..Format::new("unixbench", "UnixBench")
};

const THROUGHPUTS: Suffixes = &[
    ("MiB/s", 1.0, MIB_S),
    // The tool divides by 2^20 and prints MiB/s; only a copy says otherwise.
    ("MB/s", 1.0, MIB_S),
];

const RDRAND_LINES: &[Line] = &[
    within("threads=\"", r#"threads="(\d+)""#, &[Parameter("threads")]).flags(BEGINS),
    within(
        " methods for ",
        r"methods for (\d+) times in (\d+) threads",
        &[Parameter("repetitions"), Parameter("threads")],
    )
    .flags(BEGINS),
    within(
        "MiB/s) was:",
        r"fastest method \(({q})\) was: (\w+)",
        &[Sized("throughput", Max, THROUGHPUTS), Parameter("method")],
    ),
    within(
        ", throughput ",
        r"Runtime ({n}) sec, throughput ({q})",
        &[
            Figure("time", Total, S),
            Sized("run_throughput", Total, THROUGHPUTS),
        ],
    ),
    within(
        "MiB/s",
        r"^\s*\(({n}) %\) Method (\w+): ({q})\s*$",
        &[
            Figure("of_fastest", Total, PERCENT),
            Parameter("method"),
            Sized("throughput", Mean, THROUGHPUTS),
        ],
    ),
    start(
        "rdrand",
        r"^\s*(rdrand\w+) ({q}) ({n}) %\s*$",
        &[
            Parameter("method"),
            Sized("throughput", Mean, THROUGHPUTS),
            Figure("of_fastest", Total, PERCENT),
        ],
    )
    .flags(BEGINS),
    // A table and sentences of a text about it.
    within(
        " & ",
        r"^\s*(\w+) & ({q}) +&",
        &[Parameter("method"), Sized("throughput", Mean, THROUGHPUTS)],
    ),
    within(
        " Hz",
        r"({q}) is equal to .*= *({n})\$? Hz",
        &[
            Sized("throughput", Max, THROUGHPUTS),
            Spelled("throughput_as_frequency", Max, HZ, "Hz"),
        ],
    ),
    within(
        "MiB/s",
        r"(\S+ \S+) about ({q})",
        &[Parameter("words"), Sized("throughput", Mean, THROUGHPUTS)],
    ),
    within("RdRand", "^", &[]).flags(BEGINS),
];

pub(crate) static RDRAND: Format = Format {
    lines: RDRAND_LINES,
    sections: &["threads", "repetitions"],
    ..Format::new(
        "librdrand",
        "librdrand's throughput tool, or a text that quotes it",
    )
};
