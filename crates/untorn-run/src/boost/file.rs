//! One boosted file.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, Stat, StatxAttributes, StatxFlags};
use untorn::Error;
use untorn::testing::storage::{give_lease_back, has_lease, mark_description, take_lease};
use untorn::write_cache::{BackingFile, Descriptor};
use untorn::write_cache::{CachedFile, WriteCache};
use untorn_wire::{MARK, PLAIN};

use crate::descriptor::{flags, move_to, path_of, synchronous, writable};
use crate::files::Key;
use crate::managed::{Errno, io_errno, libc_errno};

/// Who serves a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its writes the server, by way of the log.
    Boosted,
    /// The kernel, for good.
    Plain,
    /// Nobody serves its writes: what is in the log could not be made durable in it.
    Failed(Errno),
}

/// Why a file is left to the kernel.
pub(super) struct Plain {
    pub(super) why: String,
    pub(super) path: PathBuf,
}

/// What the server has of a file that is not plain.
struct Hold {
    /// The program's own description, which has the lease.
    own: OwnedFd,
    file: CachedFile,
}

pub(super) struct Boosted {
    key: Key,
    path: PathBuf,
    /// None of a plain file.
    hold: Option<Hold>,
    /// Whether the log has had something of it.
    logged: bool,
    /// Its only name was about to be removed, or to become another file's.
    leaving: bool,
    /// The name that it is about to get, and what has that.
    moving: Option<(PathBuf, Option<Key>)>,
    /// Whether the kernel may have what is not durable, of which the log knows nothing: what the opening truncated,
    /// what was written before it, attributes. The log has the file synced once, when it gets the first of it.
    unsynced: bool,
    state: State,
    /// A descriptor of it was closed, and it was not opened since: it may be that nobody holds it any more.
    resting: bool,
    /// How often it was opened.
    openings: u64,
}

impl Boosted {
    /// Boosts the file of a descriptor that was just opened.
    ///
    /// # Errors
    /// Why it is left to the kernel.
    pub(super) fn new(cache: &WriteCache, descriptor: &OwnedFd) -> Result<Self, Plain> {
        Self::over(cache, descriptor, |slow| Arc::new(slow))
    }

    /// The same, with what `device` makes of the file for the log to write to.
    pub(super) fn over(
        cache: &WriteCache,
        descriptor: &OwnedFd,
        device: impl FnOnce(Descriptor) -> Arc<dyn BackingFile>,
    ) -> Result<Self, Plain> {
        let path = path_of(descriptor).unwrap_or_default();
        Self::of(cache, descriptor, &path, device).map_err(|why| Plain { why: format!("open: {why}"), path })
    }

    fn of(
        cache: &WriteCache,
        descriptor: &OwnedFd,
        path: &Path,
        device: impl FnOnce(Descriptor) -> Arc<dyn BackingFile>,
    ) -> Result<Self, String> {
        let flags = flags(descriptor).map_err(words)?;
        if !writable(flags) {
            return Err("read-only".to_owned());
        }
        if synchronous(flags) {
            // Whatever is written by it waits for the device of the file. The kernel takes the flag off no
            // description, and another description of the file would cost the lease; nor could one that was opened
            // without the flag be given it when the file becomes a plain one.
            return Err("O_SYNC".to_owned());
        }
        if flags.contains(OFlags::DIRECT) {
            return Err("O_DIRECT".to_owned());
        }
        let status = rustix::fs::fstat(descriptor).map_err(|errno| words(libc_errno(errno)))?;
        if status.st_nlink == 0 {
            return Err("the file has no name, so a replay could not find it".to_owned());
        }
        replayable(descriptor, &status)?;
        findable(path)?;
        let copy = || descriptor.try_clone().map_err(|error| error.to_string());
        let own = copy()?;
        let slow = Descriptor::new(copy()?, path).map_err(|error| error.to_string())?;
        // Before the lease, which keeps also this process from opening the file.
        let file = cache.attach_write_through(device(slow), path).map_err(|error| error.to_string())?;
        if file.is_demoted() {
            return Err("the log no longer manages the file".to_owned());
        }
        take_lease(own.as_fd(), MARK).map_err(|error| format!("cannot take a lease: {error}"))?;
        let boosted = Boosted {
            key: (status.st_dev, status.st_ino),
            path: path.to_owned(),
            hold: None,
            logged: false,
            leaving: false,
            moving: None,
            unsynced: true,
            state: State::Boosted,
            resting: false,
            openings: 1,
        };
        // Nothing that the log may have of it from an earlier opening is to be written over what others wrote since.
        match file.reload_len() {
            Ok(()) => Ok(Boosted { hold: Some(Hold { own, file }), ..boosted }),
            Err(error) => {
                // Nothing was written yet.
                let _ = give_lease_back(own.as_fd());
                Err(error.to_string())
            }
        }
    }

    fn hold(&self) -> Result<&Hold, Errno> {
        self.hold.as_ref().ok_or(PLAIN)
    }

    fn file(&self) -> Result<&CachedFile, Errno> {
        Ok(&self.hold()?.file)
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Whether somebody waits to open it, or had it opened without waiting any longer.
    pub(super) fn is_wanted(&self) -> bool {
        self.state == State::Boosted && self.hold.as_ref().is_some_and(|hold| !has_lease(hold.own.as_fd()))
    }

    pub(super) fn len(&self) -> Result<u64, Errno> {
        self.file()?.len().map_err(errno)
    }

    /// How many of the bytes were written is for the kernel to say. Programs are let in again by the caller, once the
    /// offset is where it is to be.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
        let count = self.file()?.write_some(bytes, offset).map_err(errno)?;
        self.note();
        Ok(count)
    }

    pub(super) fn set_len(&mut self, len: u64) -> Result<(), Errno> {
        self.file()?.set_len(len).map_err(errno)?;
        self.note();
        self.allow_writers();
        Ok(())
    }

    fn note(&mut self) {
        // Before it has anything of a file the log has the file synced. From then on only attributes are the kernel's.
        self.unsynced &= self.logged;
        self.logged = true;
    }

    /// Lets programs write to it by themselves.
    pub(super) fn allow_writers(&self) {
        if self.logged
            && let Some(hold) = &self.hold
        {
            hold.file.allow_writers(!self.unsynced);
        }
    }

    /// Writes as a program does by itself; `None` if none may.
    #[cfg(test)]
    pub(super) fn write_shared(&self, bytes: &[u8], offset: u64) -> Option<usize> {
        self.file().ok()?.write_shared(bytes, offset, None).unwrap()
    }

    /// The same by a program that dies at a step of it.
    #[cfg(test)]
    pub(super) fn die_beside(&self, bytes: &[u8], offset: u64, step: untorn::write_cache::Step) {
        assert_eq!(self.file().unwrap().write_shared(bytes, offset, Some(step)).unwrap(), Some(0));
    }

    /// The next write by this server has the file to itself.
    pub(super) fn revoke_writers(&self) -> Result<(), Errno> {
        self.file()?.revoke_writers().map_err(errno)
    }

    /// The log gets to have nothing of it any more.
    pub(super) fn take_back(&self) -> Result<(), Errno> {
        self.file()?.reload_len().map_err(errno)
    }

    /// Writes, bytes and syncs of programs by themselves since the last call.
    pub(super) fn counts_shared(&self) -> [u64; 3] {
        self.file().map(CachedFile::counts_shared).unwrap_or_default()
    }

    /// Durable, all that was written.
    pub(super) fn sync(&mut self) -> Result<(), Errno> {
        if self.unsynced {
            // Not by a call of one's own: the log must hear of a flush that fails, which the kernel tells once.
            self.file()?.sync_file().map_err(errno)?;
            self.unsynced = false;
            self.allow_writers();
        }
        self.file()?.sync().map_err(errno)
    }

    /// Attributes of the file were set, by the kernel. Why it has to be a plain one from now on, if it has.
    pub(super) fn attributes_were_set(&mut self) -> Result<Option<String>, Errno> {
        self.unsynced = true;
        self.allow_writers();
        let Some(Hold { own, .. }) = &self.hold else { return Ok(None) };
        let status = rustix::fs::fstat(own).map_err(libc_errno)?;
        Ok(replayable(own, &status).err())
    }

    /// A descriptor of it was closed, or a process ended.
    pub(super) fn rest(&mut self) {
        self.resting = true;
    }

    /// Brings to an end what a process that died was writing to it.
    pub(super) fn mend(&self) -> Result<(), Errno> {
        match &self.hold {
            Some(hold) if self.state == State::Boosted => hold.file.recover_writers().map_err(errno),
            _ => Ok(()),
        }
    }

    /// How often it was opened, if it may be that nobody holds it any more.
    pub(super) fn rests_since(&self) -> Option<u64> {
        (self.resting && self.state == State::Boosted).then_some(self.openings)
    }

    /// Whether it has, durably, all that was written to it.
    pub(super) fn is_settled(&self) -> bool {
        self.moving.is_none() && self.file().is_ok_and(CachedFile::is_settled)
    }

    /// # Errors
    /// EIO if it could not be synced, whether somebody was there to be told or not.
    pub(super) fn standing(&self) -> Result<(), Errno> {
        let sound = match self.state {
            State::Boosted => self.file().is_ok_and(|file| file.check_usable().is_ok()),
            State::Plain => true,
            State::Failed(_) => false,
        };
        if sound { Ok(()) } else { Err(libc_errno(rustix::io::Errno::IO)) }
    }

    /// Whether a removal of its only name was announced that did not take place, or not yet.
    pub(super) fn stays(&self) -> bool {
        self.leaving && self.names().is_ok_and(|names| names > 0)
    }

    /// How many names it has.
    pub(super) fn names(&self) -> Result<u64, Errno> {
        let status = rustix::fs::fstat(&self.hold()?.own).map_err(libc_errno)?;
        #[allow(clippy::useless_conversion)] // Not of the same width everywhere.
        Ok(status.st_nlink.into())
    }

    /// It is about to lose the only name it has. False if it has to be a plain one first.
    pub(super) fn leave(&mut self) -> Result<bool, Errno> {
        // The log looks for it in this directory, and for the removal too.
        if self.names()? != 1 || path_of(&self.hold()?.own)? != self.path {
            return Ok(false);
        }
        self.leaving = self.file()?.prepare_unlink().map_err(errno)?;
        Ok(self.leaving)
    }

    pub(super) fn is_logged(&self) -> bool {
        self.logged
    }

    pub(super) fn set_leaving(&mut self, leaving: bool) {
        self.leaving = leaving;
    }

    /// The program's description.
    pub(super) fn own(&self) -> Result<&OwnedFd, Errno> {
        Ok(&self.hold()?.own)
    }

    /// The name that it is about to get, and what has that.
    pub(super) fn is_moving(&self) -> Option<&(PathBuf, Option<Key>)> {
        self.moving.as_ref()
    }

    /// It is about to get another name, over what has that. False if it has to be a plain one first.
    pub(super) fn move_to(&mut self, path: &Path, over: Option<Key>) -> Result<bool, Errno> {
        let fit =
            self.logged && self.names()? == 1 && path_of(&self.hold()?.own)? == self.path && findable(path).is_ok();
        if !fit || !self.file()?.begin_rename(path).map_err(errno)? {
            return Ok(false);
        }
        self.moving = Some((path.to_owned(), over));
        Ok(true)
    }

    /// It has got it, or it has not.
    pub(super) fn moved(&mut self, done: bool) -> Result<(), Errno> {
        let Some((path, _)) = self.moving.take() else { return Ok(()) };
        if done {
            self.path = path;
        }
        self.file()?.end_rename(done).map_err(errno)
    }

    /// It has no name any more, whoever removed it. False if the log cannot do without it.
    pub(super) fn has_left(&self) -> Result<bool, Errno> {
        let file = self.file()?;
        Ok(file.is_settled() || file.prepare_unlink().map_err(errno)?)
    }

    /// The description, for whoever opens the file again with `flags`, as if newly opened; `None` if it is not what
    /// they would get. The caller knows that nobody else holds it.
    pub(super) fn reopen(&mut self, wanted: OFlags) -> Result<Option<OwnedFd>, Errno> {
        let own = &self.hold()?.own;
        // A replay looks for it where it was opened first.
        if !is_as_opened(flags(own)?, wanted) || self.names()? == 0 || path_of(own)? != self.path {
            return Ok(None);
        }
        // Whoever opens it is shown nothing that a replay would not leave.
        self.mend()?;
        let own = &self.hold()?.own;
        let copy = own.try_clone().map_err(|error| io_errno(&error))?;
        move_to(own, 0)?;
        self.resting = false;
        self.openings += 1;
        Ok(Some(copy))
    }

    /// Has everything in the file durably, and nothing of it in the log any more. What is written to it from then on
    /// is the kernel's.
    pub(super) fn settle(&mut self) -> Result<(), Errno> {
        let settled = self.file()?.demote().map_err(errno);
        if let Err(errno) = settled {
            // Whoever waits goes on; whoever wrote is told, for the mark is kept.
            let own = self.hold()?.own.as_fd();
            let _ = give_lease_back(own);
            let _ = mark_description(own, MARK);
            self.state = State::Failed(errno);
        }
        settled
    }

    /// Makes it a plain one: gives the lease back, and the mark with it.
    pub(super) fn give_back(&mut self) {
        self.state = State::Plain;
        let Some(Hold { own, file }) = self.hold.take() else { return };
        // The log's copy of the description goes before the lease, which lets others in: they find no other but theirs.
        drop(file);
        // If it fails the kernel took the lease back; the mark is cleared by whichever of the two.
        if let Err(error) = give_lease_back(own.as_fd()) {
            tracing::warn!(%error, path = %self.path.display(), "cannot release a lease");
        }
    }

    /// Makes it a plain one that nobody holds. The lease ends with the description: who waits for the lease to
    /// execute the file would find it open for writing otherwise.
    pub(super) fn drop_it(&mut self) {
        self.state = State::Plain;
        if let Some(Hold { own, file }) = self.hold.take() {
            drop(file);
            drop(own);
        }
    }
}

/// Refuses what a replay could not open for writing, as the same user, by its name.
fn replayable(descriptor: &OwnedFd, status: &Stat) -> Result<(), String> {
    let attributes = rustix::fs::statx(descriptor, "", AtFlags::EMPTY_PATH, StatxFlags::empty());
    if attributes
        .is_ok_and(|found| found.stx_attributes.intersects(StatxAttributes::APPEND | StatxAttributes::IMMUTABLE))
    {
        return Err("the file is append-only or immutable, so a replay could not write to it".to_owned());
    }
    let mode = Mode::from_raw_mode(status.st_mode);
    if !rustix::process::geteuid().is_root() && !mode.contains(Mode::RUSR | Mode::WUSR) {
        return Err("the file's owner lacks read or write permission, so a replay would fail".to_owned());
    }
    Ok(())
}

/// Refuses what a replay, by the same user, could not look for; nor can a name be synced in such a directory.
fn findable(path: &Path) -> Result<(), String> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    rustix::fs::accessat(CWD, dir, Access::READ_OK | Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(|_| "no permission to read the file's directory, so a replay could not find it".to_owned())
}

/// Whether a description is what `open` with the flags `wanted` would make.
fn is_as_opened(found: OFlags, wanted: OFlags) -> bool {
    // What `open` looks at and does not keep, or what says nothing about the description.
    let passing = OFlags::CREATE | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::LARGEFILE;
    // The kernel shows it of a description with a lease.
    let asynchronous = OFlags::from_bits_retain(0o20_000);
    wanted - passing == found - passing - asynchronous
}

/// What a program is told of an error of the library.
fn errno(error: Error) -> Errno {
    tracing::warn!(%error, "an operation on a boosted file failed");
    match error {
        Error::Invalid { .. } => libc_errno(rustix::io::Errno::FBIG),
        other => other.errno(),
    }
}

fn words(errno: Errno) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::descriptor::O_DSYNC;

    #[test]
    fn a_description_with_a_lease_is_as_it_was_opened() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::options().read(true).write(true).create_new(true).open(dir.path().join("f")).unwrap();
        let file = OwnedFd::from(file);
        let start = Instant::now();
        // Other tests start processes, which have a copy until they are another program. The signal is ignored by
        // default.
        while let Err(error) = take_lease(file.as_fd(), 23) {
            assert!(start.elapsed() < Duration::from_secs(60), "{error}");
            thread::sleep(Duration::from_millis(1));
        }
        let found = flags(&file).unwrap();
        let other = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        assert!(is_as_opened(found, OFlags::RDWR) && is_as_opened(found, OFlags::RDWR | other));
        for wanted in [OFlags::WRONLY, OFlags::RDONLY, OFlags::RDWR | OFlags::APPEND, OFlags::RDWR | O_DSYNC] {
            assert!(!is_as_opened(found, wanted), "{wanted:?}");
        }
        assert!(is_as_opened(found | OFlags::APPEND, OFlags::RDWR | OFlags::APPEND | other));
        assert!(!is_as_opened(found | OFlags::APPEND, OFlags::RDWR));
        give_lease_back(file.as_fd()).unwrap();
    }
}
