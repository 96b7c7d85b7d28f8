//! Formats of JSON: where their figures are.

use crate::format::{Format, Take};
use crate::record::Statistic::{High, Low, Max, Mean, Median, Min, Sample, Stdev, Total};
use crate::unit::*;
use Take::{Figure, Parameter};

/// A format of JSON.
pub(crate) struct Json {
    pub(crate) format: Format,
    /// Keys of the whole document that tell it from others.
    pub(crate) keys: &'static [&'static str],
    pub(crate) groups: &'static [Group],
}

/// Figures that share parameters. In a path `*` stands for every item of a list.
pub(crate) struct Group {
    /// The path of the objects that hold the figures.
    pub(crate) at: &'static str,
    /// Paths below it; the last of a figure may be `*`.
    pub(crate) takes: &'static [(&'static str, Take)],
}

const fn group(at: &'static str, takes: &'static [(&'static str, Take)]) -> Group {
    Group { at, takes }
}

/// The estimate of one statistic of criterion.
macro_rules! estimate {
    ($name:literal, $figure:literal, $statistic:expr) => {
        group(
            concat!("/", $name),
            &[
                ("/point_estimate", Figure($figure, $statistic, NS)),
                ("/confidence_interval/lower_bound", Figure($figure, Low, NS)),
                (
                    "/confidence_interval/upper_bound",
                    Figure($figure, High, NS),
                ),
            ],
        )
    };
}

const STREAM: &[(&str, Take)] = &[
    ("/seconds", Figure("time", Total, S)),
    ("/bytes", Figure("bytes", Total, B)),
    ("/bits_per_second", Figure("throughput", Total, BIT_S)),
];

pub(crate) static ALL: &[Json] = &[
    Json {
        format: Format {
            products: &[
                ["sent_bytes", "sent_time", "sent_throughput"],
                ["received_bytes", "received_time", "received_throughput"],
                ["bytes", "time", "throughput"],
            ],
            ..Format::new("iperf3", "iperf3 --json")
        },
        keys: &["start", "intervals", "end"],
        groups: &[
            group(
                "/start/test_start",
                &[
                    ("/protocol", Parameter("protocol")),
                    ("/num_streams", Parameter("streams")),
                    ("/reverse", Parameter("reverse")),
                ],
            ),
            group(
                "/intervals/*/sum",
                &[("/bits_per_second", Figure("throughput", Sample, BIT_S))],
            ),
            group(
                "/end/sum_sent",
                &[
                    ("/seconds", Figure("sent_time", Total, S)),
                    ("/bytes", Figure("sent_bytes", Total, B)),
                    ("/bits_per_second", Figure("sent_throughput", Total, BIT_S)),
                    ("/retransmits", Figure("retransmits", Total, COUNT)),
                ],
            ),
            group(
                "/end/sum_received",
                &[
                    ("/seconds", Figure("received_time", Total, S)),
                    ("/bytes", Figure("received_bytes", Total, B)),
                    (
                        "/bits_per_second",
                        Figure("received_throughput", Total, BIT_S),
                    ),
                ],
            ),
            // UDP, where the sum has what was lost.
            group("/end/sum", STREAM),
            group(
                "/end/sum",
                &[
                    ("/jitter_ms", Figure("jitter", Mean, MS)),
                    ("/packets", Figure("packets", Total, COUNT)),
                    ("/lost_packets", Figure("lost_packets", Total, COUNT)),
                    ("/lost_percent", Figure("loss", Total, PERCENT)),
                ],
            ),
            group(
                "/end/cpu_utilization_percent",
                &[
                    ("/host_total", Figure("processor_time", Total, PERCENT)),
                    (
                        "/remote_total",
                        Figure("remote_processor_time", Total, PERCENT),
                    ),
                ],
            ),
        ],
    },
    Json {
        format: Format {
            repeats: true,
            ..Format::new("hyperfine", "hyperfine --export-json")
        },
        keys: &["results"],
        groups: &[group(
            "/results/*",
            &[
                ("/command", Parameter("command")),
                ("/mean", Figure("time", Mean, S)),
                ("/stddev", Figure("time", Stdev, S)),
                ("/median", Figure("time", Median, S)),
                ("/min", Figure("time", Min, S)),
                ("/max", Figure("time", Max, S)),
                ("/user", Figure("user_time", Total, S)),
                ("/system", Figure("system_time", Total, S)),
                ("/times/*", Figure("time", Sample, S)),
            ],
        )],
    },
    Json {
        format: Format {
            repeats: true,
            ..Format::new("criterion-estimates", "criterion, its estimates.json")
        },
        keys: &["mean", "median", "std_dev"],
        groups: &[
            estimate!("mean", "time", Mean),
            estimate!("median", "median_time", Median),
            estimate!("slope", "slope_time", Mean),
            group(
                "/std_dev",
                &[("/point_estimate", Figure("time", Stdev, NS))],
            ),
        ],
    },
];
