//! Processes that do what they are told, a line at a time, and say what came of it.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::thread::JoinHandle;

use super::Rng;
use untorn::{Error, Result};
use untorn_testing::again;

/// Tells a process that a test starts what it is to do, and with which file.
const ROLE: &str = "UNTORN_TEST_MEMBER";

/// What this process was told; `None` in the process of all tests.
pub(crate) fn role() -> Option<OsString> {
    std::env::var_os(ROLE)
}

/// Starts a process that runs the test `test` of this program.
pub(crate) fn start(test: &str, role: impl AsRef<OsStr>) -> Child {
    again(test).env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Kills a process and waits for its end.
pub(crate) fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Reads what a process says until it ends, so that it never waits to be heard, and gives `note` the numbers behind
/// `word` of each line. The last line of one that is killed may lack some.
pub(crate) fn hear(child: &mut Child, word: &'static str, note: impl Fn(&[u64]) + Send + 'static) -> JoinHandle<()> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    std::thread::spawn(move || {
        for line in lines.map_while(std::io::Result::ok) {
            if let Some(numbers) = line.strip_prefix(word) {
                note(&numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect::<Vec<_>>());
            }
        }
    })
}

/// What is shared, or `None` where this machine forbids what that takes, which is recorded as skipped.
pub(crate) fn unless_forbidden<T>(shared: Result<T>) -> Option<T> {
    match shared {
        Ok(shared) => Some(shared),
        Err(error @ Error::Io { .. }) if matches!(error.errno(), 1 | 38) => {
            untorn_testing::skipped!("{error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// One such process.
pub(crate) struct Member {
    child: Child,
    /// `None` once it has been told to leave.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Member {
    /// Starts one, see [`start`], and waits for its first answer.
    pub(crate) fn join(test: &str, role: impl AsRef<OsStr>) -> (Self, String) {
        let mut child = start(test, role);
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut member = Member { orders: child.stdin.take(), child, answers };
        let said = member.answer();
        (member, said)
    }

    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        // The harness of tests says things, too, and begins a line that the first answer ends.
        while !line.contains("> ") {
            line.clear();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "it ended by itself");
        }
        line.rsplit("> ").next().unwrap().trim_end_matches('\n').to_owned()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order, and does not wait for the answer.
    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
    }

    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer()
    }

    /// Has it come to its end.
    pub(crate) fn leave(mut self) {
        self.orders = None;
        // The rest of what the harness says.
        std::io::copy(&mut self.answers, &mut std::io::sink()).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Members of one file that come, leave and are killed as a seed has it, and do one thing at a time.
pub(crate) struct Band<'a> {
    test: &'a str,
    path: &'a Path,
    pub(crate) rng: Rng,
    members: Vec<Member>,
    /// What was done, for who studies a failure.
    done: Vec<String>,
}

impl<'a> Band<'a> {
    /// Without a member yet; each runs the test `test`.
    pub(crate) fn new(test: &'a str, path: &'a Path, seed: u64) -> Self {
        Band { test, path, rng: Rng::new(seed), members: Vec::new(), done: vec![format!("seed {seed}")] }
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn done(&self) -> String {
        self.done.join("\n")
    }

    #[track_caller]
    pub(crate) fn agree(&self, said: &str, expected: &str) {
        assert_eq!(said, expected, "{}", self.done());
    }

    /// A member joins, and says what it finds.
    #[track_caller]
    pub(crate) fn join(&mut self, expected: &str) {
        self.done.push("one joins".to_owned());
        let (member, said) = Member::join(self.test, self.path);
        self.agree(&said, expected);
        self.members.push(member);
    }

    /// Asks one of them.
    pub(crate) fn ask(&mut self, order: String) -> String {
        let who = self.one();
        self.done.push(format!("{who}: {order}"));
        self.members[who].ask(&order)
    }

    /// Asks one of them, whose answer is known.
    #[track_caller]
    pub(crate) fn check(&mut self, order: String, expected: &str) {
        let said = self.ask(order);
        self.agree(&said, expected);
    }

    /// One of them leaves or is killed.
    pub(crate) fn part(&mut self, killed: bool) {
        let who = self.one();
        let member = self.members.swap_remove(who);
        self.go(member, killed);
    }

    /// All of them leave, or all are killed, one after the other. Whether they were killed.
    pub(crate) fn end(&mut self) -> bool {
        let killed = self.rng.below(2) == 0;
        while let Some(member) = self.members.pop() {
            self.go(member, killed);
        }
        killed
    }

    fn one(&mut self) -> usize {
        self.rng.below(self.members.len() as u64) as usize
    }

    fn go(&mut self, member: Member, killed: bool) {
        self.done.push(if killed { "one is killed" } else { "one leaves" }.to_owned());
        if killed { member.kill() } else { member.leave() }
    }
}

/// In a member: says `first`, and then of each order, a verb and numbers, what `carry_out` makes of it, until there
/// are no more.
pub(crate) fn obey(first: String, mut carry_out: impl FnMut(&str, &[u64]) -> String) {
    let mut out = std::io::stdout();
    let mut say = |what: String| {
        writeln!(out, "> {what}").unwrap();
        out.flush().unwrap();
    };
    say(first);
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        let verb = words.next().unwrap();
        let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        say(carry_out(verb, &numbers));
    }
}

/// Tells bytes from others.
pub(crate) fn sum(bytes: &[u8]) -> String {
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    format!("sum {}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix))
}
