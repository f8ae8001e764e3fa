//! A follower beside a writer of 500 commits a second.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use untorn::Snapshot;
use untorn_replicate::{FollowOptions, Follower, Replica, ReplicaOptions};
use untorn_testing::cases;

use super::{LEN, Place, place};

/// Commits a second.
const RATE: u64 = 500;

/// Each commit fills three places with its number.
const PLACES: [u64; 3] = [0, 50_000, LEN - 8];

fn numbers(snapshot: &Snapshot) -> [u64; 3] {
    PLACES.map(|at| {
        let mut bytes = [0; 8];
        snapshot.read_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    })
}

/// `UNTORN_LONG=1 cargo test --release -p untorn-replicate --test replica lag -- --nocapture` measures for a minute.
#[test]
fn a_follower_keeps_up_and_its_readers_see_whole_commits() {
    let place = place!();
    let file = place.create("ledger");
    let options = ReplicaOptions::new().interval(Duration::from_millis(10));
    let replica = Replica::attach(&file, &place.url, options).unwrap();
    replica.sync_replicated().unwrap();
    let mut follower = Follower::open(&place.url, place.path("copy"), &FollowOptions::new()).unwrap();
    let count = RATE * cases(2, 60);
    // When each commit was made, and when the copy had it.
    let made = Mutex::new(Vec::new());
    let mut had = Vec::new();
    let (is_over, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    scope(|scope| {
        scope.spawn(|| {
            let since = Instant::now();
            for number in 1..=count {
                let due = since + Duration::from_micros(number * 1_000_000 / RATE);
                sleep(due.saturating_duration_since(Instant::now()));
                PLACES.iter().for_each(|at| file.write_at(&number.to_le_bytes(), *at).unwrap());
                file.sync().unwrap();
                made.lock().unwrap().push(Instant::now());
            }
            replica.sync_replicated().unwrap();
        });
        scope.spawn(|| {
            let mut last = 0;
            while !is_over.load(Ordering::Acquire) {
                let [one, two, three] = numbers(&Snapshot::open(place.path("copy")).unwrap());
                assert!(one == two && two == three && one >= last, "{one}, {two}, {three} after {last}");
                last = one;
                seen.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(1));
            }
        });
        while (had.len() as u64) < count {
            if follower.poll().unwrap().commits > 0 {
                let now = Instant::now();
                let number = numbers(&follower.snapshot().unwrap())[0];
                had.resize(number as usize, now);
            } else {
                sleep(Duration::from_millis(5));
            }
        }
        is_over.store(true, Ordering::Release);
    });
    let made = made.into_inner().unwrap();
    let mut lags: Vec<Duration> =
        made.iter().zip(&had).map(|(made, had)| had.saturating_duration_since(*made)).collect();
    lags.sort();
    let took = made[made.len() - 1] - made[0];
    let at = |percent: usize| lags[(lags.len() - 1) * percent / 100];
    println!(
        "{count} commits in {took:?}: lag median {:?}, 99 % below {:?}, worst {:?}; {} snapshots read, {} commits of \
         the copy",
        at(50),
        at(99),
        at(100),
        seen.load(Ordering::Relaxed),
        follower.status().groups
    );
    // A loaded machine promises no times. A follower that does not keep up would have everything in one commit.
    let (groups, seen) = (follower.status().groups, seen.load(Ordering::Relaxed));
    assert!(groups > 10 && seen > 10, "{groups} commits of the copy, {seen} snapshots read");
}
