//! Renames and removals, of which the log is told before and afterwards.
//!
//! # Invariants
//!
//! 1. One runs at a time, and no file is attached meanwhile. So the log counts them in the order of the source, and the
//!    path of each managed file is the one that the source has.
//! 2. A replay looks for a file by its path. If the log cannot record a new one, everything that it has of the file is
//!    brought to the source first, and the log is put in front of it again under the new path.
//! 3. `link` and then `unlink` of the first name are a rename in two steps. A managed file goes on under the name that
//!    it got by `link`: the log records that as a rename, if it can. A file that got its other name otherwise is left
//!    plain until it is opened again.
//! 4. A directory that moves takes the paths of all files below it along: each is brought to the source first.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLockWriteGuard};

use rustix::fs::{FileType, RenameFlags, Stat};
use rustix::io::Errno;

use super::file::{Managed, Served, State};
use super::{Managing, errno};
use crate::serve::lock;
use crate::serve::nodes::{Key, key_of};

/// A file that gets another name.
pub(in crate::serve) struct Move {
    pub(in crate::serve) status: Stat,
    pub(in crate::serve) from: PathBuf,
    /// The file that has this name.
    pub(in crate::serve) over: Option<Stat>,
    pub(in crate::serve) to: PathBuf,
}

/// A file that cannot change meanwhile.
struct Held<'a> {
    file: &'a Managed,
    state: RwLockWriteGuard<'a, State>,
}

impl<'a> Held<'a> {
    fn new(file: &'a Managed) -> Self {
        Held { file, state: file.exclusive() }
    }

    fn settle(&mut self) -> Result<(), Errno> {
        self.file.settle(&mut self.state)
    }

    /// Whether the log has entries of it under this one name that it has.
    fn is_logged_as(&self, path: &Path) -> Result<bool, Errno> {
        Ok(self.file.is_logged() && self.state.path == path && self.file.names()? == 1)
    }
}

impl Managing {
    /// Puts the log in front of a file again, unless it has no name any more.
    fn serve_again(&self, held: &mut Held<'_>, path: &Path) {
        if !matches!(held.state.served, Served::Plain) || held.file.names() == Ok(0) {
            return;
        }
        if !held.file.is_chosen() {
            path.clone_into(&mut held.state.path);
            if let Err(reason) = self.adopt(held.file, &mut held.state, path) {
                self.is_plain(path, reason);
            }
            return;
        }
        if let Err(error) = held.file.serve_again(&mut held.state, self, path) {
            self.is_plain(path, error.to_string());
        }
    }

    /// A name is removed; `look` tells which file it is of, and its path.
    pub(in crate::serve) fn remove(
        &self,
        look: impl FnOnce() -> Result<(Stat, PathBuf), Errno>,
        remove: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let _alone = self.moves.write().unwrap_or_else(PoisonError::into_inner);
        if lock(&self.table).is_empty() {
            return remove();
        }
        let (status, path) = look()?;
        let Some(managed) = self.find(key_of(&status)) else { return remove() };
        let path = path.as_path();
        let mut held = Held::new(&managed);
        if held.state.path != path {
            // It keeps the name that a replay looks for.
            return remove();
        }
        if matches!(held.state.served, Served::Fresh | Served::Logged(_))
            && held.file.names()? > 1
            && let Some(other) = managed.other_name()
        {
            return self.go_on_as(held, other, remove);
        }
        let announced = match held.state.file() {
            Some(file) if held.file.names()? == 1 => file.prepare_unlink().map_err(errno)?,
            _ => false,
        };
        if !announced {
            if self.strict && held.file.has_writers() && held.state.file().is_some() && held.file.names()? > 1 {
                // It would go on without the log.
                tracing::warn!(path = %path.display(), "refused to remove one of several names of an open file");
                return Err(Errno::OPNOTSUPP);
            }
            held.settle()?;
        }
        let removed = remove();
        managed.lost_a_name();
        if removed.is_err() {
            // The log has been told of a removal that did not happen.
            held.settle()?;
            self.serve_again(&mut held, path);
        } else if !announced && held.file.names() != Ok(0) {
            if !held.file.is_chosen() {
                // It is plain by any name that it has.
            } else if held.file.has_writers() {
                self.is_plain(path, "it lost the name by which it was opened, and has another one".to_owned());
            } else {
                // Everything is in the source. Its next writer opens it by the other name, and the log manages it then.
                drop(held);
                managed.settle_times();
                lock(&self.table).remove(&managed.key);
            }
        }
        removed
    }

    /// The name of a file that the log counts is removed, and the file goes on under another one.
    fn go_on_as(
        &self,
        mut held: Held<'_>,
        other: PathBuf,
        remove: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let from = held.state.path.clone();
        if matches!(held.state.served, Served::Fresh) {
            remove()?;
            held.state.path = other;
            return Ok(());
        }
        let announced = match held.state.file() {
            Some(file) if held.file.is_logged() => file.begin_rename(&other).map_err(errno)?,
            _ => false,
        };
        if !announced {
            held.settle()?;
        }
        let removed = remove();
        let path = if removed.is_ok() { other } else { from.clone() };
        if announced && let Some(file) = held.state.file() {
            let ended = file.end_rename(removed.is_ok()).map_err(errno);
            if removed.is_ok() {
                held.file.gives_up(from);
            }
            held.state.path = path;
            ended?;
        } else {
            self.serve_again(&mut held, &path);
        }
        removed
    }

    /// A file gets one more name, and `path` tells which; `link` gives it.
    pub(in crate::serve) fn link(
        &self,
        key: Key,
        path: impl FnOnce() -> Result<PathBuf, Errno>,
        link: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let _still = self.moves.read().unwrap_or_else(PoisonError::into_inner);
        let Some(managed) = self.find(key) else { return link() };
        let path = path()?;
        if managed.gave_up(&path) {
            // A replay would take it for the name that was removed.
            let mut held = Held::new(&managed);
            let counts = held.state.path.clone();
            held.settle()?;
            self.serve_again(&mut held, &counts);
        }
        link()?;
        if let Err(reason) = self.adopt(&managed, &mut managed.exclusive(), &path) {
            self.is_plain(&path, reason);
        }
        managed.has_name_too(path);
        Ok(())
    }

    /// A name of the source becomes another one; `look` tells which.
    pub(in crate::serve) fn rename(
        &self,
        look: impl FnOnce() -> Result<Move, Errno>,
        flags: RenameFlags,
        rename: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let _alone = self.moves.write().unwrap_or_else(PoisonError::into_inner);
        if lock(&self.table).is_empty() {
            return rename();
        }
        let Move { status, from, over, to } = look()?;
        let (status, over, from, to) = (&status, over.as_ref(), from.as_path(), to.as_path());
        let is_directory = |status: &Stat| FileType::from_raw_mode(status.st_mode) == FileType::Directory;
        let exchanged = flags.contains(RenameFlags::EXCHANGE);
        if is_directory(status) || exchanged && over.is_some_and(is_directory) {
            return self.rename_directory(from, to, exchanged, rename);
        }
        let over = over.filter(|over| key_of(over) != key_of(status)).map(key_of);
        let (file, over) = (self.find(key_of(status)), over.and_then(|over| self.find(over)));
        match file {
            None if over.is_none() => rename(),
            Some(file) if flags.difference(RenameFlags::NOREPLACE).is_empty() => {
                self.rename_file(&file, from, over.as_ref(), to, rename)
            }
            file => {
                let moved = [(file, from, to), (over, to, if exchanged { from } else { to })];
                let moved = moved.iter().filter_map(|(file, from, to)| file.as_ref().map(|file| (file, *from, *to)));
                self.rename_settled(moved.collect(), rename)
            }
        }
    }

    fn rename_file(
        &self,
        file: &Managed,
        from: &Path,
        over: Option<&Arc<Managed>>,
        to: &Path,
        rename: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut held = Held::new(file);
        let mut over = over.map(|over| Held::new(over));
        if let Some(over) = &mut over
            && !over.is_logged_as(to)?
        {
            over.settle()?;
        }
        let announced = match held.state.file() {
            Some(file) if held.is_logged_as(from)? => file.begin_rename(to).map_err(errno)?,
            _ => false,
        };
        if !announced {
            held.settle()?;
            if let Some(over) = &mut over {
                over.settle()?;
            }
        }
        let renamed = rename();
        let path = if renamed.is_ok() { to } else { from };
        if announced && let Some(file) = held.state.file() {
            let ended = file.end_rename(renamed.is_ok()).map_err(errno);
            if renamed.is_ok() {
                held.state.path = to.to_owned();
            }
            ended?;
        } else {
            self.serve_again(&mut held, path);
        }
        if let Some(over) = &mut over {
            over.file.lost_a_name();
            self.serve_again(over, to);
        }
        renamed
    }

    /// Files that get other names, in a way that the log cannot record.
    fn rename_settled(
        &self,
        files: Vec<(&Arc<Managed>, &Path, &Path)>,
        rename: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut held = Vec::new();
        for (file, from, to) in files {
            let mut file = Held::new(file);
            // Another name of it may be the one that a replay looks for.
            let counts = file.state.path == from;
            file.settle()?;
            held.push((file, if counts { to.to_owned() } else { PathBuf::new() }));
        }
        let renamed = rename();
        for (mut file, to) in held {
            let path = if renamed.is_ok() && !to.as_os_str().is_empty() { to } else { file.state.path.clone() };
            self.serve_again(&mut file, &path);
        }
        renamed
    }

    fn rename_directory(
        &self,
        from: &Path,
        to: &Path,
        exchanged: bool,
        rename: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let all = self.all();
        let paths: Vec<_> = all.iter().map(|file| file.path()).collect();
        let moved = |path: &Path| match (path.strip_prefix(from), path.strip_prefix(to)) {
            (Ok(rest), _) => Some(joined(to, rest)),
            (_, Ok(rest)) if exchanged => Some(joined(from, rest)),
            _ => None,
        };
        let to: Vec<_> = paths.iter().map(|path| moved(path)).collect();
        let files = all.iter().zip(&paths).zip(&to);
        let files = files.filter_map(|((file, path), to)| to.as_ref().map(|to| (file, path.as_path(), to.as_path())));
        self.rename_settled(files.collect(), rename)
    }
}

/// `Path::join` ends a path of nothing with a slash.
fn joined(path: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { path.to_owned() } else { path.join(rest) }
}
