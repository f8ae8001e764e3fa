//! The cut test, of whatever stands on a working copy: processes store to it in a total order and commit, some of
//! them are killed, and every image that is committed is judged.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering::{self, SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use super::super::{Backing, Cut, PAGE, SharedMemory};
use super::{Bug, Parent, Stage, memory_dir, patience, with_processes, word};
use crate::error::Result;
use crate::sys::shared::SharedPages;

/// Pages that all processes store to, each ticket to one: ticket t to page t modulo this.
pub(crate) const COMMON: usize = 48;
/// Then each thread has two pages: the ticket it is about to store, and the last one it has stored.
pub(crate) const OWNERS: usize = 8;
/// The first pages of what is shared. What else there is belongs to the test.
pub(crate) const PAGES: usize = COMMON + 2 * OWNERS;

// Words of the notes.
const TICKETS: usize = 0;
const STOP: usize = 8;
const SERVER: usize = 16;
const LONGEST_STORE: usize = 24;
const LONGEST_COMMIT: usize = 25;
const ALIVE: usize = 32;
/// The last ticket that a commit has acknowledged.
const ACKNOWLEDGED: usize = 48;
/// The last commit, and how many images were torn.
const LAST: usize = 64;
const TORN: usize = 65;

/// What is shared, as one process has it.
pub(crate) trait Subject: Sync + Sized {
    /// What it is, in a word.
    const WHAT: &'static str;

    /// Makes what is to be shared, of which the first [`PAGES`] pages are zeros.
    fn make(dir: &Path);
    /// Takes part. What is committed must be [`Judged`].
    fn open(dir: &Path) -> Self;
    fn copy(&self) -> &SharedMemory;
    /// What a thread does again and again: it stores a ticket, to begin with.
    fn act(&self, test: &Stage, owner: usize, _turn: u64) {
        step(self.copy(), test, owner);
    }
    fn commit(&self) -> Result<u64>;
    fn leave(self) -> Result<()>;
    /// Judges what is left when all have left.
    fn examine(_dir: &Path, _outcome: &Outcome) {}
}

/// Stores the next ticket. The stores of all processes are totally ordered: nobody stores ticket t + 1 before ticket
/// t is stored, and it does not matter who stores it, so nobody has to wait for one that was killed.
pub(crate) fn step(copy: &SharedMemory, test: &Stage, me: usize) {
    let (page, tickets) = (|page: usize| word(copy, page), test.word(TICKETS));
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

fn ticket_of(image: &[u8], page: usize) -> u64 {
    u64::from_le_bytes(image[page * PAGE..page * PAGE + 8].try_into().unwrap())
}

/// The last ticket of an image.
fn last_of(image: &[u8]) -> u64 {
    (0..COMMON).map(|page| ticket_of(image, page)).max().unwrap_or(0)
}

/// Why the first [`PAGES`] pages of an image are not the state of one instant, if they are not.
pub(crate) fn judge(image: &[u8]) -> Option<String> {
    let (word, last) = (|page: usize| ticket_of(image, page), last_of(image));
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

/// A backing of which every image is judged as soon as it is committed.
pub(crate) struct Judged<B: ?Sized> {
    inner: Box<B>,
    /// What else is wrong with an image.
    verdict: fn(&B, &[u8]) -> Option<String>,
    verdicts: File,
    stage: Stage,
}

impl<B: Backing + ?Sized> Judged<B> {
    pub(crate) fn new(inner: Box<B>, dir: &Path, verdict: fn(&B, &[u8]) -> Option<String>) -> Self {
        let verdicts = OpenOptions::new().append(true).create(true).open(dir.join("verdicts")).unwrap();
        let judged = Judged { inner, verdict, verdicts, stage: Stage::new(dir) };
        // A commit that was made by a process that was killed before it could judge. Nobody is told of another one
        // before this is done.
        let acknowledged = judged.stage.word(ACKNOWLEDGED).load(SeqCst);
        judged.judge(judged.inner.last_commit(), acknowledged);
        judged
    }

    fn judge(&self, number: u64, acknowledged: u64) {
        let mut image = vec![0; self.inner.len() as usize];
        self.inner.fill(0, &mut image).unwrap();
        let last = last_of(&image);
        let lost = || format!("ticket {acknowledged} was committed, and the image ends with {last}");
        let torn = (self.verdict)(&self.inner, &image).or_else(|| judge(&image));
        let torn = torn.or_else(|| (last < acknowledged).then(lost));
        if torn.is_some() {
            self.stage.word(TORN).fetch_add(1, SeqCst);
        }
        // In one piece, whenever the process is killed.
        let line = format!("{number} {}\n", torn.as_deref().unwrap_or("whole"));
        (&self.verdicts).write_all(line.as_bytes()).unwrap();
        self.stage.word(LAST).store(number, SeqCst);
    }
}

impl<B: Backing + ?Sized> Backing for Judged<B> {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn last_commit(&self) -> u64 {
        self.inner.last_commit()
    }
    fn identity(&self) -> [u64; 2] {
        self.inner.identity()
    }
    fn session(&self) -> u64 {
        self.inner.session()
    }
    fn negotiated(&self) -> String {
        self.inner.negotiated()
    }
    fn fill(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.inner.fill(offset, into)
    }
    fn commit(&self, cut: &Cut) -> Result<u64> {
        let before = self.inner.last_commit();
        let number = self.inner.commit(cut)?;
        if number != before {
            assert_eq!(number, before + 1);
            self.judge(number, 0);
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

/// A child: two threads store, a third one commits, until the parent says stop.
fn work<S: Subject>(test: &Stage, me: usize) {
    let subject = S::open(&test.dir);
    let goes_on = || test.word(STOP).load(Ordering::Relaxed) == 0;
    let timed = |longest: usize, what: &dyn Fn()| {
        let since = Instant::now();
        what();
        test.word(longest).fetch_max(since.elapsed().as_micros() as u64, SeqCst);
    };
    thread::scope(|scope| {
        for owner in [me, me + OWNERS / 2] {
            let (subject, timed, goes_on) = (&subject, &timed, &goes_on);
            scope.spawn(move || {
                for turn in (0..).take_while(|_| goes_on()) {
                    timed(LONGEST_STORE, &|| subject.act(test, owner, turn));
                    test.word(ALIVE + me).fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while goes_on() {
            if subject.copy().is_owner() {
                test.word(SERVER).store(me as u64 + 1, SeqCst);
            }
            let before = test.word(TICKETS).load(SeqCst);
            timed(LONGEST_COMMIT, &|| assert!(subject.commit().unwrap() < u64::MAX));
            test.word(ACKNOWLEDGED).fetch_max(before, SeqCst);
        }
    });
    subject.leave().unwrap();
}

/// The last commit that the parent has seen, since when, and the longest time between two.
struct Seen {
    last: u64,
    since: Instant,
    gap: Duration,
}

impl Seen {
    fn look(&mut self, test: &Stage) {
        let now = test.word(LAST).load(SeqCst);
        if now != self.last {
            if self.last != 0 {
                self.gap = self.gap.max(self.since.elapsed());
            }
            (self.last, self.since) = (now, Instant::now());
        }
    }
}

/// What became of a run.
pub(crate) struct Outcome {
    pub(crate) processes: usize,
    commits: u64,
    torn: usize,
    pub(crate) kills: u64,
    kills_of_server: u64,
}

/// How a run is made.
pub(crate) struct Run {
    pub(crate) test: &'static str,
    pub(crate) processes: usize,
    /// UNTORN_CUTS says how many instead.
    pub(crate) commits: u64,
    pub(crate) kill_every: Option<u64>,
    pub(crate) bug: Option<Bug>,
}

impl Run {
    /// The test itself, in its parent and in its children.
    pub(crate) fn go<S: Subject>(mut self) {
        let asked = std::env::var("UNTORN_CUTS").ok().and_then(|count| count.parse().ok());
        self.commits = asked.unwrap_or(self.commits);
        with_processes(self.test, memory_dir, work::<S>, |test| {
            S::make(&test.dir);
            let outcome = self.run::<S>(test);
            if self.bug.is_some() {
                return assert_ne!(outcome.torn, 0, "the bug was not found");
            }
            assert!(outcome.torn == 0 && outcome.commits >= self.commits && outcome.kills >= self.kills());
            assert!(self.kills() == 0 || outcome.kills_of_server > 0);
            S::examine(&test.dir, &outcome);
        });
    }

    fn kills(&self) -> u64 {
        self.kill_every.map_or(0, |every| self.commits / every)
    }

    /// Lets the children store and commit until there are enough commits, and kills one every now and then.
    fn run<S: Subject>(&self, test: &mut Parent) -> Outcome {
        let seed = std::env::var("UNTORN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_u64);
        let (processes, wanted) = (self.processes, self.kills());
        let stage = &Stage::new(&test.dir);
        let seen_in = |index: usize| stage.word(index).load(SeqCst);
        test.bug = self.bug;
        (0..processes).for_each(|id| test.start_unheard(id));
        let (mut random, mut kills, mut kills_of_server, began) = (seed, 0, 0, Instant::now());
        let mut seen = Seen { last: 0, since: began, gap: Duration::ZERO };
        let (mut killed_at, mut kills_while_joining, mut dying) = (0, 0, Duration::ZERO);
        let mut stuck = vec![(0, Instant::now()); processes];
        // A bug shows when a store comes at the wrong time. When that is depends on who runs when.
        let done = |last: u64, kills: u64| match self.bug {
            None => last >= self.commits && kills >= wanted,
            Some(_) => seen_in(TORN) != 0,
        };
        while !done(seen.last, kills) {
            thread::sleep(Duration::from_millis(1));
            seen.look(stage);
            let (last, since) = (seen.last, seen.since);
            assert!(
                last == 0 || since.elapsed() < 5 * patience(),
                "seed {seed}: no commit after {last}, {kills} kills"
            );
            assert!(began.elapsed() < Duration::from_secs(1800), "seed {seed}: {last} commits only");
            for (id, (steps, when)) in stuck.iter_mut().enumerate() {
                let now = seen_in(ALIVE + id);
                if now != *steps {
                    (*steps, *when) = (now, Instant::now());
                }
                assert!(*steps == 0 || when.elapsed() < 5 * patience(), "seed {seed}: process {id} is stuck");
            }
            if kills < wanted && self.kill_every.is_some_and(|every| last >= killed_at + every) {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Every other time the one that serves.
                let server = seen_in(SERVER) as usize;
                let aimed = kills % 2 == 0 && server != 0;
                let victim = if aimed { server - 1 } else { (random >> 33) as usize % processes };
                // It may be about to join. But if nobody were left that takes part the uncommitted stores would be
                // lost, as they must, and the tickets not.
                let takes_part = |id: &usize| *id != victim && seen_in(ALIVE + id) != 0;
                if !(0..processes).any(|id| takes_part(&id)) {
                    continue;
                }
                killed_at = last;
                kills_while_joining += u64::from(seen_in(ALIVE + victim) == 0);
                kills_of_server += u64::from(victim + 1 == server);
                let killed = Instant::now();
                test.kill_unawaited(victim);
                // The others go on, and are watched.
                while !test.has_ended(victim) {
                    thread::sleep(Duration::from_millis(1));
                    seen.look(stage);
                }
                // The kernel's part: until then what it had locked may be.
                dying = dying.max(killed.elapsed());
                stage.word(ALIVE + victim).store(0, SeqCst);
                stuck[victim].0 = 0;
                test.restart(victim);
                kills += 1;
            }
        }
        stage.say(STOP);
        (0..processes).for_each(|id| test.succeeds(id));
        let verdicts = fs::read_to_string(test.dir.join("verdicts")).unwrap();
        let number = |line: &str| line.split(' ').next().unwrap().parse().unwrap();
        let judged: BTreeSet<u64> = verdicts.lines().map(number).filter(|number| *number != 0).collect();
        let torn: Vec<&str> = verdicts.lines().filter(|line| !line.ends_with(" whole")).collect();
        let last = seen_in(LAST);
        assert!(judged.iter().copied().eq(1..=last), "seed {seed}: not every image was judged");
        let longest = |index: usize| seen_in(index) as f64 / 1000.0;
        println!(
            "cuts of a {}: {processes} processes{}, {last} commits in {:.1} s, {} tickets, {kills} kills \
             ({kills_of_server} of the server, {kills_while_joining} of one about to join), {} torn {:?}; longest \
             store {:.1} ms, commit {:.1} ms, gap between commits {:.1} ms, death {:.1} ms",
            S::WHAT,
            self.bug.map_or(String::new(), |bug| format!(" with the bug {bug:?}")),
            began.elapsed().as_secs_f64(),
            seen_in(TICKETS),
            torn.len(),
            torn.first(),
            longest(LONGEST_STORE),
            longest(LONGEST_COMMIT),
            seen.gap.as_secs_f64() * 1000.0,
            dying.as_secs_f64() * 1000.0,
        );
        if self.bug.is_none() {
            let most = patience().as_secs_f64() * 1000.0;
            assert!(seen.gap < patience(), "seed {seed}: {:?} without a commit", seen.gap);
            assert!(longest(LONGEST_STORE) < most, "seed {seed}: a store took {} ms", longest(LONGEST_STORE));
            assert!(longest(LONGEST_COMMIT) < most, "seed {seed}: a commit took {} ms", longest(LONGEST_COMMIT));
        }
        Outcome { processes, commits: last, torn: torn.len(), kills, kills_of_server }
    }
}

/// Tests of a subject: how many processes, how many commits, after how many of them one is killed.
macro_rules! cuts {
    ($subject:ty; $($name:ident: $processes:literal, $commits:literal, $kill_every:expr;)+) => {
        $(#[test]
        fn $name() {
            let (test, kill_every) = ($crate::ipc::memory::tests::this_test!(), $kill_every);
            $crate::ipc::memory::tests::rig::Run {
                test, processes: $processes, commits: $commits, kill_every, bug: None,
            }.go::<$subject>();
        })+
    };
}
/// Tests with bugs that the judge must find.
macro_rules! bugs {
    ($subject:ty; $($name:ident: $bug:ident;)+) => {
        $(#[test]
        fn $name() {
            let (test, bug) = ($crate::ipc::memory::tests::this_test!(), Some($crate::ipc::memory::tests::Bug::$bug));
            $crate::ipc::memory::tests::rig::Run { test, processes: 2, commits: 1, kill_every: None, bug }
                .go::<$subject>();
        })+
    };
}
pub(crate) use {bugs, cuts};
