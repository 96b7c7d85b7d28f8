//! The speed of the C functions relative to the bare instruction loop, through the shared library
//! and through the static one.
//!
//! ```text
//! cargo bench -p tare-rdrand-capi                    # 301 pairs each
//! cargo bench -p tare-rdrand-capi -- 1001 --check    # more; exit 1 where a limit is missed
//! ```
//!
//! `against_bare.c` is the workload, compiled with gcc against both libraries as any program
//! would be: pairs of (bare loop, library call) over the same number of quadwords, in
//! alternating order, in processor time of the thread. Each pair gives one ratio of speeds.
//!
//! The hardware is shared: while another processor draws, each draw takes longer, the library's
//! own part hides behind it, and the ratios flatter. So the time of one bare draw is printed,
//! and a table in which it varies by more than a tenth is called contended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Pairs for each function and size, if the caller names no number.
const ROUNDS: usize = 301;

/// Quadwords of one side of one pair, as in the C program.
const QUADWORDS_A_SIDE: f64 = 32_768.0;

/// The least speed of the functions relative to the bare loop, by quadwords per call.
const LIMITS: [(usize, f64); 2] = [(1, 0.90), (2048, 0.97)];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` runs benchmarks without this.
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("against_bare: nothing is measured without `cargo bench`");
        return ExitCode::SUCCESS;
    }
    let check = arguments.iter().any(|argument| argument == "--check");
    let rounds = arguments
        .iter()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(ROUNDS);
    match run(rounds) {
        Ok(missed) if check && missed > 0 => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("against_bare: {message}");
            ExitCode::from(2)
        }
    }
}

/// Measures both libraries; how many limits were missed.
fn run(rounds: usize) -> Result<usize, String> {
    let path = libraries()?;
    let archive = path.join("librdrand.a");
    let directory = format!("-L{}", path.display());
    let mut missed = 0;
    for (name, linking) in [
        ("shared", vec![directory.as_str(), "-lrdrand"]),
        (
            "static",
            vec![text_of(&archive)?, "-lpthread", "-ldl", "-lm"],
        ),
    ] {
        let program = compile(name, &linking)?;
        let output = Command::new(&program)
            .arg(rounds.to_string())
            .env("LD_LIBRARY_PATH", &path)
            .output()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        println!("\n{name} library, {rounds} pairs; speed relative to the bare loop, 1 = as fast");
        missed += table(&String::from_utf8_lossy(&output.stdout))?;
    }
    Ok(missed)
}

/// Builds the libraries into a directory of this program's own.
fn libraries() -> Result<PathBuf, String> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
    let manifest = format!("{HERE}/Cargo.toml");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "--lib", "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        .env_remove("CARGO_BUILD_TARGET")
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    if built.success() {
        Ok(target.join("release"))
    } else {
        Err("the libraries do not build".to_owned())
    }
}

fn compile(name: &str, linking: &[&str]) -> Result<PathBuf, String> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("against_bare_{name}"));
    let compiled = Command::new("gcc")
        .args(["-std=gnu99", "-O2", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-I{HERE}/include"))
        .arg(format!("{HERE}/benches/against_bare.c"))
        .arg("-o")
        .arg(&program)
        .args(linking)
        .status()
        .map_err(|error| format!("gcc is needed: {error}"))?;
    if compiled.success() {
        Ok(program)
    } else {
        Err("gcc fails".to_owned())
    }
}

fn text_of(path: &Path) -> Result<&str, String> {
    path.to_str()
        .ok_or_else(|| format!("{}: not UTF-8", path.display()))
}

/// The pairs of one function and size.
#[derive(Default)]
struct Pairs {
    ratios: Vec<f64>,
    bare_ns: Vec<f64>,
    extra_ns: Vec<f64>,
}

/// Prints a row for each function and size; how many limits were missed.
fn table(lines: &str) -> Result<usize, String> {
    let mut rows: BTreeMap<(usize, &str), Pairs> = BTreeMap::new();
    for line in lines.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let parsed = match fields[..] {
            [function, quadwords, bare, library] => quadwords
                .parse::<usize>()
                .ok()
                .zip(bare.parse::<f64>().ok())
                .zip(library.parse::<f64>().ok())
                .map(|((quadwords, bare), library)| (function, quadwords, bare, library)),
            _ => None,
        };
        let (function, quadwords, bare, library) =
            parsed.ok_or_else(|| format!("what is {line:?}?"))?;
        let pairs = rows.entry((quadwords, function)).or_default();
        pairs.ratios.push(bare / library);
        pairs.bare_ns.push(bare / QUADWORDS_A_SIDE);
        let calls = QUADWORDS_A_SIDE / quadwords as f64;
        pairs.extra_ns.push((library - bare) / calls);
    }

    println!(
        "quadwords  function                       median (quartiles)       bare draw  a call more"
    );
    let (mut missed, mut fastest, mut slowest) = (0, f64::INFINITY, 0.0_f64);
    for ((quadwords, function), mut pairs) in rows {
        let median = quantile(&mut pairs.ratios, 0.5);
        let bare_ns = quantile(&mut pairs.bare_ns, 0.5);
        (fastest, slowest) = (fastest.min(bare_ns), slowest.max(bare_ns));
        let limit = LIMITS
            .iter()
            .find(|(size, _)| *size == quadwords)
            .map(|(_, limit)| *limit);
        let verdict = match limit {
            None => String::new(),
            Some(limit) if median >= limit => format!("  ≥ {limit:.2}"),
            Some(limit) => {
                missed += 1;
                format!("  MISSES {limit:.2}")
            }
        };
        println!(
            "{quadwords:>9}  {function:<29}  {median:.3} ({:.3}–{:.3})  {bare_ns:>9.2} ns  {:>8.1} ns{verdict}",
            quantile(&mut pairs.ratios, 0.25),
            quantile(&mut pairs.ratios, 0.75),
            quantile(&mut pairs.extra_ns, 0.5),
        );
    }
    if slowest > 1.1 * fastest {
        println!("CONTENDED: another program draws too, and the ratios of the slow rows flatter");
    }
    Ok(missed)
}

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}
