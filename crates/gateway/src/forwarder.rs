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
        match from {
            InterfaceId::Public => {
                self.dataplane.inbound(now, burst, &mut self.output);
                self.dispatch(from, sink)?;
            }
            InterfaceId::Private => {
                self.dataplane.outbound(now, burst, &mut self.output);
                self.dispatch(InterfaceId::Private, sink)?;
            }
            InterfaceId::Tunnel => {
                self.dataplane.outbound_own(now, burst, &mut self.output);
                self.dispatch(InterfaceId::Private, sink)?;
            }
        }
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
            self.dispatch(InterfaceId::Private, sink)?;
        }
        Ok(())
    }

    /// Sends frames of the gateway's own.
    pub(crate) fn send_own<S: Sink>(
        &mut self,
        to: InterfaceId,
        burst: &mut Burst,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        sink.send(to, burst)?;
        self.own_lost += burst.drain(..).count() as u64;
        Ok(())
    }

    /// Sends what the data plane made of packets that came in by `from`.
    fn dispatch<S: Sink>(&mut self, from: InterfaceId, sink: &mut S) -> Result<(), S::Error> {
        let output = &mut self.output;
        let to = match from {
            InterfaceId::Public => InterfaceId::Private,
            _ => InterfaceId::Public,
        };
        sink.send(to, &mut output.forward)?;
        if !output.forward.is_empty() {
            match from {
                InterfaceId::Public => self.dataplane.not_delivered(&mut output.forward),
                _ => self.dataplane.not_sent(&mut output.forward),
            }
        }
        if !output.back.is_empty() {
            sink.send(from, &mut output.back)?;
            self.own_lost += output.back.drain(..).count() as u64;
        }
        for frame in output.control.drain(..) {
            sink.control(from, &frame);
        }
        for frame in output.inner.drain(..) {
            sink.control(InterfaceId::Tunnel, &frame);
        }
        Ok(())
    }
}
