//! The subject: files behind a log, or without one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use untorn::testing::MediumDir;
use untorn::testing::storage::{Barrier, Identity, Medium, is_unfinished};
use untorn::write_cache::{BackingDir, BackingFile, CreateAttrs, Named};
use untorn::write_cache::{CacheOptions, CachedFile, ReplayOutcome, Step, WriteCache};
use untorn::{Error, Result};

use super::config::{Config, Mode};
use super::ops::{BEFORE, DIRS, NAMES, Op, State};
use crate::medium::SimMedium;

/// The log of every run, in a directory of its own: what makes its name durable does nothing for those of the files.
pub(super) const LOG: &str = "/.untorn/log";
/// Made with the log, so that whoever opens the log makes its name durable, too.
const OWN: &str = "/.untorn";
const SPILL: &str = "/.untorn/log.spill";

/// A byte that is written to a file while the log is kept for another.
pub(super) const DIRECT: u8 = 255;
/// The log's error for changes for which it has no room: ENOSPC.
const NO_ROOM: i32 = 28;
const DIRECT_SYNC: Barrier = Barrier::new("direct.sync");

/// A place in which one file is not to be found.
struct Hiding {
    place: MediumDir<SimMedium>,
    hidden: Option<&'static Path>,
}

impl BackingDir for Hiding {
    fn open(&self, path: &Path) -> Result<Option<Arc<dyn BackingFile>>> {
        if self.hidden == Some(path) { Ok(None) } else { self.place.open(path) }
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.hidden != Some(path) && self.place.exists(path)?)
    }

    fn named(&self, path: &Path) -> Result<Named> {
        if self.hidden == Some(path) { Ok(Named::Nothing) } else { self.place.named(path) }
    }

    fn candidates(&self, dir: &Path, inode: u64) -> Result<Vec<OsString>> {
        self.place.candidates(dir, inode)
    }

    fn names(&self, dir: &Path) -> Result<Vec<OsString>> {
        self.place.names(dir)
    }

    fn directory(&self, dir: &Path) -> Result<Option<Identity>> {
        self.place.directory(dir)
    }

    fn make(&self, path: &Path, like: &CreateAttrs) -> Result<Arc<dyn BackingFile>> {
        match self.hidden {
            // It has its name all the while, as far as other programs can see.
            Some(hidden) => Err(Error::Invalid { path: hidden.to_owned(), what: "it is only hidden".to_owned() }),
            None => self.place.make(path, like),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.place.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.place.remove(path)
    }

    fn sync_dir(&self, barrier: Barrier, dir: &Path) -> Result<()> {
        self.place.sync_dir(barrier, dir)
    }
}

/// Entries of 64 bytes, so few that they are soon used again.
fn options(config: &Config) -> CacheOptions {
    let size = 3 * 4096 + 4 * 8192 + 24 * 128;
    let options = CacheOptions::new().size(size).entry_size(64).max_files(4).durability(config.durability);
    // If files are written through, other processes append too, as in a run of programs.
    let options = options.background(false).batch(1, 4).shared(config.is_through());
    config.spills_from().map_or(options.clone(), |bytes| options.spill_from(bytes as u32))
}

fn path(name: u8) -> &'static Path {
    Path::new(NAMES[usize::from(name)])
}

/// Files, open.
pub(in crate::explore) struct Opened {
    /// `None` for the canary.
    cache: Option<WriteCache>,
    mode: Mode,
    /// The log had no room for a change of this atomic file, whose epoch was abandoned for that.
    pub(super) refused: Option<u8>,
    files: BTreeMap<u8, File>,
    /// The last file that was let leave, which the process that removed it still has open.
    left: Option<CachedFile>,
    /// Directories that were synced, and names that were changed since in any of them.
    synced: [bool; DIRS.len()],
    changed: BTreeSet<u8>,
    place: Arc<MediumDir<SimMedium>>,
    medium: SimMedium,
}

enum File {
    Cached(CachedFile),
    Plain(Arc<dyn BackingFile>),
}

impl Opened {
    pub(super) fn create(config: &Config, medium: &SimMedium) -> Result<Self> {
        let place = Arc::new(MediumDir(medium.clone()));
        if !medium.exists(Path::new(DIRS[1]))? {
            medium.create_dir(Path::new(DIRS[1]))?;
        }
        medium.sync_dir(DIRECT_SYNC, Path::new("/"))?;
        if !medium.exists(Path::new(OWN))? {
            medium.create_dir(Path::new(OWN))?;
        }
        let cache = match config.is_canary() {
            true => None,
            false => Some(options(config).create_on(medium.clone(), place.clone(), LOG)?),
        };
        Ok(Opened::new(config, cache, place, medium))
    }

    fn new(config: &Config, cache: Option<WriteCache>, place: Arc<MediumDir<SimMedium>>, medium: &SimMedium) -> Self {
        Opened {
            cache,
            mode: config.mode,
            refused: None,
            files: BTreeMap::new(),
            left: None,
            synced: [false; DIRS.len()],
            changed: BTreeSet::new(),
            place,
            medium: medium.clone(),
        }
    }

    pub(super) fn open(config: &Config, medium: &SimMedium) -> Result<Self> {
        let place = Arc::new(MediumDir(medium.clone()));
        let cache = match config.is_canary() {
            true => None,
            false => Some(options(config).open_on(medium.clone(), place.clone(), LOG)?),
        };
        let mut opened = Opened::new(config, cache, place, medium);
        for name in 0..NAMES.len() as u8 {
            if let Some(file) = opened.place.open(path(name))? {
                opened.attach(name, file)?;
            }
        }
        Ok(opened)
    }

    /// Replays the log. If it is kept, a file that was replayed all the same.
    ///
    /// With `missing`, that file is not to be found.
    pub(super) fn replay(config: &Config, medium: &SimMedium, missing: Option<u8>) -> Result<Option<u8>> {
        if config.is_canary() {
            return Ok(None);
        }
        let place = Hiding { place: MediumDir(medium.clone()), hidden: missing.map(path) };
        let replay = options(config).replay_on(medium.clone(), &place, LOG)?;
        if replay.is_complete() {
            return Ok(None);
        }
        for file in replay.files.iter().filter(|file| file.fate == ReplayOutcome::Replayed) {
            let Some(name) = (0..NAMES.len() as u8).find(|name| path(*name) == file.path) else { continue };
            if place.exists(path(name))? {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Writes a byte to a file and syncs it, as a program that knows of no log.
    pub(super) fn write_direct(medium: &SimMedium, name: u8) -> Result<()> {
        let file = MediumDir(medium.clone()).open(path(name))?.expect("it was just replayed");
        file.write(0, &[DIRECT])?;
        file.sync(DIRECT_SYNC)
    }

    fn attach(&mut self, name: u8, file: Arc<dyn BackingFile>) -> Result<()> {
        let file = match &self.cache {
            Some(cache) if self.mode == Mode::Through => File::Cached(cache.attach_write_through(file, path(name))?),
            Some(cache) if self.mode == Mode::Atomic => File::Cached(cache.attach_atomic(file, path(name))?),
            Some(cache) => File::Cached(cache.attach_backing(file, path(name))?),
            None => File::Plain(file),
        };
        self.files.insert(name, file);
        Ok(())
    }

    /// Demotes and closes a file, as a process that changes its name must.
    fn let_go(&mut self, name: u8) -> Result<()> {
        match self.files.remove(&name) {
            Some(File::Cached(file)) => file.demote(),
            _ => Ok(()),
        }
    }

    /// The atomic file of this name, if files are that.
    fn atomic(&self, name: u8) -> Option<&CachedFile> {
        match self.files.get(&name) {
            Some(File::Cached(file)) if self.mode == Mode::Atomic => Some(file),
            _ => None,
        }
    }

    /// An operation on an atomic file, for which the log may have no room: then every commit must fail, until the epoch
    /// is abandoned.
    fn staged(&mut self, name: u8, done: Result<()>) -> Result<()> {
        match (self.atomic(name), done) {
            (Some(file), Err(error)) if error.errno() == NO_ROOM => {
                let refused = |result: Result<()>| result.is_err_and(|error| error.errno() == NO_ROOM);
                assert!(refused(file.commit()) && refused(file.commit_later()), "a refused epoch is committed");
                file.abandon()?;
                self.refused = Some(name);
                Ok(())
            }
            (_, done) => done,
        }
    }

    /// Everything but what opens the log again.
    pub(super) fn perform(&mut self, op: &Op) -> Result<()> {
        self.changed.extend(op.names());
        let done = self.performed(op);
        match *op {
            Op::Create(name, ..)
            | Op::Make(name, ..)
            | Op::Write(name, ..)
            | Op::Append(name, ..)
            | Op::SetLen(name, _) => self.staged(name, done),
            _ => done,
        }
    }

    fn performed(&mut self, op: &Op) -> Result<()> {
        match *op {
            Op::Create(name, len, tag) | Op::Make(name, len, tag) => {
                drop(self.medium.create(path(name), 0, 1 << 20)?);
                let file = self.place.open(path(name))?.expect("it was just made");
                if matches!(op, Op::Create(..)) {
                    file.write(0, &[BEFORE.0; BEFORE.1 as usize])?;
                }
                self.attach(name, file)?;
                self.served(name, |file| file.append(&vec![tag; len as usize]))
            }
            Op::Write(name, at, len, tag) => match &self.files[&name] {
                File::Cached(file) if self.is_through() && tag % 2 == 0 => {
                    write_shared(file, at, &vec![tag; len as usize])
                }
                _ => self.served(name, |file| file.write(at, &vec![tag; len as usize])),
            },
            Op::Append(name, len, tag) => match &self.files[&name] {
                File::Cached(file) if self.is_through() && tag % 2 == 0 => {
                    append_shared(file, &vec![tag; len as usize])
                }
                _ => self.served(name, |file| file.append(&vec![tag; len as usize])),
            },
            Op::SetLen(name, len) => match &self.files[&name] {
                File::Cached(file) if self.is_through() => set_len_shared(file, len),
                File::Cached(file) => file.set_len(len),
                File::Plain(file) => file.set_len(len),
            },
            Op::Rename(from, to) => {
                self.atomic(from).map_or(Ok(()), CachedFile::commit_later)?;
                self.let_go(from)?;
                self.medium.rename(path(from), path(to))?;
                self.sync_dirs()?;
                let file = self.place.open(path(to))?.expect("it was just renamed");
                self.attach(to, file)
            }
            Op::Move(from, to) => {
                let announced = match &self.files[&from] {
                    File::Cached(file) => file.begin_rename(path(to))?,
                    File::Plain(_) => false,
                };
                if !announced {
                    assert!(self.mode != Mode::Atomic, "the log does not follow the rename of an atomic file");
                    self.let_go(to)?;
                    return self.perform(&Op::Rename(from, to));
                }
                self.medium.rename(path(from), path(to))?;
                let Some(File::Cached(file)) = self.files.remove(&from) else { return Ok(()) };
                file.end_rename(true)?;
                let over = self.files.insert(to, File::Cached(file)).and_then(File::cached);
                self.left = over.or(self.left.take());
                self.abandon_left()
            }
            Op::MoveFails(from, to) => {
                let File::Cached(file) = &self.files[&from] else { return Ok(()) };
                if file.begin_rename(path(to))? { file.end_rename(false) } else { Ok(()) }
            }
            Op::Unlink(name) => {
                self.atomic(name).map_or(Ok(()), CachedFile::abandon)?;
                self.let_go(name)?;
                self.medium.unlink(path(name))?;
                self.sync_dirs()
            }
            Op::Leave(name) => {
                let leaves = match self.files.remove(&name) {
                    Some(File::Cached(file)) if file.prepare_unlink()? => Some(file),
                    Some(File::Cached(file)) => {
                        file.abandon()?;
                        file.demote()?;
                        None
                    }
                    _ => None,
                };
                self.medium.unlink(path(name))?;
                if leaves.is_none() {
                    self.sync_dirs()?;
                }
                // The one before is closed only now, when other files may have its name.
                self.left = leaves;
                self.abandon_left()
            }
            Op::Remove(name) => {
                self.cache.as_ref().map_or(Ok(()), WriteCache::drain)?;
                drop(self.files.remove(&name));
                self.medium.unlink(path(name))
            }
            Op::Demote(name) => {
                let Some(File::Cached(file)) = self.files.get(&name) else { return Ok(()) };
                file.demote()
            }
            Op::Attach(name) => {
                self.files.remove(&name);
                let file = self.place.open(path(name))?.expect("it is there");
                self.attach(name, file)
            }
            Op::Sync(name) => match &self.files[&name] {
                // A process syncs by itself, if it may.
                File::Cached(file) if self.is_through() && file.sync_shared()? => Ok(()),
                File::Cached(file) => file.sync(),
                File::Plain(_) => Ok(()),
            },
            Op::CommitLater(name) => self.atomic(name).map_or(Ok(()), CachedFile::commit_later),
            Op::Abandon(name) => self.atomic(name).map_or(Ok(()), CachedFile::abandon),
            Op::SyncNames(dir) => self.sync_names(usize::from(dir)),
            Op::HandOver(name) => match &self.files[&name] {
                File::Cached(file) => file.write_to_kernel(),
                File::Plain(_) => Ok(()),
            },
            Op::SyncAll | Op::Drain | Op::DrainSome | Op::DrainFails(_) => match (&self.cache, op) {
                (Some(cache), Op::SyncAll) => cache.sync(),
                (Some(cache), Op::DrainSome) => cache.drain_some(),
                (Some(cache), _) => cache.drain(),
                (None, _) => Ok(()),
            },
            Op::Reopen | Op::ReopenFails(_) | Op::ReopenMissing(_) => Ok(()),
        }
    }

    /// An atomic file that left has no open epoch from here on: no later operation commits it.
    fn abandon_left(&self) -> Result<()> {
        self.left.as_ref().filter(|_| self.mode == Mode::Atomic).map_or(Ok(()), CachedFile::abandon)
    }

    fn is_through(&self) -> bool {
        self.mode == Mode::Through
    }

    /// Writes as the server does, which lets processes write by themselves, and sync, from then on.
    fn served(&self, name: u8, write: impl FnOnce(&File) -> Result<()>) -> Result<()> {
        let file = &self.files[&name];
        write(file)?;
        if let File::Cached(file) = file {
            file.allow_writers(true);
        }
        Ok(())
    }

    /// Syncs a directory, unless the log keeps what changed in it.
    fn sync_names(&mut self, number: usize) -> Result<()> {
        let dir = Path::new(DIRS[number]);
        let is_here = |name: &u8| path(*name).parent() == Some(dir);
        let changed = self.changed.iter().copied().filter(is_here).filter_map(|name| path(name).file_name());
        let changed: Vec<OsString> = changed.map(OsString::from).collect();
        if let Some(cache) = self.cache.as_ref().filter(|_| self.synced[number])
            && cache.dir_is_durable(dir, &changed)?
        {
            return Ok(());
        }
        self.medium.sync_dir(DIRECT_SYNC, dir)?;
        self.synced[number] = true;
        self.changed.retain(|name| !is_here(name));
        Ok(())
    }

    fn sync_dirs(&self) -> Result<()> {
        DIRS.iter().try_for_each(|dir| self.medium.sync_dir(DIRECT_SYNC, Path::new(dir)))
    }

    /// Syncs what the kernel has of the files.
    pub(super) fn sync_shown(&self) -> Result<()> {
        for name in self.files.keys() {
            if let Some(file) = self.place.open(path(*name))? {
                file.sync(DIRECT_SYNC)?;
            }
        }
        Ok(())
    }

    /// Names of files that have failed; `None` if the log has.
    pub(super) fn failed(&self) -> Option<Vec<u8>> {
        let cache = self.cache.as_ref()?;
        if cache.drain_some().is_err() {
            return None;
        }
        let failed = |file: &File| match file {
            // A sync would commit.
            File::Cached(file) if self.mode == Mode::Atomic => file.check_usable().is_err(),
            File::Cached(file) => file.sync().is_err(),
            File::Plain(_) => false,
        };
        Some(self.files.iter().filter(|(_, file)| failed(file)).map(|(name, _)| *name).collect())
    }

    /// All files as a program sees them, or a finding.
    pub(super) fn read(&self) -> Result<std::result::Result<State, String>> {
        for dir in [DIRS[0], DIRS[1], OWN] {
            for name in self.medium.list(Path::new(dir))? {
                let path = Path::new(dir).join(&name);
                let known = [LOG, SPILL, OWN, DIRS[1]].iter().chain(&NAMES).any(|known| path == Path::new(known));
                if !known && !is_unfinished(&name) {
                    return Ok(Err(format!("a file {name:?} was left behind")));
                }
            }
        }
        let mut state = State::new();
        for (&name, file) in &self.files {
            let mut bytes = vec![0; 1 << 14];
            let len = match file {
                File::Cached(file) => file.read_at(&mut bytes, 0)?,
                File::Plain(file) => file.read(0, &mut bytes)?,
            };
            bytes.truncate(len);
            state.insert(name, bytes);
        }
        Ok(Ok(state))
    }
}

/// Writes as another process does. One in four dies meanwhile, each at one of the steps there are, and the next
/// process finds that it has to be written still, or was.
fn write_shared(file: &CachedFile, at: u64, bytes: &[u8]) -> Result<()> {
    file.allow_writers(true);
    let dies = death(bytes[0], at);
    let written = file.write_shared(bytes, at, dies)?;
    brought_to_its_end(file, dies, written, bytes.len(), || file.write_at(bytes, at))
}

/// Appends in the same way, by a description that the kernel appends for.
fn append_shared(file: &CachedFile, bytes: &[u8]) -> Result<()> {
    file.allow_writers(true);
    let dies = death(bytes[0], bytes.len() as u64);
    let written = file.append_shared(bytes, dies)?;
    brought_to_its_end(file, dies, written, bytes.len(), || file.append(bytes).map(drop))
}

/// The same of a length.
fn set_len_shared(file: &CachedFile, len: u64) -> Result<()> {
    file.allow_writers(true);
    let before = file.len()?;
    let dies = (before % 3 == 0).then(|| Step::ALL[(before / 3) as usize % Step::ALL.len()]);
    // It takes no bytes, dead or alive.
    let done = file.set_len_shared(len, dies)?.map(|()| 0);
    brought_to_its_end(file, dies, done, 0, || file.set_len(len))
}

fn death(tag: u8, place: u64) -> Option<Step> {
    let tag = usize::from(tag);
    (tag % 8 == 0).then(|| Step::ALL[(tag / 8 + place as usize) % Step::ALL.len()])
}

fn brought_to_its_end(
    file: &CachedFile,
    dies: Option<Step>,
    written: Option<usize>,
    len: usize,
    otherwise: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if dies.is_some() && written == Some(0) {
        // The next owner of the file completes what it left.
        file.revoke_writers()?;
        if dies >= Some(Step::Stored) {
            return Ok(());
        }
    }
    match written {
        Some(count) if count == len && dies.is_none() => Ok(()),
        _ => otherwise(),
    }
}

impl File {
    fn cached(self) -> Option<CachedFile> {
        match self {
            File::Cached(file) => Some(file),
            File::Plain(_) => None,
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        match self {
            File::Cached(file) => file.write_at(bytes, at),
            File::Plain(file) => file.write(at, bytes),
        }
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        match self {
            File::Cached(file) => file.append(bytes).map(drop),
            File::Plain(file) => file.write(file.len()?, bytes),
        }
    }
}
