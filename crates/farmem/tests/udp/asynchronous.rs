//! The `async` client, without any runtime.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tare_farmem::operation::{Error as Refusal, Operation, SpaceId};
use tare_farmem::protocol::{Completion, Failure, OperationId, OwnedWrite, SubmitError};
use tare_farmem::session::{AsyncSession, Session};
use tare_farmem::transport::Channel;

use crate::support::{service, session, ANY};

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn futures_complete_under_a_hand_written_executor() {
    let service = service(ANY, 1);
    let session = AsyncSession::new(session(&service)).unwrap();
    block_on(async {
        session
            .run(&Operation::Open)
            .await
            .unwrap()
            .outcome
            .unwrap();
        let address = session.alloc(1 << 20).await.unwrap();
        let data: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        session.write(address, data.clone()).await.unwrap();
        assert_eq!(session.read(address, 100_000).await.unwrap(), data);
        assert_eq!(
            session
                .compare_and_swap(address + (1 << 19), 0, 5)
                .await
                .unwrap(),
            0
        );
        assert_eq!(session.fetch_add(address + (1 << 19), 2).await.unwrap(), 5);
        let guard = session
            .lock(address, Duration::from_secs(60))
            .await
            .unwrap();
        session.unlock(guard).await.unwrap();
        let stale = session.unlock(guard).await.expect_err("given back");
        assert_eq!(stale.failure(), Some(Failure::Refused(Refusal::StaleToken)));
        let name = Operation::Find { name: b"nothing" };
        let found = session.run(&name).await.unwrap().outcome;
        assert_eq!(found, Err(Failure::Refused(Refusal::NoSuchRegion)));
    });
}

#[test]
fn clones_on_many_threads_share_a_session_and_dropped_futures_still_happen() {
    let service = service(ANY, 1);
    let session = AsyncSession::new(session(&service)).unwrap();
    block_on(session.run(&Operation::Open)).unwrap();
    let address = block_on(session.alloc(4096)).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let session = session.clone();
            std::thread::spawn(move || {
                for _ in 0..100 {
                    block_on(session.fetch_add(address, 1)).unwrap();
                    // Submitted by the first poll, and then nothing waits for it.
                    let mut context = Context::from_waker(Waker::noop());
                    let mut dropped = pin!(session.fetch_add(address, 1));
                    let _ = dropped.as_mut().poll(&mut context);
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    // Operations on one page keep their order, so all others have ended before this one.
    assert_eq!(block_on(session.fetch_add(address, 0)).unwrap(), 800);
}

#[test]
fn what_was_submitted_happens_although_the_session_is_dropped() {
    let service = service(ANY, 1);
    let mut other = session(&service);
    other.open().unwrap();
    let address = other.alloc(4096).unwrap();
    let region = other.region(b"shared", address, 4096).unwrap();
    let session = AsyncSession::new(session(&service)).unwrap();
    block_on(session.run(&Operation::Open)).unwrap();
    let permission = tare_farmem::operation::Permission::READ_WRITE;
    other.grant(region, session.space(), permission).unwrap();
    let map = Operation::Map { region, at: None };
    let mapped = match block_on(session.run(&map)).unwrap().outcome.unwrap() {
        tare_farmem::operation::Value::Address(address) => address,
        value => panic!("{value:?}"),
    };
    {
        let mut context = Context::from_waker(Waker::noop());
        let mut write = pin!(session.write(mapped, vec![9]));
        // Pending, but where this thread was kept from the processor until the answer was there.
        let _ = write.as_mut().poll(&mut context);
    }
    drop(session);
    let mut byte = [0];
    let start = std::time::Instant::now();
    while byte == [0] {
        assert!(start.elapsed() < Duration::from_secs(30));
        other.read(address, &mut byte).unwrap();
    }
    assert_eq!(byte, [9]);
}

/// A channel that takes one operation, and fails once the future that waits has been polled.
struct Broken {
    submitted: usize,
    is_polled: Receiver<()>,
}

impl Channel for Broken {
    fn submit(&mut self, _: SpaceId, _: &Operation<'_>) -> Result<OperationId, SubmitError> {
        self.submitted += 1;
        Ok(OperationId(self.submitted as u64))
    }

    fn submit_write(
        &mut self,
        _: SpaceId,
        write: OwnedWrite,
    ) -> Result<OperationId, (SubmitError, OwnedWrite)> {
        Err((SubmitError::Full, write))
    }

    fn progress(&mut self, _: Duration) -> io::Result<()> {
        self.is_polled.recv().unwrap();
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn poll(&mut self) -> Option<Completion> {
        None
    }

    fn recycle(&mut self, _: Vec<u8>) {}

    fn outstanding(&self) -> usize {
        self.submitted
    }
}

/// A waker that uses the session at once, and drops it, as an executor does that polls in place.
struct Again(AsyncSession, Sender<bool>);

impl Wake for Again {
    fn wake(self: Arc<Self>) {
        let mut context = Context::from_waker(Waker::noop());
        let again = pin!(self.0.read(0, 8)).poll(&mut context);
        let _ = self.1.send(matches!(again, Poll::Ready(Err(_))));
    }
}

#[test]
fn a_waker_may_use_the_session_whose_channel_has_failed() {
    let (polled, is_polled) = channel();
    let broken = Broken {
        submitted: 0,
        is_polled,
    };
    let session = AsyncSession::new(Session::new(broken, SpaceId(1))).unwrap();
    let (done, ended) = channel();
    let waker = Waker::from(Arc::new(Again(session.clone(), done)));
    let mut read = Box::pin(session.read(0, 8));
    assert!(read
        .as_mut()
        .poll(&mut Context::from_waker(&waker))
        .is_pending());
    drop(waker);
    polled.send(()).unwrap();
    let is_refused = ended.recv_timeout(Duration::from_secs(20));
    assert_eq!(is_refused, Ok(true), "the waker got the failure");
    assert!(block_on(read).is_err());
}
