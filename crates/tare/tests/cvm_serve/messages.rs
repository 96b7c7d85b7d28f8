//! The last words to a client before its connection is closed, and errors that say what to do.

use super::*;

#[test]
fn a_line_that_is_too_long_is_answered_in_the_words_of_its_protocol() {
    if !is_testable(&["openssl"]) {
        return;
    }
    for (server, port, error) in [
        ("memcached", 11211, "CLIENT_ERROR line too long"),
        ("resp", 6379, "-ERR Protocol error: too big inline request"),
    ] {
        let folder = folder();
        let printed = run(
            folder.path(),
            "-n",
            &format!(
                r#"serve {server}
head -c 1000000 /dev/zero | tr '\0' a | timeout 20 \
    openssl s_client -quiet -no_ign_eof -connect 10.77.0.2:{port} 2> /dev/null
await '"closed":1,'
stop"#
            ),
        );
        assert_eq!(printed, format!("{error}\r\nhost 0\n"), "{server}");
        assert_eq!(status(folder.path())["guest"]["cut_off"], 0, "{server}");
    }
}

#[test]
fn what_a_user_can_do_is_in_the_errors() {
    if !is_testable(&["setpriv"]) {
        return;
    }
    let folder = folder();
    let long = "s".repeat(108);
    let printed = run(
        folder.path(),
        "-n",
        &format!(
            r#"try() {{ "$@" 2>&1; echo "status $?"; }}
echo text > file
try "$TARE" cvm serve sink --status-socket file
cat file
try "$TARE" cvm serve sink --status-socket {long}
serve sink
try "$TARE" cvm serve sink --address 10.99.0.2/24
try "$TARE" cvm guest sink < /dev/null
chmod 755 "$PWD"
try setpriv --reuid 65534 --clear-groups "$TARE" cvm status "$PWD/status.sock"
stop"#
        ),
    );
    for expected in [
        "status at file: found something else than a socket there",
        "\ntext\n",
        "found a path of 108 bytes, expected at most 107",
        "another `tare cvm serve`, or name another device with --tap",
        "this command is started by `tare cvm serve`: run that instead",
        "run this as the user that started the guest, or with sudo",
    ] {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
    assert_eq!(printed.matches("status 2\n").count(), 5, "{printed}");
}

#[test]
fn frames_beyond_the_mtu_of_the_guest_are_counted_in_every_variant() {
    if !is_testable(&["bash"]) {
        return;
    }
    for variant in ["cvm", "bifrost", "baseline-gro"] {
        let folder = folder();
        let printed = run(
            folder.path(),
            "-n",
            &format!(
                r#"ip tuntap add dev old mode tap vnet_hdr
serve sink --mtu 1280 --tap old --variant {variant}
bash -c 'head -c 1400 /dev/zero > /dev/udp/10.77.0.2/9'
await '"too_long":1,'
stop"#
            ),
        );
        assert_eq!(printed, "host 0\n", "{variant}");
    }
}

#[test]
fn a_variant_that_is_named_twice_is_refused() {
    let output = Command::new(TARE)
        .args(["cvm", "breakdown", "--variant", "cvm,bifrost,cvm"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    let expected = "--variant: found cvm more than once, expected each variant once";
    assert!(error.contains(expected), "{error}");
}
