//! A word that tells whether somebody who sleeps has to be woken, so that whoever finds work for it mostly need not.
//!
//! # Protocol
//! Whoever makes something due [rings](Alarm::ring) afterwards, and wakes the sleeper only if the alarm says so: else the
//! sleeper is up, and looks once more before it lies down. The sleeper [rests](Alarm::rest) first, then looks whether anything
//! is due, and sleeps only if nothing is. Both exchange the word, so of the two one sees what the other did before: either
//! the sleeper finds what is due, or whoever made it due finds that it rests.

use crate::sys::sync::{AtomicU64, Ordering};

/// At first the sleeper is to be woken.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    /// 1 while nobody need be woken.
    awake: AtomicU64,
}

impl Alarm {
    /// Whether the caller, who has made something due, is the one to wake the sleeper.
    #[inline]
    pub(crate) fn ring(&self) -> bool {
        // An exchange also where it changes nothing: a load could be answered before the caller's earlier stores are seen.
        self.awake.swap(1, Ordering::AcqRel) == 0
    }

    /// Says that the caller is about to sleep unless it finds something due from here on.
    pub(crate) fn rest(&self) {
        // Not a store: the loads that tell whether anything is due could then be answered before it is seen.
        self.awake.swap(0, Ordering::AcqRel);
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_wakes_who_rests() {
        let alarm = Alarm::default();
        assert!(alarm.ring());
        assert!(!alarm.ring() && !alarm.ring());
        alarm.rest();
        assert!(alarm.ring() && !alarm.ring());
    }
}
