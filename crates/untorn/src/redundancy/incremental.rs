//! The synchronous mode: stores are covered when their announcement is released, by the difference that they made.
//!
//! An announcement keeps a copy of the page and compares it with its checksum, so that the difference never builds on
//! damage. When the stores are made, the stripe's parity changes by the exclusive or of the old and the new bytes. The
//! other pages of the stripe are not read, and their current bytes do not matter: parity still matches the bytes that
//! they were covered with, also of a page that was damaged since, which can be rebuilt as before.
//!
//! Source: the delta parity of Pangolin, to which Vilamb (§2.4, §4) compares itself.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use super::update::{Sites, Stripe};
use super::{Inner, Redundancy, barriers};
use crate::error::{Error, Result};
use crate::format::sidecar::PAGE;
use crate::simd::xor;
use crate::storage::Medium;

const SITES: Sites = Sites { data: barriers::DELTA_DATA, tables: barriers::DELTA_TABLES, marks: barriers::DELTA_MARKS };

impl<M: Medium> Redundancy<M> {
    /// What covered pages hold that are about to be stored to, after a look whether they are damaged: then they are
    /// repaired first.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a page that is damaged, cannot be given back and is to be stored to in part: the rest
    /// of it would be covered as it is. Of a file with an engine it is, and told of as lost. Those of reading and of
    /// repair.
    pub(super) fn remember(&self, inner: &mut Inner, bytes: &Range<u64>) -> Result<Vec<(u64, Box<[u8]>)>> {
        let pages = self.geometry.pages_of(bytes);
        // A stripe all of which is stored to speaks of nothing else. Of many pages, to cover such a stripe as a whole
        // takes fewer reads and no memory. What is beside a page of any other stripe can be given back only as long
        // as it is known what the page held, however many they are.
        let are_many = pages.end - pages.start > self.batch;
        let is_alone =
            |page: u64| self.geometry.members(self.geometry.stripe_of(page)).all(|member| pages.contains(&member));
        let mut before = Vec::new();
        for page in pages.clone() {
            let range = self.geometry.bytes_of(page);
            let is_whole = bytes.start <= range.start && range.end <= bytes.end;
            // What others are storing to is remembered, or to be covered with its stripe, as is what is uncovered.
            let is_known = inner.storing.contains_key(&page) || inner.tables.uncovered().has(page);
            if is_known {
                continue;
            }
            let is_kept = !(are_many && is_alone(page));
            if is_whole && !is_kept {
                continue;
            }
            let mut held = vec![0; PAGE as usize];
            if self.read(page, &mut held)? != Some(inner.tables.sum(page)) {
                let healed = self.heal(inner, page, &mut held);
                if !self.note_failure(inner, healed)? {
                    self.note_damaged(inner, page);
                    if is_whole {
                        inner.spoilt.remove(&page);
                        continue;
                    }
                    if self.has_engine {
                        // It may be recovery that stores, without which nobody gets at the rest of the file. The page
                        // is covered as it will be, as one is that is covered after a period.
                        if inner.spoilt.insert(page) {
                            let path = self.path.display();
                            tracing::error!(%path, page, "a damaged page is stored to, and parity cannot rebuild it");
                        }
                        continue;
                    }
                    let what = "the page is damaged and parity cannot rebuild it; overwrite the whole page, or restore \
                                the file from a backup";
                    let (path, offset) = (self.path.clone(), Some(range.start));
                    return Err(Error::Corrupt { path, offset, what: what.to_owned() });
                }
            }
            if is_kept {
                before.push((page, held.into_boxed_slice()));
            }
        }
        Ok(before)
    }

    /// Repairs a damaged page, if it can be, and puts its bytes in `held`.
    fn heal(&self, inner: &mut Inner, page: u64, held: &mut [u8]) -> Result<bool> {
        let stripe = self.geometry.stripe_of(page);
        let mut read = self.read_stripe(stripe, false)?;
        self.take_back(inner, &mut read);
        let Some(nth) = read.pages.iter().position(|member| *member == page) else { return Ok(false) };
        if !self.restore(inner, stripe, &mut read, &[nth])? {
            return Ok(false);
        }
        held.copy_from_slice(read.bytes(nth));
        Ok(true)
    }

    /// Puts what pages that are being stored to were covered with, of which parity goes on speaking, in the place of
    /// what they hold by now.
    pub(super) fn take_back(&self, inner: &Inner, read: &mut Stripe) {
        for nth in 0..read.pages.len() {
            let page = read.pages[nth];
            if let Some(before) = inner.before.get(&page) {
                read.replace(nth, before, inner.tables.sum(page));
            }
        }
    }

    /// Covers pages whose stores were made, of which it is known what they held. False if pages of their stripes are
    /// left, which can be covered only with the whole stripe.
    pub(super) fn cover_differences(&self, inner: &mut Inner, made: &[u64]) -> Result<bool> {
        let mut parities: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut covered = Vec::new();
        for &page in made {
            let Some(before) = inner.before.remove(&page) else { continue };
            let stripe = self.geometry.stripe_of(page);
            let parity = match parities.entry(stripe) {
                Entry::Occupied(parity) => parity.into_mut(),
                Entry::Vacant(place) => {
                    match self.read_parity(stripe, false)? {
                        Some((parity, sum)) if sum == inner.tables.parity_sum(stripe) => place.insert(parity),
                        // It is damaged. All pages of the stripe together make another.
                        _ => continue,
                    }
                }
            };
            // What is stored from here on is announced anew, and covered again.
            inner.stored.put(page, false);
            let mut after = vec![0; PAGE as usize];
            let Some(sum) = self.read(page, &mut after)? else {
                // Its stripe is left, and tells.
                inner.stored.put(page, true);
                continue;
            };
            xor(parity, &before);
            xor(parity, &after);
            inner.tables.set_sum(page, sum);
            inner.stuck.remove(&page);
            covered.push(page);
        }
        for (&stripe, parity) in &parities {
            inner.tables.set_parity_sum(stripe, self.checksum.of(parity));
        }
        if !covered.is_empty() {
            let parities: Vec<_> = parities.into_iter().collect();
            self.publish(inner, &parities, covered, &SITES)?;
        }
        let is_left =
            |page: &u64| self.geometry.members(self.geometry.stripe_of(*page)).any(|member| inner.stored.has(member));
        Ok(!made.iter().any(is_left))
    }
}
