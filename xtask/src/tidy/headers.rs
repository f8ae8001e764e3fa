//! The C headers declare exactly the functions that the C library defines.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{File, identifier_at, in_identifier, matching, occurrences, words};
use super::{Finding, Tree};

const LIBRARY: &str = "crates/untorn-capi/src/";
const HEADERS: &str = "include/";

/// The place of a function, and its number of parameters.
struct Function {
    path: String,
    line: usize,
    parameters: usize,
}

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut defined = BTreeMap::new();
    let mut declared = BTreeMap::new();
    for file in &tree.files {
        if file.is_rust() && file.path.starts_with(LIBRARY) {
            defined.extend(definitions(file));
        } else if file.path.starts_with(HEADERS) && file.path.ends_with(".h") {
            declared.extend(declarations(file));
        }
    }
    let mut findings = Vec::new();
    for (name, function) in &defined {
        match declared.get(name) {
            None => {
                let message = format!("`{name}` is not declared in any header under {HEADERS}");
                findings.push(Finding::at(&function.path, function.line, message));
            }
            Some(header) if header.parameters != function.parameters => {
                let message = format!(
                    "`{name}` takes {} parameters here and {} in {}:{}",
                    function.parameters, header.parameters, header.path, header.line
                );
                findings.push(Finding::at(&function.path, function.line, message));
            }
            Some(_) => {}
        }
    }
    for (name, function) in &declared {
        if !defined.contains_key(name) {
            let message = format!("`{name}` is declared but {LIBRARY} does not define it");
            findings.push(Finding::at(&function.path, function.line, message));
        }
    }
    findings
}

/// The names of all functions that the headers declare.
pub(super) fn declared(tree: &Tree) -> BTreeSet<String> {
    let headers = tree.files.iter().filter(|file| file.path.starts_with(HEADERS) && file.path.ends_with(".h"));
    headers.flat_map(declarations).map(|(name, _)| name).collect()
}

/// Every `#[unsafe(no_mangle)] extern "C" fn`.
fn definitions(file: &File) -> Vec<(String, Function)> {
    let mut found = Vec::new();
    for at in occurrences(&file.code, "#[unsafe(no_mangle)]") {
        let Some(name_at) = words(&file.code[at..], "fn").next().map(|i| at + i + 3) else { continue };
        let name = identifier_at(&file.code, name_at);
        let Some(open) = file.code[name_at..].find('(').map(|i| name_at + i) else { continue };
        let parameters = parameters(&file.code[open + 1..matching(&file.code, open)]);
        found.push((name.to_owned(), Function { path: file.path.clone(), line: file.line_of(name_at), parameters }));
    }
    found
}

/// Every function declared in a header, except inline functions with a body.
fn declarations(file: &File) -> Vec<(String, Function)> {
    let code = without_preprocessor(&file.code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let Some(stop) = code[at..].find([';', '{', '}']).map(|i| at + i) else { break };
        let statement = &code[at..stop];
        let next = match code.as_bytes()[stop] {
            // The braces of `extern "C" {` are transparent; a body, a struct or an enum is skipped whole.
            b'{' if statement.trim_start().starts_with("extern") && !statement.contains('(') => stop + 1,
            b'{' => matching(&code, stop) + 1,
            _ => stop + 1,
        };
        let is_declaration = code.as_bytes()[stop] == b';' && words(statement, "typedef").next().is_none();
        if let (true, Some(open)) = (is_declaration, statement.find('(')) {
            let before = statement[..open].trim_end();
            let name_at = before.rfind(|c| !in_identifier(c)).map_or(0, |i| i + 1);
            let close = matching(statement, open);
            if name_at < before.len() && close < statement.len() {
                let line = file.line_of(at + name_at);
                let parameters = parameters(&statement[open + 1..close]);
                found.push((before[name_at..].to_owned(), Function { path: file.path.clone(), line, parameters }));
            }
        }
        at = next;
    }
    found
}

fn without_preprocessor(code: &str) -> String {
    let mut continued = false;
    let blanked = code.split_inclusive('\n').map(|line| {
        let directive = continued || line.trim_start().starts_with('#');
        continued = directive && line.trim_end().ends_with('\\');
        if directive { line.chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect() } else { line.to_owned() }
    });
    blanked.collect()
}

/// Parameters in a list: commas outside inner brackets, a trailing one not counted.
fn parameters(list: &str) -> usize {
    let list = list.trim().trim_end_matches(',');
    if list.is_empty() || list == "void" {
        return 0;
    }
    let mut depth = 0i32;
    let mut count = 1;
    for c in list.chars() {
        match c {
            '(' | '[' | '<' => depth += 1,
            ')' | ']' => depth -= 1,
            '>' => depth = (depth - 1).max(0), // also the arrow of a function type
            ',' if depth == 0 => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUST: &str = "
        #[unsafe(no_mangle)]
        pub unsafe extern \"C\" fn untorn_write(f: *mut X, off: u64, src: *const c_void, n: usize,) -> c_int { 0 }
        #[unsafe(no_mangle)]
        pub extern \"C\" fn untorn_version() -> *const c_char { null() }
    ";
    const HEADER: &str = "
        /* int old(int); */
        #ifndef H
        #define UNTORN_MAX(a, b) \\
            ((a) > (b))
        #ifdef __cplusplus
        extern \"C\" {
        #endif
        typedef struct untorn untorn_t;
        typedef void (*untorn_progress)(void *, uint64_t);
        typedef struct { int a; void (*f)(int); } untorn_options;
        enum { UNTORN_OK = 0 };
        int untorn_write(untorn_t *, uint64_t off,
                         const void *src, size_t n);
        const char *untorn_version(void);
        static inline int helper(int x) { return x; }
        #ifdef __cplusplus
        }
        #endif
        #endif
    ";

    fn messages(rust: &str, header: &str) -> Vec<String> {
        let tree = Tree::of(&[("crates/untorn-capi/src/lib.rs", rust), ("include/untorn.h", header)]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn headers_in_step_are_fine() {
        assert_eq!(messages(RUST, HEADER), Vec::<String>::new());
    }

    #[test]
    fn a_missing_declaration_or_definition_is_found() {
        let found = messages(RUST, &HEADER.replace("const char *untorn_version(void);", ""));
        assert!(found.len() == 1 && found[0].contains("`untorn_version` is not declared in any header"), "{found:?}");
        let found = messages(RUST, &HEADER.replace("enum {", "int untorn_new(int);\nenum {"));
        assert!(found.len() == 1 && found[0].contains("untorn.h:12: `untorn_new` is declared but"), "{found:?}");
    }

    #[test]
    fn a_different_number_of_parameters_is_found() {
        let found = messages(RUST, &HEADER.replace("uint64_t off,", ""));
        assert!(found.len() == 1 && found[0].contains("takes 4 parameters here and 3"), "{found:?}");
    }
}
