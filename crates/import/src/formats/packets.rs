//! Packets: `snabb loadtest` and Vita's benchmark in software.

use crate::format::{
    start, within, Format, Last, Line, Separator, Suffixes, Table, Take, BEGINS, CLOSES, NEEDS,
    NEW, WHOLE,
};
use crate::record::Statistic::{Mean, Total};
use crate::unit::*;
use Take::{Figure, Parameter, Sized, Spelled};

const LOADTEST_LINES: &[Line] = &[
    start(
        "Applying ",
        r"Applying ({n}) Gbps of load",
        &[Parameter("load")],
    )
    .flags(BEGINS),
    start(
        "TX ",
        r"TX ({n}) packets \(({n}) MPPS\), ({n}) bytes \(({n}) Gbps\)",
        &[
            Figure("sent_packets", Total, COUNT),
            Spelled("sent_packet_rate", Total, MPPS, "MPPS"),
            Figure("sent_bytes", Total, B),
            Spelled("sent_wire_rate", Total, GBIT_S, "Gbps"),
        ],
    ),
    start(
        "RX ",
        r"RX ({n}) packets \(({n}) MPPS\), ({n}) bytes \(({n}) Gbps\)",
        &[
            Figure("received_packets", Total, COUNT),
            Spelled("received_packet_rate", Total, MPPS, "MPPS"),
            Figure("received_bytes", Total, B),
            Spelled("received_wire_rate", Total, GBIT_S, "Gbps"),
        ],
    ),
    start(
        "Loss:",
        r"Loss: ({n}) ingress drop \+ ({n}) packets lost \(({n})%\)",
        &[
            Figure("ingress_drop", Total, COUNT),
            Figure("lost_packets", Total, COUNT),
            Figure("loss", Total, PERCENT),
        ],
    ),
    start("Success.", "^", &[]).flags(NEEDS),
    start("Failed", "^", &[]).flags(NEEDS),
    within(":", r"^\s*(\S[^:]*):\s*$", &[Parameter("stream")]),
    within(
        "",
        r"^\s*({n})\s*$",
        &[Figure("no_drop_rate", Total, GBIT_S)],
    )
    .flags(CLOSES | WHOLE),
];

pub(crate) static LOADTEST: Format = Format {
    lines: LOADTEST_LINES,
    sections: &["load", "stream"],
    end: "the rate that it found",
    ..Format::new(
        "snabb-loadtest",
        "snabb loadtest find-limit or transient, as text",
    )
};

pub(crate) static TRANSIENT: Format = Format {
    tables: &[Table {
        header: "load_gbps,stream",
        columns: &[
            ("load_gbps", Parameter("load")),
            ("stream", Parameter("stream")),
            ("tx_packets", Figure("sent_packets", Total, COUNT)),
            ("tx_mpps", Spelled("sent_packet_rate", Total, MPPS, "mpps")),
            ("tx_bytes", Figure("sent_bytes", Total, B)),
            ("tx_gbps", Spelled("sent_wire_rate", Total, GBIT_S, "gbps")),
            ("rx_packets", Figure("received_packets", Total, COUNT)),
            (
                "rx_mpps",
                Spelled("received_packet_rate", Total, MPPS, "mpps"),
            ),
            ("rx_bytes", Figure("received_bytes", Total, B)),
            (
                "rx_gbps",
                Spelled("received_wire_rate", Total, GBIT_S, "gbps"),
            ),
            ("ingress_drop", Figure("ingress_drop", Total, COUNT)),
            ("lost_packets", Figure("lost_packets", Total, COUNT)),
            ("lost_percent", Figure("loss", Total, PERCENT)),
        ],
        separator: Separator::Commas,
        last: Last::BeforeBlank,
        flags: NEW,
        row_flags: 0,
    }],
    ..Format::new("snabb-transient", "snabb loadtest transient, its CSV")
};

const MILLIONS: Suffixes = &[("million", 1e6, COUNT)];

const SOFTWARE_LINES: &[Line] = &[
    within(
        "test.snabb ",
        r"test\.snabb (\S+) (\S+) (\S+)",
        &[
            Parameter("packet_size"),
            Parameter("packets"),
            Parameter("routes"),
        ],
    )
    .flags(NEW),
    start(
        "Processed ",
        r"Processed ({q}) packets in ({n}) seconds \(({n}) bytes; ({n}) Gbps\)",
        &[
            Sized("packets", Total, MILLIONS),
            Figure("time", Total, S),
            Figure("bytes", Total, B),
            Spelled("throughput", Total, GBIT_S, "Gbps"),
        ],
    )
    .flags(BEGINS | NEEDS),
    start(
        "Made ",
        r"Made ({n}) breaths: ({n}) packets per breath; ({n})us per breath",
        &[
            Figure("breaths", Total, COUNT),
            Figure("packets_per_breath", Mean, RATIO),
            Spelled("time_per_breath", Mean, US, "us"),
        ],
    ),
    start(
        "Rate(Mpps):",
        r"Rate\(Mpps\):\s*({n})\s*$",
        &[Figure("packet_rate", Total, MPPS)],
    )
    .flags(CLOSES),
];

pub(crate) static SOFTWARE: Format = Format {
    lines: SOFTWARE_LINES,
    end: "its line Rate(Mpps):",
    products: &[
        ["packets", "time", "packet_rate"],
        ["bytes", "time", "throughput"],
    ],
    ..Format::new("vita-software", "Vita's benchmark in software, test.snabb")
};
