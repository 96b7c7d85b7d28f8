//! Memory in which every access by this program is decoded and counted, byte by byte: `watch.rs`
//! for AArch64.
//!
//! Each instruction that accesses the memory faults. The handler decodes it, counts the bytes that
//! it accesses, opens the memory, and runs a copy of the instruction that is followed by a
//! breakpoint instruction, whose handler closes the memory again. An instruction that is not
//! decoded is reported, never left uncounted.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes in the smallest page.
pub(crate) const PAGE: usize = 4096;

/// Bytes of watched memory.
pub(crate) const LEN: usize = 6 * PAGE;

/// Bytes in the largest page: as many on either side are never accessible.
const GUARD: usize = 64 * 1024;

/// The number of times that a byte has been loaded and stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Count {
    pub(crate) loads: u8,
    pub(crate) stores: u8,
}

/// Handlers belong to the whole program: one watch at a time.
static ONE: Mutex<()> = Mutex::new(());

/// The state of the watch that the handlers serve; null if there is none.
static STATE: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());

struct State {
    start: usize,
    counts: Vec<Count>,
    /// The copy of the instruction, in memory that may be executed.
    copy: *mut u32,
    /// The address of the instruction after the one that is copied.
    next: u64,
    /// Instructions that accessed the memory.
    instructions: usize,
    /// The first instruction that could not be counted, and where it is.
    problem: Option<(u32, u64)>,
    before: [libc::sigaction; 2],
}

/// Watched memory, between pages that are never accessible.
pub(crate) struct Watch {
    state: *mut State,
    _one: MutexGuard<'static, ()>,
}

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGTRAP];

impl Watch {
    pub(crate) fn new() -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let start = map(LEN + 2 * GUARD, libc::PROT_NONE).wrapping_add(GUARD);
        let copy = map(PAGE, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        // SAFETY: all zeros is a valid `sigaction`.
        let none: libc::sigaction = unsafe { std::mem::zeroed() };
        let state = Box::into_raw(Box::new(State {
            start: start.addr(),
            counts: vec![Count::default(); LEN],
            copy: copy.cast(),
            next: 0,
            instructions: 0,
            problem: None,
            before: [none; 2],
        }));
        let handlers: [Handler; 2] = [on_fault, on_breakpoint];
        for (i, handler) in handlers.into_iter().enumerate() {
            // SAFETY: handlers with this signature; the former ones are kept and restored.
            unsafe {
                let mut action = none;
                action.sa_sigaction = handler as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
                let before = &raw mut (*state).before[i];
                assert_eq!(libc::sigaction(SIGNALS[i], &action, before), 0);
            }
        }
        STATE.store(state, Ordering::SeqCst);
        let watch = Self { state, _one: one };
        watch.protect(libc::PROT_READ | libc::PROT_WRITE);
        watch
    }

    /// The address of the watched byte number `at`.
    pub(crate) fn at(&self, at: usize) -> *mut u8 {
        assert!(at <= LEN);
        // SAFETY: the state is alive as long as this.
        ptr::with_exposed_provenance_mut(unsafe { (*self.state).start } + at)
    }

    /// Writes bytes, uncounted.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= LEN);
        // SAFETY: within the memory, which is open; nothing else accesses it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(at), bytes.len()) };
    }

    /// Reads bytes, uncounted.
    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= LEN);
        // SAFETY: within the memory, which is open; nothing else accesses it.
        unsafe { std::slice::from_raw_parts(self.at(at), len) }.to_vec()
    }

    /// Counts the accesses by `work`, afresh; returns its result.
    pub(crate) fn count<T>(&mut self, work: impl FnOnce() -> T) -> T {
        // SAFETY: no handler runs while the memory is open.
        unsafe { (*self.state).counts.fill(Count::default()) };
        self.protect(libc::PROT_NONE);
        let result = work();
        self.protect(libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: as above.
        if let Some((code, at)) = unsafe { (*self.state).problem.take() } {
            panic!("accesses could not be counted: {code:#010x} at {at:#x}");
        }
        result
    }

    /// The counts of all bytes.
    pub(crate) fn counts(&self) -> &[Count] {
        // SAFETY: no handler runs while the memory is open.
        unsafe { &(*self.state).counts }
    }

    /// Returns the number of instructions that have accessed the memory so far.
    pub(crate) fn instructions(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.state).instructions }
    }

    /// Returns the number of masked accesses that go on into a page of which they need nothing: no
    /// instruction that is decoded here is masked.
    pub(crate) fn reaching(&self) -> usize {
        0
    }

    fn protect(&self, access: c_int) {
        // SAFETY: the whole of the watched memory, and with larger pages a part of what is behind.
        assert_eq!(unsafe { libc::mprotect(self.at(0).cast(), LEN, access) }, 0);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        STATE.store(ptr::null_mut(), Ordering::SeqCst);
        // SAFETY: from `Box::into_raw`; the handlers cannot see it any more.
        let state = unsafe { Box::from_raw(self.state) };
        for (signal, before) in SIGNALS.into_iter().zip(&state.before) {
            // SAFETY: what was there before.
            unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
        }
        // SAFETY: both mappings are ours and in use by nothing.
        unsafe {
            let start: *mut u8 = ptr::with_exposed_provenance_mut(state.start - GUARD);
            libc::munmap(start.cast(), LEN + 2 * GUARD);
            libc::munmap(state.copy.cast(), PAGE);
        }
    }
}

fn map(len: usize, access: c_int) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start.expose_provenance();
    start.cast()
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

extern "C" fn on_fault(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's arguments; the state is alive while it can be found here, and the thread
    // that faulted in the watched memory is the one that watches.
    unsafe {
        let address = (*info).si_addr().addr();
        let state = STATE.load(Ordering::SeqCst);
        if state.is_null() || !((*state).start..(*state).start + LEN).contains(&address) {
            // Not ours: it faults again, for what handles it without us.
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            return;
        }
        let (state, context) = (&mut *state, &mut *context.cast::<libc::ucontext_t>());
        let machine = &mut context.uc_mcontext;
        let code: u32 = ptr::read(ptr::with_exposed_provenance(machine.pc as usize));
        match access(code, machine).filter(|access| access.bytes.contains(&address)) {
            Some(access) => state.add(&access),
            None => {
                state.problem.get_or_insert((code, machine.pc));
            }
        }
        libc::mprotect(
            ptr::with_exposed_provenance_mut(state.start),
            LEN,
            libc::PROT_READ | libc::PROT_WRITE,
        );
        // With a problem the memory stays open, and the work goes on to its end.
        if state.problem.is_none() {
            const BREAKPOINT: u32 = 0xd420_0000;
            state.copy.write_volatile(code);
            state.copy.add(1).write_volatile(BREAKPOINT);
            // What is fetched as instructions is what has just been written.
            std::arch::asm!("dc cvau, {p}", "dsb ish", "ic ivau, {p}", "dsb ish", "isb",
                p = in(reg) state.copy);
            state.next = machine.pc + 4;
            machine.pc = state.copy.addr() as u64;
        }
    }
}

extern "C" fn on_breakpoint(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        let state = STATE.load(Ordering::SeqCst);
        let machine = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        if state.is_null() || machine.pc != (*state).copy.add(1).addr() as u64 {
            libc::signal(libc::SIGTRAP, libc::SIG_DFL);
            return;
        }
        machine.pc = (*state).next;
        let start: *mut c_void = ptr::with_exposed_provenance_mut((*state).start);
        libc::mprotect(start, LEN, libc::PROT_NONE);
    }
}

impl State {
    fn add(&mut self, access: &Access) {
        self.instructions += 1;
        for address in access.bytes.clone() {
            let at = address.checked_sub(self.start);
            if let Some(count) = at.and_then(|at| self.counts.get_mut(at)) {
                let which = match access.is_load {
                    true => &mut count.loads,
                    false => &mut count.stores,
                };
                *which = which.saturating_add(1);
            }
        }
    }
}

/// The bytes that an instruction accesses.
struct Access {
    is_load: bool,
    bytes: Range<usize>,
}

/// Decodes an instruction: `LD1` and `ST1` of one register, loads and stores of one general or
/// vector register, and of a pair, with every addressing mode ("Arm Architecture Reference Manual",
/// C4.1, loads and stores).
fn access(code: u32, machine: &libc::mcontext_t) -> Option<Access> {
    let field = |low: u32, bits: u32| code >> low & ((1 << bits) - 1);
    let signed =
        |low: u32, bits: u32| i64::from((field(low, bits) << (32 - bits)) as i32 >> (32 - bits));
    let base = match field(5, 5) {
        31 => machine.sp,
        n => machine.regs[n as usize],
    };
    let is_vector = field(26, 1) == 1;
    let (is_load, len, offset) = if code & 0xffbf_fc00 == 0x4c00_7000 {
        (field(22, 1) == 1, 16, 0)
    } else if field(27, 3) == 0b111 {
        let (size, kind) = (field(30, 2), field(22, 2));
        let (is_load, scale) = match (is_vector, kind) {
            (false, 0) => (false, size),
            (false, 1) => (true, size),
            // With a sign, or a prefetch, which accesses nothing.
            (false, _) => (true, if size == 3 { return None } else { size }),
            (true, kind) => (kind & 1 == 1, (kind & 2) << 1 | size),
        };
        let offset = match (field(24, 2), field(21, 1), field(10, 2)) {
            (0b01, _, _) => i64::from(field(10, 12)) << scale,
            (0b00, 0, 0b00 | 0b11) => signed(12, 9),
            (0b00, 0, 0b01) => 0,
            (0b00, 1, 0b10) => {
                let index = match field(16, 5) {
                    31 => 0,
                    n => machine.regs[n as usize],
                };
                let index = match field(13, 3) {
                    0b010 => i64::from(index as u32),
                    0b110 => i64::from(index as i32),
                    0b011 | 0b111 => index as i64,
                    _ => return None,
                };
                index << if field(12, 1) == 1 { scale } else { 0 }
            }
            _ => return None,
        };
        (is_load, 1 << scale, offset)
    } else if field(27, 3) == 0b101 && field(25, 1) == 0 {
        let scale = match (is_vector, field(30, 2)) {
            (true, size @ 0..3) => 2 + size,
            (false, 0) => 2,
            (false, 2) => 3,
            _ => return None,
        };
        // After the access the base moves, or before it, or not at all.
        let offset = match field(23, 2) {
            0b01 => 0,
            _ => signed(15, 7) << scale,
        };
        (field(22, 1) == 1, 2 << scale, offset)
    } else {
        return None;
    };
    let start = base.wrapping_add_signed(offset) as usize;
    Some(Access {
        is_load,
        bytes: start..start + len,
    })
}
