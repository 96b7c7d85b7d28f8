//! The modes of AF_XDP.

use std::fmt;

/// How frames come from an interface to an AF_XDP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XdpMode {
    /// The kernel makes its packet buffer of a frame and copies from that. Works with every
    /// interface.
    Generic,
    /// The driver hands the frame over before the kernel makes a packet buffer of it, and the
    /// kernel copies it.
    Native,
    /// The network card reads and writes the pool itself.
    ZeroCopy,
}

impl XdpMode {
    /// What to try, best first, with an interface of this driver.
    ///
    /// With veth, native mode. Forwarding itself costs the same in both
    /// (`cargo run --release --example forward`), and the kernel's part beside it some 7 % more in
    /// native mode; but that has the other end cut what it sends into frames of the wire's length,
    /// while in generic mode TCP's superframes arrive whole, are too long, and are dropped.
    pub fn preferred(driver: Option<&str>) -> &'static [XdpMode] {
        match driver {
            Some("veth") => &[XdpMode::Native, XdpMode::Generic],
            _ => &[XdpMode::ZeroCopy, XdpMode::Native, XdpMode::Generic],
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            XdpMode::Generic => "AF_XDP generic",
            XdpMode::Native => "AF_XDP native",
            XdpMode::ZeroCopy => "AF_XDP zero-copy",
        }
    }
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
