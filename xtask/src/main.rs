//! The project's development tasks; `cargo xtask help` lists them.

mod aarch64;
mod binaries;
mod check;
mod conditions;
mod environment;
mod hostile;
mod initramfs;
mod interop;
mod jobs;
mod mutants;
mod packages;
mod processors;
mod references;
mod shell;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use jobs::Job;

const HELP: &str = "\
The project's development tasks.

  cargo xtask test     every test; installs the packages that tests need when it may
  cargo xtask check    rustfmt, clippy, documentation, dependencies, the lock file
  cargo xtask words    the words of xtask/words.toml and the width of prose (in `check`, too)
  cargo xtask documents
                       write what the program prints into README.md and the guide (checked in `test`)
  cargo xtask book     build the guide in docs/ into docs/book
  cargo xtask emulated the tests that depend on the processor, on emulated ones (in `test`, too);
                       with the word aarch64, the cipher's on that alone
  cargo xtask conditions [NAME…]
                       a part of the tests under ignored signals, odd umasks, locales, a read-only /tmp, … (in `test`, too);
                       with names of conditions, every test under all of these at once
  cargo xtask interop  the gateway against Linux's own IPsec in a guest under QEMU, and `tare guest` (in `test`, too)
  cargo xtask references gateway [ROUNDS [SECONDS]]
                       TCP through the gateway beside boringtun and wireguard-go, which it installs (7 rounds of 4 s)
  cargo xtask mutants [CRATE [FIRST [LAST]]]
                       put deliberate faults into a copy of the sources, where tests must fail (lists: xtask/mutants);
                       several hours for all on two CPUs, an hour for gcm. With the number of a fault it begins there, as after an interruption
  cargo xtask sim [SEEDS [FIRST]]
                       remote memory over simulated lines with faults (1,000,000 seeds)
  cargo xtask hostile [--values N] [--seed N] [--seconds S] [--race S]
                       a host that lies, against the guest of a confidential VM (10,000,000 hostile values); --help says more
  cargo xtask race [S] the cipher against a hostile thread on every path, for S seconds in all (600)

Environment: CI=true makes a missing package a failure instead of a notice.
";

fn main() -> ExitCode {
    environment::clear();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["test"] => test(),
        ["check"] => check::all(),
        ["words"] => check::words(),
        ["documents"] => documents(),
        ["book"] => check::book(),
        ["emulated"] => packages::provide()
            .and_then(|()| binaries::build())
            .and_then(|all| jobs::run(processors::jobs(&all)?))
            .and_then(|()| processors::report(None)),
        ["emulated", "aarch64"] => aarch64::jobs().and_then(jobs::run),
        ["conditions"] => binaries::build().and_then(|all| jobs::run(conditions::short(&all)?)),
        ["conditions", ref names @ ..] => {
            binaries::build().and_then(|all| conditions::every_test(names, &all))
        }
        ["interop"] => packages::provide()
            .and_then(|()| binaries::build())
            .and_then(|all| interop::jobs(&all))
            .and_then(|found| jobs::run(found.beside).and_then(|()| jobs::run(found.alone))),
        ["references", "gateway"] => references::gateway(None, None),
        ["references", "gateway", rounds] => references::gateway(Some(rounds), None),
        ["references", "gateway", rounds, seconds] => {
            references::gateway(Some(rounds), Some(seconds))
        }
        ["mutants"] => mutants::run(None, 1..=usize::MAX),
        ["mutants", name, ref numbers @ ..] if numbers.len() <= 2 => {
            mutants::numbers(numbers).and_then(|numbers| mutants::run(Some(name), numbers))
        }
        ["sim"] => simulate("1000000", None),
        ["sim", seeds] => simulate(seeds, None),
        ["sim", seeds, first] => simulate(seeds, Some(first)),
        ["hostile", ref rest @ ..] => hostile::run(rest),
        ["race"] => race("600"),
        ["race", seconds] => race(seconds),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        _ => {
            eprint!("xtask: found \"{}\"\n\n{HELP}", words.join(" "));
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The long race: the tests have a short one.
fn race(seconds: &str) -> Result<(), String> {
    let arguments =
        "run --release --locked -p tare-gcm --features testing --example race -- --seconds";
    let mut arguments: Vec<&str> = arguments.split(' ').collect();
    arguments.push(seconds);
    shell::step("race", "cargo", &arguments)
}

/// More seeds than the tests have of the simulation of remote memory. Without a first one they
/// begin where no run before is likely to have been.
fn simulate(seeds: &str, first: Option<&str>) -> Result<(), String> {
    for number in [Some(seeds), first].into_iter().flatten() {
        number.parse::<u64>().map_err(|_| {
            format!("sim: found \"{number}\", expected a number of seeds, or a seed")
        })?;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_nanos() as u64 >> 1);
    let first = first.map_or_else(|| now.to_string(), str::to_owned);
    println!("xtask: {seeds} seeds from {first}");
    std::env::set_var("TARE_SEEDS", seeds);
    std::env::set_var("TARE_SEEDS_FROM", first);
    let arguments = "test --release --locked -p tare-farmem --test protocol -- \
                     every_history_is_linearizable_and_nothing_runs_twice \
                     a_lock_has_one_holder_whichever_client_is_killed_and_stale_tokens_are_refused";
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    shell::step("simulation", "cargo", &arguments)
}

/// The seed of `proptest`'s generator.
const CASES: &str = "PROPTEST_RNG_SEED";

/// Every test of the workspace, then the documentation's examples.
fn test() -> Result<(), String> {
    packages::provide()?;
    if shell::is_ci() && std::env::var_os(CASES).is_none() {
        // Whether a change passes must not depend on the cases drawn; elsewhere they are new ones.
        std::env::set_var(CASES, "1");
    }
    let exercised = processors::file("native")?;
    // A test of gcm runs this one, and Cargo builds no example for tests.
    let example = ["build", "--locked", "--workspace", "--example", "memcheck"];
    shell::step("an example for valgrind", "cargo", &example)?;
    let all = binaries::build()?;
    let in_guests = interop::jobs(&all)?;
    let said = exercised.display().to_string();
    let said = [(processors::EXERCISED, &*said)];
    let native = |binary: &binaries::Binary| binary.job("tests", &[], &[], &said);
    let mut jobs = in_guests.beside;
    jobs.extend(all.iter().map(native));
    // The compiler keeps other values on the stack there.
    jobs.push(Job::step(
        "the machine code and the wipe of a release build",
        "env",
        "RUSTFLAGS=--cfg=tare_without_references \
         cargo test --release --locked -p tare-gcm --test once --test wipe --test page_end",
    ));
    jobs.push(Job::step(
        "the cipher without the standard library",
        "cargo",
        "run --locked --quiet -p tare-gcm-without-std",
    ));
    jobs.push(Job::step(
        "documentation examples",
        "cargo",
        "test --workspace --doc --locked",
    ));
    jobs.extend(processors::jobs(&all)?);
    jobs.extend(conditions::short(&all)?);
    let beside = jobs::run(jobs);
    let alone = jobs::run(in_guests.alone);
    // The table says what has been exercised and what not.
    let reported = processors::report(Some(&exercised));
    beside.and(alone).and(reported)?;
    miri()?;
    eprintln!("xtask: every test passed");
    Ok(())
}

/// Writes the generated blocks of the documents anew.
fn documents() -> Result<(), String> {
    std::env::set_var("TARE_BLESS", "1");
    let arguments = ["test", "--workspace", "--locked", "--test", "documents"];
    shell::step("documents", "cargo", &arguments)
}

/// The cipher's portable path under Miri, where a nightly toolchain has it.
fn miri() -> Result<(), String> {
    if !shell::succeeds("cargo", &["+nightly", "miri", "setup"]) {
        eprintln!("xtask: NOT TESTED: the portable cipher under Miri: rustup component add --toolchain nightly miri rust-src");
        return Ok(());
    }
    let arguments = "+nightly miri test --locked -p tare-gcm --test portable";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    shell::step("Miri", "cargo", &arguments)
}
