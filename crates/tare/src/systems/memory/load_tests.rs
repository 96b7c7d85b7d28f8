use std::cmp::Ordering;
use std::collections::VecDeque;
use std::io;

use tare_farmem::protocol::SubmitError;

use super::*;

/// A node that has every fourth write of a place's later bytes neither happen nor answered, and,
/// where it is to, every fourth read and so many closes of each space.
#[derive(Default)]
struct Lossy {
    memory: HashMap<(SpaceId, u64), Vec<u8>>,
    writes: u64,
    reads: u64,
    fails_reads: bool,
    lost_closes: u32,
    closes: HashMap<SpaceId, u32>,
    completions: VecDeque<Completion>,
    next: u64,
}

impl Channel for Lossy {
    fn submit(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
    ) -> Result<OperationId, SubmitError> {
        let mut read = Vec::new();
        let outcome = match *operation {
            Operation::Write { address, data, .. } => {
                let known = self.memory.entry((space, address)).or_default();
                self.writes += 1;
                if self.writes.is_multiple_of(4) && !known.is_empty() {
                    Err(Failure::OutcomeUnknown)
                } else {
                    *known = data.to_vec();
                    Ok(Value::None)
                }
            }
            Operation::Read { address, .. } => {
                self.reads += 1;
                if self.fails_reads && self.reads.is_multiple_of(4) {
                    Err(Failure::OutcomeUnknown)
                } else {
                    read.clone_from(&self.memory[&(space, address)]);
                    Ok(Value::Bytes(read.len() as u32))
                }
            }
            Operation::Close => {
                let closes = self.closes.entry(space).or_default();
                *closes += 1;
                match (*closes).cmp(&(self.lost_closes + 1)) {
                    Ordering::Less => Err(Failure::OutcomeUnknown),
                    Ordering::Equal => Ok(Value::None),
                    Ordering::Greater => Err(Failure::Refused(Error::NoSuchSpace)),
                }
            }
            _ => Ok(Value::None),
        };
        self.next += 1;
        let id = OperationId(self.next);
        self.completions.push_back(Completion {
            id,
            space,
            outcome,
            data: read,
        });
        Ok(id)
    }

    fn submit_write(
        &mut self,
        space: SpaceId,
        write: OwnedWrite,
    ) -> Result<OperationId, (SubmitError, OwnedWrite)> {
        let operation = Operation::Write {
            address: write.address,
            data: &write.data,
            guard: None,
        };
        self.submit(space, &operation)
            .map_err(|error| (error, write))
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

/// Two spaces with 16 pages each, in operations of 64 bytes.
fn layout(direction: Direction) -> Layout {
    Layout {
        first_space: 1,
        spaces: 2,
        pages: 16,
        base: 0,
        size: 64,
        direction,
        regions: 0,
    }
}

#[test]
fn a_write_without_an_answer_has_failed_and_its_bytes_are_not_called_wrong() {
    for outstanding in [1, 8] {
        let mut node = Lossy::default();
        let mut load = Load::prepare(&mut node, layout(Direction::Write)).unwrap();
        for _ in 0..8 {
            load.group(32, outstanding).unwrap();
        }
        let proof = load.proof();
        assert_eq!((proof.operations, proof.failed, proof.wrong), (256, 64, 0));
        assert_eq!(proof.succeeded, 192);
        assert_eq!(proof.failure, Some(Failure::OutcomeUnknown));
        assert!(proof.verified > 0);
    }
}

#[test]
fn bytes_of_a_read_without_an_answer_are_not_called_verified() {
    for outstanding in [1, 8] {
        let mut node = Lossy {
            fails_reads: true,
            ..Lossy::default()
        };
        let mut load = Load::prepare(&mut node, layout(Direction::Read)).unwrap();
        let before = load.proof().verified;
        for _ in 0..8 {
            load.group(32, outstanding).unwrap();
        }
        let proof = load.proof();
        assert_eq!((proof.operations, proof.failed, proof.wrong), (256, 64, 0));
        assert_eq!(proof.succeeded, 192);
        assert_eq!(proof.failure, Some(Failure::OutcomeUnknown));
        assert_eq!(proof.verified - before, 192 * 64, "{outstanding} at a time");
    }
}

#[test]
fn a_close_without_an_answer_is_repeated_a_limited_number_of_times() {
    for (lost_closes, closes, left) in [(0, 1, 0), (3, 4, 0), (4, 4, 2), (u32::MAX - 1, 4, 2)] {
        let mut node = Lossy {
            lost_closes,
            ..Lossy::default()
        };
        let mut load = Load::prepare(&mut node, layout(Direction::Write)).unwrap();
        load.group(32, 8).unwrap();
        let kept = load.close_all();
        assert_eq!(kept, [SpaceId(1), SpaceId(2)][..left], "{lost_closes} lost");
        assert_eq!(node.closes[&SpaceId(1)], closes);
        assert_eq!(node.closes[&SpaceId(2)], closes);
    }
}
