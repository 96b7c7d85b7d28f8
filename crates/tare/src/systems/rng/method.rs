//! The ways to get random bytes, by name: the library's own and the references beside it.

use std::fmt;
use std::str::FromStr;

use tare_lab::driver::Missing;
use tare_lab::parameters::Choice;

use crate::machine::{Feature, Machine};

macro_rules! methods {
    ($($variant:ident $name:literal $origin:ident $about:literal;)*) => {
        /// A way to get random bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Method { $(#[doc = $about] $variant,)* }

        impl Method {
            /// Every method.
            pub(crate) const ALL: &[Method] = &[$(Method::$variant,)*];

            /// The name that command lines and experiments use.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Method::$variant => $name,)* }
            }

            /// One line for people.
            pub(crate) const fn about(self) -> &'static str {
                match self { $(Method::$variant => $about,)* }
            }

            /// The origin of the method.
            pub(crate) const fn origin(self) -> Origin {
                match self { $(Method::$variant => Origin::$origin,)* }
            }
        }
    };
}

/// The origin of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// tare-rdrand.
    Library,
    /// The instruction in a loop and nothing else: the limit.
    Bare,
    /// A generator that the library is compared with.
    Reference,
}

methods! {
    GetBytes "get_bytes" Library "RDRAND into bytes at any address";
    Uint8Array "uint8_array" Library "RDRAND into an array of 8-bit numbers";
    Uint16Array "uint16_array" Library "RDRAND into an array of 16-bit numbers";
    Uint32Array "uint32_array" Library "RDRAND into an array of 32-bit numbers";
    Uint64Array "uint64_array" Library "RDRAND into an array of 64-bit numbers";
    GetBytesOf32 "get_bytes_of_32" Library "RDRAND into bytes, with two draws of 32 bits for each 64, as on a 32-bit processor";
    ReseedDelay "reseed_delay" Library "RDRAND with a pause before each number, during which the hardware reseeds";
    ReseedSkip "reseed_skip" Library "RDRAND with 1024 numbers discarded before each, so that it must reseed";
    AesCtr "aes_ctr" Library "AES in counter mode, with keys from the hardware, replaced regularly";
    Rdseed "rdseed" Library "RDSEED, retried while it has no number";
    Seed "seed" Library "32-byte seeds: RDSEED, else conditioned RDRAND";
    Bare16 "bare_16" Bare "the 16-bit instruction in a loop";
    Bare32 "bare_32" Bare "the 32-bit instruction in a loop";
    Bare64 "bare_64" Bare "the 64-bit instruction in a loop";
    GetrandomSyscall "getrandom_syscall" Reference "the kernel's generator by system call";
    GetrandomLibc "getrandom_libc" Reference "the C library's getrandom, through the vDSO if the library uses it";
    RandChacha "rand_chacha" Reference "ChaCha20 in user space (rand_chacha)";
    AwsLcRs "aws_lc_rs" Reference "AES-CTR DRBG in user space (aws-lc-rs)";
    RdrandCrate "rdrand_crate" Reference "RDRAND through the rdrand crate";
}

impl Method {
    /// Returns an error if the machine lacks what the method needs.
    pub(crate) fn check(self, machine: &Machine) -> Result<(), Missing> {
        match self {
            Method::Rdseed => machine.need(Feature::Rdseed),
            Method::GetrandomLibc => machine.need(Feature::VdsoGetrandom),
            Method::AwsLcRs => machine.need(Feature::References),
            Method::GetrandomSyscall | Method::RandChacha => Ok(()),
            _ => machine.need(Feature::Rdrand),
        }
    }
}

impl Choice for Method {
    fn all() -> Vec<Method> {
        Method::ALL.to_vec()
    }

    fn name(&self) -> &'static str {
        Method::name(*self)
    }
}

/// The methods that can run here; the others are named on standard error.
#[cfg(test)]
pub(crate) fn testable() -> Vec<Method> {
    use std::io::Write as _;
    let check = |method: &Method| match method.check(&Machine::This) {
        Ok(()) => true,
        Err(missing) => {
            // Past the capture of the test runner: what is not tested must be seen.
            let _ = writeln!(
                std::io::stderr(),
                "NOT TESTED: {method}: {}",
                missing.reason
            );
            false
        }
    };
    Method::ALL.iter().copied().filter(check).collect()
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Method::ALL
            .iter()
            .copied()
            .find(|method| method.name() == text)
            .ok_or_else(|| {
                let names: Vec<_> = Method::ALL.iter().map(|method| method.name()).collect();
                format!("found \"{text}\", expected one of {}", names.join(", "))
            })
    }
}
