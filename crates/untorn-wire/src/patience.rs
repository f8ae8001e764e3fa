//! How whoever waits for the other side waits.

/// How often whoever stays awake looks for bytes of the other side before it sleeps after all: some 150 µs in all, as long as a round
/// trip takes for which a core has to be waked on each side, where both have nothing else to do. Less, and two sides never stay awake
/// for each other that make some system calls between one round trip and the next.
const LOOKS: u32 = 400;

/// Whether to stay awake while waiting for the other side.
///
/// An answer is there after a few microseconds if both sides are awake, and after some 100 where a core has to be waked for each. Who
/// stays awake in vain has taken the core from somebody else, though, perhaps from the very side it waits for. So it then sleeps
/// at once for some waits, for twice as many each time, and begins anew when it was worth it.
///
/// All zeros are one that has waited for nothing yet.
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

    /// Waits: looks with `look` whether there is something, as long as that seems to be worth it. The caller then takes what there
    /// is, and sleeps if there is nothing.
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
    fn who_is_answered_soon_stays_awake() {
        let mut patience = Patience::default();
        assert_eq!([(); 9].map(|()| looks(&mut patience, 7)), [7; 9]);
    }

    #[test]
    fn who_waits_in_vain_sleeps_ever_more_often_and_begins_anew() {
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
    fn it_is_kept_in_a_word() {
        let mut patience = Patience::from_bits(0);
        assert_eq!(patience, Patience::default());
        for _ in 0..700 {
            looks(&mut patience, LOOKS + 1);
            assert_eq!(Patience::from_bits(patience.bits()), patience);
        }
    }
}
