//! The client's other threads, each with sessions, a socket and a processor of its own: they do
//! what the first one does, at the same time.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::Scope;

use anyhow::Context as _;
use tare_histogram::Histogram;

use super::super::load::{Load, Proof};
use super::client::{latencies, layout_of, turn_of, Place};
use super::timing::{groups, Average, GROUP_MAX};
use crate::systems::load::driver::pin;

/// The work of a turn.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// The load, with so many operations outstanding.
    Load(usize),
    /// The reference.
    Reference,
    /// Single operations, for half of the trial's duration.
    Latencies,
}

/// A thread's turn.
#[derive(Default)]
pub(super) struct Done {
    /// The time per operation, in seconds.
    pub(super) time: f64,
    pub(super) operations: u64,
    pub(super) latency: Histogram,
    /// The counts of the thread's load so far.
    pub(super) proof: Proof,
}

/// The other threads.
pub(super) struct Crew {
    members: Vec<Member>,
}

struct Member {
    work: Sender<Work>,
    done: Receiver<anyhow::Result<Done>>,
    proof: Proof,
}

impl Crew {
    /// Starts a thread on each of these processors, which prepares its memory; the node is there.
    /// The threads end with the crew.
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        place: &'scope Place<'_>,
        cpus: &[usize],
    ) -> Crew {
        let member = |(number, &cpu): (usize, &usize)| {
            let (work, to_do) = mpsc::channel();
            let (results, done) = mpsc::channel();
            scope.spawn(move || {
                // After an error the first thread ends the trial.
                if let Err(error) = run(place, number, cpu, &to_do, &results) {
                    let _ = results.send(Err(error));
                }
            });
            let proof = Proof::default();
            Member { work, done, proof }
        };
        Crew {
            members: (1..).zip(cpus).map(member).collect(),
        }
    }

    /// Waits until all have prepared their memory.
    ///
    /// # Errors
    /// One could not.
    pub(super) fn wait_until_prepared(&mut self) -> anyhow::Result<()> {
        self.end().map(drop)
    }

    /// Lets all threads begin.
    ///
    /// # Errors
    /// One has ended.
    pub(super) fn begin(&self, work: Work) -> anyhow::Result<()> {
        for member in &self.members {
            member.work.send(work).context("a thread has ended")?;
        }
        Ok(())
    }

    /// Waits until all have done what they began.
    ///
    /// # Errors
    /// Those of the threads.
    pub(super) fn end(&mut self) -> anyhow::Result<Vec<Done>> {
        let take = |member: &mut Member| -> anyhow::Result<Done> {
            let done = member.done.recv().context("a thread has ended")??;
            member.proof = done.proof;
            Ok(done)
        };
        self.members.iter_mut().map(take).collect()
    }

    /// Returns the counts of each thread so far, that of this load first.
    pub(super) fn proofs(&self, load: &Load<'_>) -> Vec<Proof> {
        let others = self.members.iter().map(|member| member.proof);
        std::iter::once(load.proof()).chain(others).collect()
    }

    /// Returns their sum.
    pub(super) fn proof(&self, load: &Load<'_>) -> Proof {
        let mut sum = Proof::default();
        for proof in self.proofs(load) {
            sum.merge(&proof);
        }
        sum
    }
}

/// Does what there is to do until the crew ends.
fn run(
    place: &Place<'_>,
    number: usize,
    cpu: usize,
    to_do: &Receiver<Work>,
    results: &Sender<anyhow::Result<Done>>,
) -> anyhow::Result<()> {
    pin(cpu)?;
    let parameters = place.parameters;
    let mut fleet = place.fleet(number, parameters.sessions, None)?;
    let mut ping = place.ping(number)?;
    let mut load = Load::prepare(&mut fleet, layout_of(parameters, number))?;
    let mut done = Done {
        proof: load.proof(),
        ..Done::default()
    };
    while results.send(Ok(done)).is_ok() {
        let Ok(work) = to_do.recv() else {
            break;
        };
        done = Done::default();
        match work {
            Work::Load(outstanding) => {
                (done.time, done.operations) = turn_of(parameters, &mut load, outstanding)?;
            }
            Work::Reference => {
                let exchange = |count| Ok(ping.round_trips(count)?);
                (done.time, done.operations) = groups(Average::Median, (1, GROUP_MAX), exchange)?;
            }
            Work::Latencies => latencies(parameters, &mut load, &mut done.latency)?,
        }
        done.proof = load.proof();
    }
    Ok(())
}
