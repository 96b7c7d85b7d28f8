//! Our ESP against that of others: scapy, tshark, and Linux in a guest.

mod bed;
mod missing;
mod scapy;
mod tshark;
