//! A mount for one test.
//!
//! A test runs as three processes of this program. The first only starts the second in a mount namespace of its own.
//! The second is the client: it makes the directories, starts the third, and runs the test. The third mounts the file
//! system and serves it. It is a process of its own because nobody could kill a process that waits for itself.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use untorn::Durability;
use untorn::write_cache::CacheOptions;
use untorn_mount::{Globs, Mode as When, ServeOptions, serve};

const ROLE: &str = "UNTORN_MOUNT_TEST_ROLE";
const PLACE: &str = "UNTORN_MOUNT_TEST_PLACE";
const TEST: &str = "UNTORN_MOUNT_TEST_NAME";
const HOW: &str = "UNTORN_MOUNT_TEST_HOW";
const CHOSEN: &str = "UNTORN_MOUNT_TEST_CHOSEN";
/// Ample, for a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);
/// `statfs(2)`.
const FUSE: i64 = 0x6573_5546;

/// A mounted file system and its source.
pub(crate) struct Mount {
    /// Dropped last.
    place: tempfile::TempDir,
    test: &'static str,
    server: Option<Child>,
    chosen: String,
    how: How,
}

/// How a mount serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Boost,
    /// The log is not drained by itself: a write is in no file a moment later, however slow the machine is.
    BoostUndrained,
    /// The kernel caches writes.
    Atomic,
    AtomicWriteThrough,
    /// The kernel keeps locks.
    BoostLocalLocks,
    AtomicLocalLocks,
    /// A write is durable only after a sync.
    BoostPerSync,
}

/// The test's mount, in the process that runs the test. `chosen` is a glob for the managed files.
pub(crate) fn mount(test: &'static str, chosen: &str) -> Option<Mount> {
    mount_as(test, chosen, How::Boost)
}

pub(crate) fn mount_as(test: &'static str, chosen: &str, how: How) -> Option<Mount> {
    match std::env::var(ROLE).as_deref() {
        Ok("server") => {
            serve_here();
            None
        }
        Ok("puller") => {
            let place = PathBuf::from(std::env::var_os(PLACE).unwrap());
            let server = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = move || Ok(rustix::fs::open(place.join("mnt"), flags, Mode::empty())?);
            untorn_mount::pull_for(server, root).unwrap();
            None
        }
        _ => {
            if let Some(reason) = untorn_testing::skips::lacks(&["mount namespace"]) {
                untorn_testing::skipped!("{reason}");
                return None;
            }
            if let Err(error) = fs::File::options().read(true).write(true).open("/dev/fuse") {
                untorn_testing::skipped!("cannot open /dev/fuse: {error}");
                return None;
            }
            if !untorn_testing::isolated(test) {
                return None;
            }
            // Memory: quick, and counts blocks the same way each time.
            let place = tempfile::Builder::new().prefix("untorn-mount-").tempdir_in("/dev/shm").unwrap();
            let mut mount = Mount { place, test, server: None, chosen: chosen.to_owned(), how };
            for name in ["source", "mnt", "bare"] {
                fs::create_dir(mount.place.path().join(name)).unwrap();
            }
            mount.start();
            Some(mount)
        }
    }
}

fn serve_here() {
    // A test that fails shows why the server refused.
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::ERROR)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let place = PathBuf::from(std::env::var_os(PLACE).unwrap());
    let (source, at) = (place.join("source"), place.join("mnt"));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(&source, flags, Mode::empty()).unwrap();
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let data =
        format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions\0", device.as_raw_fd());
    let data = std::ffi::CStr::from_bytes_with_nul(data.as_bytes()).unwrap();
    rustix::mount::mount("untorn", &at, "fuse", MountFlags::empty(), data).unwrap();
    let how = std::env::var(HOW).unwrap();
    let mode = if how.starts_with("Boost") { When::Boost } else { When::Atomic };
    let mut options = ServeOptions::new(mode, &ServeOptions::default_log(&source));
    options.write_through = how == "AtomicWriteThrough";
    options.local_locks = how.ends_with("LocalLocks");
    options.log_options = CacheOptions::new().size(8 << 20).max_files(64).durability(Durability::PerWrite);
    if how == "BoostPerSync" {
        options.log_options = options.log_options.durability(Durability::PerCommit);
    }
    if how == "BoostUndrained" {
        options.log_options = options.log_options.max_age(Duration::from_secs(600));
    }
    options.allow_other = true;
    let chosen = std::env::var(CHOSEN).unwrap();
    options.globs = Globs::new(&source, &[chosen.as_str()], &[]).unwrap();
    let serving = serve(device, directory, &source, options).unwrap();
    let (own, other) = UnixStream::pair().unwrap();
    let mut puller = untorn_testing::again(&std::env::var(TEST).unwrap());
    puller.env(ROLE, "puller").stdin(Stdio::from(OwnedFd::from(other)));
    let mut puller = puller.spawn().unwrap();
    serving.set_puller(own);
    let report = serving.wait().unwrap();
    assert!(report.failed.is_empty(), "{report:?}");
    puller.wait().unwrap();
    let counted = [
        report.managed,
        report.plain.len() as u64,
        report.sync_requests,
        report.synced_writes,
        report.writes_together,
        report.lock_requests,
        report.flush_requests,
    ];
    fs::write(place.join("report"), counted.map(|count| count.to_string()).join(" ")).unwrap();
}

impl Mount {
    fn start(&mut self) {
        let mut command = untorn_testing::again(self.test);
        command
            .env(ROLE, "server")
            .env(TEST, self.test)
            .env(PLACE, self.place.path())
            .env(CHOSEN, &self.chosen)
            .env(HOW, format!("{:?}", self.how));
        self.server = Some(command.spawn().unwrap());
        let begun = Instant::now();
        while rustix::fs::statfs(self.path()).unwrap().f_type as i64 != FUSE {
            assert!(begun.elapsed() < PATIENCE, "nothing is mounted");
            assert!(self.server.as_mut().unwrap().try_wait().unwrap().is_none(), "the server ended");
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.place.path().join("mnt")
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.place.path().join("source")
    }

    /// A directory beside them, without any file system of ours.
    pub(crate) fn bare(&self) -> PathBuf {
        self.place.path().join("bare")
    }

    pub(crate) fn log(&self) -> PathBuf {
        ServeOptions::default_log(&self.source())
    }

    /// Unmounts, and returns how many files were managed, and how many of those that should have been were not.
    pub(crate) fn unmount(mut self) -> (u64, u64) {
        let [managed, plain, ..] = self.end();
        (managed, plain)
    }

    /// Unmounts, and returns how many requests about locks there were, and how many of closes.
    pub(crate) fn unmount_counting(mut self) -> (u64, u64) {
        let [.., locks, closes] = self.end();
        (locks, closes)
    }

    /// Unmounts, and returns how many requests for a sync there were, how many writes that were one too, and how many
    /// writes ran beside another one of their file.
    pub(crate) fn unmount_counting_syncs(mut self) -> [u64; 3] {
        let [_, _, syncs, writes, together, ..] = self.end();
        [syncs, writes, together]
    }

    /// Unmounts, and looks at the source.
    pub(crate) fn unmount_keeping<T>(mut self, look: impl FnOnce() -> T) -> T {
        self.end();
        look()
    }

    /// Unmounts, looks at the source, and counts as [`unmount`](Mount::unmount) does.
    pub(crate) fn unmount_with(mut self, look: impl FnOnce()) -> (u64, u64) {
        let [managed, plain, ..] = self.end();
        look();
        (managed, plain)
    }

    fn end(&mut self) -> [u64; 7] {
        let begun = Instant::now();
        // The server closes its own openings a moment after the program's.
        while let Err(errno) = rustix::mount::unmount(self.path(), UnmountFlags::empty()) {
            assert!(begun.elapsed() < PATIENCE, "cannot unmount: {errno}");
            thread::sleep(Duration::from_millis(2));
        }
        let status = self.wait();
        assert!(status.success(), "the server failed: {status}");
        let report = fs::read_to_string(self.place.path().join("report")).unwrap();
        let counted: Vec<u64> = report.split(' ').map(|count| count.parse().unwrap()).collect();
        counted.try_into().unwrap()
    }

    fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        let mut server = self.server.take().unwrap();
        loop {
            if let Some(status) = server.try_wait().unwrap() {
                return status;
            }
            if begun.elapsed() > PATIENCE {
                server.kill().unwrap();
                panic!("the server does not end");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills the server, and takes the dead mount away.
    pub(crate) fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// Brings the log of a killed server to the files.
    pub(crate) fn replay(&self) {
        let begun = Instant::now();
        loop {
            match untorn::write_cache::replay(self.log(), None) {
                // The server was about to start its puller, which has the log for a moment.
                Err(untorn::Error::InUse { .. }) if begun.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(2));
                }
                replay => {
                    let replay = replay.unwrap();
                    assert!(replay.is_complete(), "{replay:?}");
                    return;
                }
            }
        }
    }

    /// Mounts it again, after [`kill`](Mount::kill).
    pub(crate) fn mount_again(&mut self) {
        rustix::mount::unmount(self.path(), UnmountFlags::DETACH).unwrap();
        self.start();
    }

    /// Runs a program of python3 with paths as arguments.
    pub(crate) fn python(&self, program: &str, arguments: &[&Path]) -> String {
        let output = Command::new("python3").arg("-c").arg(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.path(), UnmountFlags::DETACH);
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
