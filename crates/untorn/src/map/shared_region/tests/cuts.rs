//! Cuts through stores that are totally ordered and through allocations, however many processes make them and whoever is
//! killed: every committed image is judged.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::sync::atomic::Ordering;
use std::thread;

use super::super::backing::{Committed, Mapped};
use super::super::pages::{IN_WORD, allocated_in, pages_of};
use super::*;
use crate::sharing::working::tests::Bug;
use crate::sharing::working::tests::cuts::{OWNERS, PAGES as ORDERED, judge as judge_order, step};
use crate::sharing::working::{Backing, Cut, Opener};

/// Pages with what the threads link, one for each.
const LINKS: u64 = ORDERED as u64;
const PAGES: u64 = 4 * ORDERED as u64;

// Words of the notes, beside those of the steps.
const STOP: usize = 8;
const SERVER: usize = 16;
const ALIVE: usize = 32;
const LAST: usize = 64;
const TORN: usize = 65;

/// The store, with every image judged as soon as it is committed.
struct Judged {
    inner: Mapped,
    verdicts: File,
    notes: SharedPages,
}

struct Judging(Committed, PathBuf);

impl Opener for Judging {
    fn open(&self, len: Option<u64>) -> Result<Box<dyn Backing>> {
        let inner = self.0.open_region(len)?;
        let verdicts = OpenOptions::new().append(true).create(true).open(self.1.join("verdicts")).unwrap();
        let judged = Judged { inner, verdicts, notes: notes(&self.1) };
        // Of a commit that was made by a process that was killed before it could judge.
        judged.judge(judged.last_commit());
        Ok(Box::new(judged))
    }
    fn part(&self) -> String {
        self.0.part()
    }
}

impl Judged {
    fn judge(&self, number: u64) {
        let mut image = vec![0; Backing::len(&self.inner) as usize];
        self.inner.fill(0, &mut image).unwrap();
        let notes = words(&self.notes);
        let torn = verdict(&image, &self.inner.pages_of_store());
        if torn.is_some() {
            notes[TORN].fetch_add(1, SeqCst);
        }
        // In one piece, whenever the process is killed.
        let line = format!("{number} {}\n", torn.as_deref().unwrap_or("whole"));
        (&self.verdicts).write_all(line.as_bytes()).unwrap();
        notes[LAST].store(number, SeqCst);
    }
}

impl Backing for Judged {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn last_commit(&self) -> u64 {
        self.inner.last_commit()
    }
    fn identity(&self) -> [u64; 2] {
        self.inner.identity()
    }
    fn fill(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.inner.fill(offset, into)
    }
    fn commit(&self, cut: &Cut) -> Result<u64> {
        let before = self.inner.last_commit();
        let number = self.inner.commit(cut)?;
        if number != before {
            assert_eq!(number, before + 1);
            self.judge(number);
        }
        Ok(number)
    }
    fn poisoned(&self) -> Option<String> {
        self.inner.poisoned()
    }
    fn tidied(&self) -> Range<u64> {
        self.inner.tidied()
    }
    fn tidy(&self, memory: &SharedPages, pages: &mut dyn Iterator<Item = u64>) {
        self.inner.tidy(memory, pages);
    }
}

fn word_of(image: &[u8], page: u64, index: usize) -> u64 {
    let at = page as usize * PAGE as usize + index * 8;
    u64::from_le_bytes(image[at..at + 8].try_into().unwrap())
}

/// The pages that an image says are there.
fn pages_in(image: &[u8]) -> Vec<u64> {
    let states = &image[(PAGES * PAGE) as usize..];
    let words = states.chunks_exact(8).map(|word| allocated_in(u64::from_le_bytes(word.try_into().unwrap())));
    (0..).step_by(IN_WORD as usize).zip(words).flat_map(|(first, word)| pages_of(first, word)).collect()
}

/// Why an image is not the state of one instant, if it isn't. `of_store` is which pages the store has.
fn verdict(image: &[u8], of_store: &[u64]) -> Option<String> {
    let pages = pages_in(image);
    if pages != of_store {
        return Some(format!("the store has pages {of_store:?}, and the memory {pages:?}"));
    }
    let there: BTreeSet<u64> = pages.into_iter().collect();
    let mut linked = BTreeSet::new();
    for owner in 0..OWNERS as u64 {
        // The page that a thread has linked was allocated before, and filled.
        let Some(page) = word_of(image, LINKS + owner, 0).checked_sub(1) else { continue };
        if !there.contains(&page) || !linked.insert(page) {
            return Some(format!("thread {owner} has page {page}, which is not there, or another one's"));
        }
        let (first, last) = (word_of(image, page, 0), word_of(image, page, 511));
        if first != last || first >> 32 != owner + 1 {
            return Some(format!("page {page} of thread {owner} has {first:#x} and {last:#x}"));
        }
    }
    judge_order(&image[..ORDERED * PAGE as usize])
}

/// Allocates a page, fills it, and links it; or unlinks it and frees it. One after the other, so a cut has what came before.
fn churn(region: &SharedRegion, owner: u64, turn: u64) {
    let link = &region.words((LINKS + owner) * PAGE, 1).unwrap()[0];
    match link.load(SeqCst).checked_sub(1) {
        None => {
            let page = match region.alloc_page() {
                Ok(page) => page,
                // Those that were freed come back with the next commit.
                Err(Error::Invalid { .. }) => return,
                Err(error) => panic!("{error}"),
            };
            let words = region.words(page * PAGE, 512).unwrap();
            assert!(words.iter().all(|word| word.load(SeqCst) == 0), "a page is not zeros");
            let stamp = (owner + 1) << 32 | turn & 0xffff_ffff;
            words[0].store(stamp, SeqCst);
            words[511].store(stamp, SeqCst);
            link.store(page + 1, SeqCst);
        }
        Some(page) => {
            link.store(0, SeqCst);
            region.free_page(page).unwrap();
        }
    }
}

/// A child: two threads store tickets and allocate, a third one commits, until the parent says stop.
fn work(dir: &Path, me: usize) {
    let judging = |opener| -> Arc<dyn Opener> { Arc::new(Judging(opener, dir.to_owned())) };
    let region = RegionMapOptions::new().shared_region(&dir.join("store"), "r", false, judging).unwrap();
    let notes = notes(dir);
    let shared = words(&notes);
    let goes_on = || shared[STOP].load(Ordering::Relaxed) == 0;
    thread::scope(|scope| {
        for owner in [me, me + OWNERS / 2] {
            let (region, notes) = (&region, &notes);
            scope.spawn(move || {
                for turn in (0..).take_while(|_| goes_on()) {
                    step(&region.copy, notes, owner);
                    churn(region, owner as u64, turn);
                    words(notes)[ALIVE + me].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while goes_on() {
            if region.is_serving() {
                shared[SERVER].store(me as u64 + 1, SeqCst);
            }
            region.pmsync().unwrap();
        }
    });
    region.close().unwrap();
}

/// Lets `processes` children store, allocate and commit until there are `commits`, and kills one every `kill_every`; gives the
/// number of torn images, and of kills.
fn run(test: &str, processes: usize, commits: u64, kill_every: Option<u64>, bug: Option<Bug>) -> (usize, u64) {
    let seed = std::env::var("UNTORN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_u64);
    let dir = memory_dir();
    let path = dir.path().join("store");
    let store = RegionStore::create(&path).unwrap();
    // What the threads expect to be there, in commit 1.
    let region = store.create_region_of("r", PAGES).unwrap();
    region.alloc_at(0, LINKS + OWNERS as u64).unwrap();
    region.pmsync().unwrap();
    drop(region);
    store.close().unwrap();
    let notes = notes(dir.path());
    let shared = words(&notes);
    let start = |id: usize| command_in("map::shared_region::tests::cuts", test, dir.path(), id, bug).spawn().unwrap();
    let mut children = Children((0..processes).map(start).collect());
    let (mut random, mut kills, mut of_server, mut killed_at) = (seed, 0, 0, 1);
    let (mut last, mut since) = (0, Instant::now());
    let wanted = kill_every.map_or(0, |every| commits / every);
    let done = |last: u64, kills: u64| match bug {
        None => last >= commits && kills >= wanted,
        Some(_) => shared[TORN].load(SeqCst) != 0,
    };
    while !done(last, kills) {
        thread::sleep(Duration::from_millis(1));
        let now = shared[LAST].load(SeqCst);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < 5 * patience(), "seed {seed}: no commit after {last}, {kills} kills");
        if kills < wanted && kill_every.is_some_and(|every| last >= killed_at + every) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Every other time the one that serves.
            let server = shared[SERVER].load(SeqCst) as usize;
            let aimed = kills % 2 == 0 && server != 0;
            let victim = if aimed { server - 1 } else { (random >> 33) as usize % processes };
            // If nobody were left the uncommitted stores would be lost, as they must, and the tickets not.
            if (0..processes).any(|id| id != victim && shared[ALIVE + id].load(SeqCst) != 0) {
                killed_at = last;
                of_server += u64::from(victim + 1 == server);
                children.0[victim].kill().unwrap();
                children.0[victim].wait().unwrap();
                shared[ALIVE + victim].store(0, SeqCst);
                children.0[victim] = start(victim);
                kills += 1;
            }
        }
    }
    shared[STOP].store(1, SeqCst);
    for child in &mut children.0 {
        assert!(child.wait().unwrap().success(), "seed {seed}: a child failed");
    }
    let verdicts = fs::read_to_string(dir.path().join("verdicts")).unwrap();
    let judged: BTreeSet<u64> = verdicts.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
    let torn: Vec<&str> = verdicts.lines().filter(|line| !line.ends_with(" whole")).collect();
    let last = shared[LAST].load(SeqCst);
    println!(
        "{processes} processes, {last} commits, {kills} kills ({of_server} of the server), {} torn {:?}",
        torn.len(),
        torn.first()
    );
    assert!(judged.iter().copied().eq(1..=last), "seed {seed}: not every image was judged");
    if bug.is_none() {
        // What nobody has linked was allocated by a thread that was killed, or stopped, before it could link or free it.
        let left = committed(&path);
        let linked = (0..OWNERS as u64).filter(|owner| left[&(LINKS + owner)] != 0).count() as u64;
        let lost = left.len() as u64 - LINKS - OWNERS as u64 - linked;
        println!("{} pages, {lost} of them nobody's", left.len());
        assert!(lost <= 2 * (kills + processes as u64), "seed {seed}: {lost} pages are nobody's");
    }
    (torn.len(), kills)
}

/// Commits of a run: more with UNTORN_CUTS.
fn wanted(otherwise: u64) -> u64 {
    std::env::var("UNTORN_CUTS").ok().and_then(|count| count.parse().ok()).unwrap_or(otherwise)
}

macro_rules! cuts {
    ($($name:ident: $processes:literal, $commits:literal, $kill_every:expr;)+) => {
        $(#[test]
        fn $name() {
            if unavailable() {
                return;
            }
            if let Some((dir, me)) = child_of(stringify!($name)) {
                return work(&dir, me);
            }
            let kill_every: Option<u64> = $kill_every;
            let (torn, kills) = run(stringify!($name), $processes, wanted($commits), kill_every, None);
            assert_eq!(torn, 0);
            assert!(kill_every.is_none_or(|every| kills >= wanted($commits) / every));
        })+
    };
}

cuts! {
    two_processes_never_see_a_torn_region: 2, 200, None;
    four_processes_never_see_a_torn_region: 4, 200, None;
    two_processes_of_which_one_dies_share_a_region: 2, 300, Some(50);
    four_processes_of_which_one_dies_share_a_region: 4, 300, Some(50);
}

#[test]
fn a_region_whose_pages_are_not_protected_is_convicted() {
    const TEST: &str = "a_region_whose_pages_are_not_protected_is_convicted";
    if unavailable() {
        return;
    }
    if let Some((dir, me)) = child_of(TEST) {
        return work(&dir, me);
    }
    assert_ne!(run(TEST, 2, 1, None, Some(Bug::NoProtection)).0, 0, "the bug was not found");
}
