//! The paragraphs of a Markdown document.
//!
//! Prose is: paragraphs, the items of lists, and the cells of tables. Headings, the head of a table, code blocks,
//! comments and definitions of links are not: they are titles, or no English.

/// Each paragraph with the number, from 1, of the line on which it begins. Its own line breaks are kept.
pub(super) fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Paragraphs::default();
    let (mut fence, mut comment) = (None, false);
    for (i, &raw) in lines.iter().enumerate() {
        let line = raw.trim_start().trim_start_matches("> ").trim();
        let marker = ["```", "~~~"].into_iter().find(|marker| line.starts_with(marker));
        if let Some(open) = fence {
            if marker == Some(open) {
                fence = None;
            }
        } else if comment || line.starts_with("<!--") {
            comment = !line.contains("-->");
        } else if marker.is_some() {
            found.end();
            fence = marker;
        } else if line.starts_with('|') {
            found.end();
            let next = lines.get(i + 1).map_or("", |next| next.trim());
            if !is_rule(line) && !is_rule(next) {
                found.finished.extend(cells(line).into_iter().map(|cell| (i + 1, cell)));
            }
        } else if line.is_empty() || line.starts_with('#') || is_definition(line) {
            found.end();
        } else {
            let body = without_list_marker(line);
            if body.len() < line.len() {
                found.end();
            }
            found.push(i + 1, body);
        }
    }
    found.end();
    found.finished
}

#[derive(Default)]
struct Paragraphs {
    finished: Vec<(usize, String)>,
    open: Option<(usize, String)>,
}

impl Paragraphs {
    fn push(&mut self, line: usize, text: &str) {
        match &mut self.open {
            Some((_, open)) => {
                open.push('\n');
                open.push_str(text);
            }
            None => self.open = Some((line, text.to_owned())),
        }
    }

    fn end(&mut self) {
        self.finished.extend(self.open.take());
    }
}

/// Whether this is the line between a table's head and its body.
fn is_rule(line: &str) -> bool {
    line.starts_with('|') && line.contains('-') && line.chars().all(|c| "|-: ".contains(c))
}

/// `[name]: destination`
fn is_definition(line: &str) -> bool {
    line.starts_with('[') && line.split_once("]: ").is_some_and(|(name, _)| !name.contains(' '))
}

/// The cells of a table's row; a bar in a code span, or after a backslash, does not end one.
fn cells(row: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let (mut in_code, mut escaped) = (false, false);
    for c in row.trim_matches('|').chars() {
        match c {
            '|' if !in_code && !escaped => cells.push(String::new()),
            _ => cells.last_mut().expect("never empty").push(c),
        }
        in_code ^= c == '`';
        escaped = c == '\\';
    }
    cells
}

/// The line without `- `, `* `, `+ ` or `1. ` in front.
fn without_list_marker(line: &str) -> &str {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let body = if digits.len() < line.len() {
        digits.strip_prefix(". ").or_else(|| digits.strip_prefix(") "))
    } else {
        ["- ", "* ", "+ "].into_iter().find_map(|marker| line.strip_prefix(marker))
    };
    body.map_or(line, str::trim_start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, String)> {
        paragraphs(text)
    }

    fn texts(text: &str) -> Vec<String> {
        found(text).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn paragraphs_and_items_are_apart() {
        let text = "# Title\n\nOne\ntwo.\n\n- a\n  b\n- **c**\n\n  d\n2. e\n> f\n";
        let expected = [(3, "One\ntwo."), (6, "a\nb"), (8, "**c**"), (10, "d"), (11, "e\nf")];
        assert_eq!(found(text), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn code_blocks_and_comments_are_left_out() {
        assert_eq!(texts("a\n```sh\nb\n\n~~~\n```\nc\n<!-- d\ne -->\nf\n"), ["a", "c\nf"]);
        assert_eq!(texts("- a\n\n  ```\n  b\n  ```\n\n[x]: https://example.org\n"), ["a"]);
    }

    #[test]
    fn cells_of_a_table_are_paragraphs_its_head_is_not() {
        let text = "| what | where |\n|---|:-:|\n| a `x|y` | b \\| c |\n";
        assert_eq!(texts(text).iter().map(|cell| cell.trim()).collect::<Vec<_>>(), ["a `x|y`", "b \\| c"]);
        assert_eq!(found(text)[0].0, 3);
    }

    #[test]
    fn numbers_and_emphasis_are_no_list_markers() {
        assert_eq!(texts("2.5 s\n**bold** text\n-x"), ["2.5 s\n**bold** text\n-x"]);
    }
}
