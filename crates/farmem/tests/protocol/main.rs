//! The protocol of far memory in virtual time: every promise of the guide's chapter on it.

mod aead;
mod bench;
mod bulk;
mod caller;
mod exchange;
mod faults;
mod format;
mod linearizable;
mod locks;
#[allow(
    dead_code,
    reason = "the tests of kept memory kill stores, those of the protocol nodes"
)]
#[path = "../memory_model/part.rs"]
mod part;
mod promises;
mod transfers;
mod world;
