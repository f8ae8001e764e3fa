//! Everything that a process protects is covered at once, as when the power fails.

use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use untorn::redundancy::{ProtectOptions, Protected, cover_all, cover_on_signal};
use untorn::{EngineKind, Error, Options};
use untorn_testing::{again, sibling};

use crate::common::pattern;
use crate::common::{PAGE, system::SharedMapping};
use crate::fixture::{PAGE_LEN, Place, by_hand, protect_mapping, uncovered};

/// SIGPWR, on all architectures that untorn runs on.
const SIGPWR: i32 = 30;

/// Set in the process that runs one of these tests, which other tests' files are not in.
const ALONE: &str = "UNTORN_TEST_COVERS_ALL";

/// Runs a test again in a process of its own, by a program that is named first; whether this is that process.
fn alone(test: &str, by: &[&str]) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let again = again(test);
    let mut command = Command::new(by[0]);
    command.args(&by[1..]).arg(again.get_program()).args(again.get_args()).env(ALONE, "1");
    for (name, value) in again.get_envs() {
        value.map(|value| command.env(name, value));
    }
    assert!(command.status().unwrap().success());
    false
}

fn covered_by_hand() -> (Place, Protected) {
    let place = Place::new(&pattern(8 * PAGE, 1));
    let protected = by_hand().open(&place.path).unwrap();
    protected.sync().unwrap();
    place.store(&protected, PAGE, b"stored");
    (place, protected)
}

#[test]
fn everything_is_covered_at_once() {
    if !alone(sibling!("everything_is_covered_at_once"), &["env"]) {
        return;
    }
    let files: Vec<_> = (0..20).map(|_| covered_by_hand()).collect();
    let places: Vec<_> = [EngineKind::Reflection, EngineKind::HybridLog].map(|engine| (engine, Place::empty())).into();
    let engines: Vec<_> = places
        .iter()
        .map(|(engine, place)| {
            let options = Options::new().engine(*engine).redundancy(by_hand());
            let file = options.create(&place.path, 40 * PAGE_LEN).unwrap();
            file.write_at(b"written", 5 * PAGE_LEN).unwrap();
            file.sync().unwrap();
            file
        })
        .collect();
    let mapped = Place::new(&pattern(8 * PAGE, 2));
    let mapping = SharedMapping::new(&mapped.path);
    let mapping = protect_mapping(&by_hand(), &mapping).map(|protected| (mapping, protected));
    if let Some((mapping, protected)) = &mapping {
        protected.sync().unwrap();
        mapping.store(3 * PAGE, b"stored");
    }
    let closed = covered_by_hand();
    closed.1.close().unwrap();
    let before = std::fs::read(closed.0.companion()).unwrap();

    let all = cover_all();
    assert!(all.files >= 22 && all.pages >= 22, "{all:?}");
    for (_, protected) in &files {
        assert_eq!(uncovered(protected), 0);
    }
    for file in &engines {
        let coverage = file.coverage().unwrap().unwrap();
        assert_eq!(coverage.uncovered + coverage.in_sidecar, 0);
        assert_eq!(coverage.sidecar.map_or(0, |sidecar| sidecar.uncovered), 0);
    }
    if let Some((_mapping, protected)) = mapping {
        assert_eq!(uncovered(&protected), 0);
        protected.close().unwrap();
    }
    assert_eq!(std::fs::read(closed.0.companion()).unwrap(), before, "a closed file was covered");
    for (place, protected) in files {
        protected.close().unwrap();
        assert_eq!(place.damage(), vec![]);
    }
    engines.into_iter().for_each(|file| file.close().unwrap());
}

#[test]
fn a_file_that_cannot_be_covered_keeps_none_from_it() {
    if !alone(sibling!("a_file_that_cannot_be_covered_keeps_none_from_it"), &["env"]) {
        return;
    }
    let (before, after) = (covered_by_hand(), covered_by_hand());
    let mapped = Place::new(&pattern(8 * PAGE, 3));
    let mapping = SharedMapping::new(&mapped.path);
    let Some(gone) = protect_mapping(&by_hand(), &mapping) else { return };
    gone.sync().unwrap();
    drop(mapping);
    let last = covered_by_hand();
    let all = cover_all();
    let [failure] = &all.failures[..] else { panic!("{all:?}") };
    assert!(failure.to_string().contains(gone.path().to_str().unwrap()), "{failure}");
    assert_eq!((all.files, all.pages), (3, 3));
    for (_, protected) in [before, after, last] {
        assert_eq!(uncovered(&protected), 0);
    }
}

#[test]
fn a_close_and_a_covering_of_all_files_go_together() {
    if !alone(sibling!("a_close_and_a_covering_of_all_files_go_together"), &["env"]) {
        return;
    }
    std::thread::scope(|scope| {
        let (done, is_done) = channel::<()>();
        scope.spawn(move || {
            while is_done.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                cover_all();
            }
        });
        for _ in 0..20 {
            let (place, protected) = covered_by_hand();
            protected.close().unwrap();
            assert_eq!(place.damage(), vec![]);
            assert!(place.coverage().believed);
        }
        drop(done);
    });
}

#[test]
fn a_signal_that_a_thread_takes_is_refused() {
    for (signal, why) in [(SIGPWR, "does not block signal 30"), (9, "9 is not a signal that"), (-1, "-1 is not")] {
        match cover_on_signal(signal, |_| ()) {
            Err(Error::Invalid { what, .. }) => assert!(what.contains(why), "{what}"),
            other => panic!("{other:?}"),
        }
    }
}

/// In a process of its own, in which all threads block the signal.
#[test]
fn a_real_signal_has_everything_covered() {
    if !alone(sibling!("a_real_signal_has_everything_covered"), &["env", "--block-signal=PWR"]) {
        return;
    }
    let hours = Duration::from_secs(3600);
    let place = Place::new(&pattern(8 * PAGE, 4));
    let protected = ProtectOptions::new().period(hours).open(&place.path).unwrap();
    protected.sync().unwrap();
    let (tell, told) = channel();
    let waits = cover_on_signal(SIGPWR, move |all| tell.send((all.files, all.pages)).unwrap()).unwrap();
    let fail = || {
        let sent = Command::new("kill").args(["-PWR", &std::process::id().to_string()]).status().unwrap();
        assert!(sent.success());
    };
    for _ in 0..3 {
        place.store(&protected, PAGE, b"stored");
        assert_eq!(uncovered(&protected), 1);
        fail();
        assert_eq!(told.recv().unwrap(), (1, 1));
        assert_eq!(uncovered(&protected), 0);
    }
    // When nobody waits any more the signal stays pending, as for any program that blocks it.
    drop(waits);
    fail();
    assert!(told.recv().is_err());
    protected.close().unwrap();
    assert_eq!(place.damage(), vec![]);
}
