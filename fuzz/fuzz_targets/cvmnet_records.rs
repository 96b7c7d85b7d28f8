//! Records at the session of a guest: some as its peer sealed them, some changed, some of any
//! content, in pieces of any size, shared and private. What is opened is what was sealed, in its
//! order; the first record that is not right ends the session, and nothing panics.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use rustls_pki_types::ServerName;
use tare_cvmnet::tls::{
    Client, Content, Error, Header, Identity, Options, Piece, Room, Server, Session, DATA_MAX,
    OVERHEAD,
};
use tare_memory::SharedMemory;

/// Fewer than a session takes.
const QUIET: usize = 16;

fn configs() -> &'static (Server, Client) {
    static CONFIGS: OnceLock<(Server, Client)> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let identity = Identity::self_signed(&["guest.example".into()]).expect("an identity");
        let certificate = identity.certificate().expect("a certificate").clone();
        let name = ServerName::try_from("guest.example").expect("a name");
        let options = Options::default();
        let client = Client::new(&certificate, name, &options).expect("a client");
        (Server::new(identity, &options).expect("a server"), client)
    })
}

/// Splits bytes into whole records; what is no record is one.
fn records(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut records, mut rest) = (Vec::new(), bytes);
    while let Some((header, _)) = rest.split_first_chunk::<{ Header::LEN }>() {
        let Ok(header) = Header::parse(*header) else {
            break;
        };
        let len = (Header::LEN + header.body_len()).min(rest.len());
        let (record, after) = rest.split_at(len);
        records.push(record.to_vec());
        rest = after;
    }
    if !rest.is_empty() {
        records.push(rest.to_vec());
    }
    records
}

/// Opens a record in pieces of `step` bytes.
fn open(to: &mut Session, record: &[u8], step: usize) -> Result<(Content, Vec<u8>), Error> {
    let Some((header, body)) = record.split_first_chunk::<{ Header::LEN }>() else {
        return Err(Error::Over);
    };
    let header = Header::parse(*header)?;
    let shared = SharedMemory::create("record", body.len().max(1)).expect("memory");
    if !body.is_empty() {
        shared
            .view()
            .range(0, body.len())
            .expect("of this length")
            .copy_from(body)
            .expect("same");
    }
    let mut pieces = Vec::new();
    for at in (0..body.len()).step_by(step) {
        let len = step.min(body.len() - at);
        pieces.push(match pieces.len() % 2 {
            0 => Piece::Shared(shared.view().range(at, len).expect("within")),
            _ => Piece::Private(&body[at..at + len]),
        });
    }
    let mut out = vec![0xaa; DATA_MAX + 256];
    let content = to.open(header, &pieces, &mut out)?;
    if let Content::Data(len) = content {
        out.truncate(len);
    }
    Ok((content, out))
}

fn seal(from: &mut Session, data: &[u8]) -> Result<Vec<u8>, Error> {
    let shared = SharedMemory::create("record", data.len() + OVERHEAD).expect("memory");
    let len = from.seal(&[data], Room::Shared(shared.view()))?;
    let mut record = vec![0; len];
    shared
        .view()
        .range(0, len)
        .expect("within")
        .copy_to(&mut record)
        .expect("same");
    Ok(record)
}

fuzz_target!(|input: &[u8]| {
    let (server, client) = configs();
    let mut guest = Session::server(server).expect("a session");
    let mut peer = Session::client(client).expect("a session");
    // A byte of the handshake is changed, or none.
    let [at, bit, input @ ..] = input else { return };
    let mut changed = usize::from(*at) * 8;
    while peer.has_outgoing() || guest.has_outgoing() {
        for mut record in records(&peer.take_outgoing()) {
            if *at != 0 && changed < record.len() {
                record[changed] ^= bit;
                changed = usize::MAX;
            } else {
                changed = changed.saturating_sub(record.len());
            }
            let taken = match guest.is_handshaking() {
                true => guest.handshake(&record),
                false => open(&mut guest, &record, 100).map(|_| ()),
            };
            if taken.is_err() {
                return;
            }
        }
        for record in records(&guest.take_outgoing()) {
            let taken = match peer.is_handshaking() {
                true => peer.handshake(&record),
                false => open(&mut peer, &record, 100).map(|_| ()),
            };
            if taken.is_err() {
                return;
            }
        }
    }
    if !guest.is_open() || !peer.is_open() {
        return;
    }
    // A record that the peer sealed and the guest has not: no later one can be right.
    let mut is_missing = false;
    // Records without data since the last one with some, of which a session takes a few.
    let mut quiet = 0;
    for piece in input.chunks(24) {
        if quiet == QUIET {
            break;
        }
        let [kind, a, b, c, rest @ ..] = piece else {
            break;
        };
        let step = usize::from(*c) + 1;
        let len = usize::from(u16::from_le_bytes([*a, *b])) % (DATA_MAX + 1);
        let data: Vec<u8> = rest
            .iter()
            .copied()
            .cycle()
            .take(if rest.is_empty() { 0 } else { len })
            .collect();
        let (record, is_right) = match kind % 8 {
            0..=2 => match seal(&mut peer, &data) {
                Ok(record) => (record, true),
                Err(_) => break,
            },
            // One bit is another.
            3 => {
                let Ok(mut record) = seal(&mut peer, &data) else {
                    break;
                };
                let at = len % record.len();
                record[at] ^= 1 << (c % 8);
                is_missing = true;
                (record, false)
            }
            // One is lost.
            4 => {
                let Ok(_) = seal(&mut peer, &data) else { break };
                is_missing = true;
                continue;
            }
            // A new key of the peer.
            5 => {
                if peer.update_keys().is_err() {
                    break;
                }
                for record in records(&peer.take_outgoing()) {
                    let taken = open(&mut guest, &record, step);
                    assert_eq!(taken.is_err(), is_missing, "{taken:?}");
                }
                if is_missing {
                    break;
                }
                for record in records(&guest.take_outgoing()) {
                    open(&mut peer, &record, step).expect("the guest's answer");
                }
                quiet += 1;
                continue;
            }
            6 => (rest.to_vec(), false),
            _ => {
                let mut record = vec![0x17, 3, 3];
                record.extend((rest.len() as u16).to_be_bytes());
                record.extend(rest);
                (record, false)
            }
        };
        match open(&mut guest, &record, step) {
            Ok((Content::Data(_), opened)) => {
                assert!(is_right && !is_missing, "a wrong record was opened");
                assert!(opened == data, "other data");
                quiet = 0;
            }
            Ok((content, _)) => {
                assert!(is_right && !is_missing, "a wrong record was opened");
                assert!(data.is_empty(), "data was opened as {content:?}");
                quiet += 1;
            }
            Err(_) => {
                assert!(!is_right || is_missing, "a right record was refused");
                // A header that cannot be parsed never reaches the session.
                let reached = record.len() > Header::LEN
                    && Header::parse(record[..Header::LEN].try_into().expect("five")).is_ok();
                let is_whole = reached
                    && Header::parse(record[..5].try_into().expect("five"))
                        .is_ok_and(|header| header.body_len() == record.len() - 5);
                if is_whole {
                    assert!(!guest.is_open(), "the session goes on after a wrong record");
                }
                break;
            }
        }
    }
});
