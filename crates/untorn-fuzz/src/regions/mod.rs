//! Forged region stores, and a model of what a store that opens all the same must hold from then on. A forged store
//! is an honest one with changes, sealed like a correct one, down to the sums over whole page tables.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use untorn::Result;
use untorn::region::{RegionStore, StoreOptions};
use untorn::testing::storage::MediumClass;
use untorn_sim::SimMedium;

use crate::forge::{Run, changes, field, put, raw, seal, seal_superblock, word};
use crate::input::Input;
use crate::pair::{Honest, PAGE, bytes};

mod model;
mod tree;

const STORE: &str = "/store";
const NODES: usize = 3;
/// The first page that is neither superblock nor region node.
const FIRST: usize = 2 + NODES;
/// The most bytes that a store may have.
const MAX_LEN: u64 = 1 << 20;

/// The fields of superblock, region node and record.
const SUPERBLOCK: [Run; 5] = [(0, 8, 1), (8, 4, 2), (16, 8, 6), (64, 4, 2), (72, 8, 4)];
const NODE: [Run; 5] = [(0, 8, 6), (48, 4, 2), (56, 1, 1), (56, 8, 1), (312, 8, 1)];
const RECORD: [Run; 1] = [(0, 8, 5)];

/// A machine with a store: one for each class of medium, and so with and without digests, left clean and left open.
static HONEST: LazyLock<Vec<Honest>> = LazyLock::new(|| {
    let both = [MediumClass::PersistentMemory, MediumClass::Block];
    let all = both.into_iter().flat_map(|class| [false, true].map(|clean| build(class, clean)));
    all.map(|honest| honest.expect("creating an unforged store succeeds")).collect()
});

fn options() -> StoreOptions {
    StoreOptions::new().max_regions(NODES as u32).grow_by(4 * PAGE as u64).background_scan(false).max_len(MAX_LEN)
}

/// Two regions, one of three levels and one of none, each with commits of both parities, and free pages in between.
fn build(class: MediumClass, clean: bool) -> Result<Honest> {
    let medium = SimMedium::new(class);
    let store = options().create_on(medium.clone(), STORE)?;
    let regions = [store.create_region("one")?, store.create_region_of("two", 100)?];
    for round in 0..3_u64 {
        for (n, region) in regions.iter().enumerate() {
            region.alloc_at(round * 4, 4)?;
            for page in region.pages()?.into_iter().filter(|page| page % 3 != 1) {
                region.write_page(page, &[(round * 50 + page * 2) as u8 + n as u8; PAGE])?;
            }
            region.pmsync()?;
            region.free_page(round * 4)?;
        }
    }
    regions[0].alloc_at(70_000, 1)?;
    regions[0].pmsync()?;
    drop(regions);
    if clean {
        store.close()?;
    } else {
        drop(store);
    }
    Honest::take(medium.crash_state(), PathBuf::from(STORE))
}

fn seal_node(bytes: &mut [u8], at: usize) {
    seal(bytes, at + 16..at + 504, 0);
}

fn node(input: &mut Input<'_>) -> usize {
    (2 + input.below(NODES as u64) as usize) * PAGE
}

/// A number, or rather one of a page of the store.
fn number(bytes: &[u8], input: &mut Input<'_>) -> u64 {
    match input.byte() % 4 {
        0 => input.number(),
        _ => input.below((bytes.len() / PAGE) as u64 + 2),
    }
}

/// Changes something.
fn change(bytes: &mut Vec<u8>, input: &mut Input<'_>) {
    match input.byte() % 16 {
        0 => field(bytes, &SUPERBLOCK, [0, PAGE], input, seal_superblock),
        1 => {
            let node = node(input);
            field(bytes, &NODE, [node, node], input, seal_node);
        }
        2 => {
            let node = node(input);
            field(bytes, &RECORD, [node + 512, node + 1024], input, tree::seal_record);
        }
        3 => {
            let len = bytes.len();
            raw(bytes, 0, len, input);
        }
        4 => bytes.resize(input.below(MAX_LEN + 2 * PAGE as u64) as usize, 0),
        // One node has what another one has.
        5 => {
            let (from, to) = (node(input), node(input));
            let kept = bytes.get(from..from + PAGE).map(<[u8]>::to_vec);
            if let (Some(kept), Some(place)) = (kept, bytes.get_mut(to..to + PAGE)) {
                place.copy_from_slice(&kept);
                put(bytes, to + 56, input.number(), 1);
                seal_node(bytes, to);
            }
        }
        6 => map(bytes, input),
        // The offset at which a page table begins.
        7 => {
            let node = node(input);
            let value = number(bytes, input);
            put(bytes, node + 8, value, 8);
        }
        _ => {
            // A link or an entry, mostly among the first ones, where there are any.
            let pages = (bytes.len() / PAGE).saturating_sub(FIRST).max(1);
            let page = FIRST + input.below(pages as u64) as usize;
            let place = if input.byte().is_multiple_of(4) { input.below(512) } else { input.below(16) };
            let half = usize::from(input.byte() % 2) * 2048;
            let value = number(bytes, input);
            put(bytes, page * PAGE + (half + place as usize * 8) % PAGE, value, 8);
        }
    }
    if !input.byte().is_multiple_of(4) {
        tree::agree(bytes);
    }
}

/// Changes a word of the free map, and vouches for it.
fn map(bytes: &mut [u8], input: &mut Input<'_>) {
    let newest = [0, PAGE].into_iter().max_by_key(|at| word(bytes, at + 56)).unwrap_or_default();
    let [pages, at] = [72, 80].map(|at| word(bytes, newest + at) as usize);
    let (Some(start), len) = (at.checked_mul(PAGE), pages.div_ceil(64).saturating_mul(8)) else { return };
    let value = if input.byte().is_multiple_of(2) { 0 } else { input.number() };
    put(bytes, start.saturating_add(8 * input.below(3) as usize), value, 8);
    if let Some(covered) = start.checked_add(len).and_then(|end| bytes.get(start..end)) {
        let sum = twox_hash::XxHash3_64::oneshot(covered);
        put(bytes, newest + 88, sum, 8);
        seal_superblock(bytes, newest);
    }
}

/// Forges a store as the input says and opens it: to look at it, which changes nothing, and to change it. An error is
/// a right answer, from a store that is then unchanged, or from a region. A store that opens must agree with a model,
/// with two exceptions: a forged free map gives away pages of regions, which only the audit can find, or a number is
/// beyond any that a store reaches.
pub fn regions(input: &[u8]) {
    let mut input = Input::new(input);
    let honest = input.pick(&HONEST);
    let mut forged = honest.bytes.clone();
    let count = input.below(16);
    changes(&mut input, count, |input| {
        change(&mut forged, input);
        false
    });
    let medium = honest.with(&forged);
    let now = || bytes(&medium, Path::new(STORE)).expect("the store exists");

    let looked = options().read_only(true).open_on(medium.clone(), STORE);
    let seen = looked.as_ref().ok().map(model::contents);
    if let Ok(store) = &looked {
        drop((store.audit(), store.info(), store.scan()));
    }
    drop(looked);
    assert!(now() == forged, "a read-only open changed the store");

    let Ok(store) = options().open_on(medium.clone(), STORE) else {
        assert!(now() == forged, "a refused open changed the store");
        return;
    };
    let contents = model::contents(&store);
    assert!(seen.is_none_or(|seen| seen == contents), "a read-only open shows different contents");
    if !is_sound(&store) || tree::is_far(&forged) {
        model::exercise(store, contents, &mut input);
        return;
    }
    model::hold(&medium, store, contents, &mut input);
}

/// Returns whether the model applies. Two things must hold:
///
/// - No page of a region can be given away: the store believes only a scan there, or the audit finds nothing.
/// - Every page matches its digest: a mismatch makes the last commit look incomplete.
fn is_sound(store: &RegionStore) -> bool {
    let recovered = store.info().is_ok_and(|info| info.recovered);
    let audit = store.audit();
    audit.is_ok_and(|audit| if recovered { audit.differing_pages == 0 } else { audit.findings.is_empty() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::judge_made_up;

    /// A fuzzer whose sums are wrong would never get past the first check.
    #[test]
    fn a_forged_entry_in_a_table_that_adds_up_is_read() {
        for honest in HONEST.iter() {
            let mut bytes = honest.bytes.clone();
            // Page 5 of the region "two" was written; said to be never written it reads as zeros.
            let leaf = word(&bytes, 3 * PAGE + 8) as usize * PAGE;
            for half in [0, 2048] {
                put(&mut bytes, leaf + half + 5 * 16, 1, 8);
                put(&mut bytes, leaf + half + 5 * 16 + 8, 0, 8);
            }
            let read = |bytes: &[u8]| {
                let region = options().open_on(honest.with(bytes), STORE)?.open_region("two")?;
                let mut page = [7; PAGE];
                region.read_page(5, &mut page).map(|()| page[0])
            };
            assert!(read(&honest.bytes).unwrap() > 0);
            read(&bytes).unwrap_err();
            tree::agree(&mut bytes);
            assert_eq!(read(&bytes).unwrap(), 0);
        }
    }

    #[test]
    fn an_honest_store_is_sound_and_its_pages_have_one_owner_each() {
        for honest in HONEST.iter() {
            let store = options().open_on(honest.boot(), STORE).unwrap();
            assert!(is_sound(&store) && !tree::is_far(&honest.bytes));
            let contents = model::contents(&store);
            assert_eq!(contents.len(), 2);
            let owned = tree::owned(&honest.bytes, &contents.keys().cloned().collect()).unwrap();
            assert!(owned > 12, "{owned} pages");
            let mut twice = honest.bytes.clone();
            let from = word(&twice, 2 * PAGE + 8);
            put(&mut twice, 3 * PAGE + 8, from, 8);
            tree::owned(&twice, &contents.keys().cloned().collect()).unwrap_err();
        }
    }

    #[test]
    fn made_up_changes_are_judged() {
        judge_made_up(untorn_testing::cases(150, 600), 250, regions);
    }
}
