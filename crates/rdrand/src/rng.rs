//! The traits of `rand_core`, so that the `rand` crates can draw from here.

use rand_core::{TryCryptoRng, TryRng};

use crate::error::Error;
use crate::generator::Generator;
use crate::source::Source;

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

impl<S: Source> TryCryptoRng for Generator<S> {}
