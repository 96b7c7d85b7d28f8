//! Asynchronous use: submit, poll, release.

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use tare_farmem::operation::{Operation, Value};
use tare_farmem::protocol::Completion;

use crate::border::{self, GuardOfC, Out};
use crate::session::{with, Connection, Handle};
use crate::status::{Fault, TFM_NO_COMPLETION, TFM_OK};

/// `tfm_completion`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CompletionOfC {
    id: u64,
    value: u64,
    data: *const c_void,
    len: usize,
    status: c_int,
    reserved: c_int,
}

/// The longest time that one look for completions waits.
const STEP: Duration = Duration::from_secs(3600);

impl Connection {
    /// Takes an operation; stores its number, which is one more than that of the library, so that
    /// no operation has 0.
    fn submit(&mut self, operation: &Operation<'_>, id: Out<u64>) -> Result<(), Fault> {
        let submitted = self.session.submit(operation)?;
        self.outstanding += 1;
        id.set(submitted.0 + 1);
        Ok(())
    }

    /// Returns the next completion, for which it waits at most for so long.
    fn poll(&mut self, wait: Duration) -> Result<Option<Completion>, Fault> {
        let start = Instant::now();
        let mut left = wait;
        // A look may end before its time, for things that the protocol has to do.
        while self.outstanding > 0 {
            if let Some(completion) = self.session.poll(left.min(STEP))? {
                self.outstanding -= 1;
                return Ok(Some(completion));
            }
            left = wait.saturating_sub(start.elapsed());
            // After an error of the transport the session may have lost operations.
            if left.is_zero() || self.session.outstanding() == 0 {
                break;
            }
        }
        Ok(None)
    }

    /// Gives a completion to C. Its data stays here.
    fn lend(&mut self, completion: Completion) -> CompletionOfC {
        let id = completion.id.0 + 1;
        let mut lent = CompletionOfC {
            id,
            value: 0,
            data: std::ptr::null(),
            len: 0,
            status: TFM_OK,
            reserved: 0,
        };
        match completion.outcome {
            Ok(Value::Old(old)) => lent.value = old,
            Ok(_) => {}
            Err(failure) => {
                let fault = Fault::from(failure);
                fault.record();
                lent.status = fault.code;
            }
        }
        if completion.outcome.is_ok() && !completion.data.is_empty() {
            lent.data = completion.data.as_ptr().cast();
            lent.len = completion.data.len();
            self.lent.insert(id, completion);
        } else {
            self.session.release(completion);
        }
        lent
    }
}

/// Submits a read.
///
/// # Safety
/// `id` is NULL or can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_submit_read(
    session: Handle,
    address: u64,
    len: usize,
    id: *mut u64,
) -> c_int {
    // SAFETY: the same promise.
    let id = unsafe { Out::new(id) };
    with(session, |connection| {
        let (id, len) = (id?, border::checked_len(address, len)?);
        connection.submit(&Operation::Read { address, len }, id)
    })
}

/// Submits a write.
///
/// # Safety
/// `data` is NULL or has `len` bytes that stay as they are during the call; `guard` is NULL or can
/// be read, `id` is NULL or can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_submit_write(
    session: Handle,
    address: u64,
    data: *const u8,
    len: usize,
    guard: *const GuardOfC,
    id: *mut u64,
) -> c_int {
    with(session, |connection| {
        // SAFETY: the same promises.
        let (data, guard, id) = unsafe {
            (
                border::bytes(address, data, len)?,
                border::guard(guard),
                Out::new(id)?,
            )
        };
        let write = Operation::Write {
            address,
            data,
            guard,
        };
        connection.submit(&write, id)
    })
}

/// Submits a compare-and-swap.
///
/// # Safety
/// `guard` is NULL or can be read, `id` is NULL or can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_submit_cas(
    session: Handle,
    address: u64,
    expected: u64,
    desired: u64,
    guard: *const GuardOfC,
    id: *mut u64,
) -> c_int {
    // SAFETY: the same promises.
    let (guard, id) = unsafe { (border::guard(guard), Out::new(id)) };
    with(session, |connection| {
        let swap = Operation::CompareAndSwap {
            address,
            expected,
            new: desired,
            guard,
        };
        connection.submit(&swap, id?)
    })
}

/// Submits an addition.
///
/// # Safety
/// As [`tfm_submit_cas`].
#[no_mangle]
pub unsafe extern "C" fn tfm_submit_fetch_add(
    session: Handle,
    address: u64,
    add: u64,
    guard: *const GuardOfC,
    id: *mut u64,
) -> c_int {
    // SAFETY: the same promises.
    let (guard, id) = unsafe { (border::guard(guard), Out::new(id)) };
    with(session, |connection| {
        let add = Operation::FetchAdd {
            address,
            add,
            guard,
        };
        connection.submit(&add, id?)
    })
}

/// Stores the next completion.
///
/// # Safety
/// `completion` is NULL or can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_poll(
    session: Handle,
    wait_ns: u64,
    completion: *mut CompletionOfC,
) -> c_int {
    // SAFETY: the same promise.
    let place = unsafe { Out::new(completion) };
    with(session, |connection| {
        let place = place?;
        let completion = connection.poll(Duration::from_nanos(wait_ns))?;
        let completion = completion.ok_or(Fault::new(TFM_NO_COMPLETION))?;
        place.set(connection.lend(completion));
        Ok(())
    })
}

/// Gives the data of a completion back.
///
/// # Safety
/// `completion` is NULL or can be read and written.
#[no_mangle]
pub unsafe extern "C" fn tfm_release(session: Handle, completion: *mut CompletionOfC) -> c_int {
    with(session, |connection| {
        // SAFETY: the same promise.
        let (place, lent) = unsafe { (Out::new(completion)?, border::optional(completion)) };
        let Some(lent) = lent.filter(|lent| !lent.data.is_null()) else {
            return Ok(());
        };
        let ours = connection.lent.get(&lent.id);
        if ours.is_none_or(|ours| ours.data.as_ptr().cast() != lent.data) {
            return Err(Fault::argument("the session has no such data, or no more"));
        }
        if let Some(ours) = connection.lent.remove(&lent.id) {
            connection.session.release(ours);
        }
        place.set(CompletionOfC {
            data: std::ptr::null(),
            len: 0,
            ..lent
        });
        Ok(())
    })
}

/// Stores the number of operations that were submitted and not polled.
///
/// # Safety
/// `count` is NULL or can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_outstanding(session: Handle, count: *mut u64) -> c_int {
    // SAFETY: the same promise.
    let count = unsafe { Out::new(count) };
    with(session, |connection| {
        count?.set(connection.outstanding);
        Ok(())
    })
}
