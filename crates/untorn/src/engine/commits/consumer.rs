//! Registered consumers of a commit log: each has a name, and a durable position that outlives its process.
//!
//! The position of a consumer is in a file of its own beside the control of the log. Only the consumer writes it, and
//! has it locked meanwhile. The writer of the log reads all of them before it drops a segment, if its log
//! [blocks](crate::options::CommitLog::block).
//!
//! # Invariants
//!
//! 1. An acknowledged position is durable before the call returns.
//! 2. The writer makes a position durable before it drops a commit because of it: the process that wrote it may have
//!    been killed before its own flush, and a power cut would take the position back.
//! 3. A position counts for the log of its UUID only. Of a log that began anew the consumer's commits are missing.
//! 4. A new consumer is registered first, and looks then whether its start is still in the log.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use zerocopy::{FromZeros, IntoBytes};

use super::files::{consumer_path, consumers, open};
use super::format::{Control, POSITION_AT, POSITION_LEN, Position, RawPosition};
use super::log::{LogOf, control_path};
use super::state;
use super::stream::{Commit, Commits, Reader, whole_control};
use crate::error::{Error, Result};
use crate::format::sidecar;
use crate::storage::{Access, LockKind, Medium, MediumFile, lock_holder};

/// The barriers and checks of consumers, and of dropping segments.
pub(crate) mod barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// A position is durable before its acknowledgement returns.
        POSITION = "commits.position";
        /// The file of a position has its name, and a position in it, before the registration returns.
        REGISTER = "commits.register";
        /// A position is durable before the writer drops commits because of it.
        RELIED = "commits.relied";
        /// The confirmation is durable before a segment goes: after a crash the open finds the records behind it.
        DROP = "commits.drop";
        /// A check: a segment stays while a consumer has not acknowledged all of it, if the log blocks.
        HELD = "commits.held";
        /// A check: a commit returns once each consumer has acknowledged it, if the log awaits its consumers.
        AWAITED = "commits.awaited";
    }
}

/// How often a commit that is to be acknowledged looks whether it is.
const POLL: Duration = Duration::from_millis(1);

/// Characters that a name may have at most.
const LONGEST: usize = 64;

/// A registered consumer, as [`inspect`](crate::inspect) found it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerInfo {
    /// Its name.
    pub name: String,
    /// The last commit that it acknowledged, or the one that it started from.
    pub acknowledged: u64,
    /// How much lower that number is than that of the last commit in the log. Numbers may have gaps.
    pub lag: u64,
    /// Bytes of the log that it has not acknowledged, at most: the log is counted in segments.
    pub lag_bytes: u64,
    /// Whether the log has lost commits that it would be given next.
    pub has_missed: bool,
}

/// Tries of a new consumer to find a start that is still in the log when it is registered.
const TRIES: usize = 8;

/// The newer whole copy of a position.
///
/// # Errors
/// Those of reading.
pub(super) fn read_position<F: MediumFile>(file: &F) -> Result<Option<Position>> {
    if file.len() < POSITION_LEN {
        return Ok(None);
    }
    let mut best: Option<Position> = None;
    for at in POSITION_AT {
        let mut raw = RawPosition::new_zeroed();
        file.read(at, raw.as_mut_bytes())?;
        best = [best, Position::decode(&raw)].into_iter().flatten().max_by_key(|position| position.seq);
    }
    Ok(best)
}

/// The consumers of the log with this control file, and their positions, by name.
///
/// # Errors
/// Those of opening and reading.
pub(super) fn positions<M: Medium>(medium: &M, control: &Path, data: &M::File) -> Result<Vec<(String, Position)>> {
    let mut found = Vec::new();
    for name in consumers(medium, control)? {
        let Some(file) = open(medium, &consumer_path(control, &name), Access::Read, data)? else { continue };
        // One without a position is of a registration that a crash cut off.
        if let Some(position) = read_position(&file)? {
            found.push((name, position));
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// The consumer of this log with the lowest position.
///
/// # Errors
/// Those of opening and reading.
pub(super) fn slowest<M: Medium>(
    medium: &M,
    control: &Path,
    uuid: &[u8; 16],
    data: &M::File,
) -> Result<Option<(String, u64)>> {
    let of_this = positions(medium, control, data)?.into_iter().filter(|(_, position)| position.uuid == *uuid);
    Ok(of_this.map(|(name, position)| (name, position.number)).min_by_key(|(_, number)| *number))
}

/// Waits until the slowest consumer, as `slowest` finds it, has acknowledged this commit.
///
/// # Errors
/// [`Error::NotAcknowledged`] after this time; those of `slowest`.
pub(crate) fn await_acknowledgement(
    path: &Path,
    commit: u64,
    most: Option<Duration>,
    mut slowest: impl FnMut() -> Result<Option<(String, u64)>>,
) -> Result<()> {
    let since = Instant::now();
    loop {
        let found = slowest()?;
        if found.as_ref().is_some_and(|(_, acknowledged)| *acknowledged >= commit) {
            return Ok(());
        }
        let left = most.map_or(POLL, |most| most.saturating_sub(since.elapsed()).min(POLL));
        if left.is_zero() {
            return Err(Error::NotAcknowledged {
                path: path.to_owned(),
                consumer: found.map(|(name, _)| name),
                commit,
            });
        }
        std::thread::sleep(left);
    }
}

/// The part of a process that shares a file: it waits for the consumers of a commit log that another one keeps up.
pub(crate) struct Awaiting {
    path: PathBuf,
    /// The last commit that this process need not wait for.
    awaited: AtomicU64,
}

/// A log that awaits its consumers.
struct Found<M: Medium> {
    data: M::File,
    place: PathBuf,
    control: Control,
    commit: u64,
}

impl Awaiting {
    /// `None` if commits of the file do not await its consumers.
    ///
    /// # Errors
    /// Those of reading the log.
    pub(crate) fn of<M: Medium>(medium: &M, path: &Path) -> Result<Option<Self>> {
        let found = Self::look(medium, path)?;
        Ok(found.map(|found| Awaiting { path: path.to_owned(), awaited: AtomicU64::new(found.commit) }))
    }

    fn look<M: Medium>(medium: &M, path: &Path) -> Result<Option<Found<M>>> {
        let data = medium.open(path, Access::Read, 0)?;
        let place = control_path(path, data.identity()?.inode, LogOf::File);
        let Some(file) = open(medium, &place, Access::Read, &data)? else { return Ok(None) };
        let Some((control, confirmed)) = whole_control(&file)? else {
            let what = "the control of the commit log is damaged".to_owned();
            return Err(Error::Corrupt { path: place, offset: None, what });
        };
        Ok(control.awaits.then_some(Found { data, place, control, commit: confirmed.number }))
    }

    /// Waits until the consumers have acknowledged what is committed now.
    ///
    /// # Errors
    /// [`Error::NotAcknowledged`]; those of reading the log.
    pub(crate) fn wait<M: Medium>(&self, medium: &M) -> Result<()> {
        let Some(Found { data, place, control, commit }) = Self::look(medium, &self.path)? else {
            // The log that was there is gone, and nobody acknowledges anything.
            let commit = self.awaited.load(Ordering::Relaxed);
            return Err(Error::NotAcknowledged { path: self.path.clone(), consumer: None, commit });
        };
        if commit > self.awaited.load(Ordering::Relaxed) {
            let slowest = || slowest(medium, &place, &control.uuid, &data);
            await_acknowledgement(&self.path, commit, control.block, slowest)?;
            self.awaited.fetch_max(commit, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Makes the positions durable that were read.
///
/// # Errors
/// Those of opening and flushing.
pub(super) fn make_durable<M: Medium>(medium: &M, control: &Path, data: &M::File) -> Result<()> {
    for name in consumers(medium, control)? {
        if let Some(file) = open(medium, &consumer_path(control, &name), Access::ReadWrite, data)? {
            file.sync(barriers::RELIED)?;
        }
    }
    Ok(())
}

/// Whether both copies of a position have something, and neither is whole.
fn is_damaged<F: MediumFile>(file: &F) -> Result<bool> {
    let mut raw = [RawPosition::new_zeroed(); 2];
    for (raw, at) in raw.iter_mut().zip(POSITION_AT) {
        file.read(at, raw.as_mut_bytes())?;
    }
    Ok(raw.iter().all(|raw| Position::decode(raw).is_none() && raw.as_bytes().iter().any(|&byte| byte != 0)))
}

/// # Errors
/// [`Error::Invalid`] for a name that no consumer can have.
fn check_name(path: &Path, name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if (1..=LONGEST).contains(&name.len()) && name.chars().all(is_plain) {
        return Ok(());
    }
    let what = format!(
        "{name:?} cannot be the name of a consumer of its commits; use 1 to {LONGEST} letters, digits, `-`, `_` and `.`"
    );
    Err(Error::Invalid { path: path.to_owned(), what })
}

/// Removes a consumer. Returns whether there was one.
///
/// # Errors
/// [`Error::Invalid`] for a name that none can have; those of removing.
pub(crate) fn forget<M: Medium>(medium: &M, path: &Path, of: LogOf, name: &str) -> Result<bool> {
    check_name(path, name)?;
    let data = medium.open(path, Access::Read, 0)?;
    let place = consumer_path(&control_path(path, data.identity()?.inode, of), name);
    let Some(_) = open(medium, &place, Access::ReadWrite, &data)? else { return Ok(false) };
    medium.unlink(&place)?;
    medium.sync_dir(barriers::REGISTER, &sidecar::parent(&place))?;
    Ok(true)
}

/// The stream of a consumer.
pub(crate) struct Consuming<M: Medium> {
    reader: Reader<M>,
    medium: Arc<M>,
    path: PathBuf,
    name: String,
    place: PathBuf,
    file: M::File,
    position: Position,
}

impl<M: Medium> Consuming<M> {
    /// Goes on after the last commit that the consumer acknowledged, or after `from`, which becomes its position. A
    /// new one begins after `from`, or at the start of the log.
    ///
    /// # Errors
    /// [`Error::CommitsMissing`] if the log does not reach back so far; [`Error::InUse`] if another stream is of this
    /// consumer; [`Error::Invalid`] for its name; those of opening and writing.
    pub(crate) fn open(medium: Arc<M>, path: &Path, of: LogOf, name: &str, from: Option<u64>) -> Result<Self> {
        check_name(path, name)?;
        let missing = || Error::CommitsMissing { path: path.to_owned(), from: from.unwrap_or(0), oldest: None };
        let data = medium.open(path, Access::Read, 0)?;
        let identity = data.identity()?;
        let control = control_path(path, identity.inode, of);
        let file = open(&*medium, &control, Access::Read, &data)?.ok_or_else(missing)?;
        let (control_now, _) =
            whole_control(&file)?.filter(|(control, _)| control.is_of(identity)).ok_or_else(missing)?;
        let place = consumer_path(&control, name);
        let file = Self::file(&*medium, path, &place, name, &data)?;
        let found = read_position(&file)?;
        if found.is_none() && from.is_none() && file.len() >= POSITION_LEN && is_damaged(&file)? {
            let what = format!("the position of the consumer {name:?} is damaged; start it after a commit that it has");
            return Err(Error::Corrupt { path: place, offset: None, what });
        }
        let (reader, position) = match (found, from) {
            (Some(position), None) => {
                if position.uuid != control_now.uuid {
                    let from = position.number;
                    return Err(Error::CommitsMissing { path: path.to_owned(), from, oldest: Some(control_now.base) });
                }
                (Reader::open(Arc::clone(&medium), path, of, position.number)?, position)
            }
            (found, from) => {
                let seq = found.map_or(0, |position| position.seq);
                Self::begin(&medium, (path, of), &place, &file, seq, from).inspect_err(|_| {
                    if found.is_none() {
                        // What remains of it counts for nothing, and the first error is the one that helps.
                        let _ = medium.unlink(&place);
                    }
                })?
            }
        };
        let (path, name) = (path.to_owned(), name.to_owned());
        Ok(Consuming { reader, medium, path, name, place, file, position })
    }

    /// The file of its position, locked.
    fn file(medium: &M, path: &Path, place: &Path, name: &str, data: &M::File) -> Result<M::File> {
        let is_there = |error: &Error| matches!(error, Error::Io { source, .. } if source.kind() == ALREADY);
        const ALREADY: std::io::ErrorKind = std::io::ErrorKind::AlreadyExists;
        let opened = || open(medium, place, Access::ReadWrite, data);
        let file = match opened()? {
            Some(file) => file,
            None => match medium.create_like(place, POSITION_LEN, POSITION_LEN, data) {
                // Another process came first.
                Err(error) if is_there(&error) => opened()?.ok_or(error)?,
                made => made?,
            },
        };
        if !file.try_lock(LockKind::Exclusive)? {
            let holder = format!("the consumer {name:?} of its commits, which is {}", lock_holder(&file));
            return Err(Error::InUse { path: path.to_owned(), holder });
        }
        Ok(file)
    }

    /// Registers the consumer durably, at a start that the log has.
    fn begin(
        medium: &Arc<M>,
        (path, of): (&Path, LogOf),
        place: &Path,
        file: &M::File,
        mut seq: u64,
        from: Option<u64>,
    ) -> Result<(Reader<M>, Position)> {
        file.allocate(0, POSITION_LEN)?;
        let mut tries = 0;
        loop {
            let log = state::look(&**medium, path, of)?;
            let log = log.ok_or_else(|| Error::CommitsMissing { path: path.to_owned(), from: 0, oldest: None })?;
            let number = from.unwrap_or(log.oldest);
            seq += 1;
            let position = Position { seq, uuid: log.uuid, number };
            write_position(&**medium, file, &position, barriers::REGISTER)?;
            file.sync(barriers::REGISTER)?;
            medium.sync_dir(barriers::REGISTER, &sidecar::parent(place))?;
            match Reader::open(Arc::clone(medium), path, of, number) {
                // The segment has gone meanwhile.
                Err(Error::CommitsMissing { oldest: Some(_), .. }) if from.is_none() && tries < TRIES => tries += 1,
                reader => return Ok((reader?, position)),
            }
        }
    }
}

fn write_position<M: Medium>(
    medium: &M,
    file: &M::File,
    position: &Position,
    barrier: crate::storage::Barrier,
) -> Result<()> {
    file.write(POSITION_AT[(position.seq % 2) as usize], position.encode().as_bytes())?;
    medium.fence(barrier, &[file])
}

impl<M: Medium> Commits for Consuming<M> {
    fn next(&mut self, with_bytes: bool) -> Result<Option<Commit>> {
        self.reader.next(with_bytes)
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn position(&self) -> u64 {
        self.reader.position()
    }

    fn log(&self) -> [u8; 16] {
        self.reader.uuid()
    }

    fn acknowledged(&self) -> Option<u64> {
        Some(self.position.number)
    }

    fn acknowledge(&mut self, number: u64) -> Result<()> {
        let invalid = |what: String| Err(Error::Invalid { path: self.path.clone(), what });
        if number > self.position() {
            let name = &self.name;
            return invalid(format!("the consumer {name:?} acknowledges commit {number}, which it was not given yet"));
        }
        if number <= self.position.number {
            return Ok(());
        }
        if !self.medium.exists(&self.place)? {
            return invalid(format!("the consumer {:?} was forgotten; register it again", self.name));
        }
        let position = Position { seq: self.position.seq + 1, number, ..self.position };
        write_position(&*self.medium, &self.file, &position, barriers::POSITION)?;
        self.position = position;
        Ok(())
    }
}
