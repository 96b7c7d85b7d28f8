//! The files of a guest that serves: certificate, key, and the log of secrets.

use super::*;

#[test]
fn sighup_takes_a_new_certificate_and_one_that_is_refused_leaves_the_old() {
    if !is_testable(&["curl", "openssl"]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-n",
        r#"make() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
        -keyout key.pem -out cert.pem -subj /CN=$1 2> openssl.log || cat openssl.log
}
name() {
    openssl s_client -connect 10.77.0.2:443 < /dev/null 2> /dev/null | tr -d ' ' \
        | grep -o 'subject=CN=.*'
}
logged() { [ $(grep -c event=$1 host.log) = $2 ]; }
make first
serve http --dir files --vcpus 2 --cert cert.pem --key key.pem
name
make second
kill -HUP $host
soon logged reloaded 1
name
echo nothing > key.pem
kill -HUP $host
soon logged refused 1
name
await '"reloads":1,"reloads_refused":1,"reload_error":"key.pem: expected a private key'
make third
kill -HUP $host
soon logged reloaded 2
name
await '"reload_error":null'
stop
serve http --dir files
kill -HUP $host
soon grep event=nothing_to_reload host.log
curl -sk -m 20 https://10.77.0.2/page
stop"#,
    );
    let lines: Vec<&str> = printed.lines().collect();
    let names = ["first", "second", "second", "third"].map(|name| format!("subject=CN={name}"));
    assert_eq!(lines[..4], names, "{printed}");
    assert_eq!(lines[4], "host 0", "{printed}");
    let reason = "reason=\"neither --cert nor --key is given";
    assert!(lines[5].contains(reason), "{printed}");
    assert_eq!(lines[6..], ["from the guest", "host 0"], "{printed}");
}

#[test]
fn a_certificate_that_signs_itself_names_the_guest_and_is_valid_for_a_year() {
    if !is_testable(&["openssl"]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-n",
        r#"serve sink --address-6 fd77::2/64 --host-address-6 fd77::1
openssl s_client -connect 10.77.0.2:4433 < /dev/null 2> /dev/null \
    | openssl x509 -out cert.pem
stop
openssl x509 -in cert.pem -noout -subject -ext subjectAltName
for days in 364 366; do
    openssl x509 -in cert.pem -noout -checkend $((days * 24 * 3600)) > /dev/null
    echo "$days days: $?"
done
begin=$(date -d "$(openssl x509 -in cert.pem -noout -startdate | cut -d= -f2)" +%s)
age=$(($(date +%s) - begin))
[ $age -ge 86400 ] && [ $age -lt 90000 ] && echo "a day before""#,
    );
    let printed = printed.replace(' ', "");
    assert!(printed.contains("subject=CN=tarecvm"), "{printed}");
    let names = "IPAddress:10.77.0.2,IPAddress:FD77:0:0:0:0:0:0:2,DNS:localhost";
    assert!(printed.contains(names), "{printed}");
    assert!(printed.contains("364days:0\n366days:1\n"), "{printed}");
    assert!(printed.ends_with("adaybefore\n"), "{printed}");
}

#[test]
fn a_key_log_that_cannot_be_written_ends_alone() {
    if !is_testable(&["curl"]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-n",
        r#"serve http --dir files --key-log /dev/full
for n in 1 2; do
    curl -sk -m 20 https://10.77.0.2/page
    soon grep -q event=key_log_ended host.log
done
stop"#,
    );
    assert_eq!(printed, "from the guest\nfrom the guest\nhost 0\n");
    let log = log(folder.path());
    let told: Vec<&str> = log.lines().filter(|it| it.contains("key_log")).collect();
    assert_eq!(told.len(), 1, "{log}");
    let expected = "level=warn event=key_log_ended file=/dev/full error=";
    assert!(told[0].contains(expected), "{log}");
}

#[test]
fn a_certificate_without_end_is_refused_at_once() {
    if !is_testable(&[]) {
        return;
    }
    let folder = folder();
    let printed = run(
        folder.path(),
        "-n",
        r#"timeout 20 "$TARE" cvm serve http --dir files --cert /dev/zero --key /dev/zero 2>&1
echo "status $?""#,
    );
    let expected = "/dev/zero: found a device, expected a regular file";
    assert!(printed.contains(expected), "{printed}");
    assert!(printed.ends_with("status 2\n"), "{printed}");
}
