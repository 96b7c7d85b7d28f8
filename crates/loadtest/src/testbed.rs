//! The surroundings of a tester: real ports on a real clock, or a network in virtual time.

use std::marker::PhantomData;

use tare_port::{Burst, Counters, Frame, Port, BURST};
use tare_sim::{Carried, Instant, Node, NodeId, Outbox};

use crate::Error;

/// A frame that has arrived.
#[derive(Debug)]
pub struct Arrival {
    /// The port, counted from 0.
    pub port: usize,
    /// The time of its arrival.
    pub at: Instant,
    /// The frame.
    pub frame: Frame,
}

/// The ports that a tester sends and receives on, and the clock that goes with them.
pub trait Testbed {
    /// The number of ports.
    fn ports(&self) -> usize;

    /// The time.
    fn now(&mut self) -> Instant;

    /// Takes frames from the front of `burst` and sends them, as [`Port::send`] does.
    ///
    /// # Errors
    /// If the port is gone for good.
    fn send(&mut self, port: usize, burst: &mut Burst) -> Result<usize, Error>;

    /// Adds frames that have arrived to `arrivals`: of real ports a bounded number.
    ///
    /// # Errors
    /// As [`Testbed::send`].
    fn receive(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), Error>;

    /// Waits, because nothing is to be sent before `until`. A virtual clock moves there; a real one
    /// is left to itself, because frames have to be received meanwhile.
    fn wait(&mut self, until: Instant);

    /// True if it is certain that no frame is under way and that nothing in the network acts by
    /// itself up to `until`, so that nothing arrives by then unless something is sent.
    fn is_quiet(&mut self, until: Instant) -> bool;

    /// The counters of a port.
    fn counters(&self, port: usize) -> Counters;

    /// True if time passes by itself.
    fn is_real(&self) -> bool;
}

impl<B: Testbed + ?Sized> Testbed for Box<B> {
    fn ports(&self) -> usize {
        (**self).ports()
    }

    fn now(&mut self) -> Instant {
        (**self).now()
    }

    fn send(&mut self, port: usize, burst: &mut Burst) -> Result<usize, Error> {
        (**self).send(port, burst)
    }

    fn receive(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), Error> {
        (**self).receive(arrivals)
    }

    fn wait(&mut self, until: Instant) {
        (**self).wait(until);
    }

    fn is_quiet(&mut self, until: Instant) -> bool {
        (**self).is_quiet(until)
    }

    fn counters(&self, port: usize) -> Counters {
        (**self).counters(port)
    }

    fn is_real(&self) -> bool {
        (**self).is_real()
    }
}

/// The most bursts that are received from a queue before the next one is asked: what the ring of an
/// AF_XDP port holds.
const BURSTS_MAX: usize = 64;

/// Real ports, polled without pause by one thread.
#[derive(Debug)]
pub struct Ports<P> {
    /// By port its queues: the first sends, all receive.
    ports: Vec<Vec<P>>,
    burst: Burst,
}

impl<P: Port> Ports<P> {
    /// A testbed of these ports.
    pub fn new(ports: Vec<P>) -> Ports<P> {
        Ports::with_queues(ports.into_iter().map(|port| vec![port]).collect())
    }

    /// A testbed of ports with several queues each.
    ///
    /// # Panics
    /// On a port without a queue.
    pub fn with_queues(ports: Vec<Vec<P>>) -> Ports<P> {
        assert!(ports.iter().all(|queues| !queues.is_empty()), "a queue");
        Ports {
            ports,
            burst: Burst::with_capacity(BURST),
        }
    }
}

impl<P: Port> Testbed for Ports<P> {
    fn ports(&self) -> usize {
        self.ports.len()
    }

    fn now(&mut self) -> Instant {
        Instant::now()
    }

    fn send(&mut self, port: usize, burst: &mut Burst) -> Result<usize, Error> {
        self.ports[port][0]
            .send(burst)
            .map_err(|error| Error::port(port, error))
    }

    fn receive(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), Error> {
        for (port, queues) in self.ports.iter_mut().enumerate() {
            for queue in queues {
                // All that one queue has before the next is asked, or a sender that has changed its
                // CPU meanwhile would seem to be overtaken by itself.
                for _ in 0..BURSTS_MAX {
                    let received = queue.receive(&mut self.burst, BURST);
                    let received = received.map_err(|error| Error::port(port, error))?;
                    if received == 0 {
                        break;
                    }
                    let at = Instant::now();
                    arrivals.extend(
                        self.burst
                            .drain(..)
                            .map(|frame| Arrival { port, at, frame }),
                    );
                    if received < BURST {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn wait(&mut self, _until: Instant) {
        std::hint::spin_loop();
    }

    fn is_quiet(&mut self, _until: Instant) -> bool {
        false
    }

    fn counters(&self, port: usize) -> Counters {
        let mut all = Counters::default();
        for queue in self.ports[port].iter().map(Port::counters) {
            all.rx_packets += queue.rx_packets;
            all.rx_bytes += queue.rx_bytes;
            all.rx_dropped += queue.rx_dropped;
            all.tx_packets += queue.tx_packets;
            all.tx_bytes += queue.tx_bytes;
            all.tx_dropped += queue.tx_dropped;
        }
        all
    }

    fn is_real(&self) -> bool {
        true
    }
}

/// The tester's ports in a simulated network, as a node of it.
#[derive(Debug)]
pub struct TesterPorts<M> {
    /// By interface of the node: the port.
    interfaces: Vec<usize>,
    arrived: Vec<Arrival>,
    counters: Vec<Counters>,
    message: PhantomData<fn() -> M>,
}

impl<M> TesterPorts<M> {
    /// A node that receives for these ports, by interface, and sends from a port by the interface
    /// of the same number: `0..2` for two ports.
    pub fn new(interfaces: impl IntoIterator<Item = usize>) -> TesterPorts<M> {
        let interfaces: Vec<usize> = interfaces.into_iter().collect();
        let ports = interfaces.iter().max().map_or(0, |last| last + 1);
        TesterPorts {
            interfaces,
            arrived: Vec::new(),
            counters: vec![Counters::default(); ports],
            message: PhantomData,
        }
    }
}

impl<M: Carried + Into<Frame> + 'static> Node for TesterPorts<M> {
    type Message = M;

    fn receive(&mut self, now: Instant, interface: usize, message: M, _: &mut Outbox<M>) {
        let (port, frame) = (self.interfaces[interface], message.into());
        let counters = &mut self.counters[port];
        counters.rx_packets += 1;
        counters.rx_bytes += frame.len() as u64;
        let at = now;
        self.arrived.push(Arrival { port, at, frame });
    }
}

/// A simulated network in which the tester is a node.
pub trait Network {
    /// The messages on its lines.
    type Message: Carried + From<Frame> + Into<Frame> + 'static;

    /// The nodes and lines.
    fn simulation(&self) -> &tare_sim::Testbed<Self::Message>;

    /// The same, to let time pass.
    fn simulation_mut(&mut self) -> &mut tare_sim::Testbed<Self::Message>;

    /// The node that is the tester.
    fn tester(&self) -> NodeId<TesterPorts<Self::Message>>;
}

/// A network of which nothing else is to be known.
impl<M> Network for (tare_sim::Testbed<M>, NodeId<TesterPorts<M>>)
where
    M: Carried + From<Frame> + Into<Frame> + 'static,
{
    type Message = M;

    fn simulation(&self) -> &tare_sim::Testbed<M> {
        &self.0
    }

    fn simulation_mut(&mut self) -> &mut tare_sim::Testbed<M> {
        &mut self.0
    }

    fn tester(&self) -> NodeId<TesterPorts<M>> {
        self.1
    }
}

/// A simulated network as a testbed.
#[derive(Debug)]
pub struct Virtual<N>(N);

impl<N: Network> Virtual<N> {
    /// The testbed of a network, from the time that it is there. What has arrived before is
    /// forgotten.
    pub fn new(mut network: N) -> Virtual<N> {
        let tester = network.tester();
        let simulation = network.simulation_mut();
        simulation.node_mut(tester).arrived.clear();
        Virtual(network)
    }

    /// The network.
    pub fn network(&self) -> &N {
        &self.0
    }

    /// The network, to change it between trials.
    pub fn network_mut(&mut self) -> &mut N {
        &mut self.0
    }

    fn node(&self) -> &TesterPorts<N::Message> {
        self.0.simulation().node(self.0.tester())
    }
}

impl<N: Network> Testbed for Virtual<N> {
    fn ports(&self) -> usize {
        self.node().counters.len()
    }

    fn now(&mut self) -> Instant {
        self.0.simulation().now()
    }

    fn send(&mut self, port: usize, burst: &mut Burst) -> Result<usize, Error> {
        let n = burst.len();
        let tester = self.0.tester();
        self.0.simulation_mut().act(tester, |tester, _, out| {
            let counters = &mut tester.counters[port];
            for frame in burst.drain(..) {
                counters.tx_packets += 1;
                counters.tx_bytes += frame.len() as u64;
                out.send(port, frame.into());
            }
        });
        Ok(n)
    }

    fn receive(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), Error> {
        if !self.node().arrived.is_empty() {
            let tester = self.0.tester();
            let simulation = self.0.simulation_mut();
            simulation.act(tester, |tester, _, _| arrivals.append(&mut tester.arrived));
        }
        Ok(())
    }

    fn wait(&mut self, until: Instant) {
        self.0.simulation_mut().run_until(until);
    }

    fn is_quiet(&mut self, until: Instant) -> bool {
        let simulation = self.0.simulation();
        if !self.node().arrived.is_empty() || simulation.next_arrival().is_some() {
            return false;
        }
        // A node may hold frames, which it sends when it acts next.
        let next = self.0.simulation_mut().next_event();
        next.is_none_or(|at| at > until)
    }

    fn counters(&self, port: usize) -> Counters {
        self.node().counters[port]
    }

    fn is_real(&self) -> bool {
        false
    }
}
