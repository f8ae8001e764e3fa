//! Cuts through stores that are totally ordered and through allocations, however many processes make them and whoever
//! is killed: every committed image is judged.

use super::super::backing::{Committed, Mapped};
use super::super::pages::{IN_WORD, allocated_in, pages_of};
use super::*;
use crate::ipc::memory::tests::rig::{Judged, OWNERS, Outcome, PAGES as ORDERED, Subject, bugs, cuts, step};
use crate::ipc::memory::{Backing, Before, Opener, SharedMemory};

/// Pages with what the threads link, one for each.
const LINKS: u64 = ORDERED as u64;
const PAGES: u64 = 4 * ORDERED as u64;

/// Opens the store so that every image is judged.
struct Judging(Committed, PathBuf);

impl Opener for Judging {
    fn open(&self, before: Option<&Before>) -> Result<Box<dyn Backing>> {
        Ok(Box::new(Judged::new(Box::new(self.0.open_region(before)?), &self.1, verdict)))
    }
    fn part(&self) -> String {
        self.0.part()
    }
}

fn word_of(image: &[u8], page: u64, index: usize) -> u64 {
    let at = page as usize * PAGE as usize + index * 8;
    u64::from_le_bytes(image[at..at + 8].try_into().unwrap())
}

/// The pages that an image says are there.
fn pages_in(image: &[u8]) -> Vec<u64> {
    let states = &image[(PAGES * PAGE) as usize..];
    let words = states.chunks_exact(8).map(|word| allocated_in(u64::from_le_bytes(word.try_into().unwrap())));
    (0..).step_by(IN_WORD as usize).zip(words).flat_map(|(first, word)| pages_of(first, word)).collect()
}

/// Why an image is not the state of one instant, as far as pages come and go.
fn verdict(store: &Mapped, image: &[u8]) -> Option<String> {
    let (pages, of_store) = (pages_in(image), store.pages_of_store());
    if pages != of_store {
        return Some(format!("the store has pages {of_store:?}, and the memory {pages:?}"));
    }
    let there: BTreeSet<u64> = pages.into_iter().collect();
    let mut linked = BTreeSet::new();
    for owner in 0..OWNERS as u64 {
        // The page that a thread has linked was allocated before, and filled.
        let Some(page) = word_of(image, LINKS + owner, 0).checked_sub(1) else { continue };
        if !there.contains(&page) || !linked.insert(page) {
            return Some(format!("thread {owner} has page {page}, which is not there, or another one's"));
        }
        let (first, last) = (word_of(image, page, 0), word_of(image, page, 511));
        if first != last || first >> 32 != owner + 1 {
            return Some(format!("page {page} of thread {owner} has {first:#x} and {last:#x}"));
        }
    }
    None
}

/// Allocates a page, fills it, and links it; or unlinks it and frees it. One after the other, so a cut has what came
/// before.
fn churn(region: &SharedRegion, owner: u64, turn: u64) {
    let link = &region.words((LINKS + owner) * PAGE, 1).unwrap()[0];
    match link.load(SeqCst).checked_sub(1) {
        None => {
            let page = match region.alloc_page() {
                Ok(page) => page,
                // Those that were freed come back with the next commit.
                Err(Error::Invalid { .. }) => return,
                Err(error) => panic!("{error}"),
            };
            let words = region.words(page * PAGE, 512).unwrap();
            assert!(words.iter().all(|word| word.load(SeqCst) == 0), "a page is not zeros");
            let stamp = (owner + 1) << 32 | turn & 0xffff_ffff;
            words[0].store(stamp, SeqCst);
            words[511].store(stamp, SeqCst);
            link.store(page + 1, SeqCst);
        }
        Some(page) => {
            link.store(0, SeqCst);
            region.free_page(page).unwrap();
        }
    }
}

impl Subject for SharedRegion {
    const WHAT: &'static str = "region";

    fn make(dir: &Path) {
        let store = RegionStore::create(dir.join("store")).unwrap();
        // What the threads expect to be there, in commit 1.
        let region = store.create_region_of("r", PAGES).unwrap();
        region.alloc_at(0, LINKS + OWNERS as u64).unwrap();
        region.pmsync().unwrap();
        drop(region);
        store.close().unwrap();
    }
    fn open(dir: &Path) -> Self {
        let judging = |opener| -> Arc<dyn Opener> { Arc::new(Judging(opener, dir.to_owned())) };
        RegionMapOptions::new().shared_region(&dir.join("store"), "r", false, judging).unwrap()
    }
    fn copy(&self) -> &SharedMemory {
        &self.copy
    }
    fn act(&self, test: &Stage, owner: usize, turn: u64) {
        step(&self.copy, test, owner);
        churn(self, owner as u64, turn);
    }
    fn commit(&self) -> Result<u64> {
        self.pmsync()
    }
    fn leave(self) -> Result<()> {
        self.close()
    }
    fn examine(dir: &Path, outcome: &Outcome) {
        // What nobody has linked was allocated by a thread that was killed, or stopped, before it could link or free
        // it.
        let left = committed(&dir.join("store"));
        let linked = (0..OWNERS as u64).filter(|owner| left[&(LINKS + owner)] != 0).count() as u64;
        let lost = left.len() as u64 - LINKS - OWNERS as u64 - linked;
        println!("{} pages, {lost} of them nobody's", left.len());
        assert!(lost <= 2 * (outcome.kills + outcome.processes as u64), "{lost} pages are nobody's");
    }
}

cuts! {
    SharedRegion;
    two_processes_never_see_a_torn_region: 2, 200, None;
    four_processes_never_see_a_torn_region: 4, 200, None;
    two_processes_of_which_one_dies_share_a_region: 2, 300, Some(50);
    four_processes_of_which_one_dies_share_a_region: 4, 300, Some(50);
}

bugs! {
    SharedRegion;
    a_region_whose_pages_are_not_protected_is_convicted: NoProtection;
}
