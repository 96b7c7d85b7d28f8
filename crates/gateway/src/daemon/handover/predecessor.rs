//! The process that runs a gateway, as the one that takes over sees it.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use tare_port::Descriptors;

use super::wire::{Kind, LONG};
use super::{
    expect, explain, own_hello, receive, refuse, send_json, Hello, PortHello, Wire, PATIENCE,
};
use crate::handover::State;

/// The time that the other process gets to close its ports and endpoints.
const END_MAX: Duration = Duration::from_secs(2);

/// A gateway that runs and offers its ports.
pub(in crate::daemon) struct Predecessor {
    wire: Wire,
    ports: Vec<[Descriptors; 2]>,
}

impl Predecessor {
    /// Asks the gateway at `socket` for a handover. `interface` returns number and first queue of
    /// the private (false) and the public interface (true).
    ///
    /// # Errors
    /// There is none, it refuses, or it has other workers or interfaces.
    pub(in crate::daemon) fn ask(
        socket: &Path,
        workers: usize,
        interface: impl Fn(bool) -> (u32, u32),
    ) -> Result<Predecessor, String> {
        let asked = UnixStream::connect(socket).and_then(Wire::new);
        let wire = asked.map_err(|error| {
            format!(
                "no gateway can be taken over at {}: {error} (is it running?)",
                socket.display()
            )
        })?;
        Predecessor::greet(wire, workers, interface)
    }

    fn greet(
        wire: Wire,
        workers: usize,
        interface: impl Fn(bool) -> (u32, u32),
    ) -> Result<Predecessor, String> {
        let greet = wire.set_timeout(PATIENCE);
        let greet = greet.and_then(|()| {
            let hello = own_hello(workers)?;
            send_json(&wire, Kind::Hello, &hello, &[])
        });
        greet.map_err(|error| explain(&error))?;
        let hello: Hello = expect(&wire, Kind::Hello)?;
        if hello.workers != workers {
            return Err(format!("the other process has {} workers", hello.workers));
        }
        let mut ports = Vec::new();
        for worker in 0..workers {
            let port = |public| {
                let (interface, queue) = interface(public);
                receive_port(&wire, worker, public, interface, queue + worker as u32)
            };
            ports.push([port(false)?, port(true)?]);
        }
        Ok(Predecessor { wire, ports })
    }

    /// Takes the descriptors of the ports of each worker: private, public.
    pub(in crate::daemon) fn take_ports(&mut self) -> Vec<[Descriptors; 2]> {
        std::mem::take(&mut self.ports)
    }

    /// Says that this process is ready, and receives the state. The other process does not forward
    /// from then on.
    ///
    /// # Errors
    /// It refuses, or the state is not what it should be.
    pub(in crate::daemon) fn receive_state(&self) -> Result<State, String> {
        let ready = self.wire.send(Kind::Ready, &[], &[]);
        ready.map_err(|error| explain(&error))?;
        let message = receive(&self.wire, Kind::State, LONG)?;
        State::from_bytes(&message.content).map_err(|error| {
            let reason = error.to_string();
            refuse(&self.wire, &reason);
            reason
        })
    }

    /// Takes over: only if this succeeds may the state be used, and then the other process does not
    /// use it any more.
    ///
    /// # Errors
    /// The other process is gone or goes on itself.
    pub(in crate::daemon) fn take(&self) -> Result<(), String> {
        let taken: io::Result<()> = self.wire.send(Kind::Taken, &[], &[]);
        taken.map_err(|error| {
            format!(
                "the gateway goes on without this process: {}",
                explain(&error)
            )
        })
    }

    /// Waits until the other process has closed its ports and endpoints, or is late with it.
    pub(in crate::daemon) fn wait_for_its_end(self) {
        self.wire.wait_until_closed(END_MAX);
    }
}

fn receive_port(
    wire: &Wire,
    worker: usize,
    public: bool,
    interface: u32,
    queue: u32,
) -> Result<Descriptors, String> {
    let mut message = receive(wire, Kind::Port, super::SHORT)?;
    let hello: PortHello = serde_json::from_slice(&message.content)
        .map_err(|error| format!("a port of the other process: {error}"))?;
    let wanted = PortHello {
        worker,
        public,
        interface,
        queue,
        kind: hello.kind.clone(),
    };
    if hello != wanted {
        let name = if public { "public" } else { "private" };
        return Err(format!(
            "the gateway that runs has interface {} queue {} as its {name} interface, and the configuration names {interface} queue {queue}: restart instead",
            hello.interface, hello.queue
        ));
    }
    let fds = std::mem::take(&mut message.fds);
    Descriptors::new(&hello.kind, fds)
        .ok_or_else(|| format!("the other process offers a port of kind \"{}\"", hello.kind))
}
