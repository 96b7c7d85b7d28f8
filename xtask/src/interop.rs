//! The gateway against Linux: boots Debian's kernel under QEMU with what the test in
//! `crates/gateway/tests/interop` asks for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::binaries::{self, Binary};
use crate::initramfs;
use crate::jobs::Job;
use crate::shell::{has, is_ci, root, step, succeeds};

/// Modules that the test uses; what they depend on is found in them.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "xfrm_user",
    "esp4",
    "esp6",
    "gcm",
    "ctr",
    "ghash_generic",
    "seqiv",
    // Where `seqiv` has its random numbers from; it asks for them by name, so they are none of its
    // dependencies.
    "sha512_generic",
    "jitterentropy_rng",
    "drbg",
];

/// Programs of this machine that the test uses in the guest.
const PROGRAMS: &[&str] = &["busybox", "ip", "perl"];

/// Applets of busybox that the test uses in the guest.
const APPLETS: &[&str] = &[
    "sh", "mount", "insmod", "stty", "dmesg", "ping", "cat", "sleep", "sysctl",
];

/// The guest's script: load the modules, then run what the console asks for.
const INIT: &str = "\
#!/bin/sh
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
stty -echo -onlcr
dmesg -n 1
while read -r module; do insmod /modules/$module; done < /modules/order
echo guest is up
while read -r line; do eval \"$line\"; done
";

/// Debian's small kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";

/// The tests that need a guest: those that may run beside others, and those that look at what is
/// left on the machine and run alone.
pub(crate) struct Jobs {
    pub(crate) beside: Vec<Job>,
    pub(crate) alone: Vec<Job>,
}

/// Finds a kernel and puts the guest's root file system together for the tests of `all` that need
/// a guest.
pub(crate) fn jobs(all: &[Binary]) -> Result<Jobs, String> {
    let none = Jobs {
        beside: Vec::new(),
        alone: Vec::new(),
    };
    let what = "the gateway against Linux in a guest";
    for program in ["qemu-system-x86_64", "busybox", "ip", "perl"] {
        if !has(program) {
            return not_tested(&format!("{what}: {program} is missing")).map(|()| none);
        }
    }
    let folder = root().join("target/interop");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let (kernel, modules) = match kernel(&folder) {
        Ok(found) => found,
        Err(error) => return not_tested(&format!("{what}: {error}")).map(|()| none),
    };
    let image = folder.join("initramfs.cpio");
    let bytes = initramfs::build(INIT, PROGRAMS, APPLETS, &modules, MODULES)?;
    fs::write(&image, bytes).map_err(|error| format!("{}: {error}", image.display()))?;
    let [kernel, image, modules] = [kernel, image, modules].map(|path| path.display().to_string());
    let kernel = ("TARE_GUEST_KERNEL", &*kernel);
    // `tare guest boot` makes its own root file system.
    let own = [kernel, ("TARE_GUEST_MODULES", &*modules)];
    let protection = binaries::choose(all, &["crates/cvmnet protection"])?[0].path();
    let with_tests = [own[0], own[1], ("TARE_TEST_PROTECTION", &*protection)];
    let job = |name: &str, arguments: &[&str], variables: &[(&str, &str)]| {
        let binary = binaries::choose(all, &[name])?[0];
        Ok::<_, String>(binary.job("in a guest", &[], arguments, variables))
    };
    Ok(Jobs {
        beside: vec![
            job(
                "crates/gateway interop",
                &["linux::", "--ignored"],
                &[kernel, ("TARE_GUEST_INITRAMFS", &*image)],
            )?,
            job("crates/tare guest_breakdown", &["--ignored"], &own)?,
            job("crates/tare guest", &["--ignored"], &with_tests)?,
            job("crates/tare guest_exits", &["--ignored"], &own)?,
        ],
        alone: vec![job(
            "crates/tare guest_ends",
            &["--ignored", "--test-threads=1"],
            &own,
        )?],
    })
}

fn not_tested(what: &str) -> Result<(), String> {
    eprintln!("xtask: NOT TESTED: {what}");
    if is_ci() {
        return Err(format!("CI=true and not tested: {what}"));
    }
    Ok(())
}

/// A kernel and its modules: an installed one, or the packaged one unpacked into `folder`. It is
/// not installed: a machine that boots from its disk would be given another kernel to boot.
fn kernel(folder: &Path) -> Result<(PathBuf, PathBuf), String> {
    if let Some(found) = kernel_below(Path::new("/")) {
        return Ok(found);
    }
    let unpacked = folder.join("kernel");
    if let Some(found) = kernel_below(&unpacked) {
        return Ok(found);
    }
    let package = match package() {
        Some(package) => package,
        None => {
            // A fresh image has no package lists.
            step("package lists", "apt-get", &["update"])?;
            package().ok_or(format!("there is no package {KERNEL}"))?
        }
    };
    let into = folder.join("package");
    let _ = fs::remove_dir_all(&into);
    fs::create_dir_all(&into).map_err(|error| format!("{}: {error}", into.display()))?;
    let shown = into.display().to_string();
    let download = format!("cd '{shown}' && apt-get download {package}");
    if step("guest's kernel", "sh", &["-c", &download]).is_err() {
        step("package lists", "apt-get", &["update"])?;
        step("guest's kernel", "sh", &["-c", &download])?;
    }
    let unpack = format!("dpkg-deb -x '{shown}'/*.deb '{}'", unpacked.display());
    step("guest's kernel", "sh", &["-c", &unpack])?;
    kernel_below(&unpacked).ok_or(format!("{package} holds no kernel with modules"))
}

/// The package that holds the kernel: [`KERNEL`] only names it.
fn package() -> Option<String> {
    if !succeeds("apt-cache", &["show", KERNEL]) {
        return None;
    }
    let output = Command::new("apt-cache")
        .args(["depends", KERNEL])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let depends = text.lines().filter_map(|line| line.split_once("Depends: "));
    let mut names = depends.map(|(_, name)| name.trim().to_string());
    names.find(|name| name.starts_with("linux-image-"))
}

fn kernel_below(folder: &Path) -> Option<(PathBuf, PathBuf)> {
    for entry in fs::read_dir(folder.join("boot")).ok()?.flatten() {
        let name = entry.file_name();
        let Some(release) = name.to_str()?.strip_prefix("vmlinuz-") else {
            continue;
        };
        let modules = folder.join("lib/modules").join(release);
        if release.contains("cloud") && modules.is_dir() {
            return Some((entry.path(), modules));
        }
    }
    None
}
