//! Counters of frames that the control side received.

tare_daemon::reasons! {
    /// The reason why a frame was not acted on.
    pub enum Ignored {
        /// Truncated, or it contradicts itself.
        Malformed => "malformed",
        /// Its checksum is wrong.
        Checksum => "checksum",
        /// Addressed to another station or host.
        NotForUs => "not_for_us",
        /// Its source is not the address of one host, or one of our own.
        Source => "source",
        /// Neighbor discovery from beyond the link: the hop limit is not 255 (RFC 4861, 7.1).
        HopLimit => "hop_limit",
        /// About a neighbor that is no next hop.
        NotNeighbor => "not_neighbor",
        /// About a next hop, but no answer to a request of ours.
        Unsolicited => "unsolicited",
        /// An error about a packet that none of our SAs can have sent, or that changes nothing.
        NotOurs => "not_ours",
        /// An error that does not quote a packet of the last one or two seconds.
        NotRecent => "not_recent",
        /// A fragment.
        Fragment => "fragment",
        /// Of a protocol or a type that is not served, or not on this interface.
        Unsupported => "unsupported",
        /// The rate limit was reached.
        Rate => "rate",
    }
}

tare_daemon::reasons! {
    /// The reason why a frame was acted on.
    pub enum Taken {
        /// A request for our MAC address, answered.
        NeighborAsked => "neighbor_asked",
        /// A neighbor told its MAC address.
        NeighborTold => "neighbor_told",
        /// A neighbor told another MAC address than before.
        NeighborMoved => "neighbor_moved",
        /// An echo request, answered.
        Echo => "echo",
        /// The path MTU to a peer is less than was known.
        PathMtu => "path_mtu",
        /// A peer's probe of the path, answered, or its answer to ours.
        PathProbe => "path_probe",
        /// A message for the key exchange, which has counters of its own.
        Exchange => "exchange",
    }
}

tare_daemon::counters! {
    /// Counters since the start.
    pub struct Counters {
        received: "Frames received",
        sent: "Frames sent",
        unsent: "Messages of the key exchange not sent, because the next hop is unknown or too many wait";
        /// Frames that were acted on.
        taken: Taken,
        /// Frames that were not acted on.
        ignored: Ignored,
    }
}

impl Counters {
    pub(super) fn count(&mut self, outcome: Result<Taken, Ignored>) {
        self.received += 1;
        match outcome {
            Ok(taken) => self.taken.count(taken),
            Err(ignored) => self.ignored.count(ignored),
        }
    }

    /// Returns the number of frames acted on for this reason.
    pub fn taken(&self, taken: Taken) -> u64 {
        self.taken.get(taken)
    }

    /// Returns the number of frames not acted on for this reason.
    pub fn ignored(&self, ignored: Ignored) -> u64 {
        self.ignored.get(ignored)
    }

    /// Returns true if every frame is accounted for.
    pub fn adds_up(&self) -> bool {
        self.received == self.taken.total() + self.ignored.total()
    }
}
