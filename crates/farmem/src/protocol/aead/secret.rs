//! The secret of a node, the capabilities that follow from it, and the keys that follow from these.

use std::fmt;
use std::str::FromStr;

use blake2::digest::{KeyInit, Mac};
use blake2::Blake2sMac256;
use data_encoding::BASE64URL_NOPAD;
use zeroize::{zeroize_stack, Zeroize, Zeroizing};

use crate::operation::SpaceId;

/// The secret of a node, from which the keys of all its spaces are derived. It is wiped on drop.
///
/// Its text is `farmem-secret:`, and the bytes with a check sum in base64url. It cannot be printed
/// by accident:
///
/// ```compile_fail
/// println!("{:?}", tare_farmem::protocol::Secret::new(&[0; 32])); // does not compile
/// ```
pub struct Secret(Bytes);

/// The right to act for one space of a node, and to believe its answers. It is wiped on drop.
///
/// The node's operator derives it from the [`Secret`] and hands it to the space's client. A holder
/// can do to the space what its client can, and can pretend towards its client to be the
/// node. It does not lead to the capabilities of other spaces.
///
/// Its text is `farmem-space:`, the number of the space, `:`, and the bytes with a check sum in
/// base64url. It cannot be printed by accident:
///
/// ```compile_fail
/// # use tare_farmem::{operation::SpaceId, protocol::Secret};
/// let capability = Secret::new(&[0; 32]).capability(SpaceId(1));
/// println!("{capability:?}"); // does not compile
/// ```
#[derive(Clone)]
pub struct Capability {
    space: SpaceId,
    key: Bytes,
}

/// 32 secret bytes. They have one place on the heap, so that moving them leaves no copy behind.
type Bytes = Box<Zeroizing<[u8; 32]>>;

/// The inputs that keep keys for different purposes apart. All have one length.
mod label {
    pub(super) const SPACE: &[u8; 16] = b"farmem/1 space  ";
    pub(super) const MESSAGE: &[u8; 16] = b"farmem/1 message";
    pub(super) const CHECK: &[u8; 16] = b"farmem/1 check  ";
}

impl Secret {
    /// The secret with these bytes, which must come from a cryptographic random source. The caller
    /// wipes its copy.
    pub fn new(bytes: &[u8; 32]) -> Secret {
        let mut secret = Bytes::default();
        secret.copy_from_slice(bytes);
        Secret(secret)
    }

    /// Returns a copy, for another part of the node: not by `Clone`, so that none is made by
    /// accident.
    pub fn duplicate(&self) -> Secret {
        Secret::new(&self.0)
    }

    /// Derives the capability of a space.
    pub fn capability(&self, space: SpaceId) -> Capability {
        let key = derive(&self.0, label::SPACE, [space.0, 0]);
        Capability { space, key }
    }

    /// Returns the text, to be kept as secret as the secret itself.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(TEXT_MAX));
        text.push_str(SECRET);
        append(&mut text, &self.0, None);
        text
    }
}

impl Capability {
    /// The space.
    pub fn space(&self) -> SpaceId {
        self.space
    }

    /// Returns the text, to be kept as secret as the capability itself.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(TEXT_MAX));
        text.push_str(SPACE);
        text.push_str(&self.space.0.to_string());
        text.push(':');
        append(&mut text, &self.key, Some(self.space));
        text
    }

    /// Returns the secret bytes, to be shown to a node on this machine.
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.key
    }

    /// Returns true if these are its bytes. It takes the same time whatever they are.
    pub(crate) fn is(&self, shown: &[u8; 32]) -> bool {
        let pairs = self.key.iter().zip(shown);
        let difference = pairs.fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
        difference == 0
    }

    /// Derives the key for messages of an epoch.
    pub(super) fn key(&self, epoch: u64) -> Bytes {
        derive(&self.key, label::MESSAGE, [epoch, self.space.0])
    }
}

/// Keyed BLAKE2s (RFC 7693), a pseudorandom function: one block of key and one of input.
/// HMAC-SHA256 would do as well, and takes twice as many compressions, which every key that is not
/// at hand waits for.
fn derive(key: &[u8; 32], label: &[u8; 16], words: [u64; 2]) -> Bytes {
    let derived = derive_unwiped(key, label, words);
    // The hash keeps the key in its buffer, and has no wipe of its own.
    zeroize_stack::<2048>();
    derived
}

/// Not inlined, so that all it uses of the stack is below its caller.
#[inline(never)]
fn derive_unwiped(key: &[u8; 32], label: &[u8; 16], words: [u64; 2]) -> Bytes {
    let mut mac = <Blake2sMac256 as KeyInit>::new(key.into());
    mac.update(label);
    mac.update(words.map(u64::to_le_bytes).as_flattened());
    let mut output = mac.finalize().into_bytes();
    let mut derived = Bytes::default();
    derived.copy_from_slice(&output);
    output.as_mut_slice().zeroize();
    derived
}

const SECRET: &str = "farmem-secret:";
const SPACE: &str = "farmem-space:";

/// Bytes of the check sum.
const CHECK: usize = 4;

/// Characters of key and check sum.
const CODE: usize = (32 + CHECK) / 3 * 4;

/// The longest text, in bytes: prefix, number, colon, code.
const TEXT_MAX: usize = SECRET.len() + 21 + CODE;

/// Appends bytes and check sum to a text that has room for them, so that it leaves no copy behind.
fn append(text: &mut String, bytes: &[u8; 32], space: Option<SpaceId>) {
    let mut whole = Zeroizing::new([0; 32 + CHECK]);
    whole[..32].copy_from_slice(bytes);
    whole[32..].copy_from_slice(&check(bytes, space));
    BASE64URL_NOPAD.encode_append(&whole[..], text);
}

/// The check sum of a text: whether it is of a space, and of which, is in it.
fn check(bytes: &[u8; 32], space: Option<SpaceId>) -> [u8; CHECK] {
    let words = space.map_or([0, 0], |space| [1, space.0]);
    let sum = derive(bytes, label::CHECK, words);
    [sum[0], sum[1], sum[2], sum[3]]
}

/// The reason why a text is no secret or capability. It does not repeat the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextError {
    /// It does not begin as it should.
    Prefix {
        /// The expected beginning.
        expected: &'static str,
    },
    /// The number of the space is none.
    Space,
    /// There are more or fewer characters behind the last colon.
    Length {
        /// The number of characters found.
        found: usize,
    },
    /// A character that base64url does not have.
    Character {
        /// Its place behind the last colon, from 1 on.
        place: usize,
    },
    /// The check sum does not match: a character, or the number of the space, is wrong.
    Check,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextError::Prefix { expected } => write!(
                f,
                "the text does not begin with \"{expected}\": copy all of what the operator of the \
                 node made"
            ),
            TextError::Space => f.write_str(
                "no number of a space follows \"farmem-space:\": expected one below 2^64 and a colon",
            ),
            TextError::Length { found } => write!(
                f,
                "found {found} characters behind the last colon, expected {CODE}: copy all of it"
            ),
            TextError::Character { place } => write!(
                f,
                "character {place} behind the last colon is none of A-Z, a-z, 0-9, - and _: copy it \
                 again"
            ),
            TextError::Check => f.write_str(
                "the check sum does not match, so that a character or the number of the space is \
                 wrong: copy it again",
            ),
        }
    }
}

impl std::error::Error for TextError {}

fn decode(code: &str, space: Option<SpaceId>) -> Result<Bytes, TextError> {
    let found = code.chars().count();
    if found != CODE {
        return Err(TextError::Length { found });
    }
    if let Some(place) = code.chars().position(|c| !is_code(c)) {
        return Err(TextError::Character { place: place + 1 });
    }
    let mut whole = Zeroizing::new([0; 32 + CHECK]);
    let decoded = BASE64URL_NOPAD.decode_mut(code.as_bytes(), &mut whole[..]);
    decoded.map_err(|_| TextError::Check)?;
    let mut bytes = Bytes::default();
    bytes.copy_from_slice(&whole[..32]);
    match check(&bytes, space) == whole[32..] {
        true => Ok(bytes),
        false => Err(TextError::Check),
    }
}

fn is_code(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

impl FromStr for Secret {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Secret, TextError> {
        let expected = SECRET;
        let code = text.trim().strip_prefix(expected);
        decode(code.ok_or(TextError::Prefix { expected })?, None).map(Secret)
    }
}

impl FromStr for Capability {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Capability, TextError> {
        let expected = SPACE;
        let rest = text.trim().strip_prefix(expected);
        let rest = rest.ok_or(TextError::Prefix { expected })?;
        let (number, code) = rest.split_once(':').ok_or(TextError::Space)?;
        let space = SpaceId(number.parse().map_err(|_| TextError::Space)?);
        let key = decode(code, Some(space))?;
        Ok(Capability { space, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with Python's `hashlib.blake2s(input, key=key)`.
    #[test]
    fn keys_are_those_that_another_implementation_derives() {
        let hex = |bytes: &[u8; 32]| data_encoding::HEXLOWER.encode(bytes);
        let mut bytes = [0; 32];
        (0..32).for_each(|n| bytes[n] = n as u8);
        let capability = Secret::new(&bytes).capability(SpaceId(7));
        assert_eq!(hex(&capability.key), KNOWN[0]);
        assert_eq!(hex(&capability.key(0x1234)), KNOWN[1]);
    }

    const KNOWN: [&str; 2] = [
        "99208abff6e306e267f50123b59c9345d49adbefa163656d39364d5cdaa8809c",
        "3c992fd740d4d7175560a54d356916bcb4e75e33f5ff43a84fb26baa8c09c4eb",
    ];
}
