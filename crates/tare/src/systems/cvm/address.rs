//! The addresses of a guest and its host, as they are given on the command line.

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::str::FromStr;

use anyhow::{bail, ensure};
use tare_cvmnet::daemon::Place;
use tare_cvmnet::tcp::Network;

/// Parses the guest's IPv4 address and the bits of its subnet, `10.77.0.2/24`.
///
/// # Errors
/// What was found and what is expected: an address that one host of a subnet can have.
pub(super) fn subnet(text: &str) -> Result<(Ipv4Addr, u8), String> {
    let (address, bits) = prefix(text, 30).ok_or_else(|| {
        format!("found \"{text}\", expected an IPv4 address and 1 to 30 bits, such as 10.77.0.2/24")
    })?;
    let refused = |what: &str| {
        format!("found \"{text}\", {what}; expected the address of one host, such as 10.77.0.2/24")
    };
    if !is_unicast(address) {
        return Err(refused("which no single host can have on a link"));
    }
    match host_part(address, bits) {
        (0, _) => Err(refused("the address of the subnet itself")),
        (part, most) if part == most => Err(refused("the broadcast address of the subnet")),
        _ => Ok((address, bits)),
    }
}

/// The same for IPv6, `fd77::2/64`.
///
/// # Errors
/// As [`subnet`].
pub(super) fn subnet6(text: &str) -> Result<(Ipv6Addr, u8), String> {
    let (address, bits): (Ipv6Addr, _) = prefix(text, 127).ok_or_else(|| {
        format!("found \"{text}\", expected an IPv6 address and 1 to 127 bits, such as fd77::2/64")
    })?;
    if address.to_bits() << bits == 0 {
        return Err(format!(
            "found \"{text}\", the address of the subnet itself; expected the address of one host, \
             such as fd77::2/64"
        ));
    }
    match is_unicast6(address) {
        true => Ok((address, bits)),
        false => Err(format!(
            "found \"{text}\", which no single host can have on a link; expected the address of \
             one host, such as fd77::2/64"
        )),
    }
}

/// Returns an address and the bits of its prefix, of which there are at most `most`.
fn prefix<A: FromStr>(text: &str, most: u8) -> Option<(A, u8)> {
    let (address, bits) = text.split_once('/')?;
    let bits = bits.parse().ok().filter(|bits| (1..=most).contains(bits))?;
    Some((address.parse().ok()?, bits))
}

/// Returns true for an address that one host can have on a link: not 0.0.0.0/8, loopback,
/// multicast, or what is above.
pub(super) fn is_unicast(address: Ipv4Addr) -> bool {
    let [first, ..] = address.octets();
    (1..224).contains(&first) && !address.is_loopback()
}

/// The same for IPv6: neither unspecified, loopback, multicast nor an IPv4 address.
pub(super) fn is_unicast6(address: Ipv6Addr) -> bool {
    let is_special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    !is_special && address.to_ipv4_mapped().is_none()
}

/// Returns the bits of an address behind those of its subnet, of which there are 1 to 30, and the
/// highest value that they can have.
fn host_part(address: Ipv4Addr, bits: u8) -> (u32, u32) {
    let most = u32::MAX >> bits;
    (address.to_bits() & most, most)
}

/// Returns the first address of a guest's subnet that is not the guest's.
pub(super) fn first_other(guest: Ipv4Addr, bits: u8) -> Ipv4Addr {
    let (part, _) = host_part(guest, bits);
    let other = if part == 1 { 2 } else { 1 };
    Ipv4Addr::from_bits(guest.to_bits() - part + other)
}

/// Checks the host's address on the guest's link, and returns it.
///
/// # Errors
/// It is the guest's, or not one of its subnet.
pub(super) fn host_of(guest: &Network<Ipv4Addr>, host: Ipv4Addr) -> anyhow::Result<Ipv4Addr> {
    let (address, bits) = (guest.address, guest.prefix_len);
    let expected = format!("expected another one of {address}/{bits}, such as");
    let example = first_other(address, bits);
    if host == address {
        bail!("--host-address: found {host}, the guest's own; {expected} {example}");
    }
    let (part, most) = host_part(host, bits);
    let is_of_subnet = host.to_bits() - part == address.to_bits() - host_part(address, bits).0;
    ensure!(
        is_of_subnet && part != 0 && part != most,
        "--host-address: found {host}, {expected} {example}, or \"none\""
    );
    Ok(host)
}

/// The same for IPv6.
///
/// # Errors
/// As [`host_of`].
pub(super) fn host_of6(guest: &Network<Ipv6Addr>, host: Ipv6Addr) -> anyhow::Result<Ipv6Addr> {
    let (address, bits) = (guest.address, guest.prefix_len);
    let behind = 128 - u32::from(bits);
    let is_of_subnet = address.to_bits() >> behind == host.to_bits() >> behind;
    ensure!(
        is_of_subnet && host != address,
        "--host-address-6: found {host}, expected another address of {address}/{bits} than the \
         guest's"
    );
    Ok(host)
}

/// Checks that the guest's addresses are not this machine's own, and, where the TAP device gets an
/// address, that no other device has the guest's subnet or a part of it: the guest could not be
/// reached.
///
/// # Errors
/// What was found, what is expected.
pub(super) fn check_free(tap: &str, place: &Place) -> anyhow::Result<()> {
    for address in place.addresses() {
        let option = if address.is_ipv4() {
            "--address"
        } else {
            "--address-6"
        };
        if UdpSocket::bind((address, 0)).is_ok() {
            bail!("{option}: found {address}, an address of this machine; expected another one");
        }
    }
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let (address, bits) = (place.ip4.address, place.ip4.prefix_len);
    if place.ip4.gateway.is_some() {
        if let Some(device) = device_within(&routes, tap, address, bits) {
            let free = (78..=254).map(|n| Ipv4Addr::new(10, n, 0, 2));
            let mut free = free.filter(|free| device_within(&routes, "", *free, 24).is_none());
            let example = free
                .next()
                .map_or_else(String::new, |free| format!(", such as {free}/24"));
            bail!(
                "--address: found {address}/{bits}, whose subnet is that of {device}, so that the \
                 guest could not be reached; expected another one{example}"
            );
        }
    }
    Ok(())
}

/// Returns the device, other than `tap`, on whose link the subnet of an address or a part of it is,
/// by a table of routes as /proc/net/route has it.
fn device_within<'a>(routes: &'a str, tap: &str, address: Ipv4Addr, bits: u8) -> Option<&'a str> {
    let mask = u32::MAX << (32 - u32::from(bits));
    routes.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |n: usize| {
            let digits = fields.get(n)?;
            // The bytes of the address, as a number of this machine.
            Some(u32::from_be(u32::from_str_radix(digits, 16).ok()?))
        };
        let (net, router, of) = (number(1)?, number(2)?, number(7)?);
        let is_within = of & mask == mask && net & mask == address.to_bits() & mask;
        (router == 0 && is_within && fields[0] != tap).then_some(fields[0])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_that_another_device_has_is_found() {
        let routes = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n\
                      eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\n\
                      eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n\
                      tare0\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n";
        let found =
            |address: &str, bits| device_within(routes, "tare0", address.parse().unwrap(), bits);
        assert_eq!(found("192.0.2.77", 24), Some("eth0"));
        // A part of the guest's subnet, and one of which the guest's is a part.
        assert_eq!(found("192.0.9.77", 16), Some("eth0"));
        assert_eq!(found("192.0.2.77", 28), None);
        assert_eq!(found("10.77.0.2", 24), None, "its own device");
        let another = device_within(routes, "tare1", "10.77.0.3".parse().unwrap(), 24);
        assert_eq!(another, Some("tare0"));
    }

    #[test]
    fn addresses_that_no_host_of_a_subnet_can_have_are_refused_with_what_was_found() {
        let address = Ipv4Addr::new(10, 1, 2, 3);
        assert_eq!(subnet("10.1.2.3/24"), Ok((address, 24)));
        for wrong in [
            "10.1.2.3",
            "10.1.2.3/0",
            "10.1.2.3/31",
            "::1/64",
            "",
            "/8",
            "0.0.0.0/24",
            "0.1.2.3/24",
            "127.0.0.2/8",
            "224.0.0.1/24",
            "255.255.255.255/24",
            "10.1.2.0/24",
            "10.1.2.255/24",
            "10.1.2.4/30",
        ] {
            let error = subnet(wrong).unwrap_err();
            assert!(error.starts_with(&format!("found \"{wrong}\"")), "{error}");
            assert!(error.contains("expected"), "{error}");
        }
        let address = "fd77::2".parse().unwrap();
        assert_eq!(subnet6("fd77::2/64"), Ok((address, 64)));
        for wrong in [
            "fd77::2",
            "fd77::2/0",
            "fd77::2/128",
            "10.1.2.3/24",
            "/64",
            "::/64",
            "::1/64",
            "ff02::2/64",
            "::ffff:10.1.2.3/96",
        ] {
            let error = subnet6(wrong).unwrap_err();
            assert!(error.starts_with(&format!("found \"{wrong}\"")), "{error}");
        }
    }

    #[test]
    fn the_host_has_another_address_of_the_same_subnet() {
        let four = |text: &str| {
            let (address, prefix_len) = subnet(text).unwrap();
            Network {
                address,
                prefix_len,
                gateway: None,
            }
        };
        for (guest, host) in [
            ("10.77.0.2/24", "10.77.0.1"),
            ("10.77.0.1/24", "10.77.0.2"),
            ("10.78.3.200/16", "10.78.0.1"),
            ("10.1.2.6/30", "10.1.2.5"),
            ("10.1.2.5/30", "10.1.2.6"),
            ("130.0.0.1/1", "128.0.0.1"),
        ] {
            let net = four(guest);
            let derived = first_other(net.address, net.prefix_len);
            assert_eq!(derived.to_string(), host, "{guest}");
            assert_eq!(host_of(&net, derived).unwrap(), derived);
        }
        let net = four("10.77.0.2/24");
        for wrong in ["10.77.0.2", "10.77.1.1", "10.77.0.0", "10.77.0.255"] {
            let error = host_of(&net, wrong.parse().unwrap()).unwrap_err();
            assert!(error.to_string().contains(wrong), "{error}");
            assert!(error.to_string().contains("10.77.0.1"), "{error}");
        }
        let (address, prefix_len) = subnet6("fd77::2/64").unwrap();
        let net = Network {
            address,
            prefix_len,
            gateway: None,
        };
        assert!(host_of6(&net, "fd77::1".parse().unwrap()).is_ok());
        for wrong in ["fd77::2", "fd78::1", "fe80::1"] {
            let error = host_of6(&net, wrong.parse().unwrap()).unwrap_err();
            assert!(error.to_string().contains(wrong), "{error}");
        }
    }
}
