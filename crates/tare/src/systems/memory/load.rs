//! Reads and writes of known bytes, every one verified: what `tare memory bench` and the driver
//! `farmem` do to a node.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context as _};
use tare_farmem::operation::{Error, Operation, PageSize, Permission, SpaceId, Value};
use tare_farmem::protocol::{Completion, Failure, OperationId, OwnedWrite};
use tare_farmem::transport::{Channel, Direct};
use tare_histogram::Histogram;

use super::layout::{fill, seed, Direction, Layout, Place, Turns, PAGE};

/// The longest wait for something to come, after which an operation has failed in any case.
const WAIT: Duration = Duration::from_millis(20);

/// Bytes of the operations of a group above which it has fewer.
const GROUP_BYTES: usize = 64 << 20;

/// The longest allocation at a time.
const ALLOC_BYTES: u64 = tare_farmem::memory::PAGES_MAX * PAGE;

/// The most operations of an open loop that have not completed, and the most bytes of all of them.
const OPEN_MAX: usize = 2048;
const OPEN_BYTES: usize = 64 << 20;

/// The times that a space is closed, if it is not known whether it was, and the time after which
/// none is closed again.
const CLOSES_MAX: u32 = 4;
const CLOSES_WITHIN: Duration = Duration::from_secs(10);

/// Operations that prepare pages and are outstanding at a time.
const PREPARED_AT_ONCE: usize = 256;

/// Counts that prove what a load did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proof {
    /// Operations that were measured.
    pub(crate) operations: u64,
    /// Those of them that succeeded.
    pub(crate) succeeded: u64,
    /// Bytes that were compared with what was written, prepared pages and what was written later.
    pub(crate) verified: u64,
    /// Operations of which at least one byte was wrong.
    pub(crate) wrong: u64,
    /// Operations that failed.
    pub(crate) failed: u64,
    /// The reason why the first of them failed.
    pub(crate) failure: Option<Failure>,
    /// Spaces whose memory was used.
    pub(crate) sessions: u64,
    /// Distinct pages that were touched, each with memory of its own.
    pub(crate) pages: u64,
}

impl Proof {
    /// Adds what another load did.
    pub(crate) fn merge(&mut self, other: &Proof) {
        self.operations += other.operations;
        self.succeeded += other.succeeded;
        self.verified += other.verified;
        self.wrong += other.wrong;
        self.failed += other.failed;
        self.failure = self.failure.or(other.failure);
        self.sessions += other.sessions;
        self.pages += other.pages;
    }

    /// Counts an operation that failed.
    fn fail(&mut self, failure: Failure) {
        self.failed += 1;
        self.failure.get_or_insert(failure);
    }
}

/// A load on a node, by one thread.
pub(crate) struct Load<'a> {
    channel: &'a mut dyn Channel,
    layout: Layout,
    turns: Turns,
    places: Vec<Place>,
    /// The bytes of a group of operations, one after the other, or of those that are outstanding
    /// together, each its own; and memory for the next of these.
    bytes: Vec<u8>,
    payloads: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// The number of the group of writes, so that each writes other bytes.
    version: u64,
    ids: Vec<OperationId>,
    completions: Vec<Completion>,
    /// The operations of a group that went the shorter way, and what they have read.
    outcomes: Vec<(usize, Result<Value, Failure>)>,
    into: Vec<u8>,
    expected: Vec<u8>,
    /// Places to which a write failed. It may have happened or not, and may still happen, so that
    /// what they hold is not known any more.
    uncertain: HashSet<Place>,
    proof: Proof,
}

impl<'a> Load<'a> {
    /// Opens the spaces, allocates their memory and writes every place once.
    ///
    /// # Errors
    /// An operation failed.
    pub(crate) fn prepare(
        channel: &'a mut dyn Channel,
        layout: Layout,
    ) -> anyhow::Result<Load<'a>> {
        let mut load = Load::new(channel, layout)?;
        match load.prepare_memory() {
            Ok(()) => Ok(load),
            Err(error) => {
                load.close_all();
                Err(error)
            }
        }
    }

    /// A load whose memory is not prepared.
    ///
    /// # Errors
    /// The layout is not one of a load.
    pub(crate) fn new(channel: &'a mut dyn Channel, layout: Layout) -> anyhow::Result<Load<'a>> {
        ensure!(layout.pages.is_power_of_two(), "pages: a power of two");
        Ok(Load {
            channel,
            layout,
            turns: Turns::new(&layout),
            places: Vec::new(),
            bytes: Vec::new(),
            payloads: Vec::new(),
            spare: Vec::new(),
            version: 0,
            ids: Vec::new(),
            completions: Vec::new(),
            outcomes: Vec::new(),
            into: Vec::new(),
            expected: Vec::new(),
            uncertain: HashSet::new(),
            proof: Proof::default(),
        })
    }

    /// Opens the spaces, allocates their memory and writes every place once.
    ///
    /// # Errors
    /// An operation failed.
    pub(crate) fn prepare_memory(&mut self) -> anyhow::Result<()> {
        let layout = self.layout;
        let spaces = layout.all_spaces();
        self.submit_all(spaces.clone().map(|space| (space, Operation::Open)))?;
        let skipped = match layout.regions {
            0 => 0,
            _ => layout.spaces as usize,
        };
        let bytes = layout.bytes();
        let alloc = |at, bytes| Operation::Alloc {
            bytes,
            page: PageSize::Small,
            at: Some(at),
            permission: Permission::READ_WRITE,
            sparse: false,
        };
        let pieces = (0..bytes)
            .step_by(ALLOC_BYTES as usize)
            .map(|offset| alloc(layout.base + offset, ALLOC_BYTES.min(bytes - offset)));
        self.submit_all(
            spaces
                .skip(skipped)
                .flat_map(|space| pieces.clone().map(move |piece| (space, piece))),
        )?;
        self.write_all_places()?;
        if layout.regions > 0 {
            self.map_regions()?;
        }
        Ok(())
    }

    /// Lets the other spaces map what the owner has written, region by region.
    fn map_regions(&mut self) -> anyhow::Result<()> {
        let layout = self.layout;
        let owner = SpaceId(layout.first_space + layout.spaces);
        let bytes = layout.bytes() / layout.regions;
        for number in 0..layout.regions {
            let address = layout.base + number * bytes;
            let name = format!("tare-{}-{number}", layout.first_space);
            let region = Operation::Region {
                name: name.as_bytes(),
                address,
                bytes,
            };
            let Value::Region(region) = self.one(owner, &region)? else {
                bail!("naming a region gave none");
            };
            for session in 0..layout.spaces {
                let to = SpaceId(layout.first_space + session);
                let grant = Operation::Grant {
                    region,
                    to,
                    permission: match layout.direction {
                        Direction::Read => Permission::READ,
                        Direction::Write => Permission::READ_WRITE,
                    },
                };
                self.one(owner, &grant)?;
                let at = Some(address);
                self.one(to, &Operation::Map { region, at })?;
            }
        }
        Ok(())
    }

    /// Runs one operation while the memory is prepared.
    fn one(&mut self, space: SpaceId, operation: &Operation<'_>) -> anyhow::Result<Value> {
        self.channel.submit(space, operation)?;
        loop {
            self.channel.progress(WAIT)?;
            if let Some(completion) = self.channel.poll() {
                return completion.outcome.context("to prepare the memory");
            }
        }
    }

    /// Returns the counts so far.
    pub(crate) fn proof(&self) -> Proof {
        self.proof
    }

    /// Lets the next operations be at the places of other turns; those so far go on when they are
    /// swapped back.
    pub(crate) fn swap_turns(&mut self, turns: &mut Turns) {
        std::mem::swap(&mut self.turns, turns);
    }

    /// Submits operations, with a bound on those outstanding, until all have succeeded.
    fn submit_all<'o>(
        &mut self,
        operations: impl Iterator<Item = (SpaceId, Operation<'o>)>,
    ) -> anyhow::Result<()> {
        for (space, operation) in operations {
            while self.channel.outstanding() >= PREPARED_AT_ONCE {
                self.take_prepared()?;
            }
            self.channel.submit(space, &operation)?;
        }
        while self.channel.outstanding() > 0 {
            self.take_prepared()?;
        }
        Ok(())
    }

    fn take_prepared(&mut self) -> anyhow::Result<()> {
        self.channel.progress(WAIT)?;
        while let Some(completion) = self.channel.poll() {
            completion.outcome.context("to prepare the memory")?;
            self.channel.recycle(completion.data);
        }
        Ok(())
    }

    fn write_all_places(&mut self) -> anyhow::Result<()> {
        let layout = self.layout;
        let mut turns = self.turns.clone();
        let mut data = vec![0; layout.size as usize];
        for _ in 0..layout.spaces * layout.places() {
            let place = turns.next();
            fill(&mut data, seed(place, 0));
            while self.channel.outstanding() >= PREPARED_AT_ONCE {
                self.take_prepared()?;
            }
            let write = Operation::Write {
                address: layout.address(place),
                data: &data,
                guard: None,
            };
            let space = match layout.regions {
                0 => layout.space(place),
                _ => SpaceId(layout.first_space + layout.spaces),
            };
            self.channel.submit(space, &write)?;
        }
        while self.channel.outstanding() > 0 {
            self.take_prepared()?;
        }
        ensure!(turns.state == self.turns.state, "every place had its turn");
        self.proof.sessions = layout.spaces;
        self.proof.pages = layout.spaces * layout.places() * u64::from(layout.size).div_ceil(PAGE);
        Ok(())
    }

    /// Returns the least number of operations of a group in which the window is full for three
    /// quarters of them, or fewer where the memory for them would be much.
    pub(crate) fn group_min(&self, outstanding: usize) -> usize {
        match outstanding {
            1 => 1,
            _ => (4 * outstanding).min(outstanding.max(GROUP_BYTES / self.layout.size as usize)),
        }
    }

    /// Runs `count` operations, at most `outstanding` at a time, and returns the time that so many
    /// take while the window is full. At the start and the end it is not: they count if there are
    /// fewer than three windows.
    ///
    /// What is written is generated before the measured time, and what was read or written is
    /// compared after it.
    ///
    /// # Errors
    /// The channel is of no use any more. An operation that fails is counted.
    pub(crate) fn group(&mut self, count: usize, outstanding: usize) -> anyhow::Result<Duration> {
        self.begin(count, outstanding == 1);
        let elapsed = self.windowed(self.layout.direction, outstanding)?;
        self.end()?;
        Ok(elapsed)
    }

    /// The same with one at a time, whose latencies are recorded.
    ///
    /// # Errors
    /// As [`Load::group`].
    pub(crate) fn one_by_one(
        &mut self,
        count: usize,
        latency: &mut Histogram,
    ) -> anyhow::Result<Duration> {
        self.one_by_one_beside(count, latency, || Ok(()))
    }

    /// The same, with something else to do in front of each.
    ///
    /// # Errors
    /// As [`Load::group`], and those of `beside`.
    pub(crate) fn one_by_one_beside(
        &mut self,
        count: usize,
        latency: &mut Histogram,
        mut beside: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Duration> {
        self.begin(count, true);
        let all = Instant::now();
        for index in 0..count {
            beside()?;
            let from = Instant::now();
            self.run(self.layout.direction, index)?;
            latency.record_duration(from.elapsed());
        }
        let elapsed = all.elapsed();
        self.end()?;
        Ok(elapsed)
    }

    /// Runs operations that are due at equal gaps, whether those before have completed or not;
    /// their latencies count from the times at which they were due. Returns the operations per
    /// second that completed.
    ///
    /// # Errors
    /// As [`Load::group`].
    pub(crate) fn open_loop(
        &mut self,
        rate: f64,
        time: Duration,
        latency: &mut Histogram,
    ) -> anyhow::Result<f64> {
        let most = OPEN_BYTES / self.layout.size as usize;
        let count = ((time.as_secs_f64() * rate) as usize).clamp(1, most.max(1));
        self.begin(count, false);
        let due = |index: usize| Duration::from_secs_f64(index as f64 / rate);
        let mut waiting = HashMap::new();
        let (from, mut next) = (Instant::now(), 0);
        while self.completions.len() < count {
            let now = from.elapsed();
            let room = OPEN_MAX - waiting.len();
            let limit = (next + room).min(count);
            while next < limit && due(next) <= now {
                self.submit(self.layout.direction, next)?;
                let space = self.layout.space(self.places[next]);
                waiting.insert((space, self.ids[next]), due(next));
                next += 1;
            }
            self.channel.progress(Duration::ZERO)?;
            while let Some(completion) = self.channel.poll() {
                let due = waiting.remove(&(completion.space, completion.id));
                let due = due.context("an operation completed twice")?;
                latency.record_duration(from.elapsed().saturating_sub(due));
                self.completions.push(completion);
            }
        }
        let completed = count as f64 / from.elapsed().as_secs_f64();
        self.end()?;
        Ok(completed)
    }

    /// Closes the spaces, which the node would keep for good, and returns those that it may have
    /// kept. A space that may not be closed is closed again, a limited number of times.
    pub(crate) fn close_all(&mut self) -> Vec<SpaceId> {
        let deadline = Instant::now() + CLOSES_WITHIN;
        let mut left: HashSet<SpaceId> = self.layout.all_spaces().collect();
        // Of what was submitted before.
        while self.channel.outstanding() > 0 && self.take_closed(&mut left) {}
        left.extend(self.layout.all_spaces());
        for number in 0..CLOSES_MAX {
            let again = number > 0;
            for space in self.layout.all_spaces() {
                if !left.contains(&space) || (again && Instant::now() >= deadline) {
                    continue;
                }
                while self.channel.outstanding() >= PREPARED_AT_ONCE && self.take_closed(&mut left)
                {
                }
                if self.channel.submit(space, &Operation::Close).is_err() {
                    break;
                }
            }
            while self.channel.outstanding() > 0 && self.take_closed(&mut left) {}
            if left.is_empty() {
                break;
            }
        }
        let mut left: Vec<_> = left.into_iter().collect();
        left.sort();
        left
    }

    /// Waits for something to complete, and removes the spaces that are closed with it; returns
    /// false if the channel is of no use.
    fn take_closed(&mut self, left: &mut HashSet<SpaceId>) -> bool {
        let is_of_use = self.channel.progress(WAIT).is_ok();
        while let Some(completion) = self.channel.poll() {
            let is_closed = match completion.outcome {
                Ok(_) => true,
                Err(failure) => failure == Failure::Refused(Error::NoSuchSpace),
            };
            if is_closed {
                left.remove(&completion.space);
            }
            self.channel.recycle(completion.data);
        }
        is_of_use
    }

    /// Chooses places, and generates what is written to them: for operations one at a time in one
    /// piece, and for others such that the channel can have each.
    fn begin(&mut self, count: usize, is_single: bool) {
        let size = self.layout.size as usize;
        self.places.clear();
        self.places.extend((0..count).map(|_| self.turns.next()));
        self.clear();
        if is_single {
            // Others do not read into it, and clearing it would empty the caches in front of them.
            self.into.resize(count * size, 0);
            self.into.fill(0);
        }
        if self.layout.direction == Direction::Write {
            self.version += 1;
            if !is_single {
                for place in &self.places {
                    let mut data = self.spare.pop().unwrap_or_default();
                    data.resize(size, 0);
                    fill(&mut data, seed(*place, self.version));
                    self.payloads.push(data);
                }
                return;
            }
            self.bytes.resize(count * size, 0);
            for (place, data) in self.places.iter().zip(self.bytes.chunks_exact_mut(size)) {
                fill(data, seed(*place, self.version));
            }
        }
    }

    fn clear(&mut self) {
        self.ids.clear();
        self.completions.clear();
        self.outcomes.clear();
        self.payloads.clear();
    }

    /// Verifies the group: reads what was written, and compares.
    fn end(&mut self) -> anyhow::Result<()> {
        self.proof.operations += self.places.len() as u64;
        let (outcomes, completions) = (self.outcomes.iter(), self.completions.iter());
        let succeeded = outcomes.filter(|(_, outcome)| outcome.is_ok()).count()
            + completions.filter(|each| each.outcome.is_ok()).count();
        self.proof.succeeded += succeeded as u64;
        if self.layout.direction == Direction::Write {
            for completion in self.completions.drain(..) {
                if let Err(failure) = completion.outcome {
                    self.proof.fail(failure);
                    let submitted = self.ids.iter().zip(&self.places);
                    let mut places = submitted.filter(|(id, place)| {
                        **id == completion.id && self.layout.space(**place) == completion.space
                    });
                    self.uncertain
                        .extend(places.next().map(|(_, place)| *place));
                }
                self.spare.push(completion.data);
            }
            for (index, outcome) in &self.outcomes {
                if let Err(failure) = *outcome {
                    self.proof.fail(failure);
                    self.uncertain.insert(self.places[*index]);
                }
            }
            self.clear();
            self.windowed(Direction::Read, PREPARED_AT_ONCE)?;
        }
        let size = self.layout.size as usize;
        self.expected.resize(size, 0);
        for (index, outcome) in &self.outcomes {
            if outcome.is_ok() && self.uncertain.contains(&self.places[*index]) {
                continue;
            }
            let found = &self.into[index * size..][..size];
            fill(&mut self.expected, seed(self.places[*index], self.version));
            match outcome {
                Ok(_) => {
                    self.proof.verified += size as u64;
                    self.proof.wrong += u64::from(found != self.expected);
                }
                Err(failure) => self.proof.fail(*failure),
            }
        }
        // Operations complete in any order, and sessions number theirs apart.
        let submitted = self.ids.iter().zip(&self.places);
        let submitted = submitted.map(|(id, place)| ((self.layout.space(*place), *id), *place));
        let mut submitted: HashMap<_, _> = submitted.collect();
        for completion in self.completions.drain(..) {
            let place = submitted
                .remove(&(completion.space, completion.id))
                .context("an operation completed twice, or was never submitted")?;
            match completion.outcome {
                Ok(Value::Bytes(_)) if self.uncertain.contains(&place) => {}
                Ok(Value::Bytes(_)) => {
                    fill(&mut self.expected, seed(place, self.version));
                    self.proof.verified += completion.data.len() as u64;
                    self.proof.wrong += u64::from(completion.data != self.expected);
                }
                Ok(_) => self.proof.wrong += 1,
                Err(failure) => self.proof.fail(failure),
            }
            self.channel.recycle(completion.data);
        }
        Ok(())
    }

    fn windowed(&mut self, direction: Direction, outstanding: usize) -> anyhow::Result<Duration> {
        let count = self.places.len();
        let mut next = 0;
        let from = Instant::now();
        if outstanding == 1 {
            for index in 0..count {
                self.run(direction, index)?;
            }
            return Ok(from.elapsed());
        }
        // The completions and the time when the first window had completed, and when the last
        // operation was submitted.
        let (mut full, mut last) = (None, None);
        while self.completions.len() < count {
            while next < count && next - self.completions.len() < outstanding {
                self.submit(direction, next)?;
                next += 1;
            }
            let done = self.completions.len();
            if done >= outstanding {
                full.get_or_insert_with(|| (done, Instant::now()));
            }
            if next == count {
                last.get_or_insert_with(|| (done, Instant::now()));
            }
            self.channel.progress(WAIT)?;
            while self.take() {}
        }
        Ok(match (full, last) {
            (Some((first, start)), Some((last, end))) if last >= first + outstanding => {
                (end - start).mul_f64(count as f64 / (last - first) as f64)
            }
            _ => from.elapsed(),
        })
    }

    /// Runs an operation, and waits for it: by the shorter way, if the channel has one.
    fn run(&mut self, direction: Direction, index: usize) -> anyhow::Result<()> {
        let (space, size) = (
            self.layout.space(self.places[index]),
            self.layout.size as usize,
        );
        let operation = operation(&self.layout, &self.places, &self.bytes, direction, index);
        let into = &mut self.into[index * size..][..size];
        match self.channel.direct(space, &operation, into)? {
            Direct::Ended(outcome) => {
                self.outcomes.push((index, outcome));
                return Ok(());
            }
            Direct::Submitted(_) => {}
            Direct::NotTaken => {
                self.channel.submit(space, &operation)?;
            }
        }
        let completion = loop {
            match self.channel.poll() {
                Some(completion) => break completion,
                None => self.channel.progress(WAIT)?,
            }
        };
        if let Ok(Value::Bytes(_)) = completion.outcome {
            // One of another length leaves zeros, which are wrong.
            let len = completion.data.len().min(size);
            into[..len].copy_from_slice(&completion.data[..len]);
        }
        self.outcomes.push((index, completion.outcome));
        self.channel.recycle(completion.data);
        Ok(())
    }

    fn submit(&mut self, direction: Direction, index: usize) -> anyhow::Result<()> {
        let space = self.layout.space(self.places[index]);
        let payload = match direction {
            Direction::Write => self.payloads.get_mut(index).map(std::mem::take),
            Direction::Read => None,
        };
        self.ids.push(match payload {
            Some(data) => {
                let address = self.layout.address(self.places[index]);
                let (guard, channel) = (None, &mut self.channel);
                let write = OwnedWrite {
                    address,
                    data,
                    guard,
                };
                channel
                    .submit_write(space, write)
                    .map_err(|(error, _)| error)?
            }
            None => {
                let operation =
                    operation(&self.layout, &self.places, &self.bytes, direction, index);
                self.channel.submit(space, &operation)?
            }
        });
        Ok(())
    }

    /// Takes a completion; returns false if there is none.
    fn take(&mut self) -> bool {
        let completion = self.channel.poll();
        let is_some = completion.is_some();
        self.completions.extend(completion);
        is_some
    }
}

/// The operation of a group with this index.
fn operation<'b>(
    layout: &Layout,
    places: &[Place],
    bytes: &'b [u8],
    direction: Direction,
    index: usize,
) -> Operation<'b> {
    let (address, size) = (layout.address(places[index]), layout.size as usize);
    match direction {
        Direction::Read => Operation::Read {
            address,
            len: layout.size,
        },
        Direction::Write => Operation::Write {
            address,
            data: &bytes[index * size..][..size],
            guard: None,
        },
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
