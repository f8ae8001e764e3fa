//! How a side waits for the other side.

/// How many times a waiting side polls for bytes of the other side before it sleeps: some 150 µs in all. That is as
/// long as a round trip for which a core must be woken on each side, if both have nothing else to do. With less, two
/// sides that make some system calls between round trips never stay awake for each other.
const LOOKS: u32 = 400;

/// Decides whether to stay awake while waiting for the other side.
///
/// An answer takes a few microseconds if both sides are awake, and some 100 if a core must be woken for each. But a
/// side that stays awake in vain has taken the core from another thread, perhaps from the very side it waits for. So it
/// then sleeps at once for some waits, for twice as many each time, and starts again when staying awake paid off.
///
/// All zeros is the state before the first wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    /// Waits in which to sleep at once.
    sleeps: u16,
    /// How often in a row it stayed awake in vain, up to [`WORST`].
    in_vain: u16,
}

/// It stays awake in one of so many waits, as a power of two, if that is always in vain.
const WORST: u16 = 8;

impl Patience {
    /// From [`bits`](Patience::bits).
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        Patience { sleeps: bits as u16, in_vain: (bits >> 16) as u16 }
    }

    /// For memory that a forked child finds zeroed.
    #[must_use]
    pub fn bits(self) -> u32 {
        u32::from(self.in_vain) << 16 | u32::from(self.sleeps)
    }

    /// Waits: polls with `look` as long as that seems worth it. The caller then takes what is there, and sleeps if
    /// there is nothing.
    pub fn wait(&mut self, mut look: impl FnMut() -> bool) {
        if self.sleeps > 0 {
            self.sleeps -= 1;
            return;
        }
        for _ in 0..LOOKS {
            if look() {
                self.in_vain = 0;
                return;
            }
            core::hint::spin_loop();
        }
        self.in_vain = (self.in_vain + 1).min(WORST);
        self.sleeps = (1 << self.in_vain) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks that waits cost of which the other side answers to look `answered`, counted from 1.
    fn looks(patience: &mut Patience, answered: u32) -> u32 {
        let mut looks = 0;
        patience.wait(|| {
            looks += 1;
            looks == answered
        });
        looks
    }

    #[test]
    fn a_waiter_that_is_answered_soon_stays_awake() {
        let mut patience = Patience::default();
        assert_eq!([(); 9].map(|()| looks(&mut patience, 7)), [7; 9]);
    }

    #[test]
    fn a_waiter_in_vain_sleeps_more_often_and_then_starts_anew() {
        let mut patience = Patience::default();
        let awake: Vec<usize> = (0..2000).filter(|_| looks(&mut patience, LOOKS + 1) > 0).collect();
        assert_eq!(awake[..5], [0, 2, 6, 14, 30]);
        assert_eq!(awake[awake.len() - 1] - awake[awake.len() - 2], 1 << WORST);
        let mut slept = 0;
        while looks(&mut patience, 1) == 0 {
            slept += 1;
        }
        assert!(slept < 1 << WORST, "{slept}");
        assert_eq!([(); 9].map(|()| looks(&mut patience, LOOKS)), [LOOKS; 9]);
    }

    #[test]
    fn patience_is_kept_in_a_word() {
        let mut patience = Patience::from_bits(0);
        assert_eq!(patience, Patience::default());
        for _ in 0..700 {
            looks(&mut patience, LOOKS + 1);
            assert_eq!(Patience::from_bits(patience.bits()), patience);
        }
    }
}
