//! Registered consumers of a commit log: positions that last, commits that wait, and the way out.

use std::time::{Duration, Instant};

use untorn::commits::{self, CommitStream, forget, stop};
use untorn::options::CommitLog;
use untorn::{AtomicFile, Durability, EngineKind, Error, Options, inspect};

use crate::common::system::in_forked_child;

const LEN: u64 = 60_000;

fn commit(file: &AtomicFile, round: u8) -> untorn::Result<u64> {
    file.write_at(&[round; 9000], u64::from(round % 5) * 9000)?;
    file.sync()
}

/// Commits until one is refused, which is about this consumer. Returns how many were made.
fn fill(file: &AtomicFile, name: &str) -> u32 {
    for count in 0..200 {
        match commit(file, count as u8) {
            Ok(_) => {}
            Err(Error::ConsumerBehind { consumer, acknowledged, last, .. }) => {
                assert!(consumer == name && acknowledged < last, "{consumer}, {acknowledged} of {last}");
                return count;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no commit was refused");
}

/// Takes all that there is, each commit after the one before it.
fn drain(stream: &mut CommitStream, mut previous: u64) -> u32 {
    let mut count = 0;
    while let Some(commit) = stream.next().unwrap() {
        assert_eq!(commit.previous, previous);
        previous = commit.number;
        count += 1;
    }
    count
}

#[test]
fn a_commit_waits_for_the_slowest_consumer_and_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let log = CommitLog::new(256 << 10).block(Duration::from_millis(300));
    let file = Options::new().commit_log(log).create(&path, LEN).unwrap();
    // Without a consumer nothing waits.
    (0..100).for_each(|round| assert!(commit(&file, round).is_ok()));
    let start = file.last_commit().number;
    let mut fast = CommitStream::consumer_from(&path, "fast", start).unwrap();
    let mut slow = CommitStream::consumer_from(&path, "slow", start).unwrap();
    // The consumer may be this very thread: it is refused after the time, and the open epoch is as it was.
    let since = Instant::now();
    let made = fill(&file, "fast");
    assert!(made > 5 && since.elapsed() >= Duration::from_millis(300), "{made} in {:?}", since.elapsed());
    assert_eq!(drain(&mut fast, start), made);
    let position = fast.position();
    fast.acknowledge(position).unwrap();
    let error = file.sync().unwrap_err();
    assert!(matches!(&error, Error::ConsumerBehind { consumer, .. } if consumer == "slow"), "{error}");
    assert_eq!(error.errno(), rustix::io::Errno::AGAIN.raw_os_error());
    // The slowest gets on while the commit waits.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(drain(&mut slow, start), made);
            let position = slow.position();
            slow.acknowledge(position).unwrap();
        });
        file.sync().unwrap();
    });
    let position = slow.position();
    assert_eq!(drain(&mut slow, position), 1);
    let found = inspect(&path).unwrap().commit_log.unwrap();
    assert_eq!(found.block, Some(Duration::from_millis(300)));
    let told: Vec<_> = found.consumers.iter().map(|one| (&one.name[..], one.acknowledged, one.has_missed)).collect();
    assert_eq!(told, [("fast", fast.acknowledged().unwrap(), false), ("slow", slow.acknowledged().unwrap(), false)]);
    // A consumer that is gone is forgotten, also while a commit waits for it.
    drop(slow);
    acknowledge_all(&mut fast);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            assert!(forget(&path, "slow").unwrap() && !forget(&path, "slow").unwrap());
        });
        for round in 0..100 {
            commit(&file, round).unwrap();
            acknowledge_all(&mut fast);
        }
    });
    file.close().unwrap();
}

fn acknowledge_all(stream: &mut CommitStream) {
    let position = stream.position();
    drain(stream, position);
    let position = stream.position();
    stream.acknowledge(position).unwrap();
}

#[test]
fn a_consumer_beside_a_writer_that_blocks_misses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let log = CommitLog::new(128 << 10).block(Duration::from_secs(60));
    let file = Options::new().commit_log(log).create(&path, LEN).unwrap();
    let mut stream = CommitStream::consumer(&path, "one").unwrap();
    let mut previous = stream.position();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0..200_u8).map(|round| commit(&file, round).unwrap()).fold(0, |_, number| number));
        let mut count = 0;
        while count < 200 {
            let commit = stream.next_within(Duration::from_secs(60)).unwrap().unwrap();
            assert_eq!(commit.previous, previous);
            previous = commit.number;
            count += 1;
            if count % 7 == 0 {
                stream.acknowledge(previous).unwrap();
            }
        }
        assert_eq!(writer.join().unwrap(), previous);
    });
    file.close().unwrap();
}

#[test]
fn a_consumer_goes_on_where_a_killed_process_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let file = Options::new().commit_log(1 << 20).create(&path, LEN).unwrap();
    let start = CommitStream::consumer(&path, "one").unwrap().position();
    let numbers: Vec<u64> = (0..10).map(|round| commit(&file, round).unwrap()).collect();
    let child = in_forked_child(|| {
        let mut stream = CommitStream::consumer(&path, "one").unwrap();
        (0..7).for_each(|_| drop(stream.next().unwrap().unwrap()));
        stream.acknowledge(numbers[3]).unwrap();
        // A lower one changes nothing; one that was not given is refused.
        stream.acknowledge(numbers[1]).unwrap();
        assert!(matches!(stream.acknowledge(numbers[7]), Err(Error::Invalid { .. })));
        std::process::abort();
    });
    assert_ne!(child.wait(), Some(0));
    let mut stream = CommitStream::consumer(&path, "one").unwrap();
    assert_eq!((stream.acknowledged(), stream.position()), (Some(numbers[3]), numbers[3]));
    assert_eq!(stream.next().unwrap().unwrap().number, numbers[4]);
    let error = file.consumer("one").unwrap_err();
    assert!(matches!(error, Error::InUse { .. }) && error.to_string().contains("consumer \"one\""), "{error}");
    drop(stream);
    assert_eq!(file.consumer("one").unwrap().position(), numbers[3]);
    assert_eq!(CommitStream::consumer_from(&path, "one", start).unwrap().next().unwrap().unwrap().number, numbers[0]);
    for bad in ["", "a/b", "..\n", &"x".repeat(65)] {
        assert!(matches!(CommitStream::consumer(&path, bad), Err(Error::Invalid { .. })), "{bad:?}");
    }
    let error = CommitStream::consumer_from(&path, "two", numbers[9] + 99).unwrap_err();
    assert!(matches!(error, Error::NoSuchCommit { .. }), "{error}");
    assert_eq!(inspect(&path).unwrap().commit_log.unwrap().consumers.len(), 1);
    let mut plain = CommitStream::open(&path, start).unwrap();
    assert!(matches!(plain.acknowledge(start), Err(Error::Invalid { .. })) && plain.acknowledged().is_none());
    // A consumer that was forgotten acknowledges nothing.
    let mut stream = CommitStream::consumer(&path, "one").unwrap();
    stream.next().unwrap();
    forget(&path, "one").unwrap();
    assert!(stream.acknowledge(numbers[0]).unwrap_err().to_string().contains("was forgotten"));
    drop(CommitStream::consumer(&path, "last").unwrap());
    file.close().unwrap();
    // A log that is given up leaves nothing behind.
    assert!(stop(&path).unwrap() && !dir.path().join(".untorn").exists());
}

#[test]
fn a_log_that_drops_tells_a_consumer_what_it_missed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let file = Options::new().commit_log(128 << 10).create(&path, LEN).unwrap();
    let from = CommitStream::consumer(&path, "one").unwrap().position();
    (0..100).for_each(|round| assert!(commit(&file, round).is_ok()));
    assert!(inspect(&path).unwrap().commit_log.unwrap().consumers[0].has_missed);
    let error = CommitStream::consumer(&path, "one").unwrap_err();
    let Error::CommitsMissing { from: told, oldest: Some(oldest), .. } = error else { panic!("{error}") };
    assert_eq!(told, from);
    // It goes on from a backup of that commit or a later one.
    let mut stream = CommitStream::consumer_from(&path, "one", oldest).unwrap();
    assert!(drain(&mut stream, oldest) > 2);
    let position = stream.position();
    stream.acknowledge(position).unwrap();
    drop(stream);
    file.close().unwrap();
    // Another program changed the file: the log begins anew, and this consumer missed something, too.
    std::fs::write(&path, [1; LEN as usize]).unwrap();
    let file = Options::new().open(&path).unwrap();
    assert!(matches!(file.consumer("one"), Err(Error::CommitsMissing { oldest: Some(_), .. })));
    file.close().unwrap();
}

/// The commits that a consumer is given, each acknowledged after a pause.
fn acknowledge_slowly(stream: &mut CommitStream, commits: u32) {
    for _ in 0..commits {
        let commit = stream.next_within(Duration::from_secs(60)).unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        stream.acknowledge(commit.number).unwrap();
    }
}

#[test]
fn a_commit_returns_when_all_consumers_have_it() {
    for durability in [Durability::PerCommit, Durability::PerWrite] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let options = || Options::new().durability(durability).engine(EngineKind::HybridLog);
        let log = CommitLog::new(1 << 20).await_consumers();
        let file = options().commit_log(log).create(&path, LEN).unwrap();
        let mut fast = CommitStream::consumer(&path, "fast").unwrap();
        let mut slow = CommitStream::consumer(&path, "slow").unwrap();
        let acknowledged = || {
            let found = inspect(&path).unwrap().commit_log.unwrap();
            assert!(found.awaits);
            found.consumers.iter().map(|consumer| consumer.acknowledged).min().unwrap()
        };
        std::thread::scope(|scope| {
            scope.spawn(|| acknowledge_slowly(&mut fast, 22));
            scope.spawn(|| acknowledge_slowly(&mut slow, 22));
            for round in 0..20 {
                file.write_at(&[round; 9000], 0).unwrap();
                file.sync().unwrap();
                assert!(acknowledged() >= file.last_commit().number, "round {round}");
            }
            // Nothing new: nothing is waited for.
            file.sync().unwrap();
            file.resize(LEN + 5000).unwrap();
            file.sync().unwrap();
            assert!(acknowledged() >= file.last_commit().number);
            file.write_at(b"last", 0).unwrap();
            file.close().unwrap();
        });
        let file = options().open(&path).unwrap();
        assert_eq!(fast.position(), slow.position());
        file.close().unwrap();
    }
}

#[test]
fn a_commit_that_is_not_acknowledged_in_time_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let log = CommitLog::new(1 << 20).await_consumers().block(Duration::from_millis(50));
    let file = Options::new().commit_log(log).create(&path, LEN).unwrap();
    // There is no consumer that could acknowledge it.
    let told = commit(&file, 1).unwrap_err();
    assert!(matches!(told, Error::NotAcknowledged { consumer: None, .. }), "{told}");
    let mut stream = CommitStream::consumer(&path, "one").unwrap();
    let told = commit(&file, 2).unwrap_err();
    let last = file.last_commit().number;
    assert!(matches!(&told, Error::NotAcknowledged { consumer: Some(_), commit, .. } if *commit == last), "{told}");
    assert_eq!(told.errno(), rustix::io::Errno::TIMEDOUT.raw_os_error());
    // Both are made, and a further sync waits for them, not only for what is new.
    assert!(file.sync().is_err());
    acknowledge_all(&mut stream);
    assert_eq!(stream.position(), last);
    assert_eq!(file.sync().unwrap(), last);
    // Commits from before an opening are nobody's to wait for.
    let told = commit(&file, 3).unwrap_err();
    assert!(matches!(told, Error::NotAcknowledged { .. }), "{told}");
    drop(file);
    let file = Options::new().open(&path).unwrap();
    file.sync().unwrap();
    file.close().unwrap();
    let kept = commits::kept(&path).unwrap().unwrap();
    assert_eq!(kept, log);
    // An opening that asks for a log, and says nothing of this, leaves it.
    Options::new().commit_log(2 << 20).open(&path).unwrap().close().unwrap();
    assert!(commits::kept(&path).unwrap().unwrap().awaits_consumers());
    Options::new().commit_log(log.await_nobody()).open(&path).unwrap().close().unwrap();
    let file = Options::new().open(&path).unwrap();
    commit(&file, 4).unwrap();
    file.close().unwrap();
}

#[test]
fn a_map_whose_commit_is_not_acknowledged_has_made_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let log = CommitLog::new(1 << 20).await_consumers().block(Duration::from_millis(20));
    let mut map = Options::new().commit_log(log).create_map(&path, LEN).unwrap();
    map[..5].copy_from_slice(b"hello");
    map.resize(LEN + 9000).unwrap();
    assert!(matches!(map.commit().unwrap_err(), Error::NotAcknowledged { consumer: None, .. }));
    // There is nothing to roll back, and a further commit still waits.
    map.rollback().unwrap();
    assert_eq!((map.len() as u64, &map[..5]), (LEN + 9000, &b"hello"[..]));
    let mut stream = CommitStream::consumer(&path, "one").unwrap();
    assert!(matches!(map.commit().unwrap_err(), Error::NotAcknowledged { consumer: Some(_), .. }));
    acknowledge_all(&mut stream);
    assert_eq!(map.commit().unwrap(), stream.position());
    map.close().unwrap();
}

/// Another process may serve the file, and it must go on with the calls of others.
#[test]
fn a_process_that_shares_a_file_waits_for_consumers_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let log = CommitLog::new(1 << 20).await_consumers();
    let options = Options::new().shared(true).durability(Durability::PerWrite);
    let file = options.clone().commit_log(log).create(&path, LEN).unwrap();
    let mut stream = CommitStream::consumer(&path, "one").unwrap();
    let child = in_forked_child(|| {
        let other = options.clone().open(&path).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| other.write_at(b"hello", 100).unwrap());
            // It is made, and nobody has acknowledged it: reads go on.
            let mut bytes = [0; 5];
            while bytes != *b"hello" {
                other.read_at(&mut bytes, 100).unwrap();
            }
            std::fs::write(dir.path().join("seen"), b"").unwrap();
            writer.join().unwrap();
        });
        let acknowledged = inspect(&path).unwrap().commit_log.unwrap().consumers[0].acknowledged;
        i32::from(other.last_commit().number > acknowledged)
    });
    while !dir.path().join("seen").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut bytes = [0; 5];
    file.read_at(&mut bytes, 100).unwrap();
    assert_eq!(&bytes, b"hello");
    acknowledge_all(&mut stream);
    assert_eq!(child.wait(), Some(0));
    file.close().unwrap();
    let refused = Options::new().share_map(&path).unwrap_err();
    assert!(refused.to_string().contains("await nobody"), "{refused}");
}

#[test]
fn an_opening_without_the_option_keeps_what_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let log = CommitLog::new(128 << 10).block(Duration::ZERO);
    Options::new().commit_log(log).create(&path, LEN).unwrap().close().unwrap();
    drop(CommitStream::consumer(&path, "one").unwrap());
    let file = Options::new().open(&path).unwrap();
    fill(&file, "one");
    let error = Options::new().commit_log(128 << 10).open(&path).unwrap_err();
    assert!(error.to_string().contains("that blocks for 0 ms"), "{error}");
    // What is refused is in the open epoch, which the close cannot commit either; and it does not hang.
    assert!(matches!(file.close(), Err(Error::ConsumerBehind { .. })));
    let file = Options::new().commit_log(128 << 10).open(&path).unwrap();
    (0..100).for_each(|round| assert!(commit(&file, round).is_ok()));
    file.close().unwrap();
}
