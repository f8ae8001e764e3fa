//! A local file follows a replica.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use untorn::{AtomicFile, Snapshot};
use untorn_replicate::{Error, FollowOptions, Follower, Replica};
use untorn_testing::{SplitMix, again, cases, seed, sibling};

use super::{LEN, Place, bytes_of, commit, options, place};

fn follow(place: &Place, name: &str) -> Result<Follower, Error> {
    Follower::open(&place.url, place.path(name), &FollowOptions::new())
}

/// Polls until there is nothing.
fn catch_up(follower: &mut Follower) {
    while !follower.poll().unwrap().is_current {}
}

/// Compares without printing whole files.
#[track_caller]
fn assert_same(one: &[u8], other: &[u8], what: &str) {
    assert_eq!(one.len(), other.len(), "{what}: the lengths");
    let differs = one.iter().zip(other).position(|(one, other)| one != other);
    assert_eq!(differs.map(|at| (at, one[at], other[at])), None, "{what}");
}

/// The bytes of a follower, as another process would see them.
fn seen(place: &Place, name: &str) -> Vec<u8> {
    let snapshot = Snapshot::open(place.path(name)).unwrap();
    let mut bytes = vec![0; snapshot.len() as usize];
    snapshot.read_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_follower_has_each_commit_that_was_shipped() {
    let place = place!();
    let file = place.create("ledger");
    commit(&file, 1);
    let replica = place.attach(&file).unwrap();
    replica.sync_replicated().unwrap();
    let mut follower = follow(&place, "copy").unwrap();
    assert_same(&seen(&place, "copy"), &bytes_of(&file), "copy");
    assert!(follower.poll().unwrap().is_current);
    for number in 2..30 {
        // Also by its length.
        match number % 5 {
            3 => file.resize(60_000 + 1000 * u64::from(number)).unwrap(),
            4 => file.resize(250_000).unwrap(),
            _ => {}
        }
        let last = commit(&file, number);
        replica.sync_replicated().unwrap();
        if number % 7 == 0 {
            // Closed and opened again it goes on.
            follower.close().unwrap();
            follower = follow(&place, "copy").unwrap();
        }
        let found = follower.poll().unwrap();
        assert_eq!((found.is_restart, follower.status().commit), (false, last), "{found:?}");
        assert!(found.commits >= 1 && found.bytes > 0 && found.lag.is_some(), "{found:?}");
        assert_same(&seen(&place, "copy"), &bytes_of(&file), &format!("commit {last}"));
    }
    assert_eq!(follower.poll().unwrap().commits, 0);
    let status = follower.close().unwrap();
    assert_eq!(status.restarts, 0, "{status:?}");
    assert_same(&std::fs::read(place.path("copy")).unwrap(), &bytes_of(&file), "closed");
}

#[test]
fn a_reader_of_a_follower_keeps_its_commit() {
    let place = place!();
    let file = place.create("ledger");
    let replica = place.attach(&file).unwrap();
    commit(&file, 1);
    replica.sync_replicated().unwrap();
    let mut follower = follow(&place, "copy").unwrap();
    catch_up(&mut follower);
    let (held, then) = (follower.snapshot().unwrap(), bytes_of(&file));
    for number in 2..6 {
        commit(&file, number);
        replica.sync_replicated().unwrap();
        catch_up(&mut follower);
    }
    let mut bytes = vec![0; held.len() as usize];
    held.read_at(&mut bytes, 0).unwrap();
    assert_same(&bytes, &then, "held");
    assert_same(&seen(&place, "copy"), &bytes_of(&file), "copy");
}

#[test]
fn a_follower_that_is_left_behind_begins_anew() {
    let place = place!();
    let file = place.create("ledger");
    let options = options().retain(Duration::ZERO).snapshot_bytes(1000);
    let replica = Replica::attach(&file, &place.url, options).unwrap();
    commit(&file, 1);
    replica.sync_replicated().unwrap();
    let mut follower = follow(&place, "copy").unwrap();
    catch_up(&mut follower);
    for round in 0..3 {
        file.resize(100_000 + 40_000 * (round % 2)).unwrap();
        for number in 1..40 {
            commit(&file, number + round as u8 * 20);
            replica.sync_replicated().unwrap();
        }
        catch_up(&mut follower);
        assert_same(&seen(&place, "copy"), &bytes_of(&file), &format!("round {round}"));
    }
    assert!(follower.status().restarts >= 3, "{:?}", follower.status());
    follower.close().unwrap();
    assert!(follow(&place, "copy").unwrap().poll().unwrap().is_current);
}

#[test]
fn a_follower_goes_on_over_a_take_over_and_a_new_base() {
    let place = place!();
    let old = place.create("old");
    let replica = place.attach(&old).unwrap();
    commit(&old, 1);
    replica.sync_replicated().unwrap();
    let mut follower = follow(&place, "copy").unwrap();
    replica.detach().unwrap();
    // The log drops commits before they are shipped, so the chain goes on with a snapshot.
    for number in 0..90 {
        old.write_at(&vec![number; 20_000], u64::from(number % 5) * 20_000).unwrap();
        old.sync().unwrap();
    }
    let replica = place.attach(&old).unwrap();
    commit(&old, 2);
    assert_eq!(replica.detach().unwrap().snapshots, 1);
    catch_up(&mut follower);
    assert_same(&seen(&place, "copy"), &bytes_of(&old), "copy");
    assert_eq!(follower.status().epoch, 2);
    assert_eq!(follower.status().commit, old.last_commit().number);
}

#[test]
fn a_file_with_other_commits_does_not_follow() {
    let place = place!();
    let file = place.create("ledger");
    let replica = place.attach(&file).unwrap();
    commit(&file, 1);
    replica.sync_replicated().unwrap();
    let mut follower = follow(&place, "copy").unwrap();
    catch_up(&mut follower);
    follower.close().unwrap();
    let before = std::fs::read(place.path("copy")).unwrap();
    // The copy has a commit of its own; the source is no copy; a stranger is none either.
    let copy = place.open("copy");
    commit(&copy, 9);
    copy.close().unwrap();
    place.create("stranger").close().unwrap();
    replica.detach().unwrap();
    file.close().unwrap();
    for name in ["copy", "ledger", "stranger"] {
        let refused = follow(&place, name);
        assert!(matches!(refused, Err(Error::NotFollower { .. })), "{name}: {refused:?}");
    }
    assert!(std::fs::read(place.path("copy")).unwrap() != before, "the own commit was lost");
}

#[test]
fn a_follower_takes_over_without_a_snapshot() {
    let place = place!();
    let file = place.create("ledger");
    let replica = place.attach(&file).unwrap();
    replica.sync_replicated().unwrap();
    let mut follower = follow(&place, "copy").unwrap();
    for number in 1..5 {
        commit(&file, number);
        commit(&file, number + 10);
        replica.sync_replicated().unwrap();
        catch_up(&mut follower);
    }
    follower.close().unwrap();
    let copy: AtomicFile = place.open("copy");
    let successor = place.attach(&copy).unwrap();
    let last = commit(&copy, 20);
    let status = successor.detach().unwrap();
    assert_eq!((status.snapshots, status.acknowledged), (0, last), "{status:?}");
    let (bytes, commit) = place.restored(untorn_replicate::RestoreOptions::new());
    assert_same(&bytes, &bytes_of(&copy), "restored");
    assert_eq!(commit, last);
}

/// The URL and the file of a follower that is to be killed.
const VICTIM: &str = "UNTORN_FOLLOWER";

#[test]
fn a_victim_follows_until_it_is_killed() {
    let Some(of) = std::env::var_os(VICTIM) else { return };
    let of = of.into_string().unwrap();
    let (url, path) = of.split_once(' ').unwrap();
    let mut follower = Follower::open(url, path, &FollowOptions::new()).unwrap();
    println!("ready");
    loop {
        if follower.poll().unwrap().commits == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// SIGKILL at random times: whatever the file has then is a whole commit, never one from before an earlier kill, and
/// the next follower goes on from there.
#[test]
fn a_killed_follower_has_a_whole_commit_and_goes_on() {
    let place = place!();
    let file = place.create("ledger");
    let replica = place.attach(&file).unwrap();
    replica.sync_replicated().unwrap();
    let mut random = SplitMix::new(seed("a_killed_follower_has_a_whole_commit_and_goes_on"));
    let mut states = HashMap::from([(hash(&bytes_of(&file)), 0)]);
    let (mut last, mut stops) = (0, 0);
    let rounds = cases(10, 1000);
    let since = std::time::Instant::now();
    for round in 0..rounds {
        let mut victim = again(sibling!("a_victim_follows_until_it_is_killed"))
            .env(VICTIM, format!("{} {}", place.url, place.path("copy").display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("ready")), "round {round}: the victim does not start");
        let until = std::time::Instant::now() + Duration::from_micros(random.below(60_000));
        while std::time::Instant::now() < until {
            for _ in 0..random.below(4) {
                file.write_at(&random.next_u64().to_le_bytes(), random.below(LEN - 8)).unwrap();
            }
            if random.below(10) == 0 {
                file.resize(LEN + random.below(50_000)).unwrap();
            }
            file.sync().unwrap();
            // Equal states count as the earliest of them.
            let next = states.len();
            states.entry(hash(&bytes_of(&file))).or_insert(next);
            if random.below(3) == 0 {
                replica.sync_replicated().unwrap();
            }
        }
        victim.kill().unwrap();
        victim.wait().unwrap();
        let found = *states.get(&hash(&seen(&place, "copy"))).unwrap_or_else(|| panic!("round {round}: a mixture"));
        assert!(found >= last, "round {round}: state {found} after {last}");
        stops += usize::from(found > last);
        last = found;
    }
    replica.sync_replicated().unwrap();
    let mut follower = follow(&place, "copy").unwrap();
    catch_up(&mut follower);
    assert_same(&seen(&place, "copy"), &bytes_of(&file), "at the end");
    assert!(stops * 3 > rounds, "the follower went on in {stops} of {rounds} rounds only");
    println!("{rounds} kills, {} states, in {:?}", states.len(), since.elapsed());
}

fn hash(bytes: &[u8]) -> u128 {
    twox_hash::XxHash3_128::oneshot(bytes)
}
