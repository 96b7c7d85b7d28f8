//! Mappings of this process alone, and files that it owns.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use tare_memory::{publish, Error, Mapping, OwnedFile, Pages, MAPPING_MAX};

/// A path for a file that nothing else has.
fn path(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("tare-memory-{}-{name}", std::process::id()))
}

#[test]
fn memory_is_zero_aligned_and_as_long_as_asked() {
    for pages in [Pages::Small, Pages::Transparent] {
        for len in [1, 4096, 5000, (2 << 20) - 1, 5 << 20] {
            let mut memory = Mapping::anonymous(len, pages).unwrap();
            assert_eq!((memory.as_ref().len(), memory.pages()), (len, pages));
            assert!(memory.as_ref().iter().all(|&byte| byte == 0));
            let start = memory.as_ref().as_ptr();
            assert_eq!(start.align_offset(pages.bytes()), 0);
            memory.as_mut().fill(7);
            assert!(memory.as_ref().iter().all(|&byte| byte == 7));
        }
    }
    for len in [0, MAPPING_MAX as usize + 1, usize::MAX] {
        let refused = Mapping::anonymous(len, Pages::Small).unwrap_err();
        assert!(matches!(refused, Error::MappingLength(_)), "{refused}");
    }
}

#[test]
fn huge_pages_that_are_not_there_are_an_error_with_the_remedy() {
    // More than any machine has set aside.
    for pages in [Pages::Huge1G, Pages::Huge2M] {
        let refused = Mapping::anonymous(MAPPING_MAX as usize, pages).unwrap_err();
        let Error::HugePages {
            found, expected, ..
        } = refused
        else {
            panic!("{refused}");
        };
        assert_eq!(expected, MAPPING_MAX / pages.bytes() as u64);
        let kib = pages.bytes() >> 10;
        let text = refused.to_string();
        match found {
            Some(found) => {
                assert!(text.starts_with(&format!("found {found} free huge pages of ")));
                assert!(text.contains(&format!("expected {expected}: echo ")));
                assert!(text.ends_with(&format!("hugepages-{kib}kB/nr_hugepages")));
            }
            None => assert!(text.contains("has no huge pages"), "{text}"),
        }
    }
}

#[test]
fn the_best_pages_are_taken_and_named() {
    let memory = Mapping::best(4096).unwrap();
    assert_eq!(memory.pages(), Pages::Small);
    let mut memory = Mapping::best(16 << 20).unwrap();
    assert!(matches!(
        memory.pages(),
        Pages::Huge2M | Pages::Transparent | Pages::Small
    ));
    memory.as_mut().fill(1);
}

#[test]
fn a_file_keeps_the_bytes_of_its_mappings() {
    let path = path("kept");
    let mut file = OwnedFile::open(&path).unwrap();
    assert!(file.is_empty());
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (one, other) = (file.rounded(100), file.rounded(10_000));
    file.grow(one + other).unwrap();
    assert!(file.grow(1).is_err());
    let (mut first, mut second) = (file.map(100).unwrap(), file.map(10_000).unwrap());
    // Every byte has at most one mapping.
    assert!(matches!(file.map(1), Err(Error::MappingLength(1))));
    first.as_mut().fill(1);
    second.as_mut().fill(2);
    drop((first, second, file));

    let mut file = OwnedFile::open(&path).unwrap();
    assert_eq!(file.len(), one + other);
    assert_eq!(file.map(100).unwrap().as_ref(), [1; 100]);
    assert_eq!(file.map(10_000).unwrap().as_ref(), [2; 10_000]);
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_file_has_one_owner_at_a_time() {
    let path = path("owned");
    let mut file = OwnedFile::open(&path).unwrap();
    file.grow(file.rounded(1)).unwrap();
    assert!(matches!(OwnedFile::open(&path), Err(Error::FileInUse)));
    let mapping = file.map(1).unwrap();
    drop(file);
    // Its mapping holds it too.
    assert!(matches!(OwnedFile::open(&path), Err(Error::FileInUse)));
    drop(mapping);
    assert!(OwnedFile::open(&path).is_ok());

    for mode in [0o644, 0o620, 0o601] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let refused = OwnedFile::open(&path).unwrap_err();
        assert!(matches!(refused, Error::FileMode(found) if found == mode));
        assert!(refused.to_string().contains("chmod 600"));
    }
    fs::remove_file(&path).unwrap();
    assert!(OwnedFile::open(&std::env::temp_dir()).is_err());
    let device = OwnedFile::open("/dev/null".as_ref());
    assert!(matches!(device, Err(Error::NotAFile | Error::FileInUse)));
}

#[test]
fn a_file_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED: files of other users: only root can make them");
        return;
    }
    let path = path("other-user");
    drop(OwnedFile::open(&path).unwrap());
    std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
    let refused = OwnedFile::open(&path).unwrap_err().to_string();
    fs::remove_file(&path).unwrap();
    assert!(
        refused.contains("found a file of user 65534, expected one of user 0"),
        "{refused}"
    );
}

#[test]
fn a_memfd_is_handed_on_to_one_owner() {
    let mut file = OwnedFile::memfd("test", Pages::Small).unwrap();
    file.grow(2 << 20).unwrap();
    let handed_on = file.reopened().unwrap();
    let other = OwnedFile::from_fd(handed_on.as_fd());
    assert!(matches!(other, Err(Error::FileInUse)));
    let mut mapping = file.map(100).unwrap();
    mapping.as_mut().fill(3);
    drop((mapping, file));
    let mut other = OwnedFile::from_fd(handed_on.as_fd()).unwrap();
    assert_eq!(other.map(100).unwrap().as_ref(), [3; 100]);
}

#[test]
fn a_file_for_which_there_is_no_memory_is_an_error_and_stays_as_it_was() {
    let mut file = OwnedFile::memfd("test", Pages::Small).unwrap();
    file.grow(4096).unwrap();
    assert!(file.grow(MAPPING_MAX + 1).is_err());
    assert_eq!(file.len(), 4096);
    if let Ok(mut file) = OwnedFile::memfd("test", Pages::Huge2M) {
        assert_eq!(file.pages(), Pages::Huge2M);
        let refused = file.grow(1 << 44).unwrap_err();
        assert!(matches!(refused, Error::HugePages { .. }), "{refused}");
        assert!(file.is_empty());
    }
}

#[test]
fn a_published_word_is_there() {
    let mut memory = Mapping::anonymous(64, Pages::Small).unwrap();
    let word = memory.as_mut()[8..].first_chunk_mut().unwrap();
    publish(word, 0x0102_0304_0506_0708);
    assert_eq!(
        memory.as_ref()[8],
        8u8.to_ne_bytes()[0] * u8::from(cfg!(target_endian = "little"))
    );
    let result = std::panic::catch_unwind(move || {
        publish(memory.as_mut()[1..].first_chunk_mut().unwrap(), 1);
    });
    assert!(result.is_err());
}

#[test]
fn a_child_does_not_get_the_bytes_of_a_file() {
    let path = path("child");
    let mut file = OwnedFile::open(&path).unwrap();
    file.grow(file.rounded(4096)).unwrap();
    let mapping = file.map(4096).unwrap();
    let start = mapping.as_ref().as_ptr().addr();
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let ours = maps.split_once(&format!("{start:x}-")).unwrap().1;
    let flags = ours.split_once("VmFlags:").unwrap().1;
    assert!(flags.lines().next().unwrap().contains(" dc"), "{flags}");
    // A program that is run has neither the mapping nor the file.
    let output = Command::new("ls").args(["-l", "/proc/self/fd"]).output();
    let names = output.unwrap().stdout;
    assert!(!String::from_utf8_lossy(&names).contains("child"));
    fs::remove_file(&path).unwrap();
}
