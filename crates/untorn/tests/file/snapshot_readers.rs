//! Readers of snapshots in other processes: which bytes they copy by themselves, and how they leave writers their turn.

use std::path::Path;
use std::time::Duration;

use crate::common::system::{Child, in_forked_child};
use crate::common::{PAGE, Rng, alone, scratch, seed};
use untorn::{AtomicFile, Durability, Error, Options, Snapshot};
use untorn_testing::cases;

const PAGES: u64 = 24;

fn until_there(told: &Path) {
    while !told.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Commit `number` fills one page with its number. So the highest number that a snapshot has tells all of its pages.
fn one_page_a_commit(path: &Path, options: &Options) -> Child {
    in_forked_child(|| {
        let file = options.open(path).unwrap();
        std::fs::write(path.with_extension("told"), "").unwrap();
        for number in 1_u64.. {
            let page = number * 7 % PAGES;
            file.write_at(&number.to_le_bytes().repeat(PAGE / 8), page * PAGE as u64).unwrap();
            file.sync().unwrap();
            if number % 50 == 0 {
                // Pages come home.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        0
    })
}

/// The number that fills a page.
#[track_caller]
fn page_number(snapshot: &Snapshot, page: u64) -> u64 {
    let mut bytes = [0; PAGE];
    snapshot.read_at(&mut bytes, page * PAGE as u64).unwrap();
    let (words, _) = bytes.as_chunks::<8>();
    assert!(words.iter().all(|word| *word == words[0]), "page {page} is a mixture");
    u64::from_le_bytes(words[0])
}

/// Readers copy pages that are home out of the data file, while the writer changes them and brings others home.
#[test]
fn another_process_reads_every_page_of_a_commit() {
    alone!(1800, "a reader of pages that change");
    let mut rng = Rng::new(seed("snapshot_pages"));
    for engine in untorn::testing::ENGINES {
        for durability in [Durability::PerWrite, Durability::PerCommit] {
            let path = scratch("data");
            let options = Options::new().engine(engine).durability(durability);
            options.create(&path, PAGES * PAGE as u64).unwrap().close().unwrap();
            let writer = one_page_a_commit(&path, &options);
            // A snapshot of the plain file that it was before ends when the writer opens it.
            until_there(&path.with_extension("told"));
            let mut reads = 0;
            let mut last = 0;
            while reads < cases(3000, 250_000) {
                let snapshot = Snapshot::open(&path).unwrap();
                // Random pages first, so that the last ones are read long after the snapshot was taken.
                let mut numbers = std::collections::BTreeMap::new();
                for _ in 0..3 * PAGES {
                    let page = rng.below(PAGES);
                    let number = page_number(&snapshot, page);
                    assert_eq!(*numbers.entry(page).or_insert(number), number, "page {page} changed");
                }
                let all: Vec<u64> = (0..PAGES).map(|page| page_number(&snapshot, page)).collect();
                assert!(numbers.iter().all(|(page, number)| all[*page as usize] == *number));
                let newest = all.iter().copied().max().unwrap();
                assert!(newest >= last, "{newest} after {last}");
                last = newest;
                for back in 0..PAGES.min(newest) {
                    let number = newest - back;
                    assert_eq!(all[(number * 7 % PAGES) as usize], number, "of the snapshot of {newest}");
                }
                reads += 4 * PAGES;
            }
            writer.kill();
            writer.wait();
            println!("{engine} {durability}: {reads} reads up to commit {last}");
            AtomicFile::open(&path).unwrap().close().unwrap();
        }
    }
}

/// The reader asks once where pages are. From then on it needs the writer's process for none that is home, and notices
/// its death by itself.
#[test]
fn pages_at_home_are_read_without_the_writer() {
    alone!(120, "a reader of a stopped writer");
    for engine in untorn::testing::ENGINES {
        let path = scratch("data");
        let options = Options::new().engine(engine);
        let file = options.create(&path, PAGES * PAGE as u64).unwrap();
        (0..PAGES).for_each(|page| file.write_at(&[page as u8 + 1; PAGE], page * PAGE as u64).unwrap());
        file.close().unwrap();
        let told = path.with_extension("told");
        let writer = in_forked_child(|| {
            let file = options.open(&path).unwrap();
            file.write_at(&[99; PAGE], 0).unwrap();
            file.sync().unwrap();
            std::fs::write(&told, "").unwrap();
            std::thread::sleep(Duration::from_secs(600));
            0
        });
        until_there(&told);
        let snapshot = Snapshot::open(&path).unwrap();
        let byte = |page: u64| {
            let mut byte = [0];
            snapshot.read_at(&mut byte, page * PAGE as u64 + 77).map(|()| byte[0])
        };
        assert_eq!(byte(0).unwrap(), 99, "{engine}");
        let number = rustix::process::Pid::from_raw(writer.id().cast_signed()).unwrap();
        rustix::process::kill_process(number, rustix::process::Signal::STOP).unwrap();
        let since = std::time::Instant::now();
        for page in 1..PAGES {
            assert_eq!(byte(page).unwrap(), page as u8 + 1, "{engine}");
        }
        assert!(since.elapsed() < Duration::from_secs(20), "it waited for the writer");
        writer.kill();
        writer.wait();
        let error = byte(1).unwrap_err();
        assert!(matches!(error, Error::SnapshotEnded { .. }), "{error}");
        AtomicFile::open(&path).unwrap().close().unwrap();
    }
}

/// Each reader has the file locked most of the time, so without turns there is hardly an instant at which none has.
#[test]
fn readers_that_come_and_go_let_a_writer_pass() {
    alone!(120, "a writer beside readers that come and go");
    for engine in untorn::testing::ENGINES {
        let path = scratch("data");
        let options = Options::new().engine(engine).keep_sidecar(true);
        let file = options.create(&path, PAGE as u64).unwrap();
        file.write_at(&[7], 0).unwrap();
        file.close().unwrap();
        let told = path.with_extension("told");
        let reads = |number: u64| {
            in_forked_child(|| {
                for round in 0.. {
                    let held = Snapshot::open(&path);
                    if round == 0 {
                        std::fs::write(told.join(number.to_string()), "").unwrap();
                    }
                    std::thread::sleep(Duration::from_millis(30));
                    drop(held);
                }
                0
            })
        };
        std::fs::create_dir(&told).unwrap();
        let readers: Vec<Child> = (0..6).map(reads).collect();
        while std::fs::read_dir(&told).unwrap().count() < readers.len() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let file = options.open(&path).unwrap();
        file.write_at(&[8], 0).unwrap();
        file.close().unwrap();
        for reader in readers {
            reader.kill();
            reader.wait();
        }
        options.open(&path).unwrap().settle().unwrap();
    }
}
