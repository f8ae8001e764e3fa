//! The systems of the Libnvmmio paper's figures that run here, under a load of reads, writes and commits.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use untorn::options::{Durability, LogPolicy};
use untorn::{AtomicFile, EngineKind, Options};

use crate::benches::benchmark::on_medium;
use crate::compare::{Contender, Setting, Store, Worker};
use crate::counting::{Counters, Counting};
use crate::error::{Error, Result};
use crate::measure::Buffer;
use crate::raw::{Raw, Target};
use crate::rig::is_pmem;

/// The operation of each thread on its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// The share of reads in percent.
    pub(super) reads: u32,
    /// Accesses from one commit to the next; 0 for no commit.
    pub(super) interval: u32,
    /// Whether each thread has a file of its own.
    pub(super) private: bool,
}

/// A way to read and write a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    /// `pread`, `pwrite` and `fdatasync`: the file system. Nothing is atomic.
    Calls,
    /// Copies from and to a mapping, with a fence or `fdatasync`: the medium's limit. Nothing is atomic.
    Mapping,
    /// The hybrid log under a policy.
    Log(LogPolicy),
    /// Reflection pages.
    Reflection,
}

/// One system under one load.
#[derive(Clone, Copy, Debug)]
pub(super) struct System {
    pub(super) how: How,
    pub(super) load: Load,
}

/// A file, or a file for each thread.
struct Files<F> {
    files: Vec<F>,
    load: Load,
    size: usize,
    /// Records of each file.
    records: u64,
}

/// The requests of a load to a file.
trait Access: Sync {
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()>;
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()>;
    fn commit(&self) -> Result<()>;
    fn close(self) -> Result<()>;
}

struct Called(File);

struct Mapped<R>(R);

impl Access for Called {
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_exact_at(bytes, offset).map_err(failed)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.0.write_all_at(bytes, offset).map_err(failed)
    }

    fn commit(&self) -> Result<()> {
        self.0.sync_data().map_err(failed)
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

fn failed(source: std::io::Error) -> Error {
    Error::io("access", Path::new("the file of the system calls"), source)
}

impl<R: Raw> Access for Mapped<R> {
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        Ok(self.0.read(bytes, offset)?)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        Ok(self.0.write(bytes, offset)?)
    }

    fn commit(&self) -> Result<()> {
        Ok(self.0.fence()?)
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

impl Access for AtomicFile {
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        Ok(self.read_at(bytes, offset)?)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        Ok(self.write_at(bytes, offset)?)
    }

    fn commit(&self) -> Result<()> {
        self.sync()?;
        Ok(())
    }

    fn close(self) -> Result<()> {
        Ok(AtomicFile::close(self)?)
    }
}

/// Whether an access is a read: reads are spread evenly over a hundred accesses.
fn is_read(number: u32, reads: u32) -> bool {
    let number = number % 100;
    number * reads / 100 != (number + 1) * reads / 100
}

impl<F: Access> Store for Files<F> {
    fn worker(&self, thread: usize) -> Result<Box<dyn Worker + '_>> {
        let file = &self.files[thread % self.files.len()];
        let (Load { reads, interval, .. }, size, records) = (self.load, self.size as u64, self.records);
        let (mut buffer, mut number) = (Buffer::new(self.size), 0_u32);
        Ok(Box::new(move |place: u64| -> Result<()> {
            let offset = place % records * size;
            if is_read(number, reads) {
                file.read(buffer.bytes(), offset)?;
            } else {
                file.write(buffer.bytes(), offset)?;
            }
            number = number.wrapping_add(1);
            if interval > 0 && number.is_multiple_of(interval) { file.commit() } else { Ok(()) }
        }))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.files.into_iter().try_for_each(Access::close)
    }
}

impl System {
    fn options(self) -> Option<Options> {
        let (engine, policy) = match self.how {
            How::Log(policy) => (EngineKind::HybridLog, policy),
            How::Reflection => (EngineKind::Reflection, LogPolicy::Hybrid),
            How::Calls | How::Mapping => return None,
        };
        Some(Options::new().engine(engine).durability(Durability::PerCommit).log_policy(policy))
    }

    /// Makes the files of a setting, each with every byte written and committed.
    fn make<F: Access + 'static>(
        self,
        setting: &Setting,
        create: impl Fn(&Path, u64) -> Result<F>,
    ) -> Result<Box<dyn Store>> {
        let count = if self.load.private { setting.threads } else { 1 };
        let records = setting.records / count as u64;
        let len = (records * setting.size as u64).next_multiple_of(4096);
        let mut files = Vec::new();
        for number in 0..count {
            let file = create(&setting.dir.join(format!("data{number}")), len)?;
            for (page, offset) in (0..len).step_by(4096).enumerate() {
                file.write(&[0x5a; 4096], offset)?;
                // One epoch for the whole file would need a record of every page at once.
                if page % 256 == 255 {
                    file.commit()?;
                }
            }
            file.commit()?;
            files.push(file);
        }
        Ok(Box::new(Files { files, load: self.load, size: setting.size, records }))
    }
}

fn called(path: &Path, len: u64) -> Result<Called> {
    let made = File::options().read(true).write(true).create_new(true).open(path);
    let file = made.map_err(|source| Error::io("create", path, source))?;
    file.set_len(len).map_err(|source| Error::io("lengthen", path, source))?;
    Ok(Called(file))
}

impl Contender for System {
    fn name(&self) -> String {
        match self.how {
            How::Calls => "pread-pwrite".to_owned(),
            How::Mapping => "mapping".to_owned(),
            How::Log(LogPolicy::Hybrid) => "untorn-hybrid-log".to_owned(),
            How::Log(policy) => format!("untorn-hybrid-log-{policy}"),
            How::Reflection => "untorn-reflection".to_owned(),
        }
    }

    fn durability(&self) -> String {
        let when = match self.load.interval {
            0 => "nothing until it is closed".to_owned(),
            1 => "each access on return".to_owned(),
            n => format!("after every {n} accesses of a thread"),
        };
        match self.how {
            How::Calls => format!("{when}, by fdatasync; a crash may tear any write"),
            How::Mapping => format!("{when}, by a fence or fdatasync; a crash may tear any write"),
            How::Log(_) | How::Reflection => format!("{when}, by AtomicFile::sync, all since the last or nothing"),
        }
    }

    fn missing(&self, setting: &Setting) -> Option<String> {
        let undo = matches!(self.how, How::Log(LogPolicy::Undo)) && !is_pmem(setting.kind);
        undo.then(|| "undo logging needs persistent memory, or UNTORN_ASSUME_PMEM=1".to_owned())
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        match self.options() {
            Some(options) => on_medium!(setting.kind, target => self.make(setting, |path, len| {
                Ok(options.create_on(target.medium(), path, len)?)
            })),
            None if matches!(self.how, How::Calls) => self.make(setting, called),
            None => {
                on_medium!(setting.kind, target => self.make(setting, |path, len| Ok(Mapped(target.raw(path, len)?))))
            }
        }
    }

    fn set_up_counted(&self, setting: &Setting) -> Result<Option<(Box<dyn Store>, Counters)>> {
        let Some(options) = self.options() else { return Ok(None) };
        let counters = Counters::default();
        on_medium!(setting.kind, target => {
            let store = self.make(setting, |path, len| {
                Ok(options.create_on(Counting::counted_by(target.medium(), &counters), path, len)?)
            })?;
            Ok(Some((store, counters)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_have_their_share_and_are_spread() {
        for reads in [0, 1, 20, 40, 50, 60, 80, 99, 100] {
            let read: Vec<bool> = (0..200).map(|number| is_read(number, reads)).collect();
            for hundred in read.chunks(100) {
                assert_eq!(hundred.iter().filter(|&&read| read).count() as u32, reads, "{reads}");
            }
            if reads == 20 {
                assert!(read.chunks(5).all(|five| five.iter().filter(|&&read| read).count() == 1));
            }
        }
    }
}
