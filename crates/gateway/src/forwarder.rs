//! One worker's loop body: a burst through the data plane, and its outcome to where it belongs.
//! Simulations and workers on real interfaces share it.

use tare_port::{Burst, Frame};
use tare_sim::Instant;

use crate::dataplane::{Dataplane, Output};
use crate::interface::InterfaceId;

/// The interfaces and the control side of a gateway, as a worker sends to them.
pub(crate) trait Sink {
    /// The error of an interface.
    type Error;

    /// Sends frames by an interface, and leaves those that it does not take.
    fn send(&mut self, to: InterfaceId, frames: &mut Burst) -> Result<(), Self::Error>;

    /// Passes a frame that came in by an interface to the control side.
    fn control(&mut self, from: InterfaceId, frame: &Frame);
}

/// A frame of the control side that a worker is to send.
pub(crate) type Task = (InterfaceId, Vec<u8>);

/// A data plane and the buffers between it and a [`Sink`].
pub(crate) struct Forwarder {
    pub(crate) dataplane: Dataplane,
    output: Output,
    tunnel: Burst,
    /// Frames of the gateway's own that an interface did not take.
    pub(crate) own_lost: u64,
}

impl Forwarder {
    pub(crate) fn new(dataplane: Dataplane) -> Forwarder {
        Forwarder {
            dataplane,
            output: Output::default(),
            tunnel: Burst::new(),
            own_lost: 0,
        }
    }

    /// Forwards a burst that came in by an interface; from [`InterfaceId::Tunnel`] are frames of
    /// the control side that are to go through the tunnel.
    pub(crate) fn forward<S: Sink>(
        &mut self,
        now: Instant,
        from: InterfaceId,
        burst: &mut Burst,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        let dispatched = match from {
            InterfaceId::Public => {
                self.dataplane.inbound(now, burst, &mut self.output);
                self.dispatch(from, sink)
            }
            InterfaceId::Private => {
                self.dataplane.outbound(now, burst, &mut self.output);
                self.dispatch(InterfaceId::Private, sink)
            }
            InterfaceId::Tunnel => {
                self.dataplane.outbound_own(now, burst, &mut self.output);
                self.dispatch(InterfaceId::Private, sink)
            }
        };
        // Errors about packets that came through the tunnel go back through it. Once is enough:
        // only packets of the public side have such errors.
        if !self.output.tunnel.is_empty() {
            std::mem::swap(&mut self.tunnel, &mut self.output.tunnel);
            let Forwarder {
                dataplane,
                output,
                tunnel,
                ..
            } = self;
            dataplane.outbound_own(now, tunnel, output);
            return dispatched.and(self.dispatch(InterfaceId::Private, sink));
        }
        dispatched
    }

    /// Sends frames of the gateway's own.
    pub(crate) fn send_own<S: Sink>(
        &mut self,
        to: InterfaceId,
        burst: &mut Burst,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        let sent = sink.send(to, burst);
        self.own_lost += burst.drain(..).count() as u64;
        sent
    }

    /// Sends what the data plane made of packets that came in by `from`. An interface that fails
    /// holds up nothing that goes elsewhere, and what it did not take is counted as such.
    fn dispatch<S: Sink>(&mut self, from: InterfaceId, sink: &mut S) -> Result<(), S::Error> {
        let output = &mut self.output;
        let to = match from {
            InterfaceId::Public => InterfaceId::Private,
            _ => InterfaceId::Public,
        };
        let sent = sink.send(to, &mut output.forward);
        if !output.forward.is_empty() {
            match from {
                InterfaceId::Public => self.dataplane.not_delivered(&mut output.forward),
                _ => self.dataplane.not_sent(&mut output.forward),
            }
        }
        let mut answered = Ok(());
        if !output.back.is_empty() {
            answered = sink.send(from, &mut output.back);
            self.own_lost += output.back.drain(..).count() as u64;
        }
        for frame in output.control.drain(..) {
            sink.control(from, &frame);
        }
        for frame in output.inner.drain(..) {
            sink.control(InterfaceId::Tunnel, &frame);
        }
        sent.and(answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::fixture::{dataplane, PRIVATE};
    use crate::dataplane::DropReason;
    use tare_packet::{ethernet, ipv4, protocol};

    /// Interfaces that fail after two frames.
    #[derive(Default)]
    struct Failing {
        sent: usize,
        control: usize,
    }

    impl Sink for Failing {
        type Error = ();

        fn send(&mut self, _: InterfaceId, frames: &mut Burst) -> Result<(), ()> {
            self.sent += frames.drain(..frames.len().min(2)).count();
            Err(())
        }

        fn control(&mut self, _: InterfaceId, _: &Frame) {
            self.control += 1;
        }
    }

    #[test]
    fn what_an_interface_that_fails_did_not_take_is_counted_and_the_rest_goes_on() {
        let (dataplane, _, pool) = dataplane();
        let packet = |ttl, number: u8| {
            let header = ipv4::Repr {
                src: 0x0a00_0102,
                dst: 0x0a02_0001,
                protocol: protocol::UDP,
                ttl,
                tos: 0,
                total_len: 100,
                fragment: ipv4::DONT_FRAGMENT,
            };
            let mut frame = ethernet::header(PRIVATE, [6; 6], ethernet::IPV4).to_vec();
            frame.extend(header.to_bytes());
            frame.resize(frame.len() + 80, number);
            pool.copy(&frame).unwrap()
        };
        let mut arp = ethernet::header(PRIVATE, [6; 6], ethernet::ARP).to_vec();
        arp.resize(60, 0);
        let mut burst: Burst = (0..5).map(|number| packet(64, number)).collect();
        burst.extend((0..3).map(|number| packet(1, number)));
        burst.push(pool.copy(&arp).unwrap());
        let (mut forwarder, mut sink) = (Forwarder::new(dataplane), Failing::default());
        let now = Instant::from_nanos(1);
        let result = forwarder.forward(now, InterfaceId::Private, &mut burst, &mut sink);
        assert_eq!(result, Err(()));
        // Two packets and two of three errors about the others.
        assert_eq!((sink.sent, sink.control, forwarder.own_lost), (4, 1, 1));
        let sent = forwarder.dataplane.sent();
        assert_eq!((sent.forwarded, sent.dropped(DropReason::PortFull)), (2, 3));
        assert!(sent.adds_up());
        let mut own: Burst = (0..5).map(|number| packet(64, number)).collect();
        let result = forwarder.send_own(InterfaceId::Public, &mut own, &mut sink);
        assert_eq!((result, forwarder.own_lost), (Err(()), 4));
    }
}
