//! Writing CPU cache lines back to persistent memory, and the fence that orders it.
//!
//! # Safety
//! Cache line write-back and fences change no memory contents. The write-back instructions need a mapped address, which
//! the callers of [`flush_lines`] vouch for.
#![allow(unsafe_code)]

use std::fmt;
use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// How this machine writes a cache line back to persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WriteBack {
    /// The caches themselves are in the persistence domain (eADR): a store is durable once it is globally visible.
    Nothing = 1,
    /// CLWB: writes back and may keep the line.
    Clwb,
    /// CLFLUSHOPT: writes back and drops the line.
    Clflushopt,
    /// CLFLUSH: as CLFLUSHOPT, one line after the other.
    Clflush,
}

impl fmt::Display for WriteBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WriteBack::Nothing => "none needed (eADR)",
            WriteBack::Clwb => "clwb",
            WriteBack::Clflushopt => "clflushopt",
            WriteBack::Clflush => "clflush",
        })
    }
}

/// The chosen [`WriteBack`], 0 before the first use.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// The write-back method of this machine, detected once.
#[inline]
pub fn write_back() -> WriteBack {
    match CHOSEN.load(Ordering::Relaxed) {
        1 => WriteBack::Nothing,
        2 => WriteBack::Clwb,
        3 => WriteBack::Clflushopt,
        4 => WriteBack::Clflush,
        _ => choose(),
    }
}

/// Adopts the method that another process on this machine detected. An unknown number changes nothing.
pub fn adopt(found: u64) {
    if let 1..=4 = found {
        CHOSEN.store(found as u8, Ordering::Relaxed);
    }
}

#[cold]
fn choose() -> WriteBack {
    let chosen = if eadr() { WriteBack::Nothing } else { best_instruction() };
    CHOSEN.store(chosen as u8, Ordering::Relaxed);
    chosen
}

/// Whether the platform reports that its CPU caches survive a power cut. All regions must report it, because the region
/// of a file is not known here. Source: the kernel's `Documentation/ABI/testing/sysfs-bus-nvdimm`,
/// `persistence_domain`.
pub fn eadr() -> bool {
    static EADR: OnceLock<bool> = OnceLock::new();
    *EADR.get_or_init(|| {
        let Ok(devices) = fs::read_dir("/sys/bus/nd/devices") else { return false };
        let regions = devices.flatten().filter(|device| device.file_name().to_string_lossy().starts_with("region"));
        let domains: Vec<_> =
            regions.map(|region| fs::read_to_string(region.path().join("persistence_domain"))).collect();
        !domains.is_empty() && domains.iter().all(|domain| domain.as_ref().is_ok_and(|d| d.trim() == "cpu_cache"))
    })
}

/// The best instruction of this CPU. Source: Intel SDM volume 2, CPUID leaf 7, EBX bits 23 and 24.
#[cfg(target_arch = "x86_64")]
fn best_instruction() -> WriteBack {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Newer compilers know these two as safe; the oldest supported one does not.
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 CPU has CPUID.
    let leaves = unsafe { __cpuid(0) }.eax;
    if leaves < 7 {
        return WriteBack::Clflush;
    }
    #[allow(unused_unsafe)]
    // SAFETY: as above, and leaf 7 exists.
    let features = unsafe { __cpuid_count(7, 0) }.ebx;
    match features {
        _ if features & (1 << 24) != 0 => WriteBack::Clwb,
        _ if features & (1 << 23) != 0 => WriteBack::Clflushopt,
        // CLFLUSH came with SSE2, which x86-64 includes.
        _ => WriteBack::Clflush,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn best_instruction() -> WriteBack {
    // No medium of this architecture asks for lines to be written back.
    WriteBack::Nothing
}

/// Starts writing back every cache line that `len` bytes at `address` touch. A later [`fence`] completes it.
///
/// # Safety
/// The range is mapped.
#[inline]
pub unsafe fn flush_lines(address: *const u8, len: usize) {
    // SAFETY: handed on from the caller.
    unsafe { flush_lines_with(write_back(), address, len) }
}

/// [`flush_lines`] in a given way.
///
/// # Safety
/// The range is mapped, and the CPU has the instruction.
#[inline]
unsafe fn flush_lines_with(how: WriteBack, address: *const u8, len: usize) {
    if len == 0 || how == WriteBack::Nothing {
        return;
    }
    let lead = address as usize % LINE;
    let first = address.wrapping_sub(lead);
    for line in (0..lead + len).step_by(LINE) {
        // SAFETY: the line contains at least one byte of the range, so it is mapped: pages are made of whole lines.
        unsafe { flush_line(how, first.wrapping_add(line)) }
    }
}

/// # Safety
/// The address is mapped, and the CPU has the instruction.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn flush_line(how: WriteBack, line: *const u8) {
    use std::arch::asm;
    match how {
        WriteBack::Nothing => {}
        // SAFETY: writes a mapped line back and changes no byte. Without `nomem` the compiler keeps the stores before
        // it before it.
        WriteBack::Clwb => unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) },
        // SAFETY: as above.
        WriteBack::Clflushopt => unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) },
        // SAFETY: as above.
        WriteBack::Clflush => unsafe { asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)) },
    }
}

/// # Safety
/// None here; the name is shared with the architecture that has the instructions.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn flush_line(_: WriteBack, _: *const u8) {}

/// Waits until earlier non-temporal stores and write-backs of this thread have reached the persistence domain.
/// Source: Intel SDM volume 2, SFENCE.
#[inline]
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: orders stores and changes none. Without `nomem` it is a barrier to the compiler too.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags))
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_leaves_the_bytes_alone() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
        let mut ways = vec![WriteBack::Nothing, WriteBack::Clflush];
        match best_instruction() {
            WriteBack::Clwb => ways.extend([WriteBack::Clwb, WriteBack::Clflushopt]),
            other => ways.push(other),
        }
        for way in ways {
            for (from, len) in [(0, 0), (0, 1), (63, 2), (7, 900), (999, 1), (0, 1000)] {
                // SAFETY: the range lies within `bytes`, and the CPU has the instruction (clwb implies clflushopt).
                unsafe { flush_lines_with(way, bytes[from..].as_ptr(), len) }
            }
        }
        fence();
        assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == i as u8));
    }

    #[test]
    fn the_choice_is_kept() {
        assert_eq!(write_back(), write_back());
        assert_eq!(CHOSEN.load(Ordering::Relaxed), write_back() as u8);
    }
}
