//! What a tester is plugged into: real ports on a real clock, or a network in virtual time.

use tare_port::{Burst, Counters, Frame, Port, BURST};
use tare_sim::Instant;

use crate::Error;

/// A frame that has arrived.
#[derive(Debug)]
pub struct Arrival {
    /// Where, counted from 0.
    pub port: usize,
    /// When.
    pub at: Instant,
    /// The frame.
    pub frame: Frame,
}

/// Where a tester sends and receives, and what time it is there.
pub trait Bed {
    /// How many ports there are.
    fn ports(&self) -> usize;

    /// The time.
    fn now(&mut self) -> Instant;

    /// Takes frames from the front of `burst` and sends them, as [`Port::send`] does.
    ///
    /// # Errors
    /// Where the port is gone for good.
    fn send(&mut self, port: usize, burst: &mut Burst) -> Result<usize, Error>;

    /// Adds frames that have arrived to `arrivals`, a bounded number of each port.
    ///
    /// # Errors
    /// As [`Bed::send`].
    fn receive(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), Error>;

    /// Nothing is to be done before `until`. A virtual clock moves there; a real one is left to
    /// itself, because frames have to be received meanwhile.
    fn wait(&mut self, until: Instant);

    /// Whether it is certain that nothing more arrives, unless something is sent.
    fn is_quiet(&self) -> bool;

    /// What a port has counted.
    fn counters(&self, port: usize) -> Counters;

    /// Whether time passes by itself.
    fn is_real(&self) -> bool;
}

impl<B: Bed + ?Sized> Bed for Box<B> {
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

    fn is_quiet(&self) -> bool {
        (**self).is_quiet()
    }

    fn counters(&self, port: usize) -> Counters {
        (**self).counters(port)
    }

    fn is_real(&self) -> bool {
        (**self).is_real()
    }
}

/// Real ports, polled without pause by one thread.
#[derive(Debug)]
pub struct Ports<P> {
    ports: Vec<P>,
    burst: Burst,
}

impl<P: Port> Ports<P> {
    /// A bed of these ports.
    pub fn new(ports: Vec<P>) -> Ports<P> {
        Ports {
            ports,
            burst: Burst::with_capacity(BURST),
        }
    }
}

impl<P: Port> Bed for Ports<P> {
    fn ports(&self) -> usize {
        self.ports.len()
    }

    fn now(&mut self) -> Instant {
        Instant::now()
    }

    fn send(&mut self, port: usize, burst: &mut Burst) -> Result<usize, Error> {
        self.ports[port]
            .send(burst)
            .map_err(|error| Error::Port { port, error })
    }

    fn receive(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), Error> {
        for (port, end) in self.ports.iter_mut().enumerate() {
            let received = end.receive(&mut self.burst, BURST);
            if received.map_err(|error| Error::Port { port, error })? > 0 {
                let at = Instant::now();
                arrivals.extend(
                    self.burst
                        .drain(..)
                        .map(|frame| Arrival { port, at, frame }),
                );
            }
        }
        Ok(())
    }

    fn wait(&mut self, _until: Instant) {
        std::hint::spin_loop();
    }

    fn is_quiet(&self) -> bool {
        false
    }

    fn counters(&self, port: usize) -> Counters {
        self.ports[port].counters()
    }

    fn is_real(&self) -> bool {
        true
    }
}

/// A network in virtual time, with ports for the tester at its edges.
pub trait Network {
    /// Puts a frame into the network at a port. Times given never run backwards.
    fn offer(&mut self, now: Instant, port: usize, frame: Frame);

    /// Lets time pass until `to`, and hands over each frame that leaves the network at a port
    /// meanwhile, and when, in the order in which they do.
    fn advance(&mut self, to: Instant, deliver: &mut dyn FnMut(usize, Instant, Frame));

    /// When something happens next if nothing is offered; none when the network is idle.
    fn next_event(&self) -> Option<Instant>;
}

impl<N: Network + ?Sized> Network for Box<N> {
    fn offer(&mut self, now: Instant, port: usize, frame: Frame) {
        (**self).offer(now, port, frame);
    }

    fn advance(&mut self, to: Instant, deliver: &mut dyn FnMut(usize, Instant, Frame)) {
        (**self).advance(to, deliver);
    }

    fn next_event(&self) -> Option<Instant> {
        (**self).next_event()
    }
}

/// A network in virtual time as a bed.
#[derive(Debug)]
pub struct Virtual<N> {
    network: N,
    now: Instant,
    arrived: Vec<Arrival>,
    counters: Vec<Counters>,
}

impl<N: Network> Virtual<N> {
    /// A bed of a network with so many ports, at time zero.
    pub fn new(network: N, ports: usize) -> Virtual<N> {
        Virtual {
            network,
            now: Instant::ZERO,
            arrived: Vec::new(),
            counters: vec![Counters::default(); ports],
        }
    }

    /// The network.
    pub fn network(&self) -> &N {
        &self.network
    }

    /// The network, to change it between trials.
    pub fn network_mut(&mut self) -> &mut N {
        &mut self.network
    }
}

impl<N: Network> Bed for Virtual<N> {
    fn ports(&self) -> usize {
        self.counters.len()
    }

    fn now(&mut self) -> Instant {
        self.now
    }

    fn send(&mut self, port: usize, burst: &mut Burst) -> Result<usize, Error> {
        let n = burst.len();
        let counters = &mut self.counters[port];
        for frame in burst.drain(..) {
            counters.tx_packets += 1;
            counters.tx_bytes += frame.len() as u64;
            self.network.offer(self.now, port, frame);
        }
        Ok(n)
    }

    fn receive(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), Error> {
        arrivals.append(&mut self.arrived);
        Ok(())
    }

    fn wait(&mut self, until: Instant) {
        let counters = &mut self.counters;
        let arrived = &mut self.arrived;
        let until = until.max(self.now);
        self.network.advance(until, &mut |port, at, frame| {
            counters[port].rx_packets += 1;
            counters[port].rx_bytes += frame.len() as u64;
            arrived.push(Arrival { port, at, frame });
        });
        self.now = until;
    }

    fn is_quiet(&self) -> bool {
        self.arrived.is_empty() && self.network.next_event().is_none()
    }

    fn counters(&self, port: usize) -> Counters {
        self.counters[port]
    }

    fn is_real(&self) -> bool {
        false
    }
}
