//! Benchmarks of functions: criterion and Go.

use crate::format::{start, within, Format, Line, Suffixes, Take, BEGINS, KEEPS};
use crate::record::Statistic::{High, Low, Mean, Total};
use crate::unit::*;
use Take::{Figure, Parameter, Sized};

const TIMES: Suffixes = &[
    ("ps", 1.0, PS),
    ("ns", 1.0, NS),
    ("us", 1.0, US),
    ("µs", 1.0, US),
    ("ms", 1.0, MS),
    ("s", 1.0, S),
];
const RATES: Suffixes = &[
    ("B/s", 1.0, BYTES_S),
    ("KiB/s", 1.0, KIB_S),
    ("MiB/s", 1.0, MIB_S),
    ("GiB/s", 1.0, GIB_S),
    ("TiB/s", 1.0, TIB_S),
    ("elem/s", 1.0, OPS_S),
    ("Kelem/s", 1e3, OPS_S),
    ("Melem/s", 1e6, OPS_S),
    ("Gelem/s", 1e9, OPS_S),
];

const CRITERION_LINES: &[Line] = &[
    start(
        "Benchmarking ",
        r"^Benchmarking (.+?)(?:: .*)?$",
        &[Parameter("benchmark")],
    )
    .flags(BEGINS),
    within(
        " time:   [",
        r"^(\S.*?)? +time: +\[({q}) ({q}) ({q})\]",
        &[
            Parameter("benchmark"),
            Sized("time", Low, TIMES),
            Sized("time", Mean, TIMES),
            Sized("time", High, TIMES),
        ],
    )
    .flags(BEGINS | KEEPS),
    within(
        " thrpt:  [",
        r"thrpt: +\[({q}) ({q}) ({q})\]",
        &[
            Sized("throughput", Low, RATES),
            Sized("throughput", Mean, RATES),
            Sized("throughput", High, RATES),
        ],
    ),
];

pub(crate) static CRITERION: Format = Format {
    lines: CRITERION_LINES,
    sections: &["benchmark"],
    repeats: true,
    ..Format::new("criterion", "criterion, as text")
};

const GO_LINES: &[Line] = &[
    start("pkg: ", r"^pkg: (\S+)", &[Parameter("package")]).flags(BEGINS),
    start("cpu: ", r"^cpu: (.+)$", &[Parameter("cpu")]),
    start(
        "Benchmark",
        r"^(Benchmark\S+)\s+({n})\s+({n}) ns/op(?:.*?\s({n}) MB/s)?(?:.*?\s({n}) B/op)?(?:\s+({n}) allocs/op)?",
        &[
            Parameter("benchmark"),
            Figure("iterations", Total, COUNT),
            Figure("time", Mean, NS),
            Figure("throughput", Mean, MB_S),
            Figure("allocated", Mean, B),
            Figure("allocations", Mean, RATIO),
        ],
    )
    .flags(BEGINS),
    start("Benchmark", r"^Benchmark\S+\s*$", &[]),
];

pub(crate) static GO: Format = Format {
    lines: GO_LINES,
    sections: &["package"],
    ..Format::new("go", "go test -bench")
};
