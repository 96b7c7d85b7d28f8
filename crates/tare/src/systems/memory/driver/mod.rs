//! Remote memory, each operation verified, beside what its transport does without a protocol.

mod control;
mod peers;
mod raw;
mod real;

use std::time::Duration;

use tare_lab::driver::{Expected, Missing, Mistake, Role};
use tare_lab::parameters::Bytes;
use tare_lab::{choices, figures, parameters};

use super::load::{Direction, Proof};
use crate::agent::{Agent, TrialError};
use crate::machine::Machine;
use crate::systems::workload::{mistake, References, Workload};

/// The role that measures.
const CLIENT: &str = "client";

/// The role of the memory node, and of the other side of the reference.
const NODE: &str = "node";

choices! {
    /// The way of operations to the node.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Transport {
        /// UDP over loopback.
        Udp = "udp",
        /// A ring of shared memory.
        Shm = "shm",
        /// AF_XDP on a pair of veth.
        Xdp = "xdp",
        /// None: calls of the node's memory in the same thread.
        Local = "local",
    }
}

choices! {
    /// The system that is measured.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum System {
        /// Remote memory.
        Farmem = "farmem",
        /// The exchange without a protocol.
        Raw = "raw",
        /// UCX, by its own test program.
        Ucx = "ucx",
        /// memcached, by Tare's load generator.
        Memcached = "memcached",
        /// Redis, by Tare's load generator.
        Redis = "redis",
    }
}

choices! {
    /// The way to wait for a datagram, on both sides.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Wait {
        /// By asking again and again.
        Busy = "busy",
        /// Asleep.
        Blocking = "blocking",
    }
}

choices! {
    /// On or off.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Switch {
        /// Off.
        Off = "off",
        /// On.
        On = "on",
    }
}

parameters! {
    /// The parameters of the driver `farmem`.
    pub(crate) struct FarmemParameters {
        /// remote memory, or something that it is compared with
        system: System = "farmem",
        /// the way to the node
        transport: Transport = "udp",
        /// how both sides wait: busy, or asleep
        wait: Wait = "busy",
        /// the direction of operations
        op: Direction = "read",
        /// bytes per operation
        size: Bytes = "16 B",
        /// sessions, each with an address space and a client of its own, in turn
        sessions: u64 [1..=100_000] = 1,
        /// log2 of the number of pages of 4 KiB, over all sessions, each with memory of its own
        order: u32 [0..=22] = 7,
        /// named regions that the pages are divided into, read by another space that maps them; 0
        /// for none
        regions: u64 [0..=4096] = 0,
        /// operations outstanding at a time
        outstanding: usize [1..=4096] = 1,
        /// the longest datagram
        datagram: Bytes = "1472 B",
        /// encryption and authentication of every message
        aead: Switch = "off",
        /// the part of datagrams lost; half as many are duplicated, and as many reordered
        loss: f64 = 0.0,
        /// pages allocated, touched for the first time and freed meanwhile, one after the other
        storm: Switch = "off",
        /// with more than 0: an open loop, with this part of the closed loop's rate
        share: f64 = 0.0,
        /// the measured part of a trial, in turns of 80 ms with the reference
        duration: Duration = "320 ms",
    }
}

figures! {
    /// The figures of a trial of `farmem`.
    #[derive(Default)]
    pub(crate) struct FarmemFigures {
        metrics {
            /// median latency of an operation
            latency_p50: Option<f64> [Seconds],
            /// 99th percentile of the latency
            latency_p99: Option<f64> [Seconds],
            /// 99.9th percentile of the latency
            latency_p999: Option<f64> [Seconds],
            /// time per operation, without reading the clock around each
            time: Option<f64> [Seconds],
            /// the same over that of the reference in the same trial: an exchange of datagrams as
            /// long, the raw line, or two dependent loads
            over_raw: Option<f64> [Ratio],
            /// payload per second
            throughput: Option<f64> [BitsPerSecond],
            /// the same over that of the raw one-way stream, or of a copy from process to process,
            /// in the same trial
            of_raw: Option<f64> [Ratio],
            /// processor time of the node per operation, idle polling included
            node_time: Option<f64> [Seconds],
            /// processor time of the client per operation, idle polling included
            client_time: Option<f64> [Seconds],
        }
        counters {
            /// operations measured
            operations,
            /// bytes of payload of these
            bytes,
            /// bytes compared with what was written
            verified,
            /// operations that gave or left another byte than was written
            wrong,
            /// operations that failed
            failed,
            /// sessions used
            sessions,
            /// distinct pages touched
            pages,
            /// requests sent again
            retransmissions,
        }
    }
}

/// The driver `farmem`.
pub(crate) struct Farmem;

impl Workload for Farmem {
    const NAME: &'static str = "farmem";
    const ABOUT: &'static str =
        "remote memory over a transport, every byte verified, beside the transport alone";
    type Parameters = FarmemParameters;
    type Figures = FarmemFigures;

    fn references() -> Option<References> {
        Some(References {
            parameter: "system",
            names: vec!["raw", "ucx", "memcached", "redis"],
        })
    }
}
