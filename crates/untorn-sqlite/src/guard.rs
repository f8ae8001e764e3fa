//! The guard: what stands between a stock SQLite and a database that is open here.
//!
//! While a database is open, its commits may be in untorn's sidecar alone. A stock SQLite would show old bytes, and
//! change them. So its rollback journal's name, `app.db-journal`, is a directory meanwhile. SQLite looks for a journal
//! each time it begins to read: one that it cannot read is one that it cannot roll back, so it refuses the database
//! with `SQLITE_IOERR`. After a crash the directory is still there, and refuses too, until this VFS has opened the
//! database, recovered it and closed it.
//!
//! # Invariants
//!
//! 1. The directory is durable before the first commit goes to the sidecar, and goes after the last close has made the
//!    database a plain file.
//! 2. Each process that has the database open holds a shared lock on the file `users` in it. Only who gets that
//!    exclusively, the last one, removes the directory. Who opens looks again, once locked, whether the file is still
//!    the one of that name.
//! 3. A stock SQLite that is reading or writing when the directory appears holds a lock on the database. Then the
//!    opening is refused with `SQLITE_BUSY`, and the directory removed. One that comes later finds the directory.
//! 4. A rollback journal that a stock SQLite left moves into the directory in one step, so that at no time does a stock
//!    SQLite find none. This VFS's SQLite rolls it back.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::Code;
use crate::beside::{Beside, Kind};
use crate::locks;

/// A database that no stock SQLite opens, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Guard {
    directory: PathBuf,
    database: PathBuf,
    users: File,
    /// The process whose guard this is. A forked child has a copy of it, which must leave the lock alone.
    process: u32,
}

/// The name of a database's rollback journal, which the directory has.
pub(crate) fn directory_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-journal");
    name.into()
}

/// The name of a database's write-ahead log.
pub(crate) fn wal_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// The rollback journal of this VFS's SQLite.
pub(crate) fn journal_in(directory: &Path) -> PathBuf {
    directory.join("journal")
}

fn sync_directory(of: &Path) -> io::Result<()> {
    let parent = of.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

impl Guard {
    /// Guards a database that exists. `nobody_uses_it` looks whether a stock SQLite does, and fails then.
    ///
    /// # Errors
    /// Those of that look and of the file system.
    pub(crate) fn new(database: &Path, mut nobody_uses_it: impl FnMut() -> Result<(), Code>) -> Result<Self, Code> {
        let directory = directory_of(database);
        loop {
            make(&directory)?;
            check_trusted(&directory, database)?;
            let users = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
                .open(directory.join("users"));
            let users = match users {
                // The last one who had it open removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                users => users?,
            };
            locks::share(&users)?;
            let own = users.metadata()?.ino();
            match fs::symlink_metadata(directory.join("users")) {
                Ok(found) if found.ino() == own => {}
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            }
            let process = std::process::id();
            let guard = Guard { directory, database: database.to_owned(), users, process };
            // Each looks, whoever made the directory: the one that did may be looking still. One at a time, since a
            // look locks the database.
            let looking = locks::alone(File::create(guard.directory.join("opening"))?);
            let looked = looking.map_err(Code::from).and_then(|_looking| nobody_uses_it());
            if let Err(code) = looked {
                guard.end(false)?;
                return Err(code);
            }
            sync_directory(&guard.directory)?;
            return Ok(guard);
        }
    }

    /// The words that say which files there may be beside the database, with those set that there are.
    pub(crate) fn beside(&self) -> io::Result<Beside> {
        let _opening = locks::alone(File::create(self.directory.join("opening"))?)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let beside = Beside::map(&options.open(self.directory.join("beside"))?)?;
        for (kind, name) in [(Kind::Journal, journal_in(&self.directory)), (Kind::Wal, wal_of(&self.database))] {
            match fs::symlink_metadata(name) {
                Ok(_) => beside.note(kind),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // A journal that nobody looks for would never be rolled back.
                Err(error) => return Err(error),
            }
        }
        Ok(beside)
    }

    /// Whether this process was forked from the one that opened the database.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether no other process, and no other connection of this one, has the database open. From then on none can,
    /// until the guard goes.
    pub(crate) fn is_last(&self) -> io::Result<bool> {
        locks::try_alone(&self.users)
    }

    /// Ends the guard of a database that this connection has closed, and removes the directory if nobody else has it
    /// open and SQLite needs no journal in it. `is_last`: what [`is_last`](Guard::is_last) said, if it was asked.
    pub(crate) fn end(self, is_last: bool) -> Result<(), Code> {
        // Of two that end at the same time each would find the other's shared lock, so this one goes first.
        let alone = is_last || locks::unlock(&self.users).and_then(|()| self.is_last())?;
        if alone && !is_hot(&journal_in(&self.directory))? {
            self.remove()?;
        }
        Ok(())
    }

    fn remove(&self) -> io::Result<()> {
        for name in ["beside", "journal", "lock", "lock-shm", "opening", "users"] {
            match fs::remove_file(self.directory.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::remove_dir(&self.directory)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_inherited() {
            // Closing the file does not release it while a forked child has it open, too. This cannot fail: the
            // descriptor is valid.
            let _ = locks::unlock(&self.users);
        }
    }
}

/// Whether SQLite would roll a journal back: one that it is done with is empty or begins with a zero.
pub(crate) fn is_hot(journal: &Path) -> io::Result<bool> {
    let mut first = [0];
    match File::open(journal).and_then(|mut journal| journal.read(&mut first)) {
        Ok(count) => Ok(count == 1 && first != [0]),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Refuses a directory that another user may have planted: SQLite believes a journal in it.
fn check_trusted(directory: &Path, database: &Path) -> Result<(), Code> {
    let (found, owner) = (fs::symlink_metadata(directory)?, fs::metadata(database)?.uid());
    let trusted = [0, rustix::process::geteuid().as_raw(), owner].contains(&found.uid());
    if trusted && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let text = format!("{}: another user may have planted this directory, or may change it", directory.display());
    crate::log(crate::abi::CANTOPEN, &text);
    Err(Code(crate::abi::CANTOPEN))
}

/// Makes the directory, unless it is there.
fn make(directory: &Path) -> io::Result<()> {
    let create = |directory: &Path| fs::DirBuilder::new().mode(0o755).create(directory);
    match create(directory) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    match fs::symlink_metadata(directory) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(io::Error::other("the journal's name is taken by something else")),
        // It went meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return make(directory),
        Err(error) => return Err(error),
    }
    let mut own = directory.as_os_str().to_owned();
    own.push(format!(".{}", std::process::id()));
    let own = PathBuf::from(own);
    // A process of this number may have been killed here.
    let _ = fs::remove_file(journal_in(&own)).and_then(|()| fs::remove_dir(&own));
    create(&own)?;
    let moved = fs::hard_link(directory, journal_in(&own)).and_then(|()| {
        File::open(&own)?.sync_all()?;
        renameat_with(CWD, directory, CWD, &own, RenameFlags::EXCHANGE).map_err(io::Error::from)
    });
    if let Err(error) = moved {
        let _ = fs::remove_file(journal_in(&own));
        let _ = fs::remove_dir(&own);
        return Err(error);
    }
    sync_directory(directory)?;
    // The journal's own name of before.
    fs::remove_file(&own)
}
