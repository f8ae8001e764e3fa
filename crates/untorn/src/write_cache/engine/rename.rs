//! Renames. The log has both names before the rename, and an entry of it afterwards, so that a replay repeats a rename
//! that the file system lost. The tail passes that entry when the rename is durable.
//!
//! A file that has the new name already, by `link`, loses the old one by `unlink` instead. The log then says that the
//! file is put over itself: so a replay knows that it is to remove the old name where a crash left both.
//!
//! The replaced file, if there was one, is *leaving*, like a file that is about to be removed. The log names it even if
//! it knows nothing else of it: a replay puts the renamed file over that one, and over no other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::file::{Claim, Managed, exclusive, shared};
use super::format::{Kind, MAX_PATH, PARENTS};
use super::names::{Moving, parent};
use super::ring::Operation;
use super::{Cache, barriers, locked};
use crate::error::Result;
use crate::storage::{Barrier, Identity, Medium};
use crate::write_cache::backing::Named;

/// What has the name that a file is to get.
struct Target {
    identity: Option<Identity>,
    /// The same, if the log has, or may have, something of it.
    known: Option<Arc<Managed>>,
}

impl<M: Medium> Cache<M> {
    /// Notes, durably, that the file is about to be renamed. False if that is for the caller to see to, by demoting it.
    pub(crate) fn begin_rename(&self, file: &Managed, to: &Path) -> Result<bool> {
        self.handle_state.writable()?;
        file.check_usable()?;
        let from = file.path();
        let told_apart = file.identity.generation != 0 && file.identity.birth != 0;
        let fits = from.as_os_str().len() + to.as_os_str().len() <= MAX_PATH;
        if file.open_epoch().is_some() {
            // Also without a change: the file stays atomic whatever its name.
            self.number(file)?;
        }
        let has_line = file.uid.load(Ordering::Acquire) != 0;
        if !has_line || file.is_demoted() || !told_apart || !fits || !to.is_absolute() || to == &*from {
            return Ok(false);
        }
        if shared(&file.names).moving.as_ref().is_some_and(|moving| !moving.done) {
            // Somebody else is at it.
            return Ok(false);
        }
        if file.moved().is_some() {
            // A line has no room for three names.
            self.name_at_once(file)?;
        }
        let (target, parents) = match self.look_at_target(file, to) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(false),
            // The kernel may say the same of the rename, or something else.
            Err(error) => {
                tracing::debug!(to = %to.display(), %error, "cannot examine the target of a rename; the log does not \
                                                             follow it");
                return Ok(false);
            }
        };
        self.prepare_stream(file, to);
        if !self.announce(file, to, parents, &target)? {
            return Ok(false);
        }
        // Only then: what is to be replaced is missed by nobody if it was, and by that the log knows it.
        if let Some(known) = &target.known {
            exclusive(&known.names).replaced_from = Some(parent(&from).to_owned());
            if !self.prepare_unlink(known)? {
                self.end_rename(file, false)?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Puts both names into the line of a file, durably. False if it has none any more.
    fn announce(&self, file: &Managed, to: &Path, parents: [u64; PARENTS], target: &Target) -> Result<bool> {
        let mut own = locked(&file.line);
        let Some(line) = *own else { return Ok(false) };
        let number = {
            let mut registry = locked(&self.registry);
            registry.last_uid += 1;
            registry.last_uid
        };
        let moving = Moving {
            other: to.into(),
            parents,
            named: number,
            number,
            over: target.identity,
            done: false,
            logged: false,
        };
        exclusive(&file.names).moving = Some(moving);
        let line = line.next();
        // Also where durability is left to a sync: the rename may be durable whenever the kernel likes, and what was
        // synced before is then to be found by the new name.
        let durable = || self.ring.persist(barriers::MOVING);
        self.put_lines(file, line, file.uid.load(Ordering::Acquire), durable)?;
        *own = Some(line);
        Ok(true)
    }

    /// What has the name that the file is to get, and the directories above it; `None` if the file may not get it by
    /// way of the log.
    fn look_at_target(&self, file: &Managed, to: &Path) -> Result<Option<(Target, [u64; PARENTS])>> {
        let Some(target) = self.target(file, to)? else { return Ok(None) };
        let parents = self.parents(to)?;
        if parents[0] == 0 || !self.is_certain(file, to, &target)? {
            return Ok(None);
        }
        Ok(Some((target, parents)))
    }

    /// What has a name that the file is to get; `None` if the file may not get it by way of the log.
    fn target(&self, file: &Managed, to: &Path) -> Result<Option<Target>> {
        let found = match self.place.named(to)? {
            Named::Nothing => return Ok(Some(Target { identity: None, known: None })),
            Named::File(found) => found,
            Named::Other => return Ok(None),
        };
        if file.identity.device == found.device && is_named(&file.identity, &found) {
            return Ok(Some(Target { identity: Some(file.identity), known: None }));
        }
        let is_it = |known: &Arc<Managed>| known.identity.device == found.device && is_named(&known.identity, &found);
        let known = locked(&self.registry).find(is_it);
        let Some(known) = known.filter(|known| !known.is_demoted()) else {
            // Without a time of birth nothing would tell it from a later file of its inode number.
            return Ok((found.birth != 0).then_some(Target { identity: Some(found), known: None }));
        };
        if known.open_epoch().is_some() && !known.has_failed() {
            self.number(&known)?;
        }
        let busy = shared(&known.names).moving.as_ref().is_some_and(|moving| !moving.done);
        let has_line = known.uid.load(Ordering::Acquire) != 0;
        let is_here = &*known.path() == to && !std::ptr::eq(&*known, file);
        let fit = is_here && !busy && has_line && !known.has_failed();
        Ok(fit.then(|| Target { identity: Some(known.identity), known: Some(known) }))
    }

    /// Sees to it that no crash leaves anything at a name but what has it now, unless the log knows of it. False if
    /// somebody is changing that.
    fn is_certain(&self, file: &Managed, to: &Path, target: &Target) -> Result<bool> {
        if target.known.is_some() {
            // When it got its line, or this name, that was seen to.
            return Ok(true);
        }
        let (dir, name) = (parent(to), to.file_name().unwrap_or_default());
        let found = self.place.directory(dir)?;
        // The name that a file got by `link`, perhaps not durably, is free but for the file itself.
        let is_own = target.identity == Some(file.identity);
        let holder = target.identity.as_ref().filter(|_| !is_own);
        if locked(&self.registry).synced_dirs.is_held(dir, found, name, holder) {
            return Ok(true);
        }
        self.look_at_names(dir, is_own.then_some(name), barriers::TARGET)?;
        if let Some(holder) = holder {
            if !matches!(self.place.named(to)?, Named::File(now) if is_named(holder, &now)) {
                return Ok(false);
            }
            locked(&self.registry).synced_dirs.hold(dir, name, Some(*holder));
        }
        Ok(true)
    }

    /// A rename that was announced was done, or was not. Does nothing if none was.
    pub(crate) fn end_rename(&self, file: &Managed, done: bool) -> Result<()> {
        self.handle_state.writable()?;
        let Some(moving) = shared(&file.names).moving.clone().filter(|moving| !moving.done) else { return Ok(()) };
        if !done {
            return self.stayed(file, &moving);
        }
        exclusive(&file.names).is_moved();
        // Before the log says so, and with it before the tail passes that.
        self.move_stream(file);
        if file.is_demoted() {
            return Ok(());
        }
        file.check_usable()?;
        if !self.claim(1)? {
            // Files that failed have all the room.
            return self.name_at_once(file);
        }
        let claim = Claim::new(self, 1);
        let gate = shared(&file.gate);
        if file.is_demoted() {
            drop((gate, claim));
            return Ok(());
        }
        // A rename does not change the time of the bytes.
        let (uid, kind, value) = (file.uid.load(Ordering::Acquire), Kind::Move, moving.number);
        let operation = Operation { uid, kind, value, time: 0 };
        let first = self.log(file, claim, operation, &[])?;
        if !self.ring.is_per_write() {
            self.count_rename(file);
        }
        self.completed(first, 1);
        file.is_named_by(self.ring.shared_state().ask_for_flush());
        file.move_is_logged(moving.number);
        Ok(())
    }

    /// A rename was not done. What was to be replaced must not be missed by nobody any more before the log forgets
    /// what was to replace it.
    fn stayed(&self, file: &Managed, moving: &Moving) -> Result<()> {
        let over = |known: &Arc<Managed>| Some(known.identity) == moving.over && known.leaving.load(Ordering::Acquire);
        let known = locked(&self.registry).find(over);
        if let Some(known) = known {
            exclusive(&known.names).replaced_from = None;
            known.leaving.store(false, Ordering::Release);
            self.put_again(&known)?;
        }
        exclusive(&file.names).moving = None;
        self.put_again(file)
    }

    /// Has a file's line say what is known of it now, durably.
    fn put_again(&self, file: &Managed) -> Result<()> {
        let mut own = locked(&file.line);
        if let Some(line) = own.as_mut() {
            *line = line.next();
            let durable = || self.ring.persist(barriers::STAYED);
            self.put_lines(file, *line, file.uid.load(Ordering::Acquire), durable)?;
        }
        Ok(())
    }

    /// Makes the names of a file durable, where somebody waits for that.
    fn name_at_once(&self, file: &Managed) -> Result<()> {
        let drain = self.drain.hold();
        self.handle_state.writable()?;
        file.check_usable()?;
        if file.new.load(Ordering::Acquire) {
            drop(drain);
            return self.sync_file(file);
        }
        self.name_moved(std::iter::once(file));
        file.check_usable()
    }

    /// Makes renames durable, before the tail passes what says that they were done. A file that fails says so itself.
    pub(super) fn name_moved<'a>(&self, files: impl Iterator<Item = &'a Managed>) {
        // Before the first directory is synced: what is renamed later that sync does not make durable.
        let moved: Vec<(&Managed, u64)> = files.filter_map(|file| Some((file, file.moved()?))).collect();
        let into: Vec<PathBuf> = moved.iter().map(|(file, _)| file.dir()).collect();
        let of =
            |dir: &Path| if into.iter().any(|other| other == dir) { barriers::MOVED_TO } else { barriers::MOVED_FROM };
        let named = self.sync_dirs_of(moved.iter().map(|(file, _)| *file), of);
        for (file, number) in moved {
            if named.iter().any(|named| std::ptr::eq(*named, file)) {
                file.is_moved_for_good(number);
            }
        }
    }

    /// Syncs all directories in which files have, had or may have names, each once. The files for which that is done;
    /// the others fail.
    pub(super) fn sync_dirs_of<'a>(
        &self,
        files: impl Iterator<Item = &'a Managed>,
        barrier: impl Fn(&Path) -> Barrier,
    ) -> Vec<&'a Managed> {
        let mut dirs: BTreeMap<PathBuf, Vec<&Managed>> = BTreeMap::new();
        let mut all = Vec::new();
        for file in files {
            all.push(file);
            for dir in file.dirs() {
                dirs.entry(dir).or_default().push(file);
            }
        }
        for (dir, files) in dirs {
            if let Err(error) = self.place.sync_dir(barrier(&dir), &dir) {
                files.iter().for_each(|file| self.fail(file, &error));
                all.retain(|file| !files.iter().any(|failed| std::ptr::eq(*failed, *file)));
            }
        }
        all
    }
}

/// Whether a file is what was found by a name, of which the generation may not be known. The number of a device
/// changes over a boot.
pub(super) fn is_named(file: &Identity, found: &Identity) -> bool {
    let same = found.generation == 0 || file.generation == 0 || file.generation == found.generation;
    same && found.birth != 0 && (file.inode, file.birth) == (found.inode, found.birth)
}
