//! The stream of commits of atomic files behind a write cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use untorn::commits::CommitStream;
use untorn::options::CommitLog;
use untorn::write_cache::{CacheOptions, CachedFile, Descriptor, WriteCache};
use untorn::{Error, Result, inspect};

struct Place {
    dir: tempfile::TempDir,
    cache: WriteCache,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cache = CacheOptions::new().size(1 << 20).max_files(8).background(false);
        let cache = cache.create(dir.path().join("log")).unwrap();
        Place { dir, cache }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("file")
    }

    fn plain(&self) -> Arc<Descriptor> {
        let path = self.path();
        let plain = File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        Arc::new(Descriptor::new(plain.into(), &path).unwrap())
    }

    fn attach(&self, log: impl Into<CommitLog>) -> CachedFile {
        self.cache.attach_atomic_with_commit_log(self.plain(), &self.path(), log).unwrap()
    }

    /// Commits these bytes, and brings them to the file.
    fn commit(&self, file: &CachedFile, bytes: &[u8], offset: u64) -> Result<()> {
        file.write_at(bytes, offset)?;
        file.commit()?;
        self.cache.drain()
    }

    fn logs(&self) -> Vec<String> {
        let Ok(names) = fs::read_dir(self.dir.path().join(".untorn")) else { return Vec::new() };
        names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// The numbers of a stream's commits, and the file that they make of this one.
fn replayed(path: &Path, from: u64, mut bytes: Vec<u8>) -> (Vec<u64>, Vec<u8>) {
    let (mut stream, mut numbers) = (CommitStream::open(path, from).unwrap(), Vec::new());
    while let Some(commit) = stream.next().unwrap() {
        bytes.truncate(commit.shortest as usize);
        bytes.resize(commit.len as usize, 0);
        for change in &commit.changes {
            bytes[change.range.start as usize..change.range.end as usize].copy_from_slice(&change.bytes);
        }
        numbers.push(commit.number);
    }
    (numbers, bytes)
}

#[test]
fn the_commits_of_a_file_are_given_in_order() {
    let place = Place::new();
    let path = place.path();
    let file = place.attach(1 << 20);
    file.write_at(&[1; 100], 0).unwrap();
    file.write_at(&[2; 50], 80).unwrap();
    assert_eq!(replayed(&path, 0, Vec::new()), (vec![], vec![]), "nothing is committed");
    file.commit().unwrap();
    // In one epoch the file is cut, and grows again.
    file.set_len(20).unwrap();
    file.write_at(&[3; 10], 200).unwrap();
    file.commit_later().unwrap();
    file.write_at(&[4; 10], 0).unwrap();
    place.cache.drain().unwrap();
    let expected = [&[1; 20][..], &[0; 180], &[3; 10]].concat();
    assert_eq!(fs::read(&path).unwrap(), expected);
    assert_eq!(replayed(&path, 0, Vec::new()), (vec![1, 2], expected.clone()));
    // What the last handle leaves uncommitted is no commit.
    drop(file);
    let file = place.cache.attach_atomic(place.plain(), &path).unwrap();
    place.commit(&file, &[5; 10], 300).unwrap();
    let now = fs::read(&path).unwrap();
    assert_eq!(replayed(&path, 0, Vec::new()), (vec![1, 2, 3], now.clone()));
    assert_eq!(replayed(&path, 2, expected), (vec![3], now));
    let log = untorn::inspect(&path).unwrap().commit_log.unwrap();
    assert_eq!((log.first, log.last, log.limit), (Some(1), Some(3), 1 << 20));
    // Its name and its place in the order survive a detour past the log.
    file.demote().unwrap();
    drop(file);
    let file = place.cache.attach_atomic(place.plain(), &path).unwrap();
    place.commit(&file, &[6; 10], 0).unwrap();
    assert_eq!(replayed(&path, 3, Vec::new()).0, [4]);
}

#[test]
fn another_program_s_change_begins_the_stream_anew() {
    let place = Place::new();
    let path = place.path();
    let file = place.attach(1 << 20);
    place.commit(&file, &[1; 100], 0).unwrap();
    drop(file);
    fs::write(&path, [9; 300]).unwrap();
    let file = place.cache.attach_atomic(place.plain(), &path).unwrap();
    let Err(Error::CommitsMissing { oldest, .. }) = CommitStream::open(&path, 0) else { panic!("nobody is told") };
    place.commit(&file, &[2; 10], 0).unwrap();
    let bytes = [&[2; 10][..], &[9; 290]].concat();
    assert_eq!(replayed(&path, oldest.unwrap(), vec![9; 300]), (vec![oldest.unwrap() + 1], bytes));
}

#[test]
fn writes_that_are_no_commits_end_a_stream() {
    let place = Place::new();
    let path = place.path();
    let file = place.attach(1 << 20);
    place.commit(&file, &[1; 100], 0).unwrap();
    drop(file);
    let file = place.cache.attach_write_through(place.plain(), &path).unwrap();
    file.write_at(&[2; 10], 0).unwrap();
    assert!(matches!(CommitStream::open(&path, 0), Err(Error::CommitsMissing { oldest: Some(1), .. })));
}

#[test]
fn a_commit_that_is_larger_than_the_log_begins_it_anew() {
    let place = Place::new();
    let path = place.path();
    let file = place.attach(8192);
    place.commit(&file, &[1; 100], 0).unwrap();
    place.commit(&file, &[2; 20_000], 0).unwrap();
    let Err(Error::CommitsMissing { oldest, .. }) = CommitStream::open(&path, 0) else { panic!("nobody is told") };
    assert_eq!(oldest, Some(2));
    place.commit(&file, &[3; 100], 50).unwrap();
    assert_eq!(replayed(&path, 2, vec![2; 20_000]), (vec![3], fs::read(&path).unwrap()));
}

#[test]
fn a_commit_waits_for_a_consumer_if_the_log_blocks() {
    let place = Place::new();
    let path = place.path();
    let file = place.attach(CommitLog::new(16 << 10).block(Duration::ZERO));
    let mut consumer = CommitStream::consumer(&path, "replica").unwrap();
    let mut made = 0;
    let refused = loop {
        file.write_at(&[made + 1; 6000], 0).unwrap();
        match file.commit() {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 20, "no commit waits");
    };
    assert!(matches!(refused, Error::ConsumerBehind { .. }), "{refused}");
    assert!(file.has_open_epoch() && made > 1);
    // The consumer has missed nothing, and the epoch is there to be committed.
    for number in 1..=u64::from(made) {
        let commit = consumer.next().unwrap().unwrap();
        assert_eq!((commit.number, &commit.changes[0].bytes[..]), (number, &[number as u8; 6000][..]));
        consumer.acknowledge(number).unwrap();
    }
    file.commit().unwrap();
    place.cache.drain().unwrap();
    assert_eq!(consumer.next().unwrap().unwrap().changes[0].bytes, [made + 1; 6000]);
}

#[test]
fn a_commit_returns_when_its_consumer_has_it() {
    let place = Place::new();
    let path = place.path();
    let file = place.attach(CommitLog::new(1 << 20).await_consumers());
    let mut consumer = CommitStream::consumer(&path, "replica").unwrap();
    std::thread::scope(|scope| {
        let told = scope.spawn(|| {
            for number in 1..=10 {
                let commit = consumer.next_within(Duration::from_secs(60)).unwrap().unwrap();
                assert_eq!((commit.number, &commit.changes[0].bytes[..]), (number, &[number as u8; 600][..]));
                std::thread::sleep(Duration::from_millis(3));
                consumer.acknowledge(number).unwrap();
            }
            consumer
        });
        for number in 1..=10 {
            file.write_at(&[number; 600], 0).unwrap();
            file.commit().unwrap();
            let found = inspect(&path).unwrap().commit_log.unwrap().consumers;
            assert!(found[0].acknowledged >= u64::from(number), "{number}: {found:?}");
        }
        // Nothing new: nothing is waited for.
        file.sync().unwrap();
        drop(told.join().unwrap());
    });
}

/// Such a file would be synced without anybody to acknowledge it.
#[test]
fn a_file_needs_its_log_if_that_awaits_consumers() {
    for awaits in [false, true] {
        let (place, other) = (Place::new(), Place::new());
        let path = place.path();
        let log = CommitLog::new(1 << 20);
        let held = place.attach(if awaits { log.await_consumers() } else { log });
        let attached = other.cache.attach_atomic(place.plain(), &path).map(drop);
        assert_eq!(matches!(attached, Err(Error::InUse { .. })), awaits, "{attached:?}");
        drop(held);
    }
}

#[test]
fn a_commit_that_waits_too_long_for_its_consumer_stays() {
    let place = Place::new();
    let path = place.path();
    let file = place.attach(CommitLog::new(1 << 20).await_consumers().block(Duration::from_millis(20)));
    file.write_at(&[1; 600], 0).unwrap();
    let told = file.commit().unwrap_err();
    assert!(matches!(told, Error::NotAcknowledged { consumer: None, commit: 1, .. }), "{told}");
    let mut consumer = CommitStream::consumer(&path, "replica").unwrap();
    assert!(file.sync().is_err());
    consumer.next().unwrap().unwrap();
    consumer.acknowledge(1).unwrap();
    file.sync().unwrap();
    // One that is not to be durable waits for nobody.
    file.write_at(&[2; 600], 0).unwrap();
    file.commit_later().unwrap();
    assert!(matches!(file.sync().unwrap_err(), Error::NotAcknowledged { commit: 2, .. }));
}

#[test]
fn a_log_goes_with_its_file() {
    let place = Place::new();
    let path = place.path();
    let file = place.attach(1 << 20);
    place.commit(&file, &[1; 100], 0).unwrap();
    assert_eq!(place.logs().len(), 2, "{:?}", place.logs());
    // To another directory, with its name.
    let below = path.parent().unwrap().join("below");
    fs::create_dir(&below).unwrap();
    let to = below.join("moved");
    if file.begin_rename(&to).unwrap() {
        fs::rename(&path, &to).unwrap();
        file.end_rename(true).unwrap();
        assert!(place.logs().is_empty(), "{:?}", place.logs());
        place.commit(&file, &[2; 10], 0).unwrap();
        assert_eq!(replayed(&to, 0, Vec::new()), (vec![1, 2], fs::read(&to).unwrap()));
        // Away, with its last name.
        assert!(file.prepare_unlink().unwrap());
        fs::remove_file(&to).unwrap();
        drop(file);
        place.cache.drain().unwrap();
        assert_eq!(fs::read_dir(below.join(".untorn")).unwrap().count(), 0);
    } else {
        untorn_testing::skipped!("the file system of the test does not tell files of one inode number apart");
    }
}

#[test]
fn one_process_at_a_time_writes_to_a_log() {
    let (place, other) = (Place::new(), Place::new());
    let path = place.path();
    let _file = place.attach(1 << 20);
    let again = other.cache.attach_atomic_with_commit_log(place.plain(), &path, 1 << 20);
    assert!(matches!(again, Err(Error::InUse { .. })), "{again:?}");
    assert!(matches!(untorn::write_cache::set_commit_log(&path, None), Err(Error::InUse { .. })));
}
