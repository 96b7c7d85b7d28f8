//! `tare memory`: remote memory.

mod load;
pub(super) mod simulated;
