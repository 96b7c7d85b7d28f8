//! `tare cvm serve` at its edges, with root: large MTUs, devices that do not fit, addresses that
//! cannot be reached, and the ways in which host and guest end. Each test has a network namespace
//! that goes with it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

#[path = "../cvm_common/mod.rs"]
mod cvm_common;
mod files;
mod messages;

use cvm_common::is_testable;

const TARE: &str = env!("CARGO_BIN_EXE_tare");

/// The functions that scripts have. `serve ARGUMENTS` starts a host and waits until its guest has
/// told its counters, `stop` ends it and prints its exit status; `await TEXT` waits until the
/// status has a text, which stays in `status.json`, `soon COMMAND` until a command succeeds.
const PRELUDE: &str = r#"ip link set lo up
soon() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        if [ $tries -gt 300 ]; then echo "in vain: $*"; cat host.log; exit 90; fi
        sleep 0.1
    done
}
status_has() {
    kill -0 $host || { cat host.log; exit 91; }
    "$TARE" cvm status --json "$PWD/status.sock" 2> /dev/null > status.json
    grep -q "$1" status.json
}
await() { soon status_has "$1"; }
serve() {
    "$TARE" cvm serve "$@" --status-socket "$PWD/status.sock" > host.log 2>&1 &
    host=$!
    trap 'kill -KILL $host 2> /dev/null' EXIT
    await '"guest":{'
}
stop() { kill -TERM $host; wait $host; echo "host $?"; }
children() { cat /proc/$1/task/*/children 2> /dev/null; }
gone() { ! kill -0 $1 2> /dev/null || grep -q '^State:.Z' /proc/$1/status 2> /dev/null; }
"#;

/// Runs a script in the namespaces that `unshare` is told, of its own, and returns what it printed.
fn run(folder: &Path, namespaces: &str, script: &str) -> String {
    let output = Command::new("unshare")
        .args([namespaces, "sh", "-c", &format!("{PRELUDE}{script}")])
        .env("TARE", TARE)
        .env("TMPDIR", folder)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let log = fs::read_to_string(folder.join("host.log")).unwrap_or_default();
    assert!(
        output.status.success(),
        "{:?}\n{}\n{}\n{log}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn log(folder: &Path) -> String {
    fs::read_to_string(folder.join("host.log")).unwrap()
}

fn status(folder: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.join("status.json")).unwrap()).unwrap()
}

/// A folder with a folder to serve from.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("files");
    fs::create_dir(&files).unwrap();
    fs::write(files.join("page"), "from the guest\n").unwrap();
    let bytes: Vec<u8> = (0..3_000_001_u32).map(|n| (n ^ n >> 7) as u8).collect();
    fs::write(files.join("large"), bytes).unwrap();
    folder
}

/// Runs `tare cvm serve` where it is refused: with exit code 2.
fn refused(arguments: &str) -> String {
    let output = Command::new(TARE)
        .args(["cvm", "serve"])
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments}: {error}");
    error
}

#[test]
fn frames_of_a_large_mtu_pass_both_ways_in_every_variant() {
    if !is_testable(&["openssl", "curl"]) {
        return;
    }
    for variant in ["baseline", "cvm", "zc", "prpr", "bifrost", "baseline-gro"] {
        let folder = folder();
        let printed = run(
            folder.path(),
            "-n",
            &format!(
                r#"ip tuntap add dev jumbo mode tap vnet_hdr
ip link set jumbo mtu 9000 up
ip addr add 10.77.0.1/24 dev jumbo
serve sink --mtu 9000 --variant {variant} --tap jumbo --host-address none
timeout 60 openssl s_client -quiet -no_ign_eof -connect 10.77.0.2:4433 < files/large 2> /dev/null
await '"closed":1,'
stop
cp status.json sink.json
serve http --dir files --mtu 9000 --variant {variant} --tap jumbo --host-address none
curl -sk -m 60 https://10.77.0.2/large | cmp - files/large && echo same
stop"#
            ),
        );
        assert_eq!(printed, "host 0\nsame\nhost 0\n", "{variant}");
        let status = fs::read_to_string(folder.path().join("sink.json")).unwrap();
        let status: Value = serde_json::from_str(&status).unwrap();
        assert_eq!(status["guest"]["bytes_in"], 3_000_001, "{status}");
        assert_eq!(status["host"]["too_long"], 0, "{status}");
        let log = log(folder.path());
        assert!(!log.contains("event=mtu"), "{variant}: {log}");
    }
}

#[test]
fn a_device_that_is_made_has_the_mtu_and_another_one_of_an_old_device_is_logged() {
    if !is_testable(&[]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-n",
        r#"for mtu in 1280 9000; do
    serve sink --mtu $mtu
    ip -o link show tare0 | grep -o 'mtu [0-9]*'
    ip -o link show tare0 | grep -o 'qlen [0-9]*'
    stop
done
cat host.log > first.log
ip tuntap add dev old mode tap vnet_hdr
serve sink --mtu 9000 --tap old
ip -o link show old | grep -o 'mtu [0-9]*'
stop"#,
    );
    let expected = "mtu 1280\nqlen 4096\nhost 0\nmtu 9000\nqlen 4096\nhost 0\nmtu 1500\nhost 0\n";
    assert_eq!(printed, expected);
    let first = fs::read_to_string(folder.path().join("first.log")).unwrap();
    assert!(!first.contains("level=warn"), "{first}");
    let log = log(folder.path());
    let expected = "level=warn event=mtu device=old found=1500 expected=9000";
    assert!(log.contains(expected), "{log}");
}

#[test]
fn what_is_no_tls_is_answered_with_an_alert_and_ends_its_connection_alone() {
    if !is_testable(&["curl", "od"]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-n",
        r#"serve http --dir files
# What curl takes for an answer of HTTP 0.9 is all that has come.
curl -s -m 20 --http0.9 http://10.77.0.2:443/ > answer
echo "curl $?"
od -An -tx1 answer
curl -sk -m 20 https://10.77.0.2/page
await '"tls_failures":1,'
stop"#,
    );
    // A fatal alert: unexpected_message.
    let expected = "curl 0\n 15 03 03 00 02 02 0a\nfrom the guest\nhost 0\n";
    assert_eq!(printed, expected);
}

#[test]
fn a_trial_that_is_killed_takes_its_servers_with_it() {
    if !is_testable(&["wrk", "nginx", "setpriv"]) {
        return;
    }
    // The processes that a trial starts: a host with its guest and wrk, or nginx and wrk.
    for (server, count) in [("bifrost", 3), ("nginx", 2)] {
        let folder = folder();
        let printed = run(
            folder.path(),
            "-n",
            &format!(
                r#"ip link del near 2> /dev/null
"$TARE" trial cvmnet-wrk '{{"server":"{server}","duration":"60 s","connections":2}}' \
    > host.log 2>&1 &
trial=$!
find_all() {{
    kill -0 $trial || {{ cat host.log; exit 92; }}
    below=$(children $trial)
    for child in $below; do below="$below $(children $child)"; done
    load=$(children $trial | cut -d' ' -f2)
    [ $(echo $below | wc -w) -ge {count} ] && [ "$(cat /proc/$load/comm)" = wrk ]
}}
soon find_all
kill -KILL $trial
for child in $below; do soon gone $child; done
echo gone"#
            ),
        );
        assert_eq!(printed, "gone\n", "{server}");
    }
}

#[test]
fn only_guests_that_answer_are_found_and_several_are_named() {
    if !is_testable(&["mount"]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-nm",
        r#"mount -t tmpfs tmpfs /run
"$TARE" cvm status; echo "status $?"
begin() {
    "$TARE" cvm serve sink --tap $1 --address $2 > $1.log 2>&1 &
    host=$!
    all="$all $host"
    trap 'kill -KILL $all 2> /dev/null' EXIT
    soon grep -q event=serving $1.log
}
begin tare1 10.1.0.2/24
kill -KILL $host
soon gone $host
ls /run/tare
begin tare2 10.2.0.2/24
"$TARE" cvm status | grep -o '^10.2.0.2'
begin tare3 10.3.0.2/24
"$TARE" cvm status; echo "status $?"
"$TARE" cvm status tare3 | grep -o '^10.3.0.2'
kill -TERM $host
wait $host
"$TARE" cvm status | grep -o '^10.2.0.2'
ls /run/tare"#,
    );
    let expected = "status 2\ncvm-tare1.sock\n10.2.0.2\nstatus 2\n10.3.0.2\n10.2.0.2\n\
                    cvm-tare1.sock\ncvm-tare2.sock\n";
    assert_eq!(printed, expected);
}

#[test]
fn errors_of_the_status_are_in_the_words_of_guests() {
    if !is_testable(&["mount"]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-nm",
        r#"mount -t tmpfs tmpfs /run
"$TARE" cvm status 2>&1
for n in 1 2; do
    "$TARE" cvm serve sink --tap tare$n --address 10.$n.0.2/24 > tare$n.log 2>&1 &
    all="$all $!"
    trap 'kill -KILL $all 2> /dev/null' EXIT
    soon grep -q event=serving tare$n.log
done
"$TARE" cvm status 2>&1
kill -TERM $all
wait"#,
    );
    assert!(printed.contains("no guest answers"), "{printed}");
    assert!(printed.contains("TAP device"), "{printed}");
    let expected = "several guests run here: tare1, tare2; name the TAP device of one";
    assert!(printed.contains(expected), "{printed}");
    assert!(!printed.contains("configuration"), "{printed}");
}

#[test]
fn a_second_signal_at_once_is_the_same_and_a_later_one_ends_what_hangs() {
    if !is_testable(&[]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-n",
        r#"for n in 1 2 3; do
    serve sink
    kill -TERM $host; kill -TERM $host 2> /dev/null
    wait $host; echo "host $?"
    ls status.sock 2> /dev/null
done
# The later signal must come within the 10 s that the guest has, which a busy machine may miss.
for n in 1 2 3 4 5; do
    serve sink
    guest=$(children $host)
    kill -STOP $guest
    kill -TERM $host
    # Again where a busy machine had handled the first one late, so that the next was at once, too.
    sleep 1.2
    while kill -TERM $host 2> /dev/null && ! gone $host; do sleep 1.2; done
    wait $host; ended=$?
    kill -CONT $guest 2> /dev/null
    soon gone $guest
    [ $ended = 0 ] || break
done
echo "host $ended""#,
    );
    assert_eq!(printed, "host 0\nhost 0\nhost 0\nhost 143\n");
}

#[test]
fn the_last_counters_are_those_of_all_that_was_served() {
    if !is_testable(&["curl"]) {
        return;
    }
    for vcpus in [1, 3] {
        let folder = folder();
        let printed = run(
            folder.path(),
            "-n",
            &format!(
                r#"for n in 1 2 3 4; do
    serve http --dir files --vcpus {vcpus}
    curl -sk -m 20 https://10.77.0.2/large | cmp - files/large
    stop
    grep -o 'event=stopped.*' host.log
done"#
            ),
        );
        let stopped: Vec<_> = printed.lines().filter(|it| it.contains("event=")).collect();
        assert_eq!(stopped.len(), 4, "{printed}");
        for line in stopped {
            let value = |name: &str| {
                let (_, rest) = line.split_once(name).unwrap();
                rest.split(' ').next().unwrap().parse::<u64>().unwrap()
            };
            assert_eq!(value("connections="), 1, "{line}");
            assert!(value("sent=") > 3_000_001, "{line}");
            assert!(value("received=") > 50, "{line}");
        }
    }
}

#[test]
fn addresses_that_could_not_be_reached_are_refused_in_one_line() {
    for (arguments, found) in [
        ("--address 0.0.0.0/24", "0.0.0.0/24"),
        ("--address 127.0.0.1/24", "127.0.0.1/24"),
        ("--address 224.0.0.5/24", "224.0.0.5/24"),
        ("--address 10.77.0.0/24", "10.77.0.0/24"),
        ("--address 10.77.0.255/24", "10.77.0.255/24"),
        ("--host-address 10.77.0.2", "10.77.0.2"),
        ("--host-address 0.0.0.0", "0.0.0.0"),
        ("--host-address 10.77.0.255", "10.77.0.255"),
        (
            "--address 10.78.0.2/24 --host-address 10.77.0.1",
            "10.77.0.1",
        ),
        ("--address-6 ff02::2/64", "ff02::2/64"),
        ("--address-6 ::1/64", "::1/64"),
        ("--address-6 fd77::2/64 --host-address-6 fd77::2", "fd77::2"),
        ("--address-6 fd77::2/64 --host-address-6 ff02::1", "ff02::1"),
        ("--address-6 fd77::2/64 --host-address-6 fd78::1", "fd78::1"),
    ] {
        let error = refused(&format!("sink {arguments}"));
        assert!(error.contains("found"), "{arguments}: {error}");
        assert!(error.contains(found), "{arguments}: {error}");
        assert!(error.contains("expected"), "{arguments}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }
}

#[test]
fn the_host_takes_another_address_of_the_guests_subnet() {
    if !is_testable(&["curl"]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-n",
        r#"for address in 10.78.0.2/24 10.79.0.1/24; do
    serve http --dir files --address $address
    ip -o -4 addr show dev tare0 | grep -o 'inet [0-9./]*'
    curl -sk -m 20 https://${address%/*}/page
    stop
done"#,
    );
    let page = "from the guest\nhost 0\n";
    let expected = format!("inet 10.78.0.1/24\n{page}inet 10.79.0.2/24\n{page}");
    assert_eq!(printed, expected);
}

#[test]
fn nothing_is_said_to_be_served_before_the_guest_can() {
    if !is_testable(&[]) {
        return;
    }
    let folder = folder();
    run(
        folder.path(),
        "-n",
        r#"echo nothing > bad.pem
"$TARE" cvm serve http --dir files --cert bad.pem --key bad.pem > host.log 2>&1
[ $? = 2 ] || exit 93"#,
    );
    let bad = log(folder.path());
    assert!(bad.contains("bad.pem"), "{bad}");
    assert!(!bad.contains("try:") && !bad.contains("serving"), "{bad}");
    run(folder.path(), "-n", "serve http --dir files\nstop");
    let good = log(folder.path());
    assert!(good.contains("try: curl -k https://10.77.0.2/"), "{good}");
    assert!(good.contains("event=serving guest=10.77.0.2"), "{good}");
}

#[test]
fn a_device_that_does_not_fit_is_told_for_what_it_is_and_root_is_a_hint_without() {
    if !is_testable(&["setpriv"]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-n",
        r#"ip tuntap add dev tun0 mode tun
ip tuntap add dev single mode tap vnet_hdr
serve sink --tap busy --address 10.99.0.2/24
try() { "$@" 2>&1; echo "status $?"; }
try "$TARE" cvm serve sink --tap a-name-that-is-too-long
try "$TARE" cvm serve sink --tap lo
try "$TARE" cvm serve sink --tap tun0
try "$TARE" cvm serve sink --tap busy
try "$TARE" cvm serve sink --tap single --vcpus 2
try setpriv --bounding-set -net_admin --inh-caps -net_admin "$TARE" cvm serve sink --tap none
stop"#,
    );
    let lines: Vec<&str> = printed.lines().collect();
    let errors: Vec<&str> = lines
        .split(|line| *line == "status 2")
        .filter_map(|part| part.last().copied())
        .collect();
    let expected = [
        "found a name of 23 bytes",
        "found another interface of this name",
        "found a TUN device",
        "in use",
        "found one with a single queue",
    ];
    assert_eq!(errors.len(), expected.len() + 2, "{printed}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.contains(expected), "{expected}: {printed}");
        assert!(!error.contains("root"), "{error}");
    }
    let hint = errors[expected.len()];
    assert_eq!(hint.matches("root").count(), 1, "{hint}");
    assert_eq!(hint.matches("CAP_NET_ADMIN").count(), 1, "{hint}");
}

#[test]
fn a_device_that_is_deleted_a_folder_that_is_missing_and_a_start_are_told_as_such() {
    if !is_testable(&[]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-n",
        r#"serve sink
ip link del tare0
wait $host; echo "host $?"
tail -n 1 host.log
"$TARE" cvm serve sink --status-socket "$PWD/missing/s" > folder.log 2>&1
echo "host $?"
ls missing 2> /dev/null
tail -n 1 folder.log"#,
    );
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!((lines.len(), lines[0], lines[2]), (4, "host 2", "host 2"));
    assert!(
        lines[1].contains("the TAP device \"tare0\" is gone"),
        "{printed}"
    );
    assert!(lines[3].contains("there is no folder"), "{printed}");
    assert_eq!(status(folder.path())["host"]["resets"], 0);
}

#[test]
fn the_status_has_all_exits_and_what_they_cost_and_a_variant_for_comparison_warns() {
    if !is_testable(&["curl", "promtool"]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-n",
        r#"serve http --dir files --exits rif --switch-cycles 1400 --variant bifrost-unprotected \
    --metrics 127.0.0.1:9303
curl -sk -m 20 https://10.77.0.2/page
await '"closed":1,'
shown() { "$TARE" cvm status "$PWD/status.sock" > shown.txt 2> /dev/null; }
soon shown
grep ^exits shown.txt
measured() { curl -sf -m 20 http://127.0.0.1:9303/metrics > page.txt; }
soon measured
grep -c '^tare_cvm_halts_total [1-9]' page.txt
promtool check metrics < page.txt
stop"#,
    );
    assert!(
        printed.contains("waits (rif, 1400 cycles each); 0 faults"),
        "{printed}"
    );
    assert!(printed.contains("\n1\nhost 0\n"), "{printed}");
    assert!(status(folder.path())["guest"]["halts"].as_u64() > Some(0));
    let log = log(folder.path());
    let warning = "warning: bifrost-unprotected is for comparison only";
    assert_eq!(log.matches(warning).count(), 1, "{log}");
}

#[test]
fn a_device_keeps_its_addresses_and_loses_the_one_that_it_got() {
    if !is_testable(&[]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-n",
        r#"ip tuntap add old mode tap vnet_hdr
ip addr add 192.168.98.1/24 dev old
ip addr add 192.168.99.1/30 dev old
ip link set old up
show() { ip -o addr show dev old | grep -o 'inet [0-9./]*'; }
serve sink --tap old --address 10.78.0.2/24
show
stop
show
ip addr add 10.78.0.1/24 dev old
serve sink --tap old --address 10.78.0.2/24
stop
show"#,
    );
    let own = "inet 192.168.98.1/24\ninet 192.168.99.1/30\n";
    let got = "inet 10.78.0.1/24\n";
    // One that it had stays.
    let expected = format!("{own}{got}host 0\n{own}host 0\n{own}{got}");
    assert_eq!(printed, expected);
}

#[test]
fn a_subnet_of_another_device_and_an_address_of_the_machine_are_refused() {
    if !is_testable(&[]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-n",
        r#"ip link add eth0 type veth peer name eth1
ip link set eth1 up
ip addr add 192.0.2.2/24 dev eth0
ip link set eth0 up
for address in 192.0.2.77/24 192.0.2.2/24; do
    "$TARE" cvm serve sink --tap tare1 --address $address 2>&1
    echo "status $?"
done
serve sink --tap tare0
"$TARE" cvm serve sink --tap tare1 2>&1
echo "status $?"
stop"#,
    );
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(
        (lines[1], lines[3], lines[5]),
        ("status 2", "status 2", "status 2")
    );
    assert!(
        lines[0].contains("--address: found 192.0.2.77/24"),
        "{printed}"
    );
    assert!(
        lines[0].contains("eth0") && lines[0].contains("10.78.0.2/24"),
        "{printed}"
    );
    assert!(
        lines[2].contains("found 192.0.2.2, an address of this machine"),
        "{printed}"
    );
    assert!(
        lines[4].contains("10.77.0.2/24") && lines[4].contains("tare0"),
        "{printed}"
    );
}

#[test]
fn a_capture_that_cannot_be_written_ends_alone() {
    if !is_testable(&["curl", "mount"]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-nm",
        r#"mkdir full
mount -t tmpfs -o size=1m tmpfs full
serve http --dir files --pcap full/frames.pcap
for n in 1 2; do
    curl -sk -m 60 https://10.77.0.2/large | cmp - files/large && echo same
done
soon grep -q event=capture_ended host.log
stop
mkfifo unread
"$TARE" cvm serve sink --pcap unread 2>&1
echo "status $?"
"$TARE" cvm serve sink --pcap both --key-log both 2>&1
echo "status $?""#,
    );
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[..3], ["same", "same", "host 0"], "{printed}");
    assert!(
        lines[3].contains("--pcap: unread: nothing reads this FIFO"),
        "{printed}"
    );
    assert!(
        lines[5].contains("--key-log: found the file of --pcap"),
        "{printed}"
    );
    assert_eq!((lines[4], lines[6]), ("status 2", "status 2"), "{printed}");
    let told = log(folder.path()).matches("event=capture_ended").count();
    assert_eq!(told, 1, "once");
}
