//! A small seeded generator: every random decision of a run follows from one printed number.

/// SplitMix64: 64 bits of state, good enough mixing to be seeded with consecutive numbers.
///
/// Source: Steele, Lea, Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// One round of mixing, a bijection on 64 bits.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Rng {
    /// A generator that follows from `seed` alone.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// A generator for part `index` of what `seed` stands for. Parts do not depend on how much of another part was
    /// used, so leaving one out does not change the others.
    pub fn derive(seed: u64, index: u64) -> Self {
        Rng(mix(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ mix(index.wrapping_mul(0xd134_2543_de82_ef95))))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which must not be 0. The bias of the multiplication is below 2⁻³² for small bounds.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One element of a slice that is not empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Fills a buffer.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}
