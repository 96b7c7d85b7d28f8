//! Codes, and the particulars of the last failure of each thread.

use std::cell::Cell;
use std::ffi::{c_char, c_int, CStr};
use std::{fmt, io};

use tare_farmem::operation::Error as Refusal;
use tare_farmem::protocol::{Failure, SubmitError};
use tare_farmem::session::Error;
use tare_farmem::transport::shm::ConnectError;

use crate::border::{self, Out};

macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        $(pub(crate) const $name: c_int = $value;)*

        /// The codes of `enum tfm_status`, with their names and sentences.
        const CODES: &[(&str, c_int, &CStr)] = &[$((stringify!($name), $name, $text)),*];
    };
}

codes! {
    TFM_OK = 0, c"success";
    TFM_INVALID_ARGUMENT = 1, c"an argument is NULL, of a wrong size, or unknown";
    TFM_CLOSED = 2, c"the session was disconnected: connect again";
    TFM_BUSY = 3, c"another thread is in a call with this session: one at a time";
    TFM_UNSUPPORTED = 4, c"this version of the library cannot do that";
    TFM_INTERNAL = 5, c"an error of the library: disconnect the session, and report it";
    TFM_NO_COMPLETION = 6, c"no operation has completed";
    TFM_SESSIONS = 7, c"too many sessions in this process: disconnect some";
    TFM_FULL = 16, c"too many operations are outstanding: poll completions first";
    TFM_TOO_LONG = 17, c"more than 1 GiB, or beyond the last address: use several";
    TFM_UNAUTHORIZED = 18, c"no capability for the space: connect with one";
    TFM_OUTCOME_UNKNOWN = 32, c"no answer: it may have happened; read what it was to change";
    TFM_TIMEOUT = 33, c"the node was too slow; nothing happened: try again";
    TFM_NODE_GONE = 34, c"the node does not answer; nothing happened: is it running? A node with a secret answers only clients that have it, or a capability of it";
    TFM_IO = 48, c"the operating system failed: disconnect the session";
    TFM_ADDRESS = 49, c"the node's address cannot be used, expected udp://HOST:PORT";
    TFM_CAPABILITY = 50, c"the text is no capability of the space";
    TFM_NO_SUCH_SPACE = 64, c"no such address space: open it first";
    TFM_PERMISSION = 65, c"no permission for the memory: allocate or grant with it";
    TFM_UNMAPPED = 66, c"no memory at the address: allocate it first";
    TFM_OVERLAP = 67, c"the range is taken: free it, or use another one";
    TFM_QUOTA = 68, c"the quota of the space is used up: free something";
    TFM_OUT_OF_MEMORY = 69, c"the node has no more memory: free something, or use another node";
    TFM_MISALIGNED = 70, c"the address is not a multiple of what the operation needs";
    TFM_LENGTH = 71, c"the range is empty, too long or beyond the last address";
    TFM_LEASE = 72, c"the lease is zero or longer than an hour";
    TFM_LOCKED = 73, c"another holder has the lock: try again";
    TFM_STALE_TOKEN = 74, c"the token is stale, its lease is over: take the lock again";
    TFM_NO_SUCH_REGION = 75, c"no such region, or it is not granted to this space";
    TFM_NAME = 76, c"the name is empty, longer than 64 bytes, or another region has it";
    TFM_IN_USE = 77, c"the memory belongs to a region, or the region is mapped already";
}

/// The reason why a call did not succeed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) code: c_int,
    cause: Cause,
    /// The range of a batch.
    index: Option<u64>,
}

/// The particulars. They own nothing, so that a thread's last failure needs no destructor, which a
/// library that is unloaded would leave behind.
#[derive(Clone, Copy, Debug)]
enum Cause {
    /// No more than the code.
    Code,
    /// An argument, and what was expected.
    Argument(&'static str),
    Failed(Failure),
    Submit(SubmitError),
    Io(c_int),
}

impl Fault {
    /// A fault of which no more is known than its code.
    pub(crate) const fn new(code: c_int) -> Fault {
        Fault {
            code,
            cause: Cause::Code,
            index: None,
        }
    }

    /// An argument that cannot be used: its name, and what was expected.
    pub(crate) const fn argument(expected: &'static str) -> Fault {
        Fault::with_text(TFM_INVALID_ARGUMENT, expected)
    }

    /// A fault with a sentence of its own.
    pub(crate) const fn with_text(code: c_int, text: &'static str) -> Fault {
        Fault {
            cause: Cause::Argument(text),
            ..Fault::new(code)
        }
    }

    /// The same for a range of a batch.
    pub(crate) const fn at_index(self, index: usize) -> Fault {
        Fault {
            index: Some(index as u64),
            ..self
        }
    }

    /// Makes it the last failure of the thread.
    pub(crate) fn record(self) {
        LAST.set(Some(self));
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Fault {
        let code = match failure {
            Failure::Refused(refusal) => code_of(refusal),
            Failure::OutcomeUnknown => TFM_OUTCOME_UNKNOWN,
            Failure::Timeout => TFM_TIMEOUT,
            Failure::NodeGone => TFM_NODE_GONE,
        };
        Fault {
            cause: Cause::Failed(failure),
            ..Fault::new(code)
        }
    }
}

impl From<SubmitError> for Fault {
    fn from(error: SubmitError) -> Fault {
        let code = match error {
            SubmitError::Full => TFM_FULL,
            SubmitError::Length => TFM_TOO_LONG,
            SubmitError::Unauthorized => TFM_UNAUTHORIZED,
        };
        Fault {
            cause: Cause::Submit(error),
            ..Fault::new(code)
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        match error {
            Error::Failed(failure) => failure.into(),
            Error::Part { index, failure } => Fault::from(failure).at_index(index),
            Error::Pages { .. } => Failure::Refused(Refusal::Length).into(),
            Error::Submit(error) => error.into(),
            Error::Io(error) => Fault {
                cause: Cause::Io(number_of(&error)),
                ..Fault::new(TFM_IO)
            },
            Error::Address { .. } | Error::Host { .. } => Fault::new(TFM_ADDRESS),
        }
    }
}

/// Returns the number of an error of the transport: the system's own, or the one that says the
/// same.
fn number_of(error: &io::Error) -> c_int {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let system = match inner {
        Some(ConnectError::Os { source, .. }) => source.raw_os_error(),
        _ => error.raw_os_error(),
    };
    system.unwrap_or(match error.kind() {
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        io::ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::InvalidData => libc::EPROTO,
        _ => libc::EIO,
    })
}

/// Returns the code of a refusal by the node.
const fn code_of(refusal: Refusal) -> c_int {
    match refusal {
        Refusal::NoSuchSpace => TFM_NO_SUCH_SPACE,
        Refusal::Permission { .. } => TFM_PERMISSION,
        Refusal::Unmapped { .. } => TFM_UNMAPPED,
        Refusal::Overlap { .. } => TFM_OVERLAP,
        Refusal::Quota => TFM_QUOTA,
        Refusal::OutOfMemory => TFM_OUT_OF_MEMORY,
        Refusal::Misaligned { .. } => TFM_MISALIGNED,
        Refusal::Length => TFM_LENGTH,
        Refusal::Lease => TFM_LEASE,
        Refusal::Locked { .. } => TFM_LOCKED,
        Refusal::StaleToken => TFM_STALE_TOKEN,
        Refusal::NoSuchRegion => TFM_NO_SUCH_REGION,
        Refusal::Name => TFM_NAME,
        Refusal::InUse => TFM_IN_USE,
    }
}

/// Returns the sentence about a code.
fn sentence(code: c_int) -> &'static CStr {
    let known = CODES.iter().find(|(_, known, _)| *known == code);
    known.map_or(c"an unknown code", |(_, _, text)| text)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(index) = self.index {
            write!(f, "range {index}: ")?;
        }
        match self.cause {
            Cause::Code => f.write_str(&sentence(self.code).to_string_lossy()),
            Cause::Argument(expected) => f.write_str(expected),
            Cause::Failed(failure) => failure.fmt(f),
            Cause::Submit(error) => error.fmt(f),
            Cause::Io(error) => {
                let error = std::io::Error::from_raw_os_error(error);
                write!(f, "the transport failed: {error}")
            }
        }
    }
}

thread_local! {
    static LAST: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// `tfm_error`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Particulars {
    status: c_int,
    os_error: c_int,
    address: u64,
    multiple: u64,
    retry_after_ns: u64,
    index: u64,
}

impl From<Fault> for Particulars {
    fn from(fault: Fault) -> Particulars {
        let mut particulars = Particulars {
            status: fault.code,
            index: fault.index.unwrap_or(0),
            ..Particulars::default()
        };
        match fault.cause {
            Cause::Io(error) => particulars.os_error = error,
            Cause::Failed(Failure::Refused(
                Refusal::Permission { address }
                | Refusal::Unmapped { address }
                | Refusal::Overlap { address },
            )) => particulars.address = address,
            Cause::Failed(Failure::Refused(Refusal::Misaligned { multiple })) => {
                particulars.multiple = multiple;
            }
            Cause::Failed(Failure::Refused(Refusal::Locked { retry_after })) => {
                particulars.retry_after_ns = border::nanoseconds(retry_after);
            }
            _ => {}
        }
        particulars
    }
}

/// The version with a NUL.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Returns the version of the library.
#[no_mangle]
pub extern "C" fn tfm_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// Returns a sentence about a code.
#[no_mangle]
pub extern "C" fn tfm_strerror(status: c_int) -> *const c_char {
    sentence(status).as_ptr()
}

/// Stores the particulars of the last failure of the thread, and returns its code.
///
/// # Safety
/// `error` is NULL or can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_last_error(error: *mut Particulars) -> c_int {
    let last = LAST.get();
    // SAFETY: the same promise.
    if let Ok(error) = unsafe { Out::new(error) } {
        error.set(last.map_or_else(Particulars::default, Particulars::from));
    }
    last.map_or(TFM_OK, |fault| fault.code)
}

/// Writes a sentence about the last failure of the thread, and returns its whole length.
///
/// # Safety
/// `buffer` has `size` bytes that can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_last_message(buffer: *mut c_char, size: usize) -> usize {
    let mut len = 0;
    border::call_quietly(|| {
        let message = match LAST.get() {
            None => sentence(TFM_OK).to_string_lossy().into_owned(),
            Some(fault) => fault.to_string(),
        };
        len = message.len();
        // SAFETY: the same promise.
        unsafe { border::store_text(&message, buffer, size) };
    });
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const HEADER: &str = include_str!("../include/tare_farmem.h");

    #[test]
    fn the_codes_of_the_header_are_those_of_the_library() {
        let declared: Vec<(&str, c_int)> = HEADER
            .lines()
            .skip_while(|line| !line.starts_with("enum tfm_status {"))
            .take_while(|line| !line.starts_with("};"))
            .filter_map(|line| line.trim().trim_end_matches(',').split_once(" = "))
            .map(|(name, value)| (name, value.parse().expect("a number")))
            .collect();
        let known: Vec<(&str, c_int)> = CODES.iter().map(|&(name, code, _)| (name, code)).collect();
        assert_eq!(declared, known);
    }

    #[test]
    fn the_version_of_the_header_is_that_of_the_library() {
        let define = format!("#define TFM_VERSION \"{}\"\n", env!("CARGO_PKG_VERSION"));
        assert!(HEADER.contains(&define), "{define}");
    }

    #[test]
    fn no_two_codes_have_the_same_number_or_sentence() {
        for (at, (name, code, text)) in CODES.iter().enumerate() {
            for (other, same_code, same_text) in &CODES[..at] {
                assert!(code != same_code && text != same_text, "{name} and {other}");
            }
        }
        assert_eq!(sentence(-1), c"an unknown code");
    }

    #[test]
    fn every_refusal_failure_and_submission_error_has_a_code_of_its_own() {
        let (address, multiple) = (0x1000, 8);
        let retry_after = Duration::from_nanos(5);
        let refusals = [
            Refusal::NoSuchSpace,
            Refusal::Permission { address },
            Refusal::Unmapped { address },
            Refusal::Overlap { address },
            Refusal::Quota,
            Refusal::OutOfMemory,
            Refusal::Misaligned { multiple },
            Refusal::Length,
            Refusal::Lease,
            Refusal::Locked { retry_after },
            Refusal::StaleToken,
            Refusal::NoSuchRegion,
            Refusal::Name,
            Refusal::InUse,
        ];
        let failures = [Failure::OutcomeUnknown, Failure::Timeout, Failure::NodeGone];
        let refused = refusals.map(|refusal| Fault::from(Failure::Refused(refusal)).code);
        let failed = failures.map(|failure| Fault::from(failure).code);
        let submit = [
            SubmitError::Full,
            SubmitError::Length,
            SubmitError::Unauthorized,
        ];
        let submit = submit.map(|error| Fault::from(error).code);
        assert_eq!(refused, std::array::from_fn(|at| 64 + at as c_int));
        assert_eq!(failed, [32, 33, 34]);
        assert_eq!(submit, [16, 17, 18]);
    }

    #[test]
    fn particulars_are_those_of_the_failure() {
        let of = |refusal| Particulars::from(Fault::from(Failure::Refused(refusal)));
        assert_eq!(of(Refusal::Unmapped { address: 7 }).address, 7);
        assert_eq!(of(Refusal::Permission { address: 8 }).address, 8);
        assert_eq!(of(Refusal::Overlap { address: 9 }).address, 9);
        assert_eq!(of(Refusal::Misaligned { multiple: 4096 }).multiple, 4096);
        let retry_after = Duration::from_nanos(5);
        assert_eq!(of(Refusal::Locked { retry_after }).retry_after_ns, 5);
        let failure = Failure::Refused(Refusal::Unmapped { address: 7 });
        let part = Fault::from(Error::Part { index: 3, failure });
        assert_eq!(Particulars::from(part).index, 3);
        assert!(part.to_string().starts_with("range 3: no memory at 0x7"));
        let refused = std::io::Error::from_raw_os_error(libc::ENETUNREACH);
        let io = Fault::from(Error::Io(refused));
        assert_eq!((io.code, Particulars::from(io).os_error), (TFM_IO, 101));
        let absent = io::Error::from_raw_os_error(libc::ENOENT);
        let absent = ConnectError::Os {
            doing: "connect",
            source: absent,
        };
        for (error, number) in [
            (absent, libc::ENOENT),
            (ConnectError::Silent, libc::ETIMEDOUT),
            (ConnectError::NotANode, libc::EPROTO),
        ] {
            let fault = Fault::from(Error::Io(error.into()));
            assert_eq!(Particulars::from(fault).os_error, number);
        }
    }
}
