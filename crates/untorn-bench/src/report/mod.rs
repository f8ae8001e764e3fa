//! The results of a run: as JSON for programs, as a table for people, and as a plot.

use serde::Serialize;
use serde_json::Value;

use crate::machine::Machine;
use crate::plot::{self, Metric};

mod comparison;
mod database;
mod files;
mod maps;
mod redundancy;
mod vilamb;

pub use comparison::{ComparisonRow, Latency, PerOp, StepRow};
pub use database::DatabaseRow;
pub use files::{CommitRow, CommitTimeRow, CopyRow, IdleRow};
pub use maps::{MapCommitRow, RegionRow};
pub use redundancy::{KernelRow, PassRow, RedundancyRow, Vulnerable};
pub use vilamb::{DirtyBitsRow, MttdlRow};

/// The outcome of a benchmark.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The benchmark's name.
    pub bench: &'static str,
    /// Whether it was a quick run.
    pub quick: bool,
    /// The machine it ran on.
    pub machine: Machine,
    /// Notes that a reader of the numbers needs.
    pub notes: Vec<String>,
    /// The measurements.
    pub rows: Vec<Row>,
    /// The quantity in the plot of comparisons.
    #[serde(skip)]
    pub(crate) metric: Metric,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Row {
    /// Copies into or out of a file.
    Copy(Box<CopyRow>),
    /// Commits by many threads.
    Commit(CommitRow),
    /// The time of one commit.
    CommitTime(CommitTimeRow),
    /// Plain stores and their commit.
    MapCommit(MapCommitRow),
    /// Operations on a region, and on a file.
    Region(RegionRow),
    /// An open but unused file.
    Idle(IdleRow),
    /// A workload with redundancy.
    Redundancy(Box<RedundancyRow>),
    /// A redundancy pass over an unmodified file.
    Pass(PassRow),
    /// Checksums and parity of pages.
    Kernel(KernelRow),
    /// The cost of finding the pages that were stored to.
    DirtyBits(DirtyBitsRow),
    /// The mean time to data loss of a workload.
    Mttdl(MttdlRow),
    /// Transactions of a database.
    Database(DatabaseRow),
    /// A system beside others.
    Comparison(Box<ComparisonRow>),
    /// A step that each system does once in a round.
    Step(StepRow),
}

/// A heading of the table, and the row's value under it.
type Cell = (&'static str, Option<String>);

impl From<CopyRow> for Row {
    fn from(row: CopyRow) -> Self {
        Row::Copy(Box::new(row))
    }
}

impl Row {
    pub(crate) fn as_copy(&self) -> Option<&CopyRow> {
        match self {
            Row::Copy(row) => Some(row.as_ref()),
            _ => None,
        }
    }

    pub(crate) fn as_copy_mut(&mut self) -> Option<&mut CopyRow> {
        match self {
            Row::Copy(row) => Some(row.as_mut()),
            _ => None,
        }
    }

    /// The cells of the table with their headings; a heading without a value in any row is omitted.
    fn cells(&self) -> Vec<Cell> {
        match self {
            Row::Copy(row) => row.cells(),
            Row::Redundancy(row) => row.cells(),
            Row::Pass(row) => row.cells(),
            Row::DirtyBits(row) => row.cells(),
            Row::Mttdl(row) => row.cells(),
            Row::Comparison(row) => row.cells(),
            Row::Step(row) => row.cells(),
            Row::Kernel(row) => row.cells(),
            Row::CommitTime(row) => row.cells(),
            Row::MapCommit(row) => row.cells(),
            Row::Region(row) => row.cells(),
            Row::Database(row) => row.cells(),
            Row::Idle(row) => row.cells(),
            Row::Commit(row) => row.cells(),
        }
    }
}

/// A rate with three significant digits.
fn rate(per_s: f64) -> String {
    match per_s {
        1e6.. => format!("{:.2}M", per_s / 1e6),
        1e3.. => format!("{:.1}k", per_s / 1e3),
        _ => format!("{per_s:.0}"),
    }
}

impl Report {
    /// One object: `bench`, `quick`, `machine`, `notes`, `rows`.
    pub fn to_json(&self) -> Value {
        // Plain structs with string keys always convert.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// A table for a terminal, with the machine above it and the notes below.
    pub fn to_table(&self) -> String {
        let Machine { cpu, cores, kernel, flush, simd, medium, dir, fs, .. } = &self.machine;
        let mut text =
            format!("{}: {cpu}, {cores} cores, {flush}, {simd}, Linux {kernel}\n{dir}: {fs}, {medium}\n\n", self.bench);
        let lines = self.lines();
        let Some(columns) = lines.first().map(Vec::len) else { return text };
        let widths: Vec<usize> =
            (0..columns).map(|at| lines.iter().map(|line| line[at].len()).max().unwrap_or(0)).collect();
        for line in &lines {
            // Align text left and numbers right.
            let cells: Vec<String> = line
                .iter()
                .zip(&widths)
                .zip(&lines[1])
                .map(|((cell, &width), sample)| match sample.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
                    true => format!("{cell:>width$}"),
                    false => format!("{cell:<width$}"),
                })
                .collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        for note in &self.notes {
            text.push_str(&format!("\n{note}"));
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        text
    }

    /// The headings of the table, and a line for each row. There are no headings without rows.
    fn lines(&self) -> Vec<Vec<String>> {
        let rows: Vec<_> = self.rows.iter().map(Row::cells).collect();
        let Some(columns) = rows.first().map(Vec::len) else { return Vec::new() };
        let shown: Vec<usize> = (0..columns).filter(|&at| rows.iter().any(|row| row[at].1.is_some())).collect();
        let mut lines: Vec<Vec<String>> = vec![shown.iter().map(|&at| rows[0][at].0.to_owned()).collect()];
        for row in &rows {
            lines.push(shown.iter().map(|&at| row[at].1.clone().unwrap_or_else(|| "-".to_owned())).collect());
        }
        lines
    }

    /// The same as a page in Markdown, with the plot in the file `NAME.svg` beside it.
    pub fn to_markdown(&self) -> String {
        let machine = &self.machine;
        let mut page = format!("# {}\n\n", self.bench);
        page.push_str(&format!(
            "{}, {} cores, {} MiB of memory, Linux {}; {} on {} ({}, scheduler {}), medium {}\n\n",
            machine.cpu,
            machine.cores,
            machine.memory_mib,
            machine.kernel,
            machine.fs,
            machine.device,
            machine.model,
            machine.scheduler,
            machine.medium
        ));
        self.notes.iter().for_each(|note| page.push_str(&format!("- {note}\n")));
        page.push_str(&format!("\n![{0}]({0}.svg)\n\n", self.bench));
        for (index, line) in self.lines().iter().enumerate() {
            page.push_str(&format!("| {} |\n", line.join(" | ")));
            if index == 0 {
                page.push_str(&format!("|{}\n", "---|".repeat(line.len())));
            }
        }
        page
    }

    /// A plot as an SVG document: a group of bars for each size, number of threads or category, or lines over numbers;
    /// a colour for each series.
    pub fn to_svg(&self) -> String {
        plot::svg(self)
    }

    /// The same plot as a PNG file.
    ///
    /// # Errors
    /// [`Error::Plot`](crate::Error::Plot).
    pub fn to_png(&self) -> crate::Result<Vec<u8>> {
        plot::png(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_keep_three_digits() {
        assert_eq!(rate(12_345_678.0), "12.35M");
        assert_eq!(rate(12_345.0), "12.3k");
        assert_eq!(rate(123.4), "123");
    }
}
