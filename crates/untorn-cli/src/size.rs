//! Byte counts on the command line: plain numbers, or with a suffix that is a power of 1024.

/// Parses `4096`, `64K`, `1M`, `2GiB`, `1T`.
///
/// `KB` is refused: to some it is 1000 bytes, to others 1024.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(format!("{suffix:?} is not a unit; use K, M, G or T (powers of 1024), or plain bytes")),
    };
    if number.is_empty() {
        return Err("expected a number of bytes, such as 4096, 64K or 1M".to_owned());
    }
    number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| format!("{text} is too large: a file can hold at most 2^64 - 1 bytes"))
}

/// Formats a byte count as text: `4096 bytes (4 KiB)`.
pub(crate) fn show(bytes: u64) -> String {
    let plain = if bytes == 1 { "1 byte".to_owned() } else { format!("{bytes} bytes") };
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| bytes >> shift > 0) {
        None => plain,
        Some((unit, shift)) => {
            let scaled = format!("{:.1}", bytes as f64 / (1u64 << shift) as f64);
            format!("{plain} ({} {unit})", scaled.strip_suffix(".0").unwrap_or(&scaled))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("64K"), Ok(64 << 10));
        assert_eq!(parse("1m"), Ok(1 << 20));
        assert_eq!(parse("2GiB"), Ok(2 << 30));
        assert_eq!(parse("16777215T"), Ok(16_777_215 << 40));
    }

    #[test]
    fn malformed_sizes_are_refused() {
        for text in ["", "K", "-1", "1KB", "1.5M", "0x10", "18446744073709551616", "16777216T", "1 K"] {
            assert!(parse(text).is_err(), "{text:?} was taken for a size");
        }
    }

    #[test]
    fn sizes_are_shown_exactly_and_in_round_units() {
        assert_eq!(show(1), "1 byte");
        assert_eq!(show(100), "100 bytes");
        assert_eq!(show(4096), "4096 bytes (4 KiB)");
        assert_eq!(show(1536), "1536 bytes (1.5 KiB)");
    }
}
