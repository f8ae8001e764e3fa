//! The man pages of the C library, made of the comments of its headers: `untorn(3)`, and one for each other header.
//!
//! A header is a sequence of comments and of code between them. A comment above code describes it; one on its own is
//! the heading of a section, with its text. The page of a function only leads to the page of its header.

use std::fs;
use std::path::Path;

use super::{Result, VERSION, at, write};

/// The headers, each with the name of its page.
const HEADERS: &[(&str, &str)] = &[
    ("untorn.h", "untorn"),
    ("untorn/acumen.h", "untorn_acumen"),
    ("untorn/libpmem.h", "untorn_libpmem"),
    ("untorn/nvmmio.h", "untorn_nvmmio"),
    ("untorn/protect.h", "untorn_protect"),
    ("untorn/region.h", "untorn_region"),
    ("untorn/shared.h", "untorn_shared"),
];

/// Writes all pages into a directory.
pub(super) fn pages(root: &Path, directory: &Path) -> Result<()> {
    for (header, page) in HEADERS {
        let path = root.join("include").join(header);
        let text = fs::read_to_string(&path).map_err(at("read", &path))?;
        write(&directory.join(format!("{page}.3")), page_of(header, page, &text))?;
        for name in functions(&text).into_iter().filter(|name| name != page) {
            write(&directory.join(format!("{name}.3")), format!(".so man3/{page}.3\n"))?;
        }
    }
    Ok(())
}

/// A piece of a header.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    /// The lines of a comment, without its marks.
    Comment(Vec<String>),
    /// Declarations and definitions, up to an empty line.
    Code(Vec<String>),
    /// An empty line.
    Gap,
}

/// The pieces of a header, without its guard and what only a compiler needs.
fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("/*") {
            pieces.push(Piece::Comment(comment(line, &mut lines)));
        } else if line.is_empty() {
            pieces.push(Piece::Gap);
        } else if is_machinery(line, lines.peek()) {
            continue;
        } else {
            let mut code = vec![line.to_owned()];
            let open =
                |code: &[String]| code.concat().matches(['{', '(']).count() > code.concat().matches(['}', ')']).count();
            // A struct has comments and empty lines of its own.
            while let Some(next) = lines.next_if(|next| open(&code) || !(next.is_empty() || next.starts_with("/*"))) {
                code.push(next.to_owned());
            }
            pieces.push(Piece::Code(code));
        }
    }
    pieces
}

/// The guard, includes, and the braces of `extern "C"`.
fn is_machinery(line: &str, next: Option<&&str>) -> bool {
    let is_guard = line.starts_with("#define") && line.ends_with("_H") && line.split(' ').count() == 2;
    let other = ["#if", "#endif", "#include", "extern \"C\""].iter().any(|start| line.starts_with(start));
    is_guard || other || (line == "}" && next.is_some_and(|next| next.starts_with("#endif")))
}

fn comment<'a>(first: &'a str, rest: &mut impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut found = Vec::new();
    let mut line = first;
    loop {
        let (text, ends) = match line.strip_suffix("*/") {
            Some(text) => (text, true),
            None => (line, false),
        };
        let text = text.strip_prefix("/*").or_else(|| text.strip_prefix(" *")).unwrap_or(text);
        found.push(text.strip_prefix(' ').unwrap_or(text).trim_end().to_owned());
        if ends {
            break;
        }
        let Some(next) = rest.next() else { break };
        line = next;
    }
    let is_text = |line: &String| !line.is_empty();
    let begin = found.iter().position(is_text).unwrap_or(0);
    let end = found.iter().rposition(is_text).map_or(0, |last| last + 1);
    found.drain(..begin);
    found.truncate(end.saturating_sub(begin));
    found
}

/// The names that a header declares as functions.
fn functions(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for piece in pieces(text) {
        let Piece::Code(code) = piece else { continue };
        names.extend(declared(&code));
    }
    names
}

/// The functions that a piece of code declares.
fn declared(code: &[String]) -> Vec<String> {
    let code: String = code.iter().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    if code.contains('{') || code.starts_with("typedef") {
        return Vec::new();
    }
    let names = code.split(';').filter_map(|statement| {
        let before = statement[..statement.find('(')?].trim_end();
        let name = &before[before.rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_')? + 1..];
        (!name.is_empty()).then(|| name.to_owned())
    });
    names.collect()
}

fn page_of(header: &str, page: &str, text: &str) -> String {
    let pieces = pieces(text);
    let mut out = format!(".\\\" Made of {header} by cargo xtask dist.\n");
    out += &format!(".TH {} 3 \"\" \"untorn {VERSION}\" \"The C library of untorn\"\n.SH NAME\n", page.to_uppercase());
    let mut rest = &pieces[..];
    let mut introduction: &[String] = &[];
    if let Some((Piece::Comment(lines), after)) = pieces.split_first() {
        (introduction, rest) = (lines, after);
    }
    // `untorn.h - what it is`, up to the first empty line.
    let paragraph = introduction.iter().position(String::is_empty).unwrap_or(introduction.len());
    let first = introduction[..paragraph].join(" ");
    let what = first.split_once(" - ").map_or(first.as_str(), |(_, what)| what);
    let what = what.trim_end_matches('.');
    let names = std::iter::once(page.to_owned()).chain(functions(text).into_iter().filter(|name| name != page));
    let names: Vec<String> = names.collect();
    out += &format!("{} \\- {}\n", names.join(", "), roff(what));
    out += &format!(".SH SYNOPSIS\n.nf\n.B #include <{header}>\n.P\n");
    out += "cc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs untorn)\n.fi\n.SH DESCRIPTION\n";
    paragraphs(&introduction[paragraph..], &mut out);
    let mut pieces = rest.iter().peekable();
    while let Some(piece) = pieces.next() {
        match piece {
            Piece::Gap => {}
            Piece::Code(code) => verbatim(code, &mut out),
            Piece::Comment(lines) => match pieces.next_if(|next| matches!(next, Piece::Code(_))) {
                Some(Piece::Code(code)) => described(code, lines, &mut out),
                _ => section(lines, &mut out),
            },
        }
    }
    let others: Vec<String> =
        HEADERS.iter().filter(|(_, other)| *other != page).map(|(_, other)| format!(".BR {other} (3)")).collect();
    out += &format!(".SH SEE ALSO\n.BR untorn (1),\n{}\n.P\nuntorn.hpp has the same for C++17.\n", others.join(",\n"));
    out
}

/// Declarations with what their comment says.
fn described(code: &[String], lines: &[String], out: &mut String) {
    match declared(code).as_slice() {
        [] => {}
        names => *out += &format!(".SS {}\n", names.join(", ")),
    }
    verbatim(code, out);
    paragraphs(lines, out);
}

/// A section: its first sentence is the heading if it is short.
fn section(lines: &[String], out: &mut String) {
    let first = lines.first().map_or("", String::as_str);
    let end = first.find(['.', ':']).filter(|end| *end <= 40);
    match end {
        Some(end) => {
            *out += &format!(".SH {}\n", roff(&first[..end]).to_uppercase());
            let mut rest = lines.to_vec();
            rest[0] = first[end + 1..].trim_start().to_owned();
            // The sentence goes on in what was its explanation.
            if let Some(letter) = rest[0].get(..1).map(str::to_uppercase) {
                rest[0].replace_range(..1, &letter);
            }
            paragraphs(&rest, out);
        }
        None => {
            *out += ".P\n";
            paragraphs(lines, out);
        }
    }
}

fn verbatim(code: &[String], out: &mut String) {
    *out += ".P\n.nf\n.ft B\n";
    for line in code {
        *out += &roff(line);
        out.push('\n');
    }
    *out += ".ft R\n.fi\n";
}

/// Text with its lists and examples: lines indented by four are code, a dash begins an item.
fn paragraphs(lines: &[String], out: &mut String) {
    let mut lines = lines.iter().peekable();
    let mut in_item = false;
    let mut ends_sentence = true;
    while let Some(line) = lines.next() {
        if line.is_empty() {
            if lines.peek().is_some_and(|next| !next.starts_with("    ") || !in_item) {
                *out += ".P\n";
                in_item = false;
            }
        } else if let Some(code) = line.strip_prefix("    ") {
            *out += ".RS 4\n.nf\n";
            *out += &roff(code);
            out.push('\n');
            while let Some(next) = lines.next_if(|next| next.starts_with("    ") || next.is_empty()) {
                *out += &roff(next.get(4..).unwrap_or_default());
                out.push('\n');
            }
            *out += ".fi\n.RE\n.P\n";
            in_item = false;
        } else if let Some(item) = line.strip_prefix("- ") {
            *out += &format!(".IP \\(bu 2\n{}\n", roff(item));
            in_item = true;
        } else {
            if ends_sentence && is_entry(line) {
                *out += ".P\n";
            }
            *out += &roff(line.trim_start());
            out.push('\n');
        }
        ends_sentence = line.ends_with(['.', ':']);
    }
}

/// Whether a line begins what its comment says of one argument, value or error: `EPERM, ENOSYS: why`.
fn is_entry(line: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_*, ".contains(c);
    line.split_once(": ").is_some_and(|(names, _)| names.len() <= 40 && !names.is_empty() && names.chars().all(is_name))
}

/// Text with what roff would take for its own.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::{Command, Stdio};

    use super::*;

    const HEADER: &str = "/*\n * x.h - a thing: it does.\n *\n * Rules:\n * - one\n *   more\n *\n \
        *     int f(void);\n */\n#ifndef X_H\n#define X_H\n\n#include <stdint.h>\n\n\
        #ifdef __cplusplus\nextern \"C\" {\n#endif\n\n\
        /*\n * Codes.\n */\n\n/* A code.\n * It's bad. */\n#define X_E (-1)\n\n\
        /* A struct. */\ntypedef struct x {\n    /* A field. */\n    int a;\n\n    void (*f)(int);\n} x;\n\n\
        /* Does it.\n * Errors: X_E. */\nint x_do(x *a,\n         int b);\nint x_undo(void);\n\n\
        #ifdef __cplusplus\n}\n#endif\n\n#endif\n";

    #[test]
    fn a_name_and_a_colon_begin_a_paragraph() {
        let said = ["flags: a", "word: b.", "process: c.", "EPERM, EIO: d."].map(str::to_owned);
        let mut out = String::new();
        paragraphs(&said, &mut out);
        assert_eq!(out, ".P\nflags: a\nword: b.\n.P\nprocess: c.\n.P\nEPERM, EIO: d.\n");
    }

    #[test]
    fn a_header_becomes_sections_and_functions() {
        assert_eq!(functions(HEADER), ["x_do", "x_undo"]);
        let page = page_of("x.h", "x", HEADER);
        for expected in [
            "x, x_do, x_undo \\- a thing: it does\n",
            ".IP \\(bu 2\none\nmore\n",
            ".nf\nint f(void);\n",
            ".SH CODES\n",
            "#define X_E (\\-1)\n.ft R\n.fi\nA code.\nIt\\(aqs bad.\n",
            "    void (*f)(int);\n} x;\n",
            ".SS x_do, x_undo\n.P\n.nf\n.ft B\nint x_do(x *a,\n         int b);\nint x_undo(void);\n",
            "Does it.\n.P\nErrors: X_E.\n",
        ] {
            assert!(page.contains(expected), "{expected:?} is not in\n{page}");
        }
        assert!(!page.contains("extern") && !page.contains("endif") && !page.contains("X_H"), "{page}");
    }

    #[test]
    fn each_function_of_the_headers_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        pages(&crate::root(), directory.path()).unwrap();
        let names = super::super::entries(directory.path()).unwrap().into_iter();
        let mut names: BTreeSet<String> =
            names.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
        for (_, page) in HEADERS {
            assert!(names.remove(*page), "{page}");
            let text = fs::read_to_string(directory.path().join(format!("{page}.3"))).unwrap();
            assert!(text.contains("\n.SH NAME\n") && text.contains("\n.SH DESCRIPTION\n"), "{text}");
        }
        // A page of its own, and a function.
        let declared = crate::tidy::declared_functions(&crate::root()).unwrap();
        let headers: BTreeSet<String> = HEADERS.iter().map(|(_, page)| (*page).to_owned()).collect();
        assert_eq!(names, declared.difference(&headers).cloned().collect());
    }

    #[test]
    fn the_formatter_has_nothing_to_complain_about() {
        if !Command::new("groff").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
            println!("needs groff");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        pages(&crate::root(), directory.path()).unwrap();
        for (_, page) in HEADERS {
            let mut groff = Command::new("groff");
            groff.args(["-man", "-Tutf8", "-ww"]).arg(directory.path().join(format!("{page}.3")));
            let output = groff.output().unwrap();
            let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && complaints.is_empty(), "{page}: {complaints}");
        }
    }
}
