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

#[cfg(feature = "references")]
mod present {
    use std::hint::black_box;

    use anyhow::anyhow;
    use aws_lc_rs::aead as aws;
    use ring::aead as ring_aead;
    use tare_gcm::Tag;

    use super::Aead;
    use crate::systems::gcm::messages::{nonce, Messages, AAD};

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

        /// Seals the next call's messages one by one, where the plaintext lies.
        pub(crate) fn seal(&mut self, messages: &mut Messages<'_>) -> anyhow::Result<()> {
            let call = messages.next();
            let outputs = call.outputs.iter_mut().enumerate();
            match self {
                Reference::Aws(key) | Reference::CopyAws(key, _) => {
                    for (at, output) in outputs {
                        let tag = key
                            .seal_in_place_separate_tag(
                                aws_nonce(call.first + at),
                                aws::Aad::from(AAD),
                                output,
                            )
                            .map_err(|_| anyhow!("aws-lc-rs did not seal"))?;
                        let _ = black_box(tag);
                    }
                }
                Reference::Ring(key, _) => {
                    for (at, output) in outputs {
                        let tag = key
                            .seal_in_place_separate_tag(
                                ring_nonce(call.first + at),
                                ring_aead::Aad::from(AAD),
                                output,
                            )
                            .map_err(|_| anyhow!("ring did not seal"))?;
                        let _ = black_box(tag);
                    }
                }
            }
            Ok(())
        }

        /// Opens the next call's messages one by one, from one buffer into another.
        pub(crate) fn open(&mut self, messages: &mut Messages<'_>) -> anyhow::Result<()> {
            let call = messages.next();
            let sources = call.sources.iter().enumerate();
            match self {
                Reference::Aws(key) => {
                    for ((at, source), output) in sources.zip(call.outputs) {
                        let nonce = aws_nonce(call.first + at);
                        let tag = call.tags[at].as_bytes();
                        key.open_separate_gather(nonce, aws::Aad::from(AAD), source, tag, output)
                            .map_err(|_| anyhow!("aws-lc-rs did not open"))?;
                    }
                }
                Reference::CopyAws(key, private) => {
                    for (at, source) in sources {
                        copy(private, source, &call.tags[at]);
                        key.open_in_place(aws_nonce(call.first + at), aws::Aad::from(AAD), private)
                            .map_err(|_| anyhow!("aws-lc-rs did not open"))?;
                    }
                }
                Reference::Ring(key, private) => {
                    for (at, source) in sources {
                        let nonce = ring_nonce(call.first + at);
                        copy(private, source, &call.tags[at]);
                        key.open_in_place(nonce, ring_aead::Aad::from(AAD), private)
                            .map_err(|_| anyhow!("ring did not open"))?;
                    }
                }
            }
            Ok(())
        }
    }

    fn aws_nonce(message: usize) -> aws::Nonce {
        aws::Nonce::assume_unique_for_key(*nonce(message).as_bytes())
    }

    fn ring_nonce(message: usize) -> ring_aead::Nonce {
        ring_aead::Nonce::assume_unique_for_key(*nonce(message).as_bytes())
    }

    fn copy(private: &mut Vec<u8>, source: &[u8], tag: &Tag) {
        private.clear();
        private.extend_from_slice(source);
        private.extend_from_slice(tag.as_bytes());
    }
}

#[cfg(not(feature = "references"))]
mod absent {
    use super::Aead;
    use crate::systems::gcm::messages::Messages;

    /// No library.
    pub(crate) enum Reference {}

    impl Reference {
        pub(crate) fn new(_: Aead, _: &[u8]) -> anyhow::Result<Reference> {
            Err(crate::references::absent())
        }

        pub(crate) fn seal(&mut self, _: &mut Messages<'_>) -> anyhow::Result<()> {
            match *self {}
        }

        pub(crate) fn open(&mut self, _: &mut Messages<'_>) -> anyhow::Result<()> {
            match *self {}
        }
    }
}
