//! One protected file, its expected bytes, and its previous bytes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use untorn::redundancy::{Checksum, Damage, PageRange, ProtectOptions, RepairReport, ScrubReport, StripeLayout};
use untorn::{EngineKind, Options};
use untorn_sim::Rng;

use super::fault::{Of, Part};
use super::shape::{PAGE, Shape, chunks_at};
use super::{Kind, Place, Row, Settings, done, io};
use crate::error::{Error, Result};

/// Number of pages stored to per round.
const STORES: u64 = 16;

/// A file, and the previous version of each page.
struct Versions {
    path: PathBuf,
    now: Vec<u8>,
    older: Vec<u8>,
}

impl Versions {
    /// Takes the file's current bytes as the last version of every page that differs.
    fn refresh(&mut self) -> Result<()> {
        let found = io("read a file", fs::read(&self.path))?;
        if self.now.len() != found.len() {
            self.older.clone_from(&found);
        } else {
            let pages = self.older.chunks_mut(PAGE as usize).zip(self.now.chunks(PAGE as usize));
            for ((older, now), found) in pages.zip(found.chunks(PAGE as usize)) {
                if now != found {
                    older.copy_from_slice(now);
                }
            }
        }
        self.now = found;
        Ok(())
    }
}

/// A damaged place, and its damaged bytes.
struct Victim {
    at: u64,
    bytes: Vec<u8>,
    /// The expected report.
    told: Damage,
}

/// The sidecar of a file, if its pages are covered.
struct Sidecar {
    pages: Versions,
    companion: Versions,
    /// The offset of the first one.
    from: u64,
    shape: Shape,
}

pub(super) struct Subject {
    _dir: tempfile::TempDir,
    place: Place,
    /// The engine that the file has, if any.
    engine: Option<EngineKind>,
    shape: Shape,
    options: ProtectOptions,
    data: Versions,
    side: Versions,
    sidecar: Option<Sidecar>,
    rng: Rng,
}

impl Subject {
    /// A protected file of random bytes, each written twice.
    pub(super) fn new(settings: &Settings, index: u64, place: Place, part: Part) -> Result<Self> {
        let dir = io("create a directory", tempfile::tempdir_in(&settings.dir))?;
        let path = dir.path().join("protected");
        let mut rng = Rng::derive(settings.seed, index);
        // Its last page is short. Each shape comes with each kind of damage.
        let (layout, checksum) = match (index / 4 + index) % 2 {
            0 => (StripeLayout::Consecutive, Checksum::Crc32c),
            _ => (StripeLayout::Spread, Checksum::Xxh3),
        };
        let shape = Shape { len: settings.pages * PAGE - 1000, stripe: 4, layout };
        let mut bytes = vec![0; shape.len as usize];
        rng.fill(&mut bytes);
        io("write a file", fs::write(&path, &bytes))?;
        let options = ProtectOptions::new().stripe(shape.stripe as u32).layout(layout).checksum(checksum);
        let engine = part.engine();
        match engine {
            None => done("close", place.open(&options.clone().on_demand(), &path)?.close())?,
            Some(engine) => {
                let options = with_engine(engine, options.clone().on_demand());
                done("close", place.open_with_engine(&options, &path)?.close())?;
            }
        }
        let coverage = done("get the coverage of", place.look(&path)?.coverage())?;
        let versions = |path: &Path| Versions { path: path.to_owned(), now: Vec::new(), older: Vec::new() };
        let (mut data, mut side) = (versions(&path), versions(&coverage.redundancy_file));
        data.refresh()?;
        side.refresh()?;
        let sidecar = match coverage.sidecar.filter(|_| part == Part::Sidecar) {
            None => None,
            Some(covered) => {
                let (mut pages, mut companion) =
                    (versions(&covered.redundancy_file.with_extension("")), versions(&covered.redundancy_file));
                pages.refresh()?;
                companion.refresh()?;
                let shape = Shape { len: covered.pages * PAGE, ..shape };
                Some(Sidecar { from: chunks_at(&pages.now), pages, companion, shape })
            }
        };
        if sidecar.is_none() && part == Part::Sidecar {
            return Err(Error::failed("damage a sidecar", "its pages are not covered"));
        }
        let mut subject = Subject { _dir: dir, place, engine, shape, options, data, side, sidecar, rng };
        subject.store_to(&(0..settings.pages).collect(), false)?;
        Ok(subject)
    }

    /// Stores to some pages, covers them, and closes the file.
    pub(super) fn store(&mut self, synchronous: bool) -> Result<()> {
        let pages = (0..STORES).map(|_| self.rng.below(self.shape.pages())).collect();
        self.store_to(&pages, synchronous)
    }

    fn store_to(&mut self, pages: &BTreeSet<u64>, synchronous: bool) -> Result<()> {
        let options = self.options.clone();
        let options = if synchronous { options.period(Duration::ZERO) } else { options.on_demand() };
        if let Some(engine) = self.engine {
            self.store_with(&with_engine(engine, options), pages)?;
            return self.refresh();
        }
        let protected = self.place.open(&options, &self.data.path)?;
        let file = io("open a file", File::options().write(true).open(&self.data.path))?;
        for &page in pages {
            let range = self.shape.page(page);
            let mut bytes = vec![0; (range.end - range.start) as usize];
            self.rng.fill(&mut bytes);
            let stores = done("announce a store to", protected.announce(range.clone()))?;
            io("write to a file", file.write_all_at(&bytes, range.start))?;
            drop(stores);
            let uncovered = done("get the coverage of", protected.coverage())?.uncovered;
            if synchronous && uncovered > 0 {
                return Err(Error::failed("cover a store synchronously", format!("{uncovered} pages are not covered")));
            }
        }
        done("close", protected.close())?;
        self.refresh()
    }

    /// Takes the files' current bytes as the expected ones.
    fn refresh(&mut self) -> Result<()> {
        self.data.refresh()?;
        self.side.refresh()?;
        if let Some(sidecar) = &mut self.sidecar {
            sidecar.pages.refresh()?;
            sidecar.companion.refresh()?;
        }
        Ok(())
    }

    /// All files, with the role of each.
    fn files(&self) -> Vec<(Of, &Versions)> {
        let mut files = vec![(Of::Data, &self.data), (Of::Companion, &self.side)];
        if let Some(sidecar) = &self.sidecar {
            files.extend([(Of::Sidecar, &sidecar.pages), (Of::SidecarCompanion, &sidecar.companion)]);
        }
        files
    }

    fn file(&self, of: Of) -> &Versions {
        let sidecar = || self.sidecar.as_ref().expect("only a sidecar that is covered is damaged");
        match of {
            Of::Data => &self.data,
            Of::Companion => &self.side,
            Of::Sidecar => &sidecar().pages,
            Of::SidecarCompanion => &sidecar().companion,
        }
    }

    /// Whether the page of a file at `at` has the same meaning as before.
    fn agree(&self, of: Of, at: u64, found: &[u8], now: &[u8]) -> bool {
        match (of, &self.sidecar) {
            (Of::Companion, _) => self.shape.agree(at, found, now),
            // Superblock, retirement line and records change whenever it is opened.
            (Of::Sidecar, Some(sidecar)) if at < sidecar.from => true,
            (Of::SidecarCompanion, Some(sidecar)) => sidecar.shape.agree(at, found, now),
            _ => found == now,
        }
    }

    /// Stores to some pages with the file's engine, half of the slices of each in one commit and all of them in the
    /// next.
    fn store_with(&mut self, options: &Options, pages: &BTreeSet<u64>) -> Result<()> {
        let file = self.place.open_with_engine(options, &self.data.path)?;
        for nth in [2, 1] {
            for &page in pages {
                let range = self.shape.page(page);
                let mut transaction = file.transaction();
                for at in (range.start..range.end).step_by(64 * nth) {
                    let mut slice = vec![0; 64.min(range.end - at) as usize];
                    self.rng.fill(&mut slice);
                    done("write to", transaction.write_at(&slice, at))?;
                }
                done("commit to", transaction.commit())?;
            }
            done("commit to", file.sync())?;
            done("cover", file.sync_redundancy())?;
        }
        done("close", file.close())
    }

    /// Repairs the file, with its engine if it has one. Returns the report of a previous scrub, and that of the repair.
    fn repair(&self) -> Result<(ScrubReport, RepairReport)> {
        let path = &self.data.path;
        let Some(engine) = self.engine else {
            let report = done("repair", self.place.look(path)?.repair())?;
            return Ok((report.scrub.clone(), report));
        };
        let found = done("scrub", self.place.look(path)?.scrub())?;
        let options = with_engine(engine, ProtectOptions::new().on_demand());
        let file = self.place.open_with_engine(&options, path)?;
        let report = done("repair", file.repair())?;
        done("close", file.close())?;
        Ok((found, report))
    }

    /// Damages at most `most` places of a part, repairs the file, and counts the results.
    pub(super) fn strike(&mut self, row: &mut Row, most: u64) -> Result<()> {
        let victims = self.victims(row.part, row.kind, most);
        self.strike_at(row, &victims)
    }

    fn strike_at(&mut self, row: &mut Row, victims: &[Victim]) -> Result<()> {
        damage(&self.file(row.part.of()).path, victims)?;
        let (found, report) = self.repair()?;
        let after = done("scrub", self.place.look(&self.data.path)?.scrub())?;
        let skipped = |scrub: &ScrubReport| scrub.skipped + scrub.sidecar_skipped;
        if skipped(&found) + skipped(&report.scrub) + skipped(&after) > 0 {
            return Err(Error::failed("damage covered pages", format!("{} pages are not covered", skipped(&after))));
        }
        row.injected += victims.len() as u64;
        let told = |victim: &Victim| found.damage.iter().any(|damage| is_of(damage, &victim.told));
        row.found += victims.iter().filter(|victim| told(victim)).count() as u64;
        let false_alarm = |damage: &&Damage| !victims.iter().any(|victim| is_of(damage, &victim.told));
        row.alarms += found.damage.iter().filter(false_alarm).count() as u64 + after.damage.len() as u64;
        self.judge(row, victims, &report)?;
        self.refresh()
    }

    /// Compares all files with their bytes before the damage.
    fn judge(&self, row: &mut Row, victims: &[Victim], report: &RepairReport) -> Result<()> {
        for (of, file) in self.files() {
            let struck = of == row.part.of();
            let found = io("read a file", fs::read(&file.path))?;
            if found.len() != file.now.len() {
                return Err(Error::failed("repair a file", "the repair changed its length"));
            }
            for (nth, (found, now)) in found.chunks(PAGE as usize).zip(file.now.chunks(PAGE as usize)).enumerate() {
                let at = nth as u64 * PAGE;
                let same = self.agree(of, at, found, now);
                let victim = victims.iter().find(|victim| struck && victim.at == at);
                match victim {
                    Some(_) if same => row.restored += 1,
                    // A damage that was left as it is counts neither as restored nor as wrong.
                    Some(victim) if victim.bytes == found => {}
                    Some(_) => row.wrong += 1,
                    None if same => {}
                    None => row.spoiled += 1,
                }
            }
        }
        if !report.is_whole() || !report.unknown.is_empty() || !report.sidecar_unknown.is_empty() {
            let what = format!("{report:?}");
            return Err(Error::failed("repair one page of a stripe", what));
        }
        Ok(())
    }

    /// The places of a part to damage: one page of a stripe, one copy of a block. It skips places that the damage would
    /// not change.
    fn victims(&mut self, part: Part, kind: Kind, most: u64) -> Vec<Victim> {
        let shape = self.shape;
        let mut places: Vec<(u64, u64, Damage)> = Vec::new();
        // Damage half of the stripes, because the stripes beside a damaged one must stay unchanged.
        let stripes: Vec<u64> = (0..shape.stripes()).filter(|_| self.rng.one_in(2)).collect();
        match part {
            Part::Data | Part::Reflection | Part::HybridLog => {
                for stripe in stripes {
                    let range = shape.page(*self.rng.pick(&shape.members(stripe)));
                    let len = range.end - range.start;
                    places.push((range.start, len, Damage::Page(PageRange { offset: range.start, len })));
                }
            }
            Part::Checksums => {
                for block in 0..shape.blocks() {
                    let offset = shape.block_at(block, self.rng.below(2));
                    places.push((offset, PAGE, Damage::Table { offset }));
                }
            }
            Part::Parity => {
                for stripe in stripes {
                    places.push((shape.parity_at(stripe), PAGE, Damage::Parity { stripe }));
                }
            }
            Part::Sidecar => {
                let (from, shape) = self.sidecar.as_ref().map_or((0, shape), |sidecar| (sidecar.from, sidecar.shape));
                for stripe in 0..shape.stripes() {
                    let page = *self.rng.pick(&shape.members(stripe));
                    let offset = from + page * PAGE;
                    if self.rng.one_in(2) {
                        places.push((offset, PAGE, Damage::SidecarPage(PageRange { offset, len: PAGE })));
                    }
                }
            }
            Part::Superblock => {
                let offset = self.rng.below(2) * PAGE;
                places.push((offset, PAGE, Damage::Table { offset }));
            }
        }
        let mut victims = Vec::new();
        for (at, len, told) in places {
            let struck = match part.of() {
                Of::Data => &self.data,
                Of::Sidecar => self.sidecar.as_ref().map_or(&self.data, |sidecar| &sidecar.pages),
                _ => &self.side,
            };
            let range = at as usize..(at + len) as usize;
            let here = &struck.now[range.clone()];
            let from = if self.rng.one_in(2) { &self.data.now } else { &self.side.now };
            let pages: Vec<&[u8]> = from.chunks(PAGE as usize).collect();
            let other = self.rng.pick(&pages);
            let bytes = kind.of(here, &struck.older[range], other, &mut self.rng);
            if bytes != here && (victims.len() as u64) < most {
                victims.push(Victim { at, bytes, told });
            }
        }
        victims
    }
}

/// How a file with this engine is opened.
fn with_engine(engine: EngineKind, redundancy: ProtectOptions) -> Options {
    Options::new().engine(engine).redundancy(redundancy).keep_sidecar(true)
}

/// Whether this is the expected report. If two superblocks are not consecutive, nothing can tell which one is valid.
fn is_of(damage: &Damage, told: &Damage) -> bool {
    match (damage, told) {
        (Damage::Table { offset: a }, Damage::Table { offset: b }) if *a < 2 * PAGE && *b < 2 * PAGE => true,
        _ => damage == told,
    }
}

/// Damages a file as a device would: its bytes change, but not its modification time.
fn damage(path: &Path, victims: &[Victim]) -> Result<()> {
    let file = io("open a file", File::options().read(true).write(true).open(path))?;
    let modified = io("read a file's modification time", file.metadata().and_then(|metadata| metadata.modified()))?;
    for victim in victims {
        io("damage a file", file.write_all_at(&victim.bytes, victim.at))?;
    }
    io("set a file's modification time", file.set_modified(modified))?;
    io("flush a file", file.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(dir: &Path, place: Place) -> (Subject, Row) {
        let dir = dir.to_owned();
        let settings = Settings { cases: 1, seed: 1, dir, pages: 16, watch: Duration::ZERO, jobs: 1 };
        (Subject::new(&settings, 0, place, Part::Data).unwrap(), Row::new(place, Part::Data, Kind::Flip))
    }

    /// A page of the data file, with other bytes or with those that it has.
    fn victim(subject: &Subject, page: u64, changed: bool) -> Victim {
        let range = subject.shape.page(page);
        let (offset, len) = (range.start, range.end - range.start);
        let mut bytes = subject.data.now[range.start as usize..range.end as usize].to_vec();
        bytes[9] ^= u8::from(changed);
        Victim { at: offset, bytes, told: Damage::Page(PageRange { offset, len }) }
    }

    #[test]
    fn damage_that_nobody_ordered_is_convicted() {
        let dir = tempfile::tempdir().unwrap();
        for place in Place::ALL {
            let (mut subject, mut row) = subject(dir.path(), place);
            let victims = [victim(&subject, 5, true)];
            subject.strike_at(&mut row, &victims).unwrap();
            assert!(row.clean() && row.injected == 1, "{row}");
            damage(&subject.data.path, &[victim(&subject, 9, true)]).unwrap();
            subject.strike_at(&mut row, &victims).unwrap();
            assert_eq!((row.found, row.restored, row.alarms, row.clean()), (2, 2, 1, false), "{row}");
        }
    }

    #[test]
    fn a_page_that_was_changed_is_convicted() {
        let dir = tempfile::tempdir().unwrap();
        let (mut subject, mut row) = subject(dir.path(), Place::Disk);
        let before = subject.data.now.clone();
        subject.store_to(&BTreeSet::from([9]), false).unwrap();
        subject.data.now = before;
        let victims = [victim(&subject, 5, true)];
        subject.strike_at(&mut row, &victims).unwrap();
        assert_eq!((row.restored, row.spoiled, row.alarms, row.clean()), (1, 1, 0, false), "{row}");
    }

    #[test]
    fn damage_that_is_not_named_is_convicted() {
        let dir = tempfile::tempdir().unwrap();
        let (mut subject, mut row) = subject(dir.path(), Place::Disk);
        let victims = [victim(&subject, 5, false)];
        subject.strike_at(&mut row, &victims).unwrap();
        assert_eq!((row.injected, row.found, row.clean()), (1, 0, false), "{row}");
    }
}
