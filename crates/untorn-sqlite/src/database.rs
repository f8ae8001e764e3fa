//! A connection's database.
//!
//! # Invariants
//!
//! 1. Writes wait in the [`Overlay`] until SQLite commits, and go to the file in one transaction of the library. So
//!    neither another connection nor a crash ever sees a part of one.
//! 2. A reader holds a snapshot and no lock: no writer waits for it, and it waits for none. The connections of a
//!    process share one ([`share`](crate::share)). A writer holds SQLite's own locks, on a file of the guard's.
//! 3. A connection that becomes a writer has read the last commit: after RESERVED is locked, the change counter of the
//!    snapshot must be the file's. Otherwise SQLite is told `SQLITE_BUSY_SNAPSHOT`, as in WAL mode.
//!    It goes on reading that snapshot until its own commit: the file has nothing newer.
//!    A commit is refused if the file was changed by anybody else since then: a writer that was killed holds no locks
//!    any more, but its commit may still be under way in the process that serves the file.
//! 4. The file may be longer than the database, for it grows in steps. The database is as long as its header says. A
//!    file of zeros is that of a new one, which has no pages. The last close cuts the rest off, once no other process
//!    can commit.
//! 5. In WAL mode SQLite itself keeps readers apart, so there are no snapshots, and readers lock as in the VFS `unix`.
//!    A checkpoint tells others of its pages without a sync, so its writes go to the file at once.
//! 6. With a journal in memory the database is atomic alone. If the program chose a journal in a file, SQLite keeps
//!    several databases of one transaction together by it, so the journal must be right after a crash. The same holds
//!    for the log of WAL mode. So the VFS promises no order of writes, and SQLite flushes them.

use std::ffi::c_int;
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use untorn::redundancy::recorded;
use untorn::{AtomicFile, Durability, EngineKind, Error, Options, Snapshot};

use crate::abi;
use crate::guard::Guard;
use crate::inner::Inner;
use crate::journal::JournalName;
use crate::overlay::Overlay;
use crate::protected;
use crate::share::{HEADER, Part, Reading, View};
use crate::{Code, code_of, log};

const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Steps in which the file grows, at least and at most.
pub(crate) const STEPS: (u64, u64) = (64 << 10, 4 << 20);

/// Reads bytes of the file.
type Fill<'a> = dyn FnMut(u64, &mut [u8]) -> Result<(), Error> + 'a;

/// The choices of a URI's parameters.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    pub(crate) engine: EngineKind,
    pub(crate) snapshots: bool,
    /// The database gets checksums and parity if it has none.
    pub(crate) redundancy: bool,
}

/// The main database of one connection.
pub(crate) struct Database {
    path: PathBuf,
    inode: (u64, u64),
    read_only: bool,
    snapshots: bool,
    overlay: Overlay,
    /// The commit that the connection reads.
    view: Option<Reading>,
    /// Goes before the file, which its snapshot keeps open.
    part: Part,
    file: AtomicFile,
    /// The lock that SQLite believes to have, and the one on the guard's file.
    level: c_int,
    real: c_int,
    locks: Inner,
    wal: bool,
    /// The file's count of changes when this connection began to read what it may write over.
    changes: Option<u64>,
    /// The commit of a checkpoint failed, and SQLite does not know yet.
    failed: Option<Code>,
    /// The program chose a rollback journal in a file.
    journal_in_file: bool,
    journal_name: Option<JournalName>,
    guard: Guard,
}

fn number(header: &[u8; HEADER], at: usize) -> u64 {
    header[at..at + 4].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// How long the database is by its header, in a file of a length.
pub(crate) fn len_by(header: &[u8; HEADER], file_len: u64) -> u64 {
    if header[..MAGIC.len()] == [0; MAGIC.len()] {
        return 0;
    }
    let pages = number(header, 28);
    // A writer from before 3.7.0 leaves the count of pages as it was, and the two counters tell.
    if header[..MAGIC.len()] != MAGIC[..] || pages == 0 || number(header, 24) != number(header, 92) {
        return file_len;
    }
    let page = match u64::from(header[16]) << 8 | u64::from(header[17]) {
        1 => 1 << 16,
        page => page,
    };
    (pages * page).min(file_len)
}

/// Fills `bytes` of a file of a length, with zeros beyond.
pub(crate) fn read_to_end(
    bytes: &mut [u8],
    offset: u64,
    len: u64,
    read: impl FnOnce(&mut [u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let has = len.saturating_sub(offset).min(bytes.len() as u64) as usize;
    let (there, beyond) = bytes.split_at_mut(has);
    beyond.fill(0);
    if there.is_empty() { Ok(()) } else { read(there) }
}

impl Database {
    /// Opens a database, or creates it. `locks` opens the file for SQLite's locks; `nobody_uses_it` looks for a stock
    /// SQLite that uses it.
    pub(crate) fn open(
        path: &Path,
        flags: c_int,
        choices: &Choices,
        nobody_uses_it: impl FnMut() -> Result<(), Code>,
        locks: impl FnOnce(&Path) -> Result<Inner, Code>,
    ) -> Result<Self, Code> {
        let read_only = flags & abi::OPEN_READONLY != 0;
        let found =
            OpenOptions::new().read(true).write(true).create(flags & abi::OPEN_CREATE != 0).open(path)?.metadata()?;
        let guard = Guard::new(path, nobody_uses_it)?;
        let locks = locks(&guard.directory().join("lock"))?;
        let inode = (found.dev(), found.ino());
        let part = Part::join(path, inode, || guard.beside().map_err(Code::from))?;
        let options =
            Options::new().shared(true).durability(Durability::PerWrite).engine(choices.engine).keep_sidecar(false);
        // SQLite's own locks see to that.
        let options = options.one_writer(true);
        let file =
            if choices.redundancy { protected::open(path, &options) } else { protected::open_as_it_is(path, &options) };
        let file = file.map_err(|error| code_of(&error, abi::CANTOPEN))?;
        Ok(Database {
            path: path.to_owned(),
            inode,
            read_only,
            snapshots: choices.snapshots,
            overlay: Overlay::default(),
            view: None,
            part,
            file,
            level: abi::LOCK_NONE,
            real: abi::LOCK_NONE,
            locks,
            wal: false,
            changes: None,
            failed: None,
            journal_in_file: false,
            journal_name: None,
            guard,
        })
    }

    /// Bytes of the view, or of the file.
    fn read_below(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        if let Some(View { snapshot, header, .. }) = self.view.as_deref() {
            let within = usize::try_from(offset).ok().and_then(|from| header.get(from..from + bytes.len()));
            return match within {
                Some(within) => {
                    bytes.copy_from_slice(within);
                    Ok(())
                }
                None => match read_to_end(bytes, offset, snapshot.len(), |there| snapshot.read_at(there, offset)) {
                    // The process that kept it has ended. A writer's snapshot is the file as it is: the commit is
                    // refused if it is not.
                    Err(Error::SnapshotEnded { .. }) if self.is_writer() => self.read_file(offset, bytes),
                    read => read,
                },
            };
        }
        self.read_file(offset, bytes)
    }

    fn read_file(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        read_to_end(bytes, offset, self.file.len(), |there| self.file.read_at(there, offset))
    }

    /// Whether this connection has the locks of a writer.
    fn is_writer(&self) -> bool {
        self.real > abi::LOCK_SHARED && self.level > abi::LOCK_SHARED
    }

    fn len_below(&self) -> Result<u64, Error> {
        let (header, file_len) = match self.view.as_deref() {
            Some(View { snapshot, header, .. }) => (*header, snapshot.len()),
            None => {
                let mut header = [0; HEADER];
                self.read_below(0, &mut header)?;
                (header, self.file.len())
            }
        };
        let len = len_by(&header, file_len);
        // Pages behind a header that was lost are the user's, who may want to recover them.
        if len == 0 && !self.is_blank(file_len)? { Ok(file_len) } else { Ok(len) }
    }

    /// Whether a file has zeros only: a new one, or one that grew for a first commit that a crash prevented.
    fn is_blank(&self, file_len: u64) -> Result<bool, Error> {
        let mut bytes = vec![0; STEPS.0 as usize];
        for offset in (0..file_len).step_by(bytes.len()) {
            self.read_below(offset, &mut bytes)?;
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The length of the database.
    pub(crate) fn len(&self) -> Result<u64, Code> {
        match self.overlay.len() {
            Some(len) => Ok(len),
            None => self.len_below().map_err(|error| code_of(&error, abi::IOERR_FSTAT)),
        }
    }

    /// Fills `bytes`, with zeros beyond the end. False if there is an end within.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<bool, Code> {
        self.read_below(offset, bytes).map_err(|error| code_of(&error, abi::IOERR_READ))?;
        self.overlay.read(offset, bytes);
        let len = match (self.overlay.len(), &self.view) {
            (Some(len), _) => len,
            (None, Some(view)) => view.snapshot.len(),
            (None, None) => self.file.len(),
        };
        let has = len.saturating_sub(offset).min(bytes.len() as u64) as usize;
        bytes[has..].fill(0);
        Ok(has == bytes.len())
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Code> {
        self.check_writable()?;
        let end = offset.checked_add(bytes.len() as u64).ok_or(Code(abi::FULL))?;
        if self.wal && self.overlay.is_empty() {
            return self.write_at_once(offset, bytes, end).map_err(|error| code_of(&error, abi::IOERR_WRITE));
        }
        if self.overlay.len().is_none_or(|len| end > len) {
            let len = self.len()?.max(end);
            self.change(abi::IOERR_WRITE, |overlay, own, fill| overlay.set_len(len, own, fill))?;
        }
        self.change(abi::IOERR_WRITE, |overlay, _, fill| overlay.write(offset, bytes, fill))
    }

    fn write_at_once(&self, offset: u64, bytes: &[u8], end: u64) -> Result<(), Error> {
        if end > self.file.len() {
            self.file.resize(end.next_multiple_of(STEPS.0))?;
        }
        self.file.write_at(bytes, offset)
    }

    pub(crate) fn truncate(&mut self, len: u64) -> Result<(), Code> {
        self.check_writable()?;
        if let Some(code) = self.failed.take() {
            return Err(code);
        }
        if self.wal && self.overlay.is_empty() {
            // The file keeps its steps: the header has the length.
            return Ok(());
        }
        if len == self.len()? && self.overlay.is_empty() {
            return Ok(());
        }
        self.change(abi::IOERR_TRUNCATE, |overlay, own, fill| overlay.set_len(len, own, fill))
    }

    fn check_writable(&self) -> Result<(), Code> {
        if self.read_only { Err(Code(abi::READONLY)) } else { Ok(()) }
    }

    fn change(
        &mut self,
        otherwise: c_int,
        change: impl FnOnce(&mut Overlay, u64, &mut Fill<'_>) -> Result<(), Error>,
    ) -> Result<(), Code> {
        let mut overlay = std::mem::take(&mut self.overlay);
        let own = self.len_below();
        let changed = own.and_then(|own| change(&mut overlay, own, &mut |at, bytes| self.read_below(at, bytes)));
        self.overlay = overlay;
        changed.map_err(|error| code_of(&error, otherwise))
    }

    /// Commits what this connection wrote.
    pub(crate) fn commit(&mut self) -> Result<(), Code> {
        if self.overlay.is_empty() {
            return Ok(());
        }
        let failed = |error: Error| match error {
            // It is larger than what a process passes to the one that serves the file.
            Error::Invalid { .. } => {
                log(abi::FULL, &error.to_string());
                Code(abi::FULL)
            }
            error => code_of(&error, abi::IOERR_FSYNC),
        };
        if !self.store().map_err(failed)? {
            log(abi::BUSY_SNAPSHOT, "another process, which has ended, committed meanwhile; nothing was stored");
            return Err(Code(abi::BUSY_SNAPSHOT));
        }
        self.overlay = Overlay::default();
        Ok(())
    }

    /// Stores what was written. False, and nothing of it is stored, if somebody else changed the file.
    fn store(&mut self) -> Result<bool, Error> {
        let own = self.file.len();
        let len = match self.overlay.len() {
            Some(len) => len,
            None => self.len_below()?,
        };
        // From here on it would have pages kept for it.
        self.view = None;
        self.part.about_to_commit();
        if len > own {
            let step = (own / 8).clamp(STEPS.0, STEPS.1);
            if !self.resize(len.max(own.saturating_add(step)).next_multiple_of(STEPS.0))? {
                return Ok(false);
            }
        }
        let mut transaction = self.file.transaction();
        for (offset, piece) in self.overlay.pieces() {
            let has = len.saturating_sub(offset).min(piece.len() as u64) as usize;
            transaction.write_at(&piece[..has], offset)?;
        }
        // SQLite's own locks keep checkpoints and readers apart in WAL mode.
        match self.changes.filter(|_| !self.wal) {
            Some(changes) => {
                if !transaction.commit_if_unchanged(changes)? {
                    return Ok(false);
                }
                // This one was counted.
                self.changes = Some(changes + 1);
            }
            None => transaction.commit()?,
        }
        if len + 2 * STEPS.1 < self.file.len() {
            // After the commit, by which the header says so.
            self.resize(len)?;
        }
        Ok(true)
    }

    /// Changes the length of the file. False if somebody else changed the file.
    fn resize(&mut self, len: u64) -> Result<bool, Error> {
        self.file.resize(len)?;
        let now = self.file.changes();
        let is_own = self.changes.is_none_or(|changes| now == Some(changes + 1));
        if is_own {
            self.changes = self.changes.and(now);
        }
        Ok(is_own)
    }

    /// Commits the pages of a checkpoint. SQLite asks for nothing in return, and truncates the file next: that fails
    /// then.
    pub(crate) fn commit_checkpoint(&mut self) {
        self.failed = self.commit().err();
    }

    /// Drops what this connection wrote since the last commit.
    pub(crate) fn roll_back(&mut self) {
        self.overlay = Overlay::default();
    }

    fn takes_snapshots(&self) -> bool {
        self.snapshots && !self.wal
    }

    fn take_view(&mut self) -> Result<(), Code> {
        let take = |old: Option<Snapshot>| {
            // The process that serves the others may have ended just now; SQLite waits and tries again.
            let snapshot = match old {
                Some(old) => self.file.snapshot_after(old),
                None => self.file.snapshot(),
            };
            let snapshot = snapshot.map_err(|error| code_of(&error, abi::BUSY))?;
            let mut header = [0; HEADER];
            read_to_end(&mut header, 0, snapshot.len(), |there| snapshot.read_at(there, 0))
                .map_err(|error| code_of(&error, abi::IOERR_READ))?;
            Ok((snapshot, header))
        };
        self.view = Some(self.part.read(take)?);
        Ok(())
    }

    pub(crate) fn lock(&mut self, level: c_int) -> Result<(), Code> {
        if level <= self.level {
            return Ok(());
        }
        if level == abi::LOCK_SHARED && self.takes_snapshots() {
            self.take_view()?;
            self.level = level;
            return Ok(());
        }
        // Of a connection that reads a snapshot and is about to write.
        let begins = self.view.is_some() && self.level <= abi::LOCK_SHARED;
        if begins && level == abi::LOCK_RESERVED && self.locks.check_reserved_lock()? {
            // A lock on the way there could keep the other writer from its commit.
            return Err(Code(abi::BUSY));
        }
        if self.real < abi::LOCK_SHARED {
            self.locks.lock(abi::LOCK_SHARED)?;
            self.real = abi::LOCK_SHARED;
            // Before anything is read under the lock. With a snapshot its own count says what was read.
            self.changes = match &self.view {
                Some(view) => view.snapshot.changes(),
                None => self.file.changes(),
            };
        }
        if level > abi::LOCK_SHARED
            && let Err(code) = self.locks.lock(level)
        {
            if begins {
                self.let_go()?;
            }
            return Err(code);
        }
        self.real = level;
        if begins {
            let is_last = self.is_last_commit();
            if !matches!(is_last, Ok(true)) {
                self.let_go()?;
                return is_last.and(Err(Code(abi::BUSY_SNAPSHOT)));
            }
        }
        self.level = level;
        Ok(())
    }

    /// Whether the snapshot is of the last commit: all writers count their changes in the header.
    fn is_last_commit(&mut self) -> Result<bool, Code> {
        // Before the look. Every change by a connection that lives is counted by now: it had the locks of a writer. The
        // snapshot's own count may be older than what it shows: it may have been taken after another connection's
        // commit was made, and before it was counted.
        let changes = self.file.changes();
        if self.view.as_ref().is_some_and(Reading::is_last) {
            self.changes = changes;
            return Ok(true);
        }
        let mut now = [0; HEADER];
        read_to_end(&mut now, 0, self.file.len(), |there| self.file.read_at(there, 0))
            .map_err(|error| code_of(&error, abi::IOERR_READ))?;
        let is_last = self.view.as_ref().is_some_and(|view| view.header == now);
        if is_last {
            self.changes = changes;
        }
        Ok(is_last)
    }

    fn let_go(&mut self) -> Result<(), Code> {
        self.real = abi::LOCK_NONE;
        self.locks.unlock(abi::LOCK_NONE)
    }

    pub(crate) fn unlock(&mut self, level: c_int) -> Result<(), Code> {
        if level >= self.level {
            // SQLite gives a try to be alone up.
            return if self.locks.is_pending() { self.locks.unlock(level) } else { Ok(()) };
        }
        // What counts was committed: at the end of a transaction, of a rollback and of a hot journal's playback SQLite
        // asks for that (`SQLITE_FCNTL_SYNC`), and heard of it if it failed.
        self.roll_back();
        if level == abi::LOCK_NONE {
            self.view = None;
            self.level = level;
            return self.let_go();
        }
        if self.takes_snapshots() && self.real > abi::LOCK_NONE && self.take_view().is_ok() {
            // While no other writer can commit, so that this reader goes on where it is.
            self.level = level;
            return self.let_go();
        }
        self.locks.unlock(level)?;
        (self.real, self.level) = (level, level);
        Ok(())
    }

    pub(crate) fn is_reserved(&mut self) -> Result<bool, Code> {
        self.locks.check_reserved_lock()
    }

    /// SQLite turns to WAL mode.
    pub(crate) fn begin_wal(&mut self) -> Result<(), Code> {
        if self.wal {
            return Ok(());
        }
        if self.level >= abi::LOCK_SHARED && self.real < abi::LOCK_SHARED {
            self.locks.lock(abi::LOCK_SHARED)?;
            self.real = abi::LOCK_SHARED;
        }
        (self.wal, self.view, self.changes) = (true, None, None);
        Ok(())
    }

    pub(crate) fn end_wal(&mut self) {
        self.wal = false;
    }

    pub(crate) fn locks(&mut self) -> &mut Inner {
        &mut self.locks
    }

    pub(crate) fn level(&mut self) -> c_int {
        if self.locks.is_pending() { abi::LOCK_PENDING } else { self.level }
    }

    /// Whether the path names another file by now.
    pub(crate) fn has_moved(&self) -> bool {
        std::fs::metadata(&self.path).map_or(true, |found| (found.dev(), found.ino()) != self.inode)
    }

    /// Keeps the name of the journal known while the database is open.
    pub(crate) fn set_journal_name(&mut self, name: JournalName) {
        self.journal_name = Some(name);
    }

    pub(crate) fn journal_in_file(&self) -> bool {
        self.journal_in_file
    }

    pub(crate) fn choose_journal_in_file(&mut self, in_file: bool) {
        self.journal_in_file = in_file;
    }

    /// Not `SQLITE_IOCAP_SEQUENTIAL`: SQLite would take it for a property of the files beside the database, too, and
    /// not flush the header of a log that it begins anew.
    pub(crate) fn characteristics(&self) -> c_int {
        abi::IOCAP_SAFE_APPEND | abi::IOCAP_POWERSAFE_OVERWRITE | abi::IOCAP_BATCH_ATOMIC
    }

    /// A line for `PRAGMA untorn_info`.
    pub(crate) fn info(&self) -> String {
        let info = self.file.info();
        let last = self.file.last_commit();
        format!(
            "engine={} durability={} commit={} length={} snapshots={} redundancy={}",
            info.engine,
            info.durability,
            last.number,
            self.file.len(),
            if self.takes_snapshots() { "on" } else { "off" },
            if recorded(&self.path).is_ok_and(|recorded| recorded.is_some()) { "on" } else { "off" },
        )
    }

    /// The number of the commit that this connection reads.
    pub(crate) fn commit_number(&self) -> u64 {
        self.view.as_ref().map_or_else(|| self.file.last_commit().number, |view| view.snapshot.commit())
    }

    /// Closes the database. Who has it open last makes it a plain file, which a stock SQLite opens.
    pub(crate) fn close(mut self) -> Result<(), Code> {
        if self.guard.is_inherited() {
            // The database is still open in the process that this one was forked from.
            return Ok(());
        }
        (self.view, self.overlay) = (None, Overlay::default());
        let _ = self.locks.unlock(abi::LOCK_NONE);
        let is_last = self.guard.is_last()?;
        // Only now no other process commits any more, and the length stays.
        let len = if is_last { self.len_below().ok() } else { None };
        let Database { file, guard, locks, part, .. } = self;
        drop(part);
        if let Some(len) = len
            && len < file.len()
        {
            file.resize(len).map_err(|error| code_of(&error, abi::IOERR_CLOSE))?;
        }
        drop(locks);
        file.close().map_err(|error| code_of(&error, abi::IOERR_CLOSE))?;
        guard.end(is_last)
    }
}
