//! The command line: one table of verbs, options and examples. It also generates the help, completions and man pages.

mod backup;
mod bench;
mod commits;
mod demo;
mod file;
mod log;
mod mount;
mod protect;
mod prune;
mod region;
mod replay;
mod replicate;
mod run;
mod stats;
mod torture;
mod words;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(crate) use backup::{Backup, Restore};
pub(crate) use bench::{ALL as ALL_BENCHMARKS, Bench};
pub(crate) use commits::{Commits, Watch};
pub(crate) use demo::{Demo, DemoWriter, Writer};
pub(crate) use file::{Apply, Create, Keep, Look, Read, Recover, Resize, Settle, Sharing, Write};
pub(crate) use log::Log;
pub(crate) use mount::{Mount, Unmount};
pub(crate) use protect::{Protect, Protection, Repair, Scrub};
pub(crate) use prune::Prune;
pub(crate) use region::{
    Create as CreateRegion, List as ListRegions, Named as NamedRegion, Region, Verb as RegionVerb,
};
pub(crate) use replay::{CacheLog, CacheLogVerb, LogInfo, Replay, TrustReplay};
pub(crate) use replicate::{At, Follow, Guarded, KeyFile, Replicas, Replicate, SyncTo, TakeOver};
pub(crate) use run::{Mode as RunMode, Run, RunLog};
pub(crate) use stats::Stats;
pub(crate) use torture::{Torture, TortureVerify, TortureWriter};

/// Memory-mapped files that never tear.
///
/// After a crash, an untorn file holds exactly the state of its last commit, never a mixture of two states. This works
/// on ordinary disks and on persistent memory, with a stock kernel and without root.
#[derive(Debug, Parser)]
#[command(name = "untorn", version, after_help = AFTER)]
pub(crate) struct Cli {
    /// The verb to run.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const AFTER: &str = "\
Exit codes:
  0   done, and the file is clean
  1   the file needs recovery or a decision, or a check failed
  2   the file is corrupt beyond repair
  64  usage error: the request is wrong
  74  I/O error: the system refused (no such file, no space, no permission, in use)

Environment:
  UNTORN_LOG           log filter for standard error, for example UNTORN_LOG=debug
  UNTORN_REGION_STORE  default store for `untorn region`
  NO_COLOR             turns colours off

Start here:
  untorn demo
  untorn doctor /var/lib/mydata";

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show that plain mmap tears files and untorn does not. Takes under 20 seconds.
    ///
    /// Kills writing processes and simulates power cuts, then counts the torn files of plain mmap and of untorn.
    #[command(after_help = "Exit codes: 0 untorn kept its promise; 1 it did not (please report this); 64 usage; 74 \
        I/O error\n\nExample:\n  untorn demo")]
    Demo(Demo),
    /// Report what untorn can guarantee at a path, which engine it would choose there, and why.
    ///
    /// For a URL, try whether the store keeps the conditions that a replica needs. The trial writes one object and
    /// removes it.
    #[command(
        after_help = "Exit codes: 0 a commit there survives a power cut, or the store is fit for replicas; 1 not so, \
        or no file can be changed there; 64 usage; 74 I/O error\n\n\
        Examples:\n  untorn doctor /var/lib/mydata\n  untorn doctor file:///mnt/usb/ledger"
    )]
    Doctor(Doctor),
    /// Create a zero-filled file for atomic writes.
    #[command(after_help = "Exit codes: 0 created; 64 usage; 74 I/O error, for example the file exists\n\n\
        Examples:\n  untorn create ledger --len 64M\n  \
        untorn create ledger --len 64M --engine hybrid-log --keep-sidecar   # for many writes per commit")]
    Create(Create),
    /// Show a file's state: engine, length, commit number, sidecar, commit log, redundancy.
    ///
    /// For a directory, list the sidecars of removed files in it, as `untorn prune` does.
    #[command(after_help = "Exit codes: 0 clean, or in use by another process; 1 the file needs recovery or a \
        decision; 2 corrupt; 64 usage; 74 I/O error\n\nExample:\n  untorn info ledger --json")]
    Info(Look),
    /// Show figures of files: commits, log use, checkpoint lag, dead space, snapshots.
    ///
    /// A program that has a file open is asked for them; it must run under the same user, or this command as root. Any
    /// other file is opened read-only for a moment. `--prometheus` prints what the textfile collector of the node
    /// exporter reads.
    #[command(
        after_help = "Exit codes: 0 done, also if a program does not tell the figures of its file; 64 usage; 74 \
        I/O error\n\nExamples:\n  untorn stats ledger --watch=5\n  \
        untorn stats ledger index --prometheus > /var/lib/node_exporter/untorn.prom"
    )]
    Stats(Stats),
    /// Verify a file without changing it.
    ///
    /// Checks the sidecar's checksums and reads every byte. `untorn scrub` checks the data of a protected file.
    #[command(after_help = "Exit codes: 0 every check passed; 1 the file needs recovery or a decision; 2 corrupt; 64 \
        usage; 74 I/O error, or in use by another process\n\n\
        Example:\n  untorn check ledger && echo sound")]
    Check(Look),
    /// Write standard input into a file as one atomic commit.
    ///
    /// The write is durable when the command exits. A write never extends the file: use `untorn resize` first.
    #[command(
        after_help = "Exit codes: 0 committed; 1 the file needs a decision; 2 corrupt; 64 usage, or past the end \
        of the file (nothing was written); 74 I/O error\n\n\
        Example:\n  printf hello | untorn write ledger --offset 4090"
    )]
    Write(Write),
    /// Copy a byte range of a file's last commit to standard output, also while a program has the file open.
    #[command(
        after_help = "Exit codes: 0 done; 1 the file needs recovery or a decision; 2 corrupt; 64 usage, or past \
        the end of the file; 74 I/O error\n\nExample:\n  untorn read ledger --offset 4090 --len 5"
    )]
    Read(Read),
    /// Apply many writes from standard input as one transaction, all or nothing.
    ///
    /// Each line is one write: {"offset":N,"hex":"..."}. Where two writes overlap, the later line wins. Blank lines are
    /// skipped.
    #[command(after_help = "Exit codes: 0 committed; 1 the file needs a decision; 2 corrupt; 64 usage, a malformed \
        line, or a write past the end of the file; 74 I/O error. With 64, nothing was applied.\n\n\
        Example:\n  \
        printf '{\"offset\":0,\"hex\":\"ff00\"}\\n{\"offset\":8192,\"hex\":\"01\"}\\n' | untorn apply ledger")]
    Apply(Apply),
    /// Grow or shrink a file atomically. New bytes are zero.
    #[command(after_help = "Exit codes: 0 done; 1 the file needs a decision; 2 corrupt; 64 usage; 74 I/O error\n\n\
        Example:\n  untorn resize ledger --len 128M")]
    Resize(Resize),
    /// Bring a file to its last committed state. The command is idempotent.
    #[command(after_help = "Exit codes: 0 the file is clean; 1 the file and its sidecar disagree, see --trust and \
        --adopt, or bytes of a file that was cut short are lost; 2 corrupt; 64 usage; 74 I/O error\n\n\
        Example:\n  untorn recover ledger")]
    Recover(Recover),
    /// Make a file plain that a crash or --keep-sidecar left with a sidecar.
    ///
    /// Deploys all committed data and removes the sidecar. Any program may read, write and copy the file then. Closing
    /// a file does the same by default.
    #[command(
        after_help = "Exit codes: 0 the file is plain; 1 the file needs a decision; 2 corrupt; 64 usage; 74 I/O \
        error\n\nExample:\n  untorn settle ledger && rsync ledger host:"
    )]
    Settle(Settle),
    /// Print the commits of a file, each once and in order, from its commit log.
    ///
    /// Works while another process has the file open, and when it has gone. --start gives the file a log, which every
    /// later opening keeps up; --stop gives it up. Each line of --json has the number of a commit, that of the commit
    /// before it, its time, the length of the file and the changed ranges.
    ///
    /// A consumer (--consumer) has a name and a position that outlives it: each commit is printed at least once, by one
    /// process at a time. `untorn info` shows how far each is.
    #[command(
        after_help = "Exit codes: 0 all commits were printed; 1 commits are missing: the message names the oldest \
        that one can go on from, or --forget found no consumer; 2 corrupt; 64 usage, or --from above the last \
        commit; 74 I/O error\n\n\
        Examples:\n  untorn commits ledger --start 256M\n  untorn commits ledger --from 4711 --follow --json\n  untorn \
        commits ledger --consumer replica --follow --json --bytes | apply-to-replica"
    )]
    Commits(Commits),
    /// Print a line for each commit of a file from now on, also while another process has it open.
    #[command(
        after_help = "Exit codes: 0 interrupted; 1 the file has no commit log, or commits are missing; 64 usage; 74 \
        I/O error\n\nExample:\n  untorn watch ledger"
    )]
    Watch(Watch),
    /// Back a file up at one commit, while programs use it.
    ///
    /// The backup is a plain file, with checksums in DEST.manifest. It has the last commit, or a later one if the file
    /// was just being committed, and nothing of the open epoch. The program that has the file open goes on; it must run
    /// under the same user, or this command as root. Zeros become holes, and holes are not read.
    ///
    /// With --base, DEST is an increment: it has the chunks whose checksums differ from those of an earlier backup,
    /// which may be an increment too. With --since, it has the chunks that commits changed after the commit of an
    /// earlier backup, by the file's commit log: only they are read, and no earlier backup need be at hand. The earlier
    /// one must have been made after the log began (`untorn create --commit-log`, `untorn commits --start`). Ctrl-C
    /// leaves nothing; with --resume it leaves what is copied, and the same command goes on.
    #[command(
        after_help = "Exit codes: 0 the backup is durable; 1 the file needs a decision; 2 corrupt; 64 usage; 74 \
        I/O error, DEST exists, or the program that has the file open serves no snapshots\n\n\
        Examples:\n  untorn backup ledger /backups/ledger.monday --verify\n  \
        untorn backup ledger /backups/ledger.tuesday --base /backups/ledger.monday\n  \
        untorn backup ledger /backups/ledger.wednesday --since 42\n  \
        untorn backup ledger - | zstd > ledger.zst"
    )]
    Backup(Backup),
    /// Make a file of a backup or a replica, whole or not at all.
    ///
    /// Increments follow their full backup, in the order in which they were made, of either kind. Every byte is
    /// compared with a manifest before the file gets its name. The file has the permissions of the backed-up one, as
    /// far as the umask allows, and its commits go on above the number that the backup has.
    ///
    /// A URL names a replica, which `untorn replicate` made. The file has its last commit, or the one that --at names,
    /// and is readable and writable for this user alone.
    #[command(after_help = replicate::AFTER_RESTORE)]
    Restore(Restore),
    /// Ship the commits of a file to a replica in a store, from which `untorn restore` makes the file again.
    ///
    /// The file needs a commit log (`untorn commits FILE --start 256M`), and any program may have it open. The first
    /// time a snapshot is shipped, and later what was committed since. One writer at a time owns a replica: a file that
    /// lacks commits of the replica is refused, and so is a store that ignores conditions. Ctrl-C ships what there is.
    #[command(after_help = replicate::AFTER_REPLICATE)]
    Replicate(Replicate),
    /// Keep a local copy of a replica up to date, commit by commit.
    ///
    /// FILE is restored if it is not there. Otherwise it must have been restored from this replica, or have followed
    /// it: a file with other commits is refused. Programs may read it meanwhile (`untorn read`, snapshots), and see
    /// whole commits only; none may write it. A kill at any time leaves a file that goes on. A line tells what each
    /// poll found, and how old the oldest commit in it was then.
    #[command(after_help = replicate::AFTER_FOLLOW)]
    Follow(Follow),
    /// Take a replica over, bring FILE up to date, and run a program as its writer.
    ///
    /// FILE is restored if it is not there; a copy that followed the replica, or the file of the last owner, goes on
    /// from where it is. The owner before acknowledges nothing any more from then on. With --wait, FILE follows until
    /// the owner hands the replica over. PROGRAM runs under `untorn run` for FILE, so that its syncs are commits. That
    /// needs FUSE, and is tried before the replica is taken. With --plain PROGRAM runs by itself, and uses FILE through
    /// the library.
    ///
    /// Every commit is shipped in the background. When PROGRAM has ended, the rest is shipped, and the replica is
    /// handed over. If another writer takes the replica over, PROGRAM is ended: by SIGTERM, and by SIGKILL after
    /// --grace.
    #[command(after_help = replicate::AFTER_TAKE_OVER)]
    TakeOver(TakeOver),
    /// Show what a replica has: its owner, its snapshots, how much it stores.
    #[command(after_help = replicate::AFTER_REPLICAS)]
    Replicas(Replicas),
    /// List or remove sidecars of removed files.
    ///
    /// Lists what stands in `.untorn` of a directory and belongs to no file there, with size and age: sidecars and
    /// redundancy of removed files, and those that untorn set aside. Nothing is removed without --remove. It never
    /// lists what belongs to a file of the directory or what a process has open. A file that was moved to another
    /// directory without its sidecar may need it there: look before you remove.
    #[command(after_help = "Exit codes: 0 done; 64 usage; 74 I/O error\n\n\
        Examples:\n  untorn prune /var/lib/mydata\n  untorn prune /var/lib/mydata --remove --older-than 30d")]
    Prune(Prune),
    /// Add checksums and parity to a file, or bring existing ones up to date.
    ///
    /// The checksums and parity are stored beside the file, in `.untorn`. A page is covered when both match its bytes.
    #[command(after_help = "Exit codes: 0 every page is covered; 1 pages were modified outside untorn, and their \
        checksums were recomputed; 2 pages are damaged, and parity cannot restore them; 64 usage; 74 I/O error\n\n\
        Examples:\n  untorn protect table.db\n  untorn protect table.db --stripe 8 --layout spread")]
    Protect(Protect),
    /// Remove a file's checksums and parity. The file itself is not changed.
    #[command(after_help = "Exit codes: 0 done, also if the file was not protected; 1 the file needs a decision; 2 \
        corrupt; 64 usage; 74 I/O error\n\nExample:\n  untorn unprotect table.db")]
    Unprotect(Protection),
    /// Compare a protected file with its checksums and parity, reading from the device instead of the page cache.
    #[command(after_help = "Exit codes: 0 nothing differs; 1 something differs; 2 corrupt; 64 usage; 74 I/O error. \
        With --repair, those of `untorn repair`.\n\n\
        Examples:\n  untorn scrub table.db --rate 50M\n  untorn scrub table.db --repair")]
    Scrub(Scrub),
    /// Restore damaged pages of a protected file from parity.
    ///
    /// If parity cannot restore a page, repair changes nothing and lists the lost bytes. A file that was not closed
    /// cleanly is recovered first. Pages that were modified outside untorn stay as they are, unless --force is given:
    /// accept them with `untorn protect`, or take them back from parity with --force.
    #[command(after_help = "Exit codes: 0 the file is whole; 1 pages were modified outside untorn and left alone, or \
        parts of the redundancy could not be rebuilt; 2 pages are lost; 64 usage; 74 I/O error\n\n\
        Examples:\n  untorn repair table.db\n  untorn repair table.db --force")]
    Repair(Repair),
    /// Manage the named regions of a store.
    #[command(after_help = "Exit codes: 0 done; 2 a region is corrupt; 64 usage; 74 I/O error\n\n\
        Examples:\n  untorn region create data.store ledger --pages 16\n  untorn region list data.store")]
    Region(Region),
    /// Apply the logged writes of a write cache to their files. The command is idempotent.
    #[command(after_help = "Exit codes: 0 the logs are empty; 1 a log keeps writes, or is not trusted; 2 a log is \
        corrupt; 64 usage; 74 I/O error. With --list, 1 also means that writes are waiting to be replayed.\n\n\
        Examples:\n  untorn replay /fast/untorn.log\n  untorn replay --list /fast/logs\n  \
        untorn replay --trust file /fast/untorn.log")]
    Replay(Replay),
    /// Inspect a write cache's log.
    #[command(after_help = "Exit codes: those of `untorn log info`\n\nExample:\n  untorn log info /fast/untorn.log")]
    Log(CacheLog),
    /// Run an unmodified program with atomic file updates, or with a fast log in front of its files.
    ///
    /// The run mounts a file system of its own over the directories that --match names. Only the program and its
    /// children see it. `untorn doctor` says what a machine needs for that.
    ///
    /// With `--mode atomic`, all changes of a managed file since its last sync become durable together, or not at all.
    /// They become durable at the program's next fsync, or a moment after the file's last close.
    ///
    /// With `--mode boost`, writes go to the log and to the files. A write is durable in the log when its call returns,
    /// or at the next fsync (`--durability`); the files are synced later.
    ///
    /// After a crash, `untorn replay LOG` or the next run with the same log applies the missing writes. Don't use the
    /// files before that.
    #[command(after_help = "Exit codes: the program's own, or 128 plus the number of the signal that killed it; 64 \
        usage; 74 I/O error, no mount, or untorn failed to write a file or its report\n\n\
        Examples:\n  untorn run --match '*.db' -- sqlite3 app.db\n  \
        untorn run --match 'data/**' --stats -- python3 job.py\n  \
        untorn run --mode boost --log /fast/untorn.log --match 'data/**' -- python3 job.py")]
    Run(Run),
    /// Mount a directory so that unmodified programs update its files atomically, or with a fast log in front of them.
    ///
    /// The files of SOURCE appear on MOUNTPOINT, for every program: shell tools, static binaries, databases that map
    /// their files. Root's mount serves every user, with the owners and permissions of SOURCE; an ordinary user's mount
    /// serves that user alone. Programs use the files below MOUNTPOINT only while the mount is there.
    ///
    /// With `--mode atomic`, all changes of a file since its last commit become durable together, or not at all. A sync
    /// commits, and so does the last close. With `--mode boost`, each write is in the log when its call returns, and
    /// durable by then or at the next sync. After a crash, the next mount with the same log applies what is missing in
    /// SOURCE, or `untorn replay LOG`. Don't use the files of SOURCE before that.
    ///
    /// SIGINT and SIGTERM remove the mount as `untorn unmount` does; the first one lets programs that still use it go
    /// on, the second one ends it. `untorn doctor` says what this machine lacks for a mount.
    #[command(after_help = "Exit codes: 0 the mount answers; with --foreground, it was removed and SOURCE has all \
        writes; 1 the log needs a decision; 2 the log is corrupt; 64 usage; 74 I/O error, or the machine refuses the \
        mount\n\n\
        Examples:\n  untorn mount /var/lib/app.files /var/lib/app\n  \
        untorn mount --mode boost --log /fast/app.log /srv/app.files /srv/app\n  \
        untorn mount --foreground --match '*.db' ~/data.files ~/data")]
    Mount(Mount),
    /// Remove a mount of `untorn mount`.
    ///
    /// All written data has reached untorn when the command exits. A mount in use is not removed without --lazy: the
    /// error names the processes that use it.
    #[command(after_help = "Exit codes: 0 removed; 64 usage, for example nothing is mounted there; 74 I/O error, or \
        the mount is in use\n\n\
        Examples:\n  untorn unmount /var/lib/app\n  untorn unmount --lazy /var/lib/app")]
    Unmount(Unmount),
    /// Crash-test this machine: kill writers or cut a disk's power, then verify every commit.
    #[command(
        after_help = "Exit codes: 0 no violation; 1 a violation, or nothing was tested; 64 usage; 74 I/O error, \
        or a tool or privilege is missing\n\n\
        Examples:\n  untorn torture --seconds 60\n  untorn torture --engine hybrid-log\n  \
        untorn torture --engine passthrough   # not atomic: must find violations\n  \
        sudo untorn torture --medium block --images 500"
    )]
    Torture(Torture),
    /// Run a benchmark: untorn and its alternatives, measured in turn in the same run.
    #[command(
        after_help = "Exit codes: 0 done; 1 a database lacks what its transactions did, or a benchmark of `all` \
        failed; 64 usage; 74 I/O error\n\n\
        Examples:\n  untorn bench atomic-write --json\n  \
        UNTORN_ASSUME_PMEM=1 untorn bench atomic-write --dir /dev/shm --size 64,4K\n  \
        untorn bench atomic-commit --engine hybrid-log --sync-every 100\n  \
        untorn bench commit-time --dirty 10,100000 --len 1G\n  \
        untorn bench map-commit --dirty 1,1000\n  \
        untorn bench region-ops --dirty 64 --json\n  \
        untorn bench hybrid-policy --reads 0,60,100\n  \
        untorn bench idle --engine hybrid-log --seconds 10\n  \
        untorn bench updates --size 8,100,4K --plot updates.png\n  \
        untorn bench recovery-time --dirty 256,65536 --threads 1,2\n  \
        untorn bench all --quick --out results\n  \
        untorn bench ycsb --threads 1,4 --system untorn,wal   # in a build with the feature sqlite"
    )]
    Bench(Box<Bench>),
    /// Print completions for a shell.
    #[command(after_help = "Exit codes: 0 done; 64 usage; 74 I/O error\n\n\
        Example:\n  untorn completions bash > /etc/bash_completion.d/untorn")]
    Completions(Completions),
    /// Print the man page, or write one page per verb into a directory.
    #[command(after_help = "Exit codes: 0 done; 64 usage; 74 I/O error\n\n\
        Examples:\n  untorn man | man -l -\n  untorn man --out ./man")]
    Man(Man),
    /// The process that `demo` kills.
    #[command(hide = true)]
    DemoWriter(DemoWriter),
    /// The process that `torture` kills.
    #[command(hide = true)]
    TortureWriter(TortureWriter),
    /// Verifies one run of that process, for rigs that cut the power of a machine.
    #[command(hide = true)]
    TortureVerify(TortureVerify),
    /// The program of `take-over`, which ends with it.
    #[command(hide = true)]
    Guarded(Guarded),
    /// The process that mounts in namespaces of its own.
    #[command(hide = true)]
    MountStage,
    /// The process that opens files in a mount for its server.
    #[command(hide = true)]
    MountPull,
}

/// The format of a report.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Form {
    /// Print one JSON object on standard output instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// A file or directory, or the URL of a store for replicas.
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) key: KeyFile,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell to complete for.
    pub(crate) shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Write untorn.1 and one page per verb into this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_has_an_example() {
        for verb in Cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let after = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains(&format!("untorn {}", verb.get_name())), "{} has no example", verb.get_name());
        }
    }
}
