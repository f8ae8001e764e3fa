//! Every interleaving of a reader and a thread that makes the file longer.

use loom::thread;

use super::*;
use crate::sys::sync::{Arc, model};

/// The window at address `n << 32` covers `10 * n` bytes.
const FIRST: u64 = 1 << 32;
const SECOND: u64 = 2 << 32;

fn read_while(name: &str, grow: fn(&Limits)) {
    model(name, None, move || {
        let limits = Arc::new(Limits::new(FIRST));
        limits.set(10, 10);
        let other = Arc::clone(&limits);
        let grower = thread::spawn(move || grow(&other));
        for (offset, found) in [(15, limits.load(15, 5)), (15, limits.store(15, 5)), (5, limits.load(5, 5))] {
            let window = found.map(|at| (at as usize as u64 - offset) >> 32);
            assert!(offset == 5 || window != Some(1), "the window is shorter than the limit");
            assert!(offset != 5 || window.is_some());
        }
        grower.join().unwrap();
    });
}

#[test]
fn a_reader_finds_a_window_that_covers_its_limit() {
    read_while("limits: one grows the file, one reads", |limits| {
        limits.move_to(SECOND);
        limits.set(20, 20);
    });
}

/// The mutant: the limit before the window.
#[test]
#[should_panic(expected = "shorter than the limit")]
fn a_limit_shown_before_its_window_is_convicted() {
    read_while("limits: the mutant", |limits| {
        limits.set(20, 20);
        limits.move_to(SECOND);
    });
}
