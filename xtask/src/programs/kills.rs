//! Kills programs repeatedly at arbitrary instants: no acknowledged step may be lost.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::outcome::{Mode, believe, under};
use super::victims::{Tallies, Victim, Wrong, judged, share};
use super::{Built, quiet};

/// Spreads the kills over the programs, and prints the tally of each mode last. Returns whether nothing was lost.
pub(crate) fn run(built: &Built, victims: &'static [Victim], kills: u32, at: &Path) -> io::Result<bool> {
    let (mut all, mut tallies) = (true, Tallies::default());
    let each = 3 * victims.len() as u32;
    if kills < each && victims.iter().any(|victim| victim.mode == Mode::Boost) {
        println!("fewer than {each} kills: for some programs, `untorn run` itself is never killed");
    }
    for (place, victim) in (0..).zip(victims) {
        let kills = share(kills, victims.len() as u32, place);
        let at = at.join(format!("kills-{}-{}", victim.name, victim.mode.name()));
        // Remove the results of an earlier run.
        let _ = fs::remove_dir_all(&at);
        let scene = Scene { built, victim, at };
        let (mut last, mut done, mut found) = (0, 0, Ok(()));
        while done < kills && found.is_ok() {
            found = scene.kill(done, &mut last)?;
            done += 1;
        }
        // The first kill may hit before the first step.
        if found.is_ok() && done > 1 && last == 0 {
            found = Err(Wrong::integrity("no step was acknowledged, so nothing was checked"));
        }
        let said = found.as_ref().err().map_or("nothing lost", |wrong| &wrong.said);
        println!("{:20} {done} kills under {}, {last} steps acknowledged: {said}", victim.name, victim.mode.name());
        tallies.add(victim.mode, done, found.as_ref().err());
        all &= found.is_ok();
    }
    println!("{}", tallies.words("kills"));
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
        command.env("TMPDIR", &aside).envs(self.built.environment.iter().cloned()).stderr(Stdio::null());
        command
    }

    fn under(&self) -> io::Result<Command> {
        let mut command = quiet("env");
        under(&mut command, self.built, self.victim.mode, (&self.at.join("aside"), "16M"))?;
        Ok(self.prepared(command))
    }

    /// Starts the program, kills it after some steps, and checks its files. `last` is the last acknowledged step.
    fn kill(&self, number: u32, last: &mut u64) -> io::Result<Result<(), Wrong>> {
        for directory in ["files", "aside"] {
            fs::create_dir_all(self.at.join(directory))?;
        }
        let mut command = self.under()?;
        command.args(["setsid", "sh", "-c", self.victim.program]).env("LAST", last.to_string()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut said = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?).lines();
        let Some(process) = said.next().transpose()? else {
            return Ok(Err(Wrong::integrity("the program did not start")));
        };
        // Kill after this many steps, within one of the next ones.
        for _ in 0..number * 7919 % 5 {
            match said.next().transpose()? {
                Some(line) => *last = line.parse::<u64>().map_err(io::Error::other)?.max(*last),
                None => return Ok(Err(Wrong::integrity("the program exited by itself"))),
            }
        }
        thread::sleep(Duration::from_micros(u64::from(number * 7919 % 997) * 100));
        // In every third kill, kill `untorn run` first. In mode atomic, always: what a killed program wrote stays, and
        // only the end of its server takes an epoch back.
        let serves = match self.victim.mode {
            Mode::Atomic => true,
            Mode::Vfs => false,
            _ => number % 3 == 2,
        };
        if serves {
            child.kill()?;
        }
        // Kill the program and its children. It may have exited already, because its calls fail without the server.
        quiet("sh").args(["-c", "kill -s KILL -- \"-$0\"", &process]).stderr(Stdio::null()).status()?;
        for line in said {
            match line?.parse() {
                Ok(acknowledged) => *last = (*last).max(acknowledged),
                // The report that the killed tool did not finish.
                Err(_) => break,
            }
        }
        child.wait()?;
        self.judge(serves, *last, last)
    }

    fn judge(&self, serves: bool, certain: u64, last: &mut u64) -> io::Result<Result<(), Wrong>> {
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
        Ok(judged(&output, certain, *last + self.victim.in_flight).map(|found| *last = found))
    }
}
