//! How a file comes under the log: when it is opened for writing, when it is first changed, and when it gets a name
//! that the globs choose.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use untorn::Error;

use super::file::{Served, State};
use super::{Managed, Managing, errno};
use crate::serve::nodes::Node;
use crate::serve::{Server, lock};

/// Why a file is not managed.
enum Refusal {
    Plain(String),
    Failed(Errno),
}

/// Refuses what a replay by the same user could not find, or not open by its name.
fn check(path: &Path, descriptor: impl AsFd) -> Result<(), Refusal> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let status = rustix::fs::fstat(descriptor).map_err(Refusal::Failed)?;
    if !Mode::from_raw_mode(status.st_mode).contains(Mode::RUSR | Mode::WUSR) {
        let reason = "the file's owner lacks read or write permission, so a replay would fail";
        return Err(Refusal::Plain(reason.to_owned()));
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    rustix::fs::accessat(CWD, directory, Access::READ_OK | Access::EXEC_OK, AtFlags::EACCESS).map_err(|_| {
        Refusal::Plain("no permission to read the file's directory, so a replay could not find it".to_owned())
    })
}

impl Managing {
    /// Puts the log in front of a file that is fresh, before its first change.
    pub(super) fn engage(&self, managed: &Managed) -> Result<(), Errno> {
        if !managed.is_fresh() {
            return Ok(());
        }
        let _still = self.moves.read().unwrap_or_else(PoisonError::into_inner);
        self.engage_now(managed)
    }

    /// The same while no rename runs.
    pub(super) fn engage_now(&self, managed: &Managed) -> Result<(), Errno> {
        let mut state = managed.exclusive();
        if matches!(state.served, Served::Fresh) { self.attach(managed, &mut state) } else { Ok(()) }
    }

    /// Puts the log in front of a file that was not chosen, if the globs choose the name that it has now. An error is
    /// the reason why it stays plain.
    pub(super) fn adopt(&self, managed: &Managed, state: &mut State, path: &Path) -> Result<(), String> {
        if managed.is_chosen() || !matches!(state.served, Served::Plain) || !self.globs.choose(path) {
            return Ok(());
        }
        managed.set_chosen();
        managed.serve_again(state, self, path).map_err(|error| error.to_string())?;
        lock(&self.report).managed += 1;
        Ok(())
    }

    /// Puts the log in front of a fresh file, or leaves it plain.
    fn attach(&self, managed: &Managed, state: &mut State) -> Result<(), Errno> {
        let path = &state.path.clone();
        let attached = check(path, &managed.descriptor).and_then(|()| {
            managed.serve_again(state, self, path).map_err(|error| match error {
                Error::Poisoned { .. } => Refusal::Failed(errno(error)),
                error => Refusal::Plain(error.to_string()),
            })
        });
        match attached {
            Ok(()) => {
                lock(&self.report).managed += 1;
                Ok(())
            }
            Err(Refusal::Failed(errno)) => Err(errno),
            Err(Refusal::Plain(reason)) => {
                self.is_plain_or_refused(path, reason)?;
                state.served = Served::Plain;
                Ok(())
            }
        }
    }
}

impl Server {
    /// The managed file of a node that is opened for writing, or truncated, with one writer more. `None` for a plain
    /// one. `own` is a description of it that is open for reading and writing, and does not append.
    pub(in crate::serve) fn manage(
        &self,
        node: &Node,
        own: Option<&Arc<OwnedFd>>,
        is_new: bool,
    ) -> Result<Option<Arc<Managed>>, Errno> {
        let managing = &self.managing;
        if !node.is_regular() {
            return Ok(None);
        }
        let _still = managing.moves.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = managing.find_for_writer(node.key) {
            return self.manage_known(node, known);
        }
        // A file without a name is gone after a crash, whatever the log has of it.
        let (path, is_chosen) = self.choose(node)?;
        let chosen = path.as_deref().filter(|_| is_chosen);
        managing.make_room()?;
        let opened = || self.descriptors.reopen(node, OFlags::RDWR).map(Arc::new);
        let (own, chosen) = match own.cloned().map_or_else(opened, Ok) {
            Ok(own) => (own, chosen),
            Err(errno) => {
                if let Some(path) = chosen {
                    let reason = format!("cannot be opened for reading and writing: {errno}");
                    managing.is_plain_or_refused(path, reason)?;
                }
                (Arc::new(self.descriptors.reopen(node, OFlags::WRONLY)?), None)
            }
        };
        let atomic = managing.atomic || !is_new && self.is_marked(node)?;
        let still_set = lock(managing.setter(node.key));
        let mut table = lock(&managing.table);
        if let Some(known) = table.get(&node.key).cloned() {
            known.add_writer();
            drop((table, still_set));
            return self.manage_known(node, known);
        }
        // All writers of a file go the same way, also those of one that was not chosen and gets another name later.
        let known_as = (path.as_deref().unwrap_or(Path::new("")), chosen.is_some());
        let modified = lock(&managing.times).of(node.key, &own, managing.writeback);
        let managed = Arc::new(Managed::new(atomic, modified, node.key, known_as, own));
        table.insert(node.key, managed.clone());
        drop(table);
        drop(still_set);
        // A file that the log cannot manage is to be refused at its opening.
        if (is_new || managing.strict)
            && let Err(errno) = managing.engage_now(&managed)
        {
            managing.released(&managed);
            return Err(errno);
        }
        Ok(Some(managed))
    }
}

impl Server {
    /// A path of a node, and whether the globs choose it. Any of its names may be the one that they choose.
    fn choose(&self, node: &Node) -> Result<(Option<PathBuf>, bool), Errno> {
        let choose = |path: &PathBuf| self.managing.globs.choose(path);
        let path = match self.path_of(node) {
            // The kernel tells nobody such a path, so a replay could not find the file.
            Err(Errno::NAMETOOLONG) => {
                let name = node.found_as().map_or_else(PathBuf::new, |(_, name)| name.into());
                let reason = "its path is longer than the kernel tells".to_owned();
                self.managing.is_plain_or_refused(&Path::new("...").join(name), reason)?;
                return Ok((None, false));
            }
            path => path?,
        };
        if path.as_ref().is_some_and(choose) {
            return Ok((path, true));
        }
        let other = if node.status()?.st_nlink > 1 { self.found_path(node)?.filter(choose) } else { None };
        let is_chosen = other.is_some();
        Ok((other.or(path), is_chosen))
    }

    /// The managed file of a node that has a writer already. This one may have opened it by a name that is chosen.
    fn manage_known(&self, node: &Node, known: Arc<Managed>) -> Result<Option<Arc<Managed>>, Errno> {
        if !known.is_chosen()
            && let (Some(path), true) = self.choose(node)?
        {
            let adopted = self.managing.adopt(&known, &mut known.exclusive(), &path);
            if let Err(reason) = adopted
                && let Err(errno) = self.managing.is_plain_or_refused(&path, reason)
            {
                self.managing.released(&known);
                return Err(errno);
            }
        }
        Ok(Some(known))
    }
}
