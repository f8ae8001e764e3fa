//! The bytes of stored pages that differ from those of the file: a commit of plain memory writes these, and no whole
//! pages.

use std::ops::Range;

use super::{Engine, Piece};
use crate::format::sidecar::PAGE;

/// Runs of bytes from this length on are written as they are: to compare them would take longer than to write them.
const LONG: usize = 16 * PAGE as usize;

/// Bytes that are compared at once.
const STEP: usize = 64;

/// Adds what the bytes at an offset change of the file: in each page, all from the first byte that differs to the last.
/// With the file's other bytes that is what was to be written, as long as the caller is the only one who writes. What
/// cannot be read, as that behind the file's end, counts as different.
pub(crate) fn add_changed<'a>(engine: &dyn Engine, offset: u64, bytes: &'a [u8], pieces: &mut Vec<Piece<'a>>) {
    let mut add =
        |range: Range<usize>| pieces.push(Piece { offset: offset + range.start as u64, bytes: &bytes[range] });
    if bytes.len() > LONG {
        return add(0..bytes.len());
    }
    let mut old = [0; PAGE as usize];
    let mut open: Option<Range<usize>> = None;
    let mut at = 0;
    while at < bytes.len() {
        let to_edge = PAGE - (offset + at as u64) % PAGE;
        let here = &bytes[at..bytes.len().min(at + to_edge as usize)];
        let old = &mut old[..here.len()];
        let changed = match engine.read_at(offset + at as u64, old) {
            Ok(()) => difference(old, here),
            Err(_) => Some(0..here.len()),
        };
        if let Some(changed) = changed.map(|changed| at + changed.start..at + changed.end) {
            // Changes that meet at the edge of two pages are one, as a long write is.
            open = match open {
                Some(open) if open.end == changed.start => Some(open.start..changed.end),
                before => {
                    before.into_iter().for_each(&mut add);
                    Some(changed)
                }
            };
        }
        at += here.len();
    }
    open.into_iter().for_each(add);
}

/// From the first byte that differs to the last; `None` if none does. Both have one length.
fn difference(old: &[u8], new: &[u8]) -> Option<Range<usize>> {
    let mut steps = old.chunks(STEP).zip(new.chunks(STEP));
    let first = steps.position(|(old, new)| old != new)? * STEP;
    let start = first + old[first..].iter().zip(&new[first..]).position(|(old, new)| old != new)?;
    let last = old.chunks(STEP).zip(new.chunks(STEP)).rposition(|(old, new)| old != new)? * STEP;
    let end = (last + STEP).min(old.len());
    let within = old[last..end].iter().zip(&new[last..end]).rposition(|(old, new)| old != new)?;
    Some(start..last + within + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_has_its_first_and_its_last_byte() {
        for len in [1, 63, 64, 65, 4096, 4001] {
            let old = vec![7; len];
            assert_eq!(difference(&old, &old), None, "{len} bytes");
            for (from, to) in [(0, 0), (0, len - 1), (len / 2, len / 2), (len / 3, len - 1), (len - 1, len - 1)] {
                let mut new = old.clone();
                (new[from], new[to]) = (8, 9);
                assert_eq!(difference(&old, &new), Some(from..to + 1), "{len} bytes, {from} and {to}");
            }
        }
    }
}
