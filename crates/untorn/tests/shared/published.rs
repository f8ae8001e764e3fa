//! Files with one writer, whose commits are published: processes that take one snapshot after another need no answer of
//! the process that serves.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::shared_file::{ENGINES, create};
use crate::common::members::{Member, obey, role};
use crate::common::{Rng, limit, memory_dir};
use untorn::{AtomicFile, Durability, EngineKind, Error, Options, Snapshot};
use untorn_testing::{cases, sibling};

/// Amounts, of which there is one on each page, and their sum.
const PAGES: u64 = 40;
const SUM: u64 = PAGES * 1000;

fn options() -> Options {
    Options::new().shared(true).durability(Durability::PerWrite).one_writer(true)
}

fn open(path: &Path) -> AtomicFile {
    options().open(path).unwrap()
}

fn word(snapshot: &Snapshot, page: u64, at: u64) -> u64 {
    let mut bytes = [0; 8];
    snapshot.read_at(&mut bytes, page * 4096 + at).unwrap();
    u64::from_le_bytes(bytes)
}

/// The number of the last transfer, after a look at the sum of all amounts.
#[track_caller]
fn checked(snapshot: &Snapshot) -> u64 {
    let sum: u64 = (0..PAGES).map(|page| word(snapshot, page, 64)).sum();
    assert_eq!(sum, SUM, "of commit {}", snapshot.commit());
    word(snapshot, 0, 0)
}

/// A file of amounts that one process changes.
struct Bank {
    file: AtomicFile,
    amounts: Vec<u64>,
    transfers: u64,
    random: Rng,
}

impl Bank {
    fn new(path: &Path) -> Bank {
        let bank = Bank { file: open(path), amounts: vec![1000; PAGES as usize], transfers: 0, random: Rng::new(7) };
        let mut tx = bank.file.transaction();
        (0..PAGES).for_each(|page| tx.write_at(&1000_u64.to_le_bytes(), page * 4096 + 64).unwrap());
        tx.commit().unwrap();
        bank
    }

    /// Moves an amount, in a commit of as many further pages as `more` says.
    fn transfer(&mut self, more: u64) {
        let [from, to] = [0, 1].map(|_| self.random.below(PAGES) as usize);
        self.transfers += 1;
        self.amounts[from] -= 1;
        self.amounts[to] += 1;
        let mut tx = self.file.transaction();
        for page in [from, to] {
            tx.write_at(&self.amounts[page].to_le_bytes(), page as u64 * 4096 + 64).unwrap();
        }
        for page in 0..more {
            tx.write_at(&self.transfers.to_le_bytes(), (PAGES + page) * 4096).unwrap();
        }
        tx.write_at(&self.transfers.to_le_bytes(), 0).unwrap();
        tx.commit().unwrap();
    }
}

/// Not a test of its own: a process that takes one snapshot after another.
#[test]
fn a_process_that_reads_on() {
    let Some(path) = role() else { return };
    let file = open(Path::new(&path));
    let mut held: Option<Snapshot> = None;
    let next = |held: &mut Option<Snapshot>| {
        let renewed = match held.take() {
            Some(old) => file.snapshot_after(old),
            None => file.snapshot(),
        };
        *held = Some(renewed.unwrap());
    };
    obey("open".to_owned(), |verb, numbers| match verb {
        "next" => {
            next(&mut held);
            checked(held.as_ref().unwrap()).to_string()
        }
        "again" => checked(held.as_ref().unwrap()).to_string(),
        "rest" => {
            held.as_ref().unwrap().rest();
            "rests".to_owned()
        }
        "resume" => held.as_ref().unwrap().resume().to_string(),
        // As many as are asked for, while the other process writes.
        "many" => {
            let mut last = 0;
            for _ in 0..numbers[0] {
                next(&mut held);
                let found = checked(held.as_ref().unwrap());
                assert!(last <= found, "{last} was read before {found}");
                last = found;
            }
            last.to_string()
        }
        "word" => word(held.as_ref().unwrap(), numbers[0], 0).to_string(),
        other => panic!("{other}"),
    });
}

fn reader(path: &Path) -> Member {
    let (mut reader, said) = Member::join(sibling!("a_process_that_reads_on"), path.as_os_str());
    assert_eq!(said, "open");
    // The second one is where it begins to take them by itself.
    reader.ask("next");
    reader.ask("rest");
    reader.ask("next");
    reader
}

/// Does something until it has come about; the test's limit ends it otherwise.
fn until(mut has_come: impl FnMut() -> bool) {
    while !has_come() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn of_each_engine(test: impl Fn(EngineKind, &Path)) {
    for engine in ENGINES {
        let dir = memory_dir();
        let path = create(dir.path(), engine, Durability::PerWrite);
        test(engine, &path);
    }
}

#[test]
fn every_acknowledged_commit_is_read_at_once() {
    let _limit = limit(120, "published snapshots");
    of_each_engine(|engine, path| {
        let mut bank = Bank::new(path);
        let mut reader = reader(path);
        for round in 0..cases(300, 3_000) as u64 {
            match round % 50 {
                20 => bank.file.resize((PAGES + 300 + round) * 4096).unwrap(),
                40 => bank.file.resize(PAGES * 4096).unwrap(),
                // More pages than are published.
                21 => bank.transfer(300),
                more => bank.transfer(if more > 20 && more < 40 { more } else { 0 }),
            }
            assert_eq!(reader.ask("next"), bank.transfers.to_string(), "{engine}, round {round}");
            assert_eq!(checked(&bank.file.snapshot().unwrap()), bank.transfers);
            if round % 3 == 0 {
                reader.ask("rest");
            }
        }
        reader.leave();
        bank.file.close().unwrap();
    });
}

#[test]
fn a_reader_needs_no_answer_of_the_server() {
    let _limit = limit(60, "a server that is stopped");
    let dir = memory_dir();
    let path = create(dir.path(), ENGINES[0], Durability::PerWrite);
    let (mut server, said) = Member::join(sibling!("a_process_that_transfers"), path.as_os_str());
    assert_eq!(said, "open");
    let file = open(&path);
    let mut held = file.snapshot().unwrap();
    // It learns where pages are that do not change.
    checked(&held);
    for _ in 0..2 {
        held.rest();
        server.ask("transfer 1");
        held = file.snapshot_after(held).unwrap();
        checked(&held);
    }
    for round in 0..20 {
        held.rest();
        let last: u64 = server.ask("transfer 5").parse().unwrap();
        let process = rustix::process::Pid::from_raw(server.id() as i32).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
        assert!(!held.resume(), "there was a commit");
        held = file.snapshot_after(held).unwrap();
        assert_eq!(checked(&held), last, "round {round}");
        held.rest();
        assert!(held.resume(), "there was none");
        rustix::process::kill_process(process, rustix::process::Signal::CONT).unwrap();
    }
    drop(held);
    server.leave();
}

#[test]
fn a_reader_asks_for_nothing_that_was_committed_before_it() {
    let _limit = limit(120, "a server that is stopped");
    for engine in ENGINES {
        let dir = memory_dir();
        let path = create(dir.path(), engine, Durability::PerWrite);
        let (mut server, said) = Member::join(sibling!("a_process_that_transfers"), path.as_os_str());
        assert_eq!(said, "open");
        // All pages are in the sidecar.
        server.ask("transfer 30");
        let file = open(&path);
        let held = file.snapshot().unwrap();
        let process = rustix::process::Pid::from_raw(server.id() as i32).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
        assert_eq!(checked(&held), 30, "{engine}");
        rustix::process::kill_process(process, rustix::process::Signal::CONT).unwrap();
        drop(held);
        server.leave();
        file.close().unwrap();
    }
}

/// Not a test of its own: a process that serves and transfers.
#[test]
fn a_process_that_transfers() {
    let Some(path) = role() else { return };
    let mut bank = Bank::new(Path::new(&path));
    obey("open".to_owned(), |verb, numbers| {
        assert_eq!(verb, "transfer");
        (0..numbers[0]).for_each(|_| bank.transfer(0));
        bank.transfers.to_string()
    });
}

#[test]
fn readers_see_whole_commits_while_one_process_writes() {
    let _limit = limit(120, "readers beside a writer");
    of_each_engine(|engine, path| {
        let mut bank = Bank::new(path);
        let mut readers: Vec<_> = (0..2).map(|_| reader(path)).collect();
        let count = cases(500, 20_000);
        // Also readers that end before the writer's thread begins have seen one.
        bank.transfer(0);
        readers.iter_mut().for_each(|reader| reader.tell(&format!("many {count}")));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    bank.transfer(0);
                }
                bank
            });
            for reader in &mut readers {
                let last: u64 = reader.answer().parse().unwrap();
                assert!(last > 0, "{engine}");
            }
            done.store(true, Ordering::Relaxed);
            let bank = writer.join().unwrap();
            for mut reader in readers.drain(..) {
                assert_eq!(reader.ask("next"), bank.transfers.to_string());
                reader.leave();
            }
            bank.file.close().unwrap();
        });
    });
}

#[test]
fn a_snapshot_in_use_holds_until_its_reader_goes() {
    let _limit = limit(60, "snapshots that are in use");
    of_each_engine(|engine, path| {
        let mut bank = Bank::new(path);
        let [mut one, mut other] = [reader(path), reader(path)];
        let first = one.ask("next");
        (0..50).for_each(|_| bank.transfer(0));
        let own = bank.file.snapshot().unwrap();
        assert_eq!(other.ask("next"), "50", "{engine}");
        (0..50).for_each(|_| bank.transfer(0));
        assert_eq!((one.ask("again"), other.ask("again"), checked(&own)), (first, "50".to_owned(), 50), "{engine}");
        let held = bank.file.snapshots();
        assert!(held.snapshots.iter().any(|held| held.process == one.id()) && held.bytes > 0, "{held:?}");
        assert_eq!(one.ask("rest"), "rests");
        assert_eq!(one.ask("resume"), "false", "there were commits");
        assert!(!own.resume());
        own.rest();
        // One goes on, one is killed.
        assert_eq!(one.ask("next"), "100");
        one.ask("rest");
        other.kill();
        drop(own);
        until(|| {
            bank.transfer(0);
            bank.file.snapshots().bytes == 0
        });
        // Without a reader nothing is published, and the next one finds what was committed.
        one.leave();
        until(|| {
            bank.transfer(0);
            bank.file.snapshots().snapshots.is_empty()
        });
        let mut late = reader(path);
        assert_eq!(late.ask("next"), bank.transfers.to_string(), "{engine}");
        late.leave();
        bank.file.close().unwrap();
    });
}

#[test]
fn readers_of_a_killed_server_find_the_next_one() {
    let _limit = limit(60, "a server that is killed");
    let dir = memory_dir();
    let path = create(dir.path(), ENGINES[0], Durability::PerWrite);
    let (mut server, _) = Member::join(sibling!("a_process_that_transfers"), path.as_os_str());
    let file = open(&path);
    let mut held = file.snapshot().unwrap();
    for _ in 0..3 {
        server.ask("transfer 3");
        held.rest();
        held = file.snapshot_after(held).unwrap();
    }
    held.rest();
    server.kill();
    assert!(!held.resume(), "the process that kept it has ended");
    let held = file.snapshot_after(held).unwrap();
    assert_eq!(checked(&held), 9);
    // This process serves.
    file.write_at(&10_u64.to_le_bytes(), 0).unwrap();
    assert!(matches!(held.read_at(&mut [0; 8], 0), Ok(()) | Err(Error::SnapshotEnded { .. })));
    assert_eq!(checked(&file.snapshot().unwrap()), 10);
    file.close().unwrap();
}
