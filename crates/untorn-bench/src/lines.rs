//! Line plots over time, and the common parts of all plots.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::error::Result;
use crate::plot::canvas::{self, FONT, Picture};

/// A part of a drawing.
pub(crate) type Area<B> = DrawingArea<B, Shift>;
pub(crate) type Drawn = std::result::Result<(), Box<dyn Error>>;

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
    canvas::svg(&Below(plots))
}

/// A PNG file with the plots below each other.
///
/// # Errors
/// [`Error::Plot`](crate::Error::Plot).
///
/// ```
/// # use untorn_bench::{Lines, png_of_lines};
/// # fn main() -> Result<(), untorn_bench::Error> {
/// assert!(png_of_lines(&[Lines::default()])?.starts_with(b"\x89PNG"));
/// # Ok(()) }
/// ```
pub fn png_of_lines(plots: &[Lines]) -> Result<Vec<u8>> {
    canvas::png(&Below(plots))
}

/// Plots below each other.
struct Below<'p>(&'p [Lines]);

impl Picture for Below<'_> {
    fn size(&self) -> (u32, u32) {
        (1100, 360 * self.0.len().max(1) as u32)
    }

    fn draw<B: DrawingBackend<ErrorType: 'static>>(&self, root: &Area<B>) -> Drawn {
        let areas = root.split_evenly((self.0.len().max(1), 1));
        areas.iter().zip(self.0).try_for_each(|(area, lines)| draw(area, lines))
    }
}

pub(crate) fn draw<B: DrawingBackend<ErrorType: 'static>>(area: &Area<B>, plot: &Lines) -> Drawn {
    let points = || plot.lines.iter().flat_map(|line| &line.points);
    let most = |of: fn(&(f64, f64)) -> f64, least: f64| {
        points().map(of).filter(|at| at.is_finite()).fold(least.max(f64::MIN_POSITIVE), f64::max) * 1.05
    };
    let (last, highest) = (most(|at| at.0, plot.least.0), most(|at| at.1, plot.least.1));
    let area = titled(area, &plot.caption)?;
    let (left, legend) = area.split_horizontally(760);
    let mut chart = ChartBuilder::on(&left)
        .margin(12)
        .x_label_area_size(48)
        .y_label_area_size(74)
        .build_cartesian_2d(0.0..last, 0.0..highest)?;
    chart
        .configure_mesh()
        .x_desc(&plot.x)
        .y_desc(&plot.y)
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .max_light_lines(0)
        .label_style((FONT, SMALL))
        .draw()?;
    for (index, line) in plot.lines.iter().enumerate() {
        for piece in line.points.split(|at| !at.1.is_finite()).filter(|piece| !piece.is_empty()) {
            chart.draw_series([PathElement::new(piece.to_vec(), colour(index).stroke_width(2))])?;
        }
    }
    draw_legend(&legend, &plot.lines.iter().map(|line| line.name.as_str()).collect::<Vec<_>>())
}

pub(crate) fn draw_legend<B: DrawingBackend<ErrorType: 'static>>(legend: &Area<B>, series: &[&str]) -> Drawn {
    let (width, _) = legend.dim_in_pixel();
    let widest = series.iter().map(|name| wide(name, SMALL)).max().unwrap_or(0);
    // Smaller letters rather than cut ones.
    let size = f64::from(SMALL) * (f64::from(width.saturating_sub(34)) / f64::from(widest.max(1))).min(1.0);
    for (index, name) in series.iter().enumerate() {
        let y = 20 + 18 * index as i32;
        legend.draw(&Rectangle::new([(8, y), (20, y + 12)], colour(index).filled()))?;
        legend.draw(&Text::new((*name).to_owned(), (26, y), (FONT, size).into_font()))?;
    }
    Ok(())
}

/// Draws a title, which has the whole width. Returns the area below it.
pub(crate) fn titled<B: DrawingBackend<ErrorType: 'static>>(
    area: &Area<B>,
    text: &str,
) -> std::result::Result<Area<B>, Box<dyn Error>> {
    Ok(area.margin(10, 0, 0, 0).titled(text, (FONT, 16))?)
}

/// The size of labels.
pub(crate) const SMALL: i32 = 15;

/// The width of a text in pixels.
fn wide(text: &str, size: i32) -> u32 {
    (FONT, size).into_font().box_size(text).map_or(0, |(width, _)| width)
}

/// The text under a place of the horizontal axis, in as many lines as `width` pixels need. Coordinates are those of the
/// whole document; the area is a part of it.
pub(crate) fn draw_tick<B: DrawingBackend<ErrorType: 'static>>(
    area: &Area<B>,
    (at, bottom): (i32, i32),
    text: &str,
    width: u32,
) -> Drawn {
    // Neighbours stay apart.
    let width = width.saturating_sub(12);
    let centred = (FONT, SMALL).into_text_style(area).pos(Pos::new(HPos::Center, VPos::Top));
    let (left, top) = area.get_base_pixel();
    for (index, line) in broken(text, |line| wide(line, SMALL) <= width).into_iter().enumerate() {
        area.draw(&Text::new(line, (at - left, bottom - top + 8 + 15 * index as i32), centred.clone()))?;
    }
    Ok(())
}

/// Breaks a text between words so that each line fits, as far as words do.
fn broken(text: &str, fits: impl Fn(&str) -> bool) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if fits(&format!("{line} {word}")) => line.push_str(&format!(" {word}")),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A number with a suffix for thousands.
pub(crate) fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e3.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.3}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{suffix}")
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
    fn texts_are_broken_between_words() {
        let fits = |line: &str| line.len() <= 12;
        assert_eq!(broken("random reads (4 threads)", fits), ["random reads", "(4 threads)"]);
        assert_eq!(broken("mobibench-insert", fits), ["mobibench-insert"]);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.25, 100.0, 4096.0, 2e6, 3e9].map(short), ["0.25", "100", "4.096k", "2M", "3G"]);
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
