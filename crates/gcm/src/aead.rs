//! The traits of the `aead` crate (0.6), for programs that are generic over ciphers.
//!
//! They work on private memory and take nonce and tag as arrays: for shared memory use [`Key`], and
//! for short packets its batches. The caller never seals twice with one nonce.
//!
//! Work is done in the output buffer. From one buffer to another the input is copied there first:
//! [`Key::seal`] and [`Key::open`] need no copy.

use crate::{Key, Nonce, Tag};
use ::aead::array::Array;
use ::aead::consts::{U12, U16, U32};
use ::aead::inout::InOutBuf;
use ::aead::{AeadCore, AeadInOut, Error, KeyInit, KeySizeUser, TagPosition};

macro_rules! cipher {
    ($name:ident, $bytes:ident, $what:literal) => {
        #[doc = concat!($what, " with the traits of the `aead` crate, on the fastest path of this processor.")]
        #[derive(Debug)]
        pub struct $name(Key);

        impl $name {
            /// Returns the key, for the calls that work on shared memory.
            pub fn key(&self) -> &Key {
                &self.0
            }
        }

        impl KeySizeUser for $name {
            type KeySize = $bytes;
        }

        impl KeyInit for $name {
            fn new(key: &Array<u8, $bytes>) -> Self {
                match Key::new(key) {
                    Ok(key) => Self(key),
                    Err(error) => unreachable!("the type has the length: {error}"),
                }
            }
        }

        impl AeadCore for $name {
            type NonceSize = U12;
            type TagSize = U16;
            const TAG_POSITION: TagPosition = TagPosition::Postfix;
        }

        impl AeadInOut for $name {
            fn encrypt_inout_detached(
                &self,
                nonce: &Array<u8, U12>,
                aad: &[u8],
                data: InOutBuf<'_, '_, u8>,
            ) -> Result<Array<u8, U16>, Error> {
                let nonce = Nonce::from(nonce.0);
                let data = data.into_out_with_copied_in();
                let tag = self.0.seal_in_place(nonce, aad, data);
                tag.map(|tag| (*tag.as_bytes()).into()).map_err(|_| Error)
            }

            /// A message that is refused leaves the output wiped, not as it was.
            fn decrypt_inout_detached(
                &self,
                nonce: &Array<u8, U12>,
                aad: &[u8],
                data: InOutBuf<'_, '_, u8>,
                tag: &Array<u8, U16>,
            ) -> Result<(), Error> {
                let nonce = Nonce::from(nonce.0);
                let tag = Tag::from(tag.0);
                let data = data.into_out_with_copied_in();
                let opened = self.0.open_in_place(&nonce, aad, data, &tag);
                opened.map_err(|_| Error)
            }
        }
    };
}

cipher!(Aes128Gcm, U16, "AES-128-GCM");
cipher!(Aes256Gcm, U32, "AES-256-GCM");
