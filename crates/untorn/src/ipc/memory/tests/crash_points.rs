//! A process that dies at a given point, and what another one finds.

use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use super::super::PAGE;
use super::{
    Bug, DIE_AT, EXCHANGES, GO, HALT, HEIR, JOINED, Point, READY, STOP, Stage, await_change, get, open, patience, set,
    this_test, with_processes, with_processes_for,
};
use crate::ipc::message::Kind;

const PAGES: usize = 256;

/// A page that the survivor stored to and nobody committed.
const SURVIVORS: usize = 100;
/// A page that nobody has looked at before.
const FRESH: usize = 200;

/// The child: serves, and dies in the middle of a second round.
fn die(test: &Stage, point: Point) {
    let copy = open(&test.dir, PAGES);
    (0..8).for_each(|page| set(&copy, page, 1));
    copy.commit().unwrap();
    assert!(copy.is_owner());
    test.say(READY);
    test.hear(GO);
    DIE_AT.store(point as u32, SeqCst);
    (0..8).for_each(|page| set(&copy, page, 2));
    get(&copy, FRESH);
    let _ = if point == Point::RollingBack { copy.roll_back() } else { copy.commit() };
    unreachable!("it outlived {point:?}");
}

fn image(dir: &Path, page: usize) -> u64 {
    let bytes = std::fs::read(dir.join("image")).unwrap();
    u64::from_le_bytes(bytes[page * PAGE..page * PAGE + 8].try_into().unwrap())
}

fn survive(test: &str, point: Point) {
    let child = |test: &Stage, which| if which == 0 { die(test, point) } else { a_third_process(&test.dir) };
    with_processes(test, tempfile::tempdir, child, |test| {
        test.start(0, READY);
        let copy = open(&test.dir, PAGES);
        assert!(!copy.is_owner());
        let before = copy.last_commit();
        assert_eq!((before, get(&copy, 7)), (1, 1));
        set(&copy, SURVIVORS, 7);
        test.say(GO);
        test.is_killed(0);

        // Nothing stands still: a store to a page of the dead process's cut, the load of a page never seen, a commit.
        let since = Instant::now();
        let rolled_back = point == Point::RollingBack;
        let expected = |page: usize| if page < 8 && rolled_back { 1 } else { get(&copy, page) };
        if !rolled_back {
            set(&copy, 3, 9);
        }
        assert_eq!(get(&copy, FRESH + 20), 0);
        let number = copy.commit().unwrap();
        assert!(since.elapsed() < patience(), "it took {:?}", since.elapsed());
        assert!(copy.is_owner());
        // What the survivor stored, or the rolling back took away, is what is committed.
        assert_eq!(number, if rolled_back { 1 } else { number.max(2) });
        for page in (0..8).chain([SURVIVORS]) {
            let expected = if page == SURVIVORS && rolled_back { 0 } else { expected(page) };
            assert_eq!((page, get(&copy, page), image(&test.dir, page)), (page, expected, expected));
        }
        if point as u32 > Point::Filled as u32 && !rolled_back {
            assert_eq!(image(&test.dir, 7), 2, "the dead process had stored it before its commit");
        }
        // And every page is protected as before: what is stored now is noticed.
        for round in 10..13 {
            let pages = || (0..8).chain([SURVIVORS, FRESH]);
            pages().for_each(|page| set(&copy, page, round));
            copy.commit().unwrap();
            pages().for_each(|page| assert_eq!((page, image(&test.dir, page)), (page, round)));
        }
        // A third process may come.
        test.start_unheard(1);
        test.succeeds(1);
        assert_eq!(get(&copy, 5), 55);
        assert_eq!(image(&test.dir, 5), 55);
        copy.leave().unwrap();
    });
}

fn a_third_process(dir: &Path) {
    let copy = open(dir, PAGES);
    assert!(!copy.is_owner());
    assert_eq!(get(&copy, 7), 12);
    set(&copy, 5, 55);
    copy.commit().unwrap();
}

/// In the middle of making it longer: what the file has is what all see, and its new pages are protected in all.
#[test]
fn a_death_amid_a_growth_leaves_one_length_for_all() {
    const LONGER: u64 = ((PAGES + 9) * PAGE + 10) as u64;
    let child = |test: &Stage, point: usize| {
        let copy = open(&test.dir, PAGES);
        test.say(READY);
        test.hear(GO);
        DIE_AT.store(point as u32, SeqCst);
        let _ = copy.grow(LONGER);
        unreachable!("it survived");
    };
    with_processes_for(
        this_test!(),
        tempfile::tempdir,
        [(Point::Committing, (PAGES * PAGE) as u64), (Point::Committed, LONGER)],
        child,
        |test, (point, len)| {
            test.start(point as usize, READY);
            let copy = open(&test.dir, PAGES);
            test.say(GO);
            test.is_killed(0);
            set(&copy, 0, 1);
            let first = copy.commit().unwrap();
            assert_eq!((copy.len(), copy.is_owner()), (len, true), "{point:?}");
            copy.grow(LONGER).unwrap();
            for round in 1..3 {
                let before = copy.commit().unwrap();
                assert!(before >= first);
                (PAGES..PAGES + 10).for_each(|page| set(&copy, page, round));
                assert_eq!(copy.commit().unwrap(), before + 1, "{point:?}: a store went unnoticed");
                (PAGES..PAGES + 10).for_each(|page| assert_eq!((page, image(&test.dir, page)), (page, round)));
            }
            copy.leave().unwrap();
        },
    );
}

/// While a thread is about to ask for a rollback: it is done once, whoever sends it to the next server, for what is
/// stored after it is not to be taken back.
#[test]
fn a_rollback_requested_at_a_death_is_done_once() {
    let child = |test: &Stage, _| test.serve(PAGES, 0);
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        test.start(0, READY);
        let copy = open(&test.dir, PAGES);
        set(&copy, 0, 2);
        let ((halted, is_halted), (go, may_go)) = (channel(), channel());
        let number = thread::scope(|scope| {
            let asking = scope.spawn(|| {
                HALT.set(Some((Kind::RollBack, halted, may_go)));
                copy.roll_back().unwrap();
                set(&copy, 0, 3);
                copy.commit().unwrap()
            });
            is_halted.recv().unwrap();
            let before = EXCHANGES.load(SeqCst);
            test.kill(0);
            await_change("this process serves", || copy.is_owner() && EXCHANGES.load(SeqCst) != before);
            // As long as somebody else who sent it would need.
            let since = Instant::now();
            while copy.member.control.dirty().get(0) && since.elapsed() < Duration::from_millis(200) {
                thread::sleep(Duration::from_millis(1));
            }
            go.send(()).unwrap();
            asking.join().unwrap()
        });
        let found = (get(&copy, 0), image(&test.dir, 0));
        assert_eq!(found, (3, 3), "a commit was acknowledged without its store");
        assert_eq!(number, 2);
        copy.leave().unwrap();
    });
}

/// A process forked from the one that serves has its sockets too, so that their other ends do not see it end.
#[test]
fn a_death_is_noticed_though_a_child_holds_the_sockets() {
    let child = |test: &Stage, me: usize| {
        let copy = open(&test.dir, PAGES);
        if me == 1 {
            // Another one that has to come back before there can be a commit.
            test.say(JOINED);
            return test.hear(STOP);
        }
        set(&copy, 0, 1);
        copy.commit().unwrap();
        test.say(READY);
        test.hear(GO);
        let mut heir = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        test.word(HEIR).store(heir.id().into(), SeqCst);
        DIE_AT.store(Point::Protected as u32, SeqCst);
        set(&copy, 0, 2);
        copy.commit().unwrap();
        heir.wait().unwrap();
        unreachable!("it survived");
    };
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        test.bug = Some(Bug::TakeoverCheck);
        test.start(0, READY);
        test.bug = None;
        test.start(1, JOINED);
        let copy = open(&test.dir, PAGES);
        test.say(GO);
        test.is_killed(0);
        let since = Instant::now();
        set(&copy, 0, 3);
        let number = copy.commit().unwrap();
        let took = since.elapsed();
        test.stop(1);
        let heir = i32::try_from(test.word(HEIR).load(SeqCst)).unwrap();
        let fds = std::fs::read_dir(format!("/proc/{heir}/fd")).unwrap();
        let sockets = fds.filter_map(|fd| fd.unwrap().path().read_link().ok());
        let sockets = sockets.filter(|link| link.to_string_lossy().starts_with("socket:"));
        assert!(sockets.count() >= 2, "it inherited none");
        let heir = rustix::process::Pid::from_raw(heir).unwrap();
        rustix::process::kill_process(heir, rustix::process::Signal::KILL).unwrap();
        assert_eq!((number, image(&test.dir, 0)), (2, 3));
        assert!(took < patience(), "it took {took:?}");
    });
}

macro_rules! deaths {
    ($($name:ident: $point:ident;)+) => {
        $(#[test]
        fn $name() {
            survive(this_test!(), Point::$point);
        })+
    };
}

deaths! {
    a_death_in_the_gate_is_survived: Entered;
    a_death_with_a_dirty_page_still_protected_is_survived: Dirty;
    a_death_with_a_page_just_writable_is_survived: Opened;
    a_death_with_a_page_filled_unrecorded_is_survived: Filled;
    a_death_with_the_gate_closed_is_survived: GateClosed;
    a_death_with_all_pages_protected_is_survived: Protected;
    a_death_while_copying_is_survived: Copying;
    a_death_before_the_backing_commits_is_survived: Committing;
    a_death_after_the_backing_has_committed_is_survived: Committed;
    a_death_while_rolling_back_is_survived: RollingBack;
}
