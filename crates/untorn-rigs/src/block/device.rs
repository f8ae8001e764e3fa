//! Mounts that always end.
//!
//! `mount` sets up the loop device, so that the kernel frees it with the mount, whatever becomes of this process.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};

use super::filesystem::{FileSystem, program, run};
use crate::error::{Error, Result};

/// How long an unmount waits for somebody to let go. The kernel closes a loop device a moment after its last user, which on a
/// busy machine may be a long one; given up too early, the disk is still written to when the next one is made in its place.
const PATIENCE: Duration = Duration::from_secs(120);

/// A file system mounted from an image. Dropping it unmounts it and frees the loop device below.
///
/// Other processes do the mounting and unmounting, for the image may be served by this very process. A thread of it that
/// waited for the disk could not be killed, and while it is there, the kernel would not notice that nobody serves the disk
/// any more: it would wait forever.
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

    /// Has the loop device hand on requests as they come, several at once, instead of one after the other.
    pub(super) fn let_requests_overlap(&self, image: &Path) -> Result<()> {
        let devices = run(program("losetup")?.args(["-n", "-O", "NAME", "-j"]).arg(image))?;
        run(program("losetup")?.arg("--direct-io=on").args(devices.lines())).map(drop)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let start = Instant::now();
        while let Ok(mut umount) = program("umount") {
            let over = start.elapsed() >= PATIENCE;
            // Whatever the reason, nothing shall be left in the way of the next mount here.
            let how: &[&str] = if over { &["-i", "-n", "-l"] } else { &["-i", "-n"] };
            if run(umount.args(how).arg(&self.at)).is_ok() || over {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Unmounts what is no file system on a disk, waiting for whoever still uses it. Says whether it is gone; if not, it goes
/// with its last user.
pub(super) fn unmount(at: &Path) -> bool {
    let start = Instant::now();
    loop {
        match umount2(at, MntFlags::empty()) {
            Ok(()) => return true,
            Err(nix::Error::EBUSY) if start.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(2)),
            Err(_) => {
                // Whatever the reason, nothing shall be left in the way of the next mount here.
                let _ = umount2(at, MntFlags::MNT_DETACH);
                return false;
            }
        }
    }
}
