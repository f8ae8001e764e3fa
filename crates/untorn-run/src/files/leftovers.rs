//! What the engine keeps beside a file, for a recovery, when the file has lost its last name. It is not to be in the
//! way of who removes the directory, and programs would not see what is.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

/// Where that is, in a directory.
const SIDECARS: &str = ".untorn";

/// What follows the file's inode in the names there; `docs/format.md` has them. One that was set aside is kept: it is
/// not this file's.
const KINDS: [&str; 4] = ["", ".spill", ".redundancy", ".sidecar-redundancy"];

/// What stands in a directory beside a file, by the file's device and inode.
fn beside(directory: &Path, (device, inode): (u64, u64)) -> Vec<PathBuf> {
    let all = KINDS.map(|kind| directory.join(SIDECARS).join(format!("{inode}{kind}")));
    all.into_iter().filter(|path| fs::symlink_metadata(path).is_ok_and(|found| found.dev() == device)).collect()
}

/// Removes what stands in a directory beside a file of ours that has no name any more. What has it open goes on with
/// it.
pub(super) fn remove(directory: &Path, file: (u64, u64)) {
    remove_all(directory, &beside(directory, file));
}

/// The same of a file that is none of ours, unless somebody uses it.
pub(super) fn remove_unused(directory: &Path, file: (u64, u64)) {
    let names = beside(directory, file);
    let locked = |path: &PathBuf| {
        let opened = File::open(path).ok()?;
        rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(opened)
    };
    // Kept locked until they are gone.
    let Some(_locks) = names.iter().map(locked).collect::<Option<Vec<File>>>() else { return };
    remove_all(directory, &names);
}

fn remove_all(directory: &Path, names: &[PathBuf]) {
    // A name that a crash brings back has to find them.
    if names.is_empty() || File::open(directory).and_then(|directory| directory.sync_all()).is_err() {
        return;
    }
    for name in names {
        let _ = fs::remove_file(name);
    }
    // What stays there is what others need, or are about to.
    let _ = fs::remove_dir(directory.join(SIDECARS));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_sidecars_are_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let sidecars = dir.path().join(SIDECARS);
        fs::create_dir(&sidecars).unwrap();
        for name in ["7", "7.redundancy", "7.x.orphan", "77"] {
            fs::write(sidecars.join(name), "").unwrap();
        }
        let file = (fs::metadata(dir.path()).unwrap().dev(), 7);
        let used = File::open(sidecars.join("7.redundancy")).unwrap();
        rustix::fs::flock(&used, FlockOperation::LockShared).unwrap();
        remove_unused(dir.path(), file);
        assert_eq!(fs::read_dir(&sidecars).unwrap().count(), 4);
        drop(used);
        remove_unused(dir.path(), file);
        let mut left: Vec<_> = fs::read_dir(&sidecars).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["7.x.orphan", "77"]);
        fs::remove_file(sidecars.join("7.x.orphan")).unwrap();
        remove(dir.path(), (file.0, 77));
        assert!(!sidecars.exists());
    }
}
