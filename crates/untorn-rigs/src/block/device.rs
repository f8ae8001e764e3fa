//! Loop devices and mounts that always end.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::filesystem::{FileSystem, program, run};
use crate::error::{Error, Result};

/// How long an unmount waits for somebody to let go. The kernel closes a loop device a moment after its last user.
const PATIENCE: Duration = Duration::from_secs(10);

/// A file system mounted from an image. Dropping it unmounts it and frees the loop device below.
#[derive(Debug)]
pub struct Mounted {
    at: PathBuf,
}

impl Mounted {
    /// Mounts the image in a file. The file system replays its journal as it would after a power cut.
    pub fn new(kind: FileSystem, image: &Path, at: &Path) -> Result<Self> {
        Self::mount(kind, image, at, false)
    }

    /// Mounts from a file that must see every request of the file system: the page cache is passed by.
    pub(super) fn direct(kind: FileSystem, file: &Path, at: &Path) -> Result<Self> {
        Self::mount(kind, file, at, true)
    }

    fn mount(kind: FileSystem, image: &Path, at: &Path, direct: bool) -> Result<Self> {
        let device = LoopDevice::attach(image, direct)?;
        let options = Some(kind.mount_options());
        mount(Some(&device.0), at, Some(kind.as_str()), MsFlags::empty(), options)
            .map_err(|error| Error::Unmountable { image: image.to_owned(), source: io::Error::from(error) })?;
        // The device is detached right away, by its Drop: the kernel lets it go when the mount, its last user, ends.
        Ok(Mounted { at: at.to_owned() })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.at);
    }
}

/// A loop device. Dropping it detaches it, or has the kernel do so after the last use.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn attach(file: &Path, direct: bool) -> Result<Self> {
        let direct = if direct { "--direct-io=on" } else { "--direct-io=off" };
        let device = run(program("losetup")?.args(["-f", "--show", direct]).arg(file))?;
        Ok(LoopDevice(PathBuf::from(device)))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Ok(mut losetup) = program("losetup") {
            // Nothing can be done about a failure in a destructor; the next use of losetup will say what is wrong.
            let _ = run(losetup.arg("-d").arg(&self.0));
        }
    }
}

/// Unmounts, waiting for whoever still uses it. Says whether it is gone; if not, it goes with its last user.
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
