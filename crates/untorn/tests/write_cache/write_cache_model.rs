//! A write cache against a model of plain files: several files, small logs that are always full, drains, closes,
//! reopenings.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use untorn::Durability;
use untorn::testing::storage::{Dax, MediumKind, PageCache};
use untorn::write_cache::{CacheOptions, CachedFile, WriteCache};
use untorn::write_cache::{Descriptor, Kernel};

const FILES: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    Write {
        file: usize,
        offset: u64,
        len: usize,
        byte: u8,
    },
    Append {
        file: usize,
        len: usize,
        byte: u8,
    },
    SetLen {
        file: usize,
        len: u64,
    },
    Read {
        file: usize,
        offset: u64,
        len: usize,
    },
    Sync(usize),
    HandOver(usize),
    Demote(usize),
    Refresh(usize),
    /// Drops the handle and attaches the file again.
    Close(usize),
    Rename(usize),
    /// Removes the name, goes on with a new file of that name.
    Replace(usize),
    Drain,
    DrainSome,
    /// Drops the cache with all handles, without draining; opens it again.
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let file = 0..FILES;
    let offset = prop_oneof![0u64..300, 3900u64..4400, 0u64..20_000];
    let len = prop_oneof![3 => 0usize..200, 2 => 4000usize..4200, 1 => 0usize..30_000];
    prop_oneof![
        8 => (file.clone(), offset.clone(), len.clone(), any::<u8>())
            .prop_map(|(file, offset, len, byte)| Op::Write { file, offset, len, byte }),
        3 => (file.clone(), len.clone(), any::<u8>()).prop_map(|(file, len, byte)| Op::Append { file, len, byte }),
        2 => (file.clone(), offset.clone()).prop_map(|(file, len)| Op::SetLen { file, len }),
        6 => (file.clone(), offset, len).prop_map(|(file, offset, len)| Op::Read { file, offset, len }),
        1 => file.clone().prop_map(Op::Sync),
        1 => file.clone().prop_map(Op::HandOver),
        1 => file.clone().prop_map(Op::Demote),
        1 => file.clone().prop_map(Op::Refresh),
        1 => file.clone().prop_map(Op::Close),
        1 => file.clone().prop_map(Op::Rename),
        1 => file.prop_map(Op::Replace),
        1 => Just(Op::Drain),
        2 => Just(Op::DrainSome),
        1 => Just(Op::Reopen),
    ]
}

struct World {
    dir: tempfile::TempDir,
    options: CacheOptions,
    pmem: bool,
    /// Files that are written through.
    through: [bool; FILES],
    cache: Option<WriteCache>,
    handles: BTreeMap<usize, CachedFile>,
    paths: Vec<PathBuf>,
    model: Vec<Vec<u8>>,
    names: u32,
}

/// Bytes that differ from place to place, so that a shifted one shows.
fn bytes(byte: u8, len: usize) -> Vec<u8> {
    (0..len).map(|n| byte.wrapping_add((n % 251) as u8)).collect()
}

impl World {
    fn new(pmem: bool, through: [bool; FILES], durability: Durability, entry: u32, slots: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let size = 3 * 4096 + 4 * 8192 + slots * u64::from(entry + 64);
        let options = CacheOptions::new().size(size).entry_size(entry).max_files(4).durability(durability);
        let options = options.background(false).batch(1, 7);
        let paths = (0..FILES).map(|n| dir.path().join(format!("file-{n}"))).collect();
        let cache = None;
        let mut world = World {
            dir,
            options,
            pmem,
            through,
            cache,
            handles: BTreeMap::new(),
            paths,
            model: vec![Vec::new(); FILES],
            names: 0,
        };
        world.options.create(world.log()).unwrap();
        world.open();
        for file in 0..FILES {
            world.create(file);
        }
        world
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn open(&mut self) {
        let (options, log, place) = (&self.options, self.log(), Arc::new(Kernel));
        let opened = match self.pmem {
            true => options.open_on(Dax::new(MediumKind::AssumedPmem), place, log),
            false => options.open_on(PageCache::new(), place, log),
        };
        self.cache = Some(opened.unwrap());
    }

    fn attach(&mut self, file: usize) {
        let (plain, path) = (std::fs::File::open(&self.paths[file]).unwrap(), &self.paths[file]);
        let cache = self.cache.as_ref().unwrap();
        let attached = match self.through[file] {
            true => cache.attach_write_through(Arc::new(Descriptor::reopen(plain.as_fd(), path).unwrap()), path),
            false => cache.attach(plain.as_fd(), path),
        };
        self.handles.insert(file, attached.unwrap());
    }

    fn create(&mut self, file: usize) {
        drop(std::fs::File::create_new(&self.paths[file]).unwrap());
        self.attach(file);
    }

    fn write(&mut self, file: usize, offset: usize, src: &[u8]) {
        let model = &mut self.model[file];
        let end = offset + src.len();
        if !src.is_empty() && model.len() < end {
            model.resize(end, 0);
        }
        if !src.is_empty() {
            model[offset..end].copy_from_slice(src);
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Write { file, offset, len, byte } => {
                let src = bytes(byte, len);
                self.handles[&file].write_at(&src, offset).unwrap();
                self.write(file, offset as usize, &src);
            }
            Op::Append { file, len, byte } => {
                let src = bytes(byte, len);
                let at = self.handles[&file].append(&src).unwrap();
                assert_eq!(at, self.model[file].len() as u64);
                self.write(file, at as usize, &src);
            }
            Op::SetLen { file, len } => {
                self.handles[&file].set_len(len).unwrap();
                self.model[file].resize(len as usize, 0);
            }
            Op::Read { file, offset, len } => {
                let mut dst = vec![0xee; len];
                let got = self.handles[&file].read_at(&mut dst, offset).unwrap();
                let model = &self.model[file];
                let from = model.len().min(offset as usize);
                let to = model.len().min(offset as usize + len);
                assert_eq!(&dst[..got], &model[from..to]);
            }
            Op::Sync(file) => self.handles[&file].sync().unwrap(),
            Op::HandOver(file) => {
                self.handles[&file].write_to_kernel().unwrap();
                assert_eq!(std::fs::read(&self.paths[file]).unwrap(), self.model[file], "what other programs see");
            }
            Op::Demote(file) => {
                self.handles[&file].demote().unwrap();
                assert_eq!(std::fs::read(&self.paths[file]).unwrap(), self.model[file], "what other programs see");
            }
            Op::Refresh(file) => self.handles[&file].reload_len().unwrap(),
            Op::Close(file) => {
                self.handles.remove(&file);
                self.attach(file);
            }
            Op::Rename(file) => {
                self.names += 1;
                let to = self.dir.path().join(format!("renamed-{}", self.names));
                self.handles[&file].demote().unwrap();
                std::fs::rename(&self.paths[file], &to).unwrap();
                self.paths[file] = to;
                self.handles.remove(&file);
                self.attach(file);
            }
            Op::Replace(file) => {
                self.handles[&file].demote().unwrap();
                std::fs::remove_file(&self.paths[file]).unwrap();
                self.handles.remove(&file);
                self.model[file].clear();
                self.create(file);
            }
            Op::Drain => {
                self.cache.as_ref().unwrap().drain().unwrap();
                assert_eq!(self.cache.as_ref().unwrap().info().unwrap().used, 0);
                for file in 0..FILES {
                    assert_eq!(std::fs::read(&self.paths[file]).unwrap(), self.model[file]);
                }
            }
            Op::DrainSome => self.cache.as_ref().unwrap().drain_some().unwrap(),
            Op::Reopen => {
                self.handles.clear();
                self.cache = None;
                self.open();
                assert!(self.cache.as_ref().unwrap().replayed().is_complete());
                for file in 0..FILES {
                    assert_eq!(std::fs::read(&self.paths[file]).unwrap(), self.model[file], "after a replay");
                    self.attach(file);
                }
            }
        }
    }

    fn compare(&self) {
        for (file, handle) in &self.handles {
            let model = &self.model[*file];
            assert_eq!(handle.len().unwrap(), model.len() as u64);
            let mut dst = vec![0xee; model.len() + 10];
            assert_eq!(handle.read_at(&mut dst, 0).unwrap(), model.len());
            assert_eq!(&dst[..model.len()], &model[..]);
            if self.through[*file] {
                assert_eq!(std::fs::read(&self.paths[*file]).unwrap(), *model, "what other programs see");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn files_behind_a_log_are_as_files_are(
        pmem in any::<bool>(),
        per_write in any::<bool>(),
        entry in prop::sample::select(vec![64u32, 256, 4096]),
        slots in 8u64..80,
        through in any::<[bool; FILES]>(),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let durability = if per_write { Durability::PerWrite } else { Durability::PerCommit };
        let mut world = World::new(pmem, through, durability, entry, slots);
        for op in &ops {
            world.apply(op);
            world.compare();
        }
        world.apply(&Op::Drain);
        world.apply(&Op::Reopen);
    }
}

/// Threads that append, write and read, with the thread that drains between them.
#[test]
fn many_threads_see_what_they_wrote_and_lose_none_of_it() {
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let options =
            CacheOptions::new().size(256 << 10).entry_size(512).max_files(8).durability(durability).batch(4, 32);
        options.create(&log).unwrap();
        let cache = options.open_on(Dax::new(MediumKind::AssumedPmem), Arc::new(Kernel), &log).unwrap();
        let attach = |path: &Path| {
            let plain = std::fs::File::options().create(true).append(true).open(path).unwrap();
            cache.attach(plain.as_fd(), path).unwrap()
        };
        let (shared, journal) = (dir.path().join("shared"), dir.path().join("journal"));
        let (file, appended) = (attach(&shared), attach(&journal));
        file.set_len(4 * 8192).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (file, appended, cache) = (&file, &appended, &cache);
                scope.spawn(move || {
                    let mut dst = vec![0; 8192];
                    for round in 0..150u64 {
                        // A stretch over two pages, of one byte: a read sees one round of it, whole.
                        let byte = (round % 250) as u8 + 1;
                        file.write_at(&[byte; 8192], thread * 8192).unwrap();
                        file.read_at(&mut dst, thread * 8192).unwrap();
                        assert!(dst.iter().all(|&found| found == byte));
                        let other = (thread + 1) % 4;
                        file.read_at(&mut dst, other * 8192).unwrap();
                        assert!(dst.iter().all(|&found| found == dst[0]), "a torn read");
                        let mut line = [b'.'; 100];
                        line[..8].copy_from_slice(&(thread << 32 | round).to_le_bytes());
                        appended.append(&line).unwrap();
                        if round % 50 == 49 {
                            cache.sync().unwrap();
                        }
                    }
                });
            }
        });
        cache.drain().unwrap();
        let lines = std::fs::read(&journal).unwrap();
        let mut seen: Vec<u64> =
            lines.chunks_exact(100).map(|line| u64::from_le_bytes(line[..8].try_into().unwrap())).collect();
        assert_eq!(seen.len(), 600);
        // Each thread's in its order, and each once.
        for thread in 0..4 {
            let of_thread: Vec<u64> =
                seen.iter().filter(|&&word| word >> 32 == thread).map(|word| word & 0xffff).collect();
            assert_eq!(of_thread, (0..150).collect::<Vec<_>>());
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 600);
    }
}
