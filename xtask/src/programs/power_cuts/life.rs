//! One life of a program on a recorded disk: what it acknowledged, and where the record was when word of that came.
//!
//! An acknowledgement binds a disk if it had been *received* before the record reached the disk's instant: all that made the step
//! durable was in the record by then. A step of which no word had come may be there or not.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use untorn_rigs::block::{self, Clock, Position};

use super::super::quiet;
use super::super::victims::Wrong;
use super::PATIENCE;

/// Steps, each with the position to which a record had come when word of it came.
pub(super) type Received = Vec<(Position, u64)>;

/// One life of a program.
pub(super) struct Life {
    pub(super) record: block::Log,
    /// What had been acknowledged when the record had come to a position.
    pub(super) received: Received,
    /// Where the record was when the tool was about to be killed, and when the program was dead.
    pub(super) served: Position,
    pub(super) dead: Position,
}

impl Life {
    /// The last step of which word had come before an instant, or that there was before the life.
    pub(super) fn known(&self, at: Position, before: u64) -> u64 {
        let counted = self.received.partition_point(|(position, _)| *position <= at);
        self.received[..counted].last().map_or(before, |(_, step)| *step)
    }

    pub(super) fn last(&self, before: u64) -> u64 {
        self.known(Position::MAX, before)
    }
}

/// What the program acknowledged until it was killed, after so many steps and some time, and where the record was then.
pub(super) fn watch(
    child: &mut Child,
    clock: Clock,
    steps: u64,
    wait: Duration,
) -> io::Result<Result<(Position, Received), Wrong>> {
    let said = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
    let (sender, lines) = mpsc::channel();
    let readers = clock.clone();
    let reader = thread::spawn(move || read(said, &readers, &sender));
    let process = lines.recv_timeout(PATIENCE);
    let stepped = process.is_ok() && (0..steps).all(|_| lines.recv_timeout(PATIENCE).is_ok());
    thread::sleep(wait);
    // The tool first, lest it sync what the program leaves.
    let served = clock.now();
    let _ = child.kill();
    let status = child.wait()?;
    if let Ok(process) = process {
        // The program and what it started. It may have ended by then, told by its calls that nobody serves it.
        let process = process.to_string();
        quiet("sh").args(["-c", "kill -s KILL -- \"-$0\"", &process]).stderr(Stdio::null()).status()?;
    }
    let received = reader.join().map_err(|_| io::Error::other("a reader panicked"))?;
    if stepped && status.code().is_none() {
        return Ok(Ok((served, received)));
    }
    let last = received.last().map_or(0, |(_, step)| *step);
    Ok(Err(Wrong::integrity(format!("AFTER STEP {last} THE PROGRAM WENT ON NO MORE, OR ENDED BY ITSELF ({status})"))))
}

/// Notes for each step the position at which it is certain; hands the process and the steps on.
fn read(said: impl BufRead, clock: &Clock, lines: &Sender<u64>) -> Received {
    let mut received = Vec::new();
    // What a killed tool did not say to its end is no number.
    let numbers = said.lines().map_while(Result::ok).map_while(|line| line.parse::<u64>().ok());
    for (place, number) in numbers.enumerate() {
        if place > 0 {
            received.push((clock.now(), number));
        }
        // Nobody waits for it once the program is to be killed.
        let _ = lines.send(number);
    }
    received
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_binds_the_disks_at_and_after_the_position_at_which_word_came_of_it() {
        let life = Life { record: block::Log::default(), received: vec![(3, 8), (7, 9)], served: 8, dead: 9 };
        assert_eq!([0, 2, 3, 6, 7, 9].map(|at| life.known(at, 7)), [7, 7, 8, 8, 9, 9]);
        assert_eq!((life.last(7), Life { received: vec![], ..life }.last(7)), (9, 7));
    }
}
