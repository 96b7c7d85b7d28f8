//! Sockets: Bifrost's TLS and breakdown, and sockperf.

use crate::format::{start, within, Format, Line, Suffixes, Take, BEGINS, ENDS, ERROR, NEEDS, NEW};
use crate::record::Statistic::{Max, Mean, Min, Stdev, Total};
use crate::unit::*;
use Take::{Figure, Level, Parameter, Sized, Spelled};

const TLS_LINES: &[Line] = &[
    start("Connecting to ", r"Connecting to \S+ port \d+\.\.\.", &[]).flags(BEGINS),
    start(
        "Connected to ",
        r"to (?:server|client): (.+)$",
        &[Parameter("cipher")],
    ),
    start("Buffer size is ", r"is (\d+)$", &[Parameter("buffer")]),
    start(
        "In total sent",
        r"sent ({n}) and received ({n}) bytes\s*$",
        &[
            Figure("sent_bytes", Total, B),
            Figure("returned_bytes", Total, B),
        ],
    )
    .flags(NEEDS)
    .ordinal("connection"),
    start("ERROR:", "^", &[]).flags(ERROR),
    start(
        "received ",
        r"received ({n}) Bytes in ({n}) us\s*$",
        &[
            Figure("received_bytes", Total, B),
            Spelled("time", Total, US, "us"),
        ],
    ),
    // It divides by 2^20.
    start(
        "throughput ",
        r"throughput ({n}) MB/s\s*$",
        &[Spelled("throughput", Total, MIB_S, "MB/s")],
    )
    .flags(ENDS),
];

pub(crate) static TLS: Format = Format {
    lines: TLS_LINES,
    sections: &["connection"],
    end: "the throughput of its last connection",
    products: &[["received_bytes", "time", "throughput"]],
    ..Format::new("bifrost-tls", "Bifrost's TLS microbenchmark")
};

const BREAKDOWN_LINES: &[Line] = &[
    start(
        "vcpu ",
        r"vcpu (\d+) reason (0x[0-9a-f]+) cnt ({n}) cycle ({n}) percent ({n}), cycle1 ({n}), percent ({n})\s*$",
        &[
            Parameter("vcpu"),
            Parameter("reason"),
            Figure("exits", Total, COUNT),
            Figure("cycle", Total, CYCLES),
            Figure("cycle_percent", Total, PERCENT),
            Figure("cycle1", Total, CYCLES),
            Figure("cycle1_percent", Total, PERCENT),
        ],
    )
    .flags(BEGINS),
    start(
        "Total ",
        r"^\s*Total ({n}) cycles\s*$",
        &[Figure("total_cycles", Total, CYCLES)],
    )
    .flags(BEGINS),
    start(
        "cpu ",
        r"^\s*cpu (\d+) (\w+) cnt ({n}) cycles ({n}) percent ({n})\s*$",
        &[
            Parameter("cpu"),
            Parameter("class"),
            Figure("calls", Total, COUNT),
            Figure("cycles", Total, CYCLES),
            Figure("cycles_percent", Total, PERCENT),
        ],
    )
    .flags(BEGINS),
];

pub(crate) static BREAKDOWN: Format = Format {
    lines: BREAKDOWN_LINES,
    ..Format::new(
        "bifrost-breakdown",
        "Bifrost's breakdown of cycles, in the kernel's log",
    )
};

// sockperf divides by 2^20.
const BANDWIDTH: Suffixes = &[("MBps", 1.0, MIB_S)];

const SOCKPERF_LINES: &[Line] = &[
    start("sockperf: == version", "^", &[]).flags(NEW | NEEDS),
    within(
        "msg-size=",
        r"using msg-size=(\d+)",
        &[Parameter("message_size")],
    ),
    start("sockperf: ERROR", "^", &[]).flags(ERROR),
    start(
        "sockperf: [Total Run]",
        r"RunTime=({n}) sec;.*SentMessages=({n}); ReceivedMessages=({n})",
        &[
            Figure("run_time", Total, S),
            Figure("run_sent_messages", Total, COUNT),
            Figure("run_received_messages", Total, COUNT),
        ],
    ),
    start(
        "sockperf: [Valid Duration]",
        r"RunTime=({n}) sec; SentMessages=({n}); ReceivedMessages=({n})",
        &[
            Figure("time", Total, S),
            Figure("sent_messages", Total, COUNT),
            Figure("received_messages", Total, COUNT),
        ],
    ),
    start(
        "sockperf: ====> avg-",
        r"avg-lat(?:ency)?= *({n}) \(std-dev=({n})\)",
        &[
            Spelled("latency", Mean, US, "usec"),
            Spelled("latency", Stdev, US, "usec"),
        ],
    ),
    start(
        "sockperf: # dropped",
        r"dropped messages = ({n}); # duplicated messages = ({n}); # out-of-order messages = ({n})",
        &[
            Figure("lost_messages", Total, COUNT),
            Figure("duplicated_messages", Total, COUNT),
            Figure("reordered_messages", Total, COUNT),
        ],
    ),
    start(
        "sockperf: ---> <MAX>",
        r"observation = *({n})",
        &[Spelled("latency", Max, US, "usec")],
    ),
    start(
        "sockperf: ---> <MIN>",
        r"observation = *({n})",
        &[Spelled("latency", Min, US, "usec")],
    )
    .flags(ENDS),
    start(
        "sockperf: ---> percentile",
        r"percentile ({n}) = *({n})",
        &[Level, Spelled("latency", Total, US, "usec")],
    ),
    start(
        "sockperf: Total of",
        r"Total of ({n}) messages sent in ({n}) sec",
        &[
            Figure("sent_messages", Total, COUNT),
            Figure("time", Total, S),
        ],
    ),
    start(
        "sockperf: Summary: Message Rate",
        r"is ({n}) \[msg/sec\]",
        &[Spelled("message_rate", Total, OPS_S, "msg/sec")],
    ),
    start(
        "sockperf: Summary: BandWidth",
        r"is ({q}) \(({n}) Mbps\)",
        &[
            Sized("throughput", Total, BANDWIDTH),
            Spelled("throughput_in_bits", Total, MIBIT_S, "Mbps"),
        ],
    )
    .flags(ENDS),
];

pub(crate) static SOCKPERF: Format = Format {
    lines: SOCKPERF_LINES,
    end: "its statistics",
    products: &[["sent_messages", "time", "message_rate"]],
    ..Format::new("sockperf", "sockperf")
};
