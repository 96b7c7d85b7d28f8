//! A host that writes anything anywhere in the shared region, at the guest's driver: between its
//! calls, the used rings are advanced with ids and lengths of the input, and bytes of the input are
//! written to any place. Nothing panics, no buffer is lost or handed out twice, and after a reset a
//! device that behaves is served.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use tare_cvmnet::breakdown::Off;
use tare_cvmnet::host::{Device, DeviceSettings, Memory};
use tare_cvmnet::pool::GuestBuffer;
use tare_cvmnet::region::{Config, QueueLayout, Region};
use tare_cvmnet::ring::{Driver, NetHeader, Received, Settings};
use tare_cvmnet::variant::Variant;
use tare_sim::Instant;

/// Small, so that every place is within reach of a few bytes.
fn config(variant: Variant) -> Config {
    Config {
        receive_queue: 16,
        transmit_queue: 64,
        receive_posted: 16,
        receive_buffers: 20,
        record_buffers: 4,
        bounce_slots: 1024,
        ..variant.config(1)
    }
}

fn write(region: &Region, at: usize, bytes: &[u8]) {
    if let Some(place) = region.view().range(at, bytes.len()) {
        place.copy_from(bytes).expect("of the same length");
    }
}

fn read_u16(region: &Region, at: usize) -> u16 {
    let mut bytes = [0; 2];
    let place = region.view().range(at, 2).expect("within the region");
    place.copy_to(&mut bytes).expect("of the same length");
    u16::from_le_bytes(bytes)
}

/// Puts an element into a used ring and advances its index.
fn use_chain(region: &Region, queue: &QueueLayout, id: u32, len: u32, step: u16) {
    let index = read_u16(region, queue.used + 2);
    let place = queue.used + 4 + 8 * usize::from(index % queue.size);
    write(region, place, &id.to_le_bytes());
    write(region, place + 4, &len.to_le_bytes());
    write(
        region,
        queue.used + 2,
        &index.wrapping_add(step).to_le_bytes(),
    );
}

/// Resets the driver and starts it with an honest device, which then delivers one frame each way.
fn serve(driver: &mut Driver<Off>, device: &mut Device<Memory>) {
    driver.reset();
    for _ in 0..3 {
        device
            .poll(Instant::ZERO)
            .expect("the guest's queues are usable");
        if driver.start() == Ok(true) {
            break;
        }
    }
    device
        .poll(Instant::ZERO)
        .expect("the guest's queues are usable");
    let frame = vec![9; 200];
    device
        .frames()
        .to_guest
        .push_back((frame.clone(), NetHeader::default()));
    device.frames().from_guest.clear();
    driver
        .send(&frame, [], &NetHeader::default())
        .expect("there is room");
    driver.flush().expect("the device behaves");
    device
        .poll(Instant::ZERO)
        .expect("the guest's queues are usable");
    let mut frames = Vec::new();
    driver.receive(&mut frames, 8).expect("the device behaves");
    assert_eq!(frames.len(), 1);
    let mut bytes = vec![0; 200];
    assert_eq!(frames[0].range.len(), 200);
    frames[0]
        .buffer
        .read(frames[0].range.start, &mut bytes)
        .expect("200 bytes");
    assert_eq!(bytes, frame);
    assert_eq!(device.frames().from_guest, [(frame, NetHeader::default())]);
    driver.flush().expect("the device behaves");
}

fuzz_target!(|input: &[u8]| {
    static FRESH: OnceLock<Vec<[usize; 4]>> = OnceLock::new();
    let [choice, input @ ..] = input else { return };
    let kind = usize::from(*choice) % Variant::ALL.len();
    let config = config(Variant::ALL[kind]);
    let host = Region::create(&config).expect("memory");
    let guest = host.try_clone().expect("memory");
    let layout = *host.layout().pair(0).expect("a queue pair");
    let mut device =
        Device::new(&host, 0, DeviceSettings::default(), Memory::default()).expect("a device");
    let mut driver = Driver::new(guest, 0, Settings::default(), Off).expect("a driver");
    serve(&mut driver, &mut device);
    let fresh = FRESH.get_or_init(|| {
        Variant::ALL
            .iter()
            .map(|variant| fresh(&self::config(*variant)))
            .collect()
    })[kind];
    let mut frames: Vec<Received> = Vec::new();
    let mut records: Vec<GuestBuffer> = Vec::new();
    for piece in input.chunks(16) {
        let [kind, a, b, c, d, rest @ ..] = piece else {
            break;
        };
        let number = u32::from_le_bytes([*a, *b, *c, *d]);
        let queue = [layout.receive, layout.transmit][usize::from(kind >> 7)];
        match kind % 8 {
            // An element as an honest device would write it, nearly.
            0 | 1 => use_chain(
                &host,
                &queue,
                u32::from(*a) % 70,
                u32::from(*b) << (c % 12),
                1,
            ),
            2 => use_chain(
                &host,
                &queue,
                number,
                u32::from(rest.first().copied().unwrap_or(0)),
                u16::from(*d),
            ),
            3 => write(&host, number as usize % host.layout().len(), rest),
            4 => write(&host, queue.descriptors + number as usize % 4096, rest),
            5 => {
                let _ = driver.receive(&mut frames, usize::from(*a) % 40);
                frames.truncate(10);
            }
            6 => {
                records.extend(driver.record());
                let payload = records
                    .last()
                    .map(|record| (record, 0..usize::from(*a) + 1));
                let _ = driver.send(&[1; 54], payload, &NetHeader::default());
                records.truncate(2);
                driver.room();
                let _ = driver.flush();
            }
            _ => {
                driver.reset();
                write(&host, layout.device_status, rest);
                let _ = driver.start();
            }
        }
        let in_flight = driver.in_flight();
        assert!(in_flight[0] <= 16 && in_flight[1] <= 64, "{in_flight:?}");
    }
    drop((frames, records));
    serve(&mut driver, &mut device);
    driver.reset();
    assert_eq!(driver.free(), fresh, "buffers are lost");
});

/// Returns the buffers that a driver has after a reset.
fn fresh(config: &Config) -> [usize; 4] {
    let region = Region::create(config).expect("memory");
    let mut driver = Driver::new(region, 0, Settings::default(), Off).expect("a driver");
    driver.reset();
    driver.free()
}
