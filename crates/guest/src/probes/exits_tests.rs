use super::*;

/// SVM, as kernels since 5.9 have it: the virtual processor is named, names are in lower case.
const SVM: &str = "\
# tracer: nop
#
# entries-in-buffer/entries-written: 9/9   #P:4
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
 CPU 0/KVM-x-4711    [001] d..1. 1000100: kvm_exit: vcpu 0 reason hlt rip 0xffffffff81b2d0bb info1 0x0000000000000000 info2 0x0000000000000000 intr_info 0x00000000 error_code 0x00000000
 CPU 0/KVM-x-4711    [001] d..1. 1000900: kvm_entry: vcpu 0, rip 0xffffffff81b2d0bc
 CPU 1/KVM-x-4712    [003] d..1. 1001000: kvm_exit: vcpu 1 reason npf rip 0xffffffff81001000 info1 0x0000000f info2 0xfee00000
 CPU 0/KVM-x-4711    [001] d..1. 1001050: kvm_exit: vcpu 0 reason interrupt rip 0x1 info1 0x0 info2 0x0
 CPU 1/KVM-x-4712    [003] d..1. 1003000: kvm_entry: vcpu 1, rip 0xffffffff81001003
 CPU 0/KVM-x-4711    [002] d..1. 1001070: kvm_entry: vcpu 0, rip 0x1
 CPU 0/KVM-x-4711    [002] d..1. 1002000: kvm_exit: vcpu 0 reason hlt rip 0x1 info1 0x0 info2 0x0
 CPU 1/KVM-x-4712    [003] d..1. 1003100: kvm_exit: vcpu 1 reason UD excp rip 0x1 info1 0x0 info2 0x0
 CPU 0/KVM-x-4711    [002] d..1. 1003200: kvm_exit: vcpu 0 reason UD excp rip 0x1 info1 0x0 info2 0x0
";

/// VMX, as older kernels have it: the thread stands for the virtual processor.
const VMX: &str = "\
 qemu-system-x86-21 [000] .... 500: kvm_entry: vcpu 0
 qemu-system-x86-21 [000] d... 1000: kvm_exit: reason EXIT_REASON_HLT rip 0xffffffff8104f8e6 info 0 0
 qemu-system-x86-22 [001] d... 1010: kvm_exit: reason EXTERNAL_INTERRUPT rip 0x1 info 0 800000fb
 qemu-system-x86-21 [000] d... 1300: kvm_entry: vcpu 0
 qemu-system-x86-22 [001] d... 1030: kvm_entry: vcpu 1
 qemu-system-x86-22 [001] d... 1100: kvm_exit: reason EXIT_MSR_WRITE rip 0x1 info 0 0
";

/// The format of the tracepoint, as kernels have it for both makers, without most of its names.
const FORMAT: &str = r#"
print fmt: "vcpu %u reason %s%s%s rip 0x%lx", REC->vcpu_id, (REC->isa == 1) ? __print_symbolic(
REC->exit_reason & 0xffff, { 0, "EXCEPTION_NMI" }, { 1, "EXTERNAL_INTERRUPT" }, { 12, "HLT" }) :
__print_symbolic(REC->exit_reason, { 0x000, "read_cr0" }, { 0x040 + 6, "UD excp" }, { 0x060,
"interrupt" }, { 0x078, "hlt" }, { 0x400, "npf" }), (REC->isa == 1) ? __print_flags(
REC->exit_reason & ~0xffff, " ", { 0x80000000, "FAILED_VMENTRY" }) : ""
"#;

fn parsed(text: &str) -> Exits {
    Exits::parse(text, &numbers(FORMAT))
}

fn exit(exits: &Exits, vcpu: u32, reason: &str) -> (u64, u64) {
    let exit = exits.vcpus[&vcpu][reason];
    (exit.count, exit.cycles)
}

#[test]
fn exits_of_both_makers_and_of_old_and_new_kernels_are_read() {
    let exits = parsed(SVM);
    assert_eq!(exit(&exits, 0, "hlt"), (2, 800));
    assert_eq!(exit(&exits, 0, "interrupt"), (1, 20));
    assert_eq!(exit(&exits, 1, "npf"), (1, 2000));
    assert_eq!((exits.count(), exits.lost, exits.unread), (6, 0, 0));
    let cycles = exits.vcpus.values().flat_map(BTreeMap::values);
    assert_eq!(cycles.map(|exit| exit.cycles).sum::<u64>(), 2820);
    let exits = parsed(VMX);
    assert_eq!(exit(&exits, 0, "hlt"), (1, 300));
    assert_eq!(exit(&exits, 1, "external_interrupt"), (1, 20));
    assert_eq!(exit(&exits, 1, "msr_write"), (1, 0));
}

#[test]
fn after_lost_events_an_entry_belongs_to_no_exit_seen_before() {
    let lines: Vec<&str> = VMX.lines().collect();
    for (mark, lost) in [
        ("CPU:0 [LOST 1234 EVENTS]", 1234),
        ("CPU:1 [LOST EVENTS]", 1),
    ] {
        let text = [&lines[..3], &[mark], &lines[3..]].concat().join("\n");
        let exits = parsed(&text);
        assert_eq!(exits.lost, lost);
        assert_eq!(exit(&exits, 0, "hlt"), (1, 0));
        assert_eq!(exits.count(), 3);
    }
}

#[test]
fn lines_that_are_cut_or_of_other_events_make_no_exit() {
    let whole = SVM.lines().nth(4).unwrap();
    for len in 0..whole.len() {
        let exits = parsed(&whole[..len]);
        let count = exits.count();
        assert!(
            count + exits.unread <= 1 && (count == 0 || len > 60),
            "{len}: {exits:?}"
        );
    }
    let broken = "\
 x-1 [000] d..1. 12.345678: kvm_exit: vcpu 0 reason hlt rip 0x1
 x-one [000] d..1. 12: kvm_exit: vcpu 0 reason hlt rip 0x1
 x-1 [000] d..1. 12: kvm_exit: vcpu 0
 x-1 [000] d..1. 12: kvm_userspace_exit: reason KVM_EXIT_IO (2)
 x-1 [000] d..1. 13: sched_switch: kvm_exit
";
    let exits = parsed(broken);
    assert_eq!((exits.count(), exits.unread), (0, 3), "{exits:?}");
}

#[test]
fn reasons_have_the_numbers_that_the_kernel_prints_beside_their_names() {
    let numbers = numbers(FORMAT);
    for (name, number) in [
        ("HLT", 12),
        ("hlt", 0x78),
        ("interrupt", 0x60),
        ("EXTERNAL_INTERRUPT", 1),
        ("UD excp", 0x46),
        ("read_cr0", 0),
        ("npf", 0x400),
        ("FAILED_VMENTRY", 1 << 31),
    ] {
        assert_eq!(numbers.get(name), Some(&number), "{name}");
    }
    assert_eq!(numbers.len(), 9);
    let exits = parsed(SVM);
    let number = |vcpu: u32, reason: &str| exits.vcpus[&vcpu][reason].number;
    assert_eq!(
        (number(0, "hlt"), number(1, "npf")),
        (Some(0x78), Some(0x400))
    );
    assert_eq!(number(0, "ud excp"), Some(0x46));
    // A name that the kernel has no number for.
    assert_eq!(parsed(VMX).vcpus[&0]["hlt"].number, None);
}

/// Writes a folder of tracefs as it is after a recording.
fn tree(clock: &str, overrun: u64) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("trace"), SVM).unwrap();
    fs::write(at("trace_clock"), clock).unwrap();
    fs::create_dir_all(at("events/kvm/kvm_exit")).unwrap();
    fs::write(at("events/kvm/kvm_exit/format"), FORMAT).unwrap();
    for cpu in 0..2 {
        fs::create_dir_all(at(&format!("per_cpu/cpu{cpu}"))).unwrap();
        let stats = format!("entries: 9\noverrun: {overrun}\ndropped events: 1\n");
        fs::write(at(&format!("per_cpu/cpu{cpu}/stats")), stats).unwrap();
    }
    folder
}

#[test]
fn a_recorded_folder_is_read_with_its_losses_and_only_with_cycles() {
    let folder = tree("local global mono [x86-tsc]\n", 4);
    let exits = Exits::below(folder.path()).unwrap();
    assert_eq!((exits.count(), exits.lost), (6, 10));
    let folder = tree("[local] global x86-tsc\n", 0);
    let error = Exits::below(folder.path()).unwrap_err().to_string();
    assert!(error.contains("expected [x86-tsc]"), "{error}");
}

#[test]
fn a_machine_without_the_tracepoints_says_so_and_instances_of_killed_processes_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let error = Watch::start(folder.path(), 1).err().unwrap();
    assert!(error.contains("no events/kvm/kvm_exit"), "{error}");
    fs::create_dir_all(folder.path().join("events/kvm/kvm_exit")).unwrap();
    let at = |name: &str| folder.path().join("instances").join(name);
    // No process has that number; the first one runs.
    let names = ["tare-4294967295", "tare-1", "tare-x", "other"];
    for name in names {
        fs::create_dir_all(at(name)).unwrap();
    }
    // This folder has no files of tracefs.
    let error = Watch::start(folder.path(), std::process::id())
        .err()
        .unwrap();
    assert!(error.contains("trace_clock"), "{error}");
    assert_eq!(
        names.map(|name| at(name).is_dir()),
        [false, true, true, true]
    );
}

#[test]
fn the_watch_of_a_killed_process_ends_without_another_watch() {
    let folder = tempfile::tempdir().unwrap();
    // Nothing is there.
    remove_stale(folder.path());
    let names = [
        "tare-4294967295".into(),
        format!("tare-{}", std::process::id()),
    ];
    let at = |name: &String| folder.path().join("instances").join(name);
    names
        .iter()
        .for_each(|name| fs::create_dir_all(at(name)).unwrap());
    remove_stale(folder.path());
    assert_eq!(
        names.each_ref().map(|name| at(name).is_dir()),
        [false, true]
    );
}

/// A folder of tracefs as a kernel had it: see the README there.
fn recorded(name: &str) -> std::path::PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recorded");
    Path::new(folder).join(name)
}

#[test]
fn exits_that_a_kernel_recorded_are_read_with_their_cycles_and_losses() {
    let folder = recorded("tracefs-kvm-amd");
    let exits = Exits::below(&folder).unwrap();
    for (vcpu, reason, expected) in [
        (0, "cpuid", (0x72, 22, 1_528_176)),
        (0, "hlt", (0x78, 23, 619_648_640)),
        (0, "io", (0x7b, 22, 8_942_180)),
        (0, "msr", (0x7c, 21, 9_451_390)),
        (1, "hlt", (0x78, 24, 626_478_450)),
        (1, "interrupt", (0x60, 1, 107_458)),
        (1, "io", (0x7b, 25, 10_810_878)),
        (1, "msr", (0x7c, 26, 5_382_286)),
        (1, "vintr", (0x64, 1, 41_496)),
    ] {
        let exit = exits.vcpus[&vcpu][reason];
        let found = (exit.number.unwrap(), exit.count, exit.cycles);
        assert_eq!(found, expected, "{vcpu} {reason}");
    }
    assert_eq!((exits.count(), exits.lost, exits.unread), (165, 1014, 0));
    // Its last line is cut off.
    let pipe = fs::read_to_string(folder.join("trace_pipe")).unwrap();
    let exits = parsed(&pipe);
    assert_eq!((exits.count(), exits.lost, exits.unread), (45, 1170, 0));
    assert_eq!(exit(&exits, 0, "cpuid"), (7, 509_366));
    assert_eq!(exit(&exits, 1, "vintr"), (1, 40_716));
    // The kernel's histogram names reasons by the same numbers.
    let hist = fs::read_to_string(folder.join("events/kvm/kvm_exit/hist")).unwrap();
    let format = fs::read_to_string(folder.join("events/kvm/kvm_exit/format")).unwrap();
    let numbers = numbers(&format);
    for reason in ["interrupt", "vintr", "cpuid", "hlt", "io", "msr"] {
        let key = format!("exit_reason: {:>10} }}", numbers[reason]);
        assert!(hist.contains(&key), "{reason}: {hist}");
    }
}

#[test]
fn a_kvm_that_tells_of_no_exits_has_no_count_of_them() {
    let recorded = recorded("tracefs-kvm-pvm");
    let exits = Exits::below(&recorded).unwrap();
    assert_eq!((exits.count(), exits.lost, exits.unread), (0, 0, 0));
    // Names that both makers have in other cases, with one number that is negative.
    let format = fs::read_to_string(recorded.join("events/kvm/kvm_exit/format")).unwrap();
    let numbers = numbers(&format);
    for (name, number) in [
        ("HLT", 12),
        ("hlt", 0x78),
        ("vmgexit", 0x403),
        ("AC excp", 0x51),
    ] {
        assert_eq!(numbers.get(name), Some(&number), "{name}");
    }
    assert_eq!(numbers.get("invalid_guest_state"), None);
    let folder = tempfile::tempdir().unwrap();
    for name in ["trace", "trace_clock", "events/kvm/kvm_exit/format"] {
        let to = folder.path().join(name);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(recorded.join(name), to).unwrap();
    }
    fs::create_dir(folder.path().join("per_cpu")).unwrap();
    fs::write(folder.path().join("tracing_on"), "1").unwrap();
    let error = Watch(Tracefs(folder.path().to_owned())).finish();
    assert!(error.unwrap_err().contains("no exit"));
}
