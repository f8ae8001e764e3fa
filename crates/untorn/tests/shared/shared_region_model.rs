//! [`SharedRegion`] against maps from page numbers to bytes: processes that allocate, free, store, load, commit and
//! roll back, come, leave and are killed, one step at a time, whoever serves.
//!
//! What they do at the same time is for the tests in the crate and `cargo xtask cuts`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::common::members::{Member, obey, sum};
use crate::common::{PAGE, Rng, limit, memory_dir, pattern, seed};
use untorn::Error;
use untorn::region::{RegionMapOptions, RegionStore, SharedRegion};
use untorn_testing::sibling;

/// What a process that is started by these tests runs.
const MEMBER: &str = "UNTORN_TEST_MEMBER";
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
    let Some(path) = std::env::var_os(MEMBER) else { return };
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
    path: &'a Path,
    rng: Rng,
    model: Model,
    members: Vec<Member>,
    /// What was done, for who studies a failure.
    done: Vec<String>,
}

impl Run<'_> {
    fn ask(&mut self, order: String) -> String {
        let who = self.rng.below(self.members.len() as u64) as usize;
        self.done.push(format!("{who}: {order}"));
        self.members[who].ask(&order)
    }

    #[track_caller]
    fn agree(&self, said: &str, expected: &str) {
        assert_eq!(said, expected, "{}", self.done.join("\n"));
    }

    fn join(&mut self) {
        self.done.push("one joins".to_owned());
        let (member, said) = Member::join(sibling!("a_member"), MEMBER, self.path);
        self.agree(&said, &list(self.model.now.keys().copied()));
        self.members.push(member);
    }

    fn go(&mut self, member: Member, killed: bool) {
        self.done.push(if killed { "one is killed" } else { "one leaves" }.to_owned());
        if killed {
            member.kill()
        } else {
            member.leave()
        }
        if self.members.is_empty() {
            self.model.roll_back();
        }
    }

    /// As a rule one that is there.
    fn page(&mut self) -> u64 {
        let there: Vec<u64> = self.model.now.keys().copied().collect();
        match there.is_empty() || self.rng.below(8) == 0 {
            true => self.rng.below(MAX_PAGES),
            false => there[self.rng.below(there.len() as u64) as usize],
        }
    }

    fn range(&mut self) -> (u64, usize) {
        let at = self.page() * PAGE as u64 + self.rng.below(PAGE as u64);
        let most = [1, 9, 300, 6000][self.rng.below(4) as usize];
        let end = MAX_PAGES * PAGE as u64;
        (at, (1 + self.rng.below(most)).min(end - at) as usize)
    }

    fn allocate(&mut self) {
        if self.rng.below(3) > 0 {
            let said = self.ask("alloc".to_owned());
            match said.strip_prefix("pages ").map(|page| page.parse().unwrap()) {
                Some(page) => {
                    assert!(!self.model.is_taken(page) && page < MAX_PAGES, "{page}: {}", self.done.join("\n"));
                    self.model.now.insert(page, vec![0; PAGE]);
                }
                None => {
                    let free: Vec<u64> = (0..MAX_PAGES).filter(|page| self.model.is_free(*page)).collect();
                    assert_eq!(free, [], "are not given out: {}", self.done.join("\n"));
                }
            }
            return;
        }
        let (page, count) = (self.rng.below(MAX_PAGES), 1 + self.rng.below(4));
        let pages = page..page + count;
        let said = self.ask(format!("alloc {page} {count}"));
        if pages.end > MAX_PAGES || pages.clone().any(|page| self.model.is_taken(page)) {
            self.agree(&said, "invalid");
        } else if pages.clone().all(|page| self.model.is_free(page)) {
            self.agree(&said, "done");
        }
        if said == "done" {
            self.model.now.extend(pages.map(|page| (page, vec![0; PAGE])));
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..20 => self.allocate(),
            20..30 => {
                let page = self.page();
                let there = self.model.now.remove(&page).is_some();
                if there {
                    self.model.freed.insert(page);
                }
                let said = self.ask(format!("free {page}"));
                self.agree(&said, if there { "done" } else { "invalid" });
            }
            30..55 => {
                let ((at, len), seed) = (self.range(), self.rng.below(1 << 32));
                let there = self.model.bytes(at, len).is_some();
                if there {
                    self.model.write(at, &pattern(len, seed));
                }
                let said = self.ask(format!("write {at} {len} {seed}"));
                self.agree(&said, if there { "done" } else { "invalid" });
            }
            55..73 => {
                let (at, len) = self.range();
                let expected = self.model.bytes(at, len).map_or("invalid".to_owned(), |bytes| sum(&bytes));
                let said = self.ask(format!("read {at} {len}"));
                self.agree(&said, &expected);
            }
            73..84 => {
                self.model.commit();
                let said = self.ask("commit".to_owned());
                self.agree(&said, "done");
            }
            84..88 => {
                self.model.roll_back();
                let said = self.ask("rollback".to_owned());
                self.agree(&said, "done");
            }
            88..92 if self.members.len() < MOST_MEMBERS => self.join(),
            number => {
                let who = self.rng.below(self.members.len() as u64) as usize;
                let member = self.members.swap_remove(who);
                self.go(member, number % 2 == 0);
                if self.members.is_empty() {
                    self.join();
                }
            }
        }
        if self.rng.below(8) == 0 {
            let said = self.ask("pages".to_owned());
            self.agree(&said, &list(self.model.now.keys().copied()));
        }
    }
}

fn agrees(dir: &Path, steps: usize, seed: u64) {
    let path = dir.join("store");
    let store = RegionStore::create(&path).unwrap();
    drop(store.create_region("r").unwrap());
    store.close().unwrap();
    match share(&path) {
        Ok(region) => region.close().unwrap(),
        Err(error @ Error::Io { .. }) if matches!(error.errno(), 1 | 38) => untorn_testing::skip!("{error}"),
        Err(error) => panic!("{error}"),
    }
    let done = vec![format!("seed {seed}")];
    let mut run = Run { path: &path, rng: Rng::new(seed), model: Model::default(), members: Vec::new(), done };
    run.join();
    for _ in 0..steps {
        run.step();
    }
    let killed = run.rng.below(2) == 0;
    while let Some(member) = run.members.pop() {
        run.go(member, killed);
    }
    let store = RegionStore::open(&path).unwrap();
    let region = store.open_region("r").unwrap();
    run.agree(&list(region.pages().unwrap()), &list(run.model.committed.keys().copied()));
    for (page, expected) in &run.model.committed {
        let mut bytes = vec![0; PAGE];
        region.read_at(&mut bytes, page * PAGE as u64).unwrap();
        assert!(bytes == *expected, "page {page}: {}", run.done.join("\n"));
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
