//! TPC-C on tables of SQLite.

use rusqlite::types::Value as Stored;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params, params_from_iter};

use crate::error::Result;
use crate::workloads::tpcc::population::{Table, Value, each_row};
use crate::workloads::tpcc::requests::{By, Customer, Line, Request};
use crate::workloads::tpcc::{Constants, DISTRICTS, Scale};

/// Rows that one transaction of the load inserts.
const GROUP: u32 = 20_000;

/// A time that orders have, in seconds since 1970.
const NOW: i64 = 1_800_000_000;

impl From<Value> for Stored {
    fn from(value: Value) -> Self {
        match value {
            Value::Number(number) => Stored::Integer(number),
            Value::Text(text) => Stored::Text(text),
            Value::Null => Stored::Null,
        }
    }
}

/// Columns of the primary key, which come first; 0 for a table without one.
fn key_columns(table: Table) -> usize {
    match table {
        Table::Item | Table::Warehouse => 1,
        Table::Stock | Table::District => 2,
        Table::Customer | Table::Orders | Table::NewOrder => 3,
        Table::OrderLine => 4,
        Table::History => 0,
    }
}

/// Makes the tables and their rows.
///
/// # Errors
/// Those of SQLite.
pub(crate) fn load(database: &Connection, scale: Scale, constants: Constants, seed: u64) -> Result<()> {
    for table in Table::ALL {
        let columns = table.columns().join(", ");
        let key = table.columns()[..key_columns(table)].join(", ");
        let rest = if key.is_empty() { ")".to_owned() } else { format!(", PRIMARY KEY ({key})) WITHOUT ROWID") };
        database.execute_batch(&format!("CREATE TABLE {} ({columns}{rest}", table.name()))?;
    }
    database.execute_batch("BEGIN")?;
    let mut rows = 0;
    each_row(scale, constants, seed, &mut |table, row| {
        let marks = vec!["?"; row.len()].join(", ");
        let sql = format!("INSERT INTO {} VALUES ({marks})", table.name());
        database.prepare_cached(&sql)?.execute(params_from_iter(row.into_iter().map(Stored::from)))?;
        rows += 1;
        if rows % GROUP == 0 {
            database.execute_batch("COMMIT; BEGIN")?;
        }
        Ok::<_, crate::Error>(())
    })?;
    database.execute_batch(
        "CREATE INDEX customer_by_name ON customer (c_w_id, c_d_id, c_last, c_first);
         CREATE INDEX orders_by_customer ON orders (o_w_id, o_d_id, o_c_id, o_id);
         COMMIT",
    )?;
    Ok(())
}

/// Does a request of a client whose warehouse is `home`, as one transaction. False if it was rolled back, as the
/// request demands.
///
/// # Errors
/// Those of SQLite.
pub(crate) fn perform(database: &mut Connection, home: u32, request: &Request) -> Result<bool> {
    let behavior = match request {
        Request::OrderStatus { .. } | Request::StockLevel { .. } => TransactionBehavior::Deferred,
        // Both read before they write. Otherwise each would have to be tried again when another one commits.
        Request::NewOrder { .. } | Request::Payment { .. } | Request::Delivery { .. } => TransactionBehavior::Immediate,
    };
    let transaction = database.transaction_with_behavior(behavior)?;
    let commits = match request {
        Request::NewOrder { district, customer, lines } => new_order(&transaction, home, *district, *customer, lines)?,
        Request::Payment { district, customer, amount } => {
            payment(&transaction, (home, *district), customer, (*amount).into())?;
            true
        }
        Request::OrderStatus { customer } => {
            order_status(&transaction, customer)?;
            true
        }
        Request::Delivery { carrier } => {
            (1..=DISTRICTS).try_for_each(|district| deliver(&transaction, home, district, *carrier))?;
            true
        }
        Request::StockLevel { district, threshold } => {
            stock_level(&transaction, home, *district, *threshold)?;
            true
        }
    };
    if commits {
        transaction.commit()?;
    } else {
        transaction.rollback()?;
    }
    Ok(commits)
}

/// Clause 2.4.2.
fn new_order(at: &Transaction<'_>, home: u32, district: u32, customer: u32, lines: &[Line]) -> Result<bool> {
    let tax: i64 =
        at.prepare_cached("SELECT w_tax FROM warehouse WHERE w_id = ?")?.query_row([home], |row| row.get(0))?;
    let (district_tax, order): (i64, i64) = at
        .prepare_cached("SELECT d_tax, d_next_o_id FROM district WHERE d_w_id = ? AND d_id = ?")?
        .query_row([home, district], |row| Ok((row.get(0)?, row.get(1)?)))?;
    at.prepare_cached("UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = ? AND d_id = ?")?
        .execute([home, district])?;
    let (discount, _last, _credit): (i64, String, String) = at
        .prepare_cached(
            "SELECT c_discount, c_last, c_credit FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
        )?
        .query_row([home, district, customer], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let is_local = lines.iter().all(|line| line.supply == home);
    at.prepare_cached("INSERT INTO orders VALUES (?, ?, ?, ?, ?, NULL, ?, ?)")?.execute(params![
        home,
        district,
        order,
        customer,
        NOW,
        lines.len() as u32,
        is_local
    ])?;
    at.prepare_cached("INSERT INTO new_order VALUES (?, ?, ?)")?.execute(params![home, district, order])?;
    let mut total = 0;
    for (number, line) in (1..).zip(lines) {
        let price: Option<i64> = at
            .prepare_cached("SELECT i_price FROM item WHERE i_id = ?")?
            .query_row([line.item], |row| row.get(0))
            .optional()?;
        let Some(price) = price else { return Ok(false) };
        let (quantity, info): (i64, String) = at
            .prepare_cached(&format!(
                "SELECT s_quantity, s_dist_{district:02} FROM stock WHERE s_w_id = ? AND s_i_id = ?"
            ))?
            .query_row([line.supply, line.item], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let ordered = i64::from(line.quantity);
        let left = if quantity >= ordered + 10 { quantity - ordered } else { quantity - ordered + 91 };
        at.prepare_cached(
            "UPDATE stock SET s_quantity = ?, s_ytd = s_ytd + ?, s_order_cnt = s_order_cnt + 1, \
             s_remote_cnt = s_remote_cnt + ? WHERE s_w_id = ? AND s_i_id = ?",
        )?
        .execute(params![left, ordered, line.supply != home, line.supply, line.item])?;
        let amount = price * ordered;
        total += amount;
        at.prepare_cached("INSERT INTO order_line VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?, ?)")?.execute(params![
            home,
            district,
            order,
            number,
            line.item,
            line.supply,
            ordered,
            amount,
            info
        ])?;
    }
    // The terminal shows this sum.
    std::hint::black_box(total * (10_000 - discount) / 10_000 * (10_000 + tax + district_tax) / 10_000);
    Ok(true)
}

/// The number of a customer; of several with a last name, the one in the middle by first name (clause 2.5.2.2).
fn find(at: &Transaction<'_>, customer: &Customer) -> Result<Option<u32>> {
    let name = match &customer.by {
        By::Number(number) => return Ok(Some(*number)),
        By::LastName(name) => name,
    };
    let mut statement =
        at.prepare_cached("SELECT c_id FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_last = ? ORDER BY c_first")?;
    let found = statement.query_map(params![customer.warehouse, customer.district, name], |row| row.get(0))?;
    let found = found.collect::<rusqlite::Result<Vec<u32>>>()?;
    Ok(found.get(found.len().saturating_sub(1) / 2).copied())
}

/// Clause 2.5.2.
fn payment(at: &Transaction<'_>, paid: (u32, u32), customer: &Customer, amount: i64) -> Result<()> {
    let (home, district) = paid;
    let Some(number) = find(at, customer)? else { return Ok(()) };
    at.prepare_cached("UPDATE warehouse SET w_ytd = w_ytd + ? WHERE w_id = ?")?.execute(params![amount, home])?;
    let warehouse: String =
        at.prepare_cached("SELECT w_name FROM warehouse WHERE w_id = ?")?.query_row([home], |row| row.get(0))?;
    at.prepare_cached("UPDATE district SET d_ytd = d_ytd + ? WHERE d_w_id = ? AND d_id = ?")?
        .execute(params![amount, home, district])?;
    let name: String = at
        .prepare_cached("SELECT d_name FROM district WHERE d_w_id = ? AND d_id = ?")?
        .query_row([home, district], |row| row.get(0))?;
    let key = params![customer.warehouse, customer.district, number];
    let (credit, data): (String, String) = at
        .prepare_cached("SELECT c_credit, c_data FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?")?
        .query_row(key, |row| Ok((row.get(0)?, row.get(1)?)))?;
    // The data of customers with bad credit has the history of their payments, in at most 500 characters.
    let data = if credit == "BC" {
        let (of, at) = ((customer.warehouse, customer.district), (home, district));
        let news = format!("{number} {} {} {} {} {amount}|{data}", of.1, of.0, at.1, at.0);
        news.chars().take(500).collect()
    } else {
        data
    };
    at.prepare_cached(
        "UPDATE customer SET c_balance = c_balance - ?1, c_ytd_payment = c_ytd_payment + ?1, \
         c_payment_cnt = c_payment_cnt + 1, c_data = ?2 WHERE c_w_id = ?3 AND c_d_id = ?4 AND c_id = ?5",
    )?
    .execute(params![amount, data, customer.warehouse, customer.district, number])?;
    at.prepare_cached("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?)")?.execute(params![
        customer.warehouse,
        customer.district,
        number,
        home,
        district,
        NOW,
        amount,
        format!("{warehouse}    {name}")
    ])?;
    Ok(())
}

/// Clause 2.6.2.
fn order_status(at: &Transaction<'_>, customer: &Customer) -> Result<()> {
    let Some(number) = find(at, customer)? else { return Ok(()) };
    let key = [customer.warehouse, customer.district, number];
    let balance: i64 = at
        .prepare_cached("SELECT c_balance FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?")?
        .query_row(key, |row| row.get(0))?;
    let sql = "SELECT max(o_id) FROM orders WHERE o_w_id = ? AND o_d_id = ? AND o_c_id = ?";
    let order: Option<i64> = at.prepare_cached(sql)?.query_row(key, |row| row.get(0))?;
    let sql = "SELECT sum(ol_amount) FROM order_line WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?";
    let amount: Option<i64> =
        at.prepare_cached(sql)?.query_row(params![customer.warehouse, customer.district, order], |row| row.get(0))?;
    std::hint::black_box((balance, amount));
    Ok(())
}

/// Clause 2.7.4, for one district.
fn deliver(at: &Transaction<'_>, home: u32, district: u32, carrier: u32) -> Result<()> {
    let sql = "SELECT min(no_o_id) FROM new_order WHERE no_w_id = ? AND no_d_id = ?";
    let order: Option<i64> = at.prepare_cached(sql)?.query_row([home, district], |row| row.get(0))?;
    let Some(order) = order else { return Ok(()) };
    let key = params![home, district, order];
    at.prepare_cached("DELETE FROM new_order WHERE no_w_id = ? AND no_d_id = ? AND no_o_id = ?")?.execute(key)?;
    let customer: u32 = at
        .prepare_cached("SELECT o_c_id FROM orders WHERE o_w_id = ? AND o_d_id = ? AND o_id = ?")?
        .query_row(key, |row| row.get(0))?;
    at.prepare_cached("UPDATE orders SET o_carrier_id = ? WHERE o_w_id = ? AND o_d_id = ? AND o_id = ?")?
        .execute(params![carrier, home, district, order])?;
    at.prepare_cached("UPDATE order_line SET ol_delivery_d = ? WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?")?
        .execute(params![NOW, home, district, order])?;
    let amount: i64 = at
        .prepare_cached("SELECT sum(ol_amount) FROM order_line WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?")?
        .query_row(key, |row| row.get(0))?;
    at.prepare_cached(
        "UPDATE customer SET c_balance = c_balance + ?, c_delivery_cnt = c_delivery_cnt + 1 \
         WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
    )?
    .execute(params![amount, home, district, customer])?;
    Ok(())
}

/// Clause 2.8.2: the items of the last 20 orders whose stock is below the threshold.
fn stock_level(at: &Transaction<'_>, home: u32, district: u32, threshold: u32) -> Result<()> {
    let next: i64 = at
        .prepare_cached("SELECT d_next_o_id FROM district WHERE d_w_id = ? AND d_id = ?")?
        .query_row([home, district], |row| row.get(0))?;
    let sql = "SELECT count(DISTINCT s_i_id) FROM order_line CROSS JOIN stock ON s_w_id = ?1 AND s_i_id = ol_i_id \
               WHERE ol_w_id = ?1 AND ol_d_id = ?2 AND ol_o_id >= ?3 AND ol_o_id < ?4 AND s_quantity < ?5";
    let low: i64 =
        at.prepare_cached(sql)?.query_row(params![home, district, next - 20, next, threshold], |row| row.get(0))?;
    std::hint::black_box(low);
    Ok(())
}

/// The first four consistency conditions (clause 3.3.2) that do not hold, each in a line.
///
/// # Errors
/// Those of SQLite.
pub(crate) fn violations(database: &Connection) -> Result<Vec<String>> {
    const CONDITIONS: [(&str, &str); 4] = [
        (
            "W_YTD is the sum of D_YTD",
            "SELECT count(*) FROM warehouse WHERE w_ytd <> (SELECT sum(d_ytd) FROM district WHERE d_w_id = w_id)",
        ),
        (
            "D_NEXT_O_ID - 1 is the greatest O_ID, and that of NO_O_ID where there is one",
            "SELECT count(*) FROM district WHERE d_next_o_id - 1 <> \
             (SELECT max(o_id) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id) OR d_next_o_id - 1 <> \
             (SELECT max(no_o_id) FROM new_order WHERE no_w_id = d_w_id AND no_d_id = d_id)",
        ),
        (
            "the orders to deliver have no gap",
            "SELECT count(*) FROM (SELECT max(no_o_id) - min(no_o_id) + 1 - count(*) AS gap FROM new_order \
             GROUP BY no_w_id, no_d_id) WHERE gap <> 0",
        ),
        (
            "the sum of O_OL_CNT is the number of order lines",
            "SELECT count(*) FROM district WHERE \
             (SELECT sum(o_ol_cnt) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id) <> \
             (SELECT count(*) FROM order_line WHERE ol_w_id = d_w_id AND ol_d_id = d_id)",
        ),
    ];
    let mut violated = Vec::new();
    for (condition, sql) in CONDITIONS {
        let count: i64 = database.query_row(sql, [], |row| row.get(0))?;
        if count > 0 {
            violated.push(format!("{condition}: not so {count} times"));
        }
    }
    Ok(violated)
}
