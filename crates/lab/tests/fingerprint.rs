//! The machine's fingerprint, from trees that look like the kernel's.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tare_lab::fingerprint::{Interface, Machine};
use tempfile::TempDir;

fn tree(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

#[test]
fn the_fingerprint_of_a_laptop_is_complete() {
    let root = tree(&[
        (
            "proc/cpuinfo",
            "processor\t: 0\nmodel name\t: Intel(R) Core(TM) i7-3920XM CPU @ 2.90GHz\n\
             flags\t\t: fpu aes rdrand\n\nprocessor\t: 1\nmodel name\t: another\n",
        ),
        ("proc/cmdline", "BOOT_IMAGE=/vmlinuz quiet\n"),
        (
            "proc/meminfo",
            "MemTotal:        4028416 kB\nMemFree: 12 kB\n",
        ),
        ("proc/loadavg", "0.25 0.50 0.75 1/234 5678\n"),
        ("proc/sys/kernel/ostype", "Linux\n"),
        ("proc/sys/kernel/osrelease", "6.18.1\n"),
        ("proc/sys/kernel/version", "#1 SMP\n"),
        (
            "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
            "0,4\n",
        ),
        (
            "sys/devices/system/cpu/cpu1/topology/thread_siblings_list",
            "1\n",
        ),
        (
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
            "powersave\n",
        ),
        (
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
            "powersave\n",
        ),
        ("sys/devices/system/cpu/cpufreq/boost", "1\n"),
        ("sys/devices/system/cpu/intel_pstate/no_turbo", "0\n"),
        (
            "sys/devices/system/cpu/vulnerabilities/srbds",
            "Mitigation: Microcode\n",
        ),
        ("sys/class/dmi/id/sys_vendor", "Hewlett-Packard\n"),
        ("sys/class/net/eth0/speed", "1000\n"),
        ("sys/class/net/br0/speed", "-1\n"),
        (
            "sys/class/net/br0/uevent",
            "DEVTYPE=bridge\nINTERFACE=br0\n",
        ),
        ("sys/class/net/lo/uevent", "INTERFACE=lo\n"),
        ("sys/class/net/eth0/device/vendor", "0x8086\n"),
    ]);
    let driver = root.path().join("sys/class/net/eth0/device/driver");
    symlink("../../../bus/pci/drivers/e1000e", driver).unwrap();

    let machine = Machine::read_from(root.path());
    let cpus = std::thread::available_parallelism().unwrap().get();
    let interface = |name: &str, driver: Option<&str>, speed_mbit| Interface {
        name: name.into(),
        driver: driver.map(str::to_owned),
        speed_mbit,
    };
    let expected = Machine {
        cpus,
        cpu_model: Some("Intel(R) Core(TM) i7-3920XM CPU @ 2.90GHz".into()),
        cpu_flags: vec!["fpu".into(), "aes".into(), "rdrand".into()],
        threads_per_core: Some(2),
        hypervisor: None,
        governor: Some("powersave".into()),
        turbo: Some(true),
        mitigations: [("srbds".to_owned(), "Mitigation: Microcode".to_owned())].into(),
        kernel: "Linux 6.18.1 #1 SMP".into(),
        kernel_command_line: Some("BOOT_IMAGE=/vmlinuz quiet".into()),
        memory: Some(4_125_097_984),
        interfaces: vec![
            interface("br0", Some("bridge"), None),
            interface("eth0", Some("e1000e"), Some(1000)),
            interface("lo", None, None),
        ],
        load: Some(0.25),
    };
    assert_eq!(machine, expected);
}

#[test]
fn what_the_kernel_does_not_say_is_absent() {
    let nothing = Machine::read_from(tree(&[]).path());
    let expected = Machine {
        cpus: nothing.cpus,
        ..Machine::default()
    };
    assert_eq!(nothing, expected);
    assert!(nothing.cpus >= 1);
    assert_eq!(nothing.warnings(), Vec::<String>::new());

    let rubbish = Machine::read_from(
        tree(&[
            ("proc/cpuinfo", "\n\nno colon\n"),
            ("proc/meminfo", "MemTotal: much\n"),
            ("proc/loadavg", "nan 1 2\n"),
            ("sys/devices/system/cpu/cpufreq/boost", "maybe\n"),
            (
                "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
                "3-1\n",
            ),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "\n"),
        ])
        .path(),
    );
    assert_eq!(rubbish, expected);
}

#[test]
fn a_guest_is_known_by_its_processor_flag_and_named_by_its_board() {
    let flag = ("proc/cpuinfo", "flags : fpu hypervisor\n");
    let board = ("sys/class/dmi/id/sys_vendor", "QEMU\n");
    let xen = ("sys/hypervisor/type", "xen\n");
    for (files, expected) in [
        (&[flag, board, xen][..], Some("xen")),
        (&[flag, board], Some("QEMU")),
        (&[flag], Some("unnamed hypervisor")),
        (&[board], None),
    ] {
        let machine = Machine::read_from(tree(files).path());
        assert_eq!(machine.hypervisor.as_deref(), expected);
    }
}

#[test]
fn turbo_is_read_from_either_driver() {
    for (file, text, expected) in [
        ("intel_pstate/no_turbo", "1", Some(false)),
        ("intel_pstate/no_turbo", "0", Some(true)),
        ("cpufreq/boost", "0", Some(false)),
        ("cpufreq/boost", "1", Some(true)),
    ] {
        let path = format!("sys/devices/system/cpu/{file}");
        let machine = Machine::read_from(tree(&[(&path, text)]).path());
        assert_eq!(machine.turbo, expected, "{file} {text}");
    }
}

#[test]
fn a_warning_says_what_it_does_to_the_result_and_how_to_change_it() {
    let quiet = || Machine {
        cpus: 4,
        governor: Some("performance".into()),
        turbo: Some(false),
        load: Some(2.0),
        threads_per_core: Some(1),
        ..Machine::default()
    };
    assert_eq!(quiet().warnings(), Vec::<String>::new());
    let cases: [(Machine, &[&str]); 6] = [
        (
            Machine {
                governor: Some("powersave".into()),
                ..quiet()
            },
            &[
                "\"powersave\"",
                "clock",
                "`sudo cpupower frequency-set -g performance`",
            ],
        ),
        (
            Machine {
                turbo: Some(true),
                ..quiet()
            },
            &[
                "Turbo",
                "bad scaling",
                "`sudo cpupower set --turbo-boost 0`",
            ],
        ),
        (
            Machine {
                load: Some(2.01),
                ..quiet()
            },
            &["2.01 on 4 processors", "wall clock", "`top`"],
        ),
        (
            Machine {
                threads_per_core: Some(2),
                ..quiet()
            },
            &["SMT", "share one core", "smt/control`"],
        ),
        (
            Machine {
                hypervisor: Some("QEMU".into()),
                ..quiet()
            },
            &["virtual machine (QEMU)", "other guests", "ratios"],
        ),
        (
            Machine {
                load: Some(0.51),
                cpus: 1,
                ..quiet()
            },
            &["0.51 on 1 processor,"],
        ),
    ];
    for (machine, parts) in cases {
        let warnings = machine.warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        for part in parts {
            assert!(warnings[0].contains(part), "{} lacks {part}", warnings[0]);
        }
        assert_eq!(
            warnings[0].matches(". ").count(),
            0,
            "one sentence: {}",
            warnings[0]
        );
    }
}

#[test]
fn this_machine_can_be_read() {
    let machine = Machine::read();
    assert!(machine.cpus >= 1);
    if Path::new("/proc/version").exists() {
        assert!(machine.kernel.starts_with("Linux "), "{}", machine.kernel);
        assert!(machine.memory > Some(0));
        assert!(machine.load.is_some());
    }
}
