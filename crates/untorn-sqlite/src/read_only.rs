//! A database that this process may not write to: a file or directory without write permission, a read-only mount, or
//! `immutable=1`.
//!
//! Such a connection makes no guard and changes nothing. Who else has the database open decides how it reads:
//!
//! - If the guard's directory is there, a process has the database open by this VFS, or a crash left commits in the
//!   sidecar. Then a read transaction is a [`Snapshot`], which that process keeps, or which reads after the crash.
//! - Otherwise the database is a plain file, which a stock SQLite may change. Then the connection reads and locks as
//!   the VFS `unix` does, a write-ahead log and a hot journal included.
//!
//! # Invariants
//!
//! 1. The connection looks for the directory after it has locked the file as a stock SQLite does. Who makes the
//!    directory looks for such locks afterwards, and gives up if there are any. So while the file is read as a plain
//!    one, no commit goes to the sidecar.
//! 2. A database in which a journal has to be rolled back is not read: only a writer can do that.
//! 3. `immutable=1` takes no locks, so it is refused while the directory is there.

use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use untorn::{Error, Snapshot};

use crate::abi;
use crate::database::{len_by, read_to_end};
use crate::guard::{directory_of, is_hot, journal_in};
use crate::inner::Inner;
use crate::share::HEADER;
use crate::{Code, code_of, log};

/// One connection's database.
pub(crate) struct ReadOnly {
    path: PathBuf,
    /// The file in the VFS `unix`.
    stock: Inner,
    /// The commit that is read, where the file is not plain.
    view: Option<Snapshot>,
    level: c_int,
}

/// Whether this process may write to a database, or create it.
pub(crate) fn may_write(path: &Path) -> bool {
    let may = |path: &Path| accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS);
    let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    match may(path) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => may(parent).is_ok(),
        Err(_) => false,
    }
}

impl ReadOnly {
    /// # Safety
    /// `name` is a name that SQLite passed to `xOpen`.
    pub(crate) unsafe fn open(
        vfs: *mut abi::Vfs,
        path: &Path,
        name: *const c_char,
        flags: c_int,
        immutable: bool,
    ) -> Result<Self, Code> {
        if immutable && is_guarded(path) {
            log(
                abi::CANTOPEN,
                "`immutable=1` is refused: another connection has the database open, or a crash left \
                                commits beside it",
            );
            return Err(Code(abi::CANTOPEN));
        }
        // SAFETY: the caller passes SQLite's own name, which lives as long as the file.
        let stock = unsafe { Inner::open_named(vfs, name, flags) }?;
        Ok(ReadOnly { path: path.to_owned(), stock, view: None, level: abi::LOCK_NONE })
    }

    pub(crate) fn lock(&mut self, level: c_int) -> Result<(), Code> {
        if level <= self.level {
            return Ok(());
        }
        if self.view.is_some() {
            return Err(Code(abi::READONLY));
        }
        self.stock.lock(level)?;
        if self.level == abi::LOCK_NONE && is_guarded(&self.path) {
            self.stock.unlock(abi::LOCK_NONE)?;
            self.view = Some(self.snapshot()?);
        }
        self.level = level;
        Ok(())
    }

    fn snapshot(&self) -> Result<Snapshot, Code> {
        let snapshot = Snapshot::open(&self.path).map_err(|error| match error {
            Error::InUse { .. } => code_of(&error, abi::BUSY),
            error => code_of(&error, abi::CANTOPEN),
        })?;
        // A writer that lives ends its transaction soon.
        if is_hot(&journal_in(&directory_of(&self.path)))? {
            return Err(Code(abi::BUSY));
        }
        Ok(snapshot)
    }

    pub(crate) fn unlock(&mut self, level: c_int) -> Result<(), Code> {
        if level >= self.level {
            return Ok(());
        }
        if self.view.is_none() {
            self.stock.unlock(level)?;
        } else if level == abi::LOCK_NONE {
            self.view = None;
        }
        self.level = level;
        Ok(())
    }

    pub(crate) fn is_reserved(&mut self) -> Result<bool, Code> {
        // A journal that came after the snapshot is that of a writer at work.
        if self.view.is_some() { Ok(true) } else { self.stock.check_reserved_lock() }
    }

    /// Fills `bytes`, with zeros beyond the end. False if there is an end within.
    pub(crate) fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<bool, Code> {
        let Some(snapshot) = &self.view else { return self.stock.read(offset, bytes) };
        let len = snapshot.len();
        read_to_end(bytes, offset, len, |there| snapshot.read_at(there, offset))
            .map_err(|error| code_of(&error, abi::IOERR_READ))?;
        Ok(offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= len))
    }

    pub(crate) fn len(&mut self) -> Result<u64, Code> {
        let Some(snapshot) = &self.view else { return self.stock.len() };
        let mut header = [0; HEADER];
        read_to_end(&mut header, 0, snapshot.len(), |there| snapshot.read_at(there, 0))
            .map_err(|error| code_of(&error, abi::IOERR_FSTAT))?;
        Ok(len_by(&header, snapshot.len()))
    }

    /// The file in the VFS `unix`, for what a plain file needs; refused where it is not plain.
    pub(crate) fn plain(&mut self) -> Result<&mut Inner, Code> {
        if self.view.is_some() {
            log(abi::CANTOPEN, "a database in WAL mode, which another connection has open, needs write permission");
            return Err(Code(abi::CANTOPEN));
        }
        Ok(&mut self.stock)
    }

    /// Also where the file is no plain one by now: what was mapped of it is given back.
    pub(crate) fn unmap(&mut self, delete: c_int) -> Result<(), Code> {
        self.stock.shm_unmap(delete)
    }

    pub(crate) fn characteristics(&mut self) -> c_int {
        self.stock.characteristics()
    }

    /// # Safety
    /// `argument` is what SQLite's documentation says for this code.
    pub(crate) unsafe fn file_control(&mut self, code: c_int, argument: *mut c_void) -> Result<(), Code> {
        // SAFETY: the caller answers for the argument.
        unsafe { self.stock.file_control(code, argument) }
    }

    /// A line for `PRAGMA untorn_info`.
    pub(crate) fn info(&self) -> String {
        match &self.view {
            Some(snapshot) => format!("read-only commit={} length={}", snapshot.commit(), snapshot.len()),
            None => "read-only plain file".to_owned(),
        }
    }
}

/// Whether the guard's directory is there.
fn is_guarded(path: &Path) -> bool {
    std::fs::symlink_metadata(directory_of(path)).is_ok_and(|found| found.is_dir())
}
