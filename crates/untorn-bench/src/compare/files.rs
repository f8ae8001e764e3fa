//! Contenders that every comparison may use: the raw limit of the medium, and untorn's files.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use untorn::options::Durability;
use untorn::testing::storage::Medium;
use untorn::{AtomicFile, EngineKind, Options};

use super::{Contender, Setting, Store, Worker};
use crate::benches::benchmark::on_medium;
use crate::counting::{Counters, Counting};
use crate::error::{Error, Result};
use crate::measure::Buffer;
use crate::raw::{Block, Raw, Target};
use crate::rig::is_pmem;

/// The raw limit, which is not atomic: a non-temporal copy and a fence, or `pwrite` and `fdatasync`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raws {
    /// Whether the medium is persistent memory.
    pub(crate) is_pmem: bool,
}

impl Contender for Raws {
    fn name(&self) -> String {
        if self.is_pmem { "copy+fence" } else { "pwrite+fdatasync" }.to_owned()
    }

    fn durability(&self) -> String {
        let how = if self.is_pmem { "a fence" } else { "fdatasync" };
        format!("each operation on return, by {how}; a crash may tear the last one")
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        on_medium!(setting.kind, target => {
            Ok(Box::new(RawStore { raw: Raws::make(target, setting)?, size: setting.size }))
        })
    }
}

impl Raws {
    /// A raw file with every page written.
    pub(super) fn make<T: Target>(target: T, setting: &Setting) -> Result<T::Raw> {
        let raw = target.raw(&setting.dir.join("raw"), setting.len())?;
        let page = [0x5a; 4096];
        (0..setting.len()).step_by(4096).try_for_each(|offset| raw.write(&page, offset))?;
        raw.fence()?;
        Ok(raw)
    }
}

struct RawStore<R> {
    raw: R,
    size: usize,
}

impl<R: Raw> Store for RawStore<R> {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let mut buffer = Buffer::new(self.size);
        Ok(Box::new(move |place: u64| -> Result<()> {
            self.raw.write(buffer.bytes(), place * self.size as u64)?;
            self.raw.fence()?;
            Ok(())
        }))
    }
}

/// The limit of a log with redo records: one `pwrite` to a log that was written before, and one `fdatasync`. Another
/// thread writes the records to their pages, a batch at a time, and flushes those. It recovers nothing, and so is no
/// system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogLimit;

/// Records that go to their pages at once, as with a log of 8 MiB of `hybrid-log`, half of which is emptied at a time.
const BATCH: usize = 512;

/// Bytes of the log, which is used as a ring.
const LOG: u64 = 8 << 20;

/// Bytes that a log needs beside each record: where it goes, and a checksum.
const HEADER: usize = 64;

impl Contender for LogLimit {
    fn name(&self) -> String {
        "log+pages".to_owned()
    }

    fn durability(&self) -> String {
        "each operation on return, by fdatasync of a log; nothing recovers it".to_owned()
    }

    fn missing(&self, setting: &Setting) -> Option<String> {
        is_pmem(setting.kind).then(|| "it is the limit of a disk".to_owned())
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        let pages = Raws::make(Block(setting.kind), setting)?;
        let mut logs = Vec::new();
        for thread in 0..setting.threads {
            let log = Block(setting.kind).raw(&setting.dir.join(format!("log-{thread}")), LOG)?;
            (0..LOG).step_by(4096).try_for_each(|offset| log.write(&[0; 4096], offset))?;
            log.fence()?;
            logs.push(log);
        }
        Ok(Box::new(LogStore { pages: Arc::new(pages), logs, size: setting.size }))
    }
}

struct LogStore {
    pages: Arc<<Block as Target>::Raw>,
    logs: Vec<<Block as Target>::Raw>,
    size: usize,
}

impl Store for LogStore {
    fn worker(&self, thread: usize) -> Result<Box<dyn Worker + '_>> {
        let (log, size) = (&self.logs[thread], self.size);
        let mut buffer = Buffer::new(HEADER + size);
        let mut checkpoints = Checkpoints::start(self.pages.clone(), size)?;
        let (mut at, mut batch) = (0, Vec::with_capacity(BATCH));
        Ok(Box::new(move |place: u64| -> Result<()> {
            let entry = buffer.bytes();
            if at + entry.len() as u64 > LOG {
                at = 0;
            }
            log.write(entry, at)?;
            log.fence()?;
            at += entry.len() as u64;
            batch.push(place);
            if batch.len() == BATCH {
                checkpoints.take(std::mem::replace(&mut batch, Vec::with_capacity(BATCH)))?;
            }
            Ok(())
        }))
    }
}

/// A thread that writes records to their pages.
struct Checkpoints {
    batches: Option<SyncSender<Vec<u64>>>,
    thread: Option<JoinHandle<untorn::Result<()>>>,
}

impl Checkpoints {
    fn start(pages: Arc<<Block as Target>::Raw>, size: usize) -> Result<Self> {
        let (batches, received) = sync_channel::<Vec<u64>>(0);
        let write = move || {
            let record = vec![0x5a; size];
            received.into_iter().try_for_each(|batch| {
                batch.iter().try_for_each(|place| pages.write(&record, place * size as u64))?;
                pages.fence()
            })
        };
        let thread = Builder::new().name("log-pages".to_owned()).spawn(write);
        let thread = thread.map_err(|source| Error::io("start a thread for", Path::new("log+pages"), source))?;
        Ok(Checkpoints { batches: Some(batches), thread: Some(thread) })
    }

    /// Waits until the thread is done with the batch before.
    ///
    /// # Errors
    /// Why the thread has ended.
    fn take(&mut self, batch: Vec<u64>) -> Result<()> {
        if self.batches.as_ref().is_some_and(|batches| batches.send(batch).is_ok()) {
            return Ok(());
        }
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => Err(error.into()),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            _ => Err(Error::usage("log+pages has failed before")),
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        drop(self.batches.take());
        // A limit has no last batch to make durable.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// An [`AtomicFile`]: a write of a record, durable on return.
#[derive(Clone, Debug)]
pub(crate) struct Atomic {
    /// Its engine.
    pub(crate) engine: EngineKind,
    /// What its name in the rows has besides the engine; begins with a hyphen, or is empty.
    pub(crate) suffix: &'static str,
    /// Its options; the engine and the durability are set by the contender.
    pub(crate) options: Options,
}

impl Atomic {
    /// The engine with its default options.
    pub(crate) fn new(engine: EngineKind) -> Self {
        Atomic { engine, suffix: "", options: Options::new() }
    }

    /// Per write on persistent memory; on a block medium a commit after each write.
    fn options(&self, setting: &Setting) -> Options {
        let durability = if is_pmem(setting.kind) { Durability::PerWrite } else { Durability::PerCommit };
        self.options.clone().engine(self.engine).durability(durability)
    }

    /// The file, with every page written.
    pub(super) fn file<M: Medium + 'static>(&self, medium: M, setting: &Setting) -> Result<AtomicFile> {
        create(medium, &setting.dir.join("data"), &self.options(setting), setting.len())
    }

    /// Finishes what an engine has left for later. The log keeps its space, as it does while a program runs.
    pub(super) fn settle(file: &AtomicFile) -> Result<()> {
        if file.info().engine == EngineKind::HybridLog {
            file.sync()?;
            file.deploy(0, file.len())?;
        }
        Ok(())
    }

    fn make<M: Medium + 'static>(&self, medium: M, setting: &Setting) -> Result<Box<dyn Store>> {
        let file = self.file(medium, setting)?;
        Ok(Box::new(AtomicStore { file, size: setting.size, syncs: !is_pmem(setting.kind) }))
    }
}

/// Makes a file with every page written twice: a page has two places, used in turn.
fn create<M: Medium + 'static>(medium: M, path: &Path, options: &Options, len: u64) -> Result<AtomicFile> {
    let file = options.create_on(medium, path, len)?;
    let page = [0x5a; 4096];
    for _ in 0..2 {
        for (index, offset) in (0..len).step_by(4096).enumerate() {
            file.write_at(&page, offset)?;
            // One epoch for the whole file would need a record of every page at once.
            if index % 256 == 255 {
                file.sync()?;
            }
        }
        file.sync()?;
    }
    Ok(file)
}

impl Contender for Atomic {
    fn name(&self) -> String {
        format!("untorn-{}{}", self.engine, self.suffix)
    }

    fn durability(&self) -> String {
        "each operation on return, whole".to_owned()
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        on_medium!(setting.kind, target => self.make(target.medium(), setting))
    }

    fn set_up_counted(&self, setting: &Setting) -> Result<Option<(Box<dyn Store>, Counters)>> {
        on_medium!(setting.kind, target => {
            let medium = Counting::new(target.medium());
            let counters = medium.counters();
            Ok(Some((self.make(medium, setting)?, counters)))
        })
    }
}

struct AtomicStore {
    file: AtomicFile,
    size: usize,
    /// Whether a write is followed by a commit.
    syncs: bool,
}

impl Store for AtomicStore {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let mut buffer = Buffer::new(self.size);
        Ok(Box::new(move |place: u64| -> Result<()> {
            self.file.write_at(buffer.bytes(), place * self.size as u64)?;
            if self.syncs {
                self.file.sync()?;
            }
            Ok(())
        }))
    }

    fn settle(&self) -> Result<()> {
        Atomic::settle(&self.file)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.file.close()?;
        Ok(())
    }
}
