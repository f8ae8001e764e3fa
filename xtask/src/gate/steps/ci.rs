//! Steps of a change: of the quick loop and of CI.

use super::Loop::{Ci, Nightly, Quick};
use super::Step;
use super::Work::{Call, Cargo, CargoWith, Tool, ToolFails, Xtask};
use crate::gate::book;
use crate::gate::checks;
use crate::gate::golang;
use crate::gate::python;

const FSX: (&str, &str) = ("fsx", "cargo install --locked fsx --version '^0.3'");
const DENY: (&str, &str) = ("cargo-deny", "cargo install --locked cargo-deny --version '^0.20'");
const QEMU: (&str, &str) = ("qemu-system-x86_64", "apt-get install qemu-system-x86");

/// In the order in which they start.
pub(super) const STEPS: &[Step] = &[
    Step {
        name: "format",
        does: "sources are formatted",
        loops: &[Quick, Ci],
        needs: &[],
        work: &[Cargo(&["fmt", "--all", "--check"])],
    },
    Step { name: "tidy", does: "house rules", loops: &[Quick, Ci], needs: &[], work: &[Xtask(&["tidy"])] },
    Step {
        name: "unit-tests",
        does: "unit tests of every crate",
        loops: &[Quick],
        needs: &[],
        work: &[Cargo(&["test", "--workspace", "--lib", "--bins", "--quiet"])],
    },
    Step {
        name: "compile",
        does: "every test and example compiles",
        loops: &[Ci],
        needs: &[],
        work: &[Cargo(&["test", "--workspace", "--no-run", "--quiet"])],
    },
    Step {
        name: "release",
        does: "cargo build --release gives the tool and the libraries, and the C library has the headers' symbols",
        loops: &[Ci],
        needs: &[],
        work: &[Call(checks::release)],
    },
    Step {
        name: "tests",
        does: "every test, bounded",
        loops: &[Ci],
        needs: &[],
        work: &[Cargo(&["test", "--workspace"])],
    },
    Step {
        name: "crash-states",
        does: "crash states of every engine, all mutants and canaries",
        loops: &[Ci],
        needs: &[],
        work: &[
            Xtask(&["explore", "--engine", "reflection", "--states", "100000", "--known-first"]),
            Xtask(&["explore", "--engine", "hybrid-log", "--states", "100000", "--known-first"]),
            Xtask(&["explore", "--engine", "shadow", "--states", "50000", "--known-first"]),
            Xtask(&["explore", "--engine", "snapshot", "--states", "100000", "--known-first"]),
            Xtask(&["explore", "--engine", "cache", "--states", "20000", "--known-first"]),
            Xtask(&["explore", "--engine", "redundancy", "--states", "100000", "--known-first"]),
            Xtask(&["explore", "--engine", "covered", "--states", "3000", "--known-first"]),
        ],
    },
    Step {
        name: "lints",
        does: "clippy, warnings denied",
        loops: &[Quick, Ci],
        needs: &[],
        work: &[Cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])],
    },
    Step {
        name: "documentation",
        does: "rustdoc, warnings denied",
        loops: &[Ci],
        needs: &[],
        work: &[CargoWith("RUSTDOCFLAGS", "-D warnings", &["doc", "--workspace", "--no-deps", "--quiet"])],
    },
    Step {
        name: "dependencies",
        does: "licences, sources and advisories of dependencies",
        loops: &[Ci],
        needs: &[DENY],
        work: &[Call(checks::dependencies)],
    },
    Step {
        name: "minimum-rust",
        does: "the library and its C face compile with the oldest Rust they promise",
        loops: &[Ci],
        needs: &[],
        work: &[Call(checks::minimum_rust)],
    },
    Step {
        name: "features",
        does: "the library without any of its features, warnings denied",
        loops: &[Ci],
        needs: &[],
        work: &[Cargo(&[
            "clippy",
            "--quiet",
            "--package=untorn",
            "--lib",
            "--no-default-features",
            "--",
            "-D",
            "warnings",
        ])],
    },
    Step {
        name: "examples",
        does: "the examples in C and Rust, as examples/README.md builds them",
        loops: &[Ci],
        needs: &[],
        work: &[Call(checks::c_examples), Call(checks::rust_examples)],
    },
    Step {
        name: "python",
        does: "the Python package: its types, and its tests with numpy, zarr and joblib",
        loops: &[Ci],
        needs: &[("python3", "apt-get install python3 python3-venv")],
        work: &[Call(python::package)],
    },
    Step {
        name: "go",
        does: "the Go package: gofmt, go vet, and its tests under the race detector",
        loops: &[Ci, Nightly],
        needs: &[("go", "apt-get install golang-go"), ("cc", "apt-get install gcc libc6-dev")],
        work: &[Call(golang::package)],
    },
    Step {
        name: "book",
        does: "mdBook makes the book without a warning",
        loops: &[Ci, Nightly],
        needs: &[("mdbook", "cargo install --locked mdbook --version '^0.5'")],
        work: &[Call(book::pages)],
    },
    Step {
        name: "damage",
        does: "each kind of damage in each place",
        loops: &[Ci],
        needs: &[],
        work: &[Xtask(&["inject", "--cases", "5", "--watch", "1"])],
    },
    Step {
        name: "demo",
        does: "plain mmap tears, untorn does not",
        loops: &[Ci],
        needs: &[],
        work: &[Call(checks::demo)],
    },
    Step {
        name: "cuts",
        does: "commits of processes that share memory",
        loops: &[Ci],
        needs: &[],
        // Every process may have to wait for a turn, so only a quiet machine shows that none is stuck for a second.
        work: &[Xtask(&["cuts", "--commits", "150", "--patience", "60"])],
    },
    Step {
        name: "system-calls",
        does: "failing system calls, a sample",
        loops: &[Ci],
        needs: &[],
        work: &[Xtask(&["faults", "--sample", "600"])],
    },
    Step {
        name: "kills",
        does: "processes killed before a changing system call, every 20th",
        loops: &[Ci],
        needs: &[],
        work: &[Xtask(&["kills", "--stride", "20"])],
    },
    Step {
        name: "exerciser",
        does: "fsx under untorn run, both modes, one seed",
        loops: &[Ci],
        needs: &[FSX],
        work: &[Call(checks::exerciser_once)],
    },
    Step {
        name: "programs",
        does: "some programs bare and under untorn, killed and cut off",
        loops: &[Ci],
        needs: &[],
        work: &[Xtask(&["programs", "dbm", "coreutils", "--kills", "12", "--power-cuts", "36"])],
    },
    Step {
        name: "sqlite",
        does: "SQLite's VFS killed and cut off in each journal mode",
        loops: &[Ci],
        needs: &[],
        work: &[Xtask(&["sqlite", "--kills", "9", "--power-cuts", "9"])],
    },
    Step {
        name: "torture",
        does: "SIGKILL over real files",
        loops: &[Ci],
        needs: &[],
        work: &[
            Tool(&["torture", "--seconds", "3", "--engine", "reflection", "--json"]),
            Tool(&["torture", "--seconds", "3", "--engine", "hybrid-log", "--json"]),
            Tool(&["torture", "--seconds", "3", "--engine", "shadow", "--json"]),
            Tool(&["torture", "--seconds", "3", "--map", "--json"]),
            Tool(&["torture", "--seconds", "3", "--region", "--json"]),
            Tool(&["torture", "--seconds", "3", "--redundancy", "--json"]),
        ],
    },
    Step {
        name: "power-cuts",
        does: "power cuts of a disk under ext4 and xfs, and the two canaries",
        loops: &[Ci],
        needs: &[],
        work: &[
            Tool(&["torture", "--medium", "block", "--images", "60", "--engine", "reflection", "--json"]),
            Tool(&["torture", "--medium", "block", "--images", "60", "--engine", "hybrid-log", "--json"]),
            Tool(&["torture", "--medium", "block", "--images", "40", "--map", "--json"]),
            Tool(&["torture", "--medium", "block", "--images", "40", "--region", "--json"]),
            ToolFails(&["torture", "--medium", "block", "--images", "200", "--engine", "passthrough", "--json"]),
            ToolFails(&["torture", "--medium", "block", "--images", "200", "--lying-disk", "--json"]),
        ],
    },
    Step {
        name: "dax",
        does: "power cuts of an emulated machine with persistent memory",
        loops: &[Ci],
        needs: &[QEMU],
        work: &[Xtask(&["dax", "--fetch"]), Xtask(&["dax", "--cycles", "3"])],
    },
    Step {
        name: "bench",
        does: "the benchmarks run and report a row for each case",
        loops: &[Ci],
        needs: &[],
        work: &[Call(checks::bench)],
    },
    Step {
        name: "dist",
        does: "the tree to install, and programs in C, C++ and CMake that use it",
        loops: &[Ci],
        needs: &[("cc", "apt-get install gcc libc6-dev")],
        // Buckets take 62 more crates. The nightly step `clean-root` has them.
        work: &[Xtask(&["dist", "--check", "--without-buckets"])],
    },
    Step {
        name: "package",
        does: "each crate packs",
        loops: &[Ci],
        needs: &[],
        work: &[Cargo(&["package", "--workspace", "--no-verify", "--allow-dirty", "--quiet"])],
    },
];
