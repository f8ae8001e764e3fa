//! The times of a program's writes, and the figures derived from them.

use serde_json::Value;

use crate::boost::median;

/// Bytes of each write.
pub(super) const BLOCK: u64 = 4096;
/// The length of a bin in nanoseconds.
const BIN: u64 = 100_000_000;
/// The burst is over after this many usual bins in a row.
const IN_A_ROW: usize = 3;
/// A bin is usual up to this multiple of the median.
const NORMAL: f64 = 2.0;
const MIB: f64 = (1 << 20) as f64;

/// When a write began and when it had returned, in nanoseconds of one clock.
type Write = (u64, u64);

/// A burst of writes, with a light load before and after.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    before: Vec<Write>,
    burst: Vec<Write>,
    /// When the burst was over, the sync after it included.
    end: u64,
    after: Vec<Write>,
}

/// A tenth of a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bin {
    /// Its beginning, in seconds since that of the burst.
    pub(super) seconds: f64,
    /// Number of writes that returned in it.
    pub(super) writes: u64,
    /// Their duration in milliseconds; `None` without a write.
    pub(super) mean: Option<f64>,
    pub(super) longest: Option<f64>,
}

fn millis(&(start, end): &Write) -> f64 {
    end.saturating_sub(start) as f64 / 1e6
}

impl Trace {
    /// Parses the output of `xtask/programs/sustained.py`.
    pub(super) fn of(said: &Value) -> Option<Self> {
        let writes = |name: &str| -> Option<Vec<Write>> {
            let pairs = said[name].as_array()?.iter();
            pairs.map(|pair| Some((pair[0].as_u64()?, pair[1].as_u64()?))).collect()
        };
        let trace = Trace {
            before: writes("before")?,
            burst: writes("burst")?,
            end: said["end"].as_u64()?,
            after: writes("after")?,
        };
        (!trace.burst.is_empty()).then_some(trace)
    }

    fn start(&self) -> u64 {
        self.burst[0].0
    }

    /// The number of writes before the burst, in it, and after it.
    pub(super) fn counts(&self) -> [usize; 3] {
        [self.before.len(), self.burst.len(), self.after.len()]
    }

    /// MiB per second over the whole burst.
    pub(super) fn rate(&self) -> f64 {
        rate(self.burst.len(), self.start(), self.end)
    }

    /// The same without the first writes, which a log of this size absorbs at once.
    pub(super) fn rate_beyond(&self, log: u64) -> Option<f64> {
        let first = usize::try_from(log / BLOCK).ok()?;
        let since = self.burst.get(first.checked_sub(1)?)?.1;
        let left = self.burst.len() - first;
        (left > 0).then(|| rate(left, since, self.end))
    }

    /// The median duration of a write before the burst, in milliseconds.
    pub(super) fn usual(&self) -> Option<f64> {
        median(&self.before.iter().map(millis).collect::<Vec<_>>())
    }

    /// Seconds from the burst's end until writes take as long as before it: the start of the first three tenths of a
    /// second in a row whose medians are at most twice the usual one. It is `None` if there are no such three.
    pub(super) fn back_to_normal(&self) -> Option<f64> {
        let usual = self.usual()?;
        let last = self.after.last()?.0.checked_sub(self.end)? / BIN;
        let mut bins = vec![Vec::new(); usize::try_from(last).ok()? + 1];
        for write in &self.after {
            bins[(write.0.saturating_sub(self.end) / BIN) as usize].push(millis(write));
        }
        let is_normal = |bin: &Vec<f64>| median(bin).is_some_and(|took| took <= NORMAL * usual);
        let first = bins.windows(IN_A_ROW).position(|bins| bins.iter().all(is_normal))?;
        Some(first as f64 * BIN as f64 / 1e9)
    }

    /// The longest duration of a write in the burst or after it, in milliseconds.
    pub(super) fn longest(&self) -> f64 {
        self.burst.iter().chain(&self.after).map(millis).fold(0.0, f64::max)
    }

    /// All of it, by the time at which writes returned.
    pub(super) fn over_time(&self) -> Vec<Bin> {
        let all = || self.before.iter().chain(&self.burst).chain(&self.after);
        let (Some(first), Some(last)) = (all().map(|write| write.1).min(), all().map(|write| write.1).max()) else {
            return Vec::new();
        };
        // One of them begins with the burst.
        let origin = self.start() - (self.start().saturating_sub(first)).div_ceil(BIN) * BIN;
        let mut bins = vec![Vec::new(); ((last - origin) / BIN + 1) as usize];
        for write in all() {
            bins[((write.1 - origin) / BIN) as usize].push(millis(write));
        }
        let bin = |(number, took): (usize, &Vec<f64>)| {
            let some = (!took.is_empty()).then_some(());
            Bin {
                seconds: (origin as f64 - self.start() as f64) / 1e9 + number as f64 * BIN as f64 / 1e9,
                writes: took.len() as u64,
                mean: some.map(|()| took.iter().sum::<f64>() / took.len() as f64),
                longest: some.map(|()| took.iter().copied().fold(0.0, f64::max)),
            }
        };
        bins.iter().enumerate().map(bin).collect()
    }
}

impl Bin {
    /// MiB per second.
    pub(super) fn rate(&self) -> f64 {
        (self.writes * BLOCK) as f64 / MIB / (BIN as f64 / 1e9)
    }
}

fn rate(writes: usize, from: u64, to: u64) -> f64 {
    (writes as u64 * BLOCK) as f64 / MIB / (to.saturating_sub(from).max(1) as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Writes of a millisecond each 10 ms, from one time on, so many.
    fn light(from: u64, count: u64) -> Vec<[u64; 2]> {
        (0..count).map(|nth| [from + nth * 10 * MS, from + (nth * 10 + 1) * MS]).collect()
    }

    #[test]
    fn rates_exclude_absorbed_bytes_and_stalls_delay_the_end() {
        let start = 5_000 * MS;
        // 256 writes in no time, then 256 of 2 ms each: 1 MiB, and 1 MiB in 512 ms.
        let mut burst: Vec<[u64; 2]> = (0..256).map(|nth| [start + nth, start + nth + 1]).collect();
        burst.extend((0..256).map(|nth| [start + 256 + nth * 2 * MS, start + 256 + (nth + 1) * 2 * MS]));
        let end = start + 256 + 512 * MS;
        let mut after = vec![[end + 10 * MS, end + 630 * MS]];
        after.extend(light(end + 640 * MS, 100));
        let said = json!({ "before": light(4_000 * MS, 100), "burst": burst, "end": end, "after": after });
        let trace = Trace::of(&said).expect("a trace");
        assert_eq!(trace.counts(), [100, 512, 101]);
        assert!((trace.rate() - 2.0 / 0.512).abs() < 0.01, "{}", trace.rate());
        let beyond = trace.rate_beyond(1 << 20).expect("a rate");
        assert!((beyond - 1.0 / 0.512).abs() < 0.01, "{beyond}");
        assert_eq!(trace.rate_beyond(2 << 20), None);
        assert_eq!((trace.usual(), trace.longest()), (Some(1.0), 620.0));
        let back = trace.back_to_normal().expect("an end");
        assert!((back - 0.6).abs() < 0.001, "{back}");

        let bins = trace.over_time();
        assert_eq!(bins.iter().map(|bin| bin.writes).sum::<u64>(), 713);
        let at = |seconds: f64| bins.iter().find(|bin| (bin.seconds - seconds).abs() < 0.01).expect("a bin");
        assert_eq!((at(-0.5).writes, at(-0.5).mean), (10, Some(1.0)));
        assert_eq!(at(0.2).writes, 50);
        assert_eq!((at(0.8).writes, at(0.8).longest), (0, None));
    }

    #[test]
    fn an_end_that_does_not_come_is_none() {
        let slow: Vec<[u64; 2]> = (0..50).map(|nth| [1_000 * MS + nth * 10 * MS, 1_009 * MS + nth * 10 * MS]).collect();
        let said = json!({ "before": light(0, 10), "burst": [[900 * MS, 901 * MS]], "end": 1_000 * MS, "after": slow });
        assert_eq!(Trace::of(&said).and_then(|trace| trace.back_to_normal()), None);
        assert!(Trace::of(&json!({ "before": [], "burst": [], "end": 1, "after": [] })).is_none());
    }
}
