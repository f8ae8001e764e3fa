//! [`SharedMap`]: several processes that store to one file, over the real engine; killed together, one by one, and
//! refused.
//!
//! The tests of the working copy itself, with every committed image judged, are in the crate
//! (`sharing/working/tests.rs`).

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::members::{hear, kill, role, start, unless_forbidden};
use crate::common::system::in_forked_child;
use crate::common::{ReadAt, Rng, alone, limit, make_long, memory_dir, page_tables, scratch, seed, wait_until};
use untorn::commits::{Commit, CommitStream};
use untorn::shared::SharedMap;
use untorn::{AtomicFile, AtomicMap, Durability, EngineKind, Error, Options};
use untorn_testing::sibling;

const PAGES: usize = 40;
const LEN: u64 = PAGES as u64 * 4096;

fn share(path: &Path) -> Option<SharedMap> {
    unless_forbidden(SharedMap::open(path))
}

fn file(dir: &Path) -> PathBuf {
    let path = dir.join("data");
    std::fs::File::create(&path).unwrap().set_len(LEN).unwrap();
    path
}

/// A process that stores and commits until it is killed; it says on standard output what each commit covers.
fn sharer(path: &Path, number: usize) -> Child {
    start(sibling!("a_process_that_stores"), format!("{number} {}", path.display()))
}

/// Not a test of its own: what [`sharer`] runs.
///
/// Word 0 is a counter of tickets. Whoever draws one notes it in two pages of its own, one after the other, so that
/// in a cut no note is above the counter, and the second is as the first or the one before it.
#[test]
fn a_process_that_stores() {
    let Some(role) = role() else { return };
    let (number, path) = role.to_str().unwrap().split_once(' ').unwrap();
    let number: usize = number.parse().unwrap();
    let map = SharedMap::open(path).unwrap();
    let tickets = &map.words(0, 1).unwrap()[0];
    let notes = [1 + 2 * number, 2 + 2 * number].map(|page| &map.words(page as u64 * 4096, 1).unwrap()[0]);
    let mut out = std::io::stdout();
    loop {
        let mut last = 0;
        for _ in 0..20 {
            last = tickets.fetch_add(1, Ordering::SeqCst) + 1;
            notes.iter().for_each(|note| note.store(last, Ordering::SeqCst));
        }
        map.commit().unwrap();
        writeln!(out, "committed {last}").unwrap();
        out.flush().unwrap();
    }
}

/// Notes the highest ticket that a process committed.
fn hear_commits(child: &mut Child, highest: &Arc<AtomicU64>) -> JoinHandle<()> {
    let highest = Arc::clone(highest);
    hear(child, "committed ", move |numbers| {
        numbers.iter().for_each(|&last| _ = highest.fetch_max(last, Ordering::SeqCst));
    })
}

#[test]
fn processes_killed_together_leave_one_acknowledged_cut() {
    let _limit = limit(120, "processes that are killed");
    let seed = seed("shared_map");
    let mut rng = Rng::new(seed);
    for count in [2, 4] {
        let dir = memory_dir();
        let path = file(dir.path());
        let Some(map) = share(&path) else { return };
        map.close().unwrap();
        let highest = Arc::new(AtomicU64::new(0));
        for round in 0..10 {
            let before = highest.load(Ordering::SeqCst);
            let mut children: Vec<Child> = (0..count).map(|number| sharer(&path, number)).collect();
            let ears: Vec<_> = children.iter_mut().map(|child| hear_commits(child, &highest)).collect();
            // However long it takes them to begin: something is to be lost.
            while highest.load(Ordering::SeqCst) < before + 40 {
                assert!(children.iter_mut().all(|child| child.try_wait().unwrap().is_none()), "one ended by itself");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(rng.below(200)));
            // One after the other, the one that serves among them, with the others going on meanwhile.
            while !children.is_empty() {
                kill(children.swap_remove(rng.below(children.len() as u64) as usize));
                std::thread::sleep(Duration::from_millis(rng.below(30)));
            }
            ears.into_iter().for_each(|ear| ear.join().unwrap());
            let acknowledged = highest.load(Ordering::SeqCst);
            let map = AtomicMap::open(&path).unwrap();
            let word = |page: usize| *map.view::<u64>(page as u64 * 4096).unwrap();
            let tickets = word(0);
            assert!(tickets >= acknowledged, "round {round}: ticket {acknowledged} was committed, {tickets} is there");
            for number in 0..count {
                let (first, second) = (word(1 + 2 * number), word(2 + 2 * number));
                assert!(second <= first && first <= tickets, "torn: {first} and {second} of {tickets}, round {round}");
            }
            map.close().unwrap();
        }
    }
}

#[test]
fn stores_of_one_process_are_seen_and_committed_by_another() {
    let _limit = limit(60, "two processes");
    let dir = memory_dir();
    let path = file(dir.path());
    let Some(map) = share(&path) else { return };
    assert!(map.is_owner());
    let other = sharer(&path, 0);
    let tickets = &map.words(0, 1).unwrap()[0];
    wait_until(|| tickets.load(Ordering::SeqCst) >= 1000);
    map.write_at(b"from here", 39 * 4096).unwrap();
    let commit = map.commit().unwrap();
    assert!(map.last_commit() >= commit);
    kill(other);
    assert_eq!(map.bytes_at(39 * 4096, 9), b"from here");
    map.close().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(&bytes[39 * 4096..][..9], b"from here");
    assert!(u64::from_le_bytes(bytes[..8].try_into().unwrap()) >= 1000);
}

/// Not a test of its own: a process that serves a map, and on one word leaves it, while a child forked from it lives
/// on with all that it had open. It ends itself when its standard input does.
#[test]
fn a_process_with_a_forked_child() {
    let Some(path) = role() else { return };
    let map = SharedMap::open(path).unwrap();
    assert!(map.is_owner());
    map.write_at(b"from a server", 4096).unwrap();
    println!("serving");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let heir = in_forked_child(|| {
        std::thread::sleep(Duration::from_secs(600));
        0
    });
    map.close().unwrap();
    println!("left");
    std::io::stdin().read_line(&mut line).unwrap();
    heir.kill();
    heir.wait();
}

/// Closing a socket that a forked child has too tells nobody anything.
#[test]
fn a_leaving_owner_with_a_forked_child_blocks_nobody() {
    let _limit = limit(60, "the others after the serving process has left");
    let dir = memory_dir();
    let path = file(dir.path());
    let Some(map) = share(&path) else { return };
    map.close().unwrap();
    let mut server = start(sibling!("a_process_with_a_forked_child"), &*path);
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut await_line = |word: &str| assert!(lines.any(|line| line.unwrap().contains(word)), "it ended");
    await_line("serving");
    let map = share(&path).unwrap();
    assert!(!map.is_owner());
    map.write_at(b"before", 0).unwrap();
    let mut stdin = server.stdin.take().unwrap();
    writeln!(stdin, "leave").unwrap();
    await_line("left");
    // A page that nobody has loaded yet, a commit, one that joins: all of it needs somebody who serves.
    map.write_at(b"after", 20 * 4096).unwrap();
    map.commit().unwrap();
    assert!(map.is_owner());
    let bytes = |map: &SharedMap, at: u64, len: usize| {
        let bytes = map.bytes_at(at, len);
        String::from_utf8(bytes).unwrap()
    };
    let another = sharer(&path, 3);
    wait_until(|| map.words(7 * 4096, 1).unwrap()[0].load(Ordering::SeqCst) != 0);
    kill(another);
    assert_eq!([bytes(&map, 4096, 13), bytes(&map, 20 * 4096, 5)], ["from a server", "after"]);
    drop(stdin);
    assert!(server.wait().unwrap().success());
    map.close().unwrap();
}

#[test]
fn rollback_and_growth() {
    let dir = memory_dir();
    let path = file(dir.path());
    let Some(map) = share(&path) else { return };
    map.write_at(&[1; 100], 5000).unwrap();
    map.commit().unwrap();
    map.write_at(&[2; 5000], 4000).unwrap();
    map.rollback().unwrap();
    let bytes = map.bytes_at(4950, 200);
    assert!(bytes[..50].iter().chain(&bytes[150..]).all(|byte| *byte == 0) && bytes[50..150] == [1; 100]);
    let address = map.as_ptr();
    map.grow(LEN + 5000).unwrap();
    assert_eq!((map.len() as u64, map.as_ptr()), (LEN + 5000, address));
    map.write_at(&[3; 10], LEN + 4990).unwrap();
    map.commit().unwrap();
    for len in [LEN, u64::MAX] {
        let refused = map.grow(len).unwrap_err();
        assert!(matches!(&refused, Error::Invalid { path: of, .. } if *of == path), "{refused}");
    }
    for (offset, len) in [(LEN + 4991, 10), (u64::MAX, 1)] {
        assert!(matches!(map.write_at(&vec![0; len], offset), Err(Error::OutOfRange { .. })));
    }
    assert!(matches!(map.words(4, 1), Err(Error::Invalid { .. })));
    assert!(matches!(map.words(LEN + 5000 - 8, 2), Err(Error::OutOfRange { .. })));
    map.write_at(&[4; 10], 0).unwrap(); // of no commit
    map.close().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len() as u64, bytes[0]), (LEN + 5000, 0));
    assert_eq!(bytes[LEN as usize + 4990..], [3; 10]);
}

/// What is too much is refused with the reason, and the stores are still there.
#[test]
fn a_commit_that_does_not_fit_commits_nothing() {
    let path = scratch("data");
    std::fs::File::create(&path).unwrap().set_len(32 << 20).unwrap();
    if share(&path).is_none() {
        return;
    }
    let map = Options::new().log_size(4 << 20).share_map(&path).unwrap();
    map.write_at(&vec![1; 32 << 20], 0).unwrap();
    let refused = map.commit().unwrap_err();
    assert!(matches!(&refused, Error::Invalid { path: of, .. } if *of == *path), "{refused}");
    let mut byte = [0];
    map.read_at(&mut byte, (32 << 20) - 1).unwrap();
    assert_eq!(byte, [1]);
    map.rollback().unwrap();
    map.write_at(&[2], 7).unwrap();
    map.commit().unwrap();
    map.close().unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[..9], [0, 0, 0, 0, 0, 0, 0, 2, 0]);
}

#[test]
fn other_uses_of_the_file_are_refused_meanwhile() {
    let dir = memory_dir();
    let path = file(dir.path());
    let Some(map) = share(&path) else { return };
    let in_use = |outcome: Result<(), Error>| assert!(matches!(outcome, Err(Error::InUse { .. })), "{outcome:?}");
    in_use(AtomicFile::open(&path).map(drop));
    in_use(Options::new().engine(EngineKind::HybridLog).open(&path).map(drop));
    in_use(AtomicMap::open(&path).map(drop));
    in_use(SharedMap::open(&path).map(drop));
    map.close().unwrap();
    let other = AtomicMap::open(&path).unwrap();
    in_use(SharedMap::open(&path).map(drop));
    drop(other);
    for options in [
        Options::new().engine(EngineKind::Reflection),
        Options::new().durability(Durability::PerWrite),
        Options::new().read_only(true),
    ] {
        assert!(matches!(options.share_map(&path), Err(Error::Invalid { .. })));
    }
    let reflected = dir.path().join("reflected");
    let file = Options::new().engine(EngineKind::Reflection).keep_sidecar(true).create(&reflected, 4096).unwrap();
    file.write_at(&[1; 64], 0).unwrap();
    file.close().unwrap();
    let error = SharedMap::open(&reflected).unwrap_err();
    assert!(error.to_string().contains("settle"), "{error}");
    assert!(SharedMap::open(dir.path().join("none")).is_err());
}

/// Not a test of its own: creates the file or joins those who have, draws a ticket, and commits.
#[test]
fn a_process_that_creates_or_joins() {
    let Some(path) = role() else { return };
    let map = SharedMap::open_or_create(path, LEN).unwrap();
    assert_eq!(map.len() as u64, LEN);
    map.words(0, 1).unwrap()[0].fetch_add(1, Ordering::SeqCst);
    map.commit().unwrap();
    map.close().unwrap();
}

#[test]
fn processes_that_create_one_map_at_once_share_it() {
    let dir = memory_dir();
    let path = dir.path().join("created");
    let Some(map) = unless_forbidden(SharedMap::create(&path, LEN)) else { return };
    assert!(matches!(SharedMap::create(&path, LEN), Err(error) if error.errno() == libc::EEXIST));
    map.close().unwrap();
    std::fs::remove_file(&path).unwrap();
    let path = dir.path().join("joined");
    let processes: Vec<Child> =
        (0..4).map(|_| start(sibling!("a_process_that_creates_or_joins"), path.display().to_string())).collect();
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    let map = SharedMap::open(&path).unwrap();
    assert_eq!(map.words(0, 1).unwrap()[0].load(Ordering::SeqCst), 4);
}

/// Ten tebibytes, of which almost nothing is touched.
#[test]
fn a_long_shared_map_takes_page_tables_for_what_is_touched() {
    alone!(120, "a long shared map");
    let path = scratch("file");
    let len = make_long(&path);
    let before = page_tables();
    let Some(map) = share(&path) else { return };
    let taken = || page_tables().saturating_sub(before);
    assert!(taken() < 1 << 10, "untouched it takes {} KiB", taken());
    const TOUCHED: u64 = 16;
    let place = |nth: u64| len / TOUCHED * nth + 8 * nth;
    for round in 1..4 {
        (0..TOUCHED).for_each(|nth| map.words(place(nth), 1).unwrap()[0].store(nth + round, Ordering::SeqCst));
        map.commit().unwrap();
    }
    // Each page has page tables of its own in three mappings, and so have the bits that are kept of it.
    assert!(taken() < 1024 + 64 * TOUCHED, "{TOUCHED} pages take {} KiB", taken());
    map.close().unwrap();
    let map = SharedMap::open(&path).unwrap();
    assert!((0..TOUCHED).all(|nth| map.words(place(nth), 1).unwrap()[0].load(Ordering::SeqCst) == nth + 3));
    map.close().unwrap();
}

/// Also of those that were committed while another process took over.
#[test]
fn a_stream_has_the_commits_of_all_processes() {
    let dir = memory_dir();
    let path = file(dir.path());
    let Some(map) = unless_forbidden(Options::new().commit_log(256 << 20).share_map(&path)) else { return };
    let mut stream = map.commits(map.last_commit()).unwrap();
    let mut children: Vec<Child> = (0..3).map(|number| sharer(&path, number)).collect();
    let mut replica = vec![0; LEN as usize];
    let mut previous = stream.position();
    let mut repeat = |commit: &Commit| {
        assert_eq!(commit.previous, previous);
        previous = commit.number;
        for change in &commit.changes {
            replica[change.range.start as usize..change.range.end as usize].copy_from_slice(&change.bytes);
        }
    };
    let take = |stream: &mut CommitStream, repeat: &mut dyn FnMut(&Commit)| {
        (0..30).for_each(|_| repeat(&stream.next_within(Duration::from_secs(60)).unwrap().unwrap()));
    };
    take(&mut stream, &mut repeat);
    // The owner leaves, and then the next one is killed, whichever it is.
    map.close().unwrap();
    take(&mut stream, &mut repeat);
    for child in children.drain(..) {
        kill(child);
        if let Some(commit) = stream.next().unwrap() {
            repeat(&commit);
        }
    }
    let file = AtomicFile::open(&path).unwrap();
    while let Some(commit) = stream.next().unwrap() {
        repeat(&commit);
    }
    assert!(file.bytes_at(0, LEN as usize) == replica);
    file.close().unwrap();
}

#[test]
fn a_process_that_joins_with_another_commit_log_is_refused() {
    let dir = memory_dir();
    let path = file(dir.path());
    let Some(map) = share(&path) else { return };
    let child = in_forked_child(|| match Options::new().commit_log(1 << 20).share_map(&path) {
        Err(error) if error.to_string().contains("commit log none") => 0,
        _ => 1,
    });
    assert_eq!(child.wait(), Some(0));
    map.write_at(&[1], 0).unwrap();
    map.commit().unwrap();
    map.close().unwrap();
}
