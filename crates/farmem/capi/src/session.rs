//! Sessions: connect, disconnect, spaces.

use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::time::Duration;

use tare_farmem::operation::SpaceId;
use tare_farmem::protocol::{Capability, ClientConfig, Completion};
use tare_farmem::session::{self, random_id, Session};
use tare_farmem::transport::Waiting;

use crate::border::{self, call, Out};
use crate::status::{Fault, TFM_ADDRESS, TFM_CAPABILITY, TFM_UNSUPPORTED};
use crate::table::Table;

/// `tfm_session`, to which only pointers exist.
#[repr(C)]
#[derive(Debug)]
pub struct Opaque {
    nothing: [u8; 0],
}

/// `tfm_session *`.
pub(crate) type Handle = *mut Opaque;

/// A session, and what C has of it.
pub(crate) struct Connection {
    pub(crate) session: Session,
    /// Operations that were submitted and not polled.
    pub(crate) outstanding: u64,
    /// Completions with data that C reads, by the numbers of their operations.
    pub(crate) lent: HashMap<u64, Completion>,
}

static SESSIONS: Table<Connection> = Table::new();

/// Runs the body of a function for C with a session.
pub(crate) fn with(
    session: Handle,
    body: impl FnOnce(&mut Connection) -> Result<(), Fault>,
) -> c_int {
    call(|| SESSIONS.with(number(session)?, body))
}

fn number(session: Handle) -> Result<u64, Fault> {
    match session.addr() {
        0 => Err(Fault::argument("the session is NULL")),
        number => Ok(number as u64),
    }
}

/// `tfm_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    size: usize,
    timeout_ns: u64,
    busy_ns: u64,
    operations_max: u32,
    datagram_bytes: u32,
}

/// The longest options that any version may have.
const OPTIONS_MAX: usize = 4096;

impl Options {
    /// Returns the options behind a pointer, also those of an older or newer header.
    ///
    /// # Safety
    /// `place` is NULL, or can be read for as many bytes as its first member says.
    unsafe fn from_c(place: *const Options) -> Result<Options, Fault> {
        // SAFETY: the first member is there.
        let Some(size) = (unsafe { border::optional(place.cast::<usize>()) }) else {
            return Ok(Options::default());
        };
        if !(size_of::<usize>()..=OPTIONS_MAX).contains(&size) {
            return Err(Fault::argument(
                "options.size is not the size of the options: use TFM_OPTIONS_INIT",
            ));
        }
        let mut bytes = [0_u8; OPTIONS_MAX];
        // SAFETY: `size` bytes can be read, as promised, and the array is not shorter.
        unsafe {
            bytes
                .as_mut_ptr()
                .copy_from_nonoverlapping(place.cast(), size)
        };
        let (known, newer) = bytes.split_at(size_of::<Options>());
        if newer.iter().any(|byte| *byte != 0) {
            return Err(Fault::with_text(
                TFM_UNSUPPORTED,
                "the options have a member that this version does not know: set it to 0",
            ));
        }
        // SAFETY: as many bytes as the options have, which are integers.
        Ok(unsafe { known.as_ptr().cast::<Options>().read_unaligned() })
    }

    fn client(&self) -> Result<ClientConfig, Fault> {
        let mut config = ClientConfig::new(random_id()?);
        if self.timeout_ns > 0 {
            config.timeout = Duration::from_nanos(self.timeout_ns);
        }
        if self.operations_max > 0 {
            config.operations_max = self.operations_max as usize;
        }
        if self.datagram_bytes > 0 {
            config.datagram_bytes = Some(self.datagram_bytes as usize);
        }
        Ok(config)
    }

    fn waiting(&self) -> Waiting {
        match self.busy_ns {
            0 => Waiting::Asleep,
            u64::MAX => Waiting::Busy,
            busy_ns => Waiting::Adaptive(Duration::from_nanos(busy_ns)),
        }
    }
}

/// Returns the capability of a text, which is that of the space unless the space is 0.
fn parsed(text: &[u8], space: u64) -> Result<Capability, Fault> {
    let text = std::str::from_utf8(text).map_err(|_| Fault::new(TFM_CAPABILITY))?;
    let capability: Capability = text.parse().map_err(|_| Fault::new(TFM_CAPABILITY))?;
    match space == 0 || capability.space() == SpaceId(space) {
        true => Ok(capability),
        false => Err(Fault::new(TFM_CAPABILITY)),
    }
}

/// Opens a session.
///
/// # Safety
/// Texts end with a NUL, `options` is as long as its size says; each pointer may be NULL.
#[no_mangle]
pub unsafe extern "C" fn tfm_connect(
    address: *const c_char,
    space: u64,
    capability: *const c_char,
    options: *const Options,
    session: *mut Handle,
) -> c_int {
    call(|| {
        // SAFETY: the same promises.
        let (address, options, place) = unsafe {
            (
                border::text(address)?,
                Options::from_c(options)?,
                Out::new(session)?,
            )
        };
        let capability = match capability.is_null() {
            true => None,
            // SAFETY: the same promise.
            false => Some(parsed(unsafe { border::text(capability) }?, space)?),
        };
        let address = std::str::from_utf8(address).map_err(|_| Fault::new(TFM_ADDRESS))?;
        let options = session::Options {
            space: (space != 0).then_some(SpaceId(space)),
            client: Some(options.client()?),
            waiting: options.waiting(),
            faults: None,
        };
        let session = match capability {
            None => session::connect(address, &options)?,
            Some(capability) => session::connect_authorized(address, &options, capability)?,
        };
        let number = SESSIONS.insert(Connection {
            session,
            outstanding: 0,
            lent: HashMap::new(),
        })?;
        place.set(std::ptr::without_provenance_mut(number as usize));
        Ok(())
    })
}

/// Ends a session.
#[no_mangle]
pub extern "C" fn tfm_disconnect(session: Handle) -> c_int {
    call(|| {
        if !session.is_null() {
            drop(SESSIONS.remove(number(session)?)?);
        }
        Ok(())
    })
}

/// Stores the number of the space.
///
/// # Safety
/// `space` is NULL or can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_space(session: Handle, space: *mut u64) -> c_int {
    // SAFETY: the same promise.
    let space = unsafe { Out::new(space) };
    with(session, |connection| {
        space?.set(connection.session.space().0);
        Ok(())
    })
}

/// Makes the space, unless it exists.
#[no_mangle]
pub extern "C" fn tfm_open(session: Handle) -> c_int {
    with(session, |connection| Ok(connection.session.open()?))
}

/// Removes the space.
#[no_mangle]
pub extern "C" fn tfm_close(session: Handle) -> c_int {
    with(session, |connection| Ok(connection.session.close()?))
}

/// Asks the node for an answer, and stores the time of the round trip.
///
/// # Safety
/// `round_trip_ns` is NULL or can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_ping(session: Handle, round_trip_ns: *mut u64) -> c_int {
    // SAFETY: the same promise.
    let round_trip_ns = unsafe { Out::new(round_trip_ns) };
    with(session, |connection| {
        let round_trip_ns = round_trip_ns?;
        let time = connection.session.ping()?;
        round_trip_ns.set(border::nanoseconds(time));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::TFM_INVALID_ARGUMENT;

    /// Options in a buffer that ends where they end.
    fn read(size: usize, rest: &[u64]) -> Result<Options, c_int> {
        let words: Vec<u64> = [&[size as u64], rest].concat();
        assert!(size <= 8 * words.len() || size > OPTIONS_MAX);
        // SAFETY: as many bytes as the size says, or a size that is refused.
        let options = unsafe { Options::from_c(words.as_ptr().cast()) };
        options.map_err(|fault| fault.code)
    }

    #[test]
    fn options_of_older_headers_have_defaults_for_the_rest() {
        let options = read(16, &[7]).expect("options");
        assert_eq!((options.timeout_ns, options.busy_ns), (7, 0));
        let config = options.client().expect("random numbers");
        assert_eq!(config.timeout, Duration::from_nanos(7));
        assert_eq!((config.operations_max, config.datagram_bytes), (4096, None));
        assert_eq!(options.waiting(), Waiting::Asleep);
        let config = read(8, &[]).expect("options").client();
        assert_eq!(config.expect("random numbers").timeout.as_millis(), 250);
    }

    #[test]
    fn options_of_newer_headers_are_refused_if_they_are_used() {
        let whole = size_of::<Options>();
        let known = [7, 8, (1024 << 32) | 16];
        let options = read(whole + 8, &[&known[..], &[0]].concat()).expect("options");
        let config = options.client().expect("random numbers");
        assert_eq!(
            (config.operations_max, config.datagram_bytes),
            (16, Some(1024))
        );
        let waiting = Waiting::Adaptive(Duration::from_nanos(8));
        assert_eq!(options.waiting(), waiting);
        let used = [&known[..], &[1 << 63]].concat();
        assert_eq!(read(whole + 8, &used).err(), Some(TFM_UNSUPPORTED));
        // What is behind the options is not looked at.
        assert!(read(whole, &used).is_ok());
    }

    #[test]
    fn options_of_an_impossible_size_are_refused() {
        for size in [0, 1, 7, OPTIONS_MAX + 1, usize::MAX] {
            assert_eq!(read(size, &[0]).err(), Some(TFM_INVALID_ARGUMENT), "{size}");
        }
        // SAFETY: NULL is allowed.
        let defaults = unsafe { Options::from_c(std::ptr::null()) };
        assert_eq!(defaults.map(|options| options.size).ok(), Some(0));
    }
}
