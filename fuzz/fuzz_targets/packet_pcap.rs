//! Any bytes as a capture: records or an error, and an end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tare_packet::pcap::Reader;

fuzz_target!(|input: &[u8]| {
    if let Ok(mut reader) = Reader::new(input) {
        let mut bytes = 0;
        while let Ok(Some(record)) = reader.next_record() {
            bytes += record.frame.len();
        }
        assert!(bytes <= input.len());
    }
});
