//! Values of leaves: from text to what it means.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tare_packet::ethernet::Mac;
use zeroize::Zeroizing;

use super::secret::{Aead, PresharedKey};

/// The error of a value, if it differs from "found the value, expected what the leaf
/// takes".
#[derive(Debug, Default)]
pub(crate) struct Wrong {
    pub(crate) found: Option<String>,
    pub(crate) expected: Option<String>,
}

/// An interface, by the PCI address of its device or by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// `pci 23:00.0;`
    Pci(PciAddress),
    /// `device eth0;` or `ifname eth0;`
    Name(String),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Pci(address) => address.fmt(f),
            Device::Name(name) => f.write_str(name),
        }
    }
}

/// The address of a device on the PCI bus. Read with or without its domain, and displayed as
/// `0000:23:00.0`, which is its name below `/sys/bus/pci/devices`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    /// Five bits of device and three of function.
    slot: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress { domain, bus, slot } = self;
        write!(f, "{domain:04x}:{bus:02x}:{:02x}.{}", slot >> 3, slot & 7)
    }
}

/// The error of a text that is not a PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPciAddress;

impl fmt::Display for NoPciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a PCI address such as 23:00.0 or 0000:23:00.0")
    }
}

impl std::error::Error for NoPciAddress {}

impl FromStr for PciAddress {
    type Err = NoPciAddress;

    fn from_str(text: &str) -> Result<PciAddress, NoPciAddress> {
        let read = || {
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = match rest.split_once(':') {
                // Host bridges of some storage controllers count from 10000.
                Some((domain, bus)) => (hexadecimal(domain, 4..=8)?, bus),
                None => (0, rest),
            };
            let device = hexadecimal(device, 2..=2).filter(|&device| device < 32)?;
            let function = hexadecimal(function, 1..=1).filter(|&function| function < 8)?;
            Some(PciAddress {
                domain,
                bus: hexadecimal(bus, 2..=2)? as u8,
                slot: (device << 3 | function) as u8,
            })
        };
        read().ok_or(NoPciAddress)
    }
}

fn hexadecimal(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let all = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (digits.contains(&text.len()) && all)
        .then(|| u32::from_str_radix(text, 16).ok())
        .flatten()
}

pub(crate) fn pci(text: &str) -> Result<Device, Wrong> {
    let address = text.parse().map_err(|_| Wrong::default())?;
    Ok(Device::Pci(address))
}

/// The names that Linux accepts (`dev_valid_name`).
pub(crate) fn device(text: &str) -> Result<Device, Wrong> {
    let fits = (1..=15).contains(&text.len()) && text != "." && text != "..";
    let plain =
        |char: char| !char.is_whitespace() && !char.is_control() && char != '/' && char != ':';
    if !fits || !text.chars().all(plain) {
        return Err(Wrong::default());
    }
    Ok(Device::Name(text.into()))
}

pub(crate) fn mac(text: &str) -> Result<Mac, Wrong> {
    let mut mac: Mac = [0; 6];
    let mut bytes = text.split(':');
    for to in &mut mac {
        let byte = bytes.next().and_then(|byte| hexadecimal(byte, 2..=2));
        *to = byte.ok_or_else(Wrong::default)? as u8;
    }
    let [first, ..] = mac;
    // The lowest bit of the first byte is a group's.
    if bytes.next().is_some() || first & 1 == 1 {
        return Err(Wrong::default());
    }
    Ok(mac)
}

pub(crate) fn ip4(text: &str) -> Result<Ipv4Addr, Wrong> {
    let address: Ipv4Addr = text.parse().map_err(|_| Wrong::default())?;
    if address.is_unspecified() || address.is_multicast() || address.is_broadcast() {
        return Err(Wrong::default());
    }
    Ok(address)
}

pub(crate) fn ip6(text: &str) -> Result<Ipv6Addr, Wrong> {
    let address: Ipv6Addr = text.parse().map_err(|_| Wrong::default())?;
    if address.is_unspecified() || address.is_multicast() || address.to_ipv4_mapped().is_some() {
        return Err(Wrong::default());
    }
    Ok(address)
}

pub(crate) fn ip(text: &str) -> Result<IpAddr, Wrong> {
    if text.contains(':') {
        ip6(text).map(IpAddr::V6)
    } else {
        ip4(text).map(IpAddr::V4)
    }
}

pub(crate) fn net4(text: &str) -> Result<IpNet, Wrong> {
    let net: Ipv4Net = text.parse().map_err(|_| Wrong::default())?;
    without_host_bits(text, IpNet::V4(net))
}

pub(crate) fn net6(text: &str) -> Result<IpNet, Wrong> {
    let net: Ipv6Net = text.parse().map_err(|_| Wrong::default())?;
    without_host_bits(text, IpNet::V6(net))
}

pub(crate) fn net(text: &str) -> Result<IpNet, Wrong> {
    if text.contains(':') {
        net6(text)
    } else {
        net4(text)
    }
}

fn without_host_bits(text: &str, net: IpNet) -> Result<IpNet, Wrong> {
    if net.trunc() != net {
        return Err(Wrong {
            found: Some(format!(
                "{text:?}, which has bits behind its {}",
                net.prefix_len()
            )),
            expected: Some(format!("\"{}\"", net.trunc())),
        });
    }
    Ok(net)
}

/// A number in digits only, within bounds.
pub(crate) fn number(bounds: std::ops::RangeInclusive<u32>) -> impl Fn(&str) -> Result<u32, Wrong> {
    move |text| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| digits);
        number
            .filter(|number| bounds.contains(number))
            .ok_or_else(Wrong::default)
    }
}

/// As [`number`], for what has 16 bits.
pub(crate) fn number16(
    bounds: std::ops::RangeInclusive<u16>,
) -> impl Fn(&str) -> Result<u16, Wrong> {
    let number = number(u32::from(*bounds.start())..=u32::from(*bounds.end()));
    move |text| Ok(number(text)? as u16)
}

/// The smallest security parameters index that is not reserved (RFC 4303, 2.1).
pub(crate) const SPI_MIN: u32 = 256;

pub(crate) fn spi(text: &str) -> Result<u32, Wrong> {
    number(SPI_MIN..=u32::MAX)(text)
}

pub(crate) fn boolean(text: &str) -> Result<bool, Wrong> {
    text.parse().map_err(|_| Wrong::default())
}

pub(crate) fn id(text: &str) -> Result<String, Wrong> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if !(1..=48).contains(&text.len()) || !text.bytes().all(plain) {
        return Err(Wrong::default());
    }
    Ok(text.into())
}

pub(crate) fn aead(text: &str) -> Result<Aead, Wrong> {
    Aead::by_name(text).ok_or_else(Wrong::default)
}

pub(crate) fn preshared_key(text: &str) -> Result<PresharedKey, Wrong> {
    digits::<32>(text).map(|bytes| PresharedKey::new(*bytes))
}

/// `N` bytes in hexadecimal, white space between them allowed. What is wrong never quotes them.
pub(crate) fn digits<const N: usize>(text: &str) -> Result<Zeroizing<[u8; N]>, Wrong> {
    let mut bytes = Zeroizing::new([0; N]);
    let mut count = 0;
    let mut others = 0;
    for char in text.chars().filter(|char| !char.is_whitespace()) {
        match char.to_digit(16) {
            Some(digit) => {
                if let Some(byte) = bytes.get_mut(count / 2) {
                    *byte = *byte << 4 | digit as u8;
                }
                count += 1;
            }
            None => others += 1,
        }
    }
    if others > 0 {
        let chars = count + others;
        let s = if others == 1 { "" } else { "s" };
        return Err(Wrong {
            found: Some(format!(
                "{chars} characters, {others} of them no hexadecimal digit{s}"
            )),
            expected: None,
        });
    }
    if count != 2 * N {
        return Err(Wrong {
            found: Some(format!("{count} hexadecimal digits")),
            expected: None,
        });
    }
    Ok(bytes)
}

pub(crate) fn socket_address(text: &str) -> Result<SocketAddr, Wrong> {
    text.parse().map_err(|_| Wrong::default())
}

/// The longest path that fits into `sockaddr_un`.
pub(crate) fn socket_path(text: &str) -> Result<PathBuf, Wrong> {
    let plain = text.starts_with('/') && !text.contains('\0');
    if !plain || !(2..=107).contains(&text.len()) {
        return Err(Wrong::default());
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_read_with_and_without_domain() {
        for (text, shown) in [
            ("23:00.0", "0000:23:00.0"),
            ("0000:23:1f.7", "0000:23:1f.7"),
            ("10000:e1:00.0", "10000:e1:00.0"),
            ("0C:00.1", "0000:0c:00.1"),
        ] {
            let address: PciAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(shown.parse(), Ok(address));
        }
        for text in [
            "",
            "23:00",
            "23:00.8",
            "23:20.0",
            "3:00.0",
            "000:23:00.0",
            "0:0:0.0",
            "+3:00.0",
            "0000:00:23:00.0",
            "23:00.0 ",
            "eth0",
        ] {
            assert_eq!(text.parse::<PciAddress>(), Err(NoPciAddress), "{text}");
        }
    }

    #[test]
    fn values_at_and_beyond_their_bounds() {
        let long = "1234567890123456";
        assert!(device("eth0.100@if2").is_ok() && device(&long[1..]).is_ok());
        for name in ["", ".", "..", long, "a b", "a/b", "a:b", "a\n"] {
            assert!(device(name).is_err(), "{name}");
        }
        assert_eq!(mac("02:00:00:00:00:aF").unwrap(), [2, 0, 0, 0, 0, 0xaf]);
        for text in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "01:00:5e:00:00:01",
            "2:0:0:0:0:1",
        ] {
            assert!(mac(text).is_err(), "{text}");
        }
        for text in [
            "",
            "256",
            "1.2.3",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "1.2.3.4/8",
            "01.2.3.4",
        ] {
            assert!(ip4(text).is_err(), "{text}");
        }
        for text in ["::", "ff02::1", "::ffff:1.2.3.4", "fe80::1%eth0", "1.2.3.4"] {
            assert!(ip6(text).is_err(), "{text}");
        }
        assert_eq!(spi("4294967295").unwrap(), u32::MAX);
        for text in ["255", "4294967296", "+1001", "-1", "0x100", "", "1e3"] {
            assert!(spi(text).is_err(), "{text}");
        }
        assert_eq!(net("0.0.0.0/0").unwrap().to_string(), "0.0.0.0/0");
        assert_eq!(net("2001:db8::/32").unwrap().to_string(), "2001:db8::/32");
        for text in [
            "10.0.0.0",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.1/8",
            "10.0.0.0/-1",
        ] {
            assert!(net(text).is_err(), "{text}");
        }
        assert!(socket_path("/run/x").is_ok() && socket_path("run/x").is_err());
        assert!(socket_path(&"/x".repeat(54)).is_err());
    }

    #[test]
    fn a_wrong_key_is_told_by_its_length() {
        let found = |text: &str| digits::<4>(text).unwrap_err().found.unwrap();
        assert_eq!(*digits::<4>("01 02\nfF\t00").unwrap(), [1, 2, 255, 0]);
        assert_eq!(found("0102ff"), "6 hexadecimal digits");
        assert_eq!(found(""), "0 hexadecimal digits");
        assert_eq!(found("0102ff00a"), "9 hexadecimal digits");
        assert_eq!(
            found("0102ffxy"),
            "8 characters, 2 of them no hexadecimal digits"
        );
    }
}
