//! `untorn_options` in terms of the core.

use std::mem::offset_of;
use std::path::Path;
use std::time::Duration;

use untorn_core::options::{CommitLog, DirtyTracking, Layout, LogPolicy, LostPage, Order, ReadPolicy};
use untorn_core::redundancy::VerifyReads;
use untorn_core::shared::SharedMap;
use untorn_core::{AtomicFile, AtomicMap, Durability, EngineKind, Options};

use crate::abi::{self, untorn_options};
use crate::boundary::source;
use crate::errors::{Failure, Result};

/// Larger than any options struct will ever be: a size above it is a field that was never set.
const LARGEST: usize = 4096;

/// Bytes of the struct in the first version of the library; no program passes fewer.
const FIRST_SIZE: usize = offset_of!(untorn_options, max_len) + size_of::<u64>();

/// The options that a C program gives; none are the defaults.
///
/// # Safety
/// `opts` is null or points to a struct that begins with its size and that no thread changes during the call.
pub(crate) unsafe fn given(opts: *const untorn_options) -> Result<untorn_options> {
    if opts.is_null() {
        return Ok(untorn_options::default());
    }
    // SAFETY: not null, and the caller vouches that the size is there; a read of four bytes needs no alignment this
    // way.
    let size = unsafe { opts.cast::<u32>().read_unaligned() } as usize;
    if size > LARGEST {
        return Err(Failure::invalid("untorn_options.size is not set; start from UNTORN_OPTIONS_INIT"));
    }
    // SAFETY: the struct is as long as its size field says, and no thread changes it during the call.
    decode(unsafe { source(opts.cast(), size, "opts") }?)
}

/// The options in `bytes`, which are as many as its size field says. Fields a newer header added must be zero: a
/// program that sets one wants something this library cannot do.
fn decode(bytes: &[u8]) -> Result<untorn_options> {
    if bytes.len() < FIRST_SIZE {
        return Err(Failure::invalid(format!(
            "untorn_options.size is {}, but must be at least {FIRST_SIZE}; start from UNTORN_OPTIONS_INIT",
            bytes.len()
        )));
    }
    if bytes.iter().skip(size_of::<untorn_options>()).any(|&byte| byte != 0) {
        return Err(Failure::new(
            abi::UNTORN_EOPNOTSUPP,
            "untorn_options sets a field that this version of libuntorn does not know; install a newer libuntorn",
        ));
    }
    // A field that an older header does not have is zero, its default.
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|index| byte(at + index)));
    let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| byte(at + index)));
    Ok(untorn_options {
        size: word(offset_of!(untorn_options, size)),
        engine: word(offset_of!(untorn_options, engine)),
        layout: word(offset_of!(untorn_options, layout)),
        durability: word(offset_of!(untorn_options, durability)),
        order: word(offset_of!(untorn_options, order)),
        read_policy: word(offset_of!(untorn_options, read_policy)),
        flags: word(offset_of!(untorn_options, flags)),
        reserved: word(offset_of!(untorn_options, reserved)),
        length: long(offset_of!(untorn_options, length)),
        max_len: long(offset_of!(untorn_options, max_len)),
        log_size: long(offset_of!(untorn_options, log_size)),
        log_policy: word(offset_of!(untorn_options, log_policy)),
        redo_from: word(offset_of!(untorn_options, redo_from)),
        checkpointers: word(offset_of!(untorn_options, checkpointers)),
        dirty_tracking: word(offset_of!(untorn_options, dirty_tracking)),
        deploy_ahead: long(offset_of!(untorn_options, deploy_ahead)),
        commit_log: long(offset_of!(untorn_options, commit_log)),
        commit_log_wait: long(offset_of!(untorn_options, commit_log_wait)),
        snapshot_memory: long(offset_of!(untorn_options, snapshot_memory)),
    })
}

fn unknown<T>(field: &str, value: u32) -> Result<T> {
    Err(Failure::invalid(format!("untorn_options.{field} has the unknown value {value}")))
}

fn translate(c: &untorn_options) -> Result<Options> {
    let mut options = Options::new();
    options = match i64::from(c.engine) {
        abi::UNTORN_ENGINE_AUTO => options,
        abi::UNTORN_ENGINE_REFLECTION => options.engine(EngineKind::Reflection),
        abi::UNTORN_ENGINE_PASSTHROUGH => options.engine(EngineKind::Passthrough),
        abi::UNTORN_ENGINE_HYBRID_LOG => options.engine(EngineKind::HybridLog),
        abi::UNTORN_ENGINE_SHADOW => options.engine(EngineKind::Shadow),
        _ => return unknown("engine", c.engine),
    };
    options = match i64::from(c.layout) {
        abi::UNTORN_LAYOUT_AUTO => options,
        abi::UNTORN_LAYOUT_DENSE => options.layout(Layout::Dense),
        abi::UNTORN_LAYOUT_SPARSE => options.layout(Layout::Sparse),
        _ => return unknown("layout", c.layout),
    };
    options = match i64::from(c.durability) {
        abi::UNTORN_DURABILITY_AUTO => options,
        abi::UNTORN_DURABILITY_PER_WRITE => options.durability(Durability::PerWrite),
        abi::UNTORN_DURABILITY_PER_COMMIT => options.durability(Durability::PerCommit),
        _ => return unknown("durability", c.durability),
    };
    options = match i64::from(c.order) {
        abi::UNTORN_ORDER_ONE_FENCE => options.order(Order::OneFence),
        abi::UNTORN_ORDER_TWO_FENCE => options.order(Order::TwoFence),
        _ => return unknown("order", c.order),
    };
    options = match i64::from(c.read_policy) {
        abi::UNTORN_READ_GATHER => options.read_policy(ReadPolicy::Gather),
        abi::UNTORN_READ_DEPLOY => options.read_policy(ReadPolicy::Deploy),
        _ => return unknown("read_policy", c.read_policy),
    };
    options = match i64::from(c.dirty_tracking) {
        abi::UNTORN_TRACKING_AUTO => options,
        abi::UNTORN_TRACKING_WRITE_PROTECT => options.dirty_tracking(DirtyTracking::WriteProtect),
        abi::UNTORN_TRACKING_PAGE_TABLE => options.dirty_tracking(DirtyTracking::PageTable),
        _ => return unknown("dirty_tracking", c.dirty_tracking),
    };
    if c.reserved != 0 {
        return unknown("reserved", c.reserved);
    }
    if c.max_len != 0 {
        options = options.max_len(c.max_len);
    }
    options = translate_log(c, options)?;
    options = match (i64::from(c.flags) & abi::UNTORN_NO_DEPLOY_AHEAD != 0, c.deploy_ahead) {
        (false, 0) => options,
        (false, from) => options.deploy_ahead(Some(from)),
        (true, 0) => options.deploy_ahead(None),
        (true, _) => {
            let message = "untorn_options sets both deploy_ahead and UNTORN_NO_DEPLOY_AHEAD; set one of them";
            return Err(Failure::invalid(message));
        }
    };
    let blocks = i64::from(c.flags) & abi::UNTORN_COMMIT_LOG_BLOCK != 0;
    let awaits = i64::from(c.flags) & abi::UNTORN_COMMIT_LOG_AWAIT != 0;
    let log = |limit| if awaits { CommitLog::new(limit).await_consumers() } else { CommitLog::new(limit) };
    options = match (c.commit_log, blocks, c.commit_log_wait) {
        (0, false, 0) if !awaits => options,
        (0, ..) => {
            let message = "untorn_options sets UNTORN_COMMIT_LOG_BLOCK, UNTORN_COMMIT_LOG_AWAIT or commit_log_wait \
                           without commit_log";
            return Err(Failure::invalid(message));
        }
        (limit, false, 0) => options.commit_log(log(limit)),
        (_, false, _) => {
            return Err(Failure::invalid("untorn_options sets commit_log_wait without UNTORN_COMMIT_LOG_BLOCK"));
        }
        (limit, true, wait) => options.commit_log(log(limit).block(Duration::from_millis(wait))),
    };
    if c.snapshot_memory != 0 {
        options = options.snapshot_memory(c.snapshot_memory);
    }
    let flag = |flag: i64| i64::from(c.flags) & flag != 0;
    options = options.serve_snapshots(!flag(abi::UNTORN_NO_SERVE_SNAPSHOTS));
    if flag(abi::UNTORN_LOST_PAGE_SIGNAL) {
        options = options.on_lost_page(LostPage::Signal);
    }
    options = options.shared(flag(abi::UNTORN_SHARED)).keep_sidecar(flag(abi::UNTORN_KEEP_SIDECAR));
    options = match (flag(abi::UNTORN_VERIFY_READS), flag(abi::UNTORN_REPAIR_READS)) {
        (_, true) => options.verify_reads(VerifyReads::Repair),
        (true, false) => options.verify_reads(VerifyReads::Fail),
        (false, false) => options,
    };
    Ok(options.read_only(flag(abi::UNTORN_READ_ONLY)).verify(!flag(abi::UNTORN_NO_VERIFY)))
}

/// The fields about the log of the hybrid-log engine. The core says which numbers are too small or too large.
fn translate_log(c: &untorn_options, options: Options) -> Result<Options> {
    let mut options = match i64::from(c.log_policy) {
        abi::UNTORN_LOG_HYBRID => options.log_policy(LogPolicy::Hybrid),
        abi::UNTORN_LOG_UNDO => options.log_policy(LogPolicy::Undo),
        abi::UNTORN_LOG_REDO => options.log_policy(LogPolicy::Redo),
        _ => return unknown("log_policy", c.log_policy),
    };
    if c.log_size != 0 {
        options = options.log_size(c.log_size);
    }
    if c.redo_from != 0 {
        options = options.redo_threshold_percent(u8::try_from(c.redo_from).unwrap_or(u8::MAX));
    }
    let none = i64::from(c.flags) & abi::UNTORN_NO_CHECKPOINTERS != 0;
    if none && c.checkpointers != 0 {
        return Err(Failure::invalid(
            "untorn_options sets both checkpointers and UNTORN_NO_CHECKPOINTERS; set one of them",
        ));
    }
    if none || c.checkpointers != 0 {
        options = options.checkpoint_threads(c.checkpointers as usize);
    }
    Ok(options)
}

/// Every flag there is.
const FLAGS: i64 = abi::UNTORN_READ_ONLY
    | abi::UNTORN_CREATE
    | abi::UNTORN_EXCL
    | abi::UNTORN_NO_VERIFY
    | abi::UNTORN_LOST_PAGE_SIGNAL
    | abi::UNTORN_NO_CHECKPOINTERS
    | abi::UNTORN_SHARED
    | abi::UNTORN_VERIFY_READS
    | abi::UNTORN_REPAIR_READS
    | abi::UNTORN_KEEP_SIDECAR
    | abi::UNTORN_NO_DEPLOY_AHEAD
    | abi::UNTORN_COMMIT_LOG_BLOCK
    | abi::UNTORN_COMMIT_LOG_AWAIT
    | abi::UNTORN_NO_SERVE_SNAPSHOTS;

/// Opens or creates the file as the options say.
pub(crate) fn open(path: &Path, c: &untorn_options) -> Result<AtomicFile> {
    let (options, creation) = checked(c)?;
    Ok(match creation {
        Creation::Never => options.open(path),
        Creation::IfAbsent => options.open_or_create(path, c.length),
        Creation::Always => options.create(path, c.length),
    }?)
}

/// Opens or creates the file as plain memory, as the options say.
pub(crate) fn map(path: &Path, c: &untorn_options) -> Result<AtomicMap> {
    let (options, creation) = checked(c)?;
    Ok(match creation {
        Creation::Never => options.map(path),
        Creation::IfAbsent => options.open_or_create_map(path, c.length),
        Creation::Always => options.create_map(path, c.length),
    }?)
}

/// Opens or creates the file as plain memory that other processes share, as the options say.
pub(crate) fn share(path: &Path, c: &untorn_options) -> Result<SharedMap> {
    let (options, creation) = checked(c)?;
    Ok(match creation {
        Creation::Never => options.share_map(path),
        Creation::IfAbsent => options.open_or_create_shared_map(path, c.length),
        Creation::Always => options.create_shared_map(path, c.length),
    }?)
}

/// When a file is created.
enum Creation {
    Never,
    IfAbsent,
    Always,
}

/// The options in terms of the core, and whether the file is to be created.
fn checked(c: &untorn_options) -> Result<(Options, Creation)> {
    let flags = i64::from(c.flags);
    if flags & !FLAGS != 0 {
        return unknown("flags", c.flags);
    }
    let (create, excl) = (flags & abi::UNTORN_CREATE != 0, flags & abi::UNTORN_EXCL != 0);
    if create && flags & abi::UNTORN_READ_ONLY != 0 {
        return Err(Failure::invalid("UNTORN_CREATE cannot be combined with UNTORN_READ_ONLY"));
    }
    let creation = match (create, excl) {
        (false, true) => return Err(Failure::invalid("UNTORN_EXCL needs UNTORN_CREATE")),
        (false, false) => Creation::Never,
        (true, false) => Creation::IfAbsent,
        (true, true) => Creation::Always,
    };
    Ok((translate(c)?, creation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_struct_of_another_version_is_read_or_refused() {
        let mut bytes = vec![0; size_of::<untorn_options>() + 16];
        bytes[offset_of!(untorn_options, max_len)] = 9;
        bytes[offset_of!(untorn_options, log_size)] = 7;
        let whole = decode(&bytes).unwrap();
        assert_eq!((whole.max_len, whole.log_size), (9, 7));
        let first = decode(&bytes[..FIRST_SIZE]).unwrap();
        assert_eq!((first.max_len, first.log_size), (9, 0), "what the program does not know has its default");
        assert_eq!(i64::from(decode(&bytes[..FIRST_SIZE - 1]).err().unwrap().code), abi::UNTORN_EINVAL);
        bytes[size_of::<untorn_options>() + 3] = 1;
        assert_eq!(i64::from(decode(&bytes).err().unwrap().code), abi::UNTORN_EOPNOTSUPP);
    }

    #[test]
    fn the_way_to_track_stores_reaches_the_core() {
        for (value, name) in [
            (abi::UNTORN_TRACKING_AUTO, "Auto"),
            (abi::UNTORN_TRACKING_WRITE_PROTECT, "WriteProtect"),
            (abi::UNTORN_TRACKING_PAGE_TABLE, "PageTable"),
        ] {
            let c = untorn_options { dirty_tracking: value as u32, ..untorn_options::default() };
            let options = format!("{:?}", translate(&c).unwrap());
            assert!(options.contains(&format!("dirty_tracking: {name}")), "{options}");
        }
        let c = untorn_options { dirty_tracking: 3, ..untorn_options::default() };
        let refused = translate(&c).err().unwrap();
        assert_eq!(i64::from(refused.code), abi::UNTORN_EINVAL);
        assert!(refused.message.contains("dirty_tracking"), "{}", refused.message);
    }

    #[test]
    fn the_bound_of_background_deployment_reaches_the_engine() {
        let with = |deploy_ahead: u64, flags: i64| {
            let c = untorn_options { deploy_ahead, flags: flags as u32, ..untorn_options::default() };
            translate(&c).map(|options| format!("{options:?}"))
        };
        let never = abi::UNTORN_NO_DEPLOY_AHEAD;
        for (given, flags, expected) in [(0, 0, "Some(67108864)"), (5000, 0, "Some(5000)"), (0, never, "None")] {
            let options = with(given, flags).unwrap();
            assert!(options.contains(&format!("deploy_ahead: {expected}")), "{options}");
        }
        let refused = with(5000, never).err().unwrap();
        assert!(refused.message.contains("deploy_ahead"), "{}", refused.message);
        // A program that was compiled before there was the field has its default.
        let mut bytes = vec![0; size_of::<untorn_options>()];
        bytes[offset_of!(untorn_options, deploy_ahead)] = 9;
        assert_eq!(decode(&bytes).unwrap().deploy_ahead, 9);
        assert_eq!(decode(&bytes[..offset_of!(untorn_options, deploy_ahead)]).unwrap().deploy_ahead, 0);
    }

    #[test]
    fn the_memory_of_snapshots_reaches_the_core() {
        for (snapshot_memory, expected) in [(0, 64 << 20), (1, 1), (5000, 5000)] {
            let c = untorn_options { snapshot_memory, ..untorn_options::default() };
            let options = format!("{:?}", translate(&c).unwrap());
            assert!(options.contains(&format!("snapshot_memory: {expected},")), "{options}");
        }
        // A program that was compiled before there was the field has its default.
        let mut bytes = vec![0; size_of::<untorn_options>()];
        bytes[offset_of!(untorn_options, snapshot_memory)] = 9;
        assert_eq!(decode(&bytes).unwrap().snapshot_memory, 9);
        assert_eq!(decode(&bytes[..offset_of!(untorn_options, snapshot_memory)]).unwrap().snapshot_memory, 0);
    }

    #[test]
    fn the_fields_about_the_log_reach_the_engine() {
        let c = untorn_options {
            engine: abi::UNTORN_ENGINE_HYBRID_LOG as u32,
            log_size: 1 << 20,
            log_policy: abi::UNTORN_LOG_REDO as u32,
            redo_from: 70,
            checkpointers: 3,
            ..untorn_options::default()
        };
        let options = format!("{:?}", translate(&c).unwrap());
        for field in [
            "engine: HybridLog",
            "log_size: 1048576",
            "log_policy: Redo",
            "redo_threshold_percent: 70",
            "checkpoint_threads: 3",
        ] {
            assert!(options.contains(field), "{field}: {options}");
        }
        let none = untorn_options { flags: abi::UNTORN_NO_CHECKPOINTERS as u32, ..untorn_options::default() };
        assert!(format!("{:?}", translate(&none).unwrap()).contains("checkpoint_threads: 0"));
        let defaults = format!("{:?}", translate(&untorn_options::default()).unwrap());
        assert_eq!(defaults, format!("{:?}", Options::new()));
        let refused = [
            untorn_options { log_policy: 3, ..c },
            untorn_options { reserved: 1, ..c },
            untorn_options { flags: none.flags, ..c },
        ];
        for c in refused {
            assert_eq!(i64::from(translate(&c).err().unwrap().code), abi::UNTORN_EINVAL, "{}", c.log_policy);
        }
    }
}
