//! Cuts through stores that are totally ordered, however many processes make them and whoever is killed.

use std::path::Path;
use std::sync::Arc;

use super::super::{Backing, Opener, PAGE, SharedMemory};
use super::backing::Journal;
use super::open_with;
use super::rig::{COMMON, Judged, PAGES, Subject, bugs, cuts, judge};
use crate::error::Result;

#[test]
fn the_judge_convicts() {
    let mut image = vec![0; PAGES * PAGE];
    let set = |image: &mut Vec<u8>, page: usize, ticket: u64| {
        image[page * PAGE..page * PAGE + 8].copy_from_slice(&ticket.to_le_bytes());
    };
    assert_eq!(judge(&image), None);
    for ticket in 1..=1000 {
        set(&mut image, ticket as usize % COMMON, ticket);
        set(&mut image, COMMON, ticket);
        assert_eq!(judge(&image), None);
    }
    set(&mut image, COMMON + 1, 1001);
    assert!(judge(&image).unwrap().contains("thread 0"));
    set(&mut image, COMMON + 1, 0);
    set(&mut image, 1001 % COMMON, 0);
    assert!(judge(&image).unwrap().contains("has ticket 0"));
}

impl Subject for SharedMemory {
    const WHAT: &'static str = "working copy";

    fn make(_: &Path) {}
    fn open(dir: &Path) -> Self {
        let of = dir.to_owned();
        let opener: Arc<dyn Opener> = Arc::new(move || {
            let journal = Box::new(Journal::open(&of, PAGES)?);
            Ok(Box::new(Judged::new(journal, &of, |_, _| None)) as Box<dyn Backing>)
        });
        open_with(dir, opener)
    }
    fn copy(&self) -> &SharedMemory {
        self
    }
    fn commit(&self) -> Result<u64> {
        SharedMemory::commit(self)
    }
    fn leave(self) -> Result<()> {
        SharedMemory::leave(self)
    }
}

cuts! {
    SharedMemory;
    two_processes_never_see_a_torn_cut: 2, 500, None;
    four_processes_never_see_a_torn_cut: 4, 500, None;
    two_processes_of_which_one_dies: 2, 500, Some(50);
    four_processes_of_which_one_dies: 4, 500, Some(50);
}

bugs! {
    SharedMemory;
    a_cut_without_protection_is_convicted: NoProtection;
    a_cut_that_lets_stores_through_too_early_is_convicted: EarlyGate;
}
