//! The end of runs with guests, of which nothing is left, whatever ends them. They need QEMU, root,
//! nginx and a kernel, which `cargo xtask interop` gets where there is none.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};

const TARE: &str = env!("CARGO_BIN_EXE_tare");
/// The longest time until a guest or a server is started, on a busy machine.
const START_MAX: Duration = Duration::from_secs(120);
/// The longest time until all is gone.
const END_MAX: Duration = Duration::from_secs(60);
/// The time between two looks at all processes.
const LOOK: Duration = Duration::from_millis(25);

/// A run of `tdx/served`, in a process group of its own, with a folder for temporary files.
struct Run {
    tare: Child,
    folder: tempfile::TempDir,
}

impl Run {
    fn start() -> Run {
        Run::of(&["tdx/served"])
    }

    fn of(experiment: &[&str]) -> Run {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("tmp")).unwrap();
        let errors = fs::File::create(folder.path().join("errors")).unwrap();
        // A runner may have left signals ignored, as `nohup` does.
        let tare = Command::new("env")
            .args(["--default-signal=HUP,INT,TERM", TARE])
            .args(["run", "--rounds", "1"])
            .args(experiment)
            .arg("--out")
            .arg(folder.path().join("out"))
            .env("TMPDIR", folder.path().join("tmp"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .process_group(0)
            .spawn()
            .unwrap();
        Run { tare, folder }
    }

    /// Waits until a process of a trial is executing this program, and returns its number and its
    /// network namespace. One that ends meanwhile has none.
    fn await_program(&mut self, program: &str) -> (u32, String) {
        let until = Instant::now() + START_MAX;
        loop {
            let mine = self.processes().into_iter();
            let mut found = mine.filter(|pid| name(*pid).starts_with(program));
            let with_namespace = |pid: u32| Some((pid, namespace(&pid.to_string())?));
            if let Some(found) = found.find_map(with_namespace) {
                return found;
            }
            let ended = self.tare.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.errors());
            assert!(Instant::now() < until, "no {program}: {}", self.errors());
            thread::sleep(LOOK);
        }
    }

    /// The processes of its trials that live, which the mark in their environment shows.
    fn processes(&self) -> Vec<u32> {
        let mark = format!("TARE_TRIAL={}-", self.tare.id());
        let is_mine = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|one| one.starts_with(mark.as_bytes()))
        };
        numbers("/proc").into_iter().filter(is_mine).collect()
    }

    fn temporary(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path().join("tmp")).unwrap();
        entries.flatten().map(|entry| entry.path()).collect()
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.folder.path().join("errors")).unwrap_or_default()
    }

    fn records(&self) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.folder.path().join("out/samples.jsonl"));
        let text = text.unwrap_or_else(|error| panic!("{error}: {}", self.errors()));
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }

    fn signal(&self, signal: Signal) {
        kill(self.tare.id(), signal);
    }

    fn exit_code(&mut self) -> Option<i32> {
        self.tare.wait().unwrap().code()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.tare.kill();
        let _ = self.tare.wait();
    }
}

fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).unwrap();
    kill_process(pid, signal).unwrap();
}

fn numbers(folder: impl AsRef<Path>) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}

fn name(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let program = String::from_utf8_lossy(line.split(|byte| *byte == 0).next().unwrap_or(&[]));
    let program = program.trim_start_matches("nginx: master process ");
    program.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The network namespace of a process, by its number or `self`; `None` if it is gone.
fn namespace(process: &str) -> Option<String> {
    let link = fs::read_link(format!("/proc/{process}/ns/net")).ok()?;
    Some(link.display().to_string())
}

/// The network namespaces of processes and of names, but for this process's own.
fn namespaces() -> BTreeSet<String> {
    let own = namespace("self");
    let mut all: BTreeSet<String> = numbers("/proc")
        .into_iter()
        .filter_map(|pid| namespace(&pid.to_string()))
        .filter(|it| Some(it) != own.as_ref())
        .collect();
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    all.extend(names.map(|entry| entry.path().display().to_string()));
    all
}

/// The parts of the machine that a run could leave: network interfaces and shared memory, without
/// the folders of other tests, which may run meanwhile.
fn machine() -> BTreeSet<PathBuf> {
    let folders = ["/sys/class/net", "/dev/shm"].map(fs::read_dir);
    let entries = folders.into_iter().flatten().flatten().flatten();
    let is_a_test_s = |name: &OsStr| name.as_bytes().starts_with(b"tare-test-");
    entries
        .filter(|entry| !is_a_test_s(&entry.file_name()))
        .map(|entry| entry.path())
        .collect()
}

/// Waits until this is true, and returns how long that took.
fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < END_MAX, "{what} after {END_MAX:?}");
        thread::sleep(LOOK);
    }
    began.elapsed()
}

#[test]
#[ignore = "needs QEMU, nginx, root and a kernel: cargo xtask interop"]
fn a_run_that_is_killed_leaves_no_process_and_its_folder_until_the_next_command() {
    for (experiment, program) in [
        ("tdx/served", "qemu-system"),
        ("tdx/served", "nginx"),
        // Of 30 s, which is longer than it is waited for.
        ("tdx/nginx", "wrk"),
    ] {
        let machine_before = machine();
        let mut run = Run::of(&[experiment, "--full"]);
        let (_, space) = run.await_program(program);
        run.signal(Signal::KILL);
        assert_eq!(run.exit_code(), None);
        // By the kernel: nothing of Tare runs any more.
        let time = until(&format!("processes with {program}"), || {
            run.processes().is_empty()
        });
        until("a network namespace", || !namespaces().contains(&space));
        eprintln!("SIGKILL with {program}: all processes gone after {time:?}");
        assert_eq!(machine(), machine_before);
        assert_eq!(run.temporary().len(), 1, "the trial's folder");
        let next = Command::new(TARE)
            .args([
                "guest",
                "boot",
                "--kernel",
                "/absent",
                "--modules",
                "/absent",
            ])
            .env("TMPDIR", run.folder.path().join("tmp"))
            .output();
        assert_eq!(next.unwrap().status.code(), Some(2));
        assert_eq!(run.temporary(), Vec::<PathBuf>::new());
    }
}

#[test]
#[ignore = "needs QEMU, nginx, root and a kernel: cargo xtask interop"]
fn a_process_that_outlives_a_killed_run_ends_with_the_next_command() {
    // The mark of a run whose number no process has: that of one that has ended.
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let mark = |pid: u32| format!("{pid}-0");
    let sleeper = |mark: String| {
        let mut command = Command::new("sleep");
        command.arg("1000").env("TARE_TRIAL", mark).spawn().unwrap()
    };
    let mut orphan = sleeper(mark(ended.id()));
    let mut child = sleeper(mark(std::process::id()));
    let mut other = sleeper("not-a-number".into());
    let next = Command::new(TARE)
        .args([
            "guest",
            "boot",
            "--kernel",
            "/absent",
            "--modules",
            "/absent",
        ])
        .output();
    assert_eq!(next.unwrap().status.code(), Some(2));
    until("an orphan", || orphan.try_wait().unwrap().is_some());
    for child in [&mut child, &mut other] {
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
#[ignore = "needs QEMU, nginx, root and a kernel: cargo xtask interop"]
fn a_run_that_is_told_to_end_leaves_nothing() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let machine_before = machine();
        let mut run = Run::start();
        let (_, space) = run.await_program("qemu-system");
        run.signal(signal);
        let began = Instant::now();
        assert_eq!(run.exit_code(), Some(130), "{signal:?}: {}", run.errors());
        assert!(began.elapsed() < END_MAX, "{signal:?}");
        // Nothing is left when it has ended.
        assert_eq!(run.processes(), Vec::<u32>::new(), "{signal:?}");
        assert_eq!(run.temporary(), Vec::<PathBuf>::new(), "{signal:?}");
        assert!(!namespaces().contains(&space));
        assert_eq!(machine(), machine_before, "{signal:?}");
        eprintln!("{signal:?}: ended after {:?}", began.elapsed());
    }
}

#[test]
#[ignore = "needs QEMU, nginx, root and a kernel: cargo xtask interop"]
fn a_trial_that_is_killed_takes_its_guest_with_it_and_the_run_goes_on() {
    let mut run = Run::start();
    let (qemu, space) = run.await_program("qemu-system");
    let stat = fs::read_to_string(format!("/proc/{qemu}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    let trial = fields.split_whitespace().nth(1).unwrap().parse().unwrap();
    kill(trial, Signal::KILL);
    let time = until("QEMU", || !name(qemu).starts_with("qemu-system"));
    until("a network namespace", || !namespaces().contains(&space));
    eprintln!("SIGKILL of the trial: QEMU gone after {time:?}");
    assert_eq!(run.exit_code(), Some(0), "{}", run.errors());
    let records = run.records();
    let of = |status: &str| {
        let mut outcomes = records.iter().map(|record| &record["outcome"]["status"]);
        outcomes.by_ref().filter(|it| *it == status).count()
    };
    // Two guests and two places of the host, one of them twice: the baseline.
    assert_eq!(of("failed"), 1, "{records:?}");
    assert!(of("done") >= 3, "{records:?}");
    assert!(run.processes().is_empty() && run.temporary().is_empty());
}

#[test]
#[ignore = "needs QEMU, nginx, root and a kernel: cargo xtask interop"]
fn two_runs_at_once_do_not_disturb_each_other_and_keep_their_evidence() {
    let mut runs = [Run::start(), Run::start()];
    for run in &mut runs {
        assert_eq!(run.exit_code(), Some(0), "{}", run.errors());
        assert!(run.processes().is_empty() && run.temporary().is_empty());
        for record in run.records() {
            let outcome = &record["outcome"];
            assert_eq!(outcome["status"], "done", "{record:#}");
            for counter in ["miscounted", "unbounced"] {
                assert_eq!(outcome["counters"][counter], 0, "{record:#}");
            }
            let place = record["at"]["place"].as_str().unwrap();
            let notes = record["notes"].as_object().into_iter().flatten();
            let mut evidence = notes.filter(|(name, _)| name.ends_with("guest"));
            let evidence = evidence.next().map(|(_, evidence)| evidence);
            assert_eq!(evidence.is_some(), place != "loopback" && place != "bridge");
            let Some(evidence) = evidence else { continue };
            assert!(evidence["kernel"].as_str().unwrap().len() > 3, "{record:#}");
            // Neither is confidential, and neither says so.
            assert_eq!(evidence["attestation"], serde_json::json!([]));
            assert_eq!(evidence["encryption"], serde_json::json!([]));
            let used = evidence["bounce_slots_used"].as_u64().unwrap_or(0);
            assert_eq!(used > 0, place == "swiotlb", "{record:#}");
        }
    }
}
