//! Our ESP against that of others: scapy, tshark, and Linux in a guest.

mod bed;
mod console;
mod linux;
mod missing;
mod scapy;
mod tshark;
