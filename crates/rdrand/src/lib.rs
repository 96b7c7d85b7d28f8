//! Hardware random numbers.
