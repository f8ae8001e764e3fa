//! What the tests share.

use std::sync::{Arc, Mutex};

use untorn::Error;
use untorn::testing::storage::MediumClass;
use untorn_sim::{CrashState, Instant, SimMedium, Step, Verdict};

pub(crate) const BOTH: [MediumClass; 2] = [MediumClass::PersistentMemory, MediumClass::Block];

/// The system's error for a call.
pub(crate) fn errno(instant: &Instant<'_>, code: i32) -> Error {
    Error::io("do as asked with", instant.path, std::io::Error::from_raw_os_error(code))
}

/// Runs something on a machine. Returns its result, and the machine's state before each call that counts, with the
/// name of the call's barrier.
pub(crate) fn watched<T>(
    medium: &SimMedium,
    counts: fn(Step) -> bool,
    run: impl FnOnce() -> T,
) -> (T, Vec<(&'static str, CrashState)>) {
    let states = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&states);
    medium.set_hook(Box::new(move |instant| {
        if counts(instant.step) {
            let name = instant.barrier.map_or("", |barrier| barrier.name());
            seen.lock().unwrap().push((name, instant.crash_state()));
        }
        Verdict::Allow
    }));
    let result = run();
    medium.clear_hook();
    let states = std::mem::take(&mut *states.lock().unwrap());
    (result, states)
}

/// The machines after two power cuts: one that takes nothing, and one that takes all it can.
pub(crate) fn power_cuts(state: &CrashState) -> [SimMedium; 2] {
    [state.everything(), state.nothing()].map(|choice| state.image(&choice).boot())
}
