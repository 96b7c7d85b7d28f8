//! The data plane from outside: two gateways back to back, and a bad world between them.

mod allocations;
mod border;
mod errors;
mod hostile;
mod pair;
mod tunnel;
