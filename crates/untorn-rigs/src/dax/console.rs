//! The serial line into the guest: one command per line; the answer is its output and a mark with its exit code.
//!
//! The mark is byte 1, which no program prints, then the code and a newline; at boot the code is `ready`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::error::{Error, Result};

const MARK: u8 = 1;

/// The line.
#[derive(Debug)]
pub(super) struct Console {
    reader: BufReader<UnixStream>,
}

/// The result of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The exit code.
    pub(super) code: i32,
    /// Its output, including errors.
    pub(super) text: String,
}

impl Console {
    /// A console over a stream. A guest that is silent for `patience` counts as hung.
    pub(super) fn new(stream: UnixStream, patience: Duration) -> Result<Self> {
        stream.set_read_timeout(Some(patience)).map_err(Error::system("wait for the guest"))?;
        Ok(Console { reader: BufReader::new(stream) })
    }

    /// Waits until a booting guest is ready for commands.
    pub(super) fn wait_ready(&mut self) -> Result<()> {
        match self.until_mark()? {
            (_, mark) if mark == "ready" => Ok(()),
            (text, mark) => {
                Err(Error::failed("boot the guest", format!("expected its ready mark, got {text:?} and {mark:?}")))
            }
        }
    }

    /// Runs a command that may fail.
    pub(super) fn ask(&mut self, command: &str) -> Result<Answer> {
        let line = format!("{command}\n");
        self.reader.get_mut().write_all(line.as_bytes()).map_err(Error::system("send a command to the guest"))?;
        let (text, mark) = self.until_mark()?;
        let code = mark.parse().map_err(|_| Error::failed(format!("run `{command}` in the guest"), mark))?;
        Ok(Answer { code, text })
    }

    /// Runs a command that must succeed. Returns its output.
    pub(super) fn run(&mut self, command: &str) -> Result<String> {
        match self.ask(command)? {
            Answer { code: 0, text } => Ok(text),
            Answer { code, text } => {
                Err(Error::failed(format!("run `{command}` in the guest"), format!("code {code}: {}", text.trim())))
            }
        }
    }

    fn until_mark(&mut self) -> Result<(String, String)> {
        let (mut text, mut mark) = (Vec::new(), Vec::new());
        let listening = "read the guest's output";
        self.reader.read_until(MARK, &mut text).map_err(Error::system(listening))?;
        self.reader.read_until(b'\n', &mut mark).map_err(Error::system(listening))?;
        if text.pop() != Some(MARK) || mark.pop() != Some(b'\n') {
            return Err(Error::failed(listening, "the guest closed its console"));
        }
        let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((words(&text), words(&mark)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn console(said: &str) -> (Console, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(said.as_bytes()).unwrap();
        (Console::new(ours, Duration::from_millis(200)).unwrap(), theirs)
    }

    #[test]
    fn an_answer_is_what_stands_before_the_mark() {
        let (mut console, _theirs) = console("\x01ready\none\ntwo\x010\nfailed\n\x017\n");
        console.wait_ready().unwrap();
        assert_eq!(console.run("a").unwrap(), "one\ntwo");
        assert_eq!(console.ask("b").unwrap(), Answer { code: 7, text: "failed\n".to_owned() });
    }

    #[test]
    fn a_failure_a_silent_guest_and_one_that_is_gone_are_errors() {
        let (mut failing, _theirs) = console("no such file\n\x011\n");
        assert!(failing.run("x").unwrap_err().to_string().contains("no such file"));
        let (mut silent, _theirs) = console("");
        assert!(silent.wait_ready().is_err());
        let (mut gone, theirs) = console("half an ans");
        drop(theirs);
        assert!(gone.run("x").is_err());
    }
}
