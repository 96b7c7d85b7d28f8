//! The sending side of a trial.

use std::time::Duration;

use tare_port::{Burst, Pool, BURST};
use tare_sim::Instant;

use crate::schedule::Schedule;
use crate::stamp::{Stamp, TIMES_NS};
use crate::stream::Stream;
use crate::trial::{Length, Load};

/// The sending side of a stream in a trial.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) schedule: Option<Schedule>,
    /// Frames made and not yet taken by the port.
    pub(crate) pending: Burst,
    /// Frames still to be made, where that is what ends the trial.
    left: u64,
    /// No more frames are to be made.
    ended: bool,
    /// There was no frame to be had.
    starved: bool,
    /// The place in the loop of the first frame that is not taken yet.
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
            schedule: None,
            pending: Burst::with_capacity(BURST),
            left: 0,
            ended: true,
            starved: false,
            index: 0,
            packets: 0,
            bytes: 0,
            stamped: 0,
            sequence: 0,
        }
    }

    pub(crate) fn begin(&mut self, stream: &Stream, load: &Load, start: Instant, catch_up: u32) {
        let lengths = stream.templates.iter().map(|template| template.bytes.len());
        let mut pending = std::mem::take(&mut self.pending);
        pending.clear();
        *self = Source {
            schedule: Some(Schedule::new(load.rate, lengths, start, catch_up)),
            pending,
            left: match load.length {
                Length::Time(_) => u64::MAX,
                Length::Frames(frames) => frames,
            },
            ended: false,
            ..Source::new()
        };
    }

    pub(crate) fn plain(&self) -> u64 {
        self.packets - self.stamped
    }

    pub(crate) fn is_done(&self) -> bool {
        self.ended && self.pending.is_empty()
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.starved || !self.pending.is_empty()
    }

    /// Makes the frames that are due.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    pub(crate) fn fill(
        &mut self,
        stream: &Stream,
        pool: &Pool,
        id: u8,
        trial: u16,
        start: Instant,
        now: Instant,
        end: Instant,
    ) {
        let mut stamp = Stamp {
            trial,
            stream: id,
            sequence: self.stamped,
            time_ns: now
                .as_nanos()
                .saturating_sub(start.as_nanos())
                .min(TIMES_NS - 1),
        };
        if !self.pending.is_empty() {
            self.restamp(stream, stamp);
        }
        let Some(schedule) = &mut self.schedule else {
            return;
        };
        if self.ended {
            return;
        }
        // A burst of a number of frames takes the time that it takes.
        let last = if self.left == u64::MAX {
            end - Duration::from_nanos(1)
        } else {
            Instant::NEVER
        };
        let allowance = schedule.allowance(now.min(last));
        self.starved = false;
        while self.pending.len() < BURST && self.left > 0 && schedule.bits() <= allowance {
            let template = &stream.templates[schedule.index()];
            let Some(mut frame) = pool.copy(&template.bytes) else {
                self.starved = true;
                return;
            };
            schedule.take(allowance);
            if template.has_room() {
                stamp.sequence = self.sequence;
                self.sequence += 1;
                template.stamp(&mut frame, &stamp);
            }
            self.pending.push(frame);
            self.left -= u64::from(self.left != u64::MAX);
        }
        self.ended = self.left == 0 || (now > last && schedule.bits() > allowance);
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
