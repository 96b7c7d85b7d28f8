//! Counters of messages and SAs.

tare_daemon::reasons! {
    /// The reason why a message was dropped.
    pub enum DropReason {
        /// Shorter than a header, or not exactly as long as its type.
        Length => "length",
        /// Of none of the four types.
        Type => "type",
        /// For a route that is not configured.
        Route => "route",
        /// Not from the address of the route's peer.
        Address => "address",
        /// A challenge of another version of the protocol.
        Version => "version",
        /// A challenge for another AEAD than the route's.
        Aead => "aead",
        /// Not expected: an answer that was not asked for, that came late or that came twice.
        Unexpected => "unexpected",
        /// Forged, damaged, replayed, or made with another key or other addresses than those of
        /// the route.
        Authentication => "authentication",
        /// Authentic, with a public key of low order.
        PublicKey => "public_key",
        /// Authentic, with an SPI below 256, which RFC 4303 reserves.
        Spi => "spi",
        /// The rate limit was reached; see [`super::Exchange::receive`].
        Rate => "rate",
    }
}

tare_daemon::counters! {
    /// Counters since the start. `received` is the sum of `knocks`, `challenges`, `proposals`,
    /// `agreements`, `repeats` and all that was dropped.
    pub struct Counters {
        received: "Messages received",
        knocks: "Knocks answered with a challenge",
        challenges: "Challenges answered with a proposal",
        proposals: "Proposals answered with an agreement: key pairs offered",
        agreements: "Agreements accepted: key pairs negotiated",
        repeats: "Proposals that had been answered before and got the same answer again",
        sent: "Messages sent",
        negotiations: "Negotiations begun by this side",
        negotiations_expired: "Negotiations begun by this side that timed out",
        inbound_expired: "Inbound SAs that reached the end of their life",
        inbound_displaced: "Inbound SAs removed to make room for a fifth",
        outbound_expired: "Outbound SAs that reached the end of their life without a successor",
        outbound_updated: "Outbound SAs whose SPI the peer negotiated again",
        diffie_hellman: "Diffie-Hellman operations, including those that make public keys: what a \
            flood must not cause";
        /// Messages dropped.
        dropped: DropReason,
    }
}

impl Counters {
    /// Returns the number of messages dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped.get(reason)
    }

    /// Returns the number of messages dropped.
    pub fn dropped_in_all(&self) -> u64 {
        self.dropped.total()
    }

    pub(crate) fn drop_for(&mut self, reason: DropReason) {
        self.dropped.count(reason);
    }
}
