//! Unmodified programs under `untorn run`: what the tests of the tool and those of its server share. All of it panics
//! where something fails, as a test does.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

/// What a program said.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command to its end, and asserts that it succeeds.
#[track_caller]
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}

/// The path of a program of the tool's tests.
pub fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../untorn-cli/tests/programs").join(name)
}

/// Compiles a program of the tool's tests.
#[track_caller]
pub fn compile(name: &str, dir: &Path, options: &[&str]) -> PathBuf {
    let made = dir.join(name.trim_end_matches(".c"));
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    succeed(cc.args(options).args(["-w", "-pthread", "-o"]).arg(&made).arg(program(name)));
    made
}

/// The files in a directory, by name.
pub fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut all: Vec<_> = entries
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

/// The run's own line about files that its log could not follow.
const PLAIN: &str = "untorn: left to the file system";

/// Runs a program bare in the directory `bare`, and as `managed` has it in another directory. Compares output, exit and
/// every byte of every file.
#[track_caller]
pub fn assert_same_as_bare(program: &[&OsStr], bare: &Path, managed: &mut Command) {
    let expected =
        Command::new(program[0]).args(&program[1..]).current_dir(bare).stdin(Stdio::null()).output().unwrap();
    let found = managed.output().unwrap();
    assert_eq!(text(&found.stdout), text(&expected.stdout));
    let complained: String =
        text(&found.stderr).split_inclusive('\n').filter(|line| !line.starts_with(PLAIN)).collect();
    assert_eq!(complained, text(&expected.stderr));
    assert_eq!(found.status.code(), expected.status.code());
    let (found, expected) = (files(managed.get_current_dir().expect("it has a directory")), files(bare));
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected));
    for ((name, found), (_, expected)) in found.iter().zip(&expected) {
        assert!(found == expected, "{name} differs: {} bytes, {} bare", found.len(), expected.len());
    }
}

/// The test program of every call, compiled in each way that leads to other functions of the C library.
pub fn each_call(dir: &Path, same_as_bare: impl Fn(&[&OsStr])) {
    for options in [["-O0", "-DPLAIN"], ["-O2", "-D_FORTIFY_SOURCE=2"], ["-O1", "-D_FILE_OFFSET_BITS=64"]] {
        same_as_bare(&[compile("calls.c", dir, &options).as_os_str()]);
    }
}

/// A script of redirections and pipelines.
pub const REDIRECTIONS: &str = "
echo one > a.managed; echo two >> a.managed; cat a.managed; (echo sub; ls -d .) > b.managed; cat b.managed
{ seq 1 1000; echo last; } > c.managed; wc -c < c.managed; sort -rn c.managed | head -n 2
for i in 1 2 3; do echo $i; done > d.managed; cat d.managed a.managed > e.managed
while read line; do echo \"<$line>\"; done < e.managed; : > f.managed; exec 5> g.managed; echo five >&5
echo more >&5; exec 5>&-; cat g.managed; test -s g.managed; test ! -s f.managed
printf 'no newline' > h.managed
";

/// A script of the usual tools. The first copy is made in blocks of $BLOCK bytes.
pub const USUAL_TOOLS: &str = "
seq 1 5000 > a.managed; cp a.managed b.managed; cmp a.managed b.managed
dd if=a.managed of=c.managed bs=$BLOCK status=none
dd if=a.managed of=c.managed bs=100 seek=2 skip=5 count=3 conv=notrunc status=none
sort -R --random-source=a.managed a.managed -o d.managed; sort -n d.managed -o d.managed
cmp a.managed d.managed; head -c 10000 a.managed | tee e.managed f.managed | md5sum
truncate -s 100 e.managed; truncate -s +5K f.managed
sed -i s/1/x/ b.managed; awk '{ s += $1 } END { print s }' a.managed > g.managed; cat g.managed
tar --mtime=@0 --owner=0 --group=0 -cf h.managed a.managed b.managed; tar -xOf h.managed b.managed | md5sum
gzip -nc a.managed > i.managed; gunzip -c < i.managed | cmp - a.managed; stat -c '%s %F' a.managed e.managed
split -n 3 a.managed j; mv e.managed k.managed; ln k.managed l.managed; rm k.managed; wc -c *.managed
install -m 600 a.managed m.managed; touch -d @1000 m.managed; stat -c '%Y %a' m.managed; grep -c 9 a.managed
tail -n 2 a.managed; cp --preserve=timestamps m.managed n.managed; stat -c %Y n.managed
";

/// A script of a life of a git repository.
pub const GIT: &str = "
export GIT_AUTHOR_DATE='@1000 +0000' GIT_COMMITTER_DATE='@1000 +0000' GIT_CONFIG_GLOBAL=/dev/null
export GIT_CONFIG_SYSTEM=/dev/null; git -c init.defaultBranch=main init -q repository; cd repository
git config user.email a@b; git config user.name n; git config core.fsync all
for i in 1 2 3; do seq 1 ${i}00 > f$i; git add f$i; git commit -qm \"number $i\"; done
git mv f1 g1; git commit -qam moved; git gc -q; git fsck --strict; git log --format='%H %s'
git status --short
git checkout -q HEAD~2; git diff --stat HEAD main; git archive main | md5sum
test -z \"$(find . -name .untorn)\"
";

/// A Python program that commits transactions to a database of SQLite, and says of each that it is done. Its arguments
/// are the file, the journal mode and the locking mode.
pub const TRANSACTIONS: &str = "
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute('pragma journal_mode=' + sys.argv[2])
connection.execute('pragma synchronous=full')
connection.execute('pragma locking_mode=' + sys.argv[3])
connection.execute('create table if not exists t(batch integer, item integer, filling blob)')
batch = connection.execute('select coalesce(max(batch), 0) from t').fetchone()[0]
while True:
    batch += 1
    connection.execute('begin immediate')
    for item in range(20):
        connection.execute('insert into t values(?, ?, ?)', (batch, item, bytes([batch % 256]) * 900))
    connection.execute('delete from t where batch < ?', (batch - 30,))
    connection.execute('commit')
    print(batch, flush=True)
";

/// A Python program that judges such a database, its argument: it says which transaction is the last.
pub const JUDGE: &str = "
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
assert connection.execute('pragma integrity_check').fetchone()[0] == 'ok'
try:
    last = connection.execute('select coalesce(max(batch), 0) from t').fetchone()[0]
    found = connection.execute('select batch, item, filling from t order by batch, item').fetchall()
    assert found == [(b, i, bytes([b % 256]) * 900) for b in range(max(1, last - 30), last + 1) for i in range(20)]
except sqlite3.OperationalError:
    last = 0
print(last)
";

/// The last of the [`TRANSACTIONS`] in a database of a directory, all of which are whole.
#[track_caller]
pub fn last_transaction(dir: &Path, database: &str) -> u64 {
    let mut judge = Command::new("python3");
    let said = succeed(judge.args(["-c", JUDGE, database]).current_dir(dir)).stdout;
    text(&said).trim().parse().unwrap()
}

/// Kills processes, of which all but the first may have ended before.
#[track_caller]
pub fn kill(processes: &[&str]) {
    // The shell's own: the program of that name is in a package that a small system lacks.
    let script = "kill -9 \"$0\" || exit; for other; do kill -9 \"$other\" || true; done";
    succeed(Command::new("sh").args(["-c", script]).args(processes));
}

/// A Python program under the tool that counts what it has done on standard output, until it is killed.
pub struct Victim {
    tool: Child,
    /// The process of the program.
    pub process: String,
    said: Lines<BufReader<ChildStdout>>,
    last: Option<String>,
}

impl Victim {
    /// The words that `under` has to run: a Python program with arguments, which first names its process.
    pub fn start(program: &[&str], under: impl FnOnce(&[&OsStr]) -> Command) -> Self {
        let script = ["sh", "-c", "echo $$; exec python3 -c \"$@\"", "sh"].iter().chain(program);
        let script: Vec<&OsStr> = script.map(OsStr::new).collect();
        let mut tool = under(&script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(tool.stdout.take().unwrap()).lines();
        let process = said.next().expect("the program starts").unwrap();
        Victim { tool, process, said, last: None }
    }

    /// The process of the tool, which serves the program.
    pub fn server(&self) -> String {
        self.tool.id().to_string()
    }

    /// Waits until the program has said so many lines.
    #[track_caller]
    pub fn await_lines(&mut self, count: usize) {
        self.last = Some(self.said.nth(count - 1).expect("the writer ended by itself").unwrap());
    }

    /// Kills processes; what the program said last, and how the tool ended. Neither is there any more afterwards.
    #[track_caller]
    pub fn killed(mut self, processes: &[&str]) -> (u64, ExitStatus) {
        kill(processes);
        let last = self.said.map(Result::unwrap).last().or(self.last);
        let ended = self.tool.wait().unwrap();
        // Both are gone when the last of them has closed this.
        self.tool.stderr.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        (last.expect("lines were awaited").parse().unwrap(), ended)
    }
}
