//! Draws one picture as SVG or as PNG, with a font of its own: no font of the system is read.

use std::error::Error as StdError;
use std::sync::OnceLock;

use plotters::prelude::*;
use plotters::style::register_font;

use crate::error::{Error, Result};

pub(crate) use crate::lines::{Area, Drawn};

/// A picture of a fixed size in pixels.
pub(crate) trait Picture {
    /// Its width and height.
    fn size(&self) -> (u32, u32);

    /// Draws it on a white area of that size.
    ///
    /// # Errors
    /// Those of the canvas.
    fn draw<B: DrawingBackend<ErrorType: 'static>>(&self, root: &Area<B>) -> Drawn;
}

/// The family that every text of a plot names. Programs that show an SVG choose a font for it.
pub(crate) const FONT: &str = "sans-serif";

/// Registers the font that measures and draws texts.
fn register() -> Drawn {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let is_registered =
        REGISTERED.get_or_init(|| register_font(FONT, FontStyle::Normal, dejavu::sans::regular()).is_ok());
    if *is_registered { Ok(()) } else { Err("the embedded font is damaged".into()) }
}

fn fill<B: DrawingBackend<ErrorType: 'static>>(backend: B, picture: &impl Picture) -> Drawn {
    register()?;
    let root = backend.into_drawing_area();
    root.fill(&WHITE)?;
    picture.draw(&root)?;
    root.present()?;
    Ok(())
}

/// The picture as an SVG document. Drawing into memory cannot fail; if it does anyway, the document contains the error.
pub(crate) fn svg(picture: &impl Picture) -> String {
    let mut document = String::new();
    match fill(SVGBackend::with_string(&mut document, picture.size()), picture) {
        Ok(()) => document,
        Err(error) => format!("<svg xmlns=\"http://www.w3.org/2000/svg\"><!-- not drawn: {error} --></svg>"),
    }
}

/// The picture as a PNG file.
///
/// # Errors
/// [`Error::Plot`].
pub(crate) fn png(picture: &impl Picture) -> Result<Vec<u8>> {
    let failed = |error: Box<dyn StdError>| Error::Plot { what: error.to_string() };
    let (width, height) = picture.size();
    let mut pixels = vec![0; width as usize * height as usize * 3];
    fill(BitMapBackend::with_buffer(&mut pixels, (width, height)), picture).map_err(failed)?;
    encode(width, height, &pixels).map_err(|error| failed(error.into()))
}

fn encode(width: u32, height: u32, pixels: &[u8]) -> std::result::Result<Vec<u8>, png::EncodingError> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(file)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The width, the height and the pixels of a PNG file.
    pub(crate) fn decode(file: &[u8]) -> (u32, u32, Vec<u8>) {
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        (info.width, info.height, pixels)
    }

    struct Word;

    impl Picture for Word {
        fn size(&self) -> (u32, u32) {
            (60, 40)
        }

        fn draw<B: DrawingBackend<ErrorType: 'static>>(&self, root: &Area<B>) -> Drawn {
            root.draw(&Text::new("µs ×2", (5, 5), (FONT, 15)))?;
            Ok(())
        }
    }

    #[test]
    fn both_formats_have_the_same_text() {
        assert!(svg(&Word).contains("\nµs ×2\n"));
        let (width, height, pixels) = decode(&png(&Word).unwrap());
        assert_eq!((width, height, pixels.len()), (60, 40, 60 * 40 * 3));
        // Letters cover some part of the area, and their corner is white.
        let dark = pixels.chunks(3).filter(|pixel| pixel.iter().all(|&channel| channel < 128)).count();
        assert!((20..600).contains(&dark) && pixels[..3] == [255; 3], "{dark}");
    }
}
