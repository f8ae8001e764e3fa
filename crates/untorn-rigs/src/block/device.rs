//! Mounts that never outlive the rig.
//!
//! `mount` sets up the loop device, so that the kernel frees it with the mount, even if this process is killed.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};

use super::filesystem::{FileSystem, program, run};
use crate::error::{Error, Result};

/// How long an unmount waits for other users. The kernel closes a loop device some time after its last user, on a busy
/// machine a long time. If the rig gave up too early, the old disk would still be written to when the next one replaces
/// it.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(120);

/// A file system mounted from an image. Dropping it unmounts it and frees the loop device below.
///
/// Other processes mount and unmount it, because this process may serve the image. A thread of this process that waits
/// for the disk cannot be killed. While it exists, the kernel would not notice that the disk is no longer served, and
/// would wait forever.
#[derive(Debug)]
pub struct Mounted {
    at: PathBuf,
}

impl Mounted {
    /// Mounts the image in a file. The file system replays its journal as it would after a power cut.
    pub fn new(kind: FileSystem, image: &Path, at: &Path) -> Result<Self> {
        let options = format!("loop,{}", kind.mount_options());
        let mounted = run(program("mount")?.args(["-i", "-n", "-t", kind.as_str(), "-o", &options]).args([image, at]));
        match mounted {
            Ok(_) => Ok(Mounted { at: at.to_owned() }),
            Err(Error::Program { message, .. }) => Err(Error::Unmountable { image: image.to_owned(), reason: message }),
            Err(error) => Err(error),
        }
    }

    /// Makes the loop device pass on several requests at once instead of one after the other.
    pub(super) fn let_requests_overlap(&self, image: &Path) -> Result<()> {
        let devices = run(program("losetup")?.args(["-n", "-O", "NAME", "-j"]).arg(image))?;
        run(program("losetup")?.arg("--direct-io=on").args(devices.lines())).map(drop)
    }

    /// Its mount point.
    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let start = Instant::now();
        while let Ok(mut umount) = program("umount") {
            let over = start.elapsed() >= UNMOUNT_TIMEOUT;
            // Whatever the reason, leave nothing that blocks the next mount here.
            let how: &[&str] = if over { &["-i", "-n", "-l"] } else { &["-i", "-n"] };
            if run(umount.args(how).arg(&self.at)).is_ok() || over {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Unmounts a mount without a disk, waiting for its users. Returns whether it is unmounted; if not, it disappears with
/// its last user.
pub(super) fn unmount(at: &Path) -> bool {
    let start = Instant::now();
    loop {
        match umount2(at, MntFlags::empty()) {
            Ok(()) => return true,
            Err(nix::Error::EBUSY) if start.elapsed() < UNMOUNT_TIMEOUT => thread::sleep(Duration::from_millis(2)),
            Err(_) => {
                // Whatever the reason, leave nothing that blocks the next mount here.
                let _ = umount2(at, MntFlags::MNT_DETACH);
                return false;
            }
        }
    }
}
