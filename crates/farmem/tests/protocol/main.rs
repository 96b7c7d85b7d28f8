//! The protocol of far memory in virtual time: every promise of the guide's chapter on it.

mod aead;
mod bench;
mod bulk;
mod caller;
mod exchange;
mod faults;
mod format;
mod linearizable;
mod promises;
mod transfers;
mod world;
