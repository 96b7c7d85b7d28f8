//! `tare rng gen`: its output, and the files that an interruption leaves.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::XattrFlags;

use super::{assert_exit, by_shell, has, run, tare, text, wait_until};

const METHODS: [&str; 10] = [
    "get_bytes",
    "uint8_array",
    "uint16_array",
    "uint32_array",
    "uint64_array",
    "reseed_delay",
    "reseed_skip",
    "aes_ctr",
    "rdseed",
    "seed",
];

#[test]
fn every_method_writes_exactly_the_bytes_asked_for() {
    for method in METHODS.into_iter().filter(|method| has(method)) {
        for (size, bytes) in [("0", 0), ("1", 1), ("3705", 3705), ("4Ki", 4096)] {
            for threads in ["1", "3"] {
                let output = run(&["gen", "-n", size, "-m", method, "-t", threads]);
                assert_exit(&output, 0);
                assert_eq!(
                    output.stdout.len(),
                    bytes,
                    "{method}, {size}, {threads} threads"
                );
            }
        }
    }
}

#[test]
fn two_hundred_threads_give_ten_million_bytes() {
    let output = run(&["gen", "-n", "10M", "-t", "200"]);
    assert_exit(&output, 0);
    assert_eq!(output.stdout.len(), 10_000_000);
    // Chunks of different threads differ, and none is left zero.
    let mut words: Vec<&[u8]> = output.stdout.chunks_exact(16).collect();
    words.sort_unstable();
    assert!(words.windows(2).all(|pair| pair[0] != pair[1]));
}

/// RDSEED is so slow on some processors that eight threads often get no number.
#[test]
fn threads_that_share_rdseed_wait_for_it() {
    if !has("rdseed") {
        return;
    }
    let arguments = ["gen", "-m", "rdseed", "-n", "100k", "-t", "8"];
    for _ in 0..3 {
        let output = run(&arguments);
        assert_exit(&output, 0);
        assert_eq!(output.stdout.len(), 100_000);
    }
    let impatient = run(&[&arguments[..], &["--retry-limit", "1"]].concat());
    if impatient.status.success() {
        eprintln!("NOT TESTED: an underflow: RDSEED delivered 12,500 numbers at the first attempt");
    } else {
        assert_exit(&impatient, 2);
        let error = text(&impatient.stderr);
        assert!(
            error.contains("RDSEED gave no number in 1 attempts;")
                && error.contains("--retry-time"),
            "{error}"
        );
        let count = format!("incomplete after {} bytes\n", impatient.stdout.len());
        assert!(error.ends_with(&count), "{error}");
    }
    let time = ["--retry-limit", "1", "--retry-time", "60"];
    assert_exit(&run(&[&arguments[..], &time].concat()), 0);
}

#[test]
fn without_rdseed_its_method_is_refused_and_seeds_come_from_rdrand() {
    if !has("rdseed") {
        return;
    }
    let without = |method: &str| {
        let arguments = ["gen", "-n", "64", "-m", method];
        let output = tare(&arguments).env("TARE_RDSEED", "off").output();
        output.unwrap()
    };
    assert_exit(&without("rdseed"), 2);
    let seeds = without("seed");
    assert_exit(&seeds, 0);
    assert_eq!(seeds.stdout.len(), 64);
}

#[test]
fn a_file_is_complete_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.bin");
    let name = path.to_str().unwrap();
    fs::write(&path, "old").unwrap();
    assert_exit(&run(&["gen", "-n", "1000001", "-t", "2", "-o", name]), 0);
    assert_eq!(fs::metadata(&path).unwrap().len(), 1_000_001);
    assert_eq!(names(folder.path()), ["random.bin"]);
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// A program that does not outlive its test, however that ends.
struct Slow(Option<Child>);

impl Slow {
    fn kill(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a very long and slow output into `path`, and waits for its first bytes.
fn start_slow(path: &Path) -> Slow {
    // A test that was started in the background or under nohup has inherited signals that are
    // ignored.
    let child = Command::new("env")
        .arg("--default-signal=HUP,INT,TERM")
        .arg(env!("CARGO_BIN_EXE_tare"))
        .args(["rng", "gen", "-n", "1T", "-m", "reseed_skip", "-o"])
        .arg(path)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let slow = Slow(Some(child));
    let part = path.with_extension("bin.part");
    wait_until("the part file grows", || {
        fs::metadata(&part).is_ok_and(|file| file.len() > 0)
    });
    slow
}

fn signal(child: &Child, signal: &str) {
    let kill = Command::new("kill")
        .args(["-s", signal, &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
}

/// The standard error of the child until it ends with the status of an interrupt.
#[track_caller]
fn interrupted(child: Child, how: &str) -> String {
    let output = child.wait_with_output().unwrap();
    let status = output.status;
    assert_eq!(
        status.code(),
        Some(130),
        "{how}: {status}, signal {:?}",
        status.signal()
    );
    text(&output.stderr)
}

#[test]
fn an_interrupt_leaves_the_old_file_and_no_new_one() {
    for name in ["INT", "TERM", "HUP"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("random.bin");
        fs::write(&path, "old").unwrap();
        let mut slow = start_slow(&path);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        let child = slow.0.take().unwrap();
        signal(&child, name);
        let error = interrupted(child, name);
        assert!(error.contains("interrupted; incomplete after"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["random.bin"]);
    }
}

#[test]
fn under_nohup_a_hang_up_changes_nothing() {
    // A busy machine may let it end before.
    let mut sizes = [300_000, 3_000_000, 30_000_000].into_iter();
    assert!(sizes.any(outlives_a_hang_up));
}

/// Writes so many bytes in spite of a hang-up; returns false if they were written before it.
fn outlives_a_hang_up(bytes: u64) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.bin");
    let script =
        format!("trap '' HUP; exec \"$TARE\" rng gen -n {bytes} -m reseed_skip -o \"$FILE\"");
    let mut child = by_shell(&script).env("FILE", &path).spawn().unwrap();
    let part = folder.path().join("random.bin.part");
    wait_until("the part file grows", || {
        path.exists() || fs::metadata(&part).is_ok_and(|file| file.len() > 0)
    });
    let is_incomplete = !path.exists();
    signal(&child, "HUP");
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::metadata(&path).unwrap().len(), bytes);
    is_incomplete
}

#[test]
fn a_reader_that_does_not_read_does_not_delay_an_interrupt() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let mut to_standard = tare(&["gen"]);
    to_standard.stdout(Stdio::piped());
    let mut without_reader = tare(&["gen", "-n", "1G", "-o"]);
    without_reader.arg(&pipe).stdout(Stdio::null());
    for (how, mut command) in [("blocked", to_standard), ("no reader", without_reader)] {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let unread = child.stdout.take();
        wait_until("it waits in the kernel", || {
            let waits = fs::read_to_string(format!("/proc/{}/wchan", child.id()));
            let waits = waits.unwrap_or_default();
            let state = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            // A kernel that hides where a process waits prints "0".
            let at_pipe = ["pipe", "wait_for_partner"]
                .iter()
                .any(|at| waits.contains(at));
            state.contains(") S ") && (at_pipe || waits == "0")
        });
        // The signal handler is in place by now, even if the kernel hides where the process waits.
        std::thread::sleep(Duration::from_millis(200));
        let from = Instant::now();
        signal(&child, "INT");
        let error = interrupted(child, how);
        assert!(
            error.contains("interrupted; incomplete after"),
            "{how}: {error}"
        );
        assert!(from.elapsed() < Duration::from_secs(20), "{how}");
        drop(unread);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn only_its_owner_can_read_an_incomplete_file_and_a_complete_one_has_its_old_mode() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.bin");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let mut slow = start_slow(&path);
    assert_eq!(mode(&folder.path().join("random.bin.part")), 0o600);
    slow.kill();
    for (umask, mode_before) in [
        ("022", 0o640),
        ("000", 0o600),
        ("077", 0o666),
        ("022", 0o4755),
    ] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode_before)).unwrap();
        // A killed run has left its part, which is neither an obstacle nor a source of permissions.
        let part = folder.path().join("random.bin.part");
        fs::write(&part, "left over").unwrap();
        fs::set_permissions(&part, fs::Permissions::from_mode(0o666)).unwrap();
        let script = format!("umask {umask}; exec \"$TARE\" rng gen -n 9 -o \"$FILE\"");
        let output = by_shell(&script).env("FILE", &path).output().unwrap();
        assert_exit(&output, 0);
        assert_eq!(fs::metadata(&path).unwrap().len(), 9);
        // A set-user-ID bit is lost, as it is when a file is written.
        assert_eq!(mode(&path), mode_before & 0o777, "umask {umask}");
        assert_eq!(names(folder.path()), ["random.bin"]);
    }
    for (umask, mode_after) in [("022", 0o644), ("077", 0o600)] {
        fs::remove_file(&path).unwrap();
        let script = format!("umask {umask}; exec \"$TARE\" rng gen -n 9 -o \"$FILE\"");
        let output = by_shell(&script).env("FILE", &path).output().unwrap();
        assert_exit(&output, 0);
        assert_eq!(mode(&path), mode_after, "umask {umask}");
    }
}

#[test]
fn a_file_keeps_its_owner_or_is_not_replaced() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED: files of other users: only root can make them");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.bin");
    fs::write(&path, "old").unwrap();
    std::os::unix::fs::chown(&path, Some(12_345), Some(54_321)).unwrap();
    let name = path.to_str().unwrap();
    assert_exit(&run(&["gen", "-n", "9", "-o", name]), 0);
    let now = fs::metadata(&path).unwrap();
    assert_eq!((now.len(), now.uid(), now.gid()), (9, 12_345, 54_321));

    // Another user may write to it, but could not give a new file to its owner.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for (mode, sentence) in [
        (0o666, "it belongs to user 12345"),
        (0o644, "Permission denied"),
    ] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let mut other = tare(&["gen", "-n", "7", "-o", name]);
        match other.uid(65_534).gid(65_534).output() {
            Ok(output) => {
                assert_exit(&output, 2);
                let error = text(&output.stderr);
                assert!(error.contains(sentence), "{error}");
                assert_eq!(error.lines().count(), 1, "{error}");
            }
            Err(error) => eprintln!("NOT TESTED: another user cannot start the program: {error}"),
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), 9);
        assert_eq!(names(folder.path()), ["random.bin"]);
    }
}

/// The attribute of an access control list that grants user 12345 what `named` says beside mode
/// `0640`: a version, then tag, permissions and identity of each entry (`acl(5)`).
fn access_list(named: u16) -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    let entries = [
        (0x01, 6, u32::MAX), // owner
        (0x02, named, 12_345),
        (0x04, 0, u32::MAX), // group
        (0x10, 4, u32::MAX), // mask
        (0x20, 0, u32::MAX), // others
    ];
    for (tag, permissions, identity) in entries {
        list.extend(u16::to_le_bytes(tag));
        list.extend(u16::to_le_bytes(permissions));
        list.extend(identity.to_le_bytes());
    }
    list
}

#[test]
fn a_file_keeps_its_access_control_list_and_takes_none_from_its_folder() {
    const OF_FILE: &str = "system.posix_acl_access";
    const OF_FOLDER: &str = "system.posix_acl_default";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.bin");
    fs::write(&path, "old").unwrap();
    let list = access_list(4);
    if let Err(error) = rustix::fs::setxattr(&path, OF_FILE, &list, XattrFlags::empty()) {
        eprintln!(
            "NOT TESTED: access control lists: the file system of the temporary folder: {error}"
        );
        return;
    }
    let name = path.to_str().unwrap();
    let list_of = |path: &Path| {
        let mut found = [0; 200];
        let length = rustix::fs::getxattr(path, OF_FILE, &mut found[..]);
        length.map(|length| found[..length].to_vec())
    };
    assert_exit(&run(&["gen", "-n", "9", "-o", name]), 0);
    assert_eq!(fs::metadata(&path).unwrap().len(), 9);
    assert_eq!(list_of(&path), Ok(list.clone()));

    // A group that may read and a folder that lets one more user read: still only the group may.
    rustix::fs::removexattr(&path, OF_FILE).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    rustix::fs::setxattr(folder.path(), OF_FOLDER, &list, XattrFlags::empty()).unwrap();
    assert_exit(&run(&["gen", "-n", "7", "-o", name]), 0);
    assert_eq!(fs::metadata(&path).unwrap().len(), 7);
    assert_eq!(mode(&path), 0o640);
    assert!(list_of(&path).is_err());
}

#[test]
fn a_link_or_file_with_the_name_of_the_part_is_not_followed_and_not_shared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.bin");
    let name = path.to_str().unwrap();
    let part = folder.path().join("random.bin.part");
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, "kept").unwrap();
    std::os::unix::fs::symlink(&elsewhere, &part).unwrap();
    let output = run(&["gen", "-n", "9", "-o", name]);
    assert_exit(&output, 2);
    assert!(text(&output.stderr).contains("random.bin.part: it exists and is no regular file"));
    assert_eq!(fs::read(&elsewhere).unwrap(), b"kept");
    fs::remove_file(&part).unwrap();

    let mut first = start_slow(&path);
    let second = run(&["gen", "-n", "9", "-o", name]);
    assert_exit(&second, 2);
    assert!(text(&second.stderr).contains("another process is writing it"));
    assert!(part.exists(), "the second took the first one's file away");
    first.kill();
}

#[test]
fn a_link_to_nothing_stays_and_the_file_it_names_is_made() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("links")).unwrap();
    let link = folder.path().join("links/link");
    std::os::unix::fs::symlink("../behind", folder.path().join("links/hop")).unwrap();
    let whole = folder.path().join("whole");
    for target in ["../relative", "hop", whole.to_str().unwrap()] {
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(target, &link).unwrap();
        let output = run(&["gen", "-n", "9", "-o", link.to_str().unwrap()]);
        assert_exit(&output, 0);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&link).unwrap().len(), 9);
    }
    for name in ["relative", "behind", "whole"] {
        let made = fs::symlink_metadata(folder.path().join(name)).unwrap();
        assert!(made.is_file(), "{name}");
    }
    let mut left = names(&folder.path().join("links"));
    left.sort();
    assert_eq!(left, ["hop", "link"]);
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("link", &link).unwrap();
    let output = run(&["gen", "-n", "9", "-o", link.to_str().unwrap()]);
    assert_exit(&output, 2);
}

#[test]
fn a_closed_standard_output_is_an_error() {
    for arguments in [
        "rng gen -n 9",
        "rng gen -n 9 -o -",
        "rng bench -d 0.01 -r 1",
        "rng test -m rand_chacha --external none",
        "list",
        "--help",
        "--version",
        "run --help",
    ] {
        let closed = by_shell(&format!("exec \"$TARE\" {arguments} >&-")).output();
        let closed = closed.unwrap();
        assert_exit(&closed, 2);
        assert_eq!(
            text(&closed.stderr),
            "tare: standard output is closed\n",
            "{arguments}"
        );
        // Programs that start others often give them a /dev/null that can be read as well.
        let to_null = by_shell(&format!("exec \"$TARE\" {arguments} 1<>/dev/null"));
        assert_exit(&{ to_null }.output().unwrap(), 0);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.bin");
    let to_file = by_shell("exec \"$TARE\" rng gen -n 9 -o \"$FILE\" >&-")
        .env("FILE", &path)
        .output();
    assert_exit(&to_file.unwrap(), 0);
    assert_eq!(fs::metadata(&path).unwrap().len(), 9);
}

#[test]
fn an_error_counts_the_bytes_of_the_whole_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.bin");
    // A limit that lies within a chunk; its unit is 512 or 1024 bytes.
    let script = "trap '' XFSZ; ulimit -f 700; exec \"$TARE\" rng gen -n 10M -t 3 > \"$FILE\"";
    let output = by_shell(script).env("FILE", &path).output().unwrap();
    assert_exit(&output, 2);
    let written = fs::metadata(&path).unwrap().len();
    assert!(written > 300_000, "{written}");
    let error = text(&output.stderr);
    assert!(
        error.contains(&format!("incomplete after {written} bytes")),
        "{written}: {error}"
    );
}

#[test]
fn a_full_disk_is_an_error() {
    let to_name = run(&["gen", "-n", "100k", "-o", "/dev/full"]);
    assert_exit(&to_name, 2);
    assert!(
        text(&to_name.stderr).contains("/dev/full: No space left"),
        "{}",
        text(&to_name.stderr)
    );

    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let to_standard = tare(&["gen", "-n", "100k"]).stdout(full).output().unwrap();
    assert_exit(&to_standard, 2);
    let error = text(&to_standard.stderr);
    assert!(error.contains("standard output: No space left"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_reader_that_closes_the_pipe_ends_it_quietly() {
    for count in [&["-n", "1G"][..], &[]] {
        let mut child = tare(&[&["gen"], count].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 100];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_exit(&output, 0);
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn a_named_pipe_whose_reader_leaves_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(Command::new("mkfifo")
        .arg(&path)
        .status()
        .unwrap()
        .success());
    let child = tare(&["gen", "-n", "10M", "-o"])
        .arg(&path)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 100];
    fs::File::open(&path)
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_exit(&output, 2);
    assert!(
        text(&output.stderr).contains("incomplete after"),
        "{}",
        text(&output.stderr)
    );
}
