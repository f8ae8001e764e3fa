//! Audit of a whole store: each page must have one owner and the bytes of its commit.

use std::collections::HashMap;

use super::format::{PAGE, Page, digest};
use super::{Core, locked};
use crate::error::Result;
use crate::storage::{Medium, MediumFile};

/// The result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audit {
    /// Pages of regions that take space.
    pub data_pages: u64,
    /// Pages of page tables.
    pub table_pages: u64,
    /// Used pages without an owner: lost until the store is scanned again.
    pub lost_pages: u64,
    /// Pages with a digest that matches their bytes.
    pub verified_pages: u64,
    /// Pages with a digest that does not match their bytes.
    pub differing_pages: u64,
    /// What is wrong, in sentences; empty for an intact store.
    pub findings: Vec<String>,
}

impl<M: Medium> Core<M> {
    /// Looks at every region and every page, while nobody changes anything.
    ///
    /// # Errors
    /// Those of reading; what is wrong with the store is in the findings.
    pub(super) fn audit(&self) -> Result<Audit> {
        let _naming = locked(&self.naming);
        let regions = self.regions();
        // In the order of their nodes; everybody else holds one of these locks at most.
        let mut states: Vec<_> = regions.iter().map(|region| locked(&region.state)).collect();
        let mut audit = Audit::default();
        audit.findings.extend(locked(&self.directory).damage().map(str::to_owned));
        let mut owners: HashMap<u64, &str> = HashMap::new();
        let mut bytes: Page = [0; PAGE as usize];
        for (region, state) in regions.iter().zip(&mut states) {
            if let Err(error) = self.load(region, state) {
                audit.findings.push(error.to_string());
                continue;
            }
            let Some(loaded) = &state.loaded else { continue };
            let mut own = |page: u64, audit: &mut Audit| {
                if let Some(other) = owners.insert(page, &region.name) {
                    let what = format!("page {page} is claimed by two regions, {other:?} and {:?}", region.name);
                    audit.findings.push(what);
                }
            };
            for page in loaded.table.own_pages() {
                audit.table_pages += 1;
                own(page, &mut audit);
            }
            for (logical, entry) in loaded.table.entries() {
                let Some(page) = entry.stored() else { continue };
                audit.data_pages += 1;
                own(page, &mut audit);
                if entry.sum.get() == 0 {
                    continue;
                }
                self.file.read(page * PAGE, &mut bytes)?;
                if digest(&bytes) == entry.sum.get() {
                    audit.verified_pages += 1;
                } else {
                    audit.differing_pages += 1;
                    let what = format!("page {logical} of region {:?} is not what was committed", region.name);
                    audit.findings.push(what);
                }
            }
            if state.handle.strong_count() == 0 {
                state.loaded = None;
            }
        }
        let kept_back = locked(&self.holds).pages();
        let space = locked(&self.space);
        audit.lost_pages = space.used().saturating_sub(owners.len() as u64 + kept_back);
        for (page, name) in owners.iter().filter(|(page, _)| !space.is_used(**page)) {
            audit.findings.push(format!("page {page} is in use by region {name:?}, but the free map marks it free"));
        }
        Ok(audit)
    }
}
