//! `tare cvm serve`: a TLS server in a guest, and its host.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::{anyhow, bail, Context as _};
use clap::Subcommand;
use tare_cvmnet::daemon::{
    run_guest, run_host, Agreement, Error as HostError, GuestOptions, HostOptions, Place,
};
use tare_cvmnet::region::PAIRS_MAX;
use tare_cvmnet::server::bulk::{Sink, Source, BUFFER_MAX};
use tare_cvmnet::server::{Http, HttpConfig, Memcached, Resp, RespConfig, Service, Store};
use tare_cvmnet::tcp::Network;
use tare_cvmnet::tls::{Options, Suites};
use tare_cvmnet::variant::{Variant, BIFROST_UNPROTECTED};
use tare_daemon::Signals;

use super::address;
use super::driver::ExitKind;
use crate::completion;
use crate::daemon::DaemonArgs;
use crate::size::parse_bytes;
use crate::terminal;

/// The names that the command line completes.
pub(super) const VARIANTS: [&str; 7] = [
    "baseline",
    "cvm",
    "zc",
    "prpr",
    "bifrost",
    "bifrost-unprotected",
    "baseline-gro",
];
pub(super) const EXITS: [&str; 3] = ["each", "rif", "posted"];

/// The most bytes of a file that is kept in memory.
const CACHED_FILE: usize = 16 << 20;

#[derive(clap::Args)]
#[command(after_help = "Examples (as root):\n  \
    tare cvm serve http --dir /srv/www            then: curl -k https://10.77.0.2/\n  \
    tare cvm serve http --dir . --variant cvm --pcap frames.pcap --key-log keys.txt\n  \
    tare cvm serve memcached --memory 1Gi         TLS at 10.77.0.2:11211\n  \
    tare cvm serve http --dir /srv/www --vcpus 4  four virtual processors share the connections\n  \
    tare cvm serve resp                           then: redis-cli -h 10.77.0.2 --tls --insecure\n  \
    tare cvm serve sink --address-6 fd77::2/64 --host-address-6 fd77::1\n  \
    tare cvm serve source                         then: openssl s_client -connect 10.77.0.2:4433\n\n\
    The guest is a separate process with its own TCP and TLS stacks. It shares one untrusted \
    memory region with the host. The host connects the guest to a TAP device. SIGHUP makes the \
    guest read the files of --cert and --key again, SIGTERM stops the guest and the host.\n\n\
    Exit status: 0 ended by a signal; 2 usage error, or the guest or the host could not run.")]
pub(crate) struct Args {
    #[command(subcommand)]
    server: Server,
    /// Variant of the network path: baseline, cvm, zc, prpr, bifrost, bifrost-unprotected,
    /// baseline-gro
    #[arg(long, value_name = "NAME", default_value = "bifrost", value_parser = variant, add = completion::one_of(&VARIANTS), global = true)]
    variant: Variant,
    /// IPv4 address of the guest and the prefix length of its subnet
    #[arg(long, value_name = "ADDRESS/BITS", default_value = "10.77.0.2/24", value_parser = address::subnet, global = true)]
    address: (Ipv4Addr, u8),
    /// Address of the host on the TAP device, which the guest uses as its router; `none` leaves the
    /// device as it is [default: the first address in the guest's subnet that is not the guest's]
    #[arg(long, value_name = "ADDRESS", value_parser = host_address, global = true)]
    host_address: Option<HostAddress>,
    /// IPv6 address of the guest and the prefix length of its subnet [default: none]
    #[arg(long, value_name = "ADDRESS/BITS", value_parser = address::subnet6, global = true)]
    address_6: Option<(Ipv6Addr, u8)>,
    /// IPv6 address of the host on the TAP device, in the guest's subnet, which the guest uses as
    /// its router [default: the device is left as it is]
    #[arg(long, value_name = "ADDRESS", requires = "address_6", value_parser = host_address6, global = true)]
    host_address_6: Option<Ipv6Addr>,
    /// TAP device; if it does not exist, it is created, with the guest's MTU
    #[arg(long, value_name = "NAME", default_value = "tare0", global = true)]
    tap: String,
    /// Number of virtual processors of the guest; each has a thread and a queue pair, and an
    /// additional thread of the host
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=PAIRS_MAX as i64), global = true)]
    vcpus: u16,
    /// Maximum length of an IP packet, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..=9000), global = true)]
    mtu: u16,
    /// TCP port [default: 443, 11211, 6379 or 4433, depending on the server]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), global = true)]
    port: Option<u16>,
    /// PEM file of the certificate and its intermediate certificates [default: a self-signed
    /// certificate, generated at every start]
    #[arg(long, value_name = "FILE", requires = "key", global = true)]
    cert: Option<PathBuf>,
    /// PEM file of the private key of the certificate
    #[arg(long, value_name = "FILE", requires = "cert", global = true)]
    key: Option<PathBuf>,
    /// Use TLS_AES_256_GCM_SHA384 instead of TLS_AES_128_GCM_SHA256
    #[arg(long, global = true)]
    aes_256: bool,
    /// Issue no session tickets, so that every connection does a full handshake
    #[arg(long, global = true)]
    no_resumption: bool,
    /// Append the secrets of all connections to a file, for Wireshark: with it, anyone can decrypt
    /// the connections
    #[arg(long, value_name = "FILE", global = true)]
    key_log: Option<PathBuf>,
    /// Write the frames of both directions to a capture file
    #[arg(long, value_name = "FILE", global = true)]
    pcap: Option<PathBuf>,
    /// Type of exits of the simulated machine: each, rif, posted
    #[arg(long, value_name = "KIND", default_value = "each", value_parser = super::breakdown::exits, add = completion::one_of(&EXITS), global = true)]
    exits: ExitKind,
    /// Simulated cost of an exit, in cycles of the time stamp counter
    #[arg(long, value_name = "CYCLES", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000), global = true)]
    switch_cycles: u64,
    /// Poll on both sides instead of using notifications; each side uses a full core
    #[arg(long, global = true)]
    busy: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// The servers.
#[derive(Subcommand)]
enum Server {
    /// Files over HTTPS: ranges, keep-alive, conditional requests
    Http {
        /// Folder to serve
        #[arg(long, value_name = "FOLDER")]
        dir: PathBuf,
        /// Maximum size of the files kept in memory, in bytes
        #[arg(long, value_name = "BYTES", default_value = "256Mi", value_parser = parse_bytes)]
        cache: u64,
    },
    /// A store that speaks the text protocol of memcached
    Memcached {
        /// Maximum size of all items, in bytes
        #[arg(long, value_name = "BYTES", default_value = "64Mi", value_parser = parse_bytes)]
        memory: u64,
    },
    /// A store that speaks the protocol of Redis
    Resp {
        /// Maximum size of all items, in bytes
        #[arg(long, value_name = "BYTES", default_value = "64Mi", value_parser = parse_bytes)]
        memory: u64,
    },
    /// A sink that counts what it receives
    Sink,
    /// A source that sends bytes
    Source {
        /// Bytes to send on each connection [default: no limit]
        #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
        bytes: Option<u64>,
    },
}

/// The host's address; `None` to leave the device as it is.
#[derive(Clone, Copy)]
struct HostAddress(Option<Ipv4Addr>);

fn host_address(text: &str) -> Result<HostAddress, String> {
    if text == "none" {
        return Ok(HostAddress(None));
    }
    let address = text.parse().ok().filter(|it| address::is_unicast(*it));
    let address = address.ok_or_else(|| {
        format!("found \"{text}\", expected the IPv4 address of one host, or \"none\"")
    });
    address.map(|address| HostAddress(Some(address)))
}

fn host_address6(text: &str) -> Result<Ipv6Addr, String> {
    let address = text.parse().ok().filter(|it| address::is_unicast6(*it));
    address.ok_or_else(|| format!("found \"{text}\", expected the IPv6 address of one host"))
}

pub(super) fn variant(text: &str) -> Result<Variant, String> {
    Variant::by_name(text).ok_or_else(|| {
        let names: Vec<&str> = Variant::ALL.iter().map(|variant| variant.name).collect();
        format!("found \"{text}\", expected one of {}", names.join(", "))
    })
}

impl Args {
    fn agreement(&self) -> Agreement {
        Agreement {
            variant: self.variant,
            exits: self.exits.exits(),
            switch_cycles: self.switch_cycles,
            is_polling: self.busy,
            vcpus: self.vcpus,
        }
    }

    /// Returns the place of the guest, which its host reaches.
    ///
    /// # Errors
    /// An address of the host is the guest's, or not of its subnet.
    fn place(&self) -> anyhow::Result<Place> {
        let (address, prefix_len) = self.address;
        let host = match self.host_address {
            None => Some(address::first_other(address, prefix_len)),
            Some(HostAddress(host)) => host,
        };
        let mut ip4 = Network {
            address,
            prefix_len,
            gateway: None,
        };
        if let Some(host) = host {
            ip4.gateway = Some(address::host_of(&ip4, host)?);
        }
        let mut ip6 = self.address_6.map(|(address, prefix_len)| Network {
            address,
            prefix_len,
            gateway: None,
        });
        if let (Some(net), Some(host)) = (&mut ip6, self.host_address_6) {
            net.gateway = Some(address::host_of6(net, host)?);
        }
        Ok(Place {
            ip4,
            ip6,
            mtu: self.mtu.into(),
        })
    }

    fn port(&self) -> u16 {
        self.port.unwrap_or(match self.server {
            Server::Http { .. } => 443,
            Server::Memcached { .. } => 11211,
            Server::Resp { .. } => 6379,
            Server::Sink | Server::Source { .. } => 4433,
        })
    }

    /// Returns what makes the server of each of the guest's threads. Values are in one store for
    /// all; each thread has its part of the memory for files, and their copies of its own.
    fn service(&self) -> impl Fn() -> anyhow::Result<Box<dyn Service>> + Sync + '_ {
        let store = match self.server {
            Server::Memcached { memory } | Server::Resp { memory } => memory as usize,
            _ => 0,
        };
        let store = Arc::new(Mutex::new(Store::new(store)));
        move || {
            let store = Arc::clone(&store);
            Ok(match &self.server {
                Server::Http { dir, cache } => {
                    let config = HttpConfig {
                        folder: dir.clone(),
                        cache_max: *cache as usize / usize::from(self.vcpus),
                        cached_file_max: CACHED_FILE,
                    };
                    let http = Http::new(&config);
                    Box::new(
                        http.with_context(|| format!("--dir: found {:?}, expected a folder", dir))?,
                    )
                }
                Server::Memcached { .. } => Box::new(Memcached::new(store)),
                Server::Resp { .. } => Box::new(Resp::new(store, RespConfig::default())),
                Server::Sink => Box::new(Sink::new(0)),
                Server::Source { bytes } => {
                    Box::new(Source::new(bytes.unwrap_or(u64::MAX), BUFFER_MAX / 2))
                }
            })
        }
    }

    /// Returns what to say where guest and host have more threads than there are processors, and of
    /// a variant that is not to be relied on.
    fn warnings(&self, cpus: usize) -> Vec<String> {
        let mut warnings = Vec::new();
        let vcpus = usize::from(self.vcpus);
        if vcpus > 1 && 2 * vcpus > cpus {
            warnings.push(format!(
                "warning: {vcpus} processors of the guest and as many threads of its host, on {cpus} \
                 processors: they share the processors, so more of them do not increase the speed"
            ));
        }
        if self.variant == BIFROST_UNPROTECTED {
            let name = self.variant.name;
            warnings.push(format!(
                "warning: {name} is for comparison only: its host can choose what data is delivered"
            ));
        }
        warnings
    }

    /// Says how to reach the server at an address.
    fn greeting(&self, address: IpAddr) -> String {
        let port = self.port();
        let is_curl = matches!(self.server, Server::Http { .. });
        let (bare, host) = match address {
            IpAddr::V4(address) => (address.to_string(), address.to_string()),
            IpAddr::V6(address) => {
                let scope = match (address.is_unicast_link_local(), is_curl) {
                    (false, _) => String::new(),
                    (true, true) => format!("%25{}", self.tap),
                    (true, false) => format!("%{}", self.tap),
                };
                (format!("{address}{scope}"), format!("[{address}{scope}]"))
            }
        };
        let is_own = if self.cert.is_none() { "-k " } else { "" };
        match self.server {
            Server::Http { .. } if port == 443 => format!("curl {is_own}https://{host}/"),
            Server::Http { .. } => format!("curl {is_own}https://{host}:{port}/"),
            Server::Resp { .. } => format!("redis-cli -h {bare} -p {port} --tls --insecure"),
            _ => format!("openssl s_client -connect {host}:{port}"),
        }
    }
}

/// Runs the host, which starts the guest.
///
/// # Errors
/// It cannot be started, or ended.
pub(crate) fn host(args: &Args) -> anyhow::Result<ExitCode> {
    // What is wrong is told here, before there is a network.
    drop((args.service())()?);
    let place = args.place()?;
    address::check_free(&args.tap, &place)?;
    if args.pcap.is_some() && args.pcap == args.key_log {
        bail!("--key-log: found the file of --pcap, expected another one");
    }
    let options = HostOptions {
        agreement: args.agreement(),
        tap: args.tap.clone(),
        place,
        capture: args.pcap.clone(),
        endpoints: args.daemon.endpoints(),
        log: args.daemon.log(),
        signals: Signals::install().context("signals")?,
    };
    let arguments = guest_arguments().context("the arguments of the guest")?;
    let cpus = std::thread::available_parallelism();
    for warning in args.warnings(cpus.map_or(1, usize::from)) {
        terminal::say(&warning);
    }
    let launch = |socket| {
        Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::from(socket))
            .stdout(Stdio::null())
            .spawn()
    };
    let ready = || {
        let is_reached = |address: &IpAddr| match address {
            IpAddr::V4(_) => true,
            // Without an address of its subnet the host has no route to it.
            IpAddr::V6(address) => {
                address.is_unicast_link_local()
                    || place.ip6.is_some_and(|net| net.gateway.is_some())
            }
        };
        for address in place.addresses().filter(is_reached) {
            terminal::say(&format!("try: {}", args.greeting(address)));
        }
    };
    run_host(&options, launch, ready).map_err(|error| match &error {
        HostError::Capture(..) => anyhow!("--pcap: {error}"),
        _ => anyhow!("{error}"),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns this command's arguments with `guest` in the place of `serve`.
fn guest_arguments() -> Option<Vec<OsString>> {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let at = arguments.iter().position(|argument| argument == "serve")?;
    *arguments.get_mut(at)? = "guest".into();
    Some(arguments)
}

/// Runs the guest, on the socket that is its standard input.
///
/// # Errors
/// It was not started by a host.
pub(crate) fn guest(args: &Args) -> anyhow::Result<ExitCode> {
    let service = args.service();
    let services = || -> Result<_, String> {
        let service = service().map_err(|error| format!("{error:#}"))?;
        Ok(vec![(args.port(), service)])
    };
    let options = GuestOptions {
        agreement: args.agreement(),
        place: args.place()?,
        services: &services,
        identity: args.cert.clone().zip(args.key.clone()),
        tls: Options {
            suites: if args.aes_256 {
                Suites::Aes256
            } else {
                Suites::Aes128
            },
            resumption: !args.no_resumption,
            key_log: args.key_log.clone(),
        },
    };
    // The host ends it, by the socket; a key on the terminal is for the host.
    let _signals = Signals::install().context("signals")?;
    let stdin = std::io::stdin();
    run_guest(stdin.as_fd(), &options).map_err(|error| anyhow!("the guest: {error}"))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_and_kind_of_exits_is_completed() {
        assert_eq!(Variant::ALL.map(|variant| variant.name), VARIANTS);
        for name in EXITS {
            assert!(super::super::breakdown::exits(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn variants_and_host_addresses_are_checked_with_what_was_found_and_expected() {
        assert_eq!(variant("zc").map(|variant| variant.name), Ok("zc"));
        assert!(variant("ZC").unwrap_err().contains("bifrost-unprotected"));
        assert!(host_address("none").is_ok_and(|address| address.0.is_none()));
        for wrong in ["10.1.2", "", "0.0.0.0", "127.0.0.1", "239.1.1.1"] {
            let error = host_address(wrong).err().unwrap();
            assert!(error.starts_with(&format!("found \"{wrong}\"")), "{error}");
        }
        assert!(host_address6("fd77::1").is_ok());
        for wrong in ["fd77", "::", "::1", "ff02::1"] {
            let error = host_address6(wrong).unwrap_err();
            assert!(error.starts_with(&format!("found \"{wrong}\"")), "{error}");
        }
    }
}
