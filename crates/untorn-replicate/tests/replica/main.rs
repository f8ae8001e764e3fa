//! Files are replicated to a directory, and restored from it.

mod behind;
mod chaos;
mod follow;
mod history;
mod lag;
mod ltx;
mod points;
mod take_over;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use untorn::{AtomicFile, Options};
use untorn_replicate::store::Requests;
use untorn_replicate::{Error, Replica, ReplicaOptions, RestoreOptions, already_shipped, look, restore};

const LEN: u64 = 100_000;

struct Place {
    dir: tempfile::TempDir,
    url: String,
}

impl Place {
    /// `None` where the file system keeps no user attributes.
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}/bucket", dir.path().display());
        let probe = std::fs::File::create(dir.path().join("probe")).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::fsetxattr(&probe, "user.untorn.test", b"x", flags).is_ok().then_some(Place { dir, url })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn create(&self, name: &str) -> AtomicFile {
        Options::new().commit_log(1 << 20).create(self.path(name), LEN).unwrap()
    }

    fn open(&self, name: &str) -> AtomicFile {
        Options::new().commit_log(1 << 20).open(self.path(name)).unwrap()
    }

    fn attach(&self, file: &AtomicFile) -> Result<Replica, Error> {
        Replica::attach(file, &self.url, options())
    }

    /// Restores a copy: its bytes and its commit.
    fn restored(&self, options: RestoreOptions) -> (Vec<u8>, u64) {
        let copy = self.path("restored");
        let made = restore(&self.url, &copy, &options.replace(true)).unwrap();
        (std::fs::read(copy).unwrap(), made.commit)
    }
}

fn options() -> ReplicaOptions {
    ReplicaOptions::new().interval(Duration::from_secs(3600))
}

macro_rules! place {
    () => {
        match Place::new() {
            Some(place) => place,
            None => untorn_testing::skip!("the file system of temporary files keeps no user attributes"),
        }
    };
}

use place;

fn bytes_of(file: &AtomicFile) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Writes something that tells this commit from others, and commits it.
fn commit(file: &AtomicFile, number: u8) -> u64 {
    file.write_at(&[number; 300], u64::from(number) * 1000).unwrap();
    file.write_at(&[number; 8], 4090).unwrap();
    file.sync().unwrap()
}

#[test]
fn each_commit_can_be_restored() {
    let place = place!();
    let file = place.create("ledger");
    commit(&file, 1);
    let replica = place.attach(&file).unwrap();
    replica.sync_replicated().unwrap();
    let mut states = vec![(file.last_commit().number, bytes_of(&file))];
    for number in 2..12 {
        let commit = commit(&file, number);
        if number % 3 == 0 {
            assert_eq!(replica.sync_replicated().unwrap(), commit);
        }
        states.push((commit, bytes_of(&file)));
    }
    let status = replica.detach().unwrap();
    assert_eq!((status.epoch, status.commits, status.snapshots), (1, 10, 1), "{status:?}");
    assert!(status.objects <= 5 && status.acknowledged == states.last().unwrap().0, "{status:?}");
    for (commit, bytes) in &states {
        assert_eq!(place.restored(RestoreOptions::new().at_commit(*commit)), (bytes.clone(), *commit));
    }
    let (commit, bytes) = states.last().unwrap();
    assert_eq!(place.restored(RestoreOptions::new()), (bytes.clone(), *commit));
    assert_eq!(place.restored(RestoreOptions::new().at_time(SystemTime::now())).1, *commit);
    let old = RestoreOptions::new().at_time(SystemTime::UNIX_EPOCH);
    assert!(matches!(restore(&place.url, &place.path("none"), &old), Err(Error::NotFound { .. })));
    assert!(!place.path("none").exists());
}

/// The object is created, and the record is read again, once.
#[test]
fn an_acknowledgement_takes_two_requests() {
    let place = place!();
    let file = place.create("ledger");
    let replica = place.attach(&file).unwrap();
    replica.sync_replicated().unwrap();
    let requests = |number: Option<u8>| {
        let before = replica.status().requests;
        number.map(|number| commit(&file, number));
        replica.sync_replicated().unwrap();
        let made = replica.status().requests - before;
        (made.puts, made.gets, made.deletes + made.lists + made.others)
    };
    assert_eq!(requests(Some(1)), (1, 1, 0));
    // With nothing to ship, the record still says whether this writer owns the replica.
    assert_eq!(requests(None), (0, 1, 0));
    assert_eq!(requests(Some(2)), (1, 1, 0));
}

/// A mountpoint without its disk looks like a store that never had a replica.
#[test]
fn a_replica_that_is_gone_is_not_begun_anew() {
    let place = place!();
    let file = place.create("ledger");
    place.attach(&file).unwrap().detach().unwrap();
    let copy = place.path("copy");
    restore(&place.url, &copy, &RestoreOptions::new()).unwrap();
    let copy = Options::new().commit_log(1 << 20).open(copy).unwrap();
    let (store, away) = (place.path("bucket"), place.path("away"));
    std::fs::rename(&store, &away).unwrap();
    for file in [&file, &copy] {
        let refused = place.attach(file).unwrap_err();
        assert!(matches!(&refused, Error::NotFound { what, .. } if what.contains("--new")), "{refused}");
        assert!(!store.exists());
    }
    std::fs::rename(&away, &store).unwrap();
    place.attach(&copy).unwrap().detach().unwrap();
    std::fs::rename(&store, &away).unwrap();
    let begun = Replica::attach(&file, &place.url, options().begin_new(true)).unwrap();
    assert_eq!(begun.detach().unwrap().epoch, 1);
    // Another place is no matter of this one.
    Replica::attach(&file, &format!("{}2", place.url), options()).unwrap().detach().unwrap();
}

#[test]
fn changes_of_the_length_are_restored() {
    let place = place!();
    let file = place.create("ledger");
    let replica = place.attach(&file).unwrap();
    // States since the first snapshot can be restored.
    replica.sync_replicated().unwrap();
    let mut states = Vec::new();
    for (number, len) in [(1, 60_000), (2, 200_000), (3, 5000), (4, 90_000)] {
        file.resize(len).unwrap();
        file.write_at(&[number; 600], len - 600).unwrap();
        states.push((file.sync().unwrap(), bytes_of(&file)));
    }
    replica.detach().unwrap();
    for (commit, bytes) in states {
        assert_eq!(place.restored(RestoreOptions::new().at_commit(commit)), (bytes, commit));
    }
}

#[test]
fn a_later_writer_of_the_file_goes_on_without_a_snapshot() {
    let place = place!();
    let file = place.create("ledger");
    place.attach(&file).unwrap().detach().unwrap();
    commit(&file, 1);
    file.close().unwrap();
    let file = place.open("ledger");
    let last = commit(&file, 2);
    let status = place.attach(&file).unwrap().detach().unwrap();
    assert_eq!((status.epoch, status.snapshots, status.commits, status.acknowledged), (2, 0, 2, last), "{status:?}");
    assert_eq!(place.restored(RestoreOptions::new()), (bytes_of(&file), last));
    let found = look(&place.url).unwrap();
    assert_eq!((found.epoch, found.commit, found.snapshots.len(), found.is_settled), (2, last, 1, true));
}

#[test]
fn a_restored_file_takes_over_and_the_old_one_is_fenced() {
    let place = place!();
    let old = place.create("old");
    let replica = place.attach(&old).unwrap();
    commit(&old, 1);
    replica.sync_replicated().unwrap();
    restore(&place.url, &place.path("new"), &RestoreOptions::new()).unwrap();
    let new = place.open("new");
    let successor = place.attach(&new).unwrap();
    commit(&old, 2);
    assert!(matches!(replica.sync_replicated(), Err(Error::Fenced { epoch: 1, .. })));
    assert!(matches!(replica.sync_replicated(), Err(Error::Fenced { .. })), "the failure is forgotten");
    let last = commit(&new, 3);
    let status = successor.detach().unwrap();
    assert_eq!((status.epoch, status.acknowledged, status.snapshots), (2, last, 0), "{status:?}");
    assert_eq!(place.restored(RestoreOptions::new()), (bytes_of(&new), last));
    drop(replica);
    assert!(matches!(place.attach(&old), Err(Error::NotDescendant { .. })));
    assert_eq!(place.restored(RestoreOptions::new()), (bytes_of(&new), last));
}

#[test]
fn files_that_lack_commits_are_refused() {
    let place = place!();
    let file = place.create("ledger");
    let replica = place.attach(&file).unwrap();
    commit(&file, 1);
    replica.sync_replicated().unwrap();
    // Restored too early, copied with its attributes, and made by itself.
    restore(&place.url, &place.path("early"), &RestoreOptions::new()).unwrap();
    let last = commit(&file, 2);
    replica.detach().unwrap();
    file.close().unwrap();
    let copied = std::process::Command::new("cp").args(["-a", "ledger", "copy"]).current_dir(place.dir.path()).status();
    assert!(copied.unwrap().success());
    place.create("other").close().unwrap();
    for name in ["early", "copy", "other"] {
        let refused = place.attach(&place.open(name));
        assert!(matches!(refused, Err(Error::NotDescendant { .. })), "{name}: {refused:?}");
    }
    assert_eq!(place.attach(&place.open("ledger")).unwrap().detach().unwrap().acknowledged, last);
}

#[test]
fn commits_that_the_log_has_dropped_are_in_a_snapshot() {
    let place = place!();
    let file = Options::new().commit_log(64 << 10).create(place.path("ledger"), 1 << 20).unwrap();
    place.attach(&file).unwrap().detach().unwrap();
    for number in 0..40 {
        file.write_at(&vec![number; 20_000], u64::from(number) * 20_000).unwrap();
        file.sync().unwrap();
    }
    let status = place.attach(&file).unwrap().detach().unwrap();
    assert_eq!(status.snapshots, 1, "{status:?}");
    assert_eq!(place.restored(RestoreOptions::new()), (bytes_of(&file), file.last_commit().number));
}

#[test]
fn what_is_not_retained_is_deleted() {
    let place = place!();
    let file = place.create("ledger");
    let options = options().retain(Duration::ZERO).snapshot_bytes(1000);
    let replica = Replica::attach(&file, &place.url, options).unwrap();
    let count = |place: &Place| look(&place.url).unwrap().objects;
    let first = commit(&file, 1);
    replica.sync_replicated().unwrap();
    let mut counts = Vec::new();
    for number in 2..40 {
        commit(&file, number);
        replica.sync_replicated().unwrap();
        counts.push(count(&place));
    }
    // The last snapshot before a new one stays: states since then begin with it.
    assert!(counts.iter().max().unwrap() < &20, "{counts:?}");
    let old = RestoreOptions::new().at_commit(first);
    assert!(matches!(restore(&place.url, &place.path("old"), &old), Err(Error::NotFound { .. })));
    replica.detach().unwrap();
    assert_eq!(place.restored(RestoreOptions::new()), (bytes_of(&file), file.last_commit().number));
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn a_damaged_or_missing_object_is_never_restored() {
    let place = place!();
    let file = place.create("ledger");
    // The snapshot has a part: what is not zeros.
    commit(&file, 1);
    let replica = place.attach(&file).unwrap();
    for number in 2..5 {
        commit(&file, number);
        replica.sync_replicated().unwrap();
    }
    replica.detach().unwrap();
    let bytes = bytes_of(&file);
    let bucket = place.path("bucket");
    let objects: Vec<PathBuf> =
        files_below(&bucket.join("o")).into_iter().chain(files_below(&bucket.join("p"))).collect();
    assert!(objects.len() >= 4, "{objects:?}");
    let last = files_below(&bucket.join("o")).into_iter().max().unwrap();
    for object in &objects {
        let whole = std::fs::read(object).unwrap();
        let mut changed = whole.clone();
        changed[whole.len() / 2] ^= 4;
        let is_refused = || {
            let refused = restore(&place.url, &place.path("bad"), &RestoreOptions::new());
            assert!(matches!(refused, Err(Error::Corrupt { .. })), "{object:?}: {refused:?}");
            assert!(!place.path("bad").exists());
        };
        std::fs::write(object, changed).unwrap();
        is_refused();
        std::fs::remove_file(object).unwrap();
        // Nothing tells that there was one more object.
        if *object != last {
            is_refused();
        }
        std::fs::write(object, whole).unwrap();
    }
    assert_eq!(place.restored(RestoreOptions::new()).0, bytes);
}

#[test]
fn what_is_shipped_already_begins_no_epoch() {
    let place = place!();
    let file = place.create("ledger");
    let shipped = || already_shipped(file.path(), &place.url, &options()).unwrap();
    assert!(shipped().is_none(), "there is no replica");
    for number in 1..4 {
        let last = commit(&file, number);
        assert!(shipped().is_none(), "commit {last} is not shipped");
        let status = place.attach(&file).unwrap().detach().unwrap();
        let found = shipped().expect("nothing is left to ship");
        assert_eq!((found.epoch, found.acknowledged), (status.epoch, last));
        let Requests { puts, deletes, lists, .. } = found.requests;
        assert_eq!((puts, deletes, lists), (0, 0, 0));
    }
    assert!(already_shipped(file.path(), &place.url, &options().begin_with_snapshot(true)).unwrap().is_none());
    assert!(already_shipped(file.path(), &place.url, &options().consumer("other")).unwrap().is_none());
    // Another file takes the replica over.
    restore(&place.url, &place.path("copy"), &RestoreOptions::new()).unwrap();
    place.attach(&place.open("copy")).unwrap().detach().unwrap();
    assert!(shipped().is_none(), "it has lost the replica");
}

/// The writer has every byte, so a snapshot mends what comes after it.
#[test]
fn a_snapshot_mends_a_replica_that_lost_an_object() {
    let place = place!();
    let file = place.create("ledger");
    let replica = place.attach(&file).unwrap();
    for number in 1..6 {
        commit(&file, number);
        replica.sync_replicated().unwrap();
    }
    replica.detach().unwrap();
    std::fs::remove_file(place.path("bucket/o/0000000000000001/0000000000000003")).unwrap();
    let is_damaged = || {
        let refused = restore(&place.url, &place.path("bad"), &RestoreOptions::new());
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    };
    is_damaged();
    // The next writer goes on behind the hole, or in it.
    place.attach(&file).unwrap().detach().unwrap();
    is_damaged();
    let mends = options().begin_with_snapshot(true);
    let status = Replica::attach(&file, &place.url, mends).unwrap().detach().unwrap();
    assert_eq!(status.snapshots, 1);
    assert_eq!(place.restored(RestoreOptions::new()).0, bytes_of(&file));
}

#[test]
fn a_file_without_a_commit_log_is_refused() {
    let place = place!();
    let file = AtomicFile::create(place.path("plain"), LEN).unwrap();
    let refused = place.attach(&file);
    assert!(matches!(refused, Err(Error::File(untorn::Error::CommitsMissing { oldest: None, .. }))), "{refused:?}");
    assert!(matches!(look(&place.url), Err(Error::NotFound { .. })), "a replica was made for nothing");
}
