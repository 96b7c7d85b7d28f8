//! The servers in the guest, as the owner of their connections drives them.

mod bulk;
mod http;
mod memcached;
mod output;
mod peer;
mod real;
mod resp;
mod store;
