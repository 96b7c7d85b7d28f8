//! Opening the best kind of port that an interface allows.

use std::fmt;

use crate::{
    Error, Interface, Offload, PacketPort, Pool, Port, Refused, XdpMode, XdpPort, XdpSender,
};

/// A kind of port to an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The first that works of AF_XDP, in the order of [`XdpMode::preferred`], and a packet socket.
    #[default]
    Auto,
    /// AF_XDP in this mode.
    Xdp(XdpMode),
    /// A packet socket. Several "queues" of an interface share what arrives flow by flow, however
    /// many queues it has.
    Packet,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Auto => "the best there is",
            Kind::Xdp(mode) => mode.name(),
            Kind::Packet => "packet socket",
        })
    }
}

/// A port that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The kind; never [`Kind::Auto`].
    pub kind: Kind,
    /// Kinds that would have been better, and why they were not taken.
    pub refused: Vec<Refused>,
    /// Offloads of the interface that make frames which no wire carries; see
    /// [`Interface::offloads`].
    pub offloads: Vec<Offload>,
}

/// Opens a queue of an interface.
///
/// # Errors
/// If no kind asked for works; the error says why for each.
pub fn open(
    interface: &Interface,
    queue: u32,
    pool: &Pool,
    kind: Kind,
) -> Result<(Box<dyn Port>, Opened), Error> {
    open_with_lanes(interface, queue, pool, kind, 0)
}

/// As [`open`], with this number of lanes; see [`XdpPort::open_with_lanes`].
///
/// # Errors
/// As [`open`].
pub fn open_with_lanes(
    interface: &Interface,
    queue: u32,
    pool: &Pool,
    kind: Kind,
    lanes: u32,
) -> Result<(Box<dyn Port>, Opened), Error> {
    let xdp = |modes: &[XdpMode]| XdpPort::open_with_lanes(interface, queue, pool, modes, lanes);
    let (port, kind, refused): (Box<dyn Port>, _, _) = match kind {
        Kind::Auto => {
            let modes = XdpMode::preferred(interface.driver().as_deref());
            match xdp(modes) {
                Ok((port, refused)) => {
                    let mode = port.mode();
                    (Box::new(port), Kind::Xdp(mode), refused)
                }
                Err(Error::Refused { refused, .. }) => packet(interface, pool, refused)?,
                Err(error) => {
                    let why = error.to_string();
                    packet(
                        interface,
                        pool,
                        vec![Refused {
                            kind: "AF_XDP",
                            why,
                        }],
                    )?
                }
            }
        }
        Kind::Xdp(mode) => {
            let (port, refused) = xdp(&[mode])?;
            (Box::new(port), kind, refused)
        }
        Kind::Packet => packet(interface, pool, Vec::new())?,
    };
    Ok((
        port,
        Opened {
            kind,
            refused,
            offloads: interface.offloads(),
        },
    ))
}

/// Opens an interface for sending alone, on a thread beside that of its port: a lane of that port
/// where there is one, otherwise a packet socket.
///
/// # Errors
/// Without CAP_NET_RAW, and where the interface is gone.
pub fn open_to_send(interface: &Interface, pool: &Pool) -> Result<Box<dyn Port>, Error> {
    Ok(match XdpSender::open(interface) {
        Ok(sender) => Box::new(sender),
        Err(_) => Box::new(PacketPort::open_to_send(interface, pool)?),
    })
}

type Chosen = (Box<dyn Port>, Kind, Vec<Refused>);

fn packet(interface: &Interface, pool: &Pool, mut refused: Vec<Refused>) -> Result<Chosen, Error> {
    match PacketPort::open_share(interface, pool) {
        Ok(port) => Ok((Box::new(port), Kind::Packet, refused)),
        Err(error) if refused.is_empty() => Err(error),
        Err(error) => {
            refused.push(Refused {
                kind: "packet socket",
                why: error.to_string(),
            });
            Err(Error::Refused {
                interface: interface.name().to_owned(),
                refused,
            })
        }
    }
}
