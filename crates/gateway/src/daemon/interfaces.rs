//! The queues of interfaces that the workers open, and the state of the interfaces.

use std::sync::Arc;

use tare_port::{Interface, Kind};

use crate::config::{self, Config};
use crate::interface::InterfaceState;

/// The queues that workers open. They open their ports again if it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) private: InterfaceQueues,
    pub(super) public: InterfaceQueues,
    pub(super) kind: Kind,
    /// Bytes of a slot of the pools.
    pub(super) capacity: usize,
}

impl Plan {
    pub(super) fn both(&self) -> [&InterfaceQueues; 2] {
        [&self.private, &self.public]
    }

    /// The plan of a worker that has its ports already.
    pub(super) fn in_memory() -> Plan {
        let none = InterfaceQueues {
            name: String::new(),
            queue: 0,
            index: 0,
        };
        Plan {
            private: none.clone(),
            public: none,
            kind: Kind::Auto,
            capacity: CAPACITIES[0],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InterfaceQueues {
    /// Name or PCI address.
    pub(super) name: String,
    /// The first queue; worker n has the nth after it.
    pub(super) queue: u32,
    /// Its number, which another interface of that name does not have.
    pub(super) index: u32,
}

/// The slots of AF_XDP: less than a page, a page, and several pages for frames of up to 9,014 bytes
/// and more.
const CAPACITIES: [usize; 3] = [2048, 4096, 16384];

/// The bytes of a slot that no frame can use: its own header, the headroom of the kernel
/// (XDP_PACKET_HEADROOM), and to ESP behind.
const LOST: usize = 16 + 256 + 64;

const ETHERNET: usize = 14;

/// The interfaces of a gateway.
#[derive(Debug)]
pub(super) struct Interfaces {
    pub(super) plan: Arc<Plan>,
    pub(super) private: InterfaceState,
    pub(super) public: InterfaceState,
}

impl Interfaces {
    /// The interfaces of a configuration as they are now. Where one is not there, it is what it was
    /// before, but down.
    pub(super) fn look(config: &Config, kind: Kind, before: &Interfaces) -> Interfaces {
        let look = |interface: &config::InterfaceConfig,
                    before: &InterfaceState,
                    device: &InterfaceQueues| {
            read(interface).unwrap_or_else(|_| {
                let gone = InterfaceState {
                    up: false,
                    ..*before
                };
                (gone, device.clone())
            })
        };
        let (private, private_device) =
            look(&config.private, &before.private, &before.plan.private);
        let (public, public_device) = look(&config.public, &before.public, &before.plan.public);
        Interfaces::of((private, private_device), (public, public_device), kind)
    }

    /// The interfaces of a configuration, all of which are to be there.
    pub(super) fn find(config: &Config, kind: Kind) -> Result<Interfaces, tare_port::Error> {
        Ok(Interfaces::of(
            read(&config.private)?,
            read(&config.public)?,
            kind,
        ))
    }

    fn of(
        private: (InterfaceState, InterfaceQueues),
        public: (InterfaceState, InterfaceQueues),
        kind: Kind,
    ) -> Interfaces {
        let longest = usize::from(private.0.mtu.max(public.0.mtu)) + ETHERNET;
        let fits = |capacity: &usize| capacity - LOST >= longest;
        let capacity = CAPACITIES.into_iter().find(fits).unwrap_or(CAPACITIES[2]);
        let most = capacity - LOST - ETHERNET;
        Interfaces {
            private: private.0.limited_to(most),
            public: public.0.limited_to(most),
            plan: Arc::new(Plan {
                private: private.1,
                public: public.1,
                kind,
                capacity,
            }),
        }
    }
}

fn read(
    interface: &config::InterfaceConfig,
) -> Result<(InterfaceState, InterfaceQueues), tare_port::Error> {
    let name = interface.device.to_string();
    let found = Interface::find(&name)?;
    let os = |source| tare_port::Error::Os {
        doing: format!("reading {name}"),
        source,
    };
    let link = InterfaceState {
        mac: found.mac().map_err(os)?,
        mtu: u16::try_from(found.mtu().map_err(os)?).unwrap_or(u16::MAX),
        up: found.is_up().map_err(os)?,
    };
    let device = InterfaceQueues {
        queue: interface.device_queue.unwrap_or(0).into(),
        index: found.index(),
        name,
    };
    Ok((link, device))
}
