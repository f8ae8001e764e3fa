//! The kinds of damage, and the parts they hit.

use std::fmt;

use untorn::EngineKind;
use untorn_sim::Rng;

/// The damaged part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A page of the data file.
    Data,
    /// One copy of a table block, with the checksums.
    Checksums,
    /// The parity page of a stripe.
    Parity,
    /// One copy of the superblock.
    Superblock,
    /// A page of the data file of the reflection engine.
    Reflection,
    /// A page of the data file of the hybrid log.
    HybridLog,
    /// A page of the sidecar of the reflection engine, with half of the slices of each page of the file valid there.
    Sidecar,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 7] =
        [Part::Data, Part::Checksums, Part::Parity, Part::Superblock, Part::Reflection, Part::HybridLog, Part::Sidecar];

    /// The file's engine, if any.
    pub(super) fn engine(self) -> Option<EngineKind> {
        match self {
            Part::Reflection | Part::Sidecar => Some(EngineKind::Reflection),
            Part::HybridLog => Some(EngineKind::HybridLog),
            _ => None,
        }
    }

    /// The file that it belongs to.
    pub(super) fn of(self) -> Of {
        match self {
            Part::Data | Part::Reflection | Part::HybridLog => Of::Data,
            Part::Checksums | Part::Parity | Part::Superblock => Of::Companion,
            Part::Sidecar => Of::Sidecar,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Part::Data => "data",
            Part::Checksums => "checksums",
            Part::Parity => "parity",
            Part::Superblock => "superblock",
            Part::Reflection => "reflection",
            Part::HybridLog => "hybrid-log",
            Part::Sidecar => "sidecar",
        })
    }
}

/// One of the files of a protected file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Data,
    Companion,
    Sidecar,
    SidecarCompanion,
}

/// The kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A bit is flipped.
    Flip,
    /// An older version reappears.
    Lost,
    /// Another page was written here.
    Misdirected,
    /// It reads as zeros.
    Zeroed,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Flip, Kind::Lost, Kind::Misdirected, Kind::Zeroed];

    /// The bytes that the device returns instead of `here`; `older` are those before the last write, `other` those of
    /// any other page.
    pub(super) fn of(self, here: &[u8], older: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
        let mut bytes = here.to_vec();
        match self {
            Kind::Flip => {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << rng.below(8);
            }
            Kind::Lost => bytes.copy_from_slice(older),
            Kind::Misdirected => {
                let len = bytes.len().min(other.len());
                bytes[..len].copy_from_slice(&other[..len]);
            }
            Kind::Zeroed => bytes.fill(0),
        }
        bytes
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Flip => "flip",
            Kind::Lost => "lost",
            Kind::Misdirected => "misdirected",
            Kind::Zeroed => "zeroed",
        })
    }
}
