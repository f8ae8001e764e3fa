//! The mount by mount(2), in whatever namespaces this process is.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;

use super::{AttachError, AttachOptions, FILE_SYSTEM, advice};

/// The step that failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// Opening the device.
    Device(io::Error),
    /// mount(2).
    Mount(io::Error),
}

impl Failed {
    /// Whether `fusermount3` may still succeed. It mounts with the rights of root, but opens the device as its caller.
    pub(super) fn is_permission(&self) -> bool {
        matches!(self, Failed::Mount(error) if error.kind() == io::ErrorKind::PermissionDenied)
    }

    /// The error for the user.
    pub(super) fn explain(self, mountpoint: &Path, options: &AttachOptions) -> AttachError {
        match self {
            Failed::Device(source) => device_error(&options.device, source),
            Failed::Mount(source) => {
                let advice = advice::for_mount(&source);
                AttachError::System { what: format!("mount on {}", mountpoint.display()), source, advice }
            }
        }
    }
}

/// The error of a device that could not be opened.
pub(super) fn device_error(device: &Path, source: io::Error) -> AttachError {
    let advice = advice::for_device(&source, device);
    AttachError::System { what: format!("open {}", device.display()), source, advice: Some(advice) }
}

/// Opens the device.
pub(super) fn open_device(options: &AttachOptions) -> io::Result<OwnedFd> {
    Ok(open(&options.device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Mounts, and returns the device.
pub(super) fn mount(mountpoint: &Path, options: &AttachOptions) -> Result<OwnedFd, Failed> {
    let device = open_device(options).map_err(Failed::Device)?;
    mount_device(&device, mountpoint, options).map_err(Failed::Mount)?;
    Ok(device)
}

/// Mounts with a device that is open.
pub(super) fn mount_device(device: &OwnedFd, mountpoint: &Path, options: &AttachOptions) -> io::Result<()> {
    let data = CString::new(options.data(device.as_raw_fd())).map_err(io::Error::from)?;
    let restrictions = match geteuid().is_root() {
        true => options.restrictions,
        false => options.restrictions.of_a_user(),
    };
    let flags = restrictions.flags();
    Ok(rustix::mount::mount(&options.source, mountpoint, FILE_SYSTEM, flags, data.as_c_str())?)
}
