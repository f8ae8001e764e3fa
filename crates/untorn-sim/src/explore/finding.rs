//! Findings: how they come about, and what they say.

use std::cell::Cell;
use std::fmt::Display;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use untorn::redundancy::Damage;

use super::companion::page_of;
use super::recorder::Point;
use super::report::{Breach, Violation};
use crate::choice::Choice;
use crate::schedule;

/// A wrong state, on its way up to the case that reports it.
pub(super) struct Finding {
    breach: Breach,
    what: String,
    /// Operations and crashes, from the last to the first.
    pub(super) operations: Vec<String>,
    instant: String,
    choice: String,
}

pub(super) type Found<T> = Result<T, Box<Finding>>;

impl Finding {
    pub(super) fn new(what: String) -> Box<Self> {
        Finding::of(Breach::Other, what)
    }

    fn of(breach: Breach, what: String) -> Box<Self> {
        Box::new(Finding { breach, what, operations: Vec::new(), instant: String::new(), choice: String::new() })
    }

    /// The same finding, in the image that this choice leaves of a crash at this point.
    pub(super) fn at(mut self: Box<Self>, point: &Point, choice: &Choice) -> Box<Self> {
        if self.instant.is_empty() {
            self.instant = point.describe();
            self.choice = point.state.describe(choice);
            if !self.operations.is_empty() {
                self.operations.push("— the crash".to_owned());
            }
        } else {
            let kept = point.state.describe(choice);
            let kept = kept.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n");
            self.operations.push(format!("— crash {}; kept of the pending writes:\n{kept}", point.describe()));
        }
        self
    }

    /// The same finding, on a machine all of whose processes were killed at this point.
    pub(super) fn killed(mut self: Box<Self>, point: &Point) -> Box<Self> {
        self.operations.push(format!("— all processes killed, {}", point.describe()));
        self
    }

    /// The parts that a report shows of it.
    pub(super) fn violation(self, replay: String, config: String) -> Violation {
        let Finding { breach, what: finding, operations, instant, choice } = self;
        let operations = operations.into_iter().rev().collect();
        Violation { replay, config, operations, instant, choice, breach, finding }
    }
}

/// The finding that says this.
pub(super) fn wrong<T>(what: impl Into<String>) -> Found<T> {
    Err(Finding::new(what.into()))
}

/// The finding that a content is none that is allowed.
pub(super) fn differs<T>(what: String) -> Found<T> {
    Err(Finding::of(Breach::Content, what))
}

/// The finding that redundancy accuses what is as it should be.
pub(super) fn accused<T>(damage: &Damage) -> Found<T> {
    let what = match damage {
        Damage::Page(range) => format!("page {} is reported as damaged, but was never damaged", page_of(range)),
        Damage::Unknown(range) => {
            let page = page_of(range);
            format!("page {page} is reported as modified outside untorn, but all stores were announced")
        }
        Damage::Table { offset } => {
            format!("the table at offset {offset} is reported as damaged, but the file was closed cleanly")
        }
        Damage::Parity { stripe } => {
            format!("the parity of stripe {stripe} does not match its pages, which are reported as covered")
        }
        Damage::SidecarPage(range) | Damage::SidecarUnknown(range) => {
            format!("byte {} of the sidecar is reported as damaged, but was never damaged", range.offset)
        }
        Damage::SidecarParity { stripe } => format!(
            "the parity of stripe {stripe} of the sidecar does not match its pages, which are reported as covered"
        ),
        other => format!("{other:?} is reported, but nothing was damaged"),
    };
    Err(Finding::of(Breach::Accusation, what))
}

thread_local! {
    static GUARDED: Cell<u32> = const { Cell::new(0) };
}

/// Panics of engines are findings, not noise: they are caught and reported.
pub(super) fn hush() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // A panic of this thread would become a finding.
            let is_guarded = GUARDED.get() > 0 || schedule::is_virtual();
            if !is_guarded {
                usual(info);
            }
        }));
    });
}

/// Runs engine code and turns a panic into a finding.
pub(super) fn guarded<T>(what: impl Display, run: impl FnOnce() -> T) -> Found<T> {
    GUARDED.set(GUARDED.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(GUARDED.get() - 1);
    result.map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "no message".to_owned());
        Finding::new(format!("{what} panicked: {text}"))
    })
}

/// Runs engine code that must not fail.
pub(super) fn tried<T>(what: impl Display, run: impl FnOnce() -> untorn::Result<T>) -> Found<T> {
    guarded(&what, run)?.map_err(|error| Finding::new(format!("{what} failed: {error}")))
}
