//! Forged lines of a hybrid log: headers and records with any field changed, and whole epochs that add up.

use twox_hash::XxHash3_64;

use crate::forge::{Run, field, newer_retirement, put, seed_at, word};
use crate::input::Input;
use crate::pair::{CHUNKS_AT, Forged, LANES_AT, LEN, PAGE, SLOTS};

/// Bytes of a chunk: a page of headers, and its units.
const CHUNK: usize = PAGE + SLOTS * PAGE;
const RECORDS: usize = 64;
const UNDO: u64 = 1;

/// The fields of a header, which a record's are among.
const FIELDS: [Run; 8] =
    [(0, 8, 2), (16, 2, 1), (16, 8, 1), (18, 1, 2), (20, 4, 2), (24, 8, 1), (28, 4, 1), (32, 8, 4)];

fn headers(side: &[u8]) -> impl Iterator<Item = usize> + use<> {
    let chunks = side.len().saturating_sub(CHUNKS_AT) / CHUNK;
    (0..chunks).flat_map(|chunk| (0..SLOTS).map(move |unit| CHUNKS_AT + chunk * CHUNK + unit * 64))
}

fn record_at(epoch: u64) -> usize {
    LANES_AT + (epoch % RECORDS as u64) as usize * 64
}

/// The offsets of a log's lines: records and headers.
pub(crate) fn lines(side: &[u8]) -> impl Iterator<Item = usize> + use<> {
    (0..RECORDS).map(|n| LANES_AT + n * 64).chain(headers(side))
}

fn check(side: &[u8], at: usize) -> u64 {
    XxHash3_64::oneshot_with_seed(seed_at(side, at), side.get(at..at + 56).unwrap_or_default())
}

fn seal(side: &mut [u8], at: usize) {
    let check = check(side, at);
    put(side, at + 56, check, 8);
}

/// A line that there is, rather than any.
fn some(side: &[u8], input: &mut Input<'_>) -> usize {
    let all: Vec<usize> = lines(side).collect();
    let there: Vec<usize> = all.iter().copied().filter(|&at| word(side, at) != 0).collect();
    let any = there.is_empty() || input.byte().is_multiple_of(4);
    *input.pick(if any { &all } else { &there })
}

/// Changes a field of a line, or puts what stands in one into another.
pub(crate) fn line(side: &mut [u8], input: &mut Input<'_>) {
    let at = some(side, input);
    if !input.byte().is_multiple_of(4) {
        field(side, &FIELDS, [at, at], input, seal);
        return;
    }
    let from = some(side, input);
    let Some(kept) = side.get(from..from + 64).map(<[u8]>::to_vec) else { return };
    if let Some(place) = side.get_mut(at..at + 64) {
        place.copy_from_slice(&kept);
        seal(side, at);
    }
}

/// Some entries, and now and then a record over all that its epoch has.
pub(crate) fn epoch(forged: &mut Forged, input: &mut Input<'_>) {
    let Forged { side, data, .. } = forged;
    let cut = word(side, newer_retirement(side) + 8);
    let epoch = cut.wrapping_add(u64::from(input.byte() % 12) + 1);
    let shape = input.byte();
    let proves = if shape & 1 == 0 { cut } else { epoch.wrapping_sub(1 + u64::from(shape / 64)) };
    let places: Vec<usize> = headers(side).collect();
    // An earlier epoch is known to have been durable, so none of its lines may be missing: most new lines go to free
    // places.
    let free: Vec<usize> = places.iter().copied().filter(|&at| word(side, at) == 0).collect();
    for _ in 0..input.below(6) {
        if places.is_empty() {
            break;
        }
        let any = free.is_empty() || input.byte().is_multiple_of(4);
        let at = *input.pick(if any { &places } else { &free });
        let class = u64::from(input.byte() % 5).saturating_sub(1);
        let block = input.below(12) >> class << class;
        let flags = u64::from(input.byte() % 8);
        let offset = input.below(PAGE as u64);
        let len = input.below((PAGE as u64) << class) + 1 - u64::from(input.byte() % 2);
        // The header's unit, behind the page of headers of its chunk.
        let (chunk, unit) = ((at - CHUNKS_AT) / CHUNK, (at - CHUNKS_AT) % CHUNK / 64);
        let start = CHUNKS_AT + chunk * CHUNK + PAGE + unit * PAGE + offset as usize;
        let sum = XxHash3_64::oneshot(side.get(start..start + len as usize).unwrap_or_default());
        let home = block as usize * PAGE + offset as usize;
        let after = XxHash3_64::oneshot(data.get(home..home + len as usize).unwrap_or_default());
        let after = if flags & UNDO == 0 { 0 } else { after };
        let fields = [(0, epoch), (8, block), (16, flags), (24, len), (32, sum), (40, after), (48, proves)];
        for (place, value) in fields {
            put(side, at + place, value, 8);
        }
        put(side, at + 18, class, 1);
        put(side, at + 20, offset, 4);
        put(side, at + 24, len, 4);
        seal(side, at);
    }
    if shape & 6 != 0 {
        let len = if shape & 8 == 0 { LEN as u64 } else { input.below(16 * PAGE as u64) };
        record(side, epoch, len, u64::from(shape & 16 == 0), proves);
    }
}

/// The record of an epoch, which adds up all its headers that are whole.
fn record(side: &mut [u8], epoch: u64, len: u64, flags: u64, proves: u64) {
    let mine = headers(side).filter(|&at| word(side, at) == epoch && check(side, at) == word(side, at + 56));
    let mine: Vec<u64> = mine.map(|at| word(side, at + 56)).collect();
    let sum = mine.iter().copied().fold(0, u64::wrapping_add);
    let at = record_at(epoch);
    let fields = [(0, epoch), (8, u64::MAX), (16, flags), (24, len), (32, mine.len() as u64), (40, sum), (48, proves)];
    for (place, value) in fields {
        put(side, at + place, value, 8);
    }
    seal(side, at);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::{LOGS, PATH, Pair};

    fn replayed(pair: &Pair, forged: &Forged) -> u64 {
        let file = pair.options.open_on(pair.with(forged).unwrap(), PATH).unwrap();
        file.info().recovery.replayed
    }

    /// A fuzzer whose seals are wrong would never get past the first check.
    #[test]
    fn a_made_up_epoch_that_adds_up_is_replayed() {
        let mut more = 0;
        for pair in LOGS.iter() {
            let closed = pair.side[111] == 3 && pair.side[PAGE + 111] == 3;
            let before = replayed(pair, &pair.forged());
            for seed in 0..60 {
                let mut choices = vec![0; 60];
                untorn_sim::Rng::new(seed).fill(&mut choices);
                // This choice makes an epoch with a record that proves all epochs before it.
                choices[..2].copy_from_slice(&[0, 3]);
                let mut forged = pair.forged();
                epoch(&mut forged, &mut Input::new(&choices));
                let after = pair.options.open_on(pair.with(&forged).unwrap(), PATH);
                let after = after.map_or(0, |file| file.info().recovery.replayed);
                assert!(!closed || after == 0, "an entry counts after a clean close");
                more += u64::from(after > before);
            }
        }
        assert!(more > 30, "{more} epochs were replayed");
    }

    #[test]
    fn a_line_that_is_sealed_anew_is_an_honest_one() {
        for pair in LOGS.iter() {
            let mut sealed = pair.side.clone();
            let there: Vec<usize> = lines(&sealed).filter(|&at| word(&sealed, at) != 0).collect();
            for &at in &there {
                seal(&mut sealed, at);
            }
            let open = pair.side[111] != 3 || pair.side[PAGE + 111] != 3;
            assert!(!open || there.len() >= 8, "{} lines", there.len());
            assert!(!open || sealed == pair.side, "a seal is another than untorn's");
        }
    }
}
