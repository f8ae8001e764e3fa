//! The rendezvous of the processes that share a file: a lock file and a socket in one directory.
//!
//! A process locks bytes of the lock file, and the kernel releases its locks when it ends. Byte 0 belongs to the
//! process that serves. Each process also has a byte for its slot, and a byte that says that it takes part. So it is
//! known exactly which processes live, without process numbers, in containers too. The file stays when all processes
//! have ended.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::storage::companion::{self, Principal};
use crate::sys::{incarnation, locks, socket};

/// The most processes.
pub(crate) const MEMBERS: usize = 64;

const SERVER: u64 = 0;
const SLOTS: u64 = 64;
const ATTACHED: u64 = SLOTS + MEMBERS as u64;

/// A lock file: device and inode.
type Identity = (u64, u64);

/// The lock files that a process has open: closing one descriptor of a file releases the locks taken through another.
///
/// A forked child has none of its parent's locks, and begins a list of its own: a thread of the parent that is not
/// there in the child may have held the parent's list at the moment of the fork, for ever.
struct OpenFiles {
    process: u64,
    files: Mutex<Vec<Identity>>,
}

/// The list of this process, or of the one it was forked from, until it is first needed.
static OPEN: ArcSwapOption<OpenFiles> = ArcSwapOption::const_empty();

fn open_files() -> Arc<OpenFiles> {
    let process = incarnation();
    loop {
        let found = OPEN.load_full();
        if let Some(open) = found.as_ref().filter(|open| open.process == process) {
            return Arc::clone(open);
        }
        OPEN.compare_and_swap(&found, Some(Arc::new(OpenFiles { process, files: Mutex::default() })));
        // The parent's is not to be dropped: one of the parent's threads may have been changing it.
        std::mem::forget(found);
    }
}

impl OpenFiles {
    /// Nobody of this process opens or closes a lock file as long as it is locked.
    fn lock(&self) -> MutexGuard<'_, Vec<Identity>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens something that processes meet for in a directory, which is made if it is not there.
///
/// # Errors
/// [`Error::Untrusted`]; [`Error::Io`] if it cannot be made; those of `open`.
/// Another user may have planted that directory for the file that is shared; then it is refused.
pub(crate) fn in_directory<T>(file: &Path, dir: &Path, open: impl FnOnce() -> Result<T>) -> Result<T> {
    companion::create_directory(dir, &Principal::at(file)?)?;
    open().inspect_err(|_| {
        // Only if nothing is in it; if it stays, the error is the one that helps.
        let _ = std::fs::remove_dir(dir);
    })
}

/// Opens a directory; that of companions without following a symbolic link.
fn open_directory(dir: &Path) -> rustix::io::Result<OwnedFd> {
    let follow = if companion::is_directory(dir) { OFlags::NOFOLLOW } else { OFlags::empty() };
    rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | follow, Mode::empty())
}

/// Opens a lock file, or makes it. What root makes belongs to the owner of the file that is shared.
fn open_lock(dir: &OwnedFd, name: &str, file: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    loop {
        match rustix::fs::openat(dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
        match rustix::fs::openat(dir, name, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR) {
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
            Ok(made) => {
                let owner = rustix::fs::stat(file).ok().filter(|_| rustix::process::geteuid().is_root());
                let owner = owner.map(|owner| Uid::from_raw(owner.st_uid));
                rustix::fs::fchown(&made, owner, None)?;
                return Ok(made);
            }
        }
    }
}

/// Why a lock file is not believed: another user could keep everybody away with it for ever.
fn believe_lock(found: &Stat, file: &Path) -> std::result::Result<(), String> {
    let (caller, owner) = (rustix::process::geteuid().as_raw(), rustix::fs::stat(file).ok().map(|file| file.st_uid));
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || found.st_nlink > 1 {
        return Err("it is no regular file with one name".to_owned());
    }
    if ![Some(0), Some(caller), owner].contains(&Some(found.st_uid)) {
        return Err(format!("it belongs to user {}", found.st_uid));
    }
    Ok(())
}

/// A rendezvous, with the slot that this process has there.
pub(crate) struct Rendezvous {
    /// The name that errors give.
    path: PathBuf,
    dir: OwnedFd,
    socket: String,
    lock: Option<File>,
    /// The list that it is on.
    open_files: Arc<OpenFiles>,
    identity: Identity,
    slot: usize,
}

impl Rendezvous {
    /// Goes to the rendezvous `name` in the directory `dir`, which need not exist before. Errors name `file`.
    ///
    /// # Errors
    /// [`Error::InUse`] if this process is there already, or there are too many; [`Error::Untrusted`] if another user
    /// may have made the lock file; [`Error::Io`].
    pub(crate) fn open(file: &Path, dir: &Path, name: &str) -> Result<Self> {
        Rendezvous::open_for(file, dir, name, "another handle of this process")
    }

    /// The same; if this process is there already, the error names `holder`.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn open_for(file: &Path, dir: &Path, name: &str, holder: &str) -> Result<Self> {
        let path = file.to_owned();
        let failed = |what: &'static str| {
            let path = path.clone();
            move |error: Errno| Error::io(what, &path, error)
        };
        let handle = open_directory(dir).map_err(failed("open the directory of"))?;
        let lock_name = format!("{name}.lock");
        // Held until the file is noted: two threads may come at once.
        let open_files = open_files();
        let mut open = open_files.lock();
        let identity = |found: rustix::fs::Stat| (found.st_dev, found.st_ino);
        // By its name, for opening it to look would be to close it afterwards.
        if let Ok(found) = rustix::fs::statat(&handle, &lock_name, AtFlags::SYMLINK_NOFOLLOW)
            && open.contains(&identity(found))
        {
            return Err(Error::InUse { path, holder: holder.to_owned() });
        }
        let lock = open_lock(&handle, &lock_name, file).map_err(failed("open the lock file of"))?;
        let found = rustix::fs::fstat(&lock).map_err(failed("examine the lock file of"))?;
        if let Err(what) = believe_lock(&found, file) {
            return Err(Error::Untrusted { path, companion: dir.join(lock_name), what });
        }
        let identity = identity(found);
        open.push(identity);
        drop(open);
        let socket = format!("{name}.sock");
        let mut rendezvous =
            Rendezvous { path, dir: handle, socket, lock: Some(lock.into()), open_files, identity, slot: 0 };
        for slot in 0..MEMBERS {
            if rendezvous.try_lock(SLOTS + slot as u64)? {
                rendezvous.slot = slot;
                return Ok(rendezvous);
            }
        }
        let holder = format!("{MEMBERS} processes, the most that can share a file");
        Err(Error::InUse { path: rendezvous.path.clone(), holder })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// This process's slot.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    fn lock(&self) -> BorrowedFd<'_> {
        // Only taken out when the place is dropped.
        self.lock.as_ref().map_or(self.dir.as_fd(), AsFd::as_fd)
    }

    fn try_lock(&self, byte: u64) -> Result<bool> {
        locks::try_lock_byte(self.lock(), byte)
            .map_err(|error| Error::io("lock a byte of the lock file of", &self.path, error))
    }

    /// Takes the part of the one that serves, if nobody has it.
    ///
    /// # Errors
    /// [`Error::Io`] where the file system has no locks.
    pub(crate) fn try_own(&self) -> Result<bool> {
        self.try_lock(SERVER)
    }

    /// Gives it back.
    pub(crate) fn give_up_ownership(&self) {
        locks::unlock_byte(self.lock(), SERVER);
    }

    /// The number of the process that serves, 0 if it has none here.
    pub(crate) fn server(&self) -> i32 {
        locks::holder(self.lock(), SERVER, 1).ok().flatten().unwrap_or(0).max(0)
    }

    /// Whether a process may be the one that serves, by its number, as far as that can be told.
    pub(crate) fn may_own(&self, process: i32) -> bool {
        match locks::holder(self.lock(), SERVER, 1) {
            // Its own lock is the only one that a process is not told of.
            Ok(None) => process <= 0 || process == rustix::process::getpid().as_raw_pid(),
            Ok(Some(holder)) => holder <= 0 || process <= 0 || holder == process,
            Err(_) => true,
        }
    }

    /// Says that this process takes part, to whoever asks [`is_alive`](Rendezvous::is_alive).
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn attach(&self) -> Result<()> {
        // Nobody else locks the byte of this slot.
        self.try_lock(ATTACHED + self.slot as u64).map(drop)
    }

    /// Takes that back.
    pub(crate) fn detach(&self) {
        locks::unlock_byte(self.lock(), ATTACHED + self.slot as u64);
    }

    /// Whether the process of a slot takes part.
    pub(crate) fn is_alive(&self, slot: usize) -> bool {
        // Where it can't be told a process may be alive.
        slot == self.slot
            || locks::holder(self.lock(), ATTACHED + slot as u64, 1).map_or(true, |holder| holder.is_some())
    }

    /// Whether any other process takes part.
    pub(crate) fn has_others(&self) -> bool {
        locks::holder(self.lock(), ATTACHED, MEMBERS as u64).map_or(true, |holder| holder.is_some())
    }

    /// Listens for others, as the one that serves.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn listen(&self) -> Result<OwnedFd> {
        // Whoever listened there before is gone.
        self.unlink();
        socket::listen(self.dir.as_fd(), &self.socket)
            .map_err(|error| Error::io("listen on the socket for processes that share", &self.path, error))
    }

    /// Removes the socket's name.
    pub(crate) fn unlink(&self) {
        let _ = rustix::fs::unlinkat(&self.dir, &self.socket, AtFlags::empty());
    }

    /// A connection to the one that serves.
    ///
    /// # Errors
    /// Those of `connect(2)`; one without a number where nobody will ever be found here again.
    pub(crate) fn connect(&self) -> io::Result<OwnedFd> {
        match socket::connect(self.dir.as_fd(), &self.socket) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.was_removed() => {
                Err(io::Error::other("the directory with its lock file and socket was removed"))
            }
            result => result,
        }
    }

    /// Whether somebody has removed the file with the locks, which stays when all have gone.
    fn was_removed(&self) -> bool {
        rustix::fs::fstat(self.lock()).is_ok_and(|found| found.st_nlink == 0)
    }
}

/// Who takes part at the meeting place `name` in the directory `dir`, in words, if anybody does; this process counts,
/// too.
///
/// # Errors
/// Those of the directory and of locks. That the lock file is not this user's to read is none: it stays when all have
/// gone. One that [`Rendezvous::open`] would refuse counts as absent: nobody takes part there.
pub(crate) fn find_participant(file: &Path, dir: &Path, name: &str) -> io::Result<Option<String>> {
    let name = format!("{name}.lock");
    // Held until the file is closed again: that would take from this process what it locked in it meanwhile.
    let open = open_files();
    let open = open.lock();
    let dir = match open_directory(dir) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        dir => dir?,
    };
    let found = match rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(None),
        found => found?,
    };
    if believe_lock(&found, file).is_err() {
        return Ok(None);
    }
    if open.contains(&(found.st_dev, found.st_ino)) {
        return Ok(Some("this process".to_owned()));
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let lock = match rustix::fs::openat(&dir, &name, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::ACCESS) => return Ok(None),
        lock => lock?,
    };
    let holder = locks::holder(lock.as_fd(), ATTACHED, MEMBERS as u64)?;
    let name = |process: i32| match u32::try_from(process) {
        Ok(process) if process > 0 => locks::process_name(process),
        _ => "another process".to_owned(),
    };
    Ok(holder.map(name))
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        let open = open_files();
        if open.process != self.open_files.process {
            // In a forked child, which has none of these locks. But it may have taken its own meanwhile, which
            // closing would release.
            return std::mem::forget(self.lock.take());
        }
        // The list is locked until the file is closed, or another thread could open it in between and lose its locks.
        let mut open = open.lock();
        self.lock = None;
        open.retain(|identity| *identity != self.identity);
    }
}

#[cfg(test)]
mod tests;
