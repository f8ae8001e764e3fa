//! Who hears of damage: whoever asked to be told, whatever came upon it, and whoever listens to events.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use untorn::redundancy::{Damage, ProtectOptions, Protected, ScrubFindings, VerifyReads};
use untorn::{AtomicFile, Error, Options};

use crate::common::{PAGE, pattern};
use crate::fixture::{self, Place, at_once, by_hand};

const PAGES: usize = 12;

fn made() -> Place {
    Place::new(&pattern(PAGES * PAGE, 1))
}

fn rot(place: &Place, page: usize) {
    place.rot(page * PAGE + 9, b"damage");
}

fn page(number: usize) -> Damage {
    Damage::Page(fixture::page(number))
}

/// Options by which nothing looks for damage by itself, and what the callback hears of.
fn listening() -> (ProtectOptions, Receiver<Damage>) {
    let (sender, heard) = channel();
    (by_hand().on_damage(move |damage| sender.send(*damage).unwrap_or_default()), heard)
}

#[test]
fn a_pass_tells_of_damage_that_it_cannot_repair_and_of_it_once() {
    let place = made();
    let (options, heard) = listening();
    let protected = options.open(&place.path).unwrap();
    protected.sync().unwrap();
    rot(&place, 1);
    for round in 0..3 {
        place.store(&protected, 2 * PAGE, &[round; 5]);
        protected.sync().unwrap();
    }
    assert_eq!(heard.recv().unwrap(), page(1));
    // What is stored anew and damaged anew is told of anew.
    place.store(&protected, PAGE, &[3; PAGE]);
    protected.sync().unwrap();
    assert_eq!(protected.coverage().unwrap().uncovered, 0);
    rot(&place, 1);
    place.store(&protected, 3 * PAGE, b"beside");
    protected.sync().unwrap();
    protected.close().unwrap();
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [page(1)]);
}

#[test]
fn an_announcement_reports_repaired_and_lost_pages() {
    let place = made();
    let (options, heard) = listening();
    let protected = options.period(Duration::ZERO).open(&place.path).unwrap();
    rot(&place, 6);
    place.store(&protected, 6 * PAGE + 100, b"stored");
    assert_eq!(heard.recv().unwrap(), page(6));
    rot(&place, 0);
    rot(&place, 1);
    for _ in 0..2 {
        assert!(matches!(protected.announce(5..10), Err(Error::Corrupt { .. })));
    }
    protected.close().unwrap();
    // The pass at the end comes upon nothing: no page is stored to.
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [page(0)]);
}

#[test]
fn a_read_that_is_verified_tells_whether_it_repairs_or_fails() {
    for engine in untorn::testing::ENGINES {
        for verify in [VerifyReads::Fail, VerifyReads::Repair] {
            let place = made();
            let (protect, heard) = listening();
            let options = Options::new().engine(engine).redundancy(protect).verify_reads(verify);
            let file = options.open(&place.path).unwrap();
            file.sync_redundancy().unwrap();
            rot(&place, 5);
            let mut found = [0; 10];
            for _ in 0..2 {
                assert_eq!(file.read_at(&mut found, 5 * PAGE as u64).is_ok(), verify == VerifyReads::Repair);
            }
            file.repair().unwrap();
            file.close().unwrap();
            assert_eq!(heard.try_iter().collect::<Vec<_>>(), [page(5)], "{engine}, {verify:?}");
        }
    }
}

#[test]
fn a_file_that_gets_another_length_keeps_who_is_told() {
    let place = made();
    let (protect, heard) = listening();
    let options = Options::new().redundancy(protect).verify_reads(VerifyReads::Repair);
    let file = options.open(&place.path).unwrap();
    file.sync_redundancy().unwrap();
    file.resize(20 * PAGE as u64).unwrap();
    rot(&place, 5);
    file.read_at(&mut [0; 10], 5 * PAGE as u64).unwrap();
    file.close().unwrap();
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [page(5)]);
}

#[test]
fn findings_of_the_last_scrub_survive_a_resize() {
    let place = made();
    let options = Options::new().redundancy(by_hand());
    let file = options.open(&place.path).unwrap();
    file.sync_redundancy().unwrap();
    assert_eq!(file.coverage().unwrap().unwrap().found, None);
    rot(&place, 5);
    let mut seen = Vec::new();
    let progress = &mut |done, of| {
        seen.push((done, of));
        true
    };
    assert_eq!(file.scrub_with(Some(u64::MAX), progress).unwrap().damage, [page(5)]);
    assert_eq!(seen.last(), Some(&((PAGES * PAGE) as u64, (PAGES * PAGE) as u64)));
    let found = |file: &AtomicFile| file.coverage().unwrap().unwrap().found.unwrap();
    let what = found(&file);
    assert_eq!((what.damaged, what.unknown, what.redundancy), (1, 0, 0));
    // One that is ended found nothing out.
    assert!(file.scrub_with(None, &mut |_, _| false).is_ok());
    file.resize(20 * PAGE as u64).unwrap();
    assert_eq!(found(&file), what);
    file.repair().unwrap();
    file.scrub().unwrap();
    assert_eq!(found(&file), ScrubFindings::default());
    assert_eq!(file.coverage().unwrap().unwrap().scrubbing, None);
    file.close().unwrap();
}

#[test]
fn a_damage_callback_may_use_the_file() {
    let place = made();
    let (sender, heard) = channel();
    let handle: Arc<OnceLock<Weak<Protected>>> = Arc::default();
    let within = Arc::clone(&handle);
    let options = by_hand().on_damage(move |_| {
        let protected = within.get().and_then(Weak::upgrade).unwrap();
        let lost = protected.coverage().unwrap().lost;
        // It must not be the last.
        drop(protected);
        sender.send(lost).unwrap();
    });
    let protected = Arc::new(options.open(&place.path).unwrap());
    handle.set(Arc::downgrade(&protected)).unwrap();
    protected.sync().unwrap();
    rot(&place, 1);
    place.store(&protected, 2 * PAGE, b"stored");
    protected.sync().unwrap();
    assert_eq!(heard.recv().unwrap(), [1]);
    Arc::into_inner(protected).unwrap().close().unwrap();
}

/// Keeps events of errors and warnings as text.
struct Events;

static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn events() -> MutexGuard<'static, Vec<String>> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Events).unwrap());
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        EVENTS.lock().unwrap_or_else(PoisonError::into_inner).push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The events about a file that have all of these words.
fn about(path: &Path, words: &[&str]) -> usize {
    let path = path.display().to_string();
    let has_all = |event: &&String| event.contains(&path) && words.iter().all(|word| event.contains(word));
    events().iter().filter(has_all).count()
}

#[test]
fn damage_is_an_event_whatever_comes_upon_it() {
    drop(events());
    let place = made();
    let (options, heard) = listening();
    let protected = options.scrub_every(Duration::from_millis(1)).open(&place.path).unwrap();
    protected.sync().unwrap();
    rot(&place, 7);
    assert_eq!(heard.recv().unwrap(), page(7));
    assert!(about(&place.path, &["ERROR", "damage=Page", &format!("offset: {}", 7 * PAGE)]) > 0);
    assert_eq!(about(&place.path, &["parity cannot rebuild it"]), 0);
    place.store(&protected, 6 * PAGE, b"beside");
    protected.sync().unwrap();
    assert_eq!(about(&place.path, &["ERROR", "page=7", "parity cannot rebuild it"]), 1);
    drop(protected);
    let place = made();
    let protected = at_once().open(&place.path).unwrap();
    rot(&place, 2);
    place.store(&protected, 2 * PAGE + 100, b"stored");
    assert_eq!(about(&place.path, &["WARN", "page=2", "repaired a damaged page"]), 1);
    protected.close().unwrap();
}
