//! The directories and logs for the measurements, and a disk in memory if no directory is given.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use untorn_rigs::block::{FileSystem, SlowDisk, Speed, isolated};

/// Size of the disk; unwritten parts take no memory.
const DISK: u64 = 4 << 30;
const MEMORY: &str = "/dev/shm";

/// One variant of running programs.
pub(super) struct Arm {
    pub(super) name: &'static str,
    directory: PathBuf,
    pub(super) log: Option<Log>,
    /// In mode atomic, with `untorn run`.
    pub(super) atomic: bool,
    /// Through `untorn mount` in this mode, and not under `untorn run`.
    pub(super) mount: Option<&'static str>,
    /// Its locks meet on the mount alone.
    pub(super) local_locks: bool,
}

#[derive(Clone)]
pub(super) struct Log {
    pub(super) path: PathBuf,
    /// Treated as persistent memory, although it is not.
    pub(super) assumed: bool,
}

impl Arm {
    /// The directory of a program's files.
    pub(super) fn files(&self) -> PathBuf {
        self.directory.join("files")
    }

    /// The directory where the program meets them: the mountpoint, or that of the files.
    pub(super) fn seen(&self) -> PathBuf {
        match self.mount {
            Some(_) => self.directory.join("mount"),
            None => self.files(),
        }
    }

    /// Resets the directory to its initial state.
    pub(super) fn clear(&self) -> io::Result<()> {
        match fs::remove_dir_all(self.files()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir(self.files())?;
        fs::create_dir_all(self.seen())
    }
}

/// All variants, the bare one first. Owns their directories, and removes them when dropped.
pub(super) struct Ground {
    pub(super) arms: Vec<Arm>,
    made: Vec<PathBuf>,
}

impl Ground {
    fn new(disk: &Path, log: Option<&Path>) -> io::Result<Self> {
        let mut ground = Ground { arms: Vec::new(), made: Vec::new() };
        let disk = ground.make(disk)?;
        let memory = ground.make(Path::new(MEMORY))?;
        let fast = match log {
            Some(log) => Log { path: ground.make(log)?.join("log"), assumed: false },
            None => Log { path: memory.join("log"), assumed: true },
        };
        let same = Log { path: disk.join("log"), assumed: false };
        let arm = |name, directory: &Path, log: Option<&Log>| {
            let (directory, log) = (directory.to_owned(), log.cloned());
            Arm { name, directory, log, atomic: false, mount: None, local_locks: false }
        };
        ground.arms = vec![
            arm("bare", &disk, None),
            arm("run boost", &disk, Some(&fast)),
            arm("run boost, same disk", &disk, Some(&same)),
            arm("bare in memory", &memory, None),
            Arm { atomic: true, ..arm("run atomic", &disk, Some(&same)) },
            Arm { mount: Some("boost"), ..arm("mount boost", &disk, Some(&fast)) },
            Arm { mount: Some("boost"), ..arm("mount boost, same disk", &disk, Some(&same)) },
            Arm { mount: Some("atomic"), ..arm("mount atomic", &disk, Some(&same)) },
            Arm { mount: Some("boost"), local_locks: true, ..arm("mount boost, local locks", &disk, Some(&fast)) },
            Arm { mount: Some("atomic"), local_locks: true, ..arm("mount atomic, local locks", &disk, Some(&same)) },
        ];
        Ok(ground)
    }

    /// Creates a new directory.
    fn make(&mut self, below: &Path) -> io::Result<PathBuf> {
        let path = below.canonicalize()?.join(format!("untorn-boost-{}-{}", std::process::id(), self.made.len()));
        fs::create_dir(&path)?;
        self.made.push(path.clone());
        Ok(path)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for path in &self.made {
            // Leftovers don't matter.
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// The requested places of programs and logs.
#[derive(Clone, Copy)]
pub(super) struct Where<'a> {
    pub(super) dir: Option<&'a Path>,
    pub(super) log: Option<&'a Path>,
    /// The time per flush of a created disk.
    pub(super) flush: Option<Duration>,
}

/// Runs `work` with everything in place: on a directory's disk, or on a temporary disk in memory.
pub(super) fn with_ground<T: Send>(
    Where { dir, log, flush }: Where<'_>,
    work: impl FnOnce(&Ground) -> io::Result<T> + Send,
) -> io::Result<T> {
    if let Some(dir) = dir {
        return work(&Ground::new(dir, log)?);
    }
    isolated(|| match flush {
        Some(flush) => on_slow_disk(flush, |disk| work(&Ground::new(disk, log)?)),
        None => {
            let disk = Disk::new()?;
            let ground = Ground::new(&disk.at, log)?;
            work(&ground)
        }
    })
    .map_err(missing)?
}

fn missing(error: untorn_rigs::Error) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, error.to_string())
}

fn on_slow_disk<T>(flush: Duration, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let at = tempfile::Builder::new().prefix("untorn-boost-").tempdir_in(MEMORY)?;
    let image = at.path().join("image");
    FileSystem::Ext4.make_of(DISK, &image).map_err(missing)?;
    let disk = SlowDisk::start(FileSystem::Ext4, &image, at.path()).map_err(missing)?;
    // The disk keeps the open file; it disappears with the disk, however that ends.
    fs::remove_file(&image)?;
    disk.set_speed(Speed { bytes_per_second: 0, flush });
    work(disk.path())
}

/// An ext4 on a loop device whose file is in memory. Only this process and its children see the mount.
struct Disk {
    image: PathBuf,
    at: PathBuf,
}

impl Disk {
    fn new() -> io::Result<Self> {
        let name = |what| Path::new(MEMORY).join(format!("untorn-boost-{what}-{}", std::process::id()));
        let disk = Disk { image: name("disk"), at: name("mount") };
        fs::create_dir(&disk.at)?;
        fs::File::create_new(&disk.image)?.set_len(DISK)?;
        // No lazy initialization: a kernel thread that writes zeros would disturb the measurement.
        let options = ["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        done(Command::new("mkfs.ext4").args(options).arg(&disk.image))?;
        done(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).args([&disk.image, &disk.at]))?;
        // The mount keeps the open file; it disappears with the mount, however that ends.
        fs::remove_file(&disk.image)?;
        Ok(disk)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The mount may not exist yet. If it is still busy, it ends with this process.
        let _ = Command::new("umount").arg(&self.at).output();
        let _ = fs::remove_dir(&self.at);
        let _ = fs::remove_file(&self.image);
    }
}

fn done(command: &mut Command) -> io::Result<()> {
    let what = command.get_program().to_string_lossy().into_owned();
    let output = command.output();
    let failed = |why: String| io::Error::new(io::ErrorKind::Unsupported, format!("{what}: {why}"));
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
