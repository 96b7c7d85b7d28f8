#![doc = include_str!("../README.md")]

mod client;
mod counters;
mod cpu;
mod host;
mod log;
mod log_writer;
mod metrics;
mod notify;
mod record;
mod service;
mod signals;
mod watch;

pub use client::{ask, default_socket, only_socket, sockets, Words};
pub use counters::{CounterInfo, CountsBy, Reason};
pub use cpu::{bind_to_cpu, BindError};
pub use host::{Checked, Host, ProcessStatus};
pub use log::{Log, LogOptions};
pub use metrics::{Labels, Metrics};
pub use notify::notify_main_pid;
pub use record::{Level, Record, Value};
pub use service::{bind_socket, Asked, Endpoints, Report};
pub use signals::Signals;
pub use watch::{read_file, FileContent};

#[doc(hidden)]
pub use serde;
