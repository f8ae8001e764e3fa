//! The file systems under test, created and mounted so that many requests are in flight.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use crate::error::{Error, Result};

/// A file system that the kernel mounts from a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4, ordered data, a journal of 4 MiB that is committed every second.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs, with a commit every second.
    Btrfs,
}

impl FileSystem {
    /// All of them.
    pub const ALL: [FileSystem; 3] = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs];

    /// Its name for the kernel and mkfs.
    pub fn as_str(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }

    /// Length of its image in bytes: slightly more than its mkfs's minimum. Most of it stays a hole.
    fn image_len(self) -> u64 {
        match self {
            FileSystem::Ext4 => 64 << 20,
            FileSystem::Xfs => 320 << 20,
            FileSystem::Btrfs => 256 << 20,
        }
    }

    /// Its mkfs program, and the Debian package of that.
    fn maker(self) -> (&'static str, &'static str) {
        match self {
            FileSystem::Ext4 => ("mkfs.ext4", "e2fsprogs"),
            FileSystem::Xfs => ("mkfs.xfs", "xfsprogs"),
            FileSystem::Btrfs => ("mkfs.btrfs", "btrfs-progs"),
        }
    }

    /// The mount options. Short commit intervals keep metadata in flight.
    pub(super) fn mount_options(self) -> &'static str {
        match self {
            FileSystem::Ext4 | FileSystem::Btrfs => "commit=1",
            // Every image of a run has the same UUID.
            FileSystem::Xfs => "nouuid",
        }
    }

    /// Creates `image`, which must not exist, as an empty file system of about the minimum size.
    pub fn make(self, image: &Path) -> Result<()> {
        self.make_of(self.image_len(), image)
    }

    /// Creates `image`, which must not exist, as an empty file system of `len` bytes.
    pub fn make_of(self, len: u64, image: &Path) -> Result<()> {
        let file = File::create_new(image).map_err(|error| Error::io("create", image, error))?;
        file.set_len(len).map_err(|error| Error::io("grow", image, error))?;
        let arguments: &[&str] = match self {
            // No lazy initialization: a kernel thread that writes zeros would fill the log.
            FileSystem::Ext4 => {
                &["-q", "-F", "-b", "4096", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0"]
            }
            FileSystem::Xfs | FileSystem::Btrfs => &["-q", "-f"],
        };
        run(program(self.maker().0)?.args(arguments).arg(image)).map(drop)
    }

    /// Fails with the first tool or privilege that this machine lacks for the rig on this file system.
    pub fn require(self) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::missing("root", "only root may use loop devices and mounts; run it with sudo"));
        }
        let device = |path: &str, remedy: &str| match File::options().read(true).write(true).open(path) {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::missing(path, format!("{error}; {remedy}"))),
        };
        device("/dev/fuse", "load the kernel module `fuse`, or pass the device into the container")?;
        device("/dev/loop-control", "load the kernel module `loop`, or pass the devices into the container")?;
        for name in ["losetup", "mount", "umount", "cat"] {
            program(name).map(drop)?;
        }
        program(self.maker().0).map(drop)?;
        if !self.is_known_to_kernel() {
            // It may be a module that is not loaded yet.
            let _ = program("modprobe").and_then(|mut modprobe| run(modprobe.arg(self.as_str())));
        }
        if self.is_known_to_kernel() {
            return Ok(());
        }
        Err(Error::missing(
            format!("a kernel with {self}"),
            "it is not in /proc/filesystems, and modprobe finds no module",
        ))
    }

    fn is_known_to_kernel(self) -> bool {
        let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        known.lines().any(|line| line.split_whitespace().last() == Some(self.as_str()))
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FileSystem {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<Self, String> {
        let found = FileSystem::ALL.into_iter().find(|kind| kind.as_str() == word);
        found.ok_or_else(|| format!("unknown file system {word:?}; use ext4, xfs or btrfs"))
    }
}

/// A command for a system program. It also searches the sbin directories, which PATH may lack.
pub(super) fn program(name: &str) -> Result<Command> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let found = places.map(|place| place.join(name)).find(|file| file.is_file());
    found.map(Command::new).ok_or_else(|| {
        let makers = FileSystem::ALL.map(FileSystem::maker);
        let others = [("cat", "coreutils"), ("mount", "mount"), ("umount", "mount"), ("losetup", "mount")];
        let package =
            makers.iter().chain(&others).find(|(maker, _)| *maker == name).map_or(name, |(_, package)| package);
        Error::missing(format!("the program {name}"), format!("on Debian, `apt-get install {package}`"))
    })
}

/// Runs a command and returns what it printed.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let words = || {
        let arguments = command.get_args().map(|word| word.to_string_lossy().into_owned());
        let mut words = vec![command.get_program().to_string_lossy().into_owned()];
        words.extend(arguments);
        words.join(" ")
    };
    let shown = words();
    let failed = |message: String| Error::Program { command: shown.clone(), message };
    let output = command.stdin(std::process::Stdio::null()).output();
    let output = output.map_err(|error: io::Error| failed(error.to_string()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        Err(failed(format!("{}: {said}", output.status)))
    }
}
