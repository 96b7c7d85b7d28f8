//! A session for `async` programs: a thread owns the channel, futures wait for what it completes.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use tare_sim::Instant;

use super::{Error, Session};
use crate::operation::{Address, Guard, Operation, PageSize, Permission, SpaceId, Value};
use crate::protocol::{Completion, OperationId, SubmitError};
use crate::transport::Channel;

/// The longest time that a channel without a descriptor is waited for while operations are
/// outstanding, and with that the longest time that a new one waits then.
const STEP: Duration = Duration::from_micros(100);

/// A session whose operations are futures, which any runtime can poll. Clones share it; the thread
/// behind it ends with the last clone and the last operation.
///
/// Operations are submitted when their future is first polled, in that order. Dropping a future
/// ends the waiting, not the operation.
#[derive(Clone, Debug)]
pub struct AsyncSession {
    shared: Arc<Owner>,
    space: SpaceId,
}

/// The clones' part; dropped with the last of them.
#[derive(Debug)]
struct Owner(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Readable when there is something in the queue and the thread may be asleep.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Job>,
    is_asleep: bool,
    is_closed: bool,
    /// The error that ended the channel.
    failed: Option<(io::ErrorKind, String)>,
}

#[derive(Debug)]
struct Job {
    /// The operation without its data.
    operation: Operation<'static>,
    data: Vec<u8>,
    result: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    result: Option<Result<Completion, Error>>,
    waker: Option<Waker>,
}

/// A future that is ready when its operation has ended.
#[derive(Debug)]
struct Running(Arc<Mutex<Waiting>>);

impl AsyncSession {
    /// Starts a thread that owns a session.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn new<C: Channel + Send + 'static>(session: Session<C>) -> Result<AsyncSession, Error> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let inner = Arc::new(Inner {
            state: Mutex::default(),
            wake: wake.map_err(io::Error::from)?,
        });
        let space = session.space();
        let thread = Thread {
            session,
            inner: Arc::clone(&inner),
            running: HashMap::new(),
            full: VecDeque::new(),
        };
        std::thread::Builder::new()
            .name("farmem-async".to_string())
            .spawn(move || thread.run())?;
        Ok(AsyncSession {
            shared: Arc::new(Owner(inner)),
            space,
        })
    }

    /// Returns the address space.
    pub fn space(&self) -> SpaceId {
        self.space
    }

    /// Runs any operation; that it failed is the outcome of its completion. The bytes of a write
    /// and the name of a region are copied.
    ///
    /// # Errors
    /// Those of the channel and of submission.
    pub async fn run(&self, operation: &Operation<'_>) -> Result<Completion, Error> {
        let (operation, data) = detach(operation);
        self.submit(operation, data.to_vec()).await
    }

    /// Allocates readable and writable memory that reads as zero, in pages of 4 KiB; returns its
    /// first address.
    ///
    /// # Errors
    /// [`Error`], as of all methods here.
    pub async fn alloc(&self, bytes: u64) -> Result<Address, Error> {
        let alloc = Operation::Alloc {
            bytes,
            page: PageSize::Small,
            at: None,
            permission: Permission::READ_WRITE,
            sparse: false,
        };
        let outcome = self.run(&alloc).await?.outcome.map_err(Error::from);
        match outcome.map_err(|error| error.on_pages(bytes, Some(PageSize::Small)))? {
            Value::Address(address) => Ok(address),
            _ => Err(unexpected()),
        }
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn read(&self, address: Address, len: u32) -> Result<Vec<u8>, Error> {
        let completion = self.run(&Operation::Read { address, len }).await?;
        completion.outcome?;
        Ok(completion.data)
    }

    /// Writes bytes, as a whole or not at all.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn write(&self, address: Address, data: Vec<u8>) -> Result<(), Error> {
        let write = Operation::Write {
            address,
            data: &[],
            guard: None,
        };
        self.submit(write, data).await?.outcome?;
        Ok(())
    }

    /// Stores `new` if the value is `expected`; returns the value before.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn compare_and_swap(
        &self,
        address: Address,
        expected: u64,
        new: u64,
    ) -> Result<u64, Error> {
        let swap = Operation::CompareAndSwap {
            address,
            expected,
            new,
            guard: None,
        };
        self.old(swap).await
    }

    /// Adds to a value, with wrap-around; returns the value before.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn fetch_add(&self, address: Address, add: u64) -> Result<u64, Error> {
        let add = Operation::FetchAdd {
            address,
            add,
            guard: None,
        };
        self.old(add).await
    }

    /// Takes the lock of an address until `lease` is over.
    ///
    /// # Errors
    /// [`Error`]; if another holder has it,
    /// [`Locked`](crate::operation::Error::Locked).
    pub async fn lock(&self, address: Address, lease: Duration) -> Result<Guard, Error> {
        let lock = Operation::Lock { address, lease };
        match self.run(&lock).await?.outcome? {
            Value::Token(token) => Ok(Guard {
                lock: address,
                token,
            }),
            _ => Err(unexpected()),
        }
    }

    /// Gives a lock back.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn unlock(&self, guard: Guard) -> Result<(), Error> {
        let unlock = Operation::Unlock {
            address: guard.lock,
            token: guard.token,
        };
        self.run(&unlock).await?.outcome?;
        Ok(())
    }

    async fn old(&self, operation: Operation<'static>) -> Result<u64, Error> {
        match self.submit(operation, Vec::new()).await?.outcome? {
            Value::Old(old) => Ok(old),
            _ => Err(unexpected()),
        }
    }

    fn submit(&self, operation: Operation<'static>, data: Vec<u8>) -> Running {
        let result = Arc::new(Mutex::new(Waiting::default()));
        let job = Job {
            operation,
            data,
            result: Arc::clone(&result),
        };
        let inner = &self.shared.0;
        let mut state = lock(&inner.state);
        if let Some(failed) = &state.failed {
            lock(&result).result = Some(Err(io_error(failed)));
        } else {
            state.queue.push_back(job);
            let is_asleep = std::mem::take(&mut state.is_asleep);
            drop(state);
            if is_asleep {
                inner.wake();
            }
        }
        Running(result)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        lock(&self.0.state).is_closed = true;
        self.0.wake();
    }
}

impl Inner {
    fn wake(&self) {
        // It fails only if the counter is full, and then the thread wakes up anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Future for Running {
    type Output = Result<Completion, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut waiting = lock(&self.0);
        match waiting.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                waiting.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// The thread's part.
struct Thread<C> {
    session: Session<C>,
    inner: Arc<Inner>,
    running: HashMap<OperationId, Arc<Mutex<Waiting>>>,
    /// Jobs for which there was no room.
    full: VecDeque<Job>,
}

impl<C: Channel> Thread<C> {
    fn run(mut self) {
        if let Err(error) = self.serve() {
            let failed = match error {
                Error::Io(error) => (error.kind(), error.to_string()),
                error => (io::ErrorKind::Other, error.to_string()),
            };
            let queue = {
                let mut state = lock(&self.inner.state);
                state.failed = Some(failed.clone());
                std::mem::take(&mut state.queue)
            };
            // Without the lock: a waker may submit to the session, or drop it.
            let queued = self.full.drain(..).chain(queue).map(|job| job.result);
            let running = self.running.drain().map(|(_, waiting)| waiting);
            for waiting in running.chain(queued) {
                finish(&waiting, Err(io_error(&failed)));
            }
        }
    }

    fn serve(&mut self) -> Result<(), Error> {
        loop {
            self.take_jobs();
            // Sends, and takes what has come.
            let is_idle = self.session.channel().outstanding() == 0;
            if !is_idle {
                self.session.channel_mut().progress(Duration::ZERO)?;
            }
            let mut has_completed = false;
            while let Some(completion) = self.session.next() {
                has_completed = true;
                if let Some(waiting) = self.running.remove(&completion.id) {
                    finish(&waiting, Ok(completion));
                }
            }
            if !has_completed && !self.sleep()? {
                return Ok(());
            }
        }
    }

    /// Submits what is in the queue, as far as there is room.
    fn take_jobs(&mut self) {
        let mut state = lock(&self.inner.state);
        self.full.append(&mut state.queue);
        drop(state);
        while let Some(job) = self.full.pop_front() {
            let operation = attach(&job.operation, &job.data);
            match self.session.submit(&operation) {
                Ok(id) => {
                    self.running.insert(id, job.result);
                }
                Err(Error::Submit(SubmitError::Full)) if !self.running.is_empty() => {
                    self.full.push_front(job);
                    return;
                }
                Err(error) => finish(&job.result, Err(error)),
            }
        }
    }

    /// Waits until there is something to do; returns false if there never will be.
    fn sleep(&mut self) -> Result<bool, Error> {
        {
            let mut state = lock(&self.inner.state);
            if !state.queue.is_empty() {
                return Ok(true);
            }
            if state.is_closed && self.running.is_empty() {
                return Ok(false);
            }
            state.is_asleep = true;
        }
        let deadline = self.session.channel().next_deadline();
        let wait = match self.running.is_empty() {
            true => Duration::MAX,
            false => deadline.since(Instant::now()),
        };
        let mut ready = vec![PollFd::new(&self.inner.wake, PollFlags::IN)];
        let wait = match self.session.channel().descriptor() {
            Some(channel) if !self.running.is_empty() => {
                ready.push(PollFd::from_borrowed_fd(channel, PollFlags::IN));
                wait
            }
            None if !self.running.is_empty() => wait.min(STEP),
            _ => wait,
        };
        let wait = Timespec::try_from(wait).ok();
        match poll(&mut ready, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let _ = rustix::io::read(&self.inner.wake, &mut [0; 8]);
        lock(&self.inner.state).is_asleep = false;
        Ok(true)
    }
}

fn finish(waiting: &Mutex<Waiting>, result: Result<Completion, Error>) {
    let mut waiting = lock(waiting);
    waiting.result = Some(result);
    let waker = waiting.waker.take();
    drop(waiting);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Splits an operation into itself without data, and the data.
fn detach<'a>(operation: &Operation<'a>) -> (Operation<'static>, &'a [u8]) {
    match *operation {
        Operation::Write {
            address,
            data,
            guard,
        } => {
            let empty = Operation::Write {
                address,
                data: &[],
                guard,
            };
            (empty, data)
        }
        Operation::Region {
            name,
            address,
            bytes,
        } => {
            let empty = Operation::Region {
                name: &[],
                address,
                bytes,
            };
            (empty, name)
        }
        Operation::Find { name } => (Operation::Find { name: &[] }, name),
        Operation::Open => (Operation::Open, &[]),
        Operation::Close => (Operation::Close, &[]),
        Operation::Alloc {
            bytes,
            page,
            at,
            permission,
            sparse,
        } => {
            let alloc = Operation::Alloc {
                bytes,
                page,
                at,
                permission,
                sparse,
            };
            (alloc, &[])
        }
        Operation::Free { address, bytes } => (Operation::Free { address, bytes }, &[]),
        Operation::Read { address, len } => (Operation::Read { address, len }, &[]),
        Operation::CompareAndSwap {
            address,
            expected,
            new,
            guard,
        } => {
            let swap = Operation::CompareAndSwap {
                address,
                expected,
                new,
                guard,
            };
            (swap, &[])
        }
        Operation::FetchAdd {
            address,
            add,
            guard,
        } => {
            let add = Operation::FetchAdd {
                address,
                add,
                guard,
            };
            (add, &[])
        }
        Operation::Lock { address, lease } => (Operation::Lock { address, lease }, &[]),
        Operation::Unlock { address, token } => (Operation::Unlock { address, token }, &[]),
        Operation::Fence => (Operation::Fence, &[]),
        Operation::Grant {
            region,
            to,
            permission,
        } => {
            let grant = Operation::Grant {
                region,
                to,
                permission,
            };
            (grant, &[])
        }
        Operation::Revoke { region, from } => (Operation::Revoke { region, from }, &[]),
        Operation::Map { region, at } => (Operation::Map { region, at }, &[]),
        Operation::Retire { region } => (Operation::Retire { region }, &[]),
    }
}

/// Puts the data back that [`detach`] took.
fn attach<'a>(operation: &Operation<'static>, bytes: &'a [u8]) -> Operation<'a> {
    match *operation {
        Operation::Write { address, guard, .. } => Operation::Write {
            address,
            data: bytes,
            guard,
        },
        Operation::Region {
            address,
            bytes: len,
            ..
        } => Operation::Region {
            name: bytes,
            address,
            bytes: len,
        },
        Operation::Find { .. } => Operation::Find { name: bytes },
        other => other,
    }
}

fn io_error((kind, text): &(io::ErrorKind, String)) -> Error {
    io::Error::new(*kind, text.clone()).into()
}

fn unexpected() -> Error {
    io::Error::other("a value of another operation").into()
}

/// A panic of a thread leaves the state as it was between two operations.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
