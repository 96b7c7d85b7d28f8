//! The exchange a second time, from its description and from nothing that the gateway uses to build
//! messages: Noise's specification (revision 34) for NNpsk0, and the prologue, payloads and keys of
//! README.exchange.

use blake2::digest::{KeyInit, Mac};
use blake2::{Blake2s256, Blake2sMac256, Digest};
use curve25519_dalek::MontgomeryPoint;
use tare_gcm::{Key, Nonce, Tag};

pub(crate) fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = <Blake2s256 as Digest>::new();
    parts
        .iter()
        .for_each(|part| Digest::update(&mut hasher, part));
    hasher.finalize().into()
}

/// RFC 2104.
pub(crate) fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let pad = |with: u8| -> [u8; 64] { std::array::from_fn(|n| key.get(n).unwrap_or(&0) ^ with) };
    let mut inner = Blake2s256::new_with_prefix(pad(0x36));
    parts
        .iter()
        .for_each(|part| Digest::update(&mut inner, part));
    hash(&[&pad(0x5c), &inner.finalize()])
}

/// RFC 5869, as many bytes as wanted.
pub(crate) fn hkdf(salt: &[u8; 32], input: &[u8], info: &[u8], length: usize) -> Vec<u8> {
    let key = hmac(salt, &[input]);
    let mut out = Vec::new();
    let mut block: Vec<u8> = Vec::new();
    for counter in 1.. {
        if out.len() >= length {
            break;
        }
        block = hmac(&key, &[&block, info, &[counter]]).to_vec();
        out.extend_from_slice(&block);
    }
    out.truncate(length);
    out
}

pub(crate) fn public(private: &[u8; 32]) -> [u8; 32] {
    MontgomeryPoint::mul_base_clamped(*private).to_bytes()
}

/// A symmetric state.
#[derive(Clone)]
pub(crate) struct Noise {
    h: [u8; 32],
    ck: [u8; 32],
    k: [u8; 32],
}

impl Noise {
    /// After `psk`, before the first `e`.
    pub(crate) fn new(prologue: &[u8], psk: &[u8; 32]) -> Noise {
        let name = hash(&[b"Noise_NNpsk0_25519_AESGCM_BLAKE2s"]);
        let mut noise = Noise {
            h: hash(&[&name, prologue]),
            ck: name,
            k: [0; 32],
        };
        let out = hkdf(&noise.ck, psk, &[], 96);
        noise.ck = out[..32].try_into().unwrap();
        noise.mix_hash(&out[32..64]);
        noise.k = out[64..].try_into().unwrap();
        noise
    }

    fn mix_hash(&mut self, data: &[u8]) {
        self.h = hash(&[&self.h, data]);
    }

    fn mix_key(&mut self, data: &[u8]) {
        let out = hkdf(&self.ck, data, &[], 64);
        self.ck = out[..32].try_into().unwrap();
        self.k = out[32..].try_into().unwrap();
    }

    /// The token `e`, written and read.
    pub(crate) fn e(&mut self, public: &[u8; 32]) {
        self.mix_hash(public);
        self.mix_key(public);
    }

    /// The token `ee`.
    pub(crate) fn ee(&mut self, private: &[u8; 32], public: &[u8; 32]) {
        let shared = MontgomeryPoint(*public).mul_clamped(*private);
        self.mix_key(shared.as_bytes());
    }

    /// The encrypted payload: an SPI and 28 bytes of anything.
    pub(crate) fn payload(&mut self, spi: u32, rest: u8) -> Vec<u8> {
        let mut text = [rest; 32];
        text[..4].copy_from_slice(&spi.to_be_bytes());
        let tag = self
            .key()
            .seal_in_place(Nonce::from([0; 12]), &self.h, &mut text)
            .unwrap();
        let sealed = [&text[..], tag.as_bytes()].concat();
        self.mix_hash(&sealed);
        sealed
    }

    /// Reads a payload written elsewhere.
    pub(crate) fn read(&mut self, sealed: &[u8]) -> u32 {
        self.try_read(sealed).expect("an authentic payload")
    }

    /// The same, and `None` if it is not authentic.
    pub(crate) fn try_read(&mut self, sealed: &[u8]) -> Option<u32> {
        let (text, tag) = sealed.split_at(32);
        let mut text = text.to_vec();
        let tag: [u8; 16] = tag.try_into().unwrap();
        self.key()
            .open_in_place(&Nonce::from([0; 12]), &self.h, &mut text, &Tag::from(tag))
            .ok()?;
        self.mix_hash(sealed);
        Some(u32::from_be_bytes(text[..4].try_into().unwrap()))
    }

    /// The keys of the SAs.
    pub(crate) fn split(&self, length: usize) -> Vec<u8> {
        hkdf(&[0; 32], &self.ck, &[], length)
    }

    fn key(&self) -> Key {
        Key::new(&self.k).unwrap()
    }
}

/// Version, route, both addresses, AEAD and nonce.
pub(crate) fn prologue(
    spi: u32,
    initiator: &[u8],
    responder: &[u8],
    aead: &str,
    nonce: &[u8; 32],
) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 5];
    bytes.extend_from_slice(&spi.to_be_bytes());
    for (part, length) in [(initiator, 16), (responder, 16), (aead.as_bytes(), 32)] {
        bytes.extend_from_slice(part);
        bytes.resize(bytes.len() + length - part.len(), 0);
    }
    bytes.extend_from_slice(nonce);
    assert_eq!(bytes.len(), 104);
    bytes
}

/// The mark that a message of ours between IPv4 addresses carries: BLAKE2s, keyed with a key that
/// is made of the preshared key, of the message, its direction, and what it answers.
pub(crate) fn mark(
    psk: &[u8; 32],
    message: &[u8],
    from: [u8; 4],
    to: [u8; 4],
    answers: &[u8],
) -> [u8; 3] {
    let keyed = |key: &[u8], parts: &[&[u8]]| -> Vec<u8> {
        let mut mac = <Blake2sMac256 as KeyInit>::new_from_slice(key).unwrap();
        parts.iter().for_each(|part| Mac::update(&mut mac, part));
        mac.finalize().into_bytes().to_vec()
    };
    let key = keyed(psk, &[b"tare: marks of messages"]);
    let mapped = [&[0; 10][..], &[0xff; 2]].concat();
    let direction = [&mapped[..], &from, &mapped, &to].concat();
    let mac = keyed(&key, &[&message[..5], &message[8..], &direction, answers]);
    mac[..3].try_into().unwrap()
}

/// A message of a type with these parts.
pub(crate) fn message(spi: u32, kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = spi.to_be_bytes().to_vec();
    bytes.extend_from_slice(&[kind, 0, 0, 0]);
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

#[test]
fn hkdf_gives_what_vita_published_for_it() {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    assert_eq!(
        hex(hkdf(&[0; 32], &[0; 32], &[0; 7], 64)),
        "baa04a3963902ccdb86393e08eeb3f2fb8cf15f817a33628ae42764c990bdecc\
         aeab047ad9f557af0faac0b734150d1175f3a8cdd12631eb32878f3a2600f29c"
    );
    assert_eq!(
        hex(hkdf(&[0; 32], &[0; 32], &[], 13)),
        "1090894613df8aef670b0b867e"
    );
    assert_eq!(
        hex(hmac(&[b'0'; 32], &[b"test"]).to_vec()),
        "51477cc5bdf1faf952cf97bb934ee936de1f4d5d7448a84eeb6f98d23b392166"
    );
}
