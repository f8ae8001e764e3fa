//! What becomes of a shared map when somebody who does not share it comes to its file while no process serves it.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::AtomicMap;
use crate::engine::Piece;
use crate::ipc::memory::tests::{DIE_AT, GO, Held, Parent, Point, READY, block, with_processes_for};
use crate::options::Prefer;

/// A child that serves the map, and dies in its second commit, before it hands that to the engine.
fn serve(test: &Stage, _: usize) {
    let map = SharedMap::open(test.dir.join("file")).unwrap();
    let page = |page: usize| &map.words(0, 1024).unwrap()[page * 512];
    page(0).store(1, SeqCst);
    assert_eq!(map.commit().unwrap(), 1);
    test.say(READY);
    test.hear(GO);
    page(1).store(7, SeqCst);
    DIE_AT.store(Point::Committing as u32, SeqCst);
    let number = map.commit();
    unreachable!("it survived commit {number:?}");
}

/// Has a map that another process served until it died, and that nobody serves until the flag is set.
fn without_a_server(test: &mut Parent, options: &Options) -> (SharedMap, Arc<AtomicBool>) {
    let path = test.dir.join("file");
    AtomicFile::create(&path, 8192).unwrap().settle().unwrap();
    test.start(0, READY);
    let go = Arc::new(AtomicBool::new(false));
    let held = |opener| -> Arc<dyn Opener> { Arc::new(Held(opener, Arc::clone(&go))) };
    let map = open(options, &path, crate::open::open, held).unwrap();
    test.say(GO);
    test.is_killed(0);
    (map, go)
}

/// Lets anybody in, as a program would that does not know of sharing.
struct Unaware;

impl ExclusionCheck for Unaware {
    fn check_exclusion(&self) -> Result<()> {
        Ok(())
    }
}

/// Opens the file as such a program would.
fn unaware(path: &Path) -> Result<sync::Arc<Shared>> {
    crate::open::open(path, &Options::new().for_map(path)?.checked_by(Unaware))
}

fn committed(path: &Path) -> [u64; 2] {
    let map = AtomicMap::open(path).unwrap();
    let words = [0, 4096].map(|at| *map.view::<u64>(at).unwrap());
    map.close().unwrap();
    words
}

/// The dead process had commit 2 under way, so a commit 2 is what the next one may find: but not that of somebody
/// else, nor one that was settled and began to count anew, nor the last commit after somebody had the file.
#[test]
fn outside_commits_are_not_mixed_with_unserved_stores() {
    let cases = [
        (1, false, "another process opened it for writing"),
        (0, false, "another process opened it for writing"),
        (1, true, "replaced"),
    ];
    with_processes_for(this_test!(), tempfile::tempdir, cases, serve, |test, (commits, settles, why)| {
        let path = test.dir.join("file");
        let (map, go) = without_a_server(test, &Options::new());
        let other = unaware(&path).unwrap();
        for _ in 0..commits {
            other.engine.write(&[Piece { offset: 0, bytes: &99_u64.to_le_bytes() }]).unwrap();
            assert_eq!(other.engine.sync().unwrap(), 2);
        }
        if settles { other.engine.settle() } else { other.engine.close(Close::KeepSidecar) }.unwrap();
        drop(other);
        go.store(true, SeqCst);
        is_poisoned(map.commit(), why);
        let calls = [map.commit().map(drop), map.rollback(), map.grow(1 << 20).map(drop)];
        calls.into_iter().for_each(|call| is_poisoned(call, ""));
        drop(map);
        assert_eq!(committed(&path), [if commits == 0 { 1 } else { 99 }, 0]);
    });
}

#[test]
fn an_unserved_file_is_refused_to_everybody_else() {
    with_processes(this_test!(), tempfile::tempdir, serve, |test| {
        let path = test.dir.join("file");
        let (map, go) = without_a_server(test, &Options::new());
        let options = Options::new();
        let attempts = [
            AtomicMap::open(&path).err(),
            AtomicFile::open(&path).err(),
            options.clone().shared(true).open(&path).err(),
            options.clone().read_only(true).open(&path).err(),
            options.clone().engine(crate::EngineKind::Reflection).open(&path).err(),
        ];
        for error in attempts {
            assert!(matches!(&error, Some(Error::InUse { holder, .. }) if holder.contains("shared map")), "{error:?}");
        }
        go.store(true, SeqCst);
        map.words(0, 1).unwrap()[0].store(3, SeqCst);
        // What the dead process had stored is in it.
        assert_eq!(map.commit().unwrap(), 2);
        // Nobody who puts an old copy of the sidecar there passes for the process that was killed.
        let [begun, next] = map.copy.sessions();
        assert!(begun == next && begun > 1, "{begun}, {next}");
        map.close().unwrap();
        assert_eq!(committed(&path), [3, 7]);
    });
}

/// What a process said of the file before others committed to it is not done again when it comes to serve.
#[test]
fn a_successor_with_a_trust_option_keeps_committed_bytes() {
    let sides = [Prefer::File, Prefer::Sidecar];
    with_processes_for(this_test!(), tempfile::tempdir, sides, serve, |test, side| {
        let options =
            Options::new().prefer(side).adopt(true).progress(|_| panic!("the heir reports what nobody asked for"));
        let (map, go) = without_a_server(test, &options);
        go.store(true, SeqCst);
        // The dead process had 1 committed, and 7 stored.
        map.rollback().unwrap();
        assert_eq!([0, 512].map(|word| map.words(0, 1024).unwrap()[word].load(SeqCst)), [1, 0]);
        map.words(0, 1).unwrap()[0].store(3, SeqCst);
        assert_eq!(map.commit().unwrap(), 2);
        map.close().unwrap();
        assert_eq!(committed(&test.dir.join("file")), [3, 0]);
    });
}

/// Also when another process comes to serve.
#[test]
fn the_log_size_of_the_first_process_counts_for_all() {
    with_processes(this_test!(), tempfile::tempdir, serve, |test| {
        let (map, go) = without_a_server(test, &Options::new().log_size(1 << 20));
        go.store(true, SeqCst);
        map.grow(4 << 20).unwrap();
        assert!(map.is_owner());
        map.write_at(&vec![5; 4 << 20], 0).unwrap();
        // A log of 1 MiB has no room for it.
        map.commit().unwrap();
        map.close().unwrap();
        assert_eq!(committed(&test.dir.join("file")), [0x0505_0505_0505_0505; 2]);
    });
}

/// A process that takes over and dies before any other knows of it does not keep the next one from taking over.
#[test]
fn sessions_that_heirs_began_are_no_strangers() {
    let copy = block([7, 8], 5);
    assert!(copy.take_over_session([7, 9], 5).unwrap_err().contains("replaced"));
    let begun = 5 + copy.take_over_session([7, 8], 5).unwrap();
    // It died before the session began, or after.
    let again = 5 + copy.take_over_session([7, 8], 5).unwrap();
    let after = again + copy.take_over_session([7, 8], again).unwrap();
    assert!(begun > 6 && again > 6 && after > again + 1);
    for stranger in [4, 6, 7, again + 1, after + 1] {
        let refused = copy.take_over_session([7, 8], stranger).unwrap_err();
        assert!(refused.contains("another process opened it"), "{stranger}");
    }
    assert!(copy.take_over_session([7, 8], after).is_ok());
}
