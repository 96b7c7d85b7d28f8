//! The traits of the `aead` crate (0.5), for programs that are generic over ciphers.
//!
//! They work in place on private memory and take nonce and tag as arrays: for shared memory use
//! [`Key`], and for short packets its batches. The caller never seals twice with one nonce.

use crate::{Key, Nonce, Tag};
use ::aead::consts::{U0, U12, U16, U32};
use ::aead::generic_array::GenericArray;
use ::aead::{AeadCore, AeadInPlace, Error, KeyInit, KeySizeUser};

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
            fn new(key: &GenericArray<u8, $bytes>) -> Self {
                match Key::new(key) {
                    Ok(key) => Self(key),
                    Err(error) => unreachable!("the type has the length: {error}"),
                }
            }
        }

        impl AeadCore for $name {
            type NonceSize = U12;
            type TagSize = U16;
            type CiphertextOverhead = U0;
        }

        impl AeadInPlace for $name {
            fn encrypt_in_place_detached(
                &self,
                nonce: &GenericArray<u8, U12>,
                aad: &[u8],
                data: &mut [u8],
            ) -> Result<GenericArray<u8, U16>, Error> {
                let nonce = Nonce::from(<[u8; 12]>::from(*nonce));
                let tag = self.0.seal_in_place(nonce, aad, data);
                tag.map(|tag| (*tag.as_bytes()).into()).map_err(|_| Error)
            }

            /// A message that is refused leaves `data` wiped, not as it was.
            fn decrypt_in_place_detached(
                &self,
                nonce: &GenericArray<u8, U12>,
                aad: &[u8],
                data: &mut [u8],
                tag: &GenericArray<u8, U16>,
            ) -> Result<(), Error> {
                let nonce = Nonce::from(<[u8; 12]>::from(*nonce));
                let tag = Tag::from(<[u8; 16]>::from(*tag));
                let opened = self.0.open_in_place(&nonce, aad, data, &tag);
                opened.map_err(|_| Error)
            }
        }
    };
}

cipher!(Aes128Gcm, U16, "AES-128-GCM");
cipher!(Aes256Gcm, U32, "AES-256-GCM");
