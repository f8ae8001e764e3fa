//! A word that tells whether a sleeping thread must be woken, so that a thread with work for it usually need not make a
//! system call.
//!
//! # Protocol
//!
//! A thread that creates work [rings](WakeFlag::ring) afterwards, and wakes the sleeper only if the alarm says so.
//! Otherwise the sleeper is awake, and looks once more before it sleeps. The sleeper first [rests](WakeFlag::rest),
//! then looks for work, and sleeps only if there is none. Both exchange the word, so one of the two sees what the
//! other did before: either the sleeper finds the work, or the thread that created it finds that the sleeper rests.

use crate::sys::sync::{AtomicU64, Ordering};

/// At first the sleeper is to be woken.
#[derive(Debug, Default)]
pub(crate) struct WakeFlag {
    /// 1 while nobody need be woken.
    awake: AtomicU64,
}

impl WakeFlag {
    /// Whether the caller, who has made something due, is the one to wake the sleeper.
    #[inline]
    pub(crate) fn notify(&self) -> bool {
        // An exchange also where it changes nothing: a load could be answered before the caller's earlier stores are
        // seen.
        self.awake.swap(1, Ordering::AcqRel) == 0
    }

    /// Says that the caller is about to sleep unless it finds something due from here on.
    pub(crate) fn prepare_sleep(&self) {
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
    fn one_of_several_notifiers_wakes_the_sleeper() {
        let wake_flag = WakeFlag::default();
        assert!(wake_flag.notify());
        assert!(!wake_flag.notify() && !wake_flag.notify());
        wake_flag.prepare_sleep();
        assert!(wake_flag.notify() && !wake_flag.notify());
    }
}
