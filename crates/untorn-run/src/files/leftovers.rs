//! What the engine keeps beside a file, for a recovery, when the file has lost its last name. It is not to be in the
//! way of who removes the directory, and programs would not see what is.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, open, openat, statat, unlinkat};

/// Where that is, in a directory; beside a stranger's, the number of the file's owner follows.
const SIDECARS: &str = ".untorn";

/// What follows the file's inode in the names there; `docs/format.md` has them. One that was set aside is kept: it is
/// not this file's.
const KINDS: [&str; 4] = ["", ".spill", ".redundancy", ".sidecar-redundancy"];

/// A directory of sidecars, open: another user may have put a symbolic link in its place, which is not followed.
struct Sidecars {
    path: PathBuf,
    directory: OwnedFd,
    /// The names there beside the file.
    names: Vec<String>,
}

/// What stands in a directory beside a file, by the file's device and inode.
fn beside(directory: &Path, (device, inode): (u64, u64)) -> Vec<Sidecars> {
    let own = format!("{SIDECARS}-{}", rustix::process::geteuid().as_raw());
    let found = [SIDECARS, &own].into_iter().filter_map(|name| {
        let path = directory.join(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = open(&path, flags, Mode::empty()).ok()?;
        let mut names: Vec<String> = KINDS.map(|kind| format!("{inode}{kind}")).into();
        names.retain(|name| {
            statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| found.st_dev == device)
        });
        Some(Sidecars { path, directory, names })
    });
    found.filter(|sidecars| !sidecars.names.is_empty()).collect()
}

/// Removes what stands in a directory beside a file of ours that has no name any more. What has it open goes on with
/// it.
pub(super) fn remove(directory: &Path, file: (u64, u64)) {
    remove_all(directory, &beside(directory, file));
}

/// The same of a file that is none of ours, unless somebody uses it.
pub(super) fn remove_unused(directory: &Path, file: (u64, u64)) {
    let found = beside(directory, file);
    let locked = |(sidecars, name): (&Sidecars, &String)| {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = openat(&sidecars.directory, name, flags, Mode::empty()).ok()?;
        flock(&opened, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(opened)
    };
    let names = found.iter().flat_map(|sidecars| sidecars.names.iter().map(move |name| (sidecars, name)));
    // Kept locked until they are gone.
    let Some(_locks) = names.map(locked).collect::<Option<Vec<OwnedFd>>>() else { return };
    remove_all(directory, &found);
}

fn remove_all(directory: &Path, found: &[Sidecars]) {
    // A name that a crash brings back has to find them.
    if found.is_empty() || File::open(directory).and_then(|directory| directory.sync_all()).is_err() {
        return;
    }
    for sidecars in found {
        for name in &sidecars.names {
            let _ = unlinkat(&sidecars.directory, name, AtFlags::empty());
        }
        // Others need what stays there, or are about to.
        let _ = std::fs::remove_dir(&sidecars.path);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Another user's link would have names removed in a directory of the caller's.
    #[test]
    fn a_link_in_the_place_of_the_sidecars_is_not_followed() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(elsewhere.path().join("7"), "somebody's").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), dir.path().join(SIDECARS)).unwrap();
        let file = (fs::metadata(elsewhere.path()).unwrap().dev(), 7);
        remove(dir.path(), file);
        remove_unused(dir.path(), file);
        assert!(elsewhere.path().join("7").exists());
    }

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
        flock(&used, FlockOperation::LockShared).unwrap();
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
