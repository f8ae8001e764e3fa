//! The board: which files may be managed, for processes to look at before they ask.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use untorn_wire::{BOARD_BYTES, board_bit};

/// The board, kept by the server alone. Its caller serialises.
#[derive(Debug)]
pub(crate) struct Board {
    file: File,
    bits: [u8; BOARD_BYTES],
    /// How many files stand for each bit that is set.
    counts: HashMap<usize, u32>,
}

impl Board {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().write(true).create_new(true).open(path)?;
        let board = Board { file, bits: [0; BOARD_BYTES], counts: HashMap::new() };
        board.file.write_all_at(&board.bits, 0)?;
        Ok(board)
    }

    /// A file is managed from now on.
    pub(crate) fn add(&mut self, key: (u64, u64)) -> io::Result<()> {
        let bit = board_bit(key.0, key.1);
        *self.counts.entry(bit).or_default() += 1;
        self.bits[bit / 8] |= 1 << (bit % 8);
        self.file.write_all_at(&self.bits[bit / 8..=bit / 8], (bit / 8) as u64)
    }

    /// A file is plain again. That the bit stays set where this fails costs a question and nothing more.
    pub(crate) fn remove(&mut self, key: (u64, u64)) {
        let bit = board_bit(key.0, key.1);
        let Some(count) = self.counts.get_mut(&bit) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&bit);
            self.bits[bit / 8] &= !(1 << (bit % 8));
            let _ = self.file.write_all_at(&self.bits[bit / 8..=bit / 8], (bit / 8) as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_stays_set_as_long_as_one_file_stands_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("board");
        let mut board = Board::create(&path).unwrap();
        let other = (8..).find(|inode| board_bit(1, *inode) == board_bit(1, 7)).unwrap();
        let byte = || std::fs::read(&path).unwrap()[board_bit(1, 7) / 8];
        board.add((1, 7)).unwrap();
        board.add((1, other)).unwrap();
        board.remove((1, 7));
        assert_ne!(byte(), 0);
        board.remove((1, other));
        assert_eq!(byte(), 0);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), BOARD_BYTES as u64);
    }
}
