//! Commit logs of managed files: each epoch of an atomic file is a commit, and `untorn commits` gives them in order.
//!
//! A program gives a file its log by `setfattr -n user.untorn.commit_log -v SIZE FILE`, where 1 stands for 64 MiB, and
//! takes it away by 0. Or the mount gives it to each file that its globs choose. The log stands in the source, beside
//! the file.
//!
//! # Invariants
//!
//! 1. A log is made or removed while nobody else has the state of its file, and after everything that the log of the
//!    mount has of the file is durably in the source. So each epoch has a record or is from before the log.
//! 2. An open epoch is not cut in two: the log of such a file changes after a sync (EBUSY).
//! 3. A log goes with its file through renames, and with its last name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use rustix::fs::AtFlags;
use rustix::io::Errno;
use untorn::options::CommitLog;
use untorn::write_cache;

use super::file::Served;
use super::{Managing, errno};
use crate::serve::nodes::{Key, Node, key_of};
use crate::serve::{HIDDEN, Server};

/// The attribute that says how large the commit log of a file is.
pub(in crate::serve) const COMMIT_LOG: &str = "user.untorn.commit_log";
/// The attribute that says where the source of a file is, and its log.
pub(in crate::serve) const SOURCE: &str = "user.untorn.source";

/// Bytes that a log may take, unless somebody says otherwise.
const LIMIT: u64 = 64 << 20;
/// Bytes that it may take at least: with fewer, most commits would have no room.
const LEAST: u64 = 4096;

/// The limit that the value of the attribute stands for; 0 for no log.
fn limit(value: &[u8]) -> Result<u64, Errno> {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number: u64 =
        std::str::from_utf8(&value[..digits]).ok().and_then(|text| text.parse().ok()).ok_or(Errno::INVAL)?;
    let shift = match &value[digits..] {
        b"" => 0,
        b"K" => 10,
        b"M" => 20,
        b"G" => 30,
        _ => return Err(Errno::INVAL),
    };
    match number.checked_mul(1 << shift).ok_or(Errno::INVAL)? {
        0 => Ok(0),
        1 => Ok(LIMIT),
        bytes if bytes >= LEAST => Ok(bytes),
        _ => Err(Errno::INVAL),
    }
}

/// A file that may have a commit log beside it, before its name changes.
pub(in crate::serve) struct Beside {
    key: Key,
    path: PathBuf,
    is_last_name: bool,
}

impl Beside {
    /// Whether both are names of one file.
    pub(in crate::serve) fn is_same(&self, other: &Beside) -> bool {
        self.key == other.key
    }
}

impl Managing {
    /// The commit log that a file is to get by its path, unless it has one.
    pub(super) fn commit_log_for(&self, path: &Path) -> Option<CommitLog> {
        let is_chosen = self.commit_logs.as_ref().is_some_and(|globs| globs.choose(path));
        (is_chosen && matches!(untorn::commits::kept(path), Ok(None))).then(|| CommitLog::new(LIMIT))
    }

    /// Gives a file a commit log, or takes it away.
    fn change_commit_log(&self, key: Key, path: &Path, log: Option<CommitLog>) -> Result<(), Errno> {
        let _alone = self.moves.write().unwrap_or_else(PoisonError::into_inner);
        let set = || write_cache::set_commit_log(path, log).map(drop).map_err(errno);
        let Some(managed) = self.find(key) else { return set() };
        let mut state = managed.exclusive();
        match &state.served {
            Served::Failed(errno) => return Err(*errno),
            Served::Logged(file) if file.has_open_epoch() => return Err(Errno::BUSY),
            Served::Plain => return Err(Errno::OPNOTSUPP),
            Served::Fresh => return set(),
            Served::Logged(_) => {}
        }
        managed.settle(&mut state)?;
        let done = set();
        let path = state.path.clone();
        if let Err(error) = managed.serve_again(&mut state, self, &path) {
            self.is_plain(&path, error.to_string());
            done?;
            return Err(errno(error));
        }
        done
    }

    /// A file lost a name. Its commit log goes with the last one.
    fn lost_its_name(&self, beside: &Beside) {
        if !beside.is_last_name {
            return;
        }
        if let Some(managed) = self.find(beside.key)
            && let Some(file) = managed.shared().file()
        {
            // At once, so that the directory can be removed, too.
            return file.was_removed();
        }
        if let Err(error) = write_cache::remove_commit_log(&beside.path, beside.key.1) {
            tracing::warn!(path = %beside.path.display(), %error, "cannot remove the commit log of a removed file");
        }
    }
}

impl Server {
    /// The file of this name, if there may be commit logs in its directory.
    pub(in crate::serve) fn beside(&self, parent: &Node, name: &OsStr) -> Option<Beside> {
        rustix::fs::statat(parent, OsStr::from_bytes(HIDDEN), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let status = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let path = self.place_of(parent, name).ok()?;
        #[allow(clippy::useless_conversion)] // Not of the same width everywhere.
        Some(Beside { key: key_of(&status), path, is_last_name: u64::from(status.st_nlink) == 1 })
    }

    /// The name is gone.
    pub(in crate::serve) fn is_gone(&self, beside: Option<Beside>) {
        if let Some(beside) = beside {
            self.managing.lost_its_name(&beside);
        }
    }

    /// The file has another name.
    pub(in crate::serve) fn has_moved(&self, beside: Option<&Beside>, parent: &Node, name: &OsStr) {
        let Some(Beside { path: from, .. }) = beside else { return };
        let Ok(to) = self.place_of(parent, name) else { return };
        if from.parent() != to.parent()
            && let Err(error) = write_cache::carry_commit_log(from, &to)
        {
            tracing::error!(path = %to.display(), %error, "the commit log of a renamed file stays behind");
        }
    }

    /// The value of the attribute, as programs see it.
    pub(in crate::serve) fn commit_log(&self, node: &Node) -> Result<Vec<u8>, Errno> {
        let path = self.path_of(node)?.filter(|_| node.is_regular()).ok_or(Errno::NODATA)?;
        match untorn::commits::kept(&path) {
            Ok(Some(log)) => Ok(log.limit().to_string().into_bytes()),
            Ok(None) => Err(Errno::NODATA),
            Err(error) => Err(errno(error)),
        }
    }

    /// Gives a file a commit log, or takes it away.
    pub(in crate::serve) fn set_commit_log(&self, node: &Node, value: &[u8]) -> Result<(), Errno> {
        let limit = limit(value)?;
        if !node.is_regular() {
            return Err(Errno::OPNOTSUPP);
        }
        let path = self.path_of(node)?.ok_or(Errno::NOENT)?;
        let is_atomic = self.managing.is_atomic() || self.is_marked(node)?;
        if limit != 0 && !(is_atomic && self.managing.globs.choose(&path)) {
            let what = "only an atomic file that the mount manages gets a commit log; mount with `--mode atomic`, or \
                        mark the file by `setfattr -n user.untorn.atomic -v 1`";
            tracing::warn!(path = %path.display(), what, "refused a commit log");
            return Err(Errno::OPNOTSUPP);
        }
        let log = (limit != 0).then(|| CommitLog::new(limit));
        self.managing.change_commit_log(node.key, &path, log)
    }

    /// Where the source of a file is.
    pub(in crate::serve) fn source_of(&self, node: &Node) -> Result<Vec<u8>, Errno> {
        let path = self.path_of(node)?.ok_or(Errno::NODATA)?;
        Ok(path.into_os_string().into_encoded_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_digits_and_perhaps_a_suffix() {
        let sizes: [(&[u8], u64); 6] =
            [(b"0", 0), (b"1", LIMIT), (b"4096", 4096), (b"8K", 8192), (b"16M", 16 << 20), (b"2G", 2 << 30)];
        for (value, bytes) in sizes {
            assert_eq!(limit(value), Ok(bytes));
        }
        for value in [&b""[..], b"-1", b"M", b"1X", b"1 ", b"4095", b"99999999999999999999", b"18446744073709551615G"] {
            assert_eq!(limit(value), Err(Errno::INVAL), "{value:?}");
        }
    }
}
