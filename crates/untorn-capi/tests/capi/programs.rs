//! C programs against the headers and both libraries: compiled, run, and asked for their verdict.

use std::path::PathBuf;
use std::process::Command;

use crate::common::{Link, compile, include_dir, manifest_dir, succeed};

fn test_program(name: &str) -> PathBuf {
    manifest_dir().join("tests/c").join(name)
}

fn example(name: &str) -> PathBuf {
    manifest_dir().join("../../examples/c").join(name)
}

fn for_both_libraries(source: &std::path::Path, check: impl Fn(&mut Command, &std::path::Path)) {
    for link in [Link::Shared, Link::Static] {
        let dir = tempfile::tempdir().unwrap();
        let program = compile(source, link, dir.path());
        let files = dir.path().join("files");
        std::fs::create_dir(&files).unwrap();
        check(&mut Command::new(program), &files);
    }
}

/// Whether a program says that this machine does not let it do its work; then the test is recorded as skipped.
fn is_skip(said: &str) -> bool {
    let reason = said.strip_prefix("skipped: ");
    if let Some(reason) = reason {
        untorn_testing::skipped!("{}", reason.trim_end());
    }
    reason.is_some()
}

/// The program checks everything itself, and neither it nor the library says anything.
fn is_silent(program: &mut Command) {
    assert_eq!(succeed(program), "", "the library prints nothing");
}

fn may_be_skipped(program: &mut Command, files: &std::path::Path) {
    let said = succeed(program.arg(files));
    assert!(said.is_empty() || is_skip(&said), "the library prints nothing: {said}");
}

#[test]
fn native_functions_do_what_the_header_says() {
    for_both_libraries(&test_program("native.c"), |program, files| {
        is_silent(program.arg(files).arg(env!("CARGO_PKG_VERSION")));
    });
}

#[test]
fn several_processes_share_a_file_as_the_header_says() {
    for_both_libraries(&test_program("several.c"), |program, files| is_silent(program.arg(files)));
}

#[test]
fn maps_do_what_the_header_says() {
    for_both_libraries(&test_program("map.c"), may_be_skipped);
}

#[test]
fn acumen_functions_do_what_the_header_says() {
    for_both_libraries(&test_program("acumen.c"), |program, files| is_silent(program.arg(files)));
}

#[test]
fn nvmmio_functions_do_what_the_header_says() {
    for_both_libraries(&test_program("nvmmio.c"), |program, files| is_silent(program.arg(files)));
}

#[test]
fn region_functions_do_what_the_header_says() {
    for_both_libraries(&test_program("region.c"), |program, files| is_silent(program.arg(files)));
}

#[test]
fn a_program_of_libpmem_finds_its_last_persist() {
    for_both_libraries(&test_program("libpmem.c"), |program, files| is_silent(program.arg(files)));
}

#[test]
fn several_processes_share_a_region_as_the_header_says() {
    for_both_libraries(&test_program("region_shared.c"), may_be_skipped);
}

#[test]
fn shared_maps_do_what_the_header_says() {
    for_both_libraries(&test_program("shared.c"), may_be_skipped);
}

#[test]
fn protected_mappings_do_what_the_header_says() {
    for_both_libraries(&test_program("protect.c"), may_be_skipped);
}

#[test]
fn the_shared_journal_example_survives_its_kills() {
    for_both_libraries(&example("shared_journal.c"), |program, files| {
        let said = succeed(program.arg(files.join("journal")).arg("8"));
        assert!(is_skip(&said) || said == "8 rounds of 4 processes: 0 torn, 0 lost\n", "{said}");
    });
}

#[test]
fn listing_1_of_the_region_system_paper_runs() {
    for_both_libraries(&example("region_log.c"), |program, files| {
        let said = succeed(program.arg(files.join("store")));
        assert_eq!(said, "page 0: written and committed; the next page is 1\n");
    });
}

#[test]
fn the_accounts_example_survives_its_kills() {
    for_both_libraries(&example("accounts.c"), |program, files| {
        let said = succeed(program.arg(files.join("ledger")).arg("25"));
        assert_eq!(said, "25 kills, 0 torn states, 256000 in 256 accounts\n");
    });
}

#[test]
fn the_commit_stream_example_makes_the_same_file() {
    for_both_libraries(&example("commit_stream.c"), |program, files| {
        let said = succeed(program.arg(files.join("file")).arg("15"));
        assert_eq!(said, "300 commits, 15 kills of the consumer: the copy is the file\n");
    });
}

#[test]
fn the_self_healing_example_gets_its_bytes_back() {
    for_both_libraries(&example("self_healing.c"), |program, files| {
        program.arg(files.join("table"));
        // The second time the file is protected already.
        for _ in 0..2 {
            let said = succeed(program);
            assert!(is_skip(&said) || said == "1 damaged, 1 repaired, 0 counters wrong\n", "{said}");
        }
    });
}

#[test]
fn the_cxx_header_does_what_it_says() {
    untorn_testing::needs!("g++");
    let libraries = untorn_testing::built();
    for standard in ["-std=c++17", "-std=c++20"] {
        let dir = tempfile::tempdir().unwrap();
        let (program, files) = (dir.path().join("handles"), dir.path().join("files"));
        std::fs::create_dir(&files).unwrap();
        let mut compiler = Command::new("g++");
        compiler.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-g", "-o"]).arg(&program);
        compiler.arg("-I").arg(include_dir()).arg(manifest_dir().join("tests/cxx/handles.cpp"));
        compiler.arg("-L").arg(libraries).arg("-luntorn").arg(format!("-Wl,-rpath,{}", libraries.display()));
        succeed(&mut compiler);
        may_be_skipped(&mut Command::new(program), &files);
    }
}

#[test]
fn the_hash_index_example_survives_its_kills() {
    for_both_libraries(&example("hash_index.c"), |program, files| {
        let path = files.join("index");
        let mut before = 0;
        program.arg(&path).arg("15");
        // The second time it goes on where the first one was killed last.
        for _ in 0..2 {
            let said = succeed(program);
            let numbers: Vec<u64> = said.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
            let [kills, torn, lost, _keys, slots, events] = numbers[..] else { panic!("{said}") };
            assert_eq!((kills, torn, lost), (15, 0, 0), "{said}");
            // Each process that was killed had committed 64 events.
            assert!(events >= before + 15 * 64, "{said}");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 32 + 16 * slots, "{said}");
            before = events;
        }
    });
}

#[test]
fn the_acumen_example_runs() {
    for_both_libraries(&example("acumen_hello.c"), |program, files| {
        let said = succeed(program.arg(files.join("hello")));
        assert!(said.contains("settled"), "{said}");
    });
}

#[test]
fn the_nvmmio_example_finds_what_was_committed() {
    for_both_libraries(&example("nvmmio_ledger.c"), |program, files| {
        let said = succeed(program.arg(files.join("ledger")));
        assert_eq!(said, "20 entries committed, 20 found, nothing of the one after\n");
    });
}

#[test]
fn a_plain_load_through_a_mapping_faults() {
    use std::os::unix::process::ExitStatusExt;

    let source = "
        #define _POSIX_C_SOURCE 200809L
        #include <untorn/acumen.h>
        #include <fcntl.h>
        #include <sys/mman.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            int fd = open(argv[argc - 1], O_RDWR | O_CREAT, 0600);
            if (fd < 0 || ftruncate(fd, 4096)) return 1;
            volatile char *address = ato_mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            return address == MAP_FAILED ? 1 : address[0] + 2;
        }";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("load.c");
    std::fs::write(&path, source).unwrap();
    let status = Command::new(compile(&path, Link::Shared, dir.path())).arg(dir.path().join("f")).status().unwrap();
    assert_eq!(status.signal(), Some(11), "{status}");
}
