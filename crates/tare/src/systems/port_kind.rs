//! The kinds of ports, as every command names them.

use clap::ValueEnum;
use tare_port::{Kind, XdpMode};

/// A kind of port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PortKind {
    /// The fastest one that works
    Auto,
    /// AF_XDP in zero-copy mode
    #[value(alias = "xdp")]
    XdpZeroCopy,
    /// AF_XDP in native (driver) mode
    XdpNative,
    /// AF_XDP in generic mode
    XdpGeneric,
    /// Packet socket (AF_PACKET)
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
