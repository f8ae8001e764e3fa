//! The checks of every machine that a crash leaves.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use untorn::redundancy::{Damage, ProtectOptions, Protected, Tracker};

use super::super::companion::{self, PATH, Superblock, page_of};
use super::super::finding::{Found, accused, tried, wrong};
use super::config::Config;
use super::ops::{LEN, Model, PAGES, STRIPE, range};
use crate::medium::SimMedium;
use crate::rng::Rng;

/// Page tables in little: they record stores, and are forgotten when the process ends.
#[derive(Default)]
pub(in crate::explore) struct Memory(Mutex<BTreeSet<u64>>);

impl Memory {
    pub(super) fn note(&self, page: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(page);
    }
}

impl Tracker for Memory {
    fn take(&self) -> untorn::Result<Vec<std::ops::Range<u64>>> {
        let stored = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(stored.into_iter().map(|page| page..page + 1).collect())
    }

    fn look(&self) -> untorn::Result<Vec<std::ops::Range<u64>>> {
        let stored = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(stored.into_iter().map(|page| page..page + 1).collect())
    }
}

pub(super) fn options(config: &Config) -> ProtectOptions {
    let options = ProtectOptions::new().stripe(STRIPE as u32).layout(config.layout).batch(3);
    if config.is_synchronous() { options.period(std::time::Duration::ZERO) } else { options.on_demand() }
}

/// Protects the file as the configuration has it.
pub(super) fn open(config: &Config, medium: &SimMedium) -> untorn::Result<(Protected, Arc<Memory>)> {
    let memory = Arc::new(Memory::default());
    let options = options(config);
    let protected = if config.is_tracked() {
        options.track_on(medium.clone(), PATH, memory.clone())?
    } else {
        options.open_on(medium.clone(), PATH)?
    };
    Ok((protected, memory))
}

/// All pages of the file, as programs see them.
pub(super) fn contents(medium: &SimMedium) -> Vec<Vec<u8>> {
    let bytes = medium.peek(PATH).unwrap_or_default();
    (0..PAGES).map(|page| bytes.get(range(page)).unwrap_or_default().to_vec()).collect()
}

/// The properties that a crash image must have.
#[derive(Clone, Debug)]
pub(in crate::explore) struct Expected {
    pub(super) model: Model,
    /// Pages that the operation under way stores to, if any.
    pub(super) stored: BTreeSet<u64>,
    /// Whether a flush of it failed.
    pub(super) failed: bool,
    /// Pages that another program wrote.
    pub(super) foreign: BTreeSet<u64>,
    /// Whether there may be no companion file yet.
    pub(super) unprotected: bool,
}

/// Scrubs and repairs a machine on which no process has the file open, then protects it again.
pub(super) fn check(config: &Config, medium: &SimMedium, expected: &Expected, rng: &mut Rng) -> Found<()> {
    let Some(side) = tried("finding the redundancy file", || companion::path(medium))? else {
        return if expected.unprotected { Ok(()) } else { wrong("the redundancy file does not exist after the crash") };
    };
    let before = contents(medium);
    let model = &expected.model;
    let superblock = Superblock::of(&medium.peek(&side).unwrap_or_default());
    let closed = superblock.is_some_and(|superblock| superblock.is_closed);
    let looked = tried("looking", || ProtectOptions::new().look_on(medium.clone(), PATH))?;
    let report = tried("repair", || looked.repair())?;
    drop(looked);
    let torn = report.scrub.damage.iter().any(|damage| matches!(damage, Damage::Table { offset } if *offset >= 8192));
    for damage in &report.scrub.damage {
        match damage {
            Damage::Page(range) if !model.rotten.contains_key(&page_of(range)) => return accused(damage),
            Damage::Unknown(range) => {
                let page = page_of(range);
                let told = config.is_tracked() || expected.foreign.contains(&page) || model.side_rotten;
                // Redundancy reports a damaged page only in this way if a table block is torn, or the file's time
                // shows a write.
                let doubted = torn || !expected.foreign.is_empty();
                if !(told || doubted && model.rotten.contains_key(&page)) {
                    return accused(damage);
                }
            }
            Damage::Table { offset }
                if *offset >= 8192 && closed && !model.side_rotten && expected.foreign.is_empty() =>
            {
                return accused(damage);
            }
            Damage::Parity { .. } if !model.side_rotten => return accused(damage),
            _ => {}
        }
    }
    let after = contents(medium);
    let unknown: BTreeSet<u64> = report.unknown.iter().map(page_of).collect();
    for page in 0..PAGES {
        let (was, is) = (&before[page as usize], &after[page as usize]);
        let Some(truth) = model.rotten.get(&page) else {
            if was != is {
                return wrong(format!("a repair changed page {page}, which was not damaged"));
            }
            continue;
        };
        if is == truth || expected.stored.contains(&page) {
            continue;
        }
        if is != was {
            return wrong(format!("a repair gave page {page} bytes that it never held"));
        }
        let doubted = config.is_tracked() || torn || !expected.foreign.is_empty();
        if model.is_repairable() && !(doubted && unknown.contains(&page)) {
            return wrong(format!("damaged page {page} was not repaired: {:?}", report));
        }
    }
    again(config, medium, expected, &after, rng)
}

/// Protects the file again. Pages that are called covered then must survive damage.
fn again(config: &Config, medium: &SimMedium, expected: &Expected, now: &[Vec<u8>], rng: &mut Rng) -> Found<()> {
    let (protected, _memory) = tried("opening", || open(config, medium))?;
    tried("covering", || protected.sync())?;
    if !expected.model.hopeless.is_empty() || expected.model.side_rotten {
        return Ok(());
    }
    let coverage = tried("reading the coverage", || protected.coverage())?;
    if coverage.uncovered > 0 || !coverage.lost.is_empty() {
        return wrong(format!("after a crash and a whole pass, some pages are not covered: {coverage:?}"));
    }
    let settled = contents(medium);
    // A failed flush may have left bytes of a page that was being stored to in the cache, and not on the medium.
    let may_change =
        |page: &u64| expected.model.rotten.contains_key(page) || expected.failed && expected.stored.contains(page);
    if (0..).zip(settled.iter().zip(now)).any(|(page, (is, was))| is != was && !may_change(&page)) {
        return wrong("covering changed the file's bytes");
    }
    if (0..).zip(&settled).any(|(page, is)| expected.model.rotten.get(&page).is_some_and(|truth| truth != is)) {
        return Ok(());
    }
    let page = rng.below(PAGES);
    damage(medium, page, rng);
    let report = tried("repair", || protected.repair())?;
    if contents(medium) != settled {
        return wrong(format!("page {page} was reported as covered, but was not restored: {report:?}"));
    }
    Ok(())
}

/// Damages a page of the file at rest.
pub(super) fn damage(medium: &SimMedium, page: u64, rng: &mut Rng) {
    let range = range(page);
    let at = range.start + rng.below(range.len() as u64) as usize;
    let byte = medium.peek(PATH).map_or(0, |bytes| bytes[at]);
    medium.rot(PATH, at as u64, &[byte ^ 1 << rng.below(8)]);
    debug_assert!(range.end <= LEN);
}
