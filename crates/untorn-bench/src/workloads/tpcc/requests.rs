//! The requests of a client: the inputs of the five transactions (clauses 2.4 to 2.8), in their mix (clause 5.2.3).

use rand::RngExt;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::{Constants, DISTRICTS, Scale, last_name};
use crate::workloads::generator;

/// How a customer is named: by number, or by last name in three of five requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Number(u32),
    LastName(String),
}

/// A line of a new order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) item: u32,
    /// The warehouse that supplies it.
    pub(crate) supply: u32,
    pub(crate) quantity: u32,
}

/// A customer of some district.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Customer {
    pub(crate) warehouse: u32,
    pub(crate) district: u32,
    pub(crate) by: By,
}

/// A transaction with its inputs. Those of the home warehouse have its number in [`Client::home`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// One in a hundred names an item that does not exist, as its last line, and is to be rolled back.
    NewOrder {
        district: u32,
        customer: u32,
        lines: Vec<Line>,
    },
    /// The amount is in cents.
    Payment {
        district: u32,
        customer: Customer,
        amount: u32,
    },
    OrderStatus {
        customer: Customer,
    },
    Delivery {
        carrier: u32,
    },
    StockLevel {
        district: u32,
        threshold: u32,
    },
}

#[derive(Clone, Copy, Debug)]
enum Card {
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}

/// The requests of one client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) home: u32,
    /// The district whose stock it asks for.
    district: u32,
    scale: Scale,
    constants: Constants,
    rng: SmallRng,
    /// A deck of 23 cards keeps the mix exact (clause 5.2.4.2).
    deck: Vec<Card>,
}

impl Client {
    /// The client with this number, from 0 on. Clients divide the warehouses and districts among themselves.
    pub(crate) fn new(scale: Scale, constants: Constants, seed: u64, number: u32) -> Self {
        let home = number % scale.warehouses + 1;
        let district = number / scale.warehouses % DISTRICTS + 1;
        Client { home, district, scale, constants, rng: generator(seed, u64::from(number)), deck: Vec::new() }
    }

    pub(crate) fn next(&mut self) -> Request {
        if self.deck.is_empty() {
            let pairs = [(Card::NewOrder, 10), (Card::Payment, 10)];
            let single = [Card::OrderStatus, Card::Delivery, Card::StockLevel];
            self.deck = pairs.into_iter().flat_map(|(card, count)| [card].repeat(count)).chain(single).collect();
            self.deck.shuffle(&mut self.rng);
        }
        match self.deck.pop().unwrap_or(Card::NewOrder) {
            Card::NewOrder => self.new_order(),
            Card::Payment => self.payment(),
            Card::OrderStatus => {
                let district = self.rng.random_range(1..=DISTRICTS);
                Request::OrderStatus { customer: self.customer(self.home, district) }
            }
            Card::Delivery => Request::Delivery { carrier: self.rng.random_range(1..=10) },
            Card::StockLevel => {
                Request::StockLevel { district: self.district, threshold: self.rng.random_range(10..=20) }
            }
        }
    }

    fn new_order(&mut self) -> Request {
        let rng = &mut self.rng;
        let district = rng.random_range(1..=DISTRICTS);
        let customer = self.constants.customer(rng, self.scale);
        let count = rng.random_range(5..=15);
        let fails = rng.random_range(1..=100) == 1;
        let mut lines = Vec::with_capacity(count);
        for number in 1..=count {
            let unused = fails && number == count;
            let item = if unused { self.scale.items + 1 } else { self.constants.item(rng, self.scale) };
            let is_remote = rng.random_range(1..=100) == 1;
            let supply = if is_remote { other_warehouse(rng, self.scale, self.home) } else { self.home };
            lines.push(Line { item, supply, quantity: rng.random_range(1..=10) });
        }
        Request::NewOrder { district, customer, lines }
    }

    fn payment(&mut self) -> Request {
        let district = self.rng.random_range(1..=DISTRICTS);
        let is_local = self.rng.random_range(1..=100) <= 85;
        let (warehouse, of) = if is_local {
            (self.home, district)
        } else {
            (other_warehouse(&mut self.rng, self.scale, self.home), self.rng.random_range(1..=DISTRICTS))
        };
        let customer = self.customer(warehouse, of);
        Request::Payment { district, customer, amount: self.rng.random_range(100..=500_000) }
    }

    fn customer(&mut self, warehouse: u32, district: u32) -> Customer {
        let by = if self.rng.random_range(1..=100) <= 60 {
            By::LastName(last_name(self.constants.last(&mut self.rng, self.scale)))
        } else {
            By::Number(self.constants.customer(&mut self.rng, self.scale))
        };
        Customer { warehouse, district, by }
    }
}

/// Any warehouse but the home, if there is another.
fn other_warehouse(rng: &mut SmallRng, scale: Scale, home: u32) -> u32 {
    if scale.warehouses == 1 {
        return home;
    }
    let other = rng.random_range(1..scale.warehouses);
    if other < home { other } else { other + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(warehouses: u32, count: usize) -> Vec<Request> {
        let mut rng = generator(5, 9);
        let constants = Constants::of_load(&mut rng).of_run(&mut rng);
        let mut client = Client::new(Scale::full(warehouses), constants, 5, 1);
        (0..count).map(|_| client.next()).collect()
    }

    fn share(all: &[Request], is: impl Fn(&Request) -> bool) -> f64 {
        all.iter().filter(|request| is(request)).count() as f64 / all.len() as f64
    }

    #[test]
    fn the_mix_is_that_of_the_deck() {
        let all = requests(4, 23 * 100);
        assert_eq!(share(&all, |request| matches!(request, Request::NewOrder { .. })), 10.0 / 23.0);
        assert_eq!(share(&all, |request| matches!(request, Request::Payment { .. })), 10.0 / 23.0);
        assert_eq!(share(&all, |request| matches!(request, Request::OrderStatus { .. })), 1.0 / 23.0);
        assert_eq!(share(&all, |request| matches!(request, Request::Delivery { .. })), 1.0 / 23.0);
        assert_eq!(share(&all, |request| matches!(request, Request::StockLevel { .. })), 1.0 / 23.0);
    }

    #[test]
    fn new_orders_are_as_the_clause_has_them() {
        let orders: Vec<(u32, Vec<Line>)> = requests(4, 46_000)
            .into_iter()
            .filter_map(|request| match request {
                Request::NewOrder { district, lines, .. } => Some((district, lines)),
                _ => None,
            })
            .collect();
        assert!(orders.iter().all(|(district, lines)| (1..=10).contains(district) && (5..=15).contains(&lines.len())));
        let of = |count: usize| count as f64 / orders.len() as f64;
        let unused = orders.iter().filter(|(_, lines)| lines.last().is_some_and(|line| line.item == 100_001)).count();
        assert!((0.006..0.014).contains(&of(unused)), "{unused}");
        let lines: Vec<Line> = orders.iter().flat_map(|(_, lines)| lines.iter().copied()).collect();
        let mean = lines.len() as f64 / orders.len() as f64;
        assert!((9.9..10.1).contains(&mean), "{mean}");
        // The home of client 1 among four warehouses is the second.
        let remote = lines.iter().filter(|line| line.supply != 2).count() as f64 / lines.len() as f64;
        assert!((0.008..0.012).contains(&remote), "{remote}");
        assert!(lines.iter().all(|line| (1..=10).contains(&line.quantity) && (1..=4).contains(&line.supply)));
    }

    #[test]
    fn payments_come_from_other_warehouses_and_by_last_name() {
        let payments: Vec<(Customer, u32)> = requests(4, 46_000)
            .into_iter()
            .filter_map(|request| match request {
                Request::Payment { customer, amount, .. } => Some((customer, amount)),
                _ => None,
            })
            .collect();
        let of = |is: &dyn Fn(&Customer) -> bool| {
            payments.iter().filter(|(customer, _)| is(customer)).count() as f64 / payments.len() as f64
        };
        assert!((of(&|customer| customer.warehouse != 2) - 0.15).abs() < 0.01);
        assert!((of(&|customer| matches!(customer.by, By::LastName(_))) - 0.6).abs() < 0.01);
        assert!(payments.iter().all(|(_, amount)| (100..=500_000).contains(amount)));
    }

    #[test]
    fn one_warehouse_has_no_other() {
        let is_home = |request: &Request| match request {
            Request::NewOrder { lines, .. } => lines.iter().all(|line| line.supply == 1),
            Request::Payment { customer, .. } | Request::OrderStatus { customer } => customer.warehouse == 1,
            Request::Delivery { .. } | Request::StockLevel { .. } => true,
        };
        assert!(requests(1, 2300).iter().all(is_home));
        assert_eq!(requests(1, 100), requests(1, 100));
    }
}
