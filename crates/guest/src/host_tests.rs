use super::*;
use rustix::fs::{mknodat, FileType, Mode, CWD};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

fn trees() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/trees"))
}

/// Examines a recorded tree, in which `qemu-version` is what QEMU prints.
fn recorded(name: &str) -> Host {
    let root = trees().join(name);
    let qemu = match fs::read_to_string(root.join("qemu-version")) {
        Ok(text) => Version::parse(&text),
        Err(_) => Err(Error::Program("qemu-system-x86_64".into(), PACKAGE)),
    };
    Host::examine(&root, &qemu, None)
}

/// Returns the line of a check: state, what was found, remedy.
fn line(host: &Host, name: &str) -> String {
    let check = host.checks.iter().find(|check| check.name == name);
    let check = check.unwrap_or_else(|| panic!("no check {name}"));
    let remedy = check.remedy.as_deref().unwrap_or("nothing");
    let text = format!("{:?} | {} | {remedy}", check.state, check.found);
    // What is fine needs nothing, and what is lacking has a remedy.
    assert_eq!(check.state == State::Fine, remedy == "nothing", "{text}");
    assert!(
        !check.matters.is_empty() && !check.found.is_empty(),
        "{text}"
    );
    text
}

fn expect(host: &Host, expected: &[(&str, &str, &[&str])]) {
    for (name, state, words) in expected {
        let line = line(host, name);
        assert!(line.starts_with(state), "{name}: {line}");
        for word in *words {
            assert!(line.contains(word), "{name}: {line}");
        }
    }
}

#[test]
fn a_tdx_host_has_all_that_a_tdx_guest_needs() {
    let host = recorded("tdx-host");
    expect(
        &host,
        &[
            ("kvm", "Fine", &[]),
            ("qemu", "Fine", &["10.1: plain, swiotlb, sev-snp, tdx"]),
            ("firmware", "Fine", &["/usr/share/ovmf/OVMF.fd"]),
            ("tdx", "Fine", &["kvm_intel.tdx is on"]),
            ("sev-snp", "Lacking", &["GenuineIntel", "processor of AMD"]),
            ("tun", "Fine", &[]),
            ("vhost_net", "Fine", &[]),
            (
                "swiotlb",
                "Fine",
                &["64.0 MiB: 32768 slots, in use 0, most unknown"],
            ),
            ("huge pages", "Fine", &["transparent: madvise", "free: 0"]),
            ("memlock", "Fine", &["unlimited"]),
        ],
    );
    assert_eq!(host.checks.len(), 10);
    let here: Vec<Option<bool>> = host.troubles[0]
        .causes
        .iter()
        .map(|it| it.is_here)
        .collect();
    assert_eq!(here, [None, Some(false), Some(false), Some(false)]);
    let root = trees();
    for (tree, flavour, expected) in [
        ("tdx-host", Flavour::Tdx, true),
        ("tdx-host", Flavour::SevSnp, false),
        ("tdx-host", Flavour::Plain, false),
        ("snp-host", Flavour::SevSnp, true),
        ("amd-plain", Flavour::SevSnp, false),
        ("absent", Flavour::Tdx, false),
    ] {
        let has = has_technique(&root.join(tree), flavour);
        assert_eq!(has, expected, "{tree} {flavour}");
    }
}

#[test]
fn an_snp_host_is_judged_by_its_module_its_secure_processor_and_qemu() {
    expect(
        &recorded("snp-host"),
        &[
            ("qemu", "Fine", &["9.1: plain, swiotlb, sev-snp |"]),
            ("sev-snp", "Fine", &["kvm_amd.sev_snp is on"]),
            ("tdx", "Lacking", &["AuthenticAMD", "processor of Intel"]),
            ("swiotlb", "Fine", &["in use 2, most 64"]),
            // Pages that were set aside do where transparent ones are off.
            ("huge pages", "Fine", &["transparent: never", "free: 512"]),
            ("memlock", "Fine", &["CAP_IPC_LOCK"]),
        ],
    );
    // The same machine with an older QEMU, or none, lacks that alone.
    let root = trees().join("snp-host");
    let old = Host::examine(&root, &Ok(Version(9, 0)), None);
    let words: &[&str] = &["9.0: plain, swiotlb |", "QEMU 9.1 or later for sev-snp"];
    expect(
        &old,
        &[("qemu", "Lacking", words), ("sev-snp", "Fine", &[])],
    );
    let none = Host::examine(&root, &Err(Error::Version("found \"x\"".into())), None);
    expect(
        &none,
        &[("qemu", "Lacking", &["found \"x\"", "apt install"])],
    );
    // A TDX host's QEMU is judged by TDX.
    let root = trees().join("tdx-host");
    let old = Host::examine(&root, &Ok(Version(10, 0)), None);
    expect(
        &old,
        &[("qemu", "Lacking", &["QEMU 10.1 or later for tdx"])],
    );
}

#[test]
fn a_plain_machine_is_told_what_to_change() {
    let host = recorded("amd-plain");
    expect(
        &host,
        &[
            ("kvm", "Fine", &[]),
            ("qemu", "Fine", &["8.2: plain, swiotlb |"]),
            (
                "firmware",
                "Lacking",
                &["OVMF.amdsev.fd", "apt install ovmf"],
            ),
            (
                "sev-snp",
                "Lacking",
                &["kvm_amd.sev_snp is off", "=1 on the kernel's"],
            ),
            ("tun", "Fine", &[]),
            (
                "vhost_net",
                "Lacking",
                &["No such file", "modprobe vhost_net", "vhost=on"],
            ),
            ("swiotlb", "Unknown", &["does not say", "run as root"]),
            (
                "huge pages",
                "Lacking",
                &["transparent: never", "echo madvise"],
            ),
            ("memlock", "Lacking", &["65536 KiB", "ulimit -l"]),
        ],
    );
    let here: Vec<Option<bool>> = host.troubles[0]
        .causes
        .iter()
        .map(|it| it.is_here)
        .collect();
    assert_eq!(here, [None, Some(false), Some(true), None]);
}

#[test]
fn a_machine_without_kvm_is_emulating() {
    let host = recorded("no-kvm");
    expect(
        &host,
        &[
            ("kvm", "Lacking", &["No such file", "nested virtualization"]),
            (
                "qemu",
                "Lacking",
                &["missing", "apt install qemu-system-x86"],
            ),
            ("firmware", "Lacking", &["no /usr/share/ovmf/OVMF.fd |"]),
            (
                "tdx",
                "Lacking",
                &["kvm_intel is not loaded", "modprobe kvm_intel"],
            ),
            ("tun", "Lacking", &["modprobe tun"]),
            ("huge pages", "Unknown", &["transparent: unknown"]),
            ("memlock", "Unknown", &[]),
        ],
    );
    assert_eq!(host.troubles[0].causes[1].is_here, Some(true));
    // A KVM that interprets every instruction is none.
    let root = trees().join("amd-plain");
    for (boots, state) in [
        (Some(false), State::Lacking),
        (Some(true), State::Fine),
        (None, State::Fine),
    ] {
        let host = Host::examine(&root, &Ok(Version(8, 2)), boots);
        assert_eq!(host.checks[0].state, state);
        let is_emulated = Some(state == State::Lacking);
        assert_eq!(host.troubles[0].causes[1].is_here, is_emulated);
    }
}

#[test]
fn machines_that_were_recorded_are_judged() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recorded");
    let root = |name: &str| Path::new(root).join(name);
    let qemu = fs::read_to_string(root("guest-on-zen4/qemu-version")).unwrap();
    let qemu = Version::parse(&qemu);
    let host = |name: &str| Host::examine(&root(name), &qemu, None);
    expect(
        &host("guest-on-zen4"),
        &[
            ("kvm", "Fine", &[]),
            ("qemu", "Fine", &["7.2: plain, swiotlb |"]),
            ("firmware", "Lacking", &["no /usr/share/ovmf/OVMF.fd |"]),
            ("sev-snp", "Lacking", &["kvm_amd is not loaded"]),
            ("tdx", "Lacking", &["AuthenticAMD", "processor of Intel"]),
            ("tun", "Fine", &[]),
            ("vhost_net", "Lacking", &["No such file"]),
            (
                "swiotlb",
                "Unknown",
                &["does not say how much there is, swiotlb=noforce"],
            ),
            ("huge pages", "Fine", &["transparent: madvise", "free: 0"]),
            ("memlock", "Fine", &["CAP_IPC_LOCK"]),
        ],
    );
    let words: &[&str] = &["no parameter kvm_amd.sev_snp", "Linux 6.11 or later"];
    expect(
        &host("guest-with-kvm-amd"),
        &[("kvm", "Fine", &[]), ("sev-snp", "Lacking", words)],
    );
    let words: &[&str] = &["64.0 MiB: 32768 slots, in use 577, most unknown, swiotlb=force"];
    let bouncing = host("guest-swiotlb");
    expect(
        &bouncing,
        &[
            ("kvm", "Lacking", &["No such file", "modprobe kvm_amd"]),
            ("swiotlb", "Fine", words),
        ],
    );
    assert_eq!(bouncing.troubles[1].causes[0].is_here, Some(false));
    let words: &[&str] = &[
        "0.2 MiB: 128 slots, in use 128, most unknown, swiotlb=128,force",
        "swiotlb=256,force on the kernel's command line (0.5 MiB)",
    ];
    let full = host("guest-swiotlb-full");
    expect(&full, &[("swiotlb", "Lacking", words)]);
    assert_eq!(full.troubles[1].causes[0].is_here, Some(true));
}

#[test]
fn a_full_bounce_buffer_is_named_with_the_size_that_helps() {
    let host = recorded("guest-full");
    let words: &[&str] = &[
        "8.0 MiB: 4096 slots, in use 4090, most 4096, swiotlb=4096,force",
        "swiotlb=8192,force on the kernel's command line (16 MiB)",
        "ethtool -L",
    ];
    expect(&host, &[("swiotlb", "Lacking", words)]);
    let trouble = &host.troubles[1];
    assert!(trouble.name.contains(FULL));
    assert_eq!(trouble.causes[0].is_here, Some(true));
    assert!(trouble.causes[0].remedy.contains("swiotlb=8192,force"));
    assert_eq!(host.troubles[0].causes[3].is_here, Some(true));
    let slots = |all, used, peak, setting: Option<&str>| Slots {
        all,
        used,
        peak,
        setting: setting.map(str::to_owned),
    };
    // A request that is larger than any piece is not helped by a larger buffer.
    for (line, expected) in [
        (
            "x: swiotlb buffer is full (sz: 262145 bytes), total 9 (slots)",
            "never fits, 262144 is",
        ),
        (
            "x: swiotlb buffer is full (sz: 262144 bytes), total 9 (slots)",
            "swiotlb=18 on",
        ),
        ("x: swiotlb buffer is full", "swiotlb=2000 on"),
        (
            "sz: 999999 total 7 swiotlb buffer is full (sz: , total 99999999999999999999",
            "=2000 ",
        ),
    ] {
        let text = remedy(line, &slots(Some(1000), None, None, Some("noforce")));
        assert!(text.contains(expected), "{line}: {text}");
    }
    // Without a line in the log: nine tenths in use is nearly full, less is not.
    for (peak, state) in [
        (899, State::Fine),
        (900, State::Lacking),
        (1000, State::Lacking),
    ] {
        assert_eq!(
            swiotlb(&slots(Some(1000), Some(0), Some(peak), None), None).0,
            state
        );
        assert_eq!(
            swiotlb(&slots(Some(1000), Some(peak), None, None), None).0,
            state
        );
    }
    assert_eq!(
        swiotlb(&slots(Some(0), Some(0), None, None), None).0,
        State::Fine
    );
    let unseen = slots(None, None, None, None);
    assert_eq!(
        swiotlb(&unseen, Some("swiotlb buffer is full")).0,
        State::Lacking
    );
    assert!(unseen.doubled(None).starts_with("swiotlb=65536 on"));
    assert!(slots(Some(u64::MAX), None, None, None)
        .doubled(Some(u64::MAX))
        .contains("MiB"));
}

#[test]
fn modules_are_judged_by_what_they_say_alone() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("proc/cpuinfo", "vendor_id\t: AuthenticAMD\n");
    fs::create_dir_all(root.path().join("sys/module/kvm_amd/parameters")).unwrap();
    let state = |flavour| {
        let (state, found, _) = technique(&Tree(root.path()), flavour);
        (state, found)
    };
    let (of, found) = state(Flavour::SevSnp);
    assert!(
        of == State::Lacking && found.contains("no parameter"),
        "{found}"
    );
    let parameter = "sys/module/kvm_amd/parameters/sev_snp";
    write(parameter, "1\n");
    let (of, found) = state(Flavour::SevSnp);
    assert!(
        of == State::Lacking && found.contains("/dev/sev"),
        "{found}"
    );
    write("dev/sev", "");
    assert_eq!(state(Flavour::SevSnp).0, State::Fine);
    for (value, expected) in [
        ("0\n", State::Lacking),
        ("\x1b[2Jmaybe", State::Unknown),
        ("", State::Unknown),
    ] {
        write(parameter, value);
        let (of, found) = state(Flavour::SevSnp);
        assert_eq!(of, expected, "{found}");
        assert!(!found.contains('\x1b'), "{found}");
    }
    // The module of another maker does not count.
    write("sys/module/kvm_intel/parameters/tdx", "Y\n");
    assert_eq!(state(Flavour::Tdx).0, State::Lacking);
    let denied = Err(io::ErrorKind::PermissionDenied.into());
    assert_eq!(
        device(denied, "modprobe").2,
        "run as root, or as a member of the group that it belongs to"
    );
}

#[test]
fn garbage_and_files_that_block_are_read_in_bounded_time() {
    let root = tempfile::tempdir().unwrap();
    let paths = [
        "dev/kvm",
        "dev/kmsg",
        "dev/net/tun",
        "dev/vhost-net",
        "dev/sev",
        "proc/cpuinfo",
        "proc/cmdline",
        "proc/meminfo",
        "proc/self/limits",
        "proc/self/status",
        "sys/module/kvm_intel/parameters/tdx",
        "sys/module/kvm_amd/parameters/sev_snp",
        "sys/kernel/debug/swiotlb/io_tlb_nslabs",
        "sys/kernel/debug/swiotlb/io_tlb_used",
        "sys/kernel/mm/transparent_hugepage/enabled",
    ];
    let clear = |path: &Path| match path.is_dir() {
        true => fs::remove_dir(path),
        false => fs::remove_file(path),
    };
    type Maker<'a> = (&'a str, &'a dyn Fn(&Path));
    let makers: [Maker<'_>; 5] = [
        ("FIFO", &|path| {
            mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap()
        }),
        ("folder", &|path| fs::create_dir(path).unwrap()),
        ("binary", &|path| {
            fs::write(path, [0xff, 0, 0x1b, b'[', b'\n'].repeat(5000)).unwrap()
        }),
        // It has a gibibyte, of which the disk has nothing.
        ("huge", &|path| {
            fs::File::create(path).unwrap().set_len(1 << 30).unwrap()
        }),
        ("link to itself", &|path| {
            std::os::unix::fs::symlink(path, path).unwrap()
        }),
    ];
    for (kind, make) in makers {
        for path in paths {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _ = clear(&path);
            make(&path);
        }
        let began = Instant::now();
        let host = Host::examine(root.path(), &Ok(Version(7, 2)), None);
        assert!(began.elapsed() < Duration::from_secs(20), "{kind}");
        let text = serde_json::to_string(&host).unwrap();
        assert!(
            text.len() < 16_000 && !text.contains("\\u001b"),
            "{kind}: {text}"
        );
        for name in ["tdx", "sev-snp"] {
            assert!(line(&host, name).starts_with("Lacking"), "{kind}");
        }
        let is_file = ["binary", "huge"].contains(&kind);
        assert_eq!(line(&host, "kvm").starts_with("Fine"), is_file, "{kind}");
        assert!(line(&host, "swiotlb").starts_with("Unknown"), "{kind}");
        assert_eq!(host.troubles[1].causes[0].is_here, Some(false), "{kind}");
    }
    assert_eq!(tree::shown("a\x1b[2J\u{9b}b"), "a\\u{1b}[2J\\u{9b}b");
    assert_eq!(tree::shown(&"x".repeat(1000)).len(), 40);
}
