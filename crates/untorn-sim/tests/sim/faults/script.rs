//! The script of operations.

use untorn_sim::script::{Op, Range};

/// The operations that are worth failing in: each one, on fresh and on written pages, within an epoch and across
/// commits.
pub(super) fn script() -> Vec<Op> {
    let mut writes = 0;
    // Each write has bytes of its own.
    let mut range = |(offset, len)| {
        writes += 1;
        Range { offset, len, seed: writes }
    };
    let mut transaction = |ranges: &[(u64, u64)]| Op::Transaction(ranges.iter().copied().map(&mut range).collect());
    let wide: Vec<(u64, u64)> = (0..10).map(|page| (page * 4096 + 40, 90)).collect();
    let transactions = [
        transaction(&[(100, 60), (4000, 500), (9400, 92)]),
        transaction(&[(90, 200), (4100, 130), (9410, 70)]),
        transaction(&wide),
        transaction(&wide),
        transaction(&wide),
    ];
    let [few, other_few, wide, other_wide, last_wide] = transactions;
    let mut write = |offset, len| Op::Write(range((offset, len)));
    let deploy = Op::Deploy { offset: 0, len: u64::MAX };
    vec![
        Op::Create { len: 2 * 4096 + 1300 },
        write(64, 64),
        write(4096, 128),
        Op::Sync,
        write(30, 300),
        write(50, 100),
        few,
        other_few,
        deploy.clone(),
        Op::Sync,
        write(0, 4096),
        write(10, 4000),
        Op::Eager(Range { offset: 50, len: 100, seed: 1000 }),
        Op::Reclaim,
        Op::Sync,
        deploy.clone(),
        Op::Sync,
        Op::Reclaim,
        write(4140, 40),
        Op::Resize { len: 4150 },
        Op::Resize { len: 3 * 4096 + 100 },
        write(4100, 200),
        Op::Close,
        write(1000, 700),
        Op::Drop,
        Op::Resize { len: 10 * 4096 + 77 },
        wide,
        other_wide,
        Op::Sync,
        deploy,
        last_wide,
        Op::Resize { len: 2 * 4096 + 10 },
        write(4000, 4000),
        Op::Sync,
        Op::Settle,
        write(70, 90),
        Op::Sync,
        Op::Close,
    ]
}
