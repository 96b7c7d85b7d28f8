//! The host's side of an attack.

use std::sync::atomic::Ordering;

use tare_sim::Random;

use super::record::Recorder;
use crate::breakdown::Field;
use crate::region::{PairLayout, QueueLayout, Region};
use crate::ring::{NetHeader, NET_HEADER};

/// Changes the region, one thing at a time. It knows what an honest device knows, so that the guest
/// comes far enough to read more than the first hostile value.
pub(super) struct Attacker {
    region: Region,
    layout: PairLayout,
    queues: [HostQueue; 2],
    recorder: Recorder,
    random: Random,
    /// The driver's status, and whether the host's is the same.
    status: u32,
    acknowledged: bool,
    role: Role,
}

/// The part that an attacker plays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Role {
    /// It is the device.
    Device,
    /// It writes to the region while an honest device serves it: between two reads of the guest
    /// with this probability.
    Beside(f64),
}

/// A device's own record of a queue.
struct HostQueue {
    layout: QueueLayout,
    available: u16,
    used: u16,
    /// Chains that were available and not used: the first descriptors.
    held: Vec<u16>,
    /// The last one that was used.
    last: u16,
}

impl HostQueue {
    fn new(layout: QueueLayout) -> HostQueue {
        HostQueue {
            layout,
            available: 0,
            used: 0,
            held: Vec::new(),
            last: 0,
        }
    }
}

impl Attacker {
    pub(super) fn new(region: Region, recorder: Recorder, random: Random, role: Role) -> Attacker {
        let layout = *region.layout().pair(0).expect("a region has a queue pair");
        Attacker {
            region,
            layout,
            queues: [layout.receive, layout.transmit].map(HostQueue::new),
            recorder,
            random,
            status: 0,
            acknowledged: false,
            role,
        }
    }

    /// The guest is between two reads: it makes a change or none.
    pub(super) fn strike(&mut self) {
        if let Role::Beside(probability) = self.role {
            if self.random.chance(probability) {
                self.tamper();
            }
        }
    }

    /// Makes a change beside an honest device, rarely one that ends it all at once.
    pub(super) fn tamper(&mut self) {
        let queue = self.below(2);
        match self.below(40) {
            0 => {
                let at = self.queues[queue].layout.used + 2;
                let now: u16 = self.region.load(at, Ordering::Relaxed);
                let value = now.wrapping_add(1 + self.below(4) as u16);
                self.write_u16(queue, Field::UsedIndex, at, value);
            }
            1..=2 => self.pending_element(queue),
            3..=8 => self.pending_header(),
            9..=12 => self.suppression(queue),
            13..=14 => self.status(),
            15 => self.descriptors(queue),
            16 => self.available_ring(queue),
            17 => self.anywhere(),
            _ => self.live_buffer(queue),
        }
    }

    fn write_u16(&mut self, queue: usize, field: Field, at: usize, value: u16) {
        if self.region.load::<u16>(at, Ordering::Relaxed) != value {
            self.region.store(at, value, Ordering::Release);
            self.recorder.plant(queue, field, Some(value.into()));
        }
    }

    /// Returns the place in the used ring of an element that the guest has not taken, and the
    /// number of those before it.
    fn pending(&mut self, queue: usize) -> Option<(usize, u16)> {
        let layout = self.queues[queue].layout;
        let used: u16 = self.region.load(layout.used + 2, Ordering::Acquire);
        let taken = self.recorder.taken(queue);
        let count = used.wrapping_sub(taken).min(layout.size);
        if count == 0 {
            return None;
        }
        let number = taken.wrapping_add(self.below(count.into()) as u16);
        let place = layout.used + 4 + 8 * usize::from(number % layout.size);
        Some((place, number))
    }

    /// Changes the id or the length of an element that the guest has not taken.
    fn pending_element(&mut self, queue: usize) {
        let Some((place, number)) = self.pending(queue) else {
            return;
        };
        let mut element = [None; 2];
        let which = self.below(2);
        let at = place + 4 * which;
        let before: u32 = self.region.load(at, Ordering::Relaxed);
        let value = match self.below(3) {
            0 => self.random.next_u64() as u32,
            1 => before.wrapping_add(1),
            _ => before ^ 1 << self.below(11),
        };
        if value != before {
            self.region.store(at, value, Ordering::Release);
            element[which] = Some(value.into());
            self.recorder.plant_element(queue, number, element);
        }
    }

    /// Changes the header of a frame that the guest has not taken.
    fn pending_header(&mut self) {
        let Some((place, _)) = self.pending(0) else {
            return;
        };
        let head = self.region.load::<u32>(place, Ordering::Relaxed) as u16;
        let mut header = [0; NET_HEADER];
        self.random.fill(&mut header);
        (header[0], header[1]) = (header[0] & 3, header[1] & 5);
        header[10..].copy_from_slice(&[u8::from(self.below(20) > 0), 0]);
        let value = u64::from_le_bytes(*header.first_chunk().expect("12 bytes"));
        if self.write_header(head, header) {
            self.recorder.plant_header(head, Some(value));
        }
    }

    /// Changes a byte or more of a buffer that is on a queue or was: frames and records that the
    /// guest is reading and writing.
    fn live_buffer(&mut self, queue: usize) {
        let layout = self.queues[queue].layout;
        let descriptor = layout.descriptors + 16 * self.below(layout.size.into());
        let address: u64 = self.region.load(descriptor, Ordering::Relaxed);
        let buffers = self.layout.receive.descriptors as u64;
        // The headers of a frame more often than its payload.
        let reach = [12 + 14 + 40, 1500][self.below(2)];
        let at = address.saturating_add(self.below(reach) as u64);
        if address >= buffers && at < self.region.layout().len() as u64 {
            let value = self.random.next_u64() as u8;
            self.region.store(at as usize, value, Ordering::Relaxed);
        }
    }

    /// Makes one change.
    pub(super) fn step(&mut self) {
        let queue = self.below(2);
        self.follow_status();
        self.look_for_chains(queue);
        // A wrong index ends it all at once, and so does a wrong id or length. After some resets
        // they are left out, so that the guest comes to what is behind them; the rings are then
        // left alone until they are ready, as a device does.
        let (action, ready) = (self.below(26), self.status & 1 == 1);
        let action = match (action, self.status >> 1 & 7) {
            (_, 5..) if !ready => return,
            (6, 5..=6) | (6..=10, 7) => 0,
            _ => action,
        };
        match action {
            20..=25 | 0..=5 => self.honest(queue),
            6 => self.used_index(queue),
            7..=8 => self.used_id(queue),
            9..=10 => self.used_length(queue),
            11..=12 => self.header(),
            13 => self.descriptors(queue),
            14 => self.available_ring(queue),
            15 => self.suppression(queue),
            16 => self.status(),
            17..=18 => self.payload(),
            _ => self.anywhere(),
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.random.below(n as u64) as usize
    }

    /// Acknowledges what the driver asks for, most of the time.
    fn follow_status(&mut self) {
        let asked = self
            .region
            .load(self.layout.driver_status, Ordering::Acquire);
        if (asked == self.status && self.acknowledged) || self.below(4) == 0 {
            return;
        }
        if asked != self.status {
            self.queues = [self.layout.receive, self.layout.transmit].map(HostQueue::new);
            self.recorder.forget();
        }
        (self.status, self.acknowledged) = (asked, true);
        self.recorder.plant(0, Field::DeviceStatus, None);
        self.region
            .store(self.layout.device_status, asked, Ordering::Release);
    }

    fn look_for_chains(&mut self, queue: usize) {
        let queue = &mut self.queues[queue];
        let at = queue.layout.available;
        let index: u16 = self.region.load(at + 2, Ordering::Acquire);
        // At most as many as there can be: the attacker may have overwritten the index itself.
        for _ in 0..index.wrapping_sub(queue.available).min(queue.layout.size) {
            let slot = usize::from(queue.available % queue.layout.size);
            let head: u16 = self.region.load(at + 4 + 2 * slot, Ordering::Relaxed);
            queue.available = queue.available.wrapping_add(1);
            if queue.held.len() < usize::from(queue.layout.size) {
                queue.held.push(head);
            }
        }
    }

    /// Takes one of the chains that the device has.
    fn chain(&mut self, queue: usize) -> Option<u16> {
        let count = self.queues[queue].held.len();
        let which = (count > 0).then(|| self.below(count))?;
        let head = self.queues[queue].held.swap_remove(which);
        self.queues[queue].last = head;
        Some(head)
    }

    /// The bytes that a frame may have.
    fn room(&self) -> usize {
        self.layout.frames.bytes
    }

    /// Adds an element to the used ring, with its hostile id and length.
    fn complete(&mut self, queue: usize, id: u32, len: u32, hostile: [bool; 2]) {
        let host = &mut self.queues[queue];
        let at = host.layout.used + 4 + 8 * usize::from(host.used % host.layout.size);
        let [hostile_id, hostile_len] = hostile;
        let element = [
            hostile_id.then_some(id.into()),
            hostile_len.then_some(len.into()),
        ];
        let number = host.used;
        self.recorder.plant_element(queue, number, element);
        self.region.store(at, id, Ordering::Relaxed);
        self.region.store(at + 4, len, Ordering::Relaxed);
        host.used = host.used.wrapping_add(1);
        let used = host.used;
        self.region
            .store(host.layout.used + 2, used, Ordering::Release);
        self.recorder.plant(queue, Field::UsedIndex, None);
    }

    /// Writes the header of a frame to where a chain begins, by the descriptor as it is now.
    /// Returns true if it has one.
    fn write_header(&mut self, head: u16, header: [u8; NET_HEADER]) -> bool {
        let at = self.layout.receive.descriptors + 16 * usize::from(head);
        if usize::from(head) < usize::from(self.layout.receive.size) {
            let address: u64 = self.region.load(at, Ordering::Relaxed);
            // Not over the driver's status, which tells the host what the driver wants: this host
            // changes descriptors, too, and those of an empty ring are 0.
            if address >= self.layout.receive.descriptors as u64 {
                let view = self.region.view().range(address as usize, NET_HEADER);
                return view.and_then(|to| to.copy_from(&header)).is_some();
            }
        }
        false
    }

    fn honest(&mut self, queue: usize) {
        let Some(head) = self.chain(queue) else {
            return;
        };
        let len = if queue == 0 {
            self.recorder.plant_header(head, None);
            self.write_header(head, NetHeader::default().to_bytes());
            26 + self.below(self.room() - 25)
        } else {
            0
        };
        self.complete(queue, head.into(), len as u32, [false, false]);
    }

    fn used_index(&mut self, queue: usize) {
        let (layout, used) = (self.queues[queue].layout, self.queues[queue].used);
        let value = match self.below(4) {
            0 => used.wrapping_add(self.random.next_u64() as u16),
            1 => used.wrapping_sub(1),
            2 => used.wrapping_add(layout.size),
            _ => used.wrapping_add(1 + self.queues[queue].held.len() as u16),
        };
        self.write_u16(queue, Field::UsedIndex, layout.used + 2, value);
    }

    fn used_id(&mut self, queue: usize) {
        let (size, last) = (self.queues[queue].layout.size, self.queues[queue].last);
        let id = match self.below(5) {
            0 => self.random.next_u64() as u32,
            1 => u32::from(size),
            2 => self.below(usize::from(size)) as u32,
            3 => u32::from(last),
            _ => u32::from(last) | 0x1_0000,
        };
        self.complete(queue, id, 100, [true, false]);
    }

    fn used_length(&mut self, queue: usize) {
        let Some(head) = self.chain(queue) else {
            return;
        };
        let room = self.room() as u32;
        let len = match (queue, self.below(4)) {
            (0, 0) => self.random.next_u64() as u32,
            (0, 1) => room + 1,
            // Too short for a frame, or for a header.
            (0, _) => self.below(26) as u32,
            _ => 1 + self.below(70_000) as u32,
        };
        self.complete(queue, head.into(), len, [false, true]);
    }

    fn header(&mut self) {
        let Some(head) = self.chain(0) else {
            return;
        };
        let mut header = [0; NET_HEADER];
        self.random.fill(&mut header);
        // Often one that only just is wrong, or right.
        if self.below(2) == 0 {
            header[0] &= 3;
            header[1] &= 5;
            (header[3], header[5], header[7], header[9]) = (0, 0, 0, 0);
        }
        if self.below(4) > 0 {
            header[10..].copy_from_slice(&[1, 0]);
        }
        let value = u64::from_le_bytes(*header.first_chunk().expect("12 bytes"));
        if self.write_header(head, header) {
            self.recorder.plant_header(head, Some(value));
        }
        let len = 26 + self.below(self.room() - 25);
        self.complete(0, head.into(), len as u32, [false, false]);
    }

    fn descriptors(&mut self, queue: usize) {
        let layout = self.queues[queue].layout;
        for _ in 0..1 + self.below(8) {
            let at = layout.descriptors + 8 * self.below(2 * usize::from(layout.size));
            let value = self.random.next_u64();
            self.region.store(at, value, Ordering::Relaxed);
        }
    }

    fn available_ring(&mut self, queue: usize) {
        let layout = self.queues[queue].layout;
        let at = layout.available + 2 * self.below(3 + usize::from(layout.size));
        // Not the index most of the time, or this host would find no chains.
        if at != layout.available + 2 || self.below(8) == 0 {
            let value = self.random.next_u64() as u16;
            self.region.store(at, value, Ordering::Relaxed);
        }
    }

    fn suppression(&mut self, queue: usize) {
        let layout = self.queues[queue].layout;
        let value = self.random.next_u64() as u16;
        for (field, at) in [
            (Field::UsedFlags, layout.used),
            (Field::AvailableEvent, layout.available_event()),
        ] {
            self.write_u16(queue, field, at, value);
        }
    }

    fn status(&mut self) {
        let value = self.random.next_u64() as u32;
        let (field, at) = match self.below(8) {
            0 => (Field::Interrupts, self.layout.interrupts),
            _ => (Field::DeviceStatus, self.layout.device_status),
        };
        self.region.store(at, value, Ordering::Relaxed);
        self.recorder.plant(0, field, Some(value.into()));
        self.acknowledged &= field != Field::DeviceStatus;
    }

    /// Writes to buffers, those that the guest reads among them.
    fn payload(&mut self) {
        let pools = [self.layout.frames, self.layout.records, self.layout.headers];
        let pool = pools[self.below(3)];
        let (start, len) = match self.layout.bounced {
            true => (self.layout.bounce, 2048 * self.layout.bounce_slots),
            false => (pool.start, pool.stride * pool.count),
        };
        for _ in 0..16 {
            let at = start + self.below(len / 8) * 8;
            let value = self.random.next_u64();
            self.region.store(at, value, Ordering::Relaxed);
        }
    }

    /// Writes to any byte but those that tell the host what the driver wants.
    fn anywhere(&mut self) {
        let at = self.layout.receive.descriptors;
        let at = at + self.below(self.region.layout().len() - at);
        let value = self.random.next_u64() as u8;
        self.region.store(at, value, Ordering::Relaxed);
    }
}
