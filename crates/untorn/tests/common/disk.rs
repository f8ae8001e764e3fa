//! Small file systems, to fill.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::FallocateFlags;

use super::PAGE;

/// What a small disk is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Tmpfs,
    /// An ext4 on a loop device: like on most disks, reading a hole takes no space.
    Ext4,
    /// An xfs on a loop device.
    #[allow(dead_code)] // Not every test program that has this file uses one.
    Xfs,
}

/// A small file system, unmounted when dropped.
pub(crate) struct SmallDisk(pub(crate) tempfile::TempDir, Kind);

impl SmallDisk {
    pub(crate) fn mount(kind: Kind, kib: u64) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let ok = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let mounted = match kind {
            Kind::Tmpfs => {
                ok(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "none"]).arg(dir.path()))
            }
            Kind::Ext4 | Kind::Xfs => {
                let image = tempfile::NamedTempFile::new().unwrap();
                image.as_file().set_len(kib * 1024).unwrap();
                // The mount keeps the image when its name is gone.
                let make =
                    |program: &str, arguments: &[&str]| ok(Command::new(program).args(arguments).arg(image.path()));
                let made = match kind {
                    // Newer tools refuse an xfs of less than 300 MiB without the first option; older ones have none.
                    Kind::Xfs => make("mkfs.xfs", &["--unsupported", "-q", "-f"]) || make("mkfs.xfs", &["-q", "-f"]),
                    _ => make("mkfs.ext4", &["-q", "-F", "-b", "4096", "-m", "0", "-O", "^has_journal"]),
                };
                made && ok(Command::new("mount").args(["-o", "loop"]).arg(image.path()).arg(dir.path()))
                    && (matches!(kind, Kind::Xfs) || std::fs::remove_dir(dir.path().join("lost+found")).is_ok())
            }
        };
        if mounted {
            return Some(SmallDisk(dir, kind));
        }
        untorn_testing::skipped!("mounting a small {kind:?} needs root and its tools");
        None
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Takes all space but `pages` pages.
    pub(crate) fn fill(&self, pages: u64) {
        let ballast = OpenOptions::new().create(true).truncate(false).write(true).open(self.path("ballast")).unwrap();
        let before = ballast.metadata().unwrap().len();
        let mut len = before;
        let mut step = 4096 * PAGE as u64;
        while step >= PAGE as u64 {
            match rustix::fs::fallocate(&ballast, FallocateFlags::empty(), len, step) {
                Ok(()) => len += step,
                Err(_) => step /= 2,
            }
        }
        ballast.set_len(len.saturating_sub(pages * PAGE as u64).max(before)).unwrap();
        ballast.sync_all().unwrap();
        let free = rustix::fs::statvfs(self.0.path()).unwrap().f_bavail;
        // Some file systems keep a few for themselves, and count them as free.
        let kept = !matches!(self.1, Kind::Tmpfs | Kind::Ext4);
        assert!(free == pages || kept && free > pages, "{free} pages free on the small disk");
    }

    pub(crate) fn empty(&self) {
        // A child that a test forked meanwhile may have it open, and its space until then.
        OpenOptions::new().write(true).open(self.path("ballast")).unwrap().set_len(0).unwrap();
        std::fs::remove_file(self.path("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "a small disk stays mounted");
    }
}
