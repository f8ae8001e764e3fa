//! The shared parts of all cycles: a directory for the machines, the guest's user space, a saved machine, and empty
//! file systems.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::guest;
use super::image::{self, FileSystem, HEAD};
use super::initramfs;
use super::kernel::Kernel;
use super::vm::{IMAGE, Machine, Memory, Vm};
use crate::error::{Error, Result};

/// The shared parts of all machines. Dropping it removes its files.
#[derive(Debug)]
pub(super) struct Lab {
    directory: TempDir,
    kernel: PathBuf,
    initramfs: PathBuf,
    head: Vec<u8>,
}

impl Lab {
    /// Boots a machine once, saves it before it has accessed its NVDIMM, then makes it prepare the NVDIMM for DAX.
    pub(super) fn prepare(kernel: &Kernel, program: &Path, file_systems: &[FileSystem]) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("untorn-dax-").tempdir();
        let directory = directory.map_err(Error::system("create a temporary directory"))?;
        let initramfs = directory.path().join("initramfs");
        fs::write(&initramfs, initramfs::build(kernel, program)?).map_err(Error::io_at("write", &initramfs))?;
        let path = kernel.image.canonicalize().map_err(Error::io_at("find", &kernel.image))?;
        let mut lab = Lab { directory, kernel: path, initramfs, head: Vec::new() };
        for &file_system in file_systems.iter().chain([&FileSystem::Ext4]) {
            file_system.make(&lab.empty(file_system))?;
        }
        lab.new_image(FileSystem::Ext4, Memory::Nvdimm)?;
        let mut vm = Vm::boot(lab.machine(Memory::Nvdimm), lab.directory.path())?;
        vm.save()?;
        vm.console.run(&guest::make_fsdax())?;
        vm.cut()?;
        lab.head = image::head(&lab.image())?;
        Ok(lab)
    }

    /// Resumes the saved machine with the current image.
    pub(super) fn resume(&self) -> Result<Vm> {
        Vm::resume(self.machine(Memory::Nvdimm), self.directory.path())
    }

    /// Boots a machine with the current image.
    pub(super) fn boot(&self, memory: Memory) -> Result<Vm> {
        Vm::boot(self.machine(memory), self.directory.path())
    }

    /// Creates the image again, with an empty file system.
    pub(super) fn new_image(&self, file_system: FileSystem, memory: Memory) -> Result<()> {
        let head = (memory == Memory::Nvdimm).then_some(&self.head[..]);
        image::assemble(head, &self.empty(file_system), &self.image())
    }

    /// Puts bytes into the image's mailbox. Returns the guest's command that prints them.
    pub(super) fn post(&self, memory: Memory, bytes: &[u8]) -> Result<String> {
        let head = if memory == Memory::Nvdimm { HEAD } else { 0 };
        image::post(&self.image(), head, bytes)
    }

    /// The image under test.
    pub(super) fn image(&self) -> PathBuf {
        self.file(IMAGE)
    }

    /// The machines' directory.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The path of a machine's file.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn empty(&self, file_system: FileSystem) -> PathBuf {
        self.file(&format!("empty-{}", file_system.as_str()))
    }

    fn machine(&self, memory: Memory) -> Machine<'_> {
        Machine { kernel: &self.kernel, initramfs: &self.initramfs, memory }
    }
}
