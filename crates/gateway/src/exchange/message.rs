//! The four messages, byte for byte: a header of eight bytes (route SPI, type, three reserved) and
//! a body whose length its type fixes. Numbers are big-endian.

use super::counters::DropReason;

/// The version of the protocol.
pub(crate) const VERSION: u32 = 5;

const HEADER: usize = 8;
const KNOCK: u8 = 11;
const CHALLENGE: u8 = 12;
const PROPOSAL: u8 = 13;
const AGREEMENT: u8 = 14;

/// A public key (32), an encrypted payload (32) and its tag (16).
pub(crate) type Noise = [u8; 80];
/// The nonce that the responder expects to be returned.
pub(crate) type Nonce = [u8; 32];
/// The name of an AEAD, padded with zeros.
pub(crate) type AeadName = [u8; 32];

/// Returns true if a message is a challenge: the answer to a knock.
pub(crate) fn is_challenge(message: &[u8]) -> bool {
    message.get(4) == Some(&CHALLENGE)
}

/// A message and the route that it is about.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) spi: u32,
    pub(crate) body: Body<'a>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    /// Its version is for information only: "the responder must not consider it".
    Knock,
    Challenge {
        version: u32,
        aead: &'a AeadName,
        nonce: &'a Nonce,
    },
    Proposal(&'a Noise),
    Agreement(&'a Noise),
}

impl<'a> Message<'a> {
    /// Reads a message that is exactly as long as its type. The reserved bytes may be anything.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Message<'a>, DropReason> {
        let (header, body) = bytes
            .split_first_chunk::<HEADER>()
            .ok_or(DropReason::Length)?;
        let [a, b, c, d, kind, ..] = *header;
        let body = match kind {
            KNOCK => {
                exact::<4>(body)?;
                Body::Knock
            }
            CHALLENGE => {
                let body = exact::<68>(body)?;
                let (version, body) = body.split_first_chunk().ok_or(DropReason::Length)?;
                let (aead, nonce) = body.split_first_chunk().ok_or(DropReason::Length)?;
                Body::Challenge {
                    version: u32::from_be_bytes(*version),
                    aead,
                    nonce: exact(nonce)?,
                }
            }
            PROPOSAL => Body::Proposal(exact(body)?),
            AGREEMENT => Body::Agreement(exact(body)?),
            _ => return Err(DropReason::Type),
        };
        Ok(Message {
            spi: u32::from_be_bytes([a, b, c, d]),
            body,
        })
    }

    /// The bytes of it.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let message = |kind: u8, parts: [&[u8]; 3]| {
            let mut bytes =
                Vec::with_capacity(HEADER + parts.iter().map(|p| p.len()).sum::<usize>());
            bytes.extend_from_slice(&self.spi.to_be_bytes());
            bytes.extend_from_slice(&[kind, 0, 0, 0]);
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
            bytes
        };
        match self.body {
            Body::Knock => message(KNOCK, [&VERSION.to_be_bytes(), &[], &[]]),
            Body::Challenge {
                version,
                aead,
                nonce,
            } => message(CHALLENGE, [&version.to_be_bytes(), aead, nonce]),
            Body::Proposal(noise) => message(PROPOSAL, [noise, &[], &[]]),
            Body::Agreement(noise) => message(AGREEMENT, [noise, &[], &[]]),
        }
    }
}

fn exact<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], DropReason> {
    bytes.try_into().map_err(|_| DropReason::Length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_reads_back_and_at_no_other_length() {
        let (aead, nonce, noise) = ([1; 32], [2; 32], [3; 80]);
        let challenge = Body::Challenge {
            version: VERSION,
            aead: &aead,
            nonce: &nonce,
        };
        let lengths = [12, 76, 88, 88];
        let bodies = [
            Body::Knock,
            challenge,
            Body::Proposal(&noise),
            Body::Agreement(&noise),
        ];
        for (body, length) in bodies.into_iter().zip(lengths) {
            let message = Message {
                spi: 0x0102_0304,
                body,
            };
            let bytes = message.emit();
            assert_eq!(bytes.len(), length);
            assert_eq!(bytes[..4], [1, 2, 3, 4]);
            assert_eq!(Message::parse(&bytes), Ok(message));
            let long: Vec<u8> = bytes.iter().copied().chain([0; 2000]).collect();
            for n in (0..length).chain(length + 1..long.len()) {
                assert_eq!(
                    Message::parse(&long[..n]),
                    Err(DropReason::Length),
                    "{n} bytes"
                );
            }
        }
    }

    #[test]
    fn there_are_four_types() {
        let known = (0..=255)
            .filter(|&kind| Message::parse(&[0, 0, 1, 0, kind, 0, 0, 0]) != Err(DropReason::Type));
        assert_eq!(known.collect::<Vec<u8>>(), [11, 12, 13, 14]);
    }
}
