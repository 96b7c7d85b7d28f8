use super::*;

#[test]
fn a_guest_that_never_stops_writing_has_no_more_time_than_another() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    let now = Instant::now();
    let hour = Duration::from_secs(3600);
    assert!(wait_for(&ours, None).unwrap());
    assert!(wait_for(&ours, Some(now + hour)).unwrap());
    assert!(!wait_for(&ours, Some(now)).unwrap());
}

/// A guest whose QEMU only sleeps, and the agent's end of its socket.
fn guest() -> (Guest, UnixStream) {
    let (agent, its_agent) = UnixStream::pair().unwrap();
    let child = Command::new("sleep").arg("100").spawn().unwrap();
    let guest = Guest {
        qemu: Process {
            child,
            _starter: mpsc::channel().0,
        },
        console: Console::default(),
        errors: Console::default(),
        followers: Vec::new(),
        monitor: None,
        to_agent: Arc::new(Mutex::new(agent.try_clone().unwrap())),
        agent,
        command: 0,
        is_spent: false,
        evidence: Evidence::default(),
        accelerator: Accelerator::Emulated,
        boot_time: Duration::ZERO,
    };
    (guest, its_agent)
}

/// Answers the next command with its end, when its input has filled the socket.
fn end(agent: &UnixStream) {
    let exit = br#"{"status":0,"signal":null,"bounce_slots_max":null}"#;
    loop {
        let frame = agent::read(agent).unwrap().unwrap();
        if frame.kind == Kind::Run {
            let (mut before, mut now) = (0, 0);
            while now == 0 || now != before {
                // Longer than a busy machine keeps the sender from its processor.
                thread::sleep(Duration::from_millis(500));
                before = now;
                now = rustix::io::ioctl_fionread(agent).unwrap();
            }
            return agent::write(agent, Kind::Exit, frame.command, exit).unwrap();
        }
    }
}

#[test]
fn input_of_a_command_that_has_ended_is_not_sent_on() {
    let (mut guest, agent) = guest();
    let agent = thread::spawn(move || {
        end(&agent);
        end(&agent);
        let of_the_first = |frame: &Frame| frame.command == 1;
        let frames = std::iter::from_fn(|| agent::read(&agent).unwrap());
        frames.take(1000).filter(of_the_first).count()
    });
    for _ in 0..2 {
        let limit = Some(Duration::from_secs(60));
        let exit = guest.run(&["true"], io::repeat(7), limit, |_, _| {});
        assert_eq!(exit.unwrap().status, Some(0));
    }
    drop(guest);
    // One may have been under way.
    assert!(agent.join().unwrap() <= 1);
}

#[test]
fn a_command_that_the_agent_does_not_take_ends_at_its_limit() {
    let (mut guest, agent) = guest();
    let socket = guest.agent.try_clone().unwrap();
    let ending = thread::spawn(move || {
        end(&agent);
        agent
    });
    let mut run = |limit| {
        let limit = Some(Duration::from_millis(limit));
        guest.run(&["true"], io::repeat(7), limit, |_, _| {})
    };
    run(60_000).unwrap();
    // From here on it reads nothing, and the socket is full.
    let _agent = ending.join().unwrap();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    while send(&socket, &[7; 4096], flags).is_ok() {}
    for expected in [
        "true: the agent does not take it within 0.3 s",
        "boot another",
    ] {
        let error = run(300).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_error_has_the_end_of_what_a_guest_says_and_nothing_that_drives_a_terminal() {
    let text = excerpt(&format!(
        "first {} last\x1b[2J\u{9b}\n",
        "é".repeat(1 << 20)
    ));
    assert_eq!(text.chars().count(), SAID_MAX);
    assert!(text.ends_with("é last [2J "), "{text}");
    assert_eq!(excerpt(" a\nb "), "a b");
    let content = format!("{{\"status\": \"{}\"}}", "x".repeat(1 << 19));
    let frame = Frame {
        kind: Kind::Exit,
        command: 1,
        content: content.into(),
    };
    let error = parse::<Exit>(&frame).unwrap_err().to_string();
    assert!(
        error.starts_with("the agent: Exit: ") && error.len() < 500,
        "{error}"
    );
}

#[test]
fn a_frame_that_trickles_in_ends_with_its_time_as_a_whole() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let began = Instant::now();
    let writer = thread::spawn(move || {
        // The header of a frame of a mebibyte, and of that a byte every 10 ms.
        let mut bytes = vec![3, 0, 0, 0, 0, 0, 0, 16, 0];
        while theirs.write_all(&bytes).is_ok() && began.elapsed() < Duration::from_secs(20) {
            bytes = vec![0];
            thread::sleep(Duration::from_millis(10));
        }
    });
    let timed = Timed {
        socket: &ours,
        until: began + Duration::from_millis(200),
    };
    let error = agent::read(timed).unwrap_err();
    // Without a time for the whole, the frame would be cut short by the end of the writer.
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    drop(ours);
    writer.join().unwrap();
}
