//! The fourth pass: claims sequence numbers.
//!
//! It comes after decryption: a window that forged packets could move would let an attacker lock
//! out the true ones. And it comes before delivery: of two copies of a packet in one burst, or on
//! two workers, both pass the check before decryption, and one alone gets the number.

use super::{add, cause_of, DropReason, Job, Scratch, Tables, WorkerId};
use crate::dataplane::window::Claims;

/// Claims sequence numbers, a run of packets of one SA at a time, so that its lock is taken and its
/// counters are touched once.
#[inline(never)]
pub(super) fn claim(worker: &WorkerId, tables: &Tables, scratch: &mut Scratch) {
    let n = scratch.frames.len();
    let (jobs, outcomes) = (&scratch.jobs[..n], &mut scratch.outcomes[..n]);
    let mut at = 0;
    while let Some(&Job { sa: place, .. }) = jobs.get(at) {
        let Some(sa) = tables.inbound.at(place) else {
            outcomes[at] = Err(DropReason::UnknownSpi);
            at += 1;
            continue;
        };
        let (first, mut bytes, mut forged, mut replayed) = (at, 0, 0, 0);
        let mut claims = sa.window.lock(worker);
        while let (Some(job), Some(outcome)) = (jobs.get(at), outcomes.get_mut(at)) {
            if job.sa != place {
                break;
            }
            at += 1;
            claim_one(&mut claims, job, outcome);
            match outcome {
                Ok(()) => bytes += u64::from(job.len),
                Err(DropReason::Forged) => forged += 1,
                Err(_) => replayed += 1,
            }
        }
        drop(claims);
        add(&sa.packets, (at - first) as u64 - forged - replayed, worker);
        add(&sa.bytes, bytes, worker);
        if forged + replayed > 0 {
            add(&sa.forged, forged, worker);
            add(&sa.replayed, replayed, worker);
        }
    }
}

/// [`claim`] where there are many SAs: a packet is as a rule the only one of its SA.
#[inline(never)]
pub(super) fn claim_each(worker: &WorkerId, tables: &Tables, scratch: &mut Scratch) {
    let n = scratch.frames.len();
    for (job, outcome) in scratch.jobs.iter().zip(&mut scratch.outcomes[..n]) {
        let Some(sa) = tables.inbound.at(job.sa) else {
            *outcome = Err(DropReason::UnknownSpi);
            continue;
        };
        claim_one(&mut sa.window.lock(worker), job, outcome);
        match outcome {
            Ok(()) => {
                add(&sa.packets, 1, worker);
                add(&sa.bytes, u64::from(job.len), worker);
            }
            Err(DropReason::Forged) => add(&sa.forged, 1, worker),
            Err(_) => add(&sa.replayed, 1, worker),
        }
    }
}

/// Claims the number of a packet, if it is authentic.
#[inline(always)]
fn claim_one(claims: &mut Claims<'_>, job: &Job, outcome: &mut Result<(), DropReason>) {
    *outcome = outcome.and_then(|()| claims.claim(job.sequence).map_err(cause_of));
}
