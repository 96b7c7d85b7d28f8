//! Configurations as text, in the spelling that [`Config::parse`] reads.

use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;
use zeroize::Zeroizing;

use super::interface::InterfaceConfig;
use super::route::{Keys, ManualSa, Route};
use super::secret::Aead;
use super::value::Device;
use super::Config;

impl Config {
    /// The file that is read as this configuration, keys included. What has its default is left
    /// out.
    pub fn text(&self) -> Zeroizing<String> {
        // Once for all: a string that grows leaves copies of keys behind.
        let prefixes: usize = self.routes.iter().map(|route| route.prefixes.len()).sum();
        let sas: usize = self.routes.iter().map(sa_count).sum();
        let bytes = 4096 + 512 * self.routes.len() + 64 * prefixes + 256 * sas;
        let mut text = Text(Zeroizing::new(String::with_capacity(bytes)));
        text.interface("private-interface", &self.private);
        text.interface("public-interface", &self.public);
        for route in &self.routes {
            text.route(route);
        }
        if let Some(mtu) = self.mtu {
            text.leaf(0, "mtu", mtu);
        }
        if self.negotiation_ttl != Config::NEGOTIATION_TTL {
            text.leaf(0, "negotiation-ttl", self.negotiation_ttl.as_secs());
        }
        if self.sa_ttl != Config::SA_TTL {
            text.leaf(0, "sa-ttl", self.sa_ttl.as_secs());
        }
        if self.protocol_port != Config::PROTOCOL_PORT {
            text.leaf(0, "protocol-port", self.protocol_port);
        }
        if let Some(metrics) = self.metrics {
            text.leaf(0, "metrics", metrics);
        }
        if self.metrics_per_sa {
            text.leaf(0, "metrics-per-sa", true);
        }
        if let Some(path) = &self.status_socket {
            text.leaf(0, "status-socket", quoted(&path.to_string_lossy()));
        }
        debug_assert!(text.0.len() <= bytes, "the text outgrew its estimate");
        text.0
    }
}

fn sa_count(route: &Route) -> usize {
    match &route.keys {
        Keys::Exchange { .. } => 0,
        Keys::Manual { inbound, .. } => inbound.len() + 1,
    }
}

struct Text(Zeroizing<String>);

// Writing to a string does not fail.
impl Text {
    fn leaf(&mut self, indent: usize, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{:indent$}{name} {value};", "");
    }

    fn optional(&mut self, name: &str, value: Option<impl std::fmt::Display>) {
        if let Some(value) = value {
            self.leaf(2, name, value);
        }
    }

    fn open(&mut self, indent: usize, name: &str) {
        let _ = writeln!(self.0, "{:indent$}{name} {{", "");
    }

    fn close(&mut self, indent: usize) {
        let _ = writeln!(self.0, "{:indent$}}}", "");
    }

    fn interface(&mut self, name: &str, interface: &InterfaceConfig) {
        self.open(0, name);
        match &interface.device {
            Device::Pci(address) => {
                let full = address.to_string();
                self.leaf(2, "pci", full.strip_prefix("0000:").unwrap_or(&full));
            }
            Device::Name(name) => self.leaf(2, "device", quoted(name)),
        }
        self.optional("device-queue", interface.device_queue);
        self.optional("mac", interface.mac.map(station));
        self.optional("ip4", interface.ip4);
        self.optional("ip6", interface.ip6);
        self.optional("nat-ip4", interface.nat_ip4);
        self.optional("nat-ip6", interface.nat_ip6);
        self.optional("nexthop-ip4", interface.nexthop_ip4);
        self.optional("nexthop-ip6", interface.nexthop_ip6);
        self.optional("nexthop-mac", interface.nexthop_mac.map(station));
        self.close(0);
    }

    fn route(&mut self, route: &Route) {
        self.open(0, "route");
        self.leaf(2, "id", quoted(&route.id));
        let gateway = match route.gateway {
            IpAddr::V4(_) => "gw-ip4",
            IpAddr::V6(_) => "gw-ip6",
        };
        self.leaf(2, gateway, route.gateway);
        for net in &route.prefixes {
            let name = match net {
                IpNet::V4(_) => "net-cidr4",
                IpNet::V6(_) => "net-cidr6",
            };
            self.leaf(2, name, format_args!("\"{net}\""));
        }
        if !route.esn {
            self.leaf(2, "esn", route.esn);
        }
        if route.window != Config::WINDOW {
            self.leaf(2, "window", route.window);
        }
        match &route.keys {
            Keys::Exchange {
                preshared_key,
                spi,
                aead,
            } => {
                self.key(2, "preshared-key", preshared_key.bytes());
                self.leaf(2, "spi", spi);
                if *aead != Aead::default() {
                    self.leaf(2, "aead", aead);
                }
            }
            Keys::Manual { inbound, outbound } => {
                for sa in inbound {
                    self.sa("inbound-sa", sa);
                }
                self.sa("outbound-sa", outbound);
            }
        }
        self.close(0);
    }

    fn sa(&mut self, name: &str, sa: &ManualSa) {
        self.open(2, name);
        self.leaf(4, "spi", sa.spi);
        self.leaf(4, "aead", sa.key.aead());
        self.key(4, "key", sa.key.key());
        self.key(4, "salt", &sa.key.salt());
        self.close(2);
    }

    fn key(&mut self, indent: usize, name: &str, bytes: &[u8]) {
        let _ = write!(self.0, "{:indent$}{name} ", "");
        for byte in bytes {
            let _ = write!(self.0, "{byte:02x}");
        }
        self.0.push_str(";\n");
    }
}

/// `text` bare where that reads the same, in quotes otherwise.
fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.@:".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.into();
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn station(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
