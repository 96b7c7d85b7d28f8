//! TLS sessions, against each other and against rustls' own record layer.

mod link;
mod protocol;
mod rustls_peer;
