//! The sending side of a trial.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tare_port::{Burst, Pool, BURST};
use tare_sim::Instant;

use crate::schedule::Schedule;
use crate::stamp::{Stamp, TIMES_NS};
use crate::stream::Stream;
use crate::trial::{Length, Load};

/// The frames of a stream that are still to be made, for all threads that send it.
#[derive(Debug)]
pub(crate) struct Plan {
    schedule: Schedule,
    /// Frames still to be made, where that is what ends the trial.
    left: Option<u64>,
}

/// The next frames of a loop.
struct Claim {
    /// The place in the loop of the first.
    index: usize,
    count: usize,
    /// More are due now.
    is_more_due: bool,
    /// No more frames are to be made.
    is_last: bool,
}

impl Plan {
    pub(crate) fn new(stream: &Stream, load: &Load, start: Instant, catch_up: u32) -> Plan {
        let lengths = stream.templates.iter().map(|template| template.bytes.len());
        Plan {
            schedule: Schedule::new(load.rate, lengths, start, catch_up),
            left: match load.length {
                Length::Time(_) => None,
                Length::Frames(frames) => Some(frames),
            },
        }
    }

    /// Takes up to `most` frames that are due.
    fn claim(&mut self, now: Instant, end: Instant, most: usize) -> Claim {
        // A burst of a number of frames takes the time that it takes.
        let last = match self.left {
            None => end - Duration::from_nanos(1),
            Some(_) => Instant::NEVER,
        };
        let allowance = self.schedule.allowance(now.min(last));
        let most = self.left.unwrap_or(u64::MAX).min(most as u64) as usize;
        let index = self.schedule.index();
        let mut count = 0;
        while count < most && self.schedule.take(allowance).is_some() {
            count += 1;
        }
        if let Some(left) = &mut self.left {
            *left -= count as u64;
        }
        let is_due = self.schedule.bits() <= allowance;
        let is_spent = self.left == Some(0);
        Claim {
            index,
            count,
            is_more_due: is_due && !is_spent,
            is_last: is_spent || (now > last && !is_due),
        }
    }

    /// The time when the next frame is due.
    pub(crate) fn due(&self) -> Instant {
        self.schedule.due()
    }

    /// Time that was not made up for.
    pub(crate) fn slipped(&self) -> Duration {
        self.schedule.slipped()
    }
}

/// The moment at which frames are made.
pub(crate) struct Moment {
    pub(crate) trial: u16,
    pub(crate) start: Instant,
    pub(crate) now: Instant,
    pub(crate) end: Instant,
}

/// The sending side of a stream in a trial, on one thread.
#[derive(Debug)]
pub(crate) struct Source {
    plan: Option<Arc<Mutex<Plan>>>,
    /// Frames made and not yet taken by the port: what is left of one claim.
    pub(crate) pending: Burst,
    /// No more frames are to be made.
    ended: bool,
    /// There was no frame to be had.
    starved: bool,
    /// The same, at any time of the trial.
    pub(crate) was_starved: bool,
    /// The place in the loop of the first frame that is pending.
    index: usize,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Of those, with a stamp: the sequence of the next.
    pub(crate) stamped: u64,
    /// The sequence of the next frame made.
    sequence: u64,
}

impl Source {
    pub(crate) fn new() -> Source {
        Source {
            plan: None,
            pending: Burst::new(),
            ended: true,
            starved: false,
            was_starved: false,
            index: 0,
            packets: 0,
            bytes: 0,
            stamped: 0,
            sequence: 0,
        }
    }

    pub(crate) fn begin(&mut self, plan: Arc<Mutex<Plan>>) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.clear();
        pending.reserve(BURST);
        *self = Source {
            plan: Some(plan),
            pending,
            ended: false,
            ..Source::new()
        };
    }

    /// The answer of `ask` about its plan; `None` before the first trial.
    pub(crate) fn plan<T>(&self, ask: impl FnOnce(&Plan) -> T) -> Option<T> {
        let plan = self.plan.as_ref()?;
        Some(ask(&plan.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Stamped frames made.
    pub(crate) fn made(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn is_done(&self) -> bool {
        self.ended && self.pending.is_empty()
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.starved || !self.pending.is_empty()
    }

    /// Makes the frames that are due, with stamps of the stream `id`.
    #[inline]
    pub(crate) fn fill(&mut self, stream: &Stream, pool: &Pool, id: usize, moment: &Moment) {
        let Moment {
            trial,
            start,
            now,
            end,
        } = *moment;
        let mut stamp = Stamp {
            trial,
            stream: id as u8,
            sequence: self.stamped,
            time_ns: now
                .as_nanos()
                .saturating_sub(start.as_nanos())
                .min(TIMES_NS - 1),
        };
        if !self.pending.is_empty() {
            return self.restamp(stream, stamp);
        }
        let (Some(plan), false) = (&self.plan, self.ended) else {
            return;
        };
        let free = pool.available();
        let claim =
            plan.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .claim(now, end, free.min(BURST));
        self.starved = free == 0 && claim.is_more_due;
        self.was_starved |= self.starved;
        self.ended = claim.is_last;
        self.index = claim.index;
        let mut index = claim.index;
        for _ in 0..claim.count {
            let template = &stream.templates[index];
            let Some(mut frame) = pool.copy(&template.bytes) else {
                unreachable!("a pool has as many slots as it said, each long enough");
            };
            if template.has_room() {
                stamp.sequence = self.sequence;
                self.sequence += 1;
                template.stamp(&mut frame, &stamp);
            }
            self.pending.push(frame);
            index += 1;
            if index == stream.templates.len() {
                index = 0;
            }
        }
    }

    /// Frames that had to wait are sent now, and say so.
    #[cold]
    fn restamp(&mut self, stream: &Stream, mut stamp: Stamp) {
        let loop_frames = stream.templates.iter().cycle().skip(self.index);
        for (frame, template) in self.pending.iter_mut().zip(loop_frames) {
            if template.has_room() {
                template.stamp(frame, &stamp);
                stamp.sequence += 1;
            }
        }
    }

    #[inline]
    pub(crate) fn took(&mut self, stream: &Stream, frames: usize) {
        for _ in 0..frames {
            let template = &stream.templates[self.index];
            self.packets += 1;
            self.bytes += template.bytes.len() as u64;
            self.stamped += u64::from(template.has_room());
            self.index += 1;
            if self.index == stream.templates.len() {
                self.index = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::frame;
    use crate::stamp::{self, Found};
    use crate::{pair, Rate, StreamConfig};
    use tare_port::Layout;

    /// Two threads that are asked in any order and are held up now and then.
    #[test]
    fn threads_share_a_schedule_and_each_frame_is_made_once_when_it_is_due() {
        let config = StreamConfig {
            name: "a".into(),
            rx: "a".into(),
            port: 0,
            frames: vec![frame(60), frame(590), frame(1514)],
        };
        let stream = &pair(&[config]).unwrap()[0];
        let pool = Pool::new(256, 2048, Layout::Spread).unwrap();
        let load = Load::new(Rate::from_bits(1_000_000_000), Duration::from_millis(20));
        let end = Instant::ZERO + Duration::from_millis(20);
        let plan = Arc::new(Mutex::new(Plan::new(stream, &load, Instant::ZERO, 256)));
        let mut alone = Source::new();
        alone.begin(Arc::new(Mutex::new(Plan::new(
            stream,
            &load,
            Instant::ZERO,
            256,
        ))));
        let mut threads = [Source::new(), Source::new()];
        for source in &mut threads {
            source.begin(Arc::clone(&plan));
        }
        let mut random = tare_sim::Random::new(7);
        let (mut now, mut next) = (Instant::ZERO, [0, 0]);
        while !(alone.is_done() && threads.iter().all(Source::is_done)) {
            now += Duration::from_micros(random.below(30));
            let moment = Moment {
                trial: 1,
                start: Instant::ZERO,
                now,
                end,
            };
            alone.fill(stream, &pool, 0, &moment);
            alone.pending.clear();
            let id = random.below(2) as usize;
            let source = &mut threads[id];
            source.fill(stream, &pool, id, &moment);
            for frame in &source.pending {
                let Found::Stamp(stamp) = stamp::read(frame) else {
                    panic!("no stamp")
                };
                assert_eq!(usize::from(stamp.stream), id);
                assert_eq!(stamp.sequence, next[id]);
                assert_eq!(stamp.time_ns, now.as_nanos());
                next[id] += 1;
            }
            let taken = source.pending.len();
            source.pending.clear();
            source.took(stream, taken);
        }
        assert_eq!(next[0] + next[1], alone.made());
        assert_eq!(threads[0].packets + threads[1].packets, alone.made());
        assert!(next.iter().all(|&made| made > 100));
        // 20 ms of 1 Gb/s are 1118 loops of 2236 bytes on the wire, and of the next loop two frames
        // begin.
        assert_eq!(alone.made(), 3 * (20_000_000 / (2236 * 8)) + 2);
        assert_eq!(threads[0].plan(Plan::slipped), Some(Duration::ZERO));
    }
}
