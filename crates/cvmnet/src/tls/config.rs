//! The configurations of both sides.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384};
use rustls::crypto::ring::{default_provider, Ticketer};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, UnbufferedServerConnection,
};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, KeyLog, RootCertStore, ServerConfig};
use tare_daemon::{read_file, FileContent};
use zeroize::Zeroize as _;

/// The most bytes of a file with a certificate or a key: a chain with all that vouch for it has a
/// few KB.
const PEM_MAX: usize = 1 << 20;
/// The time for which a certificate that signs itself is valid, and that before it is made: the
/// clock of who looks at it may be behind.
const VALID_FOR: Duration = Duration::from_secs(365 * 24 * 3600);
const VALID_BEFORE: Duration = Duration::from_secs(24 * 3600);
/// 2026-11-01, in seconds since 1970: a clock that says less is wrong, and the certificate valid as
/// if it were later, for those whose clock is right.
const EARLIEST: Duration = Duration::from_secs(1_793_491_200);

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
    /// A file cannot be read.
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// A PEM file lacks what it is for.
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
        error: io::Error,
    },
    /// rustls refuses: a key that is not the certificate's, a name that is none.
    Tls(rustls::Error),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::File { path, error } => write!(f, "{}: {error}", path.display()),
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
    /// [`ConfigError::File`], [`ConfigError::Pem`] or [`ConfigError::Encrypted`].
    pub fn read(chain: &Path, key: &Path) -> Result<Identity, ConfigError> {
        let failed = |path: &Path, expected| {
            let path = path.to_owned();
            move |error| ConfigError::Pem {
                path,
                expected,
                error,
            }
        };
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(&read_pem(chain)?.bytes)
            .collect::<Result<_, _>>()
            .map_err(failed(chain, "a certificate"))?;
        if certificates.is_empty() {
            return Err(failed(chain, "a certificate")(pem::Error::NoItemsFound));
        }
        let text = read_pem(key)?.bytes;
        let is_encrypted = || text.windows(9).any(|part| part == b"ENCRYPTED");
        Ok(Identity {
            chain: certificates,
            key: match PrivateKeyDer::from_pem_slice(&text) {
                Err(pem::Error::NoItemsFound) if is_encrypted() => {
                    return Err(ConfigError::Encrypted { path: key.into() })
                }
                read => read.map_err(failed(key, "a private key"))?,
            },
        })
    }

    /// Makes a key on P-256 and a certificate for these names and addresses that it signs itself,
    /// valid for a year.
    ///
    /// # Errors
    /// [`ConfigError::SelfSigned`] for a name that is none.
    pub fn self_signed(names: &[String]) -> Result<Identity, ConfigError> {
        let (certificate, key) = made(names).map_err(ConfigError::SelfSigned)?;
        Ok(Identity {
            chain: vec![certificate.der().clone()],
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        })
    }

    /// Checks that certificate and key are those of one pair.
    fn certified(self, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, ConfigError> {
        let certified = CertifiedKey::from_der(self.chain, self.key, provider);
        certified.map(Arc::new).map_err(ConfigError::Tls)
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
    let (certificate, key) = made(names).map_err(ConfigError::SelfSigned)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn made(names: &[String]) -> Result<(rcgen::Certificate, rcgen::KeyPair), rcgen::Error> {
    let key = rcgen::KeyPair::generate()?;
    let mut parameters = rcgen::CertificateParams::new(names)?;
    let name = &mut parameters.distinguished_name;
    name.push(rcgen::DnType::CommonName, "tare cvm");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap_or_default();
    let at = |since: Duration| rcgen::date_time_ymd(1970, 1, 1) + since;
    parameters.not_before = at(now.saturating_sub(VALID_BEFORE));
    parameters.not_after = at(now.max(EARLIEST) + VALID_FOR);
    Ok((parameters.self_signed(&key)?, key))
}

/// Reads a file that is to be regular and of at most [`PEM_MAX`] bytes.
fn read_pem(path: &Path) -> Result<FileContent, ConfigError> {
    let read = read_file(path, PEM_MAX).and_then(|file| match file.bytes.len() {
        0..=PEM_MAX => Ok(file),
        _ => Err(io::Error::other(format!(
            "found a file of {} bytes, expected one in PEM format of at most {PEM_MAX}",
            file.metadata.len()
        ))),
    });
    read.map_err(|error| ConfigError::File {
        path: path.into(),
        error,
    })
}

/// A server's part of every handshake.
#[derive(Clone)]
pub struct Server {
    config: Arc<ServerConfig>,
    identity: Arc<Current>,
    key_log: Option<Arc<KeyLogFile>>,
}

impl Server {
    /// Returns a configuration for TLS 1.3 only.
    ///
    /// # Errors
    /// [`ConfigError::Tls`] or [`ConfigError::KeyLog`].
    pub fn new(identity: Identity, options: &Options) -> Result<Server, ConfigError> {
        let provider = options.suites.provider();
        let identity = identity.certified(&provider)?;
        let identity = Arc::new(Current(RwLock::new(identity)));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(ConfigError::Tls)?
            .with_no_client_auth()
            .with_cert_resolver(identity.clone());
        config.enable_secret_extraction = true;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        if options.resumption {
            config.ticketer = Ticketer::new().map_err(ConfigError::Tls)?;
        } else {
            config.send_tls13_tickets = 0;
        }
        let key_log = key_log(options)?;
        if let Some(log) = &key_log {
            config.key_log = log.clone();
        }
        Ok(Server {
            config: Arc::new(config),
            identity,
            key_log,
        })
    }

    /// Takes another certificate and key for the handshakes that begin from now on, of all clones.
    ///
    /// # Errors
    /// [`ConfigError::Tls`]; the server keeps those that it has.
    pub fn replace(&self, identity: Identity) -> Result<(), ConfigError> {
        let identity = identity.certified(self.config.crypto_provider())?;
        let current = self.identity.0.write();
        *current.unwrap_or_else(PoisonError::into_inner) = identity;
        Ok(())
    }

    /// Returns the error that has ended the key log, once.
    pub fn take_key_log_error(&self) -> Option<io::Error> {
        self.key_log.as_ref()?.state().error.take()
    }

    pub(super) fn connection(&self) -> Result<UnbufferedServerConnection, rustls::Error> {
        UnbufferedServerConnection::new(self.config.clone())
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

/// The certificate and key that handshakes begin with.
#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Some(current.clone())
    }
}

/// A file that secrets are appended to, until that fails.
struct KeyLogFile(Mutex<KeyLogState>);

struct KeyLogState {
    file: Option<File>,
    /// The error that has ended it, until it is told.
    error: Option<io::Error>,
}

impl KeyLogFile {
    fn state(&self) -> MutexGuard<'_, KeyLogState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key_log(options: &Options) -> Result<Option<Arc<KeyLogFile>>, ConfigError> {
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
    Ok(Some(Arc::new(KeyLogFile(Mutex::new(KeyLogState {
        file: Some(file),
        error: None,
    })))))
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
        let mut state = self.state();
        let written = state.file.as_mut().map(|it| it.write_all(line.as_bytes()));
        if let Some(Err(error)) = written {
            // The connection goes on without. So does the file: a line that is cut may be its last.
            (state.file, state.error) = (None, Some(error));
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

    #[test]
    fn certificates_and_keys_are_regular_files_of_a_bounded_size() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("long.pem");
        let file = File::create(&long).unwrap();
        file.set_len(PEM_MAX as u64 + 1).unwrap();
        for (path, found) in [
            (&*long, "found a file of 1048577 bytes"),
            (Path::new("/dev/zero"), "found a device, expected a regular"),
            (folder.path(), "found a directory"),
        ] {
            let error = Identity::read(path, path).err().unwrap().to_string();
            let expected = format!("{}: {found}", path.display());
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn a_key_log_that_cannot_be_written_is_told_once_and_is_the_end_of_that_alone() {
        let options = Options {
            key_log: Some("/dev/full".into()),
            ..Options::default()
        };
        let identity = Identity::self_signed(&["guest".into()]).unwrap();
        let server = Server::new(identity, &options).unwrap();
        assert!(server.take_key_log_error().is_none());
        let log = || server.config.key_log.log("LABEL", &[1], &[2]);
        log();
        let error = server.clone().take_key_log_error().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        log();
        assert!(server.take_key_log_error().is_none());
    }
}
