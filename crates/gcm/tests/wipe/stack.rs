//! A thread on a stack that can be read when the thread has ended.

use std::ffi::c_void;

const LEN: usize = 4 << 20;

/// Bytes of the stack between its beginning and the work, where the end of the thread writes.
const DISTANCE: usize = 256 * 1024;

/// A stack whose thread has ended.
pub(crate) struct Stack(*mut c_void);

impl Stack {
    fn new() -> Stack {
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping.
        let stack = unsafe { libc::mmap(std::ptr::null_mut(), LEN, access, flags, -1, 0) };
        assert_ne!(stack, libc::MAP_FAILED);
        Stack(stack)
    }

    /// What is left of the work at an address.
    pub(crate) fn bytes(&self, address: usize, len: usize) -> &[u8] {
        let at = address - self.0.addr();
        assert!(at + len <= LEN);
        // SAFETY: within the mapping, which no thread uses any more.
        unsafe { std::slice::from_raw_parts(self.0.cast::<u8>().add(at), len) }
    }

    /// All that is left of the work.
    pub(crate) fn all(&self) -> &[u8] {
        self.bytes(self.0.addr(), LEN - DISTANCE)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, whole; the borrows of `bytes` have ended.
        unsafe { libc::munmap(self.0, LEN) };
    }
}

struct Job<W, T> {
    work: Option<W>,
    result: Option<T>,
}

extern "C" fn run<W: FnOnce() -> T, T>(job: *mut c_void) -> *mut c_void {
    // SAFETY: the only reference to the job, which outlives the thread.
    let job = unsafe { &mut *job.cast::<Job<W, T>>() };
    let mut distance = [0u8; DISTANCE];
    std::hint::black_box(&mut distance);
    job.result = job.work.take().map(|work| work());
    std::hint::black_box(&mut distance);
    std::ptr::null_mut()
}

/// Runs `work` on a stack of its own; returns the stack and the result.
pub(crate) fn after<W: FnOnce() -> T, T>(work: W) -> (Stack, T) {
    let stack = Stack::new();
    let mut job = Job {
        work: Some(work),
        result: None,
    };
    // SAFETY: a thread on the mapping, joined before anything else happens to mapping or job.
    unsafe {
        let mut attributes = std::mem::zeroed();
        assert_eq!(libc::pthread_attr_init(&mut attributes), 0);
        assert_eq!(
            libc::pthread_attr_setstack(&mut attributes, stack.0, LEN),
            0
        );
        let (mut thread, argument) = (0, (&raw mut job).cast());
        let created = libc::pthread_create(&mut thread, &attributes, run::<W, T>, argument);
        assert_eq!(created, 0);
        assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
        libc::pthread_attr_destroy(&mut attributes);
    }
    (stack, job.result.expect("the work has been done"))
}
