//! Programs that commit by the VFS in each journal mode, and are killed or lose their power.

use crate::programs::outcome::Mode;
use crate::programs::victims::Victim;

const fn vfs(name: &'static str, program: &'static str, judge: &'static str, in_flight: u64) -> Victim {
    Victim { name, mode: Mode::Vfs, program, judge, syncs: true, in_flight }
}

macro_rules! victim {
    ($name:literal, $environment:literal, $mode:literal, $processes:literal) => {
        vfs(
            $name,
            concat!($environment, "exec \"$PYTHON\" -B \"$PROGRAMS/kill_sqlite_vfs.py\" ", $mode, " ", $processes),
            concat!($environment, "\"$PYTHON\" -B \"$PROGRAMS/kill_sqlite_vfs.py\" ", $mode, " ", $processes, " judge"),
            $processes,
        )
    };
}

pub(super) const STOCK: &[Victim] = &[
    victim!("sqlite-default-1", "", "DEFAULT", 1),
    victim!("sqlite-default-4", "", "DEFAULT", 4),
    victim!("sqlite-memory-1", "", "MEMORY", 1),
    victim!("sqlite-memory-4", "", "MEMORY", 4),
    victim!("sqlite-wal-1", "", "WAL", 1),
    victim!("sqlite-wal-4", "", "WAL", 4),
    victim!("sqlite-delete-1", "", "DELETE", 1),
    victim!("sqlite-delete-4", "", "DELETE", 4),
];

/// The same with SQLite built for atomic writes in a batch.
pub(super) const BATCH_ATOMIC: &[Victim] = &[
    victim!("sqlite-batch-atomic-1", "LD_PRELOAD=\"$BATCH_ATOMIC\" ", "DELETE", 1),
    victim!("sqlite-batch-atomic-4", "LD_PRELOAD=\"$BATCH_ATOMIC\" ", "DELETE", 4),
];

/// A VFS without flushes: it must lose something in a power cut.
pub(super) const UNFLUSHED: Victim =
    Victim { mode: Mode::Bare, ..victim!("sqlite-unflushed", "FLUSHES=none ", "DEFAULT", 1) };
