//! Every interleaving of those who make something due and one who is about to sleep.

use loom::thread;

use super::*;
use crate::sys::sync::{Arc, model};

#[derive(Default)]
struct Sleeper {
    wake_flag: WakeFlag,
    /// Things due, of several kinds.
    due: [AtomicU64; 2],
}

impl Sleeper {
    /// Makes something due. Whether this thread wakes the sleeper.
    fn make_due(&self, kind: usize) -> bool {
        self.due[kind].store(1, Ordering::Relaxed);
        self.wake_flag.notify()
    }

    /// Which things are due when the sleeper looks for the last time before it sleeps.
    fn look_and_sleep(&self) -> [bool; 2] {
        self.wake_flag.prepare_sleep();
        [0, 1].map(|kind| self.due[kind].load(Ordering::Relaxed) != 0)
    }
}

#[test]
fn due_work_is_found_or_wakes_the_sleeper() {
    model("alarm: one makes something due, one lies down", None, || {
        let sleeper = Arc::new(Sleeper::default());
        // It is up, after its last round.
        assert!(sleeper.wake_flag.notify());
        let other = Arc::clone(&sleeper);
        let maker = thread::spawn(move || other.make_due(0));
        let found = sleeper.look_and_sleep();
        let woken = maker.join().unwrap();
        assert!(found[0] || woken, "it sleeps, and something is due");
    });
}

#[test]
fn work_of_two_notifiers_is_found_or_wakes_the_sleeper() {
    model("alarm: two make something due, one lies down twice", Some(3), || {
        let sleeper = Arc::new(Sleeper::default());
        assert!(sleeper.wake_flag.notify());
        let makers = [0, 1].map(|kind| {
            let other = Arc::clone(&sleeper);
            thread::spawn(move || other.make_due(kind))
        });
        let mut found = sleeper.look_and_sleep();
        if found.contains(&true) {
            // A round for what it found, and again.
            found = sleeper.look_and_sleep();
        }
        let woken = makers.map(|maker| maker.join().unwrap());
        assert!(woken.contains(&true) || found == [true, true], "it sleeps, and something is due: {found:?} {woken:?}");
    });
}
