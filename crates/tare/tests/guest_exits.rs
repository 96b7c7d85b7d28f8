//! Exits of a guest, read live from KVM's tracepoints as `tare guest breakdown` reads them. Where
//! the machine has no KVM that tells of them, it is done inside an emulated guest, whose processor
//! has AMD's SVM: KVM runs there as on hardware, only slowly.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tare_guest::initramfs::Initramfs;
use tare_guest::kernel::Kernel;
use tare_guest::probes::exits::{Exits, Watch};
use tare_guest::{Accelerator, Flavour, Guest, Hardware, Stream};

const TARE: &str = env!("CARGO_BIN_EXE_tare");
const TRACEFS: &str = "/sys/kernel/tracing";

/// The longest time until both processors of the program below are seen.
const LIMIT: Duration = Duration::from_secs(120);

/// The number of emulated guests that are booted at most.
const BOOTS_MAX: u32 = 3;

/// A program for two processors in the place of a firmware: the first one goes round with one
/// CPUID, one write to a port and one HLT, the other with one read of a port and one HLT, and a
/// timer wakes each. 16-bit code, to run at 0xf0000.
const PROGRAM: [&[u8]; 15] = [
    // xor ax, ax; mov ds, ax; mov ss, ax; mov sp, 0x7000
    &[0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x70],
    // mov dword [0x20 * 4], 0xf000:0x77: the handler of the timer
    &[0x66, 0xc7, 0x06, 0x80, 0x00, 0x77, 0x00, 0x00, 0xf0],
    // mov ecx, 0x1b (APIC base); rdmsr; mov si, ax
    &[0x66, 0xb9, 0x1b, 0x00, 0x00, 0x00, 0x0f, 0x32, 0x89, 0xc6],
    // or ax, 0xc00 (x2APIC); wrmsr
    &[0x0d, 0x00, 0x0c, 0x0f, 0x30],
    // xor edx, edx; mov eax, 0x1ff; mov cx, 0x80f (on); wrmsr
    &[
        0x66, 0x31, 0xd2, 0x66, 0xb8, 0xff, 0x01, 0x00, 0x00, 0xb9, 0x0f, 0x08, 0x0f, 0x30,
    ],
    // mov al, 0x0b; mov cx, 0x83e (no division of the timer's clock); wrmsr
    &[0xb0, 0x0b, 0xb9, 0x3e, 0x08, 0x0f, 0x30],
    // mov eax, 0x20020; mov cx, 0x832 (periodic, vector 0x20); wrmsr
    &[
        0x66, 0xb8, 0x20, 0x00, 0x02, 0x00, 0xb9, 0x32, 0x08, 0x0f, 0x30,
    ],
    // mov eax, 10000000; mov cx, 0x838 (every 10 ms); wrmsr
    &[
        0x66, 0xb8, 0x80, 0x96, 0x98, 0x00, 0xb9, 0x38, 0x08, 0x0f, 0x30,
    ],
    // test si, 0x100 (first processor); jz other
    &[0xf7, 0xc6, 0x00, 0x01, 0x74, 0x1c],
    // inc dx; mov cx, 0x830; mov eax, 0x4500 (INIT to processor 1); wrmsr
    &[
        0x42, 0xb9, 0x30, 0x08, 0x66, 0xb8, 0x00, 0x45, 0x00, 0x00, 0x0f, 0x30,
    ],
    // mov ax, 0x46f0 (it starts at 0xf0000); wrmsr; sti
    &[0xb8, 0xf0, 0x46, 0x0f, 0x30, 0xfb],
    // first: xor eax, eax; cpuid; out 0x80, al; hlt; jmp first
    &[0x66, 0x31, 0xc0, 0x0f, 0xa2, 0xe6, 0x80, 0xf4, 0xeb, 0xf6],
    // other: mov sp, 0x6000; sti
    &[0xbc, 0x00, 0x60, 0xfb],
    // again: in al, 0x64; hlt; jmp again
    &[0xe4, 0x64, 0xf4, 0xeb, 0xfb],
    // xor eax, eax; xor edx, edx; mov ecx, 0x80b (EOI); wrmsr; iret
    &[
        0x66, 0x31, 0xc0, 0x66, 0x31, 0xd2, 0x66, 0xb9, 0x0b, 0x08, 0x00, 0x00, 0x0f, 0x30, 0xcf,
    ],
];

/// A firmware of 64 KiB with the program at its beginning, and a jump to it where processors begin.
fn firmware() -> Vec<u8> {
    let mut bytes = PROGRAM.concat();
    bytes.resize(1 << 16, 0);
    bytes[0xfff0..0xfff5].copy_from_slice(&[0xea, 0, 0, 0, 0xf0]);
    bytes
}

/// A QEMU that ends with this value.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The reason why KVM tells of no exits on this machine.
fn missing() -> Option<String> {
    let modules = ["kvm_amd", "kvm_intel"].map(|it| Path::new("/sys/module").join(it));
    if !modules.iter().any(|module| module.exists()) {
        return Some("neither kvm_amd nor kvm_intel is loaded".into());
    }
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        return Some(format!("/dev/kvm: {error}"));
    }
    let tracepoint = Path::new(TRACEFS).join("events/kvm/kvm_exit");
    (!tracepoint.is_dir()).then(|| format!("found no {}", tracepoint.display()))
}

/// Watches a guest with the program until both of its processors are seen.
fn watch() -> Exits {
    let file = std::env::temp_dir().join(format!("tare-exits-{}", std::process::id()));
    fs::write(&file, firmware()).unwrap();
    let options = "-machine q35 -accel kvm -cpu max -smp 2 -m 16M -nodefaults -display none";
    let qemu = Command::new("qemu-system-x86_64")
        .args(options.split(' '))
        .args(["-no-reboot", "-bios"])
        .arg(&file)
        .stdin(Stdio::null())
        .spawn();
    let qemu = Qemu(qemu.unwrap());
    let until = Instant::now() + LIMIT;
    let exits = loop {
        thread::sleep(Duration::from_secs(1));
        let watch = Watch::start(Path::new(TRACEFS), qemu.0.id()).unwrap();
        thread::sleep(Duration::from_secs(1));
        match watch.finish() {
            Ok(exits) if is_busy(&exits) => break exits,
            found => assert!(Instant::now() < until, "{found:?}"),
        }
    };
    fs::remove_file(&file).unwrap();
    exits
}

/// Returns true if both processors have gone round a few times.
fn is_busy(exits: &Exits) -> bool {
    exits.vcpus.len() == 2 && [0, 1].iter().all(|vcpu| counts(exits, *vcpu)[2] > 2)
}

/// The exits of a processor by reason: CPUID, ports, HLT.
fn counts(exits: &Exits, vcpu: u32) -> [u64; 3] {
    // AMD's names and Intel's.
    [&["cpuid"][..], &["io", "io_instruction"], &["hlt"]].map(|names| {
        let of = |name: &&str| exits.vcpus[&vcpu].get(*name).map(|exit| exit.count);
        names.iter().filter_map(of).sum()
    })
}

fn check(exits: &Exits) {
    let [first, other] = [0, 1].map(|vcpu| counts(exits, vcpu));
    assert_eq!((exits.lost, exits.unread), (0, 0), "{exits:#?}");
    // One of each in a round, and a round may be cut at either end.
    let rounds = first[2];
    assert!(first.iter().all(|it| it.abs_diff(rounds) <= 1), "{first:?}");
    assert_eq!(other[0], 0, "{exits:#?}");
    assert!(other[1].abs_diff(other[2]) <= 1, "{other:?}");
    for exit in exits.vcpus.values().flat_map(|reasons| reasons.values()) {
        assert!(exit.number.is_some() && exit.count > 0, "{exits:#?}");
    }
    let hlt = exits.vcpus[&0]["hlt"];
    assert!([Some(0x78), Some(12)].contains(&hlt.number), "{hlt:?}");
    // It waits for its timer, 10 ms in its own time.
    assert!(hlt.cycles / hlt.count > 100_000, "{hlt:?}");
}

/// Runs this test inside an emulated guest that has KVM.
///
/// # Errors
/// There is no guest, or no KVM in it: the reason.
fn inside() -> Result<(), String> {
    let kernel = Kernel::installed().map_err(|error| error.to_string())?;
    let modules = kernel.modules(&["kvm_amd"]).unwrap();
    if modules.is_empty() {
        return Err(format!("{} has no kvm_amd", kernel.modules.display()));
    }
    let mut image = Initramfs::new(Path::new(TARE), &kernel).map_err(|error| error.to_string())?;
    let own = std::env::current_exe().unwrap();
    for (program, package) in [
        (own.to_str().unwrap(), ""),
        ("qemu-system-x86_64", "qemu-system-x86"),
    ] {
        let added = image.program(program, package);
        added.map_err(|error| error.to_string())?;
    }
    let mut script = String::from("set -e\n");
    for (name, bytes) in modules {
        script += &format!("insmod /modules/{name}.ko\n");
        image.file(&format!("modules/{name}.ko"), 0o644, bytes);
    }
    let name = own.file_name().unwrap().to_str().unwrap();
    script += &format!(
        "mount -t tracefs nodev {TRACEFS}\n\
         /bin/{name} --ignored --exact --nocapture exits_are_read_live_by_processor_and_reason 2>&1\n"
    );
    let image = image.in_memory().unwrap();
    let hardware = Hardware {
        vcpus: 2,
        memory_mib: 2048,
        ..Hardware::new(Flavour::Plain, Accelerator::Emulated)
    };
    for boot in 1.. {
        let guest = Guest::boot(&hardware, &kernel, image.path(), Guest::BOOT_MAX);
        let mut guest = guest.map_err(|error| error.to_string())?;
        let mut text = String::new();
        let add = |_: Stream, bytes: &[u8]| text += &String::from_utf8_lossy(bytes);
        let exit = guest.run(&["sh", "-c", &script], io::empty(), Some(LIMIT * 2), add);
        match exit {
            // 10 s of work: an emulator that needs 240 s for it has stalled, which is not what is
            // tested here.
            Err(error) if boot < BOOTS_MAX => eprintln!("boot {boot}: {error}\n{text}"),
            Err(error) => panic!("boot {boot}: {error}\n{text}"),
            Ok(exit) => {
                assert_eq!(exit.status, Some(0), "{text}");
                assert!(text.contains("test result: ok. 1 passed"), "{text}");
                assert!(!text.contains("NOT TESTED"), "{text}");
                break;
            }
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs QEMU, root and a kernel: cargo xtask interop"]
fn exits_are_read_live_by_processor_and_reason() {
    let Some(reason) = missing() else {
        return check(&watch());
    };
    eprintln!("NOT TESTED: exits of a guest of this machine: {reason}");
    if let Err(reason) = inside() {
        eprintln!("NOT TESTED: exits of a guest in an emulated one: {reason}");
    }
}
