//! [`SharedRegion`] against maps from page numbers to bytes: processes that allocate, free, store, load, commit and
//! roll back, come, leave and are killed, one step at a time, whoever serves.
//!
//! What they do at the same time is for the tests in the crate and `cargo xtask cuts`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::common::members::{Band, obey, role, sum, unless_forbidden};
use crate::common::{PAGE, ReadAt, limit, memory_dir, pattern, seed};
use untorn::Error;
use untorn::region::{RegionMapOptions, RegionStore, SharedRegion};
use untorn_testing::sibling;

const MAX_PAGES: u64 = 48;
const MOST_MEMBERS: usize = 4;

fn share(path: &Path) -> untorn::Result<SharedRegion> {
    RegionMapOptions::new().reserve(MAX_PAGES * PAGE as u64).share(path, "r")
}

/// Done, or refused for what the caller got wrong.
fn outcome(result: untorn::Result<()>) -> String {
    match result {
        Ok(()) => "done".to_owned(),
        Err(Error::Invalid { .. }) => "invalid".to_owned(),
        Err(error) => panic!("{error}"),
    }
}

fn list(pages: impl IntoIterator<Item = u64>) -> String {
    let pages: Vec<String> = pages.into_iter().map(|page| page.to_string()).collect();
    format!("pages {}", pages.join(","))
}

/// Not a test of its own: a process that shares the region.
#[test]
fn a_member() {
    let Some(path) = role() else { return };
    let region = share(Path::new(&path)).unwrap();
    obey(list(region.pages().unwrap()), |verb, numbers| match (verb, numbers) {
        ("alloc", []) => match region.alloc_page() {
            Ok(page) => list([page]),
            Err(error) => outcome(Err(error)),
        },
        ("alloc", &[page, count]) => outcome(region.alloc_at(page, count)),
        ("free", &[page]) => outcome(region.free_page(page)),
        ("write", &[at, len, seed]) => outcome(region.write_at(&pattern(len as usize, seed), at)),
        ("read", &[at, len]) => {
            let mut bytes = vec![0; len as usize];
            match region.read_at(&mut bytes, at) {
                Ok(()) => sum(&bytes),
                Err(error) => outcome(Err(error)),
            }
        }
        ("pages", []) => list(region.pages().unwrap()),
        ("commit", []) => outcome(region.pmsync().map(drop)),
        ("rollback", []) => outcome(region.rollback()),
        _ => panic!("{verb} {numbers:?} is nothing to do"),
    });
    region.close().unwrap();
}

type Pages = BTreeMap<u64, Vec<u8>>;

/// What all see, and what is durable.
#[derive(Default)]
struct Model {
    now: Pages,
    committed: Pages,
    /// Pages that were freed since the last commit.
    freed: BTreeSet<u64>,
}

impl Model {
    /// A page that the last commit has is not given out before one without it.
    fn is_taken(&self, page: u64) -> bool {
        self.now.contains_key(&page) || self.committed.contains_key(&page)
    }

    /// Whether it must be given out to whoever asks for it. One that was allocated and freed since the last commit
    /// may be.
    fn is_free(&self, page: u64) -> bool {
        !self.is_taken(page) && !self.freed.contains(&page)
    }

    fn commit(&mut self) {
        self.committed = self.now.clone();
        self.freed.clear();
    }

    fn roll_back(&mut self) {
        self.now = self.committed.clone();
        self.freed.clear();
    }

    /// The bytes of a range, if all of its pages are there.
    fn bytes(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        (at..at + len as u64).map(|at| Some(self.now.get(&(at / PAGE as u64))?[at as usize % PAGE])).collect()
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            self.now.get_mut(&(at / PAGE as u64)).unwrap()[at as usize % PAGE] = *byte;
        }
    }
}

struct Run<'a> {
    band: Band<'a>,
    model: Model,
}

impl Run<'_> {
    fn join(&mut self) {
        self.band.join(&list(self.model.now.keys().copied()));
    }

    /// As a rule one that is there.
    fn page(&mut self) -> u64 {
        let there: Vec<u64> = self.model.now.keys().copied().collect();
        match there.is_empty() || self.band.rng.below(8) == 0 {
            true => self.band.rng.below(MAX_PAGES),
            false => there[self.band.rng.below(there.len() as u64) as usize],
        }
    }

    fn range(&mut self) -> (u64, usize) {
        let at = self.page() * PAGE as u64 + self.band.rng.below(PAGE as u64);
        let most = [1, 9, 300, 6000][self.band.rng.below(4) as usize];
        let end = MAX_PAGES * PAGE as u64;
        (at, (1 + self.band.rng.below(most)).min(end - at) as usize)
    }

    fn allocate(&mut self) {
        if self.band.rng.below(3) > 0 {
            let said = self.band.ask("alloc".to_owned());
            match said.strip_prefix("pages ").map(|page| page.parse().unwrap()) {
                Some(page) => {
                    assert!(!self.model.is_taken(page) && page < MAX_PAGES, "{page}: {}", self.band.done());
                    self.model.now.insert(page, vec![0; PAGE]);
                }
                None => {
                    let free: Vec<u64> = (0..MAX_PAGES).filter(|page| self.model.is_free(*page)).collect();
                    assert_eq!(free, [0_u64; 0], "are not given out: {}", self.band.done());
                }
            }
            return;
        }
        let (page, count) = (self.band.rng.below(MAX_PAGES), 1 + self.band.rng.below(4));
        let pages = page..page + count;
        let said = self.band.ask(format!("alloc {page} {count}"));
        if pages.end > MAX_PAGES || pages.clone().any(|page| self.model.is_taken(page)) {
            self.band.agree(&said, "invalid");
        } else if pages.clone().all(|page| self.model.is_free(page)) {
            self.band.agree(&said, "done");
        }
        if said == "done" {
            self.model.now.extend(pages.map(|page| (page, vec![0; PAGE])));
        }
    }

    fn step(&mut self) {
        match self.band.rng.below(100) {
            0..20 => self.allocate(),
            20..30 => {
                let page = self.page();
                let there = self.model.now.remove(&page).is_some();
                if there {
                    self.model.freed.insert(page);
                }
                self.band.check(format!("free {page}"), if there { "done" } else { "invalid" });
            }
            30..55 => {
                let ((at, len), seed) = (self.range(), self.band.rng.below(1 << 32));
                let there = self.model.bytes(at, len).is_some();
                if there {
                    self.model.write(at, &pattern(len, seed));
                }
                self.band.check(format!("write {at} {len} {seed}"), if there { "done" } else { "invalid" });
            }
            55..73 => {
                let (at, len) = self.range();
                let expected = self.model.bytes(at, len).map_or("invalid".to_owned(), |bytes| sum(&bytes));
                self.band.check(format!("read {at} {len}"), &expected);
            }
            73..84 => {
                self.model.commit();
                self.band.check("commit".to_owned(), "done");
            }
            84..88 => {
                self.model.roll_back();
                self.band.check("rollback".to_owned(), "done");
            }
            88..92 if self.band.len() < MOST_MEMBERS => self.join(),
            number => {
                self.band.part(number % 2 == 0);
                if self.band.len() == 0 {
                    self.model.roll_back();
                    self.join();
                }
            }
        }
        if self.band.rng.below(8) == 0 {
            self.band.check("pages".to_owned(), &list(self.model.now.keys().copied()));
        }
    }
}

fn agrees(dir: &Path, steps: usize, seed: u64) {
    let path = dir.join("store");
    let store = RegionStore::create(&path).unwrap();
    drop(store.create_region("r").unwrap());
    store.close().unwrap();
    let Some(region) = unless_forbidden(share(&path)) else { return };
    region.close().unwrap();
    let mut run = Run { band: Band::new(sibling!("a_member"), &path, seed), model: Model::default() };
    run.join();
    for _ in 0..steps {
        run.step();
    }
    run.band.end();
    let store = RegionStore::open(&path).unwrap();
    let region = store.open_region("r").unwrap();
    run.band.agree(&list(region.pages().unwrap()), &list(run.model.committed.keys().copied()));
    for (page, expected) in &run.model.committed {
        assert!(region.bytes_at(page * PAGE as u64, PAGE) == *expected, "page {page}: {}", run.band.done());
    }
}

#[test]
fn processes_in_memory_agree_with_maps_of_pages() {
    let _limit = limit(300, "processes that share a region, step by step");
    let seed = seed("shared_region_model");
    for number in 0..6 {
        agrees(memory_dir().path(), 250, seed.wrapping_add(number));
    }
}

#[test]
fn processes_on_a_disk_agree_with_maps_of_pages() {
    let _limit = limit(300, "processes that share a region, step by step");
    let seed = seed("shared_region_model").rotate_left(32);
    for number in 0..4 {
        agrees(tempfile::tempdir().unwrap().path(), 150, seed.wrapping_add(number));
    }
}
