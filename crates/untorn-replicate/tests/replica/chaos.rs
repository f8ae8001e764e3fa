//! Writers fight for one replica, while signals and a store that comes and goes get in their way. The file has its
//! history.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use untorn::Options;
use untorn_replicate::{Error, FollowOptions, Follower, Replica, ReplicaOptions, RestoreOptions, look, restore};
use untorn_testing::{SplitMix, again, cases, isolated, needs, seed, sibling, test_name};

use super::history::{self, History, LEN};
use super::{Place, place};

/// How long a round waits for an acknowledgement.
const PATIENCE: Duration = Duration::from_secs(10);

/// Restores the replica, and checks that nothing that these acknowledgements name is missing.
fn check(place: &Place, acknowledged: &str, what: &str) -> u64 {
    history::check(&place.url, &place.path("check"), acknowledged, what)
}

/// Tells the parent, by one write.
fn append(path: &Path, line: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn options() -> ReplicaOptions {
    // Snapshots and deletions all the time.
    ReplicaOptions::new().interval(Duration::from_millis(3)).retain(Duration::ZERO).snapshot_bytes(40_000)
}

/// The directory of a writer's test, its name, and a seed.
const VICTIM: &str = "UNTORN_WRITER";

/// A writer that takes the replica over whenever it does not own it.
#[test]
fn a_victim_fights_until_it_is_killed() {
    let Some(of) = std::env::var_os(VICTIM) else { return };
    let of = of.into_string().unwrap();
    let [dir, name, seed] = of.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let (url, path) = (format!("file://{dir}/bucket"), Path::new(dir).join(name));
    let mut random = SplitMix::new(seed.parse().unwrap());
    loop {
        match own(&url, &path, &mut random, &Path::new(dir).join("acknowledged")) {
            Ok(()) => {}
            Err(Error::NotFollower { .. }) => {
                // It was an owner, and may have commits that the replica lacks.
                match restore(&url, &path, &RestoreOptions::new().replace(true)) {
                    Ok(_) | Err(Error::Store(_) | Error::NotFound { .. }) => {}
                    Err(error) => append(&Path::new(dir).join("failures"), &format!("{name}: restore: {error}")),
                }
            }
            Err(Error::Store(_) | Error::Fenced { .. } | Error::NotDescendant { .. } | Error::NotFound { .. }) => {}
            // The replication may just take a snapshot of it.
            Err(Error::File(untorn::Error::InUse { .. })) => {}
            Err(error) => append(&Path::new(dir).join("failures"), &format!("{name}: {error}")),
        }
        sleep(Duration::from_micros(random.below(30_000)));
    }
}

/// Owns the replica until another writer does.
fn own(url: &str, path: &Path, random: &mut SplitMix, acknowledged: &Path) -> Result<(), Error> {
    let follower = Follower::open(url, path, &FollowOptions::new().commit_log(1 << 20))?;
    let replica = follower.take_over(options())?;
    let mut history = History::open(path)?;
    loop {
        for _ in 0..1 + random.below(3) {
            history.go_on(random.next_u64() as u32 | 1)?;
        }
        match replica.sync_replicated() {
            Ok(_) => append(acknowledged, &history.line()),
            // The store may be back soon.
            Err(Error::Store(_) | Error::File(untorn::Error::InUse { .. })) => sleep(Duration::from_millis(2)),
            Err(error) => return Err(error),
        }
    }
}

/// A writer, which ends with the test also if that fails.
struct Victim(Child);

impl Victim {
    fn kill(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        kill_process(process, signal).unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}

fn victim(place: &Place, name: &str, seed: u64) -> Victim {
    let of = format!("{} {name} {seed}", place.dir.path().display());
    let mut command = again(sibling!("a_victim_fights_until_it_is_killed"));
    Victim(command.env(VICTIM, of).stdout(Stdio::null()).spawn().unwrap())
}

fn read(path: PathBuf) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// A replica of an empty history.
fn begin(place: &Place) {
    let file = Options::new().commit_log(1 << 20).create(place.path("first"), LEN).unwrap();
    Replica::attach(&file, &place.url, options()).unwrap().hand_over().unwrap();
}

#[test]
fn two_writers_fight_under_signals_and_without_their_store() {
    let place = place!();
    begin(&place);
    let mut random = SplitMix::new(seed("two_writers_fight_under_signals_and_without_their_store"));
    let (since, rounds) = (Instant::now(), cases(10, 1000));
    let mut victims = ["a", "b"].map(|name| victim(&place, name, random.next_u64()));
    let (mut kills, mut stops, mut absences, mut acknowledged) = (0, 0, 0, 0);
    for round in 0..rounds {
        let begun = Instant::now();
        sleep(Duration::from_micros(random.below(60_000)));
        let which = random.below(2) as usize;
        match random.below(5) {
            0 | 1 => {
                victims[which].signal(Signal::STOP);
                sleep(Duration::from_micros(random.below(150_000)));
                victims[which].signal(Signal::CONT);
                stops += 1;
            }
            2 | 3 => {
                victims[which].kill();
                victims[which] = victim(&place, ["a", "b"][which], random.next_u64());
                kills += 1;
            }
            _ => {
                fs::rename(place.path("bucket"), place.path("away")).unwrap();
                sleep(Duration::from_micros(random.below(40_000)));
                fs::rename(place.path("away"), place.path("bucket")).unwrap();
                absences += 1;
            }
        }
        let told = loop {
            let told = read(place.path("acknowledged"));
            let is_more = told.lines().count() as u64 > acknowledged;
            // A process starts slowly on a loaded machine, and half of the rounds wait for nothing.
            if is_more || round % 2 == 0 || begun.elapsed() > PATIENCE {
                break told;
            }
            sleep(Duration::from_millis(2));
        };
        // A line may be on its way.
        let told = &told[..told.rfind('\n').map_or(0, |at| at + 1)];
        acknowledged = check(&place, told, &format!("round {round}"));
        assert_eq!(read(place.path("failures")), "", "round {round}");
    }
    victims.iter_mut().for_each(Victim::kill);
    let epoch = look(&place.url).unwrap().epoch;
    println!(
        "{rounds} rounds: {kills} kills, {stops} stops, {absences} times without the store, {acknowledged} \
         acknowledgements, {epoch} epochs, in {:?}",
        since.elapsed()
    );
    assert!(acknowledged >= rounds / 3 && epoch > rounds / 4, "{acknowledged} acknowledgements, {epoch} epochs");
}

/// Sets the size of the file system of the store.
fn resize(bucket: &Path, how: &str, bytes: u64) {
    let option = format!("{how}size={bytes}");
    let mount = std::process::Command::new("mount").args(["-t", "tmpfs", "-o", &option, "tmpfs"]).arg(bucket).status();
    assert!(mount.unwrap().success(), "mount -o {option}");
}

#[test]
fn a_full_store_acknowledges_nothing_that_it_does_not_have() {
    needs!("mount namespace", "mount");
    if !isolated(test_name!()) {
        return;
    }
    let place = place!();
    let bucket = place.path("bucket");
    fs::create_dir(&bucket).unwrap();
    resize(&bucket, "", 8 << 20);
    begin(&place);
    let mut random = SplitMix::new(seed("a_full_store_acknowledges_nothing_that_it_does_not_have"));
    let (since, rounds) = (Instant::now(), cases(10, 1000));
    let (mut refusals, mut acknowledged) = (0, String::new());
    let mut history = History::open(&place.path("first")).unwrap();
    let replica = Replica::attach(&history.file, &place.url, options()).unwrap();
    for round in 0..rounds {
        // Little room at first, and enough afterwards.
        let found = rustix::fs::statvfs(&bucket).unwrap();
        let used = (found.f_blocks - found.f_bfree) * found.f_frsize;
        resize(&bucket, "remount,", used + (4 + random.below(40)) * 4096);
        for _ in 0..30 {
            history.go_on(random.next_u64() as u32 | 1).unwrap();
            match replica.sync_replicated() {
                Ok(_) => acknowledged += &format!("{}\n", history.line()),
                Err(Error::Store(error)) => {
                    assert!(error.to_string().contains("No space left"), "round {round}: {error}");
                    refusals += 1;
                    break;
                }
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        check(&place, &acknowledged, &format!("round {round}, full"));
        resize(&bucket, "remount,", 64 << 20);
        replica.sync_replicated().unwrap_or_else(|error| panic!("round {round}, with room again: {error}"));
        acknowledged += &format!("{}\n", history.line());
    }
    let count = check(&place, &acknowledged, "at the end");
    println!("{rounds} rounds: {refusals} times full, {count} acknowledgements, in {:?}", since.elapsed());
    assert!(refusals > rounds / 4, "the store was full {refusals} times only");
}
