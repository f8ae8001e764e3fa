//! Selects a kernel package by version.

use std::cmp::Ordering;

const PREFIX: &str = "linux-image-";
/// The flavour with the fewest drivers: it boots fastest, and has persistent memory.
const SUFFIX: &str = "-cloud-amd64";

/// The package that always depends on the distribution's own kernel.
pub(super) const STOCK: &str = "linux-image-cloud-amd64";

/// The name of the newest package of a version, for example `6.12`, among package names.
pub(super) fn newest<'a>(names: impl IntoIterator<Item = &'a str>, version: &str) -> Option<&'a str> {
    names
        .into_iter()
        .filter(|name| {
            let Some(full) = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX)) else { return false };
            // `6.1` is not a prefix of `6.12`. A name that ends here depends on a kernel package, but is not one.
            full.strip_prefix(version).is_some_and(|rest| rest.starts_with(|c: char| !c.is_ascii_digit()))
        })
        .max_by(|a, b| compare(a, b))
}

/// The kernel that a package depends on, from the output of `apt-cache depends`.
pub(super) fn dependency(words: &str) -> Option<&str> {
    let names = words.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.map(str::trim).find(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX))
}

/// Compares numerically where both have numbers, otherwise by characters.
fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let numbers = (digits(a), digits(b));
        let order = match numbers {
            ((x, _), (y, _)) if !x.is_empty() && !y.is_empty() => {
                let (x, y) = (x.trim_start_matches('0'), y.trim_start_matches('0'));
                x.len().cmp(&y.len()).then_with(|| x.cmp(y))
            }
            _ => a.chars().next().cmp(&b.chars().next()),
        };
        if order != Ordering::Equal || a.is_empty() {
            return order;
        }
        (a, b) = match numbers {
            ((x, rest), (y, other)) if !x.is_empty() && !y.is_empty() => (rest, other),
            _ => (skip(a), skip(b)),
        };
    }
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn skip(text: &str) -> &str {
    let mut characters = text.chars();
    characters.next();
    characters.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[&str] = &[
        "linux-image-6.1.0-9-cloud-amd64",
        "linux-image-6.1.0-56-cloud-amd64",
        "linux-image-6.1.0-57-cloud-amd64-unsigned",
        "linux-image-6.1.0-58-amd64",
        "linux-image-6.12-cloud-amd64",
        "linux-image-6.12.117+deb12-cloud-amd64",
        "linux-image-6.12.99+deb12-cloud-amd64",
        "linux-image-cloud-amd64",
    ];

    #[test]
    fn the_newest_of_a_version_is_found_by_numbers() {
        let find = |version| newest(NAMES.iter().copied(), version);
        assert_eq!(find("6.1"), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(find("6.12"), Some("linux-image-6.12.117+deb12-cloud-amd64"));
        assert_eq!(find("6"), Some("linux-image-6.12.117+deb12-cloud-amd64"));
        assert_eq!(find("7"), None);
    }

    #[test]
    fn the_dependency_is_the_kernel() {
        let words = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n  Suggests: x\n";
        assert_eq!(dependency(words), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(dependency("linux-image-cloud-amd64\n"), None);
    }
}
