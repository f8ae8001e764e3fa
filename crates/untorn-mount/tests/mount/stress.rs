//! Many threads change names and bytes of a few files at once: nothing fails, nobody waits for good, nothing is lost.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use untorn_testing::{SplitMix, cases, seed};

use crate::support::{How, mount_as};

const THREADS: u64 = 6;

/// One random operation; a hard link only with `links`.
fn operate(at: &Path, random: &mut SplitMix, links: bool) -> io::Result<()> {
    let place = |random: &mut SplitMix| at.join(["a", "b", "c", "d/a", "d/b", "e/a"][random.below(6) as usize]);
    let path = place(random);
    match random.below(12) {
        0 | 1 => {
            let mut file = File::create(&path)?;
            file.write_all(&vec![random.below(256) as u8; random.below(20_000) as usize])?;
            file.sync_data()
        }
        2 => {
            let file = File::options().read(true).write(true).open(&path)?;
            file.set_len(random.below(30_000))?;
            file.write_all_at(b"in the middle", random.below(10_000))
        }
        3 => File::options().append(true).create(true).open(&path)?.write_all(b"more"),
        4 => fs::remove_file(&path),
        5 | 6 => fs::rename(&path, place(random)),
        7 => renameat_with(CWD, &path, CWD, place(random), RenameFlags::EXCHANGE).map_err(io::Error::from),
        8 if links => fs::hard_link(&path, place(random)),
        9 => renameat_with(CWD, at.join("d"), CWD, at.join("e"), RenameFlags::EXCHANGE).map_err(io::Error::from),
        8 | 10 => fs::read(&path).map(drop),
        _ => {
            let file = File::options().read(true).write(true).open(&path)?;
            fs::remove_file(&path)?;
            file.write_all_at(b"without a name", 0)?;
            file.sync_all()
        }
    }
}

/// All files below a directory, and their bytes.
fn contents(at: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for below in ["", "d", "e"] {
        for entry in fs::read_dir(at.join(below)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                all.push((format!("{below}/{}", entry.file_name().display()), fs::read(entry.path()).unwrap()));
            }
        }
    }
    all.sort();
    all
}

#[test]
fn threads_change_names_and_bytes_and_nothing_fails() {
    for how in [How::Boost, How::Atomic, How::AtomicWriteThrough] {
        let Some(mount) = mount_as(untorn_testing::test_name!(), "/**", how) else { return };
        let seed = seed(untorn_testing::test_name!());
        // A kernel that caches writes believes the length in the answer to a LOOKUP, also if the file was written to by
        // another name meanwhile and forgotten. That is so without a log, too.
        let links = how != How::Atomic;
        for name in ["d", "e"] {
            fs::create_dir(mount.path().join(name)).unwrap();
        }
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let at = mount.path();
                scope.spawn(move || {
                    let mut random = SplitMix::new(seed ^ thread);
                    for round in 0..cases(100, 2_000) {
                        let Err(error) = operate(&at, &mut random, links) else { continue };
                        let expected = [Errno::NOENT, Errno::EXIST].map(|errno| Some(errno.raw_os_error()));
                        assert!(expected.contains(&error.raw_os_error()), "{how:?}, seed {seed}, {round}: {error}");
                    }
                });
            }
        });
        let seen = contents(&mount.path());
        let source = mount.source();
        let left = mount.unmount_keeping(|| contents(&source));
        for (left, seen) in left.iter().zip(&seen) {
            assert_eq!((&left.0, left.1.len()), (&seen.0, seen.1.len()), "{how:?}, seed {seed}");
            let differs = left.1.iter().zip(&seen.1).position(|(left, seen)| left != seen);
            assert_eq!(differs, None, "{how:?}, seed {seed}: {} differs from what programs saw", left.0);
        }
        assert_eq!(left.len(), seen.len(), "{how:?}, seed {seed}");
    }
}

/// Two programs empty and write one file at the same time: it is as long as the server has it.
#[test]
fn a_file_emptied_by_two_at_once_has_one_length() {
    let Some(mount) = mount_as(untorn_testing::test_name!(), "/**", How::Atomic) else { return };
    let files = cases(200, 5_000);
    let paths: Vec<_> = (0..files).map(|number| mount.path().join(number.to_string())).collect();
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for len in [9_000, 5_000] {
            let (paths, barrier) = (&paths, &barrier);
            scope.spawn(move || {
                for path in paths {
                    fs::write(path, b"before").unwrap();
                    barrier.wait();
                    let mut file = File::create(path).unwrap();
                    file.write_all(&vec![7; len]).unwrap();
                    file.sync_data().unwrap();
                }
            });
        }
    });
    let lengths: Vec<_> = paths.iter().map(|path| fs::metadata(path).unwrap().len()).collect();
    let source = mount.source();
    let left = |number: usize| fs::metadata(source.join(number.to_string())).unwrap().len();
    let left = mount.unmount_keeping(|| (0..paths.len()).map(left).collect::<Vec<_>>());
    assert_eq!(left, lengths);
}

/// A download or a copy gets its name at the end, and the program that made it may still write to it.
#[test]
fn a_file_that_gets_a_chosen_name_is_one_file() {
    let ways = [How::Boost, How::Atomic, How::AtomicWriteThrough].map(|how| [(how, true), (how, false)]);
    for (how, renamed) in ways.into_iter().flatten() {
        let Some(mount) = mount_as(untorn_testing::test_name!(), "*.db", how) else { return };
        let path = mount.path().join("a.db");
        let first = File::create(mount.path().join("a.part")).unwrap();
        first.write_all_at(b"one", 0).unwrap();
        let part = mount.path().join("a.part");
        if renamed {
            fs::rename(part, &path).unwrap()
        } else {
            fs::hard_link(part, &path).unwrap()
        }
        let second = File::options().read(true).write(true).open(&path).unwrap();
        for round in 0..20 {
            second.write_all_at(b"by the second", round * 100).unwrap();
            second.sync_all().unwrap();
            first.write_all_at(b"by the first", round * 100 + 50).unwrap();
            first.sync_all().unwrap();
        }
        let seen = fs::read(&path).unwrap();
        assert_eq!(seen.len(), 1962, "{how:?}");
        drop((first, second));
        let source = mount.source().join("a.db");
        let (managed, plain) = mount.unmount_with(|| assert_eq!(fs::read(&source).unwrap(), seen, "{how:?}"));
        assert_eq!((managed, plain), (1, 0), "{how:?}, renamed: {renamed}");
    }
}

/// The other way round: the name that is not chosen takes the file from nobody.
#[test]
fn a_file_that_is_not_chosen_stays_plain_under_other_names() {
    for how in [How::Boost, How::Atomic] {
        let Some(mount) = mount_as(untorn_testing::test_name!(), "*.db", how) else { return };
        let file = File::create(mount.path().join("a.txt")).unwrap();
        file.write_all_at(b"one", 0).unwrap();
        fs::rename(mount.path().join("a.txt"), mount.path().join("b.txt")).unwrap();
        file.write_all_at(b"two", 3).unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read(mount.source().join("b.txt")).unwrap(), b"onetwo", "{how:?}");
        drop(file);
        assert_eq!(mount.unmount(), (0, 0), "{how:?}");
    }
}
