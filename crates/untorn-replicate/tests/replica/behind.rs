//! The store is behind, and the commit log gets full.

use std::time::{Duration, Instant};

use untorn::options::CommitLog;
use untorn::{AtomicFile, Options};
use untorn_replicate::{Error, Replica, ReplicaOptions, RestoreOptions, WhenBehind};

use super::{Place, bytes_of, place};

fn create(place: &Place, waits: Duration) -> AtomicFile {
    Options::new().commit_log(CommitLog::new(1 << 20).block(waits)).create(place.path("ledger"), 1 << 20).unwrap()
}

fn attach(place: &Place, file: &AtomicFile, when: WhenBehind) -> Result<Replica, Error> {
    let options = ReplicaOptions::new().interval(Duration::from_millis(10)).when_behind(when);
    Replica::attach(file, &place.url, options)
}

fn commit(file: &AtomicFile, number: u8) -> untorn::Result<u64> {
    file.write_at(&[number; 50_000], u64::from(number % 16) * 60_000)?;
    file.sync()
}

fn take_away(place: &Place) {
    std::fs::rename(place.path("bucket"), place.path("away")).unwrap();
}

fn bring_back(place: &Place) {
    std::fs::rename(place.path("away"), place.path("bucket")).unwrap();
}

#[test]
fn commits_go_on_and_a_snapshot_follows() {
    let place = place!();
    let file = create(&place, Duration::from_secs(600));
    let replica = attach(&place, &file, WhenBehind::Snapshot).unwrap();
    replica.sync_replicated().unwrap();
    take_away(&place);
    let since = Instant::now();
    for number in 0..100 {
        commit(&file, number).unwrap();
    }
    assert!(since.elapsed() < Duration::from_secs(300), "commits waited {:?}", since.elapsed());
    assert!(replica.ended().is_none());
    bring_back(&place);
    replica.sync_replicated().unwrap();
    let last = commit(&file, 100).unwrap();
    let status = replica.detach().unwrap();
    assert_eq!((status.acknowledged, status.snapshots), (last, 2), "{status:?}");
    assert!(place.restored(RestoreOptions::new()) == (bytes_of(&file), last));
}

#[test]
fn commits_wait_and_are_refused_in_the_end() {
    let place = place!();
    let file = create(&place, Duration::from_millis(100));
    let replica = attach(&place, &file, WhenBehind::Wait).unwrap();
    replica.sync_replicated().unwrap();
    take_away(&place);
    let refused = (0..100).find_map(|number| commit(&file, number).err());
    assert!(matches!(refused, Some(untorn::Error::ConsumerBehind { .. })), "{refused:?}");
    bring_back(&place);
    replica.sync_replicated().unwrap();
    // The open epoch has what was refused.
    let last = file.sync().unwrap();
    let status = replica.detach().unwrap();
    assert_eq!((status.acknowledged, status.snapshots), (last, 1), "{status:?}");
    assert!(place.restored(RestoreOptions::new()) == (bytes_of(&file), last));
}

#[test]
fn a_sync_returns_when_the_store_has_it_and_only_then() {
    let place = place!();
    let log = CommitLog::new(1 << 20).await_consumers();
    let file = Options::new().commit_log(log).create(place.path("ledger"), 1 << 20).unwrap();
    // Longer than the test: nothing is shipped by its interval.
    let options = ReplicaOptions::new().interval(Duration::from_secs(3600));
    let replica = Replica::attach(&file, &place.url, options.clone()).unwrap();
    assert!(replica.status().awaits);
    for number in 0..20 {
        let last = commit(&file, number).unwrap();
        assert!(place.restored(RestoreOptions::new()) == (bytes_of(&file), last), "commit {last}");
    }
    replica.detach().unwrap();
    file.close().unwrap();
    let log = log.block(Duration::from_millis(300));
    let file = Options::new().commit_log(log).open(place.path("ledger")).unwrap();
    let replica = Replica::attach(&file, &place.url, options.clone()).unwrap();
    let first = commit(&file, 20).unwrap();
    let other = place.path("other");
    untorn_replicate::restore(&place.url, &other, &RestoreOptions::new()).unwrap();
    let rival = Options::new().commit_log(1 << 20).open(&other).unwrap();
    let rival = Replica::attach(&rival, &place.url, options).unwrap();
    rival.sync_replicated().unwrap();
    let told = commit(&file, 21).unwrap_err();
    assert!(matches!(told, untorn::Error::NotAcknowledged { commit, .. } if commit > first), "{told}");
    assert!(matches!(replica.sync_replicated(), Err(Error::Fenced { .. })));
    rival.detach().unwrap();
}

/// A commit that awaits the replica would take for shipped what the replica gave up.
#[test]
fn nothing_that_is_awaited_is_given_up() {
    let place = place!();
    let log = CommitLog::new(1 << 20).await_consumers().block(Duration::from_millis(100));
    let file = Options::new().commit_log(log).create(place.path("ledger"), 1 << 20).unwrap();
    let replica = attach(&place, &file, WhenBehind::Snapshot).unwrap();
    commit(&file, 0).unwrap();
    take_away(&place);
    for number in 0..40 {
        let told = commit(&file, number).unwrap_err();
        use untorn::Error::{ConsumerBehind, NotAcknowledged};
        assert!(matches!(told, NotAcknowledged { .. } | ConsumerBehind { .. }), "{number}: {told}");
    }
    bring_back(&place);
    let last = replica.sync_replicated().unwrap();
    assert!(file.sync().unwrap() >= last);
    let status = replica.detach().unwrap();
    assert_eq!(status.snapshots, 1, "{status:?}");
    assert!(place.restored(RestoreOptions::new()).0 == bytes_of(&file));
}

#[test]
fn a_log_that_does_not_block_cannot_wait() {
    let place = place!();
    let file = place.create("ledger");
    let refused = attach(&place, &file, WhenBehind::Wait);
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
}
