//! The programs that tests drive, and the Debian packages that bring them.

use crate::shell::{has, is_ci, step, succeeds};

/// Program (on the path, or a whole path), package, and what is not tested without it.
const NEEDED: &[(&str, &str, &str)] = &[
    ("gcc", "gcc", "the C interfaces"),
    ("g++", "g++", "the C headers under C++"),
    ("nm", "binutils", "the exported symbols of the C libraries"),
    (
        "pkg-config",
        "pkg-config",
        "the pkg-config files of the C libraries",
    ),
    ("man", "man-db", "the manual pages"),
    ("objdump", "binutils", "the machine code of the cipher"),
    (
        "valgrind",
        "valgrind",
        "the cipher's memory accesses and timing, and a client of remote memory in C",
    ),
    (
        "python3",
        "python3",
        "the C interface of remote memory from Python",
    ),
    ("chromium", "chromium", "the report in a browser"),
    ("dieharder", "dieharder", "the dieharder battery"),
    ("ent", "ent", "the ent battery"),
    ("rngtest", "rng-tools5", "the rngtest battery"),
    (
        "/usr/lib/python3/dist-packages/scapy/layers/ipsec.py",
        "python3-scapy",
        "the gateway's ESP against scapy's",
    ),
    (
        "/usr/lib/python3/dist-packages/cryptography/__init__.py",
        "python3-cryptography",
        "the gateway's ESP against scapy's",
    ),
    ("tshark", "tshark", "captures of the gateway's ESP"),
    (
        "qemu-system-x86_64",
        "qemu-system-x86",
        "the gateway against Linux in a guest",
    ),
    (
        "busybox",
        "busybox-static",
        "the gateway against Linux in a guest",
    ),
    ("zsh", "zsh", "completion in zsh"),
    ("fish", "fish", "completion in fish"),
    (
        "qemu-x86_64",
        "qemu-user",
        "the cipher and the random numbers on emulated processors",
    ),
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu", AARCH64),
    (
        "/usr/aarch64-linux-gnu/lib/libc.so",
        "libc6-dev-arm64-cross",
        AARCH64,
    ),
    ("ip", "iproute2", "the gateway against Linux in a guest"),
    (
        "promtool",
        "prometheus",
        "the gateway's dashboard and alert rules",
    ),
    (
        "ethtool",
        "ethtool",
        "the kernel's merging of segments in front of a guest's TAP device",
    ),
    ("nginx", "nginx-light", LOAD),
    ("memcached", "memcached", STORES),
    ("redis-server", "redis-server", STORES),
    ("wrk", "wrk", LOAD),
    ("redis-benchmark", "redis-tools", LOAD),
    ("memcslap", "libmemcached-tools", LOAD),
];

/// The part that is not tested without one of the servers and generators.
const LOAD: &str = "the load generator beside others";

const AARCH64: &str = "the cipher on an emulated AArch64";

const STORES: &str =
    "the load generator beside others, and the servers in the guest against others";

/// Installs what is missing when this process may, and says what is missing when not.
pub(crate) fn provide() -> Result<(), String> {
    let missing = || -> Vec<_> {
        NEEDED
            .iter()
            .filter(|(program, _, _)| !has(program))
            .collect()
    };
    let before = missing();
    if before.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = before.iter().map(|(_, package, _)| *package).collect();
    let command = format!(
        "apt-get install --no-install-recommends {}",
        packages.join(" ")
    );
    if !has("apt-get") {
        eprintln!("xtask: this is no Debian: nothing is installed");
    } else if !succeeds("sh", &["-c", "test \"$(id -u)\" = 0"]) {
        eprintln!("xtask: not root: nothing is installed. As root: {command}");
    } else {
        // A fresh image has no package lists; an old list is good enough otherwise.
        let mut arguments = vec!["install", "-y", "--no-install-recommends"];
        arguments.extend(&packages);
        std::env::set_var("DEBIAN_FRONTEND", "noninteractive");
        if step("packages", "apt-get", &arguments).is_err() {
            let again = step("package lists", "apt-get", &["update"])
                .and_then(|()| step("packages", "apt-get", &arguments));
            // Without a network, say: what is there can still be tested.
            if let Err(error) = again {
                eprintln!("xtask: packages could not be installed: {error}. By hand: {command}");
            }
        }
    }
    let after = missing();
    for (program, package, what) in &after {
        eprintln!("xtask: NOT TESTED: {what}: {program} is missing (package {package})");
    }
    if is_ci() && !after.is_empty() {
        return Err(format!("CI=true and {} packages are missing", after.len()));
    }
    Ok(())
}
