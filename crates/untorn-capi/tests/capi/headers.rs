//! The headers, the sources and the library say the same: no function, constant or layout drifts.

#[allow(unreachable_pub, reason = "the file belongs to the library, which this test cannot link")]
#[path = "../../src/abi.rs"]
mod abi;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::mem::offset_of;
use std::process::Command;

use crate::common::{Link, check_syntax, compile, include_dir, manifest_dir, succeed};
use abi::{untorn_change, untorn_commit, untorn_coverage, untorn_error, untorn_options, untorn_redundancy_options};
use untorn_testing::{built, needs};

const HEADERS: [&str; 7] = [
    "untorn.h",
    "untorn/acumen.h",
    "untorn/nvmmio.h",
    "untorn/region.h",
    "untorn/libpmem.h",
    "untorn/shared.h",
    "untorn/protect.h",
];

/// A header without its comments.
fn code_of(header: &str) -> String {
    let text = fs::read_to_string(include_dir().join(header)).unwrap();
    let mut code = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        code.push(' ');
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    code + rest
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The functions a header declares: names before a parenthesis, outside preprocessor lines.
fn declared() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for header in HEADERS {
        for line in code_of(header).lines().filter(|line| !line.starts_with('#')) {
            for (at, _) in line.match_indices('(') {
                let before = &line[..at];
                let name = &before[before.trim_end_matches(is_name).len()..];
                if !name.is_empty() {
                    names.insert(name.to_owned());
                }
            }
        }
    }
    names
}

/// The functions the sources export.
fn exported_by_sources() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut left = vec![manifest_dir().join("src")];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        for after in text.split("#[unsafe(no_mangle)]").skip(1) {
            let (_, name) = after.split_once("fn ").unwrap();
            names.insert(name.chars().take_while(|&c| is_name(c)).collect());
        }
    }
    names
}

/// What the headers define, each name with its value.
fn definitions() -> Vec<(String, String)> {
    let headers = HEADERS.map(code_of).concat();
    let defines = headers.lines().filter_map(|line| line.strip_prefix("#define "));
    defines.filter_map(|define| define.split_once(' ')).map(|(name, value)| (name.into(), value.into())).collect()
}

/// The constants the headers define; guards, initialisers and other names of functions are none.
fn defined() -> BTreeSet<String> {
    let is_constant = |value: &str| !value.starts_with('{') && !value.starts_with("untorn_");
    definitions().into_iter().filter(|(_, value)| is_constant(value)).map(|(name, _)| name).collect()
}

#[test]
fn each_function_of_libpmem_has_its_name() {
    let names: BTreeSet<(String, String)> =
        definitions().into_iter().filter(|(_, value)| value.starts_with("untorn_")).collect();
    let functions = declared().into_iter().filter(|name| name.starts_with("untorn_pmem_"));
    let expected: BTreeSet<(String, String)> =
        functions.map(|function| (function["untorn_".len()..].to_owned(), function)).collect();
    assert_eq!(names, expected);
}

/// With one more directory to search, a program that names the header of libpmem gets this one.
#[test]
fn an_unchanged_program_of_libpmem_compiles() {
    let text = "#include <libpmem.h>\nint main(void) {\n    size_t len;\n    int is_pmem;\n    \
                char *log = pmem_map_file(\"log\", 4096, PMEM_FILE_CREATE, 0666, &len, &is_pmem);\n    \
                if (!log) return 1;\n    log[0] = 1;\n    \
                if (is_pmem) pmem_persist(log, 1); else if (pmem_msync(log, 1)) return 2;\n    \
                return pmem_unmap(log, len);\n}\n";
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("unchanged.c"), dir.path().join("unchanged"));
    fs::write(&source, text).unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-I").arg(include_dir().join("untorn")).arg("-o").arg(&program).arg(&source);
    succeed(cc.arg(built().join("libuntorn.a")).args(["-lpthread", "-ldl", "-lm"]));
    succeed(Command::new(program).current_dir(dir.path()));
    assert_eq!(fs::read(dir.path().join("log")).unwrap()[..2], [1, 0]);
}

#[test]
fn headers_and_sources_name_the_same_functions() {
    let declared = declared();
    assert!(
        ["untorn_open", "untorn_map", "ato_mmap", "nvmmap", "pmmap", "untorn_share", "untorn_protect"]
            .iter()
            .all(|&name| declared.contains(name)),
        "{declared:?}"
    );
    assert_eq!(declared, exported_by_sources());
}

#[test]
fn the_library_exports_what_the_headers_declare() {
    needs!("nm");
    let listing = succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(built().join("libuntorn.so")));
    let exported: BTreeSet<String> = listing
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .map(|name| name.split('@').next().unwrap_or(name).to_owned())
        .collect();
    assert_eq!(exported, declared());
}

/// Programs name a function with its version, so one without a version, or with another, is a break.
#[test]
fn each_function_has_a_version() {
    let script = fs::read_to_string(manifest_dir().join("untorn.map")).unwrap();
    let code = script.lines().filter(|line| !line.starts_with('#')).map(str::trim);
    let names = code.filter_map(|line| line.strip_suffix(';')).filter(|name| *name != "*" && !name.starts_with('}'));
    let names: Vec<String> = names.map(str::to_owned).collect();
    let distinct: BTreeSet<String> = names.iter().cloned().collect();
    assert_eq!(names.len(), distinct.len(), "a function has two versions");
    assert_eq!(distinct, declared());
}

#[test]
fn the_package_file_of_cmake_has_the_version() {
    let file = fs::read_to_string(manifest_dir().join("cmake/untornConfigVersion.cmake")).unwrap();
    let expected = format!("set(PACKAGE_VERSION \"{}\")", env!("CARGO_PKG_VERSION"));
    assert!(file.lines().any(|line| line == expected), "no line {expected}");
}

#[test]
fn headers_and_sources_agree_on_numbers_and_layouts() {
    let names: BTreeSet<String> = abi::CONSTANTS.iter().map(|&(name, _)| name.to_owned()).collect();
    assert_eq!(names, defined());

    let mut expected: BTreeMap<String, i64> =
        abi::CONSTANTS.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    macro_rules! layout {
        ($type:ident: $($field:ident),+) => {{
            expected.insert(concat!("sizeof(", stringify!($type), ")").to_owned(), size_of::<$type>() as i64);
            expected.insert(concat!("_Alignof(", stringify!($type), ")").to_owned(), align_of::<$type>() as i64);
            $(expected.insert(
                concat!("offsetof(", stringify!($type), ", ", stringify!($field), ")").to_owned(),
                offset_of!($type, $field) as i64,
            );)+
            // Names every field, so that one added to the struct and not to this list does not compile.
            #[allow(unused)]
            fn all_fields($type { $($field: _),+ }: &$type) {}
        }};
    }
    layout!(untorn_error: code, message);
    layout!(
        untorn_options: size, engine, layout, durability, order, read_policy, flags, reserved, length, max_len,
        log_size, log_policy, redo_from, checkpointers, dirty_tracking, deploy_ahead, commit_log, commit_log_wait,
        snapshot_memory
    );
    layout!(untorn_change: offset, len, bytes);
    layout!(untorn_commit: number, previous, time_ns, len, shortest, changes, change_count);
    layout!(
        untorn_redundancy_options: size, stripe, layout, checksum, flags, batch, period_ms, scrub_every_ms, scrub_rate,
        on_damage, context, max_uncovered
    );
    layout!(
        untorn_coverage: size, is_scrubbed, pages, uncovered, stripes, vulnerable_stripes, unknown, lost,
        oldest_uncovered_ms, looked, scrubs, last_scrub, repaired, period_ms, max_uncovered, peak_uncovered
    );

    let mut source = String::from("#include <stdio.h>\n");
    for header in HEADERS {
        writeln!(source, "#include <{header}>").unwrap();
    }
    source.push_str("int main(void) {\n");
    for expression in expected.keys() {
        writeln!(source, "    printf(\"%s = %lld\\n\", \"{expression}\", (long long)({expression}));").unwrap();
    }
    source.push_str("    return 0;\n}\n");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("constants.c");
    fs::write(&path, source).unwrap();
    let printed = succeed(&mut Command::new(compile(&path, Link::Static, dir.path())));
    let printed: BTreeMap<String, i64> = printed
        .lines()
        .map(|line| line.rsplit_once(" = ").unwrap())
        .map(|(expression, value)| (expression.to_owned(), value.parse().unwrap()))
        .collect();
    assert_eq!(printed, expected);
}

#[test]
fn each_header_compiles_alone_and_twice_in_c_and_cxx() {
    let dir = tempfile::tempdir().unwrap();
    for header in HEADERS {
        let text = format!("#include <{header}>\n#include <{header}>\n");
        let text = if header == "untorn.h" {
            text + "int f(void);\nint f(void) { untorn_options o = UNTORN_OPTIONS_INIT; return (int)o.size; }\n"
        } else {
            text
        };
        check_syntax("cc", "c", "-std=c11", &text, dir.path());
    }
    needs!("g++");
    for header in HEADERS {
        let text = format!("#include <{header}>\n#include <{header}>\n");
        check_syntax("g++", "c++", "-std=c++11", &text, dir.path());
    }
    let twice = "#include <untorn.hpp>\n#include <untorn.hpp>\n";
    for standard in ["-std=c++17", "-std=c++20"] {
        check_syntax("g++", "c++", standard, twice, dir.path());
    }
}

#[test]
fn the_examples_in_the_header_compile_and_run() {
    let text = fs::read_to_string(include_dir().join("untorn.h")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for name in ["first", "second"] {
        let (_, after) = text.split_once(&format!("A {name} program:\n")).unwrap();
        let lines = after.lines().map(|line| line.strip_prefix(" *").unwrap());
        let program: Vec<&str> = lines.take_while(|line| line.is_empty() || line.starts_with("    ")).collect();
        let path = dir.path().join(format!("{name}.c"));
        fs::write(&path, program.join("\n") + "\n").unwrap();
        succeed(Command::new(compile(&path, Link::Shared, dir.path())).current_dir(dir.path()));
    }
}

#[test]
fn the_shared_library_has_its_name() {
    needs!("readelf");
    let dynamic = succeed(Command::new("readelf").arg("-d").arg(built().join("libuntorn.so")));
    let expected = option_env!("UNTORN_SONAME").unwrap_or("libuntorn.so");
    assert!(dynamic.contains(&format!("Library soname: [{expected}]")), "{dynamic}");
}
