//! Restorations at random commits and times have what the file had then.

use std::time::{Duration, Instant, SystemTime};

use untorn_replicate::{Replica, ReplicaOptions, RestoreOptions};
use untorn_testing::{SplitMix, cases, seed};

use super::{LEN, Place, bytes_of, place};

/// More than the clock of commit times is coarse by.
const GRAIN: Duration = Duration::from_millis(15);

fn hash(bytes: &[u8]) -> u128 {
    twox_hash::XxHash3_128::oneshot(bytes)
}

fn attach(place: &Place, file: &untorn::AtomicFile) -> Replica {
    let options = ReplicaOptions::new().interval(Duration::from_millis(20)).snapshot_bytes(60_000).object_bytes(8000);
    Replica::attach(file, &place.url, options).unwrap()
}

#[test]
fn random_commits_and_times_are_restored_as_they_were() {
    let place = place!();
    let file = place.create("ledger");
    let mut random = SplitMix::new(seed("random_commits_and_times_are_restored_as_they_were"));
    let mut replica = attach(&place, &file);
    replica.sync_replicated().unwrap();
    let since = Instant::now();
    // The number of each commit, the state, and times at which it was the last one.
    let mut states: Vec<(u64, u128)> = vec![(file.last_commit().number, hash(&bytes_of(&file)))];
    let mut times: Vec<(SystemTime, usize)> = Vec::new();
    for _ in 0..cases(60, 600) {
        for _ in 0..1 + random.below(4) {
            for _ in 0..1 + random.below(3) {
                let bytes = random.next_u64().to_le_bytes().repeat(1 + random.below(60) as usize);
                file.write_at(&bytes, random.below(file.len() - bytes.len() as u64)).unwrap();
            }
            if random.below(8) == 0 {
                file.resize(LEN / 2 + random.below(LEN)).unwrap();
            }
            states.push((file.sync().unwrap(), hash(&bytes_of(&file))));
        }
        if random.below(3) == 0 {
            std::thread::sleep(GRAIN);
            times.push((SystemTime::now(), states.len() - 1));
            std::thread::sleep(GRAIN);
        }
        if random.below(20) == 0 {
            replica.detach().unwrap();
            replica = attach(&place, &file);
        } else if random.below(8) == 0 {
            replica.sync_replicated().unwrap();
        }
    }
    let status = replica.detach().unwrap();
    let points = cases(20, 200);
    for point in 0..points {
        let (options, index, what) = if random.below(2) == 0 {
            let index = random.below(states.len() as u64) as usize;
            (RestoreOptions::new().at_commit(states[index].0), index, format!("commit {}", states[index].0))
        } else {
            let (time, index) = times[random.below(times.len() as u64) as usize];
            (RestoreOptions::new().at_time(time), index, format!("time {time:?}, commit {}", states[index].0))
        };
        let (bytes, commit) = place.restored(options);
        assert!(commit == states[index].0 && hash(&bytes) == states[index].1, "point {point}: {what}, got {commit}");
    }
    println!(
        "{points} points of {} commits and {} times, {} snapshots in the last of {} epochs, in {:?}",
        states.len(),
        times.len(),
        status.snapshots,
        status.epoch,
        since.elapsed()
    );
    assert!(status.epoch > 1, "there was no second epoch");
}

/// Bundles of 64 objects, and at 64 of them one of 4096.
#[test]
fn a_long_chain_is_read_by_few_requests() {
    let place = place!();
    let file = place.create("ledger");
    let options = ReplicaOptions::new().interval(Duration::from_millis(1)).retain(Duration::ZERO);
    let replica = Replica::attach(&file, &place.url, options.clone()).unwrap();
    replica.sync_replicated().unwrap();
    let mut states = Vec::new();
    for number in 0..cases(200_u64, 4200) {
        file.write_at(&number.to_le_bytes(), number * 61 % (LEN - 8)).unwrap();
        let commit = file.sync().unwrap();
        assert_eq!(replica.sync_replicated().unwrap(), commit);
        states.push((commit, hash(&bytes_of(&file))));
    }
    let long = cases(false, true);
    // They are made in the background.
    let last = if long { "2/0000000000000000" } else { "1/0000000000000002" };
    let begun = Instant::now();
    while !place.path(&format!("bucket/b/0000000000000001/{last}")).exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "there is no bundle");
        std::thread::sleep(Duration::from_millis(1));
    }
    for at in [40, 62, 63, 64, 127, 180, states.len() - 1] {
        let (commit, expected) = states[at];
        let copy = place.path(&format!("copy{at}"));
        let made = untorn_replicate::restore(&place.url, &copy, &RestoreOptions::new().at_commit(commit)).unwrap();
        assert!(made.commit == commit && hash(&std::fs::read(&copy).unwrap()) == expected, "commit {commit}");
        let most = if long { 80 } else { 24 };
        assert!(made.requests.gets < most, "commit {commit}: {:?}", made.requests);
    }
    replica.detach().unwrap();
    // They go with the objects that a later snapshot makes needless.
    let replica = Replica::attach(&file, &place.url, options.snapshot_bytes(1)).unwrap();
    // One snapshot is made, and the next one drops the one before the first.
    for number in 0_u32.. {
        file.write_at(&number.to_le_bytes(), 0).unwrap();
        file.sync().unwrap();
        replica.sync_replicated().unwrap();
        if !place.path("bucket/o/0000000000000001/0000000000000050").exists() {
            break;
        }
        assert!(number < 100, "nothing is deleted");
    }
    replica.detach().unwrap();
    let left = std::fs::read_dir(place.path("bucket/b/0000000000000001/1")).map_or(0, Iterator::count);
    assert_eq!(left, 0);
}
