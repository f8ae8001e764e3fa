//! The commands for the guest's shell.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::image::FileSystem;
use super::vm::Memory;
use crate::error::{Error, Result};

/// The file under test.
const FILE: &str = "/mnt/tortured";
/// The file with a writer's error messages.
const COMPLAINT: &str = "/tmp/complaint";
/// The sectors of the records of a store's first region: of its last even commit, and of its last odd one.
const EVEN: u64 = 2 * 8 + 1;
const ODD: u64 = EVEN + 1;
/// The number of writer threads.
const THREADS: &str = "2";

/// The interface that the writer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// Reads and writes of a file.
    File,
    /// Plain loads and stores into a mapping of a file, and commits, for an engine that supports them.
    Map,
    /// The same into a region of a store, which has its own engine.
    Region,
}

impl Face {
    /// The arguments of a writing process, with a space after them.
    fn of_writer(self) -> &'static str {
        match self {
            Face::File => "",
            Face::Map => "--map ",
            Face::Region => "--region ",
        }
    }

    /// The arguments of a reading process: a mapped file is read as a file.
    fn of_reader(self) -> &'static str {
        if self == Face::Region { "--region " } else { "" }
    }
}

/// One run of the writer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life<'a> {
    /// Seed of the operations.
    pub(super) seed: u64,
    /// The engine.
    pub(super) engine: &'a str,
    /// The durability.
    pub(super) durability: &'static str,
    /// The interface that the writer uses.
    pub(super) face: Face,
    /// The writer's arguments for the log.
    pub(super) log: &'a [String],
    /// Whether every mapping must be a `MAP_SYNC` one.
    pub(super) demand_map_sync: bool,
}

/// Turns the raw namespace into one with DAX. Source: the kernel's `Documentation/driver-api/nvdimm`.
pub(super) fn make_fsdax() -> String {
    let lines = [
        "load nvdimm",
        "appear /dev/pmem0",
        "N=/sys/bus/nd",
        "S=$(cat $N/devices/region0/pfn_seed)",
        "echo namespace0.0 > $N/drivers/nd_pmem/unbind",
        "echo ram > $N/devices/$S/mode",
        "echo 2097152 > $N/devices/$S/align",
        "echo 6f4c3bb0-5c0c-4bd1-9d0e-3f6b1c7a52aa > $N/devices/$S/uuid",
        "echo namespace0.0 > $N/devices/$S/namespace",
        "echo $S > $N/drivers/nd_pmem/bind",
        "appear /dev/pmem0",
    ];
    lines.join(" && ")
}

/// Mounts the file system with DAX, or fails. A resumed machine continues with its old clock. Files must not be older
/// after a cut than before it, so the command sets the clock first.
pub(super) fn mount(file_system: FileSystem, memory: Memory) -> String {
    let modules = match memory {
        Memory::Nvdimm => "nvdimm",
        Memory::VirtioPmem => "virtio-pmem",
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let kind = file_system.as_str();
    format!(
        "date -s @{now} > /tmp/date && load {modules} && appear /dev/pmem0 && \
         mount -t {kind} -o dax=always /dev/pmem0 /mnt && grep -q '^/dev/pmem0 /mnt {kind} .*dax=always' /proc/mounts"
    )
}

/// Prints the medium that untorn detects.
pub(super) fn doctor() -> &'static str {
    "untorn doctor --json /mnt"
}

/// The medium in the answer to [`doctor`].
pub(super) fn medium(answer: &str) -> Result<String> {
    let object = object(answer)?;
    object["medium"]
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| Error::failed("find the medium in the output of `untorn doctor`", answer))
}

impl Life<'_> {
    /// Starts the writer, which creates the file, in the background.
    pub(super) fn write(&self) -> String {
        format!("untorn torture-writer --create {} > /dev/hvc0 2> {COMPLAINT} &", self.writer())
    }

    /// Starts a process that recovers the file and then waits, in the background.
    pub(super) fn recover(&self) -> String {
        format!("untorn torture-writer --idle {} > /dev/hvc0 2> {COMPLAINT} &", self.writer())
    }

    /// Tries a writer that requires `MAP_SYNC` and prints why it was refused; succeeds if it was.
    pub(super) fn refuse(&self) -> String {
        let life = Life { demand_map_sync: true, ..*self };
        // A writer that is not refused would write forever.
        let writer = life.writer().replace(FILE, "/mnt/refused");
        format!("timeout 120 untorn torture-writer --create {writer} 2>&1 > /tmp/unheard; [ $? = 1 ]")
    }

    /// Recovers and verifies; `reports` is the command that prints the writer's reports.
    pub(super) fn verify(&self, reports: &str) -> String {
        format!("{reports} | untorn torture-verify --threads {THREADS} {}{}", self.face.of_reader(), self.common())
    }

    fn writer(&self) -> String {
        let log: String = self.log.iter().map(|argument| format!("{argument} ")).collect();
        format!("--parent $$ --start 1,1 {}{log}{}", self.face.of_writer(), self.common())
    }

    fn common(&self) -> String {
        let demand = if self.demand_map_sync { " --demand-map-sync" } else { "" };
        let Life { seed, engine, durability, .. } = self;
        format!("--seed {seed} --engine {engine} --durability {durability}{demand} {FILE}")
    }
}

/// Erases only the records of the file's sidecar. The next open then behaves like a build without recovery.
/// `docs/format.md` defines the place and number of the records.
///
/// For a store, it erases the newer of its only region's two records: the next open behaves like a build that ignores
/// it.
pub(super) fn forget_records(face: Face) -> String {
    if face == Face::Region {
        return format!(
            "E=$(od -A n -t u4 -j {} -N 4 {FILE}) && O=$(od -A n -t u4 -j {} -N 4 {FILE}) && \
             dd if=/dev/zero of={FILE} bs=512 seek=$(($E > $O ? {} : {})) count=1 conv=notrunc 2>/tmp/dd",
            EVEN * 512,
            ODD * 512,
            EVEN,
            ODD
        );
    }
    format!(
        "S=/mnt/.untorn/$(stat -c %i {FILE}) && rm -f $S.spill && set -- $(od -A n -t u4 -j 100 -N 8 $S) && \
         dd if=/dev/zero of=$S bs=4096 seek=3 count=$(($1 * $2 / 64)) conv=notrunc 2>/tmp/dd"
    )
}

/// Prints the writer's error messages. On a busy machine the shell may not have started it yet.
pub(super) fn complaint() -> String {
    format!("[ ! -e {COMPLAINT} ] || cat {COMPLAINT}")
}

/// Prints the state of the program under test and of all blocked threads: each thread's name, state and kernel stack.
pub(super) fn waits() -> &'static str {
    "for t in /proc/[0-9]*/task/*; do c=$(cat $t/comm 2>/dev/null) && s=$(grep ^State: $t/status 2>/dev/null) && \
     case \"$c $s\" in untorn*|*D\\ *) echo \"$c, $s\"; cat $t/stack ;; esac; done 2>&1"
}

/// The result of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Operations that had returned.
    pub(super) operations: u64,
    /// Operations acknowledged as durable.
    pub(super) acknowledged: u64,
    /// The violations.
    pub(super) violations: Vec<String>,
}

impl Verdict {
    /// Parses the verifier's output.
    pub(super) fn parse(answer: &str) -> Result<Self> {
        let object = object(answer)?;
        let number = |key: &str| object[key].as_u64();
        let violations = object["violations"].as_array().map(|list| {
            list.iter().map(|what| what.as_str().map_or_else(|| what.to_string(), str::to_owned)).collect()
        });
        match (number("operations"), number("acknowledged"), violations) {
            (Some(operations), Some(acknowledged), Some(violations)) => {
                Ok(Verdict { operations, acknowledged, violations })
            }
            _ => Err(Error::failed("run `untorn torture-verify` in the guest", answer)),
        }
    }
}

/// The JSON object in an answer; other lines are messages.
fn object(answer: &str) -> Result<Value> {
    let line = answer.lines().find(|line| line.starts_with('{'));
    let object = line.and_then(|line| serde_json::from_str(line).ok());
    object.ok_or_else(|| Error::failed("parse the guest's answer", format!("no JSON object in {answer:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_found_among_messages_and_an_error_is_none() {
        let verdict = Verdict::parse("a warning\n{\"operations\":5,\"acknowledged\":3,\"violations\":[\"torn\"]}\n");
        let expected = Verdict { operations: 5, acknowledged: 3, violations: vec!["torn".to_owned()] };
        assert_eq!(verdict.unwrap(), expected);
        assert!(Verdict::parse("{\"error\":\"no such file\",\"path\":null}").is_err());
        assert!(Verdict::parse("killed").is_err());
        assert_eq!(medium("{\"medium\":\"pmem\"}").unwrap(), "pmem");
    }

    fn life(log: &[String]) -> Life<'_> {
        Life { seed: 7, engine: "hybrid-log", durability: "write", face: Face::File, log, demand_map_sync: false }
    }

    /// A file does not remember its log's options, so that whoever verifies needs none.
    #[test]
    fn writers_are_told_of_the_log() {
        let log = ["--log-policy=undo".to_owned(), "--log-size=2097152".to_owned()];
        let life = life(&log);
        for line in [life.write(), life.recover()] {
            assert!(line.contains(" --log-policy=undo --log-size=2097152 --seed 7 "), "{line}");
        }
        assert!(!life.verify("dd").contains("--log"));
    }

    /// Whoever looks into a region must be told so, too.
    #[test]
    fn a_region_is_verified_as_one_and_a_map_as_a_file() {
        for (face, writes, reads) in
            [(Face::File, "", ""), (Face::Map, "--map", ""), (Face::Region, "--region", "--region")]
        {
            let life = Life { face, ..life(&[]) };
            let told =
                |line: String| line.split(' ').filter(|word| ["--map", "--region"].contains(word)).collect::<String>();
            assert_eq!((told(life.write()), told(life.recover())), (writes.to_owned(), writes.to_owned()));
            assert_eq!((told(life.verify("dd")), told(life.refuse())), (reads.to_owned(), writes.to_owned()));
        }
        assert_ne!(forget_records(Face::Region), forget_records(Face::Map));
    }

    #[test]
    fn a_writer_demands_map_sync_exactly_where_it_is_told_to() {
        let life = life(&[]);
        assert!(!life.write().contains("--demand-map-sync") && life.refuse().contains("--demand-map-sync"));
        assert!(life.verify("dd").starts_with("dd | untorn torture-verify "));
    }
}
