//! New preshared keys.

use std::fmt::Write as _;

use zeroize::Zeroizing;

/// A new preshared key as the configuration takes it: 32 bytes of the operating system's generator,
/// in 64 hexadecimal digits.
///
/// # Errors
/// The operating system has no random numbers.
pub fn keygen() -> Result<Zeroizing<String>, getrandom::Error> {
    let mut key = Zeroizing::new([0; 32]);
    getrandom::fill(&mut key[..])?;
    let mut digits = Zeroizing::new(String::with_capacity(64));
    for byte in *key {
        // Writing to a string does not fail.
        let _ = write!(digits, "{byte:02x}");
    }
    Ok(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_64_hexadecimal_digits_and_differ() {
        let keys = [keygen().unwrap(), keygen().unwrap()];
        for key in &keys {
            assert_eq!(key.len(), 64);
            assert!(key.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
        assert_ne!(keys[0], keys[1]);
    }
}
