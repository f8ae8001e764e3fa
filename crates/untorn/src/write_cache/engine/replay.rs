//! Replay after a crash: it brings the log's entries to their files in order, and may run any number of times.
//!
//! A file is identified by its identity. Its path is a hint: a replay looks there, and then under the other names in
//! that directory. If it does not find a file, it creates the file again if the log has all of it ([`recreate`]).
//! Otherwise it does not replay the file, and keeps the log.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::barriers;
use super::format::{HEADER, Kind, TableLine};
use super::names::parent;
use super::pack::Packed;
use super::recreate::{self, ANOTHER, InTheWay, NO_DIRECTORY};
use super::scan::{Operation, Scan, read_spilled, unpack_spilled};
use super::spill::Spilled;
use super::stream_replay::Streams;
use crate::error::{Error, Result};
use crate::options::{Progress, ProgressFn};
use crate::storage::{Identity, Medium, MediumFile};
use crate::write_cache::backing::{BackingDir, BackingFile};

/// What happened to the entries of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayOutcome {
    /// The file durably has them; or would have them, if the log was only inspected.
    Replayed,
    /// An earlier replay brought them to the file, but could not replay all other files.
    Already,
    /// The file was about to be removed and no longer exists, so its entries are dropped.
    Removed,
    /// The file was not found, or another file has its name. The log keeps its entries.
    Missing(String),
    /// The file could not be written to. The log keeps its entries.
    Failed(String),
    /// Another program changed the file after the log's last entry of it. Nothing was written to the file, and the log
    /// keeps its entries. [`replay_keeping`](crate::write_cache::replay_keeping) takes the choice.
    Changed(String),
    /// The same, and the caller chose to [keep the file](Keep::File): its entries are dropped.
    Dropped,
}

/// Which version of a file counts, if another program changed it after the log's last entry of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The log's: its entries are written over the file.
    Log,
    /// The file's, as it is: the log's entries of it are dropped.
    File,
}

impl ReplayOutcome {
    /// Whether nothing is left to do for the file.
    pub fn is_final(&self) -> bool {
        use ReplayOutcome::{Already, Dropped, Removed, Replayed};
        matches!(self, Replayed | Already | Removed | Dropped)
    }
}

/// The result of a replay for one file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayedFile {
    /// The file's path, or its last known path.
    pub path: PathBuf,
    /// Its inode number when its entries were written.
    pub inode: u64,
    /// The number of its operations in the log.
    pub operations: u64,
    /// The bytes that these operations write.
    pub bytes: u64,
    /// What happened to them.
    pub fate: ReplayOutcome,
    /// The new name of an older file. It is set if the file was new, a crash took it, and the replay created it again
    /// under a name that the older file had.
    pub moved_aside: Option<PathBuf>,
}

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replay {
    /// Each file with operations in the log, by path.
    pub files: Vec<ReplayedFile>,
    /// Operations in the log.
    pub operations: u64,
    /// Entries of incomplete operations: in flight at the crash, or damaged since. The last incomplete operation in the
    /// log may be missing from this count.
    pub incomplete: u64,
    /// Atomic files with changes that no commit covered when the log was last written to. A crash takes them back.
    pub open_epochs: u64,
    /// Entries that the log has room for.
    pub capacity: u64,
    /// Data bytes of an entry.
    pub entry_size: u32,
}

impl Replay {
    /// Whether every operation is in its file.
    pub fn is_complete(&self) -> bool {
        self.files.iter().all(|file| file.fate.is_final())
    }

    /// The first file that another program changed, if one was.
    pub(super) fn changed(&self) -> Option<&ReplayedFile> {
        self.files.iter().find(|file| matches!(file.fate, ReplayOutcome::Changed(_)))
    }

    /// What is left, in a sentence.
    pub(super) fn left(&self) -> String {
        let mut left = self.files.iter().filter(|file| !file.fate.is_final());
        let Some(first) = left.next() else { return "nothing".to_owned() };
        let why = match &first.fate {
            ReplayOutcome::Missing(why) | ReplayOutcome::Failed(why) | ReplayOutcome::Changed(why) => why.as_str(),
            _ => "",
        };
        let operations = first.operations;
        let more = match left.count() {
            0 => String::new(),
            more => format!(", and operations of {more} more files"),
        };
        format!("{operations} operations of {} ({why}){more}", first.path.display())
    }
}

/// Whether two identities are of one file. The number of a device changes over a boot, and is asked for only where
/// nothing else tells two files with one inode number apart.
pub(super) fn is_same(one: &Identity, other: &Identity) -> bool {
    let told_apart = one.birth != 0 || one.generation != 0;
    let (a, b) = (one, other);
    (a.inode, a.generation, a.birth) == (b.inode, b.generation, b.birth) && (told_apart || a.device == b.device)
}

/// A file on its way through a replay.
pub(super) struct Target {
    pub(super) slow: Option<Arc<dyn BackingFile>>,
    identity: Identity,
    pub(super) path: PathBuf,
    pub(super) fate: ReplayOutcome,
    operations: u64,
    bytes: u64,
    /// It is made again.
    pub(super) made: bool,
    /// Its name so far, if it is to get another.
    pub(super) so_far: Option<PathBuf>,
    pub(super) moved_aside: Option<PathBuf>,
}

impl Target {
    /// Of which nothing is known but what its line says.
    pub(super) fn of(line: &TableLine) -> Self {
        Target {
            slow: None,
            identity: line.identity,
            path: line.path.clone(),
            fate: ReplayOutcome::Replayed,
            operations: 0,
            bytes: 0,
            made: false,
            so_far: None,
            moved_aside: None,
        }
    }
}

pub(super) struct Replayer<'a, M: Medium> {
    pub(super) medium: &'a M,
    pub(super) log: &'a M::File,
    path: &'a Path,
    pub(super) place: &'a dyn BackingDir,
    pub(super) scan: Scan<M::File>,
    /// Only looks.
    dry: bool,
    /// What counts of a file that was changed.
    pub(super) keep: Option<Keep>,
    /// Files that are not to be stored to, and why.
    pub(super) judged: HashMap<u64, ReplayOutcome>,
    pub(super) targets: BTreeMap<u64, Target>,
    /// The other name of each file that has two, by which a crash may have left it.
    pub(super) others: HashMap<u64, PathBuf>,
    /// The line of each file whose rename was not done, as the log had it.
    pub(super) undone: HashMap<u64, TableLine>,
    /// Files that were to leave for such a rename and stay, of which the log does not say so yet.
    pub(super) stay: Vec<u64>,
}

impl<'a, M: Medium> Replayer<'a, M> {
    pub(super) fn new(
        medium: &'a M,
        log: &'a M::File,
        path: &'a Path,
        scan: Scan<M::File>,
        place: &'a dyn BackingDir,
        dry: bool,
    ) -> Self {
        let (keep, judged, targets, others) = (None, HashMap::new(), BTreeMap::new(), HashMap::new());
        let (undone, stay) = (HashMap::new(), Vec::new());
        Replayer { medium, log, path, place, scan, dry, keep, judged, targets, others, undone, stay }
    }

    /// The same by a user who has chosen.
    pub(super) fn keeping(self, keep: Option<Keep>) -> Self {
        Replayer { keep, ..self }
    }

    pub(super) fn is_dry(&self) -> bool {
        self.dry
    }

    /// Brings what is in a log to the files. Afterwards all of it is durable there, or the report says of what it is
    /// not. A replayer that only looks says what that would be.
    pub(super) fn run(mut self, progress: Option<&ProgressFn>) -> Result<Replay> {
        let operations = std::mem::take(&mut self.scan.operations);
        let total = operations.len() as u64;
        self.note_names();
        // Before names are settled: a line that it stores says of them what it said.
        self.judge(&operations)?;
        self.settle_renames(&operations);
        let mut streams = Streams::new(&self.scan.closed, &operations);
        for (done, operation) in (0..).zip(&operations) {
            if let Some(progress) = progress {
                progress(Progress { phase: "replaying", done, total });
            }
            self.target(operation.uid);
            if let Err(error) = self.record(&mut streams, operation).and_then(|()| self.operate(operation)) {
                self.fail(operation.uid, &error);
            }
        }
        if !self.dry {
            self.finish(&mut streams)?;
        }
        if let Some(progress) = progress.filter(|_| total > 0) {
            progress(Progress { phase: "replaying", done: total, total });
        }
        let of = |target: Target| ReplayedFile {
            path: target.path,
            inode: target.identity.inode,
            operations: target.operations,
            bytes: target.bytes,
            fate: target.fate,
            moved_aside: target.moved_aside,
        };
        // A file whose rename was all that there was to make durable is of no interest, unless that failed.
        let told = self.targets.into_values().filter(|target| target.operations > 0 || !target.fate.is_final());
        let mut files: Vec<ReplayedFile> = told.map(of).collect();
        files.sort_by(|one, two| one.path.cmp(&two.path));
        let Scan { geometry, incomplete, open_epochs, .. } = self.scan;
        let (capacity, entry_size) = (geometry.slots, geometry.entry);
        Ok(Replay { files, operations: total, incomplete, open_epochs, capacity, entry_size })
    }

    pub(super) fn fail(&mut self, uid: u64, error: &Error) {
        if let Some(target) = self.targets.get_mut(&uid).filter(|target| target.fate == ReplayOutcome::Replayed) {
            target.fate = ReplayOutcome::Failed(error.to_string());
        }
    }

    /// Finds the file with a number, unless it was looked for before.
    fn target(&mut self, uid: u64) {
        if self.targets.contains_key(&uid) {
            return;
        }
        let Some((_, _, line)) = self.scan.table.get(&uid) else { return };
        let mut target = Target::of(line);
        if line.replayed {
            target.fate = ReplayOutcome::Already;
        } else if let Some(fate) = self.judged.get(&uid) {
            target.fate = fate.clone();
        } else if let Err(error) = self.find(line, &mut target) {
            target.fate = ReplayOutcome::Failed(error.to_string());
        }
        self.targets.insert(uid, target);
    }

    /// Finds the file of a line, or what became of it.
    fn find(&self, line: &TableLine, target: &mut Target) -> Result<()> {
        let temporary = recreate::temporary(self.scan.checksum_seed, line);
        match (self.search(line)?, &line.new) {
            (Some((path, _)), _) if self.is_name(line, &path) && recreate::is_superseded(line, self.lines()) => {
                self.remove(&path)?;
                target.fate = ReplayOutcome::Removed;
            }
            (Some((path, slow)), new) => {
                if new.is_some() && !self.dry {
                    // Of what it has the log has all, and of what it had before that it was made anew perhaps nothing.
                    slow.set_len(0)?;
                }
                target.made = path == temporary;
                if target.made || path != line.path && self.is_name(line, &path) {
                    target.so_far = Some(path);
                } else {
                    target.path = path;
                }
                target.slow = Some(slow);
            }
            (None, _) if line.leaving => {
                if recreate::in_the_way(self.place, line, &self.all_lines())? == InTheWay::Earlier {
                    self.remove(&line.path)?;
                }
                target.fate = self.removed(line);
            }
            (None, Some(_)) if !recreate::has_directory(self.place, line)? => {
                target.fate = ReplayOutcome::Missing(NO_DIRECTORY.to_owned());
            }
            (None, Some(_))
                if recreate::in_the_way(self.place, line, &self.all_lines())? == InTheWay::SomethingElse =>
            {
                target.fate = ReplayOutcome::Missing(ANOTHER.to_owned());
            }
            (None, Some(like)) if !self.dry => {
                target.slow = Some(recreate::make(self.place, line, like, &temporary)?);
                target.made = true;
                target.so_far = Some(temporary);
            }
            (None, Some(_)) => {}
            (None, None) => target.fate = self.missing(&target.path),
        }
        Ok(())
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = &TableLine> {
        self.scan.table.values().map(|(_, _, line)| line)
    }

    pub(super) fn all_lines(&self) -> Vec<&TableLine> {
        self.lines().collect()
    }

    /// Removes a file once more that was let leave, durably.
    fn remove(&self, path: &Path) -> Result<()> {
        if self.dry {
            return Ok(());
        }
        self.place.remove(path)?;
        self.place.sync_dir(barriers::GONE, path.parent().unwrap_or(Path::new("/")))
    }

    /// What became of a file that was about to be removed, and is not found.
    fn removed(&self, line: &TableLine) -> ReplayOutcome {
        let elsewhere = self.sync_elsewhere(line);
        elsewhere
            .and_then(|()| self.look_for_removal(&line.path, &line.parents))
            .unwrap_or_else(|error| ReplayOutcome::Failed(error.to_string()))
    }

    /// Syncs the other directories that have to do with it that a file is gone: that of its other name, and those
    /// from which one came over it.
    fn sync_elsewhere(&self, line: &TableLine) -> Result<()> {
        if self.dry {
            return Ok(());
        }
        let came_over = |other: &&TableLine| {
            other.before.as_ref().is_some_and(|before| before.over.is_some_and(|over| is_same(&over, &line.identity)))
        };
        let mut dirs: BTreeSet<&Path> = self.lines().filter(came_over).flat_map(TableLine::dirs).collect();
        dirs.extend(self.others.get(&line.uid).map(|path| parent(path)));
        dirs.remove(parent(&line.path));
        dirs.into_iter().try_for_each(|dir| self.place.sync_dir(barriers::GONE, dir))
    }

    /// It was removed if its directory is there without it. A file system that is not mounted has neither; in its
    /// place is another directory, or none. One that was removed too has to have been in the one above it.
    ///
    /// The file must not be back after a crash, when the log may have nothing of it.
    fn look_for_removal(&self, path: &Path, parents: &[u64]) -> Result<ReplayOutcome> {
        for (dir, parent) in path.ancestors().skip(1).zip(parents) {
            let found = self.place.directory(dir)?;
            if *parent == 0 || found.is_some_and(|found| found.inode != *parent) {
                break;
            }
            if !self.dry {
                self.place.sync_dir(barriers::GONE, dir)?;
            }
            if found.is_some() {
                return Ok(ReplayOutcome::Removed);
            }
        }
        Ok(ReplayOutcome::Missing(NO_DIRECTORY.to_owned()))
    }

    fn missing(&self, path: &Path) -> ReplayOutcome {
        match self.place.exists(path) {
            Ok(true) => ReplayOutcome::Missing(ANOTHER.to_owned()),
            Ok(false) => ReplayOutcome::Missing("it is neither at its path nor elsewhere in that directory".to_owned()),
            Err(error) => ReplayOutcome::Failed(error.to_string()),
        }
    }

    /// The file of this identity at this path.
    pub(super) fn at(&self, path: &Path, identity: &Identity) -> Result<Option<Arc<dyn BackingFile>>> {
        // Who only looks opens nothing for writing: that alone would take a lease away, and fail on a read-only mount.
        match if self.dry { self.place.look(path)? } else { self.place.open(path)? } {
            Some(file) if is_same(&file.identity()?, identity) => Ok(Some(file)),
            _ => Ok(None),
        }
    }

    /// Whether a file may have this name: it has two while a rename is not durable.
    fn is_name(&self, line: &TableLine, path: &Path) -> bool {
        path == line.path || self.others.get(&line.uid).is_some_and(|other| path == other)
    }

    pub(super) fn search(&self, line: &TableLine) -> Result<Option<(PathBuf, Arc<dyn BackingFile>)>> {
        let names = || std::iter::once(&line.path).chain(self.others.get(&line.uid));
        for path in names() {
            if let Some(file) = self.at(path, &line.identity)? {
                return Ok(Some((path.clone(), file)));
            }
        }
        for dir in names().filter_map(|path| path.parent()).collect::<BTreeSet<_>>() {
            for name in self.place.candidates(dir, line.identity.inode)? {
                let path = dir.join(name);
                // What is no file, or may not be opened, is not it.
                if let Ok(Some(file)) = self.at(&path, &line.identity) {
                    return Ok(Some((path, file)));
                }
            }
        }
        Ok(None)
    }

    /// Stores a line of the table, in the copy that does not count and then in the other.
    pub(super) fn write_line(&mut self, uid: u64) -> Result<()> {
        if let Some((slot, copy, line)) = self.scan.table.get_mut(&uid) {
            line.seq += 1;
            *copy = 1 - *copy;
            line.write(self.log, self.scan.checksum_seed, *slot, *copy)?;
        }
        Ok(())
    }

    fn operate(&mut self, operation: &Operation) -> Result<()> {
        let Some(target) = self.targets.get_mut(&operation.uid) else { return Ok(()) };
        target.operations += 1;
        if operation.is_packed {
            return self.operate_packed(operation);
        }
        if operation.kind == Kind::Write {
            target.bytes += operation.len;
        }
        if self.dry || target.fate != ReplayOutcome::Replayed {
            return Ok(());
        }
        match operation.kind {
            Kind::Write => self.write(operation),
            Kind::SetLen => target.slow.as_ref().map_or(Ok(()), |file| file.set_len(operation.value)),
            // Names come last, and of epochs the scan has left what counts.
            Kind::Move | Kind::StagedWrite | Kind::StagedSpill | Kind::StagedPack | Kind::StagedLen | Kind::Commit => {
                Ok(())
            }
        }
    }

    /// Does all changes of a pack, or counts their bytes.
    fn operate_packed(&mut self, operation: &Operation) -> Result<()> {
        let Some(target) = self.targets.get(&operation.uid) else { return Ok(()) };
        let is_done = self.dry || target.fate != ReplayOutcome::Replayed;
        let slow = target.slow.clone().filter(|_| !is_done);
        let mut written = 0;
        self.unpack(operation, |change| match (change, &slow) {
            (Packed::Write { offset, bytes, .. }, slow) => {
                written += bytes.len() as u64;
                slow.as_ref().map_or(Ok(()), |file| file.write(offset, bytes))
            }
            (Packed::Spilled { offset, spilled }, slow) => {
                written += spilled.len;
                slow.as_ref().map_or(Ok(()), |file| self.write_spilled(&**file, offset, &spilled))
            }
            (Packed::SetLen(len), slow) => slow.as_ref().map_or(Ok(()), |file| file.set_len(len)),
        })?;
        if let Some(target) = self.targets.get_mut(&operation.uid) {
            target.bytes += written;
        }
        Ok(())
    }

    /// Gives each change of a pack to `each`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the spill file lacks any of it, and those of `each`.
    pub(super) fn unpack(&self, operation: &Operation, mut each: impl FnMut(Packed<'_>) -> Result<()>) -> Result<()> {
        let Some(pack) = operation.spilled.and_then(|write| self.scan.spilled.get(write)) else { return Ok(()) };
        let spill = self.scan.spill.as_ref();
        let whole = unpack_spilled(spill, self.scan.checksum_seed, pack, |change| each(change).map(|()| true))?;
        if whole { Ok(()) } else { Err(self.lacks_bytes()) }
    }

    pub(super) fn lacks_bytes(&self) -> Error {
        let what = "its spill file is missing, or lacks bytes of a committed write".to_owned();
        Error::Corrupt { path: self.path.to_owned(), offset: None, what }
    }

    /// Bytes of a spilled write.
    pub(super) fn spilled(&self, write: &Spilled, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let spill = self.scan.spill.as_ref();
        if read_spilled(spill, self.scan.checksum_seed, write, range, &mut bytes)? {
            return Ok(bytes);
        }
        Err(self.lacks_bytes())
    }

    fn write_spilled(&self, file: &dyn BackingFile, offset: u64, write: &Spilled) -> Result<()> {
        let end = offset.checked_add(write.len).filter(|&end| end <= i64::MAX as u64);
        if end.is_none() {
            let what = format!("a log entry has offset {offset}, beyond the largest file offset");
            return Err(Error::Corrupt { path: self.path.to_owned(), offset: None, what });
        }
        let mut at = 0;
        while at < write.len {
            let end = (at + write.chunk()).min(write.len);
            file.write(offset + at, &self.spilled(write, at..end)?)?;
            at = end;
        }
        Ok(())
    }

    fn write(&self, operation: &Operation) -> Result<()> {
        let Some(Target { slow: Some(file), .. }) = self.targets.get(&operation.uid) else { return Ok(()) };
        if let Some(write) = operation.spilled.and_then(|write| self.scan.spilled.get(write)) {
            return self.write_spilled(&**file, operation.value, write);
        }
        let entry = u64::from(self.scan.geometry.entry);
        let mut data = vec![0; operation.len.min(entry) as usize];
        for part in 0..operation.parts {
            let done = part * entry;
            let data = &mut data[..(operation.len - done).min(entry) as usize];
            self.log.read(self.scan.geometry.entry_at(operation.position + part) + HEADER, data)?;
            let at = operation.value.checked_add(done).filter(|&at| at <= i64::MAX as u64 - entry);
            let at = at.ok_or_else(|| {
                let what = format!("a log entry has offset {}, beyond the largest file offset", operation.value);
                Error::Corrupt { path: self.path.to_owned(), offset: None, what }
            })?;
            file.write(at, data)?;
        }
        Ok(())
    }

    /// Makes everything durable; if that is not all the log has, the log says for which files it is done.
    fn finish(&mut self, streams: &mut Streams<'_>) -> Result<()> {
        self.note_renamed_without_operations();
        for target in self.targets.values_mut().filter(|target| target.fate == ReplayOutcome::Replayed) {
            if let Some(file) = &target.slow
                && let Err(error) = file.sync(if target.made { barriers::AGAIN } else { barriers::REPLAYED_FILE })
            {
                target.fate = ReplayOutcome::Failed(error.to_string());
            }
        }
        self.name_files()?;
        self.finish_records(streams);
        if self.targets.values().all(|target| target.fate.is_final()) {
            return Ok(());
        }
        let is_done = |fate: &ReplayOutcome| matches!(fate, ReplayOutcome::Replayed | ReplayOutcome::Dropped);
        let done = |(&uid, target): (&u64, &Target)| is_done(&target.fate).then_some(uid);
        let done: Vec<u64> = self.targets.iter().filter_map(done).collect();
        self.keep_not_replaced(barriers::KEPT)?;
        // Twice: in the second copy for the day when the first is damaged.
        for _ in 0..2 {
            for &uid in &done {
                if let Some((_, _, line)) = self.scan.table.get_mut(&uid) {
                    line.replayed = true;
                }
                self.write_line(uid)?;
            }
            self.medium.fence(barriers::KEPT, &[self.log])?;
        }
        Ok(())
    }
}
