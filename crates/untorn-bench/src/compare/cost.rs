//! The cost of slices to the system: the kernel's counts of this process.

use std::ops::{Add, Sub};
use std::path::Path;
use std::time::Duration;

use crate::cpu::process_time;
use crate::error::{Error, Result};
use crate::report::PerOp;

/// The kernel's counts of this process at one time, or the difference of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// System calls that read and write.
    reads: u64,
    writes: u64,
    /// Bytes that they wrote.
    bytes_by_calls: u64,
    /// Bytes of pages that were made dirty or written past the page cache.
    bytes_to_medium: u64,
    faults: u64,
    cpu: Duration,
}

impl Cost {
    /// The counts now, of all threads.
    pub(super) fn now() -> Result<Cost> {
        let io = read("/proc/self/io")?;
        let stat = read("/proc/self/stat")?;
        Ok(Cost { faults: faults(&stat), cpu: process_time(), ..of_io(&io) })
    }

    /// The difference of two looks in a row.
    pub(super) fn of_looking() -> Result<Cost> {
        let first = Cost::now()?;
        let looked = Cost::now()? - first;
        // The time of a look is short beside a slice, and varies.
        Ok(Cost { cpu: Duration::ZERO, faults: 0, ..looked })
    }

    /// For each of these operations.
    pub(super) fn per_op(&self, ops: u64) -> PerOp {
        let per = |count: u64| count as f64 / ops.max(1) as f64;
        PerOp {
            cpu_us: self.cpu.as_secs_f64() * 1e6 / ops.max(1) as f64,
            read_calls: per(self.reads),
            write_calls: per(self.writes),
            bytes_by_calls: per(self.bytes_by_calls),
            bytes_to_medium: per(self.bytes_to_medium),
            page_faults: per(self.faults),
            fences: None,
            flushes: None,
            bytes_stored: None,
        }
    }
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(|source| Error::io("read", Path::new(path), source))
}

fn of_io(text: &str) -> Cost {
    let count = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    };
    Cost {
        reads: count("syscr"),
        writes: count("syscw"),
        bytes_by_calls: count("wchar"),
        bytes_to_medium: count("write_bytes"),
        ..Cost::default()
    }
}

/// Minor and major page faults: fields 10 and 12, counted from the name, which may have spaces.
fn faults(stat: &str) -> u64 {
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    field(10) + field(12)
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            bytes_by_calls: self.bytes_by_calls + other.bytes_by_calls,
            bytes_to_medium: self.bytes_to_medium + other.bytes_to_medium,
            faults: self.faults + other.faults,
            cpu: self.cpu + other.cpu,
        }
    }
}

impl Sub for Cost {
    type Output = Cost;

    /// The kernel's counts of different files may be taken at slightly different times.
    fn sub(self, earlier: Cost) -> Cost {
        Cost {
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            bytes_by_calls: self.bytes_by_calls.saturating_sub(earlier.bytes_by_calls),
            bytes_to_medium: self.bytes_to_medium.saturating_sub(earlier.bytes_to_medium),
            faults: self.faults.saturating_sub(earlier.faults),
            cpu: self.cpu.saturating_sub(earlier.cpu),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_what_the_kernel_prints() {
        let io = "rchar: 1\nwchar: 20\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 60\ncancelled_write_bytes: 7\n";
        let expected = Cost { reads: 3, writes: 4, bytes_by_calls: 20, bytes_to_medium: 60, ..Cost::default() };
        assert_eq!(of_io(io), expected);
        assert_eq!(of_io(""), Cost::default());
        assert_eq!(faults("12 (a ) name) S 1 2 3 4 5 6 100 7 23 8 9"), 123);
        assert_eq!(faults("nothing"), 0);
    }

    #[test]
    fn costs_are_divided_by_operations() {
        let cost = Cost { writes: 30, cpu: Duration::from_micros(50), ..Cost::default() };
        let per_op = (cost + cost).per_op(20);
        assert_eq!((per_op.write_calls, per_op.cpu_us), (3.0, 5.0));
        assert_eq!(cost - (cost + cost), Cost::default());
        assert_eq!(Cost::default().per_op(0).write_calls, 0.0);
    }

    #[test]
    fn a_write_is_counted() {
        use std::io::Write as _;
        let mut file = tempfile::tempfile().unwrap();
        let before = Cost::now().unwrap();
        file.write_all(&[1; 1000]).unwrap();
        let cost = Cost::now().unwrap() - before;
        assert!(cost.writes >= 1 && cost.bytes_by_calls >= 1000, "{cost:?}");
    }
}
