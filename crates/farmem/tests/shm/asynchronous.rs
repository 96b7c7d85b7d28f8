//! Callers that sleep on the client's descriptor.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};

use rustix::event::{poll, PollFd, PollFlags};
use tare_farmem::session::{AsyncSession, Session};

use super::*;

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Sleeps until the descriptor can be read or something is due, as a caller does that has others.
fn sleep(client: &Client) {
    let wait = client.next_deadline().since(tare_sim::Instant::now());
    let wait = rustix::event::Timespec::try_from(wait).ok();
    let descriptor = client.descriptor().unwrap();
    let mut ready = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    poll(&mut ready, wait.as_ref()).unwrap();
}

#[test]
fn an_answer_that_comes_before_a_caller_sleeps_on_the_descriptor_wakes_it() {
    let mut node = Node::start(ServerConfig {
        idle_rounds: 3,
        ..ServerConfig::new(1)
    });
    let mut client = node.connect();
    alloc(&mut client, SpaceId(1), 4096);
    let add = Operation::FetchAdd {
        address: BASE,
        add: 1,
        guard: None,
    };
    let mut random = Random::new(6);
    let mut longest = Duration::ZERO;
    for n in 0..10_000 {
        let start = Instant::now();
        client.submit(SpaceId(1), &add).unwrap();
        client.progress(Duration::ZERO).unwrap();
        let order = random.below(12);
        for _ in 0..random.below(1 << order) {
            std::hint::spin_loop();
        }
        let done = loop {
            sleep(&client);
            client.progress(Duration::ZERO).unwrap();
            if let Some(done) = client.poll() {
                break done;
            }
        };
        assert_eq!(done.outcome, Ok(Value::Old(n)));
        longest = longest.max(start.elapsed());
    }
    // A lost one costs the 60 s of the timeout.
    assert!(longest < Duration::from_secs(55), "{longest:?}");
    assert!(node.stop().0.notifications > 100);
}

#[test]
fn a_caller_does_not_sleep_while_there_are_completions() {
    let node = Node::start(ServerConfig::new(1));
    let mut client = node.connect();
    for _ in 0..2 {
        client.submit(SpaceId(1), &Operation::Open).unwrap();
    }
    while client.outstanding() > 0 {
        client.progress(Duration::from_secs(1)).unwrap();
    }
    assert!(client.next_deadline() == tare_sim::Instant::NEVER);
    sleep(&client);
    assert!(client.poll().is_some() && client.poll().is_some());
}

#[test]
fn futures_complete_over_shared_memory() {
    let node = Node::start(ServerConfig::new(1));
    let session = AsyncSession::new(Session::new(node.connect(), SpaceId(3))).unwrap();
    block_on(session.run(&Operation::Open)).unwrap();
    let address = block_on(session.alloc(1 << 20)).unwrap();
    let threads: Vec<_> = (0..3u8)
        .map(|n| {
            let session = session.clone();
            thread::spawn(move || {
                let mine = address + (u64::from(n) << 18);
                for round in 0..50 {
                    let data = vec![n + round; 100_000];
                    block_on(async {
                        session.write(mine, data.clone()).await.unwrap();
                        let read = session.read(mine, 100_000).await.unwrap();
                        assert!(read == data);
                        session.fetch_add(address + (1 << 20) - 8, 1).await.unwrap();
                    });
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    let sum = block_on(session.fetch_add(address + (1 << 20) - 8, 0));
    assert_eq!(sum.unwrap(), 150);
}

#[test]
fn a_future_ends_when_the_node_is_too_slow_or_gone() {
    let mut node = Node::start(ServerConfig::new(1));
    let config = ClientConfig {
        timeout: Duration::from_millis(300),
        ..PATIENT
    };
    let clients = [node.connect_hasty(config.timeout), node.connect()];
    let [hasty, patient] =
        clients.map(|client| AsyncSession::new(Session::new(client, SpaceId(3))).unwrap());
    node.pause();
    let probe = Client::connect(&node.path, &config).err();
    assert!(matches!(probe, Some(ConnectError::Silent)));
    let late = block_on(hasty.write(BASE, vec![1])).unwrap_err();
    assert_eq!(late.failure(), Some(Failure::OutcomeUnknown));
    let start = Instant::now();
    let waiting = thread::spawn(move || block_on(patient.write(BASE, vec![1])));
    node.stop();
    let gone = waiting.join().unwrap().unwrap_err();
    assert_eq!(gone.failure(), Some(Failure::OutcomeUnknown));
    assert!(start.elapsed() < Duration::from_secs(30));
}
