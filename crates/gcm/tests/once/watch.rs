//! Memory in which every access by this program is decoded and counted, byte by byte.
//!
//! The memory is protected, so each instruction that accesses it faults. The handler decodes the
//! instruction, adds up the bytes of its memory operands (of a masked one those whose mask bit is
//! set), opens the memory, and runs a copy of the instruction that is followed by a breakpoint
//! instruction, whose handler closes the memory again. That takes neither debug registers nor
//! privileges, and works on emulated processors. What a copy cannot do, as a call or a repeated
//! string instruction, is reported, never left uncounted. A copy is kept for when its instruction
//! comes again: a processor, and more so an emulator, takes long to run what has just been written.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess,
    Register, UsedMemory,
};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes in a page.
pub(crate) const PAGE: usize = 4096;

/// Bytes of watched memory.
pub(crate) const LEN: usize = 6 * PAGE;

/// The number of copies that are kept, by the lowest bits of the instruction's address. Where two
/// instructions have the same, the later takes the place of the earlier.
const COPIES: usize = 4096;

/// Bytes of a copy: the longest instruction, and the breakpoint instruction.
const COPY_LEN: usize = 16;

/// The number of times that a byte has been loaded and stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Count {
    pub(crate) loads: u8,
    pub(crate) stores: u8,
}

/// Handlers belong to the whole program: one watch at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Waits until no other test has handlers.
pub(crate) fn one() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of the watch that the handlers serve; null if there is none.
static STATE: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());

struct State {
    start: usize,
    counts: Vec<Count>,
    factory: InstructionInfoFactory,
    /// The copies of instructions, in memory that may be executed.
    copies: *mut u8,
    /// The address of each one's instruction, 0 if there is none, and the instruction.
    known: Vec<(u64, Instruction)>,
    /// The address of the instruction after the one that is copied.
    next: u64,
    /// Instructions that accessed the memory.
    instructions: usize,
    /// Of these, counted afresh with the bytes, the masked ones whose operand goes on into a page
    /// of which the mask selects nothing.
    reaching: usize,
    /// The first instruction that could not be counted, and where it is. Text is made of it later:
    /// QEMU 7.2 enters handlers with a misaligned stack, so they do little.
    problem: Option<(Code, u64)>,
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
        let one = one();
        let start = map(LEN + 2 * PAGE, libc::PROT_NONE).wrapping_add(PAGE);
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let copies = map(COPIES * COPY_LEN, access);
        // SAFETY: all zeros is a valid `sigaction`.
        let none: libc::sigaction = unsafe { std::mem::zeroed() };
        let state = Box::into_raw(Box::new(State {
            start: start.addr(),
            counts: vec![Count::default(); LEN],
            factory: InstructionInfoFactory::new(),
            copies,
            known: vec![(0, Instruction::default()); COPIES],
            next: 0,
            instructions: 0,
            reaching: 0,
            problem: None,
            before: [none; 2],
        }));
        // The decoder makes its tables when it is first used: not within a handler.
        let _ = Decoder::new(64, &[0x90], DecoderOptions::NONE).decode();
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
        unsafe {
            (*self.state).counts.fill(Count::default());
            (*self.state).reaching = 0;
        }
        self.protect(libc::PROT_NONE);
        let result = work();
        self.protect(libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: as above.
        if let Some((code, at)) = unsafe { (*self.state).problem.take() } {
            panic!("accesses could not be counted: {code:?} at {at:#x}");
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

    /// Returns the number of masked accesses, since the counts began, whose operand goes on into a
    /// page of which the mask selects nothing: if it is not mapped, they are slow.
    pub(crate) fn reaching(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.state).reaching }
    }

    fn protect(&self, access: c_int) {
        // SAFETY: the whole of the watched memory.
        assert_eq!(unsafe { libc::mprotect(self.at(0).cast(), LEN, access) }, 0);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        STATE.store(ptr::null_mut(), Ordering::SeqCst);
        // SAFETY: from `Box::into_raw`; the handlers cannot see it any more.
        let state = unsafe { Box::from_raw(self.state) };
        for (signal, before) in SIGNALS.into_iter().zip(&state.before) {
            // SAFETY: what was there before; both mappings are ours and in use by nothing.
            unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
        }
        // SAFETY: as above.
        unsafe {
            let start: *mut u8 = ptr::with_exposed_provenance_mut(state.start - PAGE);
            libc::munmap(start.cast(), LEN + 2 * PAGE);
            libc::munmap(state.copies.cast(), COPIES * COPY_LEN);
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
        let rip = context.uc_mcontext.gregs[libc::REG_RIP as usize] as u64;
        let place = rip as usize % COPIES;
        let copy = state.copies.add(place * COPY_LEN);
        let (known, instruction) = &mut state.known[place];
        if *known != rip {
            const BREAKPOINT: u8 = 0xcc;
            let code: [u8; 15] = ptr::read(ptr::with_exposed_provenance(rip as usize));
            Decoder::with_ip(64, &code, rip, DecoderOptions::NONE).decode_out(instruction);
            ptr::copy_nonoverlapping(code.as_ptr(), copy, instruction.len());
            copy.add(instruction.len()).write_volatile(BREAKPOINT);
            *known = rip;
        }
        let (code, next) = (instruction.code(), instruction.next_ip());
        if state.add(place, context, address).is_none() {
            state.problem.get_or_insert((code, rip));
        }
        libc::mprotect(
            ptr::with_exposed_provenance_mut(state.start),
            LEN,
            libc::PROT_READ | libc::PROT_WRITE,
        );
        // With a problem the memory stays open, and the work goes on to its end.
        if state.problem.is_none() {
            state.next = next;
            context.uc_mcontext.gregs[libc::REG_RIP as usize] = copy.addr() as i64;
        }
    }
}

extern "C" fn on_breakpoint(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        let state = STATE.load(Ordering::SeqCst);
        let context = &mut *context.cast::<libc::ucontext_t>();
        let rip = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
        let is_ours = |state: &State| {
            let start = state.copies.addr();
            (start..=start + COPIES * COPY_LEN).contains(&(*rip as usize))
        };
        if state.is_null() || !is_ours(&*state) {
            libc::signal(libc::SIGTRAP, libc::SIG_DFL);
            return;
        }
        *rip = (*state).next as i64;
        let start: *mut c_void = ptr::with_exposed_provenance_mut((*state).start);
        libc::mprotect(start, LEN, libc::PROT_NONE);
    }
}

impl State {
    /// Counts the bytes that the instruction of a copy is about to access, `fault` among them;
    /// `None` if that is not possible.
    fn add(&mut self, place: usize, context: &libc::ucontext_t, fault: usize) -> Option<()> {
        let (_, instruction) = &self.known[place];
        if instruction.flow_control() != FlowControl::Next
            || instruction.is_ip_rel_memory_operand()
            || instruction.has_rep_prefix()
            || instruction.has_repne_prefix()
        {
            return None;
        }
        self.instructions += 1;
        let mask = opmask(instruction, context);
        let mut found = false;
        for memory in self.factory.info(instruction).used_memory() {
            let (load, store) = match memory.access() {
                OpAccess::None | OpAccess::NoMemAccess => continue,
                OpAccess::Read => (1, 0),
                OpAccess::Write => (0, 1),
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => (1, 1),
                // Conditional: by a mask register, or in a way that is not counted.
                OpAccess::CondRead if mask.is_some() => (1, 0),
                OpAccess::CondWrite if mask.is_some() => (0, 1),
                OpAccess::CondRead | OpAccess::CondWrite => return None,
            };
            let size = memory.memory_size().size();
            let address = memory
                .virtual_address(0, |register, _, _| value(register, context))
                .filter(|_| size > 0)? as usize;
            found |= (address..address + size).contains(&fault);
            let next_page = (address / PAGE + 1) * PAGE;
            let selects = |i: &usize| is_enabled(*i, memory, mask);
            if address + size > next_page && !(next_page - address..size).any(|i| selects(&i)) {
                self.reaching += 1;
            }
            for i in (0..size).filter(selects) {
                if let Some(count) = (address + i)
                    .checked_sub(self.start)
                    .and_then(|at| self.counts.get_mut(at))
                {
                    count.loads = count.loads.saturating_add(load);
                    count.stores = count.stores.saturating_add(store);
                }
            }
        }
        found.then_some(())
    }
}

/// The mask of an instruction that has one, and the elements that it selects among.
fn opmask(instruction: &Instruction, context: &libc::ucontext_t) -> Option<(u64, usize)> {
    let register = instruction.op_mask();
    if register == Register::None {
        return None;
    }
    let width = (0..instruction.op_count())
        .map(|i| instruction.op_register(i))
        .filter(|register| register.is_vector_register())
        .map(Register::size)
        .max()?;
    // SAFETY: the kernel's frame: the legacy area with its own words at 464, the header, whose
    // first word has a bit for each part that is not in its initial state, then the parts where
    // CPUID says.
    let mask = unsafe {
        let area = context.uc_mcontext.fpregs.cast::<u8>();
        const MAGIC: u32 = 0x4650_5853;
        const OPMASK: u32 = 5;
        assert_eq!(area.add(464).cast::<u32>().read_unaligned(), MAGIC);
        if area.add(512).cast::<u64>().read_unaligned() & 1 << OPMASK == 0 {
            0
        } else {
            let at = core::arch::x86_64::__cpuid_count(0xd, OPMASK).ebx as usize;
            area.add(at)
                .cast::<u64>()
                .add(register.number())
                .read_unaligned()
        }
    };
    Some((mask, width))
}

/// Returns true if the mask, if any, selects the `i`-th byte of the memory operand.
fn is_enabled(i: usize, memory: &UsedMemory, mask: Option<(u64, usize)>) -> bool {
    let Some((mask, width)) = mask else {
        return true;
    };
    let size = memory.memory_size();
    let (count, element) = (size.element_count(), size.element_size());
    // A broadcast repeats the operand's elements over the register's.
    (0..width / element).any(|bit| bit % count == i / element && mask >> bit & 1 == 1)
}

/// The value of a register that addresses are made of.
fn value(register: Register, context: &libc::ucontext_t) -> Option<u64> {
    use libc::{
        REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_R8, REG_R9, REG_RAX, REG_RBP,
        REG_RBX, REG_RCX, REG_RDI, REG_RDX, REG_RSI, REG_RSP,
    };
    let index = match register {
        Register::DS | Register::ES | Register::SS | Register::CS => return Some(0),
        Register::RAX => REG_RAX,
        Register::RBX => REG_RBX,
        Register::RCX => REG_RCX,
        Register::RDX => REG_RDX,
        Register::RSI => REG_RSI,
        Register::RDI => REG_RDI,
        Register::RBP => REG_RBP,
        Register::RSP => REG_RSP,
        Register::R8 => REG_R8,
        Register::R9 => REG_R9,
        Register::R10 => REG_R10,
        Register::R11 => REG_R11,
        Register::R12 => REG_R12,
        Register::R13 => REG_R13,
        Register::R14 => REG_R14,
        Register::R15 => REG_R15,
        _ => return None,
    };
    Some(context.uc_mcontext.gregs[index as usize] as u64)
}
