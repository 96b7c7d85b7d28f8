//! Notifications between guest and host: polling, by event index and flags, and their cost.

use super::*;

#[test]
fn polling_asks_for_no_notifications() {
    let mut link = Link::new(&small(ZC));
    // The first packet: the device's event index is 0 at the start.
    link.driver
        .send(&[1; 60], [], &NetHeader::default())
        .unwrap();
    link.driver.flush().unwrap();
    let exits = link.driver.exits();
    let interrupts = link.device.counters().interrupts;
    for _ in 0..1000 {
        link.push(&[1; 60], NetHeader::default());
        link.driver
            .send(&[1; 60], [], &NetHeader::default())
            .unwrap();
        link.driver.flush().unwrap();
        link.poll();
        link.receive(64);
    }
    assert_eq!(link.driver.exits(), exits);
    assert_eq!(link.device.counters().interrupts, interrupts);
}

fn events() -> Notification {
    Notification::Events {
        kick: Doorbell::new().unwrap(),
        interrupt: Doorbell::new().unwrap(),
    }
}

/// The interrupts for 160 packets that complete one by one.
fn interrupts(exits: Exits) -> u64 {
    let notification = events();
    let settings = Settings {
        exits,
        notification: notification.clone(),
        ..Settings::default()
    };
    let device = DeviceSettings {
        notification,
        ..DeviceSettings::default()
    };
    let config = Config {
        transmit_queue: 1024,
        ..small(CVM)
    };
    let mut link = Link::with(&config, settings, device);
    link.receive(1);
    let before = link.driver.exits().interrupts;
    for _ in 0..160 {
        link.driver
            .send(&[1; 60], [], &NetHeader::default())
            .unwrap();
    }
    link.driver.flush().unwrap();
    // The device finishes one packet at a time, and the driver looks after each.
    link.device.frames().from_guest.clear();
    for _ in 0..160 {
        link.device.poll_at_most(1, Instant::ZERO).unwrap();
        link.driver.flush().unwrap();
    }
    link.receive(1);
    assert_eq!(link.device.frames().from_guest.len(), 160);
    link.driver.exits().interrupts - before
}

#[test]
fn with_rif_one_in_16_transmit_completions_interrupts() {
    assert_eq!(interrupts(Exits::Each), 160);
    assert_eq!(interrupts(Exits::Rif), 10);
}

#[test]
fn a_guest_without_room_sleeps_and_not_when_there_is_some_again() {
    let notification = events();
    let settings = Settings {
        exits: Exits::Rif,
        notification: notification.clone(),
        ..Settings::default()
    };
    let device = DeviceSettings {
        notification,
        ..DeviceSettings::default()
    };
    let mut link = Link::with(&small(ZC), settings, device);
    link.receive(1);
    let sleeps = |link: &mut Link, ms| !link.driver.wait(Duration::from_millis(ms)).unwrap();
    // What rang at the start is heard.
    let _ = sleeps(&mut link, 0);
    while link.driver.room() > 0 {
        let sent = link.driver.send(&[1; 60], [], &NetHeader::default());
        sent.unwrap();
    }
    assert!(sleeps(&mut link, 10), "there is no room");
    assert_eq!(link.driver.room(), 0);
    // Too few for an interrupt, and enough for a packet.
    link.device.poll_at_most(10, Instant::ZERO).unwrap();
    assert!(!sleeps(&mut link, 5000), "there is room");
    assert!(link.driver.room() > 0);
    assert!(sleeps(&mut link, 10), "the room is known");
}

#[test]
fn a_world_switch_costs_its_cycles_at_each_notification() {
    let notification = events();
    let settings = Settings {
        exits: Exits::Each,
        switch_cycles: 9500,
        notification: notification.clone(),
    };
    let device = DeviceSettings {
        notification,
        ..DeviceSettings::default()
    };
    let host = Region::create(&small(ZC)).unwrap();
    let mut device = Device::new(&host, 0, device, Memory::default()).unwrap();
    let breakdown = Breakdown::start();
    let mut driver = Driver::new(host, 0, settings, breakdown.clone()).unwrap();
    while !driver.start().unwrap() {
        device.poll(Instant::ZERO).unwrap();
    }
    for _ in 0..20 {
        device.wait(Duration::ZERO).unwrap();
        driver.send(&[1; 60], [], &NetHeader::default()).unwrap();
        driver.flush().unwrap();
        device.poll(Instant::ZERO).unwrap();
        driver.receive(&mut Vec::new(), 1).unwrap();
    }
    let exits = driver.exits();
    assert!(exits.kicks >= 19 && exits.interrupts >= 19, "{exits:?}");
    let all = exits.kicks + exits.interrupts + exits.halts;
    assert_eq!(exits.cycles, 9500 * all);
    let spent = breakdown.totals().cycles[Category::Exit as usize];
    assert!(spent >= exits.cycles, "{spent} {exits:?}");
}

/// A network that always has a frame, and says so.
struct Ready(Doorbell);

impl Frames for Ready {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        frame.extend([1; 60]);
        Some(NetHeader::default())
    }

    fn send(&mut self, _: &[u8], _: NetHeader) -> bool {
        true
    }

    fn wait_on(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

#[test]
fn a_host_sleeps_while_its_guest_does_not_run_or_has_no_buffers() {
    const TIME: Duration = Duration::from_millis(50);
    let bell = Doorbell::new().unwrap();
    bell.ring();
    let config = small(ZC);
    let settings = DeviceSettings {
        notification: events(),
        ..DeviceSettings::default()
    };
    let host = Region::create(&config).unwrap();
    let guest = Region::open(host.fd().try_clone_to_owned().unwrap(), &config).unwrap();
    let mut device = Device::new(&host, 0, settings, Ready(bell)).unwrap();
    let time = |device: &mut Device<Ready>| {
        let begin = std::time::Instant::now();
        device.wait(TIME).unwrap();
        begin.elapsed()
    };
    assert!(time(&mut device) >= TIME, "no guest runs");
    let mut driver = Driver::new(guest, 0, Settings::default(), Off).unwrap();
    while !driver.start().unwrap() {
        device.poll(Instant::ZERO).unwrap();
    }
    device.poll(Instant::ZERO).unwrap();
    assert_eq!(device.counters().to_guest, 16);
    assert!(time(&mut device) >= TIME, "the guest has no buffers");
    driver.receive(&mut Vec::new(), 16).unwrap();
    assert!(device.poll(Instant::ZERO).unwrap(), "it has some again");
}

/// A guest that sends every frame back, on a thread of its own.
fn echo(config: &Config, region: Region, notification: Notification, count: usize) {
    let fd = region.fd().try_clone_to_owned().unwrap();
    let region = Region::open(fd, config).unwrap();
    let settings = Settings {
        notification,
        ..Settings::default()
    };
    let mut driver = Driver::new(region, 0, settings, Off).unwrap();
    while !driver.start().unwrap() {
        driver.wait(Duration::from_secs(10)).unwrap();
    }
    let (mut done, mut frames) = (0, Vec::new());
    while done < count {
        driver.receive(&mut frames, 16).unwrap();
        for received in frames.drain(..) {
            let buffer = &received.buffer;
            let mut headers = [0; 54];
            buffer.read(received.range.start, &mut headers).unwrap();
            let payload = received.range.start + 54..received.range.end;
            loop {
                match driver.send(&headers, [(buffer, payload.clone())], &received.header) {
                    Ok(()) => break,
                    Err(SendError::Full) => driver.flush().unwrap(),
                    Err(error) => panic!("{error:?}"),
                }
            }
            done += 1;
        }
        driver.flush().unwrap();
        driver.wait(Duration::from_secs(10)).unwrap();
    }
    while driver.in_flight()[1] > 0 {
        driver.flush().unwrap();
        std::thread::yield_now();
    }
}

#[test]
fn two_threads_exchange_frames_polling_or_by_eventfds_with_and_without_event_index() {
    for (variant, event_index, polling) in [
        (ZC, true, true),
        (CVM, true, false),
        (ZC, false, false),
        (ZC, true, false),
        (CVM, false, true),
    ] {
        let config = Config {
            event_index,
            ..small(variant)
        };
        let notification = if polling {
            Notification::Polling
        } else {
            events()
        };
        let settings = DeviceSettings {
            notification: notification.clone(),
            ..DeviceSettings::default()
        };
        let host = Region::create(&config).unwrap();
        let mut device = Device::new(&host, 0, settings, Memory::default()).unwrap();
        let mut random = Random::new(3);
        let frames: Vec<Vec<u8>> = (0..3000)
            .map(|n| frame(&mut random, 60 + n % 1400))
            .collect();
        let queue = frames
            .iter()
            .map(|frame| (frame.clone(), NetHeader::default()));
        device.frames().to_guest.extend(queue);
        std::thread::scope(|scope| {
            let config = &config;
            scope.spawn(move || echo(config, host, notification, 3000));
            while device.frames().from_guest.len() < 3000 {
                if !device.poll(Instant::ZERO).unwrap() {
                    device.wait(Duration::from_secs(10)).unwrap();
                }
            }
        });
        let echoed: Vec<_> = device
            .frames()
            .from_guest
            .drain(..)
            .map(|(frame, _)| frame)
            .collect();
        assert!(echoed == frames, "{} {event_index} {polling}", variant.name);
    }
}
