//! What happened to the frames that the control side got.

/// Why a frame was not acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Ignored {
    /// Truncated, or it contradicts itself.
    Malformed,
    /// Its checksum is wrong.
    Checksum,
    /// Addressed to somebody else.
    NotForUs,
    /// From no address of one host, or from one of our own.
    Source,
    /// Neighbor discovery from beyond the link: the hop limit is not 255 (RFC 4861, 7.1).
    HopLimit,
    /// It tells of a neighbor that nobody asks for.
    NotNeighbor,
    /// An error about a packet that none of our SAs can have sent, or that changes nothing.
    NotOurs,
    /// A fragment.
    Fragment,
    /// Of a protocol or a type that is not served, or not there.
    Unsupported,
    /// Too many of them.
    Rate,
}

impl Ignored {
    /// All causes, in the order of their numbers.
    pub const ALL: [Ignored; 10] = [
        Ignored::Malformed,
        Ignored::Checksum,
        Ignored::NotForUs,
        Ignored::Source,
        Ignored::HopLimit,
        Ignored::NotNeighbor,
        Ignored::NotOurs,
        Ignored::Fragment,
        Ignored::Unsupported,
        Ignored::Rate,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Ignored::Malformed => "malformed",
            Ignored::Checksum => "checksum",
            Ignored::NotForUs => "not_for_us",
            Ignored::Source => "source",
            Ignored::HopLimit => "hop_limit",
            Ignored::NotNeighbor => "not_neighbor",
            Ignored::NotOurs => "not_ours",
            Ignored::Fragment => "fragment",
            Ignored::Unsupported => "unsupported",
            Ignored::Rate => "rate",
        }
    }
}

/// Why a frame was acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Taken {
    /// A question for our station address, answered.
    NeighborAsked,
    /// A neighbor told its station address.
    NeighborTold,
    /// An echo request, answered.
    Echo,
    /// The path to a peer takes less than thought.
    PathMtu,
    /// A message for the key exchange, which counts for itself what became of it.
    Exchange,
}

impl Taken {
    /// All of them, in the order of their numbers.
    pub const ALL: [Taken; 5] = [
        Taken::NeighborAsked,
        Taken::NeighborTold,
        Taken::Echo,
        Taken::PathMtu,
        Taken::Exchange,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Taken::NeighborAsked => "neighbor_asked",
            Taken::NeighborTold => "neighbor_told",
            Taken::Echo => "echo",
            Taken::PathMtu => "path_mtu",
            Taken::Exchange => "exchange",
        }
    }
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that came.
    pub received: u64,
    /// Frames of those that were acted on, by [`Taken`].
    pub taken: [u64; Taken::ALL.len()],
    /// Frames of those that were not, by [`Ignored`].
    pub ignored: [u64; Ignored::ALL.len()],
    /// Frames sent.
    pub sent: u64,
    /// Messages of the key exchange that were not sent, because the next hop is not known or too
    /// many wait.
    pub unsent: u64,
}

impl Counters {
    pub(super) fn count(&mut self, outcome: Result<Taken, Ignored>) {
        self.received += 1;
        match outcome {
            Ok(taken) => self.taken[taken as usize] += 1,
            Err(ignored) => self.ignored[ignored as usize] += 1,
        }
    }

    /// How many were acted on for this reason.
    pub fn taken(&self, taken: Taken) -> u64 {
        self.taken[taken as usize]
    }

    /// How many were not, for this cause.
    pub fn ignored(&self, ignored: Ignored) -> u64 {
        self.ignored[ignored as usize]
    }

    /// Whether every frame is accounted for.
    pub fn adds_up(&self) -> bool {
        self.received == self.taken.iter().chain(&self.ignored).sum::<u64>()
    }
}
