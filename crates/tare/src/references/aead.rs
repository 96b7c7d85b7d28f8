//! AES-GCM of other libraries. A build without the feature `references` has none of them.

use tare_lab::choices;

#[cfg(feature = "references")]
pub(crate) use present::Reference;

#[cfg(not(feature = "references"))]
pub(crate) use absent::Reference;

choices! {
    /// A library's AES-GCM.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Aead {
        /// aws-lc-rs, from one buffer into another.
        AwsLcRs = "aws_lc_rs",
        /// aws-lc-rs, with each message copied to private memory before it is opened.
        CopyAwsLcRs = "copy_aws_lc_rs",
        /// ring, which opens in place and so needs the copy too.
        Ring = "ring",
    }
}

/// The nonce of a message and its additional data: those of ESP.
pub(crate) type Message = ([u8; 12], [u8; 12]);

#[cfg(feature = "references")]
mod present {
    use std::hint::black_box;

    use anyhow::anyhow;
    use aws_lc_rs::aead as aws;
    use ring::aead as ring_aead;
    use tare_gcm::Tag;

    use super::{Aead, Message};

    /// A library with its key.
    pub(crate) enum Reference {
        Aws(aws::LessSafeKey),
        /// Copies each message to private memory first: what makes an ordinary library safe here.
        CopyAws(aws::LessSafeKey, Vec<u8>),
        Ring(Box<ring_aead::LessSafeKey>, Vec<u8>),
    }

    impl Reference {
        /// The library with a key.
        pub(crate) fn new(aead: Aead, key: &[u8]) -> anyhow::Result<Reference> {
            let aws_key = || {
                let algorithm = if key.len() == 16 {
                    &aws::AES_128_GCM
                } else {
                    &aws::AES_256_GCM
                };
                aws::UnboundKey::new(algorithm, key)
                    .map(aws::LessSafeKey::new)
                    .map_err(|_| anyhow!("aws-lc-rs refused the key"))
            };
            Ok(match aead {
                Aead::AwsLcRs => Reference::Aws(aws_key()?),
                Aead::CopyAwsLcRs => Reference::CopyAws(aws_key()?, Vec::new()),
                Aead::Ring => {
                    let algorithm = if key.len() == 16 {
                        &ring_aead::AES_128_GCM
                    } else {
                        &ring_aead::AES_256_GCM
                    };
                    let key = ring_aead::UnboundKey::new(algorithm, key)
                        .map_err(|_| anyhow!("ring refused the key"))?;
                    Reference::Ring(Box::new(ring_aead::LessSafeKey::new(key)), Vec::new())
                }
            })
        }

        /// Seals messages one by one, where the plaintext lies.
        #[inline]
        pub(crate) fn seal(
            &mut self,
            message: impl Fn(usize) -> Message,
            outputs: &mut [&mut [u8]],
        ) -> anyhow::Result<()> {
            let outputs = outputs.iter_mut().enumerate();
            match self {
                Reference::Aws(key) | Reference::CopyAws(key, _) => {
                    for (at, output) in outputs {
                        let (nonce, aad) = message(at);
                        let nonce = aws::Nonce::assume_unique_for_key(nonce);
                        let tag = key
                            .seal_in_place_separate_tag(nonce, aws::Aad::from(aad), output)
                            .map_err(|_| anyhow!("aws-lc-rs did not seal"))?;
                        let _ = black_box(tag);
                    }
                }
                Reference::Ring(key, _) => {
                    for (at, output) in outputs {
                        let (nonce, aad) = message(at);
                        let nonce = ring_aead::Nonce::assume_unique_for_key(nonce);
                        let tag = key
                            .seal_in_place_separate_tag(nonce, ring_aead::Aad::from(aad), output)
                            .map_err(|_| anyhow!("ring did not seal"))?;
                        let _ = black_box(tag);
                    }
                }
            }
            Ok(())
        }

        /// Opens messages one by one, from one buffer into another.
        #[inline]
        pub(crate) fn open(
            &mut self,
            message: impl Fn(usize) -> Message,
            sources: &[&[u8]],
            tags: &[Tag],
            outputs: &mut [&mut [u8]],
        ) -> anyhow::Result<()> {
            let sources = sources.iter().zip(tags).enumerate();
            match self {
                Reference::Aws(key) => {
                    for ((at, (source, tag)), output) in sources.zip(outputs) {
                        let (nonce, aad) = message(at);
                        let nonce = aws::Nonce::assume_unique_for_key(nonce);
                        let (aad, tag) = (aws::Aad::from(aad), tag.as_bytes());
                        key.open_separate_gather(nonce, aad, source, tag, output)
                            .map_err(|_| anyhow!("aws-lc-rs did not open"))?;
                    }
                }
                Reference::CopyAws(key, private) => {
                    for (at, (source, tag)) in sources {
                        let (nonce, aad) = message(at);
                        let nonce = aws::Nonce::assume_unique_for_key(nonce);
                        copy(private, source, tag);
                        key.open_in_place(nonce, aws::Aad::from(aad), private)
                            .map_err(|_| anyhow!("aws-lc-rs did not open"))?;
                    }
                }
                Reference::Ring(key, private) => {
                    for (at, (source, tag)) in sources {
                        let (nonce, aad) = message(at);
                        let nonce = ring_aead::Nonce::assume_unique_for_key(nonce);
                        copy(private, source, tag);
                        key.open_in_place(nonce, ring_aead::Aad::from(aad), private)
                            .map_err(|_| anyhow!("ring did not open"))?;
                    }
                }
            }
            Ok(())
        }
    }

    fn copy(private: &mut Vec<u8>, source: &[u8], tag: &Tag) {
        private.clear();
        private.extend_from_slice(source);
        private.extend_from_slice(tag.as_bytes());
    }
}

#[cfg(not(feature = "references"))]
mod absent {
    use tare_gcm::Tag;

    use super::{Aead, Message};

    /// No library.
    pub(crate) enum Reference {}

    impl Reference {
        pub(crate) fn new(_: Aead, _: &[u8]) -> anyhow::Result<Reference> {
            Err(crate::references::absent())
        }

        pub(crate) fn seal(
            &mut self,
            _: impl Fn(usize) -> Message,
            _: &mut [&mut [u8]],
        ) -> anyhow::Result<()> {
            match *self {}
        }

        pub(crate) fn open(
            &mut self,
            _: impl Fn(usize) -> Message,
            _: &[&[u8]],
            _: &[Tag],
            _: &mut [&mut [u8]],
        ) -> anyhow::Result<()> {
            match *self {}
        }
    }
}
