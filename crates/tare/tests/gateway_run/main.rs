//! `tare gateway run` with root: two gateways between two hosts, all four in network namespaces,
//! over veth.

mod handover;
mod testbed;
mod timed;

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use testbed::*;

/// Times that a test is run whose traffic is not to be lost, while the machine stands still.
const ATTEMPTS: usize = 5;

#[test]
fn keys_change_and_files_are_reloaded_and_no_packet_is_lost() {
    // The first thread is that of the control side, if there are several.
    let one = cpus(1);
    for (io, cpus, workers) in [
        ("auto", one.clone(), 1),
        ("packet", [&*one; 3].join(","), 2),
    ] {
        let mut attempts = 0..ATTEMPTS;
        let is_tested = attempts.any(|_| is_tested_with_changes(io, &cpus, workers));
        assert!(
            is_tested,
            "the machine stood still in each of {ATTEMPTS} attempts"
        );
    }
}

/// Changes keys and files, and returns false if the machine stood still.
fn is_tested_with_changes(io: &str, cpus: &str, workers: usize) -> bool {
    let Some(mut bed) = Testbed::new(&["--io", io, "--cpu", cpus]) else {
        return true;
    };
    bed.up();
    bed.wait_for_packets();
    let spi = |bed: &Testbed| bed.status(0).unwrap()["routes"][0]["outbound"][0]["spi"].as_u64();
    let first = spi(&bed);
    let mut spis = HashSet::from([first]);
    let traffic = bed.traffic();
    let other = r#"route { id other; gw-ip4 203.0.113.1; net-cidr4 "10.1.0.0/16"; spi 1002;
            preshared-key 1111111111111111111111111111111111111111111111111111111111111111; }"#;
    for round in 0..4 {
        bed.configure(0, if round % 2 == 0 { other } else { "" });
        if round == 3 {
            bed.signal(0, Signal::HUP);
        }
        bed.wait(60.0, "the file to be taken over", || {
            (bed.status(0)?["reloads"].as_u64()? > round).then_some(())
        });
        thread::sleep(Duration::from_secs(3));
        spis.insert(spi(&bed));
    }
    bed.wait(60.0, "an SA of its own for each worker", || {
        let status = bed.status(0)?;
        let sas = status["routes"][0]["outbound"].as_array()?;
        (sas.len() == workers).then_some(())
    });
    // A wrong file changes nothing.
    bed.configure(0, "route { id broken; }");
    bed.wait(60.0, "the file to be refused", || {
        (bed.status(0)?["reloads_refused"] == 1).then_some(())
    });
    thread::sleep(Duration::from_secs(2));
    let count = traffic.end(&bed);
    if count.is_of_a_stalled_machine() {
        return false;
    }
    let (sent, lost) = (count.sent, count.lost.len());
    assert_eq!(
        lost,
        0,
        "of {sent} over {io}, longest pause {:?}, sent {:?} before the end\n{:#?}\n{}",
        count.longest_pause,
        count.lost.iter().map(Instant::elapsed).collect::<Vec<_>>(),
        [0, 1].map(|side| bed.status(side)),
        bed.log(0)
    );
    assert!(
        sent > 2000 && spis.len() >= 3,
        "{sent} packets, {} SAs",
        spis.len()
    );
    let log = bed.log(0);
    assert!(
        log.contains("event=refused") && log.contains("broken"),
        "{log}"
    );
    assert!(!log.contains("91440DA0") && !log.to_lowercase().contains("91440da0"));
    for side in 0..2 {
        let status = bed.status(side).unwrap();
        for direction in ["outbound", "inbound"] {
            let count = &status[direction];
            let dropped: u64 = count["dropped"]
                .as_object()
                .unwrap()
                .values()
                .filter_map(Value::as_u64)
                .sum();
            let [received, fragments, forwarded, control] =
                ["received", "fragments", "forwarded", "control"]
                    .map(|name| count[name].as_u64().unwrap());
            assert_eq!(
                received + fragments,
                forwarded + control + dropped,
                "{count}"
            );
        }
    }
    let table = bed.wait(60.0, "the status", || {
        let table = status(&[], &bed.config(0));
        let is_answered = table.status.success();
        is_answered.then(|| String::from_utf8(table.stdout).unwrap())
    });
    assert!(
        table.contains("1 of 1 routes up") && table.contains("out "),
        "{table}"
    );
    if io == "packet" {
        assert!(table.contains("private: packet socket"), "{table}");
    }
    true
}

#[test]
fn a_signal_ends_it_and_leaves_nothing_behind() {
    for signal in [Signal::TERM, Signal::INT] {
        let Some(mut bed) = Testbed::new(&["--log-json", "--metrics", "127.0.0.1:9303"]) else {
            return;
        };
        bed.up();
        bed.wait_for_packets();
        let ask = || -> io::Result<String> {
            let mut stream = TcpStream::connect("127.0.0.1:9303")?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let metrics = bed.wait(60.0, "the metrics", || {
            let page = bed.spaces.within("g0", ask).ok()?;
            page.starts_with("HTTP/1.1 200 OK\r\n").then_some(page)
        });
        let up = "tare_gateway_route_up{route=\"peer\",gateway=\"192.0.2.2\"} 1\n";
        assert!(metrics.contains(up), "{metrics}");
        let links = || {
            let space = bed.spaces.name("g0");
            let output = Command::new("ip")
                .args(["-n", &space, "-d", "link"])
                .output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        };
        assert!(links().contains("xdp"), "{}", links());
        assert!(bed.socket(0).exists());
        bed.signal(0, signal);
        let started = Instant::now();
        let mut child = bed.gateways[0].take().unwrap();
        let code = child.wait().unwrap();
        assert!(code.success(), "{code}");
        // Far more than it takes, for machines with other things to do.
        let took = started.elapsed();
        assert!(took < Duration::from_secs(30), "{took:?}");
        let space = bed.spaces.name("g0");
        let output = Command::new("ip")
            .args(["-n", &space, "-d", "link"])
            .output();
        let links = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(!links.contains("xdp"), "{links}");
        assert!(!bed.socket(0).exists());
        let log = bed.log(0);
        let last = log.lines().last().unwrap();
        let last: Value = serde_json::from_str(last).unwrap();
        assert_eq!(last["event"], "stopped");
    }
}

#[test]
fn packets_of_9000_bytes_pass_over_af_xdp_without_a_fragment() {
    for io in ["xdp-native", "xdp-generic"] {
        let Some(mut bed) = Testbed::new(&["--io", io, "--cpu", &cpus(1)]) else {
            return;
        };
        for (place, link) in [("h0", "lan"), ("h1", "lan")] {
            bed.spaces.ip(place, &format!("link set {link} mtu 9000"));
        }
        for place in ["g0", "g1"] {
            for link in ["private", "public"] {
                bed.spaces.ip(place, &format!("link set {link} mtu 9000"));
            }
        }
        bed.up();
        bed.wait_for_packets();
        // The search of the path begins with what the interface takes.
        let inner = bed.wait(20.0, "the path MTU", || {
            let route = &bed.status(0)?["routes"][0];
            let inner = route["inner_mtu"].as_u64()?;
            (route["path_mtu"] == 9000).then_some(inner as usize)
        });
        assert!(inner > 8900, "{inner}");
        let fragments = |bed: &Testbed| {
            [0, 1].map(|side| bed.status(side).unwrap()["outbound"]["fragments"].as_u64())
        };
        let before = fragments(&bed);
        let sockets = [bed.udp(0, 7002), bed.udp(1, 7002)];
        for (side, from) in sockets.iter().enumerate() {
            let to = &sockets[1 - side];
            to.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            // Linux sends what fits the MTU of its interface with DF.
            for len in [8000, 8192, 8500, inner - 28] {
                let sent: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
                let mut received = vec![0; 10_000];
                // Sent again where a busy machine has lost it.
                bed.wait(60.0, &format!("{len} bytes over {io}"), || {
                    from.send_to(&sent, to.local_addr().unwrap()).unwrap();
                    let n = to.recv(&mut received).ok()?;
                    (received[..n] == sent).then_some(())
                });
            }
        }
        assert_eq!(fragments(&bed), before);
        let workers = &bed.status(0).unwrap()["workers"];
        for side in ["private", "public"] {
            let kind = workers[0][side]["kind"].as_str().unwrap();
            assert!(kind.contains("AF_XDP"), "{kind}");
        }
    }
}

#[test]
fn a_gateway_whose_log_is_not_read_serves_and_ends() {
    let Some(mut bed) = Testbed::new(&["--cpu", &cpus(1)]) else {
        return;
    };
    let (reader, mut writer) = std::io::pipe().unwrap();
    // As many bytes as a pipe holds.
    writer.write_all(&[b'\n'; 1 << 16]).unwrap();
    bed.configure(0, "");
    bed.begin_with_log(0, "run", writer.into());
    bed.configure(1, "");
    bed.start(1);
    bed.wait_until_up();
    bed.wait_for_packets();
    bed.signal(0, Signal::TERM);
    let mut gateway = bed.gateways[0].take().unwrap();
    let status = bed.wait(30.0, "the end of the gateway", || {
        gateway.try_wait().unwrap()
    });
    assert!(status.success(), "{status}");
    drop(reader);
}

#[test]
fn a_gateway_that_was_killed_comes_back_and_so_does_a_cable() {
    let Some(mut bed) = Testbed::new(&[]) else {
        return;
    };
    bed.up();
    bed.wait_for_packets();
    for side in [1, 0] {
        bed.signal(side, Signal::KILL);
        bed.gateways[side].take().unwrap().wait().unwrap();
        thread::sleep(Duration::from_secs(1));
        bed.start(side);
        bed.wait_until_up();
        bed.wait_for_packets();
    }
    for interface in ["public", "private"] {
        bed.spaces.ip("g0", &format!("link set {interface} down"));
        bed.wait(20.0, "the cable to be missed", || {
            let down = format!("event=link interface={interface} state=down");
            bed.log(0).contains(&down).then_some(())
        });
        thread::sleep(Duration::from_secs(1));
        bed.spaces.ip("g0", &format!("link set {interface} up"));
        bed.wait_for_packets();
    }
    // Some seconds of packets without a loss afterwards are enough.
    let mut attempts = (0..ATTEMPTS).map(|_| {
        let traffic = bed.traffic();
        thread::sleep(Duration::from_secs(6));
        traffic.end(&bed)
    });
    let count = attempts.find(|count| !count.is_of_a_stalled_machine());
    let count = count.expect("a machine that does not stand still");
    assert_eq!(count.lost.len(), 0, "of {}", count.sent);
    // Another interface of the same name takes the place of the one that was.
    bed.spaces.ip("h0", "link del lan");
    thread::sleep(Duration::from_secs(1));
    bed.spaces.link(["h0", "g0"], ["lan", "private"]);
    bed.spaces.ip("g0", "link set private up");
    bed.set_up_host(0);
    bed.wait_for_packets();
}

/// Runs an attempt up to three times, until it returns no loss. Where the machine is so busy that
/// frames do not fit into a ring or a queue before a process runs again, packets are lost whatever
/// the gateway does, and not all of them are counted: but not each time.
fn loses_nothing(attempt: impl Fn() -> Option<String>) {
    let mut losses = Vec::new();
    for _ in 0..3 {
        match attempt() {
            Some(loss) => losses.push(loss),
            None => return,
        }
    }
    panic!("{}", losses.join("\n\n"));
}

#[test]
fn an_interface_that_goes_down_and_up_costs_only_the_packets_of_that_time() {
    for io in ["auto", "packet"] {
        loses_nothing(|| lost_beside_the_time_of_a_link_that_is_down(io));
    }
}

fn lost_beside_the_time_of_a_link_that_is_down(io: &str) -> Option<String> {
    let mut bed = Testbed::new(&["--io", io])?;
    bed.up();
    bed.wait_for_packets();
    let traffic = bed.traffic();
    let mut times = Vec::new();
    for (interface, down) in [("public", 300), ("public", 1500), ("private", 1000)] {
        thread::sleep(Duration::from_secs(2));
        let begin = Instant::now();
        bed.spaces.ip("g0", &format!("link set {interface} down"));
        thread::sleep(Duration::from_millis(down));
        bed.spaces.ip("g0", &format!("link set {interface} up"));
        times.push((begin, Instant::now()));
    }
    thread::sleep(Duration::from_secs(10));
    let Count {
        sent,
        lost,
        longest_pause,
        ..
    } = traffic.end(&bed);
    // The hosts ask for addresses again, and this machine may be busy.
    let after = Duration::from_millis(200) + longest_pause;
    let is_explained = |at: &Instant| {
        let mut times = times.iter();
        times.any(|&(begin, end)| (begin..end + after).contains(at))
    };
    assert!(!lost.is_empty());
    let others = lost.iter().filter(|at| !is_explained(at)).count();
    (others > 0).then(|| {
        let all = lost.len();
        format!("{others} of {all} lost of {sent} over {io}\n{}", bed.log(0))
    })
}

/// The frames are 36 ms of 50,000 per second: on a busy machine, a worker may be off its processor
/// for that long.
#[test]
fn frames_that_arrive_while_a_worker_does_not_run_wait_for_it() {
    for io in ["auto", "packet"] {
        loses_nothing(|| lost_before_a_worker_ran(io));
    }
}

fn lost_before_a_worker_ran(io: &str) -> Option<String> {
    const FRAMES: u64 = 1800;
    let mut bed = Testbed::new(&["--io", io])?;
    bed.timers = "";
    bed.up();
    bed.wait_for_packets();
    let forwarded = || bed.status(1)?["inbound"]["forwarded"].as_u64();
    let without_room = || bed.status(0)?["workers"][0]["private"]["rx_dropped"].as_u64();
    let before = (forwarded().unwrap(), without_room().unwrap());
    let [from, to] = [bed.udp(0, 7003), bed.udp(1, 7003)];
    let to = to.local_addr().unwrap();
    bed.signal(0, Signal::STOP);
    for n in 0..FRAMES {
        from.send_to(b"here already", to).unwrap();
        if n % 64 == 0 {
            // The cable itself holds 256.
            thread::sleep(Duration::from_millis(1));
        }
    }
    bed.signal(0, Signal::CONT);
    let end = Instant::now() + Duration::from_secs(10);
    let come = loop {
        let come = forwarded().unwrap_or(0).saturating_sub(before.0);
        if come >= FRAMES || Instant::now() > end {
            break come;
        }
        thread::sleep(Duration::from_millis(50));
    };
    let dropped = without_room().unwrap().saturating_sub(before.1);
    (come < FRAMES || dropped > 0).then(|| {
        let log = bed.log(0);
        format!("{come} of {FRAMES} forwarded over {io}, no room for {dropped}\n{log}")
    })
}

#[test]
fn slips_of_an_operator_are_refused_and_stop_nothing() {
    let Some(mut bed) = Testbed::new(&[]) else {
        return;
    };
    bed.up();
    let run = |bed: &Testbed, arguments: &[&str]| {
        let output = Command::new("ip")
            .args([
                "netns",
                "exec",
                &bed.spaces.name("g0"),
                TARE,
                "gateway",
                "run",
            ])
            .args(arguments)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    // A second gateway on the same interfaces.
    let pid = bed.gateways[0].as_ref().unwrap().id();
    let second = bed.path("second.conf");
    fs::copy(bed.config(0), &second).unwrap();
    let socket = bed.path("second.sock");
    let second = [
        second.to_str().unwrap(),
        "--status-socket",
        socket.to_str().unwrap(),
    ];
    // Each waits for two seconds, since the first one may be just ending.
    for _ in 0..4 {
        let (code, said) = run(&bed, &second);
        let expected = format!("interface private is used by the gateway of process {pid};");
        assert!(code == Some(2) && said.contains(&expected), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // One interface on both sides, under another name.
    let alternative = "link property add dev private altname inside";
    bed.spaces.ip("g0", alternative);
    let text = fs::read_to_string(bed.config(0)).unwrap();
    let twice = bed.path("twice.conf");
    fs::write(&twice, text.replace("device public;", "device inside;")).unwrap();
    let (code, said) = run(&bed, &["--check", twice.to_str().unwrap()]);
    let expected = r#"twice.conf:4: public-interface: leaf "device": found inside, which is private of private-interface (line 3), expected another interface"#;
    assert!(code == Some(2) && said.contains(expected), "{said}");

    // Another lifetime of SAs is that of those in use.
    let left = |bed: &Testbed| {
        let status = bed.status(0).unwrap();
        let sas = status["routes"][0]["inbound"].as_array().unwrap().clone();
        sas.iter()
            .map(|sa| sa["left_s"].as_u64().unwrap())
            .max()
            .unwrap()
    };
    assert!(left(&bed) <= 8);
    let replace = |bed: &Testbed, from: &str, to: &str| {
        let text = fs::read_to_string(bed.config(0)).unwrap();
        fs::write(bed.config(0), text.replace(from, to)).unwrap();
    };
    replace(&bed, "sa-ttl 8;", "sa-ttl 100;");
    bed.wait(60.0, "the longer life", || (left(&bed) > 80).then_some(()));

    // The file becomes a FIFO: keys still change, and status is answered.
    let kept = bed.path("kept");
    fs::rename(bed.config(0), &kept).unwrap();
    let fifo = Command::new("mkfifo").arg(bed.config(0)).status().unwrap();
    assert!(fifo.success());
    bed.wait(60.0, "the FIFO to be refused", || {
        let error = bed.status(0)?["reload_error"].as_str()?.to_owned();
        error
            .contains("found a FIFO, expected a regular file")
            .then_some(())
    });
    let spi = |bed: &Testbed| bed.status(1).unwrap()["routes"][0]["outbound"][0]["spi"].as_u64();
    let first = spi(&bed);
    bed.wait(20.0, "keys to change", || {
        (spi(&bed) != first).then_some(())
    });
    fs::rename(&kept, bed.config(0)).unwrap();
    bed.wait(60.0, "the file to be taken over", || {
        bed.status(0)?["reload_error"].is_null().then_some(())
    });
    // Once the first gateway is gone, however it ended, another may run.
    bed.signal(0, Signal::KILL);
    bed.gateways[0].take().unwrap().wait().unwrap();
    bed.start(0);
    bed.wait_until_up();
}

#[test]
fn what_is_wrong_is_one_line_and_exit_code_2() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gateway.conf");
    let run = |arguments: &[&str]| {
        let output = Command::new(TARE)
            .args(["gateway", "run"])
            .args(arguments)
            .arg(&path)
            .output();
        let output = output.unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, said) = run(&[]);
    assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("gateway.conf"), "{said}");
    let text = r#"private-interface { device nowhere0; ip4 172.16.0.10; nexthop-ip4 172.16.0.1; }
        public-interface { device nowhere1; ip4 192.0.2.1; nexthop-ip4 192.0.2.2; }"#;
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, said) = run(&["--check"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("chmod 600"), "{said}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let (code, said) = run(&[]);
    assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
    assert!(
        said.contains("there is no interface \"nowhere0\""),
        "{said}"
    );
    let (code, said) = run(&["--cpu", "4000"]);
    assert_eq!(code, Some(2), "{said}");
    let output = status(&[], &path);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("is it running?"), "{said}");
}
