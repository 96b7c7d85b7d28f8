//! A user-space IPsec gateway.
