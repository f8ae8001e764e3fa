//! Sidecars and redundancy files of files that are gone.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::format::sidecar::leftovers::{self, Found, LeftoverKind};
use crate::storage::PageCache;
use crate::storage::companion::directories_in;

/// A file in `.untorn` that belongs to no file of the directory, with the files that go with it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Leftover {
    /// Its path.
    pub path: PathBuf,
    /// What it is.
    pub kind: LeftoverKind,
    /// The path of the file that it was made for, if it says so.
    pub made_for: Option<PathBuf>,
    /// The space that it takes, in bytes.
    pub bytes: u64,
    /// How long ago it was changed last.
    pub age: Duration,
    /// Whether [`prune`] removed it.
    pub removed: bool,
}

/// Lists what stands in `.untorn` of a directory and belongs to no file there: sidecars of removed files, and what
/// untorn set aside when an inode number came to another file. With `remove`, removes what was last changed
/// `older_than` ago or earlier.
///
/// It never lists what belongs to a file of the directory, by the inode number or by the mark, or what a process has
/// locked. A sidecar may hold the only copy of committed bytes of a file that was moved to another directory; that file
/// is refused without it.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("gone");
/// let options = untorn::Options::new().keep_sidecar(true);
/// options.create(&path, 4096)?.close()?;
/// std::fs::remove_file(&path).unwrap();
/// let found = untorn::prune(dir.path(), std::time::Duration::ZERO, true)?;
/// assert!(found.len() == 1 && found[0].removed && found[0].made_for == Some(path));
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::Io`] if the directory cannot be read, or a file in it cannot be removed. [`Error::Untrusted`] if another
/// user could exchange the files in `.untorn`.
pub fn prune(dir: impl AsRef<Path>, older_than: Duration, remove: bool) -> Result<Vec<Leftover>> {
    let beside = dir.as_ref();
    let medium = PageCache::reading_by_call();
    if !beside.is_dir() {
        return Err(Error::io("list the directory", beside, rustix::io::Errno::NOTDIR));
    }
    let mut all = Vec::new();
    for sidecars in directories_in(beside)? {
        for found in leftovers::list(&medium, beside, &sidecars)? {
            let Some(mut leftover) = examined(&found) else { continue };
            if leftover.age < older_than {
                continue;
            }
            if remove {
                leftover.removed = leftovers::remove(&medium, beside, &sidecars, &found)?;
            }
            all.push(leftover);
        }
    }
    Ok(all)
}

/// Its size and age; `None` if it is gone meanwhile.
fn examined(found: &Found) -> Option<Leftover> {
    let modified = std::fs::symlink_metadata(&found.path).ok()?.modified().ok()?;
    let space = |path: &PathBuf| std::fs::symlink_metadata(path).map_or(0, |file| file.blocks() * 512);
    Some(Leftover {
        path: found.path.clone(),
        kind: found.kind,
        made_for: found.made_for.clone(),
        bytes: found.files.iter().map(space).sum(),
        // A clock that was set back makes nothing older.
        age: SystemTime::now().duration_since(modified).unwrap_or_default(),
        removed: false,
    })
}
