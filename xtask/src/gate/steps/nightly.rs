//! Steps of the nightly loop alone: what takes long, or needs what CI's machine lacks.

use super::Loop::Nightly;
use super::Step;
use super::Work::{Call, Cargo, CargoWith, Tool, ToolFails, Xtask};
use crate::gate::checks;
use crate::gate::packages;
use crate::gate::python;

const FSX: (&str, &str) = ("fsx", "cargo install --locked fsx --version '^0.3'");
const FUZZ: (&str, &str) = ("cargo-fuzz", "cargo install --locked cargo-fuzz --version '^0.13'");
const QEMU: (&str, &str) = ("qemu-system-x86_64", "apt-get install qemu-system-x86");
const MATURIN: (&str, &str) = ("maturin", "pip install maturin");
const ZIGBUILD: (&str, &str) = ("cargo-zigbuild", "pip install cargo-zigbuild");
const CARGO_C: (&str, &str) = ("cargo-cinstall", "cargo install --locked cargo-c --version '=0.10.24'");
const DEBOOTSTRAP: (&str, &str) = ("debootstrap", "apt-get install debootstrap");

/// In the order in which they start, after those that the loop shares with CI.
pub(super) const STEPS: &[Step] = &[
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
            Cargo(&[
                "test",
                "--package",
                "untorn-cli",
                "--features",
                "s3",
                "--test",
                "tool",
                "--",
                "replicate",
                "take_over",
            ]),
            Cargo(&["clippy", "--package", "untorn-cli", "--features", "stores", "--all-targets", "--quiet"]),
        ],
    },
    Step {
        name: "minimum-rust-everywhere",
        does: "the workspace compiles with the oldest Rust it promises",
        loops: &[Nightly],
        needs: &[],
        work: &[Call(checks::minimum_rust_everywhere)],
    },
    Step {
        name: "databases",
        does: "rivals in benchmarks, YCSB and TPC-C on SQLite, and the tool with them",
        loops: &[Nightly],
        needs: &[("cc", "apt-get install gcc libc6-dev")],
        work: &[
            Cargo(&["build", "--package", "untorn-sqlite"]),
            Cargo(&["test", "--package", "untorn-bench", "--features", "rivals,sqlite", "--lib"]),
            Cargo(&["clippy", "--package", "untorn-bench", "--features", "rivals,sqlite", "--all-targets", "--quiet"]),
            Cargo(&["clippy", "--package", "untorn-cli", "--features", "rivals,sqlite", "--quiet"]),
        ],
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
        name: "explore-shadow",
        does: "1,000,000 crash states of the engine that copies whole pages",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["explore", "--engine", "shadow", "--states", "1000000"])],
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
        name: "free-threaded",
        does: "the module of the Python package compiles for a free-threaded interpreter",
        loops: &[Nightly],
        needs: &[],
        work: &[Call(python::free_threaded)],
    },
    Step {
        name: "pip-install",
        does: "the Python package by pip as an ordinary user, from its source distribution and from a clone",
        loops: &[Nightly],
        needs: &[MATURIN, ("python3", "apt-get install python3 python3-venv")],
        work: &[Call(python::from_sources)],
    },
    Step {
        name: "cargo-c",
        does: "the C library by cargo cinstall, and programs in C, C++ and CMake that use it",
        loops: &[Nightly],
        needs: &[CARGO_C, ("cc", "apt-get install gcc libc6-dev")],
        work: &[Call(packages::c_library)],
    },
    Step {
        name: "damage-long",
        does: "each kind of damage in each place, 200 times",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["inject", "--cases", "200", "--watch", "20"])],
    },
    Step {
        name: "cuts-long",
        does: "20,000 commits of processes that share memory",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["cuts", "--commits", "20000", "--patience", "60"])],
    },
    Step {
        name: "system-calls-all",
        does: "every failing system call",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["faults"])],
    },
    Step {
        name: "kills-all",
        does: "processes killed before every changing system call",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["kills"])],
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
        name: "programs-long",
        does: "every program bare and under untorn, killed and cut off by the thousand",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["programs", "--kills", "1000", "--power-cuts", "1000"])],
    },
    Step {
        name: "sqlite-long",
        does: "SQLite's VFS killed and cut off by the thousand",
        loops: &[Nightly],
        needs: &[],
        work: &[Xtask(&["sqlite", "--kills", "1000", "--power-cuts", "1000"])],
    },
    Step {
        name: "torture-long",
        does: "SIGKILL over real files, a minute each",
        loops: &[Nightly],
        needs: &[],
        work: &[
            Tool(&["torture", "--seconds", "60", "--engine", "reflection", "--json"]),
            Tool(&["torture", "--seconds", "60", "--engine", "hybrid-log", "--json"]),
            Tool(&["torture", "--seconds", "60", "--engine", "shadow", "--json"]),
            Tool(&["torture", "--seconds", "60", "--map", "--json"]),
            Tool(&["torture", "--seconds", "60", "--region", "--json"]),
            Tool(&["torture", "--seconds", "60", "--redundancy", "--json"]),
        ],
    },
    Step {
        name: "power-cuts-long",
        does: "3,000 power cuts of a disk under ext4 and xfs",
        loops: &[Nightly],
        needs: &[],
        work: &[
            Tool(&["torture", "--medium", "block", "--images", "1000", "--engine", "reflection", "--json"]),
            Tool(&["torture", "--medium", "block", "--images", "1000", "--engine", "hybrid-log", "--json"]),
            Tool(&["torture", "--medium", "block", "--images", "300", "--engine", "shadow", "--json"]),
            Tool(&["torture", "--medium", "block", "--images", "600", "--map", "--json"]),
            Tool(&["torture", "--medium", "block", "--images", "400", "--region", "--json"]),
            ToolFails(&["torture", "--medium", "block", "--images", "200", "--engine", "passthrough", "--json"]),
            ToolFails(&["torture", "--medium", "block", "--images", "200", "--lying-disk", "--json"]),
        ],
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
            Xtask(&["dax", "--engine", "shadow", "--cycles", "10"]),
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
