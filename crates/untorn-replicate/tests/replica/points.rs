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
