//! Which medium a path is on, and what that medium can promise.
//!
//! Every open calls [`detect`], which asks only what the choice of medium needs. [`explain`] adds what a person wants
//! to know.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;

use super::{Identity, mapping, names};
use crate::error::{Error, FileKind, Result};
use crate::options::LostPage;
use crate::sys;
use crate::sys::file::{RAMFS, TMPFS};
use crate::sys::flush::WriteBack;
use crate::sys::map::{FileMap, MapKind};

/// The environment variable that makes an ordinary mapping count as persistent memory.
const ASSUME: &str = "UNTORN_ASSUME_PMEM";

/// The kind of medium of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MediumKind {
    /// Persistent memory through DAX: the kernel grants a `MAP_SYNC` mapping.
    PersistentMemory,
    /// An ordinary shared mapping that `UNTORN_ASSUME_PMEM=1` treats as persistent memory: for tests and benchmarks,
    /// not durable.
    AssumedPmem,
    /// A file system behind the page cache.
    Block,
    /// A file system in memory (tmpfs, ramfs): files survive the process, not a power cut.
    Volatile,
}

impl MediumKind {
    /// The name in the tool and the JSON output.
    pub fn as_str(self) -> &'static str {
        match self {
            MediumKind::PersistentMemory => "pmem",
            MediumKind::AssumedPmem => "assumed-pmem",
            MediumKind::Block => "block",
            MediumKind::Volatile => "volatile",
        }
    }

    /// Whether a commit there survives a power cut, as far as the kind tells.
    fn durable(self) -> bool {
        matches!(self, MediumKind::PersistentMemory | MediumKind::Block)
    }
}

impl fmt::Display for MediumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The result of [`detect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detected {
    /// The kind of medium.
    pub kind: MediumKind,
    /// The identity of the file or directory.
    pub identity: Identity,
    /// Whether a commit there survives a power cut.
    pub durable: bool,
}

/// Examines a file, or a directory in which a file is to be created. In a directory it creates a probe file and removes
/// it at once.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let found = untorn::testing::storage::detect(dir.path())?;
/// println!("{} (durable: {})", found.kind, found.durable);
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::NotAFile`] for a device, pipe or socket; [`Error::Io`] if the path does not exist or cannot be read.
pub fn detect(path: &Path) -> Result<Detected> {
    Probe::new(path).map(|probe| probe.detected())
}

/// Whether a commit to the file at `path` survives a power cut: its medium keeps bytes, and the file system does not
/// lie about flushes.
///
/// # Errors
/// As for [`detect`].
pub fn is_durable(path: &Path) -> Result<bool> {
    let probe = Probe::new(path)?;
    let lossy = || Mount::of(probe.examined()).and_then(|mount| mount.lossy_option());
    Ok(probe.detected().durable && lossy().is_none())
}

/// The result of [`explain`].
#[derive(Clone, Debug)]
pub struct Explained {
    /// What was found.
    pub detected: Detected,
    /// Why this process cannot create or change files there, in a sentence, if so.
    pub obstacle: Option<String>,
    /// Whether the file system keeps files. An interface of the kernel such as `/proc` does not, so it has no medium.
    pub keeps_files: bool,
    /// The reasons for all of it, in sentences.
    pub reasons: Vec<String>,
}

/// Like [`detect`], and gives the reasons.
///
/// # Errors
/// As for [`detect`].
pub fn explain(path: &Path) -> Result<Explained> {
    let probe = Probe::new(path)?;
    let mut detected = probe.detected();
    let obstacle = probe.obstacle(path);
    let mut reasons = Vec::new();
    let mount = Mount::of(probe.examined());
    let name = mount.as_ref().map_or_else(|| file_system_name(probe.file_system), |mount| mount.kind.clone());
    reasons.push(format!("The file system is {name}."));
    reasons.extend(obstacle.clone());
    if probe.is_kernel_interface() {
        detected.durable = false;
        return Ok(Explained { detected, obstacle, keeps_files: false, reasons });
    }
    reasons.push(probe.map_sync_sentence());
    match detected.kind {
        MediumKind::AssumedPmem => reasons.push(format!(
            "{ASSUME}=1 makes an ordinary mapping count as persistent memory: this is NOT DURABLE and for tests and \
             benchmarks only."
        )),
        MediumKind::Volatile => {
            reasons.push(format!("{name} keeps files in memory: commits survive a killed process, not a power cut."));
        }
        MediumKind::PersistentMemory | MediumKind::Block => {}
    }
    if let Some(option) = mount.and_then(|mount| mount.lossy_option())
        && detected.durable
    {
        detected.durable = false;
        reasons.push(format!(
            "The mount option {option} makes the file system report flushes that it does not make: commits survive a \
             killed process, not a power cut."
        ));
    }
    if let Some(file) = &probe.file {
        reasons.push(mark_sentence(file.as_fd()));
    }
    reasons.extend(machine_sentences(detected.kind));
    Ok(Explained { detected, obstacle, keeps_files: true, reasons })
}

/// The open file, and what the kernel said about it.
struct Probe {
    /// The file, or the probe file in the directory.
    file: Option<OwnedFd>,
    /// The directory, if the path is one.
    directory: Option<OwnedFd>,
    /// Why there is no probe file.
    unprobed: Option<io::Error>,
    identity: Identity,
    /// `f_type` of `statfs(2)`.
    file_system: u64,
    /// Whether a `MAP_SYNC` mapping was granted; `None` where it was not asked for.
    map_sync: Option<io::Result<()>>,
    assumed: bool,
}

impl Probe {
    fn new(path: &Path) -> Result<Self> {
        let (file, directory, unprobed) = match names::open_regular(path, super::Access::Read) {
            Ok(file) => (Some(file), None, None),
            Err(Error::NotAFile { found: FileKind::Directory, .. }) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let directory =
                    rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| Error::io("open", path, errno))?;
                match probe_file(&directory) {
                    Ok(file) => (Some(file), Some(directory), None),
                    Err(error) => (None, Some(directory), Some(error.into())),
                }
            }
            Err(error) => return Err(error),
        };
        let named = directory.as_ref().or(file.as_ref()).expect("one of the two was opened above").as_fd();
        let file_system = rustix::fs::fstatfs(named).map_err(|errno| Error::io("examine", path, errno))?.f_type;
        Ok(Probe {
            identity: mapping::identity(named, path)?,
            file_system: file_system as u64,
            map_sync: file.as_ref().and_then(|file| map_sync(file.as_fd())),
            assumed: cfg!(target_arch = "x86_64")
                && untorn_ring::environment::variable(ASSUME).is_some_and(|value| value == "1"),
            file,
            directory,
            unprobed,
        })
    }

    fn examined(&self) -> BorrowedFd<'_> {
        self.file.as_ref().or(self.directory.as_ref()).expect("`new` opened one of the two").as_fd()
    }

    fn kind(&self) -> MediumKind {
        if matches!(self.map_sync, Some(Ok(()))) {
            MediumKind::PersistentMemory
        } else if self.assumed {
            MediumKind::AssumedPmem
        } else if matches!(self.file_system, TMPFS | RAMFS) {
            MediumKind::Volatile
        } else {
            MediumKind::Block
        }
    }

    fn detected(&self) -> Detected {
        let kind = self.kind();
        Detected { kind, identity: self.identity, durable: kind.durable() }
    }

    /// Whether the file system shows the kernel's state and keeps no files.
    fn is_kernel_interface(&self) -> bool {
        KERNEL_INTERFACES.iter().any(|&(magic, _)| magic == self.file_system)
    }

    /// Why this process cannot create or change files there.
    fn obstacle(&self, path: &Path) -> Option<String> {
        let read_only = |flags: StatVfsMountFlags| flags.contains(StatVfsMountFlags::RDONLY);
        if self.is_kernel_interface() {
            let name = file_system_name(self.file_system);
            return Some(format!("{name} shows the kernel's state and keeps no files: untorn cannot be used here."));
        }
        if rustix::fs::fstatvfs(self.examined()).is_ok_and(|found| read_only(found.f_flag)) {
            return Some(
                "The file system is mounted read-only: untorn can read files that were closed cleanly, and cannot \
                 create, change or recover any."
                    .to_owned(),
            );
        }
        if let Some(error) = &self.unprobed {
            return Some(format!(
                "This process cannot create files in this directory ({error}): the medium is judged by the file \
                 system type alone, and untorn cannot create files or sidecars here."
            ));
        }
        let denied = rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).err()?;
        Some(format!("This process may not write to this file ({denied}): untorn can only read it."))
    }

    fn map_sync_sentence(&self) -> String {
        match &self.map_sync {
            Some(Ok(())) => "The kernel grants a MAP_SYNC mapping, so stores reach persistent memory without a system \
                 call."
                .to_owned(),
            Some(Err(error)) => format!(
                "The kernel refuses a MAP_SYNC mapping ({error}), so this is not persistent \
                                         memory."
            ),
            None if cfg!(target_arch = "x86_64") => "A MAP_SYNC mapping could not be tried, because there is no file \
                                                     to map."
                .to_owned(),
            None => "untorn supports persistent memory on x86-64 only.".to_owned(),
        }
    }
}

/// Tries a `MAP_SYNC` mapping of one page, which also an empty file allows. Not asked on an architecture without the
/// instructions to use it.
fn map_sync(file: BorrowedFd<'_>) -> Option<io::Result<()>> {
    cfg!(target_arch = "x86_64").then(|| FileMap::new(file, MapKind::SyncRead, 1, 1, LostPage::Signal).map(drop))
}

/// Makes a nameless file in a directory, or where the file system has no such thing, one whose name is gone at once.
fn probe_file(directory: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(0o600);
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, ".", flags | OFlags::TMPFILE, mode) {
        // EISDIR and ENOENT are what kernels and file systems that ignore the flag make of it (`open(2)`).
        Err(Errno::NOTSUP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
            // The process and the thread make the name unique on this machine; a file system shared with another
            // machine may refuse it, which then reads as "no probe file".
            let process = rustix::process::getpid().as_raw_nonzero();
            let thread = rustix::thread::gettid().as_raw_nonzero();
            let name = format!(".untorn-probe-{process}-{thread}");
            let file = rustix::fs::openat(directory, &name, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
            rustix::fs::unlinkat(directory, &name, AtFlags::empty())?;
            Ok(file)
        }
        other => other,
    }
}

/// A line of `/proc/self/mountinfo`. Source: `proc_pid_mountinfo(5)`.
struct Mount {
    kind: String,
    /// Options of the mount and of the file system, comma-separated.
    options: String,
}

impl Mount {
    /// The mount a file is on; `None` where /proc or the kernel doesn't tell.
    fn of(file: BorrowedFd<'_>) -> Option<Mount> {
        let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
        if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            return None;
        }
        Mount::find(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, found.stx_mnt_id)
    }

    fn find(mountinfo: &str, id: u64) -> Option<Mount> {
        let line = mountinfo.lines().find(|line| line.split(' ').next().and_then(|n| n.parse().ok()) == Some(id))?;
        // Optional fields stand between the mount's part and the separator. Blanks inside fields are escaped.
        let (mount, file_system) = line.split_once(" - ")?;
        let mut file_system = file_system.split(' ');
        let kind = file_system.next()?.to_owned();
        let options = format!("{},{}", mount.split(' ').nth(5)?, file_system.nth(1).unwrap_or(""));
        Some(Mount { kind, options })
    }

    /// An option that makes flushes not reach the device. Source: the kernel's `overlayfs.rst` ("Volatile mount"),
    /// `ext4(5)`, `xfs(5)`, `btrfs(5)`.
    fn lossy_option(&self) -> Option<String> {
        const LOSSY: [&str; 4] = ["volatile", "fsync=volatile", "nobarrier", "barrier=0"];
        self.options.split(',').find(|option| LOSSY.contains(option)).map(str::to_owned)
    }
}

fn mark_sentence(file: BorrowedFd<'_>) -> String {
    use sys::file::RawMark;
    match sys::file::mark(file) {
        Ok(RawMark::Absent | RawMark::Present(_) | RawMark::Malformed(_)) => {
            "User extended attributes work here: untorn notices a data file that was moved, linked or restored without \
             its sidecar, but not a copy made without attributes (plain cp)."
                .to_owned()
        }
        Ok(RawMark::Unsupported) => {
            "User extended attributes do not work here: untorn cannot notice a data file that was copied or moved \
             without its sidecar."
                .to_owned()
        }
        Err(error) => format!(
            "User extended attributes cannot be read here ({error}): untorn may not notice a data file that was copied \
             or moved without its sidecar."
        ),
    }
}

/// What this CPU and kernel have for the medium.
fn machine_sentences(kind: MediumKind) -> Vec<String> {
    match kind {
        MediumKind::PersistentMemory | MediumKind::AssumedPmem => {
            let write_back = match sys::flush::write_back() {
                WriteBack::Nothing => {
                    "The CPU caches survive a power cut (eADR), so untorn writes no cache lines back.".to_owned()
                }
                instruction => format!(
                    "The platform reports no eADR, so the CPU caches do not survive a power cut; untorn writes cache \
                     lines back with {instruction}."
                ),
            };
            vec![write_back, format!("Streaming stores use {}.", sys::copy::width_name())]
        }
        MediumKind::Block | MediumKind::Volatile => vec![match sys::ring::probe() {
            Ok(()) => "io_uring is available: the file and its sidecar share one device flush.".to_owned(),
            Err(error) => format!(
                "io_uring is not available ({error}): a helper thread flushes the sidecar while the file is flushed."
            ),
        }],
    }
}

/// File systems that are interfaces of the kernel, and keep no files. Source: `linux/magic.h`.
const KERNEL_INTERFACES: [(u64, &str); 14] = [
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x7363_6673, "securityfs"),
    (0xcafe_4a11, "bpf"),
    (0x1cd1, "devpts"),
    (0x6165_676c, "pstorefs"),
    (0xf97c_ff8c, "selinuxfs"),
    (0x6265_6570, "configfs"),
    (0xde5e_81e4, "efivarfs"),
    (0x1980_0202, "mqueue"),
];

/// The name of a file system type. Source: `statfs(2)`, `linux/magic.h`.
fn file_system_name(magic: u64) -> String {
    let name = match magic {
        TMPFS => "tmpfs",
        RAMFS => "ramfs",
        0xef53 => "ext4 (or ext2, ext3)",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0xca45_1a4e => "bcachefs",
        0xf2f5_2010 => "f2fs",
        0x2fc1_2fc1 => "zfs",
        0x794c_7630 => "overlayfs",
        0x6573_5546 => "fuse",
        0x6969 => "nfs",
        0xff53_4d42 => "cifs",
        0xfe53_4d42 => "smb",
        0x00c3_6400 => "ceph",
        0x0102_1997 => "9p",
        0x4d44 => "vfat",
        0x2011_bab0 => "exfat",
        0x7366_746e => "ntfs3",
        0x3434 => "nilfs2",
        0x3153_464a => "jfs",
        0x9584_58f6 => "hugetlbfs",
        _ => match KERNEL_INTERFACES.iter().find(|&&(known, _)| known == magic) {
            Some(&(_, name)) => name,
            None => return format!("unknown (type {magic:#x})"),
        },
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_its_directory_are_of_one_kind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        std::fs::write(&path, b"").unwrap();
        let (file, directory) = (detect(&path).unwrap(), detect(dir.path()).unwrap());
        assert_eq!(file.kind, directory.kind);
        assert_ne!(file.identity.inode, directory.identity.inode);
        assert_eq!(file.identity.device, directory.identity.device);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the probe file is gone");
    }

    #[test]
    fn memory_is_volatile() {
        let shm = Path::new("/dev/shm");
        match detect(shm) {
            Ok(found) if file_system_name(rustix::fs::statfs(shm).unwrap().f_type as u64) == "tmpfs" => {
                assert!(!found.durable);
                assert!(matches!(found.kind, MediumKind::Volatile | MediumKind::AssumedPmem), "{found:?}");
                let Explained { reasons, .. } = explain(shm).unwrap();
                assert!(reasons.iter().any(|reason| reason.contains("tmpfs")), "{reasons:?}");
            }
            other => untorn_testing::skipped!("/dev/shm is not a tmpfs here: {other:?}"),
        }
    }

    #[test]
    fn explain_agrees_with_detect_and_speaks_in_sentences() {
        let dir = tempfile::tempdir().unwrap();
        let Explained { detected, obstacle, keeps_files, reasons } = explain(dir.path()).unwrap();
        assert_eq!(detected.kind, detect(dir.path()).unwrap().kind);
        assert_eq!((obstacle, keeps_files), (None, true));
        assert!(reasons.len() >= 4, "{reasons:?}");
        assert!(reasons.iter().all(|reason| reason.ends_with('.')), "{reasons:?}");
        assert!(reasons.iter().any(|reason| reason.contains("ersistent memory")), "{reasons:?}");
    }

    #[test]
    fn interfaces_of_the_kernel_are_no_place_for_files() {
        for path in ["/proc", "/proc/self/maps"] {
            let found = explain(Path::new(path)).unwrap();
            let obstacle = found.obstacle.unwrap();
            assert!(obstacle.starts_with("proc shows the kernel's state"), "{obstacle}");
            assert!(!found.keeps_files && !found.detected.durable && found.reasons.len() == 2, "{:?}", found.reasons);
        }
    }

    #[test]
    fn missing_files_and_devices_are_errors() {
        assert!(matches!(detect(Path::new("/nonexistent")), Err(Error::Io { operation: "open", .. })));
        assert!(matches!(detect(Path::new("/dev/null")), Err(Error::NotAFile { .. })));
    }

    #[test]
    fn mount_options_that_lose_flushes_are_found() {
        let info = "24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                    300 24 0:50 / /merged\\040dir rw - overlay overlay rw,lowerdir=/a - b,volatile\n\
                    301 24 0:51 / /old rw,nosuid shared:2 master:1 - ext3 /dev/sdb rw,barrier=0\n";
        let plain = Mount::find(info, 24).unwrap();
        assert_eq!((plain.kind.as_str(), plain.lossy_option()), ("ext4", None));
        assert_eq!(Mount::find(info, 301).unwrap().lossy_option().as_deref(), Some("barrier=0"));
        assert_eq!(Mount::find(info, 301).unwrap().kind, "ext3");
        assert!(Mount::find(info, 30).is_none());
        assert!(Mount::find("30 garbage", 30).is_none());
    }
}
