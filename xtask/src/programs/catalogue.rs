//! The programs, and what each needs.

use super::quiet;

/// A script of `xtask/programs`, and what to expect of it.
pub(super) struct Program {
    pub(super) name: &'static str,
    /// The script, and an argument for it.
    pub(super) script: (&'static str, &'static str),
    /// The programs it needs: a shell command that succeeds if the program is installed, and its package.
    pub(super) needs: &'static [(&'static str, &'static str)],
    /// Whether all its files must be identical byte for byte. Some programs write times or paths into their files.
    pub(super) files: bool,
}

impl Program {
    /// The size of the log. A small one is used again and again. PostgreSQL's checkpoints change more of a file between
    /// two syncs than finds room in that.
    pub(super) fn log_size(&self) -> &'static str {
        if self.name == "postgres" { "64M" } else { "16M" }
    }
}

/// A program that runs only if it is named: Debian's package of CPython's tests does not contain it.
pub(super) const ON_REQUEST: &str = "python-sqlite3";

const PYTHON: (&str, &str) = ("python3 -c 'import test.test_io'", "libpython3-testsuite");
const SQLITE: (&str, &str) = ("command -v sqlite3", "sqlite3");

const fn python(name: &'static str, file: &'static str) -> Program {
    Program { name, script: ("python.sh", file), needs: &[PYTHON], files: false }
}

pub(super) const CATALOGUE: &[Program] = &[
    python("python-tarfile", "test_tarfile"),
    python("python-zipfile", "test_zipfile"),
    python("python-io", "test_io"),
    python("python-fileio", "test_fileio"),
    python("python-mmap", "test_mmap"),
    python("python-os", "test_os"),
    python("python-shutil", "test_shutil"),
    python("python-posix", "test_posix"),
    Program {
        needs: &[("python3 -c 'import test.test_sqlite3'", "a Python installation with all of its tests")],
        ..python(ON_REQUEST, "test_sqlite3")
    },
    python("python-tempfile", "test_tempfile"),
    Program {
        name: "fio",
        script: ("fio.sh", ""),
        needs: &[("command -v fio", "fio")],
        files: false, // Each block has the time in it.
    },
    Program {
        name: "fio-asynchronous",
        script: ("fio_asynchronous.sh", ""),
        needs: &[("command -v fio", "fio")],
        files: false,
    },
    Program {
        name: "stress-ng",
        script: ("stress.sh", ""),
        needs: &[("command -v stress-ng", "stress-ng")],
        files: true,
    },
    Program { name: "git", script: ("git.sh", ""), needs: &[("command -v git", "git")], files: true },
    Program {
        name: "coreutils",
        script: ("coreutils.sh", ""),
        needs: &[
            ("command -v ed", "ed"),
            ("command -v patch", "patch"),
            ("command -v perl", "perl"),
            ("command -v bzip2", "bzip2"),
            ("command -v xz", "xz-utils"),
        ],
        files: true,
    },
    Program {
        name: "archives",
        script: ("archives.sh", ""),
        needs: &[
            ("command -v rsync", "rsync"),
            ("command -v cpio", "cpio"),
            ("command -v zip", "zip"),
            ("command -v unzip", "unzip"),
        ],
        files: true,
    },
    Program { name: "sqlite", script: ("sqlite.sh", ""), needs: &[SQLITE], files: false },
    Program { name: "sqlite-wal", script: ("sqlite_wal.sh", ""), needs: &[SQLITE], files: false },
    Program { name: "sqlite-wal-exclusive", script: ("sqlite_wal_exclusive.sh", ""), needs: &[SQLITE], files: false },
    Program {
        name: "rocksdb",
        script: ("rocksdb.sh", ""),
        needs: &[("command -v db_bench && command -v ldb", "rocksdb-tools")],
        files: false,
    },
    Program { name: "lmdb", script: ("lmdb.sh", ""), needs: &[("command -v mdb_load", "lmdb-utils")], files: false },
    Program { name: "dbm", script: ("dbm.sh", ""), needs: &[], files: false },
    Program { name: "builds", script: ("builds.sh", ""), needs: &[("command -v make", "make")], files: true },
    Program { name: "node", script: ("node.sh", ""), needs: &[("command -v node", "nodejs")], files: true },
    Program { name: "editors", script: ("editors.sh", ""), needs: &[("command -v vim", "vim")], files: true },
    Program { name: "static", script: ("static.sh", ""), needs: &[("command -v musl-gcc", "musl-tools")], files: true },
    Program { name: "go", script: ("go.sh", ""), needs: &[("command -v go", "golang")], files: false },
    Program {
        name: "java",
        script: ("java.sh", ""),
        needs: &[("command -v javac", "default-jdk-headless")],
        files: true,
    },
    Program { name: "make", script: ("make.sh", ""), needs: &[("command -v make", "make")], files: true },
    Program {
        name: "postgres",
        script: ("postgres.sh", ""),
        needs: &[("ls /usr/lib/postgresql/*/bin/postgres && command -v pgbench", "postgresql")],
        files: false,
    },
    Program {
        name: "redis",
        script: ("redis.sh", ""),
        needs: &[("command -v redis-server && command -v redis-cli", "redis-server")],
        files: false,
    },
];

/// The packages that some programs miss.
pub(super) fn missing(programs: &[&Program]) -> Vec<&'static str> {
    let there = |check: &str| quiet("sh").args(["-c", check]).output().is_ok_and(|output| output.status.success());
    let needs = programs.iter().flat_map(|program| program.needs);
    let mut missing: Vec<_> = needs.filter(|(check, _)| !there(check)).map(|(_, package)| *package).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}
