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
    Victim {
        name: "appender",
        mode: Mode::Boost,
        program: "exec python3 \"$PROGRAMS/kill_appender.py\"",
        judge: "python3 \"$PROGRAMS/kill_appender.py\" judge",
    },
    // Without untorn, or in mode boost, it would tear.
    Victim {
        name: "sqlite",
        mode: Mode::Atomic,
        program: "exec python3 \"$PROGRAMS/kill_sqlite.py\" OFF",
        judge: "python3 \"$PROGRAMS/kill_sqlite.py\" OFF judge",
    },
    Victim {
        name: "sqlite",
        mode: Mode::Boost,
        program: "exec python3 \"$PROGRAMS/kill_sqlite.py\" DELETE",
        judge: "python3 \"$PROGRAMS/kill_sqlite.py\" DELETE judge",
    },
    Victim {
        name: "sqlite-wal",
        mode: Mode::Boost,
        program: "exec python3 \"$PROGRAMS/kill_sqlite.py\" WAL",
        judge: "python3 \"$PROGRAMS/kill_sqlite.py\" WAL judge",
    },
];

/// Of what a judge says, so many characters are told.
const MOST_WORDS: usize = 300;

/// What is wrong after a kill.
struct Wrong {
    said: String,
    /// How many of the acknowledged steps are not there; 0 if it is not that.
    lost: u64,
}

impl Wrong {
    fn integrity(said: impl Into<String>) -> Self {
        Wrong { said: said.into(), lost: 0 }
    }
}

/// What came of the kills under one mode.
#[derive(Clone, Copy, Default)]
struct Tally {
    kills: u32,
    lost: u64,
    failures: u32,
}

impl Tally {
    fn add(&mut self, kills: u32, found: &Result<(), Wrong>) {
        self.kills += kills;
        if let Err(wrong) = found {
            self.lost += wrong.lost;
            self.failures += u32::from(wrong.lost == 0);
        }
    }

    fn words(self, mode: Mode) -> String {
        let Tally { kills, lost, failures } = self;
        format!("{}: {kills} kills, {lost} acknowledged writes lost, {failures} integrity failures", mode.name())
    }
}

/// The kills of one of `victims` programs, of so many in all.
fn share(kills: u32, victims: u32, number: u32) -> u32 {
    kills / victims + u32::from(number < kills % victims)
}

/// Deals so many kills out over the programs, and says last what came of them by mode. Whether nothing was lost.
pub(super) fn run(built: &Built, kills: u32, at: &Path) -> io::Result<bool> {
    let (mut all, mut atomic, mut boost) = (true, Tally::default(), Tally::default());
    let each = 3 * VICTIMS.len() as u32;
    if kills < each {
        println!("fewer than {each} kills: of some programs the tool that serves is never killed");
    }
    for (place, victim) in (0..).zip(VICTIMS) {
        let kills = share(kills, VICTIMS.len() as u32, place);
        let at = at.join(format!("kills-{}-{}", victim.name, victim.mode.name()));
        // Of an earlier run that was kept.
        let _ = fs::remove_dir_all(&at);
        let scene = Scene { built, victim, at };
        let (mut last, mut done, mut found) = (0, 0, Ok(()));
        while done < kills && found.is_ok() {
            found = scene.kill(done, &mut last)?;
            done += 1;
        }
        // The first kill may come before the first step.
        if found.is_ok() && done > 1 && last == 0 {
            found = Err(Wrong::integrity("nothing was acknowledged, so nothing was judged"));
        }
        let said = found.as_ref().err().map_or("nothing lost", |wrong| &wrong.said);
        println!("{:20} {done} kills under {}, {last} steps acknowledged: {said}", victim.name, victim.mode.name());
        if victim.mode == Mode::Atomic { &mut atomic } else { &mut boost }.add(done, &found);
        all &= found.is_ok();
    }
    println!("{}; {}", atomic.words(Mode::Atomic), boost.words(Mode::Boost));
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
    fn kill(&self, number: u32, last: &mut u64) -> io::Result<Result<(), Wrong>> {
        for directory in ["files", "aside"] {
            fs::create_dir_all(self.at.join(directory))?;
        }
        fs::write(self.at.join("acknowledged"), last.to_string())?;
        let mut command = self.under()?;
        command.args(["setsid", "sh", "-c", self.victim.program]).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut said = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?).lines();
        let Some(process) = said.next().transpose()? else {
            return Ok(Err(Wrong::integrity("the program did not begin")));
        };
        // After so many steps, and somewhere within the next ones.
        for _ in 0..number * 7919 % 5 {
            match said.next().transpose()? {
                Some(line) => *last = line.parse().map_err(io::Error::other)?,
                None => return Ok(Err(Wrong::integrity("the program ended by itself"))),
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

    fn judge(&self, serves: bool, last: &mut u64) -> io::Result<Result<(), Wrong>> {
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
                    let said = String::from_utf8_lossy(&output.stdout);
                    return Ok(Err(Wrong::integrity(format!("the replay failed: {said}"))));
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
            Some(found) => {
                let said = format!("STEP {last} WAS ACKNOWLEDGED, and {found} is the last there is");
                Err(Wrong { said, lost: last.saturating_sub(found) })
            }
            None => {
                let said: String = said.trim().chars().take(MOST_WORDS).collect();
                let code = output.status.code();
                Err(Wrong::integrity(format!("AFTER STEP {last} THE JUDGE ENDED WITH {code:?} AND SAID {said:?}")))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kill_is_dealt_to_somebody_and_every_failure_is_counted() {
        for kills in [0, 1, 7, 8, 1000] {
            assert_eq!((0..7).map(|number| share(kills, 7, number)).sum::<u32>(), kills);
        }
        let mut tally = Tally::default();
        tally.add(3, &Ok(()));
        tally.add(2, &Err(Wrong { said: String::new(), lost: 4 }));
        tally.add(1, &Err(Wrong::integrity("torn")));
        let said = "boost: 6 kills, 4 acknowledged writes lost, 1 integrity failures";
        assert_eq!(tally.words(Mode::Boost), said);
    }
}
