//! Options of TLS.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{ring, verify_tls12_signature, verify_tls13_signature, CryptoProvider};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Certificates that Debian's `ca-certificates` installs.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

#[derive(clap::Args)]
pub(super) struct TlsArgs {
    /// Certificates of the authorities to trust, as PEM [default: those of the system]
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Certificate to show to the server, as PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Its private key, as PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Name that the server's certificate has to be for [default: the host's]
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// Take any certificate of the server
    #[arg(long, conflicts_with = "cacert")]
    insecure: bool,
    /// Make a full handshake for every connection
    #[arg(long)]
    no_resumption: bool,
}

impl TlsArgs {
    /// The configuration for a host.
    pub(super) fn of(
        &self,
        host: &str,
    ) -> anyhow::Result<(Arc<ClientConfig>, ServerName<'static>)> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match self.insecure {
            true => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyServer(provider))),
            false => builder.with_root_certificates(self.roots()?),
        };
        let mut config = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let read = PrivateKeyDer::from_pem_file(key);
                let read = read.with_context(|| format!("{}", key.display()))?;
                builder.with_client_auth_cert(certificates(cert)?, read)?
            }
            _ => builder.with_no_client_auth(),
        };
        if self.no_resumption {
            config.resumption = rustls::client::Resumption::disabled();
        }
        let name = self.sni.as_deref().unwrap_or(host);
        let server = match name.parse::<IpAddr>() {
            Ok(address) => ServerName::from(address),
            Err(_) => ServerName::try_from(name.to_string())
                .with_context(|| format!("found {name:?}, expected the name of a host"))?,
        };
        Ok((Arc::new(config), server))
    }

    fn roots(&self) -> anyhow::Result<RootCertStore> {
        let path = self.cacert.as_deref().unwrap_or(Path::new(SYSTEM_ROOTS));
        let mut roots = RootCertStore::empty();
        let read = certificates(path).context("certificates to trust: name them with --cacert")?;
        let (added, _) = roots.add_parsable_certificates(read);
        anyhow::ensure!(added > 0, "{}: found no certificate", path.display());
        Ok(roots)
    }
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let name = || format!("{}", path.display());
    let read = CertificateDer::pem_file_iter(path).with_context(name)?;
    read.collect::<Result<_, _>>().with_context(name)
}

/// Takes any certificate: for servers that are tested, whose certificates are their own.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
