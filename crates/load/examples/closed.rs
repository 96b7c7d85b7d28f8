//! A closed loop against an HTTP server on this machine: `closed ADDRESS [CONNECTIONS [SECONDS]]`.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tare_load::protocol::Http;
use tare_load::{run, Options, Target};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = arguments
        .first()
        .ok_or("found no address, expected one as 127.0.0.1:8080")?;
    let number = |at: usize, default| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let target = Target {
        address: address.parse()?,
        tls: None,
    };
    let options = Options {
        connections: number(1, 64)? as usize,
        duration: Duration::from_secs(number(2, 3)?),
        ..Options::default()
    };
    let http = Http::new(address, &["/".into()], &[])?;
    let record = run(&target, &http, &options, &AtomicBool::new(false))?;
    println!(
        "{:.0} responses per second, {:.1} bytes each, {:?} of processor time each",
        record.rate().unwrap_or(f64::NAN),
        record.bytes_per_response().unwrap_or(f64::NAN),
        record.cpu_per_response().unwrap_or_default()
    );
    println!("{:?}", record.latency.summary());
    println!(
        "{} issued, {} answered, {:?}",
        record.issued,
        record.answered(),
        record.first_error
    );
    Ok(())
}
