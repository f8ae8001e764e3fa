//! Writers fight for one replica, while the network between them and the store is cut, or their server is killed.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use untorn::Options;
use untorn_replicate::{Error, FollowOptions, Follower, Replica, ReplicaOptions, RestoreOptions, look, restore};
use untorn_testing::{SplitMix, cases, seed, test_name};

use crate::history::{History, LEN, check};
use crate::mini::{Act, Mini};
use crate::network::through;
use crate::servers::Server;
use crate::{on, run_again, url};

/// How long a round waits for an acknowledgement.
const PATIENCE: Duration = Duration::from_secs(10);

fn options() -> ReplicaOptions {
    // Snapshots and deletions all the time.
    ReplicaOptions::new().interval(Duration::from_millis(3)).retain(Duration::ZERO).snapshot_bytes(40_000)
}

/// The reports of the writers.
#[derive(Default)]
struct Told {
    acknowledged: Mutex<String>,
    failures: Mutex<String>,
    fenced: AtomicU64,
    stops: AtomicBool,
}

impl Told {
    fn stops(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    fn acknowledged(&self) -> String {
        self.acknowledged.lock().unwrap().clone()
    }
}

/// A writer that takes the replica over whenever it does not own it.
fn fight(url: &str, path: &Path, mut random: SplitMix, told: &Told) {
    while !told.stops() {
        let failure = match own(url, path, &mut random, told) {
            // It was an owner, and may have commits that the replica lacks.
            Err(Error::NotFollower { .. }) => restore(url, path, &RestoreOptions::new().replace(true)).err(),
            owned => owned.err(),
        };
        match failure {
            Some(Error::Fenced { .. }) => {
                told.fenced.fetch_add(1, Ordering::Relaxed);
            }
            None | Some(Error::Store(_) | Error::NotDescendant { .. } | Error::NotFound { .. }) => {}
            // The replication may just take a snapshot of it.
            Some(Error::File(untorn::Error::InUse { .. })) => {}
            Some(error) => *told.failures.lock().unwrap() += &format!("{}: {error}\n", path.display()),
        }
        sleep(Duration::from_micros(random.below(30_000)));
    }
}

/// Owns the replica until another writer does.
fn own(url: &str, path: &Path, random: &mut SplitMix, told: &Told) -> Result<(), Error> {
    let follower = Follower::open(url, path, &FollowOptions::new().commit_log(1 << 20))?;
    let replica = follower.take_over(options())?;
    let mut history = History::open(path)?;
    while !told.stops() {
        for _ in 0..1 + random.below(3) {
            history.go_on(random.next_u64() as u32 | 1)?;
        }
        match replica.sync_replicated() {
            Ok(_) => *told.acknowledged.lock().unwrap() += &format!("{}\n", history.line()),
            // The network may be whole again soon.
            Err(Error::Store(_) | Error::File(untorn::Error::InUse { .. })) => sleep(Duration::from_millis(2)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Has two writers fight, which reach the store by these URLs, and disturbs them in each round. Checks all that is
/// acknowledged. Returns what happened, in words.
fn disturbed(
    test: &str,
    ways: [&str; 2],
    url: &str,
    mend: &dyn Fn(),
    mut disturb: impl FnMut(&mut SplitMix),
) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let file = Options::new().commit_log(1 << 20).create(path("first"), LEN).unwrap();
    Replica::attach(&file, url, options()).unwrap().hand_over().unwrap();
    let mut random = SplitMix::new(seed(test));
    let (told, rounds, since) = (Told::default(), cases(10, 1000), Instant::now());
    let (mut acknowledged, mut count) = (0, 0);
    scope(|scope| {
        // A failed check must not leave the writers waiting.
        let ends = Ends { told: &told, mend };
        for (url, name) in ways.into_iter().zip(["a", "b"]) {
            let (random, path, told) = (SplitMix::new(random.next_u64()), path(name), &told);
            scope.spawn(move || fight(url, &path, random, told));
        }
        // On a slow machine the writers need more of them to fight as often.
        for round in 0..4 * rounds {
            if round >= rounds && look(url).is_ok_and(|found| found.epoch > rounds / 4) {
                break;
            }
            count += 1;
            let begun = Instant::now();
            sleep(Duration::from_micros(random.below(60_000)));
            disturb(&mut random);
            let lines = loop {
                let lines = told.acknowledged();
                // Half of the rounds wait for nothing.
                let is_more = lines.lines().count() as u64 > acknowledged;
                if is_more || round % 2 == 0 || begun.elapsed() > PATIENCE {
                    break lines;
                }
                sleep(Duration::from_millis(2));
            };
            acknowledged = check(url, &path("check"), &lines, &format!("round {round}"));
            assert_eq!(*told.failures.lock().unwrap(), "", "round {round}");
        }
        drop(ends);
    });
    let acknowledged = check(url, &path("check"), &told.acknowledged(), "at the end");
    let (epoch, fenced) = (look(url).unwrap().epoch, told.fenced.load(Ordering::Relaxed));
    assert!(acknowledged >= rounds / 3 && epoch > rounds / 4, "{acknowledged} acknowledgements, {epoch} epochs");
    format!(
        "{count} rounds: {acknowledged} acknowledgements, {epoch} epochs, {fenced} times fenced, in {:?}",
        since.elapsed()
    )
}

#[test]
fn writers_fight_while_their_network_is_cut() {
    let Some(url) = url() else {
        let mini = Mini::start(|_, _| Act::Answer);
        return run_again(test_name!(), &mini.store);
    };
    let ways = [through(&url, Duration::ZERO), through(&url, Duration::from_millis(2))];
    let mut losses = 0;
    let mend = || ways.iter().for_each(|(proxy, _)| proxy.mend());
    let told = disturbed(test_name!(), [&ways[0].1, &ways[1].1], &url, &mend, |random| {
        let (proxy, _) = &ways[random.below(2) as usize];
        proxy.cut();
        sleep(Duration::from_micros(random.below(150_000)));
        if random.below(2) == 0 {
            proxy.sever();
            losses += 1;
        }
        proxy.mend();
    });
    println!("{losses} cuts with closed connections; {told}");
}

/// A server has all that it acknowledged after its death, or a writer would find that its replica has gone back.
fn killed(test: &str, mut server: Server) {
    let url = server.store.url("bucket", "a/ledger");
    let told = disturbed(test, [&url, &url], &url, &|| (), |random| {
        server.kill();
        sleep(Duration::from_micros(random.below(100_000)));
        server.start_again();
    });
    println!("{told}");
}

#[test]
fn writers_fight_while_versitygw_is_killed() {
    on!(Server::versitygw(), |_: &str| killed(test_name!(), Server::versitygw().unwrap()));
}

#[cfg(feature = "nats")]
#[test]
fn writers_fight_while_jetstream_is_killed() {
    on!(Server::nats(), |_: &str| killed(test_name!(), Server::nats().unwrap()));
}

/// Ends the writers.
struct Ends<'a> {
    told: &'a Told,
    mend: &'a dyn Fn(),
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.told.stops.store(true, Ordering::Release);
        (self.mend)();
    }
}
