//! Messages, byte for byte; the layout is in `docs/src/farmem-protocol.md`. A message is read once,
//! completely checked, into a type whose parts need no further checks of lengths.

use super::aead::Unauthorized;
use super::protection::Protection;
use crate::operation::{Guard, SpaceId};

/// The version of the protocol.
pub const VERSION: u8 = 1;

/// Length of a request without its body and its trailer, in bytes.
pub const REQUEST_HEADER: usize = 72;

/// Length of a response without its body and its trailer, in bytes.
pub const RESPONSE_HEADER: usize = 48;

/// Longest data of one operation, in bytes: 1 GiB.
pub const OPERATION_MAX: u32 = 1 << 30;

/// Least size of the segments of a segmented write, in bytes. It bounds what a node keeps to
/// remember which have arrived.
pub const SEGMENT_MIN: u32 = 512;

/// Most attempts before its own that a response to a segment may answer too.
pub(super) const RECEIVED_MAX: u64 = 1023;

/// Longest message, in bytes: what a datagram can hold is less, a ring of shared memory may hold
/// more than a datagram.
pub const MESSAGE_MAX: usize = 1 << 20;

/// The bit of the code that tells responses from requests.
const RESPONSE: u8 = 0x80;

/// The flag of a request with a guard; all others are reserved.
const GUARDED: u32 = 1;

/// Length of a guard, in bytes.
pub const GUARD_LEN: usize = 16;

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Request,
    Response,
}

impl Direction {
    /// That of a message with this code.
    #[inline]
    fn of(code: u8) -> Direction {
        match code & RESPONSE {
            0 => Direction::Request,
            _ => Direction::Response,
        }
    }
}

/// The reason why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than its header, or than it says, or longer than [`MESSAGE_MAX`].
    Length,
    /// Another version of the protocol.
    Version,
    /// An unknown kind of protection, or another than the configured one.
    Authentication,
    /// The checksum does not match.
    Checksum,
    /// Not sealed with the key of its space, epoch and direction, or changed since.
    Unauthenticated,
    /// A reserved field that is not zero.
    Reserved,
    /// A request where a response is expected, or the reverse.
    Direction,
    /// Offset, length, segment size and body that do not fit together.
    Segment,
    /// An unknown operation or status, or a body that it cannot have.
    Code,
}

/// One message of a datagram that has been checked as far as both directions share it. The fields
/// are an array, so that no field is looked for behind their end.
#[derive(Clone, Copy)]
struct Frame<'a, const HEADER: usize> {
    code: u8,
    fields: &'a [u8; HEADER],
    /// The bytes behind the fields.
    body: &'a [u8],
}

/// Returns the space and the length of the first message of bytes that came, without any check of
/// the rest; `None` if there is no whole message.
#[inline]
pub fn peek(bytes: &[u8]) -> Option<(SpaceId, usize)> {
    let (first, _) = bytes.split_first_chunk::<16>()?;
    let [_, _, _, _, length @ .., _, _, _, _, _, _, _, _] = *first;
    let length = u32::from_le_bytes(length) as usize;
    let space = u64::from_le_bytes(*first.last_chunk()?);
    (16..=bytes.len())
        .contains(&length)
        .then_some((SpaceId(space), length))
}

/// Returns the space and the address of the first request of bytes that came, and the bytes behind
/// it, without any check of the rest: what is done with them may cost time, but change nothing.
#[inline]
pub(super) fn peek_address(bytes: &[u8]) -> Option<(SpaceId, u64, &[u8])> {
    let (header, _) = bytes.split_first_chunk::<REQUEST_HEADER>()?;
    let words = header.as_chunks::<8>().0;
    let length = (u64::from_le_bytes(words[0]) >> 32) as usize;
    let rest = bytes.get(length.max(REQUEST_HEADER)..)?;
    let (space, address) = (u64::from_le_bytes(words[1]), u64::from_le_bytes(words[6]));
    Some((SpaceId(space), address, rest))
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The operation, by its number in the guide.
    pub code: u8,
    /// The address space that the client acts for.
    pub space: SpaceId,
    /// The number of this attempt, never 0. Every retransmission has a new one, so that each answer
    /// belongs to one attempt and measures its round trip.
    pub id: u64,
    /// The epoch of the node that the client knows; 0 if none.
    pub epoch: u64,
    /// The number of the operation's first attempt, which all others replace; 0 if this is it. It
    /// is always that of the first, not of the latest: the node may have seen any of them.
    pub replaced: u64,
    /// The time when the operation was first sent, in nanoseconds by the node's clock.
    pub sent_ns: u64,
    /// The address that the operation is about.
    pub address: u64,
    /// Bytes that the whole operation transfers.
    pub length: u32,
    /// Position of the body within them.
    pub offset: u32,
    /// Size of all segments but the last; 0 if the operation is in one message.
    pub segment: u32,
    /// The lock under which the operation happens. It takes [`GUARD_LEN`] bytes behind the header.
    pub guard: Option<Guard>,
    /// The data, or the arguments that have no field.
    pub body: &'a [u8],
}

impl<'a> Request<'a> {
    /// Reads the first message of a datagram, which is decrypted in place; returns the rest of the
    /// datagram with it.
    #[inline]
    pub fn parse(
        datagram: &'a mut [u8],
        protection: &mut Protection,
    ) -> Result<(Request<'a>, &'a mut [u8]), Malformed> {
        let (frame, rest) =
            Frame::<REQUEST_HEADER>::parse(datagram, protection, Direction::Request)?;
        let (guard, body) = match frame.u32(68) {
            0 => (None, frame.body),
            GUARDED => {
                let guard = frame.body.split_first_chunk::<GUARD_LEN>();
                let (guard, body) = guard.ok_or(Malformed::Length)?;
                let (lock, token) = (u64_at(guard, 0), u64_at(guard, 8));
                (Some(Guard { lock, token }), body)
            }
            _ => return Err(Malformed::Reserved),
        };
        let request = Request {
            code: frame.code,
            space: SpaceId(frame.u64(8)),
            id: frame.u64(16),
            epoch: frame.u64(24),
            replaced: frame.u64(32),
            sent_ns: frame.u64(40),
            address: frame.u64(48),
            length: frame.u32(56),
            offset: frame.u32(60),
            segment: frame.u32(64),
            guard,
            body,
        };
        if request.id == 0 {
            return Err(Malformed::Reserved);
        }
        request.check_segment()?;
        Ok((request, rest))
    }

    /// The operation's number: that of its first attempt.
    #[inline]
    pub fn operation_id(&self) -> u64 {
        if self.replaced == 0 {
            self.id
        } else {
            self.replaced
        }
    }

    /// Segments start at multiples of their size, and all but the last have exactly that size: two
    /// segments of one operation are the same or do not overlap.
    #[inline]
    fn check_segment(&self) -> Result<(), Malformed> {
        let (length, offset, segment) = (self.length, self.offset, self.segment);
        let fits = match segment {
            0 => length <= OPERATION_MAX && offset == 0,
            _ => {
                (SEGMENT_MIN..length).contains(&segment)
                    && length <= OPERATION_MAX
                    && offset < length
                    && offset % segment == 0
                    && self.body.len() == segment.min(length - offset) as usize
            }
        };
        fits.then_some(()).ok_or(Malformed::Segment)
    }

    /// Appends the message to `out`.
    ///
    /// # Errors
    /// [`Unauthorized`]; nothing is appended then.
    #[inline(always)]
    pub fn emit(&self, protection: &mut Protection, out: &mut Vec<u8>) -> Result<(), Unauthorized> {
        let start = out.len();
        self.emit_header(protection, out);
        if !self.body.is_empty() {
            out.extend_from_slice(self.body);
        }
        protection.seal(Direction::Request, start, out)
    }

    /// Appends what precedes the body.
    #[inline]
    pub(super) fn emit_header(&self, protection: &Protection, out: &mut Vec<u8>) {
        let flags = if self.guard.is_some() { GUARDED } else { 0 };
        let guard = if self.guard.is_some() { GUARD_LEN } else { 0 };
        let length = REQUEST_HEADER + guard + self.body.len() + protection.trailer_len();
        let [a, b, c, d] = (length as u32).to_le_bytes();
        let words = [
            u64::from_le_bytes([VERSION, self.code, protection.number(), 0, a, b, c, d]),
            self.space.0,
            self.id,
            self.epoch,
            self.replaced,
            self.sent_ns,
            self.address,
            u64::from(self.length) | u64::from(self.offset) << 32,
            u64::from(self.segment) | u64::from(flags) << 32,
        ];
        out.extend_from_slice(words.map(u64::to_le_bytes).as_flattened());
        if let Some(Guard { lock, token }) = self.guard {
            out.extend_from_slice(&lock.to_le_bytes());
            out.extend_from_slice(&token.to_le_bytes());
        }
    }
}

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// The status, by its number in the guide, below 128.
    pub status: u8,
    /// The address space of the request.
    pub space: SpaceId,
    /// The number of the attempt that is answered.
    pub id: u64,
    /// The node's epoch.
    pub epoch: u64,
    /// The node's time, in nanoseconds.
    pub time_ns: u64,
    /// The value or the detail of an error.
    pub value: u64,
    /// The data of a read.
    pub body: &'a [u8],
}

impl<'a> Response<'a> {
    /// Reads the first message of a datagram, which is decrypted in place; returns the rest of the
    /// datagram with it.
    #[inline]
    pub fn parse(
        datagram: &'a mut [u8],
        protection: &mut Protection,
    ) -> Result<(Response<'a>, &'a mut [u8]), Malformed> {
        let (frame, rest) =
            Frame::<RESPONSE_HEADER>::parse(datagram, protection, Direction::Response)?;
        let response = Response {
            status: frame.code & !RESPONSE,
            space: SpaceId(frame.u64(8)),
            id: frame.u64(16),
            epoch: frame.u64(24),
            time_ns: frame.u64(32),
            value: frame.u64(40),
            body: frame.body,
        };
        Ok((response, rest))
    }

    /// Appends the message to `out`.
    ///
    /// # Errors
    /// [`Unauthorized`]; nothing is appended then.
    #[inline]
    pub fn emit(&self, protection: &mut Protection, out: &mut Vec<u8>) -> Result<(), Unauthorized> {
        let start = Response::begin(protection, out);
        out.extend_from_slice(self.body);
        self.finish(protection, start, out)
    }

    /// Makes room for the header at the end of `out`, behind which the body is then written;
    /// returns where the message starts. A read writes its data into the reply, without a copy.
    #[inline]
    pub(super) fn begin(protection: &Protection, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        let mut header = [0; RESPONSE_HEADER];
        header[..3].copy_from_slice(&[VERSION, RESPONSE, protection.number()]);
        out.extend_from_slice(&header);
        start
    }

    /// Writes the header in front of the body that is there, and the trailer behind it.
    ///
    /// # Errors
    /// [`Unauthorized`]; header and body are removed then.
    #[inline]
    pub(super) fn finish(
        &self,
        protection: &mut Protection,
        start: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Unauthorized> {
        if let Some(header) = out.get_mut(start..start + RESPONSE_HEADER) {
            header[1] = RESPONSE | self.status;
            let words = [self.space.0, self.id, self.epoch, self.time_ns, self.value];
            for (place, word) in header[8..].as_chunks_mut().0.iter_mut().zip(words) {
                *place = word.to_le_bytes();
            }
        }
        let length = out.len() - start + protection.trailer_len();
        if let Some(place) = out.get_mut(start + 4..start + 8) {
            place.copy_from_slice(&(length as u32).to_le_bytes());
        }
        protection.seal(Direction::Response, start, out)
    }
}

impl<'a, const HEADER: usize> Frame<'a, HEADER> {
    /// Checks version, protection, direction, length and reserved bytes of the first message of a
    /// datagram; returns the rest of the datagram with it.
    #[inline]
    fn parse(
        datagram: &'a mut [u8],
        protection: &mut Protection,
        direction: Direction,
    ) -> Result<(Frame<'a, HEADER>, &'a mut [u8]), Malformed> {
        let (first, _) = datagram.split_first_chunk::<8>().ok_or(Malformed::Length)?;
        let [version, code, number, reserved, length @ ..] = *first;
        if version != VERSION {
            return Err(Malformed::Version);
        }
        if number != protection.number() {
            return Err(Malformed::Authentication);
        }
        if Direction::of(code) != direction {
            return Err(Malformed::Direction);
        }
        let length = u32::from_le_bytes(length) as usize;
        let trailer = protection.trailer_len();
        if length < HEADER + trailer || length > MESSAGE_MAX {
            return Err(Malformed::Length);
        }
        let (message, rest) = datagram
            .split_at_mut_checked(length)
            .ok_or(Malformed::Length)?;
        protection.open(direction, message)?;
        if reserved != 0 {
            return Err(Malformed::Reserved);
        }
        let content = message[..length - trailer].split_first_chunk();
        let (fields, body) = content.ok_or(Malformed::Length)?;
        Ok((Frame { code, fields, body }, rest))
    }

    /// The field at a position within the header.
    #[inline(always)]
    fn u64(&self, at: usize) -> u64 {
        u64_at(self.fields, at)
    }

    #[inline(always)]
    fn u32(&self, at: usize) -> u32 {
        let field = self.fields.get(at..).and_then(|bytes| bytes.first_chunk());
        field.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }
}

#[inline(always)]
fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let field = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    field.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
