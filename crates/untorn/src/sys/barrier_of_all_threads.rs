//! A barrier that all running threads of the process execute at once. Source: `membarrier(2)`, Linux 4.14.

use std::io;

use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

use super::FirstUse;

/// Whether the kernel has it.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: FirstUse<bool> = FirstUse::new();
    *AVAILABLE.get(|| membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED))
}

/// Executes it. The first time in a process it costs milliseconds.
///
/// # Errors
/// Those of `membarrier(2)`: a filter of system calls may refuse it.
pub(crate) fn execute() -> io::Result<()> {
    // Registering again does nothing.
    membarrier(MembarrierCommand::RegisterPrivateExpedited)?;
    Ok(membarrier(MembarrierCommand::PrivateExpedited)?)
}
