//! The tests under what a runner may impose on them: `cargo xtask test` clears it away, and the
//! tests bear it all the same.

use std::fs;

use crate::binaries::{self, Binary};
use crate::environment;
use crate::jobs::{self, Job};
use crate::shell::{self, has, is_ci, root, succeeds};

/// Something that a process inherits from what starts it, or finds on its machine.
struct Condition {
    name: &'static str,
    /// A script of sh that imposes it and then runs its arguments.
    script: &'static str,
    /// Set if only root may impose it: a mount or a network namespace.
    needs_root: bool,
}

const fn condition(name: &'static str, script: &'static str) -> Condition {
    Condition {
        name,
        script,
        needs_root: false,
    }
}

const CONDITIONS: &[Condition] = &[
    // As `nohup` does, and a shell without job control for what it runs in the background.
    condition("signals", r#"trap "" HUP INT QUIT; exec "$@""#),
    condition("umask-077", r#"umask 077; exec "$@""#),
    condition("umask-000", r#"umask 000; exec "$@""#),
    condition("locale-c", r#"export LC_ALL=C; exec "$@""#),
    // Debian has no locale but C's until one is made.
    condition(
        "locale-absent",
        r#"export LC_ALL=tr_TR.UTF-8 LANG=de_DE LANGUAGE=tr:de; exec "$@""#,
    ),
    condition(
        "terminal-dumb",
        r#"export TERM=dumb CLICOLOR_FORCE=1 COLUMNS=20; exec "$@""#,
    ),
    condition(
        "terminal-none",
        r#"unset TERM; export NO_COLOR=1; exec "$@""#,
    ),
    // Not 19: beside a busy loop that leaves 1.5 % of a processor, and limits of time would fail.
    condition("nice", r#"exec nice -n 5 "$@""#),
    condition("input-closed", r#"exec "$@" <&-"#),
    // The first of those that this process may use.
    condition(
        "one-processor",
        r#"allowed=$(taskset -cp $$); allowed=${allowed##*: }
            exec taskset -c "${allowed%%[-,]*}" "$@""#,
    ),
    // The sources and what was built of them may be below /tmp: they keep a mount of their own.
    Condition {
        name: "tmp-read-only",
        script: r#"export TMPDIR="$TARE_OWN_TMP"
            exec unshare --mount sh -c 'mount --bind /tmp /tmp && mount --bind "$TARE_SOURCES" "$TARE_SOURCES" && mount -o remount,bind,ro /tmp && exec "$@"' sh "$@""#,
        needs_root: true,
    },
    Condition {
        name: "tmp-noexec",
        script: r#"exec unshare --mount sh -c 'mount --bind /tmp /tmp && mount --bind "$TARE_SOURCES" "$TARE_SOURCES" && mount -o remount,bind,noexec /tmp && exec "$@"' sh "$@""#,
        needs_root: true,
    },
    // As in containers without a network: the loopback interface alone.
    Condition {
        name: "network-none",
        script: r#"export CARGO_NET_OFFLINE=true
            exec unshare --net sh -c 'ip link set lo up && exec "$@"' sh "$@""#,
        needs_root: true,
    },
];

/// Conditions that do not contradict each other, for the short run.
const TOGETHER: &[&[&str]] = &[
    &[
        "signals",
        "umask-077",
        "locale-absent",
        "terminal-none",
        "nice",
        "input-closed",
        "tmp-read-only",
    ],
    &[
        "umask-000",
        "locale-c",
        "terminal-dumb",
        "one-processor",
        "tmp-noexec",
        "network-none",
    ],
];

/// The test programs of the short run: those that start programs, write files or read what programs
/// print.
const SUITES: &[&str] = &[
    "crates/gateway config",
    "crates/lab roles",
    "crates/lab runs",
    "crates/lab trials",
    "crates/port tare_port",
    "crates/rdrand/capi c_program",
    "crates/tare gateway_gentest",
    "crates/tare rng",
    "crates/tare run",
];

/// Left out when every test program runs under conditions: hours of simulated runs, which depend
/// on nothing outside.
const LEFT_OUT: &str = "crates/lab instrument";

/// The folder in which a copy of the sources is tested: spaces, and letters that are not ASCII.
const ODD_FOLDER: &str = "te st ü";

/// The names of the conditions, for messages.
fn every_name() -> String {
    let names: Vec<&str> = CONDITIONS.iter().map(|condition| condition.name).collect();
    names.join(", ") + ", path"
}

/// The short run: a part of the tests under all conditions.
pub(crate) fn short(all: &[Binary]) -> Result<Vec<Job>, String> {
    let suites = binaries::choose(all, SUITES)?;
    let mut jobs = vec![Job::new("a path with spaces", odd_path)];
    for together in TOGETHER {
        jobs.extend(under(together, &suites)?);
    }
    Ok(jobs)
}

/// Every test under all of these conditions at once.
pub(crate) fn every_test(names: &[&str], all: &[Binary]) -> Result<(), String> {
    if names == ["path"] {
        return odd_path();
    }
    let every = all.iter().filter(|binary| binary.name != LEFT_OUT);
    jobs::run(under(names, &every.collect::<Vec<_>>())?)
}

fn under(names: &[&str], binaries: &[&Binary]) -> Result<Vec<Job>, String> {
    let mut prefix: Vec<String> = Vec::new();
    let mut imposed = Vec::new();
    for name in names {
        let condition = CONDITIONS.iter().find(|condition| condition.name == *name);
        let condition = condition.ok_or_else(|| {
            format!(
                "found condition \"{name}\", expected one of {}",
                every_name()
            )
        })?;
        if condition.needs_root && !succeeds("sh", &["-c", "test \"$(id -u)\" = 0"]) {
            not_tested(&format!("the condition {name}: only root may impose it"))?;
            continue;
        }
        prefix.extend(["sh", "-c", condition.script, "sh"].map(str::to_owned));
        imposed.push(*name);
    }
    let title = format!("under {}", imposed.join(", "));
    let own = environment::own_temporary_folder();
    fs::create_dir_all(&own).map_err(|error| format!("{}: {error}", own.display()))?;
    let own = own.display().to_string();
    let sources = root().display().to_string();
    let variables = [("TARE_OWN_TMP", &*own), ("TARE_SOURCES", &sources)];
    let jobs = binaries.iter();
    Ok(jobs
        .map(|binary| binary.job(&title, &prefix, &[], &variables))
        .collect())
}

fn not_tested(what: &str) -> Result<(), String> {
    eprintln!("xtask: NOT TESTED: {what}");
    if is_ci() {
        return Err(format!("CI=true and not tested: {what}"));
    }
    Ok(())
}

/// Tests the library for C, which is what compilers, linkers and `man` are given paths of, in a
/// copy of the sources.
fn odd_path() -> Result<(), String> {
    let place = root().join("target").join(ODD_FOLDER);
    fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    if !has("tar") {
        return not_tested("a path with spaces: tar is missing");
    }
    // Files of an earlier copy that are no longer among the sources would be tested too.
    let earlier = fs::read_dir(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    for entry in earlier
        .flatten()
        .filter(|entry| entry.file_name() != "target")
    {
        let path = entry.path();
        let removed = match path.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let copy = r#"tar --create --exclude=./target --exclude=./.git --exclude=./tare-runs . | tar --extract --directory "$0""#;
    let shown = place.display().to_string();
    shell::step("a path with spaces", "sh", &["-c", copy, &shown])?;
    let manifest = place.join("Cargo.toml").display().to_string();
    let target = place.join("target").display().to_string();
    shell::step(
        "a path with spaces",
        "cargo",
        &[
            "test",
            "--locked",
            "--manifest-path",
            &manifest,
            "--target-dir",
            &target,
            "--package",
            "tare-rdrand-capi",
            "--package",
            "xtask",
            "--tests",
        ],
    )
}
