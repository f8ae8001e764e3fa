//! Programs that are killed at instants that no one chose, over and over: nothing that they acknowledged may be lost.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::outcome::{Mode, believe, under};
use super::{Built, quiet};

/// A program that says its process, then the number of each step that it has acknowledged; and one that says the last number that
/// is there, or fails.
struct Victim {
    name: &'static str,
    mode: Mode,
    program: &'static str,
    judge: &'static str,
}

const VICTIMS: &[Victim] = &[
    Victim {
        name: "rocksdb",
        mode: Mode::Atomic,
        program: "exec sh \"$PROGRAMS/kill_rocksdb.sh\"",
        judge: "sh -e \"$PROGRAMS/judge_rocksdb.sh\"",
    },
    Victim {
        name: "rocksdb",
        mode: Mode::Boost,
        program: "exec sh \"$PROGRAMS/kill_rocksdb.sh\"",
        judge: "sh -e \"$PROGRAMS/judge_rocksdb.sh\"",
    },
    // Without untorn, or in mode boost, its steps would tear.
    Victim {
        name: "writer",
        mode: Mode::Atomic,
        program: "exec python3 \"$PROGRAMS/kill_writer.py\"",
        judge: "python3 \"$PROGRAMS/kill_writer.py\" judge",
    },
];

/// Of what a judge says, so many characters are told.
const MOST_WORDS: usize = 300;

/// Kills each program so many times. Whether nothing was lost.
pub(super) fn run(built: &Built, kills: u32, at: &Path) -> io::Result<bool> {
    let mut all = true;
    for victim in VICTIMS {
        let at = at.join(format!("kills-{}-{}", victim.name, victim.mode.name()));
        // Of an earlier run that was kept.
        let _ = fs::remove_dir_all(&at);
        let scene = Scene { built, victim, at };
        let (mut last, mut found) = (0, Ok(()));
        for number in 0..kills {
            found = scene.kill(number, &mut last)?;
            if found.is_err() {
                break;
            }
        }
        let said = found.as_ref().err().map_or("nothing lost", String::as_str);
        println!("{:20} {} kills under {}, {last} steps acknowledged: {said}", victim.name, kills, victim.mode.name());
        all &= found.is_ok();
    }
    Ok(all)
}

struct Scene<'a> {
    built: &'a Built,
    victim: &'a Victim,
    at: PathBuf,
}

impl Scene<'_> {
    fn prepared(&self, mut command: Command) -> Command {
        let aside = self.at.join("aside");
        command.current_dir(self.at.join("files")).env("ASIDE", &aside).env("PROGRAMS", &self.built.scripts);
        command.env("TMPDIR", &aside).stderr(Stdio::null());
        command
    }

    fn under(&self) -> io::Result<Command> {
        let mut command = quiet("env");
        under(&mut command, self.built, self.victim.mode, &self.at.join("aside"))?;
        Ok(self.prepared(command))
    }

    /// Starts the program, kills it after some steps, and sees what is left. `last` is what was acknowledged by then.
    fn kill(&self, number: u32, last: &mut u64) -> io::Result<Result<(), String>> {
        for directory in ["files", "aside"] {
            fs::create_dir_all(self.at.join(directory))?;
        }
        fs::write(self.at.join("acknowledged"), last.to_string())?;
        let mut command = self.under()?;
        command.args(["setsid", "sh", "-c", self.victim.program]).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut said = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?).lines();
        let Some(process) = said.next().transpose()? else { return Ok(Err("the program did not begin".to_owned())) };
        // After so many steps, and somewhere within the next ones.
        for _ in 0..number * 7919 % 5 {
            match said.next().transpose()? {
                Some(line) => *last = line.parse().map_err(io::Error::other)?,
                None => return Ok(Err("the program ended by itself".to_owned())),
            }
        }
        thread::sleep(Duration::from_micros(u64::from(number * 7919 % 997) * 100));
        // Now and then the one that serves is killed first.
        let serves = number % 3 == 2;
        if serves {
            child.kill()?;
        }
        // The program and what it started. It may have ended by then, told by its calls that nobody serves it.
        quiet("sh").args(["-c", "kill -s KILL -- \"-$0\"", &process]).stderr(Stdio::null()).status()?;
        for line in said {
            match line?.parse() {
                Ok(acknowledged) => *last = acknowledged,
                // What the killed tool did not say to its end.
                Err(_) => break,
            }
        }
        child.wait()?;
        self.judge(serves, last)
    }

    fn judge(&self, serves: bool, last: &mut u64) -> io::Result<Result<(), String>> {
        let boosts = self.victim.mode == Mode::Boost;
        let mut judge = if serves && !boosts {
            // The next run recovers the files.
            self.under()?
        } else {
            if serves {
                let mut replay = self.prepared(quiet("env"));
                believe(&mut replay, &self.at.join("aside"))?;
                let output = replay.arg(&self.built.untorn).arg("replay").arg(self.at.join("aside/log")).output()?;
                if !output.status.success() {
                    return Ok(Err(format!("the replay failed: {}", String::from_utf8_lossy(&output.stdout))));
                }
            }
            self.prepared(quiet("env"))
        };
        let output = judge.args(["sh", "-c", self.victim.judge]).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        // Under the tool, its report follows.
        let found = said.lines().next().and_then(|line| line.parse::<u64>().ok()).filter(|_| output.status.success());
        Ok(match found {
            Some(found) if found == *last || found == *last + 1 => {
                *last = found;
                Ok(())
            }
            Some(found) => Err(format!("STEP {last} WAS ACKNOWLEDGED, and {found} is the last there is")),
            None => {
                let said: String = said.trim().chars().take(MOST_WORDS).collect();
                Err(format!("AFTER STEP {last} THE JUDGE ENDED WITH {:?} AND SAID {said:?}", output.status.code()))
            }
        })
    }
}
