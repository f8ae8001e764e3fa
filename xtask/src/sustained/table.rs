//! The results, and their text and JSON forms.

use std::fmt::Write as _;

use serde_json::{Value, json};
use untorn_bench::{Line, Lines, svg_of_lines};
use untorn_rigs::block::Asked;

use super::trace::Trace;
use super::{Terms, Way};
use crate::boost::median;

/// The traces of each variant, one per round.
pub(super) struct Table {
    terms: Terms,
    rows: Vec<Row>,
}

struct Row {
    way: Way,
    measured: Vec<(Trace, Asked)>,
}

impl Table {
    pub(super) fn new(terms: Terms, ways: &[Way]) -> Self {
        Table { terms, rows: ways.iter().map(|&way| Row { way, measured: Vec::new() }).collect() }
    }

    pub(super) fn add(&mut self, row: usize, trace: Trace, asked: Asked) {
        self.rows[row].measured.push((trace, asked));
    }

    /// The ratio of one way to another, the median over rounds.
    fn ratios(&self, row: &Row, of: impl Fn(&Trace) -> Option<f64>, to: Way) -> Option<f64> {
        let rival = self.rows.iter().find(|row| row.way == to)?;
        let pairs = row.measured.iter().zip(&rival.measured);
        median(&pairs.filter_map(|((trace, _), (rival, _))| Some(of(trace)? / rival.rate())).collect::<Vec<_>>())
    }

    /// The rate that counts: with a log that beyond it.
    fn sustained(&self, way: Way, trace: &Trace) -> Option<f64> {
        match way {
            Way::Log { .. } => trace.rate_beyond(self.terms.log),
            Way::OneSync | Way::SyncEach => Some(trace.rate()),
        }
    }

    fn figures(&self, row: &Row) -> Figures {
        let of = |figure: &dyn Fn(&Trace) -> Option<f64>| {
            median(&row.measured.iter().filter_map(|(trace, _)| figure(trace)).collect::<Vec<_>>())
        };
        let back: Vec<_> = row.measured.iter().map(|(trace, _)| trace.back_to_normal()).collect();
        Figures {
            burst: of(&|trace| Some(trace.rate())),
            burst_to_one_sync: self.ratios(row, |trace| Some(trace.rate()), Way::OneSync),
            sustained: of(&|trace| self.sustained(row.way, trace)),
            to_one_sync: self.ratios(row, |trace| self.sustained(row.way, trace), Way::OneSync),
            to_sync_each: self.ratios(row, |trace| self.sustained(row.way, trace), Way::SyncEach),
            usual: of(&Trace::usual),
            // A trace that is not back by the end counts as later than all others.
            back: median(&back.iter().map(|back| back.unwrap_or(f64::INFINITY)).collect::<Vec<_>>()),
            longest: of(&|trace| Some(trace.longest())),
        }
    }

    pub(super) fn json(&self) -> Value {
        let row = |row: &Row| {
            let round = |(trace, asked): &(Trace, Asked)| {
                let over_time = trace.over_time().into_iter().map(|bin| {
                    json!({
                        "seconds": bin.seconds, "writes": bin.writes, "mean_ms": bin.mean, "longest_ms": bin.longest,
                    })
                });
                json!({
                    "burst_mib_s": trace.rate(),
                    "sustained_mib_s": self.sustained(row.way, trace),
                    "usual_ms": trace.usual(),
                    "back_s": trace.back_to_normal(),
                    "longest_ms": trace.longest(),
                    "device": { "bytes": asked.bytes, "writes": asked.writes, "flushes": asked.flushes },
                    "over_time": over_time.collect::<Vec<_>>(),
                })
            };
            let figures = self.figures(row);
            json!({
                "name": row.way.name(),
                "batch": row.way.batch(),
                "burst_mib_s": figures.burst,
                "burst_to_one_sync": figures.burst_to_one_sync,
                "sustained_mib_s": figures.sustained,
                "to_one_sync": figures.to_one_sync,
                "to_sync_each": figures.to_sync_each,
                "usual_ms": figures.usual,
                "back_s": figures.back.filter(|back| back.is_finite()),
                "longest_ms": figures.longest,
                "rounds": row.measured.iter().map(round).collect::<Vec<_>>(),
            })
        };
        json!({
            "device_rate": self.terms.rate,
            "flush_ms": self.terms.flush_ms,
            "log_size": self.terms.log,
            "burst": self.terms.burst,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{}; medians of {} rounds, measured in turns\n",
            self.terms,
            self.rows.first().map_or(0, Row::rounds)
        );
        let head = [
            "MiB/s",
            "to one fsync",
            "sustained",
            "to one fsync",
            "to fsync each",
            "usual ms",
            "back after s",
            "longest ms",
        ];
        let _ = write!(text, "{:22}", "");
        for name in head {
            let _ = write!(text, "{name:>14}");
        }
        text.push('\n');
        for row in &self.rows {
            let found = self.figures(row);
            let _ = write!(text, "{:22}", row.way.name());
            let cells = [
                (found.burst, 1),
                (found.burst_to_one_sync, 2),
                (found.sustained, 1),
                (found.to_one_sync, 2),
                (found.to_sync_each, 2),
                (found.usual, 3),
                (found.back, 1),
                (found.longest, 1),
            ];
            for (value, digits) in cells {
                let cell = match value {
                    Some(value) if value.is_finite() => format!("{value:.digits$}"),
                    Some(_) => "later".to_owned(),
                    None => "-".to_owned(),
                };
                let _ = write!(text, "{cell:>14}");
            }
            text.push('\n');
        }
        text
    }

    /// Both figures, of the first round.
    pub(super) fn svg(&self) -> String {
        let is_batch = |row: &&Row| row.way.batch().is_some();
        let (batches, others): (Vec<&Row>, Vec<&Row>) = self.rows.iter().partition(is_batch);
        let terms = self.terms.to_string();
        let mut plots = vec![
            lines(&others, format!("writes over time: {terms}"), "MiB per second", |bin| bin.rate()),
            lines(&others, "duration of a write".to_owned(), "milliseconds, mean", |bin| bin.mean.unwrap_or(f64::NAN)),
        ];
        if !batches.is_empty() {
            plots.push(lines(&batches, "writes over time, by batch size".to_owned(), "MiB per second", |bin| {
                bin.rate()
            }));
            plots.push(lines(&batches, "total written".to_owned(), "MiB", |bin| bin.rate()));
            if let Some(plot) = plots.last_mut() {
                plot.lines.iter_mut().for_each(sum_up);
            }
        }
        svg_of_lines(&plots)
    }
}

/// Turns rates into amounts: each bin is a tenth of a second.
fn sum_up(line: &mut Line) {
    let mut sum = 0.0;
    for point in &mut line.points {
        sum += point.1 / 10.0;
        point.1 = sum;
    }
}

fn lines(rows: &[&Row], caption: String, y: &str, of: impl Fn(&super::trace::Bin) -> f64) -> Lines {
    let line = |row: &&Row| {
        let bins = row.measured.first().map(|(trace, _)| trace.over_time()).unwrap_or_default();
        // The axis begins with the burst.
        let points = bins.iter().filter(|bin| bin.seconds > -0.01).map(|bin| (bin.seconds, of(bin)));
        // In an interrupted line, a point between two without a value would not be visible.
        Line { name: row.way.name(), points: points.filter(|at| at.1.is_finite()).collect() }
    };
    let lines = rows.iter().map(line).collect();
    Lines { caption, x: "seconds since the burst began".to_owned(), y: y.to_owned(), least: (1.0, 1.0), lines }
}

impl Row {
    fn rounds(&self) -> usize {
        self.measured.len()
    }
}

/// Medians of all rounds.
struct Figures {
    burst: Option<f64>,
    burst_to_one_sync: Option<f64>,
    sustained: Option<f64>,
    to_one_sync: Option<f64>,
    to_sync_each: Option<f64>,
    usual: Option<f64>,
    back: Option<f64>,
    longest: Option<f64>,
}
