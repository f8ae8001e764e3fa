//! Calm blocks: blocks that a reader may copy from the data file after it checks one bit.
//!
//! # Invariant
//!
//! While a block is *calm*, the data file has all of its visible bytes, none of an open epoch, and no thread stores
//! there. So if a reader finds a block calm before and after its copy, and never anything else in between, it has read
//! one state of the block, whole, and no older than any write that had returned.
//!
//! # Protocol
//!
//! - A thread that is about to change a block holds its lock. It *stirs* the block before it publishes any part of the
//!   change and before the first store to the data file. If several blocks change together, all are stirred before the
//!   first is published.
//! - A thread makes a block calm again while it holds the block's lock, when all the block's bytes are in the data file
//!   and no thread is about to store there. Before it clears the bit, it increments [`Moves`]. So a reader that saw the
//!   block calm before it was stirred, and sees it calm after its copy, is not deceived.
//! - A change of length makes [`Moves`] odd before it begins and even when it is done. Readers trust nothing meanwhile.
//!
//! A bit is close in memory where a block's own state would be far away: the bits of a 1 GiB file take 32 KiB, its
//! states 4 MiB. Waiting for a block's state would take as long as waiting for its bytes.

use std::io;
use std::ops::Range;

use crate::sys::sync::{AtomicU64, Ordering, Zeroed, ZeroedArray, fence};

/// What a reader goes by besides the bit: odd while the length changes, grown by 2 before a block counts as calm again.
///
/// It stands beside the length, which readers look at too.
#[derive(Debug, Zeroed)]
#[repr(transparent)]
pub(crate) struct Moves(AtomicU64);

impl Moves {
    /// What to find unchanged after a copy; `None` while the length changes. To be asked before the length is looked at.
    #[inline(always)]
    pub(crate) fn look(&self) -> Option<u64> {
        let moves = self.0.load(Ordering::Acquire);
        if moves & 1 == 0 { Some(moves) } else { None }
    }

    /// Says that the length is about to change. For one thread at a time.
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Says that the length has changed.
    pub(crate) fn end(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// What a reader of a calm block has to find unchanged after its copy.
#[derive(Clone, Copy)]
pub(crate) struct CalmGlimpse<'a> {
    word: &'a AtomicU64,
    /// The block's bit and those of its neighbours.
    bits: u64,
    moves: u64,
}

impl CalmGlimpse<'_> {
    /// Whether the block was calm from the glimpse until now, so that what was copied meanwhile is what it held. False also
    /// if a block near it was stirred meanwhile, which is seldom and saves telling the two apart.
    #[inline(always)]
    pub(crate) fn held(self, moves: &Moves) -> bool {
        // The loads of the copy must not move below these. Nor may the second load below move above the first: whoever
        // finds a block calm again finds that `moves` has grown.
        fence(Ordering::Acquire);
        self.word.load(Ordering::Acquire) == self.bits && moves.0.load(Ordering::Relaxed) == self.moves
    }
}

/// Which blocks of a file are calm. At first all are.
pub(crate) struct CalmBlocks {
    /// A bit for each block that is not calm.
    stirred: ZeroedArray<AtomicU64>,
}

impl CalmBlocks {
    /// For so many blocks.
    pub(crate) fn new(blocks: u64) -> io::Result<Self> {
        Ok(CalmBlocks { stirred: ZeroedArray::reserve(blocks.div_ceil(64) as usize)? })
    }

    /// What a reader of a block has to find unchanged after its copy; `None` if the block is not calm. `moves` is what the
    /// reader [looked at](Moves::look) before.
    #[inline(always)]
    pub(crate) fn glimpse(&self, block: u64, moves: u64) -> Option<CalmGlimpse<'_>> {
        let word = self.stirred.get((block / 64) as usize)?;
        let bits = word.load(Ordering::Acquire);
        if bits & 1 << (block % 64) == 0 { Some(CalmGlimpse { word, bits, moves }) } else { None }
    }

    /// Whether all of these blocks are calm. To be asked before a copy of them, after [`Moves::look`].
    pub(crate) fn are_calm(&self, blocks: Range<u64>) -> bool {
        let mut calm = true;
        each_word(blocks, |word, bits| {
            calm = calm && self.stirred.get(word).is_some_and(|word| word.load(Ordering::Acquire) & bits == 0);
        });
        calm
    }

    /// Whether blocks that were calm before a copy have been so until now. `moves_before` is what was looked at first.
    pub(crate) fn were_calm(&self, blocks: Range<u64>, moves: &Moves, moves_before: u64) -> bool {
        // As in [`CalmGlimpse::held`]: after the copy, and of the two loads the bits first.
        fence(Ordering::Acquire);
        self.are_calm(blocks) && moves.0.load(Ordering::Relaxed) == moves_before
    }

    /// Whether a block is not calm, for a guess only.
    #[inline]
    pub(crate) fn is_stirred(&self, block: u64) -> bool {
        let word = self.stirred.get((block / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (block % 64) != 0)
    }

    /// Makes a block count as stirred. For the holder of its lock.
    #[inline(always)]
    pub(crate) fn stir(&self, block: u64) {
        self.stir_in((block / 64) as usize, 1 << (block % 64));
    }

    /// The same for several blocks, for the holder of the lock that stands for all of them.
    #[inline]
    pub(crate) fn stir_all(&self, blocks: Range<u64>) {
        each_word(blocks, |word, bits| self.stir_in(word, bits));
    }

    #[inline(always)]
    fn stir_in(&self, word: usize, bits: u64) {
        // Loaded first: a block is mostly stirred already, and a load takes no cache line away from those who read.
        if let Some(word) = self.stirred.get(word)
            && word.load(Ordering::Acquire) & bits != bits
        {
            word.fetch_or(bits, Ordering::AcqRel);
        }
        // Whoever reads a byte that is stored from here on finds the bit when it looks again. On x86 this costs nothing.
        fence(Ordering::Release);
    }

    /// Makes blocks count as calm again. For the holder of the lock that stands for all of them, who has seen that they are.
    pub(crate) fn calm_down(&self, blocks: Range<u64>, moves: &Moves) {
        moves.0.fetch_add(2, Ordering::AcqRel);
        each_word(blocks, |word, bits| {
            if let Some(word) = self.stirred.get(word) {
                word.fetch_and(!bits, Ordering::AcqRel);
            }
        });
    }
}

/// Calls `each` with every word that has bits of these blocks, and with those bits.
#[inline]
fn each_word(blocks: Range<u64>, mut each: impl FnMut(usize, u64)) {
    for word in blocks.start / 64..blocks.end.div_ceil(64) {
        let (from, to) = (blocks.start.max(word * 64), blocks.end.min(word * 64 + 64));
        let bits = u64::MAX.checked_shr(64 - (to - from) as u32).unwrap_or(0);
        each(word as usize, bits << (from % 64));
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::sync::zeroed;

    /// Which of the first 200 blocks are calm, as a reader finds them.
    fn calm_ones(blocks: &CalmBlocks, moves: &Moves) -> Vec<u64> {
        let look = moves.look().unwrap();
        (0..200).filter(|&block| blocks.glimpse(block, look).is_some()).collect()
    }

    #[test]
    fn ranges_are_stirred_and_calmed_to_the_block() {
        let moves: Moves = zeroed();
        for range in [0..1, 3..4, 0..64, 63..65, 64..128, 5..133, 128..200, 7..7] {
            let blocks = CalmBlocks::new(200).unwrap();
            blocks.stir_all(range.clone());
            let rest: Vec<u64> = (0..200).filter(|block| !range.contains(block)).collect();
            assert_eq!(calm_ones(&blocks, &moves), rest, "{range:?} stirred");
            assert!((0..200).all(|block| blocks.is_stirred(block) == range.contains(&block)), "{range:?}");

            let blocks = CalmBlocks::new(200).unwrap();
            (0..200).for_each(|block| blocks.stir(block));
            blocks.calm_down(range.clone(), &moves);
            assert_eq!(calm_ones(&blocks, &moves), range.clone().collect::<Vec<_>>(), "{range:?} calmed");
        }
    }

    #[test]
    fn blocks_were_calm_only_if_none_was_stirred_meanwhile() {
        let (blocks, moves) = (CalmBlocks::new(200).unwrap(), zeroed::<Moves>());
        let look = || moves.look().unwrap();
        let before = look();
        assert!(blocks.are_calm(0..200) && blocks.were_calm(0..200, &moves, before));
        blocks.stir(130);
        assert!(blocks.are_calm(3..130) && blocks.are_calm(131..200) && !blocks.are_calm(129..131));
        assert!(blocks.were_calm(3..130, &moves, before) && !blocks.were_calm(3..131, &moves, before));
        blocks.calm_down(130..131, &moves);
        assert!(blocks.are_calm(0..200) && !blocks.were_calm(0..200, &moves, before), "stirred and calm again");
        assert!(blocks.were_calm(0..200, &moves, look()) && !blocks.are_calm(100..20_000));
    }

    #[test]
    fn a_block_beyond_all_is_never_calm() {
        let (blocks, moves) = (CalmBlocks::new(64).unwrap(), zeroed::<Moves>());
        blocks.stir(64);
        blocks.calm_down(64..65, &moves);
        assert!(blocks.glimpse(64, 0).is_none() && blocks.glimpse(u64::MAX, 0).is_none());
    }

    #[test]
    fn a_glimpse_ends_with_whatever_happens_near() {
        let (blocks, moves) = (CalmBlocks::new(64).unwrap(), zeroed::<Moves>());
        let glimpse = |block| blocks.glimpse(block, moves.look().unwrap()).unwrap();
        let before = glimpse(3);
        assert!(before.held(&moves));
        blocks.stir(3);
        assert!(!before.held(&moves), "stirred");
        blocks.calm_down(3..4, &moves);
        assert!(!before.held(&moves), "stirred and calm again");

        let before = glimpse(3);
        moves.begin();
        assert!(!before.held(&moves) && moves.look().is_none(), "the length changes");
        moves.end();
        assert!(!before.held(&moves), "the length has changed");
        assert!(glimpse(3).held(&moves));
    }
}
