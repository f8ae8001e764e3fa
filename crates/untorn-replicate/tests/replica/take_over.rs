//! A follower takes the replica over, and an owner hands it over.

use std::time::Duration;

use untorn::AtomicFile;
use untorn_replicate::{Error, FollowOptions, Follower, Replica, ReplicaOptions, RestoreOptions, look, restore};

use super::{Place, bytes_of, commit, options, place};

fn follow(place: &Place, name: &str) -> Follower {
    Follower::open(&place.url, place.path(name), &FollowOptions::new().commit_log(1 << 20)).unwrap()
}

fn catch_up(follower: &mut Follower) {
    while !follower.poll().unwrap().is_current {}
}

#[test]
fn a_busy_owner_is_fenced_and_nothing_acknowledged_is_lost() {
    let place = place!();
    let file = place.create("ledger");
    let replica = place.attach(&file).unwrap();
    commit(&file, 1);
    replica.sync_replicated().unwrap();
    let follower = follow(&place, "copy");
    let acknowledged = std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let mut last = (0, bytes_of(&file));
            for number in (2..90).cycle() {
                commit(&file, number);
                match replica.sync_replicated() {
                    Ok(commit) => last = (commit, bytes_of(&file)),
                    Err(error) => {
                        assert!(matches!(error, Error::Fenced { epoch: 1, .. }), "{error}");
                        return last;
                    }
                }
            }
            last
        });
        std::thread::sleep(Duration::from_millis(150));
        let successor = follower.take_over(options()).unwrap();
        let last = busy.join().unwrap();
        let at = successor.sync_replicated().unwrap();
        assert!(at >= last.0, "commit {} was acknowledged, and the successor is at {at}", last.0);
        let status = successor.detach().unwrap();
        assert_eq!((status.epoch, status.snapshots), (2, 0), "{status:?}");
        last
    });
    let (commit, bytes) = acknowledged;
    assert!(place.restored(RestoreOptions::new().at_commit(commit)) == (bytes, commit));
    // The successor goes on, and the former owner does not.
    let copy = place.open("copy");
    let last = super::commit(&copy, 95);
    assert_eq!(place.attach(&copy).unwrap().detach().unwrap().acknowledged, last);
    assert!(matches!(place.attach(&file), Err(Error::NotDescendant { .. })));
}

#[test]
fn a_replica_is_handed_over_and_back() {
    let place = place!();
    let file = place.create("one");
    let mut replica = place.attach(&file).unwrap();
    commit(&file, 1);
    replica.sync_replicated().unwrap();
    let mut follower = follow(&place, "two");
    catch_up(&mut follower);
    assert!(!follower.status().is_released);
    file.close().unwrap();
    for round in 2..6 {
        let (from, to) = if round % 2 == 0 { ("one", "two") } else { ("two", "one") };
        let file: AtomicFile = place.open(from);
        let last = commit(&file, round);
        assert_eq!(replica.hand_over().unwrap().acknowledged, last);
        assert!(look(&place.url).unwrap().is_released);
        let bytes = bytes_of(&file);
        file.close().unwrap();
        while !follower.status().is_released {
            follower.poll().unwrap();
        }
        assert_eq!(follower.status().commit, last);
        replica = follower.take_over(options()).unwrap();
        let found = look(&place.url).unwrap();
        assert_eq!((found.is_released, found.is_settled, found.epoch), (false, true, u64::from(round)));
        assert!(std::fs::read(place.path(to)).unwrap() == bytes);
        // The one that was the owner has to be restored: it may have had commits that were not shipped.
        let refused = Follower::open(&place.url, place.path(from), &FollowOptions::new());
        assert!(matches!(refused, Err(Error::NotFollower { .. })), "{refused:?}");
        restore(&place.url, &place.path(from), &RestoreOptions::new().replace(true)).unwrap();
        follower = follow(&place, from);
    }
    let status = replica.detach().unwrap();
    assert_eq!((status.epoch, status.snapshots), (5, 0), "{status:?}");
}

#[test]
fn the_owner_itself_goes_on_after_it_has_handed_over() {
    let place = place!();
    let file = place.create("ledger");
    let replica = place.attach(&file).unwrap();
    commit(&file, 1);
    replica.hand_over().unwrap();
    let last = commit(&file, 2);
    let status = place.attach(&file).unwrap().detach().unwrap();
    assert_eq!((status.epoch, status.acknowledged, status.snapshots), (2, last, 0), "{status:?}");
    assert!(!look(&place.url).unwrap().is_released);
}

#[test]
fn an_idle_owner_that_asks_learns_of_a_take_over() {
    let place = place!();
    let file = place.create("ledger");
    let options = ReplicaOptions::new().interval(Duration::from_millis(5)).confirm(Duration::from_millis(20));
    let replica = Replica::attach(&file, &place.url, options.clone()).unwrap();
    replica.sync_replicated().unwrap();
    let successor = follow(&place, "copy").take_over(options).unwrap();
    let since = std::time::Instant::now();
    while replica.ended().is_none() {
        assert!(since.elapsed() < Duration::from_secs(30), "the owner does not ask");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(matches!(replica.ended(), Some(Error::Fenced { epoch: 1, .. })));
    assert!(replica.hand_over().is_err(), "a fenced owner handed over");
    assert!(successor.ended().is_none());
}

#[test]
fn a_follower_without_a_commit_log_takes_nothing_over() {
    let place = place!();
    let file = place.create("ledger");
    let replica = place.attach(&file).unwrap();
    replica.sync_replicated().unwrap();
    let follower = Follower::open(&place.url, place.path("copy"), &FollowOptions::new()).unwrap();
    let refused = follower.take_over(options());
    assert!(matches!(refused, Err(Error::File(untorn::Error::CommitsMissing { oldest: None, .. }))), "{refused:?}");
    commit(&file, 1);
    replica.sync_replicated().unwrap();
}
