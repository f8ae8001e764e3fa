//! The rows that the tables have at the start (clause 4.3.3.1), as values that any database can store.

use rand::RngExt;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::{Constants, DISTRICTS, Scale, last_name};
use crate::workloads::{generator, text};

/// A value of a column. Amounts are in cents, rates in ten-thousandths.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Number(i64),
    Text(String),
    Null,
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Value::Number(number.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Number(number)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

/// A table, with its columns in the order of [`each_row`]'s values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Table {
    Item,
    Warehouse,
    Stock,
    District,
    Customer,
    History,
    Orders,
    OrderLine,
    NewOrder,
}

impl Table {
    pub(crate) const ALL: [Table; 9] = [
        Table::Item,
        Table::Warehouse,
        Table::Stock,
        Table::District,
        Table::Customer,
        Table::History,
        Table::Orders,
        Table::OrderLine,
        Table::NewOrder,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Table::Item => "item",
            Table::Warehouse => "warehouse",
            Table::Stock => "stock",
            Table::District => "district",
            Table::Customer => "customer",
            Table::History => "history",
            Table::Orders => "orders",
            Table::OrderLine => "order_line",
            Table::NewOrder => "new_order",
        }
    }

    /// Its columns, as clause 1.3 names them.
    pub(crate) fn columns(self) -> &'static [&'static str] {
        match self {
            Table::Item => &["i_id", "i_im_id", "i_name", "i_price", "i_data"],
            Table::Warehouse => {
                &["w_id", "w_name", "w_street_1", "w_street_2", "w_city", "w_state", "w_zip", "w_tax", "w_ytd"]
            }
            Table::Stock => &[
                "s_w_id",
                "s_i_id",
                "s_quantity",
                "s_dist_01",
                "s_dist_02",
                "s_dist_03",
                "s_dist_04",
                "s_dist_05",
                "s_dist_06",
                "s_dist_07",
                "s_dist_08",
                "s_dist_09",
                "s_dist_10",
                "s_ytd",
                "s_order_cnt",
                "s_remote_cnt",
                "s_data",
            ],
            Table::District => &[
                "d_w_id",
                "d_id",
                "d_name",
                "d_street_1",
                "d_street_2",
                "d_city",
                "d_state",
                "d_zip",
                "d_tax",
                "d_ytd",
                "d_next_o_id",
            ],
            Table::Customer => &[
                "c_w_id",
                "c_d_id",
                "c_id",
                "c_first",
                "c_middle",
                "c_last",
                "c_street_1",
                "c_street_2",
                "c_city",
                "c_state",
                "c_zip",
                "c_phone",
                "c_since",
                "c_credit",
                "c_credit_lim",
                "c_discount",
                "c_balance",
                "c_ytd_payment",
                "c_payment_cnt",
                "c_delivery_cnt",
                "c_data",
            ],
            Table::History => &["h_c_w_id", "h_c_d_id", "h_c_id", "h_w_id", "h_d_id", "h_date", "h_amount", "h_data"],
            Table::Orders => {
                &["o_w_id", "o_d_id", "o_id", "o_c_id", "o_entry_d", "o_carrier_id", "o_ol_cnt", "o_all_local"]
            }
            Table::OrderLine => &[
                "ol_w_id",
                "ol_d_id",
                "ol_o_id",
                "ol_number",
                "ol_i_id",
                "ol_supply_w_id",
                "ol_delivery_d",
                "ol_quantity",
                "ol_amount",
                "ol_dist_info",
            ],
            Table::NewOrder => &["no_w_id", "no_d_id", "no_o_id"],
        }
    }
}

/// Calls `row` with each row of a database at the start, table by table within a warehouse.
pub(crate) fn each_row<E>(
    scale: Scale,
    constants: Constants,
    seed: u64,
    row: &mut dyn FnMut(Table, Vec<Value>) -> Result<(), E>,
) -> Result<(), E> {
    let mut load = Load { scale, constants, rng: generator(seed, u64::MAX) };
    for item in 1..=scale.items {
        row(Table::Item, load.item(item))?;
    }
    for warehouse in 1..=scale.warehouses {
        row(Table::Warehouse, load.warehouse(warehouse))?;
        for item in 1..=scale.items {
            row(Table::Stock, load.stock(warehouse, item))?;
        }
        for district in 1..=DISTRICTS {
            row(Table::District, load.district(warehouse, district))?;
            for customer in 1..=scale.customers {
                row(Table::Customer, load.customer(warehouse, district, customer))?;
                row(Table::History, load.history(warehouse, district, customer))?;
            }
            load.orders(warehouse, district, row)?;
        }
    }
    Ok(())
}

struct Load {
    scale: Scale,
    constants: Constants,
    rng: SmallRng,
}

/// A time that all rows have, in seconds since 1970.
const LOADED: i64 = 1_700_000_000;

impl Load {
    fn text(&mut self, shortest: usize, longest: usize) -> Value {
        let len = self.rng.random_range(shortest..=longest);
        Value::Text(text(&mut self.rng, len))
    }

    fn number(&mut self, least: u32, most: u32) -> Value {
        self.rng.random_range(least..=most).into()
    }

    /// One text in ten has the word ORIGINAL somewhere.
    fn data(&mut self) -> Value {
        let len = self.rng.random_range(26..=50);
        let mut data = text(&mut self.rng, len);
        if self.rng.random_range(1..=10) == 1 {
            let at = self.rng.random_range(0..=len - 8);
            data.replace_range(at..at + 8, "ORIGINAL");
        }
        Value::Text(data)
    }

    /// Two streets, a city, a state and a postal code (clause 4.3.2.7).
    fn address(&mut self) -> [Value; 5] {
        let zip = format!("{:04}11111", self.rng.random_range(0..=9999));
        [self.text(10, 20), self.text(10, 20), self.text(10, 20), self.text(2, 2), Value::Text(zip)]
    }

    fn item(&mut self, item: u32) -> Vec<Value> {
        vec![item.into(), self.number(1, 10_000), self.text(14, 24), self.number(100, 10_000), self.data()]
    }

    fn warehouse(&mut self, warehouse: u32) -> Vec<Value> {
        let mut row = vec![warehouse.into(), self.text(6, 10)];
        row.extend(self.address());
        row.extend([self.number(0, 2000), Value::Number(30_000_000)]);
        row
    }

    fn stock(&mut self, warehouse: u32, item: u32) -> Vec<Value> {
        let mut row = vec![warehouse.into(), item.into(), self.number(10, 100)];
        row.extend((0..DISTRICTS).map(|_| self.text(24, 24)));
        row.extend([Value::Number(0), Value::Number(0), Value::Number(0), self.data()]);
        row
    }

    fn district(&mut self, warehouse: u32, district: u32) -> Vec<Value> {
        let mut row = vec![warehouse.into(), district.into(), self.text(6, 10)];
        row.extend(self.address());
        row.extend([self.number(0, 2000), Value::Number(3_000_000), (self.scale.customers + 1).into()]);
        row
    }

    fn customer(&mut self, warehouse: u32, district: u32, customer: u32) -> Vec<Value> {
        let last =
            if customer <= self.scale.names() { customer - 1 } else { self.constants.last(&mut self.rng, self.scale) };
        let mut row = vec![warehouse.into(), district.into(), customer.into(), self.text(8, 16)];
        row.extend([Value::Text("OE".to_owned()), Value::Text(last_name(last))]);
        row.extend(self.address());
        let phone: String = (0..16).map(|_| char::from(b'0' + self.rng.random_range(0..10_u8))).collect();
        let credit = if self.rng.random_range(1..=10) == 1 { "BC" } else { "GC" };
        row.extend([Value::Text(phone), Value::Number(LOADED), Value::Text(credit.to_owned())]);
        row.extend([Value::Number(5_000_000), self.number(0, 5000), Value::Number(-1000), Value::Number(1000)]);
        row.extend([Value::Number(1), Value::Number(0), self.text(300, 500)]);
        row
    }

    fn history(&mut self, warehouse: u32, district: u32, customer: u32) -> Vec<Value> {
        let (of, paid) = ([warehouse, district, customer].map(Value::from), [warehouse, district].map(Value::from));
        let mut row: Vec<Value> = of.into_iter().chain(paid).collect();
        row.extend([Value::Number(LOADED), Value::Number(1000), self.text(12, 24)]);
        row
    }

    /// An order of each customer, in random order; the last ones are not delivered.
    fn orders<E>(
        &mut self,
        warehouse: u32,
        district: u32,
        row: &mut dyn FnMut(Table, Vec<Value>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut customers: Vec<u32> = (1..=self.scale.customers).collect();
        customers.shuffle(&mut self.rng);
        let delivered = self.scale.customers - self.scale.undelivered();
        for (order, customer) in (1..).zip(customers) {
            let is_delivered = order <= delivered;
            let carrier = if is_delivered { self.number(1, 10) } else { Value::Null };
            let lines = self.rng.random_range(5..=15_u32);
            let key = [warehouse.into(), district.into(), order.into()];
            let mut values = key.to_vec();
            values.extend([customer.into(), Value::Number(LOADED), carrier, lines.into(), Value::Number(1)]);
            row(Table::Orders, values)?;
            for line in 1..=lines {
                let mut values = key.to_vec();
                values.extend([line.into(), self.number(1, self.scale.items), warehouse.into()]);
                let (delivery, amount) = if is_delivered {
                    (Value::Number(LOADED), Value::Number(0))
                } else {
                    (Value::Null, self.number(1, 999_999))
                };
                values.extend([delivery, Value::Number(5), amount, self.text(24, 24)]);
                row(Table::OrderLine, values)?;
            }
            if !is_delivered {
                row(Table::NewOrder, key.to_vec())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use super::*;

    const SCALE: Scale = Scale { warehouses: 2, items: 100, customers: 30 };

    fn rows() -> Vec<(Table, Vec<Value>)> {
        let constants = Constants::of_load(&mut generator(1, 0));
        let mut rows = Vec::new();
        let all = each_row::<Infallible>(SCALE, constants, 1, &mut |table, row| {
            rows.push((table, row));
            Ok(())
        });
        all.unwrap();
        rows
    }

    #[test]
    fn each_table_has_its_rows_and_columns() {
        let rows = rows();
        let mut counts = BTreeMap::new();
        for (table, row) in &rows {
            assert_eq!(row.len(), table.columns().len(), "{table:?}");
            *counts.entry(*table).or_insert(0) += 1;
        }
        assert_eq!((counts[&Table::Item], counts[&Table::Warehouse], counts[&Table::Stock]), (100, 2, 200));
        assert_eq!((counts[&Table::District], counts[&Table::Customer], counts[&Table::History]), (20, 600, 600));
        assert_eq!((counts[&Table::Orders], counts[&Table::NewOrder]), (600, 180));
        assert!((5 * 600..=15 * 600).contains(&counts[&Table::OrderLine]));
        let mut names: Vec<_> = Table::ALL.iter().flat_map(|table| table.columns()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Table::ALL.iter().map(|table| table.columns().len()).sum::<usize>());
    }

    #[test]
    fn some_texts_have_the_word_original() {
        let rows = rows();
        let texts: Vec<_> = rows.iter().filter(|(table, _)| *table == Table::Stock).map(|(_, row)| &row[16]).collect();
        let original = texts.iter().filter(|text| matches!(text, Value::Text(text) if text.contains("ORIGINAL")));
        assert!((8..35).contains(&original.count()));
    }

    #[test]
    fn orders_name_each_customer_once() {
        let rows = rows();
        let mut customers: Vec<_> = rows
            .iter()
            .filter(|(table, row)| *table == Table::Orders && row[..2] == [Value::Number(2), Value::Number(7)])
            .map(|(_, row)| match row[3] {
                Value::Number(customer) => customer,
                _ => 0,
            })
            .collect();
        customers.sort_unstable();
        assert!(customers.into_iter().eq(1..=30));
    }
}
