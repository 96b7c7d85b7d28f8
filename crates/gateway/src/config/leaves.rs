//! Every block and leaf that a file may hold: what the reader accepts, what its errors say and what
//! the reference is made of.

/// `name value;`
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// The name.
    pub name: &'static str,
    /// The description of its value, as it reads after "expected".
    pub value: &'static str,
    /// A value as an example.
    pub example: &'static str,
    /// The default; `None` if it is described in `about` or the leaf is required.
    pub default: Option<&'static str>,
    /// True if it may be given more than once.
    pub repeats: bool,
    /// Its effect.
    pub about: &'static str,
}

/// `name { … }`
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// The name; empty for the file itself.
    pub name: &'static str,
    /// True if it may be given more than once.
    pub repeats: bool,
    /// Its description.
    pub about: &'static str,
    /// The leaves that it may hold.
    pub leaves: &'static [Leaf],
    /// The blocks that it may hold.
    pub blocks: &'static [Block],
}

impl Block {
    pub(crate) fn find(&self, leaf: &str) -> Option<&'static Leaf> {
        self.leaves.iter().find(|known| known.name == leaf)
    }

    pub(crate) fn block(&self, name: &str) -> Option<&'static Block> {
        self.blocks.iter().find(|known| known.name == name)
    }
}

const fn leaf(
    name: &'static str,
    value: &'static str,
    example: &'static str,
    about: &'static str,
) -> Leaf {
    Leaf {
        name,
        value,
        example,
        default: None,
        repeats: false,
        about,
    }
}

impl Leaf {
    const fn or(self, default: &'static str) -> Leaf {
        Leaf {
            default: Some(default),
            ..self
        }
    }

    const fn repeated(self) -> Leaf {
        Leaf {
            repeats: true,
            ..self
        }
    }

    const fn named(self, name: &'static str) -> Leaf {
        Leaf { name, ..self }
    }
}

const PCI: Leaf = leaf(
    "pci",
    "a PCI address such as 23:00.0",
    "23:00.0",
    "The interface, by the PCI address of its device; domain 0000 where none is given. One of `pci`, `device` and `ifname` must be given.",
);
const DEVICE: Leaf = leaf(
    "device",
    "the name of an interface: up to 15 characters without \"/\" or white space",
    "eth0",
    "The interface, by its name.",
);
const IFNAME: Leaf = Leaf {
    about: "The same as `device`, as Vita spells it.",
    ..DEVICE.named("ifname")
};
const MAC: Leaf = leaf(
    "mac",
    "a MAC address of one station such as 02:00:00:00:00:01",
    "02:00:00:00:00:01",
    "The station address that the gateway uses on this interface. Where it is not given, that of the interface; Vita makes one from the IP address instead.",
);
const NEXTHOP_MAC: Leaf = leaf(
    "nexthop-mac",
    "a MAC address of one station such as 02:00:00:00:00:01",
    "02:00:00:00:00:00",
    "The station that everything leaving here is sent to, instead of asking for it by ARP or neighbor discovery.",
);
const IP4: Leaf = leaf(
    "ip4",
    "an IPv4 address of one station",
    "172.16.0.10",
    "The gateway's IPv4 address on this interface.",
);
const IP6: Leaf = leaf(
    "ip6",
    "an IPv6 address of one station",
    "2001:db8::10",
    "The gateway's IPv6 address on this interface.",
);
const NEXTHOP_IP4: Leaf = leaf(
    "nexthop-ip4",
    "an IPv4 address of one station",
    "172.16.0.1",
    "The router that IPv4 packets leaving here are sent to. Needed with `ip4` where there is no `nexthop-mac`.",
);
const NEXTHOP_IP6: Leaf = leaf(
    "nexthop-ip6",
    "an IPv6 address of one station",
    "2001:db8::1",
    "The router that IPv6 packets leaving here are sent to. Needed with `ip6` where there is no `nexthop-mac`.",
);
const NAT_IP4: Leaf = leaf(
    "nat-ip4",
    "an IPv4 address of one station",
    "203.0.113.10",
    "The IPv4 address that peers see, where a translator stands in between: the key exchange authenticates it.",
);
const NAT_IP6: Leaf = leaf(
    "nat-ip6",
    "an IPv6 address of one station",
    "2001:db8:f::10",
    "The IPv6 address that peers see, where a translator stands in between.",
);
const QUEUE: Leaf = Leaf {
    default: Some("1"),
    ..leaf(
        "queue",
        "1: one interface and one gateway serve all workers",
        "1",
        "Vita's work queue. Read for its files; other numbers are refused.",
    )
};
const DEVICE_QUEUE: Leaf = leaf(
    "device-queue",
    "a number from 0 to 65535",
    "0",
    "The first hardware queue to use, instead of the first there is.",
);

const PRIVATE: Block = Block {
    name: "private-interface",
    repeats: false,
    about: "Where plaintext comes in and goes out. Must be given, in this spelling or Vita's newer two.",
    leaves: &[
        PCI,
        DEVICE,
        IFNAME,
        MAC,
        IP4,
        IP6,
        NEXTHOP_IP4,
        NEXTHOP_IP6,
        NEXTHOP_MAC,
        DEVICE_QUEUE,
    ],
    blocks: &[],
};
const PUBLIC: Block = Block {
    name: "public-interface",
    about: "Where encrypted packets go out and come in. Must be given, in this spelling or Vita's newer two.",
    leaves: &[
        PCI,
        DEVICE,
        IFNAME,
        MAC,
        IP4,
        IP6,
        NAT_IP4,
        NAT_IP6,
        NEXTHOP_IP4,
        NEXTHOP_IP6,
        NEXTHOP_MAC,
        DEVICE_QUEUE,
    ],
    ..PRIVATE
};
const PRIVATE4: Block = Block {
    name: "private-interface4",
    about: "Vita's newer spelling of `private-interface` with IPv4 addresses. Beside `private-interface6` it must name the same interface.",
    leaves: &[
        PCI,
        DEVICE,
        IFNAME,
        MAC,
        IP4.named("ip"),
        NEXTHOP_IP4.named("nexthop-ip"),
        NEXTHOP_MAC,
        DEVICE_QUEUE,
    ],
    ..PRIVATE
};
const PRIVATE6: Block = Block {
    name: "private-interface6",
    about: "The same with IPv6 addresses.",
    leaves: &[
        PCI,
        DEVICE,
        IFNAME,
        MAC,
        IP6.named("ip"),
        NEXTHOP_IP6.named("nexthop-ip"),
        NEXTHOP_MAC,
        DEVICE_QUEUE,
    ],
    ..PRIVATE
};
const PUBLIC4: Block = Block {
    name: "public-interface4",
    about: "Vita's newer spelling of `public-interface` with IPv4 addresses. Beside `public-interface6` it must name the same interface.",
    leaves: &[
        PCI,
        DEVICE,
        IFNAME,
        MAC,
        IP4.named("ip"),
        NAT_IP4.named("nat-ip"),
        NEXTHOP_IP4.named("nexthop-ip"),
        NEXTHOP_MAC,
        QUEUE,
        DEVICE_QUEUE,
    ],
    ..PRIVATE
};
const PUBLIC6: Block = Block {
    name: "public-interface6",
    about: "The same with IPv6 addresses.",
    leaves: &[
        PCI,
        DEVICE,
        IFNAME,
        MAC,
        IP6.named("ip"),
        NAT_IP6.named("nat-ip"),
        NEXTHOP_IP6.named("nexthop-ip"),
        NEXTHOP_MAC,
        QUEUE,
        DEVICE_QUEUE,
    ],
    ..PRIVATE
};

const SPI_VALUE: &str = "a number from 256 to 4294967295";
const AEAD_VALUE: &str = "aes-128-gcm or aes-256-gcm";
const TTL_VALUE: &str = "a number of seconds from 1 to 4294967295";
const BOOLEAN: &str = "true or false";

const ID: Leaf = leaf(
    "id",
    "up to 48 letters, digits, \"_\", \"-\" and \".\"",
    "test1",
    "The name of the route, in logs and metrics. No two routes share one.",
);
pub(crate) const SPI: Leaf = leaf(
    "spi",
    SPI_VALUE,
    "1001",
    "What key exchange messages of this route are tagged with, the same at both ends. No two routes share one.",
);
pub(crate) const PRESHARED_KEY: Leaf = leaf(
    "preshared-key",
    "64 hexadecimal digits (tare gateway keygen makes them)",
    "91440DA06376A668AC4959A840A125D75FB544E8AA25A08B813E49F0A4B2E270",
    "What authenticates the peer in the key exchange, the same at both ends.",
);
const NET4: Leaf = leaf(
    "net-cidr4",
    "an IPv4 prefix such as 172.17.1.0/24",
    "172.17.1.0/24",
    "Addresses behind the peer. Packets to them take this route, where no other route has a longer prefix of them; packets from the peer must come from them.",
)
.repeated();
const NET6: Leaf = leaf(
    "net-cidr6",
    "an IPv6 prefix such as 2001:db8:1::/48",
    "2001:db8:1::/48",
    "The same for IPv6.",
)
.repeated();
const NET: Leaf = Leaf {
    about: "The same for either family.",
    ..leaf(
        "net",
        "a prefix such as 172.17.1.0/24 or 2001:db8:1::/48",
        "172.17.1.0/24",
        "",
    )
    .repeated()
};
const GW4: Leaf = leaf(
    "gw-ip4",
    "an IPv4 address of one station",
    "172.17.0.10",
    "The peer's public address; packets of this route are encapsulated in IPv4, whichever family they are of. One of `gw-ip4`, `gw-ip6` and `gateway` must be given.",
);
const GW6: Leaf = leaf(
    "gw-ip6",
    "an IPv6 address of one station",
    "2001:db8:f::10",
    "The same for IPv6.",
);
const ROUTE_AEAD: Leaf = leaf(
    "aead",
    AEAD_VALUE,
    "aes-256-gcm",
    "What the SAs that the exchange makes for this route use; where it is not given, what the file's `aead` says. Must be the same at both ends.",
);
const ROUTE_ESN: Leaf = leaf(
    "esn",
    BOOLEAN,
    "false",
    "Whether sequence numbers have 64 bits; where it is not given, what the file's `esn` says. Must be the same at both ends.",
);
const ROUTE_WINDOW: Leaf = leaf(
    "window",
    "a number from 64 to 4032",
    "1024",
    "How many packets back a late one is still accepted; where it is not given, what the file's `window` says.",
);
const GATEWAY: Block = Block {
    name: "gateway",
    repeats: false,
    about: "The peer's public address, as Vita spells it now.",
    leaves: &[
        leaf(
            "ip",
            "an IP address of one station",
            "172.17.0.10",
            "The address; its family is that of the outer packets.",
        ),
        QUEUE,
    ],
    blocks: &[],
};

const SA_SPI: Leaf = Leaf {
    about: "The security parameters index in every packet of the SA. No two inbound SAs share one.",
    ..SPI
};
const SA_AEAD: Leaf = leaf(
    "aead",
    AEAD_VALUE,
    "aes-128-gcm",
    "What the key is for; where it is not given, the key's length says it. `aes-gcm-16-icv` is Vita's name of the first.",
);
const SA_KEY: Leaf = leaf(
    "key",
    "32 hexadecimal digits for aes-128-gcm or 64 for aes-256-gcm",
    "00112233445566778899AABBCCDDEEFF",
    "The key.",
);
const SALT: Leaf = leaf(
    "salt",
    "8 hexadecimal digits",
    "01020304",
    "The first four bytes of every nonce.",
);
const SA_ROUTE: Leaf = leaf(
    "route",
    "the id of a route",
    "test1",
    "The route that the SA is of.",
);

const ROUTE_INBOUND: Block = Block {
    name: "inbound-sa",
    repeats: true,
    about: "An SA whose keys are given here and not agreed on, from the peer to us. A route with one has no `preshared-key` and no exchange.",
    leaves: &[SA_SPI, SA_AEAD, SA_KEY, SALT],
    blocks: &[],
};
const ROUTE_OUTBOUND: Block = Block {
    name: "outbound-sa",
    repeats: false,
    about: "The same from us to the peer.",
    ..ROUTE_INBOUND
};
const INBOUND: Block = Block {
    about: "The same beside the routes, as Vita has it.",
    leaves: &[SA_ROUTE, SA_SPI, SA_AEAD, SA_KEY, SALT, QUEUE],
    ..ROUTE_INBOUND
};
const OUTBOUND: Block = Block {
    name: "outbound-sa",
    ..INBOUND
};

const ROUTE: Block = Block {
    name: "route",
    repeats: true,
    about: "A peer and what is behind it.",
    leaves: &[
        ID,
        GW4,
        GW6,
        NET4,
        NET6,
        NET,
        PRESHARED_KEY,
        SPI,
        ROUTE_AEAD,
        ROUTE_ESN,
        ROUTE_WINDOW,
    ],
    blocks: &[GATEWAY, ROUTE_INBOUND, ROUTE_OUTBOUND],
};
const ROUTE4: Block = Block {
    name: "route4",
    about: "Vita's newer spelling of `route` with an IPv4 prefix and an IPv4 gateway.",
    leaves: &[
        ID,
        NET4.named("net"),
        PRESHARED_KEY,
        SPI,
        ROUTE_AEAD,
        ROUTE_ESN,
        ROUTE_WINDOW,
    ],
    blocks: &[
        Block {
            leaves: &[
                leaf(
                    "ip",
                    "an IPv4 address of one station",
                    "172.17.0.10",
                    "The address.",
                ),
                QUEUE,
            ],
            ..GATEWAY
        },
        ROUTE_INBOUND,
        ROUTE_OUTBOUND,
    ],
    ..ROUTE
};
const ROUTE6: Block = Block {
    name: "route6",
    about: "The same with an IPv6 prefix and an IPv6 gateway.",
    leaves: &[
        ID,
        NET6.named("net"),
        PRESHARED_KEY,
        SPI,
        ROUTE_AEAD,
        ROUTE_ESN,
        ROUTE_WINDOW,
    ],
    blocks: &[
        Block {
            leaves: &[
                leaf(
                    "ip",
                    "an IPv6 address of one station",
                    "2001:db8:f::10",
                    "The address.",
                ),
                QUEUE,
            ],
            ..GATEWAY
        },
        ROUTE_INBOUND,
        ROUTE_OUTBOUND,
    ],
    ..ROUTE
};

const NEGOTIATION_TTL: Leaf = leaf(
    "negotiation-ttl",
    TTL_VALUE,
    "5",
    "Seconds that a key exchange may take before it is begun anew.",
)
.or("5");
const SA_TTL: Leaf = leaf(
    "sa-ttl",
    TTL_VALUE,
    "600",
    "Seconds that a key is used; new ones are agreed on from half of that. At least four times `negotiation-ttl`.",
)
.or("600");

/// The configuration of a gateway.
pub const GATEWAY_FILE: Block = Block {
    name: "",
    repeats: false,
    about: "The gateway.",
    leaves: &[
        leaf(
            "mtu",
            "a number from 68 to 8923, from 1280 with IPv6 prefixes",
            "1280",
            "Bytes that a packet from the private interface may have, without Ethernet header; where it is not given, what the public interface leaves.",
        ),
        leaf(
            "aead",
            AEAD_VALUE,
            "aes-256-gcm",
            "What the SAs use that the exchange makes. A peer that runs Vita knows only the first.",
        )
        .or("aes-128-gcm"),
        leaf("esn", BOOLEAN, "false", "Whether sequence numbers have 64 bits.").or("true"),
        leaf(
            "window",
            "a number from 64 to 4032",
            "1024",
            "How many packets back a late one is still accepted.",
        )
        .or("2048"),
        NEGOTIATION_TTL,
        SA_TTL,
        leaf(
            "protocol-port",
            "a number from 1 to 65535",
            "303",
            "The UDP port of the key exchange, the same at both ends.",
        )
        .or("303"),
        leaf(
            "data-plane",
            BOOLEAN,
            "false",
            "True where no key is to be agreed on: every route needs SAs of its own here, and `preshared-key` and `spi` of routes mean nothing.",
        )
        .or("false"),
        leaf(
            "tfc",
            "false: packets are not padded to hide their lengths",
            "false",
            "Read for Vita's files; true is refused.",
        )
        .or("false"),
        leaf(
            "metrics",
            "an address and a port such as 127.0.0.1:9303",
            "127.0.0.1:9303",
            "Where Prometheus is answered; nowhere where it is not given.",
        ),
        leaf(
            "metrics-per-sa",
            BOOLEAN,
            "true",
            "Whether Prometheus is told the counters of each SA by its SPI too: a new set of them with every change of keys.",
        )
        .or("false"),
        leaf(
            "status-socket",
            "an absolute path of up to 107 bytes",
            "/run/tare-gateway.sock",
            "Where `tare gateway status` is answered, instead of the daemon's own choice.",
        ),
    ],
    blocks: &[
        PRIVATE, PUBLIC, ROUTE, INBOUND, OUTBOUND, PRIVATE4, PRIVATE6, PUBLIC4, PUBLIC6, ROUTE4, ROUTE6,
    ],
};

/// The leaves from which `tare gateway gentest` makes a configuration and its traffic.
pub const GENTEST_FILE: Block = Block {
    name: "",
    repeats: false,
    about: "A test.",
    leaves: &[
        leaf(
            "route-prefix",
            "two bytes of IPv4 such as 172.17, or one to three groups of IPv6 such as ac11 or 2001:db8:1",
            "172.17",
            "The beginning of all addresses behind the peer. Route 0 of them is left to the gateway's own addresses.",
        ),
        leaf(
            "source-prefix",
            "two bytes of IPv4 such as 172.17, or one to three groups of IPv6 such as ac11 or 2001:db8:1",
            "172.16",
            "The beginning of all addresses that packets come from; where it is not given, that of the private interface's own address. It is the peer's `route-prefix`: packets from elsewhere do not pass its check.",
        ),
        leaf("nroutes", "a number from 1 to 10000", "40", "Routes.").or("1"),
        leaf(
            "packet-size",
            "IMIX or a number of bytes from 60 to 9014",
            "60",
            "Bytes of every frame without its checksum, or the mix of seven of 60, four of 590 and one of 1514.",
        )
        .or("IMIX"),
        NEGOTIATION_TTL,
        SA_TTL,
    ],
    blocks: &[PRIVATE, PUBLIC, PRIVATE4, PRIVATE6, PUBLIC4, PUBLIC6],
};
