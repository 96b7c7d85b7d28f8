//! The service of a node: threads that carry datagrams between sockets and the node.
//!
//! A request without authentication can carry a false source address. The answer to a question for
//! the epoch is no longer than the question, but a read can have an answer of a whole datagram, so
//! beyond trusted networks a node needs authentication.

mod fair;
mod shm;
mod source;
mod udp;
mod worker;
mod xdp;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::protocol::{Execute, Node};
use crate::transport::Waiting;

pub use fair::FairMutex;
pub use shm::{ShmSource, ShmWork};
pub use source::{Source, Turn};
pub use udp::UdpSource;
pub use worker::{Work, WorkCounters};
pub use xdp::XdpSource;

/// The settings of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// The address to receive at; port 0 lets the system choose one.
    pub listen: SocketAddr,
    /// The number of threads, each with a socket of its own.
    pub workers: usize,
    /// The way to wait for requests.
    pub waiting: Waiting,
}

impl ServiceConfig {
    /// One thread that sleeps when there is nothing to do.
    pub const fn new(listen: SocketAddr) -> ServiceConfig {
        ServiceConfig {
            listen,
            workers: 1,
            waiting: Waiting::Asleep,
        }
    }
}

/// A running node. Its threads end with [`Service::stop`], or when it is dropped.
#[derive(Debug)]
pub struct Service<S> {
    node: Arc<FairMutex<Node<S>>>,
    address: Option<SocketAddr>,
    stop: Arc<AtomicBool>,
    workers: Vec<(JoinHandle<io::Result<()>>, Arc<Work>)>,
}

impl<S: Execute + Send + 'static> Service<S> {
    /// Opens the sockets and starts the threads.
    ///
    /// # Errors
    /// Those of the operating system, such as an address that is in use.
    pub fn start(config: &ServiceConfig, node: Node<S>) -> io::Result<Service<S>> {
        let sources = UdpSource::bind_shared(config.listen, config.workers)?;
        let address = sources[0].local_addr()?;
        let workers = sources.into_iter().map(|source| {
            let source: Box<dyn Source<S>> = Box::new(source);
            vec![source]
        });
        let mut service = Service::with_sources(node, workers.collect(), config.waiting)?;
        service.address = Some(address);
        Ok(service)
    }

    /// Starts a thread for each list of sources.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn with_sources(
        node: Node<S>,
        workers: Vec<Vec<Box<dyn Source<S>>>>,
        waiting: Waiting,
    ) -> io::Result<Service<S>> {
        let mut service = Service {
            node: Arc::new(FairMutex::new(node)),
            address: None,
            stop: Arc::new(AtomicBool::new(false)),
            workers: Vec::new(),
        };
        for (index, sources) in workers.into_iter().enumerate() {
            let work = Arc::new(Work::default());
            let worker = worker::Worker {
                node: Arc::clone(&service.node),
                sources,
                waiting,
                stop: Arc::clone(&service.stop),
                work: Arc::clone(&work),
            };
            let thread = std::thread::Builder::new()
                .name(format!("farmem-node-{index}"))
                .spawn(move || worker.run())?;
            service.workers.push((thread, work));
        }
        Ok(service)
    }

    /// Returns the address that the node receives at, with the port that it got; `None` if the
    /// sources were given.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Calls a function with the node. All workers wait for it, and those that do have the node
    /// before this returns, but for 20 ms at most.
    pub fn with_node<R>(&self, call: impl FnOnce(&mut Node<S>) -> R) -> R {
        let mut node = self.node.lock();
        let returned = call(&mut node);
        self.node.leave(node);
        returned
    }

    /// Returns what each worker did.
    pub fn work(&self) -> Vec<WorkCounters> {
        let work = self.workers.iter().map(|(_, work)| work.counters());
        work.collect()
    }

    /// Returns true if a worker has ended, which it does by itself only after an error that
    /// [`Service::stop`] returns.
    pub fn has_failed(&self) -> bool {
        self.workers.iter().any(|(thread, _)| thread.is_finished())
    }

    /// Answers what has come, and ends the threads; returns the node, so that its memory can be
    /// kept.
    ///
    /// # Errors
    /// That of the first worker that ended by itself.
    pub fn stop(mut self) -> io::Result<Node<S>> {
        let ended = self.end();
        let node = Arc::clone(&self.node);
        drop(self);
        ended?;
        let node = Arc::into_inner(node).map(FairMutex::into_inner);
        node.ok_or_else(|| io::Error::other("a worker still has the node"))
    }
}

impl<S> Service<S> {
    fn end(&mut self) -> io::Result<()> {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut ended = Ok(());
        for (thread, _) in self.workers.drain(..) {
            let result = thread.join();
            ended =
                ended.and(result.unwrap_or_else(|_| Err(io::Error::other("a worker panicked"))));
        }
        ended
    }
}

impl<S> Drop for Service<S> {
    fn drop(&mut self) {
        // An error was either returned, or was not asked for.
        let _ = self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread;

    use super::*;
    use crate::memory::{Config, Store};
    use crate::protocol::NodeConfig;

    #[test]
    fn threads_that_wait_have_the_node_between_two_calls_of_another_one() {
        let node = Node::new(NodeConfig::new(1), Store::new(&Config::new(1 << 20)));
        let service = Service::with_sources(node, Vec::new(), Waiting::Asleep).unwrap();
        let had = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..20 {
                had.store(false, Relaxed);
                service.with_node(|_| {
                    scope.spawn(|| service.with_node(|_| had.store(true, Relaxed)));
                    while !service.node.is_waited_for() {
                        thread::yield_now();
                    }
                });
                service.with_node(|_| assert!(had.load(Relaxed)));
            }
        });
    }
}
