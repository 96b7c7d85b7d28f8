//! `tare guest boot`, with guests under QEMU, emulated. They need QEMU, busybox and a kernel with
//! its modules, which `cargo xtask interop` gets where there is none.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const TARE: &str = env!("CARGO_BIN_EXE_tare");

/// Runs `tare guest boot`, emulated, with an empty standard input.
fn boot(arguments: &[&str]) -> Output {
    command(arguments).stdin(Stdio::null()).output().unwrap()
}

/// The command of that, with time for a busy machine if the arguments give no limit.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(TARE);
    command.args(["guest", "boot", "--accelerator", "tcg"]);
    if !arguments.contains(&"--boot-limit") {
        command.args(["--boot-limit", "300"]);
    }
    command.args(arguments);
    command
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// As [`boot`], of a guest that becomes ready and says so.
fn boot_ready(arguments: &[&str]) -> Output {
    let output = boot(arguments);
    let stderr = texts(&output).1;
    assert!(stderr.contains(", ready after "), "{stderr}");
    output
}

/// Guests that become ready, each with a command of its own.
#[test]
#[ignore = "needs QEMU and a kernel: cargo xtask interop"]
fn twenty_boots_two_at_a_time_are_twenty_ready() {
    let memory_hog: fn() = || {
        let hog = "dd if=/dev/zero of=/tmp/file bs=1M; tail /dev/zero";
        a_guest_that_ends_or_hangs_is_one_error_with_the_last_of_its_console(
            &["--memory", "256Mi", "--", "sh", "-c", hog],
            "the guest ran out of memory: give it more; the last of its console:",
        );
    };
    // They write faster than they are read, and the limit ends them all the same.
    let flood: fn() = || {
        let flood = "yes >&2 & yes & yes";
        a_guest_that_ends_or_hangs_is_one_error_with_the_last_of_its_console(
            &["--limit", "3", "--json", "--", "sh", "-c", flood],
            "in the guest: sh still runs after 3.0 s",
        );
    };
    let console_flood: fn() = || {
        let flood = "cat /dev/urandom > /dev/console";
        a_guest_that_ends_or_hangs_is_one_error_with_the_last_of_its_console(
            &["--limit", "3", "--", "sh", "-c", flood],
            "in the guest: sh still runs after 3.0 s",
        );
    };
    let panic: fn() = || {
        let crash = "echo c > /proc/sysrq-trigger; sleep 60";
        a_guest_that_ends_or_hangs_is_one_error_with_the_last_of_its_console(
            &["--", "sh", "-c", crash],
            "the guest's kernel panicked: sysrq triggered crash; the last of its console:",
        );
    };
    let power_off: fn() = || {
        a_guest_that_ends_or_hangs_is_one_error_with_the_last_of_its_console(
            &["--", "poweroff", "-f"],
            "the guest ended early; ",
        );
    };
    let plain: fn() = || bounce_buffers_are_used_in_a_swiotlb_guest_alone("plain", false);
    let swiotlb: fn() = || bounce_buffers_are_used_in_a_swiotlb_guest_alone("swiotlb", true);
    let different: [(&str, fn()); 11] = [
        ("memory hog", memory_hog),
        ("flood", flood),
        ("flood of the console", console_flood),
        ("panic", panic),
        ("power off", power_off),
        (
            "input and megabytes of output",
            standard_input_reaches_the_command_and_megabytes_come_back,
        ),
        ("no bounce buffers", plain),
        ("bounce buffers", swiotlb),
        (
            "streams and exit status",
            a_command_in_a_guest_has_its_streams_and_its_exit_status,
        ),
        ("signal", a_command_that_a_signal_ends_has_its_number),
        ("absent command", a_command_that_is_absent_is_named),
    ];
    let echo: (&str, fn()) = ("echo", a_word_comes_back_from_the_guest_that_got_it);
    let echoes = std::iter::repeat_n(echo, 9);
    let all: Vec<(&str, fn())> = different.into_iter().chain(echoes).collect();
    assert_eq!(all.len(), 20);
    let (all, failed) = (Mutex::new(all.into_iter()), Mutex::new(Vec::new()));
    let next = || all.lock().unwrap().next();
    let lane = || {
        while let Some((name, check)) = next() {
            if std::panic::catch_unwind(check).is_err() {
                failed.lock().unwrap().push(name);
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(lane);
        lane();
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "of twenty boots: {failed:?}");
}

fn a_word_comes_back_from_the_guest_that_got_it() {
    static BOOTS: AtomicU32 = AtomicU32::new(0);
    let word = format!("boot {}", BOOTS.fetch_add(1, Ordering::Relaxed));
    let (stdout, stderr) = texts(&boot_ready(&["--", "echo", &word]));
    assert_eq!(stdout, format!("{word}\n"), "{stderr}");
}

fn a_command_in_a_guest_has_its_streams_and_its_exit_status() {
    let script = "echo out; echo err >&2; cat /proc/1/comm; exit 3";
    let output = boot_ready(&["--", "sh", "-c", script]);
    let (stdout, stderr) = texts(&output);
    assert_eq!(
        (stdout.as_str(), output.status.code()),
        ("out\ninit\n", Some(3)),
        "{stderr}"
    );
    assert!(stderr.ends_with("err\n"), "{stderr}");
    assert!(stderr.contains("emulated: times mean nothing"), "{stderr}");
}

fn a_command_that_a_signal_ends_has_its_number() {
    let output = boot_ready(&["--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(output.status.code(), Some(137), "{}", texts(&output).1);
}

fn a_command_that_is_absent_is_named() {
    let output = boot_ready(&["--", "tare-absent"]);
    let stderr = texts(&output).1;
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("in the guest: tare-absent"), "{stderr}");
}

fn standard_input_reaches_the_command_and_megabytes_come_back() {
    let mut child = command(&["--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let sent: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    let (mut input, copy) = (child.stdin.take().unwrap(), sent.clone());
    let writer = thread::spawn(move || input.write_all(&copy));
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains(", ready after "), "{stderr}");
    writer.join().unwrap().unwrap();
    assert!(
        output.status.success() && output.stdout == sent,
        "{} bytes: {stderr}",
        output.stdout.len()
    );
}

fn bounce_buffers_are_used_in_a_swiotlb_guest_alone(flavour: &str, is_used: bool) {
    let output = boot(&[
        "--flavour",
        flavour,
        "--vcpus",
        "2",
        "--json",
        "--",
        "nproc",
    ]);
    let (stdout, stderr) = texts(&output);
    let report: serde_json::Value = serde_json::from_str(&stdout).expect(&stderr);
    // A small plain guest need not have any, nor say so.
    let used = report["exit"]["bounce_slots_max"].as_u64();
    assert_eq!(used.is_some_and(|used| used > 0), is_used, "{report:#}");
    assert_eq!(report["evidence"]["vcpus"], 2);
    assert_eq!(
        (&report["stdout"], &report["emulated"]),
        (&"2\n".into(), &true.into())
    );
    assert_eq!(report["evidence"]["attestation"], serde_json::json!([]));
}

fn a_guest_that_ends_or_hangs_is_one_error_with_the_last_of_its_console(
    arguments: &[&str],
    expected: &str,
) {
    let began = Instant::now();
    // With `--json` it says that it is ready in its report, of which there is none.
    let output = match arguments.contains(&"--json") {
        true => boot(arguments),
        false => boot_ready(arguments),
    };
    is_one_error(&output, expected);
    assert!(began.elapsed() < Duration::from_secs(300), "{arguments:?}");
}

/// Checks that a boot prints nothing but an error of a few lines.
fn is_one_error(output: &Output, expected: &str) {
    let (stdout, stderr) = texts(output);
    assert_eq!(
        (stdout.as_str(), output.status.code()),
        ("", Some(2)),
        "{stderr}"
    );
    assert!(stderr.contains(expected), "{stderr}");
    assert!(stderr.lines().count() < 24, "{stderr}");
}

#[test]
#[ignore = "needs QEMU and a kernel: cargo xtask interop"]
fn a_guest_that_is_not_ready_in_time_is_one_error() {
    let output = boot(&["--boot-limit", "1", "--", "true"]);
    is_one_error(&output, "the guest is not ready after 1 s; ");
}

/// A busy machine may keep QEMU from answering until the limit has passed.
#[test]
#[ignore = "needs QEMU and a kernel: cargo xtask interop"]
fn a_qemu_that_does_not_answer_is_a_guest_that_is_not_ready() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = std::env::var("PATH").unwrap();
    let script = format!(
        "#!/bin/sh\ncase $1 in --version) PATH='{path}' exec qemu-system-x86_64 --version;; esac\n\
         exec sleep 60\n"
    );
    let silent = folder.path().join("qemu-system-x86_64");
    std::fs::write(&silent, script).unwrap();
    std::fs::set_permissions(&silent, PermissionsExt::from_mode(0o755)).unwrap();
    // A process that another test starts meanwhile has the file open until it executes.
    let is_busy = |error: std::io::Error| error.kind() == std::io::ErrorKind::ExecutableFileBusy;
    while (Command::new(&silent).arg("--version").output()).is_err_and(is_busy) {
        thread::sleep(Duration::from_millis(1));
    }
    let mut command = command(&["--boot-limit", "1", "--", "true"]);
    command.env("PATH", format!("{}:{path}", folder.path().display()));
    let (_, stderr) = texts(&command.stdin(Stdio::null()).output().unwrap());
    let (expected, why) = ("the guest is not ready after 1 s; ", "monitor: no answer");
    assert!(
        stderr.contains(expected) && stderr.contains(why),
        "{stderr}"
    );
}

#[test]
#[ignore = "needs QEMU and a kernel: cargo xtask interop"]
fn a_memory_that_the_root_file_system_does_not_fit_into_is_refused_before_the_boot() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("large");
    let file = std::fs::File::create(&program).unwrap();
    file.set_len(100 << 20).unwrap();
    let refused = |memory: u64| {
        let memory = format!("{memory}Mi");
        let program = program.to_str().unwrap();
        let output = boot(&["--memory", &memory, "--program", program, "--", "true"]);
        let (stdout, stderr) = texts(&output);
        assert_eq!((stdout.as_str(), output.status.code()), ("", Some(2)));
        stderr
    };
    let said = refused(128);
    let words = said.split(|c: char| !c.is_ascii_digit());
    let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    let [.., 128, least, root, kernel] = numbers[..] else {
        panic!("{said}")
    };
    assert!(root > 100 && kernel > 10, "{said}");
    // Each is rounded on its own.
    let sum = 2 * root + kernel;
    assert!((sum..sum + 4).contains(&least), "{said}");
    let said = refused(least - 1);
    assert!(
        said.contains(&format!("expected {least} or more")),
        "{said}"
    );
    // Enough to begin, but not to go on, which kernels say in different words.
    let said = refused(least);
    let ends = ["the guest ran out of memory", "the guest's kernel panicked"];
    assert!(ends.iter().any(|end| said.contains(end)), "{said}");
}

/// A file that QEMU boots as a kernel: this code, in the real mode of the x86 boot protocol.
fn kernel_of(code: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 8192];
    image[0x1f1] = 4; // sectors of the set-up code
    image[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
    image[0x200..0x202].copy_from_slice(&[0xeb, 0x7e]); // a jump over the header
    image[0x202..0x206].copy_from_slice(b"HdrS");
    image[0x206..0x208].copy_from_slice(&[3, 2]); // version 2.03, with an initial RAM disk
    image[0x211] = 1; // loaded high
    image[0x22c..0x230].copy_from_slice(&[0xff, 0xff, 0xff, 0x37]); // its highest address
    image[0x280..0x280 + code.len()].copy_from_slice(code);
    image
}

#[test]
#[ignore = "needs QEMU and a kernel: cargo xtask interop"]
fn a_kernel_that_hangs_or_floods_its_console_at_boot_ends_at_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    // Lines of 80 letters to the serial port, for ever.
    let flood = [
        0xba, 0xf8, 0x03, 0xb9, 0x50, 0x00, 0xb0, b'x', 0xee, 0xe2, 0xfd, 0xb0, b'\n', 0xee, 0xeb,
        0xf3,
    ];
    let line = "x".repeat(80);
    let hangs = ["(QEMU: the machine is running)", "(QEMU: processor 0 at "];
    for (code, said) in [(&flood[..], &[&*line][..]), (&[0xeb, 0xfe], &hangs)] {
        std::fs::write(&image, kernel_of(code)).unwrap();
        let mut all = Vec::new();
        let has_said = |seconds: u32| {
            let began = Instant::now();
            let output = command(&["--boot-limit", &seconds.to_string(), "--kernel"])
                .arg(&image)
                .arg("--modules")
                .arg(folder.path())
                .args(["--", "true"])
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let (stdout, stderr) = texts(&output);
            assert_eq!((&*stdout, output.status.code()), ("", Some(2)), "{stderr}");
            let late = format!("the guest is not ready after {seconds} s; ");
            assert!(stderr.contains(&late), "{stderr}");
            assert!(stderr.lines().count() < 20, "{stderr}");
            assert!(began.elapsed() < Duration::from_secs(300));
            let expected = late + "the last of its console:";
            let has_said = stderr.contains(&expected) && said.iter().all(|it| stderr.contains(it));
            all.push(stderr);
            has_said
        };
        // A busy machine may not come so far within the shorter limits.
        assert!([3, 12, 60].into_iter().any(has_said), "{all:?}");
    }
}

#[test]
#[ignore = "needs QEMU and a kernel: cargo xtask interop"]
fn a_guest_ends_with_a_command_that_is_killed() {
    let mut tare = command(&["--", "sleep", "1000"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(300);
    let qemu = loop {
        let found = children(tare.id()).into_iter().find(|pid| is_qemu(*pid));
        if let Some(pid) = found {
            break pid;
        }
        assert!(Instant::now() < until, "no guest is started");
        thread::sleep(Duration::from_millis(10));
    };
    // SIGKILL: nothing of its own ends the guest.
    tare.kill().unwrap();
    tare.wait().unwrap();
    while is_qemu(qemu) {
        assert!(Instant::now() < until, "QEMU runs on");
        thread::sleep(Duration::from_millis(10));
    }
}

fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let lists = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let pids = lists.flat_map(|list| {
        let words: Vec<u32> = list
            .split_whitespace()
            .filter_map(|it| it.parse().ok())
            .collect();
        words
    });
    pids.collect()
}

fn is_qemu(pid: u32) -> bool {
    let line = std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline"));
    line.is_ok_and(|line| line.starts_with(b"qemu-system"))
}

/// Runs experiments, and returns what they print and the records of their trials.
fn run(arguments: &[&str]) -> (String, Vec<serde_json::Value>) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let run = Command::new(TARE)
        .args(["run", "--out"])
        .arg(&out)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (stdout, stderr) = texts(&run);
    assert!(run.status.success(), "{stdout}{stderr}");
    let records = std::fs::read_to_string(out.join("samples.jsonl")).expect(&stdout);
    let records = records.lines().map(serde_json::from_str);
    (stdout, records.collect::<Result<_, _>>().unwrap())
}

/// A quick run of the suite, which boots a guest for each trial: one run for all tests of it.
static QUICK: LazyLock<(String, Vec<serde_json::Value>)> = LazyLock::new(|| {
    // A busy machine may keep a server from running for the 20 s after which wrk gives a request
    // up.
    let is_held_up = |record: &serde_json::Value| {
        let reason = record["outcome"]["reason"].as_str();
        reason.is_some_and(|reason| reason.ends_with(" timeout_errors"))
    };
    let mut runs = (0..3).map(|_| run(&["tdx", "--quick", "--rounds", "1"]));
    let whole = runs.find(|(_, records)| !records.iter().any(is_held_up));
    whole.expect("one run of three in which wrk gives no request up")
});

/// The records of one experiment of [`QUICK`], and what the run printed.
fn quick(experiment: &str) -> (&'static str, Vec<serde_json::Value>) {
    let (stdout, records) = &*QUICK;
    let of = records.iter().filter(|it| it["experiment"] == experiment);
    (stdout, of.cloned().collect())
}

/// The counter of a trial that must have been done.
fn count(record: &serde_json::Value, name: &str) -> u64 {
    let outcome = &record["outcome"];
    assert_eq!(outcome["status"], "done", "{record}");
    let count = outcome["counters"][name].as_u64();
    count.unwrap_or_else(|| panic!("{name}: {record}"))
}

/// Bytes of a response, headers included.
fn response_bytes(record: &serde_json::Value) -> f64 {
    let bytes = &record["outcome"]["values"]["response_bytes"];
    bytes.as_f64().unwrap_or_else(|| panic!("{record}"))
}

fn text<'a>(record: &'a serde_json::Value, axis: &str) -> &'a str {
    let value = record["at"][axis].as_str();
    value.unwrap_or_else(|| panic!("{axis}: {record}"))
}

/// The places of the records, each once.
fn places(records: &[serde_json::Value]) -> Vec<&str> {
    let mut places: Vec<&str> = records.iter().map(|it| text(it, "place")).collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// Checks that what a trial says of its place is right.
fn assert_marked(record: &serde_json::Value) {
    assert_eq!(count(record, "unlike"), 0, "{record}");
    let place = text(record, "place");
    let is_guest = ["plain", "swiotlb"].contains(&place);
    assert_eq!(count(record, "emulated") == 1, is_guest, "{record}");
    assert_eq!(
        count(record, "bouncing") == 1,
        place == "swiotlb",
        "{record}"
    );
    assert_eq!(count(record, "unbounced"), 0, "{record}");
}

#[test]
#[ignore = "needs QEMU, nginx, root and a kernel: cargo xtask interop"]
fn nginx_serves_and_counts_the_same_on_the_host_and_in_guests() {
    let (stdout, records) = quick("tdx/served");
    for record in &records {
        // The document's 615, and nginx's headers.
        let bytes = response_bytes(record);
        assert!((750.0..950.0).contains(&bytes), "{record}");
        assert_eq!(bytes, response_bytes(&records[0]), "{record}");
        let operations = count(record, "operations");
        assert!(
            operations > 0 && count(record, "bytes") == operations * bytes as u64,
            "{record}"
        );
        let wrong = (count(record, "miscounted"), count(record, "unequal"));
        assert_eq!(wrong, (0, 0), "{record}");
        assert_marked(record);
    }
    assert_eq!(
        places(&records),
        ["bridge", "loopback", "plain", "swiotlb"],
        "{stdout}"
    );
}

#[test]
#[ignore = "needs QEMU, nginx, wrk, root and a kernel: cargo xtask interop"]
fn nginx_counts_in_guests_what_wrk_prints() {
    let (stdout, records) = quick("tdx/served-wrk");
    for record in &records {
        assert!(count(record, "operations") > 0, "{record}");
        assert_eq!(count(record, "miscounted"), 0, "{record}");
        // wrk rounds the bytes that it read.
        assert!((750.0..950.0).contains(&response_bytes(record)), "{record}");
        assert_marked(record);
    }
    assert_eq!(places(&records).len(), 4, "{stdout}");
}

#[test]
#[ignore = "needs QEMU, three servers, root and a kernel: cargo xtask interop"]
fn three_servers_serve_and_count_the_same_in_guests_with_tls_and_without() {
    let (stdout, records) = run(&["bifrost/guest-served", "--rounds", "1"]);
    let mut cells = Vec::new();
    for record in &records {
        let server = text(record, "server");
        let found = (
            count(record, "operations"),
            count(record, "miscounted"),
            count(record, "unequal"),
        );
        assert_eq!(found, (100, 0, 0), "{record}");
        // The value, and what the protocol has around it, which is the same everywhere.
        let bytes = response_bytes(record);
        assert!((32_768.0..33_100.0).contains(&bytes), "{record}");
        let other = records.iter().find(|other| text(other, "server") == server);
        assert_eq!(Some(bytes), other.map(response_bytes), "{record}");
        assert_marked(record);
        let tls = record["at"]["tls"].as_bool().unwrap();
        cells.push((text(record, "place"), server, tls));
    }
    cells.sort_unstable();
    cells.dedup();
    assert_eq!(cells.len(), 3 * 3 * 2, "{stdout}");
}

#[test]
#[ignore = "needs three servers, root and a kernel: cargo xtask interop"]
fn writes_and_misses_are_the_same_requests_for_every_place_and_counted_by_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mix.toml");
    let experiment = r#"
[[experiment]]
id = "mix/stores"
title = "Writes and misses"
source = "a test"
driver = "guest"
fixed = { timed = false, tls = true, connections = 3, size = "4 KiB", keys = 50, sets = 0.1, hits = 0.3, requests = 400, vcpus = 2 }
matrix = { server = ["memcached", "redis-server"], place = ["loopback", "bridge", "plain"] }
metrics = [{ name = "response_bytes", unit = "B", better = "lower", work = "bytes" }]
[[experiment.target]]
id = "counted"
text = "counted"
zero = { counter = "miscounted", out_of = "operations" }

[[experiment]]
id = "mix/processes"
title = "An nginx of several processes"
source = "a test"
driver = "guest"
fixed = { timed = false, tls = true, connections = 8, size = "4 KiB", requests = 400, vcpus = 3 }
matrix = { place = ["loopback", "bridge"] }
metrics = [{ name = "response_bytes", unit = "B", better = "lower", work = "bytes" }]
"#;
    std::fs::write(&file, experiment).unwrap();
    let (_, records) = run(&[file.to_str().unwrap(), "--rounds", "1"]);
    let is_store = |record: &serde_json::Value| record["experiment"] == "mix/stores";
    let (records, processes): (Vec<_>, Vec<_>) = records.into_iter().partition(is_store);
    assert!(records.len() >= 6 && processes.len() >= 2);
    for record in &processes {
        let wrong = (count(record, "miscounted"), count(record, "unlike"));
        assert_eq!(
            (count(record, "operations"), wrong),
            (400, (0, 0)),
            "{record}"
        );
    }
    for record in &records {
        let found = (
            count(record, "operations"),
            count(record, "miscounted"),
            count(record, "unequal"),
        );
        assert_eq!(found, (400, 0, 0), "{record}");
        // About 0.27 of the requests are hits of 4 KiB.
        let bytes = response_bytes(record);
        assert!((800.0..1500.0).contains(&bytes), "{record}");
        let same = |other: &&serde_json::Value| text(other, "server") == text(record, "server");
        let other = records.iter().find(same);
        assert_eq!(Some(bytes), other.map(response_bytes), "{record}");
    }
}

#[test]
#[ignore = "needs QEMU, nginx, root and a kernel: cargo xtask interop"]
fn a_guest_that_ends_under_load_is_named_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ends.toml");
    let experiment = r#"
[[experiment]]
id = "ends/nginx"
title = "A guest that ends"
source = "a test"
driver = "guest"
fixed = { timed = false, connections = 2, duration = "15 s" }
matrix = { place = ["plain"] }
metrics = [{ name = "response_bytes", unit = "B", better = "lower" }]
"#;
    std::fs::write(&file, experiment).unwrap();
    let out = folder.path().join("run");
    // A runner may have left the signal ignored.
    let run = Command::new("env")
        .args(["--default-signal=INT", TARE])
        .args(["run", "--rounds", "1", "--out"])
        .args([&out, &file])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The client's connections are there when the guest serves.
    let until = Instant::now() + Duration::from_secs(300);
    let qemu = loop {
        assert!(Instant::now() < until, "no guest is under load");
        thread::sleep(Duration::from_millis(50));
        let qemu = descendants(run.id()).into_iter().find(|pid| is_qemu(*pid));
        let loaded = qemu.filter(|pid| {
            let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp"));
            // To 10.88.0.2, port 8080, established.
            table.is_ok_and(|table| table.matches("0200580A:1F90 01").count() >= 2)
        });
        if let Some(pid) = loaded {
            break pid;
        }
    };
    let kill = |signal: &str, pid: u32| {
        let killed = Command::new("kill")
            .args([signal, &pid.to_string()])
            .status();
        assert!(killed.unwrap().success());
    };
    kill("-KILL", qemu);
    // The experiment has one cell, which is its own baseline: its second guest is not waited for.
    let until = Instant::now() + Duration::from_secs(300);
    let record = loop {
        let records = std::fs::read_to_string(out.join("samples.jsonl")).unwrap_or_default();
        if let Some((first, _)) = records.split_once('\n') {
            break first.to_owned();
        }
        assert!(Instant::now() < until, "no record of the first trial");
        thread::sleep(Duration::from_millis(50));
    };
    kill("-INT", run.id());
    let output = run.wait_with_output().unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    let reason = record["outcome"]["reason"].as_str().unwrap_or_default();
    assert!(
        reason.contains("server: QEMU") && reason.contains("signal: 9"),
        "{record} {}",
        texts(&output).0
    );
}

/// The processes that a process started, and those that they did.
fn descendants(pid: u32) -> Vec<u32> {
    let own = children(pid);
    let deeper: Vec<u32> = own.iter().flat_map(|child| descendants(*child)).collect();
    [own, deeper].concat()
}

#[test]
#[ignore = "needs QEMU, nginx, wrk, root and a kernel: cargo xtask interop"]
fn a_quick_run_of_the_suite_has_the_cost_table_and_honest_verdicts() {
    let (stdout, records) = &*QUICK;
    assert!(
        stdout.starts_with("What a guest costs nginx here, in requests per second\n"),
        "{stdout}"
    );
    let is_emulated = records.iter().any(|record| {
        let reason = record["outcome"]["reason"].as_str();
        reason.is_some_and(|reason| reason.contains("guests are emulated here"))
    });
    let row = stdout
        .lines()
        .find(|line| line.starts_with("  in a guest  "));
    let row: Vec<&str> = row.expect(stdout).split_whitespace().collect();
    if is_emulated {
        // Only the last column has a figure, and no claim is judged by a time.
        let [.., wrk, _, load, _, emulated] = row[..] else {
            panic!("{stdout}")
        };
        assert_eq!((wrk, load), ("–", "–"), "{stdout}");
        assert!(
            emulated.parse::<f64>().is_ok_and(|rate| rate > 0.0),
            "{stdout}"
        );
        assert!(stdout.contains("Not tested in a guest, in a guest with bounce buffers"));
        assert!(!stdout.contains("not reproduced:"), "{stdout}");
    }
    for record in records {
        assert_ne!(record["outcome"]["status"], "failed", "{record}");
    }
}

#[test]
fn doctor_says_what_guests_need_in_words_and_as_json() {
    let doctor = |arguments: &[&str]| {
        let mut command = Command::new(TARE);
        let output = command.args(["doctor", "rdrand/size"]).args(arguments);
        texts(&output.output().unwrap()).0
    };
    let report: serde_json::Value = serde_json::from_str(&doctor(&["--json"])).unwrap();
    let words = doctor(&[]);
    let checks = report["guests"]["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 10, "{report:#}");
    for check in checks {
        assert!(words.contains(check["name"].as_str().unwrap()), "{words}");
        let is_fine = check["state"] == "fine";
        assert_eq!(check["remedy"].is_null(), is_fine, "{check}");
        let remedy = check["remedy"].as_str().unwrap_or_default();
        assert!(words.contains(remedy), "{remedy}: {words}");
    }
    for trouble in [
        "ten times slower than the host's:",
        "swiotlb buffer is full",
    ] {
        assert!(words.contains(trouble), "{words}");
    }
    let troubles = report["guests"]["troubles"].as_array().unwrap();
    assert_eq!(troubles.len(), 2, "{report:#}");
}

#[test]
fn wrong_arguments_are_one_line_with_what_was_found_and_expected() {
    for (arguments, expected) in [
        (
            &["--flavour", "xen"][..],
            "found \"xen\", expected plain, swiotlb, sev-snp or tdx",
        ),
        (
            &["--memory", "5k"],
            "expected a whole number of MiB, such as 512Mi",
        ),
        (&["--vcpus", "0"], "0 is not in 1..=255"),
        (&["--kernel", "/boot/x"], "--modules"),
        (
            &[
                "--kernel",
                "/absent",
                "--modules",
                "/absent",
                "--program",
                "tare-absent",
            ],
            "tare-absent is missing",
        ),
    ] {
        let output = boot(arguments);
        let (stdout, stderr) = texts(&output);
        assert_eq!(
            (stdout.as_str(), output.status.code()),
            ("", Some(2)),
            "{stderr}"
        );
        assert!(stderr.contains(expected), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

/// The emulator has protection keys, which few of the machines have that tests run on.
#[test]
#[ignore = "needs QEMU and a kernel: cargo xtask interop"]
fn protection_keys_keep_a_guest_off_the_shared_region() {
    let tests = std::env::var("TARE_TEST_PROTECTION")
        .expect("the test program `protection` of tare-cvmnet: cargo xtask interop");
    let name = Path::new(&tests).file_name().unwrap().to_str().unwrap();
    let output = boot(&["--program", &tests, "--", name, "--nocapture"]);
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("2 passed; 0 failed"), "{stdout}");
    assert!(!stderr.contains("NOT TESTED"), "{stderr}");
}
