//! The files and the command line of a server, which are the same wherever it runs.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context as _;
use rustls::crypto::{ring, CryptoProvider};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use tare_lab::parameters::Choice as _;

use super::server::{Server, STATUS};

/// The port with TLS.
const TLS_PORT: u16 = 8443;
/// The name that a certificate is for.
const NAME: &str = "server.tare";
/// Bytes of memory that memcached needs for a byte of its values: it takes pages of 1 MiB for each
/// class of sizes.
const STORE_FACTOR: u64 = 2;
const MIB: u64 = 1 << 20;

/// A server and what it serves.
#[derive(Clone)]
pub(in crate::systems) struct Service {
    /// The program.
    pub(in crate::systems) kind: Server,
    /// The address without TLS, which answers questions about the server's counts in any case.
    pub(in crate::systems) address: SocketAddr,
    /// Bytes of nginx's document.
    pub(in crate::systems) document: usize,
    /// Threads of memcached, or processes of nginx; a Redis has one.
    pub(in crate::systems) threads: usize,
    /// Bytes of all values.
    pub(in crate::systems) store: u64,
    /// The certificate and its key; `None` without TLS.
    pub(in crate::systems) identity: Option<Identity>,
}

/// A certificate that was made for a run, and its private key, as PEM.
#[derive(Clone)]
pub(in crate::systems) struct Identity {
    pub(in crate::systems) certificate: String,
    key: String,
}

impl Identity {
    /// Makes a certificate that signs itself.
    ///
    /// # Errors
    /// There is no random number.
    pub(in crate::systems) fn new() -> anyhow::Result<Identity> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
        Ok(Identity {
            certificate: made.cert.pem(),
            key: made.signing_key.serialize_pem(),
        })
    }
}

/// Returns the TLS of a client that trusts this certificate alone, with the publication's cipher.
///
/// # Errors
/// It is no certificate.
pub(in crate::systems) fn trusting(
    certificate: &str,
) -> anyhow::Result<(Arc<ClientConfig>, ServerName<'static>)> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes())?)?;
    let provider = CryptoProvider {
        cipher_suites: vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256],
        ..ring::default_provider()
    };
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok((config.into(), NAME.try_into()?))
}

impl Service {
    /// Returns the package that has the program.
    pub(in crate::systems) fn package(&self) -> &'static str {
        match self.kind {
            Server::Nginx => "nginx-light",
            Server::Memcached => "memcached",
            Server::Redis => "redis-server",
        }
    }

    /// Returns the address at which it serves on a host, and that for questions about its counts.
    pub(in crate::systems) fn addresses(&self, ip: Ipv4Addr) -> (SocketAddr, SocketAddr) {
        let port = self.address.port();
        let served = self.identity.as_ref().map_or(port, |_| TLS_PORT);
        ((ip, served).into(), (ip, port).into())
    }

    /// Returns the memory that it needs for its values, in MiB.
    pub(in crate::systems) fn store_mib(&self) -> u64 {
        (self.store * STORE_FACTOR).div_ceil(MIB)
    }

    /// Returns its files, by name in its folder. `is_daemon` is true if it is to go into the
    /// background.
    pub(in crate::systems) fn files(
        &self,
        folder: &str,
        is_daemon: bool,
    ) -> Vec<(&'static str, Vec<u8>)> {
        let mut files = Vec::new();
        if self.kind == Server::Nginx {
            let config = self.nginx(folder, is_daemon);
            files.push(("nginx.conf", config.into_bytes()));
            files.push(("index.html", vec![b'x'; self.document]));
        }
        if let Some(identity) = &self.identity {
            files.push(("cert.pem", identity.certificate.clone().into_bytes()));
            files.push(("key.pem", identity.key.clone().into_bytes()));
        }
        files
    }

    /// Returns its arguments, without the program's name.
    pub(in crate::systems) fn arguments(&self, folder: &str, is_daemon: bool) -> Vec<String> {
        let tls = self.identity.is_some();
        let (cert, key) = (format!("{folder}/cert.pem"), format!("{folder}/key.pem"));
        let (ip, port) = (self.address.ip(), self.address.port());
        let line = match self.kind {
            Server::Nginx => format!("-e stderr -p {folder} -c nginx.conf"),
            Server::Memcached => {
                let (threads, store) = (self.threads, self.store_mib() + 64);
                let daemon = if is_daemon { " -d" } else { "" };
                let is_root = rustix::process::geteuid().is_root();
                let user = if is_root { " -u root" } else { "" };
                let listen = match tls {
                    true => format!(
                        "-l notls:{ip}:{port},{ip}:{TLS_PORT} -Z \
                         -o ssl_chain_cert={cert},ssl_key={key}"
                    ),
                    false => format!("-l {ip} -p {port} -U {port}"),
                };
                // A value of 1 MiB is an item that is longer.
                format!("{listen} -t {threads} -m {store} -I 2m -c 8192{user}{daemon}")
            }
            Server::Redis => {
                let daemon = if is_daemon { "yes" } else { "no" };
                let tls = match tls {
                    true => format!(
                        " --tls-port {TLS_PORT} --tls-cert-file {cert} --tls-key-file {key} \
                         --tls-ca-cert-file {cert} --tls-auth-clients no"
                    ),
                    false => String::new(),
                };
                format!(
                    "--bind {ip} --port {port} --protected-mode no --appendonly no \
                     --daemonize {daemon} --dir {folder}{tls} --save"
                )
            }
        };
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        if self.kind == Server::Redis {
            // `--save` takes an empty word, so that nothing is saved.
            words.push(String::new());
        }
        words
    }

    /// Returns the configuration of nginx, which closes no connection by itself.
    fn nginx(&self, folder: &str, is_daemon: bool) -> String {
        let (address, workers) = (self.address, self.threads);
        let daemon = if is_daemon { "on" } else { "off" };
        // One process alone needs no other that watches it. Several take the rights of another
        // user, who cannot read a folder of root's, unless they are told.
        let processes = match workers {
            1 => "master_process off;".to_owned(),
            _ if rustix::process::geteuid().is_root() => {
                format!("worker_processes {workers};\nuser root;")
            }
            _ => format!("worker_processes {workers};"),
        };
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary = temporary.map(|name| format!("{name}_temp_path \"{folder}/{name}\";"));
        let tls = self.identity.as_ref().map_or(String::new(), |_| {
            let tls = SocketAddr::new(address.ip(), TLS_PORT);
            format!(
                "listen {tls} ssl;\n    ssl_certificate \"{folder}/cert.pem\";\n    \
                 ssl_certificate_key \"{folder}/key.pem\";\n    ssl_protocols TLSv1.3;\n    "
            )
        });
        format!(
            "daemon {daemon};\n{processes}\npid \"{folder}/pid\";\nerror_log stderr;\n\
             events {{ worker_connections 8192; }}\n\
             http {{\n  access_log off;\n  etag off;\n  keepalive_requests 1000000000;\n  open_file_cache max=16;\n  \
             {}\n  server {{\n    listen {address};\n    {tls}root \"{folder}\";\n    \
             location = {STATUS} {{ stub_status; }}\n  }}\n}}\n",
            temporary.join("\n  ")
        )
    }

    /// Returns the program's name.
    pub(in crate::systems) fn program(&self) -> &'static str {
        self.kind.name()
    }
}

/// Returns the folder's path as text without blanks, as [`Service::arguments`] needs it.
///
/// # Errors
/// It has one.
pub(in crate::systems) fn folder_text(folder: &std::path::Path) -> anyhow::Result<&str> {
    let text = folder.to_str().filter(|text| !text.contains(' '));
    text.with_context(|| {
        format!("found the folder {folder:?}, expected one without blanks: set TMPDIR")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(kind: Server, tls: bool) -> Service {
        Service {
            kind,
            address: (Ipv4Addr::UNSPECIFIED, 8080).into(),
            document: 3,
            threads: 4,
            store: 10 * MIB,
            identity: tls.then(|| Identity::new().unwrap()),
        }
    }

    #[test]
    fn a_server_with_tls_has_its_certificate_and_one_without_no_word_of_it() {
        for kind in [Server::Nginx, Server::Memcached, Server::Redis] {
            for tls in [false, true] {
                let service = service(kind, tls);
                let mut all = service.arguments("/f", true).join(" ");
                let files = service.files("/f", true);
                for (name, bytes) in &files {
                    all += &format!(" {name} {}", String::from_utf8_lossy(bytes));
                }
                assert_eq!(all.contains("8443"), tls, "{kind:?}: {all}");
                assert_eq!(all.contains("/f/key.pem"), tls, "{kind:?}: {all}");
                assert_eq!(all.contains("PRIVATE KEY"), tls, "{kind:?}: {all}");
                assert!(all.contains("8080"), "{kind:?}: {all}");
                let port = if tls { 8443 } else { 8080 };
                let (address, counts) = service.addresses(Ipv4Addr::LOCALHOST);
                assert_eq!((address.port(), counts.port()), (port, 8080));
            }
        }
        let memcached = service(Server::Memcached, false).arguments("/f", false);
        // Twice the values, and 64 MiB.
        assert!(memcached.join(" ").contains("-t 4 -m 84 "), "{memcached:?}");
        let redis = service(Server::Redis, false).arguments("/f", false);
        assert_eq!(redis[redis.len() - 2..], ["--save", ""]);
    }

    #[test]
    fn a_client_trusts_the_certificate_of_its_run_alone() {
        let (own, other) = (Identity::new().unwrap(), Identity::new().unwrap());
        assert_ne!(own.certificate, other.certificate);
        let (config, name) = trusting(&own.certificate).unwrap();
        assert_eq!(name.to_str(), NAME);
        let suites = &config.crypto_provider().cipher_suites;
        assert_eq!(suites.len(), 1);
        assert!(trusting("no certificate").is_err());
    }
}
