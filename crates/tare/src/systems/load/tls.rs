//! Options of TLS.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_name, WebPkiServerVerifier};
use rustls::crypto::{ring, verify_tls12_signature, verify_tls13_signature, CryptoProvider};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Certificates that Debian's `ca-certificates` installs.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

#[derive(clap::Args)]
pub(super) struct TlsArgs {
    /// PEM file of trusted certificates: of authorities, or of the server itself [default: the
    /// authorities of the system]
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// PEM file of the client certificate
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file of the private key of the client certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Server name that the certificate of the server must match [default: the host]
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// Accept any server certificate
    #[arg(long, conflicts_with = "cacert")]
    insecure: bool,
    /// Do a full handshake for every connection
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
        let trusted = match self.insecure {
            true => None,
            false => Some(self.trusted(&provider)?),
        };
        let verifier = Arc::new(Verifier { provider, trusted });
        let builder = builder
            .dangerous()
            .with_custom_certificate_verifier(verifier);
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

    fn trusted(&self, provider: &Arc<CryptoProvider>) -> anyhow::Result<Trusted> {
        let path = self.cacert.as_deref().unwrap_or(Path::new(SYSTEM_ROOTS));
        let mut roots = RootCertStore::empty();
        let read = certificates(path).context("certificates to trust: name them with --cacert")?;
        let (added, _) = roots.add_parsable_certificates(read.clone());
        anyhow::ensure!(added > 0, "{}: found no certificate", path.display());
        let (roots, provider) = (Arc::new(roots), Arc::clone(provider));
        Ok(Trusted {
            issuers: WebPkiServerVerifier::builder_with_provider(roots, provider).build()?,
            own: self.cacert.as_ref().map_or(Vec::new(), |_| read),
        })
    }
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let name = || format!("{}", path.display());
    let read = CertificateDer::pem_file_iter(path).with_context(name)?;
    read.collect::<Result<_, _>>().with_context(name)
}

/// The certificates that a server may show.
#[derive(Debug)]
struct Trusted {
    issuers: Arc<WebPkiServerVerifier>,
    /// Those of `--cacert`, which a server may also have itself: one that is tested often signed
    /// its own, which names it an authority, and as a server's certificate is refused otherwise.
    own: Vec<CertificateDer<'static>>,
}

/// Checks the certificate of a server; takes any if none are trusted.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    trusted: Option<Trusted>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(Trusted { issuers, own }) = &self.trusted else {
            return Ok(ServerCertVerified::assertion());
        };
        if own.iter().any(|own| own == shown) {
            verify_server_name(&ParsedCertificate::try_from(shown)?, name)?;
            return Ok(ServerCertVerified::assertion());
        }
        issuers.verify_server_cert(shown, intermediates, name, ocsp, now)
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
            &self.provider.signature_verification_algorithms,
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
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
