//! The state as bytes: a name, the version of the format, and the values in their order.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use tare_sim::Instant;
use zeroize::Zeroizing;

use super::bytes::{Reader, Writer};
use super::{Digest, InboundState, OutboundState, RouteState, State, Terms, Used};
use crate::config::PresharedKey;
use crate::dataplane::{Highest, Opened, Received, Sent, IV_BASE_MAX};
use crate::exchange::handover::Pending;
use crate::exchange::sas::handover::{InboundLife, OutboundLife, Proving, Waiting};
use crate::exchange::SaKeys;

const NAME: &[u8; 8] = b"TARE-GW\n";
/// To be increased with every change of the format.
const VERSION: u32 = 4;

/// The reason why bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// They are no state of a gateway.
    Name,
    /// They are of another version of the format.
    Version(u32),
    /// They are truncated or contradict themselves.
    Malformed,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Name => f.write_str("the bytes are no state of a gateway"),
            Error::Version(found) => write!(
                f,
                "the state is of version {found}, and this program knows {VERSION} only: restart instead"
            ),
            Error::Malformed => f.write_str("the state is truncated or contradicts itself"),
        }
    }
}

impl State {
    /// Returns the state as bytes.
    pub(crate) fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut to = Writer::default();
        to.put(NAME);
        to.u32(VERSION);
        to.all(&self.routes, put_route);
        to.put(&self.given.key);
        for numbers in [&self.given.outbound, &self.given.inbound] {
            to.all(numbers, |to, (digest, highest)| {
                to.put(digest);
                to.u64(highest.number);
                to.u64(highest.iv_base);
            });
        }
        to.all(&self.neighbors, |to, (public, address, mac)| {
            to.flag(*public);
            to.address(*address);
            to.put(mac);
        });
        to.all(&self.paths, |to, (peer, mtu, until)| {
            to.address(*peer);
            to.u16(*mtu);
            to.u64(until.as_nanos());
        });
        to.u64(u64::try_from(self.sa_ttl.as_nanos()).unwrap_or(u64::MAX));
        to.text(&self.counters);
        to.into_bytes()
    }

    /// Reads a state.
    ///
    /// # Errors
    /// See [`Error`].
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<State, Error> {
        let mut from = Reader::new(bytes);
        if from.array() != Some(NAME) {
            return Err(Error::Name);
        }
        match from.u32().ok_or(Error::Malformed)? {
            VERSION => {}
            other => return Err(Error::Version(other)),
        }
        let state = read_state(&mut from).filter(|_| from.is_at_end());
        let state = state.ok_or(Error::Malformed)?;
        if !is_consistent(&state) {
            return Err(Error::Malformed);
        }
        Ok(state)
    }
}

fn read_state(from: &mut Reader<'_>) -> Option<State> {
    Some(State {
        routes: from.all(read_route)?,
        given: Used {
            key: *from.array()?,
            outbound: from.all(read_number)?,
            inbound: from.all(read_number)?,
        },
        neighbors: from.all(|from| Some((from.flag()?, from.address()?, *from.array()?)))?,
        paths: from.all(|from| Some((from.address()?, from.u16()?, read_instant(from)?)))?,
        sa_ttl: Duration::from_nanos(from.u64()?),
        counters: from.text()?,
    })
}

fn read_number(from: &mut Reader<'_>) -> Option<(Digest, Highest)> {
    let digest = *from.array()?;
    let highest = Highest {
        number: from.u64()?,
        iv_base: from.u64()?,
    };
    Some((digest, highest))
}

/// Returns true if no name and no inbound SPI stands there twice, and every SA may be what it says.
fn is_consistent(state: &State) -> bool {
    let (mut names, mut spis) = (HashSet::new(), HashSet::new());
    let begin_by = |numbers: &[(Digest, Highest)], most| {
        let mut numbers = numbers.iter();
        numbers.all(|(_, highest)| highest.iv_base <= most)
    };
    let known = begin_by(&state.given.outbound, IV_BASE_MAX) && begin_by(&state.given.inbound, 0);
    known
        && state.routes.iter().all(|route| {
            let manual = route.terms.exchange.is_none();
            let iv_base_max = if manual { IV_BASE_MAX } else { 0 };
            let aead = route.terms.exchange.as_ref().map(|(_, _, aead)| *aead);
            names.insert(&route.id)
                && route.inbound.iter().all(|sa| {
                    sa.spi >= 256
                        && spis.insert(sa.spi)
                        && sa.opened.received.is_valid()
                        && sa.life.is_none() == manual
                        && sa.life.is_none_or(|life| life.spi == sa.spi)
                        && aead.is_none_or(|aead| aead == sa.key.aead())
                })
                && route.outbound.iter().all(|sa| {
                    sa.spi >= 256
                        && sa.sent.last >= sa.sent.packets
                        && sa.sent.iv_base <= iv_base_max
                        && sa.life.is_none() == manual
                        && sa.life.is_none_or(|life| life.spi == sa.spi)
                        && aead.is_none_or(|aead| aead == sa.key.aead())
                })
                && route
                    .pending
                    .waiting
                    .iter()
                    .all(|sa| sa.keys.spi >= 256 && aead == Some(sa.keys.key.aead()))
        })
}

fn put_route(to: &mut Writer, route: &RouteState) {
    to.text(&route.id);
    let Terms {
        addresses,
        esn,
        window,
        exchange,
    } = &route.terms;
    addresses.iter().for_each(|address| to.address(*address));
    to.flag(*esn);
    to.u32(*window);
    to.option(exchange.as_ref(), |to, (psk, spi, aead)| {
        to.put(psk.bytes());
        to.u32(*spi);
        to.aead(*aead);
    });
    to.all(&route.inbound, put_inbound);
    to.all(&route.outbound, put_outbound);
    put_pending(to, &route.pending);
    to.option(route.handshake, put_instant);
    to.text(&route.counters);
}

fn read_route(from: &mut Reader<'_>) -> Option<RouteState> {
    let id = from.text()?;
    let addresses = [from.address()?, from.address()?, from.address()?];
    let terms = Terms {
        addresses,
        esn: from.flag()?,
        window: from.u32()?,
        exchange: from.option(|from| {
            let psk = PresharedKey::new(*from.array()?);
            Some((psk, from.u32()?, from.aead()?))
        })?,
    };
    Some(RouteState {
        id,
        terms,
        inbound: from.all(read_inbound)?,
        outbound: from.all(read_outbound)?,
        pending: read_pending(from)?,
        handshake: from.option(read_instant)?,
        counters: from.text()?,
    })
}

fn put_inbound(to: &mut Writer, sa: &InboundState) {
    to.u32(sa.spi);
    to.key(&sa.key);
    let opened = &sa.opened;
    for count in [
        opened.packets,
        opened.bytes,
        opened.replayed,
        opened.forged,
        opened.received.top,
    ] {
        to.u64(count);
    }
    to.all(&opened.received.words, |to, word| to.u32(*word));
    to.option(sa.life, |to, life| {
        to.u32(life.partner);
        to.u64(life.since.as_nanos());
        to.u64(life.expires.as_nanos());
    });
}

fn read_inbound(from: &mut Reader<'_>) -> Option<InboundState> {
    let spi = from.u32()?;
    Some(InboundState {
        spi,
        key: from.key()?,
        opened: Opened {
            packets: from.u64()?,
            bytes: from.u64()?,
            replayed: from.u64()?,
            forged: from.u64()?,
            received: Received {
                top: from.u64()?,
                words: from.all(Reader::u32)?,
            },
        },
        life: from.option(|from| {
            Some(InboundLife {
                spi,
                partner: from.u32()?,
                since: read_instant(from)?,
                expires: read_instant(from)?,
            })
        })?,
    })
}

fn put_outbound(to: &mut Writer, sa: &OutboundState) {
    to.u32(sa.spi);
    to.key(&sa.key);
    to.u64(sa.sent.last);
    to.u64(sa.sent.packets);
    to.u64(sa.sent.bytes);
    to.u64(sa.sent.iv_base);
    to.option(sa.life, |to, life| {
        to.u64(life.since.as_nanos());
        to.u64(life.expires.as_nanos());
        to.u64(life.rekey.as_nanos());
    });
}

fn read_outbound(from: &mut Reader<'_>) -> Option<OutboundState> {
    let spi = from.u32()?;
    Some(OutboundState {
        spi,
        key: from.key()?,
        sent: Sent {
            last: from.u64()?,
            packets: from.u64()?,
            bytes: from.u64()?,
            iv_base: from.u64()?,
        },
        life: from.option(|from| {
            Some(OutboundLife {
                spi,
                since: read_instant(from)?,
                expires: read_instant(from)?,
                rekey: read_instant(from)?,
            })
        })?,
    })
}

fn put_pending(to: &mut Writer, pending: &Pending) {
    to.all(&pending.waiting, put_waiting);
    to.option(pending.own, put_instant);
    to.flag(pending.renew);
    to.option(pending.offered, Writer::u32);
    to.flag(pending.marks);
    to.option(pending.proof, |to, proof| {
        to.u32(proof.partner);
        put_instant(to, proof.next);
        to.u32(proof.left);
    });
}

fn read_pending(from: &mut Reader<'_>) -> Option<Pending> {
    Some(Pending {
        waiting: from.all(read_waiting)?,
        own: from.option(read_instant)?,
        renew: from.flag()?,
        offered: from.option(Reader::u32)?,
        marks: from.flag()?,
        proof: from.option(|from| {
            Some(Proving {
                partner: from.u32()?,
                next: read_instant(from)?,
                left: from.u32()?,
            })
        })?,
    })
}

fn put_waiting(to: &mut Writer, sa: &Waiting) {
    to.u32(sa.keys.spi);
    to.key(&sa.keys.key);
    to.u32(sa.partner);
    to.flag(sa.confirmed);
    to.flag(sa.anew);
    to.option(sa.continued, put_instant);
    for at in [sa.since, sa.expires, sa.rekey, sa.activate] {
        put_instant(to, at);
    }
}

fn read_waiting(from: &mut Reader<'_>) -> Option<Waiting> {
    Some(Waiting {
        keys: SaKeys {
            spi: from.u32()?,
            key: from.key()?,
        },
        partner: from.u32()?,
        confirmed: from.flag()?,
        anew: from.flag()?,
        continued: from.option(read_instant)?,
        since: read_instant(from)?,
        expires: read_instant(from)?,
        rekey: read_instant(from)?,
        activate: read_instant(from)?,
    })
}

fn put_instant(to: &mut Writer, at: Instant) {
    to.u64(at.as_nanos());
}

fn read_instant(from: &mut Reader<'_>) -> Option<Instant> {
    from.u64().map(Instant::from_nanos)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::{Aead, SaKey};

    fn state() -> State {
        let at = Instant::from_nanos;
        let inbound = |spi: u32, life| InboundState {
            spi,
            key: SaKey::aes_128_gcm(&[spi as u8; 16], [1, 2, 3, 4]),
            opened: Opened {
                packets: 3,
                bytes: 4,
                replayed: 5,
                forged: 6,
                received: Received {
                    top: 70,
                    words: vec![0x7f, 9, 8],
                },
            },
            life,
        };
        let highest = |number, iv_base| Highest { number, iv_base };
        let outbound = |spi, key, life: Option<OutboundLife>| OutboundState {
            spi,
            key,
            sent: Sent {
                last: 900,
                packets: 800,
                bytes: 700,
                iv_base: if life.is_none() { IV_BASE_MAX } else { 0 },
            },
            life,
        };
        let v4 = |last| [192, 0, 2, last].into();
        let negotiated = RouteState {
            id: "a".into(),
            terms: Terms {
                addresses: [v4(1), v4(2), v4(3)],
                esn: true,
                window: 2048,
                exchange: Some((PresharedKey::new([7; 32]), 1001, Aead::Aes128Gcm)),
            },
            inbound: vec![inbound(
                5000,
                Some(InboundLife {
                    spi: 5000,
                    partner: 6000,
                    since: at(10),
                    expires: at(1 << 40),
                }),
            )],
            outbound: vec![outbound(
                6000,
                SaKey::aes_128_gcm(&[9; 16], [5; 4]),
                Some(OutboundLife {
                    spi: 6000,
                    since: at(10),
                    expires: at(1 << 40),
                    rekey: at(1 << 39),
                }),
            )],
            pending: Pending {
                waiting: vec![Waiting {
                    keys: SaKeys {
                        spi: 6001,
                        key: SaKey::aes_128_gcm(&[11; 16], [7; 4]),
                    },
                    partner: 5000,
                    confirmed: true,
                    anew: false,
                    continued: Some(at(11)),
                    since: at(12),
                    expires: at(1 << 41),
                    rekey: at(1 << 40),
                    activate: at(13),
                }],
                own: Some(at(14)),
                renew: true,
                offered: Some(7000),
                marks: true,
                proof: Some(Proving {
                    partner: 5000,
                    next: at(15),
                    left: 3,
                }),
            },
            handshake: Some(at(12)),
            counters: "[]".into(),
        };
        let manual = RouteState {
            id: "b".into(),
            terms: Terms {
                addresses: [[0x20; 16].into(), [0x21; 16].into(), [0x22; 16].into()],
                esn: false,
                window: 64,
                exchange: None,
            },
            inbound: vec![inbound(5001, None), inbound(5002, None)],
            outbound: vec![outbound(300, SaKey::aes_256_gcm(&[8; 32], [6; 4]), None)],
            pending: Pending::default(),
            handshake: None,
            counters: String::new(),
        };
        State {
            routes: vec![negotiated, manual],
            given: Used {
                key: [3; 32],
                outbound: vec![([1; 16], highest(12, 1 << 56))],
                inbound: vec![([2; 16], highest(13, 0)), ([4; 16], highest(14, 0))],
            },
            neighbors: vec![(true, v4(9), [2, 0, 0, 0, 0, 9])],
            paths: vec![(v4(3), 1400, at(1 << 41))],
            sa_ttl: Duration::from_secs(600),
            counters: r#"{"a":1}"#.into(),
        }
    }

    #[test]
    fn a_state_reads_back_as_it_was() {
        for state in [state(), State::default()] {
            let read = State::from_bytes(&state.to_bytes());
            assert!(read.is_ok_and(|read| read == state));
        }
    }

    fn error(bytes: &[u8]) -> Option<Error> {
        State::from_bytes(bytes).err()
    }

    #[test]
    fn what_is_truncated_or_longer_or_of_another_version_is_refused() {
        let bytes = state().to_bytes();
        for len in 0..bytes.len() {
            assert!(error(&bytes[..len]).is_some(), "{len}");
        }
        let long: Vec<u8> = bytes.iter().copied().chain([0]).collect();
        assert_eq!(error(&long), Some(Error::Malformed));
        let mut other = bytes.to_vec();
        other[11] += 1;
        assert_eq!(error(&other), Some(Error::Version(VERSION + 1)));
        // Its sender would go on with IVs that this program does not know.
        other[11] = 3;
        assert_eq!(error(&other), Some(Error::Version(3)));
        other[0] = b't';
        assert_eq!(error(&other), Some(Error::Name));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        type Change = fn(&mut State);
        let changes: [(&str, Change); 14] = [
            ("negotiated keys of a manual route", |s| {
                s.routes[1].pending = s.routes[0].pending.clone();
            }),
            ("a name twice", |s| s.routes[1].id = "a".into()),
            ("an SPI twice", |s| s.routes[1].inbound[0].spi = 5000),
            ("a reserved SPI", |s| s.routes[1].inbound[0].spi = 255),
            ("a reserved outbound SPI", |s| {
                s.routes[1].outbound[0].spi = 0;
            }),
            ("more packets than numbers", |s| {
                s.routes[1].outbound[0].sent.packets = 901;
            }),
            ("a window without its top", |s| {
                s.routes[1].inbound[0].opened.received.words[0] = 0;
            }),
            ("an end of manual keys", |s| {
                s.routes[1].inbound[0].life = s.routes[0].inbound[0].life;
            }),
            ("no end of negotiated keys", |s| {
                s.routes[0].outbound[0].life = None;
            }),
            ("IVs of a manual key without an end", |s| {
                s.routes[1].outbound[0].sent.iv_base += 1;
            }),
            ("IVs of negotiated keys that do not begin at 0", |s| {
                s.routes[0].outbound[0].sent.iv_base = 1;
            }),
            ("IVs of a key that is gone without an end", |s| {
                s.given.outbound[0].1.iv_base = IV_BASE_MAX + 1;
            }),
            ("IVs of an inbound key", |s| {
                s.given.inbound[1].1.iv_base = 1;
            }),
            ("another AEAD", |s| {
                s.routes[0].outbound[0].key = SaKey::aes_256_gcm(&[1; 32], [1; 4]);
            }),
        ];
        for (what, change) in changes {
            let mut state = state();
            change(&mut state);
            let error = error(&state.to_bytes());
            assert_eq!(error, Some(Error::Malformed), "{what}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_allocate_without_bound(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
            end in any::<prop::sample::Index>(),
        ) {
            let mut bytes = state().to_bytes().to_vec();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.truncate(end.index(2 * bytes.len()));
            if let Ok(state) = State::from_bytes(&bytes) {
                // What is accepted is written as it was read.
                prop_assert_eq!(&state.to_bytes()[..], &bytes[..]);
            }
        }
    }

    #[test]
    fn a_state_of_a_false_length_ends_with_its_bytes() {
        let mut bytes = Writer::default();
        bytes.put(NAME);
        bytes.u32(VERSION);
        bytes.u64(u64::MAX);
        assert_eq!(error(&bytes.into_bytes()), Some(Error::Malformed));
    }
}
