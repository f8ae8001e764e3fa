//! YCSB: the core workloads A to F on records of ten fields with 100 bytes each.
//!
//! Source: Cooper et al., "Benchmarking cloud serving systems with YCSB", SoCC 2010, and the files `workloada` to
//! `workloadf` of its implementation.
//!
//! Two things differ. A workload that inserts draws its keys from the records that are there at the time, where YCSB
//! draws from the expected number and draws again; and a zipfian draw is exact, where YCSB computes with a constant for
//! 10,000,000,000 items.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use rand::RngExt;
use rand::distr::Distribution;
use rand::rngs::SmallRng;
use rand_distr::Zipf;

use super::{generator, text};

/// Fields of a record, and bytes of each.
pub(crate) const FIELDS: usize = 10;
pub(crate) const FIELD: usize = 100;

/// Records of a scan, at most.
const LONGEST_SCAN: u32 = 100;

/// The skew of zipfian draws.
const SKEW: f64 = 0.99;

/// Items of the zipfian draw whose ranks are scattered over the records.
const SCATTERED: f64 = 1e10;

/// A core workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads of the latest records, 5 % inserts.
    D,
    /// 95 % short scans, 5 % inserts.
    E,
    /// Half reads, half updates of a record that was read before.
    F,
}

impl Workload {
    /// All of them, in the order that YCSB recommends for one loaded table: those that insert come last.
    pub(crate) const ALL: [Workload; 6] =
        [Workload::A, Workload::B, Workload::C, Workload::F, Workload::D, Workload::E];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Workload::A => "ycsb-a",
            Workload::B => "ycsb-b",
            Workload::C => "ycsb-c",
            Workload::D => "ycsb-d",
            Workload::E => "ycsb-e",
            Workload::F => "ycsb-f",
        }
    }
}

/// A record's fields.
pub(crate) type Fields = [String; FIELDS];

/// One operation of a client. Keys are numbers; [`name`] gives them their form.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    /// Read every field.
    Read { key: u64 },
    /// Change one field.
    Update { key: u64, field: usize, value: String },
    /// Add a record. [`Population::acknowledge`] is to be called afterwards.
    Insert { key: u64, fields: Box<Fields> },
    /// Read so many records in the order of their names, from this one on.
    Scan { from: u64, count: u32 },
    /// Read every field, then change one.
    Modify { key: u64, field: usize, value: String },
}

/// The name of a record. Consecutive numbers are far apart in the order of names.
pub(crate) fn name(key: u64) -> String {
    format!("user{}", fnv(key))
}

/// A record's fields when it is new.
pub(crate) fn fields(rng: &mut SmallRng) -> Fields {
    std::array::from_fn(|_| text(rng, FIELD))
}

/// FNV-1a of a number's bytes, the sign bit cleared, with which YCSB scatters.
fn fnv(number: u64) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    number.to_le_bytes().into_iter().fold(0xcbf2_9ce4_8422_2325, step) >> 1
}

/// The records that there are. All clients of a database share it.
#[derive(Debug)]
pub(crate) struct Population(Mutex<Inserts>);

#[derive(Debug)]
struct Inserts {
    /// The number of the next record.
    next: u64,
    /// All records below this number are there.
    there: u64,
    /// Records above that, which are there too.
    ahead: BTreeSet<u64>,
}

impl Population {
    /// So many records are loaded, with the numbers from 0 on.
    pub(crate) fn new(records: u64) -> Self {
        Population(Mutex::new(Inserts { next: records, there: records, ahead: BTreeSet::new() }))
    }

    /// All records below this number are there.
    pub(crate) fn there(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).there
    }

    fn take(&self) -> u64 {
        let mut inserts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inserts.next += 1;
        inserts.next - 1
    }

    /// The record of an insert is there.
    pub(crate) fn acknowledge(&self, key: u64) {
        let mut inserts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inserts.ahead.insert(key);
        while inserts.ahead.first() == Some(&inserts.there) {
            inserts.ahead.pop_first();
            inserts.there += 1;
        }
    }
}

/// The operations of one client.
#[derive(Debug)]
pub(crate) struct Client<'a> {
    workload: Workload,
    population: &'a Population,
    rng: SmallRng,
    scattered: Zipf<f64>,
}

impl<'a> Client<'a> {
    pub(crate) fn new(workload: Workload, population: &'a Population, seed: u64, client: u64) -> Self {
        let scattered = zipf(SCATTERED);
        Client { workload, population, rng: generator(seed, client), scattered }
    }

    pub(crate) fn next(&mut self) -> Operation {
        let share = self.rng.random_range(0..100);
        match self.workload {
            Workload::A if share < 50 => self.read(),
            Workload::B if share < 95 => self.read(),
            Workload::F if share < 50 => self.read(),
            Workload::C => self.read(),
            Workload::A | Workload::B => {
                let (key, field, value) = self.change();
                Operation::Update { key, field, value }
            }
            Workload::F => {
                let (key, field, value) = self.change();
                Operation::Modify { key, field, value }
            }
            Workload::D if share < 95 => Operation::Read { key: self.latest() },
            Workload::E if share < 95 => {
                let count = self.rng.random_range(1..=LONGEST_SCAN);
                Operation::Scan { from: self.key(), count }
            }
            Workload::D | Workload::E => {
                let key = self.population.take();
                Operation::Insert { key, fields: Box::new(fields(&mut self.rng)) }
            }
        }
    }

    fn read(&mut self) -> Operation {
        Operation::Read { key: self.key() }
    }

    fn change(&mut self) -> (u64, usize, String) {
        (self.key(), self.rng.random_range(0..FIELDS), text(&mut self.rng, FIELD))
    }

    /// A few records most of the time, spread over all.
    fn key(&mut self) -> u64 {
        let rank = self.scattered.sample(&mut self.rng) as u64 - 1;
        fnv(rank) % self.population.there()
    }

    /// The last record most often.
    fn latest(&mut self) -> u64 {
        let there = self.population.there();
        there - (zipf(there as f64).sample(&mut self.rng) as u64).clamp(1, there)
    }
}

/// Draws ranks from 1 on. `count` is at least 1.
fn zipf(count: f64) -> Zipf<f64> {
    Zipf::new(count.max(1.0), SKEW).expect("the count and the skew are positive")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn operations(workload: Workload, records: u64, count: usize) -> (Population, Vec<Operation>) {
        let population = Population::new(records);
        let drawn = {
            let mut client = Client::new(workload, &population, 1, 0);
            let mut draw = || {
                let operation = client.next();
                if let Operation::Insert { key, .. } = &operation {
                    population.acknowledge(*key);
                }
                operation
            };
            (0..count).map(|_| draw()).collect()
        };
        (population, drawn)
    }

    fn share(drawn: &[Operation], is: impl Fn(&Operation) -> bool) -> f64 {
        drawn.iter().filter(|operation| is(operation)).count() as f64 / drawn.len() as f64
    }

    #[test]
    fn each_workload_has_its_mix() {
        let read = |operation: &Operation| matches!(operation, Operation::Read { .. });
        for workload in Workload::ALL {
            let (population, drawn) = operations(workload, 1000, 20_000);
            let rest = |is: fn(&Operation) -> bool| share(&drawn, is);
            let (reads, others) = match workload {
                Workload::A => (0.5, rest(|operation| matches!(operation, Operation::Update { .. }))),
                Workload::B => (0.95, rest(|operation| matches!(operation, Operation::Update { .. }))),
                Workload::C => (1.0, 0.0),
                Workload::D => (0.95, rest(|operation| matches!(operation, Operation::Insert { .. }))),
                Workload::E => (0.0, rest(|operation| matches!(operation, Operation::Insert { .. }))),
                Workload::F => (0.5, rest(|operation| matches!(operation, Operation::Modify { .. }))),
            };
            let scans = rest(|operation| matches!(operation, Operation::Scan { .. }));
            assert!((share(&drawn, read) - reads).abs() < 0.02, "{workload:?}");
            assert!((share(&drawn, read) + others + scans - 1.0).abs() < 1e-9, "{workload:?}");
            assert!(workload != Workload::E || (scans - 0.95).abs() < 0.02);
            let inserts = (share(&drawn, |operation| matches!(operation, Operation::Insert { .. })) * 2e4).round();
            assert_eq!(population.there(), 1000 + inserts as u64, "{workload:?}");
        }
    }

    /// Of 10^10 items with a skew of 0.99 the first takes 1/26.47, and the first ten take 11.2 %, by the law.
    #[test]
    fn keys_are_drawn_by_the_law_and_scattered() {
        let (_, drawn) = operations(Workload::C, 1_000_000, 200_000);
        let mut counts = BTreeMap::new();
        for operation in &drawn {
            let Operation::Read { key } = operation else { panic!("{operation:?}") };
            assert!(*key < 1_000_000);
            *counts.entry(*key).or_insert(0_u32) += 1;
        }
        let mut most: Vec<(u32, u64)> = counts.iter().map(|(key, count)| (*count, *key)).collect();
        most.sort_unstable_by(|one, other| other.cmp(one));
        let of = |count: u32| f64::from(count) / 200_000.0;
        assert!((of(most[0].0) - 1.0 / 26.469).abs() < 0.003, "{}", of(most[0].0));
        let ten: u32 = most[..10].iter().map(|(count, _)| count).sum();
        assert!((of(ten) - 0.112).abs() < 0.01, "{}", of(ten));
        assert_eq!(most[0].1, fnv(0) % 1_000_000);
        // The lower and the upper half of the keys have about as many of the others.
        let low: u32 = most[100..].iter().filter(|(_, key)| *key < 500_000).map(|(count, _)| count).sum();
        let all: u32 = most[100..].iter().map(|(count, _)| count).sum();
        assert!((f64::from(low) / f64::from(all) - 0.5).abs() < 0.05);
    }

    #[test]
    fn the_latest_records_are_read_most() {
        let population = Population::new(1000);
        let mut client = Client::new(Workload::D, &population, 7, 3);
        let mut ages = Vec::new();
        while ages.len() < 20_000 {
            match client.next() {
                Operation::Read { key } => ages.push(population.there() - 1 - key),
                Operation::Insert { key, .. } => population.acknowledge(key),
                other => panic!("{other:?}"),
            }
        }
        // Of 1,000 to 2,000 items the first takes 13 to 12 %.
        let first = ages.iter().filter(|age| **age == 0).count() as f64 / ages.len() as f64;
        assert!((0.11..0.15).contains(&first), "{first}");
        assert!(ages.iter().any(|age| *age > 500));
    }

    #[test]
    fn a_record_counts_once_those_before_it_are_there() {
        let population = Population::new(2);
        let (first, second) = (population.take(), population.take());
        assert_eq!((first, second), (2, 3));
        population.acknowledge(second);
        assert_eq!(population.there(), 2);
        population.acknowledge(first);
        assert_eq!(population.there(), 4);
    }

    #[test]
    fn scans_have_every_length_and_one_record_is_enough() {
        let (_, drawn) = operations(Workload::E, 1, 20_000);
        let lengths: BTreeSet<u32> = drawn
            .iter()
            .filter_map(|operation| match operation {
                Operation::Scan { count, .. } => Some(*count),
                _ => None,
            })
            .collect();
        assert!(lengths.iter().copied().eq(1..=LONGEST_SCAN));
        assert!(drawn.iter().all(|operation| !matches!(operation, Operation::Scan { from, .. } if *from > 2000)));
    }

    #[test]
    fn the_same_seed_gives_the_same_operations() {
        for workload in Workload::ALL {
            assert_eq!(operations(workload, 100, 50).1, operations(workload, 100, 50).1);
        }
        assert_eq!(name(0), name(0));
        assert_ne!(name(0), name(1));
    }
}
