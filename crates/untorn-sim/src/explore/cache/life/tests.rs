//! Lives with known events.

use super::super::super::life::{Context, Effort};
use super::super::config::Mode;
use super::*;

/// Runs this operation on a file of 210 bytes while the log is full of the entries of another file that failed, and
/// crashes everywhere.
fn past_a_full_log(durability: Durability, effort: Effort, op: Op) {
    let config = Config { medium: MediumClass::Block, durability, mode: Mode::Cached };
    let context = Context { config, muted: None, effort, shared: &Shared::new(u64::MAX) };
    let medium = SimMedium::new(config.medium);
    // If durability is left to a sync, the log is flushed before the file.
    let flush_of_the_file = if durability == Durability::PerWrite { 1 } else { 2 };
    let full = [
        Op::Create(1, 200, 140),
        Op::Drain,
        // Writers may have these 18 entries, and no more.
        Op::Create(0, 300, 8),
        Op::Write(0, 100, 200, 32),
        Op::Write(0, 200, 200, 40),
        Op::Write(0, 200, 200, 164),
        Op::Write(0, 60, 64, 90),
        Op::DrainFails(flush_of_the_file),
    ];
    let went_past = || medium.reached().iter().any(|barrier| barrier.name() == PAST);
    let life = Life::new(&context, medium.clone(), Model::new(durability), 1);
    must_live(life, |life| {
        Config::create(life, false)?;
        full.iter().try_for_each(|op| life.operation(op))?;
        assert!(!went_past());
        life.recorder.arm(true);
        life.operation(&op)?;
        assert!(went_past());
        Ok(())
    });
}

fn must_live(life: Life<'_>, script: impl FnOnce(&mut Life<'_>) -> Found<()>) {
    let config = life.config().to_string();
    if let Err(finding) = life.live(|life| script(life).map(|()| None)) {
        panic!("{}", finding.violation("a test".to_owned(), config));
    }
}

#[test]
fn a_write_for_which_failed_files_leave_no_room_may_be_torn() {
    let effort = Effort { cap: 8, samples: 8, minor_cap: 8, afterlife: 1, depth: 0 };
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        past_a_full_log(durability, effort, Op::Write(1, 60, 200, 175));
        past_a_full_log(durability, effort, Op::Append(1, 70, 33));
    }
}

#[test]
fn a_length_without_log_room_may_be_lost_after_it_was_seen() {
    let effort = Effort { cap: 0, samples: 0, minor_cap: 8, afterlife: 1, depth: 1 };
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        past_a_full_log(durability, effort, Op::SetLen(1, 60));
    }
}

/// Runs these operations on files behind a log on a disk, and crashes everywhere. Returns the final content of the
/// files, and whether the log was ever flushed for names of a directory.
fn lived(durability: Durability, mode: Mode, ops: &[Op]) -> (State, bool) {
    let config = Config { medium: MediumClass::Block, durability, mode };
    let effort = Effort { cap: 64, samples: 16, minor_cap: 8, afterlife: 1, depth: 0 };
    let context = Context { config, muted: None, effort, shared: &Shared::new(u64::MAX) };
    let mut seen = (State::new(), false);
    must_live(Life::new(&context, SimMedium::new(config.medium), Model::new(durability).like(&config), 1), |life| {
        Config::create(life, true)?;
        for op in ops {
            life.recorder.arm(true);
            life.operation(op)?;
        }
        let flushed = life.medium.reached().iter().any(|barrier| barrier.name() == "cache.names");
        seen = (life.model.visible(), flushed);
        Ok(())
    });
    seen
}

#[test]
fn each_sync_makes_all_changes_since_the_last_one_durable() {
    for last in [
        // A process makes this write, as it makes all writes of even bytes.
        Op::Write(0, 0, 70, 4),
        // The server makes this one.
        Op::Write(0, 0, 70, 3),
        Op::SetLen(0, 60),
        Op::SetLen(0, 200),
        Op::Append(0, 70, 5),
    ] {
        // The content from before processes were let in must be durable, too.
        let ops =
            [Op::Make(0, 70, 1), Op::Sync(0), Op::Write(0, 0, 70, 2), Op::Sync(0), last, Op::Sync(0), Op::Sync(0)];
        lived(Durability::PerCommit, Mode::Through, &ops);
    }
}

/// A flush of the log fails when it is opened, or amid a drain, and takes entries that the file has got: nobody else
/// changed the file for that.
#[test]
fn a_failed_flush_of_the_log_makes_no_stranger_of_it() {
    let effort = Effort { cap: 8, samples: 8, minor_cap: 8, afterlife: 1, depth: 0 };
    for (mode, seed) in [Mode::Through, Mode::Cached].into_iter().flat_map(|mode| (1..20).map(move |seed| (mode, seed)))
    {
        let config = Config { medium: MediumClass::Block, durability: Durability::PerCommit, mode };
        let context = Context { config, muted: None, effort, shared: &Shared::new(u64::MAX) };
        let model = Model::new(config.durability).like(&config);
        must_live(Life::new(&context, SimMedium::new(config.medium), model, seed), |life| {
            Config::create(life, false)?;
            // Long enough for the times to differ by more than the slack.
            let writes = (0..seed % 7 + 1).map(|n| Op::Write(0, 60 * (n % 4), 200, 3 + n as u8));
            let first = [Op::Create(0, 70, 1), Op::Sync(0)].into_iter().chain(writes);
            let fails = if seed % 2 == 0 { Op::ReopenFails(1) } else { Op::DrainFails(1) };
            first.chain([fails, Op::Reopen]).try_for_each(|op| life.operation(&op))
        });
    }
}

#[test]
fn a_name_is_kept_if_what_says_so_is_durable() {
    // The first new file needs a sync of its directory.
    let makes =
        [Op::Make(0, 70, 1), Op::SyncNames(0), Op::Make(1, 70, 1), Op::SyncNames(0), Op::Sync(1), Op::SyncNames(0)];
    lived(Durability::PerCommit, Mode::Through, &makes);
    let moves = [Op::SyncNames(0), Op::Create(0, 70, 1), Op::Sync(0), Op::Move(0, 1), Op::SyncNames(0)];
    lived(Durability::PerCommit, Mode::Through, &moves);
}

#[test]
fn a_name_is_given_up_for_good_only_by_all_that_had_it() {
    let first = [Op::SyncNames(0), Op::Create(0, 70, 1), Op::Sync(0), Op::Move(0, 1), Op::Sync(1)];
    let second = [Op::Make(0, 70, 1), Op::Sync(0), Op::Move(0, 2), Op::SyncNames(0)];
    // Chance decides which of the two is found first.
    for _ in 0..8 {
        let (_, flushed) = lived(Durability::PerCommit, Mode::Through, &[&first[..], &second].concat());
        assert!(flushed, "a crash may bring back the second");
    }
    assert!(!lived(Durability::PerCommit, Mode::Through, &[&first[..], &[Op::SyncNames(0)]].concat()).1, "for nothing");
}

#[test]
fn a_moved_file_keeps_its_name_when_its_successor_leaves() {
    let ops = [
        Op::Create(1, 70, 74),
        Op::Make(2, 1, 141),
        Op::SyncAll,
        Op::Move(2, 1),
        Op::Make(2, 300, 126),
        Op::Leave(2),
        Op::SyncNames(0),
    ];
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        assert_eq!(lived(durability, Mode::Cached, &ops).0, [(1, vec![141])].into());
    }
}

#[test]
fn an_epoch_is_never_there_without_the_one_before() {
    let ops = [
        Op::Create(0, 200, 1),
        Op::Sync(0),
        Op::Write(0, 0, 70, 2),
        Op::CommitLater(0),
        Op::Write(0, 100, 64, 3),
        Op::SetLen(0, 60),
        Op::Append(0, 64, 4),
        Op::Sync(0),
    ];
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        let expected = [&[2; 60][..], &[4; 64]].concat();
        assert_eq!(lived(durability, Mode::Atomic, &ops).0, [(0, expected)].into());
    }
}

#[test]
fn an_open_epoch_stays_whole_in_a_log_that_is_used_again() {
    let mut ops =
        vec![Op::Create(0, 70, 1), Op::Sync(0), Op::Write(0, 0, 70, 2), Op::SetLen(0, 50), Op::Create(1, 1, 1)];
    for tag in 3..12 {
        ops.extend([Op::Write(1, 0, 200, tag), Op::CommitLater(1)]);
        if tag % 3 == 0 {
            ops.push(Op::DrainSome);
        }
        if tag == 7 {
            ops.push(Op::Append(0, 64, 20));
        }
    }
    ops.push(Op::Sync(0));
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        let (state, _) = lived(durability, Mode::Atomic, &ops);
        assert_eq!(state[&0], [&[2; 50][..], &[20; 64]].concat());
    }
}

/// In this configuration writes of 128 bytes and more go to the spill file.
#[test]
fn a_chunk_is_used_again_only_when_the_tail_is_beyond_it() {
    let ops = [
        // Its open epoch is in the way of the tail.
        Op::Create(1, 1, 9),
        Op::Create(0, 70, 1),
        Op::Write(0, 0, 300, 2),
        Op::Sync(0),
        Op::DrainSome,
        Op::Write(0, 0, 300, 3),
        Op::Sync(0),
        Op::DrainSome,
        Op::Write(0, 100, 300, 4),
        Op::Abandon(0),
        Op::Write(0, 200, 200, 5),
        Op::CommitLater(0),
        Op::DrainSome,
        Op::Drain,
        Op::Write(0, 0, 300, 6),
        Op::Sync(0),
    ];
    let expected = [&[6; 300][..], &[5; 100]].concat();
    assert_eq!(lived(Durability::PerCommit, Mode::Atomic, &ops).0[&0], expected);
}

/// Small writes, of which the log has room for a few: the epoch is packed, and its packs are packed again.
#[test]
fn a_packed_epoch_is_there_whole_or_not_at_all() {
    let mut ops = vec![Op::Create(1, 1, 9), Op::Make(0, 70, 1), Op::Sync(0), Op::Write(1, 0, 70, 3)];
    let mut content = vec![1; 70];
    for tag in 10..30 {
        let at = u64::from(tag) * 13 % 150;
        ops.push(Op::Write(0, at, 64, tag));
        content.resize(content.len().max(at as usize + 64), 0);
        content[at as usize..at as usize + 64].fill(tag);
        if tag == 20 {
            ops.extend([Op::SetLen(0, 90), Op::DrainSome]);
            content.truncate(90);
        }
    }
    ops.extend([Op::Sync(0), Op::DrainSome, Op::Write(0, 0, 300, 40), Op::Abandon(0), Op::Drain, Op::Sync(1)]);
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        let (state, _) = lived(durability, Mode::Atomic, &ops);
        assert_eq!(state[&0], content);
        assert_eq!(state[&1][..70], [3; 70]);
    }
}
