#![doc = include_str!("../README.md")]

mod entry;
mod message;
mod table;

pub use entry::State;
pub use message::{is_neighbor_frame, is_station, ADVERTISEMENT, SOLICITATION};
pub use table::{Handled, Ignored, Local, Neighbor, Neighbors};
