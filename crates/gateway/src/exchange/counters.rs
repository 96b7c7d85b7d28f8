//! What happened to messages and to SAs, counted.

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Shorter than a header, or not exactly as long as its type.
    Length,
    /// Of none of the four types.
    Type,
    /// For a route that is not configured.
    Route,
    /// Not from the address of the route's peer.
    Address,
    /// A challenge of another version of the protocol.
    Version,
    /// A challenge for another AEAD than the route's.
    Aead,
    /// Nothing waits for it: an answer that nobody asked for, that came late or that came twice.
    Unexpected,
    /// Forged, damaged, replayed, or made with another key or other addresses than those of the
    /// route.
    Authentication,
    /// Authentic, with a public key of low order.
    PublicKey,
    /// Authentic, with an SPI below 256, which RFC 4303 reserves.
    Spi,
    /// Too many of them; see [`super::Exchange::receive`].
    Rate,
}

impl DropReason {
    /// Every cause.
    pub const ALL: [DropReason; 11] = [
        DropReason::Length,
        DropReason::Type,
        DropReason::Route,
        DropReason::Address,
        DropReason::Version,
        DropReason::Aead,
        DropReason::Unexpected,
        DropReason::Authentication,
        DropReason::PublicKey,
        DropReason::Spi,
        DropReason::Rate,
    ];

    /// A name for metrics.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::Length => "length",
            DropReason::Type => "type",
            DropReason::Route => "route",
            DropReason::Address => "address",
            DropReason::Version => "version",
            DropReason::Aead => "aead",
            DropReason::Unexpected => "unexpected",
            DropReason::Authentication => "authentication",
            DropReason::PublicKey => "public_key",
            DropReason::Spi => "spi",
            DropReason::Rate => "rate",
        }
    }
}

/// Counts since the start. `received` is `knocks + challenges + proposals + agreements + repeats`
/// and all that was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages received.
    pub received: u64,
    /// Knocks answered with a challenge.
    pub knocks: u64,
    /// Challenges answered with a proposal.
    pub challenges: u64,
    /// Proposals answered with an agreement: key pairs offered.
    pub proposals: u64,
    /// Agreements accepted: key pairs negotiated.
    pub agreements: u64,
    /// Proposals that had been answered before and got the same answer again.
    pub repeats: u64,
    /// Messages sent.
    pub sent: u64,
    /// Negotiations begun by this side.
    pub negotiations: u64,
    /// Those of them that ran out of time.
    pub negotiations_expired: u64,
    /// Inbound SAs that reached the end of their life.
    pub inbound_expired: u64,
    /// Inbound SAs that had to make room for a fifth.
    pub inbound_displaced: u64,
    /// Outbound SAs that reached the end of their life with none to follow.
    pub outbound_expired: u64,
    /// Outbound SAs whose peer negotiated their SPI anew.
    pub outbound_updated: u64,
    /// Diffie-Hellman operations, making a public key included: what a flood must not cause.
    pub diffie_hellman: u64,
    dropped: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// Messages dropped for this cause.
    pub fn dropped(&self, cause: DropReason) -> u64 {
        self.dropped
            .get(cause as usize)
            .copied()
            .unwrap_or_default()
    }

    /// Messages dropped.
    pub fn dropped_in_all(&self) -> u64 {
        self.dropped.iter().sum()
    }

    pub(crate) fn drop_for(&mut self, cause: DropReason) {
        if let Some(count) = self.dropped.get_mut(cause as usize) {
            *count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_counted_apart() {
        let mut counters = Counters::default();
        for (n, cause) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, n);
            (0..=n).for_each(|_| counters.drop_for(cause));
        }
        for (n, cause) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(counters.dropped(cause), n as u64 + 1);
            assert!(DropReason::ALL
                .iter()
                .all(|c| *c == cause || c.name() != cause.name()));
        }
    }
}
