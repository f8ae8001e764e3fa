//! Golden files of format version 1: what was written by the first version opens in every later one, byte for byte.
//!
//! `UNTORN_BLESS=1 cargo test -p untorn --test file golden::` writes those that are missing: what an earlier version
//! wrote stays. A sidecar is kept without the zeros at its end; its length stands in its retirement line.

use std::fs::{FileTimes, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::forged::{retired, seed_at};
use crate::common::golden::{self, RETIREMENTS, newest};
use crate::common::{PAGE, Pair, names, on_disk, pattern, read, word};
use twox_hash::XxHash3_64;
use untorn::options::{Layout, Prefer};
use untorn::report::State;
use untorn::{Durability, EngineKind, Error, Options};

/// Two pages and a bit, so that the last page and the last slice are cut.
const LEN: usize = 2 * PAGE + 100;
const SLOTS: usize = 4;
const LANES_AT: usize = 3 * PAGE;
const CHUNKS_AT: usize = 4 * PAGE;

struct Case {
    engine: EngineKind,
    name: &'static str,
    layout: Layout,
    durability: Durability,
    clean: bool,
    /// Written since sidecars record the names of their files.
    named: bool,
}

const CASES: [Case; 7] = [
    Case {
        engine: EngineKind::Reflection,
        name: "dense-write-clean",
        layout: Layout::Dense,
        durability: Durability::PerWrite,
        clean: true,
        named: false,
    },
    Case {
        engine: EngineKind::Reflection,
        name: "dense-write-open",
        layout: Layout::Dense,
        durability: Durability::PerWrite,
        clean: false,
        named: false,
    },
    Case {
        engine: EngineKind::Reflection,
        name: "sparse-commit-clean",
        layout: Layout::Sparse,
        durability: Durability::PerCommit,
        clean: true,
        named: false,
    },
    Case {
        engine: EngineKind::Reflection,
        name: "sparse-commit-open",
        layout: Layout::Sparse,
        durability: Durability::PerCommit,
        clean: false,
        named: false,
    },
    Case {
        engine: EngineKind::Reflection,
        name: "dense-write-named-clean",
        layout: Layout::Dense,
        durability: Durability::PerWrite,
        clean: true,
        named: true,
    },
    Case {
        engine: EngineKind::Shadow,
        name: "shadow-dense-write-open",
        layout: Layout::Dense,
        durability: Durability::PerWrite,
        clean: false,
        named: true,
    },
    Case {
        engine: EngineKind::Shadow,
        name: "shadow-sparse-commit-clean",
        layout: Layout::Sparse,
        durability: Durability::PerCommit,
        clean: true,
        named: true,
    },
];

/// The commits of every golden file, by offset and bytes. More than a lane holds, so that there was a cut and records
/// after it; the last goes over all pages.
fn commits() -> Vec<(usize, Vec<u8>)> {
    let mut commits: Vec<(usize, Vec<u8>)> =
        (0..5).map(|n| (n * 1500 + 7, pattern(200, 10 + n as u64))).chain([(64, pattern(64, 20))]).collect();
    commits.push((PAGE - 30, pattern(PAGE + 60, 21)));
    commits
}

fn contents() -> Vec<u8> {
    let mut model = pattern(LEN, 1);
    for (offset, bytes) in commits() {
        model[offset..offset + bytes.len()].copy_from_slice(&bytes);
    }
    model
}

impl Case {
    fn bless(&self) {
        let path = on_disk("data");
        std::fs::write(&path, pattern(LEN, 1)).unwrap();
        let options = Options::new().engine(self.engine).layout(self.layout).durability(self.durability);
        let file = options.record_area(1, SLOTS as u32).keep_sidecar(true).open(&path).unwrap();
        for (offset, bytes) in commits() {
            file.write_at(&bytes, offset as u64).unwrap();
            file.sync().unwrap();
        }
        let pair = if self.clean {
            file.close().unwrap();
            Pair::of(&path)
        } else {
            if self.durability == Durability::PerCommit {
                // An open epoch, which is no part of the contents.
                file.write_at(&[0xee; 500], 3000).unwrap();
            }
            Pair::of(&path)
        };
        golden::bless(self.name, &pair);
    }

    fn load(&self) -> (Vec<u8>, Vec<u8>) {
        golden::load(self.name)
    }

    fn place(&self, dir: &Path) -> PathBuf {
        golden::place(self.name, dir)
    }
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn each(go: impl Fn(&Case)) {
    static BLESS: std::sync::Once = std::sync::Once::new();
    BLESS.call_once(|| {
        if golden::are_blessed() {
            CASES.iter().for_each(Case::bless);
        }
    });
    for case in &CASES {
        eprintln!("{}", case.name);
        go(case);
    }
}

#[test]
fn a_golden_file_opens_and_holds_what_was_committed() {
    each(|case| {
        let dir = tempfile::tempdir().unwrap();
        let path = case.place(dir.path());
        let refused = Options::new().open(&path).unwrap_err();
        assert!(matches!(refused, Error::SidecarMissing { .. }), "{}: {refused}", case.name);
        let (_, side) = case.load();
        let recorded = [[0; 6], *b"\x04\0data"][usize::from(case.named)];
        assert_eq!(side[144..150], recorded, "{}", case.name);
        let mut options = Options::new().adopt(true);
        if case.clean {
            let changed = options.open(&path).unwrap_err();
            assert!(matches!(changed, Error::ModifiedExternally { .. }), "{}: {changed}", case.name);
            golden::restore_time(&path, &side);
        }
        let file = options.open(&path).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let info = file.info();
        assert_eq!((info.engine, info.layout), (case.engine, Some(case.layout)), "{}", case.name);
        assert_eq!(info.durability, case.durability, "{}", case.name);
        assert_eq!(info.recovery.was_needed, !case.clean, "{}", case.name);
        assert_eq!(info.recovery.replayed > 0, !case.clean, "{}", case.name);
        assert_eq!(info.recovery.discarded, 0, "{}", case.name);
        assert!(info.reflected_slices > 0, "{}: nothing stands in the sidecar", case.name);
        assert!(read(&file) == contents(), "{}", case.name);
        // It is as good as any other file from now on.
        let mut model = contents();
        file.write_at(&[5; 3000], 3000).unwrap();
        model[3000..6000].fill(5);
        file.close().unwrap();
        options = Options::new();
        let file = options.open(&path).unwrap();
        assert!(read(&file) == model, "{}", case.name);
        file.settle().unwrap();
        assert!(std::fs::read(&path).unwrap() == model, "{}", case.name);
        assert_eq!(names(dir.path()), ["data"], "{}", case.name);
    });
}

/// A backup that did not keep the modification time.
#[test]
fn a_golden_sidecar_can_be_laid_over_its_file() {
    each(|case| {
        let dir = tempfile::tempdir().unwrap();
        let path = case.place(dir.path());
        let options = Options::new().adopt(true).prefer(Prefer::Sidecar);
        let file = options.open(&path).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert!(read(&file) == contents(), "{}", case.name);
    });
}

/// A last write whose data did not arrive whole is dropped whole. (A commit on a block medium carries a checksum too.)
#[test]
fn a_golden_files_last_record_is_dropped_without_its_data() {
    each(|case| {
        if case.clean {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = case.place(dir.path());
        let (mut data, mut side) = case.load();
        let last = records(&side).pop().unwrap();
        let (page, bitmap, mask) = last.entries[1];
        assert_eq!((page, last.flags, last.entries.len()), (1, 0, 3), "{}", case.name);
        // The first byte of its first slice on page 1, wherever that stands.
        let slice = mask.trailing_zeros() as usize;
        if bitmap >> slice & 1 == 0 {
            data[PAGE + 64 * slice] ^= 1;
            std::fs::write(&path, data).unwrap();
        } else {
            let at = reflection(&side, case.layout, 1).unwrap() + 64 * slice;
            side[at] ^= 1;
            std::fs::write(dir.path().join(".untorn/1"), side).unwrap();
        }
        let file = Options::new().adopt(true).open(&path).unwrap();
        assert_eq!(file.info().recovery.discarded, 1, "{}", case.name);
        let mut model = pattern(LEN, 1);
        let commits = commits();
        for (offset, bytes) in &commits[..commits.len() - 1] {
            model[*offset..*offset + bytes.len()].copy_from_slice(bytes);
        }
        assert!(read(&file) == model, "{}", case.name);
    });
}

/// Every field of the superblocks and retirement lines stands where the format says.
#[test]
fn the_fields_are_where_they_were() {
    each(|case| {
        let (data, side) = case.load();
        for at in [0, PAGE] {
            let copy = &side[at..at + PAGE];
            assert_eq!(&copy[..8], b"UNTORN\r\n");
            assert_eq!((half(copy, 8), half(copy, 12)), (1, 4096), "version and page size");
            assert_eq!([word(copy, 16), word(copy, 24), word(copy, 32)], [0; 3], "feature masks");
            assert_eq!(copy[40..56], side[40..56], "UUID");
            assert_eq!(word(copy, 56) % 2, (at / PAGE) as u64, "copies are written alternately");
            assert_ne!(word(copy, 72), 0, "inode");
            assert_eq!((half(copy, 96), half(copy, 100), half(copy, 104)), (64, 1, SLOTS as u32), "slices and lanes");
            let layout = if case.layout == Layout::Dense { 1 } else { 2 };
            let durability = if case.durability == Durability::PerWrite { 1 } else { 2 };
            let engine = if case.engine == EngineKind::Reflection { 1 } else { 3 };
            assert_eq!(copy[108..111], [engine, layout, durability], "engine, layout, durability");
            // The name, or zeros of a version that did not record it.
            let name: &[u8] = if case.named { b"\x04\0data" } else { &[] };
            assert_eq!(&copy[144..144 + name.len()], name, "name");
            assert!(copy[144 + name.len()..4088].iter().all(|&byte| byte == 0), "reserved");
            assert_eq!(word(copy, 4088), XxHash3_64::oneshot(&copy[..4088]), "checksum");
        }
        let counts = &side[newest(&side, &[0, PAGE], 56)..];
        assert_eq!(counts[111], if case.clean { 3 } else { 2 }, "how it was left");
        if case.clean {
            assert_eq!(word(counts, 112), data.len() as u64, "size");
            assert_ne!(word(counts, 120), 0, "modification time");
            assert_ne!((word(counts, 128), word(counts, 136)), (0, 0), "digests");
        }
        let seed = XxHash3_64::oneshot(&side[40..56]);
        for at in RETIREMENTS {
            let line = &side[at..at + 64];
            assert_eq!(word(line, 56), XxHash3_64::oneshot_with_seed(seed, &line[..56]), "checksum of the line");
            // A version before `shadow` recorded no time of the last commit.
            assert!(case.engine == EngineKind::Shadow || word(line, 40) == 0, "time");
            assert_eq!(word(line, 48), 0, "reserved");
            assert_eq!(word(line, 16), LEN as u64, "length");
            assert!(word(line, 24) <= 2, "session");
        }
        // The other line is that of the creation, before the first commit.
        let has_time = RETIREMENTS.iter().any(|at| word(&side[*at..], 40) != 0);
        assert_eq!(has_time, case.engine == EngineKind::Shadow, "time of the last commit");
    });
}

struct Record {
    seq: u64,
    flags: u16,
    entries: Vec<(u64, u64, u64)>,
}

/// The live records, by number: decoded by nothing but what the format's description says.
fn records(side: &[u8]) -> Vec<Record> {
    let (cut, _) = retired(side);
    let slot_at = |slot: usize| LANES_AT + slot % SLOTS * 64;
    let mut found: Vec<Record> = (0..SLOTS)
        .filter_map(|slot| {
            let at = slot_at(slot);
            let mut seed = seed_at(side, at);
            let count = half(side, at + 12) as usize;
            let entry = |at: usize| (word(side, at), word(side, at + 8), word(side, at + 16));
            let mut entries = vec![entry(at + 16)];
            for n in 0..count.saturating_sub(1).div_ceil(2).min(SLOTS) {
                let more = slot_at(slot + 1 + n);
                seed = XxHash3_64::oneshot_with_seed(seed, &side[more..more + 64]);
                entries.extend([entry(more + 8), entry(more + 32)]);
            }
            entries.truncate(count);
            let seq = word(side, at);
            let whole = XxHash3_64::oneshot_with_seed(seed, &side[at..at + 56]) == word(side, at + 56);
            let flags = u16::from_le_bytes([side[at + 8], side[at + 9]]);
            assert!(!whole || word(side, at + 48) == LEN as u64, "length in a record");
            (whole && seq > cut).then_some(Record { seq, flags, entries })
        })
        .collect();
    found.sort_by_key(|record| record.seq);
    found
}

/// A page's slot in the sparse form.
fn slot(side: &[u8], page: u64) -> Option<usize> {
    (0..256).find(|slot| word(side, CHUNKS_AT + slot * 16) == page + 1)
}

fn reflection(side: &[u8], layout: Layout, page: u64) -> Option<usize> {
    let index = if layout == Layout::Dense { Some(page as usize) } else { slot(side, page) };
    index.map(|index| CHUNKS_AT + (index + 1) * PAGE)
}

/// A reader made from the description alone comes to the same contents.
#[test]
fn the_description_suffices_to_read_a_golden_file() {
    each(|case| {
        let (data, side) = case.load();
        let mut bitmaps: Vec<u64> = (0..LEN.div_ceil(PAGE) as u64)
            .map(|page| match case.layout {
                Layout::Dense => word(&side, CHUNKS_AT + page as usize * 8),
                _ => slot(&side, page).map_or(0, |slot| word(&side, CHUNKS_AT + slot * 16 + 8)),
            })
            .collect();
        let records = records(&side);
        assert!(case.clean || !records.is_empty(), "{}: no live record", case.name);
        for (page, bitmap, _) in records.iter().flat_map(|record| &record.entries) {
            bitmaps[*page as usize] = *bitmap;
        }
        let mut bytes = data;
        for (at, slice) in bytes.chunks_mut(64).enumerate() {
            let (page, bit) = (at / 64, at % 64);
            if bitmaps[page] >> bit & 1 == 1 {
                let from = reflection(&side, case.layout, page as u64).unwrap() + bit * 64;
                slice.copy_from_slice(&side[from..from + slice.len()]);
            }
        }
        assert!(bytes == contents(), "{}", case.name);
    });
}

/// A golden sidecar cut anywhere in what it was is refused, and the data file stays as it is.
#[test]
fn a_golden_sidecar_without_its_end_is_refused() {
    each(|case| {
        let dir = tempfile::tempdir().unwrap();
        let path = case.place(dir.path());
        let (data, side) = case.load();
        let sidecar = OpenOptions::new().write(true).open(dir.path().join(".untorn/1")).unwrap();
        sidecar.set_len(side.len() as u64 - 1).unwrap();
        let options = Options::new().adopt(true).prefer(Prefer::Sidecar);
        let error = options.open(&path).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{}: {error}", case.name);
        assert!(std::fs::read(&path).unwrap() == data, "{}", case.name);
    });
}

/// A file that another program changed while it was open: its sidecar is *disputed*.
const DISPUTED: &str = "sparse-commit-disputed";
const THEIRS: &[u8] = b"another program's";
/// Of slices that are valid in the sidecar.
const THEIRS_AT: usize = 130;

fn bless_disputed() {
    let path = on_disk("data");
    std::fs::write(&path, pattern(LEN, 1)).unwrap();
    let options = Options::new().layout(Layout::Sparse).durability(Durability::PerCommit);
    let file = options.record_area(1, SLOTS as u32).keep_sidecar(true).open(&path).unwrap();
    for (offset, bytes) in commits() {
        file.write_at(&bytes, offset as u64).unwrap();
        file.sync().unwrap();
    }
    file.write_at(&[0xee; 500], 3000).unwrap();
    let plain = OpenOptions::new().write(true).open(&path).unwrap();
    plain.write_all_at(THEIRS, THEIRS_AT as u64).unwrap();
    plain.set_times(FileTimes::new().set_modified(SystemTime::now() + Duration::from_secs(1))).unwrap();
    assert!(matches!(file.sync(), Err(Error::ModifiedExternally { .. })));
    drop(file);
    golden::bless(DISPUTED, &Pair::of(&path));
}

#[test]
fn a_golden_disputed_file_opens_only_by_a_choice() {
    if golden::are_blessed() {
        bless_disputed();
    }
    let (data, side) = golden::load(DISPUTED);
    assert_eq!(&data[THEIRS_AT..THEIRS_AT + THEIRS.len()], THEIRS);
    for at in [0, PAGE] {
        let copy = &side[at..at + PAGE];
        // Both copies: damage to one must not bring an earlier state back.
        assert_eq!((copy[111], &copy[144..150]), (5, &b"\x04\0data"[..]), "how it was left, and the name");
        assert_eq!(word(copy, 4088), XxHash3_64::oneshot(&copy[..4088]), "checksum");
    }
    let adopt = || Options::new().adopt(true);
    // What was committed, and nothing of the epoch that was open.
    for (side, expected) in [(Prefer::Sidecar, contents()), (Prefer::File, data.clone())] {
        let dir = tempfile::tempdir().unwrap();
        let path = golden::place(DISPUTED, dir.path());
        for _ in 0..2 {
            let refused = adopt().open(&path).unwrap_err();
            let is_said = refused.to_string().contains("--trust");
            assert!(matches!(refused, Error::ModifiedExternally { .. }) && is_said, "{refused}");
            assert!(std::fs::read(&path).unwrap() == data, "a refused open wrote to the file");
        }
        assert_eq!(untorn::inspect(&path).unwrap().state, State::Refused);
        let file = adopt().prefer(side).open(&path).unwrap();
        assert!(read(&file) == expected, "{side:?}");
        file.close().unwrap();
        assert!(std::fs::read(&path).unwrap() == expected, "{side:?}");
        if side == Prefer::Sidecar {
            assert_eq!(names(dir.path()), ["data"]);
        } else {
            // It names another inode, so it is set aside.
            let [aside] = &names(&dir.path().join(".untorn"))[..] else { panic!("one sidecar was there") };
            assert!(aside.ends_with(".orphan"), "{aside}");
        }
    }
}
