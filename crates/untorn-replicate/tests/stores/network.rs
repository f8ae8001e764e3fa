//! Slow and dead networks: local commits do not wait for them. The store is in a process of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use untorn::{AtomicFile, Options};
use untorn_replicate::{Replica, ReplicaOptions};
use untorn_testing::test_name;

use crate::mini::{Act, Mini};
use crate::proxy::Proxy;
use crate::{run_again, url};

/// The same store through a proxy.
fn through(url: &str, round_trip: Duration) -> (Proxy, String) {
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
    let span = Duration::from_millis(span);
    println!("| round trip | acknowledged, one by one | latency | shipped in groups |");
    println!("|---|---|---|---|");
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
        println!("| {milliseconds} ms | {one_by_one:.0} commits/s | {latency:.1?} | {in_groups:.0} commits/s |");
        // An acknowledgement takes a write and a read after it.
        assert!(latency >= round_trip * 2, "{latency:?}");
        assert!(in_groups > one_by_one || *milliseconds < 10, "{in_groups} in groups, {one_by_one} one by one");
    }
}
