//! Processes that do what they are told, a line at a time, and say what came of it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use untorn_testing::again;

/// One such process.
pub(crate) struct Member {
    child: Child,
    /// `None` once it has been told to leave.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Member {
    /// Starts one and waits for its first answer. It runs the test `role` of this program, with the path in `variable`.
    pub(crate) fn join(role: &str, variable: &str, path: &Path) -> (Self, String) {
        let mut child = again(role).env(variable, path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut member = Member { orders: child.stdin.take(), child, answers };
        let said = member.answer();
        (member, said)
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        // The harness of tests says things, too, and begins a line that the first answer ends.
        while !line.contains("> ") {
            line.clear();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "it ended by itself");
        }
        line.rsplit("> ").next().unwrap().trim_end_matches('\n').to_owned()
    }

    pub(crate) fn ask(&mut self, order: &str) -> String {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
        self.answer()
    }

    /// Has it come to its end.
    pub(crate) fn leave(mut self) {
        self.orders = None;
        // The rest of what the harness says.
        std::io::copy(&mut self.answers, &mut std::io::sink()).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
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
