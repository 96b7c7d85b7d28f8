//! The sessions of one thread as one channel: each has a client of its own, and a socket of its own
//! as long as they are few.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{ensure, Context as _};
use rustix::process::{getrlimit, setrlimit, Resource};
use tare_farmem::operation::{Operation, SpaceId};
use tare_farmem::protocol::{
    Authentication, Client, ClientConfig, Completion, Datagrams, OperationId, OwnedWrite, Secret,
    SubmitError,
};
use tare_farmem::session::random_id;
use tare_farmem::transport::{
    Channel, Direct, FaultCounts, Faults, Faulty, Link, Remote, Shared, UdpLink, Waiting,
};

/// The most sessions that have a socket each.
const OWN_SOCKETS_MAX: u64 = 1000;

/// The sockets of more sessions than that.
const SHARED_SOCKETS: u64 = 64;

/// Returns the number of sockets that so many sessions use.
pub(crate) const fn sockets(sessions: u64) -> u64 {
    if sessions <= OWN_SOCKETS_MAX {
        sessions
    } else {
        SHARED_SOCKETS
    }
}

/// Allows this process as many descriptors as the system lets it have, if it may have too few for
/// so many.
pub(crate) fn allow_descriptors(count: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    if limit.current.is_some_and(|current| current < count) {
        limit.current = Some(count.min(most));
        // If that fails, the socket that is too many says so.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Raises the limit of open descriptors by what so many more sockets need.
///
/// # Errors
/// The system does not let it have as many.
pub(crate) fn allow_sockets(sockets: u64) -> anyhow::Result<()> {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
    // Others are opened for a moment.
    let needed = open + sockets + 16;
    allow_descriptors(needed);
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    ensure!(
        allowed >= needed,
        "found a limit of {allowed} open files, expected {needed} for {sockets} sockets: ulimit -n \
         {needed}"
    );
    Ok(())
}

/// The time after which an operation is given up, longer than a busy machine stalls, unless the
/// node has a shorter one: that of `tare memory serve` has 250 ms, over sockets and frames.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// The sessions of one thread. The session of a space is found by the space's number.
pub(crate) struct Fleet {
    first_space: u64,
    /// One per session, or fewer, which the sessions share in turn.
    channels: Vec<Box<dyn Channel>>,
    /// The channels of the operations outstanding, in the order of their submission, if there are
    /// several channels.
    outstanding: VecDeque<usize>,
    /// Operations whose completions were not polled.
    len: usize,
}

/// The faults of the links of all threads.
#[derive(Default)]
pub(crate) struct FaultTotals([AtomicU64; 3]);

impl FaultTotals {
    /// Returns those that happened so far.
    pub(crate) fn counts(&self) -> FaultCounts {
        let [lost, duplicated, reordered] = &self.0;
        let [lost, duplicated, reordered] =
            [lost, duplicated, reordered].map(|count| count.load(Ordering::Relaxed));
        FaultCounts {
            lost,
            duplicated,
            reordered,
        }
    }

    fn add(&self, before: FaultCounts, after: FaultCounts) {
        let more = [
            after.lost - before.lost,
            after.duplicated - before.duplicated,
            after.reordered - before.reordered,
        ];
        for (count, more) in self.0.iter().zip(more) {
            count.fetch_add(more, Ordering::Relaxed);
        }
    }
}

/// A link with faults that are counted.
struct Counted<L> {
    link: Faulty<L>,
    totals: Arc<FaultTotals>,
}

impl<L: Link> Link for Counted<L> {
    fn send(&mut self, datagrams: &Datagrams) -> io::Result<()> {
        let before = self.link.counts();
        let sent = self.link.send(datagrams);
        self.totals.add(before, self.link.counts());
        sent
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<usize> {
        let before = self.link.counts();
        let received = self.link.receive(buffer, wait);
        self.totals.add(before, self.link.counts());
        received
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }
}

/// The settings of a fleet over UDP.
pub(crate) struct UdpFleet<'a> {
    /// The node.
    pub(crate) node: SocketAddr,
    /// Sessions.
    pub(crate) sessions: u64,
    /// The space of the first; the others have the numbers after it.
    pub(crate) first_space: u64,
    /// The longest datagram, in bytes; what the path to the node carries if `None`.
    pub(crate) datagram_bytes: Option<usize>,
    /// The way to wait.
    pub(crate) waiting: Waiting,
    /// Faults, their seed, and where those that happen are counted.
    pub(crate) faults: Option<(Faults, u64, Arc<FaultTotals>)>,
    /// The node's secret, from which each session gets its capability; `None` for no encryption.
    pub(crate) secret: Option<&'a Secret>,
}

impl UdpFleet<'_> {
    /// Opens the sockets.
    ///
    /// # Errors
    /// Those of the system, such as too few descriptors.
    pub(crate) fn open(&self) -> anyhow::Result<Fleet> {
        let mut channels: Vec<Box<dyn Channel>> = Vec::new();
        if self.sessions <= OWN_SOCKETS_MAX {
            for number in 0..self.sessions {
                let link = self.link()?;
                let client = self.client(number, Some(link.datagram_bytes()))?;
                channels.push(match &self.faults {
                    Some((faults, seed, totals)) => {
                        let link = Counted {
                            link: Faulty::new(link, *faults, seed + number),
                            totals: Arc::clone(totals),
                        };
                        Box::new(Remote::new(client, link))
                    }
                    None => Box::new(Remote::new(client, link)),
                });
            }
        } else {
            let links = (0..SHARED_SOCKETS).map(|_| self.link());
            let links: Vec<_> = links.collect::<anyhow::Result<_>>()?;
            let carried = links.first().map(UdpLink::datagram_bytes);
            channels = self.share(links, carried)?;
        }
        Ok(Fleet::over(self.first_space, channels))
    }

    /// Opens all sessions on one link.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn open_on(&self, link: impl Link + 'static) -> anyhow::Result<Fleet> {
        let channels: Vec<Box<dyn Channel>> = match self.sessions {
            1 => vec![Box::new(Remote::new(self.client(0, None)?, link))],
            _ => self.share(vec![link], None)?,
        };
        Ok(Fleet::over(self.first_space, channels))
    }

    /// Lets the sessions share links, whose path carries datagrams of this length.
    fn share<L: Link + 'static>(
        &self,
        links: Vec<L>,
        carried: Option<usize>,
    ) -> anyhow::Result<Vec<Box<dyn Channel>>> {
        let links: Vec<_> = links.into_iter().map(Shared::new).collect();
        let member = |number: u64| -> anyhow::Result<Box<dyn Channel>> {
            let link = &links[number as usize % links.len()];
            let space = SpaceId(self.first_space + number);
            let member = link.join(space, self.client(number, carried)?);
            Ok(Box::new(member.context("a space of two sessions")?))
        };
        (0..self.sessions).map(member).collect()
    }

    /// Makes the client of a session over a path that carries datagrams of this length.
    fn client(&self, number: u64, carried: Option<usize>) -> anyhow::Result<Client> {
        let authentication = match self.secret {
            Some(_) => Authentication::aead()?,
            None => Authentication::None,
        };
        let mut client = Client::new(ClientConfig {
            authentication,
            datagram_bytes: self.datagram_bytes.or(carried),
            timeout: TIMEOUT,
            ..ClientConfig::new(random_id()?)
        });
        if let Some(secret) = self.secret {
            client.authorize(secret.capability(SpaceId(self.first_space + number)));
        }
        Ok(client)
    }

    fn link(&self) -> anyhow::Result<UdpLink> {
        UdpLink::connect(self.node, self.waiting).context("the socket of a session")
    }
}

impl Fleet {
    /// The sessions from this space on over channels that take operations on any space.
    pub(crate) fn over(first_space: u64, channels: Vec<Box<dyn Channel>>) -> Fleet {
        Fleet {
            first_space,
            channels,
            outstanding: VecDeque::new(),
            len: 0,
        }
    }

    /// Takes note of an operation that a channel has taken.
    fn submitted(&mut self, index: Option<usize>) {
        self.len += 1;
        if self.channels.len() > 1 {
            self.outstanding.extend(index);
        }
    }

    fn index(&self, space: SpaceId) -> Option<usize> {
        match self.channels.len() {
            1 => Some(0),
            count => {
                let number = usize::try_from(space.0.checked_sub(self.first_space)?).ok()?;
                // Mostly each has its own, and needs no division.
                Some(if number < count {
                    number
                } else {
                    number % count
                })
            }
        }
    }
}

impl Channel for Fleet {
    fn submit(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
    ) -> Result<OperationId, SubmitError> {
        let index = self.index(space);
        let channel = index.and_then(|index| self.channels.get_mut(index));
        // No space but those of the fleet is asked for.
        let id = channel.ok_or(SubmitError::Full)?.submit(space, operation)?;
        self.submitted(index);
        Ok(id)
    }

    fn submit_write(
        &mut self,
        space: SpaceId,
        write: OwnedWrite,
    ) -> Result<OperationId, (SubmitError, OwnedWrite)> {
        let index = self.index(space);
        let id = match index.and_then(|index| self.channels.get_mut(index)) {
            Some(channel) => channel.submit_write(space, write)?,
            None => return Err((SubmitError::Full, write)),
        };
        self.submitted(index);
        Ok(id)
    }

    fn direct(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
        into: &mut [u8],
    ) -> io::Result<Direct> {
        let index = self.index(space);
        let direct = match index.and_then(|index| self.channels.get_mut(index)) {
            Some(channel) => channel.direct(space, operation, into)?,
            None => Direct::NotTaken,
        };
        if let Direct::Submitted(_) = direct {
            self.submitted(index);
        }
        Ok(direct)
    }

    fn progress(&mut self, wait: Duration) -> io::Result<()> {
        if let [channel] = &mut self.channels[..] {
            return channel.progress(wait);
        }
        // Every channel sends what was submitted to it; the oldest is waited for.
        let mut before = None;
        for &index in self.outstanding.iter().skip(1) {
            if before != Some(index) && Some(&index) != self.outstanding.front() {
                self.channels[index].progress(Duration::ZERO)?;
            }
            before = Some(index);
        }
        match self.outstanding.front() {
            Some(&oldest) => self.channels[oldest].progress(wait),
            None => Ok(()),
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        if let [channel] = &mut self.channels[..] {
            let completion = channel.poll();
            self.len -= usize::from(completion.is_some());
            return completion;
        }
        for place in 0..self.outstanding.len() {
            let index = self.outstanding[place];
            if let Some(completion) = self.channels[index].poll() {
                self.outstanding.remove(place);
                self.len -= 1;
                return Some(completion);
            }
        }
        None
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        // Buffers are alike, and one client is as good as another.
        if let Some(channel) = self.channels.first_mut() {
            channel.recycle(buffer);
        }
    }

    fn outstanding(&self) -> usize {
        self.len
    }
}
