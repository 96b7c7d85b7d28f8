//! Our ESP against that of others: scapy, tshark, and Linux in a guest.

mod console;
mod linux;
mod missing;
mod scapy;
mod tshark;
mod tunnels;
