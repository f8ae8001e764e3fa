//! Files on a file system that tells its files apart, a log beside them, and crashes.

use std::fs::{self, FileTimes};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::common::memory_dir;
use crate::common::shelf::{pmem, small};
use untorn::write_cache::{BackingFile, CachedFile, Descriptor, Kernel, Replay, WriteCache};

pub(crate) struct Machine {
    dir: tempfile::TempDir,
    fast: tempfile::TempDir,
    slots: u64,
    cache: Option<WriteCache>,
}

impl Machine {
    /// Directories of these names, and a log of so many entries; `None`, and `what` is recorded as skipped, where files
    /// have no generation or no birth time.
    pub(crate) fn new(what: &str, slots: u64, directories: &[&str]) -> Option<Self> {
        let mut machine = Machine { dir: tempfile::tempdir().unwrap(), fast: memory_dir(), slots, cache: None };
        for name in directories {
            fs::create_dir(machine.path(name)).unwrap();
        }
        let identity = machine.open_new("probe").identity().unwrap();
        fs::remove_file(machine.path("probe")).unwrap();
        if identity.generation == 0 || identity.birth == 0 {
            untorn_testing::skipped!("{what}, on a file system whose files have no generation or no birth time");
            return None;
        }
        machine.cache = Some(small(slots).create_on(pmem(), Arc::new(Kernel), machine.log()).unwrap());
        Some(machine)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.fast.path().join("log")
    }

    pub(crate) fn cache(&self) -> &WriteCache {
        self.cache.as_ref().unwrap()
    }

    pub(crate) fn open_new(&self, name: &str) -> Descriptor {
        let path = self.path(name);
        let file = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        Descriptor::new(file.into(), &path).unwrap()
    }

    pub(crate) fn attach(&self, file: Descriptor, name: &str) -> CachedFile {
        self.cache().attach_write_through(Arc::new(file), &self.path(name)).unwrap()
    }

    pub(crate) fn attach_new(&self, name: &str) -> CachedFile {
        self.attach(self.open_new(name), name)
    }

    /// What a crash leaves: the log as it is now, and of the files what `take` leaves. Then a replay.
    pub(crate) fn crash(&mut self, take: impl FnOnce(&Self)) -> Replay {
        let left = fs::read(self.log()).unwrap();
        self.cache = None;
        fs::write(self.log(), left).unwrap();
        take(self);
        // A power cut changes no file, so no file has a time that is later than the log's last word.
        set_back(self.dir.path());
        self.replay()
    }

    pub(crate) fn replay(&self) -> Replay {
        small(self.slots).replay_on(pmem(), &Kernel, self.log()).unwrap()
    }
}

/// Sets the modification times of all files below a directory to a time before those that are written to a log.
fn set_back(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => set_back(&entry.path()),
            kind if kind.is_file() => {
                let times = FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(1000));
                fs::File::open(entry.path()).unwrap().set_times(times).unwrap();
            }
            _ => {}
        }
    }
}
