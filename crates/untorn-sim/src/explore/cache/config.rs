//! Configurations and cases of the exploration of write caches, and their tokens.

use std::fmt;
use std::str::FromStr;

use untorn::Durability;
use untorn::testing::storage::{Barrier, MediumClass};

use super::super::Target;
use super::super::search::Configuration;
use super::super::tokens::{MEDIA, value_of, word_of, words};

/// One point of the space of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::explore) struct Config {
    pub(super) medium: MediumClass,
    pub(super) durability: Durability,
    pub(super) mode: Mode,
}

/// Bytes of a chunk of the spill file.
pub(super) const CHUNK: u64 = 128;

/// How the files are behind the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Cached,
    /// Written through.
    Through,
    /// Changed in epochs.
    Atomic,
    /// No log at all: it must be convicted.
    Canary,
}

const MODES: &[(&str, Mode)] = &[
    ("cache", Mode::Cached),
    ("cache-through", Mode::Through),
    ("cache-atomic", Mode::Atomic),
    ("no-cache", Mode::Canary),
];
const DURABILITIES: &[(&str, Durability)] = &[("write", Durability::PerWrite), ("fsync", Durability::PerCommit)];

impl Config {
    pub(super) fn is_atomic(&self) -> bool {
        self.mode == Mode::Atomic
    }

    /// From which length on a write goes to the spill file, if one does.
    pub(super) fn spills_from(&self) -> Option<u64> {
        use {Durability::PerCommit, Durability::PerWrite, MediumClass::Block, MediumClass::PersistentMemory};
        match (self.medium, self.durability) {
            (PersistentMemory, PerWrite) | (Block, PerCommit) => Some(CHUNK).filter(|_| self.is_atomic()),
            _ => None,
        }
    }

    pub(super) fn is_through(&self) -> bool {
        self.mode == Mode::Through
    }

    pub(super) fn is_canary(&self) -> bool {
        self.mode == Mode::Canary
    }
}

impl Configuration for Config {
    const SALT: u64 = 0x6361_6368;
    const STATES: u64 = 1500;

    fn has_mode(word: &str) -> bool {
        value_of(MODES, word).is_ok()
    }

    fn barriers(&self) -> Vec<Barrier> {
        untorn::testing::cache_barriers()
    }

    fn all(_: Target, media: &[MediumClass], canary: bool) -> Vec<Config> {
        let all = [Durability::PerWrite, Durability::PerCommit];
        let durabilities = if canary { &all[..1] } else { &all };
        let modes: &[Mode] = if canary { &[Mode::Canary] } else { &[Mode::Cached, Mode::Through, Mode::Atomic] };
        let of = |&mode| {
            let of = move |&durability| media.iter().map(move |&medium| Config { medium, durability, mode });
            durabilities.iter().flat_map(of)
        };
        modes.iter().flat_map(of).collect()
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = word_of(MODES, &self.mode);
        write!(f, "{}/{mode}/{}", word_of(MEDIA, &self.medium), word_of(DURABILITIES, &self.durability))
    }
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let [medium, mode, durability] = words(text)?;
        let mode = value_of(MODES, mode)?;
        let durability = value_of(DURABILITIES, durability)?;
        Ok(Config { medium: value_of(MEDIA, medium)?, durability, mode })
    }
}
