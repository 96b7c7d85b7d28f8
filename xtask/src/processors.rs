//! The paths that the tests have exercised: on this processor, and on emulated ones that lack what
//! this one has.
//!
//! A test that has exercised a path or a source says so in a line (`gcm ran aesni`) that it appends
//! to the file which `TARE_EXERCISED` names.

use std::fs;
use std::path::PathBuf;

use crate::aarch64;
use crate::binaries::{self, Binary};
use crate::jobs::Job;
use crate::shell::{has, is_ci, root};

/// The variable that names the file in which tests say what they exercised.
pub(crate) const EXERCISED: &str = "TARE_EXERCISED";

/// The emulator: Debian's qemu-user.
const QEMU: &str = "qemu-x86_64";

/// Everything that can be exercised, as the tests write it.
const SUBJECTS: [&str; 7] = [
    "gcm ran vaes512",
    "gcm ran vaes256",
    "gcm ran aesni",
    "gcm ran neon",
    "gcm ran portable",
    "rdrand ran RDRAND",
    "rdrand ran RDSEED",
];

/// An emulated processor.
pub(crate) struct Emulated {
    /// Its name to QEMU; that of AArch64, of the whole family.
    pub(crate) cpu: &'static str,
    pub(crate) about: &'static str,
    /// Lines that the tests must write there, and lines that they must not.
    pub(crate) must: &'static [&'static str],
    pub(crate) must_not: &'static [&'static str],
    /// The cipher's path that the tests which take longest leave out there.
    pub(crate) left_out: &'static str,
}

/// The environment variable that names it to those tests.
const PATH_LEFT_OUT: &str = "TARE_GCM_LEFT_OUT";

const EMULATED: [Emulated; 3] = [
    Emulated {
        cpu: "qemu64",
        about: "neither AES nor AVX, neither RDRAND nor RDSEED",
        must: &["gcm chosen portable", "gcm ran portable"],
        must_not: &["gcm ran aesni", "rdrand ran RDRAND", "rdrand ran RDSEED"],
        left_out: "",
    },
    Emulated {
        cpu: "Westmere",
        about: "AES-NI without AVX, neither RDRAND nor RDSEED",
        must: &[
            "gcm chosen aesni",
            "gcm ran aesni",
            "gcm ran portable",
            "gcm counted aesni",
        ],
        must_not: &["gcm ran vaes256", "rdrand ran RDRAND", "rdrand ran RDSEED"],
        left_out: "portable",
    },
    // QEMU 7.2 has AVX2, VAES and RDRAND, but neither VPCLMULQDQ, AVX-512 nor RDSEED; later ones
    // have more.
    Emulated {
        cpu: "max",
        about: "all that the emulator has",
        must: &["gcm ran aesni", "gcm ran portable", "rdrand ran RDRAND"],
        must_not: &[],
        left_out: "portable",
    },
];

/// The test programs whose outcome may depend on the processor, besides [`PATHS`]. Left out are
/// those that cannot run under the emulator (the cipher's `memcheck` needs valgrind; a process with
/// threads that forks, as that of the random numbers' `fork`, hangs in QEMU 7.2; the lab's `roles`,
/// `runs` and `trials` watch processes by system calls that its user mode lacks) and those that
/// take minutes there.
const SUITES: &[&str] = &[
    "crates/gcm batch",
    "crates/gcm contract",
    "crates/gcm portable",
    "crates/gcm race",
    "crates/gcm vectors",
    "crates/gcm tare_gcm",
    "crates/packet tare_packet",
    "crates/rdrand exercised",
    "crates/rdrand hardware",
    "crates/rdrand properties",
    "crates/rdrand scripted",
    "crates/rdrand seed",
    "crates/rdrand tare_rdrand",
    "crates/rdrand/capi rdrand",
];

/// Those that take longest, of which each looks at every path of the cipher by force. They run on
/// one processor for each path that is chosen on these; a second one would run the same code again.
const PATHS: &[&str] = &["crates/gcm differential", "crates/gcm wipe"];

/// The one that counts accesses to shared memory. It runs on the processors that must count those
/// of a path. Those of the portable path, in copies that do not ask for the processor, are the same
/// instructions on every x86-64, and are counted on this one.
const COUNTS: &[&str] = &["crates/gcm once"];

/// A program without code of its own for any processor: its arithmetic runs on the one that has the
/// least, where compiled code differs most from what runs here.
const ANYWHERE: &[&str] = &["crates/lab tare_lab"];

/// Tests of those programs that are left out, by the beginning of their names. Simulations of
/// verdicts are plain arithmetic that takes minutes there. Messages and additional data of more
/// than 64 KiB took two thirds of the time of the cipher's `differential` there, and run on every
/// path of this processor. Of tests that start a program a few in a hundred hang on a busy machine,
/// as the emulator forks for it: one of these reads the cipher's machine code by objdump, which is
/// the same on every processor; the other starts itself with RDSEED switched off, which none of
/// these has.
const LEFT_OUT: &[&str] = &[
    "additional_data_may_be_longer_than_64_kib",
    "long_messages_carry_the_counter",
    "judge::tests::decisions::what_is_decided_is_kept_or_taken_back_and_never_turned_round",
    "machine_code::",
    "rdseed_can_be_switched_off_by_the_environment",
];

/// The time that a test program may take there: only a hang takes as long, even where neighbours
/// keep the CPUs busy.
pub(crate) const LIMIT_SECONDS: &str = "7200";

fn folder() -> Result<PathBuf, String> {
    let folder = root().join("target/exercised");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// The file for what the tests say that they exercised on a processor.
pub(crate) fn file(processor: &str) -> Result<PathBuf, String> {
    let file = folder()?.join(processor);
    match fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", file.display()))
        }
        _ => Ok(file),
    }
}

/// The tests on the emulated processors, as jobs; [`report`] follows them.
pub(crate) fn jobs(all: &[Binary]) -> Result<Vec<Job>, String> {
    if !has(QEMU) {
        return Ok(Vec::new());
    }
    eprintln!(
        "xtask: left out on emulated processors, as they are slow or start programs: {}",
        LEFT_OUT.join(", ")
    );
    let skip: Vec<&str> = LEFT_OUT.iter().flat_map(|name| ["--skip", name]).collect();
    let mut jobs = Vec::new();
    for processor in &EMULATED {
        let said = file(processor.cpu)?.display().to_string();
        let title = format!("on an emulated {}", processor.cpu);
        let prefix = ["timeout", LIMIT_SECONDS, QEMU, "-cpu", processor.cpu].map(str::to_owned);
        let anywhere = match processor.cpu == EMULATED[0].cpu {
            true => ANYWHERE,
            false => &[],
        };
        let must = |line: &str| processor.must.iter().any(|it| it.starts_with(line));
        let paths = if must("gcm chosen") { PATHS } else { &[] };
        let counts = if must("gcm counted") { COUNTS } else { &[] };
        for suites in [SUITES, paths, counts, anywhere] {
            for binary in binaries::choose(all, suites)? {
                let variables = [(EXERCISED, &*said), (PATH_LEFT_OUT, processor.left_out)];
                jobs.push(binary.job(&title, &prefix, &skip, &variables));
            }
        }
    }
    jobs.extend(aarch64::jobs()?);
    Ok(jobs)
}

/// Prints what was exercised by the tests that passed on the emulated processors; `native` is the
/// file of this one, where they have run.
pub(crate) fn report(native: Option<&PathBuf>) -> Result<(), String> {
    let mut rows = Vec::new();
    let mut complaints = Vec::new();
    if let Some(file) = native {
        let said = read(file);
        for path in expected_here() {
            // The accesses of every path that runs are counted, too.
            for line in [path.to_owned(), path.replace("gcm ran", "gcm counted")] {
                if !said.contains(&line) {
                    complaints.push(format!("this processor: expected \"{line}\""));
                }
            }
        }
        rows.push(("this one", "", said));
    }
    if has(QEMU) {
        let foreign = aarch64::is_tested().then_some(&aarch64::PROCESSOR);
        for processor in EMULATED.iter().chain(foreign) {
            let said = read(&folder()?.join(processor.cpu));
            for line in processor.must {
                if !said.iter().any(|other| other == line) {
                    complaints.push(format!("{}: expected \"{line}\"", processor.cpu));
                }
            }
            for line in processor.must_not {
                if said.iter().any(|other| other == line) {
                    complaints.push(format!("{}: found \"{line}\"", processor.cpu));
                }
            }
            rows.push((processor.cpu, processor.about, said));
        }
    } else {
        complaints.push(format!(
            "emulated processors: {QEMU} is missing (package qemu-user)"
        ));
    }
    print(&rows);
    for complaint in &complaints {
        eprintln!("xtask: NOT TESTED: {complaint}");
    }
    if is_ci() && !complaints.is_empty() {
        return Err("CI=true and paths were not exercised where they should have been".into());
    }
    Ok(())
}

fn read(file: &PathBuf) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The paths that must be exercised here, by what the kernel says of the processor and not by what
/// the crates find.
fn expected_here() -> Vec<&'static str> {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // On AArch64 they are called features.
    let flags = text
        .lines()
        .find(|line| line.starts_with("flags") || line.starts_with("Features"));
    let has = |names: &str| {
        let flags: Vec<&str> = flags.unwrap_or_default().split_whitespace().collect();
        let mut names = names.split_whitespace();
        names.all(|name| flags.contains(&name))
    };
    let aes = "aes pclmulqdq ssse3 sse4_1";
    let vaes = "avx2 vaes vpclmulqdq";
    let conditions = [
        format!("{aes} {vaes} avx512f avx512bw avx512vl avx512dq avx512vbmi bmi1 bmi2"),
        format!("{aes} {vaes}"),
        aes.into(),
        "asimd aes pmull".into(),
        String::new(),
        "rdrand".into(),
        "rdseed".into(),
    ];
    let subjects = SUBJECTS.into_iter().zip(conditions);
    let here = subjects.filter(|(_, names)| has(names));
    here.map(|(subject, _)| subject).collect()
}

/// A line for each processor: what the cipher chose there, and what was exercised and what not.
fn print(rows: &[(&str, &str, Vec<String>)]) {
    eprintln!("\nxtask: exercised by tests that passed:");
    let names = SUBJECTS.map(|subject| subject.rsplit(' ').next().unwrap_or(subject));
    eprintln!("  {:10} {:10} {}", "processor", "chosen", names.join(" "));
    for (cpu, about, said) in rows {
        let chosen = said
            .iter()
            .find_map(|line| line.strip_prefix("gcm chosen "))
            .unwrap_or("-");
        let cells = SUBJECTS.iter().zip(names).map(|(subject, name)| {
            let ran = said.iter().any(|line| line == subject);
            format!(
                "{:width$}",
                if ran { "yes" } else { "no" },
                width = name.len()
            )
        });
        let cells: Vec<String> = cells.collect();
        eprintln!("  {cpu:10} {chosen:10} {} {about}", cells.join(" "));
    }
}
