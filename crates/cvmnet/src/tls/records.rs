//! Records, opened and sealed by `tare-gcm`.

use rustls::ConnectionTrafficSecrets;
use tare_gcm::{Key, NonceScheme, SealingContext, SharedRead, SharedWrite, Tag};
use tare_memory::View;

use super::{Alert, ContentType, Error, Header, DATA_MAX, OVERHEAD};

/// The records after which a key is replaced. RFC 8446, section 5.5, lets AES-GCM seal 2^24.5 full
/// ones.
const RECORDS: u64 = 1 << 23;
/// The pieces of one record that need no allocation: a record in frames of 1500 bytes has 12.
const PIECES: usize = 32;

/// A part of a record, where it lies.
#[derive(Clone, Copy)]
pub enum Piece<'a> {
    /// In memory that the host may write to.
    Shared(View<'a>),
    /// In private memory: small segments are copied out of the shared pool.
    Private(&'a [u8]),
}

impl<'a> Piece<'a> {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Piece::Shared(view) => view.len(),
            Piece::Private(bytes) => bytes.len(),
        }
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a part of the bytes; `None` if there are fewer.
    pub fn range(self, start: usize, len: usize) -> Option<Piece<'a>> {
        match self {
            Piece::Shared(view) => view.range(start, len).map(Piece::Shared),
            Piece::Private(bytes) => {
                let end = start.checked_add(len)?;
                bytes.get(start..end).map(Piece::Private)
            }
        }
    }

    /// Copies all bytes, each read once; `None` if `to` has another length.
    pub fn copy_to(self, to: &mut [u8]) -> Option<()> {
        if to.len() != self.len() {
            return None;
        }
        match self {
            Piece::Shared(view) => view.copy_to(to),
            Piece::Private(bytes) => {
                to.copy_from_slice(bytes);
                Some(())
            }
        }
    }
}

impl<'a> From<Piece<'a>> for SharedRead<'a> {
    fn from(piece: Piece<'a>) -> Self {
        match piece {
            Piece::Shared(view) => view.into(),
            Piece::Private(bytes) => bytes.into(),
        }
    }
}

/// The way in which a record is opened.
#[derive(Clone, Copy)]
pub enum Reading<'a> {
    /// Each byte is read once: what was authenticated is what is decrypted.
    Once,
    /// As by most libraries: a second reading is decrypted, whatever was written since the first.
    /// For comparison only. The function is called between them.
    Twice(&'a dyn Fn()),
}

/// The memory that a record is sealed into.
pub enum Room<'a> {
    /// Memory that the host may read and write at any time.
    Shared(View<'a>),
    /// Private memory, from which the record is copied out later.
    Private(&'a mut [u8]),
}

/// The peer's records under one secret.
pub(super) struct Opener {
    key: Key,
    scheme: NonceScheme,
    sequence: u64,
}

/// Records of our own under one secret.
pub(super) struct Sealer {
    context: SealingContext,
    /// The first sequence number at which the key is to be replaced.
    due: u64,
}

/// Returns the key and the nonces of a secret.
fn derive(secrets: &ConnectionTrafficSecrets) -> Result<(Key, NonceScheme), Error> {
    let (ConnectionTrafficSecrets::Aes128Gcm { key, iv }
    | ConnectionTrafficSecrets::Aes256Gcm { key, iv }) = secrets
    else {
        return Err(Error::Usage("only AES-GCM is spoken after the handshake"));
    };
    let iv: [u8; 12] = iv
        .as_ref()
        .try_into()
        .map_err(|_| Error::Usage("an initialisation vector of TLS has 12 bytes"))?;
    let key =
        Key::new(key.as_ref()).map_err(|_| Error::Usage("a key of AES-GCM has 16 or 32 bytes"))?;
    Ok((key, NonceScheme::Xor(iv)))
}

impl Opener {
    pub(super) fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, Error> {
        let (key, scheme) = derive(&secrets)?;
        Ok(Opener {
            key,
            scheme,
            sequence,
        })
    }

    /// Opens the next record. Returns its content's type and length; the content is at the front of
    /// `out`, which needs [`Header::body_len`] − 16 bytes.
    pub(super) fn open(
        &mut self,
        reading: Reading<'_>,
        header: Header,
        pieces: &[Piece<'_>],
        out: &mut [u8],
    ) -> Result<(ContentType, usize), Error> {
        let body: usize = pieces.iter().map(Piece::len).sum();
        if body != header.body_len() {
            return Err(Error::Usage(
                "the pieces of a record are as long as its header says",
            ));
        }
        let Some(len) = body.checked_sub(Tag::LEN) else {
            return Err(Error::Peer(Alert::BAD_RECORD_MAC));
        };
        let Some(out) = out.get_mut(..len) else {
            return Err(Error::Usage("the buffer is shorter than the record"));
        };
        let tag = tag(pieces, len).ok_or(Error::Peer(Alert::INTERNAL_ERROR))?;
        let nonce = self.scheme.nonce(self.sequence);
        self.sequence = self
            .sequence
            .checked_add(1)
            .ok_or(Error::Peer(Alert::INTERNAL_ERROR))?;
        let aad = header.as_bytes();
        with_ciphertext(pieces, len, |ciphertext| match reading {
            Reading::Once => {
                let mut out = [&mut out[..]];
                self.key
                    .open_scattered(&nonce, aad, ciphertext, &tag, &mut out)
            }
            Reading::Twice(between) => {
                let out = &mut out[..];
                self.key
                    .open_reading_twice(&nonce, aad, ciphertext, &tag, out, between)
            }
        })
        .map_err(|_| Error::Peer(Alert::BAD_RECORD_MAC))?;
        // The content's type is the last byte that is not zero; zeros after it are padding.
        let found = out.iter().enumerate().rfind(|(_, byte)| **byte != 0);
        let (len, number) = found.ok_or(Error::Peer(Alert::UNEXPECTED_MESSAGE))?;
        if len > DATA_MAX {
            return Err(Error::Peer(Alert::RECORD_OVERFLOW));
        }
        let content = ContentType::from_number(*number)
            .filter(|content| *content != ContentType::ChangeCipherSpec)
            .ok_or(Error::Peer(Alert::UNEXPECTED_MESSAGE))?;
        Ok((content, len))
    }
}

/// Copies the tag, which may lie in several pieces, each byte once.
fn tag(pieces: &[Piece<'_>], at: usize) -> Option<Tag> {
    let mut tag = [0; Tag::LEN];
    let (mut before, mut filled) = (0, 0);
    for piece in pieces {
        let skipped = at.saturating_sub(before).min(piece.len());
        before += piece.len();
        let len = piece.len() - skipped;
        let to = tag.get_mut(filled..filled + len)?;
        piece.range(skipped, len)?.copy_to(to)?;
        filled += len;
    }
    (filled == Tag::LEN).then(|| Tag::from(tag))
}

/// Calls `use_it` with the first `len` bytes of the pieces.
fn with_ciphertext<R>(
    pieces: &[Piece<'_>],
    len: usize,
    use_it: impl FnOnce(&[SharedRead<'_>]) -> R,
) -> R {
    let mut left = len;
    let parts = pieces.iter().map_while(|piece| {
        let len = piece.len().min(left);
        left -= len;
        let part = piece.range(0, len).filter(|part| !part.is_empty());
        part.map(SharedRead::from)
    });
    if pieces.len() <= PIECES {
        let mut few = [SharedRead::from(&[][..]); PIECES];
        let mut count = 0;
        for (to, part) in few.iter_mut().zip(parts) {
            *to = part;
            count += 1;
        }
        use_it(few.get(..count).unwrap_or(&[]))
    } else {
        use_it(&parts.collect::<Vec<_>>())
    }
}

impl Sealer {
    pub(super) fn new(secrets: (u64, ConnectionTrafficSecrets)) -> Result<Self, Error> {
        Sealer::with_records(secrets, RECORDS)
    }

    /// As [`Sealer::new`], with a key that is replaced after another number of records.
    pub(super) fn with_records(
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
        records: u64,
    ) -> Result<Self, Error> {
        let (key, scheme) = derive(&secrets)?;
        let due = sequence.saturating_add(records);
        // What closes the connection, or replaces the key, is sealed with the same one.
        let last = due.saturating_add(8);
        Ok(Sealer {
            context: SealingContext::new(key, scheme, sequence, last),
            due,
        })
    }

    /// Returns true if the key has sealed as much as it should.
    pub(super) fn is_due(&self) -> bool {
        self.context
            .next_sequence()
            .is_none_or(|next| next >= self.due)
    }

    /// Seals a record into its room and returns its length in bytes.
    pub(super) fn seal(&mut self, data: &[&[u8]], room: Room<'_>) -> Result<usize, Error> {
        const SHORT: Error = Error::Usage("the room is shorter than the record");
        let len: usize = data.iter().map(|piece| piece.len()).sum();
        let content = ContentType::ApplicationData;
        match room {
            Room::Shared(out) => {
                let part = |start, len| out.range(start, len).ok_or(SHORT);
                let (first, body) = (part(0, Header::LEN)?, part(Header::LEN, len + 1)?);
                let last = part(Header::LEN + len + 1, Tag::LEN)?;
                let (header, tag) = self.sealed(content, data, len, SharedWrite::from(body))?;
                first.copy_from(header.as_bytes()).ok_or(SHORT)?;
                tag.store(SharedWrite::from(last)).map_err(|_| SHORT)?;
            }
            Room::Private(out) => {
                let out = out.get_mut(..len + OVERHEAD).ok_or(SHORT)?;
                let (first, rest) = out.split_at_mut(Header::LEN);
                let (body, last) = rest.split_at_mut(len + 1);
                let (header, tag) = self.sealed(content, data, len, SharedWrite::from(body))?;
                first.copy_from_slice(header.as_bytes());
                last.copy_from_slice(tag.as_bytes());
            }
        }
        Ok(len + OVERHEAD)
    }

    /// Seals a record at the end of `out`, which is private.
    pub(super) fn seal_message(
        &mut self,
        content: ContentType,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let mut body = vec![0; message.len() + 1];
        let (header, tag) = self.sealed(
            content,
            &[message],
            message.len(),
            SharedWrite::from(&mut body[..]),
        )?;
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(&body);
        out.extend_from_slice(tag.as_bytes());
        Ok(())
    }

    /// Seals `len` bytes of data and the type of the content.
    fn sealed(
        &mut self,
        content: ContentType,
        data: &[&[u8]],
        len: usize,
        body: SharedWrite<'_>,
    ) -> Result<(Header, Tag), Error> {
        let inner = u16::try_from(len + 1 + Tag::LEN)
            .ok()
            .filter(|_| len <= DATA_MAX)
            .ok_or(Error::Usage("a record carries at most 16 KiB of data"))?;
        let header = Header::encrypted(inner);
        let content = [content as u8];
        let mut body = [body];
        let sealed = match data {
            [] => self.seal_pieces(&header, &[&content], &mut body),
            [one] => self.seal_pieces(&header, &[one, &content], &mut body),
            [one, two] => self.seal_pieces(&header, &[one, two, &content], &mut body),
            many => {
                let mut pieces = many.to_vec();
                pieces.push(&content);
                self.seal_pieces(&header, &pieces, &mut body)
            }
        };
        Ok((header, sealed.map_err(|_| Error::Over)?))
    }

    fn seal_pieces(
        &mut self,
        header: &Header,
        pieces: &[&[u8]],
        out: &mut [SharedWrite<'_>],
    ) -> Result<Tag, tare_gcm::Error> {
        let (_, tag) = self
            .context
            .seal_scattered(|_| *header.as_bytes(), pieces, out)?;
        Ok(tag)
    }
}
