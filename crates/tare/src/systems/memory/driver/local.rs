//! Local memory: the same verified operations on memory of the same process.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tare_farmem::operation::{Error, Operation, SpaceId, Value};
use tare_farmem::protocol::{Completion, Failure, OperationId, OwnedWrite, SubmitError};
use tare_farmem::transport::{Channel, Direct};
use tare_histogram::Histogram;
use tare_memory::Mapping;

use super::super::load::Load;
use super::client::{latencies, turn_of};
use super::setup::{layout, Placement};
use super::timing::{median, too_few};
use super::{FarmemFigures, FarmemParameters};
use crate::agent::Agent;
use crate::systems::load::driver::pin;

/// Measures operations in groups, then each by itself. There is no node, so that its processor time
/// is 0.
///
/// # Errors
/// There is too little memory.
pub(super) fn measure(
    parameters: &FarmemParameters,
    agent: &mut Agent,
) -> anyhow::Result<FarmemFigures> {
    // As a client.
    let placement = Placement::find(1)?;
    pin(*placement.threads.first().context("no processor")?)?;
    let layout = layout(parameters);
    let mut memory = Memory::new(layout.base, layout.total())?;
    let mut load = Load::prepare(&mut memory, layout)?;
    turn_of(parameters, &mut load, 1)?;
    agent.start()?;
    let before = load.proof();
    let (mut times, mut latency) = (Vec::new(), Histogram::new());
    let from = Instant::now();
    while times.is_empty() || from.elapsed() < parameters.duration / 2 {
        times.push(turn_of(parameters, &mut load, 1)?.0);
    }
    latencies(parameters, &mut load, &mut latency)?;
    let (time, proof) = (median(&mut times), load.proof());
    let quantile = |share| Some(latency.quantile(share)?.as_secs_f64());
    let operations = proof.operations - before.operations;
    Ok(FarmemFigures {
        latency_p50: quantile(0.5),
        latency_p99: quantile(0.99),
        latency_p999: quantile(0.999),
        time: Some(time),
        rate: Some(1.0 / time),
        throughput: Some(8.0 * parameters.size.0 as f64 / time),
        cpu_node_time: Some(0.0),
        operations,
        bytes: operations * parameters.size.0,
        verified: proof.verified,
        wrong: proof.wrong,
        failed: proof.failed,
        sessions: proof.sessions,
        too_few: too_few(operations, proof.sessions),
        pages: proof.pages,
        ..FarmemFigures::default()
    })
}

/// Memory of this process, as the channel of one session: nothing but the copy of the bytes, and
/// the check that they are within it.
struct Memory {
    base: u64,
    bytes: Mapping,
    completions: VecDeque<Completion>,
    next: u64,
}

impl Memory {
    fn new(base: u64, len: u64) -> anyhow::Result<Memory> {
        Ok(Memory {
            base,
            bytes: Mapping::best(usize::try_from(len)?)?,
            completions: VecDeque::new(),
            next: 0,
        })
    }

    /// Returns the bytes at an address, or why there are none.
    #[inline]
    fn at(&mut self, address: u64, len: usize) -> Result<&mut [u8], Failure> {
        let start = address.checked_sub(self.base).map(|start| start as usize);
        let range = start.and_then(|start| Some(start..start.checked_add(len)?));
        let bytes = range.and_then(|range| self.bytes.as_mut().get_mut(range));
        bytes.ok_or(Failure::Refused(Error::Unmapped { address }))
    }

    #[inline]
    fn write(&mut self, address: u64, data: &[u8]) -> Result<Value, Failure> {
        self.at(address, data.len())?.copy_from_slice(data);
        Ok(Value::None)
    }

    #[inline]
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<Value, Failure> {
        into.copy_from_slice(self.at(address, into.len())?);
        Ok(Value::Bytes(into.len() as u32))
    }

    fn complete(
        &mut self,
        space: SpaceId,
        outcome: Result<Value, Failure>,
        data: Vec<u8>,
    ) -> OperationId {
        self.next += 1;
        let id = OperationId(self.next);
        self.completions.push_back(Completion {
            id,
            space,
            outcome,
            data,
        });
        id
    }
}

impl Channel for Memory {
    fn submit(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
    ) -> Result<OperationId, SubmitError> {
        let mut data = Vec::new();
        let outcome = match *operation {
            Operation::Write { address, data, .. } => self.write(address, data),
            Operation::Read { address, len } => {
                data.resize(len as usize, 0);
                self.read(address, &mut data)
            }
            // The space is there, and all of its memory.
            _ => Ok(Value::None),
        };
        Ok(self.complete(space, outcome, data))
    }

    fn submit_write(
        &mut self,
        space: SpaceId,
        write: OwnedWrite,
    ) -> Result<OperationId, (SubmitError, OwnedWrite)> {
        let outcome = self.write(write.address, &write.data);
        Ok(self.complete(space, outcome, write.data))
    }

    fn direct(
        &mut self,
        _: SpaceId,
        operation: &Operation<'_>,
        into: &mut [u8],
    ) -> io::Result<Direct> {
        Ok(match *operation {
            Operation::Write { address, data, .. } => Direct::Ended(self.write(address, data)),
            Operation::Read { address, .. } => Direct::Ended(self.read(address, into)),
            _ => Direct::NotTaken,
        })
    }

    fn progress(&mut self, _: Duration) -> io::Result<()> {
        Ok(())
    }

    fn poll(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn recycle(&mut self, _: Vec<u8>) {}

    fn outstanding(&self) -> usize {
        self.completions.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::{fill, seed, Direction, Layout, Place, Turns, PAGE};
    use super::*;

    fn layout(direction: Direction) -> Layout {
        Layout {
            first_space: 1,
            spaces: 1,
            pages: 16,
            base: 0x4000_0000,
            size: 64,
            direction,
            regions: 0,
        }
    }

    #[test]
    fn local_memory_holds_what_is_written_and_nothing_beyond() {
        for direction in [Direction::Read, Direction::Write] {
            let layout = layout(direction);
            let mut memory = Memory::new(layout.base, layout.total()).unwrap();
            let mut load = Load::prepare(&mut memory, layout).unwrap();
            load.group(100, 1).unwrap();
            load.group(100, 8).unwrap();
            let proof = load.proof();
            assert_eq!((proof.operations, proof.wrong, proof.failed), (200, 0, 0));
            assert_eq!(proof.verified, 200 * 64);
            let end = layout.base + layout.total();
            for (address, len) in [(end, 1), (end - 1, 2), (layout.base - 1, 1), (u64::MAX, 1)] {
                assert!(memory.at(address, len).is_err(), "{address:#x}, {len}");
            }
        }
    }

    #[test]
    fn turns_among_few_places_leave_the_others_alone() {
        let layout = layout(Direction::Write);
        let mut memory = Memory::new(layout.base, layout.total()).unwrap();
        let mut load = Load::prepare(&mut memory, layout).unwrap();
        load.swap_turns(&mut Turns::among(&layout, 4));
        load.group(100, 1).unwrap();
        assert_eq!(load.proof().wrong, 0);
        let mut expected = [0; 64];
        for number in 0..layout.pages {
            let place = Place { session: 0, number };
            fill(&mut expected, seed(place, u64::from(number < 4)));
            let found = memory.at(layout.base + number * PAGE, 64).unwrap();
            assert_eq!(found, expected, "page {number}");
        }
    }
}
