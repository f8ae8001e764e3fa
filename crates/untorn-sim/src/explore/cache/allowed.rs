//! The states that a crash may leave of files behind a log.

use super::super::finding::{Found, differs};
use super::ops::{Grown, NAMES, State};

/// The states that a crash may leave.
#[derive(Clone, Debug, Hash)]
pub(in crate::explore) struct Allowed {
    pub(super) states: Vec<State>,
    /// No log at all.
    pub(super) missing: bool,
    /// A file that is being written to past the log, as it was and as it will be: each byte may be either.
    pub(super) torn: Option<(u8, Vec<u8>, Vec<u8>)>,
    /// Each byte may be that of any state, or 0 where a write that was not synced made the file longer.
    pub(super) mixed: bool,
    /// The ranges by which such writes made files longer.
    pub(super) grown: Grown,
    /// Something is being done to a file or to a name without the log.
    pub(super) direct: bool,
}

impl Allowed {
    pub(super) fn one(state: &State) -> Self {
        Allowed::of(vec![state.clone()])
    }

    pub(super) fn of(states: Vec<State>) -> Self {
        Allowed { states, missing: false, torn: None, mixed: false, grown: Grown::new(), direct: false }
    }

    pub(super) fn check(&self, when: &str, found: &State) -> Found<()> {
        if self.states.contains(found) || self.may_be_torn(found) || self.mixed && self.may_be_mixed(found) {
            return Ok(());
        }
        let allowed: Vec<String> = self.states.iter().map(show).collect();
        differs(format!("{when} differs from every allowed state: {}, not {}", show(found), allowed.join(" or ")))
    }

    fn may_be_mixed(&self, found: &State) -> bool {
        let names = |state: &State| state.keys().copied().collect::<Vec<u8>>();
        let mixes = |name: &u8, content: &Vec<u8>| {
            let torn = self.torn.as_ref().filter(|(of, ..)| of == name);
            let longer = torn.map(|(_, before, after)| before.len()..after.len());
            let grown = self.grown.get(name).into_iter().flatten().cloned().chain(longer);
            let zero = |n: usize| grown.clone().any(|range| range.contains(&n));
            let torn = torn.into_iter().flat_map(|(_, before, after)| [before, after]);
            let all: Vec<&Vec<u8>> = self.states.iter().filter_map(|state| state.get(name)).chain(torn).collect();
            let shortest = all.iter().map(|bytes| bytes.len()).min().unwrap_or(0);
            let longest = all.iter().map(|bytes| bytes.len()).max().unwrap_or(0);
            (shortest..=longest).contains(&content.len())
                && content
                    .iter()
                    .enumerate()
                    .all(|(n, byte)| all.iter().any(|bytes| bytes.get(n) == Some(byte)) || *byte == 0 && zero(n))
        };
        self.states.iter().any(|state| names(state) == names(found))
            && found.iter().all(|(name, content)| mixes(name, content))
    }

    fn may_be_torn(&self, found: &State) -> bool {
        let Some((name, before, after)) = &self.torn else { return false };
        let without =
            |state: &State| state.iter().filter(|(other, _)| *other != name).map(|(name, _)| *name).collect::<Vec<_>>();
        let Some(content) = found.get(name) else { return false };
        let others = |state: &State| {
            without(state) == without(found)
                && state.iter().all(|(other, bytes)| other == name || found[other] == *bytes)
        };
        let byte = |n: usize, byte: u8| byte == before.get(n).copied().unwrap_or(0) || Some(&byte) == after.get(n);
        (before.len()..=after.len()).contains(&content.len())
            && content.iter().enumerate().all(|(n, &found)| byte(n, found))
            && self.states.iter().any(others)
    }
}

/// Files by name, each as runs of one byte.
pub(super) fn show(state: &State) -> String {
    let runs = |bytes: &Vec<u8>| {
        let runs = bytes.chunk_by(|one, other| one == other).map(|run| format!("{}*{}", run.len(), run[0]));
        runs.collect::<Vec<_>>().join(" ")
    };
    let files = state.iter().map(|(name, bytes)| format!("{}: [{}]", NAMES[usize::from(*name)], runs(bytes)));
    format!("{{{}}}", files.collect::<Vec<_>>().join(", "))
}
