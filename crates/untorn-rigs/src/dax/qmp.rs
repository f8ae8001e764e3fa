//! QEMU's machine protocol: one JSON object per line; `return` or `error` answers each command, with events in between.
//!
//! Source: QEMU's `docs/interop/qmp-spec`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// The maximum time to reach any state of the machine. Emulation on a busy machine is slow.
const MACHINE_STATE_TIMEOUT: Duration = Duration::from_secs(180);

/// A connection to one machine.
#[derive(Debug)]
pub(super) struct Qmp {
    reader: BufReader<UnixStream>,
}

impl Qmp {
    /// Negotiates with the machine at the other end.
    pub(super) fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(MACHINE_STATE_TIMEOUT)).map_err(Error::system("wait for QEMU"))?;
        let mut qmp = Qmp { reader: BufReader::new(stream) };
        let greeting = qmp.message()?;
        if greeting.get("QMP").is_none() {
            return Err(Error::failed("connect to QEMU's monitor", format!("unexpected greeting {greeting}")));
        }
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and returns its result.
    pub(super) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        self.reader.get_mut().write_all(line.as_bytes()).map_err(Error::system("send a command to QEMU"))?;
        loop {
            let mut message = self.message()?;
            if let Some(value) = message.get_mut("return") {
                return Ok(value.take());
            }
            if let Some(error) = message.get("error") {
                return Err(Error::failed(format!("run {command} in QEMU's monitor"), error["desc"].to_string()));
            }
            // Anything else is an event. Ignore it, because the rig polls states.
        }
    }

    /// Polls until the field `status` of an answer is `wanted`. The status `failed` is an error.
    pub(super) fn wait_status(&mut self, query: &str, wanted: &str) -> Result<()> {
        let start = Instant::now();
        loop {
            let answer = self.execute(query, json!({}))?;
            let status = answer["status"].as_str().unwrap_or_default();
            if status == wanted {
                return Ok(());
            }
            if status == "failed" || start.elapsed() > MACHINE_STATE_TIMEOUT {
                return Err(Error::failed(format!("wait until QEMU's {query} reports {wanted}"), answer.to_string()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn message(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).map_err(Error::system("read from QEMU's monitor"))? == 0 {
            return Err(Error::failed("read from QEMU's monitor", "QEMU closed the connection"));
        }
        serde_json::from_str(&line)
            .map_err(|error| Error::failed("parse an answer of QEMU's monitor", format!("{error}: {line}")))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// A machine that says the given lines, one group for each line it is told.
    fn machine(groups: &'static [&'static str]) -> (UnixStream, thread::JoinHandle<Vec<String>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let said = thread::spawn(move || {
            let mut reader = BufReader::new(theirs.try_clone().unwrap());
            let mut heard = Vec::new();
            for (i, group) in groups.iter().enumerate() {
                if i > 0 {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    heard.push(line);
                }
                (&theirs).write_all(group.as_bytes()).unwrap();
            }
            heard
        });
        (ours, said)
    }

    #[test]
    fn events_are_passed_over_and_errors_reported() {
        let (stream, said) = machine(&[
            "{\"QMP\": {}}\n",
            "{\"return\": {}}\n",
            "{\"event\": \"STOP\"}\n{\"return\": {\"status\": \"active\"}}\n",
            "{\"return\": {\"status\": \"completed\"}}\n",
            "{\"error\": {\"desc\": \"no such thing\"}}\n",
        ]);
        let mut qmp = Qmp::new(stream).unwrap();
        qmp.wait_status("query-migrate", "completed").unwrap();
        let error = qmp.execute("migrate", json!({"uri": "x"})).unwrap_err().to_string();
        assert!(error.contains("no such thing"), "{error}");
        let heard = said.join().unwrap();
        assert_eq!(heard.len(), 4);
        assert!(heard[3].contains("\"migrate\"") && heard[3].contains("\"uri\""), "{heard:?}");
    }

    #[test]
    fn a_machine_that_hangs_up_is_an_error() {
        let (stream, _) = machine(&["{\"QMP\": {}}\n"]);
        assert!(Qmp::new(stream).is_err());
    }
}
