//! Operations, values and errors as codes, fields and bodies of messages.

use std::time::Duration;

use super::message::{Malformed, Request};
use crate::operation::{
    Address, Error, Guard, Operation, PageSize, Permission, RegionId, SpaceId, Value,
};

/// The codes of requests.
pub(crate) mod code {
    /// Asks for the epoch, the time and the limits of a node; not an operation.
    pub(crate) const HELLO: u8 = 0;
    pub(crate) const OPEN: u8 = 1;
    pub(crate) const CLOSE: u8 = 2;
    pub(crate) const ALLOC: u8 = 3;
    pub(crate) const FREE: u8 = 4;
    pub(crate) const READ: u8 = 5;
    pub(crate) const WRITE: u8 = 6;
    pub(crate) const COMPARE_AND_SWAP: u8 = 7;
    pub(crate) const FETCH_ADD: u8 = 8;
    pub(crate) const LOCK: u8 = 9;
    pub(crate) const UNLOCK: u8 = 10;
    /// Never sent: a fence is the client's own.
    pub(crate) const FENCE: u8 = 11;
    pub(crate) const REGION: u8 = 12;
    pub(crate) const FIND: u8 = 13;
    pub(crate) const GRANT: u8 = 14;
    pub(crate) const REVOKE: u8 = 15;
    pub(crate) const MAP: u8 = 16;
    pub(crate) const RETIRE: u8 = 17;
}

/// The statuses of responses. Those from 16 on are the errors of operations.
pub(crate) mod status {
    /// The operation ran.
    pub(crate) const DONE: u8 = 0;
    /// The segment arrived; others are missing.
    pub(crate) const RECEIVED: u8 = 1;
    /// The node has no room at present: not run, to be sent again later.
    pub(crate) const BUSY: u8 = 2;
    /// Not run: the request is of another epoch.
    pub(crate) const EPOCH: u8 = 3;
    /// Not run: the request's send time is beyond the horizon.
    pub(crate) const EXPIRED: u8 = 4;
    /// The answer to `HELLO`.
    pub(crate) const HELLO: u8 = 5;
    pub(crate) const ERRORS: u8 = 16;
}

/// Returns true if running it twice is the same as running it once, so that nothing needs to be
/// remembered and an answer that never came leaves nothing unknown.
#[inline]
pub(crate) fn is_idempotent(code: u8) -> bool {
    matches!(code, code::READ | code::FIND)
}

/// An operation as a request carries it, without the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) code: u8,
    pub(crate) address: Address,
    pub(crate) length: u32,
    pub(crate) guard: Option<Guard>,
}

impl Head {
    #[inline]
    pub(crate) fn of_read(address: Address, length: u32) -> Head {
        Head {
            code: code::READ,
            address,
            length,
            guard: None,
        }
    }
}

const AT: u64 = 1 << 16;
const SPARSE: u64 = 1 << 17;

/// Appends the arguments that have no field, or the data, to `body`.
pub(crate) fn encode(operation: &Operation<'_>, body: &mut Vec<u8>) -> Head {
    let mut head = Head::default();
    let mut word = |word: u64| body.extend_from_slice(&word.to_le_bytes());
    match *operation {
        Operation::Open => head.code = code::OPEN,
        Operation::Close => head.code = code::CLOSE,
        Operation::Alloc {
            bytes,
            page,
            at,
            permission,
            sparse,
        } => {
            (head.code, head.address) = (code::ALLOC, at.unwrap_or(0));
            word(bytes);
            let flags = if at.is_some() { AT } else { 0 } | if sparse { SPARSE } else { 0 };
            word(page as u64 | u64::from(permission.bits()) << 8 | flags);
        }
        Operation::Free { address, bytes } => {
            (head.code, head.address) = (code::FREE, address);
            word(bytes);
        }
        Operation::Read { address, len } => {
            head = Head::of_read(address, len);
        }
        Operation::Write {
            address,
            data,
            guard,
        } => {
            (head.code, head.address, head.guard) = (code::WRITE, address, guard);
            head.length = u32::try_from(data.len()).unwrap_or(u32::MAX);
            body.extend_from_slice(data);
        }
        Operation::CompareAndSwap {
            address,
            expected,
            new,
            guard,
        } => {
            (head.code, head.address, head.guard) = (code::COMPARE_AND_SWAP, address, guard);
            word(expected);
            word(new);
        }
        Operation::FetchAdd {
            address,
            add,
            guard,
        } => {
            (head.code, head.address, head.guard) = (code::FETCH_ADD, address, guard);
            word(add);
        }
        Operation::Lock { address, lease } => {
            (head.code, head.address) = (code::LOCK, address);
            word(nanos(lease));
        }
        Operation::Unlock { address, token } => {
            (head.code, head.address) = (code::UNLOCK, address);
            word(token);
        }
        Operation::Fence => head.code = code::FENCE,
        Operation::Region {
            name,
            address,
            bytes,
        } => {
            (head.code, head.address) = (code::REGION, address);
            word(bytes);
            body.extend_from_slice(name);
        }
        Operation::Find { name } => {
            head.code = code::FIND;
            body.extend_from_slice(name);
        }
        Operation::Grant {
            region,
            to,
            permission,
        } => {
            head.code = code::GRANT;
            word(region.0);
            word(to.0);
            word(permission.bits().into());
        }
        Operation::Revoke { region, from } => {
            head.code = code::REVOKE;
            word(region.0);
            word(from.0);
        }
        Operation::Map { region, at } => {
            (head.code, head.address) = (code::MAP, at.unwrap_or(0));
            word(region.0);
            word(if at.is_some() { AT } else { 0 });
        }
        Operation::Retire { region } => {
            head.code = code::RETIRE;
            word(region.0);
        }
    }
    head
}

/// The operation of a request, whose data is `body`: that of the request, or all segments.
pub(crate) fn decode<'a>(
    request: &Request<'_>,
    body: &'a [u8],
) -> Result<Operation<'a>, Malformed> {
    let (address, guard) = (request.address, request.guard);
    let transfers = matches!(request.code, code::READ | code::WRITE);
    let guardable = matches!(
        request.code,
        code::WRITE | code::COMPARE_AND_SWAP | code::FETCH_ADD
    );
    if (guard.is_some() && !guardable) || (request.length != 0 && !transfers) {
        return Err(Malformed::Code);
    }
    let mut arguments = Arguments(body);
    let a = &mut arguments;
    let operation = match request.code {
        code::OPEN => Operation::Open,
        code::CLOSE => Operation::Close,
        code::ALLOC => {
            let (bytes, shape) = (a.word()?, a.word()?);
            let page = PageSize::ALL.get((shape & 0xff) as usize);
            if shape & !(0xffff | AT | SPARSE) != 0 {
                return Err(Malformed::Reserved);
            }
            Operation::Alloc {
                bytes,
                page: *page.ok_or(Malformed::Code)?,
                at: (shape & AT != 0).then_some(address),
                permission: permission(shape >> 8 & 0xff)?,
                sparse: shape & SPARSE != 0,
            }
        }
        code::FREE => Operation::Free {
            address,
            bytes: a.word()?,
        },
        code::READ => Operation::Read {
            address,
            len: request.length,
        },
        code::WRITE if body.len() == request.length as usize => Operation::Write {
            address,
            data: a.rest(),
            guard,
        },
        code::COMPARE_AND_SWAP => Operation::CompareAndSwap {
            address,
            expected: a.word()?,
            new: a.word()?,
            guard,
        },
        code::FETCH_ADD => Operation::FetchAdd {
            address,
            add: a.word()?,
            guard,
        },
        code::LOCK => Operation::Lock {
            address,
            lease: Duration::from_nanos(a.word()?),
        },
        code::UNLOCK => Operation::Unlock {
            address,
            token: a.word()?,
        },
        code::REGION => Operation::Region {
            bytes: a.word()?,
            name: a.rest(),
            address,
        },
        code::FIND => Operation::Find { name: a.rest() },
        code::GRANT => Operation::Grant {
            region: RegionId(a.word()?),
            to: SpaceId(a.word()?),
            permission: permission(a.word()?)?,
        },
        code::REVOKE => Operation::Revoke {
            region: RegionId(a.word()?),
            from: SpaceId(a.word()?),
        },
        code::MAP => Operation::Map {
            region: RegionId(a.word()?),
            at: match a.word()? {
                0 => None,
                AT => Some(address),
                _ => return Err(Malformed::Reserved),
            },
        },
        code::RETIRE => Operation::Retire {
            region: RegionId(a.word()?),
        },
        _ => return Err(Malformed::Code),
    };
    match arguments.0 {
        [] => Ok(operation),
        _ => Err(Malformed::Code),
    }
}

/// The rest of a body.
struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    fn word(&mut self) -> Result<u64, Malformed> {
        let (word, rest) = self.0.split_first_chunk().ok_or(Malformed::Code)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// The status and the value of an outcome.
#[inline]
pub(crate) fn encode_outcome(outcome: Result<Value, Error>) -> (u8, u64) {
    let error = match outcome {
        Ok(value) => {
            let value = match value {
                Value::None => 0,
                Value::Bytes(len) => u64::from(len),
                Value::Address(word) | Value::Old(word) | Value::Token(word) => word,
                Value::Region(region) => region.0,
            };
            return (status::DONE, value);
        }
        Err(error) => error,
    };
    let (number, detail) = match error {
        Error::NoSuchSpace => (0, 0),
        Error::Permission { address } => (1, address),
        Error::Unmapped { address } => (2, address),
        Error::Overlap { address } => (3, address),
        Error::Quota => (4, 0),
        Error::OutOfMemory => (5, 0),
        Error::Misaligned { multiple } => (6, multiple),
        Error::Length => (7, 0),
        Error::Lease => (8, 0),
        Error::Locked { retry_after } => (9, nanos(retry_after)),
        Error::StaleToken => (10, 0),
        Error::NoSuchRegion => (11, 0),
        Error::Name => (12, 0),
        Error::InUse => (13, 0),
    };
    (status::ERRORS + number, detail)
}

/// The outcome of an operation of this code; `None` if it cannot have one like that.
#[inline(always)]
pub(crate) fn decode_outcome(code: u8, status: u8, value: u64) -> Option<Result<Value, Error>> {
    if status == status::DONE {
        return Some(Ok(match code {
            code::READ => Value::Bytes(u32::try_from(value).ok()?),
            code::ALLOC | code::MAP => Value::Address(value),
            code::COMPARE_AND_SWAP | code::FETCH_ADD => Value::Old(value),
            code::LOCK => Value::Token(value),
            code::REGION | code::FIND => Value::Region(RegionId(value)),
            _ => Value::None,
        }));
    }
    decode_error(status, value).map(Err)
}

fn decode_error(status: u8, value: u64) -> Option<Error> {
    Some(match status.checked_sub(status::ERRORS)? {
        0 => Error::NoSuchSpace,
        1 => Error::Permission { address: value },
        2 => Error::Unmapped { address: value },
        3 => Error::Overlap { address: value },
        4 => Error::Quota,
        5 => Error::OutOfMemory,
        6 => Error::Misaligned { multiple: value },
        7 => Error::Length,
        8 => Error::Lease,
        9 => Error::Locked {
            retry_after: Duration::from_nanos(value),
        },
        10 => Error::StaleToken,
        11 => Error::NoSuchRegion,
        12 => Error::Name,
        13 => Error::InUse,
        _ => return None,
    })
}

fn permission(bits: u64) -> Result<Permission, Malformed> {
    let bits = u8::try_from(bits).ok();
    bits.and_then(Permission::from_bits).ok_or(Malformed::Code)
}

#[inline]
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
