//! A backing for the tests: a file with a journal, durable against kills only.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::super::{Backing, Cut, PAGE};
use crate::error::{Error, Result};
use crate::ipc::membership::lock;

/// `image` is the file; `journal`, once it has that name, is the commit after it or the one in it.
pub(super) struct Journal {
    dir: PathBuf,
    /// Its lock says that the file is in use.
    image: File,
    state: Mutex<State>,
}

struct State {
    number: u64,
    len: u64,
    bytes: Vec<u8>,
}

impl Drop for Journal {
    fn drop(&mut self) {
        // A process that another test is about to start has the open file too, and with it the lock, until it runs.
        crate::sys::file::unlock(self.image.as_fd());
    }
}

impl Journal {
    /// Opens the journal of a directory, which begins as `pages` pages of zeros.
    pub(super) fn opener(dir: &Path, pages: usize) -> impl Fn() -> Result<Box<dyn Backing>> + Send + Sync + use<> {
        let dir = dir.to_owned();
        move || Self::open(&dir, pages).map(|journal| Box::new(journal) as Box<dyn Backing>)
    }

    pub(super) fn open(dir: &Path, pages: usize) -> Result<Self> {
        let path = dir.join("image");
        let failed = |error| Error::io("open", &path, error);
        if let Some(why) = fs::read_to_string(dir.join("broken")).ok().filter(|why| !why.is_empty()) {
            assert_ne!(why, "panic", "as the test wants");
            return Err(failed(std::io::Error::other(why)));
        }
        let image =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        if !crate::sys::file::try_lock(image.as_fd(), true).map_err(failed)? {
            return Err(Error::InUse { path, holder: "another process".to_owned() });
        }
        let mut bytes = fs::read(&path).map_err(failed)?;
        let mut number = 0;
        if bytes.is_empty() {
            bytes = vec![0; pages * PAGE];
        } else {
            // The last eight bytes are its number.
            number = u64::from_le_bytes(bytes.split_off(bytes.len() - 8).try_into().unwrap());
        }
        let state = Mutex::new(State { number, len: bytes.len() as u64, bytes });
        let journal = Journal { dir: dir.to_owned(), image, state };
        journal.replay().map_err(failed)?;
        Ok(journal)
    }

    /// Applies the journal, if there is one.
    fn replay(&self) -> std::io::Result<()> {
        let Ok(journal) = fs::read(self.dir.join("journal")) else { return Ok(()) };
        let mut state = lock(&self.state);
        let word = |at: usize| u64::from_le_bytes(journal[at..at + 8].try_into().unwrap());
        let (number, len, mut at) = (word(0), word(8), 16);
        assert!(number == state.number || number == state.number + 1, "commit {number} after {}", state.number);
        state.bytes.resize(len as usize, 0);
        while at < journal.len() {
            let (offset, count) = (word(at) as usize, word(at + 8) as usize);
            state.bytes[offset..offset + count].copy_from_slice(&journal[at + 16..at + 16 + count]);
            at += 16 + count;
        }
        state.number = number;
        state.len = len;
        let mut whole = state.bytes.clone();
        whole.extend_from_slice(&number.to_le_bytes());
        // Only a kill in the middle can hurt it, and then the journal is applied again; its length is that of an image.
        self.image.write_all_at(&whole, 0)?;
        self.image.set_len(whole.len() as u64)?;
        Ok(())
    }
}

impl Backing for Journal {
    fn len(&self) -> u64 {
        lock(&self.state).len
    }

    fn last_commit(&self) -> u64 {
        lock(&self.state).number
    }

    fn fill(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        if self.dir.join("unreadable").exists() {
            return Err(Error::io_at("read", &self.dir, offset, std::io::Error::other("the test's disk is broken")));
        }
        let at = offset as usize;
        into.copy_from_slice(&lock(&self.state).bytes[at..at + into.len()]);
        Ok(())
    }

    fn commit(&self, cut: &Cut) -> Result<u64> {
        let failed = |error| Error::io("commit", &self.dir, error);
        if self.dir.join("full").exists() {
            return Err(failed(std::io::Error::other("the test's disk is full")));
        }
        let number = lock(&self.state).number + 1;
        let mut journal = [number.to_le_bytes(), cut.len.to_le_bytes()].concat();
        for (offset, bytes) in cut.runs() {
            journal.extend_from_slice(&offset.to_le_bytes());
            journal.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            journal.extend_from_slice(bytes);
        }
        fs::write(self.dir.join("journal.new"), journal).map_err(failed)?;
        fs::rename(self.dir.join("journal.new"), self.dir.join("journal")).map_err(failed)?;
        self.replay().map_err(failed)?;
        Ok(number)
    }

    fn poisoned(&self) -> Option<String> {
        None
    }
}
