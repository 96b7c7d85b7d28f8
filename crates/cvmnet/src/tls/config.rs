//! The configurations of both sides.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384};
use rustls::crypto::ring::{default_provider, Ticketer};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, UnbufferedServerConnection};
use rustls::version::TLS13;
use rustls::{ClientConfig, KeyLog, RootCertStore, ServerConfig};
use zeroize::{Zeroize as _, Zeroizing};

/// The cipher suites that are offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Suites {
    /// `TLS_AES_128_GCM_SHA256`.
    #[default]
    Aes128,
    /// `TLS_AES_256_GCM_SHA384`.
    Aes256,
}

impl Suites {
    fn provider(self) -> Arc<CryptoProvider> {
        let suite = match self {
            Suites::Aes128 => TLS13_AES_128_GCM_SHA256,
            Suites::Aes256 => TLS13_AES_256_GCM_SHA384,
        };
        Arc::new(CryptoProvider {
            cipher_suites: vec![suite],
            ..default_provider()
        })
    }
}

/// The choices of either side.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The cipher suite.
    pub suites: Suites,
    /// Connections may be resumed, by tickets.
    pub resumption: bool,
    /// A file to which the secrets of every connection are appended, in the format that Wireshark
    /// reads (`SSLKEYLOGFILE`); anyone who has it can read the connections. It is made with mode
    /// 0600.
    pub key_log: Option<PathBuf>,
}

/// A certificate with those that vouch for it, and its private key.
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// The reason why a configuration cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// A PEM file cannot be read or lacks what it is for.
    Pem {
        /// The file.
        path: PathBuf,
        /// The content that is expected: "a certificate", "a private key".
        expected: &'static str,
        /// The reason.
        error: pem::Error,
    },
    /// A private key is encrypted.
    Encrypted {
        /// The file.
        path: PathBuf,
    },
    /// A certificate could not be made.
    SelfSigned(rcgen::Error),
    /// The key log cannot be opened.
    KeyLog {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
    /// rustls refuses: a key that is not the certificate's, a name that is none.
    Tls(rustls::Error),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Pem {
                path,
                expected,
                error,
            } => write!(
                f,
                "{}: expected {expected} in PEM format: {error}",
                path.display()
            ),
            ConfigError::Encrypted { path } => write!(
                f,
                "{}: found an encrypted private key, expected one without a passphrase, such as \
                 `openssl pkey` writes",
                path.display()
            ),
            ConfigError::SelfSigned(error) => {
                write!(f, "a certificate could not be made: {error}")
            }
            ConfigError::KeyLog { path, error } => {
                write!(
                    f,
                    "{}: the key log cannot be opened: {error}",
                    path.display()
                )
            }
            ConfigError::Tls(rustls::Error::InconsistentKeys(_)) => f.write_str(
                "the private key is not that of the certificate; expected the two of one pair",
            ),
            ConfigError::Tls(rustls::Error::General(error)) => write!(
                f,
                "the private key cannot be used: {error}; expected ECDSA, Ed25519, or RSA of 2048 \
                 to 8192 bits"
            ),
            ConfigError::Tls(error) => write!(f, "the certificate cannot be used: {error}"),
        }
    }
}

impl std::error::Error for ConfigError {}

impl Identity {
    /// Reads PEM files.
    ///
    /// # Errors
    /// [`ConfigError::Pem`] or [`ConfigError::Encrypted`].
    pub fn read(chain: &Path, key: &Path) -> Result<Identity, ConfigError> {
        let failed = |path: &Path, expected| {
            let path = path.to_owned();
            move |error| ConfigError::Pem {
                path,
                expected,
                error,
            }
        };
        let certificates: Vec<_> = CertificateDer::pem_file_iter(chain)
            .and_then(Iterator::collect)
            .map_err(failed(chain, "a certificate"))?;
        if certificates.is_empty() {
            return Err(failed(chain, "a certificate")(pem::Error::NoItemsFound));
        }
        let read = PrivateKeyDer::from_pem_file(key);
        let text = || Zeroizing::new(std::fs::read(key).unwrap_or_default());
        let is_encrypted = || text().windows(9).any(|part| part == b"ENCRYPTED");
        Ok(Identity {
            chain: certificates,
            key: match read {
                Err(pem::Error::NoItemsFound) if is_encrypted() => {
                    return Err(ConfigError::Encrypted { path: key.into() })
                }
                read => read.map_err(failed(key, "a private key"))?,
            },
        })
    }

    /// Makes a key on P-256 and a certificate for these names and addresses that it signs itself.
    ///
    /// # Errors
    /// [`ConfigError::SelfSigned`] for a name that is none.
    pub fn self_signed(names: &[String]) -> Result<Identity, ConfigError> {
        let made = rcgen::generate_simple_self_signed(names).map_err(ConfigError::SelfSigned)?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Ok(Identity {
            chain: vec![made.cert.der().clone()],
            key: key.into(),
        })
    }

    /// Returns the certificate that peers see, to be trusted by a client.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.chain.first()
    }
}

/// Returns a certificate for these names and addresses that signs itself, and its key, as the PEM
/// files that [`Identity::read`] reads: for another server.
///
/// # Errors
/// [`ConfigError::SelfSigned`] for a name that is none.
pub fn self_signed_pem(names: &[String]) -> Result<(String, String), ConfigError> {
    let made = rcgen::generate_simple_self_signed(names).map_err(ConfigError::SelfSigned)?;
    Ok((made.cert.pem(), made.signing_key.serialize_pem()))
}

/// A server's part of every handshake.
#[derive(Clone)]
pub struct Server(Arc<ServerConfig>);

impl Server {
    /// Returns a configuration for TLS 1.3 only.
    ///
    /// # Errors
    /// [`ConfigError::Tls`] or [`ConfigError::KeyLog`].
    pub fn new(identity: Identity, options: &Options) -> Result<Server, ConfigError> {
        let mut config = ServerConfig::builder_with_provider(options.suites.provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(ConfigError::Tls)?
            .with_no_client_auth()
            .with_single_cert(identity.chain, identity.key)
            .map_err(ConfigError::Tls)?;
        config.enable_secret_extraction = true;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        if options.resumption {
            config.ticketer = Ticketer::new().map_err(ConfigError::Tls)?;
        } else {
            config.send_tls13_tickets = 0;
        }
        if let Some(log) = key_log(options)? {
            config.key_log = log;
        }
        Ok(Server(Arc::new(config)))
    }

    pub(super) fn connection(&self) -> Result<UnbufferedServerConnection, rustls::Error> {
        UnbufferedServerConnection::new(self.0.clone())
    }
}

/// A client's part of every handshake.
#[derive(Clone)]
pub struct Client {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Client {
    /// Returns a configuration for TLS 1.3 only, which trusts one certificate as a root.
    ///
    /// # Errors
    /// [`ConfigError::Tls`] or [`ConfigError::KeyLog`].
    pub fn new(
        trusted: &CertificateDer<'static>,
        name: ServerName<'static>,
        options: &Options,
    ) -> Result<Client, ConfigError> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.clone()).map_err(ConfigError::Tls)?;
        let mut config = ClientConfig::builder_with_provider(options.suites.provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(ConfigError::Tls)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.enable_secret_extraction = true;
        if !options.resumption {
            config.resumption = Resumption::disabled();
        }
        if let Some(log) = key_log(options)? {
            config.key_log = log;
        }
        Ok(Client {
            config: Arc::new(config),
            name,
        })
    }

    pub(super) fn connection(&self) -> Result<UnbufferedClientConnection, rustls::Error> {
        UnbufferedClientConnection::new(self.config.clone(), self.name.clone())
    }
}

/// A file that secrets are appended to.
struct KeyLogFile(Mutex<File>);

fn key_log(options: &Options) -> Result<Option<Arc<dyn KeyLog>>, ConfigError> {
    let Some(path) = &options.key_log else {
        return Ok(None);
    };
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path);
    let file = opened.map_err(|error| ConfigError::KeyLog {
        path: path.clone(),
        error,
    })?;
    Ok(Some(Arc::new(KeyLogFile(Mutex::new(file)))))
}

impl fmt::Debug for KeyLogFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyLogFile")
    }
}

impl KeyLog for KeyLogFile {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        let mut line = format!("{label} {} {}\n", hex(client_random), hex(secret));
        if let Ok(mut file) = self.0.lock() {
            // Who watches the log sees what is missing; the connection goes on without.
            let _ = file.write_all(line.as_bytes());
        }
        line.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_that_cannot_be_used_is_told_with_what_was_found_and_expected() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (chain, key) = self_signed_pem(&["guest".into()]).unwrap();
        let (_, other) = self_signed_pem(&["guest".into()]).unwrap();
        let chain = write("cert.pem", &chain);
        let failed = |key: &Path| -> String {
            let options = Options::default();
            match Identity::read(&chain, key).and_then(|pair| Server::new(pair, &options)) {
                Ok(_) => String::new(),
                Err(error) => error.to_string(),
            }
        };
        assert_eq!(failed(&write("key.pem", &key)), "");
        let error = failed(&write("other.pem", &other));
        assert!(error.contains("not that of the certificate"), "{error}");
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAAA\n\
                         -----END ENCRYPTED PRIVATE KEY-----\n";
        let error = failed(&write("encrypted.pem", encrypted));
        assert!(
            error.contains("encrypted.pem: found an encrypted"),
            "{error}"
        );
        let error = failed(&write("none.pem", "nothing\n"));
        assert!(
            error.contains("none.pem: expected a private key"),
            "{error}"
        );
    }
}
