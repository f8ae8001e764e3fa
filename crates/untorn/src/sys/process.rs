//! Which process this is, told apart from the one it was forked from.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ZeroedArray;

/// A word that the kernel wipes in a forked child; `None` if there is no memory for it.
static WORD: LazyLock<Option<ZeroedArray<AtomicU64>>> = LazyLock::new(|| ZeroedArray::reserve_private(1).ok());

/// Numbers given out, in this process and in those it descends from.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A number that is this process's own: a forked child has another than its parent, and no call of the system is needed
/// to tell. Never 0. Where the kernel does not wipe memory on fork, a child keeps its parent's.
pub(crate) fn incarnation() -> u64 {
    let Some(word) = WORD.as_ref().map(|word| &word[0]) else { return u64::MAX };
    match word.load(Ordering::Relaxed) {
        0 => {
            // The child has a copy of the count, so its number is above every number of its ancestors.
            let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            word.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|earlier| earlier, |_| number)
        }
        number => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_is_one_incarnation() {
        let mine = incarnation();
        assert_ne!(mine, 0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(incarnation(), mine));
            }
        });
    }
}
