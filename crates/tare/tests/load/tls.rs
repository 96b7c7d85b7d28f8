//! `tare load tls`: certificates, names, resumption.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::Value;

use super::{run, text, OK};

/// A server that shows this certificate and, with `clients`, wants one that this one signed; the
/// folder of both, and the names that clients ask for.
fn tls_server(
    certificate: &str,
    clients: Option<&str>,
) -> (String, String, Arc<Mutex<Vec<String>>>) {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../load/tests/data");
    let certs = |name: &str| {
        let read = CertificateDer::pem_file_iter(format!("{data}/{name}.pem"));
        read.unwrap().map(Result::unwrap).collect::<Vec<_>>()
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = match clients {
        Some(trusted) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add_parsable_certificates(certs(trusted));
            let wants = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            config.with_client_cert_verifier(wants.build().unwrap())
        }
        None => config.with_no_client_auth(),
    };
    let key = match certificate {
        "cert" => "key".to_string(),
        other => format!("{other}-key"),
    };
    let config = config.with_single_cert(
        certs(certificate),
        PrivateKeyDer::from_pem_file(format!("{data}/{key}.pem")).unwrap(),
    );
    let config = Arc::new(config.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let names: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&names);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (config, noted) = (Arc::clone(&config), Arc::clone(&noted));
            thread::spawn(move || {
                let session = rustls::ServerConnection::new(config).unwrap();
                let mut stream = rustls::StreamOwned::new(session, stream.unwrap());
                while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                    stream.write_all(OK).unwrap();
                }
                let name = stream.conn.server_name().unwrap_or("none").to_string();
                noted.lock().unwrap().push(name);
            });
        }
    });
    (address, data.to_string(), names)
}

#[test]
fn a_server_may_have_a_certificate_that_is_trusted_itself_or_one_that_it_signed() {
    for (shown, trusted, sni, refused) in [
        // An authority's own, which is no server's certificate otherwise.
        ("authority", "authority", "localhost", None),
        (
            "authority",
            "authority",
            "example.org",
            Some("not valid for name"),
        ),
        ("authority", "cert", "localhost", Some("certificate")),
        ("signed", "authority", "localhost", None),
        ("signed", "signed", "localhost", None),
        (
            "signed",
            "authority",
            "example.org",
            Some("not valid for name"),
        ),
        ("signed", "cert", "localhost", Some("UnknownIssuer")),
    ] {
        let (address, data, _) = tls_server(shown, None);
        let trusted = format!("{data}/{trusted}.pem");
        // A refusal ends it; until then a busy machine may take its time.
        let limit = if refused.is_some() { "20" } else { "0.2" };
        let done = run(&[
            "tls",
            &address,
            "-c",
            "2",
            "-d",
            limit,
            "-w",
            "0",
            "--timeout",
            "60",
            "--cacert",
            &trusted,
            "--sni",
            sni,
        ]);
        let error = text(&done.stderr);
        let code = if refused.is_some() { 2 } else { 0 };
        assert_eq!(done.status.code(), Some(code), "{shown} {trusted}: {error}");
        assert!(error.contains(refused.unwrap_or("")), "{shown}: {error}");
    }
}

#[test]
fn tls_shows_certificates_and_names_and_resumes_sessions_as_asked() {
    let (address, data, names) = tls_server("cert", Some("cert"));
    let (cert, key) = (format!("{data}/cert.pem"), format!("{data}/key.pem"));
    let trusts = [
        "--cacert",
        &cert,
        "--cert",
        &cert,
        "--key",
        &key,
        "--sni",
        "localhost",
    ];
    let tls = |seconds: &str, more: &[&str]| {
        let load = ["-c", "2", "-d", seconds, "-w", "0"];
        let load = [&load[..], &["--timeout", "60", "--json"]].concat();
        run(&[&["tls", &address], &load[..], more].concat())
    };
    // Longer trials where handshakes take long on a busy machine.
    let served_above = |least: u64, more: &[&str]| -> Value {
        let mut results = ["1", "5", "20"].into_iter().map(|seconds| {
            let done = tls(seconds, more);
            assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
            serde_json::from_slice::<Value>(&done.stdout).unwrap()
        });
        let result = results.find(|result| result["served"].as_u64().unwrap() > least);
        result.unwrap_or_else(|| panic!("no more than {least} in each of three trials"))
    };
    for (more, is_full) in [(&["--no-resumption"][..], true), (&[], false)] {
        let result = served_above(4, &[&trusts[..], more].concat());
        let count = |name: &str| result[name].as_u64().unwrap();
        assert_eq!(
            count("full_handshakes") + count("resumed_handshakes"),
            count("served")
        );
        assert_eq!(count("resumed_handshakes") == 0, is_full);
    }
    assert!(names.lock().unwrap().iter().all(|name| name == "localhost"));
    let result = served_above(0, &[&trusts[..], &["--www", "/big"]].concat());
    assert_eq!(
        result["body_bytes"].as_u64(),
        result["served"].as_u64().map(|n| 5 * n)
    );
    assert!(result["body_bytes_per_second"].as_f64().unwrap() > 0.0);
    // Without a certificate, with an authority that has not signed, with another name.
    for (wrong, said) in [
        (
            &["--cacert", &cert, "--sni", "example.org"][..],
            "not valid for name",
        ),
        (&["--insecure"], "CertificateRequired"),
        (&["--sni", "localhost"], "certificate"),
    ] {
        // A refusal ends it; until then a busy machine may take its time.
        let done = tls("20", wrong);
        let error = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{wrong:?}: {error}");
        assert!(error.contains(said), "{wrong:?}: {error}");
    }
}
