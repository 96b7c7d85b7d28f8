//! `tare gateway gentest` and `keygen` as users run them: the built program, its files and its exit
//! status.

use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tare_gateway::config::Config;
use tare_packet::pcap::read_frames;

fn run(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tare"));
    command.arg("gateway").args(arguments).stdin(Stdio::null());
    command.current_dir(folder).output().expect("tare runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn assert_exit(output: &Output, code: i32) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(
        output.status.code(),
        Some(code),
        "stdout: {out}\nstderr: {err}"
    );
}

/// A file of the Vita document.
fn seed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../gateway/tests/seed")
        .join(name)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn the_commands_of_the_document_write_its_configurations_and_captures() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for node in ["node1", "node2"] {
        let (conf, pcap) = (format!("{node}.conf"), format!("{node}-private-in.pcap"));
        fs::copy(
            seed(&format!("gentest-{conf}")),
            folder.join(format!("gentest-{conf}")),
        )
        .unwrap();
        let output = run(
            &["gentest", &format!("gentest-{conf}"), &conf, &pcap],
            folder,
        );
        assert_exit(&output, 0);
        assert_eq!(
            text(&output.stdout),
            format!("{conf}: 1 route\n{pcap}: 1000 frames of 60000 bytes in all, packet size 60, to 02:00:00:00:00:01\n")
        );
        // This machine has not the devices of the document's.
        let err = text(&output.stderr);
        assert!(err.contains("no mac") && err.lines().count() == 1, "{err}");
        let load = |path: &Path| Config::load(path).unwrap();
        let (config, warnings) = load(&folder.join(&conf));
        assert_eq!(config, load(&seed(&conf)).0);
        assert_eq!(warnings.len(), 1, "no word of its mode: {warnings:?}");
        let capture = BufReader::new(File::open(folder.join(&pcap)).unwrap());
        let frames = read_frames(capture, 1 << 20).unwrap();
        assert_eq!(frames.len(), 1000);
        assert!(frames
            .iter()
            .all(|frame| frame.len() == 60 && frame[..6] == [2, 0, 0, 0, 0, 1]));
    }
    assert_eq!(names(folder).len(), 6, "{:?}", names(folder));
}

#[test]
fn ten_thousand_routes_of_the_mix_are_written_and_reported_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let meta = fs::read_to_string(seed("gentest-node1.conf")).unwrap();
    let meta = meta
        .replace("nroutes 1;", "nroutes 10000;")
        .replace("packet-size 60;", "packet-size IMIX;")
        .replacen("pci", "mac 02:00:00:00:00:aa; pci", 1);
    fs::write(folder.join("meta.conf"), meta).unwrap();
    let output = run(
        &["gentest", "meta.conf", "a.conf", "a.pcap", "--json"],
        folder,
    );
    assert_exit(&output, 0);
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    let written: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (key, value) in [
        ("schema", Value::from(1)),
        ("conf", "a.conf".into()),
        ("pcap", "a.pcap".into()),
        ("routes", 10_000.into()),
        ("packet_size", "IMIX".into()),
        ("frames", 120_000.into()),
        ("bytes", (10_000 * 4294).into()),
        ("destination", "02:00:00:00:00:aa".into()),
    ] {
        assert_eq!(written[key], value, "{key}");
    }
    let (config, _) = Config::load(&folder.join("a.conf")).unwrap();
    assert_eq!(config.routes.len(), 10_000);
    let capture = BufReader::new(File::open(folder.join("a.pcap")).unwrap());
    let frames = read_frames(capture, 1 << 30).unwrap();
    assert_eq!(frames.len(), 120_000);
    assert!(frames
        .iter()
        .all(|frame| frame[..6] == [2, 0, 0, 0, 0, 0xaa]));
}

#[test]
fn frames_go_to_the_device_where_it_is_on_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let meta = fs::read_to_string(seed("gentest-node1.conf")).unwrap();
    fs::write(
        folder.join("meta.conf"),
        meta.replace("pci 23:00.0", "device lo"),
    )
    .unwrap();
    let output = run(
        &["gentest", "meta.conf", "a.conf", "a.pcap", "--json"],
        folder,
    );
    assert_exit(&output, 0);
    let written: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(written["destination"], "00:00:00:00:00:00");
}

#[test]
fn a_failure_is_one_line_and_leaves_both_files_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::copy(seed("gentest-node1.conf"), folder.join("meta.conf")).unwrap();
    fs::write(folder.join("bad.conf"), "nroutes 0;").unwrap();
    fs::write(folder.join("a.conf"), "old").unwrap();
    fs::write(folder.join("a.pcap"), "old").unwrap();
    fs::create_dir(folder.join("folder")).unwrap();
    let before = names(folder);
    let cases: [(&[&str], &str); 8] = [
        (
            &["none.conf", "a.conf", "a.pcap"],
            "tare: cannot read none.conf: No such file or directory (os error 2)",
        ),
        (
            &["meta.conf", "meta.conf", "a.pcap"],
            "tare: meta.conf: found the same file twice, expected three different ones",
        ),
        (
            &["meta.conf", "a.conf", "./a.conf"],
            "tare: ./a.conf: found the same file twice, expected three different ones",
        ),
        (
            &["meta.conf", "folder", "a.pcap"],
            "tare: cannot write folder: it is a directory",
        ),
        (
            &["meta.conf", "a.conf", "none/a.pcap"],
            "tare: cannot write none/a.pcap",
        ),
        (
            &["meta.conf", "a.conf", "/dev/full"],
            "tare: cannot write /dev/full: No space left on device (os error 28)",
        ),
        (
            &["meta.conf", "/dev/full", "a.pcap"],
            "tare: cannot write /dev/full: No space left on device (os error 28)",
        ),
        (
            &["meta.conf", "a.conf"],
            "tare: the following required arguments were not provided: <PCAP> (see --help)",
        ),
    ];
    for (arguments, said) in cases {
        let output = run(&[&["gentest"], arguments].concat(), folder);
        assert_exit(&output, 2);
        let err = text(&output.stderr);
        assert!(err.starts_with(said) && err.lines().count() == 1, "{err}");
        assert!(output.stdout.is_empty());
    }
    let output = run(&["gentest", "bad.conf", "a.conf", "a.pcap"], folder);
    assert_exit(&output, 2);
    assert_eq!(
        text(&output.stderr),
        "tare: bad.conf:1: found no private-interface, expected a block private-interface { … }\n\
         bad.conf:1: found no public-interface, expected a block public-interface { … }\n\
         bad.conf:1: leaf \"route-prefix\": found nothing, expected two bytes of IPv4 such as 172.17, or one to three groups of IPv6 such as ac11 or 2001:db8:1\n\
         bad.conf:1: leaf \"nroutes\": found \"0\", expected a number from 1 to 10000\n"
    );
    assert_eq!(names(folder), before);
    for file in ["a.conf", "a.pcap"] {
        assert_eq!(fs::read_to_string(folder.join(file)).unwrap(), "old");
    }
}

#[test]
fn only_its_owner_can_read_the_configuration_and_the_file_behind_a_link_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("real.conf"), "old").unwrap();
    std::os::unix::fs::symlink("real.conf", folder.join("a.conf")).unwrap();
    let meta = seed("gentest-node1.conf");
    let meta = meta.to_str().unwrap();
    assert_exit(&run(&["gentest", meta, "a.conf", "a.pcap"], folder), 0);
    assert!(fs::symlink_metadata(folder.join("a.conf"))
        .unwrap()
        .is_symlink());
    let mode = fs::metadata(folder.join("real.conf"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    // To a pipe, and to /dev/null.
    let output = run(&["gentest", meta, "/dev/stdout", "/dev/null"], folder);
    assert_exit(&output, 0);
    assert!(text(&output.stdout).starts_with("private-interface {\n  pci 23:00.0;\n"));
}

#[test]
fn a_new_key_is_64_hexadecimal_digits_and_never_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut keys = Vec::new();
    for _ in 0..2 {
        let output = run(&["keygen"], folder.path());
        assert_exit(&output, 0);
        keys.push(text(&output.stdout));
        let output = run(&["keygen", "--json"], folder.path());
        assert_exit(&output, 0);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        keys.push(format!("{}\n", json["preshared_key"].as_str().unwrap()));
    }
    for key in &keys {
        let digits = key.trim_end().bytes().filter(u8::is_ascii_hexdigit).count();
        assert_eq!((digits, key.len()), (64, 65), "{key}");
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 4);
}

#[test]
fn help_has_examples() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["gentest", "keygen"] {
        let output = run(&[command, "--help"], folder.path());
        assert_exit(&output, 0);
        assert!(text(&output.stdout).contains(&format!("tare gateway {command}")));
    }
}
