//! TPC-C: an order-entry business of warehouses, districts and customers.
//!
//! Source: TPC Benchmark C, Standard Specification, Revision 5.11. Clauses are named where a rule comes from one.
//!
//! Each client has a home warehouse and sends transactions without the keying and thinking times of clause 5.2.5, as
//! benchmarks of storage do; so its rates are no tpmC. [`Scale`] can make the tables smaller than clause 1.2.1 says.

pub(crate) mod population;
pub(crate) mod requests;

use rand::RngExt;
use rand::rngs::SmallRng;

/// Districts of a warehouse.
pub(crate) const DISTRICTS: u32 = 10;

/// The numbers of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    pub(crate) warehouses: u32,
    /// Items, and so rows of each warehouse's stock: 100,000.
    pub(crate) items: u32,
    /// Customers of a district, and its orders at the start: 3,000.
    pub(crate) customers: u32,
}

impl Scale {
    /// The numbers of clause 1.2.1.
    pub(crate) fn full(warehouses: u32) -> Self {
        Scale { warehouses, items: 100_000, customers: 3000 }
    }

    /// Orders of a district that are not delivered at the start: the last 30 %.
    pub(crate) fn undelivered(self) -> u32 {
        self.customers * 3 / 10
    }

    /// Last names that there are: 1,000, or as many as a district has customers.
    fn names(self) -> u32 {
        self.customers.min(1000)
    }
}

/// The constants of non-uniform draws (clause 2.1.6), the same for all clients of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constants {
    last: u32,
    customer: u32,
    item: u32,
}

impl Constants {
    /// Those of the load.
    pub(crate) fn of_load(rng: &mut SmallRng) -> Self {
        Constants {
            last: rng.random_range(0..=255),
            customer: rng.random_range(0..=1023),
            item: rng.random_range(0..=8191),
        }
    }

    /// Those of a run after that load: the constant of last names differs by a number that clause 2.1.6.1 allows.
    pub(crate) fn of_run(self, rng: &mut SmallRng) -> Self {
        loop {
            let last = rng.random_range(0..=255);
            let difference = self.last.abs_diff(last);
            if (65..=119).contains(&difference) && difference != 96 && difference != 112 {
                return Constants { last, ..Constants::of_load(rng) };
            }
        }
    }

    /// The number of a last name, from 0 on.
    fn last(self, rng: &mut SmallRng, scale: Scale) -> u32 {
        non_uniform(rng, 255, self.last, 0, scale.names() - 1)
    }

    fn customer(self, rng: &mut SmallRng, scale: Scale) -> u32 {
        non_uniform(rng, 1023, self.customer, 1, scale.customers)
    }

    fn item(self, rng: &mut SmallRng, scale: Scale) -> u32 {
        non_uniform(rng, 8191, self.item, 1, scale.items)
    }
}

/// `NURand(A, x, y)` of clause 2.1.6.
fn non_uniform(rng: &mut SmallRng, a: u32, c: u32, x: u32, y: u32) -> u32 {
    ((rng.random_range(0..=a) | rng.random_range(x..=y)) + c) % (y - x + 1) + x
}

/// The last name with a number below 1,000 (clause 4.3.2.3).
pub(crate) fn last_name(number: u32) -> String {
    const SYLLABLES: [&str; 10] = ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
    [number / 100 % 10, number / 10 % 10, number % 10].map(|digit| SYLLABLES[digit as usize]).concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::generator;

    #[test]
    fn last_names_are_made_of_syllables() {
        assert_eq!((last_name(0), last_name(371)), ("BARBARBAR".to_owned(), "PRICALLYOUGHT".to_owned()));
        let names: std::collections::BTreeSet<_> = (0..1000).map(last_name).collect();
        assert_eq!(names.len(), 1000);
    }

    #[test]
    fn draws_stay_in_their_ranges_and_favour_some() {
        let mut rng = generator(1, 0);
        let constants = Constants::of_load(&mut rng);
        let scale = Scale::full(1);
        let mut counts = vec![0_u32; 3001];
        for _ in 0..300_000 {
            counts[constants.customer(&mut rng, scale) as usize] += 1;
            assert!((1..=100_000).contains(&constants.item(&mut rng, scale)));
            assert!(constants.last(&mut rng, scale) < 1000);
        }
        assert_eq!(counts[0], 0);
        assert!(counts.iter().filter(|count| **count > 0).count() > 2000);
        // By the law, the most frequent tenth of the customers gets 61.3 % of the draws.
        counts.sort_unstable();
        let top = f64::from(counts[3001 - 300..].iter().sum::<u32>()) / 300_000.0;
        assert!((top - 0.613).abs() < 0.01, "{top}");
    }

    #[test]
    fn the_constant_of_a_run_differs_as_the_clause_says() {
        let mut rng = generator(2, 0);
        for _ in 0..200 {
            let load = Constants::of_load(&mut rng);
            let difference = load.of_run(&mut rng).last.abs_diff(load.last);
            assert!((65..=119).contains(&difference) && difference != 96 && difference != 112, "{difference}");
        }
    }
}
