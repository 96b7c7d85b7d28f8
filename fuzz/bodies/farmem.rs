//! The common part of the fuzz targets of remote memory.

use tare_farmem::operation::SpaceId;
use tare_farmem::protocol::Authentication;

/// The spaces of client and node.
pub(crate) const SPACES: [SpaceId; 2] = [SpaceId(1), SpaceId(2)];

/// Returns the protection that an input chooses; `first` is each byte of the first nonce.
pub(crate) fn authentication(choice: u8, first: u8) -> Authentication {
    match choice % 3 {
        0 => Authentication::None,
        1 => Authentication::Checksum,
        _ => Authentication::Aead {
            first_nonce: [first; 12],
        },
    }
}
