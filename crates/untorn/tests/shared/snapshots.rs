//! Snapshots of files that several processes share: any process reads one commit while others write.

use std::path::Path;
use std::process::Child;
use std::sync::atomic::Ordering;

use super::shared_file::{ENGINES, LEN, create, shared};
use crate::common::members::{Member, kill, obey, role, start, unless_forbidden};
use crate::common::{limit, memory_dir, wait_until};
use untorn::shared::SharedMap;
use untorn::{AtomicFile, Durability, Error, Options, Snapshot};
use untorn_testing::{cases, sibling};

const PAGES: u64 = LEN / 4096;

fn word(snapshot: &Snapshot, page: u64) -> u64 {
    let mut bytes = [0; 8];
    snapshot.read_at(&mut bytes, page * 4096 + 64).unwrap();
    u64::from_le_bytes(bytes)
}

/// The one number that all pages have.
#[track_caller]
fn stamp(snapshot: &Snapshot) -> u64 {
    let first = word(snapshot, 0);
    for page in 1..PAGES {
        assert_eq!(word(snapshot, page), first, "page {page} of commit {}", snapshot.commit());
    }
    first
}

/// A process whose every change is one number on all pages, until it is killed.
fn changer(how: &str, number: u64, path: &Path) -> Child {
    start(sibling!("a_process_that_changes_all_pages"), format!("{how} {number} {}", path.display()))
}

/// Not a test of its own: what a [`changer`] does.
#[test]
fn a_process_that_changes_all_pages() {
    let Some(role) = role() else { return };
    let [how, number, path] = *role.to_str().unwrap().splitn(3, ' ').collect::<Vec<_>>().first_chunk().unwrap();
    let stamps = (number.parse::<u64>().unwrap() << 32) + 1..;
    if how == "map" {
        let map = SharedMap::open(path).unwrap();
        for stamp in stamps {
            (0..PAGES).for_each(|page| map.words(page * 4096 + 64, 1).unwrap()[0].store(stamp, Ordering::SeqCst));
            map.commit().unwrap();
        }
    } else {
        let file = shared(Durability::PerWrite).open(path).unwrap();
        for stamp in stamps {
            let mut tx = file.transaction();
            (0..PAGES).for_each(|page| tx.write_at(&stamp.to_le_bytes(), page * 4096 + 64).unwrap());
            tx.commit().unwrap();
        }
    }
}

/// A snapshot, whichever process keeps it: one that was just killed may be the one that is asked.
fn until_served(path: &Path) -> Snapshot {
    loop {
        match Snapshot::open(path) {
            Err(Error::InUse { .. }) => {}
            opened => return opened.unwrap(),
        }
    }
}

#[test]
fn any_process_reads_one_commit_of_a_shared_file() {
    let _limit = limit(120, "snapshots of a shared file");
    for engine in ENGINES {
        let dir = memory_dir();
        let path = create(dir.path(), engine, Durability::PerWrite);
        let first = changer("file", 1, &path);
        wait_until(|| Snapshot::open(&path).is_ok_and(|snapshot| stamp(&snapshot) > 0));
        let file = shared(Durability::PerWrite).open(&path).unwrap();
        let second = changer("file", 2, &path);
        let mut writers = std::collections::BTreeSet::new();
        let mut last = 0;
        for round in 0.. {
            let member = file.snapshot().unwrap();
            let stranger = Snapshot::open(&path).unwrap();
            assert!(last <= member.commit() && member.commit() <= stranger.commit());
            last = stranger.commit();
            writers.extend([stamp(&member) >> 32, stamp(&stranger) >> 32]);
            if round >= cases(30, 2000) && writers.len() == 2 {
                break;
            }
        }
        // The first serves, so what it keeps ends with it.
        let held = file.snapshot().unwrap();
        let seen = word(&held, 0);
        kill(first);
        let mut bytes = [0; 8];
        match held.read_at(&mut bytes, 64) {
            Ok(()) => assert_eq!(u64::from_le_bytes(bytes), seen, "what was read before"),
            Err(error) => assert!(matches!(error, Error::SnapshotEnded { .. }), "{error}"),
        }
        let error = held.read_at(&mut [0], (PAGES - 1) * 4096).unwrap_err();
        assert!(matches!(error, Error::SnapshotEnded { .. }), "{error}");
        // One of the others serves now.
        wait_until(|| stamp(&file.snapshot().unwrap()) >> 32 == 2);
        kill(second);
        let held = file.snapshot().unwrap();
        let seen = stamp(&held);
        file.write_at(&[0xff; LEN as usize], 0).unwrap();
        assert_eq!((stamp(&held), word(&until_served(&path), 3)), (seen, u64::MAX));
        assert_eq!(file.snapshots().snapshots[0].process, std::process::id(), "this process serves");
        drop(held);
        file.close().unwrap();
    }
}

/// Whoever commits ends what rests, and keeps no page for it; what is read meanwhile holds.
#[test]
fn a_resting_snapshot_goes_on_until_a_commit() {
    let _limit = limit(60, "resting snapshots");
    for engine in ENGINES {
        let dir = memory_dir();
        let path = create(dir.path(), engine, Durability::PerWrite);
        let file = shared(Durability::PerWrite).open(&path).unwrap();
        let (mut member, said) = Member::join(sibling!("a_process_that_rests"), path.as_os_str());
        assert_eq!(said, "open");
        // A page of zeros takes no memory.
        file.write_at(&[0xff], 0).unwrap();
        let own = file.snapshot().unwrap();
        assert_eq!(member.ask("take 0"), "0");
        own.rest();
        assert!(own.resume(), "nothing was committed");
        assert_eq!((member.ask("rest 0"), member.ask("resume 0")), ("rests".to_owned(), "true".to_owned()));
        file.write_at(&[1], 64).unwrap();
        assert_eq!((word(&own, 0), member.ask("read 0")), (0, "0".to_owned()), "both are being read");
        assert!(!own.resume(), "it is of an older commit");
        assert_eq!(member.ask("resume 0"), "false");
        own.rest();
        member.ask("rest 0");
        assert_eq!(file.snapshots().bytes, 4096);
        file.write_at(&[2], 64).unwrap();
        assert_eq!(file.snapshots().bytes, 0, "pages are kept for snapshots that rest");
        assert!(!own.resume());
        assert_eq!(member.ask("resume 0"), "false");
        assert!(matches!(own.read_at(&mut [0], 64), Err(Error::SnapshotEnded { .. })));
        assert_eq!(member.ask("read 3"), "SnapshotEnded", "a page that it had not read");
        let own = file.snapshot().unwrap();
        own.rest();
        assert_eq!((member.ask("take 0"), member.ask("rest 0")), ("2".to_owned(), "rests".to_owned()));
        assert_eq!(member.ask("write 3"), "written");
        assert!(!own.resume(), "another process has committed");
        assert_eq!(member.ask("resume 0"), "false");
        member.leave();
        file.close().unwrap();
    }
}

/// Not a test of its own: a process whose snapshot rests.
#[test]
fn a_process_that_rests() {
    let Some(path) = role() else { return };
    let file = shared(Durability::PerWrite).open(&path).unwrap();
    let mut held: Option<Snapshot> = None;
    obey("open".to_owned(), |verb, numbers| {
        if verb == "take" {
            held = None;
            return word(held.insert(file.snapshot().unwrap()), 0).to_string();
        }
        match (verb, &held) {
            ("write", _) => {
                file.write_at(&[numbers[0] as u8], 64).unwrap();
                "written".to_owned()
            }
            ("commit", _) => {
                let mut tx = file.transaction();
                tx.write_at(&[numbers[1] as u8], 64).unwrap();
                tx.commit_if_unchanged(numbers[0]).unwrap().to_string()
            }
            ("rest", Some(held)) => {
                held.rest();
                "rests".to_owned()
            }
            ("resume", Some(held)) => held.resume().to_string(),
            ("read", Some(held)) => match held.read_at(&mut [0; 8], numbers[0] * 4096 + 64) {
                Ok(()) => word(held, numbers[0]).to_string(),
                Err(error) => format!("{error:?}").split(' ').next().unwrap().to_owned(),
            },
            other => panic!("{other:?}"),
        }
    });
}

/// The end of a process that made all its changes known is no change.
#[test]
fn a_commit_goes_on_when_the_server_leaves() {
    let _limit = limit(60, "a commit beside a takeover");
    let dir = memory_dir();
    let path = create(dir.path(), ENGINES[0], Durability::PerWrite);
    let (mut member, _) = Member::join(sibling!("a_process_that_rests"), path.as_os_str());
    let file = shared(Durability::PerWrite).open(&path).unwrap();
    assert_eq!(member.ask("write 3"), "written");
    let changes = file.changes().unwrap();
    member.leave();
    let mut tx = file.transaction();
    tx.write_at(&[4], 64).unwrap();
    assert!(tx.commit_if_unchanged(changes).unwrap(), "nothing has changed");
    assert_eq!(word(&file.snapshot().unwrap(), 0), 4);
    file.close().unwrap();
}

/// Of two commits by processes that have read the same, the second is refused, whichever process serves.
#[test]
fn a_commit_is_refused_after_another_change() {
    let _limit = limit(60, "commits under a condition");
    let dir = memory_dir();
    let path = create(dir.path(), ENGINES[0], Durability::PerWrite);
    let file = shared(Durability::PerWrite).open(&path).unwrap();
    let (mut member, _) = Member::join(sibling!("a_process_that_rests"), path.as_os_str());
    let commit = |changes: u64, byte: u8| {
        let mut tx = file.transaction();
        tx.write_at(&[byte], 64).unwrap();
        tx.commit_if_unchanged(changes).unwrap()
    };
    let byte = || word(&file.snapshot().unwrap(), 0);
    let read = file.changes().unwrap();
    assert_eq!((member.ask(&format!("commit {read} 5")), commit(read, 6), byte()), ("true".to_owned(), false, 5));
    let read = file.snapshot().unwrap().changes().unwrap();
    assert_eq!((commit(read, 7), member.ask(&format!("commit {read} 8")), byte()), (true, "false".to_owned(), 7));
    let read = file.changes().unwrap();
    file.resize(LEN + 4096).unwrap();
    assert!(!commit(read, 9) && byte() == 7, "a new length is a change, too");
    member.leave();
    file.close().unwrap();
}

/// Stores that no commit has are in the memory of all, and in no snapshot.
#[test]
fn a_snapshot_of_a_shared_map_lacks_uncommitted_stores() {
    let _limit = limit(60, "a snapshot of a shared map");
    let dir = memory_dir();
    let path = dir.path().join("data");
    AtomicFile::create(&path, LEN).unwrap().settle().unwrap();
    let Some(map) = unless_forbidden(SharedMap::open(&path)) else { return };
    let (mut member, said) = Member::join(sibling!("a_process_that_looks"), path.as_os_str());
    assert_eq!(said, "open");
    map.write_at(&[7], 0).unwrap();
    let commit = map.commit().unwrap();
    map.write_at(&[8], 0).unwrap();
    let held = map.snapshot().unwrap();
    let byte = |snapshot: &Snapshot, at: u64| {
        let mut byte = [0];
        snapshot.read_at(&mut byte, at).map(|()| byte[0])
    };
    assert_eq!((held.commit(), byte(&held, 0).unwrap()), (commit, 7));
    assert_eq!(member.ask("look 0"), "8 live, 7 in a snapshot, 7 opened");
    assert_eq!(member.ask("hold 0"), "7");
    map.commit().unwrap();
    assert_eq!(member.ask("look 0"), "8 live, 8 in a snapshot, 8 opened");
    assert_eq!(member.ask("held 0"), "7", "it reads on from what it holds");
    map.grow(2 * LEN).unwrap();
    map.write_at(&[9; 4096], LEN - 4096).unwrap();
    map.commit().unwrap();
    assert_eq!((held.len(), byte(&held, LEN - 1).unwrap()), (LEN, 0), "a page that it had not read");
    let told = untorn::inspect(&path).unwrap().snapshots.unwrap().snapshots;
    assert_eq!(told.iter().map(|held| held.process).collect::<Vec<_>>(), [std::process::id(), member.id()]);
    // This process leaves, and the member serves the others.
    map.close().unwrap();
    assert!(matches!(byte(&held, 0), Ok(7) | Err(Error::SnapshotEnded { .. })));
    assert!(matches!(byte(&held, 70_000), Err(Error::SnapshotEnded { .. })));
    assert_eq!(member.ask("ended 70000"), "SnapshotEnded");
    assert_eq!(member.ask("look 159744"), "9 live, 9 in a snapshot, 9 opened");
    assert_eq!(byte(&until_served(&path), LEN - 1).unwrap(), 9);
    member.leave();
    assert_eq!(std::fs::read(&path).unwrap()[LEN as usize - 1], 9, "a closed file is a plain one");
}

/// Not a test of its own: a process that looks at the map, and at snapshots of it.
#[test]
fn a_process_that_looks() {
    let Some(path) = role() else { return };
    let map = SharedMap::open(&path).unwrap();
    let byte = |snapshot: &Snapshot, at: u64| {
        let mut byte = [0];
        snapshot.read_at(&mut byte, at).map(|()| byte[0])
    };
    let mut held = None;
    obey("open".to_owned(), |verb, numbers| {
        let at = numbers[0];
        match (verb, &held) {
            ("look", _) => {
                let mut live = [0];
                map.read_at(&mut live, at).unwrap();
                let one = byte(&map.snapshot().unwrap(), at).unwrap();
                let other = byte(&Snapshot::open(&path).unwrap(), at).unwrap();
                format!("{} live, {one} in a snapshot, {other} opened", live[0])
            }
            ("hold", _) => byte(held.insert(map.snapshot().unwrap()), at).unwrap().to_string(),
            ("held", Some(held)) => byte(held, at).unwrap().to_string(),
            ("ended", Some(held)) => match byte(held, at) {
                Err(Error::SnapshotEnded { .. }) => "SnapshotEnded".to_owned(),
                other => format!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_snapshot_of_a_shared_map_is_one_commit() {
    let _limit = limit(120, "snapshots beside processes that store");
    let dir = memory_dir();
    let path = dir.path().join("data");
    AtomicFile::create(&path, LEN).unwrap().settle().unwrap();
    let Some(map) = unless_forbidden(SharedMap::open(&path)) else { return };
    // One process that stores: of two, each would commit what the other is in the middle of.
    let storer = changer("map", 1, &path);
    wait_until(|| map.words(64, 1).unwrap()[0].load(Ordering::SeqCst) > 1 << 32);
    let mut last = 0;
    for _ in 0..cases(60, 2000) {
        let snapshot = map.snapshot().unwrap();
        let seen = stamp(&snapshot);
        assert!(seen >= last && seen <= map.words(64, 1).unwrap()[0].load(Ordering::SeqCst));
        last = seen;
    }
    kill(storer);
    map.close().unwrap();
}

/// The reader may ask just while the process that serves leaves. It gets the commit, or is told; the file is a plain
/// one then, which others change.
#[test]
fn leaving_never_lends_the_bytes_of_a_later_owner() {
    let _limit = limit(120, "a reader beside owners that come and go");
    let dir = memory_dir();
    let path = dir.path().join("data");
    AtomicFile::create(&path, LEN).unwrap().settle().unwrap();
    let mut ended = 0;
    for round in 1..=cases(20_u8, 250) {
        let Some(map) = unless_forbidden(SharedMap::open(&path)) else { return };
        map.write_at(&[round; LEN as usize], 0).unwrap();
        map.commit().unwrap();
        let held = map.snapshot().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                map.close().unwrap();
                let next = Options::new().open(&path).unwrap();
                next.write_at(&[0xff; LEN as usize], 0).unwrap();
                next.close().unwrap();
            });
            let mut bytes = [0; 4096];
            for page in (0..PAGES).rev() {
                match held.read_at(&mut bytes, page * 4096) {
                    Ok(()) => assert_eq!(bytes, [round; 4096], "page {page}"),
                    Err(Error::SnapshotEnded { .. }) => ended += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }
    println!("{ended} reads were told");
}
