//! The key exchange of one negotiation: Noise_NNpsk0_25519_AESGCM_BLAKE2s, with everything that
//! both sides must mean the same by in its prologue.

use std::net::IpAddr;
use std::sync::Arc;

use snow::params::NoiseParams;
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use super::counters::{Counters, DropReason};
use super::message::{AeadName, Noise, Nonce, VERSION};
use super::suite::{KeyMaterial, Secrets, Suite};
use crate::config::{Aead, PresharedKey, SaKey};

/// A private key or a mask, fresh.
pub(crate) type Seed = Zeroizing<[u8; 32]>;

/// The parameters of a handshake.
pub(crate) struct Terms<'a> {
    pub(crate) spi: u32,
    pub(crate) initiator: IpAddr,
    pub(crate) responder: IpAddr,
    pub(crate) aead: Aead,
    pub(crate) nonce: &'a Nonce,
    pub(crate) psk: &'a PresharedKey,
}

impl Terms<'_> {
    pub(crate) fn prologue(&self) -> [u8; 104] {
        let mut prologue = [0; 104];
        let parts: [&[u8]; 6] = [
            &VERSION.to_be_bytes(),
            &self.spi.to_be_bytes(),
            &octets(self.initiator),
            &octets(self.responder),
            &aead_name(self.aead),
            self.nonce,
        ];
        let bytes = parts.into_iter().flatten();
        prologue
            .iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        prologue
    }

    /// Both states of the handshake: before its first message.
    fn begin(
        &self,
        mask: Seed,
        initiator: bool,
    ) -> Result<(HandshakeState, Arc<Secrets>), DropReason> {
        let params: NoiseParams = "Noise_NNpsk0_25519_AESGCM_BLAKE2s".parse().map_err(cause)?;
        let secrets = Arc::new(Secrets::new(mask));
        let psk = secrets.mask(self.psk.bytes());
        let prologue = self.prologue();
        let builder = Builder::with_resolver(params, Box::new(Suite(Arc::clone(&secrets))))
            .prologue(&prologue)
            .and_then(|builder| builder.psk(0, &psk))
            .map_err(cause)?;
        let noise = if initiator {
            builder.build_initiator()
        } else {
            builder.build_responder()
        };
        Ok((noise.map_err(cause)?, secrets))
    }
}

/// An address in the 16 bytes that it has, IPv4 in the first four.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns the name of an AEAD in challenges and prologues. Vita knows the first.
pub(crate) fn aead_name(aead: Aead) -> AeadName {
    let name: &[u8] = match aead {
        Aead::Aes128Gcm => b"aes-gcm-16-icv",
        Aead::Aes256Gcm => b"aes-256-gcm-16-icv",
    };
    let mut padded = [0; 32];
    padded
        .iter_mut()
        .zip(name)
        .for_each(|(to, from)| *to = *from);
    padded
}

/// The keys of the initiator's inbound SA and of the responder's.
pub(crate) struct KeyPair {
    pub(crate) initiator: SaKey,
    pub(crate) responder: SaKey,
}

impl KeyPair {
    /// Key and salt of the one, then of the other.
    fn of(aead: Aead, material: &KeyMaterial) -> Option<KeyPair> {
        fn sa<const N: usize>(
            bytes: &[u8],
            make: fn(&[u8; N], [u8; 4]) -> SaKey,
        ) -> Option<(SaKey, &[u8])> {
            let (key, rest) = bytes.split_first_chunk()?;
            let (salt, rest) = rest.split_first_chunk()?;
            Some((make(key, *salt), rest))
        }
        let next = |bytes| match aead {
            Aead::Aes128Gcm => sa(bytes, SaKey::aes_128_gcm),
            Aead::Aes256Gcm => sa(bytes, SaKey::aes_256_gcm),
        };
        let (initiator, rest) = next(&material[..])?;
        let (responder, _) = next(rest)?;
        Some(KeyPair {
            initiator,
            responder,
        })
    }
}

/// The initiator between its proposal and the responder's agreement.
pub(crate) struct Proposed {
    noise: HandshakeState,
    secrets: Arc<Secrets>,
    aead: Aead,
    pub(crate) proposal: Noise,
}

impl Proposed {
    /// Offers `spi` for the initiator's inbound SA.
    pub(crate) fn new(
        terms: &Terms<'_>,
        spi: u32,
        mask: Seed,
        ephemeral: Seed,
        counters: &mut Counters,
    ) -> Result<Proposed, DropReason> {
        let (mut noise, secrets) = terms.begin(mask, true)?;
        secrets.set_ephemeral(ephemeral);
        let mut proposal = [0; 80];
        let written = noise.write_message(&payload(spi), &mut proposal);
        counters.diffie_hellman += secrets.take_diffie_hellman();
        written.map_err(cause)?;
        Ok(Proposed {
            noise,
            secrets,
            aead: terms.aead,
            proposal,
        })
    }

    /// The SPI of the responder's inbound SA and the keys. An agreement that is refused changes
    /// nothing.
    pub(crate) fn accept(
        &mut self,
        agreement: &Noise,
        counters: &mut Counters,
    ) -> Result<(u32, KeyPair), DropReason> {
        let mut payload = [0; 32];
        let read = self.noise.read_message(agreement, &mut payload);
        counters.diffie_hellman += self.secrets.take_diffie_hellman();
        read.map_err(cause)?;
        Ok((spi_of(&payload)?, key_pair(self.aead, &self.secrets)?))
    }
}

/// The responder between an authentic proposal and its agreement.
pub(crate) struct Answer {
    noise: HandshakeState,
    secrets: Arc<Secrets>,
    aead: Aead,
    /// The SPI of the initiator's inbound SA.
    pub(crate) spi: u32,
}

impl Answer {
    /// Reads a proposal; hashes and a cipher tell whether it is authentic, without a Diffie-Hellman
    /// operation.
    pub(crate) fn read(
        terms: &Terms<'_>,
        proposal: &Noise,
        mask: Seed,
    ) -> Result<Answer, DropReason> {
        let (mut noise, secrets) = terms.begin(mask, false)?;
        let mut payload = [0; 32];
        noise.read_message(proposal, &mut payload).map_err(cause)?;
        Ok(Answer {
            noise,
            secrets,
            aead: terms.aead,
            spi: spi_of(&payload)?,
        })
    }

    /// Agrees, with `spi` for the responder's inbound SA.
    pub(crate) fn agree(
        mut self,
        spi: u32,
        ephemeral: Seed,
        counters: &mut Counters,
    ) -> Result<(Noise, KeyPair), DropReason> {
        self.secrets.set_ephemeral(ephemeral);
        let mut agreement = [0; 80];
        let written = self.noise.write_message(&payload(spi), &mut agreement);
        counters.diffie_hellman += self.secrets.take_diffie_hellman();
        written.map_err(cause)?;
        Ok((agreement, key_pair(self.aead, &self.secrets)?))
    }
}

fn key_pair(aead: Aead, secrets: &Secrets) -> Result<KeyPair, DropReason> {
    let split = secrets.take_split().ok_or(DropReason::Unexpected)?;
    KeyPair::of(aead, &split).ok_or(DropReason::Unexpected)
}

/// An SPI and 28 bytes that mean nothing: Vita sends what was left there.
fn payload(spi: u32) -> [u8; 32] {
    let mut payload = [0; 32];
    let (to, _) = payload.split_at_mut(4);
    to.copy_from_slice(&spi.to_be_bytes());
    payload
}

fn spi_of(payload: &[u8; 32]) -> Result<u32, DropReason> {
    let [a, b, c, d, ..] = *payload;
    // RFC 4303, 2.1: "The set of SPI values in the range 1 through 255 are reserved".
    match u32::from_be_bytes([a, b, c, d]) {
        0..=255 => Err(DropReason::Spi),
        spi => Ok(spi),
    }
}

fn cause(error: snow::Error) -> DropReason {
    match error {
        snow::Error::Decrypt => DropReason::Authentication,
        snow::Error::Dh => DropReason::PublicKey,
        _ => DropReason::Unexpected,
    }
}
