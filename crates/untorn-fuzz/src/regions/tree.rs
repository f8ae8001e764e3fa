//! Page tables, read by other code than the one under test: to make sums agree with forged bytes, and to see which
//! region owns which page.

use std::collections::BTreeSet;

use twox_hash::XxHash3_64;

use super::{FIRST, NODES};
use crate::forge::{put, word};
use crate::pair::PAGE;

const VALID: u64 = u64::from_le_bytes(*b"rnode ok");
const HALF: usize = 2048;

/// The leaves of a region, number and page each, and the pages on the way.
#[derive(Default)]
struct Tree {
    leaves: Vec<(u64, u64)>,
    pages: Vec<u64>,
}

impl Tree {
    fn of(bytes: &[u8], node: usize) -> Self {
        let mut tree = Tree::default();
        let (status, root, max_pages) = (word(bytes, node), word(bytes, node + 8), word(bytes, node + 32));
        if status == VALID && root != 0 && max_pages <= 1 << 51 {
            let leaves = max_pages.div_ceil(128);
            let height = (0..6).find(|&level| leaves <= 512_u64.pow(level)).unwrap_or_default();
            tree.walk(bytes, root, height, 0);
        }
        tree
    }

    /// A forged table may meet itself: a page is gone through once.
    fn walk(&mut self, bytes: &[u8], page: u64, level: u32, index: u64) {
        if page >= (bytes.len() / PAGE) as u64 || self.pages.contains(&page) {
            self.pages.push(page);
            return;
        }
        self.pages.push(page);
        if level == 0 {
            self.leaves.push((index, page));
            return;
        }
        for child in 0..512 {
            let link = word(bytes, page as usize * PAGE + child * 8);
            if link != 0 {
                self.walk(bytes, link, level - 1, index * 512 + child as u64);
            }
        }
    }

    /// All entries of one parity that are allocated: logical page, and where the entry stands.
    fn entries(&self, bytes: &[u8], parity: usize) -> Vec<(u64, usize)> {
        let of_leaf = |&(index, page): &(u64, u64)| {
            let at = page as usize * PAGE + parity * HALF;
            (0..128).map(move |n| (index.wrapping_mul(128).wrapping_add(n), at + n as usize * 16))
        };
        self.leaves.iter().flat_map(of_leaf).filter(|(_, at)| word(bytes, *at) != 0).collect()
    }
}

fn nodes() -> impl Iterator<Item = usize> {
    (2..2 + NODES).map(|node| node * PAGE)
}

/// The record's place of this parity.
fn record_at(node: usize, parity: usize) -> usize {
    node + 512 + parity * 512
}

/// Seals the record at a place in its region's node.
pub(super) fn seal_record(bytes: &mut [u8], at: usize) {
    let check = record_check(bytes, at);
    put(bytes, at + 56, check, 8);
}

fn record_check(bytes: &[u8], at: usize) -> u64 {
    let uid = at / PAGE * PAGE + 16;
    let parts = [bytes.get(uid..uid + 16), bytes.get(at..at + 56)];
    XxHash3_64::oneshot(&parts.map(Option::unwrap_or_default).concat())
}

/// Makes all records say what the page tables hold.
pub(super) fn agree(bytes: &mut [u8]) {
    for node in nodes() {
        let tree = Tree::of(bytes, node);
        for parity in 0..2 {
            let entries = tree.entries(bytes, parity);
            let weigh = |&(logical, at): &(u64, usize)| {
                let entry = bytes.get(at..at + 16).unwrap_or_default();
                XxHash3_64::oneshot(&[&logical.to_le_bytes()[..], entry].concat())
            };
            let total = entries.iter().map(weigh).fold(0, u64::wrapping_add);
            let at = record_at(node, parity);
            if word(bytes, at) % 2 == parity as u64 && record_check(bytes, at) == word(bytes, at + 56) {
                put(bytes, at + 8, total, 8);
                put(bytes, at + 16, entries.len() as u64, 8);
                seal_record(bytes, at);
            }
        }
    }
}

/// Whether a number is beyond any that a store reaches.
pub(super) fn is_far(bytes: &[u8]) -> bool {
    let records = nodes().flat_map(|node| [0, 1].map(|parity| record_at(node, parity)));
    [56, PAGE + 56].into_iter().chain(records).any(|at| word(bytes, at) > 1 << 60)
}

/// The number of pages that the regions of these names own, by their last commits.
///
/// # Errors
/// The error is a sentence, if a page is owned twice or is no page of the file that a region can have.
pub(super) fn owned(bytes: &[u8], names: &BTreeSet<String>) -> Result<usize, String> {
    let mut owned = BTreeSet::new();
    // If two nodes have one name, the second one counts as damaged, and no call opens it.
    let mut names: BTreeSet<&[u8]> = names.iter().map(String::as_bytes).collect();
    for node in nodes() {
        let len = (word(bytes, node + 48) as u32) as usize;
        let name = bytes.get(node + 56..node + 56 + len.min(255)).unwrap_or_default();
        if word(bytes, node) != VALID || !names.remove(name) {
            continue;
        }
        let is_whole = |at: &usize| record_check(bytes, *at) == word(bytes, at + 56);
        let records = [0, 1].map(|parity| record_at(node, parity)).into_iter().filter(is_whole);
        let Some(newest) = records.max_by_key(|at| word(bytes, *at)) else { continue };
        let tree = Tree::of(bytes, node);
        let entries = tree.entries(bytes, (word(bytes, newest) % 2) as usize);
        let pages = entries.iter().map(|&(_, at)| word(bytes, at)).filter(|&page| page != 1);
        for page in tree.pages.iter().copied().chain(pages) {
            if page < FIRST as u64 || page >= (bytes.len() / PAGE) as u64 {
                return Err(format!("page {page} is outside the range of region pages"));
            }
            if !owned.insert(page) {
                return Err(format!("page {page} has two owners"));
            }
        }
    }
    Ok(owned.len())
}
