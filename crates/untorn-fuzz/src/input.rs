//! Choices taken from a fuzzer's bytes.

/// Reads an input from its start; past its end every byte is 0.
pub(crate) struct Input<'a>(&'a [u8]);

/// Numbers at which sums overflow, shifts lose bits and limits lie.
const EXTREMES: [u64; 16] = [
    63,
    64,
    4095,
    4096,
    1 << 16,
    1 << 20,
    (1 << 31) - 1,
    (1 << 32) - 1,
    1 << 32,
    1 << 40,
    1 << 44,
    1 << 56,
    1 << 62,
    (1 << 62) + 1,
    u64::MAX - 1,
    u64::MAX,
];

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Input(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn little_endian(&mut self, width: usize) -> u64 {
        (0..width).fold(0, |word, n| word | u64::from(self.byte()) << (8 * n))
    }

    /// Below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let width = if bound <= 1 << 8 { 1 } else { 3 };
        self.little_endian(width) % bound
    }

    pub(crate) fn pick<'t, T>(&mut self, items: &'t [T]) -> &'t T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Any number, the interesting ones for one byte.
    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=127 => u64::from(small),
            extreme @ 128..=143 => EXTREMES[usize::from(extreme - 128)],
            144..=175 => self.little_endian(2),
            176..=207 => self.little_endian(4),
            _ => self.little_endian(8),
        }
    }

    /// Up to `most` bytes.
    pub(crate) fn bytes(&mut self, most: u64) -> Vec<u8> {
        let len = self.below(most + 1);
        (0..len).map(|_| self.byte()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_never_ends() {
        let mut input = Input::new(&[200, 1, 2, 255, 1]);
        assert_eq!(input.number(), 0x01_ff_02_01);
        assert!(input.is_empty());
        assert_eq!((input.byte(), input.number(), input.below(7)), (0, 0, 0));
        assert_eq!(Input::new(&[128]).number(), 63);
        assert_eq!(Input::new(&[3, 9, 8, 7, 6]).bytes(4), [9, 8, 7]);
    }
}
