//! Cuts through stores that are totally ordered, however many processes make them and whoever is killed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::Ordering::{self, SeqCst};
use std::time::{Duration, Instant};
use std::{fs, thread};

use super::super::{PAGE, WorkingCopy};
use super::backing::{LAST, TORN};
use super::{Bug, child_of, notes, open, patience, spawn, unavailable, words};
use crate::sys::shared::SharedPages;

/// Pages that all processes store to, each ticket to one: ticket t to page t modulo this.
const COMMON: usize = 48;
/// Then each thread has two pages: the ticket it is about to store, and the last one it has stored.
pub(crate) const OWNERS: usize = 8;
pub(crate) const PAGES: usize = COMMON + 2 * OWNERS;

// Words of the notes, beside those of the backing.
const TICKETS: usize = 0;
const STOP: usize = 8;
const SERVER: usize = 16;
const LONGEST_STORE: usize = 24;
const LONGEST_COMMIT: usize = 25;
const ALIVE: usize = 32;
/// The last ticket that a commit has acknowledged.
const ACKNOWLEDGED: usize = 48;

/// Stores the next ticket. The stores of all processes are totally ordered: nobody stores ticket t + 1 before ticket t is
/// stored, and it does not matter who stores it, so nobody has to wait for one that was killed.
pub(crate) fn step(copy: &WorkingCopy, notes: &SharedPages, me: usize) {
    let page = |page: usize| &copy.words(page * PAGE, 1)[0];
    let tickets = &words(notes)[TICKETS];
    let ticket = tickets.load(SeqCst) + 1;
    page(COMMON + 2 * me).store(ticket, SeqCst);
    let slot = page(ticket as usize % COMMON);
    let before = ticket.saturating_sub(COMMON as u64);
    if slot.load(SeqCst) == before {
        let _ = slot.compare_exchange(before, ticket, SeqCst, SeqCst);
    }
    if tickets.compare_exchange(ticket - 1, ticket, SeqCst, SeqCst).is_ok() {
        page(COMMON + 2 * me + 1).store(ticket, SeqCst);
    }
}

/// Why an image is not the state of one instant, if it isn't.
pub(crate) fn judge(image: &[u8]) -> Option<String> {
    if image.len() != PAGES * PAGE {
        return None; // of another test
    }
    let word = |page: usize| u64::from_le_bytes(image[page * PAGE..page * PAGE + 8].try_into().unwrap());
    let last = (0..COMMON).map(word).max()?;
    for page in 0..COMMON as u64 {
        // The last ticket up to the last one of all that belongs to the page; 0 if there is none yet.
        let expected = last.saturating_sub((last + COMMON as u64 - page) % COMMON as u64);
        let expected = if page > last { 0 } else { expected };
        if word(page as usize) != expected {
            return Some(format!("page {page} has ticket {}, not {expected}, at ticket {last}", word(page as usize)));
        }
    }
    for owner in 0..OWNERS {
        let (begun, ended) = (word(COMMON + 2 * owner), word(COMMON + 2 * owner + 1));
        if !(ended <= begun && ended <= last && begun <= last + 1) {
            return Some(format!("thread {owner} has begun {begun} and ended {ended} at ticket {last}"));
        }
    }
    None
}

/// Why an image that is found by who takes over is older than it may be, if it is.
pub(super) fn judge_age(image: &[u8], notes: &SharedPages) -> Option<String> {
    let acknowledged = words(notes)[ACKNOWLEDGED].load(SeqCst);
    let word = |page: usize| u64::from_le_bytes(image[page * PAGE..page * PAGE + 8].try_into().unwrap());
    let last = (0..COMMON).map(word).max().filter(|_| image.len() == PAGES * PAGE)?;
    (last < acknowledged).then(|| format!("ticket {acknowledged} was committed, and the image ends with {last}"))
}

#[test]
fn the_judge_convicts() {
    let mut image = vec![0; PAGES * PAGE];
    let set = |image: &mut Vec<u8>, page: usize, ticket: u64| {
        image[page * PAGE..page * PAGE + 8].copy_from_slice(&ticket.to_le_bytes());
    };
    assert_eq!(judge(&image), None);
    for ticket in 1..=1000 {
        set(&mut image, ticket as usize % COMMON, ticket);
        set(&mut image, COMMON, ticket);
        assert_eq!(judge(&image), None);
    }
    set(&mut image, COMMON + 1, 1001);
    assert!(judge(&image).unwrap().contains("thread 0"));
    set(&mut image, COMMON + 1, 0);
    set(&mut image, 1001 % COMMON, 0);
    assert!(judge(&image).unwrap().contains("has ticket 0"));
}

/// A child: two threads store tickets, a third one commits, until the parent says stop.
fn work(dir: &Path, me: usize) {
    let (copy, notes) = (open(dir, PAGES), notes(dir));
    let shared = words(&notes);
    let timed = |longest: usize, what: &dyn Fn()| {
        let since = Instant::now();
        what();
        shared[longest].fetch_max(since.elapsed().as_micros() as u64, SeqCst);
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while shared[STOP].load(Ordering::Relaxed) == 0 {
                timed(LONGEST_STORE, &|| step(&copy, &notes, me));
                shared[ALIVE + me].fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            while shared[STOP].load(Ordering::Relaxed) == 0 {
                timed(LONGEST_STORE, &|| step(&copy, &notes, me + OWNERS / 2));
            }
        });
        while shared[STOP].load(Ordering::Relaxed) == 0 {
            if copy.is_serving() {
                shared[SERVER].store(me as u64 + 1, SeqCst);
            }
            let before = shared[TICKETS].load(SeqCst);
            timed(LONGEST_COMMIT, &|| assert!(copy.commit().unwrap() < u64::MAX));
            shared[ACKNOWLEDGED].fetch_max(before, SeqCst);
        }
    });
    copy.leave().unwrap();
}

struct Outcome {
    commits: u64,
    torn: u64,
    kills: u64,
    kills_of_server: u64,
}

/// Lets `processes` children store and commit until there are `commits`, and kills one every `kill_every`.
fn run(test: &str, processes: usize, commits: u64, kill_every: Option<u64>, bug: Option<Bug>) -> Outcome {
    let seed = std::env::var("UNTORN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_u64);
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let notes = notes(dir.path());
    let shared = words(&notes);
    let start = |id: usize| spawn("cuts", test, dir.path(), id, bug);
    let mut children: Vec<Child> = (0..processes).map(start).collect();
    let (mut random, mut kills, mut kills_of_server, mut gap) = (seed, 0, 0, Duration::ZERO);
    let (mut last, mut since, began) = (0, Instant::now(), Instant::now());
    let (mut killed_at, mut kills_while_joining) = (0, 0);
    let mut stuck = vec![(0, Instant::now()); processes];
    let all_killed = |kills: u64| kill_every.is_none_or(|every| kills >= commits / every);
    // A bug shows when a store comes at the wrong time. When that is depends on who runs when.
    let done = |last: u64, kills: u64| match bug {
        None => last >= commits && all_killed(kills),
        Some(_) => shared[TORN].load(SeqCst) != 0,
    };
    while !done(last, kills) {
        thread::sleep(Duration::from_millis(1));
        let now = shared[LAST].load(SeqCst);
        if now != last {
            if last != 0 {
                gap = gap.max(since.elapsed());
            }
            (last, since) = (now, Instant::now());
        }
        assert!(last == 0 || since.elapsed() < 5 * patience(), "seed {seed}: no commit after {last}, {kills} kills");
        assert!(began.elapsed() < Duration::from_secs(1800), "seed {seed}: {last} commits only");
        for (id, (steps, when)) in stuck.iter_mut().enumerate() {
            let now = shared[ALIVE + id].load(SeqCst);
            if now != *steps {
                (*steps, *when) = (now, Instant::now());
            }
            assert!(*steps == 0 || when.elapsed() < 5 * patience(), "seed {seed}: process {id} is stuck");
        }
        if !all_killed(kills) && kill_every.is_some_and(|every| last >= killed_at + every) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Every other time the one that serves.
            let server = shared[SERVER].load(SeqCst) as usize;
            let aimed = kills % 2 == 0 && server != 0;
            let victim = if aimed { server - 1 } else { (random >> 33) as usize % processes };
            // It may be about to join. But if nobody were left that takes part the uncommitted stores would be lost, as they
            // must, and the tickets not.
            let takes_part = |id: &usize| *id != victim && shared[ALIVE + id].load(SeqCst) != 0;
            if !(0..processes).any(|id| takes_part(&id)) {
                continue;
            }
            killed_at = last;
            kills_while_joining += u64::from(shared[ALIVE + victim].load(SeqCst) == 0);
            kills_of_server += u64::from(victim + 1 == server);
            children[victim].kill().unwrap();
            children[victim].wait().unwrap();
            shared[ALIVE + victim].store(0, SeqCst);
            stuck[victim].0 = 0;
            children[victim] = start(victim);
            kills += 1;
        }
    }
    shared[STOP].store(1, SeqCst);
    for child in &mut children {
        assert!(child.wait().unwrap().success(), "seed {seed}: a child failed");
    }
    let verdicts = fs::read_to_string(dir.path().join("verdicts")).unwrap();
    let judged: BTreeSet<u64> = verdicts.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
    let torn: Vec<&str> = verdicts.lines().filter(|line| !line.ends_with(" whole")).collect();
    let last = shared[LAST].load(SeqCst);
    assert!(judged.iter().copied().eq(1..=last), "seed {seed}: not every image was judged");
    let longest = |index: usize| shared[index].load(SeqCst) as f64 / 1000.0;
    println!(
        "{processes} processes, {last} commits in {:.1} s, {} tickets, {kills} kills ({kills_of_server} of the server, \
         {kills_while_joining} of one about to join), {} torn {:?}; the longest store {:.1} ms, commit {:.1} ms, gap between commits {:.1} ms",
        began.elapsed().as_secs_f64(),
        shared[TICKETS].load(SeqCst),
        torn.len(),
        torn.first(),
        longest(LONGEST_STORE),
        longest(LONGEST_COMMIT),
        gap.as_secs_f64() * 1000.0,
    );
    if bug.is_none() {
        let most = patience().as_secs_f64() * 1000.0;
        assert!(gap < patience(), "seed {seed}: {gap:?} without a commit");
        assert!(longest(LONGEST_STORE) < most, "seed {seed}: a store took {} ms", longest(LONGEST_STORE));
        assert!(longest(LONGEST_COMMIT) < most, "seed {seed}: a commit took {} ms", longest(LONGEST_COMMIT));
    }
    Outcome { commits: last, torn: torn.len() as u64, kills, kills_of_server }
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
            let outcome = run(stringify!($name), $processes, wanted($commits), $kill_every, None);
            assert_eq!(outcome.torn, 0);
            assert!(outcome.commits >= wanted($commits));
            if let Some(every) = $kill_every {
                let every: u64 = every;
                assert!(outcome.kills >= wanted($commits) / every && outcome.kills_of_server > 0);
            }
        })+
    };
}

cuts! {
    two_processes_never_see_a_torn_cut: 2, 500, None;
    four_processes_never_see_a_torn_cut: 4, 500, None;
    two_processes_of_which_one_dies: 2, 500, Some(50);
    four_processes_of_which_one_dies: 4, 500, Some(50);
}

macro_rules! bugs {
    ($($name:ident: $bug:ident;)+) => {
        $(#[test]
        fn $name() {
            if unavailable() {
                return;
            }
            if let Some((dir, me)) = child_of(stringify!($name)) {
                return work(&dir, me);
            }
            assert_ne!(run(stringify!($name), 2, 1, None, Some(Bug::$bug)).torn, 0, "the bug was not found");
        })+
    };
}

bugs! {
    a_cut_without_protection_is_convicted: NoProtection;
    a_cut_that_lets_stores_through_too_early_is_convicted: EarlyGate;
}
