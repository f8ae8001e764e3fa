//! Plots of reports as SVG and PNG: grouped bars, and lines over time.

use plotters::prelude::*;

use self::canvas::{FONT, Picture};
use self::comparison::Panel;
use crate::error::Result;
use crate::lines::{self, Area, Drawn, Line, Lines, SMALL, colour, draw_legend, draw_tick};
use crate::report::{RedundancyRow, Report, Row, Vulnerable};

pub(crate) mod canvas;
mod comparison;

pub(crate) use comparison::Metric;

/// One bar: its group, its series (which selects the colour), and its height.
struct Bar {
    group: String,
    series: String,
    height: f64,
}

fn bar(row: &Row) -> Bar {
    match row {
        Row::Copy(row) => {
            let how = [Some(row.engine), Some(row.order), row.state, row.read_policy, row.log_policy];
            let mut series = how.into_iter().flatten().chain([row.pattern]).collect::<Vec<_>>().join(" ");
            series.push_str(&format!(" ×{}", row.threads));
            let group = match row.reads_percent {
                Some(reads) => format!("{reads} % reads"),
                None => format!("{} B", row.size),
            };
            Bar { group, series, height: row.ratio }
        }
        Row::Commit(row) => Bar {
            group: format!("{} threads", row.threads),
            series: format!("{} {} {} B", row.engine, row.pattern, row.size),
            height: row.commits_per_s,
        },
        Row::CommitTime(row) => Bar {
            group: format!("{} blocks", row.dirty_blocks),
            series: [Some(row.engine), Some(row.order), row.log_policy]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(" "),
            height: row.commit_ns,
        },
        Row::MapCommit(row) => Bar {
            group: format!("{} pages", row.dirty_pages),
            series: format!("{} {} {} B", row.tracking, row.pattern, row.size),
            height: row.time_to_raw,
        },
        Row::Region(row) => {
            Bar { group: row.workload.to_owned(), series: format!("{} pages", row.pages), height: row.ratio_to_untorn }
        }
        Row::Redundancy(row) => Bar { height: (row.cpu_overhead * 100.0).max(0.0), ..bar_of(row) },
        Row::Pass(row) => Bar { group: row.tracking.to_owned(), series: row.what.to_owned(), height: row.cpu_ms },
        Row::Kernel(row) => {
            Bar { group: format!("{} of {} B", row.kernel, row.size), series: row.way.to_owned(), height: row.ratio }
        }
        Row::DirtyBits(row) => Bar {
            group: format!("{} pages/call", row.batch_pages),
            series: format!("{} MiB", row.file_len >> 20),
            height: row.total_ms,
        },
        Row::Mttdl(row) => Bar {
            group: format!("{} s", row.period_s),
            series: row.workload.clone(),
            height: row.mttdl_gain.unwrap_or(0.0),
        },
        Row::Database(row) => Bar {
            group: format!("{} ×{}", row.workload, row.threads),
            series: format!("{}, pages of {} B", row.system, row.page_size),
            height: row.ops_per_s,
        },
        // Comparisons have a plot of their own.
        Row::Step(row) => Bar { group: row.workload.clone(), series: row.system.clone(), height: row.ops_per_s },
        Row::Comparison(row) => Bar { group: row.workload.clone(), series: row.system.clone(), height: row.ops_per_s },
        Row::Idle(row) => Bar {
            group: format!("{} MiB", row.file_len >> 20),
            series: [Some(row.engine), row.log_policy].into_iter().flatten().collect::<Vec<_>>().join(" "),
            height: row.cpu_share * 100.0,
        },
    }
}

/// The group and series of a redundancy row.
fn bar_of(row: &RedundancyRow) -> Bar {
    let on = if row.system == "atomic-map" { " over a map" } else { "" };
    let series = format!("{}{on} {}", row.workload, row.redundancy);
    Bar { group: row.period_s.map_or("off".to_owned(), |period| format!("{period} s")), series, height: 0.0 }
}

/// The distinct values, in order of first occurrence.
fn distinct<'a>(bars: &'a [Bar], of: impl Fn(&'a Bar) -> &'a str) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in bars.iter().map(of) {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// The plot of a report as an SVG document.
pub(crate) fn svg(report: &Report) -> String {
    canvas::svg(&Plot::of(report))
}

/// The plot of a report as a PNG file.
///
/// # Errors
/// [`Error::Plot`](crate::Error::Plot).
pub(crate) fn png(report: &Report) -> Result<Vec<u8>> {
    canvas::png(&Plot::of(report))
}

/// The plot of a report.
struct Plot<'r> {
    caption: String,
    /// The panels of comparisons; empty if the report has none.
    panels: Vec<Panel>,
    /// Otherwise a bar for each row.
    bars: Vec<Bar>,
    /// The label of the bars' axis.
    label: &'static str,
    /// Whether the bars are ratios.
    has_one: bool,
    /// Protected rows, whose exposure over time has a panel.
    protected: Vec<&'r RedundancyRow>,
}

impl<'r> Plot<'r> {
    fn of(report: &'r Report) -> Self {
        let machine = &report.machine;
        let label = match report.rows.first() {
            Some(Row::Commit(_)) => "commits per second (median)",
            Some(Row::CommitTime(_)) => "nanoseconds per commit (median)",
            Some(Row::MapCommit(_)) => "time relative to raw (median)",
            Some(Row::Region(_)) => "file system's rate relative to untorn's (median)",
            Some(Row::Database(_) | Row::Step(_)) => "operations per second (median)",
            Some(Row::Idle(_)) => "processor time, % of a core",
            Some(Row::Redundancy(_)) => "processor time lost, %, by period",
            Some(Row::Pass(_)) => "milliseconds of processor time (median)",
            Some(Row::DirtyBits(_)) => "milliseconds to check and clear",
            Some(Row::Mttdl(_)) => "gain in mean time to data loss",
            Some(Row::Kernel(_)) => "time relative to a read (median)",
            Some(Row::Copy(_) | Row::Comparison(_)) | None => "ratio to raw (median)",
        };
        let protected = report.rows.iter().filter_map(|row| match row {
            Row::Redundancy(row) if !row.over_time.is_empty() => Some(&**row),
            _ => None,
        });
        Plot {
            caption: format!("{} on {} ({}, {})", report.bench, machine.medium, machine.fs, machine.cpu),
            panels: comparison::panels(report.metric, &report.rows),
            bars: report.rows.iter().map(bar).collect(),
            label,
            has_one: report.rows.iter().any(|row| matches!(row, Row::Copy(_) | Row::Kernel(_))),
            protected: protected.collect(),
        }
    }
}

impl Picture for Plot<'_> {
    fn size(&self) -> (u32, u32) {
        if !self.panels.is_empty() {
            return (1100, 420 * self.panels.len() as u32);
        }
        let height = 420.max(60 + 18 * distinct(&self.bars, |bar| &bar.series).len() as u32);
        (1100, if self.protected.is_empty() { height } else { 3 * height })
    }

    fn draw<B: DrawingBackend<ErrorType: 'static>>(&self, root: &Area<B>) -> Drawn {
        if !self.panels.is_empty() {
            let areas = root.split_evenly((self.panels.len(), 1));
            return areas.iter().zip(&self.panels).try_for_each(|(area, panel)| panel.draw(area, &self.caption));
        }
        let areas = root.split_evenly((if self.protected.is_empty() { 1 } else { 3 }, 1));
        draw_bars(&areas[0], &self.caption, self.label, &self.bars, self.has_one)?;
        if let [_, over_time, until_covered] = &areas[..] {
            draw_exposure(over_time, &self.protected)?;
            let covered =
                |row: &&RedundancyRow| Bar { height: row.full_coverage_s.unwrap_or(0.0) * 1e3, ..bar_of(row) };
            let bars: Vec<Bar> = self.protected.iter().map(covered).collect();
            draw_bars(until_covered, "time to full coverage", "milliseconds, by period", &bars, false)?;
        }
        Ok(())
    }
}

/// Draws bars in groups, with a line at 1 if the bars are ratios.
fn draw_bars<B: DrawingBackend<ErrorType: 'static>>(
    area: &Area<B>,
    caption: &str,
    label: &str,
    bars: &[Bar],
    has_one: bool,
) -> Drawn {
    let groups = distinct(bars, |bar| &bar.group);
    let series = distinct(bars, |bar| &bar.series);
    let highest = bars.iter().map(|bar| bar.height).filter(|height| height.is_finite()).fold(0.0, f64::max);
    let least = if has_one { 1.05 } else { 1.0 };
    let top = (highest * 1.05).max(least);
    let area = &lines::titled(area, caption)?;
    let (left, legend) = area.split_horizontally(760);
    let mut chart = ChartBuilder::on(&left)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(74)
        .build_cartesian_2d(0.0..groups.len().max(1) as f64, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_desc(label)
        .y_label_formatter(&|height| lines::short(*height))
        .max_light_lines(0)
        .label_style((FONT, SMALL))
        .draw()?;

    // A fifth of each group's width stays empty between the groups.
    let width = 0.8 / series.len().max(1) as f64;
    let rectangles = bars.iter().filter_map(|bar| {
        let group = groups.iter().position(|&name| name == bar.group)?;
        let place = series.iter().position(|&name| name == bar.series)?;
        let start = group as f64 + 0.1 + place as f64 * width;
        Some(Rectangle::new([(start, 0.0), (start + width * 0.9, bar.height)], colour(place).filled()))
    });
    chart.draw_series(rectangles)?;
    if has_one {
        chart.draw_series([PathElement::new(vec![(0.0, 1.0), (groups.len() as f64, 1.0)], BLACK.stroke_width(1))])?;
    }
    let width = 660 / groups.len().max(1) as u32;
    for (index, group) in groups.iter().enumerate() {
        draw_tick(area, chart.backend_coord(&(index as f64 + 0.5, 0.0)), group, width)?;
    }
    draw_legend(&legend, &series)
}

/// Draws the share of vulnerable stripes over two periods.
fn draw_exposure<B: DrawingBackend<ErrorType: 'static>>(area: &Area<B>, rows: &[&RedundancyRow]) -> Drawn {
    let line = |row: &&RedundancyRow| {
        let (period, stripes) = (row.period_s.unwrap_or(1.0), row.stripes.unwrap_or(1).max(1) as f64);
        let share = |at: &Vulnerable| (at.seconds / period, at.vulnerable_stripes as f64 / stripes * 100.0);
        let name = format!("{}, {} s", row.workload, row.period_s.unwrap_or(0.0));
        Line { name, points: row.over_time.iter().map(share).collect() }
    };
    let lines = rows.iter().map(line).collect();
    lines::draw(
        area,
        &Lines {
            caption: "vulnerable stripes".to_owned(),
            x: "time, in periods".to_owned(),
            y: "% of all stripes".to_owned(),
            least: (2.0, 1.0),
            lines,
        },
    )
}
