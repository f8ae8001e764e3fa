//! Line plots over time as SVG, and the common parts of all plots.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;

/// A part of a drawing.
pub(crate) type Area<B> = DrawingArea<B, Shift>;
pub(crate) type Drawn = Result<(), Box<dyn Error>>;

/// One plot: lines over the same axes, both starting at 0.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// The title.
    pub caption: String,
    /// The label of the horizontal axis, with its unit.
    pub x: String,
    /// The label of the vertical axis, with its unit.
    pub y: String,
    /// The minimum extent of the two axes.
    pub least: (f64, f64),
    /// The lines, in the order of the legend.
    pub lines: Vec<Line>,
}

/// A line and its name.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points from left to right; a NaN interrupts the line.
    pub points: Vec<(f64, f64)>,
}

/// An SVG document with the plots below each other.
///
/// ```
/// use untorn_bench::{Line, Lines, svg_of_lines};
///
/// let line = Line { name: "log".to_owned(), points: vec![(0.0, 90.0), (1.0, 20.0)] };
/// let (caption, y) = ("a burst".to_owned(), "MB a second".to_owned());
/// let lines = Lines { caption, y, lines: vec![line], ..Lines::default() };
/// assert!(svg_of_lines(&[lines]).starts_with("<svg"));
/// ```
pub fn svg_of_lines(plots: &[Lines]) -> String {
    let mut document = String::new();
    let result = draw_all(plots, &mut document);
    drawn(document, result)
}

/// The document. Drawing into memory cannot fail; if it does anyway, the document contains the error.
pub(crate) fn drawn(document: String, result: Drawn) -> String {
    match result {
        Ok(()) => document,
        Err(error) => format!("<svg xmlns=\"http://www.w3.org/2000/svg\"><!-- not drawn: {error} --></svg>"),
    }
}

fn draw_all(plots: &[Lines], document: &mut String) -> Drawn {
    let root = SVGBackend::with_string(document, (1100, 360 * plots.len().max(1) as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, lines) in root.split_evenly((plots.len().max(1), 1)).iter().zip(plots) {
        draw(area, lines)?;
    }
    root.present()?;
    Ok(())
}

pub(crate) fn draw<B: DrawingBackend<ErrorType: 'static>>(area: &Area<B>, plot: &Lines) -> Drawn {
    let points = || plot.lines.iter().flat_map(|line| &line.points);
    let most = |of: fn(&(f64, f64)) -> f64, least: f64| {
        points().map(of).filter(|at| at.is_finite()).fold(least.max(f64::MIN_POSITIVE), f64::max) * 1.05
    };
    let (last, highest) = (most(|at| at.0, plot.least.0), most(|at| at.1, plot.least.1));
    let (left, legend) = area.split_horizontally(760);
    let mut chart = ChartBuilder::on(&left)
        .caption(&plot.caption, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..last, 0.0..highest)?;
    chart.configure_mesh().x_desc(&plot.x).y_desc(&plot.y).max_light_lines(0).label_style(("sans-serif", 15)).draw()?;
    for (index, line) in plot.lines.iter().enumerate() {
        for piece in line.points.split(|at| !at.1.is_finite()).filter(|piece| !piece.is_empty()) {
            chart.draw_series([PathElement::new(piece.to_vec(), colour(index).stroke_width(2))])?;
        }
    }
    draw_legend(&legend, &plot.lines.iter().map(|line| line.name.as_str()).collect::<Vec<_>>())
}

pub(crate) fn draw_legend<B: DrawingBackend<ErrorType: 'static>>(legend: &Area<B>, series: &[&str]) -> Drawn {
    for (index, name) in series.iter().enumerate() {
        let y = 40 + 18 * index as i32;
        legend.draw(&Rectangle::new([(8, y), (20, y + 12)], colour(index).filled()))?;
        legend.draw(&Text::new((*name).to_owned(), (26, y), ("sans-serif", 15).into_font()))?;
    }
    Ok(())
}

/// Colours that are distinguishable with most kinds of colour blindness (Okabe and Ito), then the same colours darker.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
    RGBColor(240, 228, 66),
    RGBColor(120, 120, 120),
];

pub(crate) fn colour(index: usize) -> RGBColor {
    let RGBColor(r, g, b) = COLOURS[index % COLOURS.len()];
    let darker = 1 + index / COLOURS.len();
    let shade = |channel: u8| (usize::from(channel) / darker) as u8;
    RGBColor(shade(r), shade(g), shade(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_of_many_series_differ() {
        let colours: Vec<RGBColor> = (0..16).map(colour).collect();
        assert!((0..16).all(|a| (0..a).all(|b| colours[a] != colours[b])));
    }

    #[test]
    fn a_plot_draws_every_line_and_breaks_it_at_nan() {
        let points = vec![(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 1.0), (4.0, 3.0)];
        let lines = vec![Line { name: "broken".to_owned(), points }, Line { name: "none".to_owned(), points: vec![] }];
        let plot = Lines { caption: "above".to_owned(), lines, ..Lines::default() };
        let document = svg_of_lines(&[plot.clone(), plot]);
        for text in ["above", "broken", "none"] {
            assert_eq!(document.matches(&format!("\n{text}\n")).count(), 2, "{text}: {document}");
        }
        let colour = "#0072B2";
        let pieces = document.lines().filter(|line| line.contains("<polyline") && line.contains(colour)).count();
        assert_eq!(pieces, 4, "{document}");
        assert!(!svg_of_lines(&[]).contains("not drawn"));
    }
}
