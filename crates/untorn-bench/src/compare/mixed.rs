//! Contenders of workloads that read and write: a share of the accesses are reads, spread evenly.

use untorn::AtomicFile;
use untorn::testing::storage::Medium;

use super::files::{Atomic, Raws};
use super::{Contender, Setting, Store, Worker};
use crate::benches::benchmark::on_medium;
use crate::counting::{Counters, Counting};
use crate::error::Result;
use crate::measure::Buffer;
use crate::raw::{Raw, Target};
use crate::rig::is_pmem;

/// A contender of files, with reads among its accesses.
#[derive(Clone, Debug)]
pub(crate) struct Mixed<C> {
    pub(crate) contender: C,
    /// The share of reads in percent.
    pub(crate) reads: u32,
}

/// A file as a worker uses it. A write is durable on return.
trait Access: Sync {
    fn read(&self, bytes: &mut [u8], offset: u64) -> untorn::Result<()>;
    fn write(&self, bytes: &[u8], offset: u64) -> untorn::Result<()>;
}

struct MixedStore<A> {
    access: A,
    size: usize,
    reads: u32,
    /// Finish the work that the store leaves for later, and close it.
    settle: fn(&A) -> Result<()>,
    close: fn(A) -> Result<()>,
}

impl<A: Access> Store for MixedStore<A> {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let mut buffer = Buffer::new(self.size);
        let mut number = 0;
        Ok(Box::new(move |place: u64| -> Result<()> {
            let offset = place * self.size as u64;
            if is_write(number, self.reads) {
                self.access.write(buffer.bytes(), offset)?;
            } else {
                self.access.read(buffer.bytes(), offset)?;
            }
            number = (number + 1) % 100;
            Ok(())
        }))
    }

    fn settle(&self) -> Result<()> {
        (self.settle)(&self.access)
    }

    fn close(self: Box<Self>) -> Result<()> {
        (self.close)(self.access)
    }
}

/// Whether an access, by its number from 0 on, is a write: writes are spread evenly over each hundred.
pub(crate) fn is_write(number: u32, reads: u32) -> bool {
    let share = u64::from(100 - reads);
    let before = |number: u64| number * share / 100;
    before(u64::from(number) + 1) > before(number.into())
}

struct RawFile<R>(R);

impl<R: Raw> Access for RawFile<R> {
    fn read(&self, bytes: &mut [u8], offset: u64) -> untorn::Result<()> {
        self.0.read(bytes, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> untorn::Result<()> {
        self.0.write(bytes, offset)?;
        self.0.fence()
    }
}

impl Contender for Mixed<Raws> {
    fn name(&self) -> String {
        self.contender.name()
    }

    fn durability(&self) -> String {
        self.contender.durability()
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        on_medium!(setting.kind, target => {
            let raw = Raws::make(target, setting)?;
            let (size, reads) = (setting.size, self.reads);
            Ok(Box::new(MixedStore { access: RawFile(raw), size, reads, settle: |_| Ok(()), close: |_| Ok(()) }))
        })
    }
}

struct EngineFile {
    file: AtomicFile,
    /// Whether a write is followed by a commit.
    syncs: bool,
}

impl Access for EngineFile {
    fn read(&self, bytes: &mut [u8], offset: u64) -> untorn::Result<()> {
        self.file.read_at(bytes, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> untorn::Result<()> {
        self.file.write_at(bytes, offset)?;
        if self.syncs { self.file.sync().map(drop) } else { Ok(()) }
    }
}

impl Mixed<Atomic> {
    fn make<M: Medium + 'static>(&self, medium: M, setting: &Setting) -> Result<Box<dyn Store>> {
        let file = self.contender.file(medium, setting)?;
        Ok(Box::new(MixedStore {
            access: EngineFile { file, syncs: !is_pmem(setting.kind) },
            size: setting.size,
            reads: self.reads,
            settle: |access| Atomic::settle(&access.file),
            close: |access| Ok(access.file.close()?),
        }))
    }
}

impl Contender for Mixed<Atomic> {
    fn name(&self) -> String {
        self.contender.name()
    }

    fn durability(&self) -> String {
        self.contender.durability()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_have_their_share_and_are_spread() {
        for reads in [0, 20, 40, 60, 80, 100] {
            let accesses: Vec<bool> = (0..100).map(|number| is_write(number, reads)).collect();
            assert_eq!(accesses.iter().filter(|&&write| write).count() as u32, 100 - reads);
            if reads == 80 {
                assert!(accesses.chunks(5).all(|five| five.iter().filter(|&&write| write).count() == 1));
            }
        }
    }
}
