//! A session of ours and a connection that is rustls' own to its end.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tare_cvmnet::tls::{Content, Header, Identity, Options, Server, Session, Suites};

use crate::link::{receive, seal};

/// Records that a connection of rustls' has to send.
fn written(peer: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while peer.wants_write() {
        peer.write_tls(&mut bytes).unwrap();
    }
    bytes
}

/// Hands bytes to a connection of rustls'.
fn read(peer: &mut ClientConnection, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        peer.read_tls(&mut bytes).unwrap();
        peer.process_new_packets().unwrap();
    }
}

#[test]
fn rustls_talks_to_a_session_through_key_updates_tickets_and_the_end() {
    for suites in [Suites::Aes128, Suites::Aes256] {
        let options = Options {
            suites,
            resumption: true,
            ..Options::default()
        };
        let identity = Identity::self_signed(&["guest.example".into()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(identity.certificate().unwrap().clone()).unwrap();
        let config =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
        let name = ServerName::try_from("guest.example").unwrap();
        let mut peer = ClientConnection::new(Arc::new(config), name).unwrap();
        let server = Server::new(identity, &options).unwrap();
        let mut session = Session::server(&server).unwrap().with_records_per_key(4);

        let mut received = Vec::new();
        let mut sent = Vec::new();
        for round in 0..20_u8 {
            if round > 2 {
                peer.writer().write_all(&[round; 5000]).unwrap();
                sent.extend([round; 5000]);
            }
            if round % 5 == 4 {
                peer.refresh_traffic_keys().unwrap();
            }
            for record in crate::link::records(&written(&mut peer)) {
                if session.is_handshaking() {
                    session.handshake(&record).unwrap();
                } else if let (Content::Data(_), data) =
                    receive(&mut session, &record, 1448).unwrap()
                {
                    received.extend(data);
                }
            }
            read(&mut peer, &session.take_outgoing());
            if session.is_open() {
                let record = seal(&mut session, &[&[round; 3000]]).unwrap();
                assert!(Header::parse(record[..5].try_into().unwrap()).is_ok());
                read(&mut peer, &record);
                read(&mut peer, &session.take_outgoing());
                let mut data = [0; 3000];
                peer.reader().read_exact(&mut data).unwrap();
                assert_eq!(data, [round; 3000]);
            }
        }
        assert!(received == sent && received.len() > 50_000);
        session.close();
        read(&mut peer, &session.take_outgoing());
        assert_eq!(peer.reader().read(&mut [0; 9]).unwrap(), 0);
        peer.send_close_notify();
        let notice = written(&mut peer);
        assert_eq!(
            receive(&mut session, &notice, 99).unwrap().0,
            Content::Closed
        );
    }
}
