//! The traits of `rand_core`, so that the `rand` crates can use the generators, and `io::Read`.

#[cfg(feature = "rand_core")]
use rand_core::{TryCryptoRng, TryRng};

#[cfg(feature = "aes")]
use crate::aes_ctr::AesCtr;
use crate::error::Error;
use crate::generator::Generator;
use crate::seed::Seeder;
use crate::source::Source;

#[cfg(feature = "rand_core")]
impl<S: Source> TryRng for Generator<S> {
    type Error = Error;

    fn try_next_u32(&mut self) -> Result<u32, Error> {
        self.next_u32()
    }

    fn try_next_u64(&mut self) -> Result<u64, Error> {
        self.next_u64()
    }

    fn try_fill_bytes(&mut self, destination: &mut [u8]) -> Result<(), Error> {
        self.fill_bytes(destination)
    }
}

#[cfg(feature = "rand_core")]
impl<S: Source> TryCryptoRng for Generator<S> {}

/// `TryRng` for what fills bytes and nothing else.
#[cfg(feature = "rand_core")]
macro_rules! generator_of_bytes {
    ([$($parameters:tt)*] $type:ty, $fill:expr) => {
        impl<$($parameters)*> TryRng for $type {
            type Error = Error;

            fn try_next_u32(&mut self) -> Result<u32, Error> {
                let mut value = [0; 4];
                self.try_fill_bytes(&mut value)?;
                Ok(u32::from_ne_bytes(value))
            }

            fn try_next_u64(&mut self) -> Result<u64, Error> {
                let mut value = [0; 8];
                self.try_fill_bytes(&mut value)?;
                Ok(u64::from_ne_bytes(value))
            }

            fn try_fill_bytes(&mut self, destination: &mut [u8]) -> Result<(), Error> {
                let fill: fn(&mut Self, &mut [u8]) -> Result<(), Error> = $fill;
                fill(self, destination)
            }
        }

        impl<$($parameters)*> TryCryptoRng for $type {}
    };
}

#[cfg(all(feature = "rand_core", feature = "aes"))]
generator_of_bytes!([] AesCtr, Self::fill);
#[cfg(feature = "rand_core")]
generator_of_bytes!([D: Source, R: Source] Seeder<D, R>, |seeder, bytes| {
    seeder.fill_bytes(bytes).map(drop)
});

/// An endless reader. A read fills the whole buffer, or as much of it as came before an
/// underflow.
#[cfg(feature = "std")]
macro_rules! reader {
    ([$($parameters:tt)*] $type:ty, $fill:expr) => {
        impl<$($parameters)*> std::io::Read for $type {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let fill: fn(&mut Self, &mut [u8]) -> Result<(), Error> = $fill;
                match fill(self, buffer) {
                    Ok(()) => Ok(buffer.len()),
                    Err(error) if error.written() > 0 => Ok(error.written()),
                    Err(error) => Err(std::io::Error::other(error)),
                }
            }
        }
    };
}

#[cfg(feature = "std")]
reader!([S: Source] Generator<S>, Self::fill_bytes);
#[cfg(all(feature = "std", feature = "aes"))]
reader!([] AesCtr, Self::fill);
#[cfg(feature = "std")]
reader!([D: Source, R: Source] Seeder<D, R>, |seeder, bytes| {
    seeder.fill_bytes(bytes).map(drop)
});
