//! Slow and dead networks: local commits do not wait for them. The store is in a process of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use untorn::{AtomicFile, Options};
use untorn_replicate::{Replica, ReplicaOptions, RestoreOptions, restore};
use untorn_testing::{SplitMix, test_name};

use crate::mini::{Act, Mini};
use crate::proxy::Proxy;
use crate::{run_again, url};

/// The same store through a proxy.
pub(crate) fn through(url: &str, round_trip: Duration) -> (Proxy, String) {
    let port: u16 = url.rsplit(':').next().unwrap().parse().unwrap();
    let proxy = Proxy::start(port, round_trip);
    let url = url.replace(&format!(":{port}"), &format!(":{}", proxy.port));
    (proxy, url)
}

fn create(dir: &Path, name: &str) -> AtomicFile {
    Options::new().commit_log(64 << 20).create(dir.join(name), 1 << 20).unwrap()
}

fn attach(file: &AtomicFile, url: &str, interval: Duration) -> Replica {
    Replica::attach(file, url, ReplicaOptions::new().interval(interval)).unwrap()
}

fn commit(file: &AtomicFile, number: u64) -> Duration {
    let begun = Instant::now();
    file.write_at(&[number as u8; 4096], number % 200 * 4096).unwrap();
    file.sync().unwrap();
    begun.elapsed()
}

/// The median of the times of commits.
fn median(file: &AtomicFile, commits: u64) -> Duration {
    let mut times: Vec<Duration> = (0..commits).map(|number| commit(file, number)).collect();
    times.sort();
    times[times.len() / 2]
}

#[test]
fn a_dead_store_does_not_slow_local_commits() {
    let Some(url) = url() else {
        let mini = Mini::start(|_, _| Act::Answer);
        return run_again(test_name!(), &mini.store);
    };
    let (proxy, url) = through(&url, Duration::ZERO);
    let dir = tempfile::tempdir().unwrap();
    let alone = create(dir.path(), "alone");
    let file = create(dir.path(), "ledger");
    let replica = attach(&file, &url, Duration::from_millis(1));
    replica.sync_replicated().unwrap();
    proxy.die();
    // In turns, because other tests come and go.
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        without.push(median(&alone, 40));
        with.push(median(&file, 40));
    }
    without.sort();
    with.sort();
    let (without, with) = (without[4], with[4]);
    eprintln!("the median of local commits: {without:?} alone, {with:?} with a dead store");
    assert_eq!(replica.status().commits, 0, "the store is not dead");
    // The limit that docs/replication.md states.
    assert!(with <= without * 2 + Duration::from_millis(1), "{without:?} alone, {with:?} with a dead store");
    let begun = Instant::now();
    drop(replica);
    assert!(begun.elapsed() < Duration::from_secs(5), "the end waits {:?} for a dead store", begun.elapsed());
}

#[test]
fn a_replication_ends_although_its_store_is_dead() {
    let Some(url) = url() else {
        let mini = Mini::start(|_, _| Act::Answer);
        return run_again(test_name!(), &mini.store);
    };
    let dir = tempfile::tempdir().unwrap();
    let file = create(dir.path(), "ledger");
    for hands_over in [false, true] {
        let (proxy, url) = through(&url, Duration::ZERO);
        let replica = attach(&file, &url, Duration::from_secs(3600));
        replica.sync_replicated().unwrap();
        commit(&file, 1);
        proxy.die();
        let (begun, silence) = (Instant::now(), Duration::from_secs(1));
        let ended = if hands_over { replica.hand_over_within(silence) } else { replica.detach_within(silence) };
        let error = ended.unwrap_err().to_string();
        assert!(error.contains("the store gave no answer within 1 second"), "{error}");
        // Requests that are repeated take two minutes.
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }
    // A store that answers is given its time, however slow it is.
    let (_proxy, url) = through(&url, Duration::from_millis(500));
    let replica = attach(&file, &url, Duration::from_secs(3600));
    let last = file.last_commit().number;
    let (begun, silence) = (Instant::now(), Duration::from_secs(2));
    assert_eq!(replica.hand_over_within(silence).unwrap().acknowledged, last);
    assert!(begun.elapsed() > silence, "{:?}", begun.elapsed());
}

/// The rates and the latency of commits by round-trip time. `UNTORN_COSTS=1` measures for longer and by more of these
/// times, for the table of docs/replication.md.
#[test]
fn commits_in_groups_outrun_the_round_trip() {
    let Some(url) = url() else {
        let mini = Mini::start(|_, _| Act::Answer);
        return run_again(test_name!(), &mini.store);
    };
    let is_long = std::env::var_os("UNTORN_COSTS").is_some();
    let (times, span) = if is_long { (&[0, 1, 10, 50][..], 3000) } else { (&[20][..], 1000) };
    let (span, big) = (Duration::from_millis(span), if is_long { 64 } else { 1 });
    println!("| round trip | acknowledged, one by one | latency | shipped in groups | a restoration of {big} MiB |");
    println!("|---|---|---|---|---|");
    for milliseconds in times {
        let round_trip = Duration::from_millis(*milliseconds);
        let (_proxy, url) = through(&url.replace("a/ledger", &format!("rtt-{milliseconds}")), round_trip);
        let dir = tempfile::tempdir().unwrap();
        let file = create(dir.path(), "ledger");
        let replica = attach(&file, &url, Duration::from_secs(3600));
        replica.sync_replicated().unwrap();
        let (begun, mut latencies) = (Instant::now(), Vec::new());
        while begun.elapsed() < span {
            commit(&file, latencies.len() as u64);
            let asked = Instant::now();
            replica.sync_replicated().unwrap();
            latencies.push(asked.elapsed());
        }
        let one_by_one = latencies.len() as f64 / begun.elapsed().as_secs_f64();
        latencies.sort();
        let latency = latencies[latencies.len() / 2];
        replica.detach().unwrap();
        let replica = attach(&file, &url, Duration::from_millis(1));
        let (begun, mut count) = (Instant::now(), 0);
        while begun.elapsed() < span {
            commit(&file, count);
            count += 1;
        }
        replica.sync_replicated().unwrap();
        let in_groups = count as f64 / begun.elapsed().as_secs_f64();
        replica.detach().unwrap();
        let (requests, restored) = restoration(dir.path(), &url.replace("rtt-", "big-"), big);
        println!(
            "| {milliseconds} ms | {one_by_one:.0} commits/s | {latency:.1?} | {in_groups:.0} commits/s | \
             {restored:.2?}, {requests} requests |"
        );
        // An acknowledgement takes a write and a read after it.
        assert!(latency >= round_trip * 2, "{latency:?}");
        assert!(restored >= round_trip * requests, "{restored:?}");
        assert!(in_groups > one_by_one || *milliseconds < 10, "{in_groups} in groups, {one_by_one} one by one");
    }
}

/// The requests and the time of restoring a file of this many MiB that do not compress.
fn restoration(dir: &Path, url: &str, mebibytes: u64) -> (u32, Duration) {
    let file = Options::new().commit_log(16 << 20).create(dir.join("big"), mebibytes << 20).unwrap();
    let mut random = SplitMix::new(mebibytes);
    for at in (0..mebibytes << 20).step_by(1 << 20) {
        let piece: Vec<u8> = (0..128 << 10).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        file.write_at(&piece, at).unwrap();
        file.sync().unwrap();
    }
    Replica::attach(&file, url, ReplicaOptions::new()).unwrap().detach().unwrap();
    let begun = Instant::now();
    let made = restore(url, &dir.join("copy"), &RestoreOptions::new()).unwrap();
    assert_eq!(made.len, mebibytes << 20);
    (made.requests.total() as u32, begun.elapsed())
}
