//! The content of a store, and the content that it must have after it was changed.

use std::collections::BTreeMap;
use std::path::Path;

use untorn::Result;
use untorn::region::{Region, RegionStore};
use untorn_sim::{Rng, SimMedium};

use super::{MAX_LEN, STORE, options, tree};
use crate::input::Input;
use crate::pair::{PAGE, bytes};

/// The pages of a region. A page is filled with one byte, or known by a digest.
type Pages = BTreeMap<u64, u64>;
/// Regions, by name.
pub(super) type Contents = BTreeMap<String, Pages>;

fn seen(page: &[u8; PAGE]) -> u64 {
    twox_hash::XxHash3_64::oneshot(page)
}

fn pages(region: &Region) -> Result<Pages> {
    let mut page = [0; PAGE];
    let read = |number: u64| region.read_page(number, &mut page).map(|()| (number, seen(&page)));
    region.pages()?.into_iter().map(read).collect()
}

/// All that can be read: one region after the other, in the order of their names.
pub(super) fn contents(store: &RegionStore) -> Contents {
    let mut contents = Contents::new();
    for info in store.list().unwrap_or_default() {
        if let Ok(pages) = store.open_region(&info.name).and_then(|region| pages(&region)) {
            contents.insert(info.name, pages);
        }
    }
    contents
}

/// Changes everything that can be, with errors as right answers: nothing is asked but that nothing panics.
pub(super) fn exercise(store: RegionStore, mut contents: Contents, input: &mut Input<'_>) {
    let mut working = contents.clone();
    for _ in 0..8 {
        step(&store, &mut working, &mut contents, input);
    }
    drop((store.scan(), store.audit(), store.info(), store.delete_region("two")));
    drop(store.close());
}

/// One change of one region. A change that fails has changed nothing.
fn step(store: &RegionStore, working: &mut Contents, committed: &mut Contents, input: &mut Input<'_>) {
    let choice = input.byte();
    let Some(name) = working.keys().nth(usize::from(choice) % working.len().max(1)).cloned() else { return };
    let Ok(region) = store.open_region(&name) else { return };
    let pages = working.entry(name.clone()).or_default();
    let some = pages.keys().nth(usize::from(input.byte()) % pages.len().max(1)).copied();
    let fill = input.byte();
    match (choice / 4 % 8, some) {
        (0..=2, _) => {
            let count = 1 + input.below(4);
            if let Ok(first) = region.alloc_pages(count) {
                for page in first..first + count {
                    assert!(
                        pages.insert(page, seen(&[0; PAGE])).is_none(),
                        "page {page} of {name:?} was allocated twice"
                    );
                }
                if region.write_page(first, &[fill; PAGE]).is_ok() {
                    pages.insert(first, seen(&[fill; PAGE]));
                }
            }
        }
        (3..=4, Some(page)) if region.write_page(page, &[fill; PAGE]).is_ok() => {
            pages.insert(page, seen(&[fill; PAGE]));
        }
        (5, Some(page)) if region.free_page(page).is_ok() => {
            pages.remove(&page);
        }
        (6, Some(page)) => {
            drop(region.write_page(page, &[fill; PAGE]));
            if region.rollback().is_err() {
                return;
            }
        }
        _ => {}
    }
    // The last handle takes uncommitted changes with it.
    if region.pmsync().is_ok() {
        committed.insert(name, pages.clone());
    } else {
        pages.clone_from(&committed[&name]);
    }
}

/// Checks a store against its content at the open and the changes made since, however it is left.
pub(super) fn hold(medium: &SimMedium, store: RegionStore, mut committed: Contents, input: &mut Input<'_>) {
    let mut working = committed.clone();
    for _ in 0..1 + input.below(12) {
        step(&store, &mut working, &mut committed, input);
    }
    if input.byte().is_multiple_of(4) && store.create_region("new").is_ok() {
        committed.insert("new".to_owned(), Pages::new());
    }
    check(&store, &committed, "after a change");
    let mut rng = Rng::new(u64::from(input.byte()));
    let medium = match input.byte() % 4 {
        0 => {
            drop(store);
            medium.clone()
        }
        1 => medium.crash_state().killed(),
        2 => {
            let state = medium.crash_state();
            state.image(&state.sample(&mut rng)).boot()
        }
        _ => {
            drop(store.close());
            medium.clone()
        }
    };
    let store = options()
        .open_on(medium.clone(), STORE)
        .unwrap_or_else(|error| panic!("the store was opened once, but the next open failed: {error}"));
    check(&store, &committed, "after reopening");
    drop(store.close());
    let bytes = bytes(&medium, Path::new(STORE)).expect("the store exists");
    assert!(bytes.len() as u64 <= MAX_LEN, "the store has {} bytes, more than the maximum of {MAX_LEN}", bytes.len());
    tree::owned(&bytes, &committed.into_keys().collect()).unwrap_or_else(|what| panic!("{what}"));
}

fn check(store: &RegionStore, expected: &Contents, when: &str) {
    for (name, expected) in expected {
        let found = store.open_region(name).and_then(|region| pages(&region));
        let found = found.unwrap_or_else(|error| panic!("{when}, region {name:?} cannot be read: {error}"));
        let differs = found.iter().find(|(page, seen)| expected.get(page) != Some(seen));
        assert!(found == *expected, "{when}, region {name:?} has other contents, first at page {differs:?}");
    }
}
