//! Splits source text just enough to check it: code, comments, test items, inline modules.
//!
//! It does not use a parser: a parser would refuse half-written files, for which a check is most useful, and the rules
//! need no types.

use std::ops::Range;

/// One file of the repository.
#[derive(Debug)]
pub(super) struct File {
    /// Path from the repository's root, with forward slashes.
    pub(super) path: String,
    /// The file as it is.
    pub(super) text: String,
    /// `text` with comments and the insides of literals blanked, byte for byte; all blank for prose.
    pub(super) code: String,
    /// `text` with everything but comments blanked, byte for byte.
    pub(super) comments: String,
    /// The byte ranges of string and character literals, with their quotes and prefixes.
    pub(super) literals: Vec<Range<usize>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Rust,
    C,
    Python,
    Prose,
}

impl File {
    pub(super) fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let (path, text) = (path.into(), text.into());
        let language = match path.rsplit_once('.').map(|(_, extension)| extension) {
            Some("rs") => Language::Rust,
            Some("c" | "h") => Language::C,
            Some("py") => Language::Python,
            _ => Language::Prose,
        };
        let (code, comments, literals) = split(&text, language);
        File { path, text, code, comments, literals }
    }

    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether module length is limited for this file.
    pub(super) fn is_module(&self) -> bool {
        [".rs", ".c", ".h", ".py"].iter().any(|extension| self.path.ends_with(extension))
    }

    /// Lines that hold anything besides blanks and comments.
    pub(super) fn lines_of_code(&self) -> usize {
        let solid = |line: &str| line.bytes().filter(|byte| !byte.is_ascii_whitespace()).count();
        self.text.lines().zip(self.comments.lines()).filter(|(text, comment)| solid(text) > solid(comment)).count()
    }

    /// The line number, from 1, of a byte offset.
    pub(super) fn line_of(&self, offset: usize) -> usize {
        self.text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1
    }

    /// [`code`](File::code) without [test items](File::test_items).
    pub(super) fn code_without_tests(&self) -> String {
        let mut bytes = self.code.clone().into_bytes();
        for item in self.test_items() {
            blank(&mut bytes[item]);
        }
        into_text(bytes)
    }

    /// The byte ranges of the items under `#[cfg(test)]` and `#[cfg(all(test, ...))]`.
    pub(super) fn test_items(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let attributes = ["#[cfg(test)]", "#[cfg(all(test,"].into_iter();
        attributes.flat_map(|attribute| occurrences(&self.code, attribute)).map(|at| at..item_end(&self.code, at))
    }

    /// Names of the file modules declared under `#[cfg(test)]`: `mod tests;`.
    pub(super) fn test_modules(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for item in self.test_items() {
            let item = &self.code[item];
            if let (Some(module), true) = (item.find("mod "), item.ends_with(';')) {
                names.push(item[module + 4..item.len() - 1].trim());
            }
        }
        names
    }

    /// Inline modules `mod name { ... }`: name and the byte range between the braces, outer ones first.
    pub(super) fn inline_modules(&self) -> Vec<(&str, Range<usize>)> {
        let mut modules = Vec::new();
        for at in words(&self.code, "mod") {
            let rest = &self.code[at + 3..];
            let Some(brace) = rest.find(['{', ';']).filter(|&i| rest.as_bytes()[i] == b'{') else { continue };
            let start = at + 3 + brace + 1;
            modules.push((rest[..brace].trim(), start..matching(&self.code, start - 1)));
        }
        modules
    }
}

/// Byte offsets at which `needle` begins.
pub(super) fn occurrences<'a>(text: &'a str, needle: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(needle).map(|(at, _)| at)
}

/// Byte offsets at which `word` occurs as a whole word.
pub(super) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    occurrences(text, word).filter(move |&at| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(in_identifier) && !after.is_some_and(in_identifier)
    })
}

pub(super) fn in_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The identifier that starts at `at`, empty if none does.
pub(super) fn identifier_at(code: &str, at: usize) -> &str {
    let rest = &code[at..];
    &rest[..rest.find(|c| !in_identifier(c)).unwrap_or(rest.len())]
}

/// The offset of the bracket that closes the one at `open`, or the end of the text.
pub(super) fn matching(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (i, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return i;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// The end of the item that follows the attribute at `at`: past its `;` or its closing brace.
pub(super) fn item_end(code: &str, at: usize) -> usize {
    let bytes = code.as_bytes();
    let mut i = at;
    while i < bytes.len() {
        match bytes[i] {
            b'[' | b'(' => i = matching(code, i),
            b'{' => return (matching(code, i) + 1).min(bytes.len()),
            b';' => return i + 1,
            _ => {}
        }
        i += 1;
    }
    bytes.len()
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

fn into_text(bytes: Vec<u8>) -> String {
    // Only whole characters are blanked, each byte by a space, so this stays UTF-8.
    String::from_utf8(bytes).unwrap_or_default()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

fn split(text: &str, language: Language) -> (String, String, Vec<Range<usize>>) {
    let (mut code, mut comments) = (text.as_bytes().to_vec(), text.as_bytes().to_vec());
    let mut literals = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let (kind, end) = match language {
            Language::Prose => (Kind::Literal, text.len()),
            Language::Python => python_piece(text, at),
            _ => piece(text, at, language),
        };
        if kind != Kind::Code {
            blank(&mut code[at..end]);
        }
        if kind != Kind::Comment {
            blank(&mut comments[at..end]);
        }
        if kind == Kind::Literal && language != Language::Prose {
            literals.push(at..end);
        }
        at = end;
    }
    (into_text(code), into_text(comments), literals)
}

/// The kind of token at `at`, and its end.
fn piece(text: &str, at: usize, language: Language) -> (Kind, usize) {
    let rest = &text[at..];
    let identifier_before = text[..at].chars().next_back().is_some_and(in_identifier);
    if rest.starts_with("//") {
        return (Kind::Comment, at + rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Kind::Comment, block_comment_end(text, at, language == Language::Rust));
    }
    if language == Language::Rust && !identifier_before {
        let raw = rest.strip_prefix(['b', 'c']).unwrap_or(rest);
        if let Some(tail) = raw.strip_prefix('r') {
            let hashes = tail.len() - tail.trim_start_matches('#').len();
            if tail[hashes..].starts_with('"') {
                let close = format!("\"{}", "#".repeat(hashes));
                let body = text.len() - tail.len() + hashes + 1;
                return (Kind::Literal, text[body..].find(&close).map_or(text.len(), |i| body + i + close.len()));
            }
        }
    }
    match rest.as_bytes()[0] {
        b'"' => (Kind::Literal, quoted_end(text, at, '"')),
        b'\'' if language == Language::C => (Kind::Literal, quoted_end(text, at, '\'')),
        // A quote starts a character if a backslash follows or the next but one is a quote too; else a lifetime.
        b'\'' if rest[1..].starts_with('\\') || rest.chars().nth(2) == Some('\'') => {
            (Kind::Literal, quoted_end(text, at, '\''))
        }
        _ => (Kind::Code, at + rest.chars().next().map_or(1, char::len_utf8)),
    }
}

fn python_piece(text: &str, at: usize) -> (Kind, usize) {
    let rest = &text[at..];
    for triple in ["\"\"\"", "'''"] {
        if rest.starts_with(triple) {
            return (Kind::Literal, rest[3..].find(triple).map_or(text.len(), |i| at + 3 + i + 3));
        }
    }
    match rest.chars().next() {
        Some('#') => (Kind::Comment, at + rest.find('\n').unwrap_or(rest.len())),
        Some(quote @ ('"' | '\'')) => (Kind::Literal, quoted_end(text, at, quote)),
        other => (Kind::Code, at + other.map_or(1, char::len_utf8)),
    }
}

fn quoted_end(text: &str, at: usize, quote: char) -> usize {
    let mut escaped = false;
    for (i, c) in text[at + 1..].char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1 + i + 1,
            _ => {}
        }
    }
    text.len()
}

fn block_comment_end(text: &str, at: usize, nests: bool) -> usize {
    let (mut depth, mut i) = (0usize, at);
    while i < text.len() {
        let rest = &text.as_bytes()[i..];
        if rest.starts_with(b"/*") && (nests || depth == 0) {
            depth += 1;
            i += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            i += 2;
            if depth == 0 {
                return i;
            }
        } else {
            i += 1;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_are_told_from_code() {
        let file =
            File::new("a.rs", "let a = \"// no\"; // yes \"x\"\nlet b = r#\"/* \" */\"#; /* y /* z */ é */ c('\\'')");
        assert_eq!(file.code.len(), file.text.len());
        assert!(!file.code.contains("no") && !file.code.contains("yes") && !file.code.contains('z'));
        assert!(file.code.contains("let b =") && file.code.contains("c("));
        assert!(file.comments.contains("yes") && file.comments.contains('é') && !file.comments.contains("no"));
        let literals: Vec<&str> = file.literals.iter().map(|at| &file.text[at.clone()]).collect();
        assert_eq!(literals, ["\"// no\"", "r#\"/* \" */\"#", "'\\''"]);
    }

    #[test]
    fn lifetimes_are_not_characters() {
        let file = File::new("a.rs", "fn f<'a>(x: &'a str) -> char { 'a' } // end");
        assert!(file.code.contains("(x: &'a str)"));
        assert!(!file.code.contains("end"));
    }

    #[test]
    fn lines_of_code_leave_out_comments_and_blanks() {
        let file = File::new("a.rs", "//! Doc.\n\nfn f() {\n    // why\n    let s = \"two\n    lines\";\n}\n");
        assert_eq!(file.lines_of_code(), 4);
        assert_eq!(File::new("a.py", "# no\nx = '#'\n").lines_of_code(), 1);
        assert_eq!(File::new("a.c", "/* no\n no */\nint x; /* yes */\n").lines_of_code(), 1);
    }

    #[test]
    fn test_items_are_removed() {
        let file = File::new(
            "a.rs",
            "fn a() {}\n#[cfg(test)]\nmod tests { fn b() {} }\n#[cfg(all(test, loom))]\nmod more;\nfn c() {}",
        );
        let code = file.code_without_tests();
        assert!(code.contains("fn a") && code.contains("fn c") && !code.contains("fn b") && !code.contains("more"));
        assert_eq!(file.test_modules(), ["more"]);
    }

    #[test]
    fn inline_modules_have_their_extent() {
        let file = File::new("a.rs", "mod x;\npub mod y { mod z { A } B }");
        let modules = file.inline_modules();
        assert_eq!(modules.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["y", "z"]);
        assert_eq!(file.code[modules[1].1.clone()].trim(), "A");
    }
}
