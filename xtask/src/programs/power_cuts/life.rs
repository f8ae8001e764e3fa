//! One run of a program on a recorded disk: its acknowledgements, and the record's position at each.
//!
//! A disk must hold a step if its acknowledgement was *received* before the record reached the disk's instant:
//! everything that made the step durable was in the record by then. A step without a received acknowledgement may be
//! there or not.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use untorn_rigs::block::{self, Clock, Position};

use super::super::quiet;
use super::super::victims::Wrong;
use super::FIRST_ACK_TIMEOUT;

/// Steps, each with the record's position when its acknowledgement arrived.
pub(super) type Received = Vec<(Position, u64)>;

/// One run of a program.
pub(super) struct Life {
    pub(super) record: block::Log,
    /// The acknowledged steps, with the record's positions.
    pub(super) received: Received,
    /// The record's position after the death of the program.
    pub(super) dead: Position,
}

impl Life {
    /// The last step acknowledged before an instant, or the last step before the run.
    pub(super) fn known(&self, at: Position, before: u64) -> u64 {
        let counted = self.received.partition_point(|(position, _)| *position <= at);
        self.received[..counted].iter().fold(before, |last, (_, step)| last.max(*step))
    }

    pub(super) fn last(&self, before: u64) -> u64 {
        self.known(Position::MAX, before)
    }
}

/// Watches the program, kills it after some steps and some time, and returns its acknowledged steps with positions.
pub(super) fn watch(
    child: &mut Child,
    clock: Clock,
    steps: u64,
    wait: Duration,
) -> io::Result<Result<Received, Wrong>> {
    let said = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
    let (sender, lines) = mpsc::channel();
    let readers = clock.clone();
    let reader = thread::spawn(move || read(said, &readers, &sender));
    let process = lines.recv_timeout(FIRST_ACK_TIMEOUT);
    let stepped = process.is_ok() && (0..steps).all(|_| lines.recv_timeout(FIRST_ACK_TIMEOUT).is_ok());
    thread::sleep(wait);
    // Kill the tool first, so that it doesn't sync the program's data.
    let _ = child.kill();
    let status = child.wait()?;
    if let Ok(process) = process {
        // Kill the program and its children. It may have exited already, because its calls fail without the server.
        let process = process.to_string();
        quiet("sh").args(["-c", "kill -s KILL -- \"-$0\"", &process]).stderr(Stdio::null()).status()?;
    }
    let received =
        reader.join().map_err(|_| io::Error::other("the thread that reads the program's output panicked"))?;
    if stepped && status.code().is_none() {
        return Ok(Ok(received));
    }
    let last = received.last().map_or(0, |(_, step)| *step);
    Ok(Err(Wrong::integrity(format!("AFTER STEP {last} THE PROGRAM HUNG OR EXITED BY ITSELF ({status})"))))
}

/// Notes the record's position at each step; passes the process number and the steps on.
fn read(said: impl BufRead, clock: &Clock, lines: &Sender<u64>) -> Received {
    let mut received = Vec::new();
    // An unfinished line of a killed tool does not parse as a number.
    let numbers = said.lines().map_while(Result::ok).map_while(|line| line.parse::<u64>().ok());
    for (place, number) in numbers.enumerate() {
        if place > 0 {
            received.push((clock.now(), number));
        }
        // After the decision to kill, nothing receives it.
        let _ = lines.send(number);
    }
    received
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_binds_disks_from_its_position_on() {
        let life = Life { record: block::Log::default(), received: vec![(3, 8), (7, 9)], dead: 9 };
        assert_eq!([0, 2, 3, 6, 7, 9].map(|at| life.known(at, 7)), [7, 7, 8, 8, 9, 9]);
        assert_eq!((life.last(7), Life { received: vec![], ..life }.last(7)), (9, 7));
    }
}
