//! Remote memory in virtual time: the protocol's cores on cables of a given rate, exact and the
//! same on every machine.

mod scene;

use std::time::Duration;

use tare_lab::driver::{Expected, Mistake};
use tare_lab::parameters::{BitsPerSecond, Bytes};
use tare_lab::{figures, parameters};

use super::layout::Direction;
use crate::agent::{Agent, TrialError};
use crate::systems::workload::{mistake, Workload};
use scene::Scene;

parameters! {
    /// The parameters of the driver `farmem-sim`.
    pub(crate) struct SimulatedParameters {
        /// the direction of operations
        op: Direction = "read",
        /// bytes per operation, at most 1 MiB
        size: Bytes = "16 B",
        /// threads of one machine, each with a client and an address space of its own
        threads: u32 [1..=64] = 1,
        /// operations that a thread has outstanding at a time
        outstanding: usize [1..=1024] = 1,
        /// switches in a row between the machines
        switches: u32 [0..=8] = 0,
        /// the rate of each cable
        line: BitsPerSecond = "10 Gbit/s",
        /// the delay of each cable
        delay: Duration = "500 ns",
        /// the time that a program takes per datagram on the node
        node_time: Duration = "300 ns",
        /// the time that a program takes per operation on the clients' machine, in each thread
        client_time: Duration = "300 ns",
        /// the part of datagrams that each cable loses; half as many are duplicated, and as many
        /// reordered
        loss: f64 = 0.0,
        /// operations per thread
        operations: u64 [10..=1_000_000] = 2000,
    }
}

figures! {
    /// The figures of a trial of `farmem-sim`.
    pub(crate) struct SimulatedFigures {
        metrics {
            /// median latency of an operation
            latency_p50: Option<f64> [Seconds],
            /// 99th percentile of the latency
            latency_p99: Option<f64> [Seconds],
            /// 99.9th percentile of the latency
            latency_p999: Option<f64> [Seconds],
            /// payload per second, over all threads
            throughput: f64 [BitsPerSecond],
            /// processor time of the node per operation: that of its datagrams, since time passes
            /// here without polling
            cpu_node_time: f64 [Seconds],
        }
        counters {
            /// operations measured
            operations,
            /// bytes compared with what was written
            verified,
            /// operations that gave or left another byte than was written
            wrong,
            /// operations that failed
            failed,
            /// requests sent again
            retransmissions,
        }
    }
}

/// The driver `farmem-sim`.
pub(crate) struct FarmemSimulated;

impl Workload for FarmemSimulated {
    const NAME: &'static str = "farmem-sim";
    const ABOUT: &'static str = "remote memory over simulated cables, in virtual time";
    const DETERMINISTIC: bool = true;
    type Parameters = SimulatedParameters;
    type Figures = SimulatedFigures;

    fn examine(parameters: &SimulatedParameters) -> Result<(), Mistake> {
        if !(1..=1 << 20).contains(&parameters.size.0) {
            let found = format!("{} B", parameters.size.0);
            return Err(mistake("size", found.as_str(), "\"1 B\" to \"1 MiB\""));
        }
        if !(0.0..=0.5).contains(&parameters.loss) {
            return Err(mistake("loss", parameters.loss, "a fraction from 0 to 0.5"));
        }
        if parameters.line.0 < 1_000_000 {
            let found = format!("{} bit/s", parameters.line.0);
            return Err(mistake("line", found.as_str(), "at least \"1 Mbit/s\""));
        }
        Ok(())
    }

    fn expected(parameters: &SimulatedParameters) -> Option<Expected> {
        // A microsecond per datagram, and the bytes generated and compared.
        let operations = f64::from(parameters.threads) * parameters.operations as f64;
        let each = 3e-6 + parameters.size.0 as f64 * 2e-9;
        Some(Expected {
            clock: Duration::ZERO,
            work: Duration::from_secs_f64(0.01 + operations * each),
        })
    }

    fn longest(parameters: &SimulatedParameters) -> Duration {
        Self::expected(parameters).map_or(Duration::ZERO, |expected| expected.work * 20)
    }

    fn run(
        parameters: SimulatedParameters,
        agent: &mut Agent,
    ) -> Result<SimulatedFigures, TrialError> {
        let scene = Scene {
            threads: parameters.threads,
            bits_per_second: parameters.line.0,
            delay: parameters.delay,
            switches: parameters.switches,
            node_time: parameters.node_time,
            client_time: parameters.client_time,
            loss: parameters.loss,
            direction: parameters.op,
            size: parameters.size.0 as u32,
            outstanding: parameters.outstanding,
            operations: parameters.operations,
            seed: 1,
        };
        agent.start()?;
        let outcome = scene::play(&scene)?;
        let proof = outcome.proof;
        let latency = |share| Some(outcome.latency.quantile(share)?.as_secs_f64());
        let bits = 8.0 * parameters.size.0 as f64 * proof.operations as f64;
        Ok(SimulatedFigures {
            latency_p50: latency(0.5),
            latency_p99: latency(0.99),
            latency_p999: latency(0.999),
            throughput: bits / outcome.time.as_secs_f64(),
            cpu_node_time: outcome.node_time.as_secs_f64() / outcome.submitted as f64,
            operations: proof.operations,
            verified: proof.verified,
            wrong: proof.wrong,
            failed: proof.failed,
            retransmissions: outcome.retransmissions,
        })
    }
}
