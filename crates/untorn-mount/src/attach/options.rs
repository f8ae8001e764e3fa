//! The options of a mount.

use std::ffi::OsString;
use std::fmt::Write;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::fs::{StatVfsMountFlags, fstatvfs};
use rustix::mount::MountFlags;
use rustix::process::{getegid, geteuid};

/// The options of a mount.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttachOptions {
    /// The device.
    pub device: PathBuf,
    /// The mount's source, as `findmnt` and `df` show it.
    pub source: OsString,
    /// Whether other users may use the mount.
    pub allow_other: bool,
    /// Whether the kernel checks permissions by owner and mode.
    pub default_permissions: bool,
    /// The restrictions of the mount.
    pub restrictions: Restrictions,
}

impl AttachOptions {
    /// The options for a mount over a directory, given by a descriptor that may be `O_PATH`. Root's mount serves every
    /// user and has the kernel check permissions; an ordinary user's mount serves that user alone.
    ///
    /// # Errors
    /// Those of `fstatfs(2)`.
    pub fn over(directory: impl AsFd) -> io::Result<Self> {
        let root = geteuid().is_root();
        Ok(AttachOptions {
            device: PathBuf::from("/dev/fuse"),
            source: OsString::from("untorn"),
            allow_other: root,
            default_permissions: root,
            restrictions: Restrictions::of(directory)?,
        })
    }

    /// The option string of mount(2) for the descriptor with this number.
    pub(super) fn data(&self, device: i32) -> String {
        // 40000 is the octal mode of a directory.
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        let mut data = format!("fd={device},rootmode=40000,user_id={user},group_id={group}");
        for option in self.words() {
            // Writing to a String cannot fail.
            let _ = write!(data, ",{option}");
        }
        data
    }

    /// The options that are words.
    pub(super) fn words(&self) -> impl Iterator<Item = &'static str> + use<> {
        let all = [("allow_other", self.allow_other), ("default_permissions", self.default_permissions)];
        all.into_iter().filter(|(_, wanted)| *wanted).map(|(word, _)| word)
    }
}

/// The restrictions of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// Set-user-ID and set-group-ID bits, and file capabilities, have no effect.
    pub nosuid: bool,
    /// Device nodes cannot be opened.
    pub nodev: bool,
    /// Programs cannot be executed.
    pub noexec: bool,
    /// Nothing can be changed.
    pub read_only: bool,
}

impl Restrictions {
    /// Those of the mount that a descriptor is on.
    ///
    /// # Errors
    /// Those of `fstatfs(2)`.
    pub fn of(descriptor: impl AsFd) -> io::Result<Self> {
        let flags = fstatvfs(descriptor)?.f_flag;
        Ok(Restrictions {
            nosuid: flags.contains(StatVfsMountFlags::NOSUID),
            nodev: flags.contains(StatVfsMountFlags::NODEV),
            noexec: flags.contains(StatVfsMountFlags::NOEXEC),
            read_only: flags.contains(StatVfsMountFlags::RDONLY),
        })
    }

    /// With those that every mount of an ordinary user has.
    pub(super) fn of_a_user(self) -> Self {
        Restrictions { nosuid: true, nodev: true, ..self }
    }

    /// Each with its flag of mount(2) and its word for `fusermount3`, if it is set.
    fn given(self) -> impl Iterator<Item = (MountFlags, &'static str)> {
        [
            (self.nosuid, MountFlags::NOSUID, "nosuid"),
            (self.nodev, MountFlags::NODEV, "nodev"),
            (self.noexec, MountFlags::NOEXEC, "noexec"),
            (self.read_only, MountFlags::RDONLY, "ro"),
        ]
        .into_iter()
        .filter(|(given, ..)| *given)
        .map(|(_, flag, word)| (flag, word))
    }

    pub(super) fn flags(self) -> MountFlags {
        self.given().map(|(flag, _)| flag).collect()
    }

    pub(super) fn words(self) -> impl Iterator<Item = &'static str> {
        self.given().map(|(_, word)| word)
    }
}
