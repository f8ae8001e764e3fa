//! [`Follower`]: a local file that applies the commits of a replica.
//!
//! # Invariants
//!
//! 1. The findings of a poll become one commit of the local file. Each of its commits is thus one of the replica.
//! 2. Before that commit, the note of the file durably says where the file is, and where the commit brings it, both
//!    with the local number. After a crash the local number tells which of the two it is.
//! 3. A commit of another program could have the number that the note foretells. So a file that a crash left is
//!    believed only after the foretold commit was read again, and changes nothing in it.
//! 4. A change that fails halfway stays in the open epoch, which goes with the handle.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use untorn::options::CommitLog;
use untorn::{AtomicFile, Durability, EngineKind, Options, Snapshot, backup, commits};

use crate::error::{Error, Result};
use crate::format::Place;
use crate::format::object::Object;
use crate::image::{self, Applied, FileImage};
use crate::note::{self, Known, Noted};
use crate::options::ReplicaOptions;
use crate::protocol::access::Access;
use crate::protocol::chain::{Cursor, Step, Target};
use crate::protocol::owner::{Claim, Seized};
use crate::protocol::rebuild::{BATCH, TRIES};
use crate::replica::Replica;
use crate::restore::{RestoreOptions, restore, time_of};
use crate::ship::{Shipper, Source, nanoseconds};
use crate::store;

/// Polls of a take-over at most: it need not wait for an owner that ships all the time.
const POLLS: u32 = 256;

/// How a [`Follower`] keeps its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FollowOptions {
    commit_log: Option<CommitLog>,
}

impl FollowOptions {
    /// The defaults: the file keeps a commit log if it has one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the file a [commit log](Options::commit_log), which lists what was applied, one commit for each poll that
    /// found something.
    #[must_use]
    pub fn commit_log(mut self, log: impl Into<CommitLog>) -> Self {
        self.commit_log = Some(log.into());
        self
    }
}

/// The findings of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Followed {
    /// The commits that the file lacked, and has now, durably.
    pub commits: u64,
    /// Bytes of the store in which they are.
    pub bytes: u64,
    /// The age of the oldest of them when the file had it durably, by the clocks of the writer and of this machine.
    pub lag: Option<Duration>,
    /// The file was made anew from a snapshot, because the commits that it lacked were deleted or never shipped.
    pub is_restart: bool,
    /// The file had all that the replica had at the time of the poll. A poll that asked only for the next object does
    /// not tell.
    pub is_current: bool,
}

/// How a file follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowerStatus {
    /// The last commit of the replica that the file has.
    pub commit: u64,
    /// When it was made, if known: it is not until something was applied.
    pub time: Option<SystemTime>,
    /// The epoch of the replica that the file has come to.
    pub epoch: u64,
    /// The owner of the replica has handed it over after it had shipped everything.
    pub is_released: bool,
    /// Commits that were applied.
    pub commits: u64,
    /// Commits of the local file by which they were applied.
    pub groups: u64,
    /// Bytes of the store that were read.
    pub bytes: u64,
    /// How often the file was made anew from a snapshot.
    pub restarts: u64,
}

/// A local untorn file that applies the commits of a replica, and nothing else.
///
/// Programs read it meanwhile by [`Snapshot::open`], and each snapshot has a whole commit. A kill at any instant leaves
/// a file that goes on. Another program must not write it: a file with other commits is refused.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("ledger");
/// # let url = format!("file://{}/bucket", dir.path().display());
/// use untorn::Options;
/// use untorn_replicate::{FollowOptions, Follower, Replica, ReplicaOptions};
/// let file = Options::new().commit_log(1 << 20).create(&path, 4096)?;
/// let replica = Replica::attach(&file, &url, ReplicaOptions::new())?;
/// replica.sync_replicated()?;
/// let mut follower = Follower::open(&url, dir.path().join("copy"), &FollowOptions::new())?;
/// file.write_at(b"hello", 100)?;
/// file.sync()?;
/// replica.sync_replicated()?;
/// follower.poll()?;
/// let mut bytes = [0; 5];
/// follower.snapshot()?.read_at(&mut bytes, 100)?;
/// assert_eq!(&bytes, b"hello");
/// follower.close()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Follower {
    access: Access,
    path: PathBuf,
    options: FollowOptions,
    /// `None` after a failure that left the open epoch unfinished.
    local: Option<Local>,
    status: FollowerStatus,
}

/// The local file, and where it is.
#[derive(Debug)]
struct Local {
    file: AtomicFile,
    /// For the note.
    noted: File,
    at: Noted,
    /// The note foretells a commit, which is made.
    is_foretold: bool,
    cursor: Cursor,
    /// The open epoch has changes.
    is_dirty: bool,
}

impl Follower {
    /// Opens the file that follows the replica at this URL. A file that is not there is restored. One that is there
    /// must have been restored from this replica, or have followed it, and must have no other commits.
    ///
    /// # Errors
    /// [`Error::NotFollower`] for any other file; [`Error::NotFound`] if there is no replica; [`Error::Io`] if the file
    /// system keeps no extended attributes; those of the store and the file.
    pub fn open(url: &str, path: impl AsRef<Path>, options: &FollowOptions) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let access = Access::new(store::open(url)?);
        if path.symlink_metadata().is_err() {
            restore(url, &path, &RestoreOptions::new())?;
        }
        let local = Local::open(&access, &path, options)?;
        let status = FollowerStatus::default();
        let mut follower = Follower { access, path, options: options.clone(), local: Some(local), status };
        follower.tell();
        Ok(follower)
    }

    /// Applies what the replica has by now, as one commit; if there is much, a part of it. If there is nothing, it
    /// costs one request, and one more at each sixteenth time.
    ///
    /// # Errors
    /// Those of the store and the file. After each of them the call may be made again.
    pub fn poll(&mut self) -> Result<Followed> {
        let mut local = match self.local.take() {
            Some(local) => local,
            None => Local::open(&self.access, &self.path, &self.options)?,
        };
        let before = local.cursor.read;
        let polled = local.poll(&self.access, &self.path);
        // After any other failure the next call opens the file anew, from its note.
        let keeps = !local.is_dirty && matches!(polled, Ok(_) | Err(Error::Store(_)));
        let read = local.cursor.read.saturating_sub(before);
        self.local = keeps.then_some(local);
        let (followed, time) = polled?;
        self.status.commits += followed.commits;
        self.status.groups += u64::from(followed.commits > 0 || followed.is_restart);
        self.status.bytes += read;
        self.status.restarts += u64::from(followed.is_restart);
        self.status.time = time.or(self.status.time);
        self.tell();
        Ok(followed)
    }

    fn tell(&mut self) {
        if let Some(local) = &self.local {
            self.status.commit = local.at.position.commit;
            self.status.epoch = local.at.place.epoch;
            self.status.is_released = local.cursor.record().owner.is_released;
        }
    }

    /// Takes the replica over with this file, and goes on as its writer. The owner acknowledges nothing any more from
    /// then on, unless it has handed the replica over before. The file gets all that it shipped until then. It must
    /// have a commit log ([`FollowOptions::commit_log`]), and is a plain file that any program may open then.
    ///
    /// # Errors
    /// [`Error::File`] if the file has no commit log: nothing is taken over then. [`Error::Fenced`] or
    /// [`Error::NotDescendant`] if another writer takes over at the same time; those of the store and the file. After
    /// these the replica may have lost its owner, and this or another file with all its commits may take it over.
    pub fn take_over(mut self, options: ReplicaOptions) -> Result<Replica> {
        if commits::kept(&self.path)?.is_none() {
            return Err(untorn::Error::CommitsMissing { path: self.path.clone(), from: 0, oldest: None }.into());
        }
        let url = self.access.url();
        // First what takes long.
        self.catch_up()?;
        let token = self.access.nonce()?;
        let record = self.access.record()?;
        let missing = || Error::NotFound { url: url.clone(), what: "there is no replica".to_owned() };
        let replica = record.ok_or_else(missing)?.0.replica;
        let name = options.name.clone();
        let claim = Claim { replica, token, name, known: Vec::new(), position: None };
        let seized = Seized::take(&self.access, &claim, false)?;
        // All epochs before are sealed, so this ends.
        while self.local.as_ref().is_none_or(|local| local.at.position != seized.position()) {
            if self.poll()?.is_current {
                break;
            }
        }
        if self.local.as_ref().is_none_or(|local| local.at.position != seized.position()) {
            let what = "another writer has taken it over at the same time".to_owned();
            return Err(Error::NotDescendant { url, what });
        }
        let (access, path) = (self.access.clone(), self.path.clone());
        self.close()?;
        let own = |claim: &Claim| seized.own(claim);
        let shipper = Shipper::attach_by(Source::Path(path), &access, options.clone(), token, own)?;
        Replica::start(shipper, Arc::clone(&access.store), &url, &options)
    }

    /// Polls until there is nothing more, or while an owner is quicker.
    fn catch_up(&mut self) -> Result<()> {
        for _ in 0..POLLS {
            if self.poll()?.is_current {
                break;
            }
        }
        Ok(())
    }

    /// How it goes.
    pub fn status(&self) -> FollowerStatus {
        self.status.clone()
    }

    /// The file at the last commit that was applied.
    ///
    /// # Errors
    /// As for [`Snapshot::open`].
    pub fn snapshot(&self) -> Result<Snapshot> {
        match &self.local {
            Some(local) => Ok(local.file.snapshot()?),
            None => Ok(Snapshot::open(&self.path)?),
        }
    }

    /// Ends it. The file is a plain one then, and can follow again.
    ///
    /// # Errors
    /// Those of the file, which stays as a crash would leave it.
    pub fn close(mut self) -> Result<FollowerStatus> {
        if let Some(local) = self.local.take() {
            local.close(&self.path)?;
        }
        Ok(self.status)
    }
}

impl Local {
    fn open(access: &Access, path: &Path, options: &FollowOptions) -> Result<Self> {
        let refused = |what: &str| Error::NotFollower { path: path.to_owned(), what: what.to_owned() };
        let failed = |source| Error::Io { operation: "open", path: path.to_owned(), source };
        let noted = File::open(path).map_err(failed)?;
        let mut cursor = Cursor::new(access)?;
        let Known { position, next, .. } = note::known(&noted, path, cursor.record().replica)?;
        let at = position.ok_or_else(|| refused("it was not restored from this replica, or was its source"))?;
        let file = open_file(path, options)?;
        let number = file.last_commit().number;
        cursor.go_to(at.place, at.position);
        let mut local = Local { file, noted, at, is_foretold: next.is_some(), cursor, is_dirty: false };
        let foreign = "it has a commit that did not come from the replica";
        match next.filter(|next| next.commit == number) {
            _ if number == at.commit => Ok(local),
            None => Err(refused(foreign)),
            Some(next) => match local.repeats(access, path, next)? {
                Repeats::Same => {
                    // The epoch changed nothing, and goes with the handle.
                    drop(local.file);
                    let (file, cursor) = (open_file(path, options)?, local.cursor);
                    Ok(Local { file, noted: local.noted, at: next, is_foretold: true, cursor, is_dirty: false })
                }
                Repeats::Other => Err(refused(foreign)),
                Repeats::Deleted => {
                    // The snapshot from which it begins anew is compared with the whole file.
                    local.at = next;
                    local.cursor.go_to(Place::default(), next.position);
                    Ok(local)
                }
            },
        }
    }

    /// Whether the foretold commit changes nothing in the file, because the file has it. The cursor goes behind it.
    fn repeats(&mut self, access: &Access, path: &Path, next: Noted) -> Result<Repeats> {
        let before = self.file.snapshot()?;
        let mut applied = Applied::default();
        while self.cursor.position() != next.position {
            match self.cursor.next(access, 1)? {
                Step::Lost | Step::Idle => return Ok(Repeats::Deleted),
                Step::Objects(objects) if objects.is_empty() => return Ok(Repeats::Other),
                Step::Objects(objects) => {
                    if !self.apply(access, &objects, &mut applied)? {
                        return Ok(Repeats::Deleted);
                    }
                }
            }
        }
        let is_same = image::is_same(&self.file, &before, &applied.touched)?;
        tracing::debug!(path = %path.display(), is_same, "read the last commit of a follower again");
        Ok(if is_same { Repeats::Same } else { Repeats::Other })
    }

    /// Applies objects to the open epoch. `false` if a snapshot among them was deleted meanwhile.
    fn apply(&mut self, access: &Access, objects: &[Object], applied: &mut Applied) -> Result<bool> {
        self.is_dirty = true;
        let mut image = FileImage { file: &self.file };
        for object in objects {
            if !image::apply_object(access, &mut self.cursor, object, &mut image, applied)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The findings, and the time of the last commit.
    fn poll(&mut self, access: &Access, path: &Path) -> Result<(Followed, Option<SystemTime>)> {
        let objects = match self.cursor.poll(access, BATCH)? {
            Step::Objects(objects) if objects.is_empty() => {
                self.settle_note(path)?;
                return Ok((Followed { is_current: true, ..Followed::default() }, None));
            }
            Step::Objects(objects) => objects,
            Step::Idle => return Ok(Default::default()),
            Step::Lost => return self.begin_anew(access, path),
        };
        let mut applied = Applied::default();
        if !self.apply(access, &objects, &mut applied)? {
            return self.begin_anew(access, path);
        }
        self.commit(path)?;
        let bytes = objects.iter().map(|object| object.stored).sum();
        let (commits, lag, is_restart) = (applied.commits, age(applied.oldest), applied.is_restart);
        let followed = Followed { commits, bytes, lag, is_restart, is_current: false };
        Ok((followed, time_of(applied.newest)))
    }

    /// Makes the file that of the newest snapshot, whatever the open epoch has.
    fn begin_anew(&mut self, access: &Access, path: &Path) -> Result<(Followed, Option<SystemTime>)> {
        self.is_dirty = true;
        for _ in 0..TRIES {
            let entry;
            (self.cursor, entry) = Cursor::begin(access, Target::Latest)?;
            let Some(object) = self.cursor.enter(access)? else { continue };
            let mut image = FileImage { file: &self.file };
            if !image::replace(access, &mut self.cursor, &object, &mut image)? {
                continue;
            }
            self.commit(path)?;
            let (bytes, lag) = (object.stored, age(entry.time));
            let followed = Followed { commits: 0, bytes, lag, is_restart: true, is_current: false };
            return Ok((followed, time_of(entry.time)));
        }
        let what = format!("a writer deleted what was read {TRIES} times; keep older snapshots for longer");
        Err(Error::NotFound { url: access.url(), what })
    }

    /// Commits the open epoch, by which the file is where the cursor is.
    fn commit(&mut self, path: &Path) -> Result<()> {
        let (position, place) = (self.cursor.position(), self.cursor.place());
        let next = Noted { position, place, commit: self.at.commit + 1 };
        note::set_position(&self.noted, path, self.cursor.record().replica, self.at, Some(next))?;
        let number = self.file.sync()?;
        self.is_dirty = false;
        if number != next.commit && number != self.at.commit {
            let what = format!("its commit {number} did not come from the replica");
            return Err(Error::NotFollower { path: path.to_owned(), what });
        }
        // An epoch without a change has no number of its own.
        (self.at, self.is_foretold) = (Noted { commit: number, ..next }, true);
        Ok(())
    }

    /// Closes the file, whose next commit has a higher number than the last one of the replica.
    fn close(mut self, path: &Path) -> Result<()> {
        self.settle_note(path)?;
        self.file.close()?;
        let Noted { position, commit, .. } = self.at;
        if position.commit > commit {
            let replica = self.cursor.record().replica;
            let next = Noted { commit: position.commit, ..self.at };
            note::set_position(&self.noted, path, replica, self.at, Some(next))?;
            backup::number_above(path, position.commit)?;
            note::set_position(&self.noted, path, replica, next, None)?;
        }
        Ok(())
    }

    /// Notes where the file is. Nothing is foretold any more.
    fn settle_note(&mut self, path: &Path) -> Result<()> {
        if self.is_foretold {
            note::set_position(&self.noted, path, self.cursor.record().replica, self.at, None)?;
            self.is_foretold = false;
        }
        Ok(())
    }
}

/// Whether the file has the commit that its note foretold.
enum Repeats {
    Same,
    Other,
    /// That cannot be told any more: its objects were deleted.
    Deleted,
}

/// Lengths and bytes of an epoch commit together under this engine, and its commits are numbered one by one.
fn open_file(path: &Path, options: &FollowOptions) -> Result<AtomicFile> {
    let mut with = Options::new().engine(EngineKind::HybridLog).durability(Durability::PerCommit);
    if let Some(log) = options.commit_log {
        with = with.commit_log(log);
    }
    Ok(with.open(path)?)
}

/// How long ago a time in nanoseconds since 1970 was; `None` if it is not known.
fn age(time: u64) -> Option<Duration> {
    let now = nanoseconds(Some(SystemTime::now()));
    (time > 0).then(|| Duration::from_nanos(now.saturating_sub(time)))
}
