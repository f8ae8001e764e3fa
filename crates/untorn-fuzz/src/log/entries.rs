//! Entries that are forged as the format requires: moved, doubled, cut, and whole operations of any kind, file and
//! place, each with the right checksums. The module also reads all that a log says, with other code than the one
//! under test.

use std::collections::BTreeSet;

use super::{
    Done, ENTRIES_AT, ENTRY, FILES, NAMES, SLOTS, STRIDE, TABLE_AT, TAIL_AT, entry_check, line_check, made_for, put,
    seal_entry, seal_line, word,
};
use crate::input::Input;
use crate::pair::PAGE;

/// Entries of the longest operation that such a log can have, and two that are too many.
const PARTS: u64 = SLOTS as u64 / 4 + 2;

fn at(slot: usize) -> usize {
    ENTRIES_AT + slot % SLOTS * STRIDE
}

/// The numbers of 32 bits in a header.
fn half(log: &[u8], at: usize) -> u64 {
    word(log, at) & 0xffff_ffff
}

/// The position that counts in a slot: the first one not before the tail.
fn position(log: &[u8], slot: usize) -> u64 {
    // A forged tail may be anywhere.
    let tail = word(log, TAIL_AT).max(word(log, TAIL_AT + 512)).min(1 << 61);
    let slots = SLOTS as u64;
    tail + (slot as u64 + slots - tail % slots) % slots
}

/// Puts an entry's bytes into a slot, with the right seal for it; `home`: and with the position that counts there.
fn put_entry(log: &mut [u8], slot: usize, bytes: &[u8], home: bool) {
    let position = position(log, slot);
    if let Some(place) = log.get_mut(at(slot)..at(slot) + STRIDE) {
        let len = place.len().min(bytes.len());
        place[..len].copy_from_slice(&bytes[..len]);
    }
    if home {
        put(log, at(slot), position, 8);
    }
    seal_entry(log, at(slot));
}

fn entry(log: &[u8], slot: usize) -> Vec<u8> {
    log.get(at(slot)..at(slot) + STRIDE).unwrap_or_default().to_vec()
}

fn slot(input: &mut Input<'_>) -> usize {
    input.below(SLOTS as u64) as usize
}

/// The number of a file that the table has, or any.
fn uid(log: &[u8], input: &mut Input<'_>) -> u64 {
    let line = input.below(2 * FILES as u64 + 1) as usize;
    if line == 2 * FILES { input.number() } else { word(log, TABLE_AT + line * PAGE) }
}

/// Changes entries, or names another file, consistently.
pub(super) fn change(log: &mut [u8], input: &mut Input<'_>) {
    match input.byte() % 8 {
        // One of them twice.
        0 => {
            let (from, to, choice) = (slot(input), slot(input), input.byte());
            let bytes = entry(log, from);
            put_entry(log, to, &bytes, choice & 1 == 0);
            if choice & 2 == 0 {
                // The copy becomes a later operation than the original.
                let position = word(log, at(to));
                put(log, at(to) + 8, position, 8);
                seal_entry(log, at(to));
            }
        }
        // Two change places.
        1 => {
            let (one, two, home) = (slot(input), slot(input), input.byte() & 1 == 0);
            let (first, second) = (entry(log, one), entry(log, two));
            put_entry(log, two, &first, home);
            put_entry(log, one, &second, home);
        }
        // Two change their places in the order.
        2 => {
            let (one, two) = (slot(input), slot(input));
            let (first, second) = (word(log, at(one) + 8), word(log, at(two) + 8));
            for (slot, order) in [(one, second), (two, first)] {
                put(log, at(slot) + 8, order, 8);
                seal_entry(log, at(slot));
            }
        }
        // An entry is cut, or gets any length.
        3 => {
            let (slot, len) = (slot(input), input.below(ENTRY as u64 + 2));
            put(log, at(slot) + 32, len, 4);
            seal_entry(log, at(slot));
        }
        // A table line with another file.
        4 => name(log, input),
        _ => operation(log, input),
    }
}

/// A line of the table for one of the files, in both copies.
fn name(log: &mut [u8], input: &mut Input<'_>) {
    let (slot, uid, state) = (input.below(FILES as u64) as usize, uid(log, input), 1 + input.below(10));
    // The inode of one of the files, or of one that does not exist.
    let inode = 1 + input.below(4);
    let mut path = || NAMES.get(input.below(NAMES.len() as u64 + 1) as usize).copied().unwrap_or("/slow/gone");
    let (path, before) = (path(), path());
    let (named, over) = (input.below(6), input.below(4));
    for copy in 0..2 {
        let line = TABLE_AT + (2 * slot + copy) * PAGE;
        let seq = word(log, line + 8);
        for (at, value) in [
            (0, uid),
            (8, seq),
            (16, 1),
            (24, inode),
            (32, 7),
            (40, 9),
            (56, 77),
            (4008, named),
            (4024, over),
            (4032, 7),
            (4040, 9),
            (4048, 77),
        ] {
            put(log, line + at, value, 8);
        }
        put(log, line + 48, state, 4);
        put(log, line + 52, path.len() as u64, 4);
        put(log, line + 4092, before.len() as u64, 4);
        let both = format!("{path}{before}");
        if let Some(place) = log.get_mut(line + 96..line + 96 + both.len()) {
            place.copy_from_slice(both.as_bytes());
        }
        seal_line(log, line);
    }
}

/// A whole operation, of one entry or several that agree with each other.
fn operation(log: &mut [u8], input: &mut Input<'_>) {
    let (first, parts, uid) = (slot(input), 1 + input.below(PARTS), uid(log, input));
    let (value, last, fill) = (input.number(), input.below(ENTRY as u64 + 1), input.byte());
    // Now and then from the end of what a file can be, where the parts pass it one after the other.
    let value = if fill & 1 == 0 { value } else { (i64::MAX as u64).wrapping_sub(value % (4 * ENTRY as u64)) };
    // Seldom a length, or that a file was renamed, which its number has to say as well.
    let kind = 1 + u64::from(fill & 14 == 14) + u64::from(fill & 30 == 30);
    let (value, earlier) = (if kind == 3 { value % 6 } else { value }, input.below(4));
    // Now and then of an epoch, in a log that may have some.
    let epochs = [12, PAGE + 12].into_iter().any(|at| half(log, at) & 1 != 0);
    if epochs && fill & 96 == 96 {
        return commit(log, first, uid, earlier, fill);
    }
    let kind = if epochs && fill & 32 != 0 && kind < 3 { kind + 3 } else { kind };
    for part in 0..parts {
        let slot = (first + part as usize) % SLOTS;
        let position = position(log, first) + part;
        let len = if part + 1 == parts { last } else { ENTRY as u64 };
        for (field, value) in [
            (0, position),
            (8, position.saturating_sub(earlier)),
            (16, uid),
            (24, value),
            (32, len),
            (36, kind),
            (40, 0),
            (48, 0),
        ] {
            put(log, at(slot) + field, value, 8);
        }
        put(log, at(slot) + 32, len, 4);
        put(log, at(slot) + 36, kind, 4);
        put(log, at(slot) + 40, part, 4);
        put(log, at(slot) + 44, parts, 4);
        if let Some(data) = log.get_mut(at(slot) + 64..at(slot) + STRIDE) {
            data.fill(fill);
        }
        seal_entry(log, at(slot));
    }
}

/// A Commit of so many changes, right before it, or somewhere.
fn commit(log: &mut [u8], slot: usize, uid: u64, count: u64, fill: u8) {
    let position = position(log, slot);
    let value = position.saturating_sub(count + u64::from(fill & 2));
    for (field, value) in [(0, position), (8, position), (16, uid), (24, value), (32, 16), (40, 0), (48, 0)] {
        put(log, at(slot) + field, value, 8);
    }
    put(log, at(slot) + 36, 6, 4);
    put(log, at(slot) + 44, 1, 4);
    put(log, at(slot) + 64, count, 8);
    // The line may belong to the first replay, or to one before.
    let before = if fill & 4 == 0 { 0 } else { value };
    put(log, at(slot) + 72, before, 8);
    seal_entry(log, at(slot));
}

/// Everything that the entries of a log do to the files that its table names: no replay may do anything else. The
/// result includes entries that do not count, before the tail or in an incomplete group.
pub(super) fn said(log: &[u8]) -> BTreeSet<(u64, Done)> {
    let is_sealed = |at: usize| entry_check(log, at).is_some_and(|check| check == word(log, at + 56));
    let mut said = BTreeSet::new();
    for slot in (0..SLOTS).filter(|slot| is_sealed(at(*slot))) {
        let (entry, part) = (at(slot), half(log, at(slot) + 40));
        let uid = word(log, entry + 16);
        let first = at((word(log, entry).wrapping_sub(part) % SLOTS as u64) as usize);
        if !is_sealed(first) || word(log, first + 16) != uid {
            continue;
        }
        let value = word(log, first + 24);
        let done = match half(log, entry + 36) & 0xffff {
            1 | 4 => {
                let len = half(log, entry + 32) as usize;
                let Some(data) = log.get(entry + 64..entry + 64 + len) else { continue };
                let Some(value) = value.checked_add(part * ENTRY as u64) else { continue };
                Some(Done::Write(value, data.to_vec()))
            }
            2 | 5 => Some(Done::Length(value)),
            // A name is no part of the file's content, and neither is a Commit.
            _ => None,
        };
        for line in (0..2 * FILES).map(|line| TABLE_AT + line * PAGE) {
            let is_sealed = line_check(log, line).is_some_and(|check| check == word(log, line + 88));
            if is_sealed && word(log, line) == uid {
                said.extend(done.clone().map(|done| (word(log, line + 24), done)));
                if matches!(half(log, line + 48), 4 | 5 | 9 | 10) {
                    // Emptied first, or made again.
                    said.insert((word(log, line + 24), Done::Length(0)));
                    said.extend(done.clone().map(|done| (made_for(uid), done)));
                    said.insert((made_for(uid), Done::Length(0)));
                }
            }
        }
    }
    said
}
