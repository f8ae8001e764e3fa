//! What `pmem_map_file` maps: the file at a path, or a region whose path is `STORE/REGION`.

use std::ffi::c_int;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf, absolute};

use rustix::fs::{FallocateFlags, fallocate};
use untorn_core::Options;

use super::{Memory, Source};
use crate::abi::{PMEM_FILE_CREATE, PMEM_FILE_EXCL, PMEM_FILE_SPARSE, PMEM_FILE_TMPFILE};
use crate::errors::{Failure, Result};
use crate::mapping::errno;
use crate::regions::{PAGE, regions};

/// The arguments of `pmem_map_file`.
pub(crate) struct Request<'a> {
    pub(crate) path: &'a Path,
    pub(crate) len: usize,
    pub(crate) flags: c_int,
    pub(crate) mode: libc::mode_t,
}

/// The source of a mapping, its memory, address and length.
type Opened = (Source, Memory, usize, usize);

impl Request<'_> {
    fn has(&self, flag: i64) -> bool {
        i64::from(self.flags) & flag != 0
    }

    /// # Errors
    /// What no file could satisfy.
    pub(super) fn check(&self) -> Result<()> {
        let known = PMEM_FILE_CREATE | PMEM_FILE_EXCL | PMEM_FILE_SPARSE | PMEM_FILE_TMPFILE;
        let unknown = i64::from(self.flags) & !known;
        if unknown != 0 {
            return Err(Failure::invalid(format!("the flags {unknown:#x} are not valid; pass PMEM_FILE_* or 0")));
        }
        if self.has(PMEM_FILE_TMPFILE) {
            let message = "PMEM_FILE_TMPFILE is not supported: no commit of a file without a name outlives its process";
            return Err(errno(libc::EOPNOTSUPP, message));
        }
        match (self.has(PMEM_FILE_CREATE), self.len) {
            (true, 0) => Err(Failure::invalid("the length is 0; PMEM_FILE_CREATE needs one")),
            (false, 1..) => Err(Failure::invalid("a length needs PMEM_FILE_CREATE; pass 0 to map all of the file")),
            _ => Ok(()),
        }
    }

    /// Whether what is mapped already, with this length, is what is asked for.
    pub(super) fn suits(&self, len: usize) -> Result<()> {
        let path = self.path.display();
        if self.has(PMEM_FILE_CREATE) && self.has(PMEM_FILE_EXCL) {
            return Err(errno(libc::EEXIST, format!("{path} exists and is mapped")));
        }
        if self.has(PMEM_FILE_CREATE) && self.len != len {
            return Err(errno(libc::EBUSY, format!("{path} is mapped with {len} bytes; unmap it first")));
        }
        Ok(())
    }

    /// The store and the region's name if the path is that of a region: nothing else is below a regular file.
    fn region(&self) -> Result<Option<(PathBuf, &str)>> {
        let parent = self.path.parent().filter(|parent| parent.metadata().is_ok_and(|found| found.is_file()));
        let (Some(store), Some(name)) = (parent, self.path.file_name()) else { return Ok(None) };
        let name = name.to_str().ok_or_else(|| Failure::invalid("the region name is not UTF-8"))?;
        let store = absolute(store).map_err(|error| self.failed(&error))?;
        Ok(Some((store, name)))
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::system(&self.path.display().to_string(), error)
    }

    /// What there is at the path, if there is something.
    pub(super) fn source(&self) -> Result<Option<Source>> {
        if let Some((store, name)) = self.region()? {
            return Ok(Some(Source::Region(store, name.to_owned())));
        }
        match fs::metadata(self.path) {
            Ok(found) => Ok(Some(Source::File((found.dev(), found.ino())))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    pub(super) fn open(&self) -> Result<Opened> {
        match self.region()? {
            Some((store, name)) => self.open_region(store, name),
            None => self.open_file(),
        }
    }

    fn open_region(&self, store: PathBuf, name: &str) -> Result<Opened> {
        let create = if self.has(PMEM_FILE_CREATE) { libc::O_CREAT } else { 0 };
        let exclusive = if create != 0 && self.has(PMEM_FILE_EXCL) { libc::O_EXCL } else { 0 };
        let rd = regions().open(&store, name, create | exclusive)?;
        let pages = if self.has(PMEM_FILE_CREATE) { Some(self.len.div_ceil(PAGE) as u64) } else { None };
        let mapped = regions().map_from_the_first(rd, pages).inspect_err(|_| {
            // The error of mapping is the one that helps.
            let _ = regions().close(rd);
        });
        let (address, len) = mapped?;
        Ok((Source::Region(store, name.to_owned()), Memory::Region(rd), address, len))
    }

    /// Creates the file, if there is none, with its length. Returns whether it did.
    fn create(&self) -> Result<bool> {
        let made = OpenOptions::new().read(true).write(true).create_new(true).mode(self.mode).open(self.path);
        let file = match made {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !self.has(PMEM_FILE_EXCL) => {
                return Ok(false);
            }
            Err(error) => return Err(self.failed(&error)),
        };
        self.lengthen(&file).inspect_err(|_| {
            // There was no file before the call.
            let _ = fs::remove_file(self.path);
        })?;
        Ok(true)
    }

    fn lengthen(&self, file: &File) -> Result<()> {
        let len = self.len as u64;
        let done = if self.has(PMEM_FILE_SPARSE) {
            file.set_len(len)
        } else {
            fallocate(file.as_fd(), FallocateFlags::empty(), 0, len).map_err(io::Error::from)
        };
        done.map_err(|error| self.failed(&error))
    }

    fn open_file(&self) -> Result<Opened> {
        let created = self.has(PMEM_FILE_CREATE) && self.create()?;
        let mut map = Options::new().map(self.path).inspect_err(|_| {
            if created {
                let _ = fs::remove_file(self.path);
            }
        })?;
        if self.has(PMEM_FILE_CREATE) && map.len() != self.len {
            map.resize(self.len as u64)?;
            map.commit()?;
        }
        if map.is_empty() {
            return Err(Failure::invalid(format!(
                "{} is empty; pass PMEM_FILE_CREATE and a length",
                self.path.display()
            )));
        }
        let found = fs::metadata(map.path()).map_err(|error| self.failed(&error))?;
        let (address, len) = (map.as_mut_ptr().addr(), map.len());
        Ok((Source::File((found.dev(), found.ino())), Memory::File(Box::new(map)), address, len))
    }
}
