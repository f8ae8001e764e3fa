//! Cuts through stores that are totally ordered, which the hybrid log commits, however many processes make them and
//! whoever is killed: every committed image is judged.

use super::*;
use crate::ipc::memory::tests::rig::{Judged, PAGES, Subject, bugs, cuts};

/// Opens the file so that every image is judged.
struct Judging(Committed, PathBuf);

impl Opener for Judging {
    fn open(&self, before: Option<&Before>) -> Result<Box<dyn Backing>> {
        Ok(Box::new(Judged::new(self.0.open(before)?, &self.1, |_, _| None)))
    }
}

impl Subject for SharedMap {
    const WHAT: &'static str = "map";

    fn make(dir: &Path) {
        AtomicFile::create(dir.join("file"), PAGES as u64 * 4096).unwrap().settle().unwrap();
    }
    fn open(dir: &Path) -> Self {
        let judging = |opener| -> Arc<dyn Opener> { Arc::new(Judging(opener, dir.to_owned())) };
        super::super::open(&Options::new(), &dir.join("file"), crate::open::open, judging).unwrap()
    }
    fn copy(&self) -> &SharedMemory {
        &self.copy
    }
    fn commit(&self) -> Result<u64> {
        SharedMap::commit(self)
    }
    fn leave(self) -> Result<()> {
        self.close()
    }
}

cuts! {
    SharedMap;
    two_processes_never_see_a_torn_map: 2, 60, None;
    four_processes_never_see_a_torn_map: 4, 60, None;
    two_processes_of_which_one_dies_share_a_map: 2, 100, Some(50);
    four_processes_of_which_one_dies_share_a_map: 4, 100, Some(50);
}

bugs! {
    SharedMap;
    a_map_whose_pages_are_not_protected_is_convicted: NoProtection;
}
