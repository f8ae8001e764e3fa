//! Programs that report their acknowledged steps, and the verdict on their files after a crash.

use std::process::Output;

use super::outcome::Mode;

/// A program that prints its process number, then the number of each acknowledged step; and a judge that prints the
/// last number in the files, or fails.
pub(crate) struct Victim {
    pub(crate) name: &'static str,
    pub(crate) mode: Mode,
    pub(crate) program: &'static str,
    pub(crate) judge: &'static str,
    /// Whether it syncs before it acknowledges. If not, only its writes and closes can make a step durable.
    pub(crate) syncs: bool,
    /// The maximum number of steps under way at once.
    pub(crate) in_flight: u64,
}

const ROCKSDB: Victim = Victim {
    name: "rocksdb",
    mode: Mode::Boost,
    program: "exec sh \"$PROGRAMS/kill_rocksdb.sh\"",
    judge: "sh -e \"$PROGRAMS/judge_rocksdb.sh\"",
    syncs: false,
    in_flight: 1,
};

/// A program without syncs: it must lose something in a power cut.
pub(crate) const CARELESS: Victim = Victim {
    name: "sqlite-unsynced",
    mode: Mode::Bare,
    program: "SYNCHRONOUS=OFF exec python3 \"$PROGRAMS/kill_sqlite.py\" WAL",
    judge: "python3 \"$PROGRAMS/kill_sqlite.py\" WAL judge",
    syncs: false,
    in_flight: 1,
};

pub(crate) const VICTIMS: &[Victim] = &[
    ROCKSDB,
    // Without untorn, or in mode boost, its steps could tear.
    Victim {
        name: "writer",
        mode: Mode::Atomic,
        program: "exec python3 \"$PROGRAMS/kill_writer.py\"",
        judge: "python3 \"$PROGRAMS/kill_writer.py\" judge",
        syncs: true,
        in_flight: 1,
    },
    // The same for stores to a mapping: only syncs order their write-back.
    Victim {
        name: "mapper",
        mode: Mode::Atomic,
        program: "exec python3 \"$PROGRAMS/kill_mapper.py\"",
        judge: "python3 \"$PROGRAMS/kill_mapper.py\" judge",
        syncs: true,
        in_flight: 1,
    },
    Victim {
        name: "appender",
        mode: Mode::Boost,
        program: "exec python3 \"$PROGRAMS/kill_appender.py\"",
        judge: "python3 \"$PROGRAMS/kill_appender.py\" judge",
        syncs: true,
        in_flight: 1,
    },
    // Creates names without syncing them. (`-B` keeps Python from writing files beside its scripts.)
    Victim {
        name: "maker",
        mode: Mode::Boost,
        program: "exec python3 -B \"$PROGRAMS/kill_maker.py\"",
        judge: "python3 -B \"$PROGRAMS/kill_maker.py\" judge",
        syncs: false,
        in_flight: 1,
    },
    // Syncs directories, which the log makes unnecessary in some cases.
    Victim {
        name: "keeper",
        mode: Mode::Boost,
        program: "exec python3 -B \"$PROGRAMS/kill_keeper.py\"",
        judge: "python3 -B \"$PROGRAMS/kill_keeper.py\" judge",
        syncs: true,
        in_flight: 1,
    },
    // Without untorn, or in mode boost, it could tear.
    Victim {
        name: "sqlite",
        mode: Mode::Atomic,
        program: "exec python3 \"$PROGRAMS/kill_sqlite.py\" OFF",
        judge: "python3 \"$PROGRAMS/kill_sqlite.py\" OFF judge",
        syncs: true,
        in_flight: 1,
    },
    Victim {
        name: "sqlite",
        mode: Mode::Boost,
        program: "exec python3 \"$PROGRAMS/kill_sqlite.py\" DELETE",
        judge: "python3 \"$PROGRAMS/kill_sqlite.py\" DELETE judge",
        syncs: true,
        in_flight: 1,
    },
    Victim {
        name: "sqlite-wal",
        mode: Mode::Boost,
        program: "exec python3 \"$PROGRAMS/kill_sqlite.py\" WAL",
        judge: "python3 \"$PROGRAMS/kill_sqlite.py\" WAL judge",
        syncs: true,
        in_flight: 1,
    },
];

/// The maximum number of characters shown of a judge's output.
const MOST_WORDS: usize = 300;

/// A violation found after a crash.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) said: String,
    /// The number of lost acknowledged steps; 0 for another violation.
    pub(crate) lost: u64,
}

impl Wrong {
    pub(crate) fn integrity(said: impl Into<String>) -> Self {
        Wrong { said: said.into(), lost: 0 }
    }
}

/// The last step that the judge found, if it is allowed: not before `acknowledged`, and not after `most`.
pub(crate) fn judged(output: &Output, acknowledged: u64, most: u64) -> Result<u64, Wrong> {
    let said = String::from_utf8_lossy(&output.stdout);
    // Under `untorn run`, its report follows.
    let found = said.lines().next().and_then(|line| line.parse::<u64>().ok()).filter(|_| output.status.success());
    match found {
        Some(found) if (acknowledged..=most).contains(&found) => Ok(found),
        Some(found) => {
            let said = format!("STEP {acknowledged} WAS ACKNOWLEDGED, but step {found} is the last one in the files");
            Err(Wrong { said, lost: acknowledged.saturating_sub(found) })
        }
        None => {
            let said: String = said.trim().chars().take(MOST_WORDS).collect();
            let code = output.status.code();
            Err(Wrong::integrity(format!(
                "AFTER STEP {acknowledged} THE JUDGE FAILED WITH CODE {code:?} AND PRINTED {said:?}"
            )))
        }
    }
}

/// The results of the crashes under one mode.
#[derive(Clone, Copy, Default)]
struct Tally {
    crashes: u32,
    lost: u64,
    failures: u32,
}

impl Tally {
    fn add(&mut self, crashes: u32, wrong: Option<&Wrong>) {
        self.crashes += crashes;
        if let Some(wrong) = wrong {
            self.lost += wrong.lost;
            self.failures += u32::from(wrong.lost == 0);
        }
    }

    /// The tally as text; `called` names the crashes.
    fn words(self, mode: Mode, called: &str) -> String {
        let Tally { crashes, lost, failures } = self;
        format!("{}: {crashes} {called}, {lost} acknowledged writes lost, {failures} integrity failures", mode.name())
    }
}

/// The results under each mode that promises something.
#[derive(Default)]
pub(crate) struct Tallies(Vec<(Mode, Tally)>);

impl Tallies {
    pub(crate) fn add(&mut self, mode: Mode, crashes: u32, wrong: Option<&Wrong>) {
        if mode == Mode::Bare {
            return;
        }
        let at = self.0.iter().position(|(has, _)| *has == mode).unwrap_or_else(|| {
            self.0.push((mode, Tally::default()));
            self.0.len() - 1
        });
        self.0[at].1.add(crashes, wrong);
    }

    pub(crate) fn words(&self, called: &str) -> String {
        let mut all = self.0.clone();
        all.sort_by_key(|(mode, _)| mode.name());
        all.iter().map(|(mode, tally)| tally.words(*mode, called)).collect::<Vec<_>>().join("; ")
    }
}

/// The share of one of `arms` programs in the total number of crashes.
pub(crate) fn share(crashes: u32, arms: u32, number: u32) -> u32 {
    crashes / arms + u32::from(number < crashes % arms)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn all_crashes_are_dealt_out_and_all_failures_counted() {
        for crashes in [0, 1, 7, 8, 1000] {
            assert_eq!((0..7).map(|number| share(crashes, 7, number)).sum::<u32>(), crashes);
        }
        let mut tally = Tally::default();
        tally.add(3, None);
        tally.add(2, Some(&Wrong { said: String::new(), lost: 4 }));
        tally.add(1, Some(&Wrong::integrity("torn")));
        let said = "boost: 6 kills, 4 acknowledged writes lost, 1 integrity failures";
        assert_eq!(tally.words(Mode::Boost, "kills"), said);
    }

    #[test]
    fn a_verdict_must_lie_between_acknowledged_and_under_way() {
        let output = |said: &str, code| Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: said.into(),
            stderr: Vec::new(),
        };
        let judge = |said: &str, code| judged(&output(said, code), 4, 7).map_err(|wrong| wrong.lost);
        assert_eq!([4, 5, 6, 7].map(|found| judge(&format!("{found}\n{{}}\n"), 0)), [4, 5, 6, 7].map(Ok));
        assert_eq!(judge("1\n", 0), Err(3));
        assert_eq!(judge("8\n", 0), Err(0));
        assert_eq!(judge("5\n", 1), Err(0));
        assert_eq!(judge("", 0), Err(0));
    }
}
