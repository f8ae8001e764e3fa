//! The files that the log knows: the open ones, and the lines of the file table that give an entry's file number its
//! meaning.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::file::{Attach, Managed, Mode, exclusive, shared};
use super::format::{MAX_PATH, OwnStores, PARENTS, TableLine};
use super::names::{Said, parent};
use super::rename::is_named;
use super::synced_dirs::SyncedDirs;
use super::{Cache, barriers, locked};
use crate::error::{Error, Result};
use crate::storage::{Barrier, CreateAttrs, Identity, Medium};
use crate::write_cache::backing::{BackingFile, Named};

/// Where a file's line is, and how often it was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    slot: u32,
    pub(super) seq: u64,
}

impl Line {
    /// The line as it is written next.
    pub(super) fn next(self) -> Self {
        Line { seq: self.seq + 1, ..self }
    }
}

/// The files of an open cache.
#[derive(Default)]
pub(super) struct Registry {
    files: HashMap<Key, Arc<Managed>>,
    by_uid: HashMap<u64, Arc<Managed>>,
    /// Lines nobody has, with the sequence number that each had last.
    free: Vec<Line>,
    pub(super) synced_dirs: SyncedDirs,
    /// The last number that was given, to a file or to a rename.
    pub(super) last_uid: u64,
}

type Key = (u64, u64, u64, u64);

fn key(identity: &Identity) -> Key {
    (identity.device, identity.inode, identity.generation, identity.birth)
}

impl Registry {
    pub(super) fn new(lines: u32) -> Self {
        let free = (0..lines).rev().map(|slot| Line { slot, seq: 0 }).collect();
        Registry { free, ..Registry::default() }
    }

    pub(super) fn of(&self, uid: u64) -> Option<Arc<Managed>> {
        self.by_uid.get(&uid).cloned()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub(super) fn all(&self) -> Vec<Arc<Managed>> {
        self.files.values().cloned().collect()
    }

    /// The first of them that is what is asked for.
    pub(super) fn find(&self, is_it: impl Fn(&Arc<Managed>) -> bool) -> Option<Arc<Managed>> {
        self.files.values().find(|file| is_it(file)).cloned()
    }
}

impl<M: Medium> Cache<M> {
    /// A handle of a file, which may be known already.
    pub(crate) fn attach(&self, slow: Arc<dyn BackingFile>, path: &Path, how: Attach) -> Result<Arc<Managed>> {
        let Attach { mode, commit_log } = how;
        self.handle_state.writable()?;
        if mode == Mode::Atomic && self.ring.shared().is_some() {
            let what = "atomic files need a log that no other process appends to; open the log without `shared`";
            return Err(Error::Invalid { path: path.to_owned(), what: what.to_owned() });
        }
        if path.as_os_str().len() > MAX_PATH || !path.is_absolute() {
            let what = format!(
                "the log takes only absolute paths of at most {MAX_PATH} bytes; open this file without \
                                the write cache"
            );
            return Err(Error::Invalid { path: path.to_owned(), what });
        }
        let identity = slow.identity()?;
        if identity == self.identity {
            let what = "this file is the write-cache log itself; pass another file".to_owned();
            return Err(Error::Invalid { path: path.to_owned(), what });
        }
        // A replay would find nothing, or another file, and there would be no way to make its name durable.
        let is_there = match self.place.named(path)? {
            // The caller has the file open, so no other one has its inode number.
            Named::File(found) if found.birth != 0 => found.device == identity.device && is_named(&identity, &found),
            _ => self.place.open(path)?.map(|there| there.identity()).transpose()? == Some(identity),
        };
        let known = {
            let mut registry = locked(&self.registry);
            let known = registry.files.get(&key(&identity)).cloned();
            if known.is_none() && !is_there {
                let what = "the path no longer names the open file; open the file again by its path".to_owned();
                return Err(Error::Invalid { path: path.to_owned(), what });
            }
            let file = match &known {
                Some(file) if file.mode() != mode => {
                    let what = "it is already attached with another write mode (cached, write-through or atomic); use \
                                one mode for all handles of a file"
                        .to_owned();
                    return Err(Error::Invalid { path: path.to_owned(), what });
                }
                Some(file) => file,
                None => {
                    let file = Arc::new(Managed::new(slow.clone(), identity, path.to_owned(), slow.len()?, mode));
                    registry.files.entry(key(&identity)).or_insert(file)
                }
            };
            file.handles.fetch_add(1, Ordering::AcqRel);
            file.clone()
        };
        let is_atomic = mode == Mode::Atomic;
        let ready = if is_atomic { self.allow_epochs().and_then(|()| self.finish_close(&known)) } else { Ok(()) };
        if let Err(error) = ready.and_then(|()| self.open_stream(&known, commit_log)) {
            self.detach(&known);
            return Err(error);
        }
        Ok(known)
    }

    /// One handle less. A file without handles and without entries is forgotten.
    pub(crate) fn detach(&self, file: &Arc<Managed>) {
        if self.handle_state.ours().is_err() {
            return;
        }
        let is_last = {
            let _registry = locked(&self.registry);
            let is_last = file.handles.fetch_sub(1, Ordering::AcqRel) == 1;
            if is_last {
                self.begin_close(file);
            }
            is_last
        };
        if !is_last {
            return;
        }
        // Without the lock, for what a process left may have to be mended; until then the file is not forgotten. A
        // handle that comes meanwhile lets them in again.
        if let Err(error) = self.revoke_writers(file) {
            tracing::error!(path = %file.path().display(), %error, "cannot finish the writes of other processes; they \
                                                                    stay in the log until a replay");
        }
        if let Err(error) = self.finish_close(file) {
            tracing::error!(path = %file.path().display(), %error, "cannot take back the uncommitted changes of a \
                                                                    closed file; a replay does");
        }
        self.see_off(file);
        self.forget_if_done(&mut locked(&self.registry), file);
    }

    /// Makes it durable that a file was removed, if it was, before its line goes: only by that is it known, where a
    /// crash brings it back, that it makes way for a new one of its name.
    pub(super) fn see_off(&self, file: &Managed) {
        let unsure = file.leaving.load(Ordering::Acquire) && !file.gone.load(Ordering::Acquire);
        if !unsure
            || file.has_failed()
            || self.last(file) > self.ring.tail()
            || !file.slow.is_removed().unwrap_or(false)
        {
            return;
        }
        match file.dirs().iter().try_for_each(|dir| self.place.sync_dir(barriers::REMOVED, dir)) {
            Ok(()) => file.gone.store(true, Ordering::Release),
            // The next new file there is told.
            Err(error) => tracing::warn!(path = %file.path().display(), %error, "cannot sync the directory of a \
                                                                                 removed file; the removal is not \
                                                                                 durable yet"),
        }
    }

    /// Forgets a file that nobody has open and that the log has nothing of.
    pub(super) fn forget_if_done(&self, registry: &mut Registry, file: &Arc<Managed>) {
        // It may have been forgotten, and attached anew.
        let is_known = registry.files.get(&key(&file.identity)).is_some_and(|known| Arc::ptr_eq(known, file));
        let done = is_known
            && file.handles.load(Ordering::Acquire) == 0
            && file.turn().is_none()
            && !file.has_failed()
            && file.last.load(Ordering::Acquire) <= self.ring.tail();
        if done {
            self.close_stream(file);
            registry.files.remove(&key(&file.identity));
            registry.by_uid.remove(&file.uid.load(Ordering::Acquire));
            if !file.gone.load(Ordering::Acquire) {
                // Who removes it from now on need not say so. What else had its name before it, no crash brings back,
                // if its own is durable.
                let paths = file.paths();
                let synced_dirs = paths.len() == 1 && !file.new.load(Ordering::Acquire);
                for path in paths {
                    let name = path.file_name().unwrap_or_default();
                    registry.synced_dirs.hold(parent(&path), name, Some(file.identity).filter(|_| synced_dirs));
                }
            }
            // Without a handle nobody else asks for the line.
            registry.free.extend(locked(&file.line).take());
        }
    }

    /// Gives a file its number before its first change, for a caller that can make room in the table if it must.
    pub(crate) fn take_line(&self, file: &Managed) -> Result<()> {
        self.handle_state.writable()?;
        file.check_usable()?;
        let _gate = shared(&file.gate);
        if file.is_demoted() { Ok(()) } else { self.number(file).map(drop) }
    }

    /// The number for a file's entries; the first time, after its line is durable.
    pub(super) fn number(&self, file: &Managed) -> Result<u64> {
        match file.uid.load(Ordering::Acquire) {
            0 => self.give_number(file),
            uid => Ok(uid),
        }
    }

    #[cold]
    fn give_number(&self, file: &Managed) -> Result<u64> {
        let mut own = locked(&file.line);
        let uid = file.uid.load(Ordering::Acquire);
        if uid != 0 {
            return Ok(uid);
        }
        let (line, uid) = {
            if locked(&self.registry).free.is_empty() {
                // Files without handles give theirs back once they are drained.
                self.drain_to(self.ring.head())?;
            }
            let mut registry = locked(&self.registry);
            let line = registry.free.pop().ok_or_else(|| {
                // Like a process that has all its descriptors open.
                Error::io("find a free line in the log's file table for", &file.path(), Errno::NFILE)
            })?;
            registry.last_uid += 1;
            (line, registry.last_uid)
        };
        let line = line.next();
        match self.be_found(file) {
            Ok(parents) => exclusive(&file.names).parents = parents,
            Err(error) => {
                self.fail(file, &error);
                locked(&self.registry).free.push(line);
                return Err(error);
            }
        }
        // The copy that does not count is written over, and must be whole before the other one is: that one serves
        // only if this one is damaged later, so it may become durable whenever it does. Where durability is left to a
        // sync, so is that of a number's meaning: entries whose number means nothing were not synced.
        let whole = || if self.ring.is_per_write() { self.ring.persist(barriers::TABLE) } else { Ok(()) };
        self.begin_stores(file)?;
        self.put_lines(file, line, uid, whole)?;
        *own = Some(line);
        file.is_named_by(self.ring.shared_state().ask_for_flush());
        let mut registry = locked(&self.registry);
        if let Some(file) = registry.files.get(&key(&file.identity)).cloned() {
            registry.by_uid.insert(uid, file);
        }
        file.uid.store(uid, Ordering::Release);
        Ok(uid)
    }

    /// A replay must find the file, and in it what was there before it had a log: its name, its length and its
    /// contents may be as new as this call. What is new and has nothing in it a replay can make again, if it finds
    /// the directory. Returns the directories above.
    fn be_found(&self, file: &Managed) -> Result<[u64; PARENTS]> {
        match self.is_new(file)? {
            Some(like) => {
                self.be_certain(file)?;
                let _ = file.like.set(like);
                file.new.store(true, Ordering::Release);
            }
            None => {
                file.slow.sync(barriers::BEFORE)?;
                self.place.sync_dir(barriers::NAME, &file.dir())?;
            }
        }
        self.parents(&file.path())
    }

    /// What a file is like that a replay could make again with nothing but what the log is going to have of it. Only
    /// what is written through, or atomic: nobody else writes to it then.
    fn is_new(&self, file: &Managed) -> Result<Option<CreateAttrs>> {
        let told_apart = file.identity.generation != 0 && file.identity.birth != 0;
        let is_ours = file.write_through || file.epoch.is_some();
        // A file that is made again has another inode number, and no commit log.
        if is_ours && !file.is_streamed() && told_apart && file.slow.len()? == 0 {
            file.slow.create_attrs()
        } else {
            Ok(None)
        }
    }

    /// Makes it durable that the directory of a new file is there, and that nothing else has its name, unless both
    /// are known to be.
    fn be_certain(&self, file: &Managed) -> Result<()> {
        let path = file.path();
        let (dir, name) = (parent(&path), path.file_name().unwrap_or_default());
        let found = self.place.directory(dir)?;
        if locked(&self.registry).synced_dirs.is_free(dir, found, name) {
            return Ok(());
        }
        self.look_at_names(dir, Some(name), barriers::NAME)
    }

    /// Makes it durable that a directory is there, and which names in it are free; `own` is that of a file which is
    /// about to have a line.
    pub(super) fn look_at_names(&self, dir: &Path, own: Option<&OsStr>, barrier: Barrier) -> Result<()> {
        let found = self.place.directory(dir)?;
        // What is there before or after may not be removed durably when it is removed. Of those that have a line,
        // that tells.
        let mut taken: HashSet<OsString> = self.place.names(dir)?.into_iter().collect();
        self.place.sync_dir(barrier, dir)?;
        taken.extend(self.place.names(dir)?);
        let mut registry = locked(&self.registry);
        let told = |other: &&Arc<Managed>| other.uid.load(Ordering::Acquire) != 0 && !other.is_demoted();
        for path in registry.files.values().filter(told).flat_map(|other| other.paths()) {
            if parent(&path) == dir {
                taken.remove(path.file_name().unwrap_or_default());
            }
        }
        if let Some(own) = own {
            taken.remove(own);
        }
        registry.synced_dirs.note(dir, found, taken);
        Ok(())
    }

    /// Names in the directory of a file are about to change, of which the log keeps nothing.
    pub(super) fn be_uncertain(&self, file: &Managed) {
        let mut registry = locked(&self.registry);
        file.dirs().iter().for_each(|dir| registry.synced_dirs.forget(dir));
    }

    /// Makes the names of files durable that a replay would have to make again, and has the log say so, before it can
    /// do without what it has of them. They are synced. A file that fails says so itself.
    pub(super) fn name_new<'a>(&self, files: impl Iterator<Item = &'a Managed>) -> Result<()> {
        let new: Vec<(&Managed, Option<u64>)> =
            files.filter(|file| file.new.load(Ordering::Acquire)).map(|file| (file, file.moved())).collect();
        let named = self.sync_dirs_of(new.iter().map(|(file, _)| *file), |_| barriers::NAMED);
        if named.is_empty() {
            return Ok(());
        }
        for (file, moved) in new {
            if let Some(number) = moved.filter(|_| named.iter().any(|named| std::ptr::eq(*named, file))) {
                file.is_moved_for_good(number);
            }
        }
        // One after the other: nobody who has one asks for the drain, and whoever is here has that.
        for file in &named {
            let mut own = locked(&file.line);
            file.new.store(false, Ordering::Release);
            if let Some(line) = own.as_mut() {
                line.seq += 1;
                self.put_line(file, *line, file.uid.load(Ordering::Acquire), line.seq)?;
            }
        }
        self.ring.persist(barriers::NEW_NO_MORE).map_err(|error| self.poison(error))?;
        for file in &named {
            let own = locked(&file.line);
            if let Some(line) = *own {
                self.put_second(file, line, file.uid.load(Ordering::Acquire))?;
            }
        }
        self.ring.medium.order();
        Ok(())
    }

    /// The directories that a path leads through, from the last: those of its file system.
    pub(super) fn parents(&self, path: &Path) -> Result<[u64; PARENTS]> {
        let mut parents = [0; PARENTS];
        let mut device = None;
        for (parent, dir) in parents.iter_mut().zip(path.ancestors().skip(1)) {
            let Some(found) = self.place.directory(dir)? else { break };
            if *device.get_or_insert(found.device) != found.device {
                break;
            }
            *parent = found.inode;
        }
        Ok(parents)
    }

    /// Notes, durably, that the file's last name is about to be removed. Its entries stay, for the name may be back
    /// after a crash; if it is not, a replay does without the file. False if that is for the caller to see to, by
    /// demoting it: the log has nothing of it, or the next file with its inode number could be taken for it.
    pub(crate) fn prepare_unlink(&self, file: &Managed) -> Result<bool> {
        self.handle_state.writable()?;
        file.check_usable()?;
        let mut own = locked(&file.line);
        let Some(line) = *own else { return Ok(false) };
        if file.is_demoted() || file.identity.generation == 0 {
            return Ok(false);
        }
        if file.leaving.load(Ordering::Acquire) {
            // Its line says so, durably: it was stored under this lock, and had that not succeeded nothing would be
            // written any more.
            return Ok(true);
        }
        let line = line.next();
        file.leaving.store(true, Ordering::Release);
        // Also where durability is left to a sync: the removal may be durable whenever the kernel likes, and of what
        // was synced before the log must not say then that it is missing.
        let durable = || self.ring.persist(barriers::LEAVING);
        self.put_lines(file, line, file.uid.load(Ordering::Acquire), durable)?;
        *own = Some(line);
        Ok(true)
    }

    /// Stores both copies of a line, the second after `whole` made sure of the first.
    pub(super) fn put_lines(
        &self,
        file: &Managed,
        line: Line,
        uid: u64,
        whole: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.put_line(file, line, uid, line.seq)?;
        whole().map_err(|error| self.poison(error))?;
        self.put_second(file, line, uid)?;
        self.ring.medium.order();
        Ok(())
    }

    /// Stores the copy that nothing makes sure of. Only that one may say what own stores left: see `own_stores`.
    fn put_second(&self, file: &Managed, line: Line, uid: u64) -> Result<()> {
        let late = file.late.load(Ordering::Acquire);
        match OwnStores::decode(late) {
            OwnStores::Left(_) => self.put_line_of(file, line.next(), uid, line.seq + 1, late),
            _ => self.put_line(file, line, uid, line.seq + 1),
        }
    }

    /// Stores one copy of a line: what is known of its file now, of which nothing changes but under the lock of its
    /// line.
    pub(super) fn put_line(&self, file: &Managed, line: Line, uid: u64, copy: u64) -> Result<()> {
        let late = match file.late.load(Ordering::Acquire) {
            left if matches!(OwnStores::decode(left), OwnStores::Left(_)) => OwnStores::UnderWay.encode(),
            late => late,
        };
        self.put_line_of(file, line, uid, copy, late)
    }

    /// The same, with what is told of own stores.
    pub(super) fn put_line_of(&self, file: &Managed, line: Line, uid: u64, copy: u64, late: u64) -> Result<()> {
        let Said { path, parents, named, before } = file.said();
        let entry = TableLine {
            uid,
            seq: line.seq,
            identity: file.identity,
            replayed: false,
            leaving: file.leaving.load(Ordering::Acquire),
            new: file.like.get().copied().filter(|_| file.new.load(Ordering::Acquire)),
            parents,
            path,
            named,
            before,
            late,
        };
        let written = entry.write(&self.ring.file, self.ring.checksum_seed, line.slot, (copy % 2) as usize);
        written.map_err(|error| self.poison(error))
    }

    /// Whether the tail has passed all that the log had of a file.
    pub(crate) fn is_settled(&self, file: &Managed) -> bool {
        self.last(file) <= self.ring.tail()
    }
}
