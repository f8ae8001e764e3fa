//! The results, and their text and JSON forms.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::place::Arm;

/// Rates per second by row and variant, one per round.
pub(super) struct Table {
    rows: Vec<Row>,
    arms: Vec<&'static str>,
    rounds: u32,
    seconds: f64,
}

struct Row {
    name: &'static str,
    rates: Vec<Vec<f64>>,
    /// Why files were left to the kernel, by arm.
    demoted: Vec<Vec<String>>,
    /// Its program is missing.
    missing: bool,
}

impl Table {
    pub(super) fn new(names: &[&'static str], arms: &[Arm], rounds: u32, seconds: f64) -> Self {
        let empty = |name: &&'static str| Row {
            name,
            rates: vec![Vec::new(); arms.len()],
            demoted: vec![Vec::new(); arms.len()],
            missing: false,
        };
        let rows = names.iter().map(empty).collect();
        Table { rows, arms: arms.iter().map(|arm| arm.name).collect(), rounds, seconds }
    }

    /// Adds one rate, with untorn's report.
    pub(super) fn add(&mut self, row: usize, arm: usize, rate: f64, report: &Value) {
        let row = &mut self.rows[row];
        row.rates[arm].push(rate);
        let demoted = report["plain"].as_array().into_iter().flatten();
        for why in demoted.filter_map(|entry| entry["why"].as_str()) {
            if !row.demoted[arm].iter().any(|known| known == why) {
                row.demoted[arm].push(why.to_owned());
            }
        }
    }

    pub(super) fn miss(&mut self, row: usize) {
        self.rows[row].missing = true;
    }

    pub(super) fn json(&self) -> Value {
        let row = |row: &Row| {
            let arm = |(number, name): (usize, &&str)| {
                json!({
                    "name": name,
                    "rates": row.rates[number],
                    "median": median(&row.rates[number]),
                    "ratio": row.ratio(number),
                    "left_to_the_kernel": row.demoted[number],
                })
            };
            let arms: Vec<_> = self.arms.iter().enumerate().map(arm).collect();
            json!({ "name": row.name, "missing": row.missing, "arms": arms })
        };
        let rows: Vec<_> = self.rows.iter().map(row).collect();
        json!({ "rounds": self.rounds, "seconds": self.seconds, "rows": rows })
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "operations per second; medians of {} measurements of {} s, in turns; ratios to bare\n{:26}",
            self.rounds, self.seconds, ""
        );
        // Two names that are as wide as their columns would run together.
        let width = self.arms.iter().map(|name| name.len() + 2).max().unwrap_or(0).max(24);
        for name in &self.arms {
            let _ = write!(text, "{name:>width$}");
        }
        text.push('\n');
        for row in &self.rows {
            let _ = write!(text, "{:26}", row.name);
            if row.missing {
                text.push_str("   skipped: its program is missing\n");
                continue;
            }
            for number in 0..self.arms.len() {
                let cell = match (median(&row.rates[number]), row.ratio(number)) {
                    (Some(rate), Some(ratio)) if number > 0 => format!("{rate:.0} ({ratio:.2})"),
                    (Some(rate), _) => format!("{rate:.0}"),
                    (None, _) => "-".to_owned(),
                };
                let _ = write!(text, "{cell:>width$}");
            }
            text.push('\n');
        }
        for row in &self.rows {
            for (arm, why) in self.arms.iter().zip(&row.demoted).filter(|(_, why)| !why.is_empty()) {
                let _ = writeln!(text, "{}, {arm}: left to the kernel: {}", row.name, why.join(", "));
            }
        }
        text
    }
}

impl Row {
    /// The median of its ratios to bare, round by round.
    fn ratio(&self, arm: usize) -> Option<f64> {
        let pairs = self.rates[arm].iter().zip(self.rates.first()?);
        median(&pairs.map(|(rate, bare)| rate / bare).collect::<Vec<_>>())
    }
}

/// The middle value, or the mean of the two middle values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len % 2 == 1 => sorted.get(middle).copied(),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_stay_apart_and_above_their_columns() {
        let long = "a run with its log on the disk of the files";
        let mut table = Table { rows: Vec::new(), arms: vec!["bare", long, long], rounds: 1, seconds: 1.0 };
        let empty = vec![Vec::new(); 3];
        table.rows.push(Row { name: "write", rates: vec![vec![1.0]; 3], demoted: empty, missing: false });
        let text = table.text();
        let (header, row) = (text.lines().nth(1).unwrap(), text.lines().nth(2).unwrap());
        assert!(header.contains(&format!("  {long}  {long}")) && header.len() == row.len(), "{text}");
    }

    #[test]
    fn ratios_are_of_the_same_round_and_medians_of_the_middle() {
        let mut table = Table { rows: Vec::new(), arms: vec!["bare", "log"], rounds: 3, seconds: 1.0 };
        let (rates, demoted) = (vec![Vec::new(); 2], vec![Vec::new(); 2]);
        table.rows.push(Row { name: "write", rates, demoted, missing: false });
        let report = json!({ "plain": [{ "path": "/a", "why": "mmap" }, { "path": "/b", "why": "mmap" }] });
        for (bare, log) in [(100.0, 200.0), (10.0, 50.0), (1000.0, 3000.0)] {
            table.add(0, 0, bare, &Value::Null);
            table.add(0, 1, log, &report);
        }
        assert_eq!((median(&table.rows[0].rates[0]), table.rows[0].ratio(1)), (Some(100.0), Some(3.0)));
        assert_eq!(median(&[1.0, 4.0]), Some(2.5));
        assert!(table.text().contains("200 (3.00)"), "{}", table.text());
        assert!(table.text().contains("write, log: left to the kernel: mmap\n"), "{}", table.text());
        assert_eq!(table.json()["rows"][0]["arms"][1]["ratio"], 3.0);
    }
}
