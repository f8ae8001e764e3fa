//! The pages of a data file, which may get another length at any time.
//!
//! Another length needs another redundancy file, to which the known state is [carried](super::super::resize) over. It
//! replaces the old one durably before the file changes. After a crash in between, its length differs from the file's.
//! Then it is carried over once more before the engine's first store, and not sooner, because the engine may refuse a
//! file whose length another program changed. A plain file has no engine: its redundancy file names the length before
//! until the new one is durable, and is carried over only to that.

use std::path::Path;
use std::sync::{Arc, RwLockReadGuard};

use super::{Kept, Of, TrackedPages};
use crate::error::{Error, ProtectionProblem, Result};
use crate::format::sidecar::MAX_LEN;
use crate::options::Settings;
use crate::redundancy::Mode;
use crate::redundancy::file::{Found, is_at, look_for, remove_unlocked};
use crate::storage::{Access, Medium, MediumFile};

impl<M: Medium> TrackedPages<M> {
    /// The pages of the file at this path. Nothing is kept of them until they are [bound](TrackedPages::bind).
    pub(crate) fn of_data(medium: Arc<M>, path: &Path, mode: Mode, settings: Settings, trusted: bool) -> Arc<Self> {
        TrackedPages::new(medium, path.to_owned(), Of::Data { trusted, has_engine: true }, mode, settings)
    }

    /// Whether the file has a redundancy file. One that was made for another file with its inode number is set aside.
    ///
    /// # Errors
    /// Those of looking, and [`Error::InUse`] while somebody holds such a one.
    pub(crate) fn is_protected(&self) -> Result<bool> {
        Ok(!matches!(look_for(&*self.medium, &self.path)?, Found::Nothing))
    }

    pub(super) fn bind_data(&self) -> Result<()> {
        let mut kept = self.write();
        let is_empty = self.medium.open(&self.path, Access::Read, 0)?.is_empty();
        *kept = if is_empty {
            Kept::Empty
        } else if matches!(look_for(&*self.medium, &self.path)?, Found::OfAnotherLength) {
            Kept::Stale
        } else {
            Kept::Open(Box::new(self.open(None)?))
        };
        Ok(())
    }

    /// What is kept, after a redundancy file for another length was made anew: the engine has the file by now.
    pub(super) fn fresh(&self) -> Result<RwLockReadGuard<'_, Kept<M>>> {
        let kept = self.read();
        if !matches!(&*kept, Kept::Stale) {
            return Ok(kept);
        }
        drop(kept);
        let mut kept = self.write();
        if matches!(&*kept, Kept::Stale) {
            *kept = Kept::Open(Box::new(self.open(None)?));
        }
        drop(kept);
        Ok(self.read())
    }

    /// Gives a plain file another length, durably. Covered pages stay covered, and added pages are covered.
    ///
    /// # Errors
    /// [`Error::Protection`] for a length of 0; those of [`Redundancy::renew`], with nothing changed; those of changing
    /// the file.
    pub(crate) fn set_len(&self, len: u64) -> Result<()> {
        if matches!(self.mode, Mode::Look | Mode::Report) {
            let what = "this handle only looks at the file; protect it to change its length".to_owned();
            return Err(Error::Invalid { path: self.path.clone(), what });
        }
        let problem = match len {
            0 => Some(ProtectionProblem::Empty),
            1..=MAX_LEN => None,
            _ => Some(ProtectionProblem::TooLong),
        };
        if let Some(problem) = problem {
            return Err(Error::protection(&self.path, problem));
        }
        let file = self.medium.open(&self.path, Access::ReadWrite, len)?;
        if !self.with(|redundancy| redundancy.is_intact_of(&file))? {
            return self.elsewhere();
        }
        // Not even its time changes then.
        if file.len() == len { Ok(()) } else { self.resize_data(&file, len) }
    }

    fn elsewhere(&self) -> Result<()> {
        let what = "the file has redundancy, but its path names another file now; rename the file back before you \
                    change its length";
        Err(Error::Invalid { path: self.path.clone(), what: what.to_owned() })
    }

    /// Whether the redundancy of a plain file is of use yet, after another could not be made for it: it is for the
    /// length that the file has, and its file has its name.
    fn is_as_before(&self, kept: &Kept<M>) -> Result<bool> {
        let (Of::Data { has_engine: false, .. }, Kept::Open(redundancy)) = (&self.of, kept) else { return Ok(false) };
        // Otherwise it is given up at once.
        redundancy.stay();
        redundancy.is_named()
    }

    /// A file whose path names another by now stays as it is: it is from there that companions are made, removed and
    /// opened.
    pub(super) fn resize_data(&self, file: &M::File, len: u64) -> Result<()> {
        if file.len() == len {
            return file.set_len(len);
        }
        // What it speaks of must not seem to be of the file, once that has its length again.
        let kept = self.fresh()?;
        if !matches!(&*kept, Kept::Nothing | Kept::Lost(_)) && !is_at(&*self.medium, &self.path, file)? {
            return self.elsewhere();
        }
        if let Kept::Open(redundancy) = &*kept {
            // A pass of the thread or a scrub under way would have to be waited for. What somebody called for is.
            redundancy.leave();
        }
        drop(kept);
        let mut kept = self.write();
        let prepared = match &*kept {
            Kept::Lost(cause) => return self.lost(cause),
            Kept::Nothing | Kept::Stale => return file.set_len(len),
            Kept::Open(redundancy) if len > 0 => redundancy.renew(len).map(Some),
            // Of no bytes there is no redundancy file. One that is left would count for what the file is given next.
            Kept::Open(_) | Kept::Empty => remove_unlocked(&*self.medium, &self.path).map(|()| None),
        };
        let (made, changed) = match prepared {
            Ok(made) => (made, file.set_len(len)),
            Err(error) if self.is_as_before(&kept)? => return Err(error),
            Err(error) => (None, Err(error)),
        };
        if file.is_empty() {
            *kept = Kept::Empty;
            return changed;
        }
        let exchanged = self.exchange(&mut kept, made);
        changed.and(exchanged)
    }
}
