//! `tare guest boot`, with guests under QEMU, emulated. They need QEMU, busybox and a kernel with
//! its modules, which `cargo xtask interop` gets where there is none.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

#[path = "guest/served.rs"]
mod served;

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

#[test]
fn doctor_says_what_guests_need_in_words_and_as_json() {
    let doctor = |arguments: &[&str]| {
        let mut command = Command::new(TARE);
        let output = command.arg("doctor").args(arguments);
        texts(&output.output().unwrap()).0
    };
    let report: serde_json::Value = serde_json::from_str(&doctor(&["--json"])).unwrap();
    let words = doctor(&[]);
    let checks = report["guests"]["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 10, "{report:#}");
    for check in checks {
        let name = check["name"].as_str().unwrap();
        assert!(words.contains(name), "{words}");
        let is_fine = check["state"] == "fine";
        assert_eq!(check["remedy"].is_null(), is_fine, "{check}");
        let remedy = check["remedy"].as_str().unwrap_or_default();
        // Each process tries KVM, and a busy machine may boot a guest in time in one of them only.
        assert!(name == "kvm" || words.contains(remedy), "{remedy}: {words}");
    }
    for trouble in [
        "ten times slower than the host's:",
        "swiotlb buffer is full",
    ] {
        assert!(words.contains(trouble), "{words}");
    }
    let troubles = report["guests"]["troubles"].as_array().unwrap();
    assert_eq!(troubles.len(), 2, "{report:#}");
    // What a named experiment needs is not lost among all that.
    let named = doctor(&["rdrand/size"]);
    let titles: Vec<&str> = named.lines().filter(|it| !it.starts_with(' ')).collect();
    assert_eq!(titles, ["Machine", "", "Experiments"], "{named}");
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
