//! Damage on its way to the program's callback.
//!
//! A pass, an announcement or a verified read finds damage under locks, in the middle of a program's store or load.
//! There it only records it; another thread, which holds no lock, [reports](super::Threads) it.

use std::sync::{Mutex, PoisonError};

use super::{Inner, Redundancy};
use crate::engine::redundancy::DamageSender;
use crate::options::Damage;
use crate::storage::Medium;

/// What is noted, of one file or of its sidecar.
#[derive(Default)]
pub(super) struct DamageNotifier(Mutex<To>);

enum To {
    /// It is being opened, and who will listen is not known yet.
    Waiting(Vec<Damage>),
    Listener(DamageSender),
    /// Nobody asked.
    Nobody,
}

impl Default for To {
    fn default() -> Self {
        To::Waiting(Vec::new())
    }
}

impl DamageNotifier {
    pub(super) fn notify(&self, damage: Damage) {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            To::Waiting(waiting) => waiting.push(damage),
            To::Listener(listener) => listener.send(damage),
            To::Nobody => {}
        }
    }

    /// From here on this is where it goes, with all that was noted before.
    pub(super) fn set_listener(&self, listener: Option<DamageSender>) {
        let to = listener.map_or(To::Nobody, To::Listener);
        let before = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), to);
        if let To::Waiting(waiting) = before {
            waiting.into_iter().for_each(|damage| self.notify(damage));
        }
    }

    /// What was noted and went nowhere.
    fn waiting(&self) -> Vec<Damage> {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            To::Waiting(waiting) => std::mem::take(waiting),
            _ => Vec::new(),
        }
    }
}

impl<M: Medium> Redundancy<M> {
    /// Notes damage there from now on: a file keeps its listener when another length gives it other redundancy.
    pub(super) fn notify_through(&mut self, notifier: &std::sync::Arc<DamageNotifier>) {
        self.notifier.waiting().into_iter().for_each(|damage| notifier.notify(damage));
        self.notifier = std::sync::Arc::clone(notifier);
    }

    /// Notes a damaged page that stays as it is for now: once, until it is stored to or given back.
    pub(super) fn note_damaged(&self, inner: &mut Inner, page: u64) {
        if inner.notified.insert(page) {
            self.notify_page(page);
        }
    }

    /// Notes a damaged page.
    pub(super) fn notify_page(&self, page: u64) {
        let damage = Damage::Page(self.range_of(page));
        self.notifier.notify(if self.of_sidecar { damage.in_sidecar(self.pages.begins_at()) } else { damage });
    }
}
