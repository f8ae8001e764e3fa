//! The table of steps.

use std::io;

use super::book;
use super::checks;
use super::golang;
use super::packages;
use super::python;
use super::runner::{Context, Outcome};

/// A loop of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loop {
    Quick,
    Ci,
    Nightly,
}

/// A part of a step.
pub(super) enum Work {
    /// Cargo with these arguments.
    Cargo(&'static [&'static str]),
    /// Cargo with a variable in its environment.
    CargoWith(&'static str, &'static str, &'static [&'static str]),
    /// Another verb of this program.
    Xtask(&'static [&'static str]),
    /// The tool, in its release build.
    Tool(&'static [&'static str]),
    /// The tool, which must convict: exit code 1.
    ToolFails(&'static [&'static str]),
    /// A check that is more than a command.
    Call(fn(&Context<'_>) -> io::Result<Outcome>),
}

pub(super) struct Step {
    pub(super) name: &'static str,
    /// Its work, in a few words.
    pub(super) does: &'static str,
    pub(super) loops: &'static [Loop],
    /// Programs that it needs, and how to get each.
    pub(super) needs: &'static [(&'static str, &'static str)],
    pub(super) work: &'static [Work],
}

use Loop::{Ci, Nightly, Quick};
use Work::{Call, Cargo, CargoWith, Tool, ToolFails, Xtask};

const FSX: (&str, &str) = ("fsx", "cargo install --locked fsx --version '^0.3'");
const FUZZ: (&str, &str) = ("cargo-fuzz", "cargo install --locked cargo-fuzz --version '^0.13'");
const DENY: (&str, &str) = ("cargo-deny", "cargo install --locked cargo-deny --version '^0.20'");
const QEMU: (&str, &str) = ("qemu-system-x86_64", "apt-get install qemu-system-x86");
const MATURIN: (&str, &str) = ("maturin", "pip install maturin");
const ZIGBUILD: (&str, &str) = ("cargo-zigbuild", "pip install cargo-zigbuild");
const DEBOOTSTRAP: (&str, &str) = ("debootstrap", "apt-get install debootstrap");

/// Steps beside which no other runs: those that find most mistakes soonest, and the tests, many of which run threads
/// and processes against each other. Compiling leaves processors idle while everything waits for one crate, so the two
/// steps that compile what others use run beside each other.
pub(super) const ALONE: &[&str] = &["format", "tidy", "unit-tests", "tests", "tests-long"];

/// Every step of every loop, in the order in which they start.
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
        name: "tests-long",
        does: "every test, in its long variant",
        loops: &[Nightly],
        needs: &[],
        work: &[CargoWith("UNTORN_LONG", "1", &["test", "--workspace", "--no-fail-fast"])],
    },
    Step {
        name: "buckets",
        does: "replicas in buckets and streams, on the servers that are installed, and the tool with them",
        loops: &[Nightly],
        needs: &[],
        work: &[
            Cargo(&["test", "--package", "untorn-replicate", "--features", "s3,azure,gcs,nats"]),
            Cargo(&[
                "clippy",
                "--package",
                "untorn-replicate",
                "--features",
                "s3,azure,gcs,nats",
                "--all-targets",
                "--quiet",
            ]),
            Cargo(&["clippy", "--package", "untorn-cli", "--features", "stores", "--quiet"]),
        ],
    },
    Step {
        name: "databases",
        does: "YCSB and TPC-C on SQLite, and the tool with them",
        loops: &[Nightly],
        needs: &[("cc", "apt-get install gcc libc6-dev")],
        work: &[
            Cargo(&["build", "--package", "untorn-sqlite"]),
            Cargo(&["test", "--package", "untorn-bench", "--features", "sqlite", "--lib"]),
            Cargo(&["clippy", "--package", "untorn-bench", "--features", "sqlite", "--all-targets", "--quiet"]),
            Cargo(&["clippy", "--package", "untorn-cli", "--features", "sqlite", "--quiet"]),
        ],
    },
    Step {
        name: "crash-states",
        does: "crash states of every engine, all mutants and canaries",
        loops: &[Ci],
        needs: &[],
        work: &[
            Xtask(&["explore", "--engine", "reflection", "--states", "100000", "--known-first"]),
            Xtask(&["explore", "--engine", "hybrid-log", "--states", "100000", "--known-first"]),
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
        does: "the workspace compiles with the oldest Rust it promises",
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
        name: "feature-combinations",
        does: "the library with every combination of its features, and the test of `metrics`",
        loops: &[Nightly],
        needs: &[],
        // No other step has that feature, so the library is compiled for this test alone.
        work: &[
            Call(packages::feature_combinations),
            Cargo(&["test", "--package", "untorn", "--features", "metrics", "--test", "metrics"]),
        ],
    },
    Step {
        name: "examples",
        does: "the examples in C and Rust, as examples/README.md builds them",
        loops: &[Ci],
        needs: &[],
        work: &[Call(checks::c_examples), Call(checks::rust_examples)],
    },
    Step {
        name: "explore-reflection",
        does: "5,000,000 crash states of the reflection engine",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["explore", "--engine", "reflection", "--states", "5000000"])],
    },
    Step {
        name: "explore-hybrid-log",
        does: "2,000,000 crash states of the hybrid log",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["explore", "--engine", "hybrid-log", "--states", "2000000"])],
    },
    Step {
        name: "explore-snapshot",
        does: "2,000,000 crash states of region stores",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["explore", "--engine", "snapshot", "--states", "2000000"])],
    },
    Step {
        name: "explore-cache",
        does: "1,000,000 crash states of write caches",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["explore", "--engine", "cache", "--states", "1000000"])],
    },
    Step {
        name: "explore-redundancy",
        does: "2,000,000 crash states of redundancy",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["explore", "--engine", "redundancy", "--states", "2000000"])],
    },
    Step {
        name: "explore-covered",
        does: "50,000 crash states of redundancy under engines",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["explore", "--engine", "covered", "--states", "50000"])],
    },
    Step {
        name: "medium-faults",
        does: "every call of the medium fails in every way",
        loops: &[Nightly],
        needs: &[],
        work: &[CargoWith(
            "UNTORN_FAULTS",
            "all",
            &["test", "--release", "--package", "untorn-sim", "--test", "sim", "faults::", "--", "--nocapture"],
        )],
    },
    Step {
        name: "python",
        does: "the Python package: its types, and its tests with numpy, zarr and joblib",
        loops: &[Ci],
        needs: &[("python3", "apt-get install python3 python3-venv")],
        work: &[Call(python::package)],
    },
    Step {
        name: "free-threaded",
        does: "the module of the Python package compiles for a free-threaded interpreter",
        loops: &[Nightly],
        needs: &[],
        work: &[Call(python::free_threaded)],
    },
    Step {
        name: "pip-install",
        does: "the Python package by pip, from its source distribution and from the checkout",
        loops: &[Nightly],
        needs: &[MATURIN, ("python3", "apt-get install python3 python3-venv")],
        work: &[Call(python::from_sources)],
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
        name: "damage-long",
        does: "each kind of damage in each place, 200 times",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["inject", "--cases", "200", "--watch", "20"])],
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
        name: "cuts-long",
        does: "20,000 commits of processes that share memory",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["cuts", "--commits", "20000", "--patience", "60"])],
    },
    Step {
        name: "system-calls",
        does: "failing system calls, a sample",
        loops: &[Ci],
        needs: &[],
        work: &[Xtask(&["faults", "--sample", "600"])],
    },
    Step {
        name: "system-calls-all",
        does: "every failing system call",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["faults"])],
    },
    Step {
        name: "kills",
        does: "processes killed before a changing system call, every 20th",
        loops: &[Ci],
        needs: &[],
        work: &[Xtask(&["kills", "--stride", "20"])],
    },
    Step {
        name: "kills-all",
        does: "processes killed before every changing system call",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["kills"])],
    },
    Step {
        name: "exerciser",
        does: "fsx under untorn run, both modes, one seed",
        loops: &[Ci],
        needs: &[FSX],
        work: &[Call(checks::exerciser_once)],
    },
    Step {
        name: "exerciser-long",
        does: "fsx under untorn run, both modes, 8 seeds, and SQLite killed 300 times",
        loops: &[Nightly],
        needs: &[FSX],
        work: &[
            Call(checks::exerciser_often),
            CargoWith("UNTORN_KILLS", "300", &["test", "--package", "untorn-cli", "--test", "run", "sqlite"]),
        ],
    },
    Step {
        name: "programs",
        does: "some programs bare and under untorn, killed and cut off",
        loops: &[Ci],
        needs: &[],
        work: &[Xtask(&["programs", "dbm", "coreutils", "--kills", "12", "--power-cuts", "36"])],
    },
    Step {
        name: "programs-long",
        does: "every program bare and under untorn, killed and cut off by the thousand",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["programs", "--kills", "1000", "--power-cuts", "1000"])],
    },
    Step {
        name: "sqlite",
        does: "SQLite's VFS killed and cut off in each journal mode",
        loops: &[Ci],
        needs: &[],
        work: &[Xtask(&["sqlite", "--kills", "9", "--power-cuts", "9"])],
    },
    Step {
        name: "sqlite-long",
        does: "SQLite's VFS killed and cut off by the thousand",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["sqlite", "--kills", "1000", "--power-cuts", "1000"])],
    },
    Step {
        name: "torture",
        does: "SIGKILL over real files",
        loops: &[Ci],
        needs: &[],
        work: &[
            Tool(&["torture", "--seconds", "3", "--json"]),
            Tool(&["torture", "--seconds", "3", "--engine", "hybrid-log", "--json"]),
            Tool(&["torture", "--seconds", "3", "--map", "--json"]),
            Tool(&["torture", "--seconds", "3", "--region", "--json"]),
            Tool(&["torture", "--seconds", "3", "--redundancy", "--json"]),
        ],
    },
    Step {
        name: "torture-long",
        does: "SIGKILL over real files, a minute each",
        loops: &[Nightly],
        needs: &[],
        work: &[
            Tool(&["torture", "--seconds", "60", "--json"]),
            Tool(&["torture", "--seconds", "60", "--engine", "hybrid-log", "--json"]),
            Tool(&["torture", "--seconds", "60", "--map", "--json"]),
            Tool(&["torture", "--seconds", "60", "--region", "--json"]),
            Tool(&["torture", "--seconds", "60", "--redundancy", "--json"]),
        ],
    },
    Step {
        name: "power-cuts",
        does: "power cuts of a disk under ext4 and xfs, and the two canaries",
        loops: &[Ci],
        needs: &[],
        work: &[
            Tool(&["torture", "--medium", "block", "--images", "60", "--json"]),
            Tool(&["torture", "--medium", "block", "--images", "60", "--engine", "hybrid-log", "--json"]),
            Tool(&["torture", "--medium", "block", "--images", "40", "--map", "--json"]),
            Tool(&["torture", "--medium", "block", "--images", "40", "--region", "--json"]),
            ToolFails(&["torture", "--medium", "block", "--images", "200", "--engine", "passthrough", "--json"]),
            ToolFails(&["torture", "--medium", "block", "--images", "200", "--lying-disk", "--json"]),
        ],
    },
    Step {
        name: "power-cuts-long",
        does: "3,000 power cuts of a disk under ext4 and xfs",
        loops: &[Nightly],
        needs: &[],
        work: &[
            Tool(&["torture", "--medium", "block", "--images", "1000", "--json"]),
            Tool(&["torture", "--medium", "block", "--images", "1000", "--engine", "hybrid-log", "--json"]),
            Tool(&["torture", "--medium", "block", "--images", "600", "--map", "--json"]),
            Tool(&["torture", "--medium", "block", "--images", "400", "--region", "--json"]),
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
        name: "dax-long",
        does: "power cuts of emulated machines: two kernels, every engine, maps and regions",
        loops: &[Nightly],
        needs: &[QEMU],
        work: &[
            Xtask(&["dax", "--fetch"]),
            Xtask(&["dax", "--fetch", "--kernel", "6.12"]),
            Xtask(&["dax", "--cycles", "20"]),
            Xtask(&["dax", "--cycles", "20", "--kernel", "6.12"]),
            Xtask(&["dax", "--map", "--cycles", "10"]),
            Xtask(&["dax", "--region", "--cycles", "10"]),
            Xtask(&["dax", "--engine", "hybrid-log", "--cycles", "10"]),
            Xtask(&["dax", "--engine", "hybrid-log", "--cycles", "10", "--kernel", "6.12"]),
        ],
    },
    Step {
        name: "loom",
        does: "every interleaving of the lock-free code",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["loom"])],
    },
    Step {
        name: "fuzzing",
        does: "every fuzz target for two minutes",
        loops: &[Nightly],
        needs: &[FUZZ],
        work: &[Xtask(&["fuzz", "--seconds", "120"])],
    },
    Step {
        name: "sanitizer",
        does: "the library's tests under AddressSanitizer",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["asan"])],
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
    Step {
        name: "package-builds",
        does: "each crate builds from its package alone",
        loops: &[Nightly],
        needs: &[],
        work: &[Cargo(&["package", "--workspace", "--allow-dirty", "--quiet"])],
    },
    Step {
        name: "package-use",
        does: "a program outside the repository uses the packaged library, with and without features",
        loops: &[Nightly],
        needs: &[],
        work: &[
            Cargo(&["package", "--package", "untorn-ring", "--package", "untorn", "--no-verify", "--allow-dirty"]),
            Call(packages::outside_program),
        ],
    },
    Step {
        name: "bare-machine",
        does: "the README's two commands on a minimal Debian with only Rust and a C compiler",
        loops: &[Nightly],
        needs: &[DEBOOTSTRAP],
        work: &[Xtask(&["bare"])],
    },
    Step {
        name: "clean-root",
        does: "packages of Debian and the wheel: lintian, their installation in a minimal Debian, and the tests there",
        loops: &[Nightly],
        needs: &[DEBOOTSTRAP, ("dpkg-shlibdeps", "apt-get install dpkg-dev")],
        work: &[Xtask(&["dist", "--deb", "--wheel", "--check"]), Xtask(&["clean-root"])],
    },
    Step {
        name: "wheels",
        does: "the wheels for any glibc and for musl: their tags by auditwheel, and their use",
        loops: &[Nightly],
        needs: &[ZIGBUILD],
        work: &[Xtask(&["dist", "--wheel", "--portable", "--check", "--out", "target/wheels"])],
    },
    Step {
        name: "wheel-aarch64",
        does: "the wheel for AArch64: its tag by auditwheel, and a commit of its tool under an emulator",
        loops: &[Nightly],
        needs: &[ZIGBUILD],
        work: &[Xtask(&[
            "dist",
            "--wheel",
            "--wheel-target",
            "aarch64-unknown-linux-gnu",
            "--check",
            "--out",
            "target/wheels",
        ])],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ci_runs_the_two_commands_of_the_readme() {
        let ci: Vec<_> = STEPS.iter().filter(|step| step.loops.contains(&Loop::Ci)).collect();
        let tests = |work: &Work| matches!(work, Cargo(["test", "--workspace"]));
        assert!(ci.iter().any(|step| step.work.iter().any(tests)));
        assert!(ci.iter().any(|step| step.name == "demo"));
    }

    #[test]
    fn every_step_has_a_name_of_its_own_and_work() {
        let mut names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STEPS.len());
        assert!(STEPS.iter().all(|step| !step.work.is_empty() && !step.loops.is_empty()));
    }

    #[test]
    fn only_the_loop_for_each_change_leaves_buckets_out() {
        for step in STEPS {
            for work in step.work {
                if let Xtask(arguments @ ["dist", ..]) = work {
                    let is_without = arguments.contains(&"--without-buckets");
                    assert_eq!(is_without, step.loops.contains(&Loop::Ci), "{}", step.name);
                }
            }
        }
    }

    #[test]
    fn the_nightly_loop_explores_more_states_than_ci() {
        let explored = |which: Loop| {
            let steps = STEPS.iter().filter(move |step| step.loops.contains(&which));
            let work = steps.flat_map(|step| step.work).filter_map(|work| match work {
                Xtask(["explore", "--engine", engine, "--states", states, ..]) => {
                    Some((*engine, states.parse::<u64>().unwrap()))
                }
                _ => None,
            });
            work.collect::<std::collections::BTreeMap<_, _>>()
        };
        let (ci, nightly) = (explored(Loop::Ci), explored(Loop::Nightly));
        assert!(ci.len() == 6 && ci.iter().all(|(engine, states)| nightly[engine] > *states));
    }
}
