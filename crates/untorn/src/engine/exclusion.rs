//! Prevents a process from opening a file in another way while processes share it.
//!
//! The sidecar's lock excludes others while the file is open. But between the death of the process that served and the
//! next one's takeover, no process has it open. If another program committed then, the file would differ from what the
//! sharing processes have in memory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::format::sidecar::{CALLS, SHARE, directory, meeting_place};
use crate::ipc::rendezvous::find_participant;
use crate::options::ExclusionCheck;
use crate::storage::Identity;

/// How often somebody who may be about to leave is asked for, and how long the pause after each time is.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// Lets a file be opened that nobody shares in any of these ways.
#[derive(Clone)]
pub(crate) struct NotShared {
    path: PathBuf,
    identity: Identity,
    kinds: &'static [&'static str],
}

impl NotShared {
    /// For those who open the file for themselves.
    pub(crate) fn of_any_kind(path: &Path, identity: Identity) -> Self {
        NotShared { path: path.to_owned(), identity, kinds: &[CALLS, SHARE] }
    }

    /// For those who share it as memory.
    pub(crate) fn by_calls(path: &Path, identity: Identity) -> Self {
        NotShared { path: path.to_owned(), identity, kinds: &[CALLS] }
    }

    /// For those who share it by calls.
    pub(crate) fn as_memory(path: &Path, identity: Identity) -> Self {
        NotShared { path: path.to_owned(), identity, kinds: &[SHARE] }
    }

    /// Why something of the file is not as it should be.
    pub(crate) fn invalid(&self, what: String) -> Error {
        Error::Invalid { path: self.path.clone(), what }
    }
}

/// Tries to open a file, again as long as an attempt says that it was turned away: somebody who is just leaving, or
/// was killed a moment ago, is waited for as long as the lock of a sidecar is. Between two attempts nothing is held,
/// for this process itself may take part, and be the next to serve.
pub(crate) fn retry_while_shared<T>(mut open: impl FnMut(&mut bool) -> Result<T>) -> Result<T> {
    for _ in 0..ATTEMPTS {
        let mut turned_away = false;
        let opened = open(&mut turned_away);
        if !turned_away {
            return opened;
        }
        #[cfg(test)]
        tests::PAUSED.with_borrow(|paused| paused.iter().for_each(|paused| paused()));
        std::thread::sleep(PAUSE);
    }
    open(&mut false)
}

impl ExclusionCheck for NotShared {
    fn check_exclusion(&self) -> Result<()> {
        let directory = directory(&self.path);
        for kind in self.kinds {
            let who = find_participant(&self.path, &directory, &meeting_place(self.identity, kind));
            if let Some(who) = who.map_err(|error| Error::io("find the processes that share", &self.path, error))? {
                let how = if *kind == SHARE { "as a shared map" } else { "as a shared file" };
                return Err(Error::InUse { path: self.path.clone(), holder: format!("{who}, which has it {how}") });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use super::super::registry;
    use super::*;
    use crate::AtomicFile;
    use crate::ipc::rendezvous::Rendezvous;
    use crate::options::Options;
    use crate::storage::detect;

    thread_local! {
        /// What a thread does in each pause.
        pub(crate) static PAUSED: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
    }

    /// For they may be in this process: the thread that opens the file as the next to serve those who share it.
    #[test]
    fn an_opener_that_waits_for_sharers_does_not_block_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        Options::new().keep_sidecar(true).create(&path, 4096).unwrap().close().unwrap();
        let identity = detect(&path).unwrap().identity;
        let sharer = Rendezvous::open(&path, &directory(&path), &meeting_place(identity, SHARE)).unwrap();
        sharer.attach().unwrap();
        let pauses = Rc::new(Cell::new(0));
        let counted = Rc::clone(&pauses);
        PAUSED.set(Some(Box::new(move || {
            assert!(registry::is_free(identity), "nobody of the process can open it");
            counted.set(counted.get() + 1);
        })));
        for options in [Options::new(), Options::new().shared(true)] {
            let error = options.open(&path).err();
            assert!(matches!(error, Some(Error::InUse { .. })), "{error:?}");
        }
        assert_eq!(pauses.get(), 2 * ATTEMPTS);
    }

    #[test]
    fn an_open_waits_for_a_sharer_that_is_leaving() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = Options::new().keep_sidecar(true).create(&path, 4096).unwrap();
        file.close().unwrap();
        let identity = detect(&path).unwrap().identity;
        let sharer = Rendezvous::open(&path, &directory(&path), &meeting_place(identity, SHARE)).unwrap();
        sharer.attach().unwrap();
        let since = Instant::now();
        for error in [NotShared::as_memory(&path, identity).check_exclusion().err(), AtomicFile::open(&path).err()] {
            assert!(matches!(error, Some(Error::InUse { .. })), "{error:?}");
        }
        assert!(since.elapsed() >= PAUSE * ATTEMPTS, "an opening waited for nobody");
        let left = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                drop(sharer);
                left.store(true, Ordering::SeqCst);
            });
            // On a busy machine that may take longer than anybody waits for.
            let file = loop {
                let late = !left.load(Ordering::SeqCst);
                match AtomicFile::open(&path) {
                    Err(Error::InUse { .. }) if late => {}
                    opened => break opened.unwrap(),
                }
            };
            file.close().unwrap();
        });
    }
}
