//! The choice of a queue pair by flow, as a network card with receive-side scaling does it: all
//! segments of a connection reach the same core of the guest, which alone knows of it.
//!
//! Each pair has a thread of the host and a network of its own, which brings it frames of any flow:
//! a queue of a TAP device, whose kernel has its own choice. What belongs to another pair is passed
//! on to the inbox of that. What the guest sends leaves by the network of its pair.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tare_packet::{ethernet, protocol};

use super::Frames;
use crate::ring::{NetHeader, Notification};
use crate::tcp::{too_big, Ip, PREFIX};

/// Frames in an inbox; more are dropped, as by a network card whose ring is full.
const INBOX: usize = 1024;
/// Frames that are passed on before this thread's own device is served again.
const PASSED: usize = 64;
/// The place of the operation in an ARP frame, and that of an answer (RFC 826).
const ARP_OPERATION: usize = ethernet::HEADER + 6;
const ARP_REPLY: [u8; 2] = [0, 2];
/// Types of messages of neighbor discovery (RFC 4861).
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// The pairs that a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One pair.
    Pair(usize),
    /// The pair that has the network by which it arrived: a question about the guest's station
    /// address, which each of them can answer, and one is to.
    Arrival,
    /// All of them: an answer to such a question, which any may have asked.
    All,
}

/// The queue pairs of a guest, as the threads of its host see them. Cheap to clone.
#[derive(Clone)]
pub struct Pairs(Arc<Shared>);

struct Shared {
    /// SipHash with a random key: otherwise a sender could bring all of its flows to one pair.
    hasher: RandomState,
    inboxes: Vec<Inbox>,
}

struct Inbox {
    frames: Mutex<VecDeque<(Vec<u8>, NetHeader)>>,
    /// Their number, to be looked at without the lock.
    waiting: AtomicUsize,
    dropped: AtomicU64,
    /// Wakes the thread of this pair.
    notification: Notification,
}

impl Pairs {
    /// Returns as many pairs as there are ways to notify: those of their devices, whose threads are
    /// woken by the guest's doorbell when there is a frame for them.
    pub fn new(notifications: &[Notification]) -> Pairs {
        let inboxes = notifications.iter().map(|notification| Inbox {
            frames: Mutex::default(),
            waiting: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            notification: notification.clone(),
        });
        Pairs(Arc::new(Shared {
            hasher: RandomState::new(),
            inboxes: inboxes.collect(),
        }))
    }

    /// Returns the network of one of the pairs.
    ///
    /// # Panics
    /// If there is no such pair.
    pub fn network<F>(&self, pair: usize, network: F) -> Steered<F> {
        assert!(pair < self.0.inboxes.len(), "there is no pair {pair}");
        Steered {
            pairs: self.clone(),
            pair,
            network,
        }
    }

    /// Returns the pair of a connection: the same for both of its directions.
    pub fn of_flow(&self, one: (IpAddr, u16), other: (IpAddr, u16)) -> usize {
        let flow = (one.min(other), one.max(other));
        (self.0.hasher.hash_one(flow) % self.0.inboxes.len() as u64) as usize
    }

    /// Returns the pairs that a frame is for. What is no segment, and no error about one, is for
    /// the first: fragments, which have no ports, and all other protocols.
    pub fn target(&self, frame: &[u8]) -> Target {
        if ethernet::kind(frame) == Some(ethernet::ARP) {
            let operation = frame.get(ARP_OPERATION..ARP_OPERATION + 2);
            return match operation == Some(&ARP_REPLY) {
                true => Target::All,
                false => Target::Arrival,
            };
        }
        let prefix = frame.get(..PREFIX).unwrap_or(frame);
        let Ok(ip) = Ip::parse(prefix, frame.len()) else {
            return Target::Pair(0);
        };
        let payload = frame.get(ip.start..ip.end).unwrap_or_default();
        match (ip.protocol, payload) {
            (protocol::TCP, [from_high, from_low, to_high, to_low, ..]) => {
                let from = u16::from_be_bytes([*from_high, *from_low]);
                let to = u16::from_be_bytes([*to_high, *to_low]);
                Target::Pair(self.of_flow((ip.source, from), (ip.target, to)))
            }
            (protocol::ICMPV6, [ADVERTISEMENT, ..]) => Target::All,
            (protocol::ICMPV6, [SOLICITATION, ..]) => Target::Arrival,
            (protocol::ICMP | protocol::ICMPV6, _) => {
                let quoted = too_big(&ip, payload).map(|error| error.tuple);
                Target::Pair(quoted.map_or(0, |it| {
                    self.of_flow((it.local, it.local_port), (it.remote, it.remote_port))
                }))
            }
            _ => Target::Pair(0),
        }
    }

    fn pass_on(&self, pair: usize, frame: &[u8], header: NetHeader) {
        let Some(inbox) = self.0.inboxes.get(pair) else {
            return;
        };
        let mut frames = inbox.frames.lock().unwrap_or_else(PoisonError::into_inner);
        if frames.len() >= INBOX {
            inbox.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        frames.push_back((frame.to_vec(), header));
        inbox.waiting.store(frames.len(), Ordering::Release);
        let is_first = frames.len() == 1;
        drop(frames);
        if let (true, Notification::Events { kick, .. }) = (is_first, &inbox.notification) {
            kick.ring();
        }
    }

    fn take(&self, pair: usize) -> Option<(Vec<u8>, NetHeader)> {
        let inbox = self.0.inboxes.get(pair)?;
        if inbox.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut frames = inbox.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let frame = frames.pop_front();
        inbox.waiting.store(frames.len(), Ordering::Release);
        frame
    }
}

/// The network of one pair, which keeps the frames for this pair and passes on the others.
pub struct Steered<F> {
    pairs: Pairs,
    pair: usize,
    network: F,
}

impl<F> Steered<F> {
    /// Returns the network that frames arrive by.
    pub fn network(&mut self) -> &mut F {
        &mut self.network
    }

    /// Returns the number of frames for this pair that its inbox had no room for.
    pub fn dropped(&self) -> u64 {
        let inbox = self.pairs.0.inboxes.get(self.pair);
        inbox.map_or(0, |inbox| inbox.dropped.load(Ordering::Relaxed))
    }
}

impl<F: Frames> Frames for Steered<F> {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        let count = self.pairs.0.inboxes.len();
        if count == 1 {
            return self.network.receive(frame);
        }
        if let Some((passed, header)) = self.pairs.take(self.pair) {
            *frame = passed;
            return Some(header);
        }
        for _ in 0..PASSED {
            let header = self.network.receive(frame)?;
            match self.pairs.target(frame) {
                Target::Arrival => return Some(header),
                Target::Pair(pair) if pair == self.pair => return Some(header),
                Target::Pair(pair) => self.pairs.pass_on(pair, frame, header),
                Target::All => {
                    let others = (0..count).filter(|pair| *pair != self.pair);
                    others.for_each(|pair| self.pairs.pass_on(pair, frame, header));
                    return Some(header);
                }
            }
            frame.clear();
        }
        None
    }

    fn send(&mut self, frame: &[u8], header: NetHeader) -> bool {
        self.network.send(frame, header)
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        self.network.wait_on()
    }
}
