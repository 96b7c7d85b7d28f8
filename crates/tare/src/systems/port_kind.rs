//! The kinds of ports, as every command names them.

use clap::ValueEnum;
use tare_port::{Kind, XdpMode};

/// A kind of port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PortKind {
    /// The fastest that works
    Auto,
    /// AF_XDP without copies
    #[value(alias = "xdp")]
    XdpZeroCopy,
    /// AF_XDP in the driver
    XdpNative,
    /// AF_XDP in the kernel's generic mode
    XdpGeneric,
    /// A packet socket
    Packet,
}

impl From<PortKind> for Kind {
    fn from(kind: PortKind) -> Kind {
        match kind {
            PortKind::Auto => Kind::Auto,
            PortKind::XdpZeroCopy => Kind::Xdp(XdpMode::ZeroCopy),
            PortKind::XdpNative => Kind::Xdp(XdpMode::Native),
            PortKind::XdpGeneric => Kind::Xdp(XdpMode::Generic),
            PortKind::Packet => Kind::Packet,
        }
    }
}
