//! The key exchange through its public interface.

mod flood;
mod handshake;
mod hostile;
mod lifecycle;
mod noise;
mod pair;
mod simulation;
mod transcripts;
mod vita;
