//! Random numbers of the operating system, for keys, nonces and numbers that must differ.

use std::io;

use zeroize::Zeroizing;

use crate::protocol::{Authentication, Secret};

/// Returns so many random bytes.
///
/// # Errors
/// The system has none.
pub(crate) fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let flags = rustix::rand::GetRandomFlags::empty();
    let len = rustix::rand::getrandom(&mut bytes, flags)?;
    if len < N {
        return Err(io::Error::other("too few random bytes"));
    }
    Ok(bytes)
}

impl Authentication {
    /// Encryption and authentication, from a first nonce that the system draws.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn aead() -> io::Result<Authentication> {
        let first_nonce = bytes()?;
        Ok(Authentication::Aead { first_nonce })
    }
}

impl Secret {
    /// A new secret, which the system draws.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random() -> io::Result<Secret> {
        let drawn = Zeroizing::new(bytes()?);
        Ok(Secret::new(&drawn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_nonces_are_drawn_anew_each_time() {
        let secrets = [(); 2].map(|()| Secret::random().unwrap().to_text());
        assert_ne!(*secrets[0], *secrets[1]);
        assert_ne!(
            Authentication::aead().unwrap(),
            Authentication::aead().unwrap()
        );
    }
}
