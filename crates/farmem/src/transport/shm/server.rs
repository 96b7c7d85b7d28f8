//! The node: the listening socket, the clients, and whose turn it is.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{self, Mode};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tare_memory::SharedMemory;
use tare_sim::Instant;

use super::config::{Counters, ServerConfig};
use super::layout::{Entry, Layout};
use super::polled::Polled;
use super::rendezvous::{self, Message, Received};
use super::ring::{victim, Ring, Shared, Turn};
use super::{Refusal, Violation, BATCH, VERSION};
use crate::protocol::Execute;

/// The event of the listening socket.
const LISTENER: u64 = u64::MAX;

/// The most events, connections and messages of a client that are handled before the rings are
/// looked at again.
const EVENTS_MAX: usize = 64;
const ACCEPTED_MAX: usize = 16;
const MESSAGES_MAX: usize = 8;

/// The bytes of regions after which no more are made or given back before the rings are looked at
/// again, which wait for the kernel to zero or free them.
const REGION_BYTES: u64 = 32 << 20;

/// Work between looks at the sockets and for idle clients: turns without an entry, or entries.
const EVENTS_EVERY: u32 = 4096;

/// Completions after which sleeping clients are looked for though others have entries. Nearly all
/// are seen without that.
const DUE_MAX: usize = 32;

/// The time for which no connection is accepted while the process lacks descriptors or memory for
/// another one. The next one stays readable meanwhile, and would never let the node sleep.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

struct Peer {
    socket: OwnedFd,
    /// The number of its connection.
    number: u64,
    /// `None` until its first message.
    ring: Option<Ring>,
    /// The round in which it was last served, or began to be polled.
    served: u64,
    is_polled: bool,
}

impl Peer {
    /// Notifies the client if a turn says so.
    #[inline]
    fn notify(&self, turn: &Turn, counters: &mut Counters) {
        if turn.must_notify {
            counters.notifications += 1;
            // A client that is gone is seen as such by the next look at the sockets.
            let _ = rendezvous::send(&self.socket, &Message::Notify);
        }
    }
}

/// The `shm` transport at a node. It belongs to one thread, and has none of its own.
pub struct Server {
    config: ServerConfig,
    path: PathBuf,
    listener: OwnedFd,
    epoll: OwnedFd,
    /// The time until which the listener is not in the epoll set.
    paused_until: Option<Instant>,
    peers: Vec<Option<Peer>>,
    polled: Polled,
    /// The client that the last look found.
    found: Option<usize>,
    /// Those to which completions were stored since the last fence; perhaps more than once.
    due: Vec<usize>,
    region_free: u64,
    /// Bytes of regions that are made or given back before the next look at the rings.
    region_left: u64,
    /// Connections so far.
    accepted: u64,
    assembly_free: u64,
    scratch: Vec<u8>,
    batch: Box<[Entry; BATCH]>,
    /// The last time that an operation asked for.
    now: Instant,
    /// Work until the next look at the sockets.
    countdown: u32,
    counters: Counters,
}

impl Server {
    /// Listens at a path. A socket there at which no process listens any more is replaced.
    ///
    /// # Errors
    /// Those of the operating system; `AddrInUse` if another node listens there.
    pub fn listen(path: &Path, config: ServerConfig) -> io::Result<Server> {
        let listener = bind(path)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let event = EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, event, EventFlags::IN)?;
        Ok(Server {
            paused_until: None,
            region_free: config.region_bytes_max,
            region_left: REGION_BYTES,
            accepted: 0,
            assembly_free: config.assembly_bytes_max,
            config,
            path: path.to_owned(),
            listener,
            epoll,
            peers: Vec::new(),
            polled: Polled::default(),
            found: None,
            due: Vec::new(),
            scratch: Vec::new(),
            batch: Box::new([Entry::default(); BATCH]),
            now: Instant::ZERO,
            countdown: 0,
            counters: Counters::default(),
        })
    }

    /// Answers what is there, a bounded amount per client. Returns false if that is nothing.
    /// `clock` is called when an operation needs the time.
    ///
    /// Of many clients not all are looked at, as long as some have entries: the next call goes on
    /// with the others.
    ///
    /// # Errors
    /// Those of the operating system on the node's own descriptors.
    #[inline]
    pub fn turn<S: Execute>(
        &mut self,
        store: &mut S,
        clock: &impl Fn() -> Instant,
    ) -> io::Result<bool> {
        let mut work = 0;
        for n in 0..self.polled.len().max(1) {
            let next = match n {
                0 => self.found.take().or_else(|| self.find()),
                _ => self.polled.find_near(|index| has_entry(&self.peers, index)),
            };
            let Some(index) = next else {
                break;
            };
            work += self.serve(index, store, clock);
        }
        if work == 0 || self.due.len() > DUE_MAX {
            self.settle();
        }
        self.counters.entries += u64::from(work);
        Ok(self.look_at_sockets(1 + work)? || work > 0)
    }

    /// Serves a client; returns what counts as work.
    #[inline]
    fn serve<S: Execute>(
        &mut self,
        index: usize,
        store: &mut S,
        clock: &impl Fn() -> Instant,
    ) -> u32 {
        let Some(peer) = self.peers.get_mut(index).and_then(Option::as_mut) else {
            return 0;
        };
        let Some(ring) = &mut peer.ring else {
            return 0;
        };
        let mut shared = Shared {
            store,
            clock,
            now: &mut self.now,
            is_restricted: self.config.authorize.is_some(),
            assembly_free: &mut self.assembly_free,
            scratch: &mut self.scratch,
            batch: &mut self.batch,
        };
        match ring.turn(&mut shared) {
            Ok(turn) => {
                let lack = ring.lack();
                let bytes = match turn.is_long {
                    true => u64::MAX,
                    false => turn.read_bytes + turn.written_bytes,
                };
                self.counters.read_bytes += turn.read_bytes;
                self.counters.written_bytes += turn.written_bytes;
                peer.notify(&turn, &mut self.counters);
                if turn.entries > 0 {
                    peer.served = self.polled.rounds();
                    self.due.push(index);
                }
                self.polled.served(index, bytes);
                if let Some(lack) = lack {
                    self.make_room(index, lack.bytes, clock());
                }
                turn.entries
            }
            Err(violation) => {
                self.cut_off(index, violation);
                1
            }
        }
    }

    /// Returns true if a client has something for [`Server::turn`]. If none has, it does what else
    /// a turn does, for which it needs no memory.
    ///
    /// # Errors
    /// Those of the operating system on the node's own descriptors.
    #[inline]
    pub fn look(&mut self) -> io::Result<bool> {
        self.found = self.find();
        if self.found.is_some() {
            return Ok(true);
        }
        self.settle();
        self.look_at_sockets(1)?;
        Ok(false)
    }

    /// Returns a client that has an entry.
    #[inline]
    fn find(&mut self) -> Option<usize> {
        self.polled.find(|index| has_entry(&self.peers, index))
    }

    /// Notifies the clients that got completions, if they sleep.
    #[inline]
    fn settle(&mut self) {
        for index in self.due.drain(..) {
            if let Some(peer) = &mut self.peers[index] {
                // With the fence only now, when the client has what it waits for.
                let turn = peer.ring.as_mut().map(Ring::rest).unwrap_or_default();
                peer.notify(&turn, &mut self.counters);
            }
        }
    }

    /// Stops polling the clients that had nothing for long.
    fn park_idle(&mut self) {
        let round = self.polled.rounds();
        let (peers, idle) = (&mut self.peers, u64::from(self.config.idle_rounds));
        self.polled.retain(|index| {
            let Some(peer) = &mut peers[index] else {
                return false;
            };
            let is_idle = round - peer.served >= idle;
            peer.is_polled = !(is_idle && peer.ring.as_ref().is_none_or(Ring::park));
            peer.is_polled
        });
    }

    /// Looks at the sockets if so much work makes it due; returns whether something came.
    #[inline]
    fn look_at_sockets(&mut self, work: u32) -> io::Result<bool> {
        self.countdown = self.countdown.saturating_sub(work);
        if self.countdown > 0 {
            return Ok(false);
        }
        self.countdown = EVENTS_EVERY;
        self.park_idle();
        self.events(Some(Duration::ZERO))
    }

    /// Sleeps until a client has something to do, for at most `timeout`. Returns at once if one has
    /// already.
    ///
    /// # Errors
    /// Those of the operating system on the node's own descriptors.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = match self.prepare_to_sleep() {
            true => timeout,
            // An entry may have to wait, and all clients without one must notify the node by now.
            false => Some(Duration::ZERO),
        };
        self.events(timeout).map(drop)
    }

    /// Asks all clients to notify the node from now on, for a caller that waits for this and other
    /// descriptors at once, until [`AsFd::as_fd`] can be read. Returns false if there is something
    /// to do already. Afterwards, [`Server::wake`].
    pub fn prepare_to_sleep(&mut self) -> bool {
        self.settle();
        let peers = &mut self.peers;
        self.polled.retain(|index| {
            let Some(peer) = &mut peers[index] else {
                return false;
            };
            peer.is_polled = !peer.ring.as_ref().is_some_and(Ring::park);
            peer.is_polled
        });
        self.polled.is_empty()
    }

    /// Takes what came over the sockets, after [`Server::prepare_to_sleep`].
    ///
    /// # Errors
    /// Those of the operating system on the node's own descriptors.
    pub fn wake(&mut self) -> io::Result<()> {
        self.events(Some(Duration::ZERO)).map(drop)
    }

    /// Returns the number of clients.
    pub fn clients(&self) -> usize {
        self.peers.iter().flatten().count()
    }

    /// Returns how many clients are polled.
    pub fn clients_polled(&self) -> usize {
        self.polled.len()
    }

    /// Returns what the node did.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Handles events of the sockets; returns whether there were any.
    #[cold]
    fn events(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let mut timeout = timeout;
        if let Some(until) = self.paused_until {
            let left = until.since(Instant::now());
            if left.is_zero() {
                let event = EventData::new_u64(LISTENER);
                epoll::add(&self.epoll, &self.listener, event, EventFlags::IN)?;
                self.paused_until = None;
            } else {
                timeout = Some(timeout.map_or(left, |timeout| timeout.min(left)));
            }
        }
        let timeout = timeout.map(timespec);
        let mut events = Vec::with_capacity(EVENTS_MAX);
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.region_left = REGION_BYTES;
        for event in &events {
            match event.data.u64() {
                LISTENER => self.accept()?,
                index => self.messages(index as usize),
            }
        }
        Ok(!events.is_empty())
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..ACCEPTED_MAX {
            let socket = match net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => break,
                // No descriptor is free, which the kernel says before it looks for a connection.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    if !is_readable(&self.listener) {
                        break;
                    }
                    if self.remove_silent(None) {
                        continue;
                    }
                    epoll::delete(&self.epoll, &self.listener)?;
                    self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
                    break;
                }
                Err(errno) => return Err(errno.into()),
            };
            if self.clients() >= self.config.clients_max && !self.remove_silent(None) {
                self.refuse(&socket, Refusal::Full);
                continue;
            }
            let vacant = self.peers.iter().position(Option::is_none);
            let index = vacant.unwrap_or(self.peers.len());
            let event = EventData::new_u64(index as u64);
            if epoll::add(&self.epoll, &socket, event, EventFlags::IN).is_err() {
                self.refuse(&socket, Refusal::Memory);
                continue;
            }
            self.accepted += 1;
            let peer = Some(Peer {
                socket,
                number: self.accepted,
                ring: None,
                served: 0,
                is_polled: false,
            });
            match self.peers.get_mut(index) {
                Some(place) => *place = peer,
                None => self.peers.push(peer),
            }
        }
        Ok(())
    }

    fn refuse(&mut self, socket: &OwnedFd, refusal: Refusal) {
        self.counters.refused += 1;
        let welcome = Message::Welcome {
            version: VERSION,
            layout: (0, 0),
            epoch: self.config.epoch,
            refusal: Some(refusal),
        };
        // A client that does not read it sees the end of the connection.
        let _ = rendezvous::send(socket, &welcome);
    }

    fn messages(&mut self, index: usize) {
        for _ in 0..MESSAGES_MAX {
            let Some(peer) = self.peers.get_mut(index).and_then(Option::as_mut) else {
                return;
            };
            // What is left over for that can still be read, and comes with the next events.
            if peer.ring.is_none() && self.region_left == 0 {
                return;
            }
            match (rendezvous::receive(&peer.socket), &mut peer.ring) {
                (Received::Nothing, _) => return,
                (Received::End, Some(_)) if self.region_left == 0 => return,
                (Received::End, _) => {
                    self.counters.gone += 1;
                    return self.remove(index);
                }
                (Received::Message(Message::Hello { version, layout }), None) => {
                    self.welcome(index, version, layout);
                }
                (
                    Received::Message(message @ (Message::Notify | Message::Attach { .. })),
                    Some(ring),
                ) => {
                    // Behind any message there may have been no room for a notification.
                    ring.unpark();
                    peer.served = self.polled.rounds();
                    if !std::mem::replace(&mut peer.is_polled, true) {
                        self.counters.wakeups += 1;
                        self.polled.add(index);
                    }
                    let Message::Attach { space, capability } = message else {
                        continue;
                    };
                    let authorize = self.config.authorize.as_ref();
                    let allowed = authorize.is_none_or(|check| check(space, capability.bytes()));
                    if allowed && authorize.is_some() {
                        ring.attached.insert(space);
                    }
                    let _ = rendezvous::send(&peer.socket, &Message::Attached { allowed });
                }
                _ => return self.cut_off(index, Violation::Message),
            }
        }
    }

    /// Makes a region for a client and sends it.
    fn welcome(&mut self, index: usize, version: u32, sizes: (u32, u32)) {
        let region = match Layout::checked(sizes) {
            _ if version != VERSION => Err(Refusal::Version),
            None => Err(Refusal::Sizes),
            Some(layout) if layout.bytes() as u64 > self.region_free => Err(Refusal::Memory),
            Some(layout) => loop {
                match SharedMemory::create("tare-farmem", layout.bytes()) {
                    Ok(memory) => break Ok((memory, layout)),
                    // It may lack a descriptor.
                    Err(_) if self.remove_silent(Some(index)) => {}
                    Err(_) => break Err(Refusal::Memory),
                }
            },
        };
        let (memory, layout) = match region {
            Ok(region) => region,
            Err(refusal) => {
                if let Some(peer) = self.peers[index].take() {
                    self.refuse(&peer.socket, refusal);
                }
                return;
            }
        };
        let ring = Ring::new(memory, layout);
        let message = Message::Welcome {
            version: VERSION,
            layout: sizes,
            epoch: self.config.epoch,
            refusal: None,
        };
        let bytes = layout.bytes() as u64;
        self.region_free -= bytes;
        self.region_left = self.region_left.saturating_sub(bytes);
        let Some(peer) = self.peers.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        let sent = rendezvous::send_with(&peer.socket, &message, ring.memory().fd());
        peer.ring = Some(ring);
        peer.is_polled = true;
        peer.served = self.polled.rounds();
        self.polled.add(index);
        match sent {
            Ok(()) => self.counters.connected += 1,
            Err(_) => self.remove(index),
        }
    }

    #[cold]
    fn cut_off(&mut self, index: usize, violation: Violation) {
        self.counters.cut_off += 1;
        self.counters.last_violation = Some(violation);
        if let Some(peer) = &self.peers[index] {
            let _ = rendezvous::send(&peer.socket, &Message::End { violation });
        }
        self.remove(index);
    }

    /// Makes room for a client's write in parts, if others must give way to it.
    #[cold]
    fn make_room(&mut self, index: usize, bytes: u64, now: Instant) {
        let share = self.config.assembly_bytes_max / self.clients().max(1) as u64;
        while self.assembly_free < bytes {
            let rings = self.peers.iter().enumerate();
            let rings = rings.filter_map(|(n, peer)| Some((n, peer.as_ref()?.ring.as_ref()?)));
            let victim = victim(rings, now, bytes, share);
            let victim = victim.and_then(|n| self.peers[n].as_mut()?.ring.as_mut());
            let Some(ring) = victim else {
                let ring = self.peers[index]
                    .as_mut()
                    .and_then(|peer| peer.ring.as_mut());
                return ring.map_or((), |ring| ring.find_no_room(now));
            };
            self.assembly_free += ring.evict();
            self.counters.evicted += 1;
        }
    }

    /// Forgets the client that has not said anything for longest, other than this one, which makes
    /// room for another; returns false if there is none.
    fn remove_silent(&mut self, other_than: Option<usize>) -> bool {
        let all = self.peers.iter().enumerate();
        let all = all.filter_map(|(index, peer)| Some((index, peer.as_ref()?)));
        let silent = all.filter(|(index, peer)| peer.ring.is_none() && Some(*index) != other_than);
        // The greeting of one that came just now may be there already.
        let first = silent.min_by_key(|(_, peer)| peer.number);
        let first = first.map(|(index, _)| index);
        first.map(|index| self.remove(index)).is_some()
    }

    /// Forgets a client. That closes its socket, which also takes it out of the epoll set.
    fn remove(&mut self, index: usize) {
        self.polled.remove(index);
        if let Some(ring) = self.peers[index].take().and_then(|peer| peer.ring) {
            // A client that keeps the region has it at its own expense from now on.
            let _ = ring.memory().discard();
            let bytes = ring.memory().len() as u64;
            self.region_free += bytes;
            self.region_left = self.region_left.saturating_sub(bytes);
            self.assembly_free += ring.assembly_bytes();
        }
    }
}

impl AsFd for Server {
    /// The descriptor that can be read when something has come over a socket.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::unlink(&self.path);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("path", &self.path)
            .field("clients", &self.clients())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// Returns true if a client has an entry.
#[inline]
fn has_entry(peers: &[Option<Peer>], index: usize) -> bool {
    let peer = peers.get(index).and_then(Option::as_ref);
    peer.and_then(|peer| peer.ring.as_ref())
        .is_some_and(Ring::has_entry)
}

fn bind(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let new = || net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    // `connect` refuses a file that is no socket like one of a node that was killed.
    let found = path.symlink_metadata().map(|found| found.file_type());
    if found.is_ok_and(|found| !found.is_socket()) {
        let error = "found something else than a socket there, expected a socket or nothing: \
                     name another path, or remove what is there";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, error));
    }
    let listener = new()?;
    match net::bind(&listener, &address) {
        Ok(()) => {}
        // Of a node that was killed, if no process listens.
        Err(Errno::ADDRINUSE) if net::connect(new()?, &address) == Err(Errno::CONNREFUSED) => {
            fs::unlink(path)?;
            net::bind(&listener, &address)?;
        }
        Err(errno) => return Err(errno.into()),
    }
    // Before `listen`, so that no connection comes in between.
    fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
    net::listen(&listener, 128)?;
    Ok(listener)
}

fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut ready = [PollFd::new(descriptor, PollFlags::IN)];
    poll(&mut ready, Some(&timespec(Duration::ZERO))).is_ok_and(|count| count > 0)
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: duration.subsec_nanos().into(),
    }
}
