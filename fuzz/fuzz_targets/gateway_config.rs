//! Any text as a configuration, and as one for tests: read or refused; what is read is written and
//! read again as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tare_gateway::config::Config;
use tare_gateway::tools::gentest::Meta;

fuzz_target!(|input: &[u8]| {
    if let Ok((config, _)) = Config::parse("fuzz.conf", input) {
        let text = config.text();
        let (again, _) = Config::parse("again.conf", text.as_bytes()).unwrap();
        assert_eq!(*again.text(), *text);
    }
    let _ = Meta::parse("fuzz-gentest.conf", input);
});
