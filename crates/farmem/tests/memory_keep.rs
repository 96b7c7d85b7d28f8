//! A store that is kept in a file, and a process that is killed while it works on it.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tare_farmem::memory::{Config, KeepError, Parts, Preset, SpaceUse, Store};
use tare_farmem::operation::{PageSize, Permission, SpaceId};
use tare_memory::{Mapping, OwnedFile, Pages};
use tare_sim::{Instant, Random};

const KIB_4: u64 = 4096;
const ONE: SpaceId = SpaceId(1);
const TWO: SpaceId = SpaceId(2);
const BASE: u64 = 0x4000_0000;
/// The slots that the child writes in turn, each over borders of pages.
const SLOTS: u64 = 8;
const SLOT: u64 = 3 * KIB_4 + 100;
const COUNTER: u64 = BASE + 64 * KIB_4;
/// Tells the test that it is the child, and of which file.
const CHILD: &str = "TARE_KEPT_FILE";

fn config() -> Config {
    Config {
        preset: Some(Preset::CLIO),
        key: [11, 13],
        ..Config::new(4 << 20)
    }
}

fn open(path: &Path) -> Result<(Store<Mapping>, tare_farmem::memory::Restored), KeepError> {
    Store::open_kept(&config(), OwnedFile::open(path)?)
}

/// A file that is removed with the test.
struct Kept(PathBuf);

impl Kept {
    fn new(name: &str) -> Kept {
        let name = format!("tare-keep-{}-{name}", std::process::id());
        Kept(env::temp_dir().join(name))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Works on the store for ever: the operation that counts is that which the counter says.
#[test]
fn a_child_of_the_tests_works_until_it_is_killed() {
    let Some(path) = env::var_os(CHILD) else {
        return;
    };
    let (mut store, _) = open(path.as_ref()).unwrap();
    if store.open(ONE).is_ok() {
        store.open(TWO).unwrap();
    }
    let mut n = counter(&store);
    let mut said = std::io::stdout();
    loop {
        n += 1;
        let slot = BASE + n % SLOTS * SLOT;
        let data = vec![n as u8; SLOT as usize];
        store.write(ONE, slot, &data).unwrap();
        store.write(ONE, COUNTER, &n.to_le_bytes()).unwrap();
        churn(&mut store, n);
        if n.is_multiple_of(16) {
            let _ = writeln!(said, "working");
        }
    }
}

/// Makes and ends allocations, regions, grants and mappings of the other space.
fn churn(store: &mut Store<Mapping>, n: u64) {
    let mut random = Random::new(n);
    let at = (1 << 45) + random.below(20) * KIB_4;
    let bytes = 1 + random.below(6 * KIB_4);
    let (page, permission) = (PageSize::Small, Permission::READ_WRITE);
    let _ = match random.below(7) {
        0 | 1 => store
            .alloc(TWO, bytes, page, Some(at), permission, n.is_multiple_of(2))
            .map(drop),
        2 => store.free(TWO, at, bytes),
        3 => store.write(TWO, at, &vec![7; bytes as usize]),
        4 => store.region(TWO, b"region", at, bytes).and_then(|region| {
            store.grant(TWO, region, ONE, permission)?;
            store.map(ONE, region, Some(at)).map(drop)
        }),
        5 => store
            .find_region(TWO, b"region")
            .and_then(|region| store.retire(TWO, region)),
        _ => store.close(TWO).and_then(|()| store.open(TWO)),
    };
}

fn counter(store: &Store<Mapping>) -> u64 {
    let mut bytes = [0; 8];
    match store.read_into(ONE, COUNTER, &mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => 0,
    }
}

/// Checks that the writes are those up to the counter, and perhaps the next one, each whole.
fn check(store: &Store<Mapping>) -> u64 {
    let last = counter(store);
    for slot in 0..SLOTS {
        let mut bytes = vec![0; SLOT as usize];
        let at = BASE + slot * SLOT;
        store.read_into(ONE, at, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == bytes[0]), "a torn write");
        let latest = (0..SLOTS).map(|back| last.saturating_sub(back));
        let latest = latest.into_iter().find(|n| n % SLOTS == slot).unwrap_or(0);
        let is_next = (last + 1) % SLOTS == slot && bytes[0] == (last + 1) as u8;
        assert!(
            bytes[0] == latest as u8 || is_next,
            "slot {slot} after {last}"
        );
    }
    last
}

fn kill_under_load(path: &Path, rounds: u64, mut opened: impl FnMut() -> Store<Mapping>) {
    let mut last = 0;
    for round in 0..rounds {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "a_child_of_the_tests_works_until_it_is_killed"])
            .args(["--nocapture", "--test-threads=1"])
            .env(CHILD, path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let wanted = 1 + Random::new(round).below(40);
        let working = lines.by_ref().map_while(Result::ok);
        let seen = working
            .filter(|line| line.contains("working"))
            .take(wanted as usize);
        assert_eq!(seen.count() as u64, wanted, "the child has ended");
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        let store = opened();
        let now = check(&store);
        assert!(now >= last + 16 * (wanted - 1), "{now} after {last}");
        last = now;
        let used = store.describe();
        drop(store);
        let store = opened();
        assert_eq!(store.describe(), used);
    }
}

#[test]
fn a_node_killed_under_load_restores_every_write_that_was_done() {
    let kept = Kept::new("load");
    kill_under_load(&kept.0, 60, || {
        let (store, restored) = open(&kept.0).unwrap();
        assert!(!restored.is_new);
        store
    });
}

#[test]
fn what_a_space_has_mapped_counts_after_a_restart() {
    let kept = Kept::new("mapped");
    let (bytes, permission) = (400 * KIB_4, Permission::READ);
    let (mut store, _) = open(&kept.0).unwrap();
    store.open(ONE).unwrap();
    store.open(TWO).unwrap();
    let names: [&[u8]; 4] = [b"one", b"two", b"three", b"four"];
    let regions = names.map(|name| {
        let region = store.region(ONE, name, BASE, bytes).unwrap();
        store.grant(ONE, region, TWO, permission).unwrap();
        region
    });
    // Of a quota of 1024 pages.
    let at = [0, 1].map(|n| store.map(TWO, regions[n], None).unwrap());
    let reopened = |store: Store<Mapping>| {
        drop(store);
        open(&kept.0).unwrap().0
    };
    let mut store = reopened(store);
    let refused = Err(tare_farmem::operation::Error::Quota);
    assert_eq!(store.map(TWO, regions[2], None), refused);
    store.free(TWO, at[0], bytes).unwrap();
    store.map(TWO, regions[2], None).unwrap();
    // Once with the records of all this, once after they were made short.
    for _ in 0..2 {
        store = reopened(store);
        assert_eq!(store.map(TWO, regions[3], None), refused);
        store.revoke(ONE, regions[1], TWO).unwrap();
        store = reopened(store);
        store.map(TWO, regions[3], None).unwrap();
        store.revoke(ONE, regions[3], TWO).unwrap();
        store.grant(ONE, regions[3], TWO, permission).unwrap();
        store.grant(ONE, regions[1], TWO, permission).unwrap();
        store.map(TWO, regions[1], None).unwrap();
    }
}

#[test]
fn a_memfd_that_is_handed_on_keeps_a_store() {
    let file = OwnedFile::memfd("kept", Pages::Small).unwrap();
    let handed_on = file.reopened().unwrap();
    drop(file);
    let path = format!("/proc/{}/fd/{}", std::process::id(), handed_on.as_raw_fd());
    kill_under_load(Path::new(&path), 5, || {
        let file = OwnedFile::from_fd(std::os::fd::AsFd::as_fd(&handed_on)).unwrap();
        Store::open_kept(&config(), file).unwrap().0
    });
}

#[test]
fn a_file_of_another_length_content_or_owner_is_refused_and_stays_as_it_is() {
    let kept = Kept::new("other");
    let (mut store, restored) = open(&kept.0).unwrap();
    assert!(restored.is_new);
    store.open(ONE).unwrap();
    store.write(ONE, BASE, b"kept").unwrap();
    let token = store.lock(Instant::ZERO, ONE, BASE, std::time::Duration::from_secs(9));
    let in_use = open(&kept.0).err().unwrap().to_string();
    assert!(
        in_use.starts_with("another process has the file"),
        "{in_use}"
    );
    drop(store);

    let larger = Config {
        bytes: 8 << 20,
        ..config()
    };
    let file = OwnedFile::open(&kept.0).unwrap();
    let refused = Store::open_kept(&larger, file).err().unwrap();
    assert!(matches!(refused, KeepError::Bytes { found, .. } if found == 4 << 20));
    let before = std::fs::read(&kept.0).unwrap();
    assert!(before.len() as u64 >= 4 << 20);
    for (content, len) in [(b'x', before.len()), (b'x', 1 << 20), (0, 100)] {
        let other = Kept::new("foreign");
        let mut file = OwnedFile::open(&other.0).unwrap();
        file.grow(len as u64).unwrap();
        drop(file);
        std::fs::write(&other.0, vec![content; len]).unwrap();
        let refused = open(&other.0).err().unwrap();
        let is_right = match refused {
            KeepError::NotKept => content != 0,
            KeepError::Length { found, .. } => found == len as u64,
            _ => false,
        };
        assert!(is_right, "{refused}");
        assert_eq!(std::fs::read(&other.0).unwrap(), vec![content; len]);
    }

    let (mut store, _) = open(&kept.0).unwrap();
    let mut found = [0; 4];
    store.read_into(ONE, BASE, &mut found).unwrap();
    assert_eq!(&found, b"kept");
    let next = store.lock(Instant::ZERO, ONE, BASE, std::time::Duration::from_secs(9));
    assert!(next.unwrap() > token.unwrap());
    assert_eq!(store.counts().locks, 1);
}

#[test]
fn a_store_in_any_pages_that_the_system_has_works_the_same() {
    for pages in Pages::ALL {
        let memory = |len| Mapping::anonymous(len, pages);
        let Ok(mut store) = Store::in_memory(&config(), memory) else {
            // None are set aside here.
            assert!(matches!(pages, Pages::Huge1G | Pages::Huge2M));
            continue;
        };
        store.open(ONE).unwrap();
        store.write(ONE, BASE + 4000, &[5; 10_000]).unwrap();
        let mut found = [0; 10_000];
        store.read_into(ONE, BASE + 4000, &mut found).unwrap();
        assert_eq!(found, [5; 10_000]);
        assert_eq!(store.counts().bytes_free, (4 << 20) - 4 * KIB_4);
        // The same in a file.
        let Ok(file) = OwnedFile::memfd("pages", pages) else {
            continue;
        };
        let handed_on = file.reopened().unwrap();
        let opened = Store::open_kept(&config(), file);
        if let (Err(KeepError::Mapping(tare_memory::Error::HugePages { .. })), true) =
            (&opened, pages.bytes() > 1 << 20)
        {
            continue;
        }
        let (mut store, _) = opened.unwrap();
        store.open(ONE).unwrap();
        store.write(ONE, BASE, b"kept").unwrap();
        drop(store);
        let file = OwnedFile::from_fd(std::os::fd::AsFd::as_fd(&handed_on)).unwrap();
        assert!(file.len() >= Parts::of(&config()).pool as u64);
        let (store, restored) = Store::open_kept(&config(), file).unwrap();
        assert!(!restored.is_new && store.describe().contains("0x40000000"));
    }
}

#[test]
fn what_spaces_use_is_listed_in_their_order_also_after_a_restart() {
    let kept = Kept::new("listed");
    let config = Config {
        quotas: [(TWO, 64 * KIB_4)].into(),
        ..config()
    };
    let used = |space, pages, quota| SpaceUse {
        space,
        bytes: pages * KIB_4,
        quota,
    };
    let others = config.bytes;
    let expected = [
        used(ONE, 3, others),
        used(TWO, 1, 64 * KIB_4),
        used(SpaceId(9), 0, others),
    ];
    for is_new in [true, false] {
        let file = OwnedFile::open(&kept.0).unwrap();
        let (mut store, restored) = Store::open_kept(&config, file).unwrap();
        assert_eq!(restored.is_new, is_new);
        if is_new {
            for space in [SpaceId(9), TWO, ONE, SpaceId(5)] {
                store.open(space).unwrap();
            }
            let (page, permission) = (PageSize::Small, Permission::READ_WRITE);
            let bytes = 3 * KIB_4;
            store
                .alloc(ONE, bytes, page, None, permission, false)
                .unwrap();
            // Of a sparse range the page that was written.
            store.write(TWO, BASE, &[1]).unwrap();
            store.close(SpaceId(5)).unwrap();
        }
        assert_eq!(store.spaces_after(None, 10), expected);
        assert_eq!(store.spaces_after(None, 2), expected[..2]);
        assert_eq!(store.spaces_after(Some(ONE), 2), expected[1..]);
        assert_eq!(store.spaces_after(Some(SpaceId(3)), 2), expected[2..]);
        assert_eq!(store.spaces_after(Some(SpaceId(9)), 2), []);
    }
}
