//! A run's directory: `run.json` (the plan), `samples.jsonl` (a line per trial, appended as it
//! ends), `logs/` (of trials that failed) and whatever a report adds.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::experiment::ROUNDS_MAX;
use crate::file::MAX_CELLS;
use crate::plan::{Done, Plan, Trial};
use crate::result::SCHEMA;
use crate::sample::{Outcome, TrialRecord};
use crate::schedule::Schedule;

/// The largest `run.json` or `samples.jsonl` that is read, in bytes.
const FILE_MAX: u64 = 1 << 30;

/// The most axes of an experiment in a run: more than a file may give, since an import makes an
/// axis of each parameter of its logs.
pub const AXES_MAX: usize = 64;

/// A run on disk, held by this process alone.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    plan: Plan,
    records: Vec<TrialRecord>,
    samples: File,
    /// The length of the whole lines, if a line that was cut short follows them.
    torn: Option<u64>,
}

/// The reason for which a run directory cannot be used.
#[derive(Debug)]
pub enum StoreError {
    /// The file system returned an error.
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Its error.
        error: io::Error,
    },
    /// There is no run in this directory, or no such directory.
    NoRun(PathBuf),
    /// There is a run in it already.
    Exists(PathBuf),
    /// Another process is running it.
    Busy(PathBuf),
    /// A file does not hold what it should.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The finding, and what was expected.
        what: String,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Io { path, error } => write!(f, "{}: {error}", path.display()),
            StoreError::NoRun(path) => write!(
                f,
                "{}: found no run.json, expected the directory of a run, such as tare-runs/20260101T120000Z",
                path.display()
            ),
            StoreError::Exists(path) => write!(
                f,
                "{}: there is a run in this directory already; give --resume to go on with it, or another --out",
                path.display()
            ),
            StoreError::Busy(path) => write!(
                f,
                "{}: another process is running this run; wait for it, or stop it",
                path.display()
            ),
            StoreError::Damaged { path, line, what } => {
                write!(f, "{}:{line}: {what}", path.display())
            }
        }
    }
}

// Without a source: the file system's message is part of the text, and would be printed twice.
impl std::error::Error for StoreError {}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> StoreError + '_ {
    move |error| StoreError::Io {
        path: path.to_owned(),
        error,
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        // Closing the file is not enough: a process that was just started elsewhere in this program
        // has a copy of it, with the lock, until it executes its own program.
        let _ = self.samples.unlock();
    }
}

impl RunDirectory {
    /// Begins a run in `path`, which may exist but holds no run yet.
    ///
    /// # Errors
    /// [`StoreError::Exists`], or what the file system says.
    pub fn create(path: &Path, plan: Plan) -> Result<RunDirectory, StoreError> {
        fs::create_dir_all(path.join("logs")).map_err(io_error(path))?;
        let exists = || StoreError::Exists(path.to_owned());
        let plan_file = path.join("run.json");
        if plan_file.exists() {
            return Err(exists());
        }
        let file = path.join("samples.jsonl");
        let samples = open(&file, OpenOptions::new().append(true).create(true))?;
        lock(&samples, path).map_err(|error| match error {
            StoreError::Busy(_) => exists(),
            other => other,
        })?;
        // Another may have begun between the first look and the lock. Without a plan and a sample
        // nothing has: the disk was full, or the process was killed before the plan was written.
        let metadata = samples.metadata().map_err(io_error(&file))?;
        if plan_file.exists() || metadata.len() > 0 {
            return Err(exists());
        }
        let mut json = serde_json::to_vec_pretty(&plan).expect("a plan is plain data");
        json.push(b'\n');
        write_whole(&plan_file, &json)?;
        Ok(RunDirectory {
            path: path.to_owned(),
            plan,
            records: Vec::new(),
            samples,
            torn: None,
        })
    }

    /// Opens a run to go on with it. A last line that was cut short (the process was killed while
    /// it wrote) is left out, and removed by the first [`RunDirectory::append`]; its trial runs
    /// again.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] where a file holds something else, [`StoreError::Busy`], or what
    /// the file system says.
    pub fn open(path: &Path) -> Result<RunDirectory, StoreError> {
        let plan = read_plan(path)?;
        let file = path.join("samples.jsonl");
        let mut options = OpenOptions::new();
        let mut samples = open(&file, options.read(true).append(true).create(true))?;
        lock(&samples, path)?;
        let (records, torn) = read_records(&mut samples, &file, &plan)?;
        Ok(RunDirectory {
            path: path.to_owned(),
            plan,
            records,
            samples,
            torn,
        })
    }

    /// Reads a run without taking hold of it: a report of a run that is under way.
    ///
    /// # Errors
    /// As [`RunDirectory::open`].
    pub fn read(path: &Path) -> Result<(Plan, Vec<TrialRecord>), StoreError> {
        let plan = read_plan(path)?;
        let file = path.join("samples.jsonl");
        let mut samples = open(&file, OpenOptions::new().read(true))?;
        let (records, _) = read_records(&mut samples, &file, &plan)?;
        Ok((plan, records))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The trials so far, in the order they ended.
    pub fn records(&self) -> &[TrialRecord] {
        &self.records
    }

    /// Adds a trial, and the log of one that failed; on return both are written to the file system.
    ///
    /// # Errors
    /// The error of the file system; the record is then not stored.
    pub fn append(&mut self, mut record: TrialRecord, log: &[u8]) -> Result<(), StoreError> {
        if matches!(record.outcome, Outcome::Failed { .. }) {
            let name = format!(
                "{}-round{}-{}.log",
                record.experiment.replace(['/', '\\'], "-"),
                record.round,
                self.records.len()
            );
            let logs = self.path.join("logs");
            write_log(&logs, &name, log).map_err(io_error(&logs.join(&name)))?;
            record.log = Some(format!("logs/{name}"));
        }
        let mut line = serde_json::to_vec(&record).expect("a record is plain data");
        line.push(b'\n');
        let file = self.path.join("samples.jsonl");
        if let Some(whole) = self.torn {
            self.samples.set_len(whole).map_err(io_error(&file))?;
            self.torn = None;
        }
        self.samples.write_all(&line).map_err(io_error(&file))?;
        self.records.push(record);
        Ok(())
    }

    /// Removes all records.
    ///
    /// # Errors
    /// The error of the file system; the records then stay.
    pub(crate) fn clear(&mut self) -> Result<(), StoreError> {
        let file = self.path.join("samples.jsonl");
        self.samples.set_len(0).map_err(io_error(&file))?;
        self.torn = None;
        self.records.clear();
        Ok(())
    }

    /// Returns the trials of a round that are not recorded yet, by experiment in the round's order.
    pub fn remaining(&self, schedule: &Schedule) -> Vec<Vec<Trial>> {
        let done = Done::new(&self.records);
        let order = self.plan.order(schedule.round).into_iter();
        order
            .filter(|place| schedule.open[*place])
            .map(|place| {
                let mut trials = self.plan.trials(place, schedule.round);
                trials.retain(|trial| done.lacks(&self.plan, trial));
                trials
            })
            .collect()
    }
}

/// Opens a file of a run. It is opened with O_NONBLOCK: opening a FIFO that nothing is at the other
/// end of would block for ever. And with O_NOFOLLOW: in a run that another user made, a symbolic
/// link may name a file of this user's.
fn open(path: &Path, options: &mut OpenOptions) -> Result<File, StoreError> {
    let no_file = || io::Error::other("found no regular file, expected a file of a run");
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = options
        .custom_flags(flags.bits() as i32)
        .open(path)
        .map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::LOOP) => no_file(),
            _ => error,
        })
        .map_err(io_error(path))?;
    if !file.metadata().map_err(io_error(path))?.is_file() {
        return Err(io_error(path)(no_file()));
    }
    Ok(file)
}

/// Writes a file in the folder `logs`, in place of one that a run left there when it was killed.
/// Neither the folder nor the file may be a symbolic link: either may lead to a file of another
/// run, or of no run.
fn write_log(logs: &Path, name: &str, log: &[u8]) -> io::Result<()> {
    let folder = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(logs, folder, Mode::empty())?;
    match rustix::fs::unlinkat(&folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&folder, name, new, Mode::from_raw_mode(0o666))?;
    File::from(file).write_all(log)
}

/// Returns true if there is no such file, or what should be its folder is a file.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Takes the run for this process. After a process that was killed, one that it had just started
/// holds a copy of the lock until it executes its own program, so the lock counts as taken only if
/// it stays taken for a second. On a busy machine a quarter of one was not enough.
fn lock(samples: &File, path: &Path) -> Result<(), StoreError> {
    let until = Instant::now() + Duration::from_secs(1);
    loop {
        match samples.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => return Err(StoreError::Busy(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(io_error(path)(error)),
        }
    }
}

/// Writes a file so that a reader sees the old one or the new one, never a part, even while
/// another process writes it too. A file that could not be written leaves nothing behind. A
/// symbolic link is replaced, and not followed.
///
/// # Errors
/// The error of the file system.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let (mut file, partial) = new_beside(path).map_err(io_error(path))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&partial, path))
        .map_err(|error| {
            let _ = fs::remove_file(&partial);
            io_error(path)(error)
        })
}

/// Makes a new file in the folder of `path`; returns its path too. Whatever has such a name already
/// is left alone: it may be a symbolic link that another user has put there.
fn new_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let process = std::process::id();
    for place in 0..100 {
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{process}-{place}.part"));
        let partial = PathBuf::from(partial);
        match File::create_new(&partial) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return Ok((made?, partial)),
        }
    }
    let left = format!("found files that end in .{process}-0.part to .{process}-99.part");
    Err(io::Error::other(left + ", expected none; remove them"))
}

fn read_plan(path: &Path) -> Result<Plan, StoreError> {
    let file = path.join("run.json");
    let opened = open(&file, OpenOptions::new().read(true));
    let mut opened = opened.map_err(|error| match error {
        StoreError::Io { error, .. } if is_absent(&error) => StoreError::NoRun(path.to_owned()),
        other => other,
    })?;
    let text = read_bounded(&mut opened, &file)?;
    let damaged = |line, what| StoreError::Damaged {
        path: file.clone(),
        line,
        what,
    };
    let plan: Plan = serde_json::from_slice(&text)
        .map_err(|error| damaged(error.line(), format!("expected a run's plan: {error}")))?;
    if plan.schema != SCHEMA {
        return Err(damaged(
            1,
            format!("found schema {}, expected {SCHEMA}", plan.schema),
        ));
    }
    for experiment in &plan.experiments {
        let rounds = experiment.rounds;
        if !rounds.is_sound() {
            let found = format!("{} to {}", rounds.least, rounds.most);
            return Err(damaged(
                1,
                format!(
                    "{}: found {found} rounds, expected a range within 1 to {ROUNDS_MAX}",
                    experiment.id
                ),
            ));
        }
        let axes = &experiment.axes;
        let values = axes.iter().map(|axis| axis.values.len().max(1));
        let cells = values.fold(1, usize::saturating_mul);
        if cells > MAX_CELLS || axes.len() > AXES_MAX {
            return Err(damaged(
                1,
                format!(
                    "{}: found {cells} cells on {} axes, expected at most {MAX_CELLS} cells on at \
                     most {AXES_MAX} axes",
                    experiment.id,
                    axes.len()
                ),
            ));
        }
    }
    Ok(plan)
}

/// The records, and the length of the whole lines if a line that was cut short follows them.
fn read_records(
    samples: &mut File,
    path: &Path,
    plan: &Plan,
) -> Result<(Vec<TrialRecord>, Option<u64>), StoreError> {
    let text = read_bounded(samples, path)?;
    let whole = text
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |last| last + 1);
    let records = text[..whole]
        .split_inclusive(|&byte| byte == b'\n')
        .enumerate()
        .map(|(at, line)| {
            let damaged = |what| StoreError::Damaged {
                path: path.to_owned(),
                line: at + 1,
                what,
            };
            let record: TrialRecord = serde_json::from_slice(line)
                .map_err(|error| damaged(format!("expected a trial's record: {error}")))?;
            let most = plan.experiments.iter().map(|e| e.rounds.most).max();
            let most = most.unwrap_or(0);
            if record.round >= most {
                return Err(damaged(format!(
                    "found round {}, expected less than the plan's {most}",
                    record.round
                )));
            }
            Ok(record)
        })
        .collect::<Result<_, _>>()?;
    Ok((records, (whole < text.len()).then_some(whole as u64)))
}

/// The whole file, or an error: a part of one would be taken for all of it.
fn read_bounded(file: &mut File, path: &Path) -> Result<Vec<u8>, StoreError> {
    let length = file.metadata().map_err(io_error(path))?.len();
    if length > FILE_MAX {
        return Err(StoreError::Damaged {
            path: path.to_owned(),
            line: 1,
            what: format!("found {length} bytes, expected at most {FILE_MAX}"),
        });
    }
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.take(length).read_to_end(&mut text))
        .map_err(io_error(path))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::SCHEMA;

    #[test]
    fn a_run_is_free_when_it_is_dropped_also_if_a_new_process_still_has_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan {
            schema: SCHEMA,
            size: "quick".into(),
            ..Plan::default()
        };
        let directory = RunDirectory::create(folder.path(), plan).unwrap();
        let copy = directory.samples.try_clone().unwrap();
        drop(directory);
        RunDirectory::open(folder.path()).unwrap();
        drop(copy);
    }
}
