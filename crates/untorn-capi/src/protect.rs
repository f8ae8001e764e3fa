//! `untorn/protect.h`: checksums and parity of a mapping that the program made itself. The header says what each
//! function does, returns and expects.
#![allow(clippy::missing_safety_doc, reason = "untorn/protect.h says what each function expects of its arguments")]

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::Mutex;
use std::time::Duration;

use untorn_core::redundancy::{
    AllCovered, Checksum, CoverOnSignal, Damage, ProtectOptions, Protected, RepairReport, StripeLayout, cover_all,
    cover_on_signal,
};

use untorn_core::testing::PerProcess;

use crate::abi::{self, untorn_coverage, untorn_redundancy_options};
use crate::boundary::{code, path_at, source};
use crate::by_address::{ByAddress, Words};
use crate::errors::{Failure, Result, code_of};

/// The mappings that are protected. Several threads may be in calls on one of them.
static PROTECTED: ByAddress<Protected> = ByAddress::new(Words {
    noun: "protected mapping",
    pass: "pass the address given to untorn_protect, until untorn_unprotect",
    anew: "map the file in this process and protect that mapping",
});

/// Bytes of the struct of the first version.
const OLDEST: usize = offset_of!(untorn_redundancy_options, scrub_every_ms);

/// The same of `untorn_coverage`.
const OLDEST_COVERAGE: usize = offset_of!(untorn_coverage, period_ms);

/// The options at `opts`.
///
/// # Safety
/// `opts` is null or points to a struct that begins with its size and that no thread changes during the call.
unsafe fn given(opts: *const untorn_redundancy_options) -> Result<untorn_redundancy_options> {
    if opts.is_null() {
        return Ok(untorn_redundancy_options::default());
    }
    // SAFETY: not null, and the caller vouches that the size is there; a read of four bytes needs no alignment this
    // way.
    let size = unsafe { opts.cast::<u32>().read_unaligned() } as usize;
    let known = size_of::<untorn_redundancy_options>();
    if !(OLDEST..=4096).contains(&size) {
        let message = "untorn_redundancy_options.size is not set; start from UNTORN_REDUNDANCY_OPTIONS_INIT";
        return Err(Failure::invalid(message));
    }
    // SAFETY: the struct is as long as its size field says, and no thread changes it during the call.
    let bytes = unsafe { source(opts.cast(), size, "opts") }?;
    if bytes.iter().skip(known).any(|&byte| byte != 0) {
        let message = "untorn_redundancy_options sets a field that this version of libuntorn does not know; install a \
                       newer libuntorn";
        return Err(Failure::new(abi::UNTORN_EOPNOTSUPP, message));
    }
    let mut given = untorn_redundancy_options::default();
    // SAFETY: no more bytes than both structs have, which do not overlap. A struct of the program's has in each field
    // it has what that may have: numbers, and for on_damage null or a function, as untorn/protect.h asks. Copied as
    // bytes, pointers stay what they were.
    unsafe { std::ptr::copy_nonoverlapping(opts.cast::<u8>(), (&raw mut given).cast::<u8>(), size.min(known)) };
    Ok(given)
}

/// Tells of damage, on a thread of its own.
struct Teller {
    on_damage: unsafe extern "C" fn(*mut c_void, u32, u64, u64),
    context: *mut c_void,
}

// SAFETY: the context is handed on and not used here; untorn/protect.h asks that it may be used by another thread.
unsafe impl Send for Teller {}
// SAFETY: the same; one thread at a time calls it.
unsafe impl Sync for Teller {}

impl Teller {
    fn tell(&self, damage: &Damage) {
        let (what, at, length) = match damage {
            Damage::Page(range) => (abi::UNTORN_DAMAGE_PAGE, range.offset, range.len),
            Damage::Unknown(range) => (abi::UNTORN_DAMAGE_UNKNOWN, range.offset, range.len),
            Damage::Parity { stripe } => (abi::UNTORN_DAMAGE_PARITY, *stripe, 0),
            Damage::Table { offset } => (abi::UNTORN_DAMAGE_TABLE, *offset, 0),
            // A mapping has no sidecar.
            _ => return,
        };
        // SAFETY: a function of this type and its context. untorn/protect.h asks that both stay until
        // untorn_unprotect has returned, and that waits for the thread that calls this.
        unsafe { (self.on_damage)(self.context, what as u32, at, length) };
    }
}

fn options(given: &untorn_redundancy_options) -> Result<ProtectOptions> {
    let unknown = |field: &str, value: u32| {
        Failure::invalid(format!("untorn_redundancy_options.{field} has the unknown value {value}"))
    };
    let mut options = ProtectOptions::new();
    if given.stripe != 0 {
        options = options.stripe(given.stripe);
    }
    options = match i64::from(given.layout) {
        0 => options,
        abi::UNTORN_STRIPES_CONSECUTIVE => options.layout(StripeLayout::Consecutive),
        abi::UNTORN_STRIPES_SPREAD => options.layout(StripeLayout::Spread),
        _ => return Err(unknown("layout", given.layout)),
    };
    options = match i64::from(given.checksum) {
        0 => options,
        abi::UNTORN_CHECKSUM_CRC32C => options.checksum(Checksum::Crc32c),
        abi::UNTORN_CHECKSUM_XXH3 => options.checksum(Checksum::Xxh3),
        _ => return Err(unknown("checksum", given.checksum)),
    };
    if given.batch != 0 {
        options = options.batch(u64::from(given.batch));
    }
    if given.max_uncovered != 0 {
        options = options.max_uncovered(given.max_uncovered);
    }
    if given.scrub_every_ms != 0 {
        options = options.scrub_every(Duration::from_millis(given.scrub_every_ms));
    } else if given.scrub_rate != 0 {
        return Err(Failure::invalid("scrub_rate needs scrub_every_ms, which starts the scrub thread"));
    }
    if given.scrub_rate != 0 {
        options = options.scrub_rate(given.scrub_rate);
    }
    if let Some(on_damage) = given.on_damage {
        let teller = Teller { on_damage, context: given.context };
        options = options.on_damage(move |damage| teller.tell(damage));
    }
    match i64::from(given.flags) {
        0 if given.period_ms != 0 => Ok(options.period(Duration::from_millis(given.period_ms))),
        0 => Ok(options),
        abi::UNTORN_COVER_ON_DEMAND if given.period_ms == 0 => Ok(options.on_demand()),
        abi::UNTORN_COVER_ON_DEMAND => Err(Failure::invalid(
            "UNTORN_COVER_ON_DEMAND cannot be combined with \
                                                             period_ms",
        )),
        _ => Err(unknown("flags", given.flags)),
    }
}

/// Protects a mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_protect(
    addr: *mut c_void,
    len: usize,
    opts: *const untorn_redundancy_options,
) -> c_int {
    code(|| {
        // SAFETY: null or a struct that begins with its size, as untorn/protect.h asks.
        let given = unsafe { given(opts) }?;
        PROTECTED.enter(addr, options(&given)?.mapping(addr.cast(), len)?);
        Ok(())
    })
}

/// Covers everything and ends the protection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_unprotect(addr: *mut c_void) -> c_int {
    code(|| Ok(PROTECTED.take(addr)?.close()?))
}

/// Covers everything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_redundancy_sync(addr: *mut c_void) -> c_int {
    code(|| PROTECTED.with(addr, |protected| Ok(protected.sync()?)))
}

/// Covers everything that the process protects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_redundancy_cover_all(pages: *mut u64) -> c_int {
    code(|| {
        let mut all = cover_all();
        if !pages.is_null() {
            // SAFETY: not null; untorn/protect.h asks for a place where a uint64_t may be written.
            unsafe { pages.write(all.pages) };
        }
        if all.failures.is_empty() { Ok(()) } else { Err(all.failures.swap_remove(0).into()) }
    })
}

/// The thread that waits for a signal, in the process that started it.
static ON_SIGNAL: PerProcess<Mutex<Option<CoverOnSignal>>> = PerProcess::new();

/// Hears that everything was covered, on a thread of its own.
struct Covered {
    call: unsafe extern "C" fn(*mut c_void, u64, c_int),
    context: *mut c_void,
}

// SAFETY: the context is handed on and not used here; untorn/protect.h says that another thread uses it.
unsafe impl Send for Covered {}

impl Covered {
    fn tell(&self, all: &AllCovered) {
        let code = all.failures.first().map_or(0, |error| code_of(error) as c_int);
        // SAFETY: a function of this type and its context. untorn/protect.h asks that both stay until the thread that
        // calls this has ended.
        unsafe { (self.call)(self.context, all.pages, code) };
    }
}

/// Covers everything when a signal comes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_redundancy_cover_on_signal(
    signal: c_int,
    covered: Option<unsafe extern "C" fn(*mut c_void, u64, c_int)>,
    context: *mut c_void,
) -> c_int {
    code(|| {
        let mut on_signal = ON_SIGNAL.lock();
        let covered = covered.map(|call| Covered { call, context });
        let then = move |all: &AllCovered| {
            if let Some(covered) = &covered {
                covered.tell(all);
            }
        };
        // The one before stays if there cannot be another.
        let next = if signal == 0 { None } else { Some(cover_on_signal(signal, then)?) };
        drop(std::mem::replace(&mut *on_signal, next));
        Ok(())
    })
}

/// Changes the length of a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_redundancy_set_len(addr: *mut c_void, len: u64) -> c_int {
    code(|| PROTECTED.with(addr, |protected| Ok(protected.set_len(len)?)))
}

/// Sets another period.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_redundancy_set_period(addr: *mut c_void, period_ms: u64) -> c_int {
    code(|| PROTECTED.with(addr, |protected| Ok(protected.set_period(Duration::from_millis(period_ms))?)))
}

/// Sets another cap on uncovered pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_redundancy_set_max_uncovered(addr: *mut c_void, pages: u64) -> c_int {
    code(|| {
        let cap = Some(pages).filter(|pages| *pages != u64::MAX);
        PROTECTED.with(addr, |protected| Ok(protected.set_max_uncovered(cap)?))
    })
}

fn milliseconds(time: Duration) -> u64 {
    time.as_millis().min(u128::from(u64::MAX)) as u64
}

/// Fills in how much of the mapping is covered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_redundancy_coverage(addr: *mut c_void, coverage: *mut untorn_coverage) -> c_int {
    code(|| {
        if coverage.is_null() {
            return Err(Failure::invalid("coverage is NULL; pass the struct to fill"));
        }
        // SAFETY: not null, and untorn/protect.h asks that the size is there; a read of four bytes needs no alignment
        // this way.
        let size = unsafe { coverage.cast::<u32>().read_unaligned() } as usize;
        if !(OLDEST_COVERAGE..=4096).contains(&size) {
            let message = "untorn_coverage.size is not set; start from UNTORN_COVERAGE_INIT";
            return Err(Failure::invalid(message));
        }
        let now = PROTECTED.with(addr, |protected| Ok(protected.coverage()?))?;
        let scrubbing = now.scrubbing;
        let told = untorn_coverage {
            size: size as u32,
            is_scrubbed: scrubbing.is_some().into(),
            pages: now.pages,
            uncovered: now.uncovered,
            stripes: now.stripes,
            vulnerable_stripes: now.vulnerable_stripes,
            unknown: now.unknown.len() as u64,
            lost: now.lost.len() as u64,
            oldest_uncovered_ms: now.oldest_uncovered.map_or(0, milliseconds),
            looked: scrubbing.map_or(0, |scrubbing| scrubbing.looked),
            scrubs: now.history.scrubs,
            last_scrub: now.history.scrubbed,
            repaired: now.history.repaired,
            period_ms: now.pace.and_then(|pace| pace.period).map_or(0, milliseconds),
            max_uncovered: now.pace.and_then(|pace| pace.max_uncovered).unwrap_or(u64::MAX),
            peak_uncovered: now.pace.map_or(0, |pace| pace.peak_uncovered),
        };
        let known = size.min(size_of::<untorn_coverage>());
        // SAFETY: no more bytes than both have, the program's by its size; a struct of this call's overlaps none of
        // the program's.
        unsafe { std::ptr::copy_nonoverlapping((&raw const told).cast::<u8>(), coverage.cast::<u8>(), known) };
        Ok(())
    })
}

/// Compares everything, and says how much is damaged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_redundancy_scrub(addr: *mut c_void, damaged: *mut u64) -> c_int {
    code(|| {
        let report = PROTECTED.with(addr, |protected| Ok(protected.scrub()?))?;
        if !damaged.is_null() {
            let pages = report.damage.iter().filter(|damage| matches!(damage, Damage::Page(_))).count() as u64;
            // SAFETY: not null; untorn/protect.h asks for a place where a uint64_t may be written.
            unsafe { damaged.write(pages) };
        }
        if report.is_clean() {
            return Ok(());
        }
        Err(Failure::new(abi::UNTORN_EBADMSG, format!("a scrub found damage: {:?}", report.damage)))
    })
}

/// Repairs what can be repaired, or nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_redundancy_repair(addr: *mut c_void, repaired: *mut u64) -> c_int {
    code(|| {
        let report = PROTECTED.with(addr, |protected| Ok(protected.repair()?))?;
        if !repaired.is_null() {
            // SAFETY: not null; untorn/protect.h asks for a place where a uint64_t may be written.
            unsafe { repaired.write(report.repaired.len() as u64) };
        }
        verdict(&report)
    })
}

/// Repairs a file that no process has open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_repair(path: *const c_char, flags: u32, repaired: *mut u64) -> c_int {
    code(|| {
        // SAFETY: null or a string that ends with a zero, as untorn/protect.h asks.
        let path = unsafe { path_at(path) }?;
        let report = match i64::from(flags) {
            0 => untorn_core::repair(path, &mut |_, _| true),
            abi::UNTORN_REPAIR_FORCE => untorn_core::repair_modified(path, &mut |_, _| true),
            _ => return Err(Failure::invalid(format!("flags of untorn_repair has the unknown value {flags}"))),
        }?;
        if !repaired.is_null() {
            let pages = report.repaired.len() + report.replaced.len() + report.sidecar_repaired.len();
            // SAFETY: not null; untorn/protect.h asks for a place where a uint64_t may be written.
            unsafe { repaired.write(pages as u64) };
        }
        verdict(&report)
    })
}

/// Whether a repair left everything as it should be.
fn verdict(report: &RepairReport) -> Result<()> {
    let (lost, unknown) =
        ([&report.lost[..], &report.sidecar_lost].concat(), [&report.unknown[..], &report.sidecar_unknown].concat());
    let message = if !lost.is_empty() {
        format!(
            "these pages are lost: parity cannot rebuild them and they were left as they are, or the device did not \
             keep the rebuilt bytes: {lost:?}"
        )
    } else if !report.refused.is_empty() {
        let refused = &report.refused;
        format!("parity cannot vouch for these pages, so nothing was changed: {refused:?}")
    } else if !unknown.is_empty() {
        format!("cannot tell whether these pages are damaged; they were left as they are: {unknown:?}")
    } else if !report.not_rebuilt.is_empty() {
        format!("these parts of the redundancy are still damaged: {:?}", report.not_rebuilt)
    } else {
        return Ok(());
    };
    Err(Failure::new(abi::UNTORN_EBADMSG, message))
}
