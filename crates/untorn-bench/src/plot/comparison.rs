//! Plots of comparisons: lines over numbers, bars over categories, a panel for each workload.

use plotters::prelude::*;

use super::canvas::FONT;
use crate::compare::XValue;
use crate::lines::{Area, Drawn, SMALL, colour, draw_legend, draw_tick, short, titled};
use crate::report::{ComparisonRow, Row};

/// The quantity on the vertical axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(dead_code, reason = "the figures of papers differ in it")]
pub(crate) enum Metric {
    /// Operations per second.
    #[default]
    OpsPerS,
    /// Bytes of records per second.
    MibPerS,
    /// The ratio to the baseline.
    Ratio,
    /// The ratio to untorn.
    RatioToUntorn,
    /// The median latency.
    Median,
    /// The median time of a long operation.
    MedianMs,
    /// The latency that 99 % of operations have at most.
    P99,
}

impl Metric {
    fn of(self, row: &ComparisonRow) -> f64 {
        match self {
            Metric::OpsPerS => row.ops_per_s,
            Metric::MibPerS => row.ops_per_s * row.size as f64 / f64::from(1 << 20),
            Metric::Ratio => row.ratio,
            Metric::RatioToUntorn => row.ratio_to_untorn.unwrap_or(f64::NAN),
            Metric::Median => row.latency_ns.p50 as f64 / 1e3,
            Metric::MedianMs => row.latency_ns.p50 as f64 / 1e6,
            Metric::P99 => row.latency_ns.p99 as f64 / 1e3,
        }
    }

    fn label(self, baseline: &str) -> String {
        match self {
            Metric::OpsPerS => "operations per second (median)".to_owned(),
            Metric::MibPerS => "MiB per second (median)".to_owned(),
            Metric::Ratio => format!("ratio to {baseline} (median)"),
            Metric::RatioToUntorn => "ratio to untorn (median)".to_owned(),
            Metric::Median => "median latency in microseconds".to_owned(),
            Metric::MedianMs => "median time in milliseconds".to_owned(),
            Metric::P99 => "99 % latency in microseconds".to_owned(),
        }
    }
}

/// Values that reach over more than this ratio have a logarithmic axis.
const WIDE: f64 = 50.0;

/// An axis: where a value stands on it.
#[derive(Clone, Copy, Debug)]
struct Axis {
    is_log: bool,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis for these values, which are positive or not numbers. It begins at 0 unless it is logarithmic.
    fn of(values: impl Iterator<Item = f64> + Clone) -> Axis {
        let values = values.filter(|value| value.is_finite());
        let (least, most) = (values.clone().fold(f64::MAX, f64::min), values.fold(0.0, f64::max));
        if least > 0.0 && least < f64::MAX && most / least > WIDE {
            Axis { is_log: true, from: least.log10(), to: most.log10() }
        } else {
            Axis { is_log: false, from: 0.0, to: if most > 0.0 { most } else { 1.0 } }
        }
    }

    fn place(self, value: f64) -> f64 {
        if self.is_log { value.log10() } else { value }
    }

    /// The same out to whole powers of ten, or a little further.
    fn widened(self) -> Axis {
        match self.is_log {
            true => Axis { from: self.from.floor(), to: self.to.ceil(), ..self },
            false => Axis { to: self.to * 1.05, ..self },
        }
    }

    /// The label at a place; none between powers of ten.
    fn label(self, place: f64) -> String {
        match self.is_log {
            true if (place - place.round()).abs() > 1e-6 => String::new(),
            true => short(10_f64.powf(place.round())),
            false => short(place),
        }
    }
}

/// A value of a system.
struct Spot {
    system: String,
    /// The text under its place of the horizontal axis.
    group: String,
    /// Its place, if the horizontal axis has numbers.
    number: Option<f64>,
    value: f64,
}

/// The plot of one workload, or of some steps.
pub(super) struct Panel {
    title: String,
    x: String,
    y: String,
    /// Whether a line at 1 helps.
    is_ratio: bool,
    spots: Vec<Spot>,
}

/// Steps in a panel at most.
const STEPS: usize = 4;

/// A panel for each workload, in the order of the rows, or for each few steps. Other rows have none.
pub(super) fn panels(metric: Metric, rows: &[Row]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    let mut add = |title: String, x: &str, y: String, is_ratio: bool, spot: Spot| match panels.last_mut() {
        Some(panel) if panel.title == title => panel.spots.push(spot),
        _ => panels.push(Panel { title, x: x.to_owned(), y, is_ratio, spots: vec![spot] }),
    };
    let mut steps: Vec<&str> = Vec::new();
    for row in rows {
        match row {
            Row::Comparison(row) => {
                let is_ratio = matches!(metric, Metric::Ratio | Metric::RatioToUntorn);
                let spot =
                    Spot { system: row.system.clone(), group: group(row), number: number(row), value: metric.of(row) };
                add(row.workload.clone(), row.x.name, metric.label(&row.baseline), is_ratio, spot);
            }
            Row::Step(row) => {
                if !steps.contains(&row.workload.as_str()) {
                    steps.push(&row.workload);
                }
                let (system, group) = (row.system.clone(), row.workload.clone());
                let title = format!("steps, part {}", steps.len().div_ceil(STEPS));
                let spot = Spot { system, group, number: None, value: row.ops_per_s };
                add(title, "step", Metric::OpsPerS.label(""), false, spot);
            }
            _ => {}
        }
    }
    panels
}

fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

impl Panel {
    /// Draws it into an area.
    pub(super) fn draw<B: DrawingBackend<ErrorType: 'static>>(&self, area: &Area<B>, caption: &str) -> Drawn {
        let systems = distinct(self.spots.iter().map(|spot| spot.system.as_str()));
        let numbers: Option<Vec<f64>> = self.spots.iter().map(|spot| spot.number).collect();
        let numbers = numbers.map(|numbers| distinct(numbers.into_iter())).filter(|numbers| numbers.len() > 1);
        let y = Axis::of(self.spots.iter().map(|spot| spot.value)).widened();
        let groups = distinct(self.spots.iter().map(|spot| spot.group.as_str()));
        let x = match &numbers {
            Some(numbers) => Axis::of(numbers.iter().copied()),
            None => Axis { is_log: false, from: 0.0, to: groups.len() as f64 },
        };
        let margin = if numbers.is_some() { (x.to - x.from) * 0.04 } else { 0.0 };
        let area = &titled(area, &format!("{}: {caption}", self.title))?;
        let (left, legend) = area.split_horizontally(760);
        let mut chart = ChartBuilder::on(&left)
            .margin(12)
            .x_label_area_size(60)
            .y_label_area_size(74)
            .build_cartesian_2d(x.from - margin..x.to + margin, y.from..y.to)?;
        let decades = (y.to - y.from).round() as usize + 1;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .x_desc(&self.x)
            .y_desc(&self.y)
            .y_labels(if y.is_log { decades } else { 8 })
            .y_label_formatter(&|place| y.label(*place))
            .max_light_lines(0)
            .label_style((FONT, SMALL))
            .draw()?;
        let ticks: Vec<(f64, &str)> = match &numbers {
            Some(_) => {
                for (index, system) in systems.iter().enumerate() {
                    let of_system = self.spots.iter().filter(|spot| spot.system == *system && spot.value.is_finite());
                    let point = |spot: &Spot| Some((x.place(spot.number?), y.place(spot.value)));
                    let mut points: Vec<(f64, f64)> = of_system.filter_map(point).collect();
                    points.sort_by(|one, two| one.0.total_cmp(&two.0));
                    let dots = points.iter().map(|&point| Circle::new(point, 4, colour(index).filled()));
                    chart.draw_series(dots)?;
                    chart.draw_series([PathElement::new(points, colour(index).stroke_width(2))])?;
                }
                let tick = |spot: &'_ Spot| spot.number.map(|number| x.place(number));
                distinct(self.spots.iter().filter_map(|spot| Some((tick(spot)?, spot.group.as_str()))))
            }
            None => {
                let width = 0.8 / systems.len().max(1) as f64;
                let bars = self.spots.iter().filter(|spot| spot.value.is_finite()).filter_map(|spot| {
                    let at = groups.iter().position(|name| *name == spot.group)?;
                    let place = systems.iter().position(|name| *name == spot.system)?;
                    let start = at as f64 + 0.1 + place as f64 * width;
                    let ends = [(start, y.from), (start + width * 0.9, y.place(spot.value))];
                    Some(Rectangle::new(ends, colour(place).filled()))
                });
                chart.draw_series(bars)?;
                groups.iter().enumerate().map(|(at, name)| (at as f64 + 0.5, *name)).collect()
            }
        };
        if self.is_ratio {
            let ends = vec![(x.from - margin, y.place(1.0)), (x.to + margin, y.place(1.0))];
            chart.draw_series([PathElement::new(ends, BLACK.stroke_width(1))])?;
        }
        let width = 660 / ticks.len().max(1) as u32;
        for (place, name) in ticks {
            draw_tick(area, chart.backend_coord(&(place, y.from)), name, width)?;
        }
        draw_legend(&legend, &systems)
    }
}

fn number(row: &ComparisonRow) -> Option<f64> {
    match row.x.value {
        XValue::Number(number) => Some(number),
        XValue::Category(_) => None,
    }
}

const GIB: f64 = 1_073_741_824.0;
const TIB: f64 = 1024.0 * GIB;

/// A number with its unit; whole KiB, MiB, GiB and TiB of bytes.
fn quantity(number: f64, unit: &str) -> String {
    match unit {
        " B" if number >= TIB && number % TIB == 0.0 => format!("{} TiB", number / TIB),
        " B" if number >= GIB && number % GIB == 0.0 => format!("{} GiB", number / GIB),
        " B" if number >= 1_048_576.0 && number % 1_048_576.0 == 0.0 => format!("{} MiB", number / 1_048_576.0),
        " B" if number >= 1024.0 && number % 1024.0 == 0.0 => format!("{} KiB", number / 1024.0),
        " B" => format!("{number} B"),
        _ => format!("{}{unit}", short(number)),
    }
}

/// The text under a place of the horizontal axis.
fn group(row: &ComparisonRow) -> String {
    match &row.x.value {
        XValue::Number(number) => quantity(*number, row.x.unit),
        XValue::Category(name) => name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_ranges_have_a_logarithmic_axis_of_whole_decades() {
        let axis = Axis::of([3.0, 400.0, f64::NAN].into_iter()).widened();
        assert!(axis.is_log && (axis.from, axis.to) == (0.0, 3.0));
        assert_eq!([0.0, 0.5, 2.0].map(|place| axis.label(place)), ["1", "", "100"]);
        let axis = Axis::of([3.0, 40.0].into_iter()).widened();
        assert!(!axis.is_log && axis.from == 0.0 && axis.to > 40.0 && axis.label(1500.0) == "1.5k");
        // Nothing to draw has an axis too.
        assert!(Axis::of([f64::NAN].into_iter()).to > 0.0 && Axis::of([].into_iter()).to > 0.0);
    }

    #[test]
    fn bytes_have_binary_units() {
        assert_eq!(
            [8.0, 1000.0, 4096.0, 1_048_576.0, 3.0 * GIB, TIB].map(|bytes| quantity(bytes, " B")),
            ["8 B", "1000 B", "4 KiB", "1 MiB", "3 GiB", "1 TiB"]
        );
        assert_eq!([1500.0, 16.0].map(|number| quantity(number, " %")), ["1.5k %", "16 %"]);
    }
}
