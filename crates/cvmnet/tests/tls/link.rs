//! Two sessions joined in memory, records in pieces of any size.

use rustls::pki_types::ServerName;
use tare_cvmnet::tls::{
    Client, Content, Error, Header, Identity, Options, Piece, Room, Server, Session, DATA_MAX,
    OVERHEAD,
};
use tare_memory::SharedMemory;

/// Configurations of both sides that trust each other.
pub(crate) fn configs(options: &Options) -> (Server, Client) {
    let identity = Identity::self_signed(&["guest.example".into()]).unwrap();
    let certificate = identity.certificate().unwrap().clone();
    let name = ServerName::try_from("guest.example").unwrap();
    let client = Client::new(&certificate, name, options).unwrap();
    (Server::new(identity, options).unwrap(), client)
}

/// A server and a client after their handshake.
pub(crate) fn pair(options: &Options) -> (Session, Session) {
    let (server, client) = configs(options);
    let mut pair = (
        Session::server(&server).unwrap(),
        Session::client(&client).unwrap(),
    );
    shake_hands(&mut pair);
    pair
}

/// Exchanges records until neither side has any.
pub(crate) fn shake_hands((server, client): &mut (Session, Session)) {
    while server.has_outgoing() || client.has_outgoing() {
        deliver(server, client, 1500).unwrap();
        deliver(client, server, 1500).unwrap();
    }
    assert!(server.is_open() && client.is_open());
}

/// Splits bytes into whole records.
pub(crate) fn records(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut records, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let header = Header::parse(rest[..Header::LEN].try_into().unwrap()).unwrap();
        let (record, after) = rest.split_at(Header::LEN + header.body_len());
        records.push(record.to_vec());
        rest = after;
    }
    records
}

/// Takes what one side has queued to the other. Returns what its records held.
pub(crate) fn deliver(
    from: &mut Session,
    to: &mut Session,
    piece: usize,
) -> Result<Vec<Content>, Error> {
    let mut contents = Vec::new();
    for record in records(&from.take_outgoing()) {
        if to.is_handshaking() {
            to.handshake(&record)?;
        } else {
            contents.push(receive(to, &record, piece)?.0);
        }
    }
    Ok(contents)
}

/// Opens a whole record that lies in pieces of so many bytes, every second of them shared.
pub(crate) fn receive(
    to: &mut Session,
    record: &[u8],
    piece: usize,
) -> Result<(Content, Vec<u8>), Error> {
    let shared = SharedMemory::create("record", record.len()).unwrap();
    shared.view().copy_from(record).unwrap();
    let header = Header::parse(record[..Header::LEN].try_into().unwrap())?;
    let mut pieces = Vec::new();
    for start in (Header::LEN..record.len()).step_by(piece) {
        let len = piece.min(record.len() - start);
        pieces.push(if pieces.len() % 2 == 0 {
            Piece::Shared(shared.view().range(start, len).unwrap())
        } else {
            Piece::Private(&record[start..start + len])
        });
    }
    let mut out = vec![0xaa; DATA_MAX + 256];
    let content = to.open(header, &pieces, &mut out)?;
    if let Content::Data(len) = content {
        out.truncate(len);
    }
    Ok((content, out))
}

/// Seals data as one record.
pub(crate) fn seal(from: &mut Session, data: &[&[u8]]) -> Result<Vec<u8>, Error> {
    let len: usize = data.iter().map(|piece| piece.len()).sum();
    let shared = SharedMemory::create("record", len + OVERHEAD).unwrap();
    let sealed = from.seal(data, Room::Shared(shared.view()))?;
    assert_eq!(sealed, len + OVERHEAD);
    let mut record = vec![0; sealed];
    shared
        .view()
        .range(0, sealed)
        .unwrap()
        .copy_to(&mut record)
        .unwrap();
    Ok(record)
}
