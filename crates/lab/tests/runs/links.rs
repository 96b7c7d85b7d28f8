//! Links in a run directory, which another user may have put there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tare_lab::driver::Drivers;
use tare_lab::runner::{self, Ended};
use tare_lab::store::{self, RunDirectory};

use crate::{go, plan, Count, Shell};

/// A run, and beside it a file of the reader's.
fn run_and_victim() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (run, victim) = (folder.path().join("run"), folder.path().join("victim"));
    drop(RunDirectory::create(&run, plan(1)).unwrap());
    fs::write(&victim, VICTIM).unwrap();
    (folder, run, victim)
}

const VICTIM: &str = "a file of the reader's, without a newline";

#[test]
fn a_file_of_a_run_that_is_a_link_is_refused_and_its_target_stays_as_it_was() {
    for name in ["run.json", "samples.jsonl"] {
        let (_folder, run, victim) = run_and_victim();
        fs::remove_file(run.join(name)).unwrap();
        symlink(&victim, run.join(name)).unwrap();
        for refused in [
            RunDirectory::open(&run).map(drop),
            RunDirectory::read(&run).map(drop),
        ] {
            let error = refused.unwrap_err().to_string();
            let expected = format!("{name}: found no regular file, expected a file of a run");
            assert!(error.ends_with(&expected), "{error}");
        }
        assert_eq!(fs::read_to_string(victim).unwrap(), VICTIM);
    }
}

#[test]
fn a_file_is_written_whole_past_links_that_await_it() {
    let (_folder, run, victim) = run_and_victim();
    let (page, process) = (run.join("report.html"), std::process::id());
    for part in [format!("{process}"), format!("{process}-0")] {
        symlink(&victim, run.join(format!("report.html.{part}.part"))).unwrap();
    }
    symlink(&victim, &page).unwrap();
    store::write_whole(&page, b"the page").unwrap();
    assert_eq!(fs::read_to_string(victim).unwrap(), VICTIM);
    assert!(fs::symlink_metadata(&page).unwrap().is_file());
    assert_eq!(fs::read_to_string(page).unwrap(), "the page");
}

#[test]
fn logs_follow_no_links() {
    let (_folder, run, victim) = run_and_victim();
    // The second cell of six is the one that fails.
    let log = |place: usize| format!("doors-all-round0-{place}.log");
    for place in 0..12 {
        symlink(&victim, run.join("logs").join(log(place))).unwrap();
    }
    let mut directory = RunDirectory::open(&run).unwrap();
    assert_eq!(go(&mut directory, usize::MAX), Ended::Complete);
    let mut failed = directory.records().iter().filter_map(|r| r.log.as_ref());
    let metadata = fs::symlink_metadata(run.join(failed.next().unwrap()));
    assert!(metadata.unwrap().is_file());
    assert_eq!(fs::read_to_string(victim).unwrap(), VICTIM);

    let (folder, run, _) = run_and_victim();
    let others = folder.path().join("others");
    fs::create_dir(&others).unwrap();
    fs::remove_dir(run.join("logs")).unwrap();
    symlink(&others, run.join("logs")).unwrap();
    let mut directory = RunDirectory::open(&run).unwrap();
    let drivers = Drivers::new(vec![Box::new(Shell)]);
    let ended = runner::run(&mut directory, &drivers, &|| false, &mut Count::default());
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("/logs/doors-all-round0-"), "{error}");
    assert_eq!(fs::read_dir(others).unwrap().count(), 0);
}
