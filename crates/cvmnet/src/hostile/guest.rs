//! The guest's side of an attack, and the promises.

use std::collections::BTreeMap;
use std::time::Duration;

use tare_sim::{Instant, Random};

use super::record::Recorder;
use super::{search, Broken, Report, CANARY};
use crate::host::{Device, DeviceSettings, Memory};
use crate::pool::GuestBuffer;
use crate::region::{PairLayout, Region};
use crate::ring::{
    Checksum, Doorbell, Driver, Fault, NetHeader, Notification, Received, SendError, Settings,
};
use crate::variant::Exits;

pub(super) struct Guest {
    driver: Driver<Recorder>,
    layout: PairLayout,
    recorder: Recorder,
    random: Random,
    kept: Vec<Received>,
    /// The most frames that the guest keeps, another number after some resets.
    keep: usize,
    /// Free buffers without anything received or sent.
    fresh: [usize; 4],
    faults: BTreeMap<&'static str, u64>,
    payloads: u64,
    resets: u64,
    searched: u64,
}

impl Guest {
    pub(super) fn new(
        region: Region,
        recorder: Recorder,
        mut random: Random,
    ) -> Result<Guest, Broken> {
        let layout = *region.layout().pair(0).expect("a region has a queue pair");
        let settings = Settings {
            exits: if random.chance(0.5) {
                Exits::Rif
            } else {
                Exits::Each
            },
            switch_cycles: 0,
            notification: Notification::Events {
                kick: doorbell()?,
                interrupt: doorbell()?,
            },
        };
        let driver = Driver::new(region, 0, settings, recorder.clone());
        let driver = driver.map_err(|error| error.to_string())?;
        Ok(Guest {
            fresh: driver.free(),
            driver,
            layout,
            recorder,
            random,
            kept: Vec::new(),
            keep: 4,
            faults: BTreeMap::new(),
            payloads: 0,
            resets: 0,
            searched: 0,
        })
    }

    /// Does one thing, and checks the promises.
    pub(super) fn step(&mut self) -> Result<(), Broken> {
        if self.driver.fault().is_some() {
            self.give_up()?;
        } else if !matches!(self.driver.start(), Ok(false)) {
            self.work()?;
        }
        self.account()
    }

    fn work(&mut self) -> Result<(), Broken> {
        match self.random.below(8) {
            0..=2 => {
                let (max, before) = (self.random.below(20) as usize, self.kept.len());
                let received = self.driver.receive(&mut self.kept, max);
                if received.is_ok_and(|received| received > max) {
                    return Err(format!("{received:?} frames received, asked for {max}").into());
                }
                for n in before..self.kept.len() {
                    self.read(n)?;
                }
                while self.kept.len() > self.keep {
                    self.forget();
                }
            }
            3 if !self.kept.is_empty() => self.forget(),
            4..=5 => {
                for _ in 0..1 + self.random.below(6) {
                    self.send()?;
                }
            }
            6 => {
                let _ = self.driver.flush();
            }
            _ => {
                let _ = self.driver.wait(Duration::ZERO);
            }
        }
        Ok(())
    }

    fn forget(&mut self) {
        let which = self.random.below(self.kept.len() as u64) as usize;
        self.kept.swap_remove(which);
    }

    /// Reads a frame as a stack does: all of it, while the host changes it.
    fn read(&mut self, n: usize) -> Result<(), Broken> {
        let Received {
            buffer,
            range,
            header,
        } = &self.kept[n];
        let len = range.len();
        let mut bytes = vec![0; len];
        let read = buffer.read(range.start, &mut bytes);
        let sum = buffer.sum(range.clone());
        let partial = match header.checksum {
            Checksum::Partial { start, offset } => usize::from(start) + usize::from(offset) + 2,
            _ => 0,
        };
        let segment = header.segments.map_or(1, |segments| segments.bytes.into());
        if read.is_none()
            || sum.is_none()
            || len < 14
            || partial > len
            || !(1..=len).contains(&segment)
        {
            return Err(format!("a frame that is none: {:?}", self.kept[n]).into());
        }
        self.payloads += 1;
        Ok(())
    }

    /// Sends a packet whose payload has private bytes around it.
    fn send(&mut self) -> Result<(), Broken> {
        let Some(record) = self.driver.record() else {
            return Ok(());
        };
        let around = CANARY.repeat(record.capacity() / CANARY.len());
        let payload = 100..100 + self.random.below(3000) as usize + 1;
        if !record.is_shared() {
            record
                .write(0, &around)
                .ok_or("a record is too short".to_string())?;
        }
        let bytes = vec![0x11; payload.len()];
        record
            .write(payload.start, &bytes)
            .ok_or("a record is too short".to_string())?;
        let mut headers = around[..512].to_vec();
        let len = 20 + self.random.below(250) as usize;
        headers[..len].fill(0x22);
        let count = self.random.below(4) as usize;
        let pieces: Vec<(&GuestBuffer, _)> = vec![(&record, payload); count];
        match self
            .driver
            .send(&headers[..len], pieces, &NetHeader::default())
        {
            Ok(()) | Err(SendError::Full | SendError::Broken(_)) => Ok(()),
            Err(error) => Err(format!("a packet was refused: {error:?}").into()),
        }
    }

    /// A device that was given up does nothing, until it is reset.
    fn give_up(&mut self) -> Result<(), Broken> {
        let fault = self.driver.fault();
        let before = (self.driver.in_flight(), self.kept.len());
        let results = [
            self.driver.receive(&mut self.kept, 64).err(),
            self.driver.flush().err(),
            self.driver.start().err(),
            self.driver.wait(Duration::ZERO).err(),
            match self.driver.send(&[0; 60], [], &NetHeader::default()) {
                Err(SendError::Broken(fault)) => Some(fault),
                _ => None,
            },
        ];
        let same = results.iter().all(|result| *result == fault);
        let after = (self.driver.in_flight(), self.kept.len());
        if !same || before != after || self.driver.room() != 0 {
            return Err(format!("a device that was given up works: {results:?}").into());
        }
        let name = fault.map_or("none", name);
        *self.faults.entry(name).or_default() += 1;
        self.resets += 1;
        if self.random.below(50) == 0 {
            self.keep = [4, 20, usize::MAX][self.random.below(3) as usize];
        }
        self.driver.reset();
        Ok(())
    }

    /// Every buffer is free, in the ring, or kept.
    fn account(&self) -> Result<(), Broken> {
        let (free, [receive, transmit]) = (self.driver.free(), self.driver.in_flight());
        let frames = free[0] + receive + self.kept.len();
        if frames != self.fresh[0] {
            return Err(format!("{frames} buffers for frames, {} before", self.fresh[0]).into());
        }
        let held = self.fresh[1] - free[1];
        if held > transmit {
            return Err(format!("{held} records held by {transmit} packets").into());
        }
        Ok(())
    }

    /// Searches the region for private bytes.
    pub(super) fn search(&mut self, region: &Region) -> Result<(), Broken> {
        self.searched += search(region)?;
        Ok(())
    }

    /// Serves an honest device: frames both ways, and no buffer is missing.
    pub(super) fn resume(&mut self, region: &Region) -> Result<(), Broken> {
        let device = Device::new(region, 0, DeviceSettings::default(), Memory::default());
        let mut device = device.map_err(|error| error.to_string())?;
        self.recorder.stop();
        self.kept.clear();
        self.driver.reset();
        self.resets += 1;
        let now = Instant::ZERO;
        for _ in 0..2 {
            device.poll(now).map_err(|error| error.to_string())?;
            let _ = self.driver.start();
        }
        if self.driver.free()[1..] != self.fresh[1..] && !self.layout.bounced {
            return Err(format!("buffers are missing: {:?}", self.driver.free()).into());
        }
        for n in 0..200u8 {
            let frame = vec![n; 60 + usize::from(n)];
            let to_guest = &mut device.frames().to_guest;
            to_guest.push_back((frame.clone(), NetHeader::default()));
            device.poll(now).map_err(|error| error.to_string())?;
            let mut frames = Vec::new();
            let received = self.driver.receive(&mut frames, 64);
            let mut bytes = vec![0; frame.len()];
            let first = frames
                .first()
                .map(|f| (f.range.len(), f.buffer.read(f.range.start, &mut bytes)));
            if first != Some((frame.len(), Some(()))) || bytes != frame {
                return Err(format!("frame {n} after the attack: {received:?}").into());
            }
            let sent = self.driver.send(&frame, [], &NetHeader::default());
            let flushed = self.driver.flush();
            device.poll(now).map_err(|error| error.to_string())?;
            if device.frames().from_guest.pop().map(|(sent, _)| sent) != Some(frame) {
                return Err(format!("packet {n} after the attack: {sent:?} {flushed:?}").into());
            }
        }
        self.account()
    }

    pub(super) fn report(self) -> Report {
        let counters = self.driver.counters();
        Report {
            consumed: self.recorder.consumed(),
            payloads: self.payloads,
            faults: self.faults,
            resets: self.resets,
            frames: [counters.received, counters.sent],
            searched: self.searched,
            ..Report::default()
        }
    }
}

pub(super) fn doorbell() -> Result<Doorbell, Broken> {
    Doorbell::new().map_err(|error| Broken::from(error.to_string()))
}

pub(super) fn name(fault: Fault) -> &'static str {
    match fault {
        Fault::UsedIndex { .. } => "used index",
        Fault::Id { .. } => "id",
        Fault::NotInFlight { .. } => "not in flight",
        Fault::Length { .. } => "length",
        Fault::BufferCount { .. } => "buffer count",
    }
}
